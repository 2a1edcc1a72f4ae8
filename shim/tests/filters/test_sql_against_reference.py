"""The compiled closures, compared with a simple recursive evaluator on random expressions and properties.

The reference has its own trees (tuples) and types its values as Java does. It shares only the conversion of text to
numbers with the product; `test_java_text.py` compares that with a second implementation.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketshim.errors import FilterEvaluationError
from rocketshim.filters import SqlFilter
from rocketshim.filters.java_text import parse_double, parse_int32, parse_int64

Node = tuple[Any, ...]
"""Kind, then its parts: `("compare", "<", node, node)`, `("property", name)`, `("literal", value)` …"""

Properties = Mapping[str, str]


class EvaluationFailure(Exception):  # noqa: N818  # the word of the rules
    """The evaluation error of the reference."""


class Int32(int):
    """An integer of the Java class Integer."""


class Int64(int):
    """An integer of the Java class Long."""


def reference(node: Node, properties: Properties) -> Any:
    """Return Java's value of a tree: None, str, bool, Int32, Int64 or float. Slow, but close to the rules' wording."""
    kind, *parts = node
    return FORMS[kind](*parts, properties)


def literal(value: Any, _properties: Properties) -> Any:
    return value


def text_of(name: str, properties: Properties) -> str | None:
    return properties.get(name) or None


def negative(operand: Node, properties: Properties) -> Any:
    value = reference(operand, properties)
    return type(value)(-value) if isinstance(value, Int32 | Int64 | float) else None


def opposite(operand: Node, properties: Properties) -> bool | None:
    value = truth(operand, properties)
    return None if value is None else not value


def conjunction(left: Node, right: Node, properties: Properties) -> bool | None:
    first = truth(left, properties)
    if first is False:
        return False
    second = truth(right, properties)
    if second is False:
        return False
    return None if first is None or second is None else True


def disjunction(left: Node, right: Node, properties: Properties) -> bool | None:
    first = truth(left, properties)
    if first is True:
        return True
    second = truth(right, properties)
    if second is True:
        return True
    return None if first is None or second is None else False


def is_null(operand: Node, properties: Properties) -> bool:
    return reference(operand, properties) is None


def is_in(operand: Node, values: tuple[str, ...], properties: Properties) -> bool | None:
    value = reference(operand, properties)
    return None if value is None else value in values


def between(operand: Node, low: Node, high: Node, properties: Properties) -> bool | None:
    return conjunction(("compare", ">=", operand, low), ("compare", "<=", operand, high), properties)


def not_between(operand: Node, low: Node, high: Node, properties: Properties) -> bool | None:
    return disjunction(("compare", "<", operand, low), ("compare", ">", operand, high), properties)


def truth(node: Node, properties: Properties) -> bool | None:
    value = reference(node, properties)
    return False if node[0] == "property" and value is not None else value


def contains(operand: Node, search: str, negated: bool, properties: Properties) -> bool:
    return text_test(operand, search, properties, lambda value: value.find(search) >= 0, negated)


def starts_with(operand: Node, search: str, negated: bool, properties: Properties) -> bool:
    return text_test(operand, search, properties, lambda value: value.find(search) == 0, negated)


def ends_with(operand: Node, search: str, negated: bool, properties: Properties) -> bool:
    return text_test(operand, search, properties, lambda value: value[-len(search) :] == search, negated)


def text_test(operand: Node, search: str, properties: Properties, found: Callable[[str], bool], negated: bool) -> bool:
    if search == "":
        return False
    value = reference(operand, properties)
    return isinstance(value, str) and found(value) != negated


def comparison(operator: str, left: Node, right: Node, properties: Properties) -> bool | None:
    lhs = reference(left, properties)
    if operator not in ("=", "<>"):
        if lhs is None:
            return None
        rhs = reference(right, properties)
        if rhs is None:
            return None
        if isinstance(lhs, str) and isinstance(rhs, str):
            lhs, rhs = convert(lhs, parse_double), convert(rhs, parse_double)
        sign = java_compare(lhs, rhs)
        return {">": sign > 0, ">=": sign >= 0, "<": sign < 0, "<=": sign <= 0}[operator]
    rhs = reference(right, properties)
    if lhs is None and rhs is None:
        equal = True
    elif lhs is None:
        return None
    elif rhs is None:
        equal = False
    else:
        equal = java_compare(lhs, rhs) == 0
    return equal == (operator == "=")


def convert(text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise EvaluationFailure from error


def java_compare(lhs: Any, rhs: Any) -> int:
    """Return the result of `compareTo` after conversion; −1 if the classes have nothing in common."""
    parsers = {Int32: parse_int32, Int64: parse_int64, float: parse_double, bool: lambda text: text.lower() == "true"}
    if type(lhs) is not type(rhs):
        if isinstance(lhs, bool):
            if isinstance(rhs, str):
                raise EvaluationFailure
            return -1
        if isinstance(rhs, bool) and not isinstance(lhs, str):
            return -1
        if isinstance(lhs, str):
            lhs = convert(lhs, parsers[type(rhs)])
        elif isinstance(rhs, str):
            rhs = convert(rhs, parsers[type(lhs)])
        elif isinstance(lhs, float) or isinstance(rhs, float):
            lhs, rhs = float(lhs), float(rhs)
    if isinstance(lhs, float):
        return compare_doubles(lhs, rhs)
    return (lhs > rhs) - (lhs < rhs)


def compare_doubles(lhs: float, rhs: float) -> int:
    if math.isnan(lhs) or math.isnan(rhs):
        return math.isnan(lhs) - math.isnan(rhs)
    if lhs == rhs == 0.0:
        return (math.copysign(1, lhs) > 0) - (math.copysign(1, rhs) > 0)
    return (lhs > rhs) - (lhs < rhs)


FORMS: dict[str, Callable[..., Any]] = {
    "literal": literal,
    "property": text_of,
    "minus": negative,
    "not": opposite,
    "AND": conjunction,
    "OR": disjunction,
    "is null": is_null,
    "in": is_in,
    "CONTAINS": contains,
    "STARTSWITH": starts_with,
    "ENDSWITH": ends_with,
    "between": between,
    "not between": not_between,
    "compare": comparison,
}


def render(node: Node) -> str:
    """Return the tree as text with every operand in parentheses, so that the grammar gives the same tree."""
    kind, *parts = node
    if kind == "literal":
        return render_literal(parts[0])
    if kind == "property":
        return parts[0]
    if kind == "in":
        return f"{parts[0][1]} IN ({', '.join(render_literal(value) for value in parts[1])})"
    operands = [f"({render(part)})" if isinstance(part, tuple) else part for part in parts]
    if kind in ("CONTAINS", "STARTSWITH", "ENDSWITH"):
        return f"{operands[0]} {'NOT ' if parts[2] else ''}{kind} {render_literal(parts[1])}"
    return TEMPLATES[kind].format(*operands)


TEMPLATES = {
    "minus": "- {}",
    "not": "NOT {}",
    "AND": "{} AND {}",
    "OR": "{} OR {}",
    "is null": "{} IS NULL",
    "between": "{} BETWEEN {} AND {}",
    "not between": "{} NOT BETWEEN {} AND {}",
    "compare": "{1} {0} {2}",
}


def render_literal(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "TRUE", False: "FALSE", None: "NULL"}[value]
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value) if isinstance(value, float) else str(int(value))


NAMES = ["a", "b", "c"]
TEXTS = st.sampled_from(
    [
        "",
        "x",
        "it's",
        "true",
        "FALSE",
        "5",
        "-5",
        "6",
        "6.5",
        "-0.0",
        "0",
        "3000000000",
        "NaN",
        "Infinity",
        " 5 ",
        "0x1p3",
    ]
) | st.text(max_size=4)
SEARCHES = st.sampled_from(["", "x", "5", "t", "'"])
INTEGERS = st.sampled_from([0, 1, 5, 6, 2**31 - 1]).map(Int32) | st.sampled_from([2**31, 3 * 10**9, 2**53 + 1]).map(
    Int64
)
FLOATS = st.sampled_from([0.5, 5.0, 6.5, 2.0**53, 5e-324]) | st.floats(1e-300, 1.7976931348623157e308)


@st.composite
def conditions(draw: st.DrawFn, depth: int = 3) -> Node:
    """Return a valid condition of at most this height."""
    form = draw(st.sampled_from(SIMPLE if depth <= 1 else SIMPLE + NESTED))
    return form(draw, depth)


def property_(draw: st.DrawFn) -> Node:
    return ("property", draw(st.sampled_from(NAMES)))


def number(draw: st.DrawFn) -> Node:
    return ("literal", draw(INTEGERS | FLOATS))


def orderable(draw: st.DrawFn, depth: int) -> Node:
    """Return a valid operand of `<`: a property, a number, or a minus before anything."""
    kind = draw(st.integers(0, 7))
    if kind < 3:
        return property_(draw)
    if kind < 6:
        return number(draw)
    return ("minus", value(draw, depth - 1))


def value(draw: st.DrawFn, depth: int) -> Node:
    """Return a valid operand of `=`: anything but NULL."""
    kind = draw(st.integers(0, 9))
    if kind < 6:
        return orderable(draw, depth)
    if kind < 8 or depth <= 1:
        return ("literal", draw(TEXTS | st.booleans()))
    return draw(conditions(depth - 1))


def logical(draw: st.DrawFn, depth: int) -> Node:
    """Return a valid operand of AND: a condition, a property, or a truth value."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return ("literal", draw(st.sampled_from([True, False, None])))
    return property_(draw) if kind == 1 else draw(conditions(depth - 1))


