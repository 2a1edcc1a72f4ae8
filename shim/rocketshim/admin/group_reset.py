"""Move the committed positions of a consumer group that is not running.

`plan_reset` decides, from facts that were read before, and changes nothing: every position that would move, or why none
may. `GroupResetter` reads the facts and commits a plan.

A plan is refused as a whole while members are running. Members of Kafka's group protocol are seen in the group; members
that allocate queues themselves only in the group's log. The coordinator refuses the commit too if a member has joined
in the meantime, and then it stores nothing.

The metadata of each position is kept: it says since when the group reads the topic (`rocketshim.core.start_position`).
Only the token of an orderly group's owner is left out: a position without a token counts, whatever the group's log has.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.admin.doctor.leader_clocks import clocks_ahead_ms
from rocketshim.admin.group_log_snapshot import GroupLogStanding, group_log
from rocketshim.core.start_position import decode_metadata, encode_metadata
from rocketshim.errors import ConfigError, GroupActiveError, TopicMissingError
from rocketshim.kafka.client_config import PROTECTED_PRODUCER, merge
from rocketshim.kafka.clients import ConsumerClient, LastClientError, confluent_clients
from rocketshim.kafka.lookups import ask_again, stored_among
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.observe.groups import GroupReader, typed_error
from rocketshim.observe.snapshot import GroupStanding
from rocketshim.settings import ConnectionSettings
from rocketshim_topics import TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.kafka_codes import COORDINATOR_AWAY

__all__ = ["GroupResetter", "PlannedReset", "ResetPlan", "ResetTarget", "plan_reset"]

_TIMEOUT_S: Final = 30.0
_CLOCKS_MS: Final = 10_000
_PROBE_S: Final = 10.0
_JOINED: Final = frozenset(
    {KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS}
)


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """Where the positions of a group shall be."""

    offset: int | None = None  # this offset; None: the others decide
    at_ms: int | None = None  # the first record of this time or later, epoch ms; None: the others decide
    latest: bool = False  # the end, if the two others are None; otherwise the earliest record


@dataclass(frozen=True, slots=True)
class PlannedReset:
    """The change of one position."""

    topic: str
    partition: int
    position: int | None  # the committed position; None: the group has committed none
    target: int  # the position to commit
    low: int  # the earliest offset that exists
    end: int  # end offset for a `read_committed` reader
    metadata: str | None = None  # the metadata of the last commit, without a token; None: none


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """The positions of a group that change, and why they may not."""

    group: str
    members: tuple[str, ...]  # its running members, by name
    resets: tuple[PlannedReset, ...]  # each partition, by topic and number; also those whose position stays
    refused: str | None = None  # why the plan may not be applied; None: it may


def plan_reset(
    standing: GroupStanding,
    partitions: Collection[TopicPartitionKey],
    target: ResetTarget,
    *,
    bounds: Mapping[TopicPartitionKey, tuple[int, int]],
    at_time: Mapping[TopicPartitionKey, int],
    log: GroupLogStanding | None,
    now_ms: int,
) -> ResetPlan:
    """Plan new positions for these partitions; one that `at_time` lacks has no record as late. Pure.

    `now_ms` is the brokers' clock, or this machine's if the group's log has no member.

    Decides: May the positions of a group be moved? While no member runs. Those of an orderly group are committed
        without a token, and so count for more than later ones in its log.
    """
    if gone := set(partitions) - bounds.keys():
        raise TopicMissingError(f"{min(gone)} was deleted meanwhile; nothing was changed. Run the same command again")
    committed = {TopicPartitionKey(each.topic, each.partition): each for each in standing.partitions}
    resets = []
    for key in sorted(partitions):
        before = committed.get(key)
        resets.append(
            PlannedReset(
                *key,
                position=None if before is None else before.position,
                target=_target(key, bounds[key], at_time.get(key), target),
                low=bounds[key][0],
                end=bounds[key][1],
                metadata=None if before is None else _of_no_owner(before.metadata),
            )
        )
    members = _members(standing, log, now_ms)
    return ResetPlan(standing.group, members, tuple(resets), _running(standing.group, members))


def _target(key: TopicPartitionKey, bounds: tuple[int, int], at_time: int | None, target: ResetTarget) -> int:
    low, end = bounds
    if target.offset is not None:
        if not low <= target.offset <= end:
            raise ConfigError(
                f"--to {target.offset}: {key.topic}/{key.partition} has the offsets {low} to {end}; nothing was "
                "changed. Choose one of them, or name the partitions with --topic TOPIC/PARTITION"
            )
        return target.offset
    if target.at_ms is not None:
        return end if at_time is None else min(max(at_time, low), end)
    return end if target.latest else low


def _members(standing: GroupStanding, log: GroupLogStanding | None, now_ms: int) -> tuple[str, ...]:
    """Return the running members, by the names of the log if it knows all: they have host and process.

    Those in the log count only as long as their leases may last, by the brokers' clock.
    """
    found = set(standing.members or ())
    if log is not None and log.last_append_ms is not None:
        idle_ms = now_ms - log.last_append_ms - _CLOCKS_MS
        names = {each.owner.client_id for each in log.log.members if each.end_ms - log.log.log_ms > idle_ms}
        found = max(names, found, key=len)
    return tuple(sorted(found))


def _running(group: str, members: tuple[str, ...]) -> str | None:
    if not members:
        return None
    few = ", ".join(members[:3]) + (" …" if len(members) > 3 else "")
    return (
        f"group {group} has {len(members)} running member{'s' if len(members) > 1 else ''} ({few}): stop them first. "
        "A member that was killed counts until its session times out (45 s)"
    )


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _of_no_owner(metadata: str | None) -> str | None:
    """Return the metadata of a commit that no owner of a queue has made: without token, without suspects."""
    found = decode_metadata(metadata)
    return metadata if found is None else encode_metadata(replace(found, token=None, handling=None))


class GroupResetter:
    """Reads what a reset needs, and commits a plan.

    Thread-safety: none; one owner thread.
    """

    def __init__(self, bootstrap: str, names: TopicNames, client: Mapping[str, Any] | None = None) -> None:
        self._bootstrap = bootstrap
        self._names = names
        self._client = dict(client or {})

    def plan(self, group: str, topics: Sequence[tuple[str, int | None]], target: ResetTarget) -> ResetPlan:
        """Plan new positions of topics or partitions; without any, of what the group has committed, but for retries."""
        with TopicReader(self._bootstrap, client=self._client) as reader:
            standing, known = GroupReader(reader).read(group), reader.topics()
            partitions = self._selected(standing, topics, known)
            bounds = reader.bounds_of_existing(partitions)
            at_ms = target.at_ms
            at_time = {} if at_ms is None else reader.offsets_at_times(dict.fromkeys(bounds, at_ms))
        log = None
        if self._names.group_log(group) in known:
            namespace = self._names.namespace
            connection = ConnectionSettings.make(bootstrap=self._bootstrap, namespace=namespace, client=self._client)
            log = group_log(connection, group)
        has_members = log is not None and bool(log.log.members)
        now_ms = self._brokers_now_ms() if has_members and self._names.schedule in known else _wall_ms()
        return plan_reset(standing, partitions, target, bounds=bounds, at_time=at_time, log=log, now_ms=now_ms)

    def _brokers_now_ms(self) -> int:
        """Return the brokers' clock by a probe in the schedule topic; if it cannot be written, this machine's clock."""
        required = {"bootstrap.servers": self._bootstrap, **PROTECTED_PRODUCER}
        defaults = {**LastClientError().settings, "message.timeout.ms": round(_PROBE_S * 1_000)}
        config = merge(self._client, defaults=defaults, required=required)
        try:
            ahead = clocks_ahead_ms(
                confluent_clients().producer, config, self._names, {0: 0}, now_ms=_wall_ms, timeout_s=_PROBE_S
            )
        except (KafkaException, TimeoutError):
            return _wall_ms()
        return _wall_ms() + ahead[0]

    def apply(self, plan: ResetPlan) -> None:
        """Commit the positions of a plan, in one request; an error names those that were set."""
        if plan.refused is not None:
            raise GroupActiveError(f"{plan.refused}. Nothing was changed")
        complaints = LastClientError()
        required = {"bootstrap.servers": self._bootstrap, "group.id": plan.group, "enable.auto.commit": False}
        consumer = confluent_clients().consumer(merge(self._client, defaults=complaints.settings, required=required))
        positions = [
            TopicPartition(each.topic, each.partition, each.target, metadata=each.metadata or "")
            for each in plan.resets
            if each.position != each.target
        ]
        try:
            if positions:
                _commit(consumer, positions, plan.group)
        except KafkaException as error:
            done = ", ".join(map(str, stored_among(consumer, positions, error.args[0])))
            what = f"positions of group {plan.group}{f' ({done} were set; run the same command again)' * bool(done)}"
            raise typed_error(error, what, complaints.text(consumer), verb="set") from error
        finally:
            consumer.close()

    def _selected(
        self, standing: GroupStanding, topics: Sequence[tuple[str, int | None]], known: Mapping[str, int]
    ) -> set[TopicPartitionKey]:
        if not topics:
            retry = self._names.retry(standing.group)
            found = {
                TopicPartitionKey(each.topic, each.partition)
                for each in standing.partitions
                if each.topic != retry and each.end is not None
            }
            if not found:
                raise ConfigError(
                    f"group {standing.group} has committed no offset on this cluster: name its topics with --topic"
                )
            return found
        found = set()
        for topic, number in topics:
            text, count = topic if number is None else f"{topic}/{number}", known.get(topic, 0)
            if not count:
                raise TopicMissingError(f"--topic {text}: there is no topic {topic}; nothing was changed")
            if number is not None and number >= count:
                raise TopicMissingError(f"--topic {text}: {topic} has the partitions 0 to {count - 1}")
            found |= {TopicPartitionKey(topic, each) for each in (range(count) if number is None else [number])}
        return found


def _commit(consumer: ConsumerClient, positions: list[TopicPartition], group: str) -> None:
    """Commit, and ask again while the coordinator is starting."""
    try:
        ask_again(lambda: consumer.commit(offsets=positions, asynchronous=False), COORDINATOR_AWAY, _TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() in _JOINED:
            raise GroupActiveError(f"a member has joined group {group} since: nothing was changed") from error
        raise
