"""Measure what a cluster can do, on a topic and groups that are deleted again (`rocketshim doctor --probe`).

What a cluster says it does and what it does are two things: services refuse or ignore settings, and some brokers accept
`message.timestamp.type=LogAppendTime` and store the sender's time. Each measurement stands alone: one that is refused
or gets no answer is reported with its reason, and the others go on. Before anything is made, requests to create and
delete what does not exist tell whether this principal may: a topic that it cannot delete would stay. Of one that may
see such a topic, Kafka tells only when the topic exists: then it stays empty, and is named.
"""

import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from rocketshim.kafka.client_config import PROTECTED_PRODUCER
from rocketshim.kafka.clients import Clients, ConsumerClient, ProducerClient, close_producer
from rocketshim.kafka.positions import answer_of
from rocketshim.kafka.reports import DeliveryReports, store
from rocketshim.observe.finding import Severity
from rocketshim.observe.groups import operations_of
from rocketshim_topics.kafka_codes import AWAY, DENIED, MISSING
from rocketshim_topics.layout import SPEED_ONLY, Layout
from rocketshim_topics.names import TopicNames
from rocketshim_topics.provision import read_topics

__all__ = ["APPEND_TIME", "Capability", "append_times", "measure", "prefix"]

APPEND_TIME: Final = "append times"

_HOUR_MS: Final = 3_600_000
_MIB: Final = 1_048_576
_LOOK_AGAIN_S: Final = 0.1
_JOIN_S: Final = 60.0  # a link on which a request takes 3 s needs twenty
_ON_TOPIC: Final = ("READ", "WRITE", "DELETE")
_RIGHTS: Final = {
    KafkaError.GROUP_AUTHORIZATION_FAILED: "READ on groups",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "WRITE on transactional ids",
}

