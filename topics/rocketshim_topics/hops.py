"""How each next record of a message is made: one pure function per hop, for senders, worker, consumers and tools.

::

    source_record ────────────────────────────────► source topic
    delayed_record ──► schedule ── hopped ──► schedule ── delivered ──► target (source topic or retry topic)
                          ├── retried_target ─► schedule      (the target did not take it)
                          └── parked ─────────► rmq.parked    (it never will, or the record is malformed)
    listener fails:  retry ──► schedule ── delivered ──► retry topic ── retry ──► …
                     dead_letter, dead_letter_by_reference ──► dead-letter topic ── redriven ──► retry or source topic

Rules that hold for all of them:

* A hop is made from the record *as fetched*. Key, value (None is not `b""`) and user headers pass byte for byte.
* Identity is filled in, never invented: a record without `UNIQ_KEY` gets the coordinates of the record the hop is made
  from, one without `BORN_TIMESTAMP` that record's timestamp; whoever makes the hop again makes the same identity.
* `HOP_ID` is the coordinates of the record the hop was made from; the failure headers are replaced; nothing grows.
* Scheduling headers, and `TARGET_TRIES` with them, exist on the schedule topic only (and on parked records, which are
  kept as they were). On a source or target topic a record carries its identity and `HOP_ID`, and no other header of
  the shim's. `SHIM` is written on the shim's own topics.
* A hop that cannot be told from its record (malformed) raises `MalformedRecordError`; then `parked` is the next hop.

The caller chooses lane and partition numbers of the schedule topic and says what time it is; nothing here looks at a
clock, and nothing changes what it was given.
"""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rocketshim_topics import wire
from rocketshim_topics.errors import ConfigError, MalformedRecordError, MessageError
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.message import Message
from rocketshim_topics.names import RETRY_PREFIX, TopicNames, dead_letter_topic, group_of, retry_topic
from rocketshim_topics.wire import (
    WIRE_VERSION,
    Envelope,
    Header,
    Record,
    coordinates,
    decode,
    encode,
    headers_shown,
    own_name,
    read_headers,
)

__all__ = [
    "Failure",
    "OutgoingRecord",
    "ValueReference",
    "bare_parked",
    "clock_probe",
    "dead_letter",
    "dead_letter_by_reference",
    "delayed_record",
    "delivered",
    "due_ms",
    "hopped",
    "parked",
    "record_size_bytes",
    "redriven",
    "replays",
    "retried_target",
    "retry",
    "source_record",
    "value_reference",
]

MAX_FAIL_TEXT_BYTES: Final = 1_024
MAX_FAIL_CLASS_BYTES: Final = 200
MAX_PARK_REASON_BYTES: Final = 200
DEFAULT_MAX_DELAY_MS: Final = 40 * 86_400_000
"""Longest delay by default: 40 days."""

_FIRST_RETRY_LEVEL: Final = 3
_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
BY_REFERENCE: Final = r"\[by reference: sha256=([0-9a-f]{64}|-) size_bytes=([0-9]{1,19}|-)\] ?"
"""What `FAIL_TEXT` of a dead letter by reference begins with: SHA-256 and size of the value, `-` where it was None."""

_REFERENCE: Final = re.compile(BY_REFERENCE)
_KEPT_BY_REFERENCE_BYTES: Final = 16_384
_MAX_KEPT_ID_BYTES: Final = 512

# A record batch takes 61 bytes, a record at most 36 around its key and value, a header at most 10 around its own.
_BATCH_BYTES: Final = 61
_RECORD_BYTES: Final = 36
_HEADER_BYTES: Final = 10


