"""A poll loop on the in-memory Kafka, its listeners run by hand: nothing here runs in parallel, nothing sleeps."""

from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from rocketshim.clock import SystemClock
from rocketshim.consumer.concurrent import ConcurrentDispatch, ConcurrentMode, ConcurrentRunner
from rocketshim.consumer.dispatch import Result
from rocketshim.consumer.listeners import adapt
from rocketshim.consumer.poll_loop import PollLoop
from rocketshim.consumer.push.push_consumer import PushConsumer
from rocketshim.consumer.reader.partition_reader import PartitionReader
from rocketshim.consumer.send_back import SendBack
from rocketshim.core.clock import Clock, now_ms_of
from rocketshim.core.partition import FlowLimits
from rocketshim.core.process_deaths import CarefulStart
from rocketshim.core.process_queue import Chunk
from rocketshim.core.retry_policy import LevelTableRetryPolicy
from rocketshim.core.start_position import ConsumeFromWhere, StartRules
from rocketshim.core.subscriptions import Subscription, Subscriptions, digest_of
from rocketshim.kafka.clients import Clients
from rocketshim.locks.lease import Ownership
from rocketshim.settings.consumer import PushConsumerSettings
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics import DelayLevels, TopicNames

GROUP = "g"


class Record:
    """A record of one byte: an offset and a time, and nothing else."""

    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return 1, 0

    def __len__(self) -> int:
        return 1


def settings_of(batch_count: int = 1, **values: Any) -> PushConsumerSettings:
    """The settings of a member of group `g`."""
    return PushConsumerSettings.make(
        bootstrap="memory:1", group=GROUP, consume_message_batch_max_size=batch_count, **values
    )


def dispatch_of(pool: Any, send_back: Any, batch_count: int = 1) -> ConcurrentDispatch:
    """A dispatch alone."""
    reader: Any = SimpleNamespace(care=CarefulStart())
    return ConcurrentDispatch(pool, send_back, settings_of(batch_count), VirtualClock(), reader)


class HandPool:
    """A pool whose one worker is the test: `work` runs the next chunk; `wait` lets time pass instead of waiting."""

    shares_chunks = False

    def __init__(self, runner: ConcurrentRunner, clock: VirtualClock) -> None:
        self.results: SimpleQueue[Result] = SimpleQueue()
        self.tasks: deque[Chunk] = deque()
        self.size = 1
        self.stopped = False
        self.on_wait: Callable[[], None] | None = None
        self.took_ns = 0
        self._runner = runner
        self._clock = clock

    def submit(self, chunk: Chunk) -> None:
        self.tasks.append(chunk)

    def report_part(self, chunk: Chunk) -> None:
        """Its one worker shares no chunk."""

    def is_own_thread(self) -> bool:
        return False

    def work(self, count: int = 1) -> None:
        for _ in range(count):
            chunk = self.tasks.popleft()
            outcomes = self._runner.run(chunk)
            self.results.put(Result(chunk, outcomes, self.took_ns))

    def work_all(self) -> None:
        self.work(len(self.tasks))

    def wait(self, timeout_s: float, gather_s: float) -> Result:
        del gather_s
        if self.on_wait is not None:
            self.on_wait()
        if not self.results.qsize():
            self._clock.advance(max(timeout_s * 1_000, 1))
            raise Empty
        return self.results.get()

    def resize(self, size: int) -> None:
        self.size = size

    def stop(self, timeout_s: float) -> bool:
        del timeout_s
        self.stopped = True
        return not self.tasks


