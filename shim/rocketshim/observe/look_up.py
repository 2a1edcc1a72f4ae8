"""Look up the offsets and group positions of an installation, for snapshots.

One round makes a fixed number of requests: the topics, the bounds of all partitions (two to each leader), the ends of
dead letters and parked records a day ago (one to each leader), each group's positions, and the members of all groups
(one to each coordinator). Append times cost one small fetch for each partition whose position moved and that has unread
records. Nothing is committed, and no group is joined.

Which topics a group reads is only known from its commits on all topics. That is much to ask on large clusters, so each
group is asked so in every tenth round, a tenth of the groups in each; the rounds between ask for the topics found. The
first round does not ask a group for the retry, dead-letter and log topics of other groups, unless it was named.

A client asks for the positions of one group only. It has four threads and eight file handles, on 30 brokers 33 and 66
(our measurement). So each group gets a new one in each round, which takes 2 to 5 ms of CPU; eight are asked at a time.

Groups that the principal may not describe are left out for ten rounds. So is a group whose positions cannot be had for
another reason, but only one a round, after the time-out: if a second one fails, the cluster is to blame, and the round
fails. Topics that the principal may not read have no append times; they are tried again in the same rounds.
"""

import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import wait
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import Any, Final

from confluent_kafka import KafkaException, TopicCollection, TopicPartition

from rocketshim.clock import SystemClock
from rocketshim.core.clock import Clock
from rocketshim.errors import BrokerUnavailableError, NotAuthorizedError, RocketshimError
from rocketshim.kafka.client_config import merge
from rocketshim.kafka.clients import Clients, LastClientError, confluent_clients
from rocketshim.kafka.membership import described_groups
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.logs import safe_logger
from rocketshim.observe.groups import overtaken, standing_of, typed_error
from rocketshim.observe.snapshot import (
    HEAD_COUNT,
    FailingMessage,
    GroupStanding,
    Offsets,
    PartitionStanding,
    groups_of,
    has_that_group,
    target_of,
)
from rocketshim_topics.causes import fingerprint
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.errors import MalformedRecordError, UnknownVersionError
from rocketshim_topics.group_log import (
    CommandRecord,
    LeaseEntry,
    LeaveRecord,
    ReleaseRecord,
    RenewRecord,
    decode_group_record,
)
from rocketshim_topics.hops import is_probe
from rocketshim_topics.kafka_codes import MISSING
from rocketshim_topics.names import TopicNames
from rocketshim_topics.wire import decode, read_headers

__all__ = ["OffsetLookup"]