@dataclass(slots=True)
class OutgoingRecord:
    """A record to produce.

    Attributes:
        topic: physical topic.
        partition: None: by key as the producer's partitioner (murmur2) has it, keyless any.
        key: as bytes, or None.
        value: as bytes, or None, which is not the same as `b""`.
        headers: in their order.
    """

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: list[Header]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a message was sent back.

    Attributes:
        exception_class: name of the exception class, or of the reason (`ReconsumeLater`, `Timeout`, `NoListener`).
        text: for a person; cut to 1 KiB when it is written.
        at_ms: when it failed, epoch ms.
    """

    exception_class: str
    text: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class ValueReference:
    """What a dead letter by reference says about the value that it does not hold.

    Attributes:
        sha256: of the value, in hex; None if the value was None.
        size_bytes: of the value; None if the value was None.
    """

    sha256: str | None
    size_bytes: int | None


# --- senders ---------------------------------------------------------------------------------------------------------


def source_record(
    message: Message, names: TopicNames, *, uniq_key: str, born_ms: int, partition: int | None = None
) -> OutgoingRecord:
    """The record of a message that is delivered at once.

    Args:
        message: its delay, if it has one, is not looked at.
        names: of the sender's namespace.
        uniq_key: the message's id, the same on every hop.
        born_ms: epoch ms of this first send.
        partition: chosen by the caller; None: by key.
    """
    ours = group_of(message.topic) is not None
    envelope = Envelope(
        shim=WIRE_VERSION if ours else None,
        uniq_key=uniq_key,
        tags=message.tag,
        keys=" ".join(message.keys) or None,
        born_timestamp_ms=born_ms,
        max_reconsume_times=message.max_reconsume_times,
        user=message.headers,
    )
    return OutgoingRecord(names.physical(message.topic), partition, message.key_bytes, message.body, encode(envelope))


def delayed_record(
    message: Message,
    names: TopicNames,
    levels: DelayLevels,
    *,
    uniq_key: str,
    born_ms: int,
    now_ms: int,
    lane: int,
    real_qid: int | None = None,
    max_delay_ms: int = DEFAULT_MAX_DELAY_MS,
) -> OutgoingRecord:
    """The record of a message by the delay it asks for.

    A level of 0 or less, a level of an empty table, a delay of 0 and no delay at all: delivered at once, the same as
    `source_record`. A level above the highest: the highest. A time in the past: the finest queue.

    Args:
        message: with at most one of its three delays.
        names: of the sender's namespace.
        levels: the sender's level table.
        uniq_key: the message's id, the same on every hop.
        born_ms: epoch ms of this first send.
        now_ms: the sender's clock in epoch ms; only chooses the first queue of a `deliver_at`, never the due time.
        lane: lane of the schedule topic.
        real_qid: partition of the target chosen by the caller; None: by key at delivery.
        max_delay_ms: longest delay allowed for `delay` and `deliver_at`, default 40 days.

    Raises:
        MessageError: the delay is longer than `max_delay_ms`, or the topic is one of the shim's own, to which no
            sender may schedule.
    """
    envelope = _scheduled(message, levels, max_delay_ms=max_delay_ms, now_ms=now_ms)
    if envelope is None:
        return source_record(message, names, uniq_key=uniq_key, born_ms=born_ms, partition=real_qid)
    if group_of(message.topic) is not None or names.is_ours(message.topic):
        raise MessageError(f"{message.topic} takes no delayed messages from senders: send them to an ordinary topic")
    names.physical(message.topic)
    if envelope.delay_level is not None:
        partition = levels.partition(envelope.delay_level, lane)
    elif envelope.delay_ms is not None:
        partition = levels.queue_for(envelope.delay_ms, lane)
    else:
        partition = levels.queue_for((envelope.deliver_at_ms or 0) - now_ms, lane)
    envelope.real_topic = message.topic
    envelope.real_qid = real_qid
    envelope.uniq_key = uniq_key
    envelope.tags = message.tag
    envelope.keys = " ".join(message.keys) or None
    envelope.born_timestamp_ms = born_ms
    envelope.max_reconsume_times = message.max_reconsume_times
    envelope.user = message.headers
    return OutgoingRecord(names.schedule, partition, message.key_bytes, message.body, encode(envelope))


def _scheduled(message: Message, levels: DelayLevels, *, max_delay_ms: int, now_ms: int) -> Envelope | None:
    """The scheduling part of a delayed message's envelope; None: it is not to be delayed."""
    if message.delay_level is not None:
        level = levels.clamp(message.delay_level)
        if level <= 0:
            return None
        return Envelope(shim=WIRE_VERSION, delay_level=level, delay_ms=levels.delay_ms(level))
    if message.deliver_at_ms is not None:
        _check_delay(message.deliver_at_ms - now_ms, max_delay_ms, "deliver_at")
        return Envelope(shim=WIRE_VERSION, deliver_at_ms=message.deliver_at_ms)
    if not message.delay_ms:
        return None
    _check_delay(message.delay_ms, max_delay_ms, "delay")
    return Envelope(shim=WIRE_VERSION, delay_ms=message.delay_ms)


