"""Positions that a group has committed, and offsets that an admin client lists."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.kafka.positions import EARLIEST, committed_positions, listed_offsets
from rocketshim_topics.coordinates import TopicPartitionKey


class LateAdmin:
    """Never answers: each future raises as after its time limit."""

    def list_topics(self, timeout: float) -> None:
        assert timeout == 10.0

    def list_offsets(self, requested: dict[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        late: Future[Any] = Future()
        late.set_exception(TimeoutError())
        return dict.fromkeys(requested, late)


def test_a_client_that_keeps_no_time_limit_is_kafkas_error() -> None:
    admin: Any = LateAdmin()
    with pytest.raises(KafkaException) as caught:
        listed_offsets(admin, [TopicPartitionKey("orders", 0)], EARLIEST)
    assert caught.value.args[0].code() == KafkaError._TIMED_OUT


class MovingAdmin:
    """Its partition 1 has a leader that denies for a number of requests that it is one."""

    def __init__(self, denials: int) -> None:
        self.denials = denials
        self.asked: list[list[int]] = []

    def list_topics(self, timeout: float) -> None: ...

    def list_offsets(self, requested: dict[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        self.asked.append([each.partition for each in requested])
        answers = {each: Future[Any]() for each in requested}
        for each, answer in answers.items():
            if each.partition == 1 and len(self.asked) <= self.denials:
                answer.set_exception(KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)))
            else:
                answer.set_result(SimpleNamespace(offset=7))
        return answers


def test_only_the_partition_whose_leader_has_just_moved_is_asked_again() -> None:
    admin: Any = MovingAdmin(denials=1)
    asked = [TopicPartitionKey("orders", number) for number in (0, 1)]
    assert listed_offsets(admin, asked, EARLIEST) == dict.fromkeys(asked, 7)
    assert admin.asked == [[0, 1], [1]]


def test_a_leader_that_is_still_moving_after_the_time_limit_is_an_error() -> None:
    admin: Any = MovingAdmin(denials=1)
    asked = [TopicPartitionKey("orders", number) for number in (0, 1)]
    failed: dict[TopicPartitionKey, KafkaException] = {}
    assert listed_offsets(admin, asked, EARLIEST, timeout_s=0, failed=failed) == {asked[0]: 7}
    assert list(failed) == [asked[1]]


class CountingConsumer:
    """Answers with the number of each partition as its position."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def committed(self, partitions: list[TopicPartition], **_: Any) -> list[TopicPartition]:
        self.asked.append(len(partitions))
        return [TopicPartition(each.topic, each.partition, each.partition) for each in partitions]


def test_positions_of_many_partitions_are_asked_for_in_parts() -> None:
    """In one request the client would need a time that grows with the square of their number."""
    consumer: Any = CountingConsumer()
    found = committed_positions(consumer, [TopicPartition("orders", number) for number in range(2_500)], 10.0)
    assert [each.offset for each in found] == list(range(2_500))
    assert consumer.asked == [1_000, 1_000, 500]
