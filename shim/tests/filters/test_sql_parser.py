"""The parser: grammar, compile-time rules, positions of errors, limits, and invalid input."""

import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rocketshim.errors import FilterSyntaxError
from rocketshim.filters.sql_ast import (
    And,
    Between,
    Compare,
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
from rocketshim.filters.sql_parser import MAX_EXPRESSION_CHARACTERS, MAX_NESTING, parse


def integer(value: int) -> Literal:
    return Literal(value, LiteralType.INTEGER)


def equal(name: str, value: int) -> Compare:
    return Compare(Operator.EQUAL, Property(name), integer(value))


def refused(text: str) -> FilterSyntaxError:
    with pytest.raises(FilterSyntaxError) as caught:
        parse(text)
    error = caught.value
    assert error.expression == text
    assert text[error.position : error.position + len(error.token)] == error.token
    assert error.expected
    assert str(error.position) in str(error)
    return error


# --- precedence ---------------------------------------------------------------------------------------------------


def test_or_has_lower_precedence_than_and() -> None:
    assert parse("a = 1 OR b = 2 AND c = 3") == Or((equal("a", 1), And((equal("b", 2), equal("c", 3)))))


def test_parentheses_group() -> None:
    assert parse("(a = 1 OR b = 2) AND c = 3") == And((Or((equal("a", 1), equal("b", 2))), equal("c", 3)))


def test_chains_are_flat() -> None:
    assert parse("a = 1 OR b = 2 OR c = 3") == Or((equal("a", 1), equal("b", 2), equal("c", 3)))


def test_equality_has_lower_precedence_than_comparison() -> None:
    assert parse("a = b > 5") == Compare(
        Operator.EQUAL, Property("a"), Compare(Operator.GREATER, Property("b"), integer(5))
    )


def test_equality_chains_to_the_left() -> None:
    assert parse("a = b = c") == Compare(
        Operator.EQUAL, Compare(Operator.EQUAL, Property("a"), Property("b")), Property("c")
    )
    assert parse("a = b IS NULL") == IsNull(Compare(Operator.EQUAL, Property("a"), Property("b")), negated=False)


def test_not_applies_only_to_its_operand() -> None:
    assert parse("NOT a = 1") == Compare(Operator.EQUAL, Not(Truth(Property("a"))), integer(1))
    assert parse("NOT a IS NULL") == IsNull(Not(Truth(Property("a"))), negated=False)
    assert parse("NOT (a = 1)") == Not(equal("a", 1))


def test_the_and_of_between_is_not_the_logical_operator() -> None:
    assert parse("a BETWEEN 1 AND 2 AND b = 3") == And(
        (Between(Property("a"), integer(1), integer(2), negated=False), equal("b", 3))
    )


# --- forms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", list(Operator))
def test_comparison_operators(operator: Operator) -> None:
    assert parse(f"a {operator.value} 5") == Compare(operator, Property("a"), integer(5))


def test_is_null_and_is_not_null() -> None:
    assert parse("a IS NULL") == IsNull(Property("a"), negated=False)
    assert parse("a is not null") == IsNull(Property("a"), negated=True)


def test_in_and_not_in() -> None:
    assert parse("a IN ('x','it''s')") == In(Property("a"), ("x", "it's"), negated=False)
    assert parse("a NOT IN ('x')") == In(Property("a"), ("x",), negated=True)


@pytest.mark.parametrize("operation", list(TextOperation))
def test_text_tests_and_their_not_forms(operation: TextOperation) -> None:
    assert parse(f"a {operation.value} 'x'") == TextTest(operation, Property("a"), "x", negated=False)
    assert parse(f"a NOT {operation.value.lower()} 'x'") == TextTest(operation, Property("a"), "x", negated=True)


def test_between_and_not_between() -> None:
    assert parse("a BETWEEN 1 AND b") == Between(Property("a"), integer(1), Property("b"), negated=False)
    assert parse("a NOT BETWEEN 1 AND b") == Between(Property("a"), integer(1), Property("b"), negated=True)


def test_a_plus_sign_has_no_node() -> None:
    assert parse("+ +a = + 5") == equal("a", 5)


def test_a_minus_sign_is_an_operator() -> None:
    assert parse("a > -5") == Compare(Operator.GREATER, Property("a"), Negate(integer(5)))


def test_a_bare_property_is_cast_to_a_truth_value() -> None:
    assert parse("a") == Truth(Property("a"))
    assert parse("(+a)") == Truth(Property("a"))
    assert parse("a AND b") == And((Truth(Property("a")), Truth(Property("b"))))


def test_a_parenthesised_property_is_still_bare() -> None:
    assert parse("(a) IN ('x')") == parse("a IN ('x')")
    assert parse("+(a) IN ('x')") == parse("a IN ('x')")


@pytest.mark.parametrize("text", ["TRUE", "false", "NULL", "NOT NULL", "NULL IS NULL", "5 IS NULL", "5 > 3"])
def test_conditions_without_a_property(text: str) -> None:
    parse(text)


def test_now_is_a_property_name_like_any_other() -> None:
    assert parse("now > 5") == Compare(Operator.GREATER, Property("now"), integer(5))


# --- literals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "kind"),
    [
        ("0", 0, LiteralType.INTEGER),
        ("5L", 5, LiteralType.INTEGER),
        ("2147483647L", 2147483647, LiteralType.INTEGER),
        ("2147483648", 2147483648, LiteralType.LONG),
        ("9223372036854775807l", 9223372036854775807, LiteralType.LONG),
        ("5.", 5.0, LiteralType.DOUBLE),
        (".5", 0.5, LiteralType.DOUBLE),
        ("5E3", 5000.0, LiteralType.DOUBLE),
        ("4.9E-324", 5e-324, LiteralType.DOUBLE),
        ("1.7976931348623157e308", sys.float_info.max, LiteralType.DOUBLE),
        ("'it''s'", "it's", LiteralType.STRING),
        ("''", "", LiteralType.STRING),
        ("true", True, LiteralType.BOOLEAN),
    ],
)
def test_literals_and_their_types_with_any_suffix(text: str, value: Any, kind: LiteralType) -> None:
    tree = parse(f"a = {text}")
    assert isinstance(tree, Compare)
    assert tree.right == Literal(value, kind)
    assert type(tree.right.value) is type(value)


