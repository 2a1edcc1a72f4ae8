"""Wire format version 1: the headers, and their decoded form.

A record has the shim's headers (`HEADER_ORDER`, at most one of each) and the user's headers (order, repeats and `None`
values are kept). `Envelope` holds both, decoded; `decode` and `encode` translate. The meaning of each header is in
docs/wire-format.md.

Which headers a reader believes. Schedule, retry, dead-letter and parked topics belong to the shim: every reserved
header counts there, and a record that breaks the rules is malformed (`MalformedRecordError`, to be parked). Anybody may
write to a *source* topic: nothing is malformed there, and a reader believes only the first `UNIQ_KEY`, `TAGS`, `KEYS`,
`BORN_TIMESTAMP` and `MAX_RECONSUME_TIMES`. Any other header with a reserved name is the user's. One exception: a
well-formed `HOP_ID` (`topic/partition/offset`) is the mark of the worker that delivered the record. It is decoded, and
replaced at the next hop.

`Envelope.user` has the user's headers under the names with which they *travel* on the shim's topics. An ambiguous name
is changed: a reserved name `N` travels as `USER.N`; a name with control characters travels as `USER.%` and its text
with these characters and `%` written as `%XX`; names that look as if they were changed like this are changed, too. So
`own_name(travel_name(n)) == n` for every n.

`SHIM` is written on the shim's topics only. Absent means version 1. So a record on a source or target topic has only
its identity, and `HOP_ID` if the worker delivered it.
"""

import gc
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, methodcaller
from types import MethodDescriptorType
from typing import Any, Final, Protocol

from rocketshim_topics.errors import MalformedRecordError, MessageError
from rocketshim_topics.limits import CONTROL_CHARACTERS, INT_MAX, LONG_MAX

__all__ = [
    "HEADER_ORDER",
    "MAX_SHIM_HEADERS_BYTES",
    "RESERVED",
    "USER_PREFIX",
    "WIRE_VERSION",
    "Envelope",
    "Header",
    "Record",
    "coordinates",
    "decode",
    "encode",
    "own_name",
    "travel_name",
]

WIRE_VERSION: Final = 1
USER_PREFIX: Final = "USER."
_SPELLED_PREFIX: Final = "USER.%"
MAX_SHIM_HEADERS_BYTES: Final = 4_096
"""Most bytes of headers that hops add to a message: all of the table but `TAGS` and `KEYS`, which senders set."""

SHIM: Final = "SHIM"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
DELAY: Final = "DELAY"
DELAY_MS: Final = "DELAY_MS"
DELIVER_AT_MS: Final = "DELIVER_AT_MS"
UNIQ_KEY: Final = "UNIQ_KEY"
TAGS: Final = "TAGS"
KEYS: Final = "KEYS"
BORN_TIMESTAMP: Final = "BORN_TIMESTAMP"
RETRY_TOPIC: Final = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
RECONSUME_TIMES: Final = "RECONSUME_TIMES"
CONSUMER_GROUP: Final = "CONSUMER_GROUP"
FAIL_CLASS: Final = "FAIL_CLASS"
FAIL_TEXT: Final = "FAIL_TEXT"
FAIL_AT_MS: Final = "FAIL_AT_MS"
HOP_ID: Final = "HOP_ID"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
TARGET_TRIES: Final = "TARGET_TRIES"
PARK_REASON: Final = "PARK_REASON"
PARK_FROM: Final = "PARK_FROM"
CLOCK: Final = "CLOCK"
REPLAY_ID: Final = "REPLAY_ID"
REPLAY_COUNT: Final = "REPLAY_COUNT"
FAIL_STACK: Final = "FAIL_STACK"
UNHANDLED_SINCE_MS: Final = "UNHANDLED_SINCE_MS"
TARGET_TIMESTAMP_MS: Final = "TARGET_TIMESTAMP_MS"
TIMER: Final = "TIMER"
TIMER_DO: Final = "TIMER_DO"
TIMER_SET_AT: Final = "TIMER_SET_AT"
TIMER_AT_MOST_MS: Final = "TIMER_AT_MOST_MS"
TIMER_SINCE_MS: Final = "TIMER_SINCE_MS"
TIMER_REPEAT: Final = "TIMER_REPEAT"
TIMER_TZ: Final = "TIMER_TZ"
TIMER_LATE: Final = "TIMER_LATE"
TIMER_ERA: Final = "TIMER_ERA"
TIMER_ASKS: Final = "TIMER_ASKS"
TIMER_ASKED: Final = "TIMER_ASKED"

