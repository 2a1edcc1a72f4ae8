"""Decode dead letters by the format of their topic.

rocketshim's own topics contain dead letters in its wire format. Any other topic contains dead letters of other projects
(`DIALECTS`; RocketMQ's properties are no Kafka headers, so it has none), or records in no known format. The latter can
be shown and discarded, but not sent again, because they do not name a target.

Some dialects do not copy the headers, and perhaps not the body. Their dead letters are completed from the record of the
first delivery, if a way to fetch records is given. The dead letter is malformed with `source-gone` if that record no
longer exists and the dead letter has no body.

`DIALECTS` has one row per dialect. A record is in the first dialect of the table whose topic header it carries. Its
headers are decoded into an `Envelope`, as if the dead letter were rocketshim's own, so that all tools work on both. A
message without an id gets the coordinates of its first delivery as its id, as rocketshim's consumer would have done.
The dialect's own headers are removed: a dead letter that is sent again starts from scratch in its framework, too.

Numbers are big-endian two's complement of any length (Java's `ByteBuffer`, and Spring's `BigInteger.toByteArray` of six
bytes) where the row says so, and otherwise decimal text. A value that is neither is ignored. If a header occurs several
times, the row says which one counts: Spring appends one at each hop, SmallRye inserts its own before the record's.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from rocketshim.errors import ConfigError, MalformedRecordError
from rocketshim_topics import Envelope, Record, TopicNames, decode
from rocketshim_topics.hops import MAX_FAIL_CLASS_BYTES, MAX_FAIL_TEXT_BYTES
from rocketshim_topics.names import check_topic
from rocketshim_topics.wire import Header, MadeRecord, read_headers

__all__ = ["DIALECTS", "DeadLetterRecord", "Decoder", "Dialect", "ForeignLetter", "read_foreign"]

Numbers = Literal["text", "binary", "either"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one project marks its dead letters. Each header is a tuple of names; the first one present counts."""

    name: str  # name to display
    topic: tuple[str, ...]  # topic of the first delivery; a record without it is not in this dialect
    partition: tuple[str, ...]  # partition and offset of the first delivery
    offset: tuple[str, ...]
    own: tuple[str, ...]  # prefixes of the names of the dialect's headers
    numbers: Numbers = "text"  # the encoding of numbers. `either`: text if all bytes are digits.
    counts: Literal["first", "last"] = "last"  # which of several headers with the same name counts
    group: tuple[str, ...] = ()  # the consumer group, or its equivalent
    cause: tuple[str, ...] = ()  # exception class of the failure
    text: tuple[str, ...] = ()  # message of the failure
    failed_at: tuple[str, ...] = ()  # time of the failure: ISO 8601, epoch ms, or epoch seconds with a fraction
    attempts: tuple[str, ...] = ()  # number of deliveries
    attempts_ahead: int = 0  # `attempts` minus the number of failures (1: it counts the next attempt)
    by_reference: bool = False  # headers and perhaps the body are not copied; the record of the first delivery has them


_SPRING_OWN: Final = ("kafka_dlt-", "kafka_original-", "kafka_exception-", "kafka_key-exception-", "retry_topic-")

