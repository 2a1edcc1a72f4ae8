"""The partitions of a `LitePullConsumer`: what was handed out of each, and what is committed.

`core.pull_positions` has the rules: what a poll returned is done when the next poll begins. Owned by the thread that
calls the consumer.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.consumer.reader.partition_reader import OnCommit, PartitionReader
from rocketshim.core.ownership import Ownership
from rocketshim.core.pull_positions import PullPositions
from rocketshim.core.start_position import StartRules
from rocketshim.kafka.clients import ConsumerClient
from rocketshim.logs import safe_logger
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["PullPartitions"]

_LOG = safe_logger("rocketshim.consumer")


class PullPartitions:
    """The partitions of one pull consumer; the `PartitionOwner` of its reader.

    Args:
        make_consumer: makes the Kafka consumer with its callback for commits.
        make_lookup_client: makes a client that joins no group.
        rules: where partitions start.
        now_ms: returns monotonic time in ms.
        auto_commit: commit what is done when a partition is revoked.

    Attributes:
        reader: reads the partitions.
        positions: what was handed out and committed.
        client_errors: error messages of the Kafka client that the consumer has not looked at yet.

    Thread-safety: none; one thread at a time.
    """

    def __init__(
        self,
        *,
        make_consumer: Callable[[OnCommit], ConsumerClient],
        make_lookup_client: Callable[[], ConsumerClient],
        rules: StartRules,
        now_ms: Callable[[], int],
        auto_commit: bool,
    ) -> None:
        self.positions = PullPositions()
        self.reader = PartitionReader(
            make_consumer=make_consumer,
            make_lookup_client=make_lookup_client,
            rules=rules,
            ownership=Ownership(now_ms),
            now_ms=now_ms,
        )
        self.client_errors: list[Any] = []
        self._auto_commit = auto_commit

    def as_offsets(self, positions: Mapping[TopicPartitionKey, int]) -> list[TopicPartition]:
        """Return positions in the form in which they are committed."""
        metadata = self.reader.starts.metadata
        return [TopicPartition(*key, offset, metadata=metadata(key)) for key, offset in sorted(positions.items())]

    def commit(self, consumer: ConsumerClient, positions: Mapping[TopicPartitionKey, int]) -> None:
        """Commit positions, and wait for the answer.

        Raises:
            KafkaException: a position was refused, or no answer came.
        """
        if not positions:
            return
        answers = consumer.commit(offsets=self.as_offsets(positions), asynchronous=False)
        self.positions.sent({TopicPartitionKey.of(item): item.offset for item in answers if item.error is None})
        for item in answers:
            if item.error is not None:
                raise KafkaException(item.error)

    def commit_done(self) -> None:
        """Commit what is done, without waiting for the answer; an error is logged, and the next commit covers it."""
        due = self.positions.due()
        if not due:
            return
        try:
            self.reader.client().commit(offsets=self.as_offsets(due), asynchronous=True)
            self.positions.sent(due)
        except KafkaException as error:
            _LOG.warning("consumer.commit-failed", extra={"error": str(error)})

    # --- what the reader asks (`PartitionOwner`) ---------------------------------------------------------------------

    def take_up(self, partitions: list[TopicPartition]) -> None:
        """Start assigned partitions."""
        self.reader.start(partitions)

    def begin(self, key: TopicPartitionKey, offset: int) -> None:
        """Begin a partition."""
        self.positions.adopt(key, offset)

    def position(self, key: TopicPartitionKey) -> int | None:
        """Return where to read a partition again."""
        return self.positions.position(key) if key in self.positions else None

    def release(self, keys: Collection[TopicPartitionKey]) -> None:
        """Commit what is done of partitions that are about to be revoked; an error is logged."""
        due = self.positions.due(key for key in keys if not self.reader.is_waiting(key)) if self._auto_commit else {}
        try:
            if due:
                self.reader.client().commit(offsets=self.as_offsets(due), asynchronous=False)
        except (KafkaException, RuntimeError) as error:
            _LOG.warning("consumer.commit-failed", extra={"error": str(error)})

    def forget(self, keys: Collection[TopicPartitionKey]) -> None:
        """Forget partitions."""
        self.positions.forget(keys)

    def committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Process the answer to a commit: a refused position is due again."""
        for item in partitions:
            if error is not None or item.error is not None:
                self.positions.refused(TopicPartitionKey.of(item), item.offset)
                _LOG.warning("consumer.commit-failed", extra={"error": str(error or item.error)})

    def client_error(self, message: Any) -> None:
        """Keep an error for the consumer."""
        self.client_errors.append(message)
