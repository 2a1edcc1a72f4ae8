"""The list of waiting records in the delay queues: it starts at the worker's positions and skips probes."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import TopicPartition

from rocketshim.errors import NotAuthorizedError, TopicMissingError
from rocketshim.kafka.clients import Clients
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.observe.delay_queues import DelayedReader
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics import DelayLevels, TopicNames
from rocketshim_topics.hops import clock_probe

NAMES = TopicNames("")
HEADERS = [("REAL_TOPIC", b"orders")]


@pytest.fixture
def kafka() -> InMemoryKafka:
    cluster = InMemoryKafka(VirtualClock())
    cluster.create_topic(NAMES.schedule, 3)
    return cluster


@contextmanager
def reader(kafka: InMemoryKafka) -> Iterator[DelayedReader]:
    with TopicReader("memory:1", clients=Clients(kafka.consumer, kafka.producer)) as reading:
        yield DelayedReader(reading, NAMES, DelayLevels.default())


def test_neither_delivered_records_nor_probes_are_listed_as_waiting(kafka: InMemoryKafka) -> None:
    for number in (0, 1):
        for body in (b"a", b"b"):
            kafka.append(NAMES.schedule, body, partition=number, headers=HEADERS)
    kafka.append(NAMES.schedule, None, partition=2, headers=clock_probe(NAMES, partition=2).headers)
    worker = kafka.consumer({"bootstrap.servers": "memory:1", "group.id": NAMES.worker_group})
    worker.commit(offsets=[TopicPartition(NAMES.schedule, 0, 1)], asynchronous=False)
    with reader(kafka) as reading:
        found = [(message.partition(), message.offset()) for message in reading.records()]
        assert {number: (count, head.place) for number, (count, head) in reading.counted().items()} == {
            0: (1, "0/1"),
            1: (2, "1/0"),
        }
    assert sorted(found) == [(0, 1), (1, 0), (1, 1)]


def test_the_first_records_are_those_that_leave_first_of_all_queues(kafka: InMemoryKafka) -> None:
    for partition, count in ((2, 9), (1, 2), (0, 1)):  # 10 s, 5 s, 1 s
        for _ in range(count):
            kafka.append(NAMES.schedule, b"x", partition=partition, headers=HEADERS)
    with reader(kafka) as reading:
        found = [(each.partition(), each.offset()) for each in reading.first(4, lambda _: True)]
        assert found == [(0, 0), (1, 0), (1, 1), (2, 0)]
        assert [each.offset() for each in reading.first(2, lambda each: each.offset() > 6)] == [7, 8]


def test_a_record_in_a_queue_of_a_longer_table_leaves_after_a_second() -> None:
    clock = VirtualClock()
    kafka = InMemoryKafka(clock)
    kafka.create_topic(NAMES.schedule, 2)
    kafka.append(NAMES.schedule, b"1 s", partition=0, headers=HEADERS)
    clock.advance(ms=500)
    kafka.append(NAMES.schedule, b"no level here", partition=1, headers=HEADERS)
    clients = Clients(kafka.consumer, kafka.producer)
    with TopicReader("memory:1", clients=clients) as topics:
        reading = DelayedReader(topics, NAMES, DelayLevels.parse("1s"))
        assert [each.partition() for each in reading.first(2, lambda _: True)] == [0, 1]


def test_follow_returns_new_records_of_queues_without_waiting_records(kafka: InMemoryKafka) -> None:
    with reader(kafka) as reading:
        following = reading.records(follow=True)
        for body in (b"a", b"b"):
            kafka.append(NAMES.schedule, body, partition=1, headers=HEADERS)
            assert next(following).value() == body
        following.close()  # type: ignore[attr-defined]


def test_errors_name_topics_that_are_missing_or_forbidden(kafka: InMemoryKafka) -> None:
    kafka.append(NAMES.schedule, b"a", headers=HEADERS)
    kafka.deny(NAMES.schedule)
    with reader(kafka) as reading, pytest.raises(NotAuthorizedError, match=NAMES.schedule):
        list(reading.records())
    kafka.delete_topic(NAMES.schedule)
    with reader(kafka) as reading, pytest.raises(TopicMissingError, match="rocketshim init"):
        list(reading.records())
