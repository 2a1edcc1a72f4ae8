"""Created, paid, shipped: the events of each order in their order, while another order fails. Runs by itself.

    python examples/orderly_shipping.py

With `order="key"` a failing message holds up only the messages with its key. With ROCKETSHIM_BOOTSTRAP set it runs on
that cluster (its topics begin with `example`).
"""

import threading
import uuid
from collections import defaultdict

from confluent_kafka.admin import AdminClient

from rocketshim import (
    ConsumeFromWhere,
    ConsumeOrderlyContext,
    DelayLevels,
    Layout,
    Message,
    MessageView,
    Producer,
    PushConsumer,
    TopicNames,
    TopicSpec,
    ensure_topics,
)
from rocketshim.local import any_broker

STEPS = (b"created", b"paid", b"shipped")


def main() -> None:
    """Three orders with three events each; the payment of one order fails twice."""
    mark = f"example{uuid.uuid4().hex[:6]}"
    topic, done = f"{mark}.orders", threading.Semaphore(0)
    seen: defaultdict[str, list[bytes]] = defaultdict(list)
    failures = 2
    with any_broker(report=print) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        layout = Layout(TopicNames(mark), DelayLevels.default())
        ensure_topics(
            admin, [*layout.shared(), *layout.for_group("shipping", with_log=True), TopicSpec(topic, partitions=1)]
        )
        consumer = PushConsumer(
            broker.bootstrap,
            group="shipping",
            namespace=mark,
            order="key",
            suspend_current_queue_time_ms=200,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        )

        @consumer.listener(topic, orderly=True)
        def ship(message: MessageView, context: ConsumeOrderlyContext) -> None:
            nonlocal failures
            order, step = (message.key or b"").decode(), message.body or b""
            if (order, step) == ("o-2", b"paid") and failures:
                failures -= 1
                raise ConnectionError("the bank does not answer")
            print(f"{order} {step.decode():7} (token {context.fencing_token})")
            seen[order].append(step)
            done.release()

        with Producer(broker.bootstrap, namespace=mark) as producer, consumer:
            for step in STEPS:
                for order in ("o-1", "o-2", "o-3"):
                    producer.send(Message(topic, step, key=order), timeout_s=30)
            for _ in range(9):
                done.acquire()
        ours = [each for each in admin.list_topics().topics if each.startswith(mark)]
        for future in admin.delete_topics(ours).values():
            future.result(30)
    if any(tuple(steps) != STEPS for steps in seen.values()):
        raise SystemExit(f"not as it should be: {dict(seen)}")


if __name__ == "__main__":
    main()
