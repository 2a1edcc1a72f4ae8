"""What is known of the partitions of a consumer with retry enabled. Pure.

A partition has an entry from its assignment to its loss, so an entry *is* the epoch. A message belongs to it if its
offset lies between the first and the last message that were handed out. A message object may come from this assignment
or from an earlier one with the same offsets. The two cannot be distinguished, and it does not matter: the message was
delivered again.

Which messages were sent back, and which of them limit the offset that is stored:

* `sent`: a send-back is in progress (its future is not done) or stored. A second call for the message waits for the
  first and has no effect of its own. Bounded: above 10,000 entries, the oldest stored ones are removed.
* `failing`: a send-back is in progress or was not stored. The stored offset never passes the lowest of them.

A message before which the program has moved by `seek` is handed out again, and limits nothing until then.

The group's retry topic is read beside the program's partitions. The program sees neither its partitions nor those of
other rocketshim topics that only a pattern matched; the latter are never assigned. Two rules pause the retry topic:

* While all of the program's partitions are paused, it is paused, too: the program wants no messages. A program that has
  only partitions of the retry topic sees no partition that it could pause. It pauses an empty list, and then gets no
  message until the next `resume` or rebalance.
* A partition whose start is not known yet is paused until it is (`awaits_start`).

The client keeps a pause across assignments, so a partition that is not to be paused is resumed explicitly
(test_a_pause_of_the_retry_topic_does_not_outlive_its_assignment).

Thread-safety: any thread may send a message back; one lock guards what it changes, and nothing is called while it is
held. The assignment and `DropinPartition.last` belong to the thread that polls, and any thread may read them.
"""

import re
import threading
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka import OFFSET_INVALID, Message, TopicPartition

from rocketshim.errors import StaleMessageError
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.errors import MalformedRecordError
from rocketshim_topics.message import MessageView
from rocketshim_topics.names import TopicNames

__all__ = ["DropinPartition", "Partitions", "key_of", "offset_of"]

_KEPT_COUNT: Final = 10_000


def key_of(message: Message) -> TopicPartitionKey:
    """Return the partition of a message; of an error that names none: topic `""`, or partition -1."""
    return TopicPartitionKey(message.topic() or "", -1 if (number := message.partition()) is None else number)


def offset_of(message: Message) -> int:
    """Return the offset of a message; -1 if it has none."""
    return -1 if (offset := message.offset()) is None else offset


@dataclass(eq=False, slots=True)
class DropinPartition:
    """One partition in one assignment."""

    awaits_start: bool = False  # it is paused until its start is known
    began_at: int | None = None  # the first message that was handed out
    last: Message | None = None  # handed out since the client was asked, since a seek, or since the assignment
    asked: TopicPartition | None = None  # the client's position when it was asked, unless before a seek
    stored: int = -1
    sent: dict[int, Future[None]] = field(default_factory=dict)
    failing: set[int] = field(default_factory=set)
    _before_seek: int = -1  # the highest position before a seek

    @property
    def position(self) -> TopicPartition | None:
        """The offset after the message that was handed out last, with its leader's epoch; None: none was."""
        last = self.last
        if last is None:
            return self.asked
        key, offset = key_of(last), offset_of(last) + 1
        epoch = last.leader_epoch()  # as the client stores it (test_the_same_operations_have_the_same_answers)
        return TopicPartition(*key, offset) if epoch is None else TopicPartition(*key, offset, leader_epoch=epoch)

    def has_handed_out(self, offset: int) -> bool:
        """Return whether this assignment has handed out the message at an offset."""
        position = self._offset()
        self.observe(position)
        return self.began_at is not None and self.began_at <= offset < max(position, self._before_seek)

    def _offset(self) -> int:
        position = self.position
        return OFFSET_INVALID if position is None else position.offset

    def observe(self, position: int) -> None:
        """Handle a position before the first message: the topic was created again, and the client has reset it."""
        if self.began_at is not None and 0 <= position < self.began_at:
            self.began_at = 0

    def seek(self, target: int) -> None:
        """Note that messages from an offset on are handed out again, and may be sent back again."""
        self._before_seek = max(self._before_seek, self._offset())
        if self.began_at is not None:
            self.began_at = min(self.began_at, target)
        self.last = self.asked = None
        self.stored = -1
        self.failing -= {each for each in self.failing if each >= target and _is_done(self.sent.get(each))}
        for each in [each for each, future in self.sent.items() if each >= target and future.done()]:
            del self.sent[each]

    def storable(self, position: int) -> int:
        """Return the position, or the lowest failing offset if that is lower."""
        self.observe(position)
        return min((position, *self.failing))