Header = tuple[str, bytes | None]

# header, attribute of Envelope, largest value (None: text)
_TABLE: Final[tuple[tuple[str, str, int | None], ...]] = (
    (SHIM, "shim", INT_MAX),
    (REAL_TOPIC, "real_topic", None),
    (REAL_QID, "real_qid", INT_MAX),
    (DELAY, "delay_level", INT_MAX),
    (DELAY_MS, "delay_ms", LONG_MAX),
    (DELIVER_AT_MS, "deliver_at_ms", LONG_MAX),
    (UNIQ_KEY, "uniq_key", None),
    (TAGS, "tags", None),
    (KEYS, "keys", None),
    (BORN_TIMESTAMP, "born_timestamp_ms", LONG_MAX),
    (RETRY_TOPIC, "retry_topic", None),
    (ORIGIN_MESSAGE_ID, "origin_message_id", None),
    (RECONSUME_TIMES, "reconsume_times", INT_MAX),
    (CONSUMER_GROUP, "consumer_group", None),
    (FAIL_CLASS, "fail_class", None),
    (FAIL_TEXT, "fail_text", None),
    (FAIL_AT_MS, "fail_at_ms", LONG_MAX),
    (HOP_ID, "hop_id", None),
    (MAX_RECONSUME_TIMES, "max_reconsume_times", INT_MAX),
    (TARGET_TRIES, "target_tries", INT_MAX),
    (PARK_REASON, "park_reason", None),
    (PARK_FROM, "park_from", None),
    (CLOCK, "clock", None),
    (REPLAY_ID, "replay_id", None),
    (REPLAY_COUNT, "replay_count", INT_MAX),
    (FAIL_STACK, "fail_stack", None),
    (UNHANDLED_SINCE_MS, "unhandled_since_ms", LONG_MAX),
    (TARGET_TIMESTAMP_MS, "target_timestamp_ms", LONG_MAX),
    (TIMER, "timer", None),
    (TIMER_DO, "timer_do", None),
    (TIMER_SET_AT, "timer_set_at", LONG_MAX),
    (TIMER_AT_MOST_MS, "timer_at_most_ms", LONG_MAX),
    (TIMER_SINCE_MS, "timer_since_ms", LONG_MAX),
    (TIMER_REPEAT, "timer_repeat", None),
    (TIMER_TZ, "timer_tz", None),
    (TIMER_LATE, "timer_late", None),
    (TIMER_ERA, "timer_era", INT_MAX),
    (TIMER_ASKS, "timer_asks", None),
    (TIMER_ASKED, "timer_asked", INT_MAX),
)

HEADER_ORDER: Final = tuple(name for name, _, _ in _TABLE)
"""Every header of the shim, in the order in which they are written."""

RESERVED: Final = frozenset(HEADER_ORDER)
"""Reserved names: no user property may have one."""

SENT_TEXTS: Final = frozenset({UNIQ_KEY, TAGS, KEYS})
"""Texts of the message itself, the same on every topic. A repeated one travels under `USER.` and never counts."""

LARGEST: Final = {name: largest for name, _, largest in _TABLE}
"""Largest value of each number header; None: the header is a text."""

_NAMES: Final = tuple(LARGEST.items())
_BY_NAME: Final = {name: (attribute, largest) for name, attribute, largest in _TABLE}
_READ_ON_SOURCE: Final = frozenset({UNIQ_KEY, TAGS, KEYS, BORN_TIMESTAMP, MAX_RECONSUME_TIMES})
_VALUES: Final[Callable[[Any], tuple[Any, ...]]] = attrgetter(*(attribute for _, attribute, _ in _TABLE))
_ALL_VALUES: Final[Callable[[Any], tuple[Any, ...]]] = attrgetter(*(attribute for _, attribute, _ in _TABLE), "user")
_COORDINATES: Final = re.compile(rb"[a-zA-Z0-9._-]{1,249}/[0-9]{1,10}/[0-9]{1,19}")
_ESCAPED: Final = re.compile(r"%([0-9A-F]{2})")
_TO_ESCAPE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f%]")


class Record(Protocol):
    """A fetched record: the accessors of `confluent_kafka.Message` that the contract uses."""

    def topic(self) -> str | None:
        """Physical topic."""

    def partition(self) -> int | None:
        """Partition, from 0."""

    def offset(self) -> int | None:
        """Offset, from 0."""

    def key(self) -> Any:
        """Key as bytes, or None."""

    def value(self) -> Any:
        """Value as bytes, or None, which is not the same as empty."""

    def headers(self) -> Any:
        """Headers as a list of (name, bytes or None), or None if there are none."""

    def timestamp(self) -> tuple[int, int]:
        """Timestamp type (0: not available, 1: create time, 2: append time) and epoch ms."""


