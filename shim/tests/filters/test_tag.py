"""Tag expressions, rule by rule (RocketMQ `FilterAPI.buildSubscriptionData` and the client's second check)."""

import re
from collections.abc import Callable
from enum import Enum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.errors import ConfigError, FilterSyntaxError
from rocketshim.filters import TagFilter
from rocketshim.filters.tag import check_tags

tags = st.text(st.characters(codec="utf-8", exclude_characters="|"), min_size=1).filter(
    lambda tag: tag.strip("".join(map(chr, range(0x21)))) == tag
)


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_none_empty_and_star_select_everything(expression: str) -> None:
    everything = TagFilter(expression)
    assert everything.matches_all
    assert everything.expression == "*"
    assert everything.tags == frozenset()
    assert everything.matches(None)
    assert everything.matches("")
    assert everything.matches("A")
    assert everything.matches_headers(None)
    assert everything.matches_headers([("TAGS", b"A")])


@pytest.mark.parametrize("wrong", [["A", "B"], ("A",), b"A", 7, lambda _: True])
def test_what_is_not_a_text_is_refused(wrong: Any) -> None:
    """As a text it would be a tag that no message has, and every message would be skipped."""
    with pytest.raises(ConfigError, match="is not a tag expression"):
        TagFilter(wrong)


def test_a_text_of_an_enumeration_counts_by_its_value() -> None:
    class Tag(str, Enum):  # noqa: UP042 - its str() is its name
        PAID = "paid"

    assert TagFilter(Tag.PAID) == TagFilter("paid")
    assert (str(TagFilter(Tag.PAID)), TagFilter(Tag.PAID).digest()) == ("paid", TagFilter("paid").digest())


def test_a_list_selects_only_its_tags() -> None:
    selected = TagFilter("A || B")
    assert selected.tags == {"A", "B"}
    assert selected.matches("A")
    assert selected.matches("B")
    assert not selected.matches("C")
    assert not selected.matches_all


@pytest.mark.parametrize("expression", ["A||", "||A", "A|| ||A", "  A  ", "A||||A", "\x00A\x1f", "\tA\n"])
def test_blanks_and_empty_parts_are_dropped(expression: str) -> None:
    assert TagFilter(expression).tags == {"A"}


@pytest.mark.parametrize("blank", ["\u00a0", "\u2003", "\u3000", "\u0085"])
def test_only_characters_up_to_the_space_are_blanks(blank: str) -> None:
    assert TagFilter(f"{blank}A").tags == {f"{blank}A"}


@pytest.mark.parametrize("expression", ["||", "||||", "||||||"])
def test_separators_alone_are_an_error(expression: str) -> None:
    with pytest.raises(FilterSyntaxError, match="no tag") as caught:
        TagFilter(expression)
    assert caught.value.expression == expression
    assert caught.value.position == 0
    assert (caught.value.token,) == ("||",)
    assert caught.value.expected == "a tag"


@pytest.mark.parametrize("expression", [" ", "\t\n ", "|| ||", "||  ", "  ||"])
def test_blanks_alone_are_valid_and_select_nothing(expression: str) -> None:
    nothing = TagFilter(expression)
    assert not nothing.matches_all
    assert nothing.tags == frozenset()
    assert not nothing.matches(None)
    assert not nothing.matches("")
    assert not nothing.matches(" ")
    assert not nothing.matches_headers([("TAGS", b" ")])


@pytest.mark.parametrize("expression", [" * ", "*||A", "A || *", " *", "* "])
def test_a_star_with_blanks_or_in_a_list_is_a_literal_tag(expression: str) -> None:
    literal = TagFilter(expression)
    assert not literal.matches_all
    assert literal.matches("*")
    assert not literal.matches("B")


def test_a_single_bar_is_part_of_the_tag() -> None:
    assert TagFilter("A|B").tags == {"A|B"}
    assert TagFilter("A|||B").tags == {"A", "|B"}
    assert TagFilter("|||").tags == {"|"}


def test_tags_are_case_sensitive() -> None:
    assert not TagFilter("created").matches("Created")


@pytest.mark.parametrize("tag", [None, ""])
def test_an_untagged_message_never_matches_a_list(tag: str | None) -> None:
    assert not TagFilter("A || B").matches(tag)


@pytest.mark.parametrize("headers", [None, [], [("KEYS", b"A")], [("TAGS", None)], [("TAGS", b"")]])
def test_headers_without_a_tag_never_match_a_list(headers: list[tuple[str, bytes | None]] | None) -> None:
    assert not TagFilter("A").matches_headers(headers)


def test_a_message_has_one_tag_even_if_it_contains_separators() -> None:
    assert not TagFilter("A || B").matches("A || B")
    assert not TagFilter("A").matches_headers([("TAGS", b"A || B")])


def test_a_tag_with_a_blank_at_an_end_cannot_be_selected() -> None:
    assert not TagFilter("A ").matches("A ")
    assert not TagFilter("A ").matches_headers([("TAGS", b"A ")])


def test_tags_with_equal_hash_codes_are_different() -> None:
    # "Aa" and "BB" have the same Java hash code: RocketMQ's broker accepts both, its client does not
    assert not TagFilter("Aa").matches("BB")