@pytest.mark.parametrize("text", ["9223372036854775808", "9223372036854775808L", "9" * 5000])
def test_integers_of_more_than_64_bits_are_rejected(text: str) -> None:
    error = refused(f"a = {text}")
    assert (error.position, error.token) == (4, text)
    assert "64 bit" in error.expected


def test_the_lowest_64_bit_integer_cannot_be_written() -> None:
    assert refused("a = -9223372036854775808").position == 5


@pytest.mark.parametrize("text", ["1e400", "1.8e308", "0.0", "0.", ".0", "0E5", "2e-324", "1e-400"])
def test_floats_that_are_infinite_or_below_the_smallest_positive_double_are_rejected(text: str) -> None:
    error = refused(f"a = {text}")
    assert (error.position, error.token) == (4, text)


# --- compile-time rules -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("operator", [">", ">=", "<", "<="])
@pytest.mark.parametrize("operand", ["'x'", "TRUE", "NULL", "('x')", "(b = 1)", "(b CONTAINS 'x')", "NOT b"])
def test_ordering_rejects_a_string_boolean_null_or_condition(operator: Operator, operand: str) -> None:
    assert "number or a property" in refused(f"a {operator} {operand}").expected
    assert "number or a property" in refused(f"{operand} {operator} a").expected


def test_ordering_operators_cannot_be_chained() -> None:
    assert refused("1 < a < 5").position == 0


@pytest.mark.parametrize("operand", ["'x'", "TRUE", "NULL", "(b = 1)"])
def test_between_rejects_a_string_boolean_null_or_condition(operand: str) -> None:
    for text in (f"a BETWEEN {operand} AND 5", f"a BETWEEN 1 AND {operand}", f"{operand} BETWEEN 1 AND 5"):
        refused(text)
        refused(text.replace("BETWEEN", "NOT BETWEEN"))


