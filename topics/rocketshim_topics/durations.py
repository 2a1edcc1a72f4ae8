"""Durations as people write and read them: `"90s"`, `"30m"`, a number of seconds, a `timedelta`; `1 h 30 min`.

A text is one number and one unit (`ms`, `s`, `m`, `h`, `d`; lower case). A decimal point is allowed: `"1.5h"`. The
result is whole milliseconds, rounded *up*, so that a wait is never shorter than written.
"""

import math
import re
from datetime import timedelta
from decimal import ROUND_CEILING, Decimal
from typing import Final

from rocketshim_topics.errors import ConfigError
from rocketshim_topics.limits import LONG_MAX

__all__ = ["Duration", "duration_text", "parse_duration_ms"]

Duration = str | int | float | timedelta
"""The types of a duration. A number is seconds."""

_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_TEXT: Final = re.compile(r"([0-9]{1,19}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)")
_SHOWN: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))
_MICROSECOND: Final = timedelta(microseconds=1)


def parse_duration_ms(value: Duration) -> int:
    """Return a duration in whole milliseconds.

    Args:
        value: a text of one number and one unit (`"500ms"`, `"90s"`, `"1.5h"`), a `timedelta`, or an int or float of
            **seconds**, as everywhere in Python.

    Returns:
        Whole milliseconds, rounded up, 0 … 2^63 - 1.

    Raises:
        ConfigError: negative, not finite, too long, no such unit, or another type.

    Thread-safety: a pure function.
    """
    if isinstance(value, timedelta):
        milliseconds = -(-(value // _MICROSECOND) // 1_000)
    elif isinstance(value, str):
        match = _TEXT.fullmatch(value)
        if match is None:
            raise ConfigError(f"{value!r:.80} is not a duration: write a number and one of ms, s, m, h, d, as in '90s'")
        milliseconds = int((Decimal(match[1]) * _UNIT_MS[match[2]]).to_integral_value(rounding=ROUND_CEILING))
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{value!r:.80} is not a duration: give a text like '90s', seconds, or a timedelta")
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{value!r} is not a duration: give a finite number")
    else:
        milliseconds = int((Decimal(str(value)) * 1_000).to_integral_value(rounding=ROUND_CEILING))
    if not 0 <= milliseconds <= LONG_MAX:
        raise ConfigError(f"{value!r:.80} is not a duration: a duration is 0 to 2^63 - 1 milliseconds")
    return milliseconds


def duration_text(duration_ms: float) -> str:
    """Return a duration for people, in two units at most: `1 h 30 min`, `12.5 s`, `250 ms`, `0 s`."""
    if duration_ms < 1_000:
        return f"{duration_ms:.0f} ms" if duration_ms >= 0.5 else "0 s"
    if duration_ms < 60_000:
        return f"{duration_ms / 1_000:.3g} s"
    left_ms, parts = int(duration_ms), list[str]()
    for unit, length_ms in _SHOWN:
        count, left_ms = divmod(left_ms, length_ms)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])