def _check_delay(delay_ms: int, max_delay_ms: int, name: str) -> None:
    if delay_ms > max_delay_ms:
        raise MessageError(
            f"{name} is {delay_ms} ms from now, longer than max_delay ({max_delay_ms} ms): raise that setting on the "
            "sender and the worker, or keep the message elsewhere"
        )


# --- worker ----------------------------------------------------------------------------------------------------------


def due_ms(envelope: Envelope, append_ms: int, queue_delay_ms: int) -> int:
    """When a schedule record is due, in epoch ms on the broker's clock.

    Args:
        envelope: of the schedule record.
        append_ms: its append time.
        queue_delay_ms: delay of the queue it lies in: counts where the record names no time (a foreign producer).

    Returns:
        The due time; 2^63 - 1 where a forged delay would pass that.
    """
    if envelope.deliver_at_ms is not None:
        return envelope.deliver_at_ms
    return min(append_ms + (queue_delay_ms if envelope.delay_ms is None else envelope.delay_ms), _LONG_MAX)


def delivered(record: Record, envelope: Envelope, names: TopicNames) -> OutgoingRecord:
    """The record that reaches its target: scheduling headers off, identity filled, partition `REAL_QID` or by key.

    Whether the target may be written, exists, and has that partition is the caller's to check.

    Raises:
        MalformedRecordError: `REAL_TOPIC` is missing (`missing-header:REAL_TOPIC`) or no legal name
            (`bad-name:REAL_TOPIC`).
    """
    target = envelope.real_topic
    if target is None:
        raise MalformedRecordError(f"missing-header:{wire.REAL_TOPIC}", "the schedule record does not say where to")
    physical = _physical(names, target, wire.REAL_TOPIC)
    following = _following(record, envelope)
    partition = following.real_qid
    if group_of(target) is None:
        return _outgoing(record, physical, partition, _identity(following))
    _unschedule(following)
    following.shim = WIRE_VERSION
    return _outgoing(record, physical, partition, following)


def hopped(
    record: Record, envelope: Envelope, names: TopicNames, *, deliver_at_ms: int, partition: int
) -> OutgoingRecord:
    """The record that waits on in another queue.

    Args:
        record: the schedule record as fetched.
        envelope: its headers.
        names: of the worker's namespace.
        deliver_at_ms: its due time (`due_ms`), which takes the place of `DELAY_MS`.
        partition: the next queue (`DelayLevels.queue_for`, in the same lane).
    """
    following = _following(record, envelope)
    following.shim = WIRE_VERSION
    following.delay_ms = None
    following.deliver_at_ms = deliver_at_ms
    return _outgoing(record, names.schedule, partition, following)


def retried_target(
    record: Record, envelope: Envelope, names: TopicNames, *, partition: int, due_ms: int | None = None
) -> OutgoingRecord:
    """The record that waits in a queue because its target did not take it: `TARGET_TRIES` one higher.

    Args:
        record: the schedule record as fetched.
        envelope: its headers.
        names: of the worker's namespace.
        partition: the queue to wait in.
        due_ms: the due time to keep as `DELIVER_AT_MS`. None: as the headers say, or the append time.
    """
    kept_ms = _append_relative_ms(record, envelope) if due_ms is None else due_ms
    outgoing = envelope.copy()
    outgoing.target_tries = min((envelope.target_tries or 0) + 1, _INT_MAX)
    return hopped(record, outgoing, names, deliver_at_ms=kept_ms, partition=partition)


def _append_relative_ms(record: Record, envelope: Envelope) -> int:
    return due_ms(envelope, _timestamp_ms(record) or 0, 0)


def parked(record: Record, names: TopicNames, reason: str) -> OutgoingRecord:
    """The record for `rmq.parked`, made from whatever was read: it need not be decodable.

    All headers that can be read are kept as they are, malformed ones and repeats too, but for those a record can have
    only once and this hop replaces (`HOP_ID`, `PARK_REASON`, `PARK_FROM`). A header name that cannot be sent as it is
    (control characters, lone surrogates) is spelled out as `wire.travel_name` does. Readers of parked records look at
    headers one by one and do not `decode`.

    Args:
        record: the record as fetched, of any topic.
        names: of the worker's namespace.
        reason: short, stable, machine-readable: `MalformedRecordError.reason`, or the worker's.
    """
    where = coordinates(record)
    raw = [
        (_sendable(name), value if value is None or isinstance(value, bytes) else str(value).encode())
        for name, value in headers_shown(record)
        if name not in _REPLACED_BY_PARKING
    ]
    first = Envelope(
        uniq_key=None if any(name == wire.UNIQ_KEY for name, _ in raw) else where,
        hop_id=where,
        park_reason=_cut(reason, MAX_PARK_REASON_BYTES),
        park_from=where,
    )
    return OutgoingRecord(names.parked, None, record.key(), record.value(), encode(first) + raw)


