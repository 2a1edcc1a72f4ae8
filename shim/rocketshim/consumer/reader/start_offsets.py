"""Where each partition begins, what its commits carry, and how it is taken up.

The decision is `core.start_position`'s; `StartOffsets` asks Kafka for what it needs: committed offsets and their
metadata of *all* partitions of the topic, the end of a log, the offset of a time. A start that was resolved (and not
committed before) is committed at once, before the first message is handed out: else a crash before the first commit
would begin at another end of the log and lose what lay between.

`PartitionStarter` assigns partitions at their starts. One whose start cannot be found out now (coordinator away) is
assigned paused, and looked for again (`core.retry_rotation`). Until then it lies at offset 0, never at "the beginning":
that would be a look-up of librdkafka's, whose answer, when it comes late, moves a partition that has been told where to
read (seen under load).

Owned by the poll thread.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.consumer.reader.offset_store import OffsetStore
from rocketshim.consumer.reader.pauses import PauseReason, Pauses
from rocketshim.core.retry_rotation import RetryRotation
from rocketshim.core.start_position import (
    AtTimestamp,
    CommitMetadata,
    ConsumeFromWhere,
    Earliest,
    Found,
    Latest,
    Start,
    StartAt,
    decode_metadata,
    digest_conflict,
    encode_metadata,
    resolve_start,
)
from rocketshim.kafka.clients import ConsumerClient, LookupClient
from rocketshim.kafka.partitions import TopicPartitionKey
from rocketshim.logs import safe_logger

__all__ = ["UNKNOWN_START", "PartitionStarter", "StartOffsets", "paused_assignment"]

_LOG = safe_logger("rocketshim.consumer")
TokenOf = Callable[[TopicPartitionKey], int | None]
UNKNOWN_START: Final = -1
"""In place of an offset: it cannot be told yet."""

_TIMEOUT_S: Final = 10.0
_HELD_AT: Final = 0


class StartOffsets:
    """Start positions of one consumer.

    Args:
        retry_topic: physical name of the group's retry topic: it always begins at its earliest record.
        where: for a group that has consumed nothing of a topic yet.
        timestamp_ms: epoch ms, for `ConsumeFromWhere.TIMESTAMP`.
        digest: of the group's subscription, carried by each commit.
        subscription: the same as text.
        store: where positions are kept; None: in Kafka.

    Attributes:
        conflicts: topic to the subscription of a member that committed there and subscribes differently, as text. Two
            subscriptions of one group lose messages: each skips what the other wants.
        found_tokens: fencing token that the commit of a partition carried when it was resolved last; None: the commit
            carries none. A partition that is missing here had no commit.
        token_of: the token that commits of a partition are to carry; None: none (default).
        may: whether a partition may be committed at this instant; always by default.
        lookups: answers questions about topics and offsets; None (default): the consumer itself.

    Thread-safety: none; the poll thread's.

    Source: `RebalancePushImpl#computePullFromWhereWithException` of RocketMQ.
    """

    def __init__(
        self,
        *,
        retry_topic: str,
        where: ConsumeFromWhere,
        timestamp_ms: int,
        digest: str,
        subscription: str,
        store: OffsetStore | None = None,
    ) -> None:
        self._retry_topic = retry_topic
        self._where = where
        self._timestamp_ms = timestamp_ms
        self._digest = digest
        self._subscription = subscription
        self._store = store
        self._counts: dict[str, int] = {}
        self._born: dict[TopicPartitionKey, int] = {}
        self.found_tokens: dict[TopicPartitionKey, int | None] = {}
        self.token_of: TokenOf = lambda _: None
        self.may: Callable[[TopicPartitionKey], bool] = lambda _: True
        self.lookups: LookupClient | None = None
        self.conflicts: dict[str, str] = {}

    def subscribe(self, digest: str, subscription: str) -> None:
        """The subscription has changed; commits carry the new one from now on."""
        self._digest = digest
        self._subscription = subscription

    def metadata(self, place: TopicPartitionKey) -> str:
        """What a commit of this partition carries."""
        born = self._born.get(place, 0)
        return encode_metadata(CommitMetadata(self._digest, born, self._subscription, self.token_of(place)))

    def resolve(
        self, consumer: ConsumerClient, partitions: list[TopicPartition], timeout_s: float = _TIMEOUT_S
    ) -> list[TopicPartition]:
        """The same partitions with the offsets to begin at; starts that were resolved here are committed.

        Those that may not be committed any more by now are not: somebody else's they are, who may be further.

        Arguments and errors as in `find`; after an error nothing was committed.
        """
        starts, resolved = self.find(consumer, partitions, timeout_s)
        resolved = [item for item in resolved if self.may((item.topic, item.partition))]
        if resolved:
            for item in (self._store or consumer).commit(offsets=resolved, asynchronous=False):
                if item.error is not None:
                    raise KafkaException(item.error)
        return starts

    def find(
        self, consumer: ConsumerClient, partitions: list[TopicPartition], timeout_s: float = _TIMEOUT_S
    ) -> tuple[list[TopicPartition], list[TopicPartition]]:
        """The same partitions with the offsets to begin at, and those of them that nobody has committed yet.

        Args:
            consumer: as usual.
            partitions: their offsets are not looked at.
            timeout_s: for each question, in seconds.

        Raises:
            KafkaException: the cluster did not answer.
        """
        by_topic: dict[str, list[int]] = defaultdict(list)
        for item in partitions:
            by_topic[item.topic].append(item.partition)
        starts: list[TopicPartition] = []
        resolved: list[TopicPartition] = []
        lookups = self.lookups or consumer
        for topic, numbers in by_topic.items():
            count, found = self._found(consumer, topic, numbers, timeout_s)
            for number in numbers:
                start, born = resolve_start(
                    number,
                    found,
                    where=self._where,
                    is_retry_topic=topic == self._retry_topic,
                    partition_count=count,
                )
                self._born[topic, number] = born
                self.found_tokens.pop((topic, number), None)
                if number in found:
                    commit = found[number].metadata
                    self.found_tokens[topic, number] = None if commit is None else commit.token
                at = TopicPartition(topic, number, self._offset(lookups, topic, number, start, timeout_s))
                starts.append(at)
                if not isinstance(start, StartAt):
                    resolved.append(TopicPartition(topic, number, at.offset, metadata=self.metadata((topic, number))))
        return starts, resolved

    def _found(
        self, consumer: ConsumerClient, topic: str, assigned: list[int], timeout_s: float
    ) -> tuple[int, dict[int, Found]]:
        listed = (self.lookups or consumer).list_topics(topic, timeout=timeout_s).topics.get(topic)
        numbers = sorted({*assigned, *(() if listed is None else listed.partitions)})  # a broker may be behind
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
        """Look whether anybody has committed of these topics under another subscription, whoever holds them now.

        A member that holds none of a topic's queues would not find out otherwise, until it takes one over.

        Raises:
            KafkaException: the cluster did not answer.
        """
        topics = [] if self._store is not None else [topic for topic in topics if topic != self._retry_topic]
        for topic in topics:
            if topic not in self._counts:
                listed = (self.lookups or consumer).list_topics(topic, timeout=timeout_s).topics.get(topic)
                self._counts[topic] = 0 if listed is None else len(listed.partitions)
        asked = [TopicPartition(topic, number) for topic in topics for number in range(self._counts[topic])]
        commits: dict[str, list[CommitMetadata | None]] = {topic: [] for topic in topics}
        for item in consumer.committed(asked, timeout=timeout_s) if asked else ():
            if item.error is None and item.offset >= 0:
                commits[item.topic].append(decode_metadata(item.metadata))
        for topic, found in commits.items():
            self._compare(topic, found)

    def _compare(self, topic: str, commits: Iterable[CommitMetadata | None]) -> None:
        if topic == self._retry_topic or self._store is not None:  # a store of one's own has no other members
            return
        others = [each for each in commits if each is not None and digest_conflict(self._digest, each) is not None]
        if not others:
            self.conflicts.pop(topic, None)
            return
        theirs = others[0].subscription or others[0].digest
        if self.conflicts.get(topic) != theirs:
            self.conflicts[topic] = theirs
            _LOG.error(
                "consumer.subscriptions-differ", extra={"topic": topic, "mine": self._subscription, "theirs": theirs}
            )

    def _offset(self, lookups: LookupClient, topic: str, number: int, start: Start, timeout_s: float) -> int:
        match start:
            case StartAt(offset):
                return offset
            case Earliest():
                return self._watermarks(lookups, topic, number, timeout_s)[0]
            case Latest():
                return self._watermarks(lookups, topic, number, timeout_s)[1]
            case AtTimestamp():
                asked = TopicPartition(topic, number, self._timestamp_ms)
                (answer,) = lookups.offsets_for_times([asked], timeout=timeout_s)
                if answer.error is not None:
                    raise KafkaException(answer.error)
                return answer.offset if answer.offset >= 0 else self._watermarks(lookups, topic, number, timeout_s)[1]

    @staticmethod
    def _watermarks(lookups: LookupClient, topic: str, number: int, timeout_s: float) -> tuple[int, int]:
        answer = lookups.get_watermark_offsets(TopicPartition(topic, number), timeout=timeout_s)
        if answer is None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - no public spelling
        low, high = answer
        return low, high


def paused_assignment(partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Partitions as they are assigned while nothing of them is to be read: paused at once, and sought later."""
    return [TopicPartition(item.topic, item.partition, _HELD_AT) for item in partitions]


