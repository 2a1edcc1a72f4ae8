"""First steps: send now and later, consume, fail, come back, die. Runs by itself on a local broker.

    python examples/first_steps.py

With ROCKETSHIM_BOOTSTRAP set it runs on that cluster (its topics begin with `example`). The worker runs in a thread
here to keep the example in one file; in earnest it is a process of its own: `rocketshim worker --allow orders`.
"""

import threading
import uuid

from confluent_kafka.admin import AdminClient

from rocketshim import (
    ConsumeConcurrentlyContext,
    ConsumeFromWhere,
    DeadLetter,
    DelayLevels,
    DelayWorker,
    Layout,
    Message,
    MessageView,
    Producer,
    PushConsumer,
    RetryLater,
    TopicNames,
    TopicSpec,
    WorkerSettings,
    ensure_topics,
)
from rocketshim.local import any_broker

LEVELS = "1s 2s 3s 4s 5s"  # RocketMQ's table begins with 1s 5s 10s; this one keeps the example short


def main() -> None:
    """Five orders: one now, one later, one that is busy once, one that fails twice, one that is hopeless."""
    mark = f"example{uuid.uuid4().hex[:6]}"
    with any_broker(report=print) as broker:
        names, orders = TopicNames(mark), f"{mark}.orders"
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        shared = Layout(names, DelayLevels.parse(LEVELS)).shared()
        ensure_topics(admin, [*shared, TopicSpec(orders, partitions=2)])

        worker = DelayWorker(
            WorkerSettings.make(bootstrap=broker.bootstrap, namespace=mark, delay_levels=LEVELS, allow=(orders,))
        )
        moving = threading.Thread(target=worker.run)
        moving.start()

        consumer = PushConsumer(
            broker.bootstrap,
            group="payments",
            namespace=mark,
            delay_levels=LEVELS,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        )
        left = threading.Semaphore(0)

        @consumer.listener(orders, tags="created || paid")
        def handle(message: MessageView, context: ConsumeConcurrentlyContext) -> None:
            del context
            order = (message.body or b"").decode()
            print(f"{order}, attempt {message.reconsume_times + 1}")
            if order == "busy" and message.reconsume_times == 0:
                raise RetryLater("500ms")
            if order == "twice" and message.reconsume_times < 2:
                raise OSError("the bank does not answer")
            left.release()
            if order == "hopeless":
                raise DeadLetter("no such customer")

        with consumer, Producer(broker.bootstrap, namespace=mark, delay_levels=LEVELS) as producer:
            for order in ("now", "busy", "twice", "hopeless"):
                producer.send(Message(orders, order.encode(), key=order, tag="created"), timeout_s=30)
            producer.send(Message(orders, b"later", tag="paid", delay="1500ms"), timeout_s=30)
            producer.send(Message(orders, b"not for us", tag="deleted"), timeout_s=30)
            for _ in range(5):
                left.acquire()
        worker.stop()
        moving.join()
        print(f"sent back: {consumer.send_back_counts}")
        for future in admin.delete_topics(
            [name for name in admin.list_topics().topics if name.startswith(mark)]
        ).values():
            future.result(30)


if __name__ == "__main__":
    main()
