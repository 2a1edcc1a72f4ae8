"""A lower bound of the clock of a partition's leader, from the records of this partition.

"Never early" is measured on the clock of the leader of the schedule partition, never on the worker's wall clock. That
clock cannot be read. But each append time that the leader wrote proves: *before we saw this record, the clock had
reached this time*. Since then at least as much time has passed there as here. Rules:

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

from collections import deque
from typing import Final

__all__ = ["QueueClock", "slowed"]

_NS: Final = 1_000_000
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
