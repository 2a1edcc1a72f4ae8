"""Look up the offsets and group positions of an installation, for snapshots.

One round makes a fixed number of requests: the topics, the bounds of all partitions (two to each leader), the ends of
dead letters and parked records a day ago (one to each leader), each group's positions, and the members of all groups
(one to each coordinator). Append times cost one small fetch for each partition whose position moved and that has unread
records. Nothing is committed, and no group is joined.

Which topics a group reads is only known from its commits on all topics. That is much to ask on large clusters, so each
group is asked so in every tenth round, a tenth of the groups in each; the rounds between ask for the topics found.

A client asks for the positions of one group only. It has four threads and eight file handles, on 30 brokers 33 and 66
(our measurement). So each group gets a new one in each round, which takes 2 to 5 ms of CPU.

Groups that the principal may not describe are left out for ten rounds. So is a group whose positions cannot be had for
another reason, but only one a round, after the time-out: if a second one fails, the cluster is to blame, and the round
fails. Topics that the principal may not read have no append times; they are tried again in the same rounds.
"""

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaException, TopicPartition

from rocketshim.clock import SystemClock
from rocketshim.core.clock import Clock
from rocketshim.errors import BrokerUnavailableError, NotAuthorizedError, RocketshimError
from rocketshim.kafka.client_config import merge
from rocketshim.kafka.clients import Clients, LastClientError, confluent_clients
from rocketshim.kafka.membership import described_groups
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.logs import safe_logger
from rocketshim.observe.groups import overtaken, standing_of
from rocketshim.observe.snapshot import GroupStanding, Offsets, PartitionStanding, groups_of, has_that_group
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.hops import is_probe
from rocketshim_topics.names import TopicNames

__all__ = ["OffsetLookup"]

_LOG = safe_logger("rocketshim.observe")
_TIMEOUT_S: Final = 30.0
_DESCRIBE_S: Final = 10.0
_DAY_MS: Final = 86_400_000
_ALL_TOPICS_EVERY: Final = 10
_SMALL_FETCHES: Final = {"fetch.message.max.bytes": 16_384, "queued.max.messages.kbytes": 1_024}

_Commits = dict[TopicPartitionKey, TopicPartition]


