"""Compile an SQL92 tree into nested closures that evaluate it for the properties of a message.

The result of an evaluation is True, False, or None for unknown. RocketMQ determines the Java class of each value during
the evaluation. Here the types are known at compile time, because there are only two sources of values: a property is
text or missing, and everything else is a constant or a truth value. So each comparison is compiled into one of

* a property with a constant (the common case: one look-up, one conversion, one comparison, no other call);
* two properties;
* the general form, for unusual expressions that RocketMQ defines, too (`(a = 1) = TRUE`, `'5' = 5`).

These rules follow RocketMQ exactly, because a subscription must select the same messages in both systems:

* `=` evaluates both sides and is asymmetric: TRUE if both are unknown, unknown if only the left one is unknown, FALSE
  if only the right one is unknown. An ordering operator with an unknown left side does not evaluate the right side.
* The *property* is converted to the type of the literal. If its text is not of that type, the evaluation of the whole
  expression fails with `FilterEvaluationError`, unless a logical operator has determined the result before.
* A truth value on the left of `=` cannot be compared with a text: that is an evaluation error (RocketMQ issue 10877),
  but only if the text exists.
* Doubles are ordered as in Java: NaN is greater than everything else and equal to itself.
* CONTAINS, STARTSWITH and ENDSWITH are never unknown. With an empty search text they are FALSE without evaluating their
  operand.

A property with an empty text is missing: RocketMQ loses such properties in its wire format.

A closure is stateless and may be called from any thread. The parser limits nesting, so recursion is limited.
"""

import operator
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from rocketshim.errors import FilterEvaluationError
from rocketshim.filters.java_text import double_key, parse_bool, parse_double, parse_int32, parse_int64
from rocketshim.filters.sql_ast import (
    And,
    Between,
    Compare,
    Expression,
    In,
    IsNull,
    Literal,
    LiteralType,
    Negate,
    Not,
    Operator,
    Or,
    Property,
    TextOperation,
    TextTest,
    Truth,
)

__all__ = ["PropertyLookup", "Test", "compile_test"]

PropertyLookup = Callable[[str], str | None]
"""Returns the text of a property by its name; None or `""` if there is none. For example `get` of a dict."""

Test = Callable[[PropertyLookup], bool | None]
"""A compiled condition. It raises `FilterEvaluationError` if RocketMQ's evaluation fails."""

_Value = Callable[[PropertyLookup], Any]
_Compare = Callable[[Any, Any], bool]
_Parse = Callable[[str], Any]

_COMPARE: Final[dict[Operator, _Compare]] = {
    Operator.EQUAL: operator.eq,
    Operator.NOT_EQUAL: operator.ne,
    Operator.GREATER: operator.gt,
    Operator.GREATER_OR_EQUAL: operator.ge,
    Operator.LESS: operator.lt,
    Operator.LESS_OR_EQUAL: operator.le,
}
_MIRRORED: Final = {
    Operator.GREATER: Operator.LESS,
    Operator.GREATER_OR_EQUAL: Operator.LESS_OR_EQUAL,
    Operator.LESS: Operator.GREATER,
    Operator.LESS_OR_EQUAL: Operator.GREATER_OR_EQUAL,
}
_PARSE: Final[dict[LiteralType, _Parse]] = {
    LiteralType.INTEGER: parse_int32,
    LiteralType.LONG: parse_int64,
    LiteralType.DOUBLE: parse_double,
    LiteralType.BOOLEAN: parse_bool,
}
_INTEGERS: Final = (LiteralType.INTEGER, LiteralType.LONG)
_NUMBERS: Final = (*_INTEGERS, LiteralType.DOUBLE)

_PLAIN_DIGITS: Final = 10
"""A text of fewer ASCII digits than this is a 32-bit integer and needs no further check."""


