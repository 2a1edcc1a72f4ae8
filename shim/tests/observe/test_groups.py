import threading
from collections import Counter
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.core.start_position import CommitMetadata, encode_metadata
from rocketshim.errors import BrokerUnavailableError, ConfigError, NotAuthorizedError, RocketshimError
from rocketshim.kafka import clients
from rocketshim.kafka.clients import Clients
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.observe.groups import GroupReader
from rocketshim.observe.snapshot import GroupStanding, PartitionStanding, conflicts


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


@pytest.mark.parametrize(
    ("on_the_retry_topic", "found"),
    [
        ("t=b", [("t=*", (0,)), ("t=b", ())]),
        ("t=b, u=*", [("t=*", (0,)), ("t=b, u=*", ())]),
        ("t=*, u=*", []),
        ("u=*", []),
        ("^t.*=b", []),
        ("t=" + "b" * 298, []),
        ("", []),
    ],
)
def test_a_member_that_has_only_a_partition_of_the_retry_topic_is_compared_where_it_certainly_differs(
    on_the_retry_topic: str, found: list[Any]
) -> None:
    retries = standing(0, "rmq.retry.g", metadata=commit("e", on_the_retry_topic))
    shown = conflicts(group(standing(0), retries), retry_topic="rmq.retry.g")
    assert [item for each in shown for item in each.partitions.items()] == found
    assert all(each.loses_messages for each in shown)


def test_a_conflict_loses_messages_of_a_topic_only_if_its_filters_differ() -> None:
    other = standing(0, metadata=commit("e", "t=b, u=*")), standing(0, "u", metadata=commit("e", "t=b, u=*"))
    first, second = conflicts(group(*other, standing(1), standing(1, "u", metadata=commit("d", "t=*, u=*"))))
    assert (first.topic, first.loses_messages) == ("t", True)
    assert (second.topic, second.loses_messages) == ("u", False)


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

    def describe_cluster(self, **_: object) -> "Future[Any]":
        return answered(SimpleNamespace(nodes=[]))

    def poll(self, _: float) -> int:
        return 0


def reader_of(cluster: Cluster, positions: "type[Positions] | None" = None) -> GroupReader:
    made = cast("Any", positions or Positions)
    return GroupReader(
        TopicReader("127.0.0.1:1", clients=Clients(consumer=made, producer=made, admin=lambda _: cluster))
    )


def test_a_list_that_lacks_the_groups_of_one_broker_is_an_error() -> None:
    reader = reader_of(Cluster())
    with pytest.raises(BrokerUnavailableError, match="the list of groups"):
        reader.listed()


