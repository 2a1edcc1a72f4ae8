"""The name of a partition in our code and in our logs."""

from collections.abc import Iterable

__all__ = ["TopicPartitionKey", "partition_names"]

TopicPartitionKey = tuple[str, int]
"""Physical topic and partition."""


def partition_names(partitions: Iterable[TopicPartitionKey]) -> list[str]:
    """Format partitions for logs, as `topic/number`."""
    return [f"{topic}/{number}" for topic, number in partitions]
