"""Whom a consumer's questions go to: itself while it reads nothing, another client while it does."""

from typing import Any

import pytest
from confluent_kafka import TopicPartition

from rocketshim.errors import ConsumerError
from rocketshim.kafka.lookups import Lookups
from rocketshim.testing import InMemoryKafka


@pytest.fixture
def cluster() -> InMemoryKafka:
    kafka = InMemoryKafka()
    kafka.create_topic("orders")
    return kafka


class Beside:
    """A consumer that reads `orders` if it is told to, and the clients made beside it."""

    def __init__(self, kafka: InMemoryKafka) -> None:
        self.consumer = kafka.consumer({"group.id": "g"})
        self.made: list[Any] = []
        self.is_fetching = False
        self.lookups = Lookups(lambda: self.consumer, lambda: self.is_fetching, self.make)
        self._kafka = kafka

    def make(self) -> Any:
        self.made.append(self._kafka.consumer({"group.id": "g"}))
        return self.made[-1]

    def read(self) -> None:
        self.consumer.assign([TopicPartition("orders", 0, 0)])
        self.is_fetching = True

    def ask(self) -> None:
        assert "orders" in self.lookups.list_topics("orders", timeout=1.0).topics
        assert "orders" in self.lookups.list_topics(timeout=1.0).topics
        assert self.lookups.get_watermark_offsets(TopicPartition("orders", 0), timeout=1.0) == (0, 0)
        (answer,) = self.lookups.offsets_for_times([TopicPartition("orders", 0, 1)], timeout=1.0)
        assert answer.offset == -1


def test_a_consumer_that_reads_nothing_is_asked_itself(cluster: InMemoryKafka) -> None:
    beside = Beside(cluster)
    beside.ask()
    assert beside.made == []


def test_a_consumer_that_reads_is_not_asked_and_one_client_answers_for_it(cluster: InMemoryKafka) -> None:
    beside = Beside(cluster)
    beside.read()
    beside.ask()
    beside.ask()
    assert len(beside.made) == 1
    assert cluster.delayed_lookups == []


def test_what_a_broker_would_answer_late_is_noted_by_the_kafka_in_memory(cluster: InMemoryKafka) -> None:
    beside = Beside(cluster)
    beside.read()
    beside.is_fetching = False  # a look-up that does not know
    beside.lookups.get_watermark_offsets(TopicPartition("orders", 0), timeout=1.0)
    assert cluster.delayed_lookups == [("get_watermark_offsets", frozenset({"orders"}))]
    beside.consumer.get_watermark_offsets(TopicPartition("orders", 0), cached=True)
    beside.consumer.pause([TopicPartition("orders", 0)])
    beside.ask()
    assert len(cluster.delayed_lookups) == 1, "cached bounds are not asked for, and what is paused is not fetched"


def test_closing_closes_the_client_that_was_made_and_not_the_consumer(cluster: InMemoryKafka) -> None:
    beside = Beside(cluster)
    beside.read()
    beside.ask()
    beside.lookups.close()
    beside.lookups.close()
    with pytest.raises(RuntimeError):
        beside.made[0].list_topics(timeout=1.0)
    assert beside.consumer.assignment() == [TopicPartition("orders", 0)]


def test_without_a_consumer_nothing_is_asked(cluster: InMemoryKafka) -> None:
    def none() -> Any:
        raise ConsumerError("stopped")

    beside = Beside(cluster)
    with pytest.raises(ConsumerError, match="stopped"):
        Lookups(none, lambda: True, beside.make).list_topics(timeout=1.0)
    assert beside.made == []
