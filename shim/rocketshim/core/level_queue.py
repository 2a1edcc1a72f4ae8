"""One partition of the schedule topic: what waits, what is due, how far it is done.

Rules of this file (design: "one queue rule"):

* The queue is strictly first-in-first-out by **its own delay**: a record leaves when that delay has passed since its
  append, whatever its headers say; only the head is looked at. What becomes of it then (delivered, or hopped to
  another queue) is decided by whoever takes it.
* Two clocks decide that the delay has passed. The first is a lower bound of the leader's clock (`clock_ms`): the
  record leaves when it shows `append + delay`. The second is the monotonic clock since the record was first seen:
  when the whole delay (and a thousandth more, for two clocks that run at different rates) has passed on it, the delay
  has passed since the append too, since nothing is seen before it is appended. So a record stamped in the future, by a
  leader whose clock was ahead for a while, waits its delay from first sight and not for hours (RocketMQ fires such a
  record at once: differs on purpose). Both are safe; the earlier one counts.
* While the leader's clock is unknown nothing leaves.
* What leaves together is a *run*, in flight until the last of its hops is confirmed. The position to commit is the one
  after the longest confirmed prefix of runs and moves by confirmations only. Hops that failed are offered again by
  `failed`: they are due at once, and their run stays open.
* Memory is bounded: `offer` takes what it is given, and `full` / `hungry` say when to pause and when to resume
  fetching; between the two lies a gap, so that fetching does not flap.

States of a record: waiting → in flight → confirmed, or in flight → failed (waiting again, and due).
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from rocketshim.core.offset_tracker import OffsetTracker, Run

__all__ = ["Due", "LevelQueue", "QueueLimits", "ScheduleRecord"]


class ScheduleRecord(Protocol):
    """What the queue asks of a record (`confluent_kafka.Message` has it)."""

    def offset(self) -> int | None:
        """Offset in the partition."""

    def timestamp(self) -> tuple[int, int]:
        """Timestamp type and the append time in epoch ms."""

    def __len__(self) -> int:
        """Size of the value in bytes."""


RecordT = TypeVar("RecordT", bound=ScheduleRecord)


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """How much of one partition may be held.

    Attributes:
        full_count: records waiting at which fetching pauses, at least 1.
        full_bytes: bytes of values waiting at which fetching pauses, at least 1.
        hungry_share: share of both limits below which fetching goes on, 0 to 1.
    """

    full_count: int = 1_000
    full_bytes: int = 1_048_576
    hungry_share: float = 0.5

    def __post_init__(self) -> None:
        if self.full_count < 1 or self.full_bytes < 1 or not 0 <= self.hungry_share < 1:
            raise ValueError(f"need full_count, full_bytes >= 1 and 0 <= hungry_share < 1: {self}")


@dataclass(slots=True)
class Due(Generic[RecordT]):
    """Records that left their queue together, in order.

    Attributes:
        records: at least one.
        seen_ns: for each run of records the monotonic instant of first sight, aligned with `records`.
        run: names them when they are confirmed.
    """

    records: list[RecordT]
    seen_ns: list[int]
    run: Run


_RATE_MARGIN = 1_000  # the second clock waits a thousandth longer: clocks are slewed by at most 500 ppm


class LevelQueue(Generic[RecordT]):
    """What waits in one partition of the schedule topic.

    Args:
        delay_ms: the queue's own delay, 0 or more.
        limits: when to pause and resume fetching.
        epoch: number of the assignment; only carried.

    Thread-safety: none; one owner thread.

    Source: `ScheduleMessageService#executeOnTimeUp` of RocketMQ; the second clock differs on purpose.
    """

    __slots__ = ("_batches", "_bytes", "_count", "_last_offset", "_retry", "_tracker", "delay_ms", "epoch", "limits")

    def __init__(self, delay_ms: int, limits: QueueLimits | None = None, epoch: int = 0) -> None:
        if delay_ms < 0:
            raise ValueError(f"delay_ms={delay_ms}: a queue cannot wait a negative time")
        self.delay_ms = delay_ms
        self.limits = limits or QueueLimits()
        self.epoch = epoch
        self._tracker = OffsetTracker(epoch)
        self._batches: deque[tuple[int, deque[RecordT]]] = deque()  # (seen_ns, records), in order
        self._retry: deque[Due[RecordT]] = deque()
        self._count = 0
        self._bytes = 0
        self._last_offset = -1

    def offer(self, records: Sequence[RecordT], seen_ns: int) -> None:
        """Take fetched records, in order.

        Args:
            records: offsets strictly rising, above all that was offered before; none is fine.
            seen_ns: monotonic instant at which they were fetched, in ns.

        Raises:
            ValueError: offsets do not rise; nothing was taken.
        """
        if not records:
            return
        last = self._last_offset
        size = 0
        for record in records:
            offset = record.offset()
            if offset is None or offset <= last:
                raise ValueError(f"offset {offset} does not rise above {last}")
            last = offset
            size += len(record)
        self._last_offset = last
        self._batches.append((seen_ns, deque(records)))
        self._count += len(records)
        self._bytes += size

    def due(self, clock_ms: int | None, now_ns: int, limit: int = 5_000) -> Due[RecordT] | None:
        """Take what has waited long enough; it is in flight from here on.

        Args:
            clock_ms: lower bound of the leader's clock in epoch ms; None while it is unknown: nothing is due.
            now_ns: the monotonic clock, in ns.
            limit: at most so many records.

        Returns:
            At least one record, or None.
        """
        if self._retry:
            return self._retry.popleft()
        if clock_ms is None or not self._batches:
            return None
        latest_append_ms = clock_ms - self.delay_ms
        latest_seen_ns = now_ns - self._patience_ns
        records: list[RecordT] = []
        seen: list[int] = []
        while self._batches and len(records) < limit:
            seen_ns, batch = self._batches[0]
            room = limit - len(records)
            if len(batch) <= room and (seen_ns <= latest_seen_ns or _all_appended_by(batch, latest_append_ms)):
                records.extend(batch)
                seen.extend([seen_ns] * len(batch))
                self._batches.popleft()
                continue
            taken = 0
            old = seen_ns <= latest_seen_ns
            while batch and taken < room and (old or batch[0].timestamp()[1] <= latest_append_ms):
                records.append(batch.popleft())
                taken += 1
            seen.extend([seen_ns] * taken)
            if batch:
                break
            self._batches.popleft()
        if not records:
            return None
        self._count -= len(records)
        self._bytes -= sum(map(len, records))
        return Due(records, seen, self._tracker.deliver(records))

    def confirmed(self, run: Run) -> None:
        """Every hop of a run is stored.

        Raises:
            ValueError: it was confirmed before; nothing changed.
        """
        self._tracker.finish_all(run)

    def failed(self, due: Due[RecordT]) -> None:
        """Hops that did not work: these records are due again, before everything else of this queue.

        Args:
            due: what `due` gave, or a part of it (the same run, fewer records), none of it confirmed.
        """
        self._retry.append(due)

    def wait_ns(self, clock_ms: int | None, now_ns: int) -> int | None:
        """How long until something is due, in ns of the monotonic clock; 0 when it is; None when nothing waits."""
        if self._retry:
            return 0
        if clock_ms is None or not self._batches:
            return None
        seen_ns, batch = self._batches[0]
        by_clock = (batch[0].timestamp()[1] + self.delay_ms - clock_ms) * 1_000_000
        by_sight = seen_ns + self._patience_ns - now_ns
        return max(0, min(by_clock, by_sight))

    @property
    def head(self) -> RecordT | None:
        """The record that leaves next, or None."""
        if self._retry:
            return self._retry[0].records[0]
        return self._batches[0][1][0] if self._batches else None

    @property
    def next_offset(self) -> int | None:
        """The position to commit, or None while nothing of this assignment is confirmed."""
        return self._tracker.next_offset

    @property
    def waiting_count(self) -> int:
        """Records held and not in flight."""
        return self._count + sum(len(due.records) for due in self._retry)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the values held and not in flight (failed ones not counted)."""
        return self._bytes

    @property
    def idle(self) -> bool:
        """Whether nothing is in flight."""
        return self._tracker.idle

    @property
    def full(self) -> bool:
        """Whether fetching should pause."""
        return self._count >= self.limits.full_count or self._bytes >= self.limits.full_bytes

    @property
    def hungry(self) -> bool:
        """Whether fetching should go on after a pause."""
        share = self.limits.hungry_share
        return self._count <= self.limits.full_count * share and self._bytes <= self.limits.full_bytes * share

    @property
    def _patience_ns(self) -> int:
        return self.delay_ms * (1_000_000 + 1_000_000 // _RATE_MARGIN)


def _all_appended_by(batch: deque[RecordT], latest_append_ms: int) -> bool:
    """Whether every record of a batch was appended by then (its last one decides nothing alone: clocks step back)."""
    return all(record.timestamp()[1] <= latest_append_ms for record in batch)
