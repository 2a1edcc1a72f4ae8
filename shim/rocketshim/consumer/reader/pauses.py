"""Paused partitions and the reasons: a partition is read again only when its last reason is gone.

librdkafka keeps pauses: they survive a revocation, and a partition that is assigned again then delivers nothing,
forever (our measurement; the Java client forgets them). So this object alone pauses and resumes. It knows every reason,
resumes newly assigned partitions, and forgets revoked ones. Owned by the poll thread.
(test_an_assigned_partition_is_resumed_from_any_earlier_pause)
"""

from collections.abc import Callable, Iterable
from enum import Flag, auto
from typing import Final

from confluent_kafka import TopicPartition

from rocketshim.kafka.clients import ConsumerClient
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["PauseReason", "Pauses"]


class PauseReason(Flag):
    """Why a partition is not read."""

    FLOW = auto()
    """Too much of it is buffered (`core.flow_control`)."""
    SUSPENDED = auto()
    """The whole consumer is suspended."""
    UNRESOLVED = auto()
    """Its start offset is not known yet."""
    USER = auto()
    """The program has paused it."""
    LOCK = auto()
    """This process does not have its queue lock (orderly mode)."""


_NONE: Final = PauseReason(0)


class Pauses:
    """The pauses of one Kafka consumer, which `client` returns."""

    def __init__(self, client: Callable[[], ConsumerClient]) -> None:
        self._client = client
        self._reasons: dict[TopicPartitionKey, PauseReason] = {}

    def why(self, key: TopicPartitionKey) -> PauseReason:
        """Return the reasons for which a partition is paused; no reason: it is read."""
        return self._reasons.get(key, _NONE)

    def hold(self, keys: Iterable[TopicPartitionKey], reason: PauseReason) -> None:
        """Pause partitions for a reason; a partition that already has the reason keeps it."""
        reasons = {key: self.why(key) for key in keys}
        self._reasons.update({key: before | reason for key, before in reasons.items()})
        new = [TopicPartition(*key) for key, before in reasons.items() if not before]
        if new:
            self._client().pause(new)

    def release(self, keys: Iterable[TopicPartitionKey], reason: PauseReason) -> None:
        """Remove a reason; resume the partitions that have no reason left."""
        left = {key: before & ~reason for key in keys if (before := self.why(key))}
        self._reasons.update(left)
        free = [key for key, reasons in left.items() if not reasons]
        self.forget(free)
        if free:
            self._client().resume([TopicPartition(*key) for key in free])

    def prepare(self, keys: Iterable[TopicPartitionKey], reason: PauseReason) -> None:
        """Pause partitions that are to be assigned next, so that nothing is fetched before their start is known.

        A pause after the assignment comes too late for the first fetch in most cases (24 of 25, with 2 ms between). The
        client pauses only partitions that it knows, and a question for their positions makes them known
        (test_a_partition_is_known_to_the_client_before_it_is_paused_for_its_assignment).
        """
        new = [TopicPartition(*key) for key in keys]
        self._reasons.update(dict.fromkeys(map(TopicPartitionKey.of, new), reason))
        if new:
            self._client().position(new)
            self._client().pause(new)

    def adopt(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Resume newly assigned partitions, which may still be paused from an earlier assignment."""
        new = list(keys)
        self.forget(new)
        if new:
            self._client().resume([TopicPartition(*key) for key in new])

    def forget(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Remove partitions that are no longer assigned."""
        for key in keys:
            self._reasons.pop(key, None)
