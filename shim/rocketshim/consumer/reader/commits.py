"""Offset commits of one consumer; `core.partition` decides which offsets may be sent. Owned by the poll thread.

A failed commit does not end the consumer, because the next commit covers it, unless the client can do nothing more
(`fatal`). The refusal of one partition does not count for the others (`kafka.lookups.stored_among`).
Under leases, positions that do not move are committed again each hour (`core.timer.RENEWAL_MS`). A position is also
committed again if its metadata has changed (`core.careful_start`): soon, because a call may wait for it.
"""

from collections.abc import Callable, Iterable, Mapping

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.consumer.reader.local_offsets import LocalOffsetStore
from rocketshim.core.careful_start import CarefulStart, Handling
from rocketshim.core.partition import Partition
from rocketshim.core.timer import RENEWAL_MS, Timer
from rocketshim.kafka.clients import ConsumerClient, is_fatal
from rocketshim.kafka.lookups import check_answers, in_parts, stored_among
from rocketshim.locks.lease import Ownership
from rocketshim.logs import safe_logger
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["Committer", "commit_now"]

_LOG = safe_logger("rocketshim.consumer")
_AGAIN_MS = 500  # until a refused commit is repeated for its metadata
_CAREFUL_MS = 200  # time between two commits of positions while a partition is read with care


def commit_now(store: ConsumerClient | LocalOffsetStore, offsets: list[TopicPartition]) -> None:
    """Commit offsets, and return when they are stored. Raises KafkaException: some were refused, or not answered."""
    check_answers(in_parts(lambda part: store.commit(offsets=part, asynchronous=False), offsets))


class Committer:
    """Commits of one consumer, to Kafka, or synchronously to a `store`. `as_offsets` adds what a commit carries."""

    def __init__(
        self,
        client: Callable[[], ConsumerClient],
        now_ms: Callable[[], int],
        as_offsets: Callable[[Mapping[TopicPartitionKey, int]], list[TopicPartition]],
        ownership: Ownership,
        partitions: Mapping[TopicPartitionKey, Partition],
        *,
        store: LocalOffsetStore | None = None,
        care: CarefulStart | None = None,
    ) -> None:
        self._client = client
        self._now_ms = now_ms
        self._as_offsets = as_offsets
        self._ownership = ownership
        self._store = store
        self._care = care or CarefulStart()
        self._sent_handlings: dict[TopicPartitionKey, Handling | None] = {}
        self._not_before_ms = self._last_ms = 0
        self._partitions = partitions
        self._renewal = Timer(RENEWAL_MS, now_ms() + RENEWAL_MS)
        self._again: set[TopicPartitionKey] = set()  # to commit, even if their offsets have not moved
        self.outstanding = 0  # commits without an answer yet; librdkafka may repeat one after a later one: none follows
        self.failed = 0  # number of commits refused since the start
        self.failing_since_ms: int | None = None
        self.fatal: KafkaException | None = None

    def commit(self, partitions: Iterable[Partition], *, asynchronous: bool) -> None:
        """Commit the finished offsets of these partitions, and again those that were refused.

        If not `asynchronous`, also commit again those that were sent without an answer.
        """
        asynchronous = asynchronous and self._store is None
        if asynchronous and self.outstanding:
            return
        if asynchronous and self._ownership.needs_lease and self._renewal.is_due(self._now_ms()):
            self.commit_again(self._partitions)
        self._again = {key for key in self._again | self._care.dirty if self._has_begun(key)}
        if not self._again and not self.outstanding:
            self.failing_since_ms = None  # this consumer no longer reads what was refused
        due: dict[TopicPartitionKey, int] = {}
        for partition in partitions:
            offset = None if partition.queue is None else partition.queue.next_offset
            if offset is not None and partition.may_send(offset, again=not asynchronous):
                due[partition.key] = offset
            elif partition.key in self._again:
                due[partition.key] = partition.sent
        self._send(due, asynchronous=asynchronous)

    def _has_begun(self, key: TopicPartitionKey) -> bool:
        return key in self._partitions and self._partitions[key].sent >= 0

    def is_urgent(self) -> bool:
        """Return whether a commit is to be made before the next interval, for the care of a partition."""
        if self.outstanding or not (self._care.dirty or self._care.is_active):
            return False
        now_ms = self._now_ms()
        if self._care.dirty:
            return now_ms >= self._not_before_ms
        return now_ms >= max(self._not_before_ms, self._last_ms + _CAREFUL_MS)

    def commit_again(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Have the next commit contain these partitions, unless offsets are not stored in Kafka."""
        if self._store is None:
            self._again.update(keys)

    def _send(self, positions: dict[TopicPartitionKey, int], *, asynchronous: bool) -> None:
        owned = {key: offset for key, offset in positions.items() if self._ownership.owns(key)}
        if not owned:
            return
        self._last_ms = self._now_ms()
        self._sent_handlings = {key: self._care.handling(key) for key in owned}
        offsets = self._as_offsets(owned)
        for key, offset in owned.items():
            self._partitions[key].sent = offset
        self._again.difference_update(owned)
        try:
            if asynchronous:
                self._client().commit(offsets=offsets, asynchronous=True)
                self.outstanding += 1
            else:
                self._take(None, (self._store or self._client()).commit(offsets=offsets, asynchronous=False))
        except KafkaException as error:
            self._take(error.args[0], offsets)

    def answered(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Process the answer to an asynchronous commit (librdkafka's `on_commit`). Never raises."""
        self.outstanding = max(0, self.outstanding - 1)
        self._take(error, partitions)

    def _take(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        errors = [error] if error is not None else [item.error for item in partitions if item.error is not None]
        hidden = stored_among(self._client(), partitions, error) if error and self._store is None else ()
        for item in partitions:
            key = TopicPartitionKey.of(item)
            if (partition := self._partitions.get(key)) is None:
                continue  # revoked meanwhile
            if (error is None and item.error is None) or key in hidden:
                partition.confirm(item.offset)
                self._care.stored(key, self._sent_handlings.get(key))  # a refusal of another partition does not count
            elif partition.is_last_sent(item.offset):
                self._again.add(key)
        if errors:
            self._refused(errors)
        else:
            self.failing_since_ms = None

    def _refused(self, errors: list[KafkaError]) -> None:
        self.failed += 1
        self._not_before_ms = self._now_ms() + _AGAIN_MS
        self.fatal = next(map(KafkaException, filter(is_fatal, errors)), self.fatal)
        self._ownership.is_shared |= any(each.code() == KafkaError.UNKNOWN_MEMBER_ID for each in errors)
        self.failing_since_ms = self._now_ms() if self.failing_since_ms is None else self.failing_since_ms
        _LOG.warning("consumer.commit-failed", extra={"error": ", ".join(dict.fromkeys(map(str, errors)))})