def compile_test(node: Expression, source: str) -> Test:
    """Compile a boolean node.

    Args:
        node: a node for which `is_boolean` holds, as `rocketshim.filters.sql_parser.parse` returns it.
        source: the text of the expression, for error messages.

    Returns:
        The condition.

    Raises:
        TypeError: the node is not boolean.
    """
    return _Compiler(source).test(node)


class _Typed(NamedTuple):
    """A compiled value, and the type that it has if it is not None."""

    type: LiteralType
    value: _Value
    constant: Any = None
    """The value if it does not depend on the message; otherwise, and for NULL, None."""

    name: str | None = None
    """The name of the property if the value is a bare property."""


class _Compiler:
    def __init__(self, source: str) -> None:
        self._source = source

    def test(self, node: Expression) -> Test:
        match node:
            case And(terms=terms):
                return _all([self.test(term) for term in terms])
            case Or(terms=terms):
                return _any([self.test(term) for term in terms])
            case Not(operand=operand):
                return _not(self.test(operand))
            case _:
                return self._leaf(node)

    def _leaf(self, node: Expression) -> Test:
        match node:
            case Truth(operand=Property(name=name)):
                return lambda get: False if get(name) else None
            case Compare(operator=symbol, left=left, right=right):
                return self._compare(symbol, left, right, self._source[node.start : node.end])
            case Between():
                return self._between(node)
            case In(operand=Property(name=name), values=values, negated=negated):
                return _in(name, frozenset(values), negated)
            case TextTest():
                return self._text_test(node)
            case IsNull(operand=operand, negated=negated):
                return self._is_null(operand, negated)
            case Literal(value=bool() | None as value):
                return lambda _get: value
            case _:
                raise TypeError(f"not a condition: {node!r}")

    def _typed(self, node: Expression) -> _Typed:
        match node:
            case Literal(value=value, type=kind):
                return _Typed(kind, lambda _get: value, value)
            case Property(name=name):
                return _Typed(LiteralType.STRING, lambda get: get(name) or None, name=name)
            case Negate(operand=operand):
                return self._negated(self._typed(operand))
            case _:
                return _Typed(LiteralType.BOOLEAN, self.test(node))

    @staticmethod
    def _negated(operand: _Typed) -> _Typed:
        if operand.type in _NUMBERS:
            number = -operand.constant
            return _Typed(operand.type, lambda _get: number, number)
        evaluate = operand.value

        def unknown(get: PropertyLookup) -> None:
            evaluate(get)  # if it fails, the whole expression fails

        return _Typed(LiteralType.NULL, unknown)

    # --- comparisons ---------------------------------------------------------------------------------------------

    def _compare(self, symbol: Operator, left: Expression, right: Expression, shown: str) -> Test:
        lhs, rhs = self._typed(left), self._typed(right)
        if lhs.name is not None and rhs.constant is not None:
            return _property_against(symbol, lhs.name, rhs, None, shown)
        if rhs.name is not None and lhs.constant is not None and lhs.type is not LiteralType.BOOLEAN:
            missing = None if symbol.is_ordering else symbol is Operator.NOT_EQUAL
            return _property_against(_MIRRORED.get(symbol, symbol), rhs.name, lhs, missing, shown)
        if symbol.is_ordering:
            return _ordering(_COMPARE[symbol], lhs, rhs, shown)
        equal = _equality(lhs, rhs, shown)
        return equal if symbol is Operator.EQUAL else _not(equal)

    def _between(self, node: Between) -> Test:
        operand, low, high = self._typed(node.operand), self._typed(node.low), self._typed(node.high)
        constants = low.constant is not None and high.constant is not None
        shown = self._source[node.start : node.end]
        if operand.name is not None and constants and low.type is high.type:
            return _property_between(operand.name, low, high, node.negated, shown)
        above, below = (
            (Operator.LESS, Operator.GREATER) if node.negated else (Operator.GREATER_OR_EQUAL, Operator.LESS_OR_EQUAL)
        )
        halves = [
            self._compare(above, node.operand, node.low, shown),
            self._compare(below, node.operand, node.high, shown),
        ]
        return _any(halves) if node.negated else _all(halves)

    def _is_null(self, operand: Expression, negated: bool) -> Test:
        typed = self._typed(operand)
        if typed.name is not None:
            name = typed.name
            if negated:
                return lambda get: bool(get(name))
            return lambda get: not get(name)
        value = typed.value
        return lambda get: (value(get) is None) is not negated

    def _text_test(self, node: TextTest) -> Test:
        search, negated = node.search, node.negated
        if not search:
            return lambda _get: False
        found = _SEARCH[node.operation]
        operand = self._typed(node.operand)
        if operand.name is not None:
            name = operand.name
            return lambda get: found(text, search) is not negated if (text := get(name)) else False
        value = operand.value

        def test(get: PropertyLookup) -> bool:
            text = value(get)
            return isinstance(text, str) and found(text, search) is not negated

        return test


