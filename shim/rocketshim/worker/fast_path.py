"""The fast path to a delivered record: cut the headers of a plain due message instead of decoding and encoding them.

This library has written nearly every record that a worker delivers. Such a record has the shim's headers first, in the
order of the table and well-formed, and a complete identity. Its delivered headers are a slice of the headers that were
read, with `HOP_ID` in its place. The tuple of the header names is analysed once and remembered (`_HeaderLayout`). For
each record, only the values are checked.

For any unusual record this module returns None, and the record takes the slow path (`planner.DeliveryPlanner`). Only
the planner defines correctness: for every record, the result of this module equals the planner's (property-tested).

Bounded: the module remembers 512 layouts of at most 100 names and 4,096 characters, and 4,096 numbers. A table that is
full is cleared.
"""

import itertools
from operator import itemgetter
from typing import Final

from rocketshim_topics import wire
from rocketshim_topics.names import RETRY_PREFIX
from rocketshim_topics.wire import HEADER_ORDER, RESERVED, Header

__all__ = ["FastPath", "QuickDelivery"]

_ORDER: Final = {name: order for order, name in enumerate(HEADER_ORDER)}
_INT_NAMES: Final = frozenset({wire.DELAY, wire.RECONSUME_TIMES, wire.MAX_RECONSUME_TIMES, wire.REPLAY_COUNT})
_LONG_NAMES: Final = frozenset({wire.DELAY_MS, wire.DELIVER_AT_MS, wire.BORN_TIMESTAMP, wire.FAIL_AT_MS})
_UNUSUAL: Final = frozenset(
    {wire.REAL_QID, wire.TARGET_TRIES, wire.PARK_REASON, wire.PARK_FROM, wire.CLOCK, wire.REPLAY_ID, wire.REPLAY_COUNT}
)
_FAILURE_NAMES: Final = frozenset(
    {
        wire.RETRY_TOPIC, wire.ORIGIN_MESSAGE_ID, wire.RECONSUME_TIMES, wire.CONSUMER_GROUP, wire.FAIL_CLASS,
        wire.FAIL_TEXT, wire.FAIL_AT_MS,
    }
)  # fmt: skip
_NAME: Final = itemgetter(0)
_HOP_NAME: Final = wire.HOP_ID
_HOP_ORDER: Final = _ORDER[wire.HOP_ID]
_RETRY: Final = RETRY_PREFIX.encode()
_VERSION: Final = b"%d" % wire.WIRE_VERSION
_SHIM_HEADER: Final[Header] = (wire.SHIM, _VERSION)
_SHORT_DIGITS: Final = 9  # below 2^31
_LONG_DIGITS: Final = 18  # below 2^63
_MOST_LAYOUTS: Final = 512
_MOST_NAMES: Final = 100
_LONGEST_NAMES: Final = 4_096
_MANY_NUMBERS: Final = 4_000
_MOST_NUMBERS: Final = 4_096  # a record has few numbers, so a table cleared at 4,000 has room for all of them
_ZERO: Final = ord("0")


class _HeaderLayout:
    """What the header names alone determine. Indexes count from the first header, those of `rest_…` from `UNIQ_KEY`."""

    __slots__ = (
        "due", "first", "group", "has_hop", "hop", "is_absolute", "is_failure", "longs", "ours", "real", "rest_hop",
        "rest_longs", "rest_shorts", "rest_texts", "shim", "shorts",
    )  # fmt: skip

    def __init__(self, names: tuple[str, ...], ours: int) -> None:
        index_of = {name: at for at, name in enumerate(names[:ours])}
        self.ours = ours
        self.shim = index_of.get(wire.SHIM, -1)
        self.real = index_of[wire.REAL_TOPIC]
        self.is_absolute = wire.DELIVER_AT_MS in index_of
        self.due = index_of[wire.DELIVER_AT_MS if self.is_absolute else wire.DELAY_MS]
        first = self.first = index_of[wire.UNIQ_KEY]
        self.shorts = tuple(at for name, at in index_of.items() if name in _INT_NAMES)
        self.longs = tuple(at for name, at in index_of.items() if name in _LONG_NAMES)
        self.is_failure = any(name in _FAILURE_NAMES for name in index_of)
        self.group = index_of.get(wire.CONSUMER_GROUP, -1)
        self.has_hop = wire.HOP_ID in index_of
        self.hop = next((at for at, name in enumerate(names[:ours]) if _ORDER[name] >= _HOP_ORDER), ours)
        self.rest_hop = self.hop - first
        self.rest_longs = tuple(at - first for at in self.longs if at >= first)
        self.rest_shorts = tuple(at - first for at in self.shorts if at >= first)
        numbers = {*self.longs, *self.shorts}
        self.rest_texts = tuple(at - first for at in range(first + 1, ours) if at not in numbers)


def _header_layout(names: tuple[str, ...]) -> _HeaderLayout | None:
    """Return the layout of these names; None: records with these names must take the slow path."""
    ours = 0
    while ours < len(names) and names[ours] in RESERVED:
        ours += 1
    mine, users = names[:ours], names[ours:]
    orders = [_ORDER[name] for name in mine]
    if any(later <= earlier for earlier, later in itertools.pairwise(orders)):
        return None
    if any(name in RESERVED or not name.isprintable() for name in users):
        return None
    has = frozenset(mine)
    if not has >= {wire.REAL_TOPIC, wire.UNIQ_KEY, wire.BORN_TIMESTAMP} or has & _UNUSUAL:
        return None
    if (wire.DELAY_MS in has) == (wire.DELIVER_AT_MS in has):
        return None
    return _HeaderLayout(names, ours)


