"""Decides what to do with a record that leaves its queue: deliver, hop to another queue, park or skip. Pure.

The order of the checks is part of the guarantee:

1. A probe of the leader's clock is skipped.
2. A record that breaks the wire format is parked with its reason.
3. A record with a forbidden target is parked, before its due time is computed (no worker will ever deliver it). If the
   target is only not on this worker's allow-list, the record is offered to other workers first.
4. A record that is due later than the longest allowed delay from now is parked.
5. A record that is not due yet hops to another queue. From the first hop on it carries `DELIVER_AT_MS`.
6. A due record is delivered.

"Due" refers to the lower bound of the leader's clock. If that clock has stepped back, a record's append time may be
ahead of it. Such a record leaves its queue one queue delay after it was first seen, and then counts as appended when it
was first seen.

No record makes this module raise, not even one that another program wrote.
"""

from dataclasses import dataclass
from typing import Final

from rocketshim.core.backoff import Backoff
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
    """Write nothing; the record is finished."""


@dataclass(slots=True)
class Deliver:
    """Write `out` to its target, to the partition `out.partition` if the target has it."""

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
    """This worker may not deliver the record; another worker may."""

    envelope: Envelope
    due_ms: int


Step = Skip | Deliver | NextQueue | Park | NotAllowed

_SKIP: Final = Skip()
_RE_APPEND_MS: Final = Backoff(1_000, 60_000)
_OFFER_MS: Final = (1_000, 512, 10_000, 512, 60_000)
_DEFAULT_MAX_DELAY_MS: Final = 40 * 86_400_000


def is_probe(record: Record) -> bool:
    """Return whether a record of the schedule topic is a worker's probe of a leader's clock: it has only its header."""
    if record.value() is not None or record.key() is not None:
        return False
    headers = headers_shown(record)
    return len(headers) == 1 and headers[0][0] == CLOCK


def queue_append_ms(append_ms: int, queue_delay_ms: int, clock_ms: int, seen_ns: int, now_ns: int) -> int:
    """Return when a record counts as appended: its timestamp, or when it was first seen if the clock stepped back."""
    if append_ms + queue_delay_ms <= clock_ms:
        return append_ms
    return min(append_ms, clock_ms - (now_ns - seen_ns) // 1_000_000)


class DeliveryPlanner:
    """Decides what to do with each record, by the rules at the top of this file.

    Args:
        names: topic names of the namespace.
        levels: the worker's level table.
        policy: the allow-list.
        max_delay_ms: a record that is due later than this from now is parked; default 40 days.

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
        """Return what to do with a record that left its queue.

        Args:
            record: as fetched from the schedule topic.
            clock_ms: lower bound of the leader's clock, epoch ms.
            seen_ns: monotonic instant at which the record was first seen, ns.
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
        """Return the parked record for this reason."""
        return Park(parked(record, self._names, reason), reason)

    def re_append(self, record: Record, envelope: Envelope, due_ms: int) -> NextQueue:
        """Put a record that its target does not accept back into a queue: 1 s, then twice as long, 1 min at most.

        The wait counts from the append of the new record. The due time itself (`due_ms`) does not change.
        """
        wait_ms = _RE_APPEND_MS.pause(envelope.target_tries or 0)
        lane = (record.partition() or 0) // self._levels.STRIDE
        partition = self._levels.queue_for(wait_ms, lane)
        return NextQueue(retried_target(record, envelope, self._names, partition=partition, due_ms=due_ms))

    def offer(self, record: Record, envelope: Envelope, due_ms: int, lanes: int) -> NextQueue:
        """Put a record that this worker may not deliver into another queue, which another worker may own.

        The waits grow (1 s, 10 s, 1 min). Between two of them the record goes to a fine queue, whose partition is far
        from those of the levels. Each time it goes to another lane, because a worker owns neighbouring partitions. The
        due time itself (`due_ms`) does not change.
        """
        wait_ms = _OFFER_MS[min(envelope.target_tries or 0, len(_OFFER_MS) - 1)]
        lane = ((record.partition() or 0) // self._levels.STRIDE + 1) % lanes
        partition = self._levels.queue_for(wait_ms, lane)
        return NextQueue(retried_target(record, envelope, self._names, partition=partition, due_ms=due_ms))