DIALECTS: Final[tuple[Dialect, ...]] = (
    Dialect(
        "Spring Kafka dead-letter topic",
        topic=("kafka_dlt-original-topic",),
        partition=("kafka_dlt-original-partition",),
        offset=("kafka_dlt-original-offset",),
        own=(*_SPRING_OWN, "kafka_deliveryAttempt"),
        numbers="binary",
        group=("kafka_dlt-original-consumer-group",),
        cause=("kafka_dlt-exception-cause-fqcn", "kafka_dlt-exception-fqcn", "kafka_dlt-key-exception-fqcn"),
        text=("kafka_dlt-exception-message", "kafka_dlt-key-exception-message"),
        attempts=("kafka_deliveryAttempt",),
    ),
    Dialect(
        "Spring Kafka retry topics",
        topic=("kafka_original-topic",),
        partition=("kafka_original-partition",),
        offset=("kafka_original-offset",),
        own=(*_SPRING_OWN, "kafka_deliveryAttempt"),
        numbers="binary",
        group=("kafka_dlt-original-consumer-group",),
        cause=("kafka_exception-cause-fqcn", "kafka_exception-fqcn", "kafka_key-exception-fqcn"),
        text=("kafka_exception-message", "kafka_key-exception-message"),
        attempts=("retry_topic-attempts",),
        attempts_ahead=1,
    ),
    Dialect(
        "Kafka Connect",
        topic=("__connect.errors.topic",),
        partition=("__connect.errors.partition",),
        offset=("__connect.errors.offset",),
        own=("__connect.errors.",),
        group=("__connect.errors.connector.name",),
        cause=("__connect.errors.exception.class.name",),
        text=("__connect.errors.exception.message",),
    ),
    Dialect(
        "Kafka Streams",
        topic=("__streams.errors.topic",),
        partition=("__streams.errors.partition",),
        offset=("__streams.errors.offset",),
        own=("__streams.errors.",),
        cause=("__streams.errors.exception",),
        text=("__streams.errors.message",),
    ),
    Dialect(
        "Kafka share group",
        topic=("__dlq.errors.topic",),
        partition=("__dlq.errors.partition",),
        offset=("__dlq.errors.offset",),
        own=("__dlq.errors.", "_dlq.errors."),  # the second as in the draft KIP-1317
        group=("__dlq.errors.group",),
        text=("__dlq.errors.message",),
        attempts=("__dlq.errors.delivery.count",),
        by_reference=True,
    ),
    Dialect(
        "SmallRye",
        topic=("dead-letter-topic",),
        partition=("dead-letter-partition",),
        offset=("dead-letter-offset",),
        own=("dead-letter-",),
        counts="first",
        cause=("dead-letter-exception-class-name",),
        text=("dead-letter-reason",),
    ),
    Dialect(
        "x-original",
        topic=("x-original-topic",),
        partition=("x-original-partition",),
        offset=("x-original-offset",),
        own=(
            *("x-original-", "x-exception-", "x-error", "x-failure-reason", "x-failed-at"),
            *("x-attempts", "x-retry-count", "x-retry-attempts"),
        ),
        numbers="either",
        cause=("x-exception-fqcn", "x-error-class", "x-error-type", "x-error-name"),
        text=("x-exception-message", "x-error-message", "x-error", "x-failure-reason"),
        failed_at=("x-failed-at",),
        attempts=("x-attempts", "x-retry-count", "x-retry-attempts"),
    ),
    Dialect(
        "django-kafka",
        topic=("DEAD_LETTER_MESSAGE_TOPIC",),
        partition=("DEAD_LETTER_MESSAGE_PARTITION",),
        offset=("DEAD_LETTER_MESSAGE_OFFSET",),
        own=("DEAD_LETTER_", "RETRY_MESSAGE", "RETRY_TIMESTAMP"),
        text=("DEAD_LETTER_SUMMARY",),
    ),
    Dialect(
        "Karafka",
        topic=("source_topic",),
        partition=("source_partition",),
        offset=("source_offset",),
        own=("source_topic", "source_partition", "source_offset", "source_consumer_group", "source_attempts"),
        group=("source_consumer_group",),
        attempts=("source_attempts",),
    ),
)
"""All supported dialects, in the order in which they are tried."""


@dataclass(frozen=True, slots=True)
class ForeignLetter:
    """A decoded dead letter of another project.

    * `source`: partition and offset of the first delivery in `envelope.retry_topic`; None: not given.
    """

    dialect: Dialect  # its format
    envelope: Envelope  # its headers as rocketshim's fields, the user's headers included
    source: tuple[int, int] | None


def read_foreign(headers: Sequence[Header] | None) -> ForeignLetter | None:
    """Decode a dead letter of another project; return None if it is in none of the dialects.

    Decides: Which format has a dead letter, and whose is it? The first row of its table whose header is there;
        `admin.dead_letter_formats.Decoder` for our own.
    """
    for dialect in DIALECTS:
        found = _Headers(headers or (), dialect)
        topic = found.text(dialect.topic)
        if topic is not None:
            return _letter(found, dialect, topic)
    return None


def _letter(found: "_Headers", dialect: Dialect, topic: str) -> ForeignLetter:
    user_headers = [each for each in found.headers if not each[0].startswith(dialect.own)]
    envelope = decode(user_headers, trusted=False)
    partition, offset = found.number(dialect.partition), found.number(dialect.offset)
    source = None if partition is None or offset is None else (partition, offset)
    origin = None if source is None else f"{topic}/{partition}/{offset}"
    attempts = found.number(dialect.attempts)
    envelope.uniq_key = envelope.uniq_key or origin
    envelope.retry_topic = topic
    envelope.origin_message_id = origin
    envelope.consumer_group = found.text(dialect.group)
    envelope.fail_class = (found.text(dialect.cause) or "")[:MAX_FAIL_CLASS_BYTES] or None
    envelope.fail_text = (found.text(dialect.text) or "")[:_FAIL_TEXT_CHARS] or None
    envelope.fail_at_ms = _instant_ms(found.text(dialect.failed_at))
    if attempts is not None:
        envelope.reconsume_times = min(max(0, attempts - dialect.attempts_ahead), 2**31 - 1)
    return ForeignLetter(dialect, envelope, source)


