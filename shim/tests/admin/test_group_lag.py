from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.admin.group_lag import GroupReader, GroupStanding, PartitionStanding, conflicts
from rocketshim.core.start_position import CommitMetadata, encode_metadata
from rocketshim.errors import BrokerUnavailableError, ConfigError


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


def test_subscriptions_that_differ_only_where_commits_cut_them_are_shown_as_two() -> None:
    long = "t=" + "x" * 300
    [found] = conflicts(group(standing(0, metadata=commit("e", long + "a")), standing(1, metadata=commit("d", long))))
    assert list(found.partitions.values()) == [(1,), (0,)]


class Cluster:
    """The admin client of a cluster that has two brokers, of which one does not answer."""

    def list_consumer_groups(self, **_: object) -> "Future[Any]":
        answer: Future[Any] = Future()
        errors = [KafkaError(KafkaError._TIMED_OUT)]
        answer.set_result(SimpleNamespace(valid=[SimpleNamespace(group_id="a")], errors=errors))
        return answer

    def describe_consumer_groups(self, groups: list[str], **_: object) -> "dict[str, Future[Any]]":
        answer: Future[Any] = Future()
        answer.set_result(SimpleNamespace(state=SimpleNamespace(name="STABLE"), members=[]))
        return dict.fromkeys(groups, answer)

    def poll(self, _: float) -> int:
        return 0


def test_a_list_that_lacks_the_groups_of_one_broker_is_an_error() -> None:
    reader = GroupReader("127.0.0.1:1")
    reader.admin = cast("Any", Cluster())
    with pytest.raises(BrokerUnavailableError, match="the list of groups"):
        reader.listed()


class SilentCluster(Cluster):
    """The admin client of a cluster that does not answer, and that keeps no time limit."""

    class Silent(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            raise TimeoutError(f"nothing within {timeout} s")

    def list_consumer_groups(self, **_: object) -> "Future[Any]":
        return self.Silent()

    def describe_consumer_groups(self, groups: list[str], **_: object) -> "dict[str, Future[Any]]":
        return {group: self.Silent() for group in groups}


def test_a_cluster_that_does_not_answer_in_any_time_is_away() -> None:
    reader = GroupReader("127.0.0.1:1")
    reader.admin = cast("Any", SilentCluster())
    with pytest.raises(BrokerUnavailableError):
        reader.listed()
    with pytest.raises(BrokerUnavailableError):
        reader.read("g")


def test_commits_of_other_programs_and_on_the_retry_topic_are_not_conflicts() -> None:
    others = standing(0, metadata="of another program"), standing(1)
    assert conflicts(group(*others)) == []
    retries = standing(0, "rmq.retry.g", metadata=commit("e", "")), standing(1, "rmq.retry.g")
    assert conflicts(group(*retries), retry_topic="rmq.retry.g") == []
    assert conflicts(group(*retries)) != []


@pytest.mark.parametrize("group", [" ", "\udcff"])
def test_what_is_no_name_of_a_group_is_refused_before_the_cluster_is_asked(group: str) -> None:
    with pytest.raises(ConfigError, match="is not the name of a group"):
        GroupReader("127.0.0.1:1").read(group)