def test_between_rejects_two_literals_in_the_wrong_order() -> None:
    error = refused("a BETWEEN 5 AND 1")
    assert (error.position, error.token) == (16, "1")
    refused("a BETWEEN (5.5) AND 5")
    refused("a BETWEEN 9007199254740993 AND 9007199254740990.0")
    parse("a BETWEEN 5 AND 5.0")
    parse("a BETWEEN 9007199254740993 AND 9007199254740992.0")  # equal as doubles


def test_bounds_are_not_compared_unless_both_are_literals() -> None:
    parse("a BETWEEN -5 AND -10")
    parse("a BETWEEN b AND 1")
    parse("a NOT BETWEEN 5 AND 1")


@pytest.mark.parametrize("text", ["a = NULL", "NULL = a", "a <> NULL", "(a = 1) = NULL", "NULL = NULL", "a = (NULL)"])
def test_null_cannot_be_compared(text: str) -> None:
    assert "NULL" in refused(text).token


@pytest.mark.parametrize("text", ["TRUE = 5", "FALSE = 'x'", "TRUE <> 5.5", "(TRUE) = 3000000000"])
def test_a_boolean_literal_on_the_left_rejects_another_literal(text: str) -> None:
    assert "beside a boolean literal" in refused(text).expected


@pytest.mark.parametrize("text", ["5 = TRUE", "'x' = TRUE", "TRUE = TRUE", "TRUE = a", "TRUE = -5", "TRUE = (a = 1)"])
def test_other_comparisons_with_booleans_compile(text: str) -> None:
    parse(text)


@pytest.mark.parametrize("operand", ["5", "'x'", "-a", "(a = 1)", "NOT a", "a CONTAINS 'x'"])
def test_in_needs_a_property(operand: str) -> None:
    assert refused(f"{operand} IN ('x')").expected == "a property before IN"
    assert refused(f"{operand} NOT IN ('x')").expected == "a property before IN"


@pytest.mark.parametrize("items", ["()", "(5)", "(a)", "('x',)", "('x' 'y')", "('x', NULL)", "'x'", "('x'"])
def test_in_needs_a_list_of_strings_that_is_not_empty(items: str) -> None:
    refused(f"a IN {items}")
    refused(f"a NOT IN {items}")


@pytest.mark.parametrize("operation", ["CONTAINS", "STARTSWITH", "ENDSWITH"])
@pytest.mark.parametrize("search", ["5", "b", "TRUE", "NULL", "('x')", ""])
def test_text_tests_need_a_string_literal(operation: TextOperation, search: str) -> None:
    assert refused(f"a {operation} {search}").expected == "a string in single quotes"


@pytest.mark.parametrize("text", ["5", "'x'", "5.5", "-a", "- 5", "(5)", "+5"])
def test_the_whole_expression_must_be_a_condition_or_a_bare_property(text: str) -> None:
    error = refused(text)
    assert error.expected == "a condition as the whole expression"
    assert error.position == 0


@pytest.mark.parametrize("text", ["5 AND a", "a OR 'x'", "a = 1 AND -a", "NOT 5", "NOT 'x'", "NOT -a"])
def test_logical_operators_need_conditions_or_bare_properties(text: str) -> None:
    assert refused(text).expected.startswith("a condition")


@pytest.mark.parametrize("text", ["NOT a > 5", "NOT a IN ('x')", "NOT a BETWEEN 1 AND 2"])
def test_not_before_an_ordering_or_in_does_not_compile(text: str) -> None:
    refused(text)


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "position", "token", "hint"),
    [
        ("a = 1 b = 2", 6, "b", "RocketMQ ignores"),
        ("a LIKE 'x%'", 2, "LIKE", "CONTAINS"),
        ("a = 007", 5, "07", "leading zeros"),
        ("a + 1 = 2", 2, "+", "no arithmetic"),
        ("a-b = 1", 1, "-", "dashes"),
        ("UPPER(a) = 'ABC'", 5, "(", "no functions"),
        ("a > 0x10", 5, "x10", "RocketMQ ignores"),
        ("a = 0L", 5, "L", "RocketMQ ignores"),
        ("a = 1 -- x", 6, "-", "line end"),
        ("a = 1)", 5, ")", "RocketMQ ignores"),
        ("a IS NULL > 5", 10, ">", "RocketMQ ignores"),
        ("a.b = 1", 1, ".", "property name"),
        ("a % 2 = 1", 2, "%", "no arithmetic"),
        ("a != 1", 2, "!", "<>"),
        ("a = 1;", 5, ";", ""),
    ],
)
def test_text_left_over_after_a_complete_expression_is_an_error(
    text: str, position: int, token: str, hint: str
) -> None:
    error = refused(text)
    assert (error.position, error.token) == (position, token)
    assert "the end of the expression" in error.expected
    assert hint in str(error)
    parse(text[:position])  # what comes before is complete


