"""The quick way to a delivered record: the headers of a plain due message are cut, not decoded and encoded.

Nearly every record a worker delivers was written by this library: the shim's headers first and in the order of the
table, every one of them well-formed, a complete identity. For such a record the delivered headers are a slice of the
ones that were read, with `HOP_ID` put in its place. What a record's headers *look* like (the tuple of their names) is
judged once and remembered (`Shape`); what remains for each record is to look at the values.

Whatever is in any way unusual gets None here, and goes the slow way (`relay.Planner`), which alone defines what is
right: for every record, what this module gives is what the planner gives (property-tested).

Bounded: 512 shapes and 4,096 numbers are remembered; both tables begin anew when they are full.
"""

import itertools
from typing import Any, Final

from rocketshim_topics import wire
from rocketshim_topics.names import RETRY_PREFIX
from rocketshim_topics.wire import HEADER_ORDER, RESERVED, Header

__all__ = ["QuickDelivery", "QuickHeaders"]

_PLACE: Final = {name: place for place, name in enumerate(HEADER_ORDER)}
_INT_NAMES: Final = frozenset({wire.DELAY, wire.RECONSUME_TIMES, wire.MAX_RECONSUME_TIMES, wire.REPLAY_COUNT})
_LONG_NAMES: Final = frozenset({wire.BORN_TIMESTAMP, wire.FAIL_AT_MS})
_UNUSUAL: Final = frozenset(
    {wire.REAL_QID, wire.TARGET_TRIES, wire.PARK_REASON, wire.PARK_FROM, wire.CLOCK, wire.REPLAY_ID, wire.REPLAY_COUNT}
)
_OF_A_FAILURE: Final = frozenset(
    {
        wire.RETRY_TOPIC, wire.ORIGIN_MESSAGE_ID, wire.RECONSUME_TIMES, wire.CONSUMER_GROUP, wire.FAIL_CLASS,
        wire.FAIL_TEXT, wire.FAIL_AT_MS,
    }
)  # fmt: skip
_HOP_PLACE: Final = _PLACE[wire.HOP_ID]
_RETRY: Final = RETRY_PREFIX.encode()
_VERSION: Final = b"%d" % wire.WIRE_VERSION
_SHIM_HEADER: Final[Header] = (wire.SHIM, _VERSION)
_SHORT_DIGITS: Final = 9  # below 2^31
_LONG_DIGITS: Final = 18  # below 2^63
_MOST_SHAPES: Final = 512
_MOST_NUMBERS: Final = 4_096


class _Shape:
    """What can be said of headers by their names."""

    __slots__ = ("due", "first", "group", "hop", "is_absolute", "is_failure", "longs", "real", "rest", "shim", "shorts")

    def __init__(self, names: tuple[str, ...], ours: int) -> None:
        place = {name: at for at, name in enumerate(names[:ours])}
        self.shim = place.get(wire.SHIM, -1)
        self.real = place[wire.REAL_TOPIC]
        self.is_absolute = wire.DELIVER_AT_MS in place
        self.due = place[wire.DELIVER_AT_MS if self.is_absolute else wire.DELAY_MS]
        self.first = place[wire.UNIQ_KEY]
        self.shorts = tuple(at for name, at in place.items() if name in _INT_NAMES)
        self.longs = tuple(at for name, at in place.items() if name in _LONG_NAMES)
        self.is_failure = any(name in _OF_A_FAILURE for name in place)
        self.group = place.get(wire.CONSUMER_GROUP, -1)
        self.hop = next((at for at, name in enumerate(names[:ours]) if _PLACE[name] >= _HOP_PLACE), ours)
        self.rest = self.hop + 1 if wire.HOP_ID in place else self.hop


def _shape(names: tuple[str, ...]) -> _Shape | None:
    """The shape of these names; None: not one for the quick way."""
    ours = 0
    while ours < len(names) and names[ours] in RESERVED:
        ours += 1
    mine, users = names[:ours], names[ours:]
    places = [_PLACE[name] for name in mine]
    if any(later <= earlier for earlier, later in itertools.pairwise(places)):
        return None
    if any(name in RESERVED or not name.isprintable() for name in users):
        return None
    has = frozenset(mine)
    if not has >= {wire.REAL_TOPIC, wire.UNIQ_KEY, wire.BORN_TIMESTAMP} or has & _UNUSUAL:
        return None
    if (wire.DELAY_MS in has) == (wire.DELIVER_AT_MS in has):
        return None
    return _Shape(names, ours)