def test_the_first_tags_header_counts() -> None:
    headers = [("X", b"A"), ("TAGS", b"B"), ("TAGS", b"A")]
    assert TagFilter("B").matches_headers(headers)
    assert not TagFilter("A").matches_headers(headers)
    assert not TagFilter("A").matches_headers([("TAGS", None), ("TAGS", b"A")])


def test_header_names_are_case_sensitive() -> None:
    assert not TagFilter("A").matches_headers([("tags", b"A"), ("Tags", b"A")])


def test_bytes_that_are_not_utf8_match_no_tag_of_a_list() -> None:
    assert not TagFilter("A").matches_headers([("TAGS", b"\xff\xfe")])


@given(expression=st.lists(tags, min_size=1).map(" || ".join), tag=st.none() | st.just("") | tags)
def test_matches_and_matches_headers_give_the_same_result(expression: str, tag: str | None) -> None:
    selected = TagFilter(expression)
    headers = [("UNIQ_KEY", b"1")] if tag is None else [("UNIQ_KEY", b"1"), ("TAGS", tag.encode())]
    assert selected.matches_headers(headers) == selected.matches(tag)


class Fetched:
    """A record with these headers."""

    def __init__(self, headers: Any) -> None:
        self._headers = headers

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return 7

    def headers(self) -> Any:
        return self._headers

    def set_headers(self, headers: Any, /) -> None:
        self._headers = headers


@given(
    expression=st.just("*") | st.lists(tags, min_size=1).map(" || ".join),
    found=st.lists(st.none() | st.lists(st.tuples(st.sampled_from(["TAGS", "X"]), st.none() | tags.map(str.encode)))),
)
def test_a_sieve_yields_the_matching_records(expression: str, found: list[Any]) -> None:
    selected, records = TagFilter(expression), [Fetched(headers) for headers in found]
    expected = [record for record in records if selected.matches_headers(record.headers())]
    before = [record.headers() for record in expected]
    assert list(selected.sieve(records, lambda _, error: pytest.fail(str(error)))) == expected
    assert [record.headers() for record in expected] == before
    assert [record.headers() for record in records if record not in expected] == [None] * (len(records) - len(before))


def test_a_record_with_unreadable_headers_is_reported_every_time_and_the_next_records_follow(
    unreadable: Callable[[Any], Any],
) -> None:
    records = [Fetched([("TAGS", b"A")]), unreadable(Fetched(None)), Fetched([("TAGS", b"A")])]
    named: list[Any] = []
    for _ in range(2):
        assert list(TagFilter("A").sieve(records, lambda *what: named.append(what))) == [records[0], records[2]]
    assert [(record, error.reason) for record, error in named] == [(records[1], "bad-header-key")] * 2


@given(wanted=st.lists(tags, min_size=1))
def test_every_listed_tag_is_selected(wanted: list[str]) -> None:
    selected = TagFilter("||".join(wanted))
    assert selected.matches_all == (wanted == ["*"])
    assert all(selected.matches(tag) for tag in wanted)


def test_filters_are_equal_if_they_select_the_same_tags() -> None:
    assert TagFilter("A || B") == TagFilter("B||A||A")
    assert hash(TagFilter("A || B")) == hash(TagFilter("B||A||A"))
    assert TagFilter("A").digest() == TagFilter(" A ").digest()
    assert TagFilter(None) == TagFilter("*")
    assert TagFilter("A") != TagFilter("B")
    assert TagFilter("A") != "A"


def test_the_digests_of_everything_nothing_and_the_literal_star_differ() -> None:
    digests = {TagFilter(expression).digest() for expression in ("*", " ", " * ", "A", "A||B")}
    assert len(digests) == 5


def test_str_and_repr_of_a_filter() -> None:
    selected = TagFilter("A || B")
    assert str(selected) == "A || B"
    assert repr(selected) == "TagFilter('A || B')"
    assert selected.expression_type == "TAG"


@pytest.mark.parametrize(
    "expression", [None, "", "*", "A", "A || B", "A|B", "a b", "o'clock", "50% <off>", "v1.2-rc/3", "android"]
)
def test_what_a_person_may_mean_as_tags_is_accepted(expression: str | None) -> None:
    assert check_tags(expression) == TagFilter(expression)


@pytest.mark.parametrize(
    ("expression", "position", "token", "hint"),
    [
        ("a,b", 1, ",", "write 'a || b'"),
        ("a, b || c", 1, ",", "write 'a || b'"),
        ("a | b", 2, "|", "write 'a || b'"),
        ("price>5", 5, ">", "SQL"),
        ("price <> 5", 6, "<>", "SQL"),
        ("region = 'EU'", 7, "=", "SQL"),
        ("vip is not null", 4, "is", "SQL"),
        ("Tag=test AND creator=xx", 3, "=", "SQL"),
    ],
)
def test_another_language_than_tags_is_refused_with_a_hint(
    expression: str, position: int, token: str, hint: str
) -> None:
    """RocketMQ takes it for one tag, which no message has: the subscription would select nothing."""
    with pytest.raises(FilterSyntaxError, match=re.escape(hint)) as caught:
        check_tags(expression)
    assert caught.value.expression == expression
    assert (caught.value.position, caught.value.token) == (position, token)
