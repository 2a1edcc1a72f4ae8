"""The evaluator, rule by rule."""

import pytest

from rocketshim.errors import FilterEvaluationError
from rocketshim.filters import SqlFilter
from rocketshim.filters.sql_ast import Property
from rocketshim.filters.sql_compiler import compile_test


def evaluate(expression: str, **properties: str) -> bool | None:
    return SqlFilter(expression).evaluate(properties)


def fails(expression: str, **properties: str) -> str:
    with pytest.raises(FilterEvaluationError) as caught:
        evaluate(expression, **properties)
    assert SqlFilter(expression).matches(properties) is False
    return str(caught.value)


# --- conversion of a property to a literal's type -----------------------------------------------------------------


@pytest.mark.parametrize("text", ["6", "+6", "-6", "007", "-0", "٣", "2147483647", "-2147483648"])
def test_a_property_compared_with_a_32_bit_literal_must_be_a_32_bit_integer(text: str) -> None:
    for operator in (">", ">=", "<", "<=", "=", "<>"):
        assert evaluate(f"a {operator} 5", a=text) is not None


@pytest.mark.parametrize(
    "text", ["6.5", "3000000000", " 6", "6 ", "6L", "0x6", "1e3", "x", "six", "1_000", "𝟓", "+", "-"]
)
def test_any_other_text_compared_with_a_32_bit_literal_is_an_evaluation_error(text: str) -> None:
    for operator in (">", ">=", "<", "<=", "=", "<>"):
        message = fails(f"a {operator} 5", a=text)
        assert "property a" in message
        assert repr(text) in message
        assert "not a 32-bit integer" in message
        fails(f"5 {operator} a", a=text)
        fails("a BETWEEN 1 AND 5", a=text)


def test_a_literal_has_32_bits_if_it_fits_with_any_suffix() -> None:
    fails("a > 5L", a="3000000000")
    assert evaluate("a > 2147483648", a="3000000000") is True


def test_a_property_compared_with_a_64_bit_literal_must_be_a_64_bit_integer() -> None:
    assert evaluate("a > 3000000000", a="9223372036854775807") is True
    assert evaluate("a > 3000000000", a="-9223372036854775808") is False
    assert "64-bit" in fails("a > 3000000000", a="9223372036854775808")
    assert "64-bit" in fails("a > 3000000000", a="3000000001.0")


@pytest.mark.parametrize("text", ["6", "6.", ".6e1", " 6 ", "\t6\n", "6d", "6F", "0x1.8p2", "6e0", "+6"])
def test_a_property_compared_with_a_float_literal_may_be_any_java_double_text(text: str) -> None:
    assert evaluate("a = 6.0", a=text) is True
    assert evaluate("a > 5.5", a=text) is True
    assert evaluate("5.5 < a", a=text) is True
    assert evaluate("a BETWEEN 5.5 AND 6.5", a=text) is True


@pytest.mark.parametrize("text", ["x", "6L", "6dd", "nan", "inf", "1_0", "٣", "\u00a06", "0x6", "."])
def test_other_texts_compared_with_a_float_literal_are_evaluation_errors(text: str) -> None:
    assert "not a double" in fails("a > 5.5", a=text)


@pytest.mark.parametrize("text", ["NaN", "+NaN", "-NaN", "Infinity"])
def test_nan_and_infinity_are_greater_than_every_float_literal(text: str) -> None:
    assert evaluate("a > 1.7976931348623157e308", a=text) is True
    assert evaluate("a >= 5.5", a=text) is True
    assert evaluate("a < 5.5", a=text) is False
    assert evaluate("a <= 5.5", a=text) is False
    assert evaluate("a = 5.5", a=text) is False
    assert evaluate("a <> 5.5", a=text) is True
    assert evaluate("5.5 < a", a=text) is True
    assert evaluate("a BETWEEN .5 AND 1e308", a=text) is False
    assert evaluate("a NOT BETWEEN .5 AND 1e308", a=text) is True


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("TRUE", True), ("yes", False), ("1", False), (" true", False)]
)
def test_no_text_compared_with_a_boolean_literal_is_an_error(text: str, value: str) -> None:
    assert evaluate("a = TRUE", a=text) is value
    assert evaluate("a = FALSE", a=text) is not value
    assert evaluate("a <> TRUE", a=text) is not value
    assert evaluate("a <> FALSE", a=text) is value