_REPLACED_BY_PARKING: Final = frozenset({wire.HOP_ID, wire.PARK_REASON, wire.PARK_FROM})


def _sendable(name: str) -> str:
    return wire.travel_name(name.encode("utf-8", "backslashreplace").decode()) if not name.isprintable() else name


def bare_parked(outgoing: OutgoingRecord) -> OutgoingRecord:
    """A record for `rmq.parked` that was too large for it, with nothing but why and where the record lies.

    That one stays there until retention takes it.
    """
    headers = [header for header in outgoing.headers if header[0] in _REPLACED_BY_PARKING]
    return OutgoingRecord(outgoing.topic, outgoing.partition, None, None, headers)


def clock_probe(names: TopicNames, *, partition: int, mark: str = "1") -> OutgoingRecord:
    """The worker's probe of a leader's clock: nothing but the header `CLOCK`; readers of the schedule topic skip it.

    Args:
        names: of the worker's namespace.
        partition: a partition that the leader in question leads.
        mark: value of the header, to tell one's own probes.
    """
    return OutgoingRecord(names.schedule, partition, None, None, encode(Envelope(clock=mark)))


# --- consumers -------------------------------------------------------------------------------------------------------


def retry(
    record: Record,
    names: TopicNames,
    levels: DelayLevels,
    *,
    group: str,
    trusted: bool,
    failure: Failure,
    reconsume_times: int,
    level: int | None,
    delay_ms: int | None,
    lane: int,
    envelope: Envelope | None = None,
) -> OutgoingRecord:
    """The schedule record that brings a failed message back to its group.

    Args:
        record: the failed record as fetched.
        names: of the consumer's namespace.
        levels: the consumer's level table.
        group: the group it failed in.
        trusted: the record comes from the group's own retry topic.
        failure: why; replaces a former failure's headers.
        reconsume_times: failed attempts *including* this one: the count before it + 1.
        level: level the listener asked for, 1 or more, clamped; None (without `delay_ms`): 3 + the count before.
        delay_ms: delay the listener asked for, at most 40 days: a worker parks what is to wait longer. None: a level.
        lane: lane of the schedule topic.
        envelope: the record's headers, if its caller has decoded them; None: they are decoded.

    Raises:
        MalformedRecordError: trusted, and the record breaks the wire format: park it.
        MessageError: both level and delay, or a count, level or delay that is out of range.
    """
    if level is not None and delay_ms is not None:
        raise MessageError("a retry has a level or a delay, not both")
    if reconsume_times < 1 or (level is not None and level < 1) or (delay_ms is not None and delay_ms < 0):
        raise MessageError(
            f"no retry with reconsume_times={reconsume_times}, level={level}, delay_ms={delay_ms}: a count includes "
            "this failure, a level is 1 or more, a delay 0 or more"
        )
    if envelope is None:
        envelope = decode(read_headers(record), trusted=trusted)
    scheduling = [(wire.REAL_TOPIC, retry_topic(group).encode())]
    if delay_ms is None:
        clamped = levels.clamp(_FIRST_RETRY_LEVEL + reconsume_times - 1 if level is None else level)
        delay_ms = levels.delay_ms(clamped)
        if clamped > 0:
            scheduling.append((wire.DELAY, b"%d" % clamped))
            partition = levels.partition(clamped, lane)
        else:
            partition = levels.queue_for(delay_ms, lane)
    else:
        delay_ms = min(delay_ms, DEFAULT_MAX_DELAY_MS)
        partition = levels.queue_for(delay_ms, lane)
    scheduling.append((wire.DELAY_MS, _digits(wire.DELAY_MS, delay_ms)))
    headers = _failed(
        record, envelope, scheduling, group=group, trusted=trusted, failure=failure, reconsume_times=reconsume_times
    )
    return OutgoingRecord(names.schedule, partition, record.key(), record.value(), headers)


