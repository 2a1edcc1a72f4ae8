"""Where a consumer group stands: what it has committed, what is left for it, what its members subscribe to.

Read from outside: the group is not joined and nothing is committed. Positions and their metadata come from
`OffsetFetch`, members from `DescribeGroups`, ends from `ListOffsets` as a `read_committed` reader sees them.
`PartitionStanding.behind` is a distance in offsets, and so an upper bound: transaction markers, aborted records and
compaction leave holes. Who wants records reads them (`count`).

Blocking, for about 10 s a question at most.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]  # its stubs re-export nothing

from rocketshim.core.start_position import decode_metadata
from rocketshim.errors import BrokerUnavailableError, ClusterError, NotAuthorizedError, RocketshimError
from rocketshim.kafka.client_config import merge
from rocketshim.kafka.clients import LastClientError, confluent_admin, confluent_clients
from rocketshim.kafka.positions import LOOK_AGAIN_S, group_positions
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics.kafka_codes import AWAY, COORDINATOR_AWAY, DENIED, MISSING, NO_LOGIN

__all__ = ["Conflict", "GroupReader", "GroupStanding", "PartitionStanding", "conflicts", "count"]

_TIMEOUT_S: Final = 10.0
_GRACE_S: Final = 5.0
_Offsets = dict[tuple[str, int], int]


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
        metadata: the text that the last commit carries; None: none.
    """

    topic: str
    partition: int
    position: int
    low: int | None
    end: int | None
    member: str | None
    metadata: str | None = None

    @property
    def digest(self) -> str | None:
        """Of the subscription of the consumer that committed; None: no commit of a consumer of rocketshim's."""
        commit = decode_metadata(self.metadata)
        return None if commit is None else commit.digest

    @property
    def subscription(self) -> str | None:
        """The same as text; None likewise."""
        commit = decode_metadata(self.metadata)
        return None if commit is None else commit.subscription

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


class GroupReader:
    """Looks at consumer groups.

    Args:
        bootstrap: addresses of the brokers.
        client: further librdkafka settings.

    Thread-safety: none; one owner thread.
    """

    def __init__(self, bootstrap: str, client: Mapping[str, Any] | None = None) -> None:
        self._complaints = LastClientError()
        defaults = {**self._complaints.settings, "client.id": "rocketshim-read"}
        self._settings = partial(merge, client or {}, defaults=defaults)
        self._bootstrap = bootstrap
        self.admin = confluent_admin(self._settings(required={"bootstrap.servers": bootstrap}))

    def read(self, group: str) -> GroupStanding:
        """Where a group stands.

        Raises:
            NotAuthorizedError: no right to describe the group or one of its topics.
            BrokerUnavailableError: no answer in time.
            ClusterError: any other answer.
        """
        try:
            described = self._described(group)  # first: it says at once that a right is missing
            committed = self._committed(group)
            places = [(item.topic, item.partition) for item in committed]
            lows = self.offsets(places, OffsetSpec.earliest())  # type: ignore[no-untyped-call]
            ends = self.offsets(places, OffsetSpec.latest())  # type: ignore[no-untyped-call]
        except KafkaException as error:
            raise _typed(error, f"group {group}", self.text()) from error
        owners = {
            (item.topic, item.partition): _member(member)
            for member in described.members
            for item in member.assignment.topic_partitions
        }
        standings = []
        for item in sorted(committed, key=lambda each: (each.topic, each.partition)):
            place = (item.topic, item.partition)
            standings.append(
                PartitionStanding(
                    *place,
                    position=item.offset,
                    low=lows.get(place),
                    end=ends.get(place),
                    member=owners.get(place),
                    metadata=item.metadata,
                )
            )
        members = tuple(sorted(map(_member, described.members)))
        return GroupStanding(group, described.state.name, members, tuple(standings))

    def text(self) -> str:
        """What Kafka's client said of its connections, to be put behind an error's text; `""`: nothing."""
        return self._complaints.text(self.admin)

    def offsets(self, places: Iterable[tuple[str, int]], spec: Any, *, committed: bool = True) -> _Offsets:
        """Offsets by place, of those that are there.

        Args:
            places: topic and partition.
            spec: an `OffsetSpec`.
            committed: as a `read_committed` reader sees them.

        Raises:
            KafkaException: the cluster refused.
        """
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        asked = {TopicPartition(*place): spec for place in places}
        if not asked:
            return {}
        found = {}
        futures = self.admin.list_offsets(asked, isolation_level=level, request_timeout=_TIMEOUT_S)
        for place, future in futures.items():
            try:
                found[place.topic, place.partition] = future.result(_TIMEOUT_S + _GRACE_S).offset
            except KafkaException as error:
                if error.args[0].code() not in MISSING:
                    raise
        return found

    def _committed(self, group: str) -> list[TopicPartition]:
        """Committed positions on every topic that may be seen."""
        required = {"bootstrap.servers": self._bootstrap, "group.id": group, "enable.auto.commit": False}
        consumer = confluent_clients().consumer(self._settings(required=required))
        try:
            return group_positions(consumer, _TIMEOUT_S)
        finally:
            consumer.close()

    def _described(self, group: str) -> Any:
        until = time.monotonic() + _TIMEOUT_S
        while True:
            asked = self.admin.describe_consumer_groups([group], request_timeout=_TIMEOUT_S)
            try:
                return asked[group].result(_TIMEOUT_S + _GRACE_S)
            except KafkaException as error:
                if error.args[0].code() not in COORDINATOR_AWAY or time.monotonic() > until:
                    raise
                time.sleep(LOOK_AGAIN_S)


def count(reader: TopicReader, standings: Iterable[PartitionStanding]) -> Counter[tuple[str, int]]:
    """How many records wait in each partition: every one of them is read."""
    behind = {(each.topic, each.partition): (max(each.position, each.low or 0), each.end or 0) for each in standings}
    return Counter((message.topic(), message.partition()) for message in reader.read_spans(behind))


def _member(member: Any) -> str:
    return f"{member.client_id}@{member.host.lstrip('/')}"


def _typed(error: KafkaException, what: str, client_text: str) -> RocketshimError:
    cause: KafkaError = error.args[0]
    text = f"cannot read {what}: {cause.name()}: {cause.str()}"
    if cause.code() in DENIED | NO_LOGIN:
        return NotAuthorizedError(f"{text}; see: rocketshim acls --role operator")
    if cause.code() in AWAY:
        return BrokerUnavailableError(f"{text}: is the bootstrap address right, and is a broker up?{client_text}")
    return ClusterError(text)
