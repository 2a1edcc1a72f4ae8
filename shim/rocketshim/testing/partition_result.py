"""A `TopicPartition` that can have an error; in the real class only librdkafka can set one."""

from collections.abc import Iterable

from confluent_kafka import KafkaError, Message, TopicPartition

from rocketshim.testing.assignors import Partition
from rocketshim.testing.kafka_errors import invalid

__all__ = ["PartitionResult", "named", "position_after", "results_of"]


class PartitionResult(TopicPartition):
    """The result for one partition. It is equal to every `TopicPartition` of the same partition.

    Thread-safety: must not be changed after it was returned.
    """

    _error: KafkaError | None = None

    @property
    def error(self) -> KafkaError | None:  # type: ignore[override] # read-only in the C class too; its stub differs
        """The error for this partition; None: none."""
        return self._error

    @classmethod
    def of(
        cls, partition: Partition, offset: int, *, metadata: str | None = None, error: KafkaError | None = None
    ) -> "PartitionResult":
        """Create the result for a partition (the C constructor does not accept None as metadata)."""
        result = cls(*partition, offset) if metadata is None else cls(*partition, offset, metadata)
        result._error = error  # noqa: SLF001 - its own
        return result

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicPartition):
            return NotImplemented
        return named(self) == named(other)

    def __hash__(self) -> int:
        return super().__hash__()


def named(partition: TopicPartition) -> Partition:
    """Return topic and partition number."""
    return partition.topic, partition.partition


def results_of(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return the results of a commit that has succeeded for these partitions."""
    return [PartitionResult.of(named(part), part.offset, metadata=part.metadata) for part in partitions]


def position_after(message: Message, doing: str) -> TopicPartition:
    """Return the position after a message; raise `_INVALID_ARG` for an event, which has none."""
    if (error := message.error()) is not None:
        raise invalid(f"Cannot {doing} offsets for message with error: '{error.str()}'")
    return TopicPartition(str(message.topic()), message.partition() or 0, (message.offset() or 0) + 1)
