"""A worker that delivers in transactions is killed with `kill -9`, and nothing is delivered twice. Runs by itself.

    python examples/exactly_once_worker.py

With `--exactly-once` the worker reads and writes in Kafka transactions. Its `--instance` is a stable name, so that the
restarted worker immediately ends the transaction that the killed one left open. Readers need
`isolation.level=read_committed`, which rocketshim's consumers have. With ROCKETSHIM_BOOTSTRAP set it runs on that
cluster (its topics begin with `example`).
"""

import subprocess
import sys
import uuid
from collections import Counter

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from rocketshim import DelayLevels, Layout, Message, Producer, TopicNames, TopicSpec, ensure_topics
from rocketshim.local import any_broker

COUNT = 500


def main() -> None:
    """500 delayed messages; the worker is killed when the first ones have arrived."""
    mark = f"example{uuid.uuid4().hex[:6]}"
    orders = f"{mark}.orders"
    with any_broker(report=print) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        ensure_topics(
            admin, [*Layout(TopicNames(mark), DelayLevels.default()).shared(), TopicSpec(orders, partitions=1)]
        )
        worker = [sys.executable, "-m", "rocketshim", "worker", "--bootstrap", broker.bootstrap, "--namespace", mark]
        worker += ["--allow", orders, "--exactly-once", "--instance", "worker-1"]
        reading = {"bootstrap.servers": broker.bootstrap, "group.id": mark, "auto.offset.reset": "earliest"}
        arrived: Counter[bytes] = Counter()
        with Producer(broker.bootstrap, namespace=mark) as producer:
            producer.send_batch(
                [Message(orders, str(number).encode(), delay="1s") for number in range(COUNT)], timeout_s=30
            )
        running = subprocess.Popen(worker)  # noqa: S603 - our own program
        consumer = Consumer({**reading, "isolation.level": "read_committed"})
        consumer.subscribe([orders])
        killed = False
        while len(arrived) < COUNT:
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                arrived[message.value() or b""] += 1
                if not killed:
                    running.kill()
                    running.wait()
                    print("the worker was killed after the first message had arrived")
                    running = subprocess.Popen(worker)  # noqa: S603 - our own program
                    killed = True
        consumer.close()
        running.terminate()
        running.wait()
        twice = sum(count > 1 for count in arrived.values())
        print(f"{len(arrived)} messages arrived, {twice} of them twice")
        ours = [each for each in admin.list_topics().topics if each.startswith(mark)]
        for future in admin.delete_topics(ours).values():
            future.result(30)
    if twice:
        raise SystemExit("not as it should be")


if __name__ == "__main__":
    main()
