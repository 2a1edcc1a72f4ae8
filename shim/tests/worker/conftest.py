"""One worker on the in-memory Kafka; time passes only while the worker waits."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from rocketshim.kafka.clients import Clients
from rocketshim.settings.worker import WorkerSettings
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim.worker.at_least_once import AtLeastOnce
from rocketshim.worker.worker import DelayWorker
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames

LEVELS = DelayLevels.parse("1s 2s 3s 10s")
NAMES = TopicNames("")
SCHEDULE, PARKED = NAMES.schedule, NAMES.parked


class Simulation:
    """A cluster, its clock, and workers that the test drives step by step."""

    def __init__(self, *, exactly_once: bool = False) -> None:
        self.exactly_once = exactly_once
        self.clock = VirtualClock(auto_advance=True)
        self.kafka = InMemoryKafka(self.clock, on_wait=self._wait)
        stamped = {"message.timestamp.type": "LogAppendTime"}
        self.kafka.create_topic(SCHEDULE, 32, config=stamped)
        self.kafka.create_topic(PARKED, 1)
        self.kafka.create_topic("orders", 3, config=stamped)
        self.workers: list[DelayWorker] = []

    def _wait(self, seconds: float) -> None:
        self.clock.advance(seconds * 1_000 if seconds >= 0 else 100)

    def worker(self, *, start: bool = True, **settings: Any) -> DelayWorker:
        values = {
            "bootstrap": "memory",
            "allow": ("orders", "audit*"),
            "delay_levels": LEVELS,
            "exactly_once": self.exactly_once,
            **settings,
        }
        worker = DelayWorker(
            WorkerSettings.make(**values),
            clients=Clients(consumer=self.kafka.consumer, producer=self.kafka.producer),
            clock=self.clock,
            sleep=self.clock.sleep,
        )
        self.workers.append(worker)
        if start:
            worker.start()
        return worker

    def run(self, worker: DelayWorker, ms: float) -> None:
        """Run the worker for a number of milliseconds of virtual time."""
        until_ns = self.clock.monotonic_ns() + round(ms * 1e6)
        while (left_ns := until_ns - self.clock.monotonic_ns()) > 0:
            before_ns = self.clock.monotonic_ns()
            worker.step(min(1_000, max(1, left_ns // 1_000_000)))
            if self.clock.monotonic_ns() == before_ns:
                self.clock.advance(0.01)  # work takes time, too

    def until(self, worker: DelayWorker, fact: Callable[[], bool], longest_ms: float = 120_000) -> None:
        """Run the worker until a fact holds."""
        until_ns = self.clock.monotonic_ns() + round(longest_ms * 1e6)
        while not fact():
            assert self.clock.monotonic_ns() < until_ns, "it did not come true in time"
            self.run(worker, 5)

    def schedule(
        self,
        *,
        topic: str | None = "orders",
        level: int = 1,
        partition: int | None = None,
        value: bytes | None = b"body",
        key: bytes | None = None,
        headers: list[tuple[str, bytes | None]] | None = None,
        uniq: bytes | None = b"u",
        relative: bool = True,
    ) -> Message:
        """Put a record into the schedule topic, as a sender at this level does."""
        own: list[tuple[str, bytes | None]] = []
        if topic is not None:
            own.append(("REAL_TOPIC", topic.encode()))
        if relative:
            own.append(("DELAY_MS", b"%d" % LEVELS.delay_ms(level)))
        if uniq is not None:
            own.append(("UNIQ_KEY", uniq))
        return self.kafka.append(
            SCHEDULE,
            value,
            key=key,
            partition=LEVELS.partition(level) if partition is None else partition,
            headers=[*own, *(headers or [])],
        )

    def delivered(self, topic: str = "orders") -> list[Message]:
        return self.kafka.records(topic)

    def parked(self) -> list[tuple[str, str]]:
        """Return reason and origin of each parked record."""
        return [
            (header(record, "PARK_REASON") or "", header(record, "PARK_FROM") or "")
            for record in self.kafka.records(PARKED)
        ]

    def denied_position(self, asked: TopicPartition) -> Any:
        """Return the client's answer for a partition whose committed position the broker does not tell."""
        error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
        return SimpleNamespace(topic=asked.topic, partition=asked.partition, offset=-1001, metadata=None, error=error)

    def position(self, partition: int = 0) -> int | None:
        return self.kafka.committed(NAMES.worker_group).get((SCHEDULE, partition))


def header(record: Message, name: str) -> str | None:
    value = dict(record.headers() or []).get(name)
    return value.decode() if isinstance(value, bytes) else value


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "only(mode): about one way to deliver")


@pytest.fixture(params=["at-least-once", "exactly-once"])
def sim(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    """Run each test with both deliveries, which keep the same promises; the mark `only` selects one."""
    only = request.node.get_closest_marker("only")
    if only is not None and request.param != only.args[0]:
        pytest.skip(f"about {only.args[0]} delivery")
    simulation = Simulation(exactly_once=request.param == "exactly-once")
    yield simulation
    for worker in simulation.workers:
        _nothing_is_miscounted(worker)
        worker.close()


def _nothing_is_miscounted(worker: DelayWorker) -> None:
    """Check that the records in flight are those of open batches and those that wait."""
    delivery = worker._delivery
    if isinstance(delivery, AtLeastOnce):
        flights = [flight for _, flight, _ in delivery._waiting]
        flights += [flight for ready in delivery._unready.values() for flight, indexes in ready for _ in indexes]
        flights += [flight for flight, group, _ in delivery._backlog for _ in group.records]
        flights += [batch.flight for batch in delivery._in_flight.batches for _ in batch.indexes]
        assert delivery._in_flight.count == len(flights)
        assert delivery._in_flight.size_bytes == pytest.approx(sum(flight.mean_bytes for flight in flights), abs=1e-3)
