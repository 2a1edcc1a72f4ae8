"""Where a consumer group stands: what it has committed, what is left for it, what its members subscribe to.

Read from outside: the group is not joined and nothing is committed. Positions and their metadata come from
`ListConsumerGroupOffsets`, members from `DescribeConsumerGroups`, ends from `ListOffsets` as a `read_committed` reader
sees them. `behind` is a distance in offsets, and so an upper bound: transaction markers, aborted records and compaction
leave holes. Who wants records reads them (`count`).

Blocking, for about 10 s a question at most.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # its stubs re-export nothing

from rocketshim.core.start_position import decode_metadata
from rocketshim.deadletter.reading import TopicReader
from rocketshim.errors import BrokerUnavailableError, ClusterError, NotAuthorizedError, RocketshimError

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["Conflict", "GroupStanding", "PartitionStanding", "conflicts", "count", "read_group"]

_TIMEOUT_S: Final = 10.0
_GRACE_S: Final = 5.0
_DENIED: Final = frozenset(
    {
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)


@dataclass(frozen=True, slots=True)
class PartitionStanding:
    """Where the group stands in one partition.

    Attributes:
        topic: physical name.
        partition: its number.
        position: the committed position, the offset that is read next.
        low: the earliest offset that retention has left; None: the partition is not there (any more).
        end: where a `read_committed` reader ends; None: the partition is not there (any more).
        member: `client.id@host` of the member that has it now; None: none has.
        digest: of the subscription of the member that committed; None: no commit of rocketshim's.
        subscription: the same as text; None: no commit of rocketshim's.
    """

    topic: str
    partition: int
    position: int
    low: int | None
    end: int | None
    member: str | None
    digest: str | None
    subscription: str | None

    @property
    def behind(self) -> int:
        """Offsets between position and end; at most so many records wait."""
        return 0 if self.end is None or self.low is None else max(0, self.end - max(self.position, self.low))

    @property
    def lost(self) -> int:
        """Offsets that retention took before the group had read them."""
        return 0 if self.low is None else max(0, self.low - self.position)


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """Where a group stands.

    Attributes:
        group: its name.
        state: as Kafka says it: `STABLE`, `EMPTY`, `DEAD` (Kafka does not know it) …
        members: `client.id@host` of each member.
        partitions: each partition it has committed a position of, by topic and number.
    """

    group: str
    state: str
    members: tuple[str, ...]
    partitions: tuple[PartitionStanding, ...]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Two subscriptions in one group and topic: each member skips what the other wants.

    Attributes:
        topic: physical name.
        partitions: subscription to the partitions whose last commit carries it, most partitions first.
    """

    topic: str
    partitions: dict[str, tuple[int, ...]]


def conflicts(standing: GroupStanding, *, retry_topic: str | None = None) -> list[Conflict]:
    """The topics whose last commits carry different subscriptions. Pure.

    A partition shows the subscription of its last commit: one on which nothing was committed since the subscription was
    changed still shows the former one.

    Args:
        standing: of the group.
        retry_topic: physical name of the group's retry topic, which everybody subscribes to; None: none.
    """
    by_topic: dict[str, dict[str, list[PartitionStanding]]] = defaultdict(lambda: defaultdict(list))
    for each in standing.partitions:
        if each.digest and each.topic != retry_topic:
            by_topic[each.topic][each.digest].append(each)
    found = []
    for topic, digests in sorted(by_topic.items()):
        if len(digests) > 1:
            most_first = sorted(digests.items(), key=lambda item: (-len(item[1]), item[0]))
            named = {
                (members[0].subscription or digest): tuple(each.partition for each in members)
                for digest, members in most_first
            }
            found.append(Conflict(topic, named))
    return found


def read_group(admin: AdminClient, group: str) -> GroupStanding:
    """Look at a group.

    Args:
        admin: a client; may be shared with others.
        group: name of the consumer group.

    Raises:
        NotAuthorizedError: no right to describe the group or one of its topics.
        BrokerUnavailableError: no answer in time.
        ClusterError: any other answer.

    Thread-safety: none of its own; the admin client's.
    """
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=_TIMEOUT_S)
    committed = [item for item in _answer(asked[group], group).topic_partitions or [] if item.offset >= 0]
    described = _answer(admin.describe_consumer_groups([group], request_timeout=_TIMEOUT_S)[group], group)
    owners = {
        (item.topic, item.partition): f"{member.client_id}@{member.host.lstrip('/')}"
        for member in described.members
        for item in member.assignment.topic_partitions
    }
    lows = _offsets(admin, committed, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
    ends = _offsets(admin, committed, OffsetSpec.latest())  # type: ignore[no-untyped-call]
    standings = []
    for item in sorted(committed, key=lambda each: (each.topic, each.partition)):
        place = (item.topic, item.partition)
        metadata = decode_metadata(item.metadata)
        standings.append(
            PartitionStanding(
                *place,
                position=item.offset,
                low=lows.get(place),
                end=ends.get(place),
                member=owners.get(place),
                digest=None if metadata is None else metadata.digest,
                subscription=None if metadata is None else metadata.subscription,
            )
        )
    members = tuple(sorted(f"{member.client_id}@{member.host.lstrip('/')}" for member in described.members))
    return GroupStanding(group, described.state.name, members, tuple(standings))


def count(reader: TopicReader, standings: Iterable[PartitionStanding]) -> Counter[tuple[str, int]]:
    """How many records wait in each partition: every one of them is read."""
    behind = {(each.topic, each.partition): (max(each.position, each.low or 0), each.end or 0) for each in standings}
    return Counter((message.topic(), message.partition()) for message in reader.read_spans(behind))


def _offsets(admin: AdminClient, places: list[TopicPartition], spec: Any) -> dict[tuple[str, int], int]:
    if not places:
        return {}
    futures = admin.list_offsets(
        {TopicPartition(item.topic, item.partition): spec for item in places},
        isolation_level=IsolationLevel.READ_COMMITTED,
        request_timeout=_TIMEOUT_S,
    )
    found = {}
    for place, future in futures.items():
        try:
            found[place.topic, place.partition] = future.result(_TIMEOUT_S + _GRACE_S).offset
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise _typed(error, place.topic) from error
    return found


def _answer(future: "Future[Any]", group: str) -> Any:
    try:
        return future.result(_TIMEOUT_S + _GRACE_S)
    except KafkaException as error:
        raise _typed(error, f"group {group}") from error


def _typed(error: KafkaException, what: str) -> RocketshimError:
    cause: KafkaError = error.args[0]
    text = f"cannot look at {what}: {cause.name()}: {cause.str()}"
    if cause.code() in _DENIED:
        return NotAuthorizedError(f"{text}; see: rocketshim acls --role operator")
    if cause.code() in {KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN}:  # noqa: SLF001
        return BrokerUnavailableError(f"{text}: is the bootstrap address right, and a broker up?")
    return ClusterError(text)
