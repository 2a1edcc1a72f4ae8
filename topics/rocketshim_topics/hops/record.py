"""What all hops share: the record to produce, its size, and the parts of an envelope that a hop keeps or drops."""

from dataclasses import dataclass
from typing import Final

from rocketshim_topics.errors import ConfigError, MalformedRecordError, MessageError
from rocketshim_topics.limits import LONG_MAX
from rocketshim_topics.names import TopicNames
from rocketshim_topics.wire import Envelope, Header, Record, coordinates, encode

__all__ = [
    "DEFAULT_MAX_DELAY_MS",
    "OutgoingRecord",
    "cut",
    "cut_bytes",
    "digits",
    "drop_scheduling",
    "drop_timer",
    "header_size_bytes",
    "identity_only",
    "next_envelope",
    "outgoing_record",
    "physical_name",
    "record_size_bytes",
    "text_bytes",
    "timestamp_ms_of",
]

DEFAULT_MAX_DELAY_MS: Final = 40 * 86_400_000
"""Default of the longest delay: 40 days."""


@dataclass(slots=True)
class OutgoingRecord:
    """A record to produce.

    Attributes:
        topic: physical topic.
        partition: None: the producer's partitioner chooses: murmur2 of the key, any partition without a key.
        key: as bytes, or None.
        value: as bytes, or None. None is not the same as `b""`.
        headers: in the order in which they are written.
    """

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: list[Header]


# A record batch takes 61 bytes, a record at most 36 around its key and value, a header at most 10 around its own.
_BATCH_BYTES: Final = 61
_RECORD_BYTES: Final = 36
_HEADER_BYTES: Final = 10


def record_size_bytes(outgoing: OutgoingRecord) -> int:
    """Return an upper bound of the record's size on the wire, in bytes: uncompressed and in a batch of its own.

    Source: record batch format 2 (`DefaultRecordBatch`, `DefaultRecord`).
    """
    size = _BATCH_BYTES + _RECORD_BYTES + len(outgoing.key or b"") + len(outgoing.value or b"")
    return size + sum(header_size_bytes(name, value) for name, value in outgoing.headers)


def header_size_bytes(name: str, value: bytes | None) -> int:
    """Return an upper bound of a header's size on the wire, in bytes."""
    return _HEADER_BYTES + len(name.encode("utf-8", "surrogateescape")) + len(value or b"")


def outgoing_record(record: Record, topic: str, partition: int | None, envelope: Envelope) -> OutgoingRecord:
    """Return a record with the key and value of the fetched one and the headers of the envelope."""
    return OutgoingRecord(topic, partition, record.key(), record.value(), encode(envelope))


def next_envelope(record: Record, envelope: Envelope) -> Envelope:
    """Return a copy of the envelope for the next hop, with the identity filled in and `HOP_ID` set to this record."""
    following = envelope.copy()
    where = coordinates(record)
    following.hop_id = where
    if not following.uniq_key:  # an empty id identifies nothing
        following.uniq_key = where
    if following.born_timestamp_ms is None:
        following.born_timestamp_ms = timestamp_ms_of(record)
    return following


def identity_only(following: Envelope) -> Envelope:
    """Return the headers that a record keeps on a source or target topic: its identity and where it came from."""
    return Envelope(
        uniq_key=following.uniq_key,
        tags=following.tags,
        keys=following.keys,
        born_timestamp_ms=following.born_timestamp_ms,
        hop_id=following.hop_id,
        max_reconsume_times=following.max_reconsume_times,
        user=following.user,
    )


def drop_scheduling(envelope: Envelope) -> None:
    """Drop the headers that have a meaning only on the schedule topic or on a parked record."""
    envelope.real_topic = None
    envelope.real_qid = None
    envelope.delay_level = None
    envelope.delay_ms = None
    envelope.deliver_at_ms = None
    envelope.target_tries = None
    envelope.target_timestamp_ms = None
    drop_timer(envelope)
    envelope.clock = None
    envelope.park_reason = None
    envelope.park_from = None


def drop_timer(envelope: Envelope) -> None:
    """Drop the headers of a named timer: the record has no name any more."""
    envelope.timer = envelope.timer_do = None
    envelope.timer_set_at = envelope.timer_at_most_ms = envelope.timer_since_ms = None
    envelope.timer_repeat = envelope.timer_tz = envelope.timer_late = None
    envelope.timer_asks = envelope.timer_asked = envelope.timer_era = None


def physical_name(names: TopicNames, logical: str, header: str) -> str:
    """Return the physical name of a logical topic name that a record's header gives.

    Raises:
        MalformedRecordError: `bad-name:<header>`: Kafka does not allow the name.
    """
    try:
        return names.physical(logical)
    except ConfigError as error:
        raise MalformedRecordError(f"bad-name:{header}", str(error)) from error


def timestamp_ms_of(record: Record) -> int | None:
    """Return the timestamp of a fetched record in epoch ms; None if it has none."""
    kind, timestamp_ms = record.timestamp()
    return timestamp_ms if kind and timestamp_ms >= 0 else None


def digits(name: str, value: int) -> bytes:
    """Return a number as a header value; raise `MessageError` if it is out of range."""
    if 0 <= value <= LONG_MAX:
        return b"%d" % value
    raise MessageError(f"{name} is {value}; it is 0 to {LONG_MAX}")


def cut(text: str, limit_bytes: int) -> str:
    """Return the text cut to `limit_bytes` of UTF-8, at a character boundary. Lone surrogates are escaped."""
    return cut_bytes(text, limit_bytes).decode()


def cut_bytes(text: str, limit_bytes: int) -> bytes:
    """Return `cut` of a text, encoded."""
    encoded = text.encode("utf-8", "backslashreplace")
    return encoded if len(encoded) <= limit_bytes else encoded[:limit_bytes].decode("utf-8", "ignore").encode()


def text_bytes(text: str | None) -> bytes:
    """Return a header value as it was decoded, encoded again; None becomes empty."""
    return (text or "").encode("utf-8", "surrogateescape")
