"""Java's reading and order of numbers in texts, as Spark columns; what `rocketshim.filters.java_text` is in Python."""

import functools
import unicodedata
from collections.abc import Callable

from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it

from rocketshim.filters.java_text import DECIMAL_PATTERN, HEXADECIMAL_PATTERN, INT32_MAX, INT32_MIN, TRIMMED_CHARACTERS
from rocketshim.filters.sql_ast import LiteralType

__all__ = ["PARSERS", "java_order", "to_double"]

_INTEGER = r"\A[+-]?[0-9]+\z"
_DOUBLE = rf"\A(?:{DECIMAL_PATTERN}|{HEXADECIMAL_PATTERN}|[+-]?(?:NaN|Infinity))\z"


def java_order(text: Column, number: Column) -> Column:
    """Return a column that orders doubles as Java does: −0.0 before 0.0."""
    negative_zero = (number == 0) & F.btrim(text, F.lit(TRIMMED_CHARACTERS)).startswith("-")
    return F.struct(number.alias("number"), F.when(negative_zero, 0).otherwise(1).alias("sign"))


def _int32(text: Column) -> Column:
    number = _int64(text)
    return F.when(number.between(INT32_MIN, INT32_MAX), number)


def _int64(text: Column) -> Column:
    """Read an integer as Java does, which accepts the digits of all scripts in its `char`; null if it is not one."""
    scripts, ascii_digits = _digits_of_all_scripts()
    plain = F.when(text.rlike(_INTEGER), text).otherwise(F.translate(text, scripts, ascii_digits))
    return F.when(plain.rlike(_INTEGER), plain.try_cast("bigint"))


def to_double(text: Column) -> Column:
    """Read a double as Java does; null if it is not one."""
    trimmed = F.btrim(text, F.lit(TRIMMED_CHARACTERS))
    return F.when(trimmed.rlike(_DOUBLE), trimmed.try_cast("double"))


PARSERS: dict[LiteralType, Callable[[Column], Column]] = {
    LiteralType.INTEGER: _int32,
    LiteralType.LONG: _int64,
    LiteralType.DOUBLE: to_double,
}


@functools.cache
def _digits_of_all_scripts() -> tuple[str, str]:
    """Return the non-ASCII decimal digits of the Basic Multilingual Plane, and the ASCII digit of each."""
    digits = [character for character in map(chr, range(0x80, 0x10000)) if character.isdecimal()]
    return "".join(digits), "".join(str(unicodedata.decimal(digit)) for digit in digits)