QuickDelivery = tuple[bytes, bytes | None, list[Header], int]
"""The result of the fast path for one due record: `REAL_TOPIC`, `CONSUMER_GROUP` (None: no such header), the headers at
the target (a source topic or a retry topic), and when the record was due, epoch ms. A tuple, for speed."""


class FastPath:
    """Cuts the headers of plain due records.

    Thread-safety: none; one owner thread.
    """

    __slots__ = (
        "_delay_ms",
        "_head",
        "_head_length",
        "_layout",
        "_layouts",
        "_longs",
        "_real_topic",
        "_rest_names",
        "_shorts",
    )  # fmt: skip

    def __init__(self) -> None:
        self._layouts: dict[tuple[str, ...], _HeaderLayout | None] = {}
        self._longs: dict[bytes | None, int] = {}
        self._shorts: dict[bytes | None, int] = {}
        # of the last fast-path record with a relative delay, because most records are like the one before
        self._head: list[Header] | None = None
        self._head_length = 0
        self._rest_names: list[str] = []
        self._layout: _HeaderLayout | None = None
        self._delay_ms = 0
        self._real_topic = b""

    def cut(  # noqa: C901, PLR0912 - one pass over one record, in which every call costs speed
        self, headers: list[Header] | None, append_ms: int, clock_ms: int, hop_id: bytes
    ) -> QuickDelivery | None:
        """Return the delivered headers of a due record.

        Args:
            headers: as fetched.
            append_ms: when the record counts as appended.
            clock_ms: lower bound of the leader's clock, epoch ms.
            hop_id: the record's coordinates.

        Returns:
            None: the record is not due, or must take the slow path.
        """
        if not headers:
            return None
        length = self._head_length
        if headers[:length] != self._head:
            return self._cut_unlike(headers, append_ms, clock_ms, hop_id)
        rest = headers[length:]
        layout = self._layout
        if layout is None or list(map(_NAME, rest)) != self._rest_names:
            return self._cut_unlike(headers, append_ms, clock_ms, hop_id)
        due_ms = append_ms + self._delay_ms
        if due_ms > clock_ms or not rest[0][1]:
            return None
        known = self._longs
        for at in layout.rest_longs:
            if rest[at][1] not in known and not _remember(rest[at][1], _LONG_DIGITS, known):
                return None
        known = self._shorts
        for at in layout.rest_shorts:
            if rest[at][1] not in known and not _remember(rest[at][1], _SHORT_DIGITS, known):
                return None
        for at in layout.rest_texts:
            if rest[at][1] is None:
                return None
        if layout.has_hop:
            if rest[layout.rest_hop][1] is None:
                return None
            rest[layout.rest_hop] = (_HOP_NAME, hop_id)
        else:
            rest.insert(layout.rest_hop, (_HOP_NAME, hop_id))
        group = rest[layout.group - length][1] if layout.group >= 0 else None
        if layout.is_failure:  # the target is a retry topic; otherwise `_cut_unlike` would not have learnt it
            rest.insert(0, _SHIM_HEADER)
        return self._real_topic, group, rest, due_ms

    def _cut_unlike(self, headers: list[Header], append_ms: int, clock_ms: int, hop_id: bytes) -> QuickDelivery | None:
        """Do `cut` for a record whose headers differ from those of the record before."""
        names, values = zip(*headers, strict=True)
        layout = self._learn(names)
        if layout is None or not self._numbers_are_plain(values, layout):
            return None
        if (layout.shim >= 0 and values[layout.shim] != _VERSION) or None in values[: layout.ours]:
            return None
        real_topic, first = values[layout.real], layout.first
        if not real_topic or not values[first]:
            return None
        is_retry = real_topic.startswith(_RETRY)
        if is_retry != layout.is_failure:
            return None
        delay_ms = self._longs[values[layout.due]]
        due_ms = delay_ms if layout.is_absolute else append_ms + delay_ms
        if due_ms > clock_ms:
            return None
        delivered = [_SHIM_HEADER] if is_retry else []
        delivered += headers[first : layout.hop]
        delivered.append((_HOP_NAME, hop_id))
        delivered += headers[layout.hop + 1 if layout.has_hop else layout.hop :]
        if not layout.is_absolute:
            self._head, self._head_length = headers[:first], first
            self._rest_names = list(names[first:])
            self._layout, self._delay_ms, self._real_topic = layout, delay_ms, real_topic
        return real_topic, (values[layout.group] if layout.group >= 0 else None), delivered, due_ms

    def _numbers_are_plain(self, values: tuple[bytes | None, ...], layout: _HeaderLayout) -> bool:
        if len(self._longs) > _MANY_NUMBERS:
            self._longs.clear()
        if len(self._shorts) > _MANY_NUMBERS:
            self._shorts.clear()
        return all(
            values[at] in self._longs or _remember(values[at], _LONG_DIGITS, self._longs) for at in layout.longs
        ) and all(
            values[at] in self._shorts or _remember(values[at], _SHORT_DIGITS, self._shorts) for at in layout.shorts
        )

    def _learn(self, names: tuple[str, ...]) -> _HeaderLayout | None:
        layouts = self._layouts
        if names not in layouts:
            if len(names) > _MOST_NAMES or sum(map(len, names)) > _LONGEST_NAMES:
                return None
            if len(layouts) >= _MOST_LAYOUTS:
                layouts.clear()
            layouts[names] = _header_layout(names)
        return layouts[names]


def _remember(value: bytes | None, most_digits: int, numbers: dict[bytes | None, int]) -> bool:
    """Return whether a value is a number in the only form that this library writes; remember it, if there is room."""
    if value is None or not value.isdigit() or len(value) > most_digits or (value[0] == _ZERO and len(value) > 1):
        return False
    if len(numbers) < _MOST_NUMBERS:
        numbers[value] = int(value)
        return True
    numbers.clear()  # this record takes the slow path
    return False
