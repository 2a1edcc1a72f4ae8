"""Read the state of a consumer group: its committed positions, its lag, and what its members subscribe to.

The reader does not join the group and commits nothing. Positions and their metadata come from `OffsetFetch`, members
from `DescribeGroups`, bounds from `ListOffsets` as a `read_committed` reader sees them. `PartitionStanding.behind`
is an upper bound; `count` reads the records to count them.

Each request blocks for about 10 s at most.
"""

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.errors import (
    BrokerUnavailableError,
    ClusterError,
    ConfigError,
    NotAuthorizedError,
    RocketshimError,
)
from rocketshim.kafka.client_config import check_group
from rocketshim.kafka.clients import LastClientError, answer_time_s
from rocketshim.kafka.lookups import LOOK_AGAIN_S
from rocketshim.kafka.membership import described_groups
from rocketshim.kafka.positions import listed_groups
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.observe.snapshot import GroupStanding, PartitionStanding
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.kafka_codes import AWAY, COORDINATOR_AWAY, DENIED, NO_LOGIN

__all__ = ["GroupReader", "count", "operations_of", "standing_of", "typed_error"]


class GroupReader:
    """Reads the state of consumer groups, by a `TopicReader` and an admin client with the same settings.

    Thread-safety: none; the thread that owns the reader.
    """

    def __init__(self, reader: TopicReader) -> None:
        self._reader = reader
        self._complaints = LastClientError()
        self._make_admin = partial(reader.admin, self._complaints)
        self.admin = self._make_admin()
        self._timeout_s = 0.0  # not known yet

    def read(self, group: str) -> GroupStanding:
        """Read the state of a group."""
        found = self.read_each([group])[group]
        if isinstance(found, RocketshimError):
            raise found
        return found

    def read_each(self, groups: Iterable[str]) -> dict[str, GroupStanding | RocketshimError]:
        """Read the state of groups; the value of a group that cannot be read is the error that `read` raises.

        A client asks for the positions of one group only. Everything else is requested for all groups together.
        """
        found: dict[str, GroupStanding | RocketshimError] = {}
        for group in groups:
            try:
                check_group(group)
            except ConfigError as error:
                found[group] = error
        described = self._described([group for group in groups if group not in found], found)  # fails soon without ACL
        topics = self._reader.topics() if described else {}
        partitions = [
            TopicPartitionKey(name, number)
            for name, count in topics.items()
            if not name.startswith("__")
            for number in range(count)
        ]
        committed: dict[str, dict[TopicPartitionKey, TopicPartition]] = {}
        for group, answer in self._reader.committed_by_groups(dict.fromkeys(described, partitions)):
            with _named(group, found):
                if isinstance(answer, RocketshimError):
                    raise answer
                committed[group] = answer
        bounds = self._reader.bounds_of({key for commits in committed.values() for key in commits})
        for group, commits in committed.items():
            with _named(group, found):
                missing = self._reader.bounds_of_existing(commits.keys() - bounds.keys())
                found[group] = self._standing(group, described[group], commits, {**bounds, **missing})
        return found

    def listed(self) -> list[GroupStanding]:
        """Return every consumer group that the principal may see, by name."""
        try:
            names = listed_groups(self.admin, self.timeout_s)
            described = described_groups(self._make_admin, names, self.timeout_s)
        except KafkaException as error:
            raise typed_error(error, "the list of groups", self.text()) from error
        return [
            GroupStanding(name)  # not visible, or its coordinator is moving
            if isinstance(found, KafkaException)
            else described_group(name, found)
            for name, found in described.items()
        ]

    def timed(
        self, standing: GroupStanding, topic: str | None = None, *, denied: set[str] | None = None
    ) -> GroupStanding:
        """Return a group with the append times of its first unread records, of one topic or all of them."""
        wanted = [each for each in standing.partitions if topic in {None, each.topic}]
        found = self._reader.first_records(_waiting(wanted), denied=denied)
        times = {key: record.timestamp()[1] for key, (record,) in found.items()}
        return replace(
            standing,
            partitions=tuple(
                replace(each, first_unread_ms=times.get(TopicPartitionKey.of(each))) for each in standing.partitions
            ),
        )

    @property
    def timeout_s(self) -> float:
        """How long to wait for each answer, in seconds; the first use waits for the cluster's first answer."""
        if not self._timeout_s:
            self._timeout_s = answer_time_s(self.admin, self._complaints)
        return self._timeout_s

    def text(self) -> str:
        """Return what Kafka's client last reported about its connections, to append to an error; `""` if nothing."""
        return self._complaints.text(self.admin)

    def _standing(
        self,
        group: str,
        described: Any,
        commits: dict[TopicPartitionKey, TopicPartition],
        bounds: Mapping[TopicPartitionKey, tuple[int, int]],
    ) -> GroupStanding:
        again = overtaken(commits, {key: low for key, (low, _) in bounds.items()})
        commits.update(self._reader.committed(group, again))
        return standing_of(group, described, commits, {key: bounds.get(key, (None, None)) for key in commits})

    def _described(self, groups: list[str], failed: dict[str, GroupStanding | RocketshimError]) -> dict[str, Any]:
        """Describe groups; add the errors of the others to `failed`."""
        found: dict[str, Any] = {}
        deadline_s = time.monotonic() + (self.timeout_s if groups else 0)
        while groups:
            answers = described_groups(self._make_admin, groups, self.timeout_s, include_authorized_operations=True)
            groups = []
            for group, answer in answers.items():
                if not isinstance(answer, KafkaException):
                    found[group] = answer
                elif answer.args[0].code() in COORDINATOR_AWAY and time.monotonic() <= deadline_s:
                    groups.append(group)
                else:
                    failed[group] = typed_error(answer, f"group {group}", self.text())
            if groups:
                time.sleep(LOOK_AGAIN_S)
        return found


