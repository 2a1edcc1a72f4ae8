"""One partition of the schedule topic: which records wait, which are due, and which offset may be committed.

Rules:

* The queue is strictly first-in-first-out by **its own delay**: a record leaves when that delay has passed since its
  append, whatever its headers contain. Only the head is checked. The caller that takes the record decides what follows
  (deliver it, or hop it to another queue). By their own due times, records of different origin would block each other
  (test_with_another_level_table_a_record_that_leaves_too_soon_hops_again).
* Two clocks decide that the delay has passed. The first is a lower bound of the leader's clock (`QueueClock`): the
  record leaves when it reaches `append + delay`. The second is the monotonic clock since the record was first seen.
  When the whole delay (and a thousandth more, for two clocks that run at different rates) has passed on it, the delay
  has also passed since the append, because a record is appended before it is seen. So if a leader's clock was ahead for
  a while and stamped a record in the future, that record waits its delay from first sight and not for hours (RocketMQ
  delivers such a record immediately: differs on purpose). Both clocks are safe; the earlier one counts.
* Records that leave together form a *run*, which is in flight until the last of its hops is confirmed. The position to
  commit is the one after the longest confirmed prefix of runs; only confirmations move it. `failed` puts back records
  whose hops failed: they are due immediately, lowest offset first, and their run stays open
  (test_a_failed_part_of_a_run_keeps_the_whole_run_open). So a crash repeats at most the runs in flight.
* Memory is bounded: `offer` accepts everything it is given, and `pauses` / `resumes` report when to stop and when to
  go on fetching. There is a gap between the two, so that fetching does not flap. A queue whose head is far buffers a
  twentieth. Records that were fetched together are counted with their mean size.
* All queues of a process share a `Buffer`. When it is full, only queues that have nothing fetch on, so that each queue
  knows when its head is due, and none starves.

States of a record: waiting → in flight → confirmed, or in flight → failed (waiting again, and due).

The loop around it: offer what was fetched (not the probes), take what is due, send a probe into this partition when
`asks_for_probe`, pass its delivery report to `probed`, and sleep until `next_ns`.

**`QueueClock`: a lower bound of the clock of a partition's leader, from the records of this partition.** "Never early"
is measured on the clock of the leader of the schedule partition, never on the worker's wall clock. That clock cannot be
read. But each append time that the leader wrote proves: *before we saw this record, the clock had reached this time*.
Since then at least as much time has passed there as here. Rules:

* A record is dated only by **evidence that was appended after it**: an append time of the same partition at its own
  offset or above. Between the two appends the leader's own clock has measured the time; since we saw the second, our
  monotonic clock has. Older evidence proves nothing about a clock that was set back since. Evidence from other
  partitions proves nothing about this partition's leader. Both made records early (2 s for a step of 2 s, until the
  next probe; our simulation). So there is no step to detect, no leader to identify, and no window after which evidence
  is stale (test_evidence_older_than_the_record_does_not_date_it,
  test_nothing_is_early_lost_or_stuck_for_any_leaders_and_clocks).
* Our clock is assumed to run 100 ppm slower than it does: two free-running clocks differ by no more.
* A record's own append time is evidence too: the record leaves at the latest a whole delay after it was first seen.
  That is soon enough for a record that was fetched immediately, but not for one that had waited before. A *probe*, a
  record of our own (header `CLOCK` only; readers skip it), closes that gap: its delivery report dates everything that
  was in the partition before it.
* A probe is requested when it would let the head leave: when the head would be due by the best reading ever seen, but
  is not due by evidence. So an idle queue costs nothing. A backlog costs one probe each time its reader reaches the
  former end of the log. A lost probe is requested again after a second.

The evidence kept is a staircase: offsets rise, readings fall. Evidence that is neither newer nor better than another is
dropped.
"""

from bisect import insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from operator import lt
from typing import Final, Generic, Protocol, TypeVar

