"""What the names of a record's headers determine, computed once for each sequence of names.

`rocketshim_topics.hops` defines what a hop does to headers: it copies some, drops some and adds some. For a *plain*
record this depends on the header names alone. A record is plain if each reserved header has a legal value, written as
this library writes it. So `HeaderShape` makes each hop once, by the real function of `hops`, of a sample record in
which no two values are equal. The positions of the sample's headers in the result are the shape of the hop. For each
plain record, `itemgetter` chooses the headers at these positions, in C.

A record that is well-formed but not plain (`007`, an empty `UNIQ_KEY`) is decoded and encoded first; then it is plain.
For a malformed record, `decode` raises the reason. So no rule of the wire format is written here a second time. The
plain way, to decode the record and to make its hop, is the oracle
(test_every_record_takes_the_hop_that_the_rules_and_the_real_hops_say).

Bounded: 512 shapes of at most 100 names and 4,096 characters. `forget_numbers` bounds the tables of numbers.
"""

from collections.abc import Callable
from operator import itemgetter
from typing import Any, Final

from rocketshim_topics import wire
from rocketshim_topics.errors import MalformedRecordError
from rocketshim_topics.hops import OutgoingRecord, delivered, hopped, retried_target
from rocketshim_topics.names import RETRY_PREFIX, TopicNames
from rocketshim_topics.wire import LARGEST, RESERVED, WIRE_VERSION, Header, decode, encode

__all__ = ["HeaderShape", "HeaderShapes"]

_VERSION: Final = b"%d" % WIRE_VERSION
_SHIM_HEADER: Final[Header] = (wire.SHIM, _VERSION)
_INT_MAX: Final = LARGEST[wire.RECONSUME_TIMES]
_LONG_MAX: Final = LARGEST[wire.DELAY_MS]
_MOST_SHAPES: Final = 512
_MOST_NAMES: Final = 100
_LONGEST_NAMES: Final = 4_096
_MOST_NUMBERS: Final = 4_096
_SHORT_DIGITS: Final = 9  # below 2^31
_LONG_DIGITS: Final = 18  # below 2^63
_ZERO: Final = ord("0")
_NAME: Final = itemgetter(0)
_USER_NAME: Final = "user"
_SEPARATOR: Final = "\0"  # in no name: the client cuts names there
_SAMPLE_MS: Final = 2_999_999_999_999
_SAMPLE_DUE_MS: Final = 3_000_000_000_000

Choose = Callable[[list[Header]], tuple[Header, ...]]


def _sample(names: tuple[str, ...], target: str) -> wire.MadeRecord:
    """Return a record with these header names, in which no two header values are equal."""
    known = {wire.SHIM: _VERSION, wire.REAL_TOPIC: target.encode(), wire.TARGET_TRIES: b"0"}
    headers: list[Header] = [
        (name, known.get(name, b"%d" % (1_000 + at) if LARGEST.get(name) else b"value %d" % at))
        for at, name in enumerate(names)
    ]
    return wire.MadeRecord("sample", 0, 0, headers=headers, timestamp=(2, _SAMPLE_MS))


class HeaderShape:
    """What the header names of plain records determine. A position counts from the first header; -1: not there.

    Attributes:
        count: number of headers.
        real_topic, group, real_qid, delay_ms, deliver_at_ms, target_tries, timestamp, timer, shim: positions of these
            headers.
        is_plain: neither has it a name, nor was it parked and is sent again (`was_parked`).
        texts, filled, shorts, longs: positions of texts, of texts that must not be empty, of 32-bit and 64-bit numbers.
        to_topic, to_retry, to_queue, to_queue_again: choose the headers of the next record from the result of
            `candidates`: at an ordinary target, at a retry topic, in another queue, and in a queue after the target has
            not accepted the record.
    """

    __slots__ = (
        "count", "delay_ms", "deliver_at_ms", "filled", "group", "has_identity", "is_plain", "longs", "real_qid",
        "real_topic", "recurs", "shim", "shorts", "target_tries", "texts", "timer", "timestamp", "to_queue",
        "to_queue_again", "to_retry", "to_topic", "was_parked",
    )  # fmt: skip

    def __init__(self, names: tuple[str, ...], topics: TopicNames) -> None:
        """Make each hop of a sample record; raise `MalformedRecordError` if the names alone are malformed."""
        at = {name: position for position, name in enumerate(names) if name in RESERVED}
        self.count = len(names)
        self.real_topic, self.group = at.get(wire.REAL_TOPIC, -1), at.get(wire.CONSUMER_GROUP, -1)
        self.real_qid, self.target_tries = at.get(wire.REAL_QID, -1), at.get(wire.TARGET_TRIES, -1)
        self.delay_ms, self.deliver_at_ms = at.get(wire.DELAY_MS, -1), at.get(wire.DELIVER_AT_MS, -1)
        self.shim, self.timestamp = at.get(wire.SHIM, -1), at.get(wire.TARGET_TIMESTAMP_MS, -1)
        self.timer, self.recurs = at.get(wire.TIMER, -1), wire.TIMER_REPEAT in at
        self.was_parked = wire.PARK_FROM in at
        self.is_plain = self.timer < 0 and not self.was_parked
        self.has_identity = at.keys() >= {wire.UNIQ_KEY, wire.BORN_TIMESTAMP}
        self.filled = tuple(at[name] for name in at if name in {wire.REAL_TOPIC, wire.UNIQ_KEY})
        self.texts = tuple(at[name] for name in at if LARGEST[name] is None and at[name] not in self.filled)
        self.shorts = tuple(at[name] for name in at if LARGEST[name] == _INT_MAX and name != wire.SHIM)
        self.longs = tuple(at[name] for name in at if LARGEST[name] == _LONG_MAX)
        sample, retried = _sample(names, "t"), _sample(names, f"{RETRY_PREFIX}g")
        envelope, retry_envelope = (decode(wire.read_headers(each), trusted=True) for each in (sample, retried))
        if self.real_topic < 0:
            return  # such a record is parked
        next_due: dict[str, Any] = {"partition": 0}
        self.to_topic = self._choice(sample, delivered(sample, envelope, topics))
        self.to_retry = self._choice(retried, delivered(retried, retry_envelope, topics))
        self.to_queue = self._choice(sample, hopped(sample, envelope, topics, deliver_at_ms=_SAMPLE_DUE_MS, **next_due))
        self.to_queue_again = self._choice(
            sample, retried_target(sample, envelope, topics, due_ms=_SAMPLE_DUE_MS, **next_due)
        )

    def candidates(
        self, headers: list[Header], hop_id: bytes, append_ms: int, due_ms: int | None = None, tries: int = 0
    ) -> list[Header]:
        """Return the headers of a plain record, followed by the headers that a hop may add; for a delivery without due.

        `tries` is the new value of `TARGET_TRIES`.
        """
        if self.has_identity and due_ms is None:  # nearly always
            return [*headers, (wire.HOP_ID, hop_id), _SHIM_HEADER]
        return [
            *headers,
            (wire.HOP_ID, hop_id),
            _SHIM_HEADER,
            (wire.DELIVER_AT_MS, b"%d" % (due_ms or 0)),
            (wire.UNIQ_KEY, hop_id),
            (wire.BORN_TIMESTAMP, b"%d" % append_ms),
            (wire.TARGET_TRIES, b"%d" % tries),
        ]

    def _choice(self, sample: wire.MadeRecord, outgoing: OutgoingRecord) -> Choose:
        candidates = self.candidates(wire.read_headers(sample), b"sample/0/0", _SAMPLE_MS, _SAMPLE_DUE_MS, 1)
        first = {header: at for at, header in reversed([*enumerate(candidates)])}
        return itemgetter(*map(first.__getitem__, outgoing.headers))