def ordering_form(draw: st.DrawFn, depth: int) -> Node:
    operator = draw(st.sampled_from(["<", "<=", ">", ">="]))
    return ("compare", operator, orderable(draw, depth), orderable(draw, depth))


def equality_form(draw: st.DrawFn, depth: int) -> Node:
    left, right = value(draw, depth), value(draw, depth)
    if is_literal(left, bool) and is_literal(right) and not is_literal(right, bool):
        left, right = right, left  # a boolean literal on the left allows no other literal on the right
    return ("compare", draw(st.sampled_from(["=", "<>"])), left, right)


def plain_form(draw: st.DrawFn, _depth: int) -> Node:
    """Return a comparison of a property with a number, the most common condition."""
    operator = draw(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]))
    return ("compare", operator, property_(draw), number(draw))


def between_form(draw: st.DrawFn, depth: int) -> Node:
    kind = draw(st.sampled_from(["between", "not between"]))
    low, high = orderable(draw, depth), orderable(draw, depth)
    if is_literal(low) and is_literal(high) and float(low[1]) > float(high[1]):
        low, high = high, low  # the lower of two literals must come first
    return (kind, orderable(draw, depth), low, high)


def null_form(draw: st.DrawFn, depth: int) -> Node:
    return ("is null", value(draw, depth))