from rocketshim.core.broker_clock import APPEND_TIME
from rocketshim.core.offset_tracker import OffsetTracker, Run

__all__ = ["Buffer", "Due", "LevelQueue", "QueueClock", "ScheduleRecord", "slowed"]

_NS: Final = 1_000_000
_RATE_MARGIN: Final = 1_000  # the second clock waits a thousandth longer, because clocks are slewed by at most 500 ppm
_HUNGRY_SHARE: Final = 0.5  # of both limits, at or below which fetching resumes
_FAR_SHARE: Final = 20  # a queue whose head is far buffers 1/20 of both limits
_FAR_NS: Final = 2_000_000_000
_ROOM_SHARE: Final = 0.75  # of the buffer, below which its queues fetch on
_RATE: Final = 10_000  # one part in 10,000: 100 ppm
_WORTH_NS: Final = 10 * _NS  # the round trip of a probe itself takes some milliseconds
_AGAIN_NS: Final = 1_000 * _NS


class QueueClock:
    """Lower bound of the clock of one partition's leader.

    Thread-safety: none; one owner thread.
    Source: our simulation (`test_level_queue.py`): 0 early under steps in both directions, drift and leader changes.
    """

    __slots__ = ("_asked_ns", "_evidence", "_guess_ns")

    def __init__(self) -> None:
        self._evidence: deque[tuple[int, int]] = deque()  # (offset, append time - slowed instant of first sight), ns
        self._guess_ns: int | None = None  # best reading since the newest probe; right unless the clock was set back
        self._asked_ns: int | None = None

    def saw(self, offset: int, append_ms: int, seen_ns: int) -> None:
        """Record that a record of the partition was fetched."""
        reading = append_ms * _NS - seen_ns
        if self._guess_ns is not None and reading > self._guess_ns:
            self._guess_ns = reading
        self._add(offset, append_ms * _NS - slowed(seen_ns))

    def probed(self, offset: int, append_ms: int, seen_ns: int) -> None:
        """Record the delivery report of a record that we wrote into the partition."""
        self._guess_ns = append_ms * _NS - seen_ns
        self._asked_ns = None
        self._add(offset, append_ms * _NS - slowed(seen_ns))

    def now_ns(self, offset: int, monotonic_ns: int) -> int | None:
        """Return a lower bound of the clock, in epoch ns, for records up to `offset`; None without evidence.

        The offset is not below that of any earlier call: records leave in order.
        """
        evidence = self._evidence
        while evidence and evidence[0][0] < offset:
            evidence.popleft()
        return slowed(monotonic_ns) + evidence[0][1] if evidence else None

    def instant_ns(self, offset: int, clock_ns: int) -> int | None:
        """Return the first monotonic instant at which `now_ns` of the offset reaches `clock_ns`; None: no evidence."""
        evidence = self._evidence
        while evidence and evidence[0][0] < offset:
            evidence.popleft()
        if not evidence:
            return None
        slowed = clock_ns - evidence[0][1]
        return slowed + (slowed - 1) // (_RATE - 1)

    def probe_instant_ns(self, clock_ns: int) -> int | None:
        """Return the monotonic instant from which a probe helps a head that is due at `clock_ns`.

        None: immediately, because the age of the records is not known.
        """
        wanted = None if self._guess_ns is None else clock_ns - self._guess_ns + _WORTH_NS
        again = None if self._asked_ns is None else self._asked_ns + _AGAIN_NS
        if wanted is None or again is None:
            return wanted if again is None else again
        return max(wanted, again)

    def asked(self, monotonic_ns: int) -> None:
        """Record that a probe was requested."""
        self._asked_ns = monotonic_ns

    def _add(self, offset: int, reading: int) -> None:
        evidence = self._evidence
        newer: list[tuple[int, int]] = []
        while evidence and evidence[-1][0] > offset:
            newer.append(evidence.pop())
        if not (newer and newer[-1][1] >= reading):
            while evidence and evidence[-1][1] <= reading:
                evidence.pop()
            if not (evidence and evidence[-1][0] == offset):
                evidence.append((offset, reading))
        evidence.extend(reversed(newer))


