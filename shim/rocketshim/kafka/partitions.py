"""Partitions as our code names them."""

from collections.abc import Iterable

__all__ = ["TopicPartitionKey", "partition_names"]

TopicPartitionKey = tuple[str, int]
"""Physical topic and partition."""


def partition_names(places: Iterable[TopicPartitionKey]) -> list[str]:
    """Places as logs have them."""
    return [f"{topic}/{number}" for topic, number in places]
