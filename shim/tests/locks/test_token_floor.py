"""What commits tell of tokens."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.core.start_position import CommitMetadata, encode_metadata
from rocketshim.locks.log_clients import token_floor
from rocketshim.testing import InMemoryKafka


def test_the_floor_lies_above_every_token_that_a_commit_carries() -> None:
    kafka = InMemoryKafka()
    kafka.create_topic("orders", 4)
    consumer = kafka.consumer({"group.id": "g"})
    assert token_floor(consumer, ["orders"]) is None
    for number, metadata in enumerate(
        [encode_metadata(CommitMetadata("d", 4, "t", 90)), encode_metadata(CommitMetadata("d", 4, "t", 70)), "other's"]
    ):
        consumer.commit(offsets=[TopicPartition("orders", number, 5, metadata=metadata)], asynchronous=False)
    assert token_floor(consumer, ["orders", "missing"]) == 91


def test_a_topic_that_the_broker_does_not_know_now_gives_no_floor() -> None:
    kafka = InMemoryKafka()
    kafka.create_topic("orders")
    consumer: Any = kafka.consumer({"group.id": "g"})
    moving = SimpleNamespace(error=KafkaError(KafkaError.LEADER_NOT_AVAILABLE), partitions={})
    consumer.list_topics = lambda topic, **_: SimpleNamespace(topics={topic: moving})
    with pytest.raises(KafkaException):
        token_floor(consumer, ["orders"])
