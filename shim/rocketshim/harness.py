"""An installation in memory for tests of listeners: Kafka, delay worker, producer, and a clock that the test moves.

The test's thread drives everything. `run`, `send` and `pass_time` return when nothing is left to do at this virtual
instant: every message is finished, waits for its retry, or is a dead letter. So a test needs no waiting of its own.

How `pass_time` works: it moves the clock to the next record that leaves a delay queue, lets the worker deliver it,
waits for the listeners, and repeats this until the time is over. So all 16 retries of a message need 16 short turns.

How the harness knows that a group is idle: its consumers commit after every turn of their loop, and a commit never
passes an unfinished message. The group is idle when its committed offsets have reached the ends of its topics.

Not supported: orderly listeners and allocation strategies (their locks are renewed by the clock), broadcasting (it
commits nothing to Kafka), consumers that poll. Use `InMemoryKafka` or a real broker for them.
"""

import time
from contextlib import ExitStack
from copy import copy as copy_of
from typing import Any, Final, Self, Unpack, overload

from rocketshim.aio import AsyncProducer
from rocketshim.codecs import Codec
from rocketshim.consumer.push.push_consumer import PushConsumer
from rocketshim.core.message_model import MessageModel
from rocketshim.dropin.producer import Producer as DropinProducer
from rocketshim.errors import ConfigError
from rocketshim.kafka.clients import real_clients
from rocketshim.kafka.record_sender import break_real_links
from rocketshim.observe.snapshot import WaitingRecord, waiting_record
from rocketshim.producer.arguments import NO_BODY, MessageOptions
from rocketshim.producer.producer import MessageSender, Producer
from rocketshim.producer.result import SendResult
from rocketshim.settings.worker import WorkerSettings
from rocketshim.testing.clock import VirtualClock
from rocketshim.testing.fetching import as_message
from rocketshim.testing.kafka import InMemoryKafka
from rocketshim.transactions import TransactionMQProducer
from rocketshim.worker.worker import DelayWorker
from rocketshim_topics.durations import Duration, parse_duration_ms
from rocketshim_topics.hops import is_probe
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels, time_in_queue_ms
from rocketshim_topics.message import Message, MessageView
from rocketshim_topics.names import TopicNames
from rocketshim_topics.wire import HOP_ID, PARK_FROM, Record, coordinates, decode, read_headers

__all__ = ["Harness"]

BOOTSTRAP: Final = "in-memory:9092"
GUARD_S: Final = 30.0
_LATEST_EXPONENT: Final = 13
"""How late the worker may be on the virtual clock, as a power of 2 in ms: it assumes that the broker's clock is slow by
0.01 %, and so is 4 s late after the longest hop of half a day."""
_MADE_FROM: Final = frozenset({HOP_ID, PARK_FROM})


