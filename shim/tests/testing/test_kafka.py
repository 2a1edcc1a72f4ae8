"""The in-memory cluster: what a test may look at and order."""

import threading

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, TopicPartition

from rocketshim.clock import SystemClock
from rocketshim.errors import ConfigError
from rocketshim.testing import InMemoryKafka
from rocketshim_topics.layout import Layout
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames


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


def test_an_appended_text_is_read_as_bytes_as_from_a_real_broker(kafka: InMemoryKafka) -> None:
    message = kafka.append("orders", "body", key="k", headers=[("TAGS", "t")])  # type: ignore[arg-type, list-item]
    assert (message.key(), message.value(), message.headers()) == (b"k", b"body", [("TAGS", b"t")])
    with pytest.raises(TypeError):
        kafka.append("orders", 7)  # type: ignore[arg-type]
    assert len(kafka.records("orders")) == 1


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


def test_compaction_and_holes_leave_offsets_that_nobody_reads(kafka: InMemoryKafka) -> None:
    for key, value in ((b"a", b"1"), (b"b", b"1"), (b"a", b"2")):
        kafka.append("orders", value, key=key)
    kafka.compact("orders")
    kafka.skip_offsets("orders", count=2)
    kafka.append("orders", b"3", key=b"c")
    consumer = kafka.consumer({"group.id": "g"})
    consumer.assign([TopicPartition("orders", 0, 0)])
    assert [(message.offset(), message.value()) for message in consumer.consume(9, 0)] == [
        (1, b"1"),
        (2, b"2"),
        (5, b"3"),
    ]


def test_records_are_told_by_partition_and_isolation(kafka: InMemoryKafka) -> None:
    kafka.append("orders", b"plain", partition=1, headers=[("a", b"1"), ("a", None)], timestamp_ms=5)
    producer = kafka.producer({"transactional.id": "t"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce("orders", b"open", partition=1)
    assert [message.value() for message in kafka.records("orders")] == [b"plain"]
    assert [message.value() for message in kafka.records("orders", 1, read_committed=False)] == [b"plain", b"open"]
    assert kafka.records("orders", 0) == []
    (plain,) = kafka.records("orders")
    assert (plain.headers(), plain.timestamp(), plain.partition()) == ([("a", b"1"), ("a", None)], (1, 5), 1)


def test_what_is_not_there_is_a_config_error_that_says_so(kafka: InMemoryKafka) -> None:
    with pytest.raises(ConfigError, match="'missing' does not exist"):
        kafka.append("missing", b"x")
    with pytest.raises(ConfigError, match="partitions 0 to 1, not 7"):
        kafka.truncate("orders", 7, before_offset=1)
    with pytest.raises(ConfigError, match="partitions 0 to 1, not 7"):
        kafka.append("orders", b"x", partition=7)
    with pytest.raises(ConfigError, match="at least 1"):
        kafka.create_topic("new", 0)
    assert kafka.topics() == ["orders"]


def test_the_topics_of_a_layout_are_made_once(kafka: InMemoryKafka) -> None:
    layout = Layout(TopicNames(""), DelayLevels.parse("1s 5s"))
    kafka.create_topics([*layout.shared(), *layout.for_group("payments", with_log=True)])
    kafka.append(layout.schedule().name, b"x", partition=31)
    kafka.create_topics(layout.shared())
    assert len(kafka.records(layout.schedule().name)) == 1
    (record,) = kafka.records(layout.schedule().name)
    assert record.timestamp()[0] == TIMESTAMP_LOG_APPEND_TIME


def test_a_deleted_topic_takes_its_offsets_along(kafka: InMemoryKafka) -> None:
    consumer = kafka.consumer({"group.id": "g"})
    consumer.commit(offsets=[TopicPartition("orders", 0, 5)], asynchronous=False)
    kafka.delete_topic("orders")
    assert (kafka.committed("g"), kafka.topics()) == ({}, [])


def test_a_topic_grows_and_its_group_hears_of_it(kafka: InMemoryKafka) -> None:
    consumer = kafka.consumer({"group.id": "g"})
    consumer.subscribe(["orders"])
    consumer.poll(0)
    kafka.add_partitions("orders", 4)
    consumer.poll(0)
    assert [partition.partition for partition in consumer.assignment()] == [0, 1, 2, 3]
    assert kafka.members("g") == ["rdkafka-g-0001"]


def test_every_commit_is_remembered_even_one_that_goes_back(kafka: InMemoryKafka) -> None:
    consumer = kafka.consumer({"group.id": "g"})
    for offset in (5, 3):
        consumer.commit(offsets=[TopicPartition("orders", 0, offset, "digest")], asynchronous=False)
    assert [(commit.partition, commit.next_offset, commit.metadata) for commit in kafka.commits("g")] == [
        (0, 5, "digest"),
        (0, 3, "digest"),
    ]
    assert kafka.commits("other") == []


def test_a_lost_answer_to_a_commit_leaves_the_offset_committed(kafka: InMemoryKafka) -> None:
    consumer = kafka.consumer({"group.id": "g"})
    kafka.fail_commits(KafkaError(KafkaError.REQUEST_TIMED_OUT), group="g", stored=True)
    with pytest.raises(KafkaException, match="REQUEST_TIMED_OUT"):
        consumer.commit(offsets=[TopicPartition("orders", 0, 5)], asynchronous=False)
    assert kafka.committed("g") == {("orders", 0): 5}


def test_many_threads_lose_nothing_and_see_nothing_twice() -> None:
    kafka = InMemoryKafka(SystemClock())
    kafka.create_topic("orders", 4)
    seen: list[bytes] = []
    done = threading.Event()

    def produce(number: int) -> None:
        producer = kafka.producer({"queue.buffering.max.messages": 50})
        for count in range(200):
            while True:
                try:
                    producer.produce("orders", b"%d-%d" % (number, count))
                    break
                except BufferError:
                    producer.poll(1)
        producer.flush(60)

    def consume() -> None:
        consumer = kafka.consumer({"group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["orders"])
        while not done.is_set():
            seen.extend(message.value() for message in consumer.consume(20, 0.01))
            if len(seen) >= 800:
                done.set()
        consumer.close()

    threads = [threading.Thread(target=produce, args=(number,)) for number in range(4)]
    threads.append(threading.Thread(target=consume))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted(b"%d-%d" % (number, count) for number in range(4) for count in range(200))
    assert sum(kafka.committed("g").values()) == 800


def test_a_test_can_wait_for_what_other_threads_do(kafka: InMemoryKafka) -> None:
    steps: list[int] = []

    def append_and_note() -> None:
        kafka.append("orders", b"x")
        steps.append(0)

    thread = threading.Thread(target=append_and_note)
    thread.start()
    kafka.wait_until(lambda: len(kafka.records("orders")) == 1)
    thread.join()
    kafka.wait_until(lambda: len(steps) == 3, driving=lambda: steps.append(1))
    assert steps == [0, 1, 1]
    with pytest.raises(TimeoutError, match="the condition does not hold"):
        kafka.wait_until(lambda: False, guard_s=0)
