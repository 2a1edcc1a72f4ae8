"""Reading at your own pace: poll in a group, then pull a queue by offset. Runs by itself on a local broker.

    python examples/pull.py

With ROCKETSHIM_BOOTSTRAP set it runs on that cluster, on a topic of its own that it deletes.
"""

import uuid

from confluent_kafka.admin import AdminClient

from rocketshim import (
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    MessageSelector,
    Producer,
    PullConsumer,
    PullStatus,
    TopicSpec,
    ensure_topics,
)
from rocketshim.local import any_broker


def main() -> None:
    """Twenty orders; the paid ones are polled, then all are read again by offset."""
    orders = f"example{uuid.uuid4().hex[:6]}.orders"
    with any_broker(report=print) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        ensure_topics(admin, [TopicSpec(orders, partitions=2)])
        with Producer(broker.bootstrap) as producer:
            for number in range(20):
                tag = "paid" if number % 4 == 0 else "created"
                producer.send(Message(orders, str(number).encode(), tag=tag), timeout_s=30)

        with LitePullConsumer(
            broker.bootstrap, group="reports", consume_from_where=ConsumeFromWhere.FIRST_OFFSET
        ) as consumer:
            consumer.subscribe(orders, MessageSelector.by_tag("paid"))
            paid = 0
            while paid < 5:
                for message in consumer.poll():
                    paid += 1
                    print(f"paid: order {message.body!r}")
            consumer.commit_sync()

        with PullConsumer(broker.bootstrap, group="audit") as audit:
            for queue in audit.fetch_message_queues(orders):
                offset, count = audit.min_offset(queue), 0
                while (result := audit.pull(queue, None, offset, 8)).status is not PullStatus.NO_NEW_MSG:
                    count += len(result.messages)
                    offset = result.next_begin_offset
                print(f"queue {queue.queue_id}: {count} messages up to offset {offset}")
        admin.delete_topics([orders])[orders].result(30)


if __name__ == "__main__":
    main()