class SilentCluster(Cluster):
    """The admin client of a cluster that does not answer, and that keeps no time limit."""

    class Silent(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            raise TimeoutError(f"nothing within {timeout} s")

    def list_consumer_groups(self, **_: object) -> "Future[Any]":
        return self.Silent()

    def describe_cluster(self, **_: object) -> "Future[Any]":
        return Future()

    def describe_consumer_groups(self, groups: list[str], **_: object) -> "dict[str, Future[Any]]":
        return {group: self.Silent() for group in groups}


def test_a_cluster_that_does_not_answer_in_any_time_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_ANSWER_S", 0.01)
    reader = reader_of(SilentCluster())
    with pytest.raises(BrokerUnavailableError):
        reader.listed()
    with pytest.raises(BrokerUnavailableError):
        reader.read("g")


class Answering(Cluster):
    """The admin client of a cluster with one topic, whose second partition has no leader; it counts the requests."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()

    def describe_consumer_groups(self, groups: list[str], **_: object) -> "dict[str, Future[Any]]":
        self.requests["describe"] += 1
        described = {"state": SimpleNamespace(name="EMPTY"), "members": [], "authorized_operations": None}
        answers = {group: answered(SimpleNamespace(**described)) for group in groups}
        return answers | {
            group: refused(KafkaError.GROUP_AUTHORIZATION_FAILED) for group in groups if group == "denied"
        }


def answered(value: Any) -> "Future[Any]":
    answer: Future[Any] = Future()
    answer.set_result(value)
    return answer


def refused(code: int) -> "Future[Any]":
    answer: Future[Any] = Future()
    answer.set_exception(KafkaException(KafkaError(code)))
    return answer


class Positions:
    """The client of a reader, or of a group; the group `away` has a position on the partition without a leader."""

    open_now = most_open = 0
    lock = threading.Lock()
    requests: ClassVar[Counter[str]] = Counter()

    def __init__(self, settings: dict[str, Any]) -> None:
        self.is_away = settings["group.id"] == "away"
        with Positions.lock:
            Positions.open_now += 1
            Positions.most_open = max(Positions.most_open, Positions.open_now)

    def list_topics(self, *_: object, **__: object) -> Any:
        self.requests["topics"] += 1
        topic = SimpleNamespace(partitions={0: None, 1: None}, error=None)
        return SimpleNamespace(topics={"orders": topic})

    def offsets_for_times(self, partitions: list[TopicPartition], **_: object) -> list[Any]:
        self.requests["offsets"] += 1
        away = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
        return [
            SimpleNamespace(
                topic=each.topic, partition=each.partition, offset=7, error=away if each.partition else None
            )
            for each in partitions
        ]

    def get_watermark_offsets(self, *_: object, **__: object) -> Any:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    def poll(self, _: float) -> None:
        """Nothing is reported."""

    def committed(self, partitions: list[TopicPartition], **_: object) -> list[TopicPartition]:
        number = int(self.is_away)
        offsets = (3 if each.partition == number else OFFSET_INVALID for each in partitions)
        return [
            TopicPartition(each.topic, each.partition, offset) for each, offset in zip(partitions, offsets, strict=True)
        ]

    def close(self) -> None:
        with Positions.lock:
            Positions.open_now -= 1


def test_the_states_of_many_groups_are_read_with_a_request_for_all_and_eight_open_clients() -> None:
    groups = [f"g{number}" for number in range(100)]
    admin = Answering()
    Positions.requests.clear()
    Positions.open_now = Positions.most_open = 0
    reader = reader_of(admin)
    found = reader.read_each([*groups, "denied", "away", " "])
    [standing] = {replace(cast("GroupStanding", found[group]), group="g") for group in groups}
    assert standing.partitions == (PartitionStanding("orders", 0, 3, low=7, end=7, member=None),)
    assert isinstance(found["denied"], NotAuthorizedError)
    assert isinstance(found["away"], RocketshimError)
    assert isinstance(found[" "], ConfigError)
    assert Positions.most_open <= 1 + 8, "one is the reader's"
    assert Positions.open_now == 1
    assert (admin.requests, Positions.requests) == ({"describe": 1}, {"topics": 1, "offsets": 4})


def test_a_group_that_moves_on_before_retention_deletes_has_lost_nothing() -> None:
    """Its position is 3 when it is read first, the first offset is then 7, and the position meanwhile 8."""

    class Moving(Positions):
        asked: ClassVar[list[int]] = []

        def committed(self, partitions: list[TopicPartition], **_: object) -> list[TopicPartition]:
            self.asked.append(len(partitions))
            found = super().committed(partitions)
            for each in found:
                each.offset = 8 if each.offset == 3 and len(self.asked) > 1 else each.offset
            return found

    [partition] = reader_of(Answering(), Moving).read("g").partitions
    assert (partition.position, partition.low, partition.lost) == (8, 7, 0)
    assert Moving.asked == [2, 1]


def test_commits_of_other_programs_and_on_the_retry_topic_are_not_conflicts() -> None:
    others = standing(0, metadata="of another program"), standing(1)
    assert conflicts(group(*others)) == []
    retries = standing(0, "rmq.retry.g", metadata=commit("e", "")), standing(1, "rmq.retry.g")
    assert conflicts(group(*retries), retry_topic="rmq.retry.g") == []
    assert conflicts(group(*retries)) != []


@pytest.mark.parametrize("group", [" ", "\udcff"])
def test_what_is_no_name_of_a_group_is_refused_before_the_cluster_is_asked(group: str) -> None:
    with pytest.raises(ConfigError, match="is not the name of a group"):
        GroupReader(TopicReader("127.0.0.1:1")).read(group)
