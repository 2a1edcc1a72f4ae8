"""Format partitions for logs."""

from collections.abc import Iterable

from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["partition_names"]


def partition_names(partitions: Iterable[TopicPartitionKey]) -> list[str]:
    """Format partitions for logs, as `topic/number`."""
    return [str(key) for key in partitions]
