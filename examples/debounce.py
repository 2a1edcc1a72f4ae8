"""Index a product once after many changes, and not once for each change. Runs in memory, in a second.

    python examples/debounce.py

Each change sends a message with a delay of 5 seconds, under the name of the product. It replaces the one that waits, so
that the message comes 5 seconds after the last change. `at_most` bounds the waiting: a product that never stops to
change is still indexed every 2 minutes. There is no state in the program, so that any number of processes may send.
"""

from rocketshim import MessageView, Producer, PushConsumer
from rocketshim.harness import Harness

consumer = PushConsumer("localhost:9092", group="search-index")
indexed: list[str] = []


def changed(producer: Producer, product: str) -> None:
    """Have a product indexed soon; called often."""
    producer.send("reindex", product.encode(), delay="5s", timer=product, at_most="2m", timeout_s=30)


@consumer.listener("reindex")
def index(message: MessageView) -> None:
    """Read the product from the database as it is now, and index it."""
    indexed.append((message.body or b"").decode())


def main() -> None:
    """A burst of changes to one product, and one that changes every second for five minutes."""
    with Harness() as harness:
        harness.topic("reindex")
        harness.run(consumer)
        for _ in range(20):
            changed(harness.producer, "book")
        harness.pass_time("6s")
        burst = indexed.copy()
        print("20 changes within a moment:", *burst)
        indexed.clear()
        for _ in range(300):
            changed(harness.producer, "pen")
            harness.pass_time("1s")
        harness.pass_time("10s")
        print("300 changes, one a second:", *indexed)
    if (burst, indexed) != (["book"], ["pen"] * 3):
        raise SystemExit("not as it should be")


if __name__ == "__main__":
    main()
