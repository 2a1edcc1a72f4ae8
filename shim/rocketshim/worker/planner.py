"""What becomes of a record that leaves its queue: delivered, hopped on, parked or skipped. Pure.

The order of the questions is part of the guarantee:

1. a probe of the leader's clock is skipped;
2. a record that breaks the wire format is parked with its reason;
3. a record whose target is forbidden is parked, before it is asked when it is due (it never will be); one that is only
   not on this worker's allow-list is offered to other workers first;
4. a record that is due later than the longest delay allowed from now is parked;
5. a record that is not due yet hops on, carrying `DELIVER_AT_MS` from the first hop on;
6. a record that is due is delivered.

"Due" is read on the lower bound of the leader's clock. A record that left by the second clock (it was seen a whole
queue delay ago, but its append time lies ahead of the leader's clock: the clock stepped back) counts as appended when
it was first seen.

Nothing here raises for any record, whoever wrote it.
"""

from dataclasses import dataclass
from typing import Final

from rocketshim.worker.allow_list import NOT_ALLOWED, AllowList
from rocketshim_topics.errors import MalformedRecordError
from rocketshim_topics.hops import OutgoingRecord, delivered, due_ms, hopped, parked, retried_target
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames
from rocketshim_topics.wire import CLOCK, Envelope, Record, decode, headers_shown, read_headers

__all__ = [
    "Deliver",
    "DeliveryPlanner",
    "NextQueue",
    "NotAllowed",
    "Park",
    "Skip",
    "Step",
    "is_probe",
    "queue_append_ms",
]


@dataclass(slots=True)
class Skip:
    """Nothing is to be written; the record is done."""


@dataclass(slots=True)
class Deliver:
    """Write `out` to its target, which must have the partition `out.partition` or lose it."""

    out: OutgoingRecord
    envelope: Envelope
    due_ms: int


@dataclass(slots=True)
class NextQueue:
    """Write `out` to another queue of the schedule topic."""

    out: OutgoingRecord


@dataclass(slots=True)
class Park:
    """Write `out` to the parking topic."""

    out: OutgoingRecord
    reason: str


@dataclass(slots=True)
class NotAllowed:
    """This worker may not deliver it; another one may."""

    envelope: Envelope
    due_ms: int


Step = Skip | Deliver | NextQueue | Park | NotAllowed

_SKIP: Final = Skip()
_RE_APPEND_MS: Final = 1_000
_RE_APPEND_CAP_MS: Final = 60_000
_OFFER_MS: Final = (1_000, 512, 10_000, 512, 60_000)
_DEFAULT_MAX_DELAY_MS: Final = 40 * 86_400_000


def is_probe(record: Record) -> bool:
    """Whether a record of the schedule topic is the worker's own probe of a leader's clock: the header and no more."""
    if record.value() is not None or record.key() is not None:
        return False
    headers = headers_shown(record)
    return len(headers) == 1 and headers[0][0] == CLOCK


def queue_append_ms(append_ms: int, queue_delay_ms: int, clock_ms: int, seen_ns: int, now_ns: int) -> int:
    """When a record counts as appended: its stamp, or, if that lies ahead of the clock, when it was first seen."""
    if append_ms + queue_delay_ms <= clock_ms:
        return append_ms
    return min(append_ms, clock_ms - (now_ns - seen_ns) // 1_000_000)


class DeliveryPlanner:
    """Decides what becomes of each record, by the rules at the top of this file.

    Args:
        names: topic names of the namespace.
        levels: the worker's level table.
        policy: where records may go.
        max_delay_ms: a record due later than this from now is parked; default 40 days.

    Thread-safety: immutable.
    """

    __slots__ = ("_levels", "_max_delay_ms", "_names", "_policy")

    def __init__(
        self,
        names: TopicNames,
        levels: DelayLevels,
        policy: AllowList,
        max_delay_ms: int = _DEFAULT_MAX_DELAY_MS,
    ) -> None:
        self._names = names
        self._levels = levels
        self._policy = policy
        self._max_delay_ms = max_delay_ms

    def plan(self, record: Record, *, clock_ms: int, seen_ns: int, now_ns: int) -> Step:
        """What becomes of a record that left its queue.

        Args:
            record: as fetched from the schedule topic.
            clock_ms: lower bound of the leader's clock, epoch ms.
            seen_ns: monotonic instant of first sight, ns.
            now_ns: monotonic now, ns.
        """
        if is_probe(record):
            return _SKIP
        try:
            envelope = decode(read_headers(record), trusted=True)
        except MalformedRecordError as error:
            return self.park(record, error.reason)
        real_topic = envelope.real_topic
        if not real_topic:
            return self.park(record, "missing-header:REAL_TOPIC")
        refusal = self._policy.refusal(real_topic, envelope.consumer_group)
        if refusal is not None and refusal != NOT_ALLOWED:
            return self.park(record, refusal)
        partition = record.partition() or 0
        queue_delay_ms = self._levels.queue_delay_ms(partition)
        append_ms = queue_append_ms(record.timestamp()[1], queue_delay_ms or 0, clock_ms, seen_ns, now_ns)
        unknown_ms = self._levels.UNKNOWN_LEVEL_MS
        at_ms = due_ms(envelope, append_ms, unknown_ms if queue_delay_ms is None else queue_delay_ms)
        if at_ms - clock_ms > self._max_delay_ms:
            return self.park(record, "due-too-late")
        if refusal is not None:
            return NotAllowed(envelope, at_ms)
        if at_ms > clock_ms:
            target = self._levels.queue_for(at_ms - clock_ms, partition // self._levels.STRIDE)
            return NextQueue(hopped(record, envelope, self._names, deliver_at_ms=at_ms, partition=target))
        return Deliver(delivered(record, envelope, self._names), envelope, at_ms)

    def park(self, record: Record, reason: str) -> Park:
        """Park a record for a reason."""
        return Park(parked(record, self._names, reason), reason)

    def re_append(self, record: Record, envelope: Envelope, due_ms: int) -> NextQueue:
        """Put a record whose target does not take it back into a queue: 1 s, then twice as long each time, up to 1 min.

        The wait counts from the append of the new record; the due time itself (`due_ms`) does not change.
        """
        wait_ms = min(_RE_APPEND_MS << min(envelope.target_tries or 0, 16), _RE_APPEND_CAP_MS)
        lane = (record.partition() or 0) // self._levels.STRIDE
        partition = self._levels.queue_for(wait_ms, lane)
        return NextQueue(retried_target(record, envelope, self._names, partition=partition, due_ms=due_ms))

    def offer(self, record: Record, envelope: Envelope, due_ms: int, lanes: int) -> NextQueue:
        """Put a record that this worker may not deliver into another queue, which another worker may own.

        The waits grow (1 s, 10 s, 1 min). Between them comes a fine queue, whose partition lies far from the levels',
        and each time another lane: workers own neighbouring partitions. The due time itself (`due_ms`) does not change.
        """
        wait_ms = _OFFER_MS[min(envelope.target_tries or 0, len(_OFFER_MS) - 1)]
        lane = ((record.partition() or 0) // self._levels.STRIDE + 1) % lanes
        partition = self._levels.queue_for(wait_ms, lane)
        return NextQueue(retried_target(record, envelope, self._names, partition=partition, due_ms=due_ms))
