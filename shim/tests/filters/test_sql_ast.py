"""The tree, as other modules use it."""

from rocketshim.filters import sql_ast
from rocketshim.filters.sql_ast import And, Compare, Literal, LiteralType, Negate, Not, Operator, Property, Truth
from rocketshim.filters.sql_parser import parse


def test_walk_gives_parents_first_and_children_in_evaluation_order() -> None:
    tree = parse("a = 1 AND NOT b OR c BETWEEN d AND 2")
    names = [node.name for node in sql_ast.walk(tree) if isinstance(node, Property)]
    assert names == ["a", "b", "c", "d"]
    assert next(iter(sql_ast.walk(tree))) is tree


def test_property_names_are_collected_from_every_form() -> None:
    tree = parse("a = 1 OR b IN ('x') OR c CONTAINS 'x' OR d IS NULL OR e BETWEEN f AND g OR -h = 1 OR i OR j > k")
    assert sql_ast.property_names(tree) == set("abcdefghijk")


def test_null_and_truth_values_are_boolean_and_other_values_are_not() -> None:
    assert sql_ast.is_boolean(Literal(None, LiteralType.NULL))
    assert sql_ast.is_boolean(Literal(value=True, type=LiteralType.BOOLEAN))
    assert sql_ast.is_boolean(Truth(Property("a")))
    assert not sql_ast.is_boolean(Property("a"))
    assert not sql_ast.is_boolean(Negate(Property("a")))
    assert not sql_ast.is_boolean(Literal("TRUE", LiteralType.STRING))


def test_nodes_at_different_positions_are_equal() -> None:
    assert parse("a = 1") == parse("  (a) =  1 ")
    assert parse("a = 1") == Compare(Operator.EQUAL, Property("a"), Literal(1, LiteralType.INTEGER))
    assert hash(parse("NOT a")) == hash(Not(Truth(Property("a"))))


def test_nodes_have_the_position_of_their_text() -> None:
    text = "a = 1 AND (b > - 2 OR NOT c)"
    tree = parse(text)
    assert isinstance(tree, And)
    assert text[tree.start : tree.end] == text
    compared = next(node for node in sql_ast.walk(tree) if isinstance(node, Negate))
    assert text[compared.start : compared.end] == "- 2"


def test_only_four_operators_compare_by_order() -> None:
    ordering = {operator.value for operator in Operator if operator.is_ordering}
    assert ordering == {">", ">=", "<", "<="}
