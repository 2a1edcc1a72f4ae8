"""Every process refreshes its cache when a price changes: broadcasting. Runs by itself on a local broker.

    python examples/broadcasting_cache.py

In broadcasting each member of a group gets every message. It needs no worker and no topics of rocketshim: nothing is
retried. With ROCKETSHIM_BOOTSTRAP set it runs on that cluster, on a topic of its own that it deletes.
"""

import tempfile
import threading
import uuid

from confluent_kafka.admin import AdminClient

from rocketshim import (
    ConsumeFromWhere,
    Message,
    MessageModel,
    MessageView,
    Producer,
    PushConsumer,
    TopicSpec,
    ensure_topics,
)
from rocketshim.local import any_broker


class ShopProcess:
    """A process with a cache of prices. Each has a client id of its own, which it keeps over restarts."""

    def __init__(self, bootstrap: str, prices: str, name: str, offsets: str) -> None:
        self.cache: dict[str, bytes] = {}
        self.refreshed = threading.Semaphore(0)
        self.consumer = PushConsumer(
            bootstrap,
            group="caches",
            message_model=MessageModel.BROADCASTING,
            client_id=name,
            offset_store_dir=offsets,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        )
        self.consumer.listener(prices)(self.refresh)

    def refresh(self, message: MessageView) -> None:
        """Put a price into the cache."""
        self.cache[(message.key or b"").decode()] = message.body or b""
        self.refreshed.release()


def main() -> None:
    """Two processes, two prices: each process gets both."""
    prices = f"example{uuid.uuid4().hex[:6]}.prices"
    with any_broker(report=print) as broker, tempfile.TemporaryDirectory() as offsets:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        ensure_topics(admin, [TopicSpec(prices, partitions=2)])
        shops = [ShopProcess(broker.bootstrap, prices, name, offsets) for name in ("shop-1", "shop-2")]
        with shops[0].consumer, shops[1].consumer, Producer(broker.bootstrap) as producer:
            producer.send(Message(prices, b"12.50", key="book"), timeout_s=30)
            producer.send(Message(prices, b"3.20", key="pen"), timeout_s=30)
            for shop in shops:
                shop.refreshed.acquire()
                shop.refreshed.acquire()
                print(shop.consumer.settings.client_id, shop.cache)
        admin.delete_topics([prices])[prices].result(30)
    if any(shop.cache != {"book": b"12.50", "pen": b"3.20"} for shop in shops):
        raise SystemExit("not as it should be")


if __name__ == "__main__":
    main()
