"""The in-memory producer where the conformance suite cannot reach: faults, time, and the death of producers."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.testing import InMemoryKafka, InMemoryProducer, VirtualClock


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(start_wall_ms=1_000_000)


@pytest.fixture
def kafka(clock: VirtualClock) -> InMemoryKafka:
    kafka = InMemoryKafka(clock)
    kafka.create_topic("orders", 2, config={"message.timestamp.type": "LogAppendTime"})
    kafka.create_topic("other")
    return kafka


class Reports:
    """Delivery reports as (body, error code or None)."""

    def __init__(self) -> None:
        self.seen: list[tuple[bytes | None, int | None]] = []

    def __call__(self, error: KafkaError | None, message: Any) -> None:
        self.seen.append((message.value(), error and error.code()))


def bodies(kafka: InMemoryKafka, topic: str = "orders", **how: Any) -> list[bytes | None]:
    return [message.value() for message in kafka.records(topic, **how)]


def code_of(call: Any) -> int:
    with pytest.raises(KafkaException) as raised:
        call()
    return int(raised.value.args[0].code())


def in_transaction(kafka: InMemoryKafka, name: str = "t", **config: Any) -> InMemoryProducer:
    producer = kafka.producer({"transactional.id": name, **config})
    producer.init_transactions()
    producer.begin_transaction()
    return producer


def test_held_sends_stay_out_of_the_log_and_keep_their_order(kafka: InMemoryKafka) -> None:
    reports = Reports()
    producer = kafka.producer({})
    kafka.hold_sends("orders", 0)
    for body in (b"1", b"2"):
        producer.produce("orders", body, partition=0, on_delivery=reports)
    producer.produce("orders", b"free", partition=1, on_delivery=reports)
    assert producer.flush() == 2
    assert bodies(kafka) == [b"free"]
    kafka.release()
    assert bodies(kafka) == [b"1", b"2", b"free"]
    assert reports.seen == [(b"free", None)]
    assert producer.flush() == 0
    assert reports.seen == [(b"free", None), (b"1", None), (b"2", None)]


def test_held_reports_are_of_records_that_are_in_the_log(kafka: InMemoryKafka) -> None:
    reports = Reports()
    producer = kafka.producer({})
    kafka.hold_reports("orders")
    producer.produce("orders", b"1", on_delivery=reports)
    producer.produce("other", b"2", on_delivery=reports)
    assert producer.flush() == 1
    assert (bodies(kafka), reports.seen) == ([b"1"], [(b"2", None)])
    kafka.release()
    assert producer.poll(0) == 1
    assert reports.seen[-1] == (b"1", None)


def test_sends_wait_for_the_broker_and_time_out_with_the_clock(kafka: InMemoryKafka, clock: VirtualClock) -> None:
    reports = Reports()
    producer = kafka.producer({"delivery.timeout.ms": 5_000})
    kafka.stop_broker()
    producer.produce("orders", b"old", partition=0, on_delivery=reports)
    clock.advance(4_999)
    producer.produce("orders", b"new", partition=0, on_delivery=reports)
    assert (producer.poll(0), len(producer)) == (0, 2)
    clock.advance(1)
    assert producer.poll(0) == 1
    assert reports.seen == [(b"old", KafkaError._MSG_TIMED_OUT)]
    kafka.start_broker()
    producer.flush()
    assert (bodies(kafka), reports.seen[-1]) == ([b"new"], (b"new", None))


def test_the_leaders_clock_stamps_and_can_be_wrong(kafka: InMemoryKafka, clock: VirtualClock) -> None:
    producer = kafka.producer({})
    stamps = []
    kafka.set_leader_clock(-300)
    kafka.set_leader_clock(+5_000, topic="orders", partition=1)
    for partition in (0, 1):
        producer.produce(
            "orders", b"x", partition=partition, on_delivery=lambda _, message: stamps.append(message.timestamp()[1])
        )
    producer.flush()
    clock.advance(10)
    assert stamps == [1_000_000 - 300, 1_000_000 + 5_000]
    assert kafka.append("orders", b"y", partition=1).timestamp()[1] == 1_000_000 + 5_000 + 10


def test_a_forbidden_topic_fails_by_report(kafka: InMemoryKafka) -> None:
    reports = Reports()
    producer = kafka.producer({})
    kafka.deny("orders", read=False)
    producer.produce("orders", b"1", on_delivery=reports)
    producer.flush()
    kafka.allow("orders")
    producer.produce("orders", b"2", on_delivery=reports)
    producer.flush()
    assert reports.seen == [(b"1", KafkaError.TOPIC_AUTHORIZATION_FAILED), (b"2", None)]


def test_an_unknown_topic_is_refused_at_once_from_the_second_time_on(kafka: InMemoryKafka) -> None:
    reports = Reports()
    producer = kafka.producer({})
    producer.produce("later", b"1", on_delivery=reports)
    producer.flush()
    assert reports.seen == [(b"1", KafkaError.UNKNOWN_TOPIC_OR_PART)]
    assert code_of(lambda: producer.produce("later", b"2")) == KafkaError._UNKNOWN_TOPIC
    kafka.create_topic("later")
    producer.produce("later", b"3")
    assert bodies(kafka, "later") == [b"3"]


def test_partitions_that_were_added_are_known_once_the_producer_asks_or_its_metadata_is_old(
    kafka: InMemoryKafka, clock: VirtualClock
) -> None:
    asks, waits = kafka.producer({}), kafka.producer({"topic.metadata.refresh.interval.ms": 5_000})
    for producer in (asks, waits):
        producer.produce("orders", partition=1)
    kafka.add_partitions("orders", 4)
    for producer in (asks, waits):
        assert (
            code_of(lambda producer=producer: producer.produce("orders", partition=3)) == KafkaError._UNKNOWN_PARTITION
        )
    asks.list_topics("orders", timeout=0)
    asks.produce("orders", partition=3)
    clock.advance(5_000)
    waits.produce("orders", partition=3)
    assert len(bodies(kafka)) == 4


def test_a_refusal_ordered_for_produce_queues_nothing(kafka: InMemoryKafka) -> None:
    producer = kafka.producer({})
    kafka.fail_produce(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED), topic="orders", synchronous=True)
    assert code_of(lambda: producer.produce("orders", b"x")) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert (len(producer), bodies(kafka)) == (0, [])
    producer.produce("orders", b"y")
    assert bodies(kafka) == [b"y"]


def test_only_failures_are_reported_where_asked_for(kafka: InMemoryKafka) -> None:
    reports = Reports()
    producer = kafka.producer({"delivery.report.only.error": True, "on_delivery": reports})
    producer.produce("orders", b"stored")
    kafka.fail_produce(KafkaError(KafkaError.NOT_ENOUGH_REPLICAS))
    producer.produce("orders", b"refused")
    producer.flush()
    assert reports.seen == [(b"refused", KafkaError.NOT_ENOUGH_REPLICAS)]


def test_an_exception_in_a_callback_leaves_the_other_reports_for_the_next_poll(kafka: InMemoryKafka) -> None:
    reports = Reports()

    def fail(_: Any, __: Any) -> None:
        raise ZeroDivisionError

    producer = kafka.producer({})
    producer.produce("orders", b"1", on_delivery=fail)
    producer.produce("orders", b"2", on_delivery=reports)
    with pytest.raises(ZeroDivisionError):
        producer.poll(0)
    assert producer.poll(0) == 1
    assert reports.seen == [(b"2", None)]


def test_purged_messages_are_reported_so(kafka: InMemoryKafka) -> None:
    reports = Reports()
    producer = kafka.producer({})
    kafka.hold_sends()
    producer.produce("orders", b"1", on_delivery=reports)
    producer.purge()
    kafka.release()
    producer.flush()
    assert (bodies(kafka), reports.seen) == ([], [(b"1", KafkaError._PURGE_QUEUE)])


def test_a_killed_producer_loses_what_was_not_in_the_log(kafka: InMemoryKafka) -> None:
    reports = Reports()
    producer = kafka.producer({})
    producer.produce("orders", b"stored", partition=0, on_delivery=reports)
    kafka.hold_sends()
    producer.produce("orders", b"lost", partition=0, on_delivery=reports)
    kafka.kill(producer)
    kafka.release()
    assert (bodies(kafka), reports.seen) == ([b"stored"], [])


# --- transactions ------------------------------------------------------------------------------------------------


def test_a_transaction_that_is_too_old_is_aborted_and_its_producer_fenced(
    kafka: InMemoryKafka, clock: VirtualClock
) -> None:
    producer = in_transaction(kafka, **{"transaction.timeout.ms": 15_000})  # type: ignore[arg-type]
    producer.produce("orders", b"late")
    kafka.append("orders", b"behind", partition=0)
    clock.advance(14_999)
    assert bodies(kafka) == []
    clock.advance(1)
    assert bodies(kafka) == [b"behind"]
    assert code_of(producer.commit_transaction) == KafkaError._FENCED
    successor = in_transaction(kafka)
    successor.produce("orders", b"again")
    successor.commit_transaction()
    assert sorted(bodies(kafka)) == [b"again", b"behind"]


def test_a_killed_producer_leaves_its_transaction_open_until_the_successor_comes(kafka: InMemoryKafka) -> None:
    producer = in_transaction(kafka)
    producer.produce("orders", b"half")
    kafka.kill(producer)
    kafka.append("orders", b"behind", partition=0)
    assert bodies(kafka) == []
    in_transaction(kafka)
    assert bodies(kafka) == [b"behind"]


@pytest.mark.parametrize("applied", [True, False])
def test_an_indefinite_commit_may_or_may_not_have_happened(kafka: InMemoryKafka, applied: bool) -> None:
    producer = in_transaction(kafka)
    producer.produce("orders", b"x")
    kafka.fail_transaction(KafkaError(KafkaError._TIMED_OUT), applied=applied)
    assert code_of(producer.commit_transaction) == KafkaError._TIMED_OUT
    in_transaction(kafka)
    assert bodies(kafka) == ([b"x"] if applied else [])


def test_a_fatal_error_ordered_for_a_commit_ends_the_producer(kafka: InMemoryKafka) -> None:
    producer = in_transaction(kafka)
    producer.produce("orders", b"x")
    kafka.fail_transaction(KafkaError(KafkaError._FENCED, "fenced", fatal=True))
    for call in (producer.commit_transaction, producer.abort_transaction, producer.begin_transaction):
        assert code_of(call) == KafkaError._FENCED
    assert code_of(lambda: producer.produce("orders", b"y")) == KafkaError._FATAL


def test_a_commit_that_ran_out_of_time_can_only_be_repeated(kafka: InMemoryKafka) -> None:
    producer = in_transaction(kafka)
    producer.produce("orders", b"x")
    kafka.stop_broker()
    assert code_of(lambda: producer.commit_transaction(1)) == KafkaError._TIMED_OUT
    kafka.start_broker()
    assert code_of(producer.abort_transaction) == KafkaError._CONFLICT
    producer.commit_transaction()
    assert bodies(kafka) == [b"x"]


def test_a_commit_waits_for_reports_that_are_held_back(kafka: InMemoryKafka) -> None:
    producer = in_transaction(kafka)
    kafka.hold_reports()
    producer.produce("orders", b"x")
    assert code_of(producer.commit_transaction) == KafkaError._TIMED_OUT
    kafka.release()
    producer.commit_transaction()
    assert bodies(kafka) == [b"x"]


def test_a_forbidden_target_makes_the_transaction_one_to_abort(kafka: InMemoryKafka) -> None:
    producer = in_transaction(kafka)
    kafka.deny("other")
    producer.produce("orders", b"x")
    producer.produce("other", b"y")
    assert code_of(producer.commit_transaction) == KafkaError._INCONSISTENT
    producer.abort_transaction()
    assert bodies(kafka) == []
    producer.begin_transaction()
    producer.produce("orders", b"again")
    producer.commit_transaction()
    assert bodies(kafka) == [b"again"]


def test_offsets_of_an_aborted_or_timed_out_transaction_are_dropped(kafka: InMemoryKafka, clock: VirtualClock) -> None:
    metadata = kafka.consumer({"group.id": "g"}).consumer_group_metadata()
    producer = in_transaction(kafka)
    producer.send_offsets_to_transaction([TopicPartition("orders", 0, 3)], metadata)
    clock.advance(60_000)
    assert kafka.committed("g") == {}
    successor = in_transaction(kafka)
    successor.send_offsets_to_transaction([TopicPartition("orders", 0, 4), TopicPartition("orders", 1)], metadata)
    successor.commit_transaction()
    assert kafka.committed("g") == {("orders", 0): 4}
    assert [(commit.member_id, commit.next_offset) for commit in kafka.commits("g")] == [("", 4)]


def test_a_batch_that_the_broker_calls_a_duplicate_is_reported_without_its_offsets(kafka: InMemoryKafka) -> None:
    offsets: list[int | None] = []
    producer = kafka.producer({"on_delivery": lambda error, message: offsets.append(error or message.offset())})
    kafka.fail_produce(None, topic="orders", count=3)
    for value in (b"1", b"2", b"3", b"4"):
        producer.produce("orders", value, partition=0)
    producer.flush()
    assert offsets == [None, 0, 1, 0]
    assert bodies(kafka) == [b"4"]
