"""Where a group begins on a partition: it skips nothing that was written while it consumed the topic."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocketshim.core.start_position import (
    Commit,
    CommitMetadata,
    ConsumeFromWhere,
    Start,
    decode_metadata,
    digest_conflict,
    encode_metadata,
    has_same_filter,
    latest_offset,
    led_by,
    resolve_starts,
    timestamp_or_default,
    topics_of,
)
from rocketshim.core.subscriptions import text_of

EARLIEST = ConsumeFromWhere.FIRST_OFFSET
WHERE = st.sampled_from(list(ConsumeFromWhere))
BORN = st.integers(0, 12)
METADATA = st.none() | st.builds(CommitMetadata, st.sampled_from(["", "a", "b"]), BORN)
COMMITTED = st.integers(0, 2**63 - 1)
FOUND = st.dictionaries(st.integers(0, 11), st.tuples(COMMITTED, METADATA), max_size=12)
OURS = CommitMetadata("digest", 3)


def start(
    partition: int,
    found: dict[int, Commit] | None = None,
    where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET,
    *,
    retry: bool = False,
    count: int = 6,
) -> Start:
    starts, _ = resolve_starts([partition], found or {}, where=where, is_retry_topic=retry, partition_count=count)
    return starts[partition]


def naive(partition: int, found: dict[int, Commit], where: ConsumeFromWhere, *, retry: bool) -> Start:
    """Apply the rules one after the other, as a table would list them."""
    if partition in found:
        return found[partition][0]
    if retry:
        return EARLIEST
    if not found:
        return where
    born = [metadata.born for _, metadata in found.values() if metadata is not None and metadata.born > 0]
    if not born or partition >= min(born):
        return EARLIEST
    return where


@given(partition=st.integers(0, 11), found=FOUND, where=WHERE, retry=st.booleans(), count=st.integers(1, 12))
def test_start_equals_that_of_the_naive_table(
    partition: int, found: dict[int, Commit], where: ConsumeFromWhere, *, retry: bool, count: int
) -> None:
    assert start(partition, found, where, retry=retry, count=count) == naive(partition, found, where, retry=retry)


@given(partition=st.integers(0, 11), found=FOUND, where=WHERE, retry=st.booleans(), count=st.integers(1, 12))
def test_the_commit_of_a_resolved_start_never_changes_where_others_begin(
    partition: int, found: dict[int, Commit], where: ConsumeFromWhere, *, retry: bool, count: int
) -> None:
    """The order in which members start their partitions must not matter: `born` is repeated, not counted again."""
    _, born = resolve_starts([partition], found, where=where, is_retry_topic=retry, partition_count=count)
    after = {**found, partition: (100, CommitMetadata("digest", born))}
    for other in set(range(count)) - {partition} - set(found):
        assert start(other, after, where, retry=retry, count=count) == start(
            other, found, where, retry=retry, count=count
        )


@given(where=WHERE, grown_to=st.integers(1, 12), first_count=st.integers(1, 12), order=st.permutations(range(12)))
def test_partition_added_after_the_group_began_is_always_read_from_its_start(
    where: ConsumeFromWhere, grown_to: int, first_count: int, order: list[int]
) -> None:
    """A group begins on a few partitions, one by one in any order; then the topic grows twice."""
    found: dict[int, Commit] = {}
    for count in (first_count, first_count + grown_to, 2 * (first_count + grown_to)):
        for partition in [number for number in order if number < count]:
            starts, born = resolve_starts([partition], found, where=where, is_retry_topic=False, partition_count=count)
            if partition in found:
                assert starts[partition] == 7
            else:
                assert starts[partition] == (where if partition < first_count else EARLIEST)
            assert born == first_count
            decoded = decode_metadata(encode_metadata(CommitMetadata("digest", born)))
            found[partition] = (7, decoded)


@pytest.mark.parametrize("where", list(ConsumeFromWhere))
def test_committed_position_is_used_whatever_the_policy(where: ConsumeFromWhere) -> None:
    assert start(0, {0: (42, None)}, where) == 42
    assert start(0, {0: (0, None)}, where, retry=True) == 0


@pytest.mark.parametrize("where", list(ConsumeFromWhere))
def test_new_group_on_a_topic_follows_its_policy_and_records_the_partition_count(
    where: ConsumeFromWhere,
) -> None:
    starts, born = resolve_starts([2, 3], {}, where=where, is_retry_topic=False, partition_count=6)
    assert (starts, born) == ({2: where, 3: where}, 6)


@pytest.mark.parametrize("where", list(ConsumeFromWhere))
def test_retry_topic_begins_at_its_earliest_record_even_with_a_timestamp(where: ConsumeFromWhere) -> None:
    """With a timestamp RocketMQ begins at the end, and loses the retries of the first consumers."""
    assert start(0, {}, where, retry=True) == EARLIEST
    assert start(1, {0: (9, OURS)}, where, retry=True) == EARLIEST


def test_existing_partition_without_a_commit_follows_the_policy() -> None:
    """Its first owner died before it could commit; the partition is as old as the others."""
    assert start(2, {0: (9, OURS)}) == ConsumeFromWhere.LAST_OFFSET
    assert start(3, {0: (9, OURS)}) == EARLIEST


def test_commits_of_a_plain_consumer_make_a_partition_without_one_begin_at_its_earliest() -> None:
    starts, born = resolve_starts(
        [1], {0: (9, None)}, where=ConsumeFromWhere.LAST_OFFSET, is_retry_topic=False, partition_count=6
    )
    assert (starts, born) == ({1: EARLIEST}, 0)


def test_metadata_without_a_known_number_of_partitions_counts_as_none() -> None:
    assert start(1, {0: (9, CommitMetadata("digest", 0))}) == EARLIEST


def test_lowest_known_number_of_partitions_counts_if_commits_differ() -> None:
    """If uncertain, assume that the partition was added later: repeat, never lose."""
    found: dict[int, Commit] = {0: (9, CommitMetadata("d", 8)), 1: (9, CommitMetadata("d", 2))}
    assert start(3, found) == EARLIEST


@given(
    digest=st.text(st.characters(exclude_characters=";", codec="utf-8"), max_size=64),
    born=st.integers(0, 999_999_999),
    token=st.none() | st.integers(0, 2**63 - 1),
)
def test_metadata_survives_encoding(digest: str, born: int, token: int | None) -> None:
    metadata = CommitMetadata(digest, born, token=token)
    assert decode_metadata(encode_metadata(metadata)) == metadata


@given(subscription=st.text(st.characters(codec="utf-8"), max_size=70))
def test_subscription_survives_encoding_including_semicolons(subscription: str) -> None:
    metadata = CommitMetadata("digest", 3, subscription)
    assert decode_metadata(encode_metadata(metadata)) == metadata


def test_a_lone_surrogate_of_a_subscription_is_spelled_out() -> None:
    found = decode_metadata(encode_metadata(CommitMetadata("digest", 3, "orders=a || \ud800")))
    assert found == CommitMetadata("digest", 3, "orders=a || \\ud800")


@given(
    digest=st.text("0123456789abcdef", max_size=200),
    born=st.integers(0, 999_999_999),
    subscription=st.text(st.characters(codec="utf-8"), max_size=2_000) | st.just("\U0001f680" * 5_000),
)
def test_metadata_stays_below_a_thousand_characters_and_loses_only_the_end_of_the_subscription(
    digest: str, born: int, subscription: str
) -> None:
    text = encode_metadata(CommitMetadata(digest, born, subscription, 2**63 - 1))
    assert text.isascii()
    assert len(text) <= 1_000
    found = decode_metadata(text)
    assert found is not None
    assert (found.digest, found.born) == (digest[:64], born)
    assert subscription.startswith(found.subscription.rstrip("\ufffd")[:70])


@given(text=st.none() | st.text() | st.builds("rs1;{};{}".format, st.text(max_size=5), st.text(max_size=12)))
@example("rs1;d;٣")
@example("rs1;d;-3")
@example("rs1;d;" + "9" * 10)
@example("rs2;d;3")
@example("rs1;d")
@example("")
def test_foreign_text_is_neither_metadata_nor_an_error(text: str | None) -> None:
    found = decode_metadata(text)
    if found is not None:
        assert text is not None
        assert text.startswith("rs1;")
        assert 0 <= found.born <= 999_999_999


@pytest.mark.parametrize(
    "text", ["", "rs1;d;٣", "rs1;d;-3", "rs1;d;+3", "rs1;d;" + "9" * 10, "rs2;d;3", "rs1;d", "rs1;d;3;t;x", "null"]
)
def test_text_that_only_looks_like_ours_is_foreign(text: str) -> None:
    assert decode_metadata(text) is None


@pytest.mark.parametrize(
    ("mine", "theirs", "conflict"),
    [("a", "a", None), ("a", "b", "b"), ("a", "", None), ("a", None, None)],
)
def test_only_another_digest_is_a_conflict(mine: str, theirs: str | None, conflict: str | None) -> None:
    found = None if theirs is None else CommitMetadata(theirs, 3)
    assert digest_conflict(mine, found) == conflict


@pytest.mark.parametrize(
    ("first", "end", "young_queue_max_messages", "start"),
    [(0, 0, 0, 0), (0, 3, 3, 0), (0, 4, 3, 4), (1, 2, 3, 2), (2, 2, 3, 2), (0, 3, 0, 3)],
    ids=["empty", "young", "not small", "something was deleted", "all was deleted", "switched off"],
)
def test_latest_is_the_start_of_a_young_log_only(
    first: int, end: int, young_queue_max_messages: int, start: int
) -> None:
    assert latest_offset(first, end, young_queue_max_messages) == start


@pytest.mark.parametrize(("configured_ms", "starts_ms"), [(None, 200_000), (0, 0), (7, 7)])
def test_the_epoch_is_a_time_to_begin_at(configured_ms: int | None, starts_ms: int) -> None:
    assert timestamp_or_default(configured_ms, now_ms=2_000_000) == starts_ms


SQL = "t=x IN ('a', 'b') AND y = ', u=1'"


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        ("t=a", "t=b", False),
        ("t=a", "t=a", False),  # the digests differ: a tag and an expression with one text
        ("t=a", "t=a, u=*", True),
        ("s=*, t=a", "t=a", True),
        ("s=*, t=a", "t=a || b", False),
        ("t=a, u=a", "t=a, u=b", True),
        (SQL, f"{SQL}, v=*", True),
        (SQL, "t=x IN ('a', 'c'), v=*", False),
        ("t=a", "u=*", True),  # a member that has unsubscribed from it
        ("^t=a", "^t=a, u=*", True),
        ("^t=a", "t=a", False),
        ("^t=a, ^v=*", "^t=a", False),  # both may match the topic
        ("t=a", "", False),
        ("t=a", "t=a, u=" + "x" * 296, True),
        ("t=a", "s=" + "x" * 298, False),  # it is cut
        ("t=a, u=*", "s=" + "x" * 293 + ", t=a", False),  # the filter may be cut
        ("t=a", "\u00fc=*, t=a", False),  # it may be cut, since its bytes are limited, too
        ("t=a", "\u00fc=*, t=a, u=*", True),
    ],
)
def test_which_subscriptions_lose_no_message_of_a_topic(one: str, other: str, is_same: bool) -> None:
    assert has_same_filter("t", one, other) is is_same
    assert has_same_filter("t", other, one) is is_same


def test_a_subscription_that_commits_cut_begins_with_the_topic_of_the_commit() -> None:
    many = {f"topic-{number}": "*" for number in range(60)}
    text = text_of(many)
    led = led_by("topic-59", text)
    assert led.startswith("topic-59=*, topic-0=*")
    assert sorted(led.split(", ")) == sorted(text.split(", "))
    found = decode_metadata(encode_metadata(CommitMetadata("d", 1, led)))
    assert found is not None
    assert has_same_filter("topic-59", text_of({**many, "new": "*"}), found.subscription)
    assert led_by("u", "t=*, u=*") == "t=*, u=*", "a short one stays as it is"


def test_the_topics_of_a_subscription_that_may_be_cut_are_not_known() -> None:
    assert topics_of("t=*, u=a || b, ^v=*") == {"t", "u", "^v"}
    assert topics_of("t=" + "x" * 298) is None
    assert topics_of("") is None
