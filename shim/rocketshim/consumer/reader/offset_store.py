"""Where positions are kept: the Kafka consumer itself has this shape, and `local_offsets.LocalOffsetStore`."""

from typing import Literal, Protocol

from confluent_kafka import TopicPartition

__all__ = ["OffsetStore"]


class OffsetStore(Protocol):
    """The two calls by which positions are read and written; as those of `confluent_kafka.Consumer`."""

    def committed(self, partitions: list[TopicPartition], timeout: float = ...) -> list[TopicPartition]:
        """What is stored; a negative offset: nothing."""

    def commit(self, *, offsets: list[TopicPartition], asynchronous: Literal[False]) -> list[TopicPartition]:
        """Store, and return when it is stored."""