class Harness:
    """Kafka in memory with a delay worker, and a clock that only the test moves.

    ::

        def test_a_refused_card_is_tried_again(rocketshim_harness):
            rocketshim_harness.run(consumer)
            rocketshim_harness.send(Message("orders", b"o-7"))
            rocketshim_harness.pass_time("10s")
            assert bank.charged == [b"o-7"]

    While it is open, no client of rocketshim in this process uses a real Kafka. A producer that was not connected
    raises `ConfigError` at its first send, a consumer that does not run here at its start.

    Args:
        namespace: the namespace of the consumers and producers under test.
        delay_levels: their level table; None: RocketMQ's.
        kafka: the cluster, on a `VirtualClock`; None: a new one, whose clock starts at the present time.
        allow_real_clients: let other clients use a real Kafka meanwhile, for a test that needs both.

    Attributes:
        kafka: the cluster, to look at records and commits, and to inject faults.
        clock: the clock of everything.
        producer: a producer on this cluster, for code under test that takes one.

    Thread-safety: one owner thread, the one that creates it. A context manager.
    """

    def __init__(
        self,
        *,
        namespace: str = "",
        delay_levels: DelayLevels | str | None = None,
        kafka: InMemoryKafka | None = None,
        allow_real_clients: bool = False,
    ) -> None:
        self.kafka = kafka or InMemoryKafka(VirtualClock(start_wall_ms=time.time_ns() // 1_000_000))
        if not isinstance(self.kafka.clock, VirtualClock):
            raise ConfigError("the harness moves the clock of its cluster: make the cluster with a VirtualClock")
        self.clock = self.kafka.clock
        self._names = TopicNames(namespace)
        parsed = DelayLevels.parse(delay_levels) if isinstance(delay_levels, str) else delay_levels
        self._levels = parsed or DelayLevels.default()
        self._layout = Layout(self._names, self._levels)
        self.kafka.create_topics((*self._layout.shared(), *self._layout.timers()))
        self._consumers: list[PushConsumer] = []
        self._moved: set[str] = set()  # coordinates of records that another record was made from
        self._scheduled: dict[str, tuple[Record, int, int]] = {}  # by coordinates: when it leaves its queue and is due
        self._read: dict[tuple[int, int], int] = {}  # up to which offset these know each partition
        self.producer = Producer(
            BOOTSTRAP, namespace=namespace, delay_levels=self._levels, clients=self.kafka.clients(), clock=self.clock
        )
        settings = WorkerSettings.make(
            bootstrap=BOOTSTRAP, allow=("*",), namespace=namespace, delay_levels=self._levels
        )
        self._worker = DelayWorker(settings, clients=self.kafka.clients(), clock=self.clock)
        self._worker.start()
        self._asked: dict[str, TransactionMQProducer] = {}  # who answers the checks of a topic
        self._answered: set[str] = set()  # coordinates of checks
        if not allow_real_clients:
            real_clients.refuse(self)
            break_real_links()
            DropinProducer.produce = _refused  # type: ignore[method-assign]  # here, so that no `produce` has to look

    def topic(self, name: str, partitions: int = 1) -> None:
        """Create a topic; without it, `run` and `send` create topics with one partition. An existing one stays."""
        physical = self._names.physical(name)
        if physical not in self.kafka.topics():
            self.kafka.create_topic(physical, partitions)

    def run(self, *consumers: PushConsumer) -> list[PushConsumer]:
        """Run consumers on this cluster, whatever address they were made for, until the harness is closed.

        The consumers themselves are not started: copies with the same settings, listeners and hooks run. So a consumer
        at the top level of a module can be used in many tests.

        Returns:
            the running copies, in the order of the arguments.

        Raises:
            ConfigError: a consumer is not supported, or has another namespace or level table; none was started.
        """
        for consumer in consumers:
            self._check(consumer)
        copies = [self._copy(consumer) for consumer in consumers]
        for copy in copies:
            for topic in copy._subscriptions.named():  # noqa: SLF001 - a part of the library
                self.topic(topic)
            self.kafka.create_topics(self._layout.for_group(copy.settings.group, with_log=False))
            copy.start()
            self._consumers.append(copy)
        self._settle()
        return copies

    def connect(self, *producers: Producer | AsyncProducer) -> None:
        """Let producers of the program under test send to this cluster, whatever address they were made for.

        They begin from scratch, also if they have sent to another cluster or are closed. So a producer at the top level
        of a module can be used in many tests. The listener of a transactional one is called in this thread, while time
        passes.

        Raises:
            ConfigError: one is not a producer.
        """
        for each in producers:
            producer = each.producer if isinstance(each, AsyncProducer) else each
            if not isinstance(producer, Producer):
                raise ConfigError(f"cannot connect {each!r:.80}: give a Producer or an AsyncProducer")
            producer.close(0)
            former = producer.sender
            producer.sender = MessageSender(producer.settings, self.kafka.clients(), self.clock, former.codec)
            producer.sender.hooks = former.hooks
            if isinstance(producer, TransactionMQProducer):
                self.kafka.create_topics([self._layout.check(producer.group)])
                producer._checks.is_by_hand = True  # noqa: SLF001 - a part of the library
                self._asked[self._names.check(producer.group)] = producer

    @overload
    def send(self, *messages: Message) -> list[SendResult]: ...
    @overload
    def send(
        self, topic: str, /, body: object, *, codec: Codec[Any] | None = None, **options: Unpack[MessageOptions]
    ) -> list[SendResult]: ...
    def send(
        self, *given: Any, body: Any = NO_BODY, codec: Codec[Any] | None = None, **options: Unpack[MessageOptions]
    ) -> list[SendResult]:
        """Send messages and wait until their listeners have returned: `send(Message(…), …)` or `send("orders", body)`.

        Args:
            given: the messages; or a topic and a body, as for `Producer.send`.
            body: with a topic: bytes, a pydantic model, or what the codec encodes.
            codec: with a topic: encodes the body; None: it is bytes or a pydantic model.
            options: with a topic: the other arguments of `Message`, such as `key`, `tag` and `delay`.

        Returns:
            the result of each send.

        Raises:
            As `Producer.send`.
        """
        if len(given) == 2 and not isinstance(given[0], Message):
            topic, body = given
            given = (topic,)
        messages: list[Message] = [self.producer.sender.message(each, body, codec, options) for each in given]
        for message in messages:
            self.topic(message.topic)
        results = [self.producer.send(message, timeout_s=GUARD_S) for message in messages]
        self._settle()
        return results

    def cancel(self, topic: str, *, timer: str) -> bool:
        """Cancel the message that waits under a name, as `Producer.cancel`; return whether one waited."""
        is_waiting = self._is_pending(topic, timer)
        self.producer.cancel(topic, timer=timer, timeout_s=GUARD_S)
        self._settle()
        return is_waiting

    def send_now(self, topic: str, *, timer: str) -> bool:
        """Deliver the message that waits under a name now, as `Producer.send_now`; return whether one waited."""
        is_waiting = self._is_pending(topic, timer)
        self.producer.send_now(topic, timer=timer, timeout_s=GUARD_S)
        self._settle()
        return is_waiting

    def pass_time(self, duration: Duration) -> None:
        """Move the clock on; deliver what becomes due on the way, at its time, and wait for the listeners.

        Where messages are due at the very end, the clock ends a little later than asked (milliseconds; up to 0.02 % of
        the longest hop), because the worker is never early.

        Args:
            duration: text of one number and one unit (`"5h"`, `"90s"`), a timedelta, or a number of seconds.

        Raises:
            TimeoutError: a listener call did not return within 30 s of real time.
        """
        end_ms = self.clock.wall_ms() + parse_duration_ms(duration)
        self._settle()
        while (next_ms := self._next_ms(end_ms)) is not None:
            self.clock.advance(max(0, next_ms - self.clock.wall_ms()))
            self._deliver()
            self._settle()
        self.clock.advance(max(0, end_ms - self.clock.wall_ms()))

    def dead(self, group: str) -> list[MessageView]:
        """Return the dead letters of a group, in the order in which they arrived.

        Raises:
            ConfigError: no consumer of this group was run.
        """
        topic = self._names.dead_letter(group)
        self._check_topic(topic, f"group {group!r}")
        return [MessageView(record, trusted=True) for record in self.kafka.records(topic)]

    def waiting(self, target: str | None = None) -> list[WaitingRecord]:
        """Return the messages that wait to be delivered, the next one first: delayed ones and retries.

        A named message that was cancelled or replaced does not wait any more.

        Args:
            target: only those for this topic, `%RETRY%payments` for the retries of a group. None: all.

        Raises:
            ConfigError: nothing waits for `target`, and there is no such topic.
        """
        self._settle()
        self._look()
        kept = [record for record, _, _ in self._scheduled.values() if not self._is_void(record)]
        found = [waiting_record(record, self._levels) for record in kept]
        wanted = [each for each in found if target is None or each.target == target]
        if target is not None and not wanted:
            self._check_topic(self._names.physical(target), f"target {target!r}")
        return sorted(wanted, key=lambda each: (each.due_ms or 0, each.appended_ms))

    def close(self) -> None:
        """Stop the consumers and release everything. Safe to call twice.

        Raises:
            ConsumerError: a consumer failed before; everything else is released.
        """
        real_clients.allow(self)
        if not real_clients.are_refused:
            DropinProducer.produce = _PRODUCE  # type: ignore[method-assign]
        consumers, self._consumers = self._consumers, []
        with ExitStack() as releasing:
            releasing.callback(self._worker.close)
            releasing.callback(self.producer.close)
            for consumer in consumers:
                releasing.callback(consumer.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- parts -------------------------------------------------------------------------------------------------------

    def _check_topic(self, topic: str, what: str) -> None:
        if topic not in self.kafka.topics():
            raise ConfigError(f"{what} has no topic {topic!r} here: run its consumer first, or correct the name")

    def _check(self, consumer: PushConsumer) -> None:
        given: object = consumer
        if not isinstance(given, PushConsumer):
            raise ConfigError(f"cannot run {given!r:.80}: give a PushConsumer")
        settings, group = consumer.settings, consumer.settings.group
        if consumer._subscriptions.orderly or settings.allocate_message_queue_strategy is not None:  # noqa: SLF001
            raise ConfigError(f"group {group!r} uses queue locks, which the harness does not drive: use InMemoryKafka")
        if settings.message_model is MessageModel.BROADCASTING:
            raise ConfigError(f"group {group!r} is broadcasting and commits nothing to Kafka: use InMemoryKafka")
        if (settings.namespace, settings.delay_levels) != (self._names.namespace, self._levels):
            raise ConfigError(
                f"group {group!r} has namespace {settings.namespace!r} and delay levels '{settings.delay_levels}': "
                "make the harness with the same, Harness(namespace=…, delay_levels=…)"
            )

    def _copy(self, consumer: PushConsumer) -> PushConsumer:
        """Return a consumer on this cluster with the same listeners, which commits in every turn of its loop."""
        settings = consumer.settings.model_copy(update={"persist_consumer_offset_interval_ms": 0})
        copy = PushConsumer(settings=settings, clients=self.kafka.clients(), clock=self.clock, codec=consumer._codec)  # noqa: SLF001
        copy._subscriptions, copy._hooks = copy_of(consumer._subscriptions), consumer._hooks  # noqa: SLF001
        return copy

    def _settle(self) -> None:
        """Wait until every group has finished or sent back what is on its topics."""
        try:
            for _ in range(2):  # a named message is scheduled by the first one, and its time begins when it is fetched
                self.kafka.wait_until(self._is_idle, driving=self._step, guard_s=GUARD_S)
        except TimeoutError as error:
            busy = [consumer.settings.group for consumer in self._consumers if not self._has_finished(consumer)]
            raise TimeoutError(
                f"groups {busy} have not finished their messages within {GUARD_S:g} s of real time: a listener call "
                "has not returned, or the consumer has stopped"
            ) from error

    def _step(self) -> None:
        """Step the worker, and answer its checks."""
        self._worker.step(0)
        for topic, producer in self._asked.items():
            for record in self.kafka.records(topic):
                if (where := coordinates(record)) not in self._answered:
                    self._answered.add(where)
                    producer._checks.answer(MessageView(record, trusted=True))  # noqa: SLF001 - likewise

    def _is_idle(self) -> bool:
        ends = self.kafka.end_offsets(self._names.timers)
        return self._worker._has_applied(ends) and all(map(self._has_finished, self._consumers))  # noqa: SLF001

    def _is_pending(self, topic: str, timer: str) -> bool:
        self._settle()
        return self._generation(topic, timer) is not None

    def _generation(self, topic: str, timer: str) -> int | None:
        return self._worker._pending_timer(topic, timer)  # noqa: SLF001 - a part of the library

    def _is_void(self, record: Record) -> bool:
        """Return whether a waiting record belongs to a timer that was cancelled or replaced."""
        envelope = decode(read_headers(record), trusted=True)
        if envelope.timer is None:
            return False
        return self._generation(envelope.real_topic or "", envelope.timer) != envelope.timer_set_at

    def _has_finished(self, consumer: PushConsumer) -> bool:
        if not consumer.wait_assigned(0):
            return False
        group = consumer.settings.group
        committed = self.kafka.committed(group)
        topics = {*consumer._subscriptions.topics(), self._names.retry(group)}  # noqa: SLF001
        return all(
            committed.get((topic, number), 0) >= end
            for topic in topics
            for number, end in self.kafka.end_offsets(topic).items()
        )

    def _deliver(self) -> None:
        """Step the worker until nothing is due any more. The clock moves by 1, 2, 4 … ms until it is late enough."""
        for exponent in range(_LATEST_EXPONENT):
            self._step()
            now_ms = self.clock.wall_ms()
            self._look()
            if not any(leaves_ms <= now_ms for _, leaves_ms, _ in self._scheduled.values()):
                return
            self.clock.advance(2**exponent)
        raise TimeoutError("the worker delivers nothing although a message is due")

    def _next_ms(self, end_ms: int) -> int | None:
        """Return when the next record leaves its queue, of those that leave by then or whose message is due by then.

        A delay that is not a level takes several queues, so that the last one may end after the message is due.
        """
        self._look()
        return min(
            (leaves_ms for _, leaves_ms, due_ms in self._scheduled.values() if min(leaves_ms, due_ms) <= end_ms),
            default=None,
        )

    def _look(self) -> None:
        """Note which records of the schedule topic wait: those that no other record was made from."""
        broker = self.kafka._broker  # noqa: SLF001 - `kafka.records` would read everything again
        with broker.lock:
            for topic in broker.topics.values():
                for number, log in enumerate(topic.partitions):
                    offset = self._read.get((topic.topic_id, number), 0)
                    while (stored := log.read(offset, read_committed=True)) is not None:
                        self._note(as_message(topic.name, number, stored))
                        offset = stored.offset + 1
                    self._read[topic.topic_id, number] = offset
            starts = [log.log_start_offset for log in self.kafka._topic(self._names.schedule).partitions]  # noqa: SLF001
        if any(starts):  # the test has deleted records, as retention does
            self._scheduled = {
                at: each
                for at, each in self._scheduled.items()
                if (each[0].offset() or 0) >= starts[each[0].partition() or 0]
            }

    def _note(self, record: Record) -> None:
        for name, value in read_headers(record) or ():
            if name in _MADE_FROM and value:
                self._moved.add(value.decode())
                self._scheduled.pop(value.decode(), None)
        at = coordinates(record)
        if record.topic() == self._names.schedule and at not in self._moved and not is_probe(record):
            leaves_ms = record.timestamp()[1] + time_in_queue_ms(self._levels, record.partition() or 0)
            due_ms = waiting_record(record, self._levels).due_ms
            self._scheduled[at] = record, leaves_ms, leaves_ms if due_ms is None else due_ms


_PRODUCE: Final = DropinProducer.produce


def _refused(self: DropinProducer, *args: Any, **kwargs: Any) -> None:
    """Produce with a drop-in producer that was made before the harness, unless one is open."""
    real_clients.check({})
    _PRODUCE(self, *args, **kwargs)
