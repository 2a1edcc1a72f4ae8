"""Which partitions are paused, and why: a partition is read again only when its last reason has gone.

librdkafka's pauses stick: they survive a revocation and make a partition that comes back deliver nothing, for ever (our
measurement; the Java client forgets them). So this object alone pauses and resumes, knows every reason, resumes what
is newly assigned, and forgets what has left. Owned by the poll thread.
"""

from collections.abc import Iterable
from enum import Flag, auto
from typing import Final

from confluent_kafka import TopicPartition

from rocketshim.kafka.clients import ConsumerClient
from rocketshim.kafka.partitions import TopicPartitionKey

__all__ = ["PauseReason", "Pauses"]


class PauseReason(Flag):
    """Why a partition is not read."""

    FLOW = auto()
    """It holds too much (`core.flow_control`)."""
    SUSPENDED = auto()
    """The whole consumer is suspended."""
    UNRESOLVED = auto()
    """It is not known yet where to begin."""
    USER = auto()
    """The program has asked for it."""
    LOCK = auto()
    """Its queue lock is not ours (orderly mode)."""


_NONE: Final = PauseReason(0)


class Pauses:
    """The pauses of one Kafka consumer.

    Thread-safety: none; the poll thread's.
    """

    def __init__(self) -> None:
        self._held: dict[TopicPartitionKey, PauseReason] = {}

    def why(self, place: TopicPartitionKey) -> PauseReason:
        """The reasons for which a partition is paused; none of them: it is read."""
        return self._held.get(place, _NONE)

    def hold(self, consumer: ConsumerClient, places: Iterable[TopicPartitionKey], reason: PauseReason) -> None:
        """Pause partitions for a reason; one that has it already keeps it."""
        new = []
        for place in places:
            before = self._held.get(place, _NONE)
            self._held[place] = before | reason
            if not before:
                new.append(TopicPartition(*place))
        if new:
            consumer.pause(new)

    def release(self, consumer: ConsumerClient, places: Iterable[TopicPartitionKey], reason: PauseReason) -> None:
        """Take a reason away; what has none left is read again."""
        free = []
        for place in places:
            before = self._held.get(place, _NONE)
            left = before & ~reason
            if left:
                self._held[place] = left
            elif before:
                del self._held[place]
                free.append(TopicPartition(*place))
        if free:
            consumer.resume(free)

    def adopt(self, consumer: ConsumerClient, places: Iterable[TopicPartitionKey]) -> None:
        """Partitions that were assigned just now: whatever pause stuck to them is lifted."""
        new = list(places)
        for place in new:
            self._held.pop(place, None)
        if new:
            consumer.resume([TopicPartition(*place) for place in new])

    def forget(self, places: Iterable[TopicPartitionKey]) -> None:
        """Partitions that have left."""
        for place in places:
            self._held.pop(place, None)