def slowed(monotonic_ns: int) -> int:
    """Return what a clock shows that runs slower by the largest assumed difference of rates."""
    return monotonic_ns - monotonic_ns // _RATE


class ScheduleRecord(Protocol):
    """The methods that the queue needs of a record (`confluent_kafka.Message` has them)."""

    def offset(self) -> int | None:
        """Return the offset in the partition."""

    def timestamp(self) -> tuple[int, int]:
        """Return the timestamp type and the append time in epoch ms."""

    def __len__(self) -> int:
        """Return the size of the value in bytes."""


RecordT = TypeVar("RecordT", bound=ScheduleRecord)


@dataclass(slots=True)
class Buffer:
    """The memory that all queues of a process share."""

    limit_bytes: int = 1 << 60
    held_bytes: int = 0  # records that wait or are in flight

    @property
    def is_full(self) -> bool:
        """Whether queues that have records stop fetching."""
        return self.held_bytes >= self.limit_bytes

    @property
    def has_room(self) -> bool:
        """Whether queues that have stopped may fetch on."""
        return self.held_bytes < self.limit_bytes * _ROOM_SHARE


@dataclass(slots=True)
class Due(Generic[RecordT]):
    """Records that left their queue together, in order; at least one."""

    records: list[RecordT]
    appends_ms: list[int]  # epoch ms
    seen_ns: list[int]  # monotonic instants of first sight
    run: Run
    clock_offset_ns: int  # a lower bound of the leader's clock less our slowed clock, on evidence younger than they are
    size_bytes: int = 0  # as far as it is known

    def clock_ms(self, now_ns: int) -> int:
        """Return a lower bound of the leader's clock, epoch ms. Absolute due times are compared with it."""
        return (slowed(now_ns) + self.clock_offset_ns) // _NS


@dataclass(slots=True)
class _FetchedRun(Generic[RecordT]):
    """Records that were fetched together, without those that have left; never empty."""

    seen_ns: int
    last_offset: int
    latest_ms: int  # latest append time of its records
    records: list[RecordT]
    appends_ms: list[int]
    mean_bytes: int


