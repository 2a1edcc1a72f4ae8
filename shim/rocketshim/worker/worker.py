"""The delay-redelivery worker: the shell around `LevelQueue`, `LeaderClock` and `Planner`.

One thread, one consumer of the schedule topic, one producer. A step of its loop:

1. wait for records until the next head is due (no tick: `poll` for the whole milliseconds, a sleep for the rest);
2. offer what came to the queues, pause partitions whose queue is full, resume the hungry ones;
3. take everything that is due from all queues, decide (`relay.Planner`) and produce it;
4. take in delivery reports: a run of records is confirmed when the last of its hops is stored;
5. commit the positions after the longest confirmed prefixes, probe the leaders' clocks, look after hops that failed.

Invariants:

* A position moves by delivery reports only. A hop that is not stored holds its partition's commit; it is made again.
* A target that does not take a record does not hold its queue: the record is re-appended to a queue (`TARGET_TRIES`)
  after `target_patience_ms`, and parked after `target_tries` times, or at once where waiting cannot help.
* Callbacks of the Kafka clients only hand over: a delivery report is put on a list, and no rebalance callback raises.
  The latter may commit and wait for reports, both bounded.
* The worker's wall clock decides nothing.

What is not handled here: two modes of delivery (the exactly-once one comes on top), health and metrics.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, assert_never

from confluent_kafka import OFFSET_INVALID, TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, TopicPartition

from rocketshim.client_config import PROTECTED_CONSUMER, PROTECTED_PRODUCER, merge
from rocketshim.clients import Clients, ConsumerClient, ProducerClient, confluent_clients
from rocketshim.clock import SystemClock
from rocketshim.core.clock import Clock
from rocketshim.core.level_queue import Due, LevelQueue, QueueLimits
from rocketshim.core.offset_tracker import Run
from rocketshim.errors import TopicMismatchError, TopicMissingError, WorkerError
from rocketshim.settings import WorkerSettings
from rocketshim.worker.leaders import LeaderClocks
from rocketshim.worker.relay import Deliver, Hop, Park, Planner, Skip
from rocketshim.worker.targets import TargetPolicy
from rocketshim_topics.hops import OutgoingRecord, clock_probe
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames

__all__ = ["DelayWorker", "WorkerCounts"]

_LOG = logging.getLogger("rocketshim.worker")

_NS: Final = 1_000_000
_IDLE_MS: Final = 1_000
_BUSY_MS: Final = 20  # while hops are in flight: how long their reports may lie unread
_FETCH_COUNT: Final = 1_000
_RESEND_NS: Final = 1_000_000_000
_TARGET_TTL_NS: Final = 30_000_000_000
_TARGET_MISSING_TTL_NS: Final = 1_000_000_000
_METADATA_TIMEOUT_S: Final = 5.0
_REVOKE_DRAIN_NS: Final = 3_000_000_000

_NEVER: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.UNKNOWN_TOPIC_ID,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_MSG,
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 - librdkafka's local errors have no public spelling
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError._INVALID_ARG,  # noqa: SLF001
    }
)
"""Errors of a target that waiting does not mend: the record is parked."""
_TOO_LARGE: Final = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})


@dataclass(slots=True)
class WorkerCounts:
    """What the worker has done since it started; read from any thread, written by its own."""

    delivered: int = 0
    hopped: int = 0
    re_appended: int = 0
    resent: int = 0
    skipped: int = 0
    alarms: int = 0
    parked: dict[str, int] = field(default_factory=dict)


class _Kind(Enum):
    DELIVER = "deliver"
    SCHEDULE = "schedule"
    PARK = "park"


@dataclass(slots=True)
class _Partition:
    """One assigned partition."""

    number: int
    queue: LevelQueue[Any]
    committed: int
    paused: bool = False
    gone: bool = False


@dataclass(slots=True)
class _Flight:
    """A run of records that left their queue together."""

    partition: _Partition
    run: Run
    pending: int


class _Sent:
    """One attempt to place a record.

    `settled` is shared by every attempt for the same record: the first one that is stored settles it. `replaced` says
    that another attempt was made after this one: if this one fails, nothing follows from it.
    """

    __slots__ = ("deliver", "flight", "kind", "out", "record", "replaced", "reports", "sent_ns", "settled")

    def __init__(self, flight: _Flight, record: Any, kind: _Kind, out: OutgoingRecord, reports: Any) -> None:
        self.flight = flight
        self.record = record
        self.kind = kind
        self.out = out
        self.reports = reports
        self.deliver: Deliver | None = None
        self.replaced = False
        self.sent_ns = 0
        self.settled = [False]

    def reported(self, error: KafkaError | None, message: Any) -> None:
        del message
        self.reports.append((self, error))


class DelayWorker:
    """Moves delayed and retried messages to their targets when they are due.

    Args:
        settings: what may be written where, and the figures; see `WorkerSettings`.
        clients: where Kafka clients come from; None: confluent_kafka.
        clock: the monotonic clock to wait by; None: this machine's.
        sleep: waits a number of seconds less than one millisecond; for simulations.

    Thread-safety: `start`, `step` and `close` belong to one thread; `run` makes that thread the caller's. `stop` and
    `counts` may be used from any thread and from a signal handler.

    Source: `ScheduleMessageService` of RocketMQ.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        clients: Clients | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.settings = settings
        self.names = TopicNames(settings.namespace)
        self.counts = WorkerCounts()
        self._policy = TargetPolicy(self.names, settings.allow)
        self._levels = settings.delay_levels
        self._planner = Planner(self.names, self._levels, self._policy)
        self._clients = clients
        self._clock: Clock = clock or SystemClock()
        self._sleep = sleep
        self._stopping = threading.Event()
        self._partitions: dict[int, _Partition] = {}
        self._leaders = LeaderClocks(settings.probe_interval_ms * _NS, settings.hop_timeout_ms * _NS)
        self._reports: deque[tuple[_Sent, KafkaError | None]] = deque()
        self._probe_reports: deque[tuple[int, int, KafkaError | None, Any]] = deque()
        self._targets: dict[str, tuple[int, int]] = {}  # topic -> (partitions, 0 none; known until, ns)
        self._flying: deque[_Sent] = deque()  # deliveries in the order in which they were sent
        self._resend: deque[tuple[int, _Sent]] = deque()  # (when, ns; what)
        self._in_flight = 0
        self._confirmed_ns = 0
        self._commit_ns = 0
        self._fatal: Exception | None = None
        self._epoch = 0
        self._consumer: ConsumerClient | None = None
        self._producer: ProducerClient | None = None

    # --- life --------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Work until `stop` is called, then finish what is in flight, commit and leave the group.

        Raises:
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: the schedule topic cannot be used.
            WorkerError: the worker cannot go on. Positions committed so far stay.
        """
        self.start()
        try:
            while not self._stopping.is_set():
                self.step()
        finally:
            self.close()

    def start(self) -> None:
        """Make the Kafka clients and join the group; nothing is delivered yet.

        Raises:
            TopicMissingError, TopicMismatchError, NotAuthorizedError, BrokerUnavailableError: see `run`.
        """
        if self._consumer is not None:
            return
        clients = self._clients or confluent_clients()
        self._ensure_topics(clients)
        self._producer = clients.producer(self._producer_config())
        self._consumer = clients.consumer(self._consumer_config())
        self._consumer.subscribe(
            [self.names.schedule], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        _LOG.info("worker.started", extra={"topic": self.names.schedule, "levels": str(self._levels)})

    def stop(self) -> None:
        """Ask the worker to end; `run` returns when it has. Safe twice, from any thread and from a signal handler."""
        self._stopping.set()

    def close(self) -> None:
        """Wait for hops in flight (`stop_timeout_ms` at most), commit, leave the group. Complete when it returns."""
        consumer, producer = self._consumer, self._producer
        if consumer is None or producer is None:
            return
        try:
            self._drain(self.settings.stop_timeout_ms * _NS, list(self._partitions.values()))
            self._commit(asynchronous=False)
        finally:
            self._consumer = None
            consumer.close()
            self._partitions.clear()
            producer.purge()
            producer.flush(1.0)
            self._producer = None
        _LOG.info("worker.stopped", extra={"delivered": self.counts.delivered})

    def step(self, max_wait_ms: int = _IDLE_MS) -> None:
        """One turn of the loop; waits at most `max_wait_ms`.

        Raises:
            WorkerError: the worker cannot go on; call `close`.
        """
        if self._fatal is not None:
            raise WorkerError(f"the worker cannot go on: {self._fatal}") from self._fatal
        self._fetch(max_wait_ms)
        self._relay_due()
        self._settle()
        self._keep_house()

    # --- 1, 2: fetching ----------------------------------------------------------------------------------------------

    def _fetch(self, max_wait_ms: int) -> None:
        consumer, producer = self._clients_now()
        if self._in_flight >= self.settings.max_in_flight_count:
            producer.poll(_BUSY_MS / 1_000)
            return
        wait_ns = self._wait_ns(max_wait_ms * _NS)
        whole_ms = wait_ns // _NS
        if whole_ms == 0 and wait_ns > 0:
            self._sleep(wait_ns / 1e9)
        first = consumer.poll(whole_ms / 1_000)
        if first is None:
            return
        batch = [first, *consumer.consume(_FETCH_COUNT - 1, 0)]
        seen_ns = self._clock.monotonic_ns()
        runs: dict[int, list[Any]] = {}
        for message in batch:
            error = message.error()
            if error is not None:
                self._client_error(error)
            else:
                runs.setdefault(message.partition(), []).append(message)
        for number, run in runs.items():
            partition = self._partitions.get(number)
            if partition is None:
                continue
            last = run[-1]
            partition.queue.offer(run, seen_ns)
            self._leaders.observe(number, last.offset(), last.timestamp()[1], seen_ns)
            if partition.queue.full and not partition.paused:
                consumer.pause([TopicPartition(self.names.schedule, number)])
                partition.paused = True

    def _wait_ns(self, longest_ns: int) -> int:
        now_ns = self._clock.monotonic_ns()
        wait_ns = min(longest_ns, self._leaders.wait_ns(now_ns) if self._partitions else longest_ns)
        if self._in_flight or self._resend:
            wait_ns = min(wait_ns, _BUSY_MS * _NS)
        for partition in self._partitions.values():
            queue_ns = partition.queue.wait_ns(self._leaders.now_ms(partition.number, now_ns), now_ns)
            if queue_ns is not None and queue_ns < wait_ns:
                wait_ns = queue_ns
        return max(0, wait_ns)

    def _client_error(self, error: KafkaError) -> None:
        if error.fatal():
            self._fatal = KafkaException(error)
        elif error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._fatal = TopicMissingError(
                f"the topic {self.names.schedule} is not there; create it with: rocketshim init"
            )
        else:
            self._alarm("worker.client-error", error=str(error))

    # --- 3: relaying -------------------------------------------------------------------------------------------------

    def _relay_due(self) -> None:
        _, producer = self._clients_now()
        limit = self.settings.max_in_flight_count
        progress = True
        while progress and self._in_flight < limit:
            progress = False
            for partition in list(self._partitions.values()):
                now_ns = self._clock.monotonic_ns()
                clock_ms = self._leaders.now_ms(partition.number, now_ns)
                due = partition.queue.due(clock_ms, now_ns, self.settings.drain_count)
                if due is None or clock_ms is None:
                    continue
                progress = True
                self._relay(partition, due, clock_ms, now_ns)
                producer.poll(0)
            if progress:
                self._settle()
        self._resume_hungry()

    def _relay(self, partition: _Partition, due: Due[Any], clock_ms: int, now_ns: int) -> None:
        flight = _Flight(partition, due.run, len(due.records))
        for record, seen_ns in zip(due.records, due.seen_ns, strict=True):
            step = self._planner.plan(record, clock_ms=clock_ms, seen_ns=seen_ns, now_ns=now_ns)
            match step:
                case Skip():
                    self.counts.skipped += 1
                    flight.pending -= 1
                case Hop(out):
                    self._send(_Sent(flight, record, _Kind.SCHEDULE, out, self._reports))
                    self.counts.hopped += 1
                case Park(out, reason):
                    self._park(flight, record, out, reason)
                case Deliver():
                    self._deliver(flight, record, step)
                case _:
                    assert_never(step)
        if flight.pending == 0:
            partition.queue.confirmed(flight.run)

    def _deliver(self, flight: _Flight, record: Any, deliver: Deliver) -> None:
        out = deliver.out
        partitions = self._target_partitions(out.topic)
        if partitions == 0:
            reason = f"unknown-topic:{deliver.envelope.real_topic}"
            self._park(flight, record, self._planner.park(record, reason).out, reason)
            return
        if out.partition is not None and partitions is not None and out.partition >= partitions:
            out.partition = None
        sent = _Sent(flight, record, _Kind.DELIVER, out, self._reports)
        sent.deliver = deliver
        self._flying.append(sent)
        self._send(sent)

    def _park(self, flight: _Flight, record: Any, out: OutgoingRecord, reason: str) -> _Sent:
        kind = reason.split(":", 1)[0]
        self.counts.parked[kind] = self.counts.parked.get(kind, 0) + 1
        self._alarm("worker.parked", reason=reason, record=_name(record))
        sent = _Sent(flight, record, _Kind.PARK, out, self._reports)
        self._send(sent)
        return sent

    def _send(self, sent: _Sent) -> None:
        _, producer = self._clients_now()
        out = sent.out
        sent.sent_ns = self._clock.monotonic_ns()
        self._in_flight += 1
        while True:
            try:
                producer.produce(
                    out.topic,
                    out.value,
                    out.key,
                    -1 if out.partition is None else out.partition,
                    on_delivery=sent.reported,
                    headers=out.headers,
                )
            except BufferError:
                producer.poll(_BUSY_MS / 1_000)  # reports make room
            except KafkaException as error:
                self._reports.append((sent, error.args[0]))
                return
            else:
                return

    def _target_partitions(self, topic: str) -> int | None:
        """Partitions of a target, 0 if it is not there, None if that cannot be found out now."""
        now_ns = self._clock.monotonic_ns()
        known = self._targets.get(topic)
        if known is not None and now_ns < known[1]:
            return known[0]
        consumer, _ = self._clients_now()
        try:
            # a consumer's metadata request creates no topic; a producer's may
            metadata = consumer.list_topics(topic, timeout=_METADATA_TIMEOUT_S).topics.get(topic)
        except KafkaException as error:
            self._alarm("worker.metadata-failed", topic=topic, error=str(error))
            return known[0] if known is not None and known[0] else None
        if metadata is None or (metadata.error is not None and metadata.error.code() in _NEVER):
            count, ttl_ns = 0, _TARGET_MISSING_TTL_NS
        else:
            count, ttl_ns = len(metadata.partitions), _TARGET_TTL_NS
            if count == 0:
                return None
        self._targets[topic] = (count, now_ns + ttl_ns)
        return count

    def _resume_hungry(self) -> None:
        consumer, _ = self._clients_now()
        for partition in self._partitions.values():
            if partition.paused and partition.queue.hungry:
                consumer.resume([TopicPartition(self.names.schedule, partition.number)])
                partition.paused = False

    # --- 4: delivery reports -----------------------------------------------------------------------------------------

    def _settle(self) -> None:
        _, producer = self._clients_now()
        producer.poll(0)
        now_ns = self._clock.monotonic_ns()
        while self._reports:
            sent, error = self._reports.popleft()
            self._in_flight -= 1
            if sent.settled[0]:
                continue
            if error is None:
                self._stored(sent, now_ns)
            elif not sent.replaced:
                self._not_stored(sent, error, now_ns)
        while self._probe_reports:
            partition, sent_ns, error, message = self._probe_reports.popleft()
            self._probe_result(partition, sent_ns, now_ns, error, message)

    def _stored(self, sent: _Sent, now_ns: int) -> None:
        sent.settled[0] = True
        self._confirmed_ns = now_ns
        if sent.kind is _Kind.DELIVER:
            self.counts.delivered += 1
        flight = sent.flight
        flight.pending -= 1
        if flight.pending == 0 and not flight.partition.gone:
            flight.partition.queue.confirmed(flight.run)

    def _not_stored(self, sent: _Sent, error: KafkaError, now_ns: int) -> None:
        if sent.flight.partition.gone:
            return
        if error.fatal():
            self._fatal = KafkaException(error)
            return
        code = error.code()
        if sent.kind is _Kind.DELIVER:
            self._targets.pop(sent.out.topic, None)
            if code in _NEVER:
                self._park_instead(sent, f"target-refused:{error.name()}")
            elif code in {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}:  # noqa: SLF001
                self._resend.append((now_ns, sent))
            else:
                self._re_append(sent, error.name())
        elif code in _TOO_LARGE and sent.kind is _Kind.SCHEDULE:
            self._park_instead(sent, f"hop-refused:{error.name()}")
        elif code in _TOO_LARGE and sent.out.value is not None:
            sent.out.value = None  # the body stays where PARK_FROM says, until retention takes it
            self._alarm("worker.parked-without-body", record=_name(sent.record))
            self._send(sent)
        else:
            self.counts.resent += 1
            self._alarm("worker.hop-not-stored", hop=sent.kind.value, error=error.name(), record=_name(sent.record))
            self._resend.append((now_ns + _RESEND_NS, sent))

    def _park_instead(self, sent: _Sent, reason: str) -> None:
        """Another attempt for the same record, in the parking topic."""
        sent.replaced = True
        park = self._planner.park(sent.record, reason)
        self._park(sent.flight, sent.record, park.out, reason).settled = sent.settled

    def _re_append(self, sent: _Sent, why: str) -> None:
        """Another attempt for the same record, in a queue, or parked when there have been enough."""
        deliver = sent.deliver
        if deliver is None or (deliver.envelope.target_tries or 0) >= self.settings.target_tries:
            self._park_instead(sent, f"target-refused:{why}")
            return
        sent.replaced = True
        hop = self._planner.re_append(sent.record, deliver.envelope, deliver.due_ms)
        again = _Sent(sent.flight, sent.record, _Kind.SCHEDULE, hop.out, self._reports)
        again.settled = sent.settled
        self.counts.re_appended += 1
        self._alarm("worker.re-appended", topic=sent.out.topic, error=why, record=_name(sent.record))
        self._send(again)

    def _probe_result(self, partition: int, sent_ns: int, now_ns: int, error: KafkaError | None, message: Any) -> None:
        if error is not None:
            self._leaders.probe_failed(partition, now_ns)
            self._alarm("worker.probe-failed", partition=partition, error=error.name())
            return
        kind, append_ms = message.timestamp()
        if kind != TIMESTAMP_LOG_APPEND_TIME:
            self._fatal = TopicMismatchError(
                f"{self.names.schedule} has message.timestamp.type=CreateTime: delays would count from clocks nobody "
                "checks. Set it to LogAppendTime: rocketshim doctor shows the command"
            )
            return
        self._leaders.probed(partition, message.offset(), append_ms, sent_ns=sent_ns, seen_ns=now_ns)

    # --- 5: keeping house --------------------------------------------------------------------------------------------

    def _keep_house(self) -> None:
        now_ns = self._clock.monotonic_ns()
        self._look_after_targets(now_ns)
        while self._resend and self._resend[0][0] <= now_ns:
            sent = self._resend.popleft()[1]
            if not sent.settled[0] and not sent.flight.partition.gone:
                self._send(sent)
        if self._partitions and self._leaders.due(now_ns):
            self._probe(now_ns)
        if now_ns >= self._commit_ns:
            self._commit_ns = now_ns + self.settings.commit_interval_ms * _NS
            self._commit(asynchronous=True)

    def _look_after_targets(self, now_ns: int) -> None:
        """Re-append what a target has not taken in time, if others took theirs meanwhile."""
        patience_ns = self.settings.target_patience_ms * _NS
        flying = self._flying
        while flying:
            sent = flying[0]
            if sent.settled[0] or sent.flight.partition.gone:
                flying.popleft()
            elif now_ns - sent.sent_ns >= patience_ns and self._confirmed_ns > sent.sent_ns:
                flying.popleft()
                self._re_append(sent, "no-answer")
            else:
                return

    def _probe(self, now_ns: int) -> None:
        consumer, producer = self._clients_now()
        try:
            topic = consumer.list_topics(self.names.schedule, timeout=_METADATA_TIMEOUT_S).topics[self.names.schedule]
        except (KafkaException, KeyError) as error:
            self._alarm("worker.metadata-failed", topic=self.names.schedule, error=str(error))
        else:
            self._leaders.learn({number: info.leader for number, info in topic.partitions.items()})
        for partition in self._leaders.round(self._partitions, DelayLevels.STRIDE, now_ns):
            out = clock_probe(self.names, partition=partition)
            sent_ns = self._clock.monotonic_ns()

            def reported(error: KafkaError | None, message: Any, at: tuple[int, int] = (partition, sent_ns)) -> None:
                self._probe_reports.append((*at, error, message))

            try:
                producer.produce(out.topic, out.value, out.key, partition, on_delivery=reported, headers=out.headers)
            except (BufferError, KafkaException) as error:
                self._leaders.probe_failed(partition, now_ns)
                self._alarm("worker.probe-failed", partition=partition, error=str(error))

    def _commit(self, *, asynchronous: bool, partitions: list[_Partition] | None = None) -> None:
        consumer = self._consumer
        if consumer is None:
            return
        moved: list[tuple[_Partition, int]] = []
        for partition in self._partitions.values() if partitions is None else partitions:
            position = partition.queue.next_offset
            if position is not None and position > partition.committed:
                moved.append((partition, position))
        if not moved:
            return
        offsets = [TopicPartition(self.names.schedule, partition.number, at) for partition, at in moved]
        try:
            if asynchronous:
                consumer.commit(offsets=offsets, asynchronous=True)
            else:
                consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            self._alarm("worker.commit-failed", error=str(error))
            return
        for partition, position in moved:
            partition.committed = position

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """An asynchronous commit's result: what was not committed is committed again with the next one."""
        for item in partitions:
            if error is not None or item.error is not None:
                partition = self._partitions.get(item.partition)
                if partition is not None:
                    partition.committed = min(partition.committed, item.offset - 1)
                self._alarm("worker.commit-failed", partition=item.partition, error=str(error or item.error))

    # --- rebalancing: called from `poll` and `close`; none of these may raise -----------------------------------------

    def _on_assign(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        self._epoch += 1
        try:
            starts = self._starts(consumer, partitions)
            consumer.incremental_assign(starts)
            consumer.resume(starts)
        except (KafkaException, RuntimeError) as error:
            self._fatal = error
            return
        limits = QueueLimits(self.settings.prefetch_count, self.settings.prefetch_bytes)
        for start in starts:
            delay_ms = self._levels.queue_delay_ms(start.partition) or 0
            queue: LevelQueue[Any] = LevelQueue(delay_ms, limits, self._epoch)
            self._partitions[start.partition] = _Partition(start.partition, queue, committed=start.offset)
        if starts:
            _LOG.info("worker.assigned", extra={"partitions": sorted(start.partition for start in starts)})

    def _starts(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Where each partition begins: at the committed position; where there is none, or an impossible one, earliest.

        The first start commits a position for every partition, so that a later one knows where to look.
        """
        if not partitions:
            return []
        starts: list[TopicPartition] = []
        first: list[TopicPartition] = []
        for item in consumer.committed(partitions, timeout=_METADATA_TIMEOUT_S * 2):
            low, high = consumer.get_watermark_offsets(
                TopicPartition(item.topic, item.partition), timeout=_METADATA_TIMEOUT_S
            )
            offset = item.offset
            if offset == OFFSET_INVALID or offset < 0:
                offset = low
                first.append(TopicPartition(item.topic, item.partition, low))
            elif not low <= offset <= high:
                self._alarm(
                    "worker.position-out-of-range", partition=item.partition, position=offset, low=low, high=high
                )
                offset = low
            starts.append(TopicPartition(item.topic, item.partition, offset))
        if first:
            consumer.commit(offsets=first, asynchronous=False)
        return starts

    def _on_revoke(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        leaving = [self._partitions[item.partition] for item in partitions if item.partition in self._partitions]
        try:
            self._drain(min(_REVOKE_DRAIN_NS, self.settings.stop_timeout_ms * _NS), leaving)
            self._commit(asynchronous=False, partitions=leaving)
        finally:
            self._forget(leaving)
            try:
                consumer.incremental_unassign(partitions)
            except (KafkaException, RuntimeError) as error:
                self._fatal = error

    def _on_lost(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        self._alarm("worker.partitions-lost", partitions=sorted(item.partition for item in partitions))
        self._forget([self._partitions[item.partition] for item in partitions if item.partition in self._partitions])
        try:
            consumer.incremental_unassign(partitions)
        except (KafkaException, RuntimeError) as error:
            self._fatal = error

    def _forget(self, leaving: list[_Partition]) -> None:
        for partition in leaving:
            partition.gone = True
            self._partitions.pop(partition.number, None)

    def _drain(self, longest_ns: int, partitions: list[_Partition]) -> None:
        """Wait until nothing of these partitions is in flight, or the time is over."""
        producer = self._producer
        if producer is None:
            return
        end_ns = self._clock.monotonic_ns() + longest_ns
        while any(not partition.queue.idle for partition in partitions):
            if self._clock.monotonic_ns() >= end_ns or self._fatal is not None:
                return
            producer.poll(_BUSY_MS / 1_000)
            self._settle()

    # --- set-up ------------------------------------------------------------------------------------------------------

    def _ensure_topics(self, clients: Clients) -> None:
        if clients.admin is None:
            return
        from rocketshim_topics import provision  # noqa: PLC0415 - the one module of the contract that loads Kafka

        layout = Layout(self.names, self._levels)
        admin = clients.admin(self._connection({}))
        specs = [layout.schedule(), layout.parked()]
        if self.settings.create_topics:
            provision.ensure_topics(admin, specs)
        else:
            provision.ensure_topics(admin, specs, create=False)

    def _connection(self, required: dict[str, Any], defaults: dict[str, Any] | None = None) -> dict[str, Any]:
        return merge(
            self.settings.client,
            defaults=defaults or {},
            required={"bootstrap.servers": self.settings.bootstrap, **required},
            allow_code_settings=self.settings.allow_code_settings,
        )

    def _consumer_config(self) -> dict[str, Any]:
        required = {
            **PROTECTED_CONSUMER,
            "group.id": self.settings.group or self.names.worker_group,
            "auto.offset.reset": "earliest",
            "partition.assignment.strategy": "cooperative-sticky",
            "on_commit": self._on_commit,
        }
        defaults = {
            "client.id": "rocketshim-worker",
            "queued.min.messages": 1_000,
            "queued.max.messages.kbytes": 8_192,
            "fetch.message.max.bytes": 1_048_576,
            "fetch.queue.backoff.ms": 10,
            "session.timeout.ms": 10_000,
            "heartbeat.interval.ms": 2_000,
        }
        return self._connection(required, defaults)

    def _producer_config(self) -> dict[str, Any]:
        defaults = {
            "client.id": "rocketshim-worker",
            "linger.ms": 0,
            "message.max.bytes": 100_000_000,
            "topic.metadata.propagation.max.ms": self.settings.target_patience_ms,
        }
        required = {**PROTECTED_PRODUCER, "delivery.timeout.ms": self.settings.hop_timeout_ms}
        return self._connection(required, defaults)

    def _clients_now(self) -> tuple[ConsumerClient, ProducerClient]:
        if self._consumer is None or self._producer is None:
            raise WorkerError("the worker is not started: call start() first, or use run()")
        return self._consumer, self._producer

    def _alarm(self, event: str, **facts: object) -> None:
        self.counts.alarms += 1
        _LOG.warning(event, extra=facts)


def _name(record: Any) -> str:
    return f"{record.topic()}/{record.partition()}/{record.offset()}"
