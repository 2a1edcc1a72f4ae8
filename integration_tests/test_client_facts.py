"""What confluent_kafka and librdkafka do on a real broker, where our code relies on it or avoids it."""

import time
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from rocketshim.consumer.reader.group_offsets import Committer
from rocketshim.core.partition import Partition
from rocketshim.core.process_queue import ProcessQueue
from rocketshim.kafka.clients import confluent_clients
from rocketshim.kafka.lookups import found_topics
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.locks.lease import Ownership
from rocketshim_local import Broker, LocalCluster
from rocketshim_topics.coordinates import TopicPartitionKey

from .waiting import wait_until

GUARD_S = 60.0
WAIT_S = 0.5


def test_consume_waits_for_all_its_messages_or_for_the_whole_time(broker: Broker, topic: Callable[..., str]) -> None:
    name = topic()
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce(name, b"1")
    producer.flush(GUARD_S)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": name, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([name])
        first = consumer.poll(GUARD_S)
        assert first is not None
        producer.produce(name, b"2")
        producer.flush(GUARD_S)
        began_s = time.monotonic()
        assert len(consumer.consume(2, WAIT_S)) <= 1
        assert time.monotonic() - began_s >= WAIT_S
    finally:
        consumer.close()


@pytest.fixture(scope="module")
def new_cluster() -> Iterator[str]:
    """The address of a cluster of its own, which creates topics on use and has no group yet."""
    with LocalCluster(1, properties={"auto.create.topics.enable": "true"}) as cluster:
        yield cluster.bootstrap


def test_positions_of_a_group_are_known_before_the_cluster_has_a_coordinator(new_cluster: str) -> None:
    """`AdminClient.list_consumer_group_offsets` ends the process there (librdkafka #5040)."""
    admin = AdminClient({"bootstrap.servers": new_cluster})
    admin.create_topics([NewTopic("orders", 1)])["orders"].result(GUARD_S)
    assert "__consumer_offsets" not in admin.list_topics(timeout=GUARD_S).topics
    place = TopicPartitionKey("orders", 0)
    with TopicReader(new_cluster) as reader:
        assert reader.positions("payments", [place]) == {}


def test_a_consumer_that_asks_for_a_topic_does_not_create_it_and_a_producer_does(new_cluster: str) -> None:
    address = {"bootstrap.servers": new_cluster}
    consumer, producer = confluent_clients().consumer({**address, "group.id": "g"}), Producer(address)
    try:
        assert not found_topics(consumer, ["asked-by-a-consumer"], GUARD_S)["asked-by-a-consumer"].partitions
        producer.list_topics("asked-by-a-producer", timeout=GUARD_S)
        wait_until(lambda: "asked-by-a-producer" in consumer.list_topics(timeout=GUARD_S).topics, within_s=GUARD_S)
        assert "asked-by-a-consumer" not in consumer.list_topics(timeout=GUARD_S).topics
    finally:
        consumer.close()


def test_a_refused_offset_does_not_hide_those_that_are_stored_with_it(
    broker: Broker, topic: Callable[..., str]
) -> None:
    """librdkafka reports the error of one partition for every partition of its commit."""
    good, bad = TopicPartitionKey(topic(), 0), TopicPartitionKey(topic(), 0)
    partitions: dict[TopicPartitionKey, Partition] = {}
    sizes, answers = {good: 1, bad: 9_000}, []  # Kafka accepts 4,096 characters

    def answered(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        answers.append(error)
        commits.answered(error, partitions)

    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": good.topic, "on_commit": answered})
    commits = Committer(
        lambda: consumer,  # type: ignore[arg-type, return-value]
        lambda: 0,
        lambda positions: [TopicPartition(*key, at, sizes[key] * "m") for key, at in positions.items()],
        Ownership(lambda: 0),
        partitions,
    )
    try:
        for asynchronous in (True, False):
            for key in (good, bad):
                partitions[key] = Partition(key)
                partitions[key].begin(0)
                partitions[key].queue = queue = ProcessQueue(key)
                queue.skip_to(5)
            commits.commit(partitions.values(), asynchronous=asynchronous)
            while commits.outstanding:
                consumer.poll(0.05)
            assert [each.stored for each in partitions.values()] == [5, 0]
        assert answers == [KafkaError.OFFSET_METADATA_TOO_LARGE]
    finally:
        consumer.close()