def dead_letter(
    record: Record, names: TopicNames, *, group: str, trusted: bool, failure: Failure, reconsume_times: int
) -> OutgoingRecord:
    """The record for the group's dead-letter topic.

    Args:
        record: the failed record as fetched.
        names: of the consumer's namespace.
        group: the group it failed in.
        trusted: the record comes from the group's own retry topic.
        failure: why.
        reconsume_times: failed attempts *including* this one: limit + 1 at the limit, 17 by default.

    Raises:
        MalformedRecordError: trusted, and the record breaks the wire format: park it.
    """
    envelope = decode(read_headers(record), trusted=trusted)
    headers = _failed(
        record, envelope, (), group=group, trusted=trusted, failure=failure, reconsume_times=reconsume_times
    )
    return OutgoingRecord(names.physical(dead_letter_topic(group)), None, record.key(), record.value(), headers)


def dead_letter_by_reference(
    record: Record, names: TopicNames, *, group: str, trusted: bool, failure: Failure, reconsume_times: int
) -> OutgoingRecord:
    """The dead letter of a record that no further hop can take: all that says where it is, and no value.

    Coordinates stand in `HOP_ID` and, for the first delivery, `ORIGIN_MESSAGE_ID`. Size and SHA-256 of the value
    stand at the start of `FAIL_TEXT` (the wire format has no header of their own for them), where `value_reference`
    reads them. Key, `TAGS`, `KEYS` and user headers are kept if they are at most 16 KiB together, otherwise left out;
    a foreign `UNIQ_KEY` of more than 512 bytes gives way to the coordinates, and so does a history that long
    (`RETRY_TOPIC`, `ORIGIN_MESSAGE_ID`, `REPLAY_ID`): it was forged. So this record always fits.

    Args and errors: as `dead_letter`.
    """
    value = record.value()
    reference = (
        "[by reference: sha256=- size_bytes=-]"
        if value is None
        else f"[by reference: sha256={hashlib.sha256(value).hexdigest()} size_bytes={len(value)}]"
    )
    failure = Failure(failure.exception_class, f"{reference} {failure.text}", failure.at_ms)
    envelope = decode(read_headers(record), trusted=trusted)
    key = record.key()
    kept = len(key or b"") + sum(_header_bytes(name, content) for name, content in envelope.user)
    kept += len(_bytes(envelope.tags)) + len(_bytes(envelope.keys))
    if kept > _KEPT_BY_REFERENCE_BYTES:
        key = envelope.tags = envelope.keys = None
        envelope.user = ()
    for name in ("retry_topic", "origin_message_id", "replay_id"):
        if len(_bytes(getattr(envelope, name))) > _MAX_KEPT_ID_BYTES:
            setattr(envelope, name, None)
    if len(_bytes(envelope.uniq_key)) > _MAX_KEPT_ID_BYTES:
        envelope.uniq_key = envelope.origin_message_id
    headers = _failed(
        record, envelope, (), group=group, trusted=trusted, failure=failure, reconsume_times=reconsume_times
    )
    return OutgoingRecord(names.physical(dead_letter_topic(group)), None, key, None, headers)


def value_reference(envelope: Envelope) -> ValueReference | None:
    """What a dead letter by reference says about its value; None for an ordinary dead letter."""
    match = _REFERENCE.match(envelope.fail_text or "")
    if match is None:
        return None
    if match[1] == "-" or match[2] == "-":
        return ValueReference(None, None)
    return ValueReference(match[1], int(match[2]))


