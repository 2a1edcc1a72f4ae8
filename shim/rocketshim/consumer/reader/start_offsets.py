"""Start offsets of partitions: where each one starts, what its commits carry, and how it is assigned.

`core.start_position` makes the decision. `StartOffsets` asks Kafka for its input: committed offsets and their metadata
of *all* partitions of the topic, the end of a log, the offset of a time. A start that was resolved, and not committed
before, is committed immediately, before the first message is handed out. Otherwise, after a crash before the first
commit, the group would start at the new end of the log and lose the messages in between.

`PartitionStarter` assigns partitions at their starts. A partition whose start cannot be found now (the coordinator is
unreachable) is assigned paused, and its start is looked up again (`core.retry_rotation`). Until then it is at offset 0,
never at "the beginning". "The beginning" makes librdkafka look up the offset, and a late answer moves a partition that
was already sought to its start (seen under load).

Owned by the poll thread.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.consumer.reader.commits import OffsetStore, commit_now
from rocketshim.consumer.reader.pauses import PauseReason, Pauses
from rocketshim.core.ownership import Ownership
from rocketshim.core.retry_rotation import RetryRotation
from rocketshim.core.start_position import (
    AtTimestamp,
    CommitMetadata,
    Earliest,
    Found,
    Latest,
    Start,
    StartAt,
    StartRules,
    decode_metadata,
    digest_conflict,
    encode_metadata,
    latest_offset,
    resolve_start,
)
from rocketshim.kafka.clients import ConsumerClient, LookupClient
from rocketshim.logs import safe_logger
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["UNKNOWN_START", "PartitionStarter", "StartOffsets", "paused_assignment"]

_LOG = safe_logger("rocketshim.consumer")
UNKNOWN_START: Final = -1
"""Stands for an offset that is not known yet."""

_TIMEOUT_S: Final = 10.0
_PAUSED_AT: Final = 0
_MAX_LOGGED: Final = 100


class StartOffsets:
    """Start offsets of one consumer.

    Attributes:
        conflicts: topic to the subscription, as text, of a member that committed there and subscribes differently. Two
            subscriptions in one group lose messages: each member skips what the other wants.
        found_tokens: fencing token in the commit of a partition when it was last resolved; None: the commit carries
            none. A partition without an entry had no commit.

    Source: `RebalancePushImpl#computePullFromWhereWithException` of RocketMQ.
    """

    def __init__(
        self, rules: StartRules, *, lookups: LookupClient, ownership: Ownership, store: OffsetStore | None = None
    ) -> None:
        self._rules = rules
        self._lookups = lookups
        self._ownership = ownership
        self._store = store
        self._counts: dict[str, int] = {}
        self._born: dict[TopicPartitionKey, int] = {}
        self.found_tokens: dict[TopicPartitionKey, int | None] = {}
        self.conflicts: dict[str, str] = {}

    def subscribe(self, digest: str, subscription: str) -> None:
        """Set a changed subscription; commits carry it from now on."""
        self._rules = replace(self._rules, digest=digest, subscription=subscription)

    def metadata(self, key: TopicPartitionKey) -> str:
        """Return the metadata of a commit of this partition."""
        born = self._born.get(key, 0)
        rules, token = self._rules, self._ownership.token(key)
        return encode_metadata(CommitMetadata(rules.digest, born, rules.subscription, token))

    def resolve(
        self, consumer: ConsumerClient, partitions: list[TopicPartition], timeout_s: float = _TIMEOUT_S
    ) -> list[TopicPartition]:
        """Return the same partitions with their start offsets, and commit starts that were resolved here.

        Skip the commit of partitions that we no longer own; the new owner may already have committed further.

        Arguments and errors as in `find`; after an error nothing was committed.
        """
        starts, resolved = self.find(consumer, partitions, timeout_s)
        resolved = [item for item in resolved if self._ownership.owns(TopicPartitionKey.of(item))]
        commit_now(self._store or consumer, resolved)
        return starts

    def find(
        self, consumer: ConsumerClient, partitions: list[TopicPartition], timeout_s: float = _TIMEOUT_S
    ) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """Return the same partitions with their start offsets, and those of them that have no commit yet.

        Raises:
            KafkaException: the cluster did not answer; each request has `timeout_s` seconds.
        """
        by_topic: dict[str, list[int]] = defaultdict(list)
        for item in partitions:
            by_topic[item.topic].append(item.partition)
        starts: list[TopicPartition] = []
        resolved: list[TopicPartition] = []
        for topic, numbers in by_topic.items():
            count, found = self._found(consumer, topic, numbers, timeout_s)
            for number in numbers:
                start, born = resolve_start(
                    number,
                    found,
                    where=self._rules.where,
                    is_retry_topic=topic == self._rules.retry_topic,
                    partition_count=count,
                )
                key = TopicPartitionKey(topic, number)
                self._born[key] = born
                self.found_tokens.pop(key, None)
                if number in found:
                    commit = found[number].metadata
                    self.found_tokens[key] = None if commit is None else commit.token
                at = TopicPartition(topic, number, self._offset(topic, number, start, timeout_s))
                starts.append(at)
                if not isinstance(start, StartAt):
                    resolved.append(TopicPartition(topic, number, at.offset, metadata=self.metadata(key)))
        if resolved:
            _LOG.info(
                "consumer.start-chosen",
                extra={
                    "where": self._rules.where.name,
                    "starts": [f"{item.topic}/{item.partition}/{item.offset}" for item in resolved[:_MAX_LOGGED]],
                    "count": len(resolved),
                },
            )
        return starts, resolved

    def _found(
        self, consumer: ConsumerClient, topic: str, assigned: list[int], timeout_s: float
    ) -> tuple[int, dict[int, Found]]:
        listed = self._lookups.list_topics(topic, timeout=timeout_s).topics.get(topic)
        # the assigned ones, too: the broker's metadata may be outdated
        numbers = sorted({*assigned, *(() if listed is None else listed.partitions)})
        self._counts[topic] = len(numbers)
        found: dict[int, Found] = {}
        asked = [TopicPartition(topic, number) for number in numbers]
        for item in (self._store or consumer).committed(asked, timeout=timeout_s):
            if item.error is not None:
                raise KafkaException(item.error)
            if item.offset < 0:
                continue
            commit = decode_metadata(item.metadata)
            found[item.partition] = Found(item.offset, commit)
        self._compare(topic, [each.metadata for each in found.values()])
        return len(numbers), found

    def look(self, consumer: ConsumerClient, topics: Iterable[str], timeout_s: float) -> None:
        """Check whether any member has committed these topics under another subscription.

        A member that has no queue of a topic would otherwise find out only when it gets one.

        Raises:
            KafkaException: the cluster did not answer.
        """
        topics = [] if self._store is not None else [topic for topic in topics if topic != self._rules.retry_topic]
        for topic in topics:
            if topic not in self._counts:
                listed = self._lookups.list_topics(topic, timeout=timeout_s).topics.get(topic)
                self._counts[topic] = 0 if listed is None else len(listed.partitions)
        asked = [TopicPartition(topic, number) for topic in topics for number in range(self._counts[topic])]
        commits: dict[str, list[CommitMetadata | None]] = {topic: [] for topic in topics}
        for item in consumer.committed(asked, timeout=timeout_s) if asked else ():
            if item.error is None and item.offset >= 0:
                commits[item.topic].append(decode_metadata(item.metadata))
        for topic, found in commits.items():
            self._compare(topic, found)

    def _compare(self, topic: str, commits: Iterable[CommitMetadata | None]) -> None:
        rules = self._rules
        if topic == rules.retry_topic or self._store is not None:  # other members do not write into a local store
            return
        others = [each for each in commits if each is not None and digest_conflict(rules.digest, each) is not None]
        if not others:
            self.conflicts.pop(topic, None)
            return
        theirs = others[0].subscription or others[0].digest
        if self.conflicts.get(topic) != theirs:
            self.conflicts[topic] = theirs
            _LOG.error(
                "consumer.subscriptions-differ", extra={"topic": topic, "mine": rules.subscription, "theirs": theirs}
            )

    def _offset(self, topic: str, number: int, start: Start, timeout_s: float) -> int:
        match start:
            case StartAt(offset):
                return offset
            case Earliest():
                return self._watermarks(topic, number, timeout_s)[0]
            case Latest():
                return latest_offset(*self._watermarks(topic, number, timeout_s), self._rules.young_max)
            case AtTimestamp():
                asked = TopicPartition(topic, number, self._rules.timestamp_ms)
                (answer,) = self._lookups.offsets_for_times([asked], timeout=timeout_s)
                if answer.error is not None:
                    raise KafkaException(answer.error)
                return answer.offset if answer.offset >= 0 else self._watermarks(topic, number, timeout_s)[1]

    def _watermarks(self, topic: str, number: int, timeout_s: float) -> tuple[int, int]:
        answer = self._lookups.get_watermark_offsets(TopicPartition(topic, number), timeout=timeout_s)
        if answer is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - no public spelling
        low, high = answer
        return low, high


def paused_assignment(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return partitions in the form in which they are assigned to be paused immediately and sought later."""
    return [TopicPartition(item.topic, item.partition, _PAUSED_AT) for item in partitions]


