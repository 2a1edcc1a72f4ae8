"""What a pull consumer has handed out, and what of it is done and committed, for each partition. Pure.

The caller of a pull consumer does not acknowledge single messages. What a poll returned is *done* when the next poll
begins, not before, or when the caller commits it. So a partition has

* a *position*: after the last message that was handed out or skipped by a filter;
* a *done* position: where the last poll started, or what was committed since; it equals the position unless that poll
  has moved it;
* a *sent* position: the one last sent to the group's offsets. It may have gone back because the caller has sought
  back; then the lower position is committed;
* a *confirmed* position: the last sent one that Kafka has confirmed. A commit that somebody waits for includes every
  position that is not confirmed: one that was sent without waiting may still be refused.

A position is due while it differs from the sent one and that one has its answer: librdkafka may repeat an older commit
after a newer one, and the stored position would go back.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["PullPositions"]

_REFUSED: Final = -1  # in place of a sent position: no offset of Kafka's


class PullPositions:
    """The positions of one pull consumer.

    Thread-safety: none; one owner thread.

    Source: `AssignedMessageQueue` of RocketMQ (`pullOffset`, `consumeOffset`, `seekOffset`).
    """

    __slots__ = ("_before", "_confirmed", "_position", "_sent")

    def __init__(self) -> None:
        self._position: dict[TopicPartitionKey, int] = {}
        self._before: dict[TopicPartitionKey, int] = {}  # done positions of partitions that this poll has moved
        self._sent: dict[TopicPartitionKey, int] = {}
        self._confirmed: dict[TopicPartitionKey, int] = {}

    def __contains__(self, key: object) -> bool:
        return key in self._position

    def __len__(self) -> int:
        return len(self._position)

    def assigned_keys(self) -> list[TopicPartitionKey]:
        """Return the assigned partitions, sorted."""
        return sorted(self._position)

    def adopt(self, key: TopicPartitionKey, start: int) -> None:
        """Start with a newly assigned partition; `start` counts as confirmed."""
        self._position[key] = self._sent[key] = self._confirmed[key] = start
        self._before.pop(key, None)

    def forget(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Remove partitions that are no longer assigned; unknown partitions are ignored."""
        for key in keys:
            self._position.pop(key, None)
            self._before.pop(key, None)
            self._sent.pop(key, None)
            self._confirmed.pop(key, None)

    def position(self, key: TopicPartitionKey) -> int:
        """Return the position of the next message of an assigned partition.

        Raises:
            KeyError: the partition is not assigned.
        """
        return self._position[key]

    def begin_poll(self) -> None:
        """Begin the next poll: everything that was handed out is done."""
        self._before.clear()

    def hand_out(self, key: TopicPartitionKey, position: int) -> None:
        """Record that this poll hands out (or skips) everything before `position`.

        Raises:
            KeyError: the partition is not assigned; nothing changed.
        """
        self._before.setdefault(key, self._position[key])
        self._position[key] = position

    def skip_to(self, key: TopicPartitionKey, position: int) -> None:
        """Pass what no reader sees behind the last message, up to where the client reads on.

        It is done when that message is. A lower position, or that of a partition that is not assigned, changes nothing.
        """
        if position > self._position.get(key, position):
            self._position[key] = position

    def take_back(self) -> list[TopicPartitionKey]:
        """Take back what this poll has handed out; return the partitions to read again from their positions."""
        self._position |= self._before
        self._before.clear()
        return [key for key, position in self._position.items() if position >= 0]

    def seek(self, key: TopicPartitionKey, position: int) -> None:
        """Move the position of a partition; everything handed out before is done.

        Raises:
            KeyError: the partition is not assigned; nothing changed.
        """
        if key not in self._position:
            raise KeyError(key)
        self._position[key] = position
        self._before.pop(key, None)

    def due(self) -> dict[TopicPartitionKey, int]:
        """Return the done positions to commit without waiting: those not sent, of partitions that await no answer."""
        done = self._position | self._before
        return {
            key: position
            for key, position in done.items()
            if position != self._sent[key] and self._sent[key] in (self._confirmed[key], _REFUSED)
        }

    def unconfirmed(
        self, keys: Iterable[TopicPartitionKey] | None = None, *, everything: bool = False
    ) -> dict[TopicPartitionKey, int]:
        """Return the positions for a commit that somebody waits for: those not confirmed, or not sent last.

        Args:
            keys: only of these partitions; unassigned ones are ignored. None: of all.
            everything: include what the last poll has handed out; otherwise only what is done.

        Decides: What does a pull consumer commit? What was returned before the last poll, and the markers and aborted
            records behind it (`skip_to`); the messages of the last one only by commit_sync. After a seek the position
            may be lower (`core.pull_positions.PullPositions.due`).
        """
        positions = self._position if everything else self._position | self._before
        wanted = positions if keys is None else [key for key in keys if key in positions]
        return {key: positions[key] for key in wanted if not positions[key] == self._sent[key] == self._confirmed[key]}

    def sent(self, positions: Mapping[TopicPartitionKey, int]) -> None:
        """Record that these positions were sent; partitions that are no longer assigned are ignored.

        Until the next poll begins, a sent position is also what is done: a commit of messages that the last poll handed
        out is not taken back.
        """
        for key, position in positions.items():
            if key in self._position:
                self._sent[key] = position
            if key in self._before:
                self._before[key] = position

    def stored(self, positions: Mapping[TopicPartitionKey, int]) -> None:
        """Record that these positions were sent and confirmed."""
        self.sent(positions)
        for key, position in positions.items():
            self.confirmed(key, position)

    def confirmed(self, key: TopicPartitionKey, position: int) -> None:
        """Record that Kafka has stored a position, unless another position was sent since."""
        if self._sent.get(key) == position:
            self._confirmed[key] = position

    def refused(self, key: TopicPartitionKey, position: int) -> None:
        """Mark a refused position as due again, unless another position was sent since."""
        if self._sent.get(key) == position:
            self._sent[key] = _REFUSED
