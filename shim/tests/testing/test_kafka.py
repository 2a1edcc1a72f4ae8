"""The in-memory cluster: what a test may look at and order."""

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.errors import ConfigError
from rocketshim.testing import InMemoryKafka


@pytest.fixture
def kafka() -> InMemoryKafka:
    kafka = InMemoryKafka()
    kafka.create_topic("orders", 2)
    return kafka


def test_a_record_travels_from_a_producer_to_a_group(kafka: InMemoryKafka) -> None:
    producer = kafka.producer({})
    reports = []
    producer.produce("orders", b"body", key=b"k", partition=1, on_delivery=lambda e, m: reports.append((e, m.offset())))
    assert reports == []
    assert producer.flush() == 0
    assert reports == [(None, 0)]

    consumer = kafka.consumer({"group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["orders"])
    message = consumer.poll(1.0)
    assert (message.topic(), message.partition(), message.offset()) == ("orders", 1, 0)
    assert (message.key(), message.value(), message.headers()) == (b"k", b"body", None)
    assert consumer.poll(1.0) is None
    consumer.commit(message=message, asynchronous=False)
    assert kafka.committed("g") == {("orders", 1): 1}


def test_a_topic_that_exists_is_not_made_again(kafka: InMemoryKafka) -> None:
    kafka.append("orders", b"x")
    with pytest.raises(ConfigError, match="exists already"):
        kafka.create_topic("orders")
    assert [message.value() for message in kafka.records("orders")] == [b"x"]


def test_ordered_faults_are_used_up_in_order(kafka: InMemoryKafka) -> None:
    kafka.fail_produce(KafkaError(KafkaError.NOT_ENOUGH_REPLICAS), topic="orders")
    producer = kafka.producer({})
    outcomes = []
    for body in (b"refused", b"stored"):
        producer.produce(
            "orders", body, partition=0, on_delivery=lambda e, m: outcomes.append((e and e.code(), m.value()))
        )
    producer.flush()
    assert outcomes == [(KafkaError.NOT_ENOUGH_REPLICAS, b"refused"), (None, b"stored")]
    assert [message.value() for message in kafka.records("orders")] == [b"stored"]


def test_a_lost_acknowledgement_leaves_the_record_in_the_log(kafka: InMemoryKafka) -> None:
    kafka.fail_produce(KafkaError(KafkaError._MSG_TIMED_OUT), stored=True)
    producer = kafka.producer({})
    errors = []
    producer.produce("orders", b"x", on_delivery=lambda error, _: errors.append(error.code()))
    producer.flush()
    assert errors == [KafkaError._MSG_TIMED_OUT]
    assert len(kafka.records("orders")) == 1


def test_a_failed_commit_keeps_the_old_offset(kafka: InMemoryKafka) -> None:
    consumer = kafka.consumer({"group.id": "g", "enable.auto.commit": False})
    consumer.subscribe(["orders"])
    consumer.poll(0)
    kafka.fail_commits(KafkaError(KafkaError.ILLEGAL_GENERATION))
    with pytest.raises(KafkaException, match="ILLEGAL_GENERATION"):
        consumer.commit(offsets=[TopicPartition("orders", 0, 5)], asynchronous=False)
    assert kafka.committed("g") == {}
    consumer.commit(offsets=[TopicPartition("orders", 0, 5)], asynchronous=False)
    assert kafka.committed("g") == {("orders", 0): 5}