class OffsetLookup:
    """Looks up offsets: of these groups, and of those with a retry or dead-letter topic whose name shows the group.

    * `left_out`: number of rounds for which groups are left out. A sampler makes a new look-up after each failed round:
      all of them share one dictionary, so that the rounds succeed although several groups do not answer.

    Thread-safety: none; one owner thread, which also creates it.
    """

    def __init__(
        self,
        bootstrap: str,
        names: TopicNames,
        *,
        groups: tuple[str, ...] = (),
        client: Mapping[str, Any] | None = None,
        clients: Clients | None = None,
        clock: Clock | None = None,
        left_out: dict[str, int] | None = None,
    ) -> None:
        self._names = names
        self._groups = groups
        self._clock = clock or SystemClock()
        self._make_admin = (clients or confluent_clients()).admin
        self._admin: Any = None
        complaints = {**LastClientError().settings, "client.id": "rocketshim-read"}
        self._admin_settings = merge(client or {}, defaults=complaints, required={"bootstrap.servers": bootstrap})
        small = {**(client or {}), **_SMALL_FETCHES}
        self._new_reader = partial(TopicReader, bootstrap, client=small, clients=clients, patience_s=_TIMEOUT_S)
        self._reader = self._new_reader()
        self._denied: set[str] = set()
        self._read_by: dict[str, set[str]] = {}
        self._times: Mapping[tuple[TopicPartitionKey, int], int] = {}
        self._left_out = {} if left_out is None else left_out
        self._rounds = 0
        self._between: Callable[[], None] = lambda: None

    def look_up(self, between: Callable[[], None] = lambda: None) -> Offsets:
        """Make one round of look-ups; what `between` raises, which is called between two requests, ends it."""
        names = self._names
        self._between = between
        if self._denied and self._rounds % _ALL_TOPICS_EVERY == 0:
            self._reader.close()
            self._reader, self._denied = self._new_reader(), set()
        topics = self._reader.topics()
        by_topic = groups_of(names, topics, self._groups)
        groups = tuple(group for topic, group in by_topic.items() if has_that_group(names, topic, group))
        self._read_by = {group: self._read_by[group] for group in groups if group in self._read_by}
        committed = self._committed(groups, topics)
        schedule = [key for topic in (names.schedule, names.timers) for key in _partitions(topic, topics)]
        committed[names.worker_group] = self._reader.committed(names.worker_group, schedule)
        between()
        described = self._described(list(committed))
        self._rounds += 1
        wanted = {key for found in committed.values() for key in found}
        wanted.update(schedule, *(_partitions(topic, topics) for topic in (names.parked, *by_topic)))
        between()
        bounds = self._reader.bounds_of(sorted(wanted))
        between()
        lows = {key: low for key, (low, _) in bounds.items()}
        for group, found in committed.items():
            found.update(self._reader.committed(group, overtaken(found, lows)))
        for key in schedule:  # a queue without a commit is read from its start
            committed[names.worker_group].setdefault(key, TopicPartition(*key, bounds.get(key, (0, 0))[0]))
        kept = {key for topic in (names.parked, *by_topic) for key in _partitions(topic, topics)} & bounds.keys()
        day_ago = self._reader.offsets_at_times(dict.fromkeys(kept, self._clock.wall_ms() - _DAY_MS))
        standings = {
            group: standing_of(group, described.get(group), found, bounds) for group, found in committed.items()
        }
        self._times = self._first_unread_ms(each for standing in standings.values() for each in standing.partitions)
        timed = {group: _timed(standing, self._times) for group, standing in standings.items()}
        unknown = tuple(sorted(wanted - bounds.keys()))
        return Offsets(topics, bounds, timed, groups, day_ago, unknown, self._clock.wall_ms())

    def close(self) -> None:
        """Close the client."""
        self._reader.close()

    def _described(self, groups: list[str]) -> dict[str, Any]:
        """Return the descriptions of the groups that the principal may describe; a Kafka in memory has none."""
        if self._make_admin is None:
            return {}
        self._admin = admin = self._admin or self._make_admin(self._admin_settings)
        admin.poll(0)  # for its log lines
        found = described_groups(lambda: admin, groups, _DESCRIBE_S)
        known = {group: each for group, each in found.items() if not isinstance(each, KafkaException)}
        if len(known) < len(found):  # a late answer is dropped with its client
            self._admin = None
        return known

    def _committed(self, groups: tuple[str, ...], topics: Mapping[str, int]) -> dict[str, _Commits]:
        """Return what the groups have committed; leave out those for which it cannot be had."""
        committed: dict[str, _Commits] = {}
        failed: RocketshimError | None = None
        for group in groups:
            self._between()
            if self._left_out.get(group, 0) > 0:
                self._left_out[group] -= 1
                continue
            try:
                committed[group] = self._commits_of(group, topics)
            except RocketshimError as error:
                if not isinstance(error, NotAuthorizedError):
                    if failed is not None:
                        raise
                    failed = error
                self._left_out[group] = _ALL_TOPICS_EVERY
                _LOG.warning("observe.group-unknown", extra={"group": group, "error": str(error)})
        return committed

    def _commits_of(self, group: str, topics: Mapping[str, int]) -> _Commits:
        turn = zlib.crc32(group.encode())
        if group not in self._read_by or (self._rounds + turn) % _ALL_TOPICS_EVERY == 0:
            asked = [name for name in topics if not name.startswith("__")]
        else:
            asked = sorted(self._read_by[group] & topics.keys())
        found = self._reader.committed(group, (key for name in asked for key in _partitions(name, topics)))
        self._read_by[group] = {key.topic for key in found}
        return found

    def _first_unread_ms(self, partitions: Iterable[PartitionStanding]) -> dict[tuple[TopicPartitionKey, int], int]:
        """Return the append times of the first unread records; one is read once while its position stands still."""
        unread = {(TopicPartitionKey.of(each), each.position): each.unread for each in partitions if each.behind}
        times = {each: self._times[each] for each in unread if each in self._times}
        missing = [each for each in unread if each not in times]
        while missing:
            spans: dict[TopicPartitionKey, tuple[int, int]] = {}
            asked = {}
            for key, position in missing:  # one partition can be read from one position at a time
                if key not in spans:
                    spans[key], asked[key] = unread[key, position], position
            try:
                found = self._reader.first_records(spans, skip=self._is_skipped, denied=self._denied)
            except BrokerUnavailableError:  # a leader is away: the offsets are worth showing without times
                return times
            times.update({(key, asked[key]): record.timestamp()[1] for key, (record,) in found.items()})
            missing = [each for each in missing if each[0] not in asked or asked[each[0]] != each[1]]
        return times

    def _is_skipped(self, record: Any) -> bool:
        self._between()
        return record.topic() == self._names.schedule and is_probe(record)


def _timed(standing: GroupStanding, times: Mapping[tuple[TopicPartitionKey, int], int]) -> GroupStanding:
    """Return a group with the append times of its first unread records, as far as they are known."""
    partitions = (
        replace(each, first_unread_ms=times.get((TopicPartitionKey.of(each), each.position)))
        for each in standing.partitions
    )
    return replace(standing, partitions=tuple(partitions))


def _partitions(topic: str, topics: Mapping[str, int]) -> list[TopicPartitionKey]:
    return [TopicPartitionKey(topic, number) for number in range(topics.get(topic, 0))]