def test_a_boolean_literal_on_the_left_is_an_evaluation_error_for_every_text() -> None:
    for text in ("true", "TRUE", "false", "x"):
        assert "left" in fails("TRUE = a", a=text)
        fails("FALSE <> a", a=text)


def test_a_boolean_literal_on_the_left_is_not_an_error_for_a_missing_property() -> None:
    assert evaluate("TRUE = a") is False
    assert evaluate("TRUE <> a") is True


def test_equality_of_two_properties_compares_texts() -> None:
    assert evaluate("a = b", a="5", b="5") is True
    assert evaluate("a = b", a="5", b="5.0") is False
    assert evaluate("a <> b", a="5", b="05") is True


def test_the_order_of_two_properties_compares_doubles() -> None:
    assert evaluate("a > b", a="10", b="9") is True
    assert evaluate("a >= b", a="5", b="5.0") is True
    assert evaluate("a < b", a="-0.0", b="0.0") is True  # as in Double.compareTo
    assert evaluate("a >= b", a="NaN", b="NaN") is True
    assert evaluate("a > b", a="NaN", b="Infinity") is True


def test_ordering_two_properties_that_are_not_doubles_is_an_evaluation_error() -> None:
    assert "'x'" in fails("a > b", a="x", b="5")
    assert "'x'" in fails("a > b", a="5", b="x")


def test_strings_are_compared_exactly() -> None:
    assert evaluate("a = 'EU'", a="EU") is True
    assert evaluate("a = 'EU'", a="eu") is False
    assert evaluate("a = 'EU '", a="EU") is False
    assert evaluate("a = 'it''s'", a="it's") is True
    assert evaluate("'5' = a", a="5") is True


def test_values_may_have_characters_of_any_script() -> None:
    assert evaluate("a = 'é😀'", a="é😀") is True
    assert evaluate("a CONTAINS '😀'", a="é😀") is True


# --- three-valued logic -------------------------------------------------------------------------------------------

OPERANDS = {"TRUE": True, "FALSE": False, "NULL": None}


@pytest.mark.parametrize("left", OPERANDS)
@pytest.mark.parametrize("right", OPERANDS)
def test_and_is_false_if_any_side_is_false_else_unknown_if_any_is_unknown(left: str, right: str) -> None:
    values = {OPERANDS[left], OPERANDS[right]}
    expected = False if False in values else None if None in values else True
    assert evaluate(f"{left} AND {right}") is expected
    assert evaluate(f"TRUE AND {left} AND {right}") is expected


@pytest.mark.parametrize("left", OPERANDS)
@pytest.mark.parametrize("right", OPERANDS)
def test_or_is_true_if_any_side_is_true_else_unknown_if_any_is_unknown(left: str, right: str) -> None:
    values = {OPERANDS[left], OPERANDS[right]}
    expected = True if True in values else None if None in values else False
    assert evaluate(f"{left} OR {right}") is expected
    assert evaluate(f"FALSE OR {left} OR {right}") is expected


def test_not_unknown_is_unknown() -> None:
    assert evaluate("NOT NULL") is None
    assert evaluate("NOT TRUE") is False
    assert evaluate("NOT FALSE") is True


def test_only_true_selects() -> None:
    assert SqlFilter("TRUE").matches({}) is True
    assert SqlFilter("FALSE").matches({}) is False
    assert SqlFilter("NULL").matches({}) is False


def test_a_missing_property_is_null() -> None:
    assert evaluate("a IS NULL") is True
    assert evaluate("a IS NOT NULL") is False
    assert evaluate("a IS NULL", a="x") is False
    assert evaluate("a IS NOT NULL", a="x") is True


