"""Produces the hops of due records and counts their delivery reports, for both deliveries.

* Records that left a queue together form a `Flight`.
* `HopWriter.write` produces a group of them as a `HopBatch`: records of one flight for one partition. The reports of
  one partition arrive in the order of its records (idempotent producer). So one callback object serves many records by
  counting: a report's number identifies its record. If the order is unreliable (time-outs), none of the batch counts
  as stored.
* If the producer's queue is full, the batch ends, and the writer polls until there is room. A record that the producer
  refuses becomes a batch of its own, with the error. So does a record for which even an empty queue has no room.
* Each record is stamped with the clock of the leader of its queue, as far as it is known, and not with this machine's:
  brokers refuse a record of a clock that is an hour ahead, and retention deletes one of a clock that is behind early.
  A delivery has the timestamp that its sender gave (`TARGET_TIMESTAMP_MS`), if any.
* Callbacks only count, and put what is complete into `inbox`. The delivery decides what a failure means.
"""

from collections import deque
from collections.abc import Callable, Container, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from rocketshim.core.level_queue import Due
from rocketshim.kafka.clients import ProducerClient, poll_callbacks
from rocketshim.kafka.reports import DeliveryError, DeliveryReports
from rocketshim.worker.assignment import AssignedPartition
from rocketshim.worker.state import WorkerCounts, re_append_event
from rocketshim.worker.targets import TargetHealth
from rocketshim_topics.hops import OutgoingRecord
from rocketshim_topics.wire import Header, coordinates

__all__ = ["Action", "Flight", "HopBatch", "HopGroup", "HopRecord", "HopWriter", "hop_record", "merged"]

_FULL_S: Final = 0.02  # how long to wait at a time while the producer's queue is full
_LARGER_THAN_QUEUE: Final = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE, "larger than queue.buffering.max.kbytes")
_UNORDERED: Final = frozenset({KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT_QUEUE})  # noqa: SLF001
_NONE: Final[Mapping[int, int]] = MappingProxyType({})


class Action(Enum):
    """What the worker does with a record of a run, as `Router` and `TimerRouter` decide."""

    DELIVER = "deliver"
    REQUEUE = "hop"  # into another delay queue
    RE_APPEND = "re-append"
    PARK = "park"
    NEXT = "next"  # occurrence of a message; at least once, when all other records of the run are stored
    STATE = "state"  # of a named timer; at least once, when the next occurrences are stored, too
    SKIP = "skip"
    NOT_YET = "not-yet"


HopRecord = tuple[int, bytes | None, bytes | None, list[Header], int]
"""Index of a record in its run; value, key and headers to write; when it was due, epoch ms. A tuple, for speed."""


def hop_record(index: int, out: OutgoingRecord, due_ms: int = 0) -> HopRecord:
    """Return what is written for the record at an index of a run."""
    return index, out.value, out.key, out.headers, due_ms


class HopGroup:
    """Records of a run that take the same hop to the same partition; none once they are produced.

    `topic` is `""` for records that are skipped or have to wait for `target.ready_ns`. `timestamps` are those that
    senders gave, epoch ms, by index, and the groups of a run may share them; other records get the brokers' time.
    """

    __slots__ = ("action", "one_per_batch", "partition", "reason", "records", "target", "timestamps", "topic")

    def __init__(
        self,
        action: Action,
        topic: str = "",
        partition: int = -1,
        *,
        target: TargetHealth | None = None,
        reason: str = "",
        one_per_batch: bool = False,
        first: HopRecord | None = None,
        timestamps: Mapping[int, int] = _NONE,
    ) -> None:
        self.action = action
        self.topic = topic
        self.partition = partition
        self.target = target
        self.reason = reason
        self.one_per_batch = one_per_batch
        self.timestamps = timestamps
        self.records: list[HopRecord] = [] if first is None else [first]


def merged(groups: list[HopGroup]) -> list[HopGroup]:
    """Put hops to the same partition together; those with a timestamp of their sender stay alone."""
    begun: dict[tuple[object, ...], HopGroup] = {}
    for group in groups:
        same = group.action, group.topic, group.partition, group.target, group.reason, group.one_per_batch
        first = begun.setdefault((*same, id(group)) if group.timestamps else same, group)
        if first is not group:
            first.records += group.records
    return list(begun.values())


