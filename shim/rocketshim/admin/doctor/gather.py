"""Read the doctor's facts from a cluster. Only this module, `leader_clocks` and `probe` of the doctor talk to Kafka.

The requests are independent: one that is refused or not answered is noted in `Facts.unread`, and the others continue.
Only a cluster that does not answer at all is an error. Records are read outside all groups: the doctor joins no group
and commits nothing. With `probe` it writes one record to the schedule topic on each leader; every reader of rocketshim
skips these records.

The functions block for seconds. Use them from one thread.
"""

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from itertools import islice
from statistics import median_low
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # the stubs lack these documented names
    ConfigResource,
    ResourceType,
)

from rocketshim.admin.doctor.facts import Facts, PartitionFacts, TopicFacts
from rocketshim.admin.doctor.leader_clocks import clocks_ahead_ms
from rocketshim.admin.doctor.probe import Capability, measure
from rocketshim.admin.redrive import read_log
from rocketshim.core.worker_notes import NOT_ALLOWED
from rocketshim.errors import BrokerUnavailableError, ConfigError, RocketshimError, TopicMissingError
from rocketshim.kafka.client_config import PROTECTED_CONSUMER, PROTECTED_PRODUCER, merge
from rocketshim.kafka.clients import Clients, confluent_clients
from rocketshim.kafka.positions import LATEST, answer_of, listed_offsets
from rocketshim.kafka.timer_log import pending_timers
from rocketshim.kafka.topic_reader import LITTLE_AHEAD, TopicReader
from rocketshim.observe.groups import GroupReader, operations_of
from rocketshim.observe.look_up import OffsetLookup
from rocketshim.observe.snapshot import Snapshot, snapshot_of
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.layout import HEADROOM_BYTES, Layout, TopicState
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.limits import INT_MAX
from rocketshim_topics.names import TopicNames, check_group
from rocketshim_topics.partitioner import partition_for
from rocketshim_topics.provision import read_topics
from rocketshim_topics.redrive_log import RedriveLog
from rocketshim_topics.wire import PARK_REASON, headers_shown

__all__ = ["gather"]

_TIMEOUT_S: Final = 30.0
_KEY_SPAN: Final = 200
_KEY_PARTITIONS: Final = 16
_KEYS_PER_PARTITION: Final = 50
_DAY_MS: Final = 86_400_000
_HALF_MESSAGE_MS: Final = 900_000
_MANY_CHECKS: Final = 3
_MAX_PARKED: Final = 1_000
_PROBE: Final = {"delivery.timeout.ms": round(_TIMEOUT_S * 1_000), "linger.ms": 0}

_T = TypeVar("_T")


def gather(
    bootstrap: str,
    names: TopicNames,
    levels: DelayLevels,
    *,
    groups: Iterable[str] = (),
    topics: Iterable[str] = (),
    roles: Iterable[str] = (),
    client: Mapping[str, str] | None = None,
    consume_timeout_ms: int | None = None,
    probe: bool = False,
    look: Snapshot | None = None,
) -> Facts:
    """Read the facts from a cluster.

    * `roles`: roles whose ACLs the principal should have, see `rocketshim.admin.acls`.
    * `client`: librdkafka settings. Settings that have another value in our clients are only evaluated, not used.
    * `look`: what waits and who consumes, if the caller has looked already; None, or a failed one: this looks.
    """
    client = dict(client or {})
    usable = {name: value for name, value in client.items() if name not in _REFUSED}
    try:
        opened = _ClusterReader(bootstrap, names, usable)
    except ConfigError as error:  # the client may need a setting that is not used
        unused = ", ".join(sorted(client.keys() - usable.keys()))
        if not unused:
            raise
        raise ConfigError(f"{error}. Not used, since rocketshim refuses it: {unused}") from error
    with closing(opened) as cluster:
        brokers = cluster.brokers()
        visible = cluster.reader.topics()
        user_topics = tuple(names.physical(topic) for topic in topics)
        named = tuple(dict.fromkeys(map(check_group, groups)))
        found = tuple(dict.fromkeys([*named, *_groups_with_retries(names, visible)]))
        transactions = cluster.transactions() if names.timer_state in visible else {}
        wanted = [*_topics_to_read(names, found, user_topics), *map(names.check, transactions)]
        described = cluster.topics([name for name in wanted if name in visible])
        if look is None or look.error is not None:
            look = cluster.look(levels, named)  # it asks a group that is named for all topics; it finds the others
        sources = {name: described[name] for name in user_topics if name in described}
        schedule = {name: topic for name, topic in described.items() if name in {names.schedule, names.timers}}
        clocks_ms = cluster.clocks(described.get(names.schedule)) if probe else {}
        parked, not_allowed = cluster.parked(described)
        return Facts(
            bootstrap=bootstrap,
            layout=_layout(names, levels, list(sources.values())),
            now_ms=cluster.now_ms(),
            brokers=brokers,
            broker_config=cluster.broker_config(brokers),
            groups=found,
            user_topics=user_topics,
            roles=tuple(roles),
            topics=described,
            look=look if look is None else cluster.in_brokers_time(look),
            transactions=transactions,
            parked=parked,
            parked_not_allowed=not_allowed,
            marks_lost=cluster.marks_lost([names.parked, *map(names.dead_letter, found)], described),
            open_transactions_ms=cluster.open_transactions({**schedule, **sources}),
            keys=cluster.keys(sources),
            clocks_ms=clocks_ms,
            capabilities=tuple(cluster.capabilities(Layout(names, levels))) if probe else (),
            client=client,
            consume_timeout_ms=consume_timeout_ms,
            unread=tuple(cluster.unread),
        )


