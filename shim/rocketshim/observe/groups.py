"""Read the state of a consumer group: its committed positions, its lag, and what its members subscribe to.

The reader does not join the group and commits nothing. Positions and their metadata come from `OffsetFetch`, members
from `DescribeGroups`, end offsets from `ListOffsets` as a `read_committed` reader sees them. `PartitionStanding.behind`
is an upper bound; `count` reads the records to count them.

Each request blocks for about 10 s at most.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
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
from rocketshim.kafka.client_config import merge
from rocketshim.kafka.clients import Clients, LastClientError, answer_time_s, confluent_admin, confluent_clients
from rocketshim.kafka.lookups import LOOK_AGAIN_S
from rocketshim.kafka.membership import described_groups
from rocketshim.kafka.positions import (
    EARLIEST,
    LATEST,
    group_positions,
    listed_groups,
    listed_offsets,
    visible_partitions,
)
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.observe.snapshot import GroupStanding, PartitionStanding
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.kafka_codes import AWAY, COORDINATOR_AWAY, DENIED, NO_LOGIN

__all__ = ["GroupReader", "count", "described_group", "oldest_ms", "operations_of", "owners_of", "typed_error"]

_Offsets = dict[TopicPartitionKey, int]


class GroupReader:
    """Reads the state of consumer groups.

    Args:
        clients: creates the clients that ask for positions; None: confluent_kafka.

    Thread-safety: none; one owner thread.
    """

    def __init__(
        self, bootstrap: str, client: Mapping[str, Any] | None = None, *, clients: Clients | None = None
    ) -> None:
        self._clients = clients or confluent_clients()
        self._complaints = LastClientError()
        defaults = {**self._complaints.settings, "client.id": "rocketshim-read"}
        self._settings = partial(merge, client or {}, defaults=defaults)
        self._bootstrap = bootstrap
        settings = self._settings(required={"bootstrap.servers": bootstrap})
        self._make_admin = partial(self._clients.admin or confluent_admin, settings)
        self.admin = self._make_admin()
        self._timeout_s = 0.0  # not known yet

    def read(self, group: str) -> GroupStanding:
        """Read the state of a group.

        Raises:
            ConfigError: this is not the name of a group.
        """
        found = self.read_each([group])[group]
        if isinstance(found, RocketshimError):
            raise found
        return found

    def read_each(self, groups: Iterable[str]) -> dict[str, GroupStanding | RocketshimError]:
        """Read the state of groups; the value of a group that cannot be read is the error that `read` raises.

        A client asks for the positions of one group only. Everything else is requested for all groups together.
        """
        found: dict[str, GroupStanding | RocketshimError] = {}
        settings = {}
        for group in groups:
            required = {"bootstrap.servers": self._bootstrap, "group.id": group, "enable.auto.commit": False}
            try:
                settings[group] = self._settings(required=required)
            except ConfigError as error:
                found[group] = error
        failed: dict[str, KafkaException] = {}
        try:
            found |= self._standings(settings, failed)
        except KafkaException as error:
            raise typed_error(error, "the topics of the groups", self.text()) from error
        return found | {group: typed_error(error, f"group {group}", self.text()) for group, error in failed.items()}

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

    @property
    def timeout_s(self) -> float:
        """How long to wait for each answer, in seconds; the first use waits for the cluster's first answer."""
        if not self._timeout_s:
            self._timeout_s = answer_time_s(self.admin, self._complaints)
        return self._timeout_s

    def text(self) -> str:
        """Return what Kafka's client last reported about its connections, to append to an error; `""` if nothing."""
        return self._complaints.text(self.admin)

    def offsets(self, partitions: Iterable[TopicPartitionKey], spec: Any, *, committed: bool = True) -> _Offsets:
        """Return the offsets of the partitions that exist.

        * `committed`: return them as a `read_committed` reader sees them.
        """
        return listed_offsets(self.admin, partitions, spec, committed=committed, timeout_s=self.timeout_s)

    def _standings(
        self, settings: Mapping[str, dict[str, Any]], failed: dict[str, KafkaException]
    ) -> dict[str, GroupStanding]:
        """Return the state of groups, by the settings of a client of each; add the errors of the others to `failed`."""
        if not settings:
            return {}
        described = self._described(list(settings), failed)  # first, because it fails immediately if an ACL is missing
        partitions = visible_partitions(self.admin, self.timeout_s) if described else []
        committed: dict[str, dict[TopicPartitionKey, TopicPartition]] = {}
        for group in described:
            try:
                committed[group] = self._committed(settings[group], partitions)
            except KafkaException as error:
                failed[group] = error
        wanted = {key for found in committed.values() for key in found}
        refused: dict[TopicPartitionKey, KafkaException] = {}
        lows, ends = (
            listed_offsets(self.admin, wanted, spec, timeout_s=self.timeout_s, failed=refused)
            for spec in (EARLIEST, LATEST)
        )
        standings = {}
        for group, found in committed.items():
            errors = [refused[key] for key in found if key in refused]
            if errors:
                failed[group] = errors[0]
                continue
            try:
                found.update(self._committed(settings[group], [TopicPartition(*key) for key in overtaken(found, lows)]))
            except KafkaException as error:
                failed[group] = error
            else:
                standings[group] = _standing(group, described[group], found, lows, ends)
        return standings

    def _committed(
        self, settings: dict[str, Any], partitions: list[TopicPartition]
    ) -> dict[TopicPartitionKey, TopicPartition]:
        """Return what a group has committed; a client asks for the positions of one group only."""
        if not partitions:
            return {}
        consumer = self._clients.consumer(settings)
        try:
            found = group_positions(consumer, partitions, self.timeout_s)
        finally:
            consumer.close()
        return {TopicPartitionKey.of(each): each for each in found}

    def _described(self, groups: list[str], failed: dict[str, KafkaException]) -> dict[str, Any]:
        """Describe groups; add the errors of the others to `failed`."""
        found: dict[str, Any] = {}
        deadline_s = time.monotonic() + self.timeout_s
        while groups:
            answers = described_groups(self._make_admin, groups, self.timeout_s, include_authorized_operations=True)
            groups = []
            for group, answer in answers.items():
                if not isinstance(answer, KafkaException):
                    found[group] = answer
                elif answer.args[0].code() in COORDINATOR_AWAY and time.monotonic() <= deadline_s:
                    groups.append(group)
                else:
                    failed[group] = answer
            if groups:
                time.sleep(LOOK_AGAIN_S)
        return found


