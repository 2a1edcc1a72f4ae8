"""Digests are pinned, because another version of the program reads them from commit metadata."""

from rocketshim.filters import SqlFilter, TagFilter
from rocketshim.filters.digest import subscription_digest


def test_digests_are_pinned() -> None:
    assert subscription_digest("TAG", None) == "158f5b26d5e1d0de"
    assert TagFilter("*").digest() == subscription_digest("TAG", None)
    assert TagFilter("paid || created").digest() == subscription_digest("TAG", "created||paid")
    assert SqlFilter("a > 5").digest() == subscription_digest("SQL92", "a > 5")
    assert subscription_digest("SQL92", "a > 5") == "bce69e6d81147d4a"


def test_the_digest_depends_on_type_and_text() -> None:
    assert subscription_digest("TAG", "a") != subscription_digest("SQL92", "a")
    assert subscription_digest("TAG", "") != subscription_digest("TAG", None)
    assert subscription_digest("TAG", "*") != subscription_digest("TAG", None)


def test_any_text_has_a_digest() -> None:
    assert len(subscription_digest("SQL92", "\ud800 é \x00")) == 16
