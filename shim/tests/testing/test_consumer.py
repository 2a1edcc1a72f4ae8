"""The in-memory consumer where the conformance suite cannot reach: faults, time, and the death of members."""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from rocketshim.testing import InMemoryConsumer, InMemoryKafka, VirtualClock

COOPERATIVE = "cooperative-sticky"


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def kafka(clock: VirtualClock) -> InMemoryKafka:
    kafka = InMemoryKafka(clock)
    kafka.create_topic("orders", 2)
    return kafka


class Listening:
    """A consumer in group g that writes down its callbacks."""

    def __init__(self, kafka: InMemoryKafka, **config: Any) -> None:
        self.events: list[tuple[str, list[int]]] = []
        settings = {"group.id": "g", "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        settings["partition.assignment.strategy"] = COOPERATIVE
        self.client: InMemoryConsumer = kafka.consumer(
            settings | {name.replace("_", "."): value for name, value in config.items()}
        )
        self.client.subscribe(
            ["orders"], on_assign=self._note("assign"), on_revoke=self._note("revoke"), on_lost=self._note("lost")
        )

    def _note(self, kind: str) -> Any:
        return lambda _, partitions: self.events.append((kind, [partition.partition for partition in partitions]))

    def poll(self, times: int = 1) -> list[Any]:
        return [message for _ in range(times) if (message := self.client.poll(0)) is not None]

    def commit(self, offset: int, partition: int = 0) -> int | None:
        """Commit; the error's code, None for success."""
        try:
            self.client.commit(offsets=[TopicPartition("orders", partition, offset)], asynchronous=False)
        except KafkaException as error:
            return int(error.args[0].code())
        return None


def settle(*members: Listening) -> None:
    for _ in range(4):
        for member in members:
            member.poll()


def owned(member: Listening) -> list[int]:
    return [partition.partition for partition in member.client.assignment()]


def test_a_killed_member_keeps_its_partitions_until_its_session_is_over(
    kafka: InMemoryKafka, clock: VirtualClock
) -> None:
    first, second = Listening(kafka, session_timeout_ms=6_000), Listening(kafka)
    settle(first, second)
    theirs = owned(second)
    kafka.kill(first.client)
    clock.advance(5_999)
    settle(second)
    assert owned(second) == theirs
    clock.advance(1)
    settle(second)
    assert owned(second) == [0, 1]
    with pytest.raises(RuntimeError, match="closed"):
        first.client.poll(0)


def test_a_member_frozen_longer_than_its_session_may_not_commit_and_is_told(
    kafka: InMemoryKafka, clock: VirtualClock
) -> None:
    first, second = Listening(kafka, session_timeout_ms=6_000), Listening(kafka)
    settle(first, second)
    lost = owned(first)
    kafka.freeze(first.client)
    clock.advance(6_000)
    settle(second)
    assert owned(second) == [0, 1]
    assert first.commit(5, partition=lost[0]) == KafkaError.UNKNOWN_MEMBER_ID
    assert kafka.committed("g") == {}
    settle(first, second)
    assert ("lost", lost) in first.events
    assert (len(owned(first)), len(owned(second))) == (1, 1)


def test_a_member_frozen_for_less_goes_on_as_if_nothing_had_been(kafka: InMemoryKafka, clock: VirtualClock) -> None:
    member = Listening(kafka, session_timeout_ms=6_000)
    settle(member)
    kafka.freeze(member.client)
    clock.advance(5_999)
    assert member.commit(5) is None
    clock.advance(60_000)
    assert member.commit(6) is None
    assert [event for event in member.events if event[0] == "lost"] == []


def test_without_on_lost_a_loss_comes_to_on_revoke(kafka: InMemoryKafka) -> None:
    member = Listening(kafka)
    settle(member)
    member.client._on_lost = None
    kafka.evict(member.client)
    settle(member)
    assert ("revoke", [0, 1]) in member.events


def test_the_poll_interval_is_enforced_only_where_asked_for() -> None:
    for enforced, expected in ((False, []), (True, [KafkaError._MAX_POLL_EXCEEDED])):
        clock = VirtualClock()
        kafka = InMemoryKafka(clock, enforce_max_poll_interval=enforced)
        kafka.create_topic("orders", 2)
        member = Listening(kafka, max_poll_interval_ms=60_000)
        settle(member)
        clock.advance(60_001)
        assert [message.error().code() for message in member.poll(3)] == expected
        assert (("lost", [0, 1]) in member.events) is enforced
        settle(member)
        assert owned(member) == [0, 1]


def test_what_another_group_does_is_no_business_of_this_one(kafka: InMemoryKafka) -> None:
    member = Listening(kafka)
    other = Listening(kafka, group_id="h")
    settle(member, other)
    assert (owned(member), owned(other)) == ([0, 1], [0, 1])
    other.commit(9)
    assert kafka.committed("g") == {}
    assert kafka.committed("h") == {("orders", 0): 9}


def test_without_a_broker_reads_are_silent_and_questions_fail(kafka: InMemoryKafka) -> None:
    member = Listening(kafka)
    settle(member)
    kafka.append("orders", b"x")
    kafka.stop_broker()
    assert member.poll() == []
    assert member.commit(1) == KafkaError._WAIT_COORD
    client, partition = member.client, TopicPartition("orders", 0)
    for call, code in (
        (lambda: client.list_topics(timeout=1), KafkaError._TRANSPORT),
        (lambda: client.committed([partition], timeout=1), KafkaError._TIMED_OUT),
        (lambda: client.get_watermark_offsets(partition, timeout=1), KafkaError._UNKNOWN_PARTITION),
        (lambda: client.offsets_for_times([partition], timeout=1), KafkaError._UNKNOWN_PARTITION),
    ):
        with pytest.raises(KafkaException) as raised:
            call()
        assert raised.value.args[0].code() == code
    kafka.start_broker()
    assert [message.value() for message in member.poll()] == [b"x"]


def test_a_synchronous_commit_waits_for_the_broker_as_long_as_the_session(clock: VirtualClock) -> None:
    waited_s: list[float] = []

    def on_wait(timeout_s: float) -> None:
        waited_s.append(timeout_s)
        if len(waited_s) == 2:
            kafka.start_broker()  # type: ignore[attr-defined]

    kafka = InMemoryKafka(clock, on_wait=on_wait)
    kafka.create_topic("orders", 2)
    member = Listening(kafka, session_timeout_ms=6_000)
    member.client.consume(0, 0)
    member.client.poll(0)
    kafka.stop_broker()
    waited_s.clear()
    assert member.commit(1) == KafkaError._WAIT_COORD
    assert member.commit(1) is None
    assert waited_s == [6, 6]


def test_a_forbidden_topic_is_one_event_and_no_records(kafka: InMemoryKafka) -> None:
    member = Listening(kafka)
    settle(member)
    kafka.append("orders", b"x")
    kafka.deny("orders")
    assert [message.error().code() for message in member.poll(4)] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    kafka.allow("orders")
    assert [message.value() for message in member.poll(2)] == [b"x"]


def test_automatic_commits_come_with_time_and_with_the_end(kafka: InMemoryKafka, clock: VirtualClock) -> None:
    member = Listening(kafka, enable_auto_commit=True, auto_commit_interval_ms=5_000)
    for value in (b"a", b"b"):
        kafka.append("orders", value)
    member.poll()
    assert kafka.committed("g") == {}
    clock.advance(5_000)
    member.poll()
    assert kafka.committed("g") == {("orders", 0): 1}
    member.client.close()
    assert kafka.committed("g") == {("orders", 0): 2}


def test_stored_offsets_are_what_a_bare_commit_commits(kafka: InMemoryKafka) -> None:
    member = Listening(kafka, enable_auto_offset_store=False)
    kafka.append("orders", b"a")
    member.poll()
    with pytest.raises(KafkaException, match="_NO_OFFSET"):
        member.client.commit(asynchronous=False)
    member.client.store_offsets(offsets=[TopicPartition("orders", 0, 1)])
    member.client.commit(asynchronous=False)
    assert kafka.committed("g") == {("orders", 0): 1}
    with pytest.raises(KafkaException, match="_STATE"):
        member.client.store_offsets(offsets=[TopicPartition("other", 0, 1)])


def test_wrong_arguments_are_refused_as_by_the_real_client(kafka: InMemoryKafka) -> None:
    client = kafka.consumer({"group.id": "g", "enable.auto.offset.store": False})
    with pytest.raises(ValueError, match="mutually exclusive"):
        client.store_offsets(Message(topic="orders", partition=0, offset=0), [TopicPartition("orders", 0, 1)])
    with pytest.raises(ValueError, match="expected either"):
        client.store_offsets()


def test_a_group_waits_for_a_transaction_that_moves_its_offset(kafka: InMemoryKafka) -> None:
    for value in (b"a", b"b"):
        kafka.append("orders", value)
    outsider = kafka.consumer({"group.id": "g"})
    producer = kafka.producer({"transactional.id": "t"})
    producer.init_transactions()
    producer.begin_transaction()
    metadata = outsider.consumer_group_metadata()
    producer.send_offsets_to_transaction([TopicPartition("orders", 0, 1)], metadata)
    member = Listening(kafka)
    assert member.poll(3) == []
    with pytest.raises(KafkaException, match="_TIMED_OUT"):
        member.client.committed([TopicPartition("orders", 0)])
    producer.commit_transaction()
    assert [message.offset() for message in member.poll(3)] == [1]


def test_a_full_partition_does_not_starve_the_others() -> None:
    kafka = InMemoryKafka(fetch_run_count=2)
    kafka.create_topic("orders", 2)
    for number in range(5):
        kafka.append("orders", b"%d" % number, partition=0)
    kafka.append("orders", b"other", partition=1)
    member = Listening(kafka)
    assert [message.partition() for message in member.poll(8)] == [0, 0, 1, 0, 0, 0]


def test_records_without_a_body_are_records(kafka: InMemoryKafka) -> None:
    for value in (None, b"", None):
        kafka.append("orders", value)
    assert [message.value() for message in Listening(kafka).poll(4)] == [None, b"", None]


def test_retention_that_overtakes_a_reader_sends_it_to_the_low_watermark(kafka: InMemoryKafka) -> None:
    member = Listening(kafka)
    for number in range(6):
        kafka.append("orders", b"%d" % number)
    assert [message.offset() for message in member.poll(2)] == [0, 1]
    kafka.truncate("orders", before_offset=4)
    assert [message.offset() for message in member.poll(3)] == [4, 5]


def test_a_topic_that_comes_later_is_given_to_who_asked_for_it(kafka: InMemoryKafka) -> None:
    consumer = kafka.consumer({"group.id": "p", "auto.offset.reset": "earliest"})
    consumer.subscribe(["^later-.*", "late"])
    assert consumer.poll(0).error().code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert consumer.poll(0) is None, "told once"
    for topic in ("later-1", "late"):
        kafka.create_topic(topic)
        kafka.append(topic, b"x")
    assert sorted(message.topic() for message in consumer.consume(5, 0)) == ["late", "later-1"]
    kafka.delete_topic("late")
    consumer.poll(0)
    assert [partition.topic for partition in consumer.assignment()] == ["later-1"]


def test_an_error_ordered_by_the_test_comes_out_of_poll(kafka: InMemoryKafka) -> None:
    member = Listening(kafka)
    kafka.raise_in_poll(member.client, KafkaError(KafkaError._FATAL, "gone", True))  # noqa: FBT003 - positional in C
    (message,) = member.poll(2)
    assert (message.error().code(), message.error().fatal()) == (KafkaError._FATAL, True)


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({}, "group.id must be set"),
        ({"group.id": "g", "auto.offset.reset": "sometimes"}, "auto.offset.reset"),
        ({"group.id": "g", "session.timeout.ms": "soon"}, "session.timeout.ms"),
        ({"group.id": "g", "partition.assignment.strategy": "best"}, "Unsupported"),
        ({"group.id": "g", "partition.assignment.strategy": "range,cooperative-sticky"}, "same protocol type"),
    ],
)
def test_settings_that_librdkafka_refuses_are_refused(config: dict[str, Any], error: str, kafka: InMemoryKafka) -> None:
    with pytest.raises((ValueError, KafkaException), match=error):
        kafka.consumer(config)


def test_the_same_calls_give_the_same_results() -> None:
    def run() -> list[tuple[Any, ...]]:
        kafka = InMemoryKafka()
        kafka.create_topic("orders", 3)
        producer = kafka.producer({"partitioner": "murmur2_random"})
        for number in range(30):
            producer.produce("orders", b"%d" % number, key=b"%d" % number if number % 3 else None)
        producer.flush()
        members = [Listening(kafka), Listening(kafka)]
        seen: list[tuple[Any, ...]] = []
        for _ in range(20):
            for index, member in enumerate(members):
                seen.extend((index, message.partition(), message.offset()) for message in member.poll())
        return [*seen, *((*event,) for member in members for event in member.events)]

    assert run() == run()
