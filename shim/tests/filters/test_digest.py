"""Digests are pinned, because another version of the program reads them from commit metadata."""

from rocketshim.core.subscriptions import filter_digest
from rocketshim.filters import SqlFilter, TagFilter


def test_digests_are_pinned() -> None:
    assert filter_digest("TAG", None) == "158f5b26d5e1d0de"
    assert TagFilter("*").digest() == filter_digest("TAG", None)
    assert TagFilter("paid || created").digest() == filter_digest("TAG", "created||paid")
    assert SqlFilter("a > 5").digest() == filter_digest("SQL92", "a > 5")
    assert filter_digest("SQL92", "a > 5") == "bce69e6d81147d4a"


def test_the_digest_depends_on_type_and_text() -> None:
    assert filter_digest("TAG", "a") != filter_digest("SQL92", "a")
    assert filter_digest("TAG", "") != filter_digest("TAG", None)
    assert filter_digest("TAG", "*") != filter_digest("TAG", None)


def test_any_text_has_a_digest() -> None:
    assert len(filter_digest("SQL92", "\ud800 é \x00")) == 16
