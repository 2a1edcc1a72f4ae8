"""A `TopicPartition` that can carry an error: the real class lets only librdkafka set one."""

from confluent_kafka import KafkaError, TopicPartition

from rocketshim.testing.assignors import Partition

__all__ = ["PartitionResult", "named"]


class PartitionResult(TopicPartition):
    """The outcome for one partition. Equal to the `TopicPartition` of the same partition, as those are to each other.

    Thread-safety: not to be changed once handed out.
    """

    _error: KafkaError | None = None

    @property
    def error(self) -> KafkaError | None:  # type: ignore[override] # read-only in the C class too; its stub differs
        """What went wrong for this partition; None: nothing."""
        return self._error

    @classmethod
    def of(
        cls, partition: Partition, offset: int, *, metadata: str | None = None, error: KafkaError | None = None
    ) -> "PartitionResult":
        """The result for a partition (the C constructor takes no None for the metadata)."""
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
    """Topic and number."""
    return partition.topic, partition.partition
