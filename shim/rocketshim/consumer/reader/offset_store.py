"""The protocol of an offset store; the Kafka consumer and `local_offsets.LocalOffsetStore` implement it."""

from typing import Literal, Protocol

from confluent_kafka import TopicPartition

__all__ = ["OffsetStore"]


class OffsetStore(Protocol):
    """The two methods that read and write offsets, as in `confluent_kafka.Consumer`."""

    def committed(self, partitions: list[TopicPartition], timeout: float = ...) -> list[TopicPartition]:
        """Return the stored offsets; a negative offset means that none is stored."""

    def commit(self, *, offsets: list[TopicPartition], asynchronous: Literal[False]) -> list[TopicPartition]:
        """Store offsets; return when they are stored."""
