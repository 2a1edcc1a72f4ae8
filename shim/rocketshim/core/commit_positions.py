"""Which offset of each assigned partition was committed last, and which may be committed next. Pure.

Kafka accepts offsets that go backwards without an error (our measurement). So the check is here: within an assignment
an offset is sent only if it is above every offset sent before. An offset that was sent and refused is sent again with
the next commit.
"""

from collections.abc import Mapping

from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["CommitPositions"]


class CommitPositions:
    """The offsets that were sent and stored, of every assigned partition."""

    def __init__(self) -> None:
        self._sent: dict[TopicPartitionKey, int] = {}
        self._stored: dict[TopicPartitionKey, int] = {}

    def adopt(self, key: TopicPartitionKey, start: int) -> None:
        """Add an assigned partition that starts at `start`, which counts as committed."""
        self._sent[key] = self._stored[key] = start

    def forget(self, key: TopicPartitionKey) -> None:
        """Remove a partition that is no longer assigned."""
        self._sent.pop(key, None)
        self._stored.pop(key, None)

    def sent(self, key: TopicPartitionKey) -> int:
        """Return the offset that was last sent, or the partition's start; -1: the partition is not assigned."""
        return self._sent.get(key, -1)

    def stored(self, key: TopicPartitionKey) -> int:
        """Return the offset that was last stored, or the partition's start; -1: the partition is not assigned."""
        return self._stored.get(key, -1)

    def may_send(self, key: TopicPartitionKey, offset: int, *, again: bool = False) -> bool:
        """Return whether an offset may be sent: it is above every one that was sent in this assignment.

        With `again`, also the last one that was sent, if its answer is missing: it may still be refused.
        """
        if key not in self._sent:
            return False
        return offset > self._sent[key] or (again and offset == self._sent[key] > self._stored[key])

    def send(self, offsets: Mapping[TopicPartitionKey, int]) -> None:
        """Note that these offsets were sent."""
        self._sent.update(offsets)

    def confirm(self, key: TopicPartitionKey, offset: int) -> None:
        """Note that an offset is stored; ignore one that is above what was sent in this assignment, or after a seek."""
        if offset <= self.sent(key):
            self._stored[key] = max(self._stored[key], offset)

    def refuse(self, key: TopicPartitionKey, offset: int) -> bool:
        """Note that an offset was refused; return whether no later one and no other assignment has replaced it.

        Then it may be sent again.
        """
        if key not in self._sent or self._sent[key] != offset:
            return False
        self._sent[key] = self._stored[key]
        return True
