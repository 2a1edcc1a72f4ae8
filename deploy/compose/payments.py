"""The consumer of the Compose file; put your own in its place. `rocketshim run payments:consumer` runs it."""

import logging
import os

from rocketshim import MessageView, PushConsumer

consumer = PushConsumer(group="payments")  # brokers and namespace: ROCKETSHIM_BOOTSTRAP, ROCKETSHIM_NAMESPACE


@consumer.listener(os.environ.get("PAYMENTS_TOPIC", "orders"))
def pay(message: MessageView) -> None:
    """Pay an order. An exception makes a retry, and after 16 retries a dead letter."""
    logging.getLogger("shop").info("paid %s", message.key)