class Partitions:
    """The partitions of one consumer's assignment."""

    def __init__(self, retry_topic: str, names: TopicNames) -> None:
        self.retry_topic = retry_topic
        self.by_key: dict[TopicPartitionKey, DropinPartition] = {}  # the assigned ones
        self.known: frozenset[str] = frozenset()  # topics and patterns that the program has ever subscribed to
        self.named: frozenset[str] = frozenset()  # topics that the program subscribes to by name
        self.paused: set[TopicPartitionKey] = set()  # by the program
        self.reads_retries = False
        self._names = names
        self._lock = threading.Lock()

    # --- the assignment ----------------------------------------------------------------------------------------------

    def keys(self) -> list[TopicPartitionKey]:
        """Return every assigned partition."""
        with self._lock:
            return [*self.by_key]

    def add(self, keys: Iterable[TopicPartitionKey], awaiting: Collection[TopicPartitionKey] = ()) -> None:
        """Begin the epoch of partitions; of those in `awaiting`, the start is not known yet."""
        with self._lock:
            for key in keys:
                if key not in self.by_key:
                    self.by_key[key] = DropinPartition(awaits_start=key in awaiting)

    def remove(self, keys: Iterable[TopicPartitionKey]) -> None:
        """End the epoch of these partitions; their unfinished send-backs no longer have an effect here."""
        with self._lock:
            for key in keys:
                self.by_key.pop(key, None)

    def subscribed(self, topics: Iterable[str]) -> None:
        """Record that the program subscribes to these topics and patterns instead of the former ones."""
        self.named = frozenset(each for each in topics if not each.startswith("^"))
        self.known |= frozenset(topics)
        self.reads_retries = True

    def topic_of_others(self, message: Message) -> str | None:
        """Return the topic of a retried message that the program never subscribed to; None for any other message.

        A pattern that Python cannot read, since the client's patterns are POSIX, counts as one that matches.
        """
        if message.topic() != self.retry_topic or message.error() is not None:
            return None
        try:
            topic = MessageView(message, trusted=True).topic
        except MalformedRecordError:
            return None  # the program sends it back, and then it is parked
        is_known = topic == self.retry_topic or topic in self.known
        return None if is_known or any(_matches(each, topic) for each in self.known if each[0] == "^") else topic

    def is_internal(self, topic: str) -> bool:
        """Return whether a topic is internal: the group's retry topic, or a rocketshim topic that a pattern matched."""
        return topic == self.retry_topic or (topic not in self.named and self._names.is_ours(topic))

    def split(self, partitions: list[TopicPartition]) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Return the program's partitions and those of the retry topic; others are left out."""
        retries = [each for each in partitions if each.topic == self.retry_topic]
        return [each for each in partitions if not self.is_internal(each.topic)], retries

    def of_retry_topic(self) -> list[TopicPartition]:
        """Return the assigned partitions of the retry topic."""
        return [TopicPartition(*key) for key in self.keys() if key.topic == self.retry_topic]

    def awaiting_start(self) -> list[TopicPartition]:
        """Return the assigned partitions whose start is not known yet."""
        with self._lock:
            return [TopicPartition(*key) for key, partition in self.by_key.items() if partition.awaits_start]

    def pauses(self, *, asked: bool = False) -> list[tuple[TopicPartition, bool]]:
        """Return each partition of the retry topic, and whether it is to be paused; otherwise it is to be resumed.

        Decides: Are retried messages handed out while the program has paused all its partitions? No.
        """
        if not self.reads_retries:
            return []
        assigned = self.keys()
        theirs = {key for key in assigned if not self.is_internal(key.topic)}
        waits = theirs <= self.paused and (asked or bool(theirs))
        return [
            (TopicPartition(*key), waits or self.by_key[key].awaits_start)
            for key in assigned
            if key.topic == self.retry_topic and key not in self.paused
        ]

    # --- sending back ------------------------------------------------------------------------------------------------

    def begin(self, key: TopicPartitionKey, offset: int) -> tuple[Future[None], bool]:
        """Return the future of a message's send-back, and whether the caller must do the send-back and call `end`.

        A message that this assignment has not handed out is a StaleMessageError.
        """
        with self._lock:
            partition = self.by_key.get(key)
            if partition is None or not partition.has_handed_out(offset):
                raise StaleMessageError(
                    f"the message at {key}/{offset} does not belong to the current assignment: its "
                    "partition was revoked, or the consumer was closed. Drop the message: the new owner of the "
                    "partition gets it again, unless it was committed"
                )
            known = partition.sent.get(offset)
            if known is not None:
                return known, False
            future: Future[None] = Future()
            partition.sent[offset] = future
            partition.failing.add(offset)
            if len(partition.sent) > _KEPT_COUNT:
                _forget_oldest(partition.sent)
            return future, True

    def end(self, key: TopicPartitionKey, offset: int, future: Future[None], error: BaseException | None) -> None:
        """End a send-back: it is stored, or `error` is the reason why not, and a later call may try again."""
        with self._lock:
            partition = self.by_key.get(key)
            if partition is not None and partition.sent.get(offset) is future:
                if error is None:
                    partition.failing.discard(offset)
                else:
                    del partition.sent[offset]
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)

    # --- positions and stored offsets --------------------------------------------------------------------------------

    def handed_out(self, message: Message) -> None:
        """Note that the program gets a message."""
        partition = self.by_key.get(key_of(message))
        if partition is not None and message.error() is None:
            if partition.began_at is None:
                partition.began_at = offset_of(message)
            partition.last = message

    def began(self, messages: Iterable[Message]) -> None:
        """Note the first message of each partition of which the client has returned none before these."""
        fresh = {
            key for key, partition in self.by_key.items() if partition.began_at is None and partition.asked is not None
        }
        for message in messages if fresh else ():
            if (key := key_of(message)) in fresh and message.error() is None:
                self.by_key[key].began_at = offset_of(message)
                fresh.remove(key)

    def positions(self) -> dict[TopicPartitionKey, TopicPartition]:
        """Return the offset after the message that was handed out last, of each partition where one was."""
        with self._lock:
            found = {key: partition.position for key, partition in self.by_key.items()}
        return {key: position for key, position in found.items() if position is not None}

    def answered(self, positions: Mapping[TopicPartitionKey, TopicPartition]) -> None:
        """Note the client's positions: they also pass the marks of transactions behind the last message."""
        with self._lock:
            for key, position in positions.items():
                partition = self.by_key.get(key)
                if partition is not None and position.offset >= 0:
                    partition.asked, partition.last = position, None

    def sought(self, key: TopicPartitionKey, offset: int) -> None:
        """Note a seek to an offset; a negative (logical) one counts as 0."""
        with self._lock:
            partition = self.by_key.get(key)
            if partition is not None:
                partition.seek(max(offset, 0))

    def to_store(self, positions: Mapping[TopicPartitionKey, TopicPartition]) -> list[TopicPartition]:
        """Return the offsets to store, if they differ from those stored before; call `stored` with them afterwards.

        A position is the offset after the last message that counts as handled, negative for none.

        Decides: Which offset does the drop-in store? Never beyond a message whose sending back is in progress or has
            failed, until it is sent back, or its partition is lost, or the program has moved before it. What the
            program commits or stores itself is not changed: `dropin.retry_side.RetrySide.commit`.
        """
        found: list[TopicPartition] = []
        with self._lock:
            for key, position in positions.items():
                partition = self.by_key.get(key)
                if partition is None or position.offset < 0:
                    continue
                offset = partition.storable(position.offset)
                if offset != partition.stored:
                    found.append(position if offset == position.offset else TopicPartition(*key, offset))
        return found

    def stored(self, offsets: Iterable[TopicPartition]) -> None:
        """Note that these offsets were stored.

        Several threads may store at the same time, in another order than their calls of `to_store`. So each caller
        calls `to_store` again after this, and stores the result: no stored offset stays above a failing one.
        """
        with self._lock:
            for each in offsets:
                partition = self.by_key.get(TopicPartitionKey.of(each))
                if partition is not None:
                    partition.stored = each.offset


def _matches(pattern: str, topic: str) -> bool:
    try:
        return re.match(pattern, topic) is not None
    except re.error:
        return True


def _is_done(future: Future[None] | None) -> bool:
    return future is None or future.done()


def _forget_oldest(sent: dict[int, Future[None]]) -> None:
    for offset in list(sent)[: _KEPT_COUNT // 10]:
        if sent[offset].done():
            del sent[offset]
