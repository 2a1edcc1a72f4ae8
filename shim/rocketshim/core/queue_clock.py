"""What the clock of a partition's leader shows at least, as far as the records of this partition can tell.

"Never early" is measured on the clock of the leader of the schedule partition, never on the worker's wall clock. That
clock cannot be read, but each append time that the leader wrote says: *before I was seen, the clock showed this*. From
then on at least the time has passed that passed here. Rules:

* A record is dated only by **evidence that was appended after it**: an append time of the same partition at its own
  offset or above. Between the two appends the leader's own clock has measured the time, since the second was seen our
  monotonic clock has. Older evidence says nothing about a clock that was set back since, and what was seen in other
  partitions says nothing about this one's leader; both made records early (2 s for a step of 2 s, until the next
  probe; our simulation). So there is no step to be detected, no leader to be known, and no window after which evidence
  is stale.
* Our clock is taken to run 100 ppm slower than it does: two free-running clocks differ by no more.
* A record's own append time is evidence too: it leaves a whole delay after it was first seen at the latest. That is
  soon enough for one that was fetched at once, and not for one that had waited before. A *probe*, a record of our own
  (header `CLOCK` only; readers skip it), closes that: its delivery report dates all that lay in the partition before.
* A probe is asked for when it would let the head leave: when the head would be due by the best that was ever seen, and
  by evidence is not. So an idle queue costs nothing, a backlog one probe each time its reader comes to where the end
  of the log was, and a lost probe is asked for again after a second.

The evidence kept is a staircase: offsets rise, readings fall. What is neither newer nor better than another is dropped.
"""

from collections import deque
from typing import Final

__all__ = ["QueueClock"]

_NS: Final = 1_000_000
_RATE: Final = 10_000  # one part in so many: 100 ppm
_WORTH_NS: Final = 10 * _NS  # a probe's way to the broker and back takes some milliseconds itself
_AGAIN_NS: Final = 1_000 * _NS


class QueueClock:
    """Lower bound of the clock of one partition's leader.

    Thread-safety: none; one owner thread.
    Source: our simulation (`test_level_queue.py`): 0 early under steps in both directions, drift and leader changes.
    """

    __slots__ = ("_asked_ns", "_evidence", "_guess_ns")

    def __init__(self) -> None:
        self._evidence: deque[tuple[int, int]] = deque()  # (offset, append time - slowed instant of sight), ns
        self._guess_ns: int | None = None  # best reading since the newest probe; right unless the clock was set back
        self._asked_ns: int | None = None

    def saw(self, offset: int, append_ms: int, seen_ns: int) -> None:
        """A record of the partition was fetched.

        Args:
            offset: its offset.
            append_ms: its append time, epoch ms on the leader's clock.
            seen_ns: monotonic instant of the fetch, in ns.
        """
        reading = append_ms * _NS - seen_ns
        if self._guess_ns is not None and reading > self._guess_ns:
            self._guess_ns = reading
        self._add(offset, append_ms * _NS - _slowed(seen_ns))

    def probed(self, offset: int, append_ms: int, seen_ns: int) -> None:
        """The delivery report of a record that we wrote into the partition is in.

        Args:
            offset: its offset.
            append_ms: its append time, epoch ms on the leader's clock.
            seen_ns: monotonic instant at which the report was seen, in ns.
        """
        self._guess_ns = append_ms * _NS - seen_ns
        self._asked_ns = None
        self._add(offset, append_ms * _NS - _slowed(seen_ns))

    def now_ns(self, offset: int, monotonic_ns: int) -> int | None:
        """What the clock shows at least, in epoch ns, for records up to `offset`; None without evidence.

        Args:
            offset: not below that of any earlier call: records leave in order.
            monotonic_ns: the monotonic clock.
        """
        evidence = self._evidence
        while evidence and evidence[0][0] < offset:
            evidence.popleft()
        return _slowed(monotonic_ns) + evidence[0][1] if evidence else None

    def instant_ns(self, offset: int, clock_ns: int) -> int | None:
        """The first monotonic instant at which `now_ns` of the offset has reached `clock_ns`; None without evidence."""
        evidence = self._evidence
        while evidence and evidence[0][0] < offset:
            evidence.popleft()
        if not evidence:
            return None
        slowed = clock_ns - evidence[0][1]
        return slowed + (slowed - 1) // (_RATE - 1)

    def probe_instant_ns(self, clock_ns: int) -> int | None:
        """From which monotonic instant on a probe is worth its while for a head that is due at `clock_ns`.

        Returns:
            The instant; None: at once, since it is not known how old anything is.
        """
        wanted = None if self._guess_ns is None else clock_ns - self._guess_ns + _WORTH_NS
        again = None if self._asked_ns is None else self._asked_ns + _AGAIN_NS
        if wanted is None or again is None:
            return wanted if again is None else again
        return max(wanted, again)

    def asked(self, monotonic_ns: int) -> None:
        """A probe was asked for."""
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


def _slowed(monotonic_ns: int) -> int:
    return monotonic_ns - monotonic_ns // _RATE
