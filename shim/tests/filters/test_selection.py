"""Callable selectors, message selectors, and the filter for the arguments of a subscription."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from rocketshim.errors import ConfigError, FilterEvaluationError, FilterSyntaxError
from rocketshim.filters import CallableFilter, MessageSelector, SqlFilter, TagFilter, compile_filter


@dataclass(frozen=True)
class Received:
    body: bytes
    properties: dict


def is_large(message: Received) -> bool:
    return len(message.body) > 3


class ByRegion:
    def __init__(self, region: str) -> None:
        self.region = region

    def matches(self, message: Received) -> bool:
        return message.properties.get("region") == self.region


class Both(ByRegion):
    def __call__(self, _message: Received) -> bool:
        raise AssertionError


large = Received(b"12345", {"region": "EU"})
small = Received(b"1", {"region": "US"})


def test_a_function_selects_by_the_whole_message() -> None:
    selected = CallableFilter(is_large)
    assert selected.matches(large)
    assert not selected.matches(small)


@pytest.mark.parametrize("kind", [ByRegion, Both])
def test_an_object_with_matches_selects_and_matches_is_preferred_to_call(kind: type[ByRegion]) -> None:
    selected = CallableFilter(kind("EU"))
    assert selected.matches(large)
    assert not selected.matches(small)


def test_partials_and_bound_methods_are_functions() -> None:
    assert CallableFilter(functools.partial(ByRegion.matches, ByRegion("EU"))).matches(large)
    assert CallableFilter(ByRegion("EU").matches).matches(large)


def test_an_error_in_the_selector_is_an_evaluation_error_with_its_cause() -> None:
    def broken(message: Received) -> object:
        return message.properties["nothing"]

    with pytest.raises(FilterEvaluationError, match=r"broken raised KeyError") as caught:
        CallableFilter(broken).matches(large)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.parametrize("answer", [None, 0, 1, "yes", []])
def test_a_result_that_is_neither_true_nor_false_is_an_evaluation_error(answer: object) -> None:
    with pytest.raises(FilterEvaluationError, match="must return True or False"):
        CallableFilter(lambda _message: answer).matches(large)


async def coroutine(_message: object) -> bool:
    return True


class AsyncCall:
    async def __call__(self, _message: object) -> bool:
        return True


class AsyncMatches:
    async def matches(self, _message: object) -> bool:
        return True


@pytest.mark.parametrize(
    ("selector", "reason"),
    [
        ("builtins:eval", "pass the object itself"),
        (b"x", "pass the object itself"),
        (7, "pass the object itself"),
        (ByRegion, "give an instance"),
        (coroutine, "coroutine function"),
        (AsyncCall(), "coroutine function"),
        (AsyncMatches(), "coroutine function"),
    ],
)
def test_an_object_that_cannot_select_is_rejected(selector: Any, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        CallableFilter(selector)


def test_the_digest_depends_only_on_the_qualified_name() -> None:
    assert CallableFilter(is_large).digest() == CallableFilter(is_large).digest()
    assert CallableFilter(is_large).digest() != CallableFilter(ByRegion("EU")).digest()
    assert CallableFilter(ByRegion("EU")).digest() == CallableFilter(ByRegion("US")).digest()
    assert CallableFilter(is_large).expression.endswith(".is_large")
    assert CallableFilter(ByRegion("EU")).expression.endswith(".ByRegion")
    assert CallableFilter(functools.partial(is_large)).expression == CallableFilter(is_large).expression
    assert CallableFilter(is_large).expression_type == "CALLABLE"


def test_filters_are_equal_if_their_selectors_are() -> None:
    assert CallableFilter(is_large) == CallableFilter(is_large)
    assert hash(CallableFilter(is_large)) == hash(CallableFilter(is_large))
    assert CallableFilter(ByRegion("EU")) != CallableFilter(ByRegion("EU"))
    assert CallableFilter(is_large) != TagFilter("A")
    assert str(CallableFilter(is_large)) in repr(CallableFilter(is_large))


def test_a_message_selector_has_a_compiled_filter() -> None:
    by_tag, by_sql = MessageSelector.by_tag("A || B"), MessageSelector.by_sql("a > 5")
    assert by_tag.filter == TagFilter("A || B")
    assert by_sql.filter == SqlFilter("a > 5")
    assert (by_tag.expression_type, by_tag.expression) == ("TAG", "A || B")
    assert (by_sql.expression_type, by_sql.expression) == ("SQL92", "a > 5")
    assert MessageSelector.by_tag(None).filter.matches_all
    assert by_tag == MessageSelector.by_tag("B||A")
    assert by_tag != by_sql
    assert hash(by_tag) == hash(MessageSelector.by_tag("B||A"))
    assert repr(by_sql) == "MessageSelector(SqlFilter('a > 5'))"


@pytest.mark.parametrize("make", [lambda: MessageSelector.by_sql("a >"), lambda: MessageSelector.by_sql("")])
def test_the_constructor_of_a_message_selector_rejects_an_invalid_expression(make: Callable[[], object]) -> None:
    with pytest.raises(FilterSyntaxError):
        make()


def test_a_subscription_without_arguments_selects_everything() -> None:
    assert compile_filter() == TagFilter("*")


def test_each_argument_creates_its_kind_of_filter() -> None:
    assert compile_filter(tags="A") == TagFilter("A")
    assert compile_filter(sql="a > 5") == SqlFilter("a > 5")
    assert compile_filter(selector=is_large) == CallableFilter(is_large)
    assert compile_filter(selector=MessageSelector.by_sql("a > 5")) == SqlFilter("a > 5")


def test_empty_tags_select_everything_but_an_empty_condition_is_rejected() -> None:
    assert compile_filter(tags="") == TagFilter("*")
    with pytest.raises(FilterSyntaxError):
        compile_filter(sql="")


@pytest.mark.parametrize(
    "given",
    [
        {"tags": "A", "sql": "a > 5"},
        {"tags": "A", "selector": is_large},
        {"sql": "a > 5", "selector": is_large},
        {"tags": "", "sql": ""},
    ],
)
def test_two_filters_for_one_subscription_are_rejected(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="one filter") as caught:
        compile_filter(**given)
    assert all(name in str(caught.value) for name in given)
