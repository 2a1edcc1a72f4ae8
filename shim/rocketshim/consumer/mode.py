"""What concurrent and orderly consumption do differently; the poll loop calls it."""

from collections.abc import Collection, Iterable
from typing import Any, Protocol

from confluent_kafka import TopicPartition

from rocketshim.consumer.dispatch import Dispatch
from rocketshim.consumer.queues import AssignedQueues
from rocketshim.core.partition import QueueT
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["Mode"]


class Mode(Protocol[QueueT]):
    """Concurrent or orderly consumption. Owned by the poll thread.

    Attributes:
        dispatch: the listeners.
        queues: the queues that are read.
        commit_interval_ms: how often the queues are committed.
    """

    dispatch: Dispatch[QueueT, Any, Any]
    queues: AssignedQueues[QueueT]
    commit_interval_ms: int

    @property
    def ended(self) -> Iterable[QueueT]:
        """Return the queues that are read no longer while a listener still has messages of them."""
        return ()

    def take_up(self, partitions: list[TopicPartition]) -> None:
        """Accept partitions that were assigned. Raises as `PartitionOwner.take_up`."""

    def give_up(self, keys: Collection[TopicPartitionKey]) -> None:
        """Give up what the mode has of partitions that are no longer assigned. Never raises."""
        del keys

    def put(self, key: TopicPartitionKey, run: list[Any]) -> None:
        """Add a fetched run to its queue.

        Offsets that go backwards within an assignment mean that the log was cut or created again. The queue is dropped,
        and a new epoch starts where the log continues: messages may be repeated, but none is lost.
        """

    def turn(self, now_ms: int) -> float:
        """Do what is due now, and return how long the loop may wait for messages, in seconds.

        Raises:
            RocketshimError: the consumer cannot continue.
        """

    def finish(self) -> bool:
        """While closing: finish what can be finished now; return whether nothing is left."""
        return True

    def close(self) -> None:
        """Clean up: the loop has left the group."""
