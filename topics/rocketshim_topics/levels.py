"""The delay-level table, and the rule that chooses the queue for a wait.

A table is RocketMQ's `messageDelayLevel`: entries of "integer and one unit letter" (`s`, `m`, `h`, `d`), separated by
exactly one space. The first entry is level 1. It is parsed as RocketMQ parses it:

* Java's integer rules: `+5s`, `007m`, `0s`, `-0s` and decimal digits of any script are numbers; `1.5s`, `s`, `1ms`,
  `1S`, `10`, `1_0s` are not.
* Spaces at the end are dropped, so that a text of spaces only is a legal, *empty* table. A space at the start, two
  spaces in a row, or the empty text make an empty entry, which is an error.
* Tabs and line ends are not separators. Levels need not ascend and may repeat.

Four things that RocketMQ accepts silently are a `ConfigError` here: a negative delay (`-1s`; `DELAY_MS` cannot carry
it); a delay whose milliseconds overflow 64 bits (RocketMQ wraps it around, even to a negative one); more than 27 levels
(a lane of the schedule topic has 27 queues for levels); and a table with an error after valid entries (RocketMQ's
broker keeps these entries and does not start).

Queues. Lane `l` of the schedule topic is the partitions `32·l … 32·l+31`: level `n` is `32·l + n - 1`, fine level `k`
is `32·l + 27 + k`. A record leaves a queue when the queue's own delay has passed since its append. If it is not due
then, it waits in a next queue. `DelayLevels.queue_for` alone chooses that queue, for sender and worker.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar, Final

from rocketshim_topics.errors import ConfigError
from rocketshim_topics.java_integers import parse_java_long
from rocketshim_topics.limits import CONTROL_CHARACTERS, LONG_MAX

__all__ = ["DelayLevels", "time_in_queue_ms"]

_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SHORTEST_HOP_LEVEL_MS: Final = 1_000


@dataclass(frozen=True, slots=True)
class DelayLevels:
    """One delay-level table.

    Make it with `parse` or `default`. Two tables with equal delays are equal.

    Attributes:
        delays_ms: delay of each level in ms, level 1 first; 0 to 27 entries of 0 … 2^63 - 1, in no particular order.

    Raises:
        ConfigError: more than 27 levels, or a delay out of range.

    Thread-safety: immutable.
    Source: `ScheduleMessageService#parseDelayLevel` and `#computeDeliverTimestamp`,
        `HookUtils#transformDelayLevelMessage`.
    """

    DEFAULT: ClassVar[str] = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    """RocketMQ's default table (`MessageStoreConfig.messageDelayLevel`): 18 levels."""
    STRIDE: ClassVar[int] = 32
    """Partitions per lane. This never changes, so that a longer table or more lanes never move a queue."""
    MAX_LEVELS: ClassVar[int] = 27
    """Most levels of a table. The five queues behind them are the fine levels."""
    FINE_MS: ClassVar[tuple[int, ...]] = (512, 256, 128, 64, 32)
    """Delays of the fine levels in ms, in the order of their partitions."""
    HOP_SLACK_MS: ClassVar[int] = 32
    """A queue may be longer than the remaining time by this, in ms, so that the rest does not cost a dozen hops."""
    UNKNOWN_LEVEL_MS: ClassVar[int] = 1_000
    """Delay of a level that is not in the table, in ms, as in RocketMQ."""

    delays_ms: tuple[int, ...]
    _hop_delays_ms: tuple[int, ...] = field(init=False, repr=False, compare=False)
    _hop_slots: tuple[int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if len(self.delays_ms) > self.MAX_LEVELS:
            raise ConfigError(
                f"the level table has {len(self.delays_ms)} levels, but a lane of the schedule topic has room for "
                f"{self.MAX_LEVELS}: leave some out (any delay can be had with delay= instead of a level)"
            )
        for level, delay_ms in enumerate(self.delays_ms, start=1):
            if not 0 <= delay_ms <= LONG_MAX:
                raise ConfigError(f"level {level} has a delay of {delay_ms} ms; a delay is 0 to 2^63 - 1 ms")
        slot_of: dict[int, int] = {}
        for slot, delay_ms in enumerate(self.delays_ms):
            if delay_ms >= _SHORTEST_HOP_LEVEL_MS:
                slot_of.setdefault(delay_ms, slot)
        for fine, delay_ms in enumerate(self.FINE_MS):
            slot_of[delay_ms] = self.MAX_LEVELS + fine
        delays = tuple(sorted(slot_of))
        object.__setattr__(self, "_hop_delays_ms", delays)
        object.__setattr__(self, "_hop_slots", tuple(slot_of[delay_ms] for delay_ms in delays))

    @classmethod
    def parse(cls, text: str) -> "DelayLevels":
        """Parse a table as RocketMQ parses `messageDelayLevel`.

        Args:
            text: for example `"1s 5s 10s 30s 1m"`; the module's docstring has the rules.

        Returns:
            The table; empty (`max_level == 0`) for a text of spaces only.

        Raises:
            ConfigError: an entry that RocketMQ refuses, too (empty, not an integer, unknown unit), or one that only
                RocketMQ accepts (negative, overflowing, more than 27 levels). It names the entry and the rule.
        """
        entries = text.split(" ")
        if text:
            while entries and not entries[-1]:
                entries.pop()
        if len(entries) > cls.MAX_LEVELS:
            raise ConfigError(
                f"the level table {_shown(text)} has {len(entries)} levels; RocketMQ would accept them, but a lane of "
                f"the schedule topic has room for {cls.MAX_LEVELS}: leave some out (any delay can be had with delay=)"
            )
        return cls(tuple(_entry_ms(entry, level, text) for level, entry in enumerate(entries, start=1)))

    @classmethod
    @cache
    def default(cls) -> "DelayLevels":
        """Return RocketMQ's default table of 18 levels, 1 s to 2 h."""
        return cls.parse(cls.DEFAULT)

    @property
    def max_level(self) -> int:
        """The highest level; 0 for an empty table."""
        return len(self.delays_ms)

    @property
    def longest_ms(self) -> int:
        """The longest time that a record waits in one queue, in ms; that of a fine level for an empty table."""
        return max(self.delays_ms + self.FINE_MS)

    def __str__(self) -> str:
        """The table as a text that `parse` reads back."""
        return " ".join(_text_of(delay_ms) for delay_ms in self.delays_ms) or " "

    def clamp(self, level: int) -> int:
        """Return the level, or the highest one if it is above that.

        Args:
            level: a requested level. 0 and less mean "not scheduled" and are returned unchanged.

        Returns:
            `min(level, max_level)`, which is 0 for every positive level of an empty table.
        """
        return min(level, len(self.delays_ms))

    def delay_ms(self, level: int) -> int:
        """Return the delay of a level in ms; 1000 for a level that is not in the table, also for 0 and less."""
        if 1 <= level <= len(self.delays_ms):
            return self.delays_ms[level - 1]
        return self.UNKNOWN_LEVEL_MS

    def partition(self, level: int, lane: int = 0) -> int:
        """Return the partition of the schedule topic that holds a level.

        Args:
            level: 1 to 27. It need not be in this table, since its partition is fixed.
            lane: 0 or more.

        Raises:
            ConfigError: level or lane out of range (clamp first).
        """
        if not 1 <= level <= self.MAX_LEVELS:
            raise ConfigError(f"level {level} has no partition: levels with a queue are 1 to {self.MAX_LEVELS}")
        return self._first_partition(lane) + level - 1

    def queue_delay_ms(self, partition: int) -> int | None:
        """Return the delay of a queue in ms, for any partition of the schedule topic.

        Returns:
            The delay of a level or fine level. None if this table has no such level: a sender with a longer table
            wrote there. RocketMQ would never deliver such records.
        """
        slot = partition % self.STRIDE
        if slot >= self.MAX_LEVELS:
            return self.FINE_MS[slot - self.MAX_LEVELS]
        if slot < len(self.delays_ms):
            return self.delays_ms[slot]
        return None

    def is_level(self, partition: int) -> bool:
        """Return whether a partition is the queue of a level of this table, and not of a fine level."""
        return partition % self.STRIDE < len(self.delays_ms)

    def queue_for(self, remaining_ms: int, lane: int = 0) -> int:
        """Return the partition in which a record waits next: the one queue rule for senders and worker.

        Args:
            remaining_ms: time until the record is due, in ms; may be negative.
            lane: 0 or more.

        Returns:
            The queue with the longest delay that is at most `remaining_ms + 32`, among the levels of at least 1 s and
            the fine levels; of levels with equal delay the lowest. The finest queue if there is none.

        Decides: Which queue does a delayed record go to, first and on each further hop? With a delay level:
            `rocketshim_topics.levels.DelayLevels.partition`.
        """
        index = bisect_right(self._hop_delays_ms, remaining_ms + self.HOP_SLACK_MS)
        return self._first_partition(lane) + self._hop_slots[max(index - 1, 0)]

    def _first_partition(self, lane: int) -> int:
        if lane < 0:
            raise ConfigError(f"lane {lane} does not exist: lanes count from 0")
        return lane * self.STRIDE


def time_in_queue_ms(levels: DelayLevels, partition: int) -> int:
    """Return how long a record stays in a queue, in ms: the queue's delay, or 1000 if the table has no such level."""
    delay_ms = levels.queue_delay_ms(partition)
    return levels.UNKNOWN_LEVEL_MS if delay_ms is None else delay_ms


def _entry_ms(entry: str, level: int, text: str) -> int:
    where = f"entry {level} ({_shown(entry)}) of the level table {_shown(text)}"
    if not entry:
        raise ConfigError(f"{where} is empty: separate entries with exactly one space, with none at the start")
    number = parse_java_long(entry[:-1])
    unit_ms = _UNIT_MS.get(entry[-1])
    if number is None or unit_ms is None:
        raise ConfigError(f"{where} is not an integer and one of the units s, m, h, d (lower case): write 30s, 5m, 2h")
    delay_ms = number * unit_ms
    if delay_ms < 0:
        raise ConfigError(f"{where} is negative; here a delay is 0 or more: write 0s to deliver immediately")
    if delay_ms > LONG_MAX:
        raise ConfigError(f"{where} overflows 64 bits of milliseconds; RocketMQ wraps it around silently")
    return delay_ms


def _text_of(delay_ms: int) -> str:
    for letter in "dhms":
        if delay_ms and delay_ms % _UNIT_MS[letter] == 0:
            return f"{delay_ms // _UNIT_MS[letter]}{letter}"
    if delay_ms == 0:
        return "0s"
    raise ConfigError(f"a delay of {delay_ms} ms cannot be written in a level table: its finest unit is 1 s")


def _shown(text: str) -> str:
    shown = CONTROL_CHARACTERS.sub("?", text)
    return f"'{shown}'" if len(shown) <= 120 else f"'{shown[:117]}…'"