_LOG = safe_logger("rocketshim.observe")
_TIMEOUT_S: Final = 30.0
_DESCRIBE_S: Final = 10.0
_DAY_MS: Final = 86_400_000
_LATELY_MS: Final = 900_000
_LEASE_MS: Final = 60_000
_CAUSE_CHARS: Final = 200
_ENDS: Final = frozenset({"CANCEL", "NOW"})
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
        self._unread: dict[str, str] = {}
        self._left_out = {} if left_out is None else left_out
        self._rounds = 0
        self._records = _Records(names)
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
        try:
            committed[names.worker_group] = self._reader.committed(names.worker_group, schedule)
        except NotAuthorizedError as error:
            self._unread[names.worker_group] = f"group {names.worker_group}: {error}"
            schedule = []
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
        now_ms = self._clock.wall_ms()
        day_ago = self._reader.offsets_at_times(dict.fromkeys(kept, now_ms - _DAY_MS))
        lately = self._reader.offsets_at_times(dict.fromkeys(day_ago, now_ms - _LATELY_MS))
        standings = {
            group: standing_of(group, described.get(group), found, bounds) for group, found in committed.items()
        }
        self._times = self._first_unread_ms(each for standing in standings.values() for each in standing.partitions)
        timed = {group: _timed(standing, self._times) for group, standing in standings.items()}
        unknown = tuple(sorted(wanted - bounds.keys()))
        self._between()
        records = self._records
        queues = timed[names.worker_group].partitions if names.worker_group in timed else ()
        waiting = records.waiting(self._reader, [each for each in queues if each.behind])
        dead = {key: bounds[key] for key in lately if key.topic != names.parked}
        logs = {group: names.group_log(group) for group in groups if names.group_log(group) in topics}
        records.read_logs(self._reader, logs, now_ms)
        return Offsets(
            topics,
            bounds,
            timed,
            groups,
            day_ago,
            unknown,
            self._clock.wall_ms(),
            lately,
            waiting,
            self._missing(waiting, topics),
            records.causes(self._reader, dead),
            records.failing(timed, now_ms),
            records.log_members(now_ms),
            (
                *self._unread.values(),
                *(f"records of {each}: not readable" for each in self._denied if names.is_ours(each)),
            ),
        )

    def close(self) -> None:
        """Close the client."""
        self._reader.close()

    def _missing(
        self, waiting: Mapping[TopicPartitionKey, tuple[Any, ...]], topics: Mapping[str, int]
    ) -> frozenset[str]:
        """Return the targets that surely do not exist; Kafka says the difference from one that may not be seen."""
        found = {target_of(_target(record), self._names) for records in waiting.values() for record in records}
        unseen = sorted(found - topics.keys() - {""})
        if not unseen or self._admin is None:
            return frozenset(unseen)
        answers = self._admin.describe_topics(TopicCollection(unseen), request_timeout=_DESCRIBE_S)
        wait(answers.values(), _DESCRIBE_S)
        return frozenset(name for name, answer in answers.items() if answer.done() and _is_missing(answer.exception()))

    def _described(self, groups: list[str]) -> dict[str, Any]:
        """Return the descriptions of the groups that the principal may describe; a Kafka in memory has none."""
        if self._make_admin is None:
            return {}
        self._admin = admin = self._admin or self._make_admin(self._admin_settings)
        admin.poll(0)  # for its log lines
        found = described_groups(lambda: admin, groups, _DESCRIBE_S, include_authorized_operations=True)
        known = {}
        for group, each in found.items():
            if isinstance(each, KafkaException):
                self._unread[group] = str(typed_error(each, f"group {group}", ""))
            else:
                known[group] = each
        if len(known) < len(found):  # a late answer is dropped with its client
            self._admin = None
        return known

    def _committed(self, groups: tuple[str, ...], topics: Mapping[str, int]) -> dict[str, _Commits]:
        """Return what the groups have committed; leave out those for which it cannot be had."""
        committed: dict[str, _Commits] = {}
        failed: RocketshimError | None = None
        self._unread = {group: why for group, why in self._unread.items() if self._left_out.get(group, 0) > 0}
        left_out = {group for group in groups if self._left_out.get(group, 0) > 0}
        for group in left_out:
            self._left_out[group] -= 1
        every = [name for name in topics if not name.startswith("__")]
        users = [name for name in every if not self._names.is_ours(name)]

        def asked(group: str) -> Iterator[TopicPartitionKey]:
            read, turn = self._read_by.get(group), self._rounds + zlib.crc32(group.encode())
            if read is None and group not in self._groups:
                names: Iterable[str] = chain(users, (self._names.retry(group), self._names.dead_letter(group)))
            else:
                names = every if read is None or turn % _ALL_TOPICS_EVERY == 0 else sorted(read)
            return (key for name in names for key in _partitions(name, topics))

        wanted = {group: asked(group) for group in groups if group not in left_out}
        with closing(self._reader.committed_by_groups(wanted)) as answers:
            for group, found in answers:
                self._between()
                if not isinstance(found, RocketshimError):
                    committed[group] = found
                    self._read_by[group] = {key.topic for key in found}
                    continue
                if not isinstance(found, NotAuthorizedError):
                    if failed is not None:
                        raise found
                    failed = found
                self._left_out[group] = _ALL_TOPICS_EVERY
                self._unread[group] = f"group {group}: {found}"
                _LOG.warning("observe.group-unknown", extra={"group": group, "error": str(found)})
        return committed

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