def test_an_empty_property_is_missing() -> None:
    assert evaluate("a IS NULL", a="") is True
    assert evaluate("a = ''", a="") is None
    assert evaluate("a > 5", a="") is None
    assert evaluate("a CONTAINS 'x'", a="") is False


@pytest.mark.parametrize("operator", [">", ">=", "<", "<="])
@pytest.mark.parametrize("other", ["5", "5.5", "3000000000", "b", "-5", "-b"])
def test_ordering_with_a_missing_property_is_unknown(operator: str, other: str) -> None:
    assert evaluate(f"a {operator} {other}", b="5") is None
    assert evaluate(f"{other} {operator} a", b="5") is None


def test_an_unknown_left_side_of_an_ordering_hides_an_error_on_the_right() -> None:
    assert evaluate("a > -(b > 5)", b="x") is None
    fails("c > -(b > 5)", b="x", c="1")


def test_equality_with_both_sides_missing_is_true() -> None:
    assert evaluate("a = b") is True
    assert evaluate("a <> b") is False


@pytest.mark.parametrize("right", ["b", "5", "5.5", "'x'", "TRUE"])
def test_equality_with_only_the_left_missing_is_unknown(right: str) -> None:
    assert evaluate(f"a = {right}", b="x") is None
    assert evaluate(f"a <> {right}", b="x") is None


@pytest.mark.parametrize("left", ["a", "5", "5.5", "'x'", "3000000000"])
def test_equality_with_only_the_right_missing_is_false(left: str) -> None:
    assert evaluate(f"{left} = b", a="x") is False
    assert evaluate(f"{left} <> b", a="x") is True


def test_equality_evaluates_both_sides_even_if_the_left_is_unknown() -> None:
    fails("-(a = 1) = (b > 5)", a="1", b="x")


def test_in_and_not_in_with_a_missing_property_are_unknown() -> None:
    for items in ("'x'", "'x','y','z','u','v','w'"):
        assert evaluate(f"a IN ({items})") is None
        assert evaluate(f"a NOT IN ({items})") is None
        assert evaluate(f"a IN ({items})", a="x") is True
        assert evaluate(f"a IN ({items})", a="q") is False
        assert evaluate(f"a NOT IN ({items})", a="x") is False
        assert evaluate(f"a NOT IN ({items})", a="q") is True


@pytest.mark.parametrize(("operation", "text"), [("CONTAINS", "axb"), ("STARTSWITH", "xb"), ("ENDSWITH", "ax")])
def test_text_tests(operation: str, text: str) -> None:
    assert evaluate(f"a {operation} 'x'", a=text) is True
    assert evaluate(f"a NOT {operation} 'x'", a=text) is False
    assert evaluate(f"a {operation} 'x'", a="b") is False
    assert evaluate(f"a NOT {operation} 'x'", a="b") is True
    assert evaluate(f"a {operation} 'X'", a=text) is False


@pytest.mark.parametrize("operation", ["CONTAINS", "STARTSWITH", "ENDSWITH"])
def test_text_tests_and_their_not_forms_are_false_on_a_missing_property(operation: str) -> None:
    assert evaluate(f"a {operation} 'x'") is False
    assert evaluate(f"a NOT {operation} 'x'") is False
    assert evaluate(f"NOT (a {operation} 'x')") is True


@pytest.mark.parametrize("operation", ["CONTAINS", "STARTSWITH", "ENDSWITH"])
@pytest.mark.parametrize("value", ["5", "5.5", "TRUE", "NULL", "-5", "-a", "(b = 'x')"])
def test_text_tests_are_false_on_values_that_are_not_text(operation: str, value: str) -> None:
    assert evaluate(f"{value} {operation} '5'", a="5") is False
    assert evaluate(f"{value} NOT {operation} '5'", a="5") is False


