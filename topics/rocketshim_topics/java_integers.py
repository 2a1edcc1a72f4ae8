"""Integers in texts, read as Java reads them: for delay-level tables and for filters."""

import re
import unicodedata
from typing import Final

from rocketshim_topics.limits import LONG_MAX

__all__ = ["parse_java_long"]

_INTEGER: Final = re.compile(r"([+-]?)(\d+)")
_LONG_DIGITS: Final = 19


def parse_java_long(text: str) -> int | None:
    """Parse as `Long.parseLong`: an optional sign and digits of the basic plane, 64 bits; None if Java throws."""
    found = _INTEGER.fullmatch(text)
    if found is None:
        return None
    sign, digits = found.groups()
    if not digits.isascii():
        if max(digits) > "\uffff":
            return None
        digits = "".join(str(unicodedata.decimal(digit)) for digit in digits)
    digits = digits.lstrip("0") or "0"
    if len(digits) > _LONG_DIGITS:
        return None
    number = int(sign + digits)
    return number if -LONG_MAX - 1 <= number <= LONG_MAX else None