@pytest.mark.parametrize(
    ("text", "position", "token", "expected"),
    [
        ("", 0, "", "a property name"),
        ("  ", 2, "", "a property name"),
        ("/* */", 5, "", "a property name"),
        ("a >", 3, "", "an integer"),
        ("a = 1 AND", 9, "", "NOT"),
        ("(a = 1", 6, "", ")"),
        ("a IS 5", 5, "5", "NULL, NOT"),
        ("a NOT NULL", 6, "NULL", "IN, BETWEEN, CONTAINS"),
        ("a NOT = 5", 6, "=", "IN, BETWEEN, CONTAINS"),
        ("a BETWEEN 1 OR 2", 12, "OR", "AND"),
        ("a IN 'x'", 5, "'x'", "("),
        ("AND a", 0, "AND", "a property name"),
        ("a = = 1", 4, "=", "a float"),
        ("a > 5 > 6", 0, "a > 5", "a number"),
        ('a = "x"', 4, '"', "a string in single quotes"),
        ("a = 'x", 4, "'x", "a string in single quotes"),
        ("é = 1", 0, "é", "a property name"),
        ("a\xa0= 1", 1, "\xa0", "="),
        ("a = /* x", 4, "/", "a string"),
    ],
)
def test_errors_have_position_token_and_expectation(text: str, position: int, token: str, expected: str) -> None:
    error = refused(text)
    assert (error.position, error.token) == (position, token)
    assert expected in error.expected


def test_error_messages_contain_only_the_start_of_a_long_token() -> None:
    error = refused("a = '" + "x" * 20_000)
    assert len(error.token) == 20_001
    assert len(str(error)) < 400


# --- limits -------------------------------------------------------------------------------------------------------


def test_the_longest_expression_is_accepted_and_one_more_character_is_not() -> None:
    head = "a = 'x' OR b = '"
    longest = head + "x" * (MAX_EXPRESSION_CHARACTERS - len(head) - 1) + "'"
    assert len(longest) == MAX_EXPRESSION_CHARACTERS
    parse(longest)
    error = refused(longest + " ")
    assert error.position == MAX_EXPRESSION_CHARACTERS
    assert "at most 32,768 characters" in error.expected


@pytest.mark.parametrize(
    "nested",
    [
        lambda depth: "(" * depth + "a = 1" + ")" * depth,
        lambda depth: "NOT " * (depth - 1) + "a",
        lambda depth: "- " * (depth - 2) + "a = 1",
        lambda depth: "+" * (depth - 2) + "a = 1",
        lambda depth: "a" + " IS NULL" * (depth - 1),
        lambda depth: "a" + " = b" * (depth - 1),
        lambda depth: "a" + " CONTAINS 'x'" * (depth - 1),
        lambda depth: "NOT (" * (depth - 2) + "a = 1" + ")" * (depth - 2),
    ],
)
def test_nesting_is_limited(nested: Callable[[int], str]) -> None:
    parse(nested(MAX_NESTING))
    error = refused(nested(MAX_NESTING + 1))
    assert error.expected == "at most 100 nested levels"


def test_a_thousand_alternatives_are_not_nested() -> None:
    tree = parse(" OR ".join(f"a = {number}" for number in range(1000)))
    assert isinstance(tree, Or)
    assert len(tree.terms) == 1000