class MadeRecord:
    """A record that no Kafka client has fetched, with the accessors of one that was."""

    def __init__(
        self,
        topic: str | None,
        partition: int | None,
        offset: int | None,
        *,
        key: Any = None,
        value: Any = None,
        headers: Any = None,
        timestamp: tuple[int, int] = (0, 0),
    ) -> None:
        self._position = topic, partition, offset
        self._content = key, value
        self._headers = headers
        self._timestamp = timestamp

    def topic(self) -> str | None:
        """Return the physical topic."""
        return self._position[0]

    def partition(self) -> int | None:
        """Return the partition."""
        return self._position[1]

    def offset(self) -> int | None:
        """Return the offset."""
        return self._position[2]

    def key(self) -> Any:
        """Return the key."""
        return self._content[0]

    def value(self) -> Any:
        """Return the value."""
        return self._content[1]

    def headers(self) -> Any:
        """Return the headers."""
        return self._headers

    def set_headers(self, headers: Any) -> None:
        """Replace the headers."""
        self._headers = headers

    def timestamp(self) -> tuple[int, int]:
        """Return the timestamp type and epoch ms."""
        return self._timestamp


BAD_HEADER_KEY: Final = "bad-header-key"
"""Reason of a malformed record with a header whose name has control characters or is not UTF-8."""

UNREADABLE: Final[list[Header]] = [("\x01", b"a header's name is no UTF-8")]
"""Stands for unreadable headers in the digest of a record. The bytes must never change."""

UNREADABLE_ERRORS: Final = (SystemError, UnicodeDecodeError)
"""What a Kafka client raises for unreadable headers: today the first; a fixed client would raise the second."""


class _Unreadable:
    """Replaces unreadable headers of a record: any use of it raises.

    It is not a list, so that a Kafka client refuses to send it.
    """

    def _refuse(self, *_: object) -> Any:
        raise MalformedRecordError(BAD_HEADER_KEY, "these headers cannot be read: a name is not UTF-8")

    __len__ = __iter__ = __getitem__ = __contains__ = _refuse


class _Readers(dict[type, Callable[[Any], Any]]):
    """The functions of `reader_of`, by class. Two threads may ask for the same one at the same time."""

    def __missing__(self, kind: type) -> Callable[[Any], Any]:
        reader = self[kind] = reader_of(kind)
        return reader


_MARK: Final = _Unreadable()
_READERS: Final = _Readers()


def read_headers(record: Any) -> Any:
    """Return the headers of a record: a list of (name, bytes or None), or None. Use this, never `record.headers()`.

    If a header's name is not UTF-8, confluent_kafka (2.16.1) sets an error and returns a list with a null pointer. A
    second call returns the list without an error, and unpacking its pair ends the process. So the first call here
    replaces the headers of such a record (`set_headers`), and every later call raises the same error. Eight threads
    with a switch every microsecond, on specialised bytecode, found no gap in this
    (test_headers_that_cannot_be_read_are_named_at_every_look).

    Args:
        record: a Kafka client's message whose headers nobody has read in another way (else `read_again`). If it can
            raise one of `UNREADABLE_ERRORS`, it has `set_headers`.

    Raises:
        MalformedRecordError: `bad-header-key`: the headers cannot be read. Key, value and coordinates can.

    Thread-safety: one thread at a time for each record, several for different ones. With CPython's global lock no
    second thread runs between reading and replacing. A call takes 0.10 µs, one of the function that `reader_of` returns
    0.04 µs (our measurement).
    """
    try:
        headers = _READERS[type(record)](record)
    except UNREADABLE_ERRORS as error:
        record.set_headers(_MARK)  # first of all: any call before this lets other threads read the headers
        raise _unreadable(record) from error
    if headers is _MARK:
        raise _unreadable(record)
    return headers


def read_again(record: Any) -> Any:
    """Return `read_headers` of a record on which user code may have called `record.headers()`; costs 0.3 µs more."""
    headers = read_headers(record)
    if headers and len(gc.get_referents(*headers)) != 2 * len(headers):  # a null pointer is not a referent
        raise mark_unreadable(record)
    return headers


def headers_shown(record: Any) -> Sequence[tuple[str, Any]]:
    """Return the headers of a record to print or to park as it is; none if they cannot be read."""
    try:
        return read_headers(record) or ()
    except MalformedRecordError:
        return ()


