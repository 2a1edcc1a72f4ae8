"""Three groups read one topic, each its own part: by tag, by SQL92, by Python. Runs in memory, in a second.

python examples/filters.py
"""

from collections import defaultdict

from rocketshim import Message, MessageView, PushConsumer
from rocketshim.harness import Harness

seen: defaultdict[str, list[bytes | None]] = defaultdict(list)

paid = PushConsumer("localhost:9092", group="invoices", consume_thread_min=1)
dear = PushConsumer("localhost:9092", group="fraud", consume_thread_min=1)
long = PushConsumer("localhost:9092", group="archive", consume_thread_min=1)


@paid.listener("orders", tags="paid || shipped")
def send_invoice(message: MessageView) -> None:
    """Get orders with one of two tags."""
    seen["by tag"].append(message.body)


@dear.listener("orders", sql="price > 1000 AND country IN ('DE', 'FR')")
def check(message: MessageView) -> None:
    """Get orders by their properties."""
    seen["by SQL"].append(message.body)


@long.listener("orders", selector=lambda message: len(message.body) > 4)
def archive(message: MessageView) -> None:
    """Get orders that a Python function selects."""
    seen["by Python"].append(message.body)


def main() -> None:
    """Three orders."""
    with Harness() as harness:
        harness.run(paid, dear, long)
        harness.send(
            Message("orders", b"o-1", tag="created", properties={"price": "2000", "country": "DE"}),
            Message("orders", b"o-2", tag="paid", properties={"price": "10", "country": "DE"}),
            Message("orders", b"o-3333", tag="shipped", properties={"price": "5000", "country": "US"}),
        )
    for how, bodies in seen.items():
        print(how, bodies)
    if seen != {"by tag": [b"o-2", b"o-3333"], "by SQL": [b"o-1"], "by Python": [b"o-3333"]}:
        raise SystemExit("not as it should be")


if __name__ == "__main__":
    main()