def redriven(
    record: Record,
    names: TopicNames,
    *,
    replay_id: str,
    group: str | None = None,
    to_source: bool = False,
    envelope: Envelope | None = None,
) -> OutgoingRecord:
    """The record that gives a dead letter another run: counted from 0, identity kept.

    To the group's retry topic it keeps where it first failed and why; only that group sees it. To the source topic
    (and so to every group) it carries identity, `REPLAY_ID`, `REPLAY_COUNT` and the user's headers under their own
    names.

    Args:
        record: the dead letter as fetched.
        names: of the namespace.
        replay_id: id of this redrive, at most 64 bytes, so that its deliveries are not taken for repeats.
        group: group to redrive to. None: the one in `CONSUMER_GROUP`.
        to_source: send it to the topic of its first delivery instead.
        envelope: what was read of its headers by other rules than the wire format's (another project's dead letter).
            None: they are decoded.

    Raises:
        MalformedRecordError: the dead letter breaks the wire format, is by reference (`by-reference`: there is no
            value to send), or does not say where to (`missing-header:<name>`, `bad-name:<name>`).
        ConfigError: `group` is no legal name.
    """
    if envelope is None:
        envelope = decode(read_headers(record), trusted=True)
    if record.value() is None and value_reference(envelope) is not None:
        raise MalformedRecordError(
            "by-reference",
            f"{coordinates(record)} has no value, only a reference to {envelope.origin_message_id}",
        )
    following = _following(record, envelope)
    _unschedule(following)
    following.replay_id = _cut(replay_id, 64)
    following.replay_count = min(replays(envelope) + 1, _INT_MAX)
    if to_source:
        return _to_source(record, names, following)
    if group is None:
        if envelope.consumer_group is None:
            raise MalformedRecordError(f"missing-header:{wire.CONSUMER_GROUP}", "the dead letter names no group")
        target = _physical(names, RETRY_PREFIX + envelope.consumer_group, wire.CONSUMER_GROUP)
    else:
        target = names.retry(group)
        following.consumer_group = group
    following.shim = WIRE_VERSION
    following.reconsume_times = 0
    return _outgoing(record, target, None, following)


def replays(envelope: Envelope) -> int:
    """How often a letter was redriven.

    One that was redriven to its source topic comes back with `REPLAY_COUNT` as a header of the user's, since nothing
    but its identity is believed there: here a forged count can only hold a letter back.
    """
    carried = dict(envelope.user).get(wire.USER_PREFIX + wire.REPLAY_COUNT) or b"0"
    count = int(carried) if carried.isdigit() and len(carried) <= _LONGEST_COUNT else 0
    return min(max(envelope.replay_count or 0, count), _INT_MAX)


_LONGEST_COUNT: Final = 10


def _to_source(record: Record, names: TopicNames, following: Envelope) -> OutgoingRecord:
    if following.retry_topic is None:
        raise MalformedRecordError(
            f"missing-header:{wire.RETRY_TOPIC}", "the dead letter does not name its source topic"
        )
    replaced = {wire.HOP_ID, wire.REPLAY_ID, wire.REPLAY_COUNT}
    own = ((own_name(name), value) for name, value in following.user)
    source = _identity(following)
    source.replay_id = following.replay_id
    source.replay_count = following.replay_count
    source.user = tuple(header for header in own if header[0] not in replaced)
    return _outgoing(record, _physical(names, following.retry_topic, wire.RETRY_TOPIC), None, source)


# --- what hops have in common ----------------------------------------------------------------------------------------


def record_size_bytes(outgoing: OutgoingRecord) -> int:
    """Upper bound of what a record takes on the wire in a batch of its own, uncompressed, in bytes.

    Source: record batch format 2 (`DefaultRecordBatch`, `DefaultRecord`).
    """
    size = _BATCH_BYTES + _RECORD_BYTES + len(outgoing.key or b"") + len(outgoing.value or b"")
    return size + sum(_header_bytes(name, value) for name, value in outgoing.headers)


def _header_bytes(name: str, value: bytes | None) -> int:
    return _HEADER_BYTES + len(name.encode("utf-8", "surrogateescape")) + len(value or b"")


def _outgoing(record: Record, topic: str, partition: int | None, envelope: Envelope) -> OutgoingRecord:
    return OutgoingRecord(topic, partition, record.key(), record.value(), encode(envelope))


def _following(record: Record, envelope: Envelope) -> Envelope:
    """A copy for the next hop: identity filled in, `HOP_ID` this record."""
    following = envelope.copy()
    where = coordinates(record)
    following.hop_id = where
    if not following.uniq_key:  # an empty one identifies nothing
        following.uniq_key = where
    if following.born_timestamp_ms is None:
        following.born_timestamp_ms = _timestamp_ms(record)
    return following


