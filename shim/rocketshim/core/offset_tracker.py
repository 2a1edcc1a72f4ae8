"""Decides which offset may be committed: the position after the longest finished prefix, in delivery order.

Rules of this file:

* Messages are delivered in *runs*: lists of messages of one partition in the order in which Kafka delivered them.
  Offsets rise strictly but not by one: transaction markers, aborted records and compaction leave holes. So the position
  to commit is never computed by counting from an offset, only from what was delivered
  (test_position_follows_the_last_finished_message_not_the_next_delivered_one).
* Messages finish in any order. The position to commit is the one after the last message of the longest finished prefix.
  It never passes an unfinished message and never goes back. Behind the last message it also passes what no reader sees,
  as far as the client has read (`skip_to`); otherwise a group would stay behind a transaction marker forever.
* A tracker belongs to one assignment of one partition. A new assignment needs a new tracker; a tracker refuses the runs
  of another one.
* A run releases its messages as soon as one of them finishes. From then on it keeps only offsets, and none when it is
  finished. One stuck message blocks the commit, but does not keep the messages around and after it in memory. Of
  neighbouring finished runs the tracker keeps only the last, so memory depends on what is unfinished.

Cost: O(1) for a run that finishes as a whole; O(1) per message, after one pass, for a run that finishes piecemeal.
`finish` also looks for the run of a message that was not delivered first.
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from itertools import islice, pairwise
from operator import attrgetter, lt
from typing import Any, Final

__all__ = ["OffsetTracker", "Run"]

_NEXT_OFFSET: Final = attrgetter("next_offset")
_FEW: Final = 64  # finished runs that are not worth a pass over all runs


class Run:
    """Messages delivered one after another. Made by `OffsetTracker.deliver`; opaque to the caller."""

    __slots__ = (
        "ahead", "first_offset", "is_whole", "lowest", "messages", "next_offset", "offsets", "open_offsets", "owner",
        "passed", "unfinished",
    )  # fmt: skip

    def __init__(
        self,
        owner: object,
        messages: Sequence[Any],
        offsets: Sequence[int],
        first_offset: int,
        next_offset: int,
    ) -> None:
        self.owner = owner
        self.messages: Sequence[Any] = messages  # only of `deliver`, and only while none of them is finished
        self.first_offset = first_offset
        self.next_offset = next_offset  # after its last message, and after what no reader sees behind it
        self.unfinished = len(messages) or len(offsets)
        self.offsets = offsets  # of all messages, in order; of `deliver` only while it finishes piecemeal
        self.is_whole = True  # no message is finished but a beginning, of this length:
        self.passed = 0
        self.open_offsets: set[int] = set()  # those that are not finished; only while it finishes piecemeal
        self.ahead: Iterator[int] = iter(())  # iterates over them once, in order, and skips finished ones
        self.lowest = first_offset  # its first message that is not finished


class OffsetTracker:
    """The longest finished prefix of what was delivered in one assignment of one partition.

    Thread-safety: none; one owner thread.

    Source: `ProcessQueue#removeMessage` of RocketMQ (smallest offset still there), done in delivery order because a
    Kafka log has holes.
    """

    __slots__ = ("_finished", "_last_offset", "_owner", "_runs", "_safe")

    def __init__(self) -> None:
        self._owner = object()  # marks our runs; not the tracker itself, so that no reference cycle keeps messages
        self._runs: deque[Run] = deque()
        self._finished = 0  # how many of the runs are finished and wait for an earlier one
        self._safe: int | None = None
        self._last_offset = -1

    def deliver(self, messages: Sequence[Any]) -> Run:
        """Register messages in the order in which they were delivered, as one run.

        For speed only the first and the last offset are checked: Kafka keeps the order in between. The sequence is
        kept, not copied. After a ValueError (no message, or offsets that do not rise) nothing has changed.
        """
        if not messages:
            raise ValueError("a run needs at least one message")
        first = _offset(messages[0])
        last = _offset(messages[-1])
        if first <= self._last_offset or last - first < len(messages) - 1:
            raise ValueError(f"offsets {first} to {last} do not rise above {self._last_offset}, the last one delivered")
        return self._append(Run(self._owner, messages, (), first, last + 1))

    def deliver_offsets(self, offsets: Sequence[int]) -> Run:
        """Register messages by their offsets: the tracker keeps no message. They finish by `finish`, in any runs."""
        if not offsets or offsets[0] <= self._last_offset or not all(map(lt, offsets, islice(offsets, 1, None))):
            raise ValueError(f"offsets {offsets} do not rise above {self._last_offset} and one another")
        return self._append(Run(self._owner, (), offsets, offsets[0], offsets[-1] + 1))

    def _append(self, run: Run) -> Run:
        self._runs.append(run)
        self._last_offset = run.next_offset - 1
        return run

    def skip_to(self, position: int) -> None:
        """Count offsets behind the last message delivered that no reader sees: once it is finished, they are, too.

        The client reads on at this position, and every message before it was delivered. A lower one changes nothing.
        """
        if self._runs:
            last = self._runs[-1]
            last.next_offset = max(last.next_offset, position)
        else:
            self._safe = max(self._safe or 0, position)

    def split(self, run: Run, count: int) -> tuple[Run, Run]:
        """Divide a run of which no message is finished into its first `count` messages and the others."""
        self._check(run)
        messages = run.messages
        if not 0 < count < len(messages):
            raise ValueError(f"cannot divide {len(messages)} open messages after {count}")
        middle = _offset(messages[count - 1]) + 1
        first = Run(self._owner, messages[:count], (), run.first_offset, middle)
        rest = Run(self._owner, messages[count:], (), _offset(messages[count]), run.next_offset)
        at = self._runs.index(run)
        self._runs[at] = rest
        self._runs.insert(at, first)
        run.unfinished = 0
        return first, rest

    def finish_all(self, run: Run, but: Collection[int] = ()) -> None:
        """Mark every open message of the run as finished, but those with these offsets, which stay open.

        After a ValueError (the run is finished or not ours, or one of `but` is not open) nothing has changed.
        """
        self._check(run)
        if not but:
            self._close(run)
            return
        offsets = _offsets(run)
        still_open = set(but)
        if not still_open.issubset(offsets if run.is_whole else run.open_offsets):
            raise ValueError(f"offsets {list(but)} are not all open in the run that begins at {run.first_offset}")
        if not run.is_whole:
            run.open_offsets &= still_open  # in place, because `ahead` reads it
            still_open = run.open_offsets
        self._leave_open(run, offsets, still_open)

    def finish_many(self, run: Run, finished: Collection[int]) -> None:
        """Mark messages of the run as finished, by their offsets.

        After a ValueError (one is not open or is named twice, or the run is not ours) nothing has changed.
        """
        self._check(run)
        offsets = _offsets(run)
        still_open = set(offsets) if run.is_whole else run.open_offsets
        wanted = set(finished)
        if len(wanted) != len(finished) or not wanted <= still_open:
            raise ValueError(f"offsets {list(finished)} are not all open in the run that begins at {run.first_offset}")
        if wanted:
            still_open -= wanted
            self._leave_open(run, offsets, still_open)

    def finish_first(self, count: int, last: int) -> bool:
        """Mark the first unfinished messages as finished, if the last of them has this offset; O(1) for each run.

        For messages that were registered by `deliver_offsets` and finish in the order of delivery. Return False, and
        change nothing, if the last has another offset, or messages behind an unfinished one have finished already.
        """
        left = count
        for run in self._runs:
            if not run.is_whole or run.messages:
                return False
            if left <= run.unfinished:
                break
            left -= run.unfinished
        else:
            return False
        if run.offsets[run.passed + left - 1] != last:
            return False
        while self._runs[0] is not run:
            self._close(self._runs[0])
        if left == run.unfinished:
            self._close(run)
        else:
            run.passed += left
            run.unfinished -= left
            run.lowest = run.offsets[run.passed]
            self._safe = last + 1
        return True

    def finish(self, offsets: Sequence[int]) -> None:
        """Mark messages as finished that were registered by `deliver_offsets`, whatever their runs.

        After a ValueError (an offset was not delivered, or had finished before) others may have been marked.
        """
        rising = sorted(offsets)
        while rising:
            index = bisect_right(self._runs, rising[0], key=_NEXT_OFFSET)
            if index == len(self._runs):
                raise ValueError(f"offset {rising[0]} is not open")
            run = self._runs[index]
            end = bisect_left(rising, run.next_offset)
            self.finish_many(run, rising[:end])
            rising = rising[end:]

    @property
    def next_offset(self) -> int | None:
        """The position to commit, or None until the first message is finished.

        Decides: Up to which offset is a partition finished, and may be committed? It is read through
            `core.process_queue.ProcessQueue.next_offset`, and sent if `locks.lease.Ownership` allows it. How far the
            client has read beyond the last message: `consumer.mode.Mode.skip_invisible`.
        """
        if self._runs:
            head = self._runs[0]
            finished_count = 0 if head.is_whole else bisect_left(head.offsets, head.lowest)
            if finished_count:
                return head.offsets[finished_count - 1] + 1
        return self._safe

    @property
    def lowest_unfinished(self) -> int | None:
        """Offset of the oldest unfinished message, or None when all delivered messages are finished."""
        return self._runs[0].lowest if self._runs else None

    @property
    def span(self) -> int:
        """Distance in offsets from the oldest unfinished message to the last one delivered; 0 when none is open.

        Source: `ProcessQueue#getMaxSpan` of RocketMQ.
        """
        lowest = self.lowest_unfinished
        return 0 if lowest is None else self._last_offset - lowest

    @property
    def last_offset(self) -> int:
        """Offset of the last message delivered; -1 before the first."""
        return self._last_offset

    @property
    def idle(self) -> bool:
        """Whether all delivered messages are finished."""
        return not self._runs

    def _check(self, run: Run) -> None:
        if run.owner is not self._owner:
            raise ValueError(f"the run that begins at offset {run.first_offset} belongs to another tracker")
        if run.unfinished == 0:
            raise ValueError(f"the run that begins at offset {run.first_offset} had finished before")

    def _leave_open(self, run: Run, offsets: Sequence[int], still_open: set[int]) -> None:
        if not still_open:
            self._close(run)
            return
        if run.is_whole:
            run.is_whole = False
            run.messages = ()
            run.offsets = offsets
            run.open_offsets = still_open
            run.ahead = filter(still_open.__contains__, sorted(still_open))
        run.unfinished = len(still_open)
        if run.lowest not in still_open:
            run.lowest = next(run.ahead)

    def _close(self, run: Run) -> None:
        run.unfinished = 0
        run.is_whole = False
        run.messages = run.offsets = ()
        run.open_offsets = set()
        run.ahead = iter(())
        runs = self._runs
        self._finished += 1
        while runs and runs[0].unfinished == 0:
            self._safe = runs.popleft().next_offset
            self._finished -= 1
        if self._finished > _FEW and 3 * self._finished > 2 * len(runs):  # otherwise there is too little to drop
            self._drop_finished()

    def _drop_finished(self) -> None:
        """Keep only the last of neighbouring finished runs: the position moves to its end when the head finishes."""
        runs = (*self._runs, self._runs[0])  # the head is unfinished, so that the last run is kept
        self._runs = deque(run for run, after in pairwise(runs) if run.unfinished or after.unfinished)
        self._finished = sum(not run.unfinished for run in self._runs)


def _offsets(run: Run) -> Sequence[int]:
    """Return the offsets of all its messages but those that are passed, in order."""
    if run.messages:
        return [message.offset() or 0 for message in run.messages]
    return run.offsets[run.passed :] if run.is_whole and run.passed else run.offsets


def _offset(message: Any) -> int:
    offset: int | None = message.offset()
    if offset is None or offset < 0:
        raise ValueError(f"a message without an offset cannot be tracked: {offset!r}")
    return offset