class PartitionStarter:
    """Assigns partitions to one consumer: each at its start offset, or paused until that is known.

    `begin` is called with each partition and its start offset once it is assigned. For a paused partition it is called
    with `UNKNOWN_START`, and again when the start is known.
    """

    def __init__(
        self,
        starts: StartOffsets,
        pauses: Pauses,
        begin: Callable[[TopicPartitionKey, int], None],
        now_ms: Callable[[], int],
    ) -> None:
        self._starts = starts
        self._pauses = pauses
        self._begin = begin
        self._now_ms = now_ms
        self._waiting: set[TopicPartitionKey] = set()
        self._turns: RetryRotation[TopicPartitionKey] = RetryRotation()

    def __contains__(self, key: object) -> bool:
        """Return whether a partition waits for its start: messages fetched from it are ignored."""
        return key in self._waiting

    def take_up(self, consumer: ConsumerClient, partitions: list[TopicPartition], *, look: bool = True) -> None:
        """Assign the partitions that this consumer was given; with `look` False their starts stay unknown.

        Raises:
            KafkaException, RuntimeError: the partitions could not be assigned.
        """
        known: dict[TopicPartitionKey, int] = {}
        if look and partitions:
            try:
                known = self._resolve(consumer, partitions)
            except KafkaException as error:
                self._log_unknown(error, partitions)
        self.assign(consumer, partitions, known)

    def assign(
        self, consumer: ConsumerClient, partitions: list[TopicPartition], known: Mapping[TopicPartitionKey, int]
    ) -> None:
        """Assign partitions at these starts; pause those that have none.

        Raises:
            KafkaException, RuntimeError: the partitions could not be assigned.
        """
        keys = [TopicPartitionKey.of(item) for item in partitions]
        waiting = [key for key in keys if key not in known]
        self._pauses.prepare(consumer, waiting, PauseReason.UNRESOLVED)
        consumer.incremental_assign([TopicPartition(*key, known.get(key, _PAUSED_AT)) for key in keys])
        self._pauses.adopt(consumer, [key for key in keys if key in known])
        self._waiting.update(waiting)
        for key in keys:
            self._begin(key, known.get(key, UNKNOWN_START))

    def look_again(self, consumer: ConsumerClient) -> None:
        """Look up the starts of waiting partitions again, and start those that are known now; none delays another."""
        if not self._waiting:
            return
        began_ms = self._now_ms()
        keys, timeout_s = self._turns.pick(sorted(self._waiting), began_ms)
        if not keys:
            return
        partitions = [TopicPartition(*key) for key in keys]
        known: dict[TopicPartitionKey, int] = {}
        try:
            known = self._resolve(consumer, partitions, timeout_s)
            for key, offset in known.items():
                consumer.seek(TopicPartition(*key, offset))
        except KafkaException as error:
            self._log_unknown(error, partitions)
            known = {}
        self._turns.tried(keys, failed=not known, began_ms=began_ms, now_ms=self._now_ms())
        self._waiting.difference_update(known)
        for key, offset in known.items():
            self._begin(key, offset)
        self._pauses.release(consumer, known, PauseReason.UNRESOLVED)

    def forget(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Remove partitions that are no longer assigned, or whose offset was set in another way."""
        self._waiting.difference_update(keys)

    def _resolve(
        self, consumer: ConsumerClient, partitions: list[TopicPartition], timeout_s: float = _TIMEOUT_S
    ) -> dict[TopicPartitionKey, int]:
        starts = self._starts.resolve(consumer, partitions, timeout_s)
        return {TopicPartitionKey.of(item): item.offset for item in starts}

    @staticmethod
    def _log_unknown(error: KafkaException, partitions: Iterable[TopicPartition]) -> None:
        names = [f"{item.topic}/{item.partition}" for item in partitions]
        _LOG.warning("consumer.start-unknown", extra={"error": str(error), "partitions": names})
