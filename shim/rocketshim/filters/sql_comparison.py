"""How two values of an SQL92 expression are compared: by RocketMQ's types, as closures.

These rules follow RocketMQ exactly, because a subscription must select the same messages in both systems:

* `=` evaluates both sides and is asymmetric: TRUE if both are unknown, unknown if only the left one is unknown, FALSE
  if only the right one is unknown. An ordering operator with an unknown left side does not evaluate the right side.
* The *property* is converted to the type of the literal. If its text is not of that type, the evaluation of the whole
  expression fails with `FilterEvaluationError`, unless a logical operator has determined the result before.
* A truth value on the left of `=` cannot be compared with a text: that is an evaluation error (RocketMQ issue 10877),
  but only if the text exists.
* Doubles are ordered as in Java: NaN is greater than everything else and equal to itself.
"""

import operator
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from rocketshim.errors import FilterEvaluationError
from rocketshim.filters.java_text import double_key, parse_bool, parse_double, parse_int32, parse_int64
from rocketshim.filters.sql_ast import LiteralType, Operator

__all__ = [
    "COMPARE",
    "PropertyLookup",
    "Test",
    "Typed",
    "equality",
    "number_of",
    "ordering",
    "property_against",
    "property_between",
]

PropertyLookup = Callable[[str], str | None]
"""Returns the text of a property by its name; None or `""` if there is none. For example `get` of a dict."""

Test = Callable[[PropertyLookup], bool | None]
"""A compiled condition. It raises `FilterEvaluationError` if RocketMQ's evaluation fails."""

_Value = Callable[[PropertyLookup], Any]
_Compare = Callable[[Any, Any], bool]
_Parse = Callable[[str], Any]
COMPARE: Final[dict[Operator, _Compare]] = {
    Operator.EQUAL: operator.eq,
    Operator.NOT_EQUAL: operator.ne,
    Operator.GREATER: operator.gt,
    Operator.GREATER_OR_EQUAL: operator.ge,
    Operator.LESS: operator.lt,
    Operator.LESS_OR_EQUAL: operator.le,
}
_PARSE: Final[dict[LiteralType, _Parse]] = {
    LiteralType.INTEGER: parse_int32,
    LiteralType.LONG: parse_int64,
    LiteralType.DOUBLE: parse_double,
    LiteralType.BOOLEAN: parse_bool,
}
_PLAIN_DIGITS: Final = 10
"""A text of fewer ASCII digits than this is a 32-bit integer and needs no further check."""


class Typed(NamedTuple):
    """A compiled value, and the type that it has if it is not None."""

    type: LiteralType
    value: _Value
    constant: Any = None
    """The value if it does not depend on the message; otherwise, and for NULL, None."""

    name: str | None = None
    """The name of the property if the value is a bare property."""


def property_against(symbol: Operator, name: str, constant: Typed, missing: bool | None, shown: str) -> Test:
    """Compare a property with a constant; `missing` is the result if the message does not have the property."""
    compare, bound = COMPARE[symbol], constant.constant
    if constant.type is LiteralType.STRING:
        return _text_against(name, bound, missing, negated=symbol is Operator.NOT_EQUAL)
    if constant.type is LiteralType.BOOLEAN:
        wanted = bound is (symbol is Operator.EQUAL)

        def as_bool(get: PropertyLookup) -> bool | None:
            text = get(name)
            return parse_bool(text) is wanted if text else missing

        return as_bool
    return _number_against(compare, name, constant, missing, shown)


def _text_against(name: str, wanted: str, missing: bool | None, negated: bool) -> Test:
    if negated:
        return lambda get: text != wanted if (text := get(name)) else missing
    return lambda get: text == wanted if (text := get(name)) else missing


def _number_against(compare: _Compare, name: str, constant: Typed, missing: bool | None, shown: str) -> Test:
    """Compare a property with a number; plain digits are converted without a call, other texts by `convert`."""
    bound = constant.constant
    convert = number_of(name, constant.type, shown)
    if constant.type is LiteralType.DOUBLE:

        def as_double(get: PropertyLookup) -> bool | None:
            text = get(name)
            if not text:
                return missing
            if text.isascii() and text.replace(".", "", 1).isdecimal():
                return compare(float(text), bound)
            return compare(convert(text), bound)

        return as_double

    def as_integer(get: PropertyLookup) -> bool | None:
        text = get(name)
        if not text:
            return missing
        if len(text) < _PLAIN_DIGITS and text.isdecimal() and text.isascii():
            return compare(int(text), bound)
        return compare(convert(text), bound)

    return as_integer


