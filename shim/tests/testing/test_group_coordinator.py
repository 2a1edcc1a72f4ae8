"""Membership of a group: steps, generations, and which commits pass."""

from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.testing.group_coordinator import BY_COORDINATOR, GroupCoordinator, GroupMember, Step

COOPERATIVE = "cooperative-sticky"


class Coordinator(GroupCoordinator):
    """A group over topics that the test holds."""

    def __init__(self, **partition_counts: int) -> None:
        self.topics = partition_counts
        super().__init__("g", match_topics=self._match, partition_counts=lambda: self.topics)

    def _match(self, patterns: Sequence[str]) -> list[str]:
        return sorted(set(patterns) & set(self.topics))

    def add(self, strategy: str = COOPERATIVE, *topics: str) -> GroupMember:
        member = GroupMember(topics or ("a",), strategy)
        assert self.join(member, client_id="c") is None
        return member

    def serve(self, *members: GroupMember) -> list[tuple[int, Step]]:
        """Serve every waiting step, member by member, until none is left; what was served, by member index."""
        served = []
        while any(member.steps for member in members):
            for index, member in enumerate(members):
                if step := member.take_step():
                    served.append((index, step))
                    self.step_done(member, step)
        return served


def numbers(member: GroupMember) -> list[int]:
    return sorted(number for _, number in member.owned)


def test_a_cooperative_partition_is_free_before_it_is_given_away() -> None:
    group = Coordinator(a=4)
    first = group.add()
    group.serve(first)
    second = group.add()
    assert [step.kind for step in first.steps] == ["revoke"]
    assert [step.partitions for step in second.steps] == [()], "nothing yet for the newcomer"
    revoke = first.take_step()
    assert revoke is not None
    group.step_done(first, revoke)
    assert not second.owned
    group.serve(first, second)
    assert sorted(numbers(first) + numbers(second)) == [0, 1, 2, 3]
    assert set(second.owned) == set(revoke.partitions)


def test_an_eager_member_joins_only_after_it_has_given_up_everything() -> None:
    group = Coordinator(a=2)
    first = group.add("range")
    group.serve(first)
    generation = group.generation
    second = group.add("range")
    assert group.is_rebalancing
    assert group.generation == generation
    assert [member for member in group.members.values() if not member.has_joined] == [first]
    group.serve(first, second)
    assert (numbers(first), numbers(second)) == ([0], [1])
    assert group.generation == generation + 1


@pytest.mark.parametrize("other", ["range", BY_COORDINATOR])
def test_protocols_do_not_mix(other: str) -> None:
    group = Coordinator(a=2)
    group.add(other)
    member = GroupMember(("a",), COOPERATIVE)
    assert group.join(member, client_id="c") == KafkaError.INCONSISTENT_GROUP_PROTOCOL
    assert (member.member_id, len(group.members)) == ("", 1)


def test_a_member_put_out_learns_of_it_by_a_step_and_the_rest_goes_on() -> None:
    group = Coordinator(a=2)
    first, second = group.add(), group.add()
    group.serve(first, second)
    lost = tuple(sorted(first.owned))
    group.evict(first)
    assert list(first.steps) == [Step("lost", lost)]
    group.serve(second)
    assert numbers(second) == [0, 1]


def test_a_member_that_stands_still_holds_up_the_rebalance() -> None:
    group = Coordinator(a=2)
    first = group.add()
    group.serve(first)
    first.is_alive = False
    second = group.add()
    assert group.is_rebalancing
    assert not second.steps
    group.wake(first)
    group.serve(first, second)
    assert (len(first.owned), len(second.owned)) == (1, 1)


def test_with_kip_848_a_member_that_stands_still_holds_up_nobody_but_keeps_what_it_has() -> None:
    group = Coordinator(a=2, b=2)
    still = group.add(BY_COORDINATOR, "a")
    group.serve(still)
    still.is_alive = False
    first, second, third = group.add(BY_COORDINATOR, "b"), group.add(BY_COORDINATOR, "b"), group.add(BY_COORDINATOR)
    group.serve(first, second, third)
    assert [len(member.owned) for member in (still, first, second, third)] == [2, 1, 1, 0]
    group.wake(still)
    group.serve(still, third)
    assert [len(member.owned) for member in (still, third)] == [1, 1]