@pytest.mark.parametrize("operation", ["CONTAINS", "STARTSWITH", "ENDSWITH"])
def test_text_tests_with_an_empty_search_text_are_false_without_evaluation(operation: str) -> None:
    assert evaluate(f"a {operation} ''", a="x") is False
    assert evaluate(f"a NOT {operation} ''", a="x") is False
    assert evaluate(f"(a > 5) {operation} ''", a="x") is False


def test_text_tests_of_literals_and_of_tests() -> None:
    assert evaluate("'xyz' CONTAINS 'y'") is True
    assert evaluate("a CONTAINS 'x' CONTAINS 'x'", a="x") is False  # a truth value is not a text


# --- between ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "inside"), [("0", False), ("1", True), ("3", True), ("5", True), ("6", False)])
def test_between_includes_its_bounds(text: str, inside: bool) -> None:
    for bounds in ("1 AND 5", "1.0 AND 5.0", "1 AND 5.0", "1.0 AND 5", "- -1 AND 5", "low AND high"):
        assert evaluate(f"a BETWEEN {bounds}", a=text, low="1", high="5") is inside
        assert evaluate(f"a NOT BETWEEN {bounds}", a=text, low="1", high="5") is not inside


def test_between_with_a_missing_property_is_unknown() -> None:
    assert evaluate("a BETWEEN 1 AND 5") is None
    assert evaluate("a NOT BETWEEN 1 AND 5") is None


def test_between_is_two_comparisons_with_short_circuiting() -> None:
    assert evaluate("a BETWEEN low AND high", a="5", low="6", high="x") is False
    assert evaluate("a BETWEEN low AND high", a="5", high="4") is False
    assert evaluate("a BETWEEN low AND high", a="5", high="6") is None
    assert evaluate("a NOT BETWEEN low AND high", a="5", low="6", high="x") is True
    fails("a BETWEEN low AND high", a="5", low="4", high="x")


def test_each_bound_converts_the_property_to_its_own_type() -> None:
    fails("a BETWEEN 1 AND 5.5", a="2.5")
    assert evaluate("a BETWEEN 1.0 AND 5.5", a="2.5") is True
    fails("a BETWEEN 1 AND 3000000000", a="2999999999")


def test_between_bounds_that_are_not_checked_may_be_in_the_wrong_order() -> None:
    assert evaluate("a BETWEEN -5 AND -10", a="-7") is False
    assert evaluate("a NOT BETWEEN 5 AND 1", a="3") is True


# --- short circuit and errors -------------------------------------------------------------------------------------


def test_evaluation_goes_from_left_to_right_and_stops_when_the_result_is_known() -> None:
    assert evaluate("b = 'x' OR a > 5", a="bad", b="x") is True
    fails("a > 5 OR b = 'x'", a="bad", b="x")
    assert evaluate("b = 'y' AND a > 5", a="bad", b="x") is False
    fails("a > 5 AND b = 'y'", a="bad", b="x")
    assert evaluate("b = 'y' OR b = 'x' OR a > 5", a="bad", b="x") is True


def test_unknown_does_not_stop_the_evaluation() -> None:
    fails("c = 'x' OR a > 5", a="bad")
    fails("c = 'x' AND a > 5", a="bad")


@pytest.mark.parametrize("wrapper", ["NOT ({})", "({}) IS NULL", "({}) = TRUE", "-({}) = 1", "TRUE AND ({})"])
def test_an_error_ends_the_whole_expression(wrapper: str) -> None:
    fails(wrapper.format("a > 5"), a="bad")


def test_error_messages_name_the_comparison_and_shorten_long_texts() -> None:
    message = fails("b = 'x' AND a > 5", a="z" * 100_000, b="x")
    assert "in a > 5" in message
    assert len(message) < 200


# --- traps --------------------------------------------------------------------------------------------------------


def test_not_a_equals_one_is_never_true() -> None:
    assert evaluate("NOT a = 1", a="1") is False
    assert evaluate("NOT a = 1", a="2") is False
    assert evaluate("NOT a = 1") is None


