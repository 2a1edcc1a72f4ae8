"""A shop to copy and to break: its orders are charged, retried, or dead letters, for causes that can be counted.

    rocketshim dev shop:consumer           # terminal 1, in the folder of this file: Kafka, the worker, this consumer
    export ROCKETSHIM_BOOTSTRAP=localhost:9092
    python shop.py 20                      # terminal 2: place 20 orders

In production the worker and each consumer are services of their own: `rocketshim run shop:consumer --processes 4`.
"""

import json
import logging
import sys

from rocketshim import DeadLetter, Message, MessageView, Producer, PushConsumer

log = logging.getLogger("shop")

consumer = PushConsumer(group="payments")  # the address is that of ROCKETSHIM_BOOTSTRAP


@consumer.listener("orders")
def charge(message: MessageView) -> None:
    """Charge an order. An error brings it back after 10 s, 30 s, 1 min …; `DeadLetter` ends it."""
    order = json.loads(message.body or b"")
    if order["amount"] <= 0:
        raise DeadLetter(f"the amount of order {order['id']} is {order['amount']}")
    if order["id"] % 5 == 0 and message.reconsume_times == 0:
        raise ConnectionError("the bank does not answer")
    log.warning("charged %s for order %s", order["amount"], order["id"])


def place(producer: Producer, number: int) -> None:
    """Place an order; one of seven has no amount."""
    order = {"id": number, "amount": 0 if number % 7 == 0 else 10 * number}
    producer.send(Message("orders", json.dumps(order).encode(), key=f"o-{number}"))


if __name__ == "__main__":
    with Producer() as producer:
        for number in range(1, int(sys.argv[1] if sys.argv[1:] else 20) + 1):
            place(producer, number)