def _is_missing(error: BaseException | None) -> bool:
    return isinstance(error, KafkaException) and error.args[0].code() in MISSING


def _target(record: Any) -> str | None:
    with suppress(MalformedRecordError):
        return decode(read_headers(record), trusted=True).real_topic
    return None


class _Records:
    """The records that a round reads beside the first unread ones: few, and only where something was appended.

    * Of each delay queue, and of what no worker has read of the timer log, the first and the newest `HEAD_COUNT`: a
      target that does not exist is found there.
    * Of each dead-letter topic that grows the newest `HEAD_COUNT`, for their causes.
    * Of each group's log what the last two leases have.

    What cannot be read is left out: these records explain, the offsets count.
    """

    def __init__(self, names: TopicNames) -> None:
        self._names = names
        self._waiting: dict[tuple[TopicPartitionKey, int, int], tuple[Any, ...]] = {}
        self._causes: dict[tuple[TopicPartitionKey, int], Counter[str]] = {}
        self._positions: dict[str, int] = {}
        self._entries: dict[tuple[str, str, int], tuple[int, RenewRecord | ReleaseRecord, LeaseEntry]] = {}
        self._members: dict[tuple[str, str], int] = {}
        self._denied: set[str] = set()

    def waiting(
        self, reader: TopicReader, queues: Iterable[PartitionStanding]
    ) -> dict[TopicPartitionKey, tuple[Any, ...]]:
        """Return the first and the newest few records of each delay queue and of the unread timer log, by offset."""
        wanted = {(TopicPartitionKey.of(each), *each.unread) for each in queues}
        self._waiting = {key: found for key, found in self._waiting.items() if key in wanted}
        new = wanted - self._waiting.keys()
        heads = {key: (first, min(end, first + HEAD_COUNT)) for key, first, end in new}
        tails = {key: (end - HEAD_COUNT, end) for key, first, end in new if end - first > HEAD_COUNT}
        found = self._read(reader, heads, _has_no_message), self._read(reader, tails, _has_no_message)
        for each in new:
            records = {record.offset(): record for part in found for record in part.get(each[0], ())}
            self._waiting[each] = tuple(record for _, record in sorted(records.items()))
        return {key: records for (key, _, _), records in self._waiting.items()}

    def causes(self, reader: TopicReader, dead: Mapping[TopicPartitionKey, tuple[int, int]]) -> dict[str, str]:
        """Return the most frequent cause of the newest dead letters of each topic, all its partitions together."""
        wanted = {(key, end) for key, (_, end) in dead.items()}
        self._causes = {each: counts for each, counts in self._causes.items() if each in wanted}
        new = {key: (max(dead[key][0], end - HEAD_COUNT), end) for key, end in wanted - self._causes.keys()}
        found = self._read(reader, new)
        for key, (_, end) in new.items():
            self._causes[key, end] = Counter(filter(None, map(_cause, found.get(key, ()))))
        totals = defaultdict[str, Counter[str]](Counter)
        for (key, _), counts in self._causes.items():
            totals[key.topic] += counts
        return {topic: max(sorted(counts), key=counts.__getitem__) for topic, counts in totals.items() if counts}

    def read_logs(self, reader: TopicReader, logs: Mapping[str, str], now_ms: int) -> None:
        """Read what was appended to the logs of these groups; at first, what the last two leases have."""
        try:
            bounds = reader.bounds_of([TopicPartitionKey(topic, 0) for topic in logs.values()])
            first = {key: now_ms - 2 * _LEASE_MS for key in bounds if key.topic not in self._positions}
            starts = reader.offsets_at_times(first)
            spans = {
                key: (max(low, self._positions.get(key.topic, starts.get(key, end))), end)
                for key, (low, end) in bounds.items()
                if key.topic not in self._denied
            }
            groups = {topic: group for group, topic in logs.items()}
            for record in reader.read_spans({key: span for key, span in spans.items() if span[0] < span[1]}):
                self._fold(groups[record.topic()], record)
            self._positions |= {key.topic: end for key, (_, end) in spans.items()}
        except NotAuthorizedError:
            self._denied |= set(logs.values())
        except RocketshimError as error:
            _LOG.debug("observe.group-unknown", extra={"group": ", ".join(logs), "error": str(error)})

    def failing(self, standings: Mapping[str, GroupStanding], now_ms: int) -> tuple[FailingMessage, ...]:
        """Return the messages that block a queue or key now: their owner reported them lately, and has not passed them.

        Only the first one of a queue: with order by key there may be more.
        """
        positions = {
            (group, *TopicPartitionKey.of(each)): each.position
            for group, standing in standings.items()
            for each in standing.partitions
        }
        found = []
        for (group, topic, number), (at_ms, report, entry) in sorted(self._entries.items(), key=itemgetter(0)):
            counts = [each for each in entry.reconsume_counts if each[0] >= positions.get((group, topic, number), 0)]
            if counts and now_ms - at_ms <= 2 * report.lease_ms:
                offset, attempts = counts[0]
                is_first = counts[0] == entry.reconsume_counts[0]  # whose cause the entry has
                since_ms = at_ms - entry.failing_ms if is_first and entry.failing_ms is not None else None
                cause = entry.cause if is_first else None
                owner = None if isinstance(report, ReleaseRecord) else report.client_id
                trace = entry.trace if is_first else None
                found.append(
                    FailingMessage(group, topic, number, offset, attempts, since_ms, cause, owner, entry.token, trace)
                )
        return tuple(found)

    def log_members(self, now_ms: int) -> dict[str, int]:
        """Return how many members each group's log knows."""
        return dict(Counter(group for (group, _), until_ms in self._members.items() if now_ms <= until_ms))

    def _fold(self, group: str, record: Any) -> None:
        at_ms = record.timestamp()[1]
        try:
            found = decode_group_record(record.value())
        except (MalformedRecordError, UnknownVersionError):
            return
        if isinstance(found, CommandRecord):
            return
        owner = group, f"{found.client_id} {found.incarnation}"
        if isinstance(found, LeaveRecord):
            self._members.pop(owner, None)
            return
        self._members[owner] = at_ms + found.lease_ms
        if isinstance(found, RenewRecord | ReleaseRecord):
            for entry in found.queues:
                key = group, target_of(entry.topic, self._names), entry.queue_id
                _, _, newest = self._entries.get(key, (0, found, entry))
                if entry.token >= newest.token:
                    self._entries[key] = at_ms, found, entry

    def _read(
        self,
        reader: TopicReader,
        spans: Mapping[TopicPartitionKey, tuple[int, int]],
        skip: Callable[[Any], bool] = lambda _: False,
    ) -> Mapping[TopicPartitionKey, list[Any]]:
        try:
            return reader.first_records(spans, most=HEAD_COUNT, skip=skip, denied=self._denied) if spans else {}
        except BrokerUnavailableError:  # a leader is away
            return {}


def _has_no_message(record: Any) -> bool:
    """Return whether a record is a probe, or a command of the timer log that only ends a waiting."""
    with suppress(MalformedRecordError):
        return is_probe(record) or decode(read_headers(record), trusted=True).timer_do in _ENDS
    return False


def _cause(record: Any) -> str:
    with suppress(MalformedRecordError):
        envelope = decode(read_headers(record), trusted=True)
        return f"{envelope.fail_class}: {fingerprint(envelope.fail_text)}"[:_CAUSE_CHARS] if envelope.fail_class else ""
    return ""


def _partitions(topic: str, topics: Mapping[str, int]) -> list[TopicPartitionKey]:
    return [TopicPartitionKey(topic, number) for number in range(topics.get(topic, 0))]
