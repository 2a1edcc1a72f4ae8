"""Which client does the lookups: a second client beside the consumer."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.errors import ConsumerError
from rocketshim.kafka.lookups import Lookups, check_answers, in_parts, partition_bounds, stored_among
from rocketshim.testing import InMemoryKafka


@pytest.fixture
def cluster() -> InMemoryKafka:
    kafka = InMemoryKafka()
    kafka.create_topic("orders")
    return kafka


class Beside:
    """A consumer that reads `orders`, and the second clients created for it."""

    def __init__(self, kafka: InMemoryKafka) -> None:
        self.consumer = kafka.consumer({"group.id": "g"})
        self.made: list[Any] = []
        self.consumer.assign([TopicPartition("orders", 0, 0)])
        self.lookups = Lookups(lambda: self.consumer, self.make)
        self._kafka = kafka

    def make(self) -> Any:
        self.made.append(self._kafka.consumer({"group.id": "g"}))
        return self.made[-1]

    def ask(self) -> None:
        assert "orders" in self.lookups.list_topics("orders", timeout=1.0).topics
        assert "orders" in self.lookups.list_topics(timeout=1.0).topics
        assert self.lookups.get_watermark_offsets(TopicPartition("orders", 0), timeout=1.0) == (0, 0)
        (answer,) = self.lookups.offsets_for_times([TopicPartition("orders", 0, 1)], timeout=1.0)
        assert answer.offset == -1


def test_one_second_client_does_all_lookups(cluster: InMemoryKafka) -> None:
    beside = Beside(cluster)
    beside.ask()
    beside.ask()
    assert len(beside.made) == 1
    assert cluster.delayed_lookups == []


def test_the_kafka_in_memory_notes_requests_that_a_fetch_would_delay(cluster: InMemoryKafka) -> None:
    consumer = Beside(cluster).consumer
    consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=1.0)
    assert cluster.delayed_lookups == [("get_watermark_offsets", frozenset({"orders"}))]
    consumer.get_watermark_offsets(TopicPartition("orders", 0), cached=True)
    consumer.pause([TopicPartition("orders", 0)])
    consumer.get_watermark_offsets(TopicPartition("orders", 0), timeout=1.0)
    assert len(cluster.delayed_lookups) == 1, "cached bounds are not asked for, and what is paused is not fetched"


def test_closing_closes_the_second_client_and_not_the_consumer(cluster: InMemoryKafka) -> None:
    beside = Beside(cluster)
    beside.ask()
    beside.lookups.close()
    beside.lookups.close()
    with pytest.raises(RuntimeError):
        beside.made[0].list_topics(timeout=1.0)
    assert beside.consumer.assignment() == [TopicPartition("orders", 0)]


def test_answers_with_an_error_are_not_returned() -> None:
    error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    good, bad = TopicPartition("orders", 0, 5), SimpleNamespace(error=error)
    assert check_answers([good]) == [good]
    with pytest.raises(KafkaException) as caught:
        check_answers([good, bad])  # type: ignore[list-item]
    assert caught.value.args[0] is error


def test_without_a_consumer_no_lookup_is_made(cluster: InMemoryKafka) -> None:
    def none() -> Any:
        raise ConsumerError("stopped")

    beside = Beside(cluster)
    with pytest.raises(ConsumerError, match="stopped"):
        Lookups(none, beside.make).list_topics(timeout=1.0)
    assert beside.made == []


def refused_first(kafka: InMemoryKafka) -> Any:
    """Make a client whose broker refuses the first of two requests for bounds: librdkafka returns the end twice."""
    client: Any = kafka.consumer({"group.id": "g"})
    ask = client.get_watermark_offsets
    client.get_watermark_offsets = lambda *args, **options: (ask(*args, **options)[1],) * 2
    return client


def test_a_partition_is_not_taken_for_empty_because_the_broker_refused_one_request(cluster: InMemoryKafka) -> None:
    for _ in range(5):
        cluster.append("orders", b"x")
    assert partition_bounds(refused_first(cluster), TopicPartition("orders", 0), 1.0) == (0, 5)
    cluster.truncate("orders", before_offset=5)
    assert partition_bounds(refused_first(cluster), TopicPartition("orders", 0), 1.0) == (5, 5)


def test_a_partition_without_a_leader_is_not_one_that_does_not_exist(cluster: InMemoryKafka) -> None:
    client: Any = cluster.consumer({"group.id": "g"})

    def unknown(*_: Any, **__: Any) -> None:
        raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))

    client.get_watermark_offsets = unknown
    reported = []
    for topic, number in (("orders", 0), ("orders", 7), ("nowhere", 0)):
        with pytest.raises(KafkaException) as caught:
            partition_bounds(client, TopicPartition(topic, number), 1.0)
        reported.append(caught.value.args[0].code())
    assert reported == [
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
    ]


def test_many_partitions_are_asked_for_a_thousand_at_a_time() -> None:
    partitions = [TopicPartition("orders", number, number) for number in range(2_500)]
    asked: list[int] = []

    def ask(part: list[TopicPartition]) -> list[TopicPartition]:
        asked.append(len(part))
        return part

    assert [answer.offset for answer in in_parts(ask, partitions)] == list(range(2_500))
    assert asked == [1_000, 1_000, 500]


class Coordinator:
    """Returns these committed positions, or the error that the test sets."""

    def __init__(self, offsets: list[int], error: KafkaError | None = None) -> None:
        self._offsets = offsets
        self._error = error

    def committed(self, partitions: list[TopicPartition], *, timeout: float) -> list[TopicPartition]:
        del timeout
        if self._error is not None:
            raise KafkaException(self._error)
        return [
            TopicPartition(item.topic, item.partition, at) for item, at in zip(partitions, self._offsets, strict=True)
        ]


@pytest.mark.parametrize(
    ("coordinator", "code", "stored"),
    [
        (Coordinator([7, -1001, 7]), KafkaError.OFFSET_METADATA_TOO_LARGE, [0, 2]),
        (Coordinator([3, -1001, 3]), KafkaError.OFFSET_METADATA_TOO_LARGE, []),
        (Coordinator([7, 7, 7]), KafkaError.ILLEGAL_GENERATION, []),  # it refuses all of them
        (Coordinator([], KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)), KafkaError.UNKNOWN_TOPIC_OR_PART, []),
    ],
)
def test_positions_that_are_stored_although_others_were_refused_are_known(
    coordinator: Any, code: int, stored: list[int]
) -> None:
    """Kafka's client reports the error of one partition for all of them."""
    refused = [TopicPartition("orders", number, 7) for number in range(3)]
    assert [key.partition for key in stored_among(coordinator, refused, KafkaError(code))] == stored
