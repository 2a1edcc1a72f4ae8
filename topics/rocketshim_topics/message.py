"""Messages: `Message` is what a user sends, `MessageView` what a listener gets, `Origin` the coordinates of a record.

`Message` is checked when it is made, so that a bad message fails where it is written and is never half-sent.
`MessageView` is a view of a fetched record. Making a view stores two references and reads nothing; each attribute reads
what it needs. A view has no setters. Nothing that a listener does to it reaches the retry record, which is built from
the record as fetched.

Which headers a view believes depends on the record's topic (`rocketshim_topics.wire`). Pass `trusted=True` for records
of the group's own retry topic, or of another topic of the shim, after `wire.decode` has accepted them. The attributes
raise `MalformedRecordError` for a trusted record that breaks the wire format, and for any record whose headers are
needed and have a name that is not UTF-8.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import repeat, starmap
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic

from rocketshim_topics import wire
from rocketshim_topics.coordinates import RecordCoordinates as Origin
from rocketshim_topics.durations import Duration, parse_duration_ms
from rocketshim_topics.errors import (
    ConfigError,
    MalformedRecordError,
    MessageError,
    MessageTooLargeError,
    ReservedHeaderError,
)
from rocketshim_topics.limits import CONTROL_CHARACTERS, EPOCH_SECONDS, INT_MAX, LONG_MAX
from rocketshim_topics.names import SCHEDULE_TOPIC, check_group, check_topic, group_of
from rocketshim_topics.recurrence import Recurrence
from rocketshim_topics.wire import RESERVED, TAGS, Envelope, Header, Record, coordinates, own_name, read_headers

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    ValueT = TypeVar("ValueT", default=Any)
else:
    from typing import TypeVar

    ValueT = TypeVar("ValueT")

__all__ = ["FirstView", "Message", "MessageView", "Origin", "Properties", "first_views"]

MAX_PROPERTIES: Final = 64
MAX_PROPERTY_NAME_BYTES: Final = 128
MAX_PROPERTIES_BYTES: Final = 16_384
MAX_TIMER_BYTES: Final = 255
"""Longest name of a timer, in bytes of UTF-8."""

Properties = Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]]
"""User properties: a mapping, or pairs if order or repeated names matter. Text is sent as UTF-8."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send.

    Args:
        topic: logical topic: an ordinary one, `%RETRY%g` or `%DLQ%g`. For `SCHEDULE_TOPIC_XXXX` use a delay instead.
        body: bytes, `b""`, or None for a tombstone.
        key: Kafka's key; text is sent as UTF-8. None: no key. `keys` has no influence on it.
        tag: one tag to filter by: not empty, no control characters, not `*`, no `||` and no blank at either end, since
            no subscription could select it. None: no tag.
        keys: business keys to search by, each without spaces. A single text is split at spaces.
        delay: deliver this long after the record is appended: `"90s"`, seconds, or a timedelta. 0: immediately.
        delay_level: deliver after the delay of this level of the table. Above the highest level: the highest. 0 or
            less: immediately.
        deliver_at: deliver at this time on the broker's clock: epoch milliseconds, or a datetime with a time zone. In
            the past: immediately. A number that looks like seconds (before 1973 as milliseconds) is refused.
        timer: a name for a message with a delay, 1 to 255 bytes without control characters. While it waits it can be
            cancelled (`Producer.cancel`), and another message with the same topic and name replaces it. None: no name.
        if_absent: with `timer`: this message is dropped if one with the name waits already.
        at_most: with `timer`: messages that replace each other are put off for this long at most, from the first one:
            `"2m"`, seconds, or a timedelta. None: without a limit.
        recallable: with a delay: the message waits under its id as name, and `SendResult.recall_handle` recalls it.
        cron: with `timer`, instead of a delay: the message recurs by this line of cron, `"0 9 * * 1-5"`, until it is
            cancelled or replaced.
        tz: with `cron`: its time zone, as `"Europe/Berlin"`. None: UTC.
        every: with `timer`, instead of a delay: the message recurs after this time, 1 s or more: `"15m"`, seconds, or a
            timedelta.
        late: with `cron` or `every`: `"once"` (None): what was missed is delivered once. `"skip"`: an occurrence is not
            delivered if the next one is due already.
        properties: at most 64 user properties; with tag and keys at most 16 KiB. Names have 1 to 128 bytes, no control
            characters, and are not reserved by the wire format.
        max_reconsume_times: limit of failed attempts for this message. The lower of it and the group's limit counts.
            None: the group's limit.

    Attributes:
        delay_ms: `delay` in ms, rounded up; None if not given.
        deliver_at_ms: `deliver_at` in epoch ms, rounded up; None if not given.
        at_most_ms: `at_most` in ms, rounded up; None if not given.
        recurrence: of `cron` or `every`; None if not given.
        headers: `properties` as they are written, in their order.

    Raises:
        ReservedHeaderError: a property name that the wire format reserves, or that is not a legal header name.
        MessageTooLargeError: properties, tag and keys have more than 16 KiB together.
        MessageError: any other illegal value. Nothing was sent.

    Thread-safety: immutable.
    """

    topic: str
    body: bytes | None
    key: bytes | str | None = field(default=None, kw_only=True)
    tag: str | None = field(default=None, kw_only=True)
    keys: Sequence[str] = field(default=(), kw_only=True)
    delay: Duration | None = field(default=None, kw_only=True)
    delay_level: int | None = field(default=None, kw_only=True)
    deliver_at: int | datetime | None = field(default=None, kw_only=True)
    timer: str | None = field(default=None, kw_only=True)
    if_absent: bool = field(default=False, kw_only=True)
    at_most: Duration | None = field(default=None, kw_only=True)
    recallable: bool = field(default=False, kw_only=True)
    cron: str | None = field(default=None, kw_only=True)
    tz: str | None = field(default=None, kw_only=True)
    every: Duration | None = field(default=None, kw_only=True)
    late: str | None = field(default=None, kw_only=True)
    properties: Properties | None = field(default=None, kw_only=True)
    max_reconsume_times: int | None = field(default=None, kw_only=True)
    delay_ms: int | None = field(init=False, repr=False, compare=False)
    deliver_at_ms: int | None = field(init=False, repr=False, compare=False)
    at_most_ms: int | None = field(init=False, repr=False, compare=False)
    recurrence: Recurrence | None = field(init=False, repr=False, compare=False)
    headers: tuple[Header, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        _check_topic(self.topic)
        if not _is_bytes_or_none(self.body):
            raise MessageError(
                f"body is {_type(self.body)}: give bytes (text.encode()), or None for a tombstone; a codec encodes "
                "others: producer.send(topic, body, codec=JsonCodec())"
            )
        if not (isinstance(self.key, str) and _encodes(self.key)) and not _is_bytes_or_none(self.key):
            raise MessageError(f"key is {_type(self.key)}: give bytes, text that UTF-8 can encode, or None")
        if self.tag is not None:
            _check_tag(self.tag)
        put = object.__setattr__
        if self.keys != ():
            put(self, "keys", _checked_keys(self.keys))
        if self.max_reconsume_times is not None:
            _check_int("max_reconsume_times", self.max_reconsume_times, 0, INT_MAX)
        self._resolve_delay()
        put(self, "headers", () if not self.properties else _checked_properties(self.properties))
        self._check_size()

    def _resolve_delay(self) -> None:
        given = [name for name in ("delay", "delay_level", "deliver_at") if getattr(self, name) is not None]
        if len(given) > 1:
            raise MessageError(f"{' and '.join(given)} are given: a message has at most one of its three delays")
        if self.delay_level is not None:
            _check_int("delay_level", self.delay_level, -INT_MAX - 1, INT_MAX)
        object.__setattr__(self, "delay_ms", None if self.delay is None else _duration_ms(self.delay, "delay"))
        object.__setattr__(self, "deliver_at_ms", None if self.deliver_at is None else _epoch_ms(self.deliver_at))
        object.__setattr__(self, "at_most_ms", None)
        object.__setattr__(self, "recurrence", self._recurrence(given))
        if self.timer is not None:
            self._check_timer([*given, *(["cron"] if self.recurrence is not None else [])])
        elif self.recallable:
            if not given or self.body is None:
                raise MessageError("recallable is given without a delay, or for a tombstone, which cannot wait")
        elif others := [name for name in ("if_absent", "at_most", "cron", "every") if getattr(self, name)]:
            raise MessageError(f"{others[0]} is given without a timer: give the message a name, timer=…")

    def _recurrence(self, delays: list[str]) -> Recurrence | None:
        given = [*delays, *(name for name in ("cron", "every") if getattr(self, name) is not None)]
        if self.cron is None and self.every is None:
            if self.tz is not None or self.late is not None:
                raise MessageError("tz and late are of a recurring message: give cron= or every=")
            return None
        if len(given) > 1:
            raise MessageError(f"{' and '.join(given)} are given: a message has one of them")
        if self.at_most is not None:
            raise MessageError("at_most is given for a recurring message, which is never put off")
        if self.cron is not None:
            return Recurrence.of_cron(self.cron, self.tz, self.late)
        if self.tz is not None:
            raise MessageError("tz is given with every: a duration has no time zone")
        return Recurrence.of_every(self.every or 0, self.late)

    def _check_timer(self, delays: list[str]) -> None:
        check_timer(self.timer)
        if self.recallable:
            raise MessageError("timer and recallable are given: a message with a name is cancelled by its name")
        if not delays:
            raise MessageError("timer is given without a delay: a named message waits, give delay= or deliver_at=")
        if self.body is None:
            raise MessageError("timer is given for a tombstone (body None), which cannot wait: give bytes, perhaps b''")
        if not isinstance(self.if_absent, bool):
            raise MessageError(f"if_absent is {self.if_absent!r:.80}: give True or False")
        if self.at_most is not None:
            if self.if_absent:
                raise MessageError("if_absent and at_most are given: a message that replaces nothing is never put off")
            object.__setattr__(self, "at_most_ms", _duration_ms(self.at_most, "at_most"))

    def _check_size(self) -> None:
        size = sum(len(name.encode()) + len(value or b"") for name, value in self.headers)
        size += len((self.tag or "").encode()) + len(" ".join(self.keys).encode())
        if size > MAX_PROPERTIES_BYTES:
            raise MessageTooLargeError(
                f"properties, tag and keys are {size} bytes; at most {MAX_PROPERTIES_BYTES} are allowed: use the body"
            )

    @property
    def key_bytes(self) -> bytes | None:
        """The key as it is written."""
        return self.key.encode() if isinstance(self.key, str) else self.key


def _is_bytes_or_none(value: object) -> bool:
    return value is None or isinstance(value, bytes)


def _type(value: object) -> str:
    return f"of type {type(value).__name__}"


def _check_topic(topic: object) -> None:
    if not isinstance(topic, str):
        raise MessageError(f"topic is {_type(topic)}: give a text")
    if topic == SCHEDULE_TOPIC:
        raise MessageError(f"{topic} cannot be sent to: give the message a delay, delay_level or deliver_at")
    try:
        group = group_of(topic)
        if group is None:
            check_topic(topic)
        else:
            check_group(group)
    except ConfigError as error:
        raise MessageError(str(error)) from error


def _check_int(name: str, value: object, lowest: int, highest: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
        raise MessageError(f"{name} is {value!r:.80}: give a whole number, {lowest} to {highest}")


def _check_tag(tag: object) -> None:
    if not isinstance(tag, str) or not tag or not _is_clean(tag):
        raise MessageError(f"tag is {tag!r:.80}: give a text that is not empty and has no control characters, or None")
    if tag == "*" or "||" in tag or tag != tag.strip(" "):
        raise MessageError(
            f"tag is {tag!r:.80}, which no subscription can select: a message has one tag, which is not '*', has no "
            "'||' and no blank at either end. Choose another tag, or put the value into a property and select by SQL"
        )


def _is_clean(text: str) -> bool:
    return text.isprintable() or (CONTROL_CHARACTERS.search(text) is None and _encodes(text))


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _checked_keys(keys: object) -> tuple[str, ...]:
    if isinstance(keys, str):
        keys = keys.split()
    if not isinstance(keys, Sequence) or isinstance(keys, bytes):
        raise MessageError(f"keys is {_type(keys)}: give a sequence of texts")
    for key in keys:
        if not isinstance(key, str) or not key or " " in key or not _is_clean(key):
            raise MessageError(f"{key!r:.80} is not a business key: give a text without spaces and control characters")
    return tuple(keys)


def _duration_ms(duration: Duration, name: str) -> int:
    try:
        return parse_duration_ms(duration)
    except ConfigError as error:
        raise MessageError(f"{name}: {error}") from error


def check_timer(name: object) -> str:
    """Return the name of a timer, or raise `MessageError`: 1 to 255 bytes of UTF-8, without control characters."""
    if not isinstance(name, str) or not name.strip() or not _encodes(name):
        raise MessageError(f"timer is {name!r:.80}: give a name, a Unicode text that is not blank")
    if len(name.encode()) > MAX_TIMER_BYTES:
        raise MessageError(f"timer is {name!r:.80}: {len(name.encode())} bytes are more than {MAX_TIMER_BYTES}")
    if CONTROL_CHARACTERS.search(name) is not None:
        raise MessageError(f"timer is {name!r:.80}: it has control characters")
    return name


def _epoch_ms(moment: object) -> int:
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise MessageError("deliver_at has no time zone: give an aware datetime, or epoch milliseconds")
        seconds = int(moment.replace(microsecond=0).timestamp())
        moment = seconds * 1_000 + -(-moment.microsecond // 1_000)
    elif isinstance(moment, int) and moment in EPOCH_SECONDS:
        raise MessageError(f"deliver_at is {moment}, a time in seconds: give milliseconds, {moment}000, or a datetime")
    elif isinstance(moment, float):
        raise MessageError(
            f"deliver_at is {moment!r}: give whole milliseconds, as int(time.time() * 1000), or a datetime with a time "
            "zone"
        )
    _check_int("deliver_at", moment, 0, LONG_MAX)
    return int(moment)  # type: ignore[call-overload, no-any-return]  # checked in the line before


def _checked_properties(properties: object) -> tuple[Header, ...]:
    if isinstance(properties, Mapping):
        pairs: Any = tuple(properties.items())
    elif isinstance(properties, Sequence) and not isinstance(properties, str | bytes):
        pairs = properties
    else:
        raise MessageError(f"properties are {_type(properties)}: give a mapping or a sequence of (name, value) pairs")
    if len(pairs) > MAX_PROPERTIES:
        raise MessageError(f"{len(pairs)} properties are more than {MAX_PROPERTIES}: put them in the body")
    return tuple(_checked_property(pair) for pair in pairs)


def _checked_property(pair: object) -> Header:
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise MessageError(f"{pair!r:.80} is not a property: give (name, value)")
    name, value = pair
    if not isinstance(name, str) or not name or not _is_clean(name):
        raise ReservedHeaderError(
            f"{name!r:.80} is not a property name: give a text that is not empty and has no control characters"
        )
    if name in RESERVED:
        raise ReservedHeaderError(f"{name} belongs to the wire format: choose another property name")
    if len(name.encode()) > MAX_PROPERTY_NAME_BYTES:
        raise ReservedHeaderError(f"{name!r:.80} is not a property name: more than {MAX_PROPERTY_NAME_BYTES} bytes")
    if value is None or isinstance(value, bytes):
        return (name, value)
    if isinstance(value, str) and _encodes(value):
        return (name, value.encode())
    raise MessageError(f"property {name} is {_type(value)}: give bytes, text that UTF-8 can encode, or None")


class MessageView(Generic[ValueT]):
    """A received message, read-only. `MessageView[Order]` is one whose `value` is an `Order`.

    Args:
        record: the record as fetched (`confluent_kafka.Message`, or anything with these accessors).
        trusted: the record comes from the group's own retry topic; see the module's docstring.

    Thread-safety: attributes may be read by one thread at a time, whichever it is. The record does not change.
    """

    __slots__ = ("_decoded", "_properties", "_record", "_trusted", "_value")

    _value: ValueT  # set where a codec has decoded the body

    def __init__(self, record: Record, trusted: bool) -> None:
        self._record = record
        self._trusted = trusted

    @property
    def _envelope(self) -> Envelope:
        try:
            return self._decoded
        except AttributeError:
            self._decoded: Envelope = wire.decode(read_headers(self._record), trusted=self._trusted)
            return self._decoded

    @property
    def record(self) -> Record:
        """The record as fetched. Hops are made from it, never from the view."""
        return self._record

    @property
    def trusted(self) -> bool:
        """Whether this view believes the shim's headers of the record."""
        return self._trusted

    @property
    def topic(self) -> str:
        """Logical topic. For a retried message this is the topic of its first delivery."""
        if self._trusted:
            first = self._envelope.retry_topic
            if first is not None:
                return first
        return self._record.topic() or ""

    @property
    def body(self) -> bytes | None:
        """The value: None for a tombstone, which is not the same as `b""`."""
        value: bytes | None = self._record.value()
        return value

    @property
    def value(self) -> ValueT:
        """The body as the listener's codec has decoded it; None for a tombstone. An error if there is no codec."""
        try:
            return self._value
        except AttributeError:
            raise ConfigError(
                "this message has no value, since its listener has no codec: give it body= or codec=, or read the "
                "bytes of body"
            ) from None

    @property
    def key(self) -> bytes | None:
        """Kafka's key, None if the record has none."""
        key: bytes | None = self._record.key()
        return key

    @property
    def tag(self) -> str | None:
        """The message's tag, None if it has none. The first of several headers counts."""
        for name, value in read_headers(self._record) or ():
            if name == TAGS:
                return None if value is None else value.decode("utf-8", "surrogateescape")
        return None

    @property
    def keys(self) -> tuple[str, ...]:
        """Business keys."""
        keys = self._envelope.keys
        return tuple(keys.split(" ")) if keys else ()

    @property
    def msg_id(self) -> str:
        """The id, which is the same on every hop (`UNIQ_KEY`); the record's own coordinates if it has none."""
        return self._envelope.uniq_key or coordinates(self._record)

    @property
    def offset_msg_id(self) -> str:
        """The coordinates of this record: `topic/partition/offset` (physical topic)."""
        return coordinates(self._record)

    @property
    def queue_id(self) -> int:
        """Partition of this record."""
        return _known(self._record.partition())

    @property
    def queue_offset(self) -> int:
        """Offset of this record."""
        return _known(self._record.offset())

    @property
    def reconsume_times(self) -> int:
        """Failed attempts so far: 0 at the first delivery."""
        if not self._trusted:
            return 0
        return self._envelope.reconsume_times or 0

    @property
    def max_reconsume_times(self) -> int | None:
        """The limit of attempts that the sender set for this message, None if it set none."""
        return self._envelope.max_reconsume_times

    @property
    def born_timestamp_ms(self) -> int:
        """Time of the first send in epoch ms; the record's own timestamp if that is not known."""
        born_ms = self._envelope.born_timestamp_ms
        return self._record.timestamp()[1] if born_ms is None else born_ms

    @property
    def store_timestamp_ms(self) -> int:
        """Timestamp of this record in epoch ms."""
        return self._record.timestamp()[1]

    @property
    def origin(self) -> Origin:
        """Coordinates of the message's first delivery; those of this record if it has not failed before."""
        text = self._envelope.origin_message_id if self._trusted else None
        if text is not None:
            return Origin.parse(text)
        return Origin(self._record.topic() or "", self.queue_id, self.queue_offset)

    @property
    def delay_level(self) -> int:
        """The delay level of a record on the schedule topic; 0 on every other topic."""
        if not self._trusted:
            return 0
        return self._envelope.delay_level or 0

    @property
    def headers(self) -> tuple[Header, ...]:
        """The user's headers as sent, with their own names, in order, with repeats and None."""
        return tuple((own_name(name), value) for name, value in self._envelope.user)

    @property
    def properties(self) -> Mapping[str, str]:
        """The user's headers as a read-only mapping.

        The last of several headers with one name counts, as with `Headers#lastHeader` of the Java client. Headers
        without a value are left out. Bytes that are not UTF-8 are kept by `surrogateescape`. `headers` has all of them.
        """
        try:
            return self._properties
        except AttributeError:
            self._properties: Mapping[str, str] = MappingProxyType(
                {
                    own_name(name): value.decode("utf-8", "surrogateescape")
                    for name, value in self._envelope.user
                    if value is not None
                }
            )
            return self._properties

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy or pickle the record and the decoded value; the rest is read from the record again.

        Raises:
            MalformedRecordError: the headers cannot be read; pickling these could end the process.
        """
        read_headers(self._record)
        value = (None, {"_value": self._value}) if hasattr(self, "_value") else None
        return MessageView, (self._record, self._trusted), value

    def __repr__(self) -> str:
        """Return the coordinates only, never the body."""
        return f"<MessageView {coordinates(self._record)}>"


class FirstView(MessageView):
    """A view of a record that is not trusted, made in C: call `FirstView()`, then set `_record`.

    For the inner loops of consumers: 0.05 µs, where `MessageView(record, False)` takes 0.12 µs (our measurement).
    """

    __slots__ = ()
    _trusted = False
    __init__ = object.__init__


def first_views(records: Sequence[Record]) -> list[MessageView]:
    """Return views of records that are not trusted."""
    views: list[MessageView] = list(starmap(FirstView, repeat((), len(records))))
    view: MessageView
    for view, view._record in zip(views, records, strict=True):  # noqa: B007, SLF001 - the loop only assigns
        pass
    return views


def _known(number: int | None) -> int:
    if number is None:
        raise MalformedRecordError("no-coordinates", "the record has no partition or offset: it was never read")
    return number
