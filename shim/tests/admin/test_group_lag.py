from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rocketshim.admin.group_lag import GroupStanding, PartitionStanding, conflicts
from rocketshim.core.start_position import CommitMetadata, encode_metadata


def commit(digest: str, subscription: str) -> str:
    return encode_metadata(CommitMetadata(digest, 1, subscription))


def standing(partition: int = 0, topic: str = "t", **changes: Any) -> PartitionStanding:
    values: dict[str, Any] = {"position": 5, "low": 0, "end": 9, "member": None, "metadata": commit("d", "t=*")}
    return PartitionStanding(topic, partition, **(values | changes))


def group(*partitions: PartitionStanding) -> GroupStanding:
    return GroupStanding("g", "STABLE", (), partitions)


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_behind_and_lost_equal_a_naive_count(position: int, low: int, length: int) -> None:
    one = standing(position=position, low=low, end=low + length)
    assert one.behind == len([offset for offset in range(low, low + length) if offset >= position])
    assert one.lost == len(range(position, low))


def test_a_partition_that_no_longer_exists_has_no_lag() -> None:
    gone = standing(low=None, end=None)
    assert (gone.behind, gone.lost) == (0, 0)


def test_one_subscription_is_not_a_conflict() -> None:
    assert conflicts(group(standing(0), standing(1), standing(0, "u", metadata=commit("e", "")))) == []


def test_two_subscriptions_of_a_topic_are_a_conflict_with_the_partitions_of_each() -> None:
    [found] = conflicts(group(standing(0, metadata=commit("e", "t=b")), standing(1), standing(2)))
    assert found.topic == "t"
    assert list(found.partitions.items()) == [("t=*", (1, 2)), ("t=b", (0,))]


def test_commits_of_other_programs_and_on_the_retry_topic_are_not_conflicts() -> None:
    others = standing(0, metadata="of another program"), standing(1)
    assert conflicts(group(*others)) == []
    retries = standing(0, "rmq.retry.g", metadata=commit("e", "")), standing(1, "rmq.retry.g")
    assert conflicts(group(*retries), retry_topic="rmq.retry.g") == []
    assert conflicts(group(*retries)) != []