class Flight:
    """A run of records that left their queue together; `pending` is how many of them are not finished.

    What the run writes for named timers comes in phases: after the effects the next occurrences, then the states, each
    by the index of its command. States of earlier commands have negative indexes.
    """

    __slots__ = ("_begun", "_earlier", "_later", "_phases", "assigned", "due", "mean_bytes", "pending")

    def __init__(self, assigned: AssignedPartition, due: Due[Any]) -> None:
        self.assigned = assigned
        self.due = due
        self.pending = len(due.records)
        self.mean_bytes = due.size_bytes / len(due.records)
        self._later: dict[Action, dict[int, tuple[Action, str, int, HopRecord]]] = {Action.NEXT: {}, Action.STATE: {}}
        self._earlier: list[Any] = []
        self._phases = iter(self._later)
        self._begun: dict[int, tuple[Action, str, int, HopRecord]] = {}  # of the phase begun; none: the effects

    @property
    def is_later(self) -> bool:
        """Whether the effects are finished, and a later phase has begun."""
        return bool(self._begun)

    def keeps(self, group: HopGroup) -> bool:
        """Keep a group for its phase, if that has not begun; return whether it is kept."""
        if self._begun or group.action not in self._later:
            return False
        for hop in group.records:
            self._later[group.action][hop[0]] = group.action, group.topic, group.partition, hop
        return True

    def add_states(self, states: Sequence[tuple[Any, OutgoingRecord]]) -> None:
        """Write these states of earlier commands before those of the run."""
        self._earlier = [command for command, _ in states]
        for index, (_, out) in enumerate(states, -len(states)):
            self._later[Action.NEXT][index] = Action.STATE, out.topic, out.partition or 0, hop_record(index, out)

    def records(self, indexes: Sequence[int]) -> list[Any]:
        """Return the records at these indexes."""
        records = self.due.records
        if not self._earlier:  # as almost always
            return [records[index] for index in indexes]
        return [self._earlier[index] if index < 0 else records[index] for index in indexes]

    def begin_phase(self) -> list[int]:
        """Begin the next phase that has something to write; return the indexes, which are pending now."""
        for action in self._phases:
            if hops := self._later[action]:
                self._begun = hops
                # of each name only its last state: one that is written again must not come behind a later one
                last = {hop[2] if action is Action.STATE else at: at for at, (*_, hop) in sorted(hops.items())}
                self.pending = len(last)
                return sorted(last.values())
        return []

    def later(self, indexes: list[int]) -> list[HopGroup]:
        """Return what this phase writes for the commands at these indexes."""
        begun = (self._begun[index] for index in indexes)
        return merged([HopGroup(action, topic, partition, first=hop) for action, topic, partition, hop in begun])


class HopBatch:
    """Records of one flight that were produced to one partition."""

    __slots__ = (
        "alone", "delivery_error", "dues_ms", "errors", "flight", "group", "inbox", "indexes", "is_done",
        "is_refused", "quiet_since_ns", "reports", "seen_reports", "sent_ns",
    )  # fmt: skip

    def __init__(
        self, flight: Flight, group: HopGroup, inbox: "deque[HopBatch]", delivery_error: DeliveryError, sent_ns: int
    ) -> None:
        self.flight = flight
        self.group = group  # several batches may share it; it has no records once all are produced
        self.inbox = inbox
        self.delivery_error = delivery_error
        self.sent_ns = self.quiet_since_ns = sent_ns  # the second: when the last report was seen
        self.seen_reports = 0
        self.indexes: list[int] = []  # in the flight, in the order in which they were produced
        self.dues_ms: list[int] = []
        self.reports = 0
        self.errors: list[tuple[int, KafkaError]] = []  # position in `indexes`, and error
        self.is_done = False  # processed, or replaced by other batches: later reports are dropped
        self.is_refused = False  # the producer has refused its only record: no report will arrive
        self.alone = group.one_per_batch  # each record was a separate batch on the wire

    def reported(self, error: KafkaError | None, message: Any) -> None:
        """Count a delivery report; hand the batch over when all reports have arrived."""
        error = self.delivery_error(error, message)
        if error is not None:
            self.errors.append((self.reports, error))
        self.reports += 1
        if self.reports == len(self.indexes):
            self.inbox.append(self)

    def record(self, position: int) -> Any:
        """Return the fetched record at a position of `indexes`."""
        return self.flight.records([self.indexes[position]])[0]

    @property
    def is_late(self) -> bool:
        """Whether one of its records was not stored in time, so that the producer has abandoned it."""
        return any(error.code() in _UNORDERED for _, error in self.errors)

    def unstored(self) -> dict[int, KafkaError | None]:
        """Return the positions of the records not known to be stored, and why; None: there is no report yet."""
        if self.is_late and len(self.errors) < len(self.indexes):
            return dict.fromkeys(range(len(self.indexes)), self.errors[0][1])
        return {**dict(self.errors), **dict.fromkeys(range(self.reports, len(self.indexes)))}