def in_form(draw: st.DrawFn, _depth: int) -> Node:
    return ("in", property_(draw), tuple(draw(st.lists(TEXTS, min_size=1, max_size=6))))


def text_form(draw: st.DrawFn, depth: int) -> Node:
    kind = draw(st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"]))
    return (kind, value(draw, depth), draw(SEARCHES), draw(st.booleans()))


def not_form(draw: st.DrawFn, depth: int) -> Node:
    return ("not", logical(draw, depth))


def logic_form(draw: st.DrawFn, depth: int) -> Node:
    return (draw(st.sampled_from(["AND", "OR"])), logical(draw, depth), logical(draw, depth))


def is_literal(node: Node, *types: type) -> bool:
    return node[0] == "literal" and (not types or isinstance(node[1], types))


SIMPLE: list[Callable[..., Node]]
SIMPLE = [
    plain_form,
    ordering_form,
    equality_form,
    between_form,
    null_form,
    in_form,
    text_form,
]
NESTED: list[Callable[..., Node]] = [logic_form, logic_form, logic_form, not_form, equality_form, null_form]

messages = st.dictionaries(st.sampled_from(NAMES), TEXTS)


def check_against_reference(tree: Node, properties: Properties) -> None:
    selected = SqlFilter(render(tree))
    try:
        expected = reference(tree, properties)
    except EvaluationFailure:
        with pytest.raises(FilterEvaluationError):
            selected.evaluate(properties)
        expected = None
    else:
        assert selected.evaluate(properties) is expected
    assert selected.matches(properties) is (expected is True)
    headers = [(name, text.encode()) for name, text in properties.items()]
    assert selected.matches_headers(headers) is (expected is True)


@settings(max_examples=1500, deadline=None)
@given(conditions(), messages)
def test_the_closures_agree_with_a_plain_recursive_evaluator(tree: Node, properties: Properties) -> None:
    check_against_reference(tree, properties)


@pytest.mark.long
@settings(max_examples=100_000, deadline=None)
@given(conditions(), messages)
def test_the_closures_agree_with_a_plain_recursive_evaluator_for_long(tree: Node, properties: Properties) -> None:
    check_against_reference(tree, properties)
