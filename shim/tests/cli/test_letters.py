"""Listings take the expressions that consumers subscribe with."""

import pytest

from rocketshim.cli.letters import selecting
from rocketshim.errors import FilterSyntaxError

CREATED = [("TAGS", b"created"), ("price", b"11")]
CHEAP = [("TAGS", b"created"), ("price", b"9")]
PAID = [("TAGS", b"paid"), ("price", b"11")]


@pytest.mark.parametrize(
    ("where", "tags", "selected"),
    [
        (None, None, [CREATED, CHEAP, PAID, None]),
        (None, "created", [CREATED, CHEAP]),
        (None, "created || paid", [CREATED, CHEAP, PAID]),
        ("price > 10", None, [CREATED, PAID]),
        ("price > 10", "created", [CREATED]),
        ("TAGS IS NULL", None, [None]),
    ],
)
def test_both_expressions_select_as_a_subscription_does(where: str | None, tags: str | None, selected: object) -> None:
    selects = selecting(where, tags)
    assert [headers for headers in (CREATED, CHEAP, PAID, None) if selects(headers)] == selected


@pytest.mark.parametrize("given", [("price >", None), (None, "||")])
def test_a_broken_expression_is_refused_before_anything_is_read(given: tuple[str | None, str | None]) -> None:
    with pytest.raises(FilterSyntaxError):
        selecting(*given)