class HopWriter:
    """Produces hops; calls `forget` with records whose hops are stored."""

    def __init__(
        self, counts: WorkerCounts, forget: Callable[[Sequence[Any]], None], alarm: Callable[..., None]
    ) -> None:
        self.inbox: deque[HopBatch] = deque()  # batches whose reports have all arrived
        self.reports = DeliveryReports()
        self.failure: KafkaError | None = None  # a fatal one of a producer
        self._counts = counts
        self._forget = forget
        self._alarm = alarm

    def batch(self, flight: Flight, group: HopGroup, now_ns: int) -> HopBatch:
        """Return an empty batch."""
        return HopBatch(flight, group, self.inbox, self.reports.error, now_ns)

    def write(self, producer: ProducerClient, flight: Flight, group: HopGroup, now_ns: int) -> list[HopBatch]:
        """Produce a group of records, and return them as batches.

        The group is empty afterwards: the producer has its own copies, and reports need only the indexes.

        Decides: Which timestamp has a record that the worker writes? The clock of its queue's leader, as far as it is
            known (`core.level_queue.Due.clock_ms`); never this machine's. A delivery has the timestamp that the sender
            gave, if it counts (`worker.router`). What consumers and redrives write: `core.broker_clock.BrokerClock`.
        """
        batches: list[HopBatch] = []
        start = 0
        while start < len(group.records):
            batch = self.batch(flight, group, now_ns)
            problem = _produce(producer, batch, start)
            start += len(batch.indexes)
            if batch.indexes:
                batches.append(batch)
            if isinstance(problem, BufferError) and len(producer):
                self.failure = poll_callbacks(producer, _FULL_S) or self.failure  # reports make room
            elif problem is not None:
                error = _LARGER_THAN_QUEUE if isinstance(problem, BufferError) else problem.args[0]
                batches.append(self._refused(flight, group, start, error, now_ns))
                start += 1
        group.records = []
        return batches

    def _refused(self, flight: Flight, group: HopGroup, at: int, error: KafkaError, now_ns: int) -> HopBatch:
        batch = self.batch(flight, group, now_ns)
        batch.indexes, batch.dues_ms, batch.errors = [group.records[at][0]], [group.records[at][4]], [(0, error)]
        batch.reports, batch.alone, batch.is_refused = 1, True, True
        return batch

    def count_stored(self, batch: HopBatch, now_ns: int, unstored: Container[int] = ()) -> None:
        """Count the records of a batch as stored, but not those at these positions; log those that were diverted."""
        group, flight, counts = batch.group, batch.flight, self._counts
        stored = [at for at in range(len(batch.indexes)) if at not in unstored]
        records = flight.records([batch.indexes[at] for at in stored])
        if group.action is Action.DELIVER:
            counts.delivered += len(stored)
            clock_ms = flight.due.clock_ms(now_ns)
            counts.lateness.add_all([(clock_ms - batch.dues_ms[at]) / 1e3 for at in stored])
            if group.target is not None:
                group.target.record_success()
        elif group.action in {Action.REQUEUE, Action.NEXT}:
            counts.hopped += len(stored)
        elif group.action is Action.RE_APPEND:
            counts.re_appended += len(stored)
            for record in records:
                self._alarm(re_append_event(group.reason), record=coordinates(record), error=group.reason)
        elif group.action is Action.PARK:
            for record in records:
                counts.count_parked(group.reason)
                self._alarm("worker.parked", reason=group.reason, record=coordinates(record))
        self._forget(records)


def _produce(producer: ProducerClient, batch: HopBatch, start: int) -> BufferError | KafkaException | None:
    """Produce the records of a batch's group from an index on; return the error at which that ended."""
    produce, topic, partition = producer.produce, batch.group.topic, batch.group.partition
    clock_ms, timestamps = batch.flight.due.clock_ms(batch.sent_ns), batch.group.timestamps
    reported, add_index, add_due = batch.reported, batch.indexes.append, batch.dues_ms.append
    try:
        for index, value, key, headers, due_ms in batch.group.records[start:]:
            stamp_ms = timestamps.get(index, clock_ms) if timestamps else clock_ms
            produce(topic, value, key, partition, on_delivery=reported, timestamp=stamp_ms, headers=headers)
            add_index(index)
            add_due(due_ms)
    except (BufferError, KafkaException) as error:
        return error
    return None
