"""A worker as a process of its own in a namespace of its own, and what lies in its topics.

What was sent and when is judged by the broker's own stamps: schedule topic and targets have LogAppendTime. Each
delivered record names by `HOP_ID` the schedule record it was made from, so every hop can be followed back.
"""

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.admin import AdminClient

from rocketshim.producer.producer import Producer
from rocketshim_topics.names import TopicNames

__all__ = ["DEADLINE_S", "LEVELS", "STAMPED", "WorkerStage", "first_of", "header", "recovery_s"]

LEVELS = "1s 2s 1s 2s 1s 2s 1s 2s 1s 2s 1s 2s 1s 2s 1s 2s 3s 1s"
STAMPED = {"message.timestamp.type": "LogAppendTime"}
DEADLINE_S = 120.0


@dataclass
class WorkerStage:
    """One namespace with its topics, and the workers that run in it."""

    bootstrap: str
    names: TopicNames
    logs: Path
    admin: AdminClient
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def worker(self, *options: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        with (self.logs / f"worker-{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [
                    sys.executable, "-m", "rocketshim", "worker", "--bootstrap", self.bootstrap,
                    "--namespace", self.names.namespace, "--delay-levels", LEVELS, "--log-format", "json", *options,
                ],
                stdout=log,
                stderr=log,
                env=env,
            )  # fmt: skip
        self.processes.append(process)
        return process

    @contextmanager
    def sender(self) -> Iterator[Producer]:
        with Producer(self.bootstrap, namespace=self.names.namespace, delay_levels=LEVELS) as producer:
            yield producer

    def end(self, topic: str) -> int:
        """The offsets of a topic's partitions so far, summed up; for a topic that is being written to."""
        reader = Consumer({"bootstrap.servers": self.bootstrap, "group.id": uuid.uuid4().hex})
        try:
            count = len(self.admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions)
            places = [TopicPartition(topic, number) for number in range(count)]
            return sum(reader.get_watermark_offsets(each, timeout=DEADLINE_S)[1] for each in places)
        finally:
            reader.close()

    def read(self, topic: str) -> list[Message]:
        """Everything that lies in a topic now, as `read_committed` readers see it; it has no end while more comes."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap, "group.id": uuid.uuid4().hex, "enable.auto.commit": False,
                "enable.partition.eof": True, "auto.offset.reset": "earliest",
            }
        )  # fmt: skip
        try:
            count = len(self.admin.list_topics(topic, timeout=DEADLINE_S).topics[topic].partitions)
            consumer.assign([TopicPartition(topic, number, 0) for number in range(count)])
            found, ended = [], 0
            while ended < count:
                message = consumer.poll(DEADLINE_S)
                assert message is not None, f"no end of {topic} within {DEADLINE_S} s"
                if message.error() is None:
                    found.append(message)
                elif message.error().code() == KafkaError._PARTITION_EOF:
                    ended += 1
            return found
        finally:
            consumer.close()

    def read_until(self, topic: str, count: int) -> list[Message]:
        """The records of a topic once it has a number of different messages; some may be there twice."""
        end = time.monotonic() + DEADLINE_S
        while True:
            found = self.read(topic)
            different = len({(record.key(), record.value()) for record in found})
            if different >= count:
                return found
            assert time.monotonic() < end, f"{different} of {count} messages in {topic}; logs in {self.logs}"
            time.sleep(0.1)

    def schedule_records(self) -> dict[str, Message]:
        """What lies in the schedule topic, by coordinates."""
        return {
            f"{record.topic()}/{record.partition()}/{record.offset()}": record
            for record in self.read(self.names.schedule)
        }

    def kill(self) -> None:
        """End the workers that are still alive."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait(DEADLINE_S)


def header(record: Message, name: str) -> str | None:
    value = dict(record.headers() or []).get(name)
    return value.decode() if isinstance(value, bytes) else value


def first_of(record: Message, schedule: dict[str, Message]) -> tuple[Message, int]:
    """The schedule record a message began as, and how many hops it took; without those of a slow target."""
    hops = 0
    while (origin := schedule.get(header(record, "HOP_ID") or "")) is not None:
        record = origin
        hops += header(record, "TARGET_TRIES") is None
    return record, hops


def recovery_s(delivered: list[Message], schedule: dict[str, Message], since_ms: int) -> float:
    """For how long after an event messages were still delivered late because of it, in seconds, by the broker's stamps.

    The longest that a message came after it was due and after the event.
    """
    waits_ms = []
    for record in delivered:
        first, _ = first_of(record, schedule)
        due_ms = first.timestamp()[1] + int(header(first, "DELAY_MS") or 0)
        waits_ms.append(record.timestamp()[1] - max(due_ms, since_ms))
    return max(waits_ms) / 1_000
