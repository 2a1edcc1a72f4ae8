"""The partitions of the group's retry topic, which the consumer reads beside the program's own. Pure.

The program sees neither these partitions nor those of other rocketshim topics that only a pattern matched; the latter
are never assigned. Two rules decide which partitions of the retry topic are paused:

* While all of the program's partitions are paused, the retry topic is paused, too: the program wants no messages. A
  program that has only partitions of the retry topic sees no partition that it could pause. It pauses an empty list,
  and then gets no message until the next `resume` or rebalance.
* A partition whose start is not known yet is paused until it is (`awaiting_start`).

The client keeps a pause across assignments, so a partition that is not to be paused is resumed explicitly.
"""

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from confluent_kafka import Message, TopicPartition

from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.errors import MalformedRecordError
from rocketshim_topics.message import MessageView
from rocketshim_topics.names import TopicNames

__all__ = ["RetryPartitions", "Split"]


class Split(NamedTuple):
    """Partitions of one rebalance.

    Attributes:
        theirs: the program's.
        retries: those of the retry topic.
    """

    theirs: list[TopicPartition]
    retries: list[TopicPartition]


class RetryPartitions:
    """What of an assignment belongs to the program, and what to the retry topic.

    Args:
        topic: physical name of the group's retry topic.
        names: topic names of the namespace.

    Attributes:
        is_assigned: partitions of the retry topic are assigned.
        is_read: the retry topic is read, too.
        named: topics that the program subscribes to by name.
        known: topics and patterns that the program has ever subscribed to.
        paused: partitions that the program has paused.
        awaiting_start: partitions of the retry topic that are paused until their start is known.

    Thread-safety: none; the poll thread's. Any thread may read `is_read`.
    """

    __slots__ = ("_names", "awaiting_start", "is_assigned", "is_read", "known", "named", "paused", "topic")

    def __init__(self, topic: str, names: TopicNames) -> None:
        self.topic = topic
        self.is_assigned = False
        self.is_read = False
        self.named: frozenset[str] = frozenset()
        self.known: frozenset[str] = frozenset()
        self.paused: set[TopicPartitionKey] = set()
        self.awaiting_start: set[TopicPartitionKey] = set()
        self._names = names

    def subscribed(self, topics: Iterable[str]) -> None:
        """Record that the program subscribes to these topics and patterns instead of the former ones."""
        self.named = frozenset(each for each in topics if not each.startswith("^"))
        self.known |= frozenset(topics)
        self.is_read = True

    def handles(self, topic: str) -> bool:
        """Return whether the program has subscribed to the topic of a retried message, by name or by a pattern.

        A pattern that Python cannot read, since the client's patterns are POSIX, counts as one that matches.
        """
        return topic in self.known or any(_matches(each, topic) for each in self.known if each.startswith("^"))

    def topic_of_others(self, message: Message) -> str | None:
        """Return the topic of a retried message that the program does not subscribe to; None for any other message."""
        if message.topic() != self.topic or message.error() is not None:
            return None
        try:
            topic = MessageView(message, trusted=True).topic
        except MalformedRecordError:
            return None  # the program sends it back, and then it is parked
        return None if topic == self.topic or self.handles(topic) else topic

    def is_internal(self, topic: str) -> bool:
        """Return whether a topic is internal: the group's retry topic, or a rocketshim topic that a pattern matched."""
        return topic == self.topic or (topic not in self.named and self._names.is_ours(topic))

    def split(self, partitions: Iterable[TopicPartition]) -> Split:
        """Return the program's partitions and those of the retry topic; others are left out."""
        split = Split([], [])
        for each in partitions:
            if each.topic == self.topic:
                split.retries.append(each)
            elif not self.is_internal(each.topic):
                split.theirs.append(each)
        return split

    def of(self, assigned: Iterable[TopicPartitionKey]) -> list[TopicPartition]:
        """Return the partitions of the retry topic among the assigned ones."""
        return [TopicPartition(*key) for key in assigned if key.topic == self.topic]

    def pauses(self, assigned: Collection[TopicPartitionKey], *, asked: bool) -> list[tuple[TopicPartition, bool]]:
        """Return each partition of the retry topic, and whether it is to be paused; otherwise it is to be resumed.

        Args:
            assigned: every assigned partition.
            asked: the program has just called `pause`.

        Decides: Are retried messages handed out while the program has paused all its partitions? No.
        """
        if not self.is_read:
            return []
        theirs = {key for key in assigned if not self.is_internal(key.topic)}
        waits = theirs <= self.paused and (asked or bool(theirs))
        return [
            (TopicPartition(*key), waits or key in self.awaiting_start)
            for key in assigned
            if key.topic == self.topic and key not in self.paused
        ]


def _matches(pattern: str, topic: str) -> bool:
    try:
        return re.match(pattern, topic) is not None
    except re.error:
        return True
