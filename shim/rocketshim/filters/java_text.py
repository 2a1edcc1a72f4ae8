r"""Convert texts to numbers and booleans as Java does; this determines how a property compares with a literal.

Python's `int` and `float` accept other texts (blanks around integers, underscores, `nan` in any case, digits of any
script in floats), so each function first checks the form of the text.

=============  =====================================================================================================
function       accepts
=============  =====================================================================================================
`parse_int32`  `Integer.valueOf`: an optional sign and decimal digits, of any script that Java's `char` can hold (the
`parse_int64`  Basic Multilingual Plane); no blanks, no point; within the range of the type (`Long.valueOf`: 64 bit)
`parse_double` `Double.valueOf`: characters up to U+0020 are removed from both ends; then an optional sign and `NaN`,
               `Infinity` (case-sensitive), a decimal (`5`, `5.`, `.5`, `5e3`) or a hexadecimal (`0x1.8p3`) number in
               ASCII, the latter two with an optional suffix `f`, `F`, `d` or `D`. A number that is too large becomes
               infinite, one that is too small becomes zero; neither is an error
`parse_bool`   `Boolean.valueOf`: "true" in any case is True, every other text is False; never an error
=============  =====================================================================================================

The functions are pure. Their `ValueError` names the text and the expected type. `double_key` implements the order of
`Double.compareTo`, which differs from the order of Python's floats: NaN equals itself and is greater than every other
value, and −0.0 is less than 0.0.
"""

import math
import re
from typing import Final

from rocketshim_topics.java_integers import parse_java_long

__all__ = [
    "DECIMAL_PATTERN",
    "HEXADECIMAL_PATTERN",
    "INT32_MAX",
    "INT32_MIN",
    "INT64_MAX",
    "TRIMMED_CHARACTERS",
    "double_key",
    "parse_bool",
    "parse_double",
    "parse_int32",
    "parse_int64",
]

INT32_MIN: Final = -(2**31)
INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1

TRIMMED_CHARACTERS: Final = "".join(map(chr, range(0x21)))
"""The characters that `String.trim` removes: the space and every control character below it, no other Unicode blank."""

DECIMAL_PATTERN: Final = r"[+-]?(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?[fFdD]?"
HEXADECIMAL_PATTERN: Final = r"[+-]?0[xX](?:[0-9a-fA-F]++\.?|[0-9a-fA-F]*+\.[0-9a-fA-F]++)[pP][+-]?[0-9]++[fFdD]?"

_DECIMAL = re.compile(DECIMAL_PATTERN)
_HEXADECIMAL = re.compile(HEXADECIMAL_PATTERN)
_ZERO_SIGNIFICAND = re.compile(r"[+-]?0[xX][0.]*[pP]")
_SAFE_EXPONENT_DIGITS: Final = 9
_SHOWN_CHARACTERS: Final = 64


def parse_int32(text: str) -> int:
    """Return `Integer.valueOf(text)`."""
    value = parse_java_long(text)
    if value is None or not INT32_MIN <= value <= INT32_MAX:
        raise ValueError(f"{_shown(text)} is not a 32-bit integer")
    return value


def parse_int64(text: str) -> int:
    """Return `Long.valueOf(text)`."""
    value = parse_java_long(text)
    if value is None:
        raise ValueError(f"{_shown(text)} is not a 64-bit integer")
    return value


def parse_double(text: str) -> float:
    """Return `Double.valueOf(text)`."""
    trimmed = text.strip(TRIMMED_CHARACTERS)
    if _DECIMAL.fullmatch(trimmed):
        return float(trimmed.rstrip("fFdD"))
    special = _SPECIAL.get(trimmed)
    if special is not None:
        return special
    if _HEXADECIMAL.fullmatch(trimmed):
        return _parse_hexadecimal(trimmed.lower())
    raise ValueError(f"{_shown(text)} is not a double")


_SPECIAL: Final = {
    "NaN": math.nan,
    "+NaN": math.nan,
    "-NaN": math.nan,
    "Infinity": math.inf,
    "+Infinity": math.inf,
    "-Infinity": -math.inf,
}


def _parse_hexadecimal(text: str) -> float:
    significand, exponent = text.split("p")
    exponent = exponent.rstrip("fd")
    sign = -1.0 if text.startswith("-") else 1.0
    if _ZERO_SIGNIFICAND.match(text):
        return sign * 0.0
    if len(exponent.lstrip("+-").lstrip("0")) > _SAFE_EXPONENT_DIGITS:
        return sign * (0.0 if exponent.startswith("-") else math.inf)
    try:
        return float.fromhex(f"{significand}p{exponent}")
    except OverflowError:
        return sign * math.inf


def parse_bool(text: str) -> bool:
    """Return `Boolean.valueOf(text)`."""
    return len(text) == len("true") and text.lower() == "true"


def double_key(value: float) -> tuple[bool, float, float]:
    """Return a key by which floats are ordered and equal as in `Double.compareTo`."""
    if value != value:  # noqa: PLR0124  # only NaN is unequal to itself
        return (True, 0.0, 0.0)
    return (False, value, math.copysign(1.0, value))


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…")