class HeaderShapes:
    """Finds the shapes of records; `numbers` are those of the records read since `forget_numbers`, by their text."""

    __slots__ = ("_by_form", "_by_names", "_shorts", "_topics", "numbers")

    def __init__(self, topics: TopicNames) -> None:
        self.numbers: dict[bytes | None, int] = {}
        self._shorts: dict[bytes | None, int] = {}
        self._topics = topics
        self._by_names: dict[str, HeaderShape | None] = {}
        self._by_form: dict[tuple[str, ...], HeaderShape | None] = {}  # all users' headers have the same name there

    def of_plain(self, headers: list[Header]) -> HeaderShape | None:  # every call costs speed here
        """Return the shape of a plain record; None: the record is not plain."""
        names = _SEPARATOR.join(map(_NAME, headers))
        shape = self._by_names[names] if names in self._by_names else self._find(names, headers)
        if shape is None or len(headers) != shape.count:
            return None
        known = self.numbers
        for at in shape.longs:
            if headers[at][1] not in known and not _remember(headers[at][1], _LONG_DIGITS, known):
                return None
        known = self._shorts
        for at in shape.shorts:
            if headers[at][1] not in known and not _remember(headers[at][1], _SHORT_DIGITS, known):
                return None
        for at in shape.texts:
            if headers[at][1] is None:
                return None
        for at in shape.filled:
            if not headers[at][1]:
                return None
        return shape if shape.shim < 0 or headers[shape.shim][1] == _VERSION else None

    def make_plain(self, headers: list[Header]) -> tuple[HeaderShape, list[Header]]:
        """Return the shape of any record, and its headers in plain form; a malformed one raises its error."""
        envelope = decode(headers, trusted=True)
        envelope.uniq_key = envelope.uniq_key or None  # an empty one identifies nothing
        plain = encode(envelope)
        names = tuple(map(_NAME, plain))
        shape = self._find(_SEPARATOR.join(names), plain) or HeaderShape(names, self._topics)
        for at in shape.longs:
            self.numbers[plain[at][1]] = int(plain[at][1] or 0)
        return shape, plain

    def forget_numbers(self) -> None:
        """Forget the numbers, if there are many. Call it between records only: `numbers` has the current record's."""
        for numbers in (self.numbers, self._shorts):
            if len(numbers) > _MOST_NUMBERS:
                numbers.clear()

    def _find(self, names: str, headers: list[Header]) -> HeaderShape | None:
        """Return the shape of names that are not in the table. The names of the user's headers do not matter."""
        if len(headers) > _MOST_NAMES or len(names) > _LONGEST_NAMES:
            return None
        form = tuple([name if name in RESERVED else _USER_NAME if name.isprintable() else "" for name, _ in headers])
        if "" in form:
            return None
        if form not in self._by_form:
            if len(self._by_form) >= _MOST_SHAPES:
                self._by_form.clear()
            try:
                self._by_form[form] = HeaderShape(form, self._topics)
            except MalformedRecordError:
                self._by_form[form] = None
        if len(self._by_names) >= _MOST_SHAPES:
            self._by_names.clear()
        shape = self._by_names[names] = self._by_form[form]
        return shape


def _remember(value: bytes | None, most_digits: int, numbers: dict[bytes | None, int]) -> bool:
    """Return whether a value is a number in the only form that this library writes; remember it."""
    if value is None or not value.isdigit() or len(value) > most_digits or (value[0] == _ZERO and len(value) > 1):
        return False
    numbers[value] = int(value)
    return True