_REFUSED: Final = PROTECTED_CONSUMER.keys() | PROTECTED_PRODUCER.keys() | {"group.id", "auto.offset.reset"}


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _groups_with_retries(names: TopicNames, visible: Iterable[str]) -> list[str]:
    """Return the groups whose retry topic exists. Groups with an encoded topic name are not found."""
    prefix = names.retry_prefix
    found = []
    for suffix in sorted(name.removeprefix(prefix) for name in visible if name.startswith(prefix)):
        with suppress(ConfigError):  # another program's topic, whose suffix is not a group name
            if names.retry(suffix) == prefix + suffix:
                found.append(suffix)
    return found


def _topics_to_read(names: TopicNames, groups: Iterable[str], user_topics: Iterable[str]) -> list[str]:
    """Return the topics to read, each once."""
    ours = [names.schedule, names.timers, names.timer_state, names.parked, names.redrive_log]
    for group in groups:
        ours += [names.retry(group), names.dead_letter(group), names.group_log(group)]
    return list(dict.fromkeys([*ours, *user_topics]))


def _layout(names: TopicNames, levels: DelayLevels, sources: list[TopicFacts]) -> Layout:
    sizes = [int((topic.config or {}).get("max.message.bytes", "0")) for topic in sources]
    largest = min(max(sizes, default=0), INT_MAX - HEADROOM_BYTES)  # no size above has room for our headers
    return Layout(names, levels, max_message_bytes=largest) if largest else Layout(names, levels)


