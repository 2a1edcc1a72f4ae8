"""Compile an SQL92 tree into nested closures that evaluate it for the properties of a message.

The result of an evaluation is True, False, or None for unknown. RocketMQ determines the Java class of each value during
the evaluation. Here the types are known at compile time, because there are only two sources of values: a property is
text or missing, and everything else is a constant or a truth value. So each comparison is compiled into one of

* a property with a constant (the common case: one look-up, one conversion, one comparison, no other call);
* two properties;
* the general form, for unusual expressions that RocketMQ defines, too (`(a = 1) = TRUE`, `'5' = 5`).

`sql_comparison` has the rules of comparisons: a missing property on the right of `=` is not unknown. Two more rules of
RocketMQ:

* CONTAINS, STARTSWITH and ENDSWITH are never unknown, and FALSE for a missing property, in their NOT forms, too. With
  an empty search text they are FALSE without evaluating their operand.
* A property with an empty text is missing: RocketMQ loses such properties in its wire format.

A closure is stateless and may be called from any thread. The parser limits nesting, so recursion is limited.
"""

import operator
from collections.abc import Callable
from typing import Final

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
from rocketshim.filters.sql_comparison import (
    COMPARE,
    PropertyLookup,
    Test,
    Typed,
    equality,
    ordering,
    property_against,
    property_between,
)

__all__ = ["compile_test"]

_MIRRORED: Final = {
    Operator.GREATER: Operator.LESS,
    Operator.GREATER_OR_EQUAL: Operator.LESS_OR_EQUAL,
    Operator.LESS: Operator.GREATER,
    Operator.LESS_OR_EQUAL: Operator.GREATER_OR_EQUAL,
}
_INTEGERS: Final = (LiteralType.INTEGER, LiteralType.LONG)
_NUMBERS: Final = (*_INTEGERS, LiteralType.DOUBLE)


def compile_test(node: Expression, source: str) -> Test:
    """Compile a node for which `is_boolean` holds; `source` is the text of the expression, for error messages."""
    return _Compiler(source).test(node)


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

    def _typed(self, node: Expression) -> Typed:
        match node:
            case Literal(value=value, type=kind):
                return Typed(kind, lambda _get: value, value)
            case Property(name=name):
                return Typed(LiteralType.STRING, lambda get: get(name) or None, name=name)
            case Negate(operand=operand):
                return self._negated(self._typed(operand))
            case _:
                return Typed(LiteralType.BOOLEAN, self.test(node))

    @staticmethod
    def _negated(operand: Typed) -> Typed:
        if operand.type in _NUMBERS:
            number = -operand.constant
            return Typed(operand.type, lambda _get: number, number)
        evaluate = operand.value

        def unknown(get: PropertyLookup) -> None:
            evaluate(get)  # if it fails, the whole expression fails

        return Typed(LiteralType.NULL, unknown)

    # --- comparisons ---------------------------------------------------------------------------------------------

    def _compare(self, symbol: Operator, left: Expression, right: Expression, shown: str) -> Test:
        lhs, rhs = self._typed(left), self._typed(right)
        if lhs.name is not None and rhs.constant is not None:
            return property_against(symbol, lhs.name, rhs, None, shown)
        if rhs.name is not None and lhs.constant is not None and lhs.type is not LiteralType.BOOLEAN:
            missing = None if symbol.is_ordering else symbol is Operator.NOT_EQUAL
            return property_against(_MIRRORED.get(symbol, symbol), rhs.name, lhs, missing, shown)
        if symbol.is_ordering:
            return ordering(COMPARE[symbol], lhs, rhs, shown)
        equal = equality(lhs, rhs, shown)
        return equal if symbol is Operator.EQUAL else _not(equal)

    def _between(self, node: Between) -> Test:
        operand, low, high = self._typed(node.operand), self._typed(node.low), self._typed(node.high)
        constants = low.constant is not None and high.constant is not None
        shown = self._source[node.start : node.end]
        if operand.name is not None and constants and low.type is high.type:
            return property_between(operand.name, low, high, node.negated, shown)
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


def _in(name: str, values: frozenset[str], negated: bool) -> Test:
    if negated:
        return lambda get: text not in values if (text := get(name)) else None
    return lambda get: text in values if (text := get(name)) else None
