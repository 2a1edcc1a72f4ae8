"""What is known of each partition of an assignment: which messages were sent back, which hold its offset down.

A partition's entry lives from its assignment to its loss, so an entry *is* the epoch: a message belongs to it if its
offset lies between the position the assignment began at and the position that was handed out. Whether a message
object came from this assignment or from an earlier one that had the same offsets cannot be told, and does not matter:
it has been delivered again, or is about to be.

Three sets of offsets for each partition:

* `sent`: a send-back is under way (a future that is not done) or stored. A second call for the message waits for the
  first and has no effect of its own. Bounded: of more than 10,000 stored ones the oldest are forgotten.
* `failing`: a send-back is under way or was not stored. The stored offset never passes the lowest.
* `redelivering`: failing ones that the program has gone back to by `seek`; they count until they were handed out again.

Thread-safety: every method, under one lock; nothing is called while it is held.
"""

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Final

from rocketshim.errors import StaleMessageError

__all__ = ["SendBackTracker", "TopicPartitionKey"]

TopicPartitionKey = tuple[str, int]
"""A topic and a partition."""

_KEPT_COUNT: Final = 10_000


class _Held:
    """One partition in one assignment."""

    __slots__ = ("began_at", "failing", "handed_out", "redelivering", "sent", "stored")

    def __init__(self, began_at: int) -> None:
        self.began_at = began_at
        self.handed_out = -1  # highest position before a seek
        self.stored = -1
        self.sent: dict[int, Future[None]] = {}
        self.failing: set[int] = set()
        self.redelivering: set[int] = set()

    def stands_at(self, position: int) -> None:
        """A position before the beginning: the topic was made anew, and the client has reset the offset."""
        if 0 <= position < self.began_at:
            self.began_at = 0


class SendBackTracker:
    """The partitions of one consumer's assignment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[TopicPartitionKey, _Held] = {}
        self._once_held: set[TopicPartitionKey] = set()

    def places(self) -> list[TopicPartitionKey]:
        """Every partition of the assignment."""
        with self._lock:
            return list(self._held)

    def was_held(self, place: TopicPartitionKey) -> bool:
        """Whether an earlier assignment had this partition, so that old messages of it may be about."""
        with self._lock:
            return place in self._once_held

    def add(self, began_at: Mapping[TopicPartitionKey, int]) -> None:
        """Begin a partition's epoch.

        Args:
            began_at: lowest offset each can hand out; 0 where it is not known.
        """
        with self._lock:
            for place, offset in began_at.items():
                if place not in self._held:
                    self._held[place] = _Held(offset)

    def remove(self, places: Iterable[TopicPartitionKey]) -> None:
        """End the epoch of these partitions; their unfinished send-backs no longer matter here."""
        with self._lock:
            for place in places:
                if self._held.pop(place, None) is not None:
                    self._once_held.add(place)

    def begin(self, place: TopicPartitionKey, offset: int, position: int) -> tuple[Future[None], bool]:
        """Begin a send-back, or find the one that was begun before.

        Args:
            place: of the message.
            offset: of the message.
            position: the offset after the last one handed out, negative for none.

        Returns:
            The send-back's future, and whether the caller is to do it and to call `end`.

        Raises:
            StaleMessageError: the message was not handed out by this assignment. Nothing has changed.
        """
        with self._lock:
            held = self._held.get(place)
            if held is not None:
                held.stands_at(position)
            if held is None or not held.began_at <= offset < max(position, held.handed_out):
                raise StaleMessageError(
                    f"the message at {place[0]}/{place[1]}/{offset} is not of the current assignment: its partition "
                    "was taken away (or the consumer closed), and whoever has it now gets the message again, unless it "
                    "was committed; drop it"
                )
            known = held.sent.get(offset)
            if known is not None:
                return known, False
            future: Future[None] = Future()
            held.sent[offset] = future
            held.failing.add(offset)
            held.redelivering.discard(offset)
            if len(held.sent) > _KEPT_COUNT:
                _forget_oldest(held.sent)
            return future, True

    def end(self, place: TopicPartitionKey, offset: int, future: Future[None], error: BaseException | None) -> None:
        """End a send-back: it is stored, or `error` says why it is not and a later call may try again."""
        with self._lock:
            held = self._held.get(place)
            if held is not None and held.sent.get(offset) is future:
                if error is None:
                    held.failing.discard(offset)
                else:
                    del held.sent[offset]
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def sought(self, place: TopicPartitionKey, offset: int, position: int) -> None:
        """The program went to an offset: what lies from there on is handed out again and may be sent back again.

        Args:
            place: partition.
            offset: where it went; negative (a logical offset) counts as 0.
            position: the offset after the last one handed out before, negative for none.
        """
        with self._lock:
            held = self._held.get(place)
            if held is None:
                return
            target = max(offset, 0)
            held.began_at = min(held.began_at, target)
            held.handed_out = max(held.handed_out, position)
            held.stored = -1
            again = {each for each in held.failing if each >= target and _is_done(held.sent.get(each))}
            held.failing -= again
            held.redelivering |= again
            for each in [each for each, future in held.sent.items() if each >= target and future.done()]:
                del held.sent[each]

    def to_store(self, positions: Mapping[TopicPartitionKey, int]) -> dict[TopicPartitionKey, int]:
        """The offsets to store, where they differ from what was stored before; `stored` is to be told of them after.

        Args:
            positions: the offset after the last message that counts as handled, negative for none.

        Returns:
            For each partition the position, or the lowest offset that is held down.
        """
        result: dict[TopicPartitionKey, int] = {}
        with self._lock:
            for place, position in positions.items():
                held = self._held.get(place)
                if held is None or position < 0:
                    continue
                held.stands_at(position)
                if held.redelivering:
                    held.redelivering = {each for each in held.redelivering if each >= position}
                lowest = min((*held.failing, *held.redelivering), default=position)
                offset = min(position, lowest)
                if offset != held.stored:
                    result[place] = offset
        return result

    def stored(self, offsets: Mapping[TopicPartitionKey, int]) -> None:
        """These offsets were stored.

        Several threads may store at once, in another order than they asked: whoever stored asks `to_store` again after
        this, and stores what it answers, so that no offset stays that is higher than what is held down.
        """
        with self._lock:
            for place, offset in offsets.items():
                held = self._held.get(place)
                if held is not None:
                    held.stored = offset


def _is_done(future: Future[None] | None) -> bool:
    return future is None or future.done()


def _forget_oldest(sent: dict[int, Future[None]]) -> None:
    for offset in list(sent)[: _KEPT_COUNT // 10]:
        if sent[offset].done():
            del sent[offset]