class _ClusterReader:
    """Requests to a cluster. Each method returns what it read; refused requests are listed in `unread`."""

    def __init__(self, bootstrap: str, names: TopicNames, client: Mapping[str, str]) -> None:
        self._clients: Clients = confluent_clients()
        self._bootstrap = bootstrap
        self._names = names
        self._client = client
        self.unread: list[str] = []
        self._ahead_ms: int | None = None  # not measured
        self.reader = TopicReader(bootstrap, client={**LITTLE_AHEAD, **client}, patience_s=_TIMEOUT_S)
        self._groups = GroupReader(self.reader)
        self._admin = self._groups.admin

    def now_ms(self) -> int:
        """Return the brokers' clock, as far as it was measured, otherwise this machine's; epoch ms."""
        return _now_ms() + (self._ahead_ms or 0)

    def close(self) -> None:
        """Close the reader."""
        self.reader.close()

    def _settings(self, required: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
        return merge(self._client, defaults=defaults or {}, required={"bootstrap.servers": self._bootstrap, **required})

    def _request(self, what: str, request: Callable[[], _T], default: _T) -> _T:
        try:
            return request()
        except TopicMissingError:  # it was deleted after it was described
            return default
        except (KafkaException, RocketshimError, TimeoutError) as error:
            self.unread.append(f"{what}: {_text(error)}")
            return default

    def brokers(self) -> tuple[int, ...]:
        """Return the node ids of the running brokers. This is the first request, and it must succeed."""
        try:
            timeout_s = self._groups.timeout_s
            nodes = answer_of(self._admin.describe_cluster(request_timeout=timeout_s), timeout_s).nodes
        except KafkaException as error:
            raise BrokerUnavailableError(
                f"no broker at {self._bootstrap} answered ({_text(error)}): check the address, the security settings "
                f"(--client) and that a broker is up{self._groups.text()}"
            ) from error
        return tuple(sorted(node.id for node in nodes))

    def broker_config(self, brokers: tuple[int, ...]) -> Mapping[str, str] | None:
        """Return the settings of one broker."""

        def request() -> Mapping[str, str] | None:
            resource = ConfigResource(ResourceType.BROKER, str(brokers[0]))
            [future] = self._admin.describe_configs([resource], request_timeout=_TIMEOUT_S).values()
            entries = answer_of(future, _TIMEOUT_S)
            return {name: entry.value for name, entry in entries.items() if entry.value is not None}

        return self._request("settings of the brokers", request, None)

    def topics(self, wanted: list[str]) -> dict[str, TopicFacts]:
        """Return the partitions, settings and allowed operations of topics."""
        if not wanted:
            return {}
        futures = self._admin.describe_topics(
            TopicCollection(wanted), include_authorized_operations=True, request_timeout=_TIMEOUT_S
        )
        described = {}
        for name, future in futures.items():
            found = self._request(f"topic {name}", partial(answer_of, future, _TIMEOUT_S), None)
            if found is not None:
                described[name] = found
        states: dict[str, TopicState] = self._request(
            "settings of topics", partial(read_topics, self._admin, described), {}
        )
        for name, state in states.items():
            if state.config is None:
                self.unread.append(f"settings of {name}: the principal lacks DESCRIBE_CONFIGS")
        return {
            name: TopicFacts(
                tuple(
                    PartitionFacts(
                        None if each.leader is None or each.leader.id < 0 else each.leader.id,
                        len(each.replicas),
                        len(each.isr),
                    )
                    for each in sorted(topic.partitions, key=lambda each: each.id)
                ),
                states[name].config if name in states else None,
                operations_of(topic),
            )
            for name, topic in described.items()
        }

    def look(self, levels: DelayLevels, groups: Iterable[str]) -> Snapshot | None:
        """Look at queues, groups and workers as every other screen does; None: that failed."""
        lookup, at_ms = OffsetLookup(self._bootstrap, self._names, groups=tuple(groups), client=self._client), _now_ms()
        with closing(lookup):
            found = self._request("what waits", lookup.look_up, None)
        return None if found is None else snapshot_of(at_ms, self._names, levels, found)

    def in_brokers_time(self, look: Snapshot) -> Snapshot:
        """Return a look whose time is the brokers', if their clocks were measured."""
        is_sure = self._ahead_ms is not None
        return replace(look, at_ms=look.at_ms + (self._ahead_ms or 0), is_clock_sure=is_sure)

    def transactions(self) -> dict[str, tuple[int, int]]:
        """Return how many half messages of each producer group wait, and how many were asked about often.

        Each check of one is stored, and one is asked about for 8 minutes at most: the newest records have all.
        """
        since_ms, counts = self.now_ms() - _HALF_MESSAGE_MS, defaultdict[str, list[int]](lambda: [0, 0])

        def request() -> None:
            records = self.reader.read_spans(self.reader.spans([self._names.timer_state], since_ms=since_ms))
            for each in pending_timers(records, lambda each: bool(each.asks)):
                with suppress(ConfigError):  # a forged record, whose group can have no topic
                    counts[check_group(each.asks)][0] += 1
                    counts[each.asks][1] += each.asked >= _MANY_CHECKS

        self._request(f"records of {self._names.timer_state}", request, None)
        return {group: (waiting, often) for group, (waiting, often) in counts.items()}

    def parked(self, described: Mapping[str, TopicFacts]) -> tuple[int | None, int]:
        """Return how many records were parked within a day, at most 1,000, and how many of them for their target.

        Records that were sent again since do not count. The second number counts the records whose target was not on
        the allow-list of the workers that had them.
        """
        name, log_topic = self._names.parked, self._names.redrive_log
        if name not in described:
            return None, 0

        def request() -> tuple[int | None, int]:
            spans, log = self.reader.spans([name], since_ms=self.now_ms() - _DAY_MS), RedriveLog(name)
            if spans:  # if the log cannot be read, records that were sent again count
                log = self._request(f"records of {log_topic}", lambda: read_log(self.reader, log_topic, name), log)
            reasons = (
                dict(headers_shown(record)).get(PARK_REASON)
                for record in self.reader.read_spans(spans)
                if log.settled_record(record) is None
            )
            counted = list(islice(reasons, _MAX_PARKED))
            return len(counted), counted.count(NOT_ALLOWED.encode())

        unknown: tuple[int | None, int] = (None, 0)
        return self._request(f"records of {name}", request, unknown)

    def marks_lost(self, sources: list[str], described: Mapping[str, TopicFacts]) -> dict[str, int]:
        """Return how many records of each topic may have had a mark that the redrive log has lost, 1,000 at most."""
        log_topic = self._names.redrive_log

        def request() -> dict[str, int]:
            if log_topic not in described or not self.reader.bounds(log_topic, 0)[0]:
                return {}
            counts: dict[str, int] = {}
            for source in described.keys() & set(sources):
                log = read_log(self.reader, log_topic, source)
                lost = (
                    record
                    for record in self.reader.read_spans(self.reader.spans([source], until_ms=log.lost_until_ms))
                    if log.may_have_lost(record) and log.settled_record(record) is None
                )
                if count := sum(1 for _ in islice(lost, _MAX_PARKED)):
                    counts[source] = count
            return counts

        return self._request(f"records of {log_topic}", request, {})

    def open_transactions(self, topics: Mapping[str, TopicFacts]) -> dict[str, int]:
        """Return the age in ms of the oldest record behind each last stable offset."""
        led = [key for name, topic in topics.items() for key in _led(name, topic)]

        def request() -> dict[str, int]:
            stable = {key: end for key, (_, end) in self.reader.bounds_of(led).items()}
            ends = listed_offsets(self._admin, stable, LATEST, committed=False, timeout_s=self._groups.timeout_s)
            hidden = [TopicPartition(*key, at) for key, at in stable.items() if at < ends.get(key, at)]
            return self._ages_ms(hidden) if hidden else {}

        return self._request("open transactions", request, {})

    def _ages_ms(self, positions: list[TopicPartition]) -> dict[str, int]:
        required = {"group.id": f"rocketshim-read-{uuid.uuid4().hex[:8]}", "isolation.level": "read_uncommitted"}
        consumer = self._clients.consumer(self._settings({**required, "enable.auto.commit": False}))
        ages = {}
        try:
            for position in positions:
                consumer.assign([position])
                message = consumer.poll(_TIMEOUT_S)
                partition = f"{position.topic}/{position.partition}"
                if message is not None and message.error() is None:
                    ages[partition] = self.now_ms() - message.timestamp()[1]
                else:
                    self.unread.append(f"open transaction in {partition}: no record arrived in {_TIMEOUT_S:g} s")
        finally:
            consumer.close()
        return ages

    def keys(self, topics: Mapping[str, TopicFacts]) -> dict[str, tuple[int, int]]:
        """Return how the last keyed records of some partitions of each topic are partitioned."""
        samples = {
            name: self._request(f"records of {name}", partial(self._keys, name, topic), None)
            for name, topic in topics.items()
        }
        return {name: sample for name, sample in samples.items() if sample is not None}

    def _keys(self, name: str, topic: TopicFacts) -> tuple[int, int] | None:
        led = _led(name, topic)
        found: dict[bytes, int] = {}
        for partition, (low, end) in self.reader.bounds_of(led[:: -(-len(led) // _KEY_PARTITIONS) or 1]).items():
            span = max(low, end - _KEY_SPAN), end
            for record in islice(self.reader.read_spans({partition: span}), _KEYS_PER_PARTITION):
                if record.key() is not None:
                    found[record.key()] = partition.partition
        count = len(topic.partitions)
        return len(found), sum(partition_for(key, count) != number for key, number in found.items())

    def clocks(self, schedule: TopicFacts | None) -> dict[int, int]:
        """Return how far each leader's clock is ahead of this machine's, in ms; from now on `now_ms` is theirs."""
        if schedule is None:
            return {}
        if schedule.operations is not None and "WRITE" not in schedule.operations:
            self.unread.append(f"clocks: the principal lacks WRITE on {self._names.schedule}")
            return {}
        leaders = {each.leader: number for number, each in enumerate(schedule.partitions) if each.leader is not None}

        def request() -> dict[int, int]:
            config = self._settings(PROTECTED_PRODUCER, _PROBE)
            return clocks_ahead_ms(
                self._clients.producer, config, self._names, leaders, now_ms=_now_ms, timeout_s=_TIMEOUT_S + 5
            )

        none: dict[int, int] = {}
        found = self._request("clocks", request, none)
        self._ahead_ms = median_low(found.values()) if found else None
        return found

    def capabilities(self, layout: Layout) -> list[Capability]:
        """Measure what the cluster can do, on topics that are deleted again."""
        nothing: list[Capability] = []
        request = partial(measure, self._clients, self._admin, self._settings, layout, timeout_s=_TIMEOUT_S)
        return self._request("what the cluster can do", request, nothing)


def _text(error: BaseException) -> str:
    if isinstance(error, KafkaException) and error.args:
        return f"{error.args[0].name()}: {error.args[0].str()}"
    return str(error) or type(error).__name__


def _led(name: str, topic: TopicFacts) -> list[TopicPartitionKey]:
    """Return the partitions of a topic that have a leader."""
    return [TopicPartitionKey(name, number) for number, each in enumerate(topic.partitions) if each.leader is not None]
