"""What a consumer does with the partitions that its reader is given."""

from collections.abc import Collection
from typing import Any, Protocol

from confluent_kafka import TopicPartition

from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["PartitionOwner"]


class PartitionOwner(Protocol):
    """The consumer, as its reader sees it; the reader's thread calls it."""

    def accept(self, partitions: list[TopicPartition]) -> None:
        """Accept assigned partitions by `start` or `assign_paused`; KafkaException and RuntimeError are kept."""

    def begin(self, key: TopicPartitionKey, offset: int) -> None:
        """Begin a partition at this offset; -1: it waits, and begins again when its start is known."""

    def position(self, key: TopicPartitionKey) -> int | None:
        """Return the offset to read again after stale records; None: nothing of the partition is wanted now."""

    def release(self, keys: Collection[TopicPartitionKey]) -> None:
        """Finish and commit what can be: the partitions are about to be revoked. Errors as in `accept`."""

    def forget(self, keys: Collection[TopicPartitionKey]) -> None:
        """Remove partitions that are no longer assigned. Never raises."""

    def client_error(self, message: Any) -> None:
        """Process an error that the client has returned in place of a message."""