@contextmanager
def _named(group: str, failed: dict[str, GroupStanding | RocketshimError]) -> Iterator[None]:
    """Keep the error of a group, which names it."""
    try:
        yield
    except RocketshimError as error:
        failed[group] = type(error)(f"group {group}: {error}")


def overtaken(
    committed: Mapping[TopicPartitionKey, TopicPartition], lows: Mapping[TopicPartitionKey, int]
) -> list[TopicPartitionKey]:
    """Return the partitions whose first offset, read after the positions, is beyond the position of the group.

    The position is to be read again: on a slow cluster the group may have moved on before retention deleted, and then
    nothing is lost.
    """
    return [key for key, each in committed.items() if each.offset < lows.get(key, 0)]


def described_group(group: str, described: Any) -> GroupStanding:
    """Return the group that Kafka described, without its partitions."""
    members = tuple(sorted(map(_member, described.members)))
    return GroupStanding(group, described.state.name, members, operations=operations_of(described))


def standing_of(
    group: str,
    described: Any | None,
    commits: Mapping[TopicPartitionKey, TopicPartition],
    bounds: Mapping[TopicPartitionKey, tuple[int | None, int | None]],
) -> GroupStanding:
    """Return a group in those partitions of its commits that have bounds, perhaps without what Kafka described."""
    owners = {
        TopicPartitionKey.of(item): _member(member)
        for member in (() if described is None else described.members)
        for item in member.assignment.topic_partitions
    }
    partitions = tuple(
        PartitionStanding(*key, each.offset, *bounds[key], owners.get(key), each.metadata)
        for key, each in sorted(commits.items())
        if key in bounds
    )
    found = GroupStanding(group) if described is None else described_group(group, described)
    return replace(found, partitions=partitions)


def operations_of(described: Any) -> frozenset[str] | None:
    """Return the operations that the principal is allowed on what was described (Kafka's names); None: not known."""
    allowed = described.authorized_operations
    return None if allowed is None else frozenset(operation.name for operation in allowed)


def count(reader: TopicReader, standings: Iterable[PartitionStanding]) -> Counter[TopicPartitionKey]:
    """Count the waiting records of each partition by reading every one of them."""
    waiting = reader.read_spans(_waiting(standings))
    return Counter(TopicPartitionKey(message.topic(), message.partition()) for message in waiting)


def _waiting(standings: Iterable[PartitionStanding]) -> dict[TopicPartitionKey, tuple[int, int]]:
    """Return the first offset and the end of what waits in each partition."""
    return {TopicPartitionKey.of(each): each.unread for each in standings}


def _member(member: Any) -> str:
    return f"{member.client_id}@{member.host.lstrip('/')}"


def typed_error(error: KafkaException, what: str, client_text: str, *, verb: str = "read") -> RocketshimError:
    """Return the error of a request about `what` that the cluster refused or did not answer."""
    cause: KafkaError = error.args[0]
    text = f"cannot {verb} {what}: {cause.name()}: {cause.str()}"
    if cause.code() in DENIED | NO_LOGIN:
        return NotAuthorizedError(f"{text}; see: rocketshim acls --role operator")
    if cause.code() in AWAY:
        return BrokerUnavailableError(f"{text}: is the bootstrap address right, and is a broker up?{client_text}")
    return ClusterError(text)