def _failed(
    record: Record,
    envelope: Envelope,
    scheduling: Iterable[Header],
    *,
    group: str,
    trusted: bool,
    failure: Failure,
    reconsume_times: int,
) -> list[Header]:
    """The headers of a failed message's next hop, in the order of the wire format.

    Written out, since a failure costs what its hop costs: by way of a changed copy of the envelope it took 6 µs, so it
    takes 1.5 (our measurement).
    """
    where = coordinates(record).encode()
    born_ms = _timestamp_ms(record) if envelope.born_timestamp_ms is None else envelope.born_timestamp_ms
    first = envelope.retry_topic
    if first is None:
        first = retry_topic(group) if trusted else record.topic()
    headers: list[Header] = [_VERSION, *scheduling]
    headers.append((wire.UNIQ_KEY, _bytes(envelope.uniq_key) if envelope.uniq_key else where))
    if envelope.tags is not None:
        headers.append((wire.TAGS, _bytes(envelope.tags)))
    if envelope.keys is not None:
        headers.append((wire.KEYS, _bytes(envelope.keys)))
    if born_ms is not None:
        headers.append((wire.BORN_TIMESTAMP, b"%d" % born_ms))
    if first is not None:
        headers.append((wire.RETRY_TOPIC, _bytes(first)))
    origin = envelope.origin_message_id
    headers += (
        (wire.ORIGIN_MESSAGE_ID, where if origin is None else _bytes(origin)),
        (wire.RECONSUME_TIMES, b"%d" % min(reconsume_times, _INT_MAX)),
        (wire.CONSUMER_GROUP, _bytes(group)),
        (wire.FAIL_CLASS, _cut_bytes(failure.exception_class, MAX_FAIL_CLASS_BYTES)),
        (wire.FAIL_TEXT, _cut_bytes(failure.text, MAX_FAIL_TEXT_BYTES)),
        (wire.FAIL_AT_MS, _digits(wire.FAIL_AT_MS, failure.at_ms)),
        (wire.HOP_ID, where),
    )
    if envelope.max_reconsume_times is not None:
        headers.append((wire.MAX_RECONSUME_TIMES, b"%d" % envelope.max_reconsume_times))
    if envelope.replay_id is not None:
        headers.append((wire.REPLAY_ID, _bytes(envelope.replay_id)))
    if envelope.replay_count is not None:
        headers.append((wire.REPLAY_COUNT, b"%d" % envelope.replay_count))
    headers += envelope.user
    return headers


_VERSION: Final = (wire.SHIM, b"%d" % WIRE_VERSION)


def _digits(name: str, value: int) -> bytes:
    if 0 <= value <= _LONG_MAX:
        return b"%d" % value
    raise MessageError(f"{name} is {value}; it is 0 to {_LONG_MAX}")


def _identity(following: Envelope) -> Envelope:
    """What the shim's headers say on a source or target topic: who it is and, from a hop, where from."""
    return Envelope(
        uniq_key=following.uniq_key,
        tags=following.tags,
        keys=following.keys,
        born_timestamp_ms=following.born_timestamp_ms,
        hop_id=following.hop_id,
        max_reconsume_times=following.max_reconsume_times,
        user=following.user,
    )


def _unschedule(envelope: Envelope) -> None:
    """Take off what has a meaning on the schedule topic or a parked record only."""
    envelope.real_topic = None
    envelope.real_qid = None
    envelope.delay_level = None
    envelope.delay_ms = None
    envelope.deliver_at_ms = None
    envelope.target_tries = None
    envelope.clock = None
    envelope.park_reason = None
    envelope.park_from = None


def _physical(names: TopicNames, logical: str, header: str) -> str:
    """The physical name of a logical one that a record's header gave."""
    try:
        return names.physical(logical)
    except ConfigError as error:
        raise MalformedRecordError(f"bad-name:{header}", str(error)) from error


def _timestamp_ms(record: Record) -> int | None:
    kind, timestamp_ms = record.timestamp()
    return timestamp_ms if kind and timestamp_ms >= 0 else None


def _cut(text: str, limit_bytes: int) -> str:
    """The text within so many bytes of UTF-8, whole characters only; what is no Unicode is spelled out."""
    return _cut_bytes(text, limit_bytes).decode()


def _cut_bytes(text: str, limit_bytes: int) -> bytes:
    encoded = text.encode("utf-8", "backslashreplace")
    return encoded if len(encoded) <= limit_bytes else encoded[:limit_bytes].decode("utf-8", "ignore").encode()


def _bytes(text: str | None) -> bytes:
    return (text or "").encode("utf-8", "surrogateescape")
