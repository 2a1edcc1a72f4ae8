"""Shares of a group: a partition of the partitions, balanced, and stable where promised."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.testing import assignors
from rocketshim.testing.assignors import Partition, Shares

MEMBERS = ("m1", "m2", "m3", "m4")
TOPICS = ("a", "b", "c")

wanted_topics = st.dictionaries(
    st.sampled_from(MEMBERS), st.lists(st.sampled_from(TOPICS), unique=True, min_size=1), min_size=1
)
partition_counts = st.fixed_dictionaries({topic: st.integers(0, 7) for topic in TOPICS})


def assign(strategy: str, wanted: Mapping[str, Sequence[str]], counts: Mapping[str, int], owned: Shares) -> Shares:
    if strategy == "range":
        return assignors.range_(wanted, counts)
    if strategy == "roundrobin":
        return assignors.roundrobin(wanted, counts)
    return assignors.cooperative_sticky(wanted, counts, owned)


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
@given(wanted=wanted_topics, counts=partition_counts)
def test_every_wanted_partition_goes_to_exactly_one_who_wants_it(
    strategy: str, wanted: dict[str, list[str]], counts: dict[str, int]
) -> None:
    shares = assign(strategy, wanted, counts, {})
    given_out = sorted(partition for share in shares.values() for partition in share)
    expected = sorted(
        (topic, number)
        for topic in {name for names in wanted.values() for name in names}
        for number in range(counts[topic])
    )
    assert given_out == expected
    assert all(topic in wanted[member] for member, share in shares.items() for topic, _ in share)


def test_range_gives_the_first_members_one_more() -> None:
    assert assignors.range_({"x": ["a"], "y": ["a"]}, {"a": 5}) == {
        "x": [("a", 0), ("a", 1), ("a", 2)],
        "y": [("a", 3), ("a", 4)],
    }


@given(counts=partition_counts, members=st.sets(st.sampled_from(MEMBERS), min_size=1))
def test_sticky_shares_differ_by_at_most_one(counts: dict[str, int], members: set[str]) -> None:
    shares = assignors.cooperative_sticky(dict.fromkeys(members, TOPICS), counts, {})
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1


@given(counts=partition_counts, before=st.sets(st.sampled_from(MEMBERS), min_size=1), after=st.sampled_from(MEMBERS))
def test_sticky_moves_no_more_than_balance_asks(counts: dict[str, int], before: set[str], after: str) -> None:
    owned = assignors.cooperative_sticky(dict.fromkeys(before, TOPICS), counts, {})
    again = assignors.cooperative_sticky(dict.fromkeys(before, TOPICS), counts, owned)
    assert again == owned, "the same group shares out the same"
    grown = assignors.cooperative_sticky(dict.fromkeys(before | {after}, TOPICS), counts, owned)
    newcomers: set[Partition] = set(grown[after]) - set(owned.get(after, []))
    moved = {partition for member in before for partition in owned[member] if partition not in grown[member]}
    assert moved == newcomers, "only the newcomer's share moves"