def property_between(name: str, low: Typed, high: Typed, negated: bool, shown: str) -> Test:
    """Compare a property with two constants of one type; one conversion serves both and fails as the first of two."""
    least, most = low.constant, high.constant
    convert = number_of(name, low.type, shown)

    def test(get: PropertyLookup) -> bool | None:
        text = get(name)
        return (least <= convert(text) <= most) is not negated if text else None

    return test


def number_of(name: str, kind: LiteralType, shown: str) -> _Parse:
    """Return the conversion of a property's text for a comparison with a constant number.

    NaN becomes infinity. Constants are finite, so both are greater than any constant, and Python orders infinity like
    Java orders NaN.
    """
    parse = _PARSE[kind]

    def convert(text: str) -> Any:
        try:
            number = parse(text)
        except ValueError as error:
            raise FilterEvaluationError(f"property {name}: {error}, in {shown}") from error
        return number if number == number else float("inf")  # noqa: PLR0124  # NaN is unequal to itself

    return convert


def ordering(compare: _Compare, left: Typed, right: Typed, shown: str) -> Test:
    """Compile an ordering operator for two properties, two constants, or a side that is always unknown."""
    keys = _comparable(left.type, right.type, shown, texts_as_doubles=True)
    left_value, right_value = left.value, right.value

    def test(get: PropertyLookup) -> bool | None:
        lhs = left_value(get)
        if lhs is None:
            return None
        rhs = right_value(get)
        if rhs is None or keys is None:
            return None
        return compare(*keys(lhs, rhs))

    return test


def equality(left: Typed, right: Typed, shown: str) -> Test:
    """Compile `=` for any two values, with RocketMQ's asymmetric rules for unknown values."""
    keys = _comparable(left.type, right.type, shown, texts_as_doubles=False)
    left_value, right_value = left.value, right.value

    def test(get: PropertyLookup) -> bool | None:
        lhs = left_value(get)
        rhs = right_value(get)
        if lhs is None:
            return True if rhs is None else None
        if rhs is None or keys is None:
            return False
        lhs, rhs = keys(lhs, rhs)
        return bool(lhs == rhs)

    return test


_Keys = Callable[[Any, Any], tuple[Any, Any]]


def _comparable(left: LiteralType, right: LiteralType, shown: str, *, texts_as_doubles: bool) -> _Keys | None:
    """Return a function that makes two values of these types comparable; None if they are never comparable."""
    if left is right:
        return _same_type(left, shown, texts_as_doubles)
    if LiteralType.NULL in (left, right):
        return None
    if LiteralType.STRING in (left, right):
        return _with_text(left, right, shown)
    if LiteralType.BOOLEAN in (left, right):
        return None
    if LiteralType.DOUBLE in (left, right):
        return lambda lhs, rhs: (double_key(float(lhs)), double_key(float(rhs)))
    return lambda lhs, rhs: (lhs, rhs)


def _same_type(kind: LiteralType, shown: str, texts_as_doubles: bool) -> _Keys:
    if kind is LiteralType.STRING and texts_as_doubles:

        def texts(lhs: str, rhs: str) -> tuple[Any, Any]:
            try:
                return double_key(parse_double(lhs)), double_key(parse_double(rhs))
            except ValueError as error:
                raise FilterEvaluationError(f"texts can only be ordered as numbers: {error}, in {shown}") from error

        return texts
    if kind is LiteralType.DOUBLE:
        return lambda lhs, rhs: (double_key(lhs), double_key(rhs))
    return lambda lhs, rhs: (lhs, rhs)


def _with_text(left: LiteralType, right: LiteralType, shown: str) -> _Keys:
    """Convert the text to the type of the other side; a truth value on the left of a text is an error."""
    if left is LiteralType.BOOLEAN:

        def refuse(_lhs: Any, _rhs: Any) -> tuple[Any, Any]:
            raise FilterEvaluationError(f"a truth value on the left cannot be compared with a text, in {shown}")

        return refuse
    text_is_left = left is LiteralType.STRING
    parse = _PARSE[right if text_is_left else left]
    key = double_key if LiteralType.DOUBLE in (left, right) else _itself

    def keys(lhs: Any, rhs: Any) -> tuple[Any, Any]:
        try:
            return (key(parse(lhs)), key(rhs)) if text_is_left else (key(lhs), key(parse(rhs)))
        except ValueError as error:
            raise FilterEvaluationError(f"{error}, in {shown}") from error

    return keys


def _itself(value: Any) -> Any:
    return value