class Bench:
    """One member of group `g` on topic `orders`, turned by hand."""

    def __init__(
        self,
        kafka: InMemoryKafka,
        listener: Callable[..., Any],
        *,
        topics: tuple[str, ...] = ("orders",),
        limits: FlowLimits | None = None,
        limit: int = -1,
        batch_count: int = 1,
        where: ConsumeFromWhere = ConsumeFromWhere.FIRST_OFFSET,
        timestamp_ms: int = 0,
        digest: str = "d",
        policy: Any = None,
        settings: dict[str, Any] | None = None,
        config: dict[str, Any] | None = None,
        care: CarefulStart | None = None,
    ) -> None:
        clock = kafka.clock
        assert isinstance(clock, VirtualClock)
        self.kafka = kafka
        self.clock = clock
        self.names = TopicNames()
        self.levels = DelayLevels.parse("1s 2s 3s 4s 5s")
        self.subscriptions = {topic: Subscription(topic, adapt(listener), expression=digest) for topic in topics}
        self.consumers: list[Any] = []
        self.producers: list[Any] = []
        chosen = settings_of(
            batch_count,
            delay_levels=self.levels,
            retry_policy=policy or LevelTableRetryPolicy(),
            max_reconsume_times=limit,
            **(settings or {}),
        )

        self.pool = HandPool(ConcurrentRunner(chosen, self.subscriptions.get, clock), clock)

        def make_consumer(on_commit: Any) -> Any:
            made = kafka.consumer(
                {
                    "group.id": GROUP,
                    "enable.auto.commit": False,
                    "enable.auto.offset.store": False,
                    "auto.offset.reset": "earliest",
                    "partition.assignment.strategy": "cooperative-sticky",
                    "on_commit": on_commit,
                    **(config or {}),
                }
            )
            self.consumers.append(made)
            return made

        def make_producer() -> Any:
            made = kafka.producer({"enable.idempotence": True, "message.max.bytes": 100_000_000})
            self.producers.append(made)
            return made

        self.send_back = SendBack(make_producer, chosen, 1, kafka.clock)
        source = Subscriptions(self.names, self.names.retry(GROUP))
        for subscription in self.subscriptions.values():
            source.add(subscription)
        reader = PartitionReader(
            make_consumer=make_consumer,
            make_lookup_client=lambda: kafka.consumer({"group.id": GROUP}),
            rules=StartRules(
                self.names.retry(GROUP),
                where,
                timestamp_ms,
                digest_of(dict.fromkeys(topics, digest)),
                source.text(),
            ),
            ownership=Ownership(now_ms_of(clock)),
            now_ms=now_ms_of(clock),
            care=care,
        )
        dispatch = ConcurrentDispatch(self.pool, self.send_back, chosen, clock, reader)
        mode = ConcurrentMode(reader, dispatch, chosen, limits or FlowLimits())
        self.loop = PollLoop(mode, source)
        self.starts = self.loop.reader.starts

    @property
    def consumer(self) -> Any:
        return self.consumers[-1]

    def open(self) -> "Bench":
        """Open, and turn until the group has assigned the partitions."""
        self.loop.open()
        for _ in range(20):
            if self.loop.reader.joining.has_joined and len(self.loop.mode.queues):
                break
            self.loop.turn()
        return self

    def turn(self, count: int = 1) -> None:
        for _ in range(count):
            self.loop.turn()

    def run(self, turns: int = 6) -> None:
        """Turns in which the listeners work everything off."""
        for _ in range(turns):
            self.pool.work_all()
            self.loop.turn()

    def commit_now(self) -> None:
        """Let the commit interval pass."""
        self.clock.advance(5_000)
        self.turn(2)

    def committed(self, topic: str = "orders", partition: int = 0) -> int | None:
        return self.kafka.committed(GROUP).get((topic, partition))

    def retries(self) -> list[Any]:
        return self.kafka.records(self.names.schedule)

    def dead(self) -> list[Any]:
        return self.kafka.records(self.names.dead_letter(GROUP))


@pytest.fixture(autouse=True)
def _no_lookup_waits_behind_a_fetch(request: pytest.FixtureRequest) -> Iterator[None]:
    """On a real broker each would wait for half a second. The group's log is read by fetches of 100 ms: it may wait."""
    yield
    log = TopicNames().group_log(GROUP)
    used = request.node.funcargs
    for kafka in (used.get("kafka"), used.get("live"), getattr(used.get("stage"), "kafka", None)):
        if kafka is not None:
            assert [method for method, topics in kafka.delayed_lookups if log not in topics] == []


def cluster(clock: Clock) -> InMemoryKafka:
    """A cluster with `orders` (1 partition) and everything of the shim's that group `g` needs."""
    kafka = InMemoryKafka(clock)
    names = TopicNames()
    kafka.create_topic("orders")
    kafka.create_topic(names.schedule, DelayLevels.STRIDE, config={"message.timestamp.type": "LogAppendTime"})
    kafka.create_topic(names.retry(GROUP))
    kafka.create_topic(names.dead_letter(GROUP))
    kafka.create_topic(names.parked)
    return kafka


@pytest.fixture
def kafka() -> InMemoryKafka:
    """A cluster whose time only the test moves."""
    return cluster(VirtualClock())


@pytest.fixture
def live() -> InMemoryKafka:
    """A cluster on real time, for consumers that run in their own threads."""
    return cluster(SystemClock())


def consumer_of(kafka: InMemoryKafka, **values: Any) -> PushConsumer:
    """A push consumer of group `g`, which begins at the first offset."""
    settings = {"consume_from_where": ConsumeFromWhere.FIRST_OFFSET, **values}
    return PushConsumer("memory:1", group=GROUP, clients=Clients(kafka.consumer, kafka.producer), **settings)


@pytest.fixture
def bench(kafka: InMemoryKafka) -> Callable[..., Bench]:
    """Make a `Bench` and open it: `bench(listener, limit=0)`."""
    return lambda listener, **options: Bench(kafka, listener, **options).open()


@pytest.fixture
def unopened(kafka: InMemoryKafka) -> Callable[..., Bench]:
    """Like `bench`, not opened yet."""
    return lambda listener, **options: Bench(kafka, listener, **options)