def test_not_a_is_null_is_true_when_a_is_missing() -> None:
    assert evaluate("NOT a IS NULL") is True
    assert evaluate("NOT a IS NULL", a="x") is False


@pytest.mark.parametrize("text", ["true", "TRUE", "1", "x"])
def test_a_bare_property_is_never_true_but_its_negation_is(text: str) -> None:
    assert evaluate("a", a=text) is False
    assert evaluate("NOT a", a=text) is True
    assert evaluate("a") is None
    assert evaluate("NOT a") is None
    assert evaluate("a AND TRUE", a=text) is False


def test_a_minus_on_a_property_gives_null() -> None:
    assert evaluate("-a = 5", a="-5") is None
    assert evaluate("-a IS NULL", a="5") is True
    assert evaluate("5 = -a", a="5") is False
    assert evaluate("a > -b", a="5", b="5") is None


def test_a_minus_on_a_number_negates_it_and_keeps_its_type() -> None:
    assert evaluate("a > -5", a="-4") is True
    assert evaluate("a = - -5", a="5") is True
    assert evaluate("a < -5.5", a="-6") is True
    fails("a > -5", a="-4.5")
    assert evaluate("a = -2147483648", a="-2147483648") is True  # a 64-bit comparison
    assert evaluate("a < -2147483648", a="-3000000000") is True


def test_two_minus_signs_without_a_line_end_are_two_minus_signs() -> None:
    assert evaluate("a > --5", a="6") is True


# --- unusual expressions ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("5 > 3", True),
        ("5 = 5L", True),
        ("3000000000 > 5", True),
        ("5 = 5.0", True),
        ("9007199254740993 = 9007199254740992.0", True),
        ("9007199254740993 > 9007199254740992.0", False),
        ("5 = TRUE", False),
        ("5 <> TRUE", True),
        ("TRUE = -5", False),
        ("'true' = TRUE", True),
        ("'x' = FALSE", True),
        ("'5' = 5", True),
        ("5 = '5'", True),
        ("' 5.0' = 5.0", True),
        ("TRUE = TRUE", True),
        ("TRUE = FALSE", False),
        ("TRUE <> FALSE", True),
        ("'x' = 'x'", True),
        ("NULL IS NULL", True),
        ("5 IS NULL", False),
        ("'x' IS NOT NULL", True),
        ("TRUE IS NULL", False),
        ("-'x' IS NULL", True),
        ("-TRUE IS NULL", True),
        ("-NULL = -NULL", True),
        ("5 > -'x'", None),
        ("-'x' > 5", None),
        ("-'x' = 5", None),
        ("5 = -'x'", False),
        ("5 BETWEEN 1 AND 10", True),
        ("TRUE = -'x'", False),
    ],
)
def test_constants(expression: str, expected: object) -> None:
    assert evaluate(expression) is expected


@pytest.mark.parametrize("expression", ["'x' = 5", "5 = 'x'", "'x' <> 5.5"])
def test_constants_that_cannot_be_compared_fail_at_evaluation(expression: str) -> None:
    fails(expression)


def test_truth_values_are_compared_with_each_other_and_with_texts_on_the_left() -> None:
    assert evaluate("(a = '1') = (b = '1')", a="1", b="1") is True
    assert evaluate("(a = '1') = TRUE", a="1") is True
    assert evaluate("a = 1 = TRUE", a="1") is True
    assert evaluate("(a = '1') = 5", a="1") is False
    assert evaluate("b = (a = '1')", a="1", b="true") is True
    assert evaluate("b = (a = '1')", a="1", b="no") is False
    fails("(a = '1') = b", a="1", b="true")
    fails("(a = '1') = 'true'", a="1")
    assert evaluate("(a = '1') = 'true'") is None
    assert evaluate("(a > 5) IS NULL") is True


def test_a_value_is_not_a_condition() -> None:
    with pytest.raises(TypeError, match="not a condition"):
        compile_test(Property("a"), "a")
