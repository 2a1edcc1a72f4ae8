"""Positions that a group has committed, and offsets that an admin client lists."""

from concurrent.futures import Future
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
