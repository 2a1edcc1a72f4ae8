"""Record of each assigned partition: which messages were sent back, and which of them limit its stored offset.

A partition's entry exists from its assignment to its loss, so an entry *is* the epoch. A message belongs to it if its
offset lies between the start of the assignment and the position that was handed out. A message object may come from
this assignment or from an earlier one with the same offsets. The two cannot be distinguished, and it does not matter:
the message was delivered again, or is about to be.

Three sets of offsets for each partition:

* `sent`: a send-back is in progress (its future is not done) or stored. A second call for the message waits for the
  first and has no effect of its own. Bounded: above 10,000 entries, the oldest stored ones are removed.
* `failing`: a send-back is in progress or was not stored. The stored offset never passes the lowest of them.
* `redelivering`: failing messages before which the program has moved by `seek`. They count until they are handed out
  again.

Thread-safety: any thread may call every method; one lock guards them, and nothing is called while it is held.
"""

import threading
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Final

from rocketshim.errors import StaleMessageError
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["SendBackTracker"]

_KEPT_COUNT: Final = 10_000


class _Partition:
    """One partition in one assignment."""

    __slots__ = ("began_at", "failing", "handed_out", "redelivering", "sent", "stored")

    def __init__(self, began_at: int) -> None:
        self.began_at = began_at
        self.handed_out = -1  # highest position before a seek
        self.stored = -1
        self.sent: dict[int, Future[None]] = {}
        self.failing: set[int] = set()
        self.redelivering: set[int] = set()

    def observe(self, position: int) -> None:
        """Handle a position before the start: the topic was created again, and the client has reset the offset."""
        if 0 <= position < self.began_at:
            self.began_at = 0


class SendBackTracker:
    """The partitions of one consumer's assignment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._assigned: dict[TopicPartitionKey, _Partition] = {}
        self._once_assigned: set[TopicPartitionKey] = set()

    def assigned_keys(self) -> list[TopicPartitionKey]:
        """Return every partition of the assignment."""
        with self._lock:
            return list(self._assigned)

    def was_held(self, key: TopicPartitionKey) -> bool:
        """Return whether an earlier assignment had this partition, so that the program may still have its messages."""
        with self._lock:
            return key in self._once_assigned

    def add(self, began_at: Mapping[TopicPartitionKey, int]) -> None:
        """Begin a partition's epoch.

        Args:
            began_at: lowest offset that each partition can hand out; 0 if it is not known.
        """
        with self._lock:
            for key, offset in began_at.items():
                if key not in self._assigned:
                    self._assigned[key] = _Partition(offset)

    def remove(self, keys: Iterable[TopicPartitionKey]) -> None:
        """End the epoch of these partitions; their unfinished send-backs no longer have an effect here."""
        with self._lock:
            for key in keys:
                if self._assigned.pop(key, None) is not None:
                    self._once_assigned.add(key)

    def begin(self, key: TopicPartitionKey, offset: int, position: int) -> tuple[Future[None], bool]:
        """Begin a send-back, or find the one that was begun before.

        Args:
            key: topic and partition of the message.
            offset: offset of the message.
            position: the offset after the last one handed out, negative for none.

        Returns:
            The send-back's future, and whether the caller must do the send-back and call `end`.

        Raises:
            StaleMessageError: the message was not handed out by this assignment. Nothing has changed.
        """
        with self._lock:
            held = self._assigned.get(key)
            if held is not None:
                held.observe(position)
            if held is None or not held.began_at <= offset < max(position, held.handed_out):
                raise StaleMessageError(
                    f"the message at {key}/{offset} does not belong to the current assignment: its "
                    "partition was revoked, or the consumer was closed. Drop the message: the new owner of the "
                    "partition gets it again, unless it was committed"
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

    def end(self, key: TopicPartitionKey, offset: int, future: Future[None], error: BaseException | None) -> None:
        """End a send-back: it is stored, or `error` is the reason why not, and a later call may try again."""
        with self._lock:
            held = self._assigned.get(key)
            if held is not None and held.sent.get(offset) is future:
                if error is None:
                    held.failing.discard(offset)
                else:
                    del held.sent[offset]
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    def sought(self, key: TopicPartitionKey, offset: int, position: int) -> None:
        """Note a seek: messages from the target on are handed out again, and may be sent back again.

        Args:
            key: topic and partition.
            offset: target of the seek; negative (a logical offset) counts as 0.
            position: the offset after the last one handed out before the seek, negative for none.
        """
        with self._lock:
            held = self._assigned.get(key)
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
        """Return the offsets to store, if they differ from those stored before; call `stored` with them afterwards.

        Args:
            positions: the offset after the last message that counts as handled, negative for none.

        Returns:
            For each partition the position, or the lowest failing offset if that is lower.

        Decides: Which offset does the drop-in store? Never beyond a message whose sending back failed, until it is sent
            back or its partition is lost.
        """
        result: dict[TopicPartitionKey, int] = {}
        with self._lock:
            for key, position in positions.items():
                held = self._assigned.get(key)
                if held is None or position < 0:
                    continue
                held.observe(position)
                if held.redelivering:
                    held.redelivering = {each for each in held.redelivering if each >= position}
                lowest = min((*held.failing, *held.redelivering), default=position)
                offset = min(position, lowest)
                if offset != held.stored:
                    result[key] = offset
        return result

    def stored(self, offsets: Mapping[TopicPartitionKey, int]) -> None:
        """Note that these offsets were stored.

        Several threads may store at the same time, in another order than their calls of `to_store`. So each caller
        calls `to_store` again after this, and stores the result. Then no stored offset stays above a failing one.
        """
        with self._lock:
            for key, offset in offsets.items():
                held = self._assigned.get(key)
                if held is not None:
                    held.stored = offset


def _is_done(future: Future[None] | None) -> bool:
    return future is None or future.done()


def _forget_oldest(sent: dict[int, Future[None]]) -> None:
    for offset in list(sent)[: _KEPT_COUNT // 10]:
        if sent[offset].done():
            del sent[offset]
