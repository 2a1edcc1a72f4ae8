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
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames
from rocketshim_topics.partitioner import TIMER_PARTITIONS, timer_partition

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
        self.kafka.create_topic(NAMES.timers, TIMER_PARTITIONS, config=stamped)
        self.kafka.create_topic(NAMES.timer_state, TIMER_PARTITIONS, config={**stamped, "cleanup.policy": "compact"})
        self.kafka.create_topic("orders", 3, config=stamped)
        self.workers: list[DelayWorker] = []
        self.clients: list[Any] = []

    def _wait(self, seconds: float) -> None:
        self.clock.advance(seconds * 1_000 if seconds >= 0 else 100)

    def worker(
        self, *, start: bool = True, on_point: Callable[[str], None] = lambda _: None, **settings: Any
    ) -> DelayWorker:
        values = {
            "bootstrap": "memory",
            "allow": ("orders", "audit*"),
            "delay_levels": LEVELS,
            "exactly_once": self.exactly_once,
            **settings,
        }
        worker = DelayWorker(
            WorkerSettings.make(**values),
            clients=Clients(
                consumer=lambda config: self._made(self.kafka.consumer(config)),
                producer=lambda config: self._made(self.kafka.producer(config)),
            ),
            clock=self.clock,
            sleep=self.clock.sleep,
            on_point=on_point,
        )
        self.workers.append(worker)
        if start:
            worker.start()
        return worker

    def _made(self, client: Any) -> Any:
        self.clients.append(client)
        return client

    def kill(self, worker: DelayWorker) -> None:
        """End the process of the only worker: nothing is flushed or committed."""
        self.workers.remove(worker)
        for client in self.clients:
            self.kafka.kill(client)
        self.clients.clear()

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

    def command(
        self,
        what: str = "SET",
        *,
        timer: str = "o-7",
        topic: str = "orders",
        delay_ms: int | None = 1_000,
        value: bytes | None = b"body",
        generation: int | None = None,
        partition: int | None = None,
        headers: list[tuple[str, bytes | None]] | None = None,
    ) -> Message:
        """Put a command for a named timer into its log."""
        own: list[tuple[str, bytes | None]] = [("REAL_TOPIC", topic.encode()), ("TIMER", timer.encode())]
        own.append(("TIMER_DO", what.encode()))
        if what.startswith("SET") and delay_ms is not None:
            own.append(("DELAY_MS", b"%d" % delay_ms))
        if generation is not None:
            own.append(("TIMER_SET_AT", b"%d" % generation))
        return self.kafka.append(
            NAMES.timers,
            value if what in {"SET", "SET-IF-ABSENT", "FIRE"} else None,
            partition=timer_partition(topic, timer) if partition is None else partition,
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

    @staticmethod
    def key(partition: int) -> TopicPartitionKey:
        """Return the name of a delay queue's partition."""
        return TopicPartitionKey(SCHEDULE, partition)

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