class QuickDelivery:
    """What the quick way says of one record: it is due, and these are its headers at the target.

    Attributes:
        real_topic: value of `REAL_TOPIC`, as bytes.
        group: value of `CONSUMER_GROUP`, as bytes; None: not there.
        headers: for the target, whichever of source topic and retry topic `real_topic` is.
        due_ms: when it was due, epoch ms.
    """

    __slots__ = ("due_ms", "group", "headers", "real_topic")

    def __init__(self, real_topic: bytes, group: bytes | None, headers: list[Header], due_ms: int) -> None:
        self.real_topic = real_topic
        self.group = group
        self.headers = headers
        self.due_ms = due_ms


class QuickHeaders:
    """Finds the quick way where there is one.

    Thread-safety: none; one owner thread.
    """

    __slots__ = ("_numbers", "_shapes")

    def __init__(self) -> None:
        self._shapes: dict[tuple[str, ...], _Shape | None] = {}
        self._numbers: dict[bytes, int] = {}

    def cut(  # noqa: C901, PLR0912 - one pass, each line of it counts
        self, headers: list[Header] | None, append_ms: int, clock_ms: int, hop_id: bytes
    ) -> QuickDelivery | None:
        """The delivered headers of a record that is due.

        Args:
            headers: as fetched.
            append_ms: when the record counts as appended.
            clock_ms: lower bound of the leader's clock, epoch ms.
            hop_id: the record's coordinates.

        Returns:
            None: not due, or to be looked at the slow way.
        """
        if not headers:
            return None
        names = tuple([header[0] for header in headers])
        shapes = self._shapes
        shape = shapes.get(names)
        if shape is None:
            if names in shapes:
                return None
            if len(shapes) >= _MOST_SHAPES:
                shapes.clear()
            shape = shapes[names] = _shape(names)
            if shape is None:
                return None
        if shape.shim >= 0 and headers[shape.shim][1] != _VERSION:
            return None
        numbers = self._numbers
        value = headers[shape.due][1]
        due_ms = self._number(value, _LONG_DIGITS) if value not in numbers else numbers[value]
        if due_ms < 0:
            return None
        if not shape.is_absolute:
            due_ms += append_ms
        if due_ms > clock_ms:
            return None
        for at in shape.longs:
            value = headers[at][1]
            if value not in numbers and self._number(value, _LONG_DIGITS) < 0:
                return None
        for at in shape.shorts:
            value = headers[at][1]
            if (
                value is None
                or len(value) > _SHORT_DIGITS
                or (value not in numbers and self._number(value, _SHORT_DIGITS) < 0)
            ):
                return None
        real_topic = headers[shape.real][1]
        if not real_topic or not headers[shape.first][1]:
            return None
        kept = headers[shape.first : shape.hop]
        for header in kept:
            if header[1] is None:
                return None
        is_retry = real_topic.startswith(_RETRY)
        if is_retry:
            delivered = [_SHIM_HEADER, *kept, (wire.HOP_ID, hop_id), *headers[shape.rest :]]
        elif shape.is_failure:
            return None
        else:
            delivered = [*kept, (wire.HOP_ID, hop_id), *headers[shape.rest :]]
        if shape.rest != shape.hop and headers[shape.hop][1] is None:
            return None
        group = headers[shape.group][1] if shape.group >= 0 else None
        return QuickDelivery(real_topic, group, delivered, due_ms)

    def _number(self, value: Any, most_digits: int) -> int:
        """A number in the one form in which we write it; -1 for everything else."""
        if value is None or not value.isdigit() or len(value) > most_digits or (value[0] == 48 and len(value) > 1):
            return -1
        if len(self._numbers) >= _MOST_NUMBERS:
            self._numbers.clear()
        number = self._numbers[value] = int(value)
        return number