class PartitionStarter:
    """Partitions that come to one consumer: each begins at its start, or is held until that is known.

    Args:
        starts: says where.
        pauses: of the consumer.
        begin: called with each partition and the offset it begins at, once it is assigned; `UNKNOWN_START` for one that
            is held, and again when its start is known.
        now_ms: monotonic time in ms.

    Thread-safety: none; the poll thread's.
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
        self._held: set[TopicPartitionKey] = set()
        self._turns: RetryRotation[TopicPartitionKey] = RetryRotation()

    def __contains__(self, place: object) -> bool:
        """Whether a partition is held: nothing that is fetched of it counts."""
        return place in self._held

    def take_up(self, consumer: ConsumerClient, partitions: list[TopicPartition], *, look: bool = True) -> None:
        """Assign partitions that were given to this consumer; for `on_assign`.

        Args:
            consumer: as usual.
            partitions: their offsets are not looked at.
            look: False: their starts are not even asked for (the consumer is closing).

        Raises:
            KafkaException, RuntimeError: they could not be assigned.
        """
        known: dict[TopicPartitionKey, int] = {}
        if look and partitions:
            try:
                known = self._resolve(consumer, partitions)
            except KafkaException as error:
                self._say_unknown(error, partitions)
        self.assign(consumer, partitions, known)

    def assign(
        self, consumer: ConsumerClient, partitions: list[TopicPartition], known: Mapping[TopicPartitionKey, int]
    ) -> None:
        """Assign partitions at these starts, and hold those that have none.

        Raises:
            KafkaException, RuntimeError: they could not be assigned.
        """
        places = [(item.topic, item.partition) for item in partitions]
        held = [place for place in places if place not in known]
        consumer.incremental_assign([TopicPartition(*place, known.get(place, _HELD_AT)) for place in places])
        self._pauses.adopt(consumer, places)
        self._pauses.hold(consumer, held, PauseReason.UNRESOLVED)
        self._held.update(held)
        for place in places:
            self._begin(place, known.get(place, UNKNOWN_START))

    def look_again(self, consumer: ConsumerClient) -> None:
        """Begin what is held and whose start can be told by now; one that cannot be told holds up no other."""
        if not self._held:
            return
        began_ms = self._now_ms()
        places, timeout_s = self._turns.pick(sorted(self._held), began_ms)
        if not places:
            return
        partitions = [TopicPartition(*place) for place in places]
        known: dict[TopicPartitionKey, int] = {}
        try:
            known = self._resolve(consumer, partitions, timeout_s)
            for place, offset in known.items():
                consumer.seek(TopicPartition(*place, offset))
        except KafkaException as error:
            self._say_unknown(error, partitions)
            known = {}
        self._turns.tried(places, failed=not known, began_ms=began_ms, now_ms=self._now_ms())
        self._held.difference_update(known)
        for place, offset in known.items():
            self._begin(place, offset)
        self._pauses.release(consumer, known, PauseReason.UNRESOLVED)

    def forget(self, places: Iterable[TopicPartitionKey]) -> None:
        """Partitions that have left, or whose position was set otherwise."""
        self._held.difference_update(places)

    def _resolve(
        self, consumer: ConsumerClient, partitions: list[TopicPartition], timeout_s: float = _TIMEOUT_S
    ) -> dict[TopicPartitionKey, int]:
        starts = self._starts.resolve(consumer, partitions, timeout_s)
        return {(item.topic, item.partition): item.offset for item in starts}

    @staticmethod
    def _say_unknown(error: KafkaException, partitions: Iterable[TopicPartition]) -> None:
        names = [f"{item.topic}/{item.partition}" for item in partitions]
        _LOG.warning("consumer.start-unknown", extra={"error": str(error), "partitions": names})