def reader_of(kind: type) -> Callable[[Any], Any]:
    """Return a function that reads the headers of records of one class, for less than half the cost of `read_headers`.

    CPython checks the result of a call that is made this way, and raises SystemError. It does not check the result of
    `record.headers()` in a line that has run often and is specialised: then the next call raises the error, or the null
    pointer ends the process (our measurement, CPython 3.11).

    The caller must call `mark_unreadable` when one of `UNREADABLE_ERRORS` is raised.
    """
    method = getattr(kind, "headers", None)
    return partial(method) if isinstance(method, MethodDescriptorType) else methodcaller("headers")


def mark_unreadable(record: Any) -> MalformedRecordError:
    """Replace the unreadable headers of a record by ones that raise at every use; return the error to raise."""
    record.set_headers(_MARK)
    return _unreadable(record)


def _unreadable(record: Record) -> MalformedRecordError:
    return MalformedRecordError(
        BAD_HEADER_KEY, f"the headers of {coordinates(record)} cannot be read: a name is not UTF-8; key and value can"
    )


@dataclass(slots=True)
class Envelope:
    """The headers of one record, decoded. None means that the header is absent.

    It is mutable, for the one hop that owns it. Field names are the header names in snake case with their unit;
    `delay_level` is `DELAY`. `user` has the user's headers under the names with which they travel (module docstring).

    Thread-safety: none; belongs to one thread.
    """

    shim: int | None = None
    real_topic: str | None = None
    real_qid: int | None = None
    delay_level: int | None = None
    delay_ms: int | None = None
    deliver_at_ms: int | None = None
    uniq_key: str | None = None
    tags: str | None = None
    keys: str | None = None
    born_timestamp_ms: int | None = None
    retry_topic: str | None = None
    origin_message_id: str | None = None
    reconsume_times: int | None = None
    consumer_group: str | None = None
    fail_class: str | None = None
    fail_text: str | None = None
    fail_at_ms: int | None = None
    hop_id: str | None = None
    max_reconsume_times: int | None = None
    target_tries: int | None = None
    park_reason: str | None = None
    park_from: str | None = None
    clock: str | None = None
    replay_id: str | None = None
    replay_count: int | None = None
    fail_stack: str | None = None
    unhandled_since_ms: int | None = None
    target_timestamp_ms: int | None = None
    timer: str | None = None
    timer_do: str | None = None
    timer_set_at: int | None = None
    timer_at_most_ms: int | None = None
    timer_since_ms: int | None = None
    timer_repeat: str | None = None
    timer_tz: str | None = None
    timer_late: str | None = None
    timer_era: int | None = None
    timer_asks: str | None = None
    timer_asked: int | None = None
    user: tuple[Header, ...] = ()

    def copy(self) -> "Envelope":
        """Return a copy, for the next hop to change."""
        return Envelope(*_ALL_VALUES(self))


def encode(envelope: Envelope) -> list[Header]:
    """Return the headers of an envelope: the shim's in the order of the table, then the user's unchanged.

    Raises:
        MessageError: a number of the envelope is out of the range of its header.

    Thread-safety: a pure function.
    """
    headers: list[Header] = [
        (name, _bytes(value) if largest is None else _digits(name, value, largest))
        for (name, largest), value in zip(_NAMES, _VALUES(envelope), strict=True)
        if value is not None
    ]
    headers.extend(envelope.user)
    return headers


def _digits(name: str, value: int, largest: int) -> bytes:
    if 0 <= value <= largest:
        return b"%d" % value
    raise MessageError(f"{name} is {value}; it is 0 to {largest}")


def decode(headers: Sequence[Header] | None, *, trusted: bool) -> Envelope:
    """Decode the headers of a record.

    Args:
        headers: as from `read_headers`. None and empty both mean no headers.
        trusted: the record is on one of the shim's own topics (schedule, retry, dead-letter, parked). False for every
            other topic; the module's docstring explains what counts there.

    Returns:
        The envelope. Text that is not UTF-8 is kept by `surrogateescape`, so encoding gives the same bytes back.

    Raises:
        MalformedRecordError: only if trusted. `reason` is one of `duplicate-header:<name>`, `bad-number:<name>`,
            `null-header:<name>`, `bad-header-key`, `unknown-version`, `two-due-times`.

    Thread-safety: a pure function.

    Decides: Which headers of a record are believed? All in the topics of the shim (schedule, retry, dead-letter,
        parked); elsewhere a few that a sender may set, and the others are the sender's own properties.
    """
    if not headers:
        return Envelope()
    return _decode_ours(headers) if trusted else _decode_foreign(headers)


