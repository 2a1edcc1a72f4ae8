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
from typing import Final

from rocketshim_topics import wire
from rocketshim_topics.names import RETRY_PREFIX
from rocketshim_topics.wire import HEADER_ORDER, RESERVED, Header

__all__ = ["QuickDelivery", "QuickHeaders"]

_PLACE: Final = {name: place for place, name in enumerate(HEADER_ORDER)}
_INT_NAMES: Final = frozenset({wire.DELAY, wire.RECONSUME_TIMES, wire.MAX_RECONSUME_TIMES, wire.REPLAY_COUNT})
_LONG_NAMES: Final = frozenset({wire.DELAY_MS, wire.DELIVER_AT_MS, wire.BORN_TIMESTAMP, wire.FAIL_AT_MS})
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
_MANY_NUMBERS: Final = 4_000  # a record has a handful, so 4,096 are never exceeded
_ZERO: Final = ord("0")


class _Shape:
    """What can be said of headers by their names."""

    __slots__ = (
        "due", "first", "group", "hop", "is_absolute", "is_failure", "longs", "ours", "real", "rest", "shim", "shorts",
    )  # fmt: skip

    def __init__(self, names: tuple[str, ...], ours: int) -> None:
        place = {name: at for at, name in enumerate(names[:ours])}
        self.shim = place.get(wire.SHIM, -1)
        self.real = place[wire.REAL_TOPIC]
        self.is_absolute = wire.DELIVER_AT_MS in place
        self.due = place[wire.DELIVER_AT_MS if self.is_absolute else wire.DELAY_MS]
        self.first = place[wire.UNIQ_KEY]
        self.shorts = tuple(at for name, at in place.items() if name in _INT_NAMES)
        self.longs = tuple(at for name, at in place.items() if name in _LONG_NAMES)
        self.ours = ours
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


QuickDelivery = tuple[bytes, bytes | None, list[Header], int]
"""What the quick way says of one record that is due: `REAL_TOPIC`, `CONSUMER_GROUP` (None: not there), the headers at
the target (source topic or retry topic, whichever it is), and when it was due in epoch ms. A tuple, for speed."""


class QuickHeaders:
    """Finds the quick way where there is one.

    Thread-safety: none; one owner thread.
    """

    __slots__ = ("_last_names", "_last_shape", "_longs", "_shapes", "_shorts")

    def __init__(self) -> None:
        self._shapes: dict[tuple[str, ...], _Shape | None] = {}
        self._last_names: tuple[str, ...] = ()
        self._last_shape: _Shape | None = None
        self._longs: dict[bytes | None, int] = {}
        self._shorts: dict[bytes | None, int] = {}

    def cut(  # noqa: C901, PLR0912 - one pass over one record, of which every line is paid for
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
        names, values = zip(*headers)  # noqa: B905 - each header is a pair
        if names == self._last_names:  # cheaper than to hash the names, and mostly so
            shape = self._last_shape
        else:
            shape = self._last_shape = self._learn(names)
            self._last_names = names
        if shape is None:
            return None
        if shape.shim >= 0 and values[shape.shim] != _VERSION:
            return None
        longs = self._longs
        if len(longs) > _MANY_NUMBERS:
            longs.clear()
        for at in shape.longs:
            if values[at] not in longs and not _remember(values[at], _LONG_DIGITS, longs):
                return None
        shorts = self._shorts
        if len(shorts) > _MANY_NUMBERS:
            shorts.clear()
        for at in shape.shorts:
            if values[at] not in shorts and not _remember(values[at], _SHORT_DIGITS, shorts):
                return None
        due_ms = longs[values[shape.due]]
        if not shape.is_absolute:
            due_ms += append_ms
        if due_ms > clock_ms or not values[shape.first] or None in values[shape.first : shape.ours]:
            return None
        real_topic = values[shape.real]
        if not real_topic:
            return None
        delivered = headers[shape.first : shape.hop]
        delivered.append((wire.HOP_ID, hop_id))
        delivered += headers[shape.rest :]
        if real_topic.startswith(_RETRY):
            delivered.insert(0, _SHIM_HEADER)
        elif shape.is_failure:
            return None
        return real_topic, (values[shape.group] if shape.group >= 0 else None), delivered, due_ms

    def _learn(self, names: tuple[str, ...]) -> _Shape | None:
        shapes = self._shapes
        if names not in shapes:
            if len(shapes) >= _MOST_SHAPES:
                shapes.clear()
            shapes[names] = _shape(names)
        return shapes[names]


def _remember(value: bytes | None, most_digits: int, numbers: dict[bytes | None, int]) -> bool:
    """Whether a value is a number in the one form in which we write it; then it is kept."""
    if value is None or not value.isdigit() or len(value) > most_digits or (value[0] == _ZERO and len(value) > 1):
        return False
    numbers[value] = int(value)
    return True