class LevelQueue(Generic[RecordT]):
    """The waiting records of one partition of the schedule topic. One owner thread.

    Source: `ScheduleMessageService#executeOnTimeUp` of RocketMQ; the second clock differs on purpose.
    """

    __slots__ = (
        "_batches", "_buffer", "_bytes", "_clock", "_count", "_due_ns", "_full_bytes", "_full_count", "_is_dated",
        "_last_offset", "_next_ns", "_retry", "_stale", "_tracker", "_unconfirmed_bytes", "_unconfirmed_ns", "delay_ms",
    )  # fmt: skip

    def __init__(
        self, delay_ms: int, buffer: Buffer | None = None, *, full_count: int = 1_000, full_bytes: int = 1_048_576
    ) -> None:
        if delay_ms < 0:
            raise ValueError(f"delay_ms={delay_ms}: a queue cannot wait a negative time")
        if full_count < 1 or full_bytes < 1:
            raise ValueError(f"need full_count={full_count}, full_bytes={full_bytes} >= 1")
        self.delay_ms = delay_ms
        self._full_count, self._full_bytes = full_count, full_bytes
        self._buffer = buffer or Buffer()
        self._clock = QueueClock()
        self._tracker = OffsetTracker()
        self._batches: deque[_FetchedRun[RecordT]] = deque()
        self._retry: list[Due[RecordT]] = []  # lowest offset first
        self._unconfirmed_ns: dict[Run, int] = {}  # when the runs were due that are in flight or failed
        self._unconfirmed_bytes: dict[Run, int] = {}
        self._count = 0
        self._bytes = 0
        self._last_offset = -1
        self._next_ns: int | None = None  # cached result of `next_ns`, unless it is stale
        self._due_ns = 0  # when the head leaves, on our clock; cached likewise
        self._is_dated = True  # whether there is evidence for the head, without which it does not leave; likewise
        self._stale = False

    def offer(self, records: Sequence[RecordT], seen_ns: int, extra_bytes: int = 0) -> list[RecordT]:
        """Accept fetched records; return those whose timestamp is not an append time but their sender's.

        Their offsets rise strictly, above all that was offered before; otherwise nothing is accepted, and `ValueError`
        is raised. `extra_bytes` is the mean size of a record beyond its value (key, headers).
        """
        if not records:
            return []
        # One pass per field: each costs a few ns per record, and there are a hundred thousand records a second.
        offsets = [self._last_offset, *[record.offset() or 0 for record in records]]
        if not all(map(lt, offsets, offsets[1:])):
            raise ValueError(
                f"offsets {offsets[1]} to {offsets[-1]} do not rise above {self._last_offset} and one another"
            )
        stamps = [record.timestamp() for record in records]
        appends_ms = [append_ms for _, append_ms in stamps]
        last = self._last_offset = offsets[-1]
        count = len(records)
        mean_bytes = -(-sum(map(len, records)) // count) + extra_bytes
        self._batches.append(_FetchedRun(seen_ns, last, max(appends_ms), list(records), appends_ms, mean_bytes))
        if stamps[-1][0] == APPEND_TIME:  # a sender's time proves nothing about the leader's clock
            self._clock.saw(last, appends_ms[-1], seen_ns)
        self._count += count
        self._bytes += count * mean_bytes
        self._buffer.held_bytes += count * mean_bytes
        self._stale = True
        if {kind for kind, _ in stamps} == {APPEND_TIME}:
            return []
        return [record for record, (kind, _) in zip(records, stamps, strict=True) if kind != APPEND_TIME]

    def probed(self, offset: int, append_ms: int, seen_ns: int) -> None:
        """Record the delivery report of a record that we wrote into this partition (a probe, a hop)."""
        self._clock.probed(offset, append_ms, seen_ns)
        self._stale = True

    def take(self, now_ns: int, limit: int = 5_000, limit_bytes: int = 1 << 40) -> Due[RecordT] | None:
        """Take records that have waited long enough; they are in flight from here on. The last may exceed the bytes.

        Decides: When does a record leave its queue? When the evidence of `QueueClock` shows that its delay has passed,
            or when that has passed since we saw it; never without evidence of any kind (a probe asks for it).
        """
        if limit < 1 or limit_bytes < 1:
            raise ValueError(f"limit={limit}, limit_bytes={limit_bytes}: at least one record can leave")
        if self._nothing_to_do(now_ns):
            return None
        self._stale = True
        if self._retry:
            due = self._retry.pop(0)
            count = min(limit, -(-limit_bytes * len(due.records) // max(1, due.size_bytes)))
            return due if count >= len(due.records) else self._divide(due, count)
        return self._leave(now_ns, limit, limit_bytes)

    def next_ns(self) -> int | None:
        """Return the monotonic instant of the next work, in ns; None while nothing waits.

        From then on, and not before, `take` returns records or `asks_for_probe` is true. The instant may lie in the
        past.
        """
        if self._stale:
            self._stale = False
            self._next_ns = self._find_next_ns()
        return self._next_ns

    def has_due(self, now_ns: int) -> bool:
        """Return whether a record would leave now, as far as is known without a probe."""
        return not self._nothing_to_do(now_ns) and (bool(self._retry) or (self._is_dated and self._due_ns <= now_ns))

    def asks_for_probe(self, now_ns: int) -> bool:
        """Return whether to send a probe into this partition now; true at most once a second until `probed`.

        Decides: Is a probe needed? If the first record has waited long enough by our clock, and no append time proves
            that the leader's clock has gone on as far.
        """
        if self._nothing_to_do(now_ns) or self.has_due(now_ns):
            return False
        self._clock.asked(now_ns)
        self._stale = True
        return True

    def confirmed(self, run: Run) -> None:
        """Mark every hop of a run as stored.

        Raises:
            ValueError: the run was confirmed before, or belongs to another queue; nothing changed.
        """
        self._tracker.finish_all(run)
        del self._unconfirmed_ns[run]
        self._buffer.held_bytes -= self._unconfirmed_bytes.pop(run)

    def drop(self) -> None:
        """Give the shared memory back: the queue is taken away, and nothing more is offered or confirmed."""
        self._buffer.held_bytes -= self._bytes + sum(self._unconfirmed_bytes.values())
        self._buffer = Buffer()

    def failed(self, due: Due[RecordT]) -> None:
        """Put back records whose hops failed, or a part of them: they are due again, before all others of this queue.

        If there is no record, or the run was confirmed, `ValueError` is raised, and nothing changes.
        """
        if not due.records or due.run.unfinished == 0:
            raise ValueError("only records that left and were not confirmed can fail")
        insort(self._retry, due, key=_first_offset)
        self._stale = True

    @property
    def oldest_due_ns(self) -> int | None:
        """The monotonic instant at which the oldest unconfirmed record was or will be due; None: there is none."""
        if self._unconfirmed_ns:
            return min(self._unconfirmed_ns.values())
        return None if self.next_ns() is None else self._due_ns

    @property
    def head(self) -> RecordT | None:
        """The record that leaves next, or None."""
        if self._retry:
            return self._retry[0].records[0]
        return self._batches[0].records[0] if self._batches else None

    @property
    def next_offset(self) -> int | None:
        """The position to commit, or None while nothing of this assignment is confirmed."""
        return self._tracker.next_offset

    @property
    def waiting_count(self) -> int:
        """Number of records that are buffered and not in flight."""
        return self._count + sum(len(due.records) for due in self._retry)

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight or failed."""
        return self._tracker.idle

    @property
    def full(self) -> bool:
        """Whether the queue buffers as much as its own limits allow."""
        return self._count >= self._full_count or self._bytes >= self._full_bytes

    @property
    def hungry(self) -> bool:
        """Whether the queue buffers so little that fetching should resume after a pause."""
        share = _HUNGRY_SHARE
        return self._count <= self._full_count * share and self._bytes <= self._full_bytes * share

    def pauses(self, now_ns: int) -> bool:
        """Return whether fetching should pause.

        Decides: When does a worker pause a delay queue? When it is full, or has a twentieth of that and its head is due
            in more than 2 s. When all queues together are full (`Buffer`), each queue that has a record.
        """
        count = self._count
        if not count:
            return self._buffer.is_full and bool(self._unconfirmed_ns)
        if self._buffer.is_full or count >= self._full_count or self._bytes >= self._full_bytes:
            return True
        is_enough = count * _FAR_SHARE >= self._full_count or self._bytes * _FAR_SHARE >= self._full_bytes
        return is_enough and self._is_far(now_ns)

    def resumes(self, now_ns: int) -> bool:
        """Return whether fetching should resume after a pause."""
        if not self._count:
            return self._buffer.has_room or not self._unconfirmed_ns
        return self.hungry and self._buffer.has_room and not self._is_far(now_ns)

    def _is_far(self, now_ns: int) -> bool:
        next_ns = self.next_ns()
        return next_ns is not None and next_ns - now_ns > _FAR_NS

    def _leave(self, now_ns: int, limit: int, limit_bytes: int) -> Due[RecordT] | None:
        latest_seen_ns = now_ns - self._max_wait_ns
        records: list[RecordT] = []
        appends_ms: list[int] = []
        seen: list[int] = []
        leader_ns = size_bytes = 0
        while self._batches and len(records) < limit and size_bytes < limit_bytes:
            batch = self._batches[0]
            clock_ns = self._clock.now_ns(batch.last_offset, now_ns)
            if clock_ns is None:  # a sender's time proves nothing: a probe dates them
                break
            latest_append_ms = clock_ns // _NS - self.delay_ms
            count = min(len(batch.records), limit - len(records))
            if count * batch.mean_bytes > limit_bytes - size_bytes:
                count = -(-(limit_bytes - size_bytes) // batch.mean_bytes)
            if batch.latest_ms > latest_append_ms and batch.seen_ns > latest_seen_ns:
                count = _due_count(batch.appends_ms[:count], latest_append_ms)
            if count:
                leader_ns = clock_ns
                size_bytes += count * batch.mean_bytes
                records += batch.records[:count]
                appends_ms += batch.appends_ms[:count]
                seen += [batch.seen_ns] * count
                del batch.records[:count], batch.appends_ms[:count]
            if batch.records:
                break
            self._batches.popleft()
        if not records:
            return None
        self._count -= len(records)
        self._bytes -= size_bytes
        run = self._tracker.deliver(records)
        self._unconfirmed_ns[run] = self._due_ns
        self._unconfirmed_bytes[run] = size_bytes
        return Due(records, appends_ms, seen, run, leader_ns - slowed(now_ns), size_bytes)

    def _divide(self, due: Due[RecordT], count: int) -> Due[RecordT]:
        """Return the first records of a failed run; the others fail again. A run of which a part failed is returned."""
        if due.run.unfinished != len(due.records):
            return due
        first, rest = self._tracker.split(due.run, count)
        due_ns = self._unconfirmed_ns.pop(due.run)
        self._unconfirmed_ns[first] = self._unconfirmed_ns[rest] = due_ns
        whole_bytes = self._unconfirmed_bytes.pop(due.run)
        size_bytes = whole_bytes * count // len(due.records)
        self._unconfirmed_bytes[first], self._unconfirmed_bytes[rest] = size_bytes, whole_bytes - size_bytes
        parts = [
            Due(due.records[at], due.appends_ms[at], due.seen_ns[at], run, due.clock_offset_ns, size)
            for at, run, size in (
                (slice(None, count), first, size_bytes),
                (slice(count, None), rest, whole_bytes - size_bytes),
            )
        ]
        self._retry.insert(0, parts[1])
        return parts[0]

    def _nothing_to_do(self, now_ns: int) -> bool:
        next_ns = self.next_ns()
        return next_ns is None or next_ns > now_ns

    def _find_next_ns(self) -> int | None:
        if self._retry:
            return 0
        if not self._batches:
            return None
        batch = self._batches[0]
        due_clock_ns = (batch.appends_ms[0] + self.delay_ms) * _NS
        by_clock, by_sight = self._clock.instant_ns(batch.last_offset, due_clock_ns), batch.seen_ns + self._max_wait_ns
        self._is_dated = by_clock is not None
        self._due_ns = by_sight if by_clock is None else min(by_clock, by_sight)
        probe_ns = self._clock.probe_instant_ns(0 if by_clock is None else due_clock_ns)
        probe_ns = batch.seen_ns if probe_ns is None else probe_ns
        return probe_ns if by_clock is None else min(self._due_ns, probe_ns)

    @property
    def _max_wait_ns(self) -> int:
        return self.delay_ms * (_NS + _NS // _RATE_MARGIN)


def _due_count(appends_ms: list[int], latest_ms: int) -> int:
    """Return how many records, from the first on, were appended by then; append times need not rise."""
    for count, append_ms in enumerate(appends_ms):
        if append_ms > latest_ms:
            return count
    return len(appends_ms)


def _first_offset(due: Due[RecordT]) -> int:
    return due.records[0].offset() or 0
