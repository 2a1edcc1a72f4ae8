"""Offset commits of one consumer; `core.commit_positions` decides which offsets may be sent. Owned by the poll thread.

A failed commit never ends the consumer, because the next commit covers it. How long commits have been failing is
recorded for monitoring.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, Protocol

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.consumer.reader.partition_queue import PartitionQueue
from rocketshim.core.commit_positions import CommitPositions
from rocketshim.core.ownership import Ownership
from rocketshim.kafka.clients import ConsumerClient
from rocketshim.logs import safe_logger
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["Committer", "OffsetStore", "commit_now"]

_LOG = safe_logger("rocketshim.consumer")


class OffsetStore(Protocol):
    """Reads and writes offsets: the Kafka consumer, or `local_offsets.LocalOffsetStore`."""

    def committed(self, partitions: list[TopicPartition], timeout: float = ...) -> list[TopicPartition]:
        """Return the stored offsets; a negative offset means that none is stored."""

    def commit(self, *, offsets: list[TopicPartition], asynchronous: Literal[False]) -> list[TopicPartition]:
        """Store offsets; return when they are stored."""


def commit_now(store: OffsetStore, offsets: list[TopicPartition]) -> None:
    """Commit offsets, and return when they are stored.

    Raises:
        KafkaException: a commit was refused, or the cluster did not answer.
    """
    for item in store.commit(offsets=offsets, asynchronous=False) if offsets else ():
        if item.error is not None:
            raise KafkaException(item.error)


class Committer:
    """Commits of one consumer, to Kafka, or synchronously to a `store`. `metadata` returns what a commit carries."""

    def __init__(
        self,
        metadata: Callable[[TopicPartitionKey], str],
        ownership: Ownership,
        store: OffsetStore | None = None,
    ) -> None:
        self._metadata = metadata
        self._ownership = ownership
        self._store = store
        self.positions = CommitPositions()
        self.outstanding = 0  # commits without an answer yet; librdkafka may repeat one after a later one: none follows
        self.failed = 0  # number of commits refused since the start
        self.failing_since_ms: int | None = None

    def move(self, consumer: ConsumerClient, key: TopicPartitionKey, position: int) -> None:
        """Commit an offset, above or below earlier commits; only higher offsets are sent from now on.

        Raises:
            KafkaException: the commit was refused; nothing has changed here.
        """
        self.commit_starts(consumer, {key: position})
        self.positions.adopt(key, position)

    def commit_starts(self, consumer: ConsumerClient, starts: Mapping[TopicPartitionKey, int]) -> None:
        """Commit where partitions start. Raises as `commit_now`."""
        metadata = self._metadata
        asked = [TopicPartition(*key, offset, metadata=metadata(key)) for key, offset in starts.items()]
        commit_now(self._store or consumer, asked)

    def commit(
        self, consumer: ConsumerClient, queues: Iterable[PartitionQueue], *, now_ms: int, asynchronous: bool
    ) -> bool:
        """Commit the finished offsets of these queues; if not `asynchronous`, also those that were sent unanswered.

        Returns:
            Whether there was something to commit and it was stored, or sent if `asynchronous`.
        """
        asynchronous = asynchronous and self._store is None
        offsets = [] if asynchronous and self.outstanding else self._due(queues, again=not asynchronous)
        if not offsets:
            return False
        try:
            if asynchronous:
                consumer.commit(offsets=offsets, asynchronous=True)
                self.outstanding += 1
                results: list[TopicPartition] = []
            else:
                results = (self._store or consumer).commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            self._refused(str(error), now_ms)
            return False
        refused = {TopicPartitionKey.of(item): item.error for item in results if item.error is not None}
        taken = {TopicPartitionKey.of(item): item.offset for item in offsets}
        taken = {key: offset for key, offset in taken.items() if key not in refused}
        self.positions.send(taken, is_stored=not asynchronous)
        if refused:
            self._refused(str(refused), now_ms)
        elif not asynchronous:
            self.failing_since_ms = None
        return not refused

    def commit_again(self, consumer: ConsumerClient, keys: Iterable[TopicPartitionKey], *, now_ms: int) -> None:
        """Commit the last sent offsets of these partitions again, because the metadata of commits has changed.

        Do nothing if offsets are not stored in Kafka.
        """
        known = [(key, self.positions.sent(key)) for key in keys if self._ownership.owns(key)]
        offsets = [TopicPartition(*key, sent, metadata=self._metadata(key)) for key, sent in known if sent >= 0]
        if not offsets or self._store is not None:
            return
        try:
            consumer.commit(offsets=offsets, asynchronous=True)
            self.outstanding += 1
        except KafkaException as error:
            self._refused(str(error), now_ms)

    def _due(self, queues: Iterable[PartitionQueue], *, again: bool) -> list[TopicPartition]:
        due: list[TopicPartition] = []
        for queue in queues:
            key, offset = TopicPartitionKey.of(queue), queue.next_offset
            if offset is not None and self.positions.may_send(key, offset, again=again) and self._ownership.owns(key):
                due.append(TopicPartition(*key, offset, metadata=self._metadata(key)))
        return due

    def answered(self, error: KafkaError | None, partitions: list[TopicPartition], now_ms: int) -> None:
        """Process the answer to an asynchronous commit (librdkafka's `on_commit`)."""
        self.outstanding = max(0, self.outstanding - 1)
        refused = False
        for item in partitions:
            if error is None and item.error is None:
                self.positions.confirm(TopicPartitionKey.of(item), item.offset)
            else:
                refused = True
                self.positions.refuse(TopicPartitionKey.of(item), item.offset)
        if refused or error is not None:
            self._refused(str(error or [item.error for item in partitions]), now_ms)
        else:
            self.failing_since_ms = None

    def _refused(self, why: str, now_ms: int) -> None:
        self.failed += 1
        if self.failing_since_ms is None:
            self.failing_since_ms = now_ms
        _LOG.warning("consumer.commit-failed", extra={"error": why})