class _Headers:
    """Headers, read by the rules of one dialect."""

    def __init__(self, headers: Sequence[Header], dialect: Dialect) -> None:
        self.headers = headers
        self._numbers = dialect.numbers
        self._found: dict[str, bytes] = {}
        for name, value in headers if dialect.counts == "last" else reversed(headers):
            if value is not None and name.startswith(dialect.own):
                self._found[name] = value

    def text(self, names: tuple[str, ...]) -> str | None:
        value = self._value(names)
        return None if value is None else value.decode("utf-8", "replace")

    def number(self, names: tuple[str, ...]) -> int | None:
        """Return a number from 0 to 2^63 - 1; None if the header is missing or has no such number."""
        value = self._value(names)
        if value is None or not 1 <= len(value) <= _LONGEST_NUMBER:
            return None
        if self._numbers == "text" or (self._numbers == "either" and value.isdigit()):
            number = int(value) if value.isdigit() else -1
        else:
            number = int.from_bytes(value, "big", signed=True) if len(value) <= 8 else -1
        return number if 0 <= number < 2**63 else None

    def _value(self, names: tuple[str, ...]) -> bytes | None:
        return next((self._found[name] for name in names if name in self._found), None)


_LONGEST_NUMBER: Final = 19
_FAIL_TEXT_CHARS: Final = MAX_FAIL_TEXT_BYTES // 4  # a character has at most four bytes


def _instant_ms(text: str | None) -> int | None:
    """Parse ISO 8601, epoch ms, or epoch seconds with a fraction into epoch ms; None if it is none of these."""
    try:
        if text is None:
            return None
        if text.isdecimal():
            at_ms = int(text)
        elif "-" not in text:
            at_ms = round(float(text) * 1_000)
        else:
            at = datetime.fromisoformat(text)
            at_ms = round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1_000)
    except (ValueError, OverflowError):
        return None
    return at_ms if 0 <= at_ms < 2**63 else None


Fetch = Callable[[str, int, int], Any]
"""Returns the record at topic, partition and offset; None if it does not exist (any more)."""


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A dead letter, decoded as far as possible.

    * `record`: what would be sent again: same topic, partition and offset, with key and value of the first delivery.
    """

    message: Record  # the record as read
    record: Record
    envelope: Envelope  # the decoded headers; empty if the record breaks the wire format
    malformed: str | None = None  # why it could not be decoded; None: it could
    dialect: str | None = None  # name of the other project's format; None: rocketshim's own


class Decoder:
    """Decodes the dead letters of one topic; without `fetch`, which reads another topic, none is completed."""

    def __init__(self, names: TopicNames, topic: str, *, fetch: Fetch | None = None) -> None:
        self.topic = topic
        self.is_ours = names.is_ours(topic)
        self._fetch = fetch

    def open(self, message: Record) -> DeadLetterRecord:
        """Decode a record of the topic."""
        try:
            headers = read_headers(message)
            if self.is_ours:
                return DeadLetterRecord(message, message, decode(headers, trusted=True))
        except MalformedRecordError as error:
            return DeadLetterRecord(message, message, Envelope(), error.reason, None if self.is_ours else "unknown")
        found = read_foreign(headers)
        if found is None:
            return DeadLetterRecord(message, message, decode(headers, trusted=False), dialect="unknown")
        name, envelope = found.dialect.name, found.envelope
        if not found.dialect.by_reference or self._fetch is None or found.source is None:
            return DeadLetterRecord(message, message, envelope, dialect=name)
        try:
            first = self._fetch(check_topic(envelope.retry_topic or ""), *found.source)
        except ConfigError:
            first = None
        if first is None:
            return DeadLetterRecord(
                message, message, envelope, None if message.value() is not None else "source-gone", name
            )
        try:
            headers = read_headers(first)
            original = decode(headers, trusted=False)
        except MalformedRecordError as error:
            return DeadLetterRecord(message, message, envelope, error.reason, name)
        envelope.user, envelope.tags, envelope.keys = original.user, original.tags, original.keys
        envelope.uniq_key = original.uniq_key or envelope.uniq_key
        envelope.born_timestamp_ms = original.born_timestamp_ms
        record = MadeRecord(
            message.topic(), message.partition(), message.offset(),
            key=first.key(), value=first.value(), headers=headers, timestamp=first.timestamp(),
        )  # fmt: skip
        return DeadLetterRecord(message, record, envelope, dialect=name)