def _standing(
    group: str, described: Any, committed: Mapping[TopicPartitionKey, TopicPartition], lows: _Offsets, ends: _Offsets
) -> GroupStanding:
    owners = owners_of(described)
    partitions = tuple(
        PartitionStanding(*key, each.offset, lows.get(key), ends.get(key), owners.get(key), each.metadata)
        for key, each in sorted(committed.items())
    )
    return replace(described_group(group, described), partitions=partitions)


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


def owners_of(described: Any) -> dict[TopicPartitionKey, str]:
    """Return the member of each partition of a group that Kafka described."""
    return {
        TopicPartitionKey.of(item): _member(member)
        for member in described.members
        for item in member.assignment.topic_partitions
    }


def operations_of(described: Any) -> frozenset[str] | None:
    """Return the operations that the principal is allowed on what was described (Kafka's names); None: not known."""
    allowed = described.authorized_operations
    return None if allowed is None else frozenset(operation.name for operation in allowed)


def count(reader: TopicReader, standings: Iterable[PartitionStanding]) -> Counter[TopicPartitionKey]:
    """Count the waiting records of each partition by reading every one of them."""
    waiting = reader.read_spans(_waiting(standings))
    return Counter(TopicPartitionKey(message.topic(), message.partition()) for message in waiting)


def oldest_ms(
    reader: TopicReader, standings: Iterable[PartitionStanding], *, denied: set[str] | None = None
) -> dict[TopicPartitionKey, int]:
    """Return the time of the first waiting record of each partition, epoch ms; absent: the partition has none.

    * `denied`: as of `TopicReader.first_records`.
    """
    found = reader.first_records(_waiting(standings), denied=denied)
    return {key: record.timestamp()[1] for key, (record,) in found.items()}


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