_SEARCH: Final[dict[TextOperation, Callable[[str, str], bool]]] = {
    TextOperation.CONTAINS: operator.contains,
    TextOperation.STARTSWITH: str.startswith,
    TextOperation.ENDSWITH: str.endswith,
}


# --- logic --------------------------------------------------------------------------------------------------------


def _all(terms: list[Test]) -> Test:
    first, second, *rest = terms

    def both(get: PropertyLookup) -> bool | None:
        answer = first(get)
        if answer is False:
            return False
        other = second(get)
        return other if other is not True else answer

    def test(get: PropertyLookup) -> bool | None:
        answer = both(get)
        if answer is False:
            return False
        for term in rest:
            other = term(get)
            if other is not True:
                if other is False:
                    return False
                answer = None
        return answer

    return test if rest else both


def _any(terms: list[Test]) -> Test:
    first, second, *rest = terms

    def either(get: PropertyLookup) -> bool | None:
        answer = first(get)
        if answer is True:
            return True
        other = second(get)
        return other if other is not False else answer

    def test(get: PropertyLookup) -> bool | None:
        answer = either(get)
        if answer is True:
            return True
        for term in rest:
            other = term(get)
            if other is not False:
                if other is True:
                    return True
                answer = None
        return answer

    return test if rest else either


def _not(operand: Test) -> Test:
    def test(get: PropertyLookup) -> bool | None:
        answer = operand(get)
        return None if answer is None else not answer

    return test


# --- a property and constants -------------------------------------------------------------------------------------


def _property_against(symbol: Operator, name: str, constant: _Typed, missing: bool | None, shown: str) -> Test:
    """Compare a property with a constant; `missing` is the result if the message does not have the property."""
    compare, bound = _COMPARE[symbol], constant.constant
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


def _number_against(compare: _Compare, name: str, constant: _Typed, missing: bool | None, shown: str) -> Test:
    """Compare a property with a number; plain digits are converted without a call, other texts by `convert`."""
    bound = constant.constant
    convert = _number_of(name, constant.type, shown)
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


def _property_between(name: str, low: _Typed, high: _Typed, negated: bool, shown: str) -> Test:
    """Compare a property with two constants of one type; one conversion serves both and fails as the first of two."""
    least, most = low.constant, high.constant
    convert = _number_of(name, low.type, shown)

    def test(get: PropertyLookup) -> bool | None:
        text = get(name)
        return (least <= convert(text) <= most) is not negated if text else None

    return test


def _number_of(name: str, kind: LiteralType, shown: str) -> _Parse:
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


def _in(name: str, values: frozenset[str], negated: bool) -> Test:
    if negated:
        return lambda get: text not in values if (text := get(name)) else None
    return lambda get: text in values if (text := get(name)) else None


# --- the general forms --------------------------------------------------------------------------------------------


def _ordering(compare: _Compare, left: _Typed, right: _Typed, shown: str) -> Test:
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


def _equality(left: _Typed, right: _Typed, shown: str) -> Test:
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