def _decode_ours(headers: Iterable[Header]) -> Envelope:
    fields: dict[str, Any] = {}
    user: list[Header] = []
    for header in headers:
        name, value = header
        known = _BY_NAME.get(name)
        if known is None:
            if not name.isprintable() and CONTROL_CHARACTERS.search(name) is not None:
                raise MalformedRecordError(BAD_HEADER_KEY, f"header {name!r:.80} has control characters in its name")
            user.append(header)
            continue
        attribute, largest = known
        if attribute in fields:
            raise MalformedRecordError(f"duplicate-header:{name}", f"header {name} exists more than once")
        if value is None:
            raise MalformedRecordError(f"null-header:{name}", f"header {name} has no value")
        if largest is None:
            fields[attribute] = _text(value)
            continue
        number = _number(value, largest)
        if number is None:
            raise MalformedRecordError(
                f"bad-number:{name}", f"header {name} is {value!r:.80}; it is 1 to 19 digits, 0 to {largest}"
            )
        fields[attribute] = number
    envelope = Envelope(**fields, user=tuple(user))
    if envelope.shim is not None and envelope.shim != WIRE_VERSION:
        raise MalformedRecordError(
            "unknown-version",
            f"wire version {envelope.shim} is not known here ({WIRE_VERSION} is): update rocketshim",
        )
    if envelope.delay_ms is not None and envelope.deliver_at_ms is not None:
        raise MalformedRecordError("two-due-times", f"the record has both {DELAY_MS} and {DELIVER_AT_MS}")
    return envelope


def _decode_foreign(headers: Iterable[Header]) -> Envelope:
    fields: dict[str, Any] = {}  # None: the header exists, but its value is not legal
    user: list[Header] = []
    for header in headers:
        name, value = header
        if name not in RESERVED:
            unchanged = name.isprintable() and not name.startswith(USER_PREFIX)
            user.append(header if unchanged else (travel_name(name), value))
            continue
        attribute, largest = _BY_NAME[name]
        if attribute not in fields:
            if name in _READ_ON_SOURCE:
                fields[attribute] = read = _text_or_number(value, largest)
                if read is not None:
                    continue
            elif name == HOP_ID and value is not None and _COORDINATES.fullmatch(value) is not None:
                fields[attribute] = _text(value)
                continue
        user.append((USER_PREFIX + name, value))
    return Envelope(**fields, user=tuple(user))


def _text_or_number(value: bytes | None, largest: int | None) -> str | int | None:
    if value is None:
        return None
    return _text(value) if largest is None else _number(value, largest)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogateescape")


def _number(value: bytes, largest: int) -> int | None:
    if not value.isdigit() or len(value) > 19:  # bytes.isdigit: ASCII only
        return None
    number = int(value)
    return number if number <= largest else None


def travel_name(name: str) -> str:
    """Return the name with which a user's header travels on the shim's topics: itself unless that is ambiguous."""
    if name in RESERVED:
        return USER_PREFIX + name
    if not name.isprintable() and CONTROL_CHARACTERS.search(name) is not None:
        return _SPELLED_PREFIX + _escape(name)
    if not name.startswith(USER_PREFIX):
        return name
    if name.startswith(_SPELLED_PREFIX):
        return _SPELLED_PREFIX + _escape(name)
    return USER_PREFIX + name if _behind_prefixes(name) in RESERVED else name


def own_name(name: str) -> str:
    """Return the user's own name of a header that travelled as `name`: the inverse of `travel_name`."""
    if not name.startswith(USER_PREFIX):
        return name
    if name.startswith(_SPELLED_PREFIX):
        return _unescape(name.removeprefix(_SPELLED_PREFIX))
    return name.removeprefix(USER_PREFIX) if _behind_prefixes(name) in RESERVED else name


def _behind_prefixes(name: str) -> str:
    start = 0
    while name.startswith(USER_PREFIX, start):
        start += len(USER_PREFIX)
    return name[start:]


def _escape(name: str) -> str:
    return _TO_ESCAPE.sub(lambda match: f"%{ord(match[0]):02X}", name)


def _unescape(name: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), name)


def coordinates(record: Record) -> str:
    """Return the coordinates of a record, as `topic/partition/offset` (physical topic)."""
    return f"{record.topic()}/{record.partition()}/{record.offset()}"
