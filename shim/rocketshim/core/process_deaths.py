"""Find the message that kills its process (out of memory, a segmentation fault), so that it fails like others. Pure.

Such a message raises nothing: its process is gone, no attempt is counted, and the next owner of the partition begins
it again, forever. So each commit carries a `Handling`, by which the next owner knows how the last one ended:

* *open*: the owner has the partition. If the next owner finds this, the last one died or was cut off. An owner that
  gives a partition back commits once more, without it. Metadata of another program, or of an older version, counts as
  given back.
* *begun*: messages that may be in progress, with the number of processes that began each and never finished it.

In ordinary operation nothing is added but these two commits: one after the start, one at the end. After an open end
the partition begins *carefully*:

1. The last owner was not careful, so the message is not known. Messages are handed out as before, to all threads, but
   only after a commit has noted them: at most `window` of all careful partitions at a time. This lasts for 10,000
   offsets, and for twice as many after each further death, but not beyond the end that the log has now: what is written
   later has killed nobody. Positions are committed soon.
2. If the process dies again, the noted messages are *suspects*. A suspect is handed out alone: nothing else of this
   consumer is in progress, and the commit that notes it counts one more process. If it finishes, it is no suspect any
   more, and nothing else begins before a commit says so. So all but one are cleared in one pass. A suspect whose turn
   has come waits until nothing is in progress, 30 s at most; then it is handed out all the same, but not counted,
   because another message may be the cause.
3. A suspect that `max_deaths` processes have begun has failed, with the cause `ProcessDied`, before it is handed out
   again. Each of these processes counts as a failed attempt. The usual rules follow: a retry, or a dead letter.

So a message that always kills its process ends `max_deaths` + 1 processes until it fails: one that is not careful, one
with others in progress, the rest with it alone. Other messages are repeated once in each of these processes at most,
plus what the first one had not committed. A process that is killed from outside costs a careful start and nothing
else; the suspects of two such ends in a row are cleared by one pass. A partition that moves in good order keeps its
suspects. A seek, and a log that was cut, end the care.

A process that lives loses its partitions, too, if the brokers do not hear from it for a session. Nothing tells its
successor from that of a dead process, so its marks may be false. Two rules keep a healthy message from failing:

* A process counts no mark of its own (test_a_process_that_lost_its_partition_takes_back_its_marks).
* A process that has lost a partition in the last ten minutes believes no mark at all: what has cut it off may have cut
  off the others (test_a_process_that_was_cut_off_believes_nobodys_marks). At worst the count begins again.

Not handled: a message that kills the process before it is handed out (its fetch takes too much memory), one whose call
has timed out (it was sent back, and is a suspect when it comes again), and work that a listener leaves running when it
returns.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["PROCESS_DIED", "CarefulPartition", "CarefulStart", "Handling", "decode_handling", "encode_handling"]

PROCESS_DIED: Final = "ProcessDied"
"""The cause of a failure (`FAIL_CLASS`) that is a number of processes that died at the message."""

_SPAN: Final = 10_000
_DOUBLINGS: Final = 10
_PATIENCE_MS: Final = 30_000
_DOUBT_MS: Final = 600_000
_MAX_BEGUN: Final = 256
_PATTERN: Final = re.compile(r"([og])(\d{1,6})((?:,\d{1,19}x\d{1,6}){0,256})")


@dataclass(frozen=True, slots=True)
class Handling:
    """What a commit tells the next owner of a partition about the present one."""

    is_open: bool
    deaths: int = 0
    """Number of owners in a row before this one that did not give the partition back."""
    begun: tuple[tuple[int, int], ...] = ()
    """(offset, processes that began it and never finished it), ascending; if open, the present owner is counted."""

    def since(self, position: int) -> "Handling":
        """Return it without messages below a position."""
        if not self.begun:
            return self
        return Handling(self.is_open, self.deaths, tuple(each for each in self.begun if each[0] >= position))


def encode_handling(handling: Handling) -> str:
    """Return a handling as text: mostly 2 characters, at most 2 KiB. Offsets are distances from the one before."""
    text, last = [f"{'o' if handling.is_open else 'g'}{min(handling.deaths, 999_999)}"], 0
    for offset, times in handling.begun[:_MAX_BEGUN]:
        text.append(f"{offset - last}x{min(times, 999_999)}")
        last = offset
    return ",".join(text)


def decode_handling(text: str) -> Handling | None:
    """Return what `encode_handling` has written, or None if the text is not in that format."""
    found = _PATTERN.fullmatch(text) if text.isascii() else None
    if found is None:
        return None
    begun: list[tuple[int, int]] = []
    last = 0
    for entry in filter(None, found[3].split(",")):
        distance, _, times = entry.partition("x")
        last += int(distance)
        begun.append((last, int(times)))
    return Handling(found[1] == "o", int(found[2]), tuple(begun))


class CarefulPartition:
    """One partition that is read; it is careful below the offset `until`."""

    __slots__ = ("deaths", "failed", "handling", "is_open", "noted", "stored", "suspects", "until")

    def __init__(self, until: int, deaths: int, suspects: dict[int, int]) -> None:
        self.is_open = True
        self.until = until
        self.deaths = deaths
        self.suspects = suspects  # number of processes that began a message and never finished it, by offset
        self.noted: dict[int, int] = {}  # what is or may be in progress, as it is to be noted
        self.failed: set[int] = set()  # suspects that have failed here because of their deaths
        self.stored: Handling | None = None  # what a commit is known to have stored
        self.handling = self.current()  # what the next commit carries

    def current(self) -> Handling:
        """Return what the next commit is to carry."""
        begun = {**self.suspects, **self.noted} if self.is_open else self.suspects
        return Handling(self.is_open, self.deaths if self.is_open else 0, tuple(sorted(begun.items())))

    def has_stored(self, offset: int) -> bool:
        """Return whether a commit has noted that a message is about to begin."""
        return self.stored is not None and (offset, self.noted.get(offset)) in self.stored.begun


class CarefulStart:
    """Which messages of one consumer are handed out with care, and what its commits carry.

    At most `window` messages of all careful partitions are noted at a time, but one of each partition at least. 0:
    commits carry nothing, and nothing is handed out with care. `max_deaths` is 2 or more: the first of the processes
    may have had other messages in progress.

    Thread-safety: none; the poll thread owns it.
    """

    def __init__(self, *, max_deaths: int = 3, window: int = 0, now_ms: Callable[[], int] = lambda: 0) -> None:
        self._max_deaths = max_deaths
        self._window = window
        self._now_ms = now_ms
        self._own_marks: dict[TopicPartitionKey, frozenset[int]] = {}  # stored by this process, which was cut off
        self._doubts_until_ms = 0
        self._partitions: dict[TopicPartitionKey, CarefulPartition] = {}
        self._careful: set[TopicPartitionKey] = set()
        self._alone: tuple[TopicPartitionKey, int] | None = None  # the suspect whose turn it is
        self._alone_since_ms = 0
        self._alone_has_begun = self._alone_counts = False
        self._cleared: tuple[TopicPartitionKey, int] | None = None  # it has returned, and the last commit counts it
        self.dirty: set[TopicPartitionKey] = set()  # partitions whose next commit carries something new
        self.holds_others = False  # nothing of a partition that is not careful may be handed out now

    # --- partitions --------------------------------------------------------------------------------------------------

    def begin(
        self, key: TopicPartitionKey, start: int, found: Handling | None, end: int | None = None
    ) -> Mapping[int, int]:
        """Begin a partition at an offset; return its suspects, with the number of processes that each has ended.

        `found` is what the last commit carried, `end` the end of the log; None: not known.

        Decides: Did the last owner of a partition die? It did not give it back; then messages are handed out with care.
        """
        if not self._window:
            return {}
        self._remove(key)
        found = found or Handling(is_open=False)
        if self._now_ms() < self._doubts_until_ms:
            found = Handling(found.is_open)
        deaths, own = found.deaths + 1 if found.is_open else 0, self._own_marks.get(key, ())
        counted = {offset: times - (offset in own) for offset, times in found.begun if offset >= start}
        suspects = {offset: times for offset, times in counted.items() if times > 0}
        until = start + (_SPAN << min(deaths - 1, _DOUBLINGS)) if found.is_open else start
        if end is not None:
            until = min(until, max(start, end))
        until = max([until, *(offset + 1 for offset in suspects)])
        self._partitions[key] = CarefulPartition(until, deaths, suspects)
        if until > start:
            self._careful.add(key)
        self.dirty.add(key)
        return suspects

    def end_care(self, key: TopicPartitionKey) -> None:
        """Forget the suspects of a partition: it was moved to another position, or its log was cut."""
        if (partition := self._partitions.get(key)) is not None:
            partition.suspects, partition.noted, partition.deaths = {}, {}, 0
            self._no_longer_alone(key)
            self._careful.discard(key)
            self._changed(key, partition)

    def mark_released(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Have the next commit of these partitions say that they are given back."""
        for key in keys:
            if (partition := self._partitions.get(key)) is not None:
                partition.is_open = False
                self._changed(key, partition)

    def forget(self, key: TopicPartitionKey) -> None:
        """Remove a partition that is no longer assigned; if it was not given back, this process was cut off."""
        partition = self._remove(key)
        if partition is not None and partition.stored is not None and partition.stored.is_open:
            self._own_marks[key] = frozenset(filter(partition.has_stored, partition.noted))
            self._doubts_until_ms = self._now_ms() + _DOUBT_MS

    def _remove(self, key: TopicPartitionKey) -> CarefulPartition | None:
        self._no_longer_alone(key)
        self._careful.discard(key)
        self.dirty.discard(key)
        return self._partitions.pop(key, None)

    def _no_longer_alone(self, key: TopicPartitionKey) -> None:
        if self._alone is not None and self._alone[0] == key:
            self._alone, self.holds_others = None, False
        if self._cleared is not None and self._cleared[0] == key:
            self._cleared, self.holds_others = None, False

    # --- commits -----------------------------------------------------------------------------------------------------

    def handling(self, key: TopicPartitionKey) -> Handling | None:
        """Return what the next commit of a partition carries; None: nothing."""
        partition = self._partitions.get(key)
        return None if partition is None else partition.handling

    def stored(self, key: TopicPartitionKey, handling: Handling | None) -> None:
        """Note that a commit with this handling is stored."""
        partition = self._partitions.get(key)
        if partition is not None and handling is not None:
            partition.stored = handling
            self._own_marks.pop(key, None)  # it counts none of them
            if partition.handling == handling:
                self.dirty.discard(key)

    def _changed(self, key: TopicPartitionKey, partition: CarefulPartition) -> None:
        partition.handling = partition.current()
        if partition.handling == partition.stored:
            self.dirty.discard(key)
        else:
            self.dirty.add(key)

    # --- handing out -------------------------------------------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Return whether messages of a partition are handed out with care, or others have to wait."""
        return bool(self._careful) or self._cleared is not None

    @property
    def share(self) -> int:
        """Return how many messages of each careful partition may be noted at a time."""
        return max(1, self._window // max(1, len(self._careful)))

    def is_careful(self, key: TopicPartitionKey, position: int | None) -> bool:
        """Return whether messages of a partition are handed out with care, now that its position is this one."""
        if key not in self._careful:
            return False
        partition = self._partitions[key]
        if position is None:
            return True
        for offset in [offset for offset in partition.suspects if offset < position]:
            del partition.suspects[offset]  # it was finished, or does not exist any more
        turn = self._alone or self._cleared
        if partition.suspects or position < partition.until or (turn is not None and turn[0] == key):
            return True
        partition.noted, partition.deaths = {}, 0
        self._careful.discard(key)
        self._changed(key, partition)
        return False

    def is_suspect(self, key: TopicPartitionKey, offset: int) -> bool:
        """Return whether a message may be the one that killed a process."""
        return key in self._partitions and offset in self._partitions[key].suspects

    def has_suspects(self, key: TopicPartitionKey) -> bool:
        """Return whether a partition has suspects: then its messages are taken one by one."""
        return key in self._partitions and bool(self._partitions[key].suspects)

    def at_limit(self, key: TopicPartitionKey) -> dict[int, int]:
        """Return the suspects that have ended too many processes, and how many: they fail instead of being called."""
        partition = self._partitions.get(key)
        if partition is None:
            return {}
        return {
            offset: times
            for offset, times in partition.suspects.items()
            if times >= self._max_deaths and offset not in partition.failed
        }

    def fail(self, key: TopicPartitionKey, offset: int) -> None:
        """Note that a message at its limit has failed. It stays a suspect until the position has passed it."""
        self._partitions[key].failed.add(offset)

    def next(
        self,
        waiting: Mapping[TopicPartitionKey, Sequence[int]],
        running: Mapping[TopicPartitionKey, Collection[int]],
        others_are_busy: Callable[[], bool],
        now_ms: int,
    ) -> set[tuple[TopicPartitionKey, int]]:
        """Return the messages that may begin now. Others have to be noted by a commit first (`dirty`), or to wait.

        `waiting` and `running` are of careful partitions; `others_are_busy` is about all others.

        Decides: Which message killed a process, and may it be handed out? A suspect, alone, once a commit counts that.
        """
        self._choose_alone(waiting, running, now_ms)
        if self._is_still_noted():
            self.holds_others = True
            return set()
        if self._alone is None:
            self.holds_others = False
            return self._next_of_all(waiting, running)
        key, offset = self._alone
        if not self._alone_has_begun and self._alone_counts and (any(running.values()) or others_are_busy()):
            self._alone_counts = now_ms - self._alone_since_ms < _PATIENCE_MS
            self.holds_others = self._alone_counts
            if self._alone_counts:
                return set()
        self.holds_others = self._alone_counts
        if self._alone_has_begun:
            return set()
        partition = self._partitions[key]
        self._note(key, {offset: partition.suspects[offset] + self._alone_counts})
        self._alone_has_begun = partition.has_stored(offset)
        return {self._alone} if self._alone_has_begun else set()

    def _choose_alone(
        self,
        waiting: Mapping[TopicPartitionKey, Sequence[int]],
        running: Mapping[TopicPartitionKey, Collection[int]],
        now_ms: int,
    ) -> None:
        if self._alone is not None:
            key, offset = self._alone
            is_running = offset in running.get(key, ())
            if is_running or (not self._alone_has_begun and offset in waiting.get(key, ())):
                return
            if self._alone_has_begun and key in self._partitions:  # it has returned, or its call has timed out
                partition = self._partitions[key]
                partition.suspects.pop(offset, None)
                partition.noted.pop(offset, None)
                self._changed(key, partition)
                self._cleared = self._alone
        first = ((key, offsets[0]) for key, offsets in waiting.items() if offsets)
        self._alone = next((each for each in first if self.is_suspect(*each)), None)
        self._alone_since_ms = now_ms
        self._alone_has_begun, self._alone_counts = False, True

    def _is_still_noted(self) -> bool:
        """Return whether a suspect that has returned would still be counted if the process died now."""
        if self._cleared is None:
            return False
        key, offset = self._cleared
        partition = self._partitions.get(key)
        stored = None if partition is None else partition.stored
        if stored is None or all(each != offset for each, _ in stored.begun):
            self._cleared = None
        return self._cleared is not None

    def _next_of_all(
        self, waiting: Mapping[TopicPartitionKey, Sequence[int]], running: Mapping[TopicPartitionKey, Collection[int]]
    ) -> set[tuple[TopicPartitionKey, int]]:
        begin: set[tuple[TopicPartitionKey, int]] = set()
        for key, offsets in waiting.items():
            partition = self._partitions[key]
            if any(offset in partition.suspects for offset in offsets):
                continue
            if any(offset not in partition.noted for offset in offsets):
                self._note(key, dict.fromkeys((*running.get(key, ()), *offsets), 1))
            begin.update((key, offset) for offset in offsets if partition.has_stored(offset))
        return begin

    def _note(self, key: TopicPartitionKey, noted: dict[int, int]) -> None:
        partition = self._partitions[key]
        if partition.noted != noted:
            partition.noted = noted
            self._changed(key, partition)