Settings = Callable[..., dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Capability:
    """What was measured."""

    name: str
    works: bool | None  # None: it could not be measured
    seen: str  # how it works, or why it does not
    needed_by: str
    severity: Severity = Severity.ERROR  # if it does not work: a warning or a note if only some features need it
    fix: str = "use another cluster for this"  # if it does not work


def measure(
    clients: Clients, admin: AdminClient, settings: Settings, layout: Layout, *, timeout_s: float
) -> list[Capability]:
    """Measure, and delete what was made for it; it takes some seconds. `settings` makes those of a client."""
    name = f"{prefix(layout.names)}{secrets.token_hex(4)}"
    wanted = {setting: value for spec in _specs(layout) for setting, value in spec.items()}
    if lacking := _lacking(admin, name, timeout_s):
        return [_denied(lacking, "; nothing was created")]
    found: list[Capability] = []
    try:
        refused = _refused(admin, name, wanted, timeout_s)
        kept = {setting: value for setting, value in wanted.items() if setting not in refused}
        [created] = admin.create_topics([NewTopic(name, 1, -1, config=kept)], request_timeout=timeout_s).values()
        try:
            answer_of(created, timeout_s)
        except KafkaException as error:
            return [_failed("topics", error, "everything")]
        found.append(_settings_seen(refused, _ignored(admin, name, kept, timeout_s)))
        lacking = _lacking_on_topic(admin, name, timeout_s)
        found += [_denied(lacking)] if lacking else _measured(clients, settings, name, timeout_s)
    finally:
        if left := _deleted(admin, name, timeout_s):
            seen, fix = f"{left} could not be deleted", f"kafka-topics.sh --delete --topic {name}, with the right to"
            found.append(Capability("deletion", False, seen, "a clean cluster", Severity.WARNING, fix))  # noqa: FBT003 - works
    return found


def prefix(names: TopicNames) -> str:
    """Return how the names of the topic, groups and transactional id of every probe begin."""
    return f"{names.parked.removesuffix('parked')}probe."


def _denied(rights: list[str], also: str = "") -> Capability:
    return Capability("rights", None, f"the principal lacks {', '.join(rights)}{also}", "the other measurements")


def _lacking(admin: AdminClient, name: str, timeout_s: float) -> list[str]:
    """Return the rights without which nothing could be made, or would stay. Creates and deletes nothing."""
    answers = {
        "CREATE on topics": admin.create_topics([NewTopic(name, 1, -1)], request_timeout=timeout_s, validate_only=True),
        "DELETE on topics": admin.delete_topics([name], request_timeout=timeout_s),
        "DELETE on groups": admin.delete_consumer_groups([f"{name}.reader"], request_timeout=timeout_s),
    }
    lacking = []
    for right, asked in answers.items():
        [future] = asked.values()
        try:
            answer_of(future, timeout_s)
        except KafkaException as error:
            lacking += [right] if error.args[0].code() in DENIED else []
    return lacking


def _lacking_on_topic(admin: AdminClient, name: str, timeout_s: float) -> list[str]:
    """Return the rights that the principal lacks on the new topic; `[]` also if the brokers do not tell."""
    topics = TopicCollection([name])
    [asked] = admin.describe_topics(topics, include_authorized_operations=True, request_timeout=timeout_s).values()
    with suppress(KafkaException):
        allowed = operations_of(answer_of(asked, timeout_s))
        return [] if allowed is None else [f"{each} on topics" for each in _ON_TOPIC if each not in allowed]
    return []


def _specs(layout: Layout) -> Iterator[Mapping[str, str]]:
    yield layout.group_log("g").config  # first: what others set, too, counts as they set it
    yield layout.redrive_log().config
    yield layout.parked().config
    yield layout.schedule().config


def _refused(admin: AdminClient, name: str, wanted: Mapping[str, str], timeout_s: float) -> dict[str, str]:
    """Return the settings that no topic may have here, with the reason; nothing is created."""
    alone = {
        f"{name}.{number}": NewTopic(f"{name}.{number}", 1, -1, config={setting: wanted[setting]})
        for number, setting in enumerate(wanted)
    }
    asked = admin.create_topics([*alone.values()], request_timeout=timeout_s, validate_only=True)
    found = {}
    for setting, topic in zip(wanted, alone, strict=True):
        try:
            answer_of(asked[topic], timeout_s)
        except KafkaException as error:
            if error.args[0].code() not in DENIED:  # else the topic itself is refused, which is reported
                found[setting] = error.args[0].str()
    return found


def _ignored(admin: AdminClient, name: str, kept: Mapping[str, str], timeout_s: float) -> list[str] | None:
    """Return the settings that the new topic has not; None: the principal may not see them."""
    state, until = None, time.monotonic() + timeout_s
    with suppress(KafkaException):
        # A broker may not know yet what its controller has created (test_a_topic_that_is_not_known_yet_is_awaited).
        while (state := read_topics(admin, [name], timeout_s=timeout_s).get(name)) is None and time.monotonic() < until:
            time.sleep(_LOOK_AGAIN_S)
    config = None if state is None else state.config
    return None if config is None else [setting for setting, value in kept.items() if config.get(setting) != value]


def _settings_seen(refused: Mapping[str, str], ignored: list[str] | None) -> Capability:
    what, needed_by = "settings of topics", "delays, retries"
    if ignored is None:
        return Capability(what, None, "the principal lacks DESCRIBE_CONFIGS on topics", needed_by)
    seen = [f"{setting} is refused ({why})" for setting, why in refused.items()]
    seen += [f"{setting} is ignored" for setting in ignored]
    matters = {*refused, *ignored} - SPEED_ONLY
    return Capability(what, not matters, "; ".join(seen) or "all are accepted", needed_by)


def _measured(clients: Clients, settings: Settings, name: str, timeout_s: float) -> Iterator[Capability]:
    limits = {"message.max.bytes": 2 * _MIB, "delivery.timeout.ms": round(timeout_s * 1_000), "linger.ms": 0}
    reader = clients.consumer(settings({"group.id": f"{name}.reader", "enable.auto.commit": False}))
    with closing(reader):
        try:
            producer = clients.producer(settings(PROTECTED_PRODUCER, limits))
            try:
                yield append_times(producer, reader, name, timeout_s, now_ms=time.time_ns() // 1_000_000)
                yield _size(producer, name, timeout_s)
            finally:
                close_producer(producer, timeout_s)
        except KafkaException as error:
            yield _failed("idempotent producers", error, "everything that is sent")
        yield _transaction(clients, settings, reader, name, timeout_s)
    began_s = time.monotonic()
    yield (classic := _join(clients, settings, name, "classic", _JOIN_S))
    if classic.works is not None:  # a broker without the newer protocol says nothing
        yield _join(clients, settings, name, "consumer", max(10.0, 3 * (time.monotonic() - began_s)))


def _store(producer: ProducerClient, name: str, value: bytes, timeout_s: float, timestamp_ms: int = 0) -> Any:
    """Store a record; return its report. Raises KafkaException: it was not stored, or nobody answered."""
    report = store(producer, DeliveryReports(), timeout_s, name, value, partition=0, timestamp=timestamp_ms)
    if report is None:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001 - no public spelling
    return report


def append_times(
    producer: ProducerClient, reader: ConsumerClient, name: str, timeout_s: float, *, now_ms: int
) -> Capability:
    """Store a record with a time of an hour ago; the leader's time has to be in the report and in the record."""
    try:
        report = _store(producer, name, b"probe", timeout_s, now_ms - _HOUR_MS)
        reader.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
        record, until = None, time.monotonic() + timeout_s
        while (record is None or record.error() is not None) and time.monotonic() < until:
            record = reader.poll(0.1)
        reader.unassign()
    except KafkaException as error:
        return _failed(APPEND_TIME, error, "delays, retries, locks")
    lacking = [
        where
        for where, message in (("the answer to the producer", report), ("the stored record", record))
        if message is None or message.timestamp()[0] != TIMESTAMP_LOG_APPEND_TIME
    ]
    seen = f"not in {' and '.join(lacking)}, though the topic has LogAppendTime" if lacking else "kept"
    return Capability(APPEND_TIME, not lacking, seen, "delays, retries, locks")


def _size(producer: ProducerClient, name: str, timeout_s: float) -> Capability:
    what, needed_by = "records of 1 MiB", "messages of the usual largest size"
    try:
        _store(producer, name, bytes(_MIB), timeout_s)
    except KafkaException as error:
        return _failed(what, error, needed_by, Severity.WARNING)
    return Capability(what, works=True, seen="stored", needed_by=needed_by)


def _transaction(
    clients: Clients, settings: Settings, reader: ConsumerClient, name: str, timeout_s: float
) -> Capability:
    what, needed_by = "transactions with positions", "dlq apply, worker --exactly-once"
    producer = None
    try:
        producer = clients.producer(settings({"transactional.id": name, "transaction.timeout.ms": 30_000}))
        producer.init_transactions(timeout_s)
        producer.begin_transaction()
        producer.produce(name, b"probe", partition=0)
        position = TopicPartition(name, 0, 1)
        producer.send_offsets_to_transaction([position], reader.consumer_group_metadata(), timeout_s)
        producer.commit_transaction(timeout_s)
        [committed] = reader.committed([TopicPartition(name, 0)], timeout=timeout_s)
    except KafkaException as error:
        found = _failed(what, error, needed_by, Severity.WARNING)
        # Where no broker coordinates transactions, the call times out, although all others were answered.
        return replace(found, works=False) if error.args[0].code() == KafkaError._TIMED_OUT else found  # noqa: SLF001
    finally:
        if producer is not None:
            close_producer(producer, timeout_s)
    works = committed.offset == position.offset
    return Capability(what, works, "committed" if works else "the position is lost", needed_by, Severity.WARNING)


def _join(clients: Clients, settings: Settings, name: str, protocol: str, longest_s: float) -> Capability:
    what, needed_by = f"group.protocol={protocol}", "every group" if protocol == "classic" else "groups that ask for it"
    severity = Severity.ERROR if protocol == "classic" else Severity.NOTE
    config = {"group.id": f"{name}.{protocol}", "enable.auto.commit": False, "group.protocol": protocol}
    consumer = clients.consumer(settings(config))
    why = f"no partition was assigned within {longest_s:.0f} s"
    try:
        consumer.subscribe([name])
        until = time.monotonic() + longest_s
        while not consumer.assignment() and time.monotonic() < until:
            message = consumer.poll(0.1)
            if message is not None and message.error() is not None:
                why = message.error().str()
                if message.error().code() in DENIED:
                    return _failed(what, KafkaException(message.error()), needed_by, severity)
        works = bool(consumer.assignment())
    except KafkaException as error:
        return _failed(what, error, needed_by, severity)
    finally:
        consumer.close()
    return Capability(what, works, "joined" if works else why, needed_by, severity)


def _failed(name: str, error: KafkaException, needed_by: str, severity: Severity = Severity.ERROR) -> Capability:
    """Return what an error says of a capability: nothing, if this principal has not the right, or nobody answered."""
    code = error.args[0].code()
    works = None if code in DENIED or code in AWAY else False
    seen = f"the principal lacks {_RIGHTS[code]}" if code in _RIGHTS else error.args[0].str()
    return Capability(name, works, seen, needed_by, severity)


def _deleted(admin: AdminClient, name: str, timeout_s: float) -> str:
    """Delete the topic and the groups; return what is left, `""`: nothing."""
    groups = [f"{name}.{kind}" for kind in ("reader", "classic", "consumer")]
    for future in admin.delete_consumer_groups(groups, request_timeout=timeout_s).values():
        with suppress(KafkaException):  # a group that never joined does not exist; others end by themselves
            answer_of(future, timeout_s)
    [future] = admin.delete_topics([name], request_timeout=timeout_s).values()
    try:
        answer_of(future, timeout_s)
    except KafkaException as error:
        return "" if error.args[0].code() in MISSING else f"{name} ({error.args[0].str()})"
    return ""