def test_with_kip_848_a_member_without_partitions_gets_no_step_and_one_that_has_revoked_always_an_assignment() -> None:
    group = Coordinator(a=1)
    first = group.add(BY_COORDINATOR)
    group.serve(first)
    second = group.add(BY_COORDINATOR)
    assert (list(first.steps), list(second.steps)) == ([], [])
    group.topics["a"] = 3
    third = group.add(BY_COORDINATOR)
    served = group.serve(first, second, third)
    first.steps.clear()
    del group.topics["a"]
    group.metadata_changed()
    assert [step.kind for _, step in group.serve(first)] == ["revoke", "assign"]
    assert {index for index, _ in served} == {1, 2}


def test_with_kip_848_each_member_commits_in_its_own_epoch() -> None:
    group = Coordinator(a=2)
    first = group.add(BY_COORDINATOR)
    group.serve(first)
    second = group.add(BY_COORDINATOR)
    assert (first.generation, second.generation) == (1, 2), "the first one has something to give up"
    assert group.check_commit(first.member_id, 1) is None
    assert group.check_commit(second.member_id, 2) is None
    group.serve(first, second)
    assert group.check_commit(first.member_id, 2) is None
    assert group.check_commit(first.member_id, 1) == KafkaError.STALE_MEMBER_EPOCH
    assert group.check_commit(first.member_id, 1, transactional=True) == KafkaError.ILLEGAL_GENERATION


@pytest.mark.parametrize("strategy", [COOPERATIVE, BY_COORDINATOR])
def test_topics_that_come_and_go_are_shared_out_anew(strategy: str) -> None:
    group = Coordinator(a=1)
    member = group.add(strategy, "a", "b")
    group.serve(member)
    generation = group.generation
    group.topics["other"] = 3
    group.metadata_changed()
    assert group.generation == generation, "a topic nobody wants"
    group.topics["b"] = 2
    group.metadata_changed()
    group.serve(member)
    assert sorted(member.owned) == [("a", 0), ("b", 0), ("b", 1)]
    del group.topics["a"]
    group.metadata_changed()
    group.serve(member)
    assert sorted(member.owned) == [("b", 0), ("b", 1)]


@pytest.mark.parametrize(
    ("member_id", "generation", "transactional", "code"),
    [
        ("", -1, False, KafkaError.UNKNOWN_MEMBER_ID),
        ("", -1, True, None),
        ("", 1, True, KafkaError.UNKNOWN_MEMBER_ID),
        ("gone", 1, False, KafkaError.UNKNOWN_MEMBER_ID),
        ("c-g-0001", 0, False, KafkaError.ILLEGAL_GENERATION),
        ("c-g-0001", 0, True, KafkaError.ILLEGAL_GENERATION),
        ("c-g-0001", 1, False, None),
    ],
)
def test_a_commit_is_checked_by_member_and_generation(
    member_id: str, generation: int, transactional: bool, code: int | None
) -> None:
    group = Coordinator(a=1)
    group.serve(group.add())
    assert group.check_commit(member_id, generation, transactional=transactional) == code


def test_anybody_commits_in_an_empty_group() -> None:
    group = Coordinator(a=1)
    assert group.check_commit("", -1) is None
    member = group.add()
    group.leave(member)
    assert group.check_commit("", -1) is None


actions = st.lists(
    st.tuples(st.sampled_from(["join", "leave", "evict", "serve", "grow"]), st.integers(0, 3)), max_size=25
)


@pytest.mark.parametrize("strategy", ["range", "roundrobin", COOPERATIVE, BY_COORDINATOR])
@given(history=actions)
def test_no_partition_ever_has_two_owners_and_all_find_one(strategy: str, history: list[tuple[str, int]]) -> None:
    group = Coordinator(a=3, b=2)
    members: list[GroupMember] = []
    for action, index in history:
        member = members[index % len(members)] if members else None
        if action == "join" and len(members) < 4:
            members.append(group.add(strategy, "a", "b"))
        elif action == "grow":
            group.topics["a"] += 1
            group.metadata_changed()
        elif member is not None and action == "serve" and (taken := member.take_step()):
            group.step_done(member, taken)
        elif member is not None and action in {"leave", "evict"}:
            getattr(group, action)(member)
            members.remove(member)
        owned = [partition for each in members for partition in each.owned]
        assert len(owned) == len(set(owned))
    group.serve(*members)
    if members:
        owned = [partition for each in members for partition in each.owned]
        expected = {(topic, number) for topic, count in group.topics.items() for number in range(count)}
        assert set(owned) == expected
