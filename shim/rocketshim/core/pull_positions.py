"""What a pull consumer has handed out, and what of it is done and committed, partition by partition. Pure.

The caller of a pull consumer says nothing about single messages: what a poll returned is *done* when the next poll
begins, not before, or when its caller commits it. So a partition has

* a *position*, after the last message handed out or passed over by a filter;
* a *done* position, where the last poll found it: equal to the position, unless that poll has moved it;
* a *sent* position, the one last sent to the group's offsets. A position is due while it differs from that one. It may
  have gone back, because its owner has sought back: then that is what is to be committed.
"""

from collections.abc import Iterable, Mapping

__all__ = ["PullPositions"]

TopicPartitionKey = tuple[str, int]


class PullPositions:
    """The positions of one pull consumer.

    Thread-safety: none; one owner thread.

    Source: `AssignedMessageQueue` of RocketMQ (`pullOffset`, `consumeOffset`, `seekOffset`).
    """

    __slots__ = ("_before", "_position", "_sent")

    def __init__(self) -> None:
        self._position: dict[TopicPartitionKey, int] = {}
        self._before: dict[TopicPartitionKey, int] = {}  # done positions of what the current poll has moved
        self._sent: dict[TopicPartitionKey, int] = {}

    def __contains__(self, place: object) -> bool:
        return place in self._position

    def places(self) -> list[TopicPartitionKey]:
        """The partitions held, sorted."""
        return sorted(self._position)

    def adopt(self, place: TopicPartitionKey, start: int) -> None:
        """A partition is held from now on; `start` counts as committed."""
        self._position[place] = self._sent[place] = start
        self._before.pop(place, None)

    def forget(self, places: Iterable[TopicPartitionKey]) -> None:
        """Partitions are held no longer; those that never were are passed over."""
        for place in places:
            self._position.pop(place, None)
            self._before.pop(place, None)
            self._sent.pop(place, None)

    def position(self, place: TopicPartitionKey) -> int:
        """Where the next message of a partition that is held comes from.

        Raises:
            KeyError: it is not held.
        """
        return self._position[place]

    def begin_poll(self) -> None:
        """The next poll begins: all that was handed out is done."""
        self._before.clear()

    def hand_out(self, place: TopicPartitionKey, position: int) -> None:
        """This poll hands out (or passes over) what lies before `position`.

        Raises:
            KeyError: the partition is not held; nothing changed.
        """
        self._before.setdefault(place, self._position[place])
        self._position[place] = position

    def seek(self, place: TopicPartitionKey, position: int) -> None:
        """The owner goes on elsewhere; what lies before is done.

        Raises:
            KeyError: the partition is not held; nothing changed.
        """
        if place not in self._position:
            raise KeyError(place)
        self._position[place] = position
        self._before.pop(place, None)

    def due(
        self, places: Iterable[TopicPartitionKey] | None = None, *, everything: bool = False
    ) -> dict[TopicPartitionKey, int]:
        """Positions to commit: those that differ from what was sent last.

        Args:
            places: only of these; those not held are passed over. None: of all.
            everything: also what the last poll has handed out; else only what is done.
        """
        wanted = self._position if places is None else [place for place in places if place in self._position]
        before: Mapping[TopicPartitionKey, int] = {} if everything else self._before
        positions = {place: before.get(place, self._position[place]) for place in wanted}
        return {place: position for place, position in positions.items() if position != self._sent[place]}

    def sent(self, positions: Mapping[TopicPartitionKey, int]) -> None:
        """These were sent; of partitions not held any more nothing is kept."""
        self._sent.update({place: position for place, position in positions.items() if place in self._position})

    def refused(self, place: TopicPartitionKey, position: int) -> None:
        """What was sent was refused, so that it is due again, unless something else was sent since."""
        if self._sent.get(place) == position:
            self._sent[place] = -1