# --- invalid input ------------------------------------------------------------------------------------------------

PIECES = [
    *("a", "b", "$x", "5", "5.", "0", "007", "1e", "l", ".", "E5", "'x'", "'", "''", "(", ")", "-", "--", "/*", "*/"),
    *("+", "=", "<>", "<", ">", ">=", ",", " ", "\n", "\r", "NOT", "AND", "OR", "IN", "IS", "NULL", "TRUE", "BETWEEN"),
    *("CONTAINS", "é", "ſ", "ı", "\x00", "\xa0", "!", '"', "\ud800", "😀"),
]
SEEDS = [
    "price > 10 AND region = 'EU' AND amount >= 2.5",
    "NOT (a IN ('x', 'it''s') OR b NOT BETWEEN -5 AND 1e3) AND c IS NOT NULL",
    "a CONTAINS 'x' OR b NOT STARTSWITH 'y' /* c */ OR (TRUE = c) -- d\n AND e <> -.5",
]


def garbage(source: random.Random, count: int) -> Iterator[str]:
    """Return random characters, random words, or an expression with random changes."""
    for number in range(count):
        kind = number % 3
        if kind == 0:
            yield source.randbytes(source.randint(0, 60)).decode(source.choice(["latin-1", "utf-8"]), "surrogateescape")
        elif kind == 1:
            yield source.choice(["", " "]).join(source.choices(PIECES, k=source.randint(0, 16)))
        else:
            text = source.choice(SEEDS)
            for _ in range(source.randint(1, 4)):
                at = source.randint(0, len(text))
                text = text[:at] + source.choice([*PIECES, ""]) + text[at + source.randint(0, 4) :]
            yield text


def syntax_error_of(text: str) -> FilterSyntaxError | None:
    try:
        parse(text)
    except FilterSyntaxError as error:
        return error
    return None


def check_garbage(seed: int, count: int) -> None:
    compiled = 0
    for text in garbage(random.Random(seed), count):  # noqa: S311  # for a test, not for security
        error = syntax_error_of(text)
        if error is None:
            compiled += 1
        else:
            assert 0 <= error.position <= len(text)
            assert text[error.position : error.position + len(error.token)] == error.token
            assert error.expected
    assert compiled > count / 500  # if every text were invalid, this would prove little


def test_invalid_input_gives_a_syntax_error_or_a_tree() -> None:
    check_garbage(seed=20_251_121, count=20_000)


@pytest.mark.long
def test_a_million_random_inputs_give_a_syntax_error_or_a_tree() -> None:
    check_garbage(seed=1, count=1_000_000)


SHAPES = [
    *("(", ")", "-", "- ", "+", "0", "1", "9.", "1e", "'", "''", "' ", "/*", "/**/", "/* * ", "--", "--\r", "--\n"),
    *("x", " ", "\x00", "NOT ", "a = 1 OR ", "a AND ", "a IS NULL ", "a = b = ", "a IN ('x') ", "a CONTAINS 'x' "),
    *("NOT (", "(a OR ", "a IS NULL AND ", "a BETWEEN 1 AND 2 AND ", "é", "<>", ",", "'x',", "+("),
]


def count_calls(text: str) -> int:
    """Return the number of Python and C function calls while a text is parsed: a measure of work without a clock."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    previous = sys.getprofile()
    sys.setprofile(count)
    try:
        parse(text)
    except FilterSyntaxError:
        pass
    finally:
        sys.setprofile(previous)
    return calls


@pytest.mark.parametrize("shape", SHAPES)
def test_work_is_linear_in_the_length_of_the_text(shape: str) -> None:
    parse("a")  # builds the parser's tables
    repeats = 4_000 // len(shape)
    once, twice, four_times = (count_calls(shape * (repeats * factor)) for factor in (1, 2, 4))
    assert twice <= 2 * once + 500
    assert four_times <= 2 * twice + 500


def test_a_list_of_thousands_of_strings_is_parsed() -> None:
    once, twice = (count_calls("a IN (" + "'x'," * repeats + "'y')") for repeats in (2_000, 4_000))
    assert twice <= 2 * once + 500
