"""Pulling by offset on the in-memory Kafka: the four statuses, and that nothing is missed between pulls."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketshim.consumer.pull import pull_consumer
from rocketshim.consumer.pull.pull_consumer import FETCH_COUNT, PullConsumer, PullStatus
from rocketshim.errors import (
    BrokerUnavailableError,
    ConfigError,
    ConsumerError,
    FilterSyntaxError,
    NotAuthorizedError,
    TopicMissingError,
)
from rocketshim.filters import MessageSelector
from rocketshim.settings.consumer import PullConsumerOptions, PullConsumerSettings
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics.message_queue import MessageQueue

Q0, Q1 = MessageQueue("orders", queue_id=0), MessageQueue("orders", queue_id=1)
Make = Callable[..., PullConsumer]


def cluster() -> InMemoryKafka:
    kafka = InMemoryKafka(VirtualClock())
    kafka.create_topic("orders", 2)
    return kafka


def consumer_of(kafka: InMemoryKafka, **values: Any) -> PullConsumer:
    clock = kafka.clock
    assert isinstance(clock, VirtualClock)
    clients = kafka.clients(on_wait=lambda seconds: clock.advance(max(1, seconds * 1_000)))
    return PullConsumer("memory:1", group="g", clients=clients, clock=clock, **values)


@pytest.fixture
def kafka() -> InMemoryKafka:
    return cluster()


@pytest.fixture
def consumer(kafka: InMemoryKafka) -> Any:
    with consumer_of(kafka) as one:
        yield one


def fill(kafka: InMemoryKafka, count: int, partition: int = 0, tag: str = "a") -> None:
    for number in range(count):
        kafka.append("orders", str(number).encode(), partition=partition, headers=[("TAGS", tag.encode())])


def test_pull_finds_messages_from_an_offset(kafka: InMemoryKafka, consumer: PullConsumer) -> None:
    fill(kafka, 50)
    result = consumer.pull(Q0, None, 40, 8)
    assert result.status is PullStatus.FOUND
    assert [message.queue_offset for message in result.messages] == list(range(40, 48))
    assert (result.next_begin_offset, result.min_offset, result.max_offset) == (48, 0, 50)
    assert [m.queue_offset for m in consumer.pull(Q0, None, 48, 8).messages] == [48, 49]


def test_a_pull_that_is_interrupted_misses_nothing(
    kafka: InMemoryKafka, consumer: PullConsumer, interrupt_fetch: Callable[[], None]
) -> None:
    fill(kafka, 5)
    fill(kafka, 5, partition=1)
    assert consumer.pull(Q1, None, 0, 1).next_begin_offset == 1
    interrupt_fetch()
    with pytest.raises(KeyboardInterrupt):
        consumer.pull(Q0, None, 0)
    assert [message.queue_offset for message in consumer.pull(Q0, None, 0).messages] == [0, 1, 2, 3, 4]
    assert [message.queue_offset for message in consumer.pull(Q1, None, 1).messages] == [1, 2, 3, 4]


def test_the_same_offset_can_be_pulled_again(kafka: InMemoryKafka, consumer: PullConsumer) -> None:
    fill(kafka, 5)
    for _ in range(3):
        assert [m.queue_offset for m in consumer.pull(Q0, None, 2, 2).messages] == [2, 3]


def test_the_end_is_no_new_message_until_one_is_stored(kafka: InMemoryKafka, consumer: PullConsumer) -> None:
    empty = consumer.pull(Q0, None, 0)
    assert (empty.status, empty.next_begin_offset, empty.max_offset) == (PullStatus.NO_NEW_MSG, 0, 0)
    fill(kafka, 3)
    assert len(consumer.pull(Q0, None, 0).messages) == 3
    assert consumer.pull(Q0, None, 3).status is PullStatus.NO_NEW_MSG
    fill(kafka, 1)
    assert consumer.pull(Q0, None, 3).status is PullStatus.FOUND


def test_unselected_messages_are_no_match_and_the_next_offset_is_after_them(
    kafka: InMemoryKafka, consumer: PullConsumer
) -> None:
    fill(kafka, 5, tag="a")
    fill(kafka, 1, tag="b")
    none = consumer.pull(Q0, "c", 0)
    assert (none.status, none.next_begin_offset, none.messages) == (PullStatus.NO_MATCHED_MSG, 6, [])
    some = consumer.pull(Q0, MessageSelector.by_sql("TAGS = 'b'"), 0)
    assert (some.status, some.next_begin_offset, len(some.messages)) == (PullStatus.FOUND, 6, 1)


def test_one_pull_examines_a_limited_number_of_messages(kafka: InMemoryKafka, consumer: PullConsumer) -> None:
    fill(kafka, 900)
    assert consumer.pull(Q0, "b", 0).next_begin_offset == 800
    assert consumer.pull(Q0, "b", 0, 1_000).next_begin_offset == 900


@pytest.mark.parametrize(("offset", "nearest"), [(-1, 3), (0, 3), (2, 3), (11, 10), (99, 10)])
def test_an_offset_out_of_bounds_is_illegal_and_the_nearest_legal_one_is_returned(
    kafka: InMemoryKafka, consumer: PullConsumer, offset: int, nearest: int
) -> None:
    fill(kafka, 10)
    kafka.truncate("orders", before_offset=3)
    result = consumer.pull(Q0, None, offset)
    assert result.status is PullStatus.OFFSET_ILLEGAL
    assert (result.next_begin_offset, result.min_offset, result.max_offset) == (nearest, 3, 10)


def test_an_offset_deleted_by_retention_between_two_pulls_is_illegal(
    kafka: InMemoryKafka, consumer: PullConsumer
) -> None:
    assert consumer.pull(Q0, None, 0).status is PullStatus.NO_NEW_MSG
    fill(kafka, 10)
    kafka.truncate("orders", before_offset=5)
    result = consumer.pull(Q0, None, 0)
    assert (result.status, result.next_begin_offset) == (PullStatus.OFFSET_ILLEGAL, 5)
    assert len(consumer.pull(Q0, None, 5).messages) == 5


def test_invisible_records_at_the_end_are_skipped(kafka: InMemoryKafka, consumer: PullConsumer) -> None:
    fill(kafka, 2)
    kafka.skip_offsets("orders", count=3)
    assert consumer.pull(Q0, None, 0).next_begin_offset == 2
    end = consumer.pull(Q0, None, 2)
    assert (end.status, end.next_begin_offset, end.max_offset) == (PullStatus.NO_NEW_MSG, 5, 5)


def test_a_blocking_pull_waits_for_a_message(kafka: InMemoryKafka) -> None:
    clock = kafka.clock
    assert isinstance(clock, VirtualClock)
    began_ms = clock.monotonic_ns() // 1_000_000

    def on_wait(seconds: float) -> None:
        clock.advance(max(1, seconds * 1_000))
        if clock.monotonic_ns() // 1_000_000 - began_ms >= 3_000 and not kafka.records("orders"):
            fill(kafka, 1)

    with PullConsumer("memory:1", group="g", clients=kafka.clients(on_wait=on_wait), clock=clock) as consumer:
        assert consumer.pull_block_if_not_found(Q0, None, 0).status is PullStatus.FOUND
        waited_from_ms = clock.monotonic_ns() // 1_000_000
        assert consumer.pull_block_if_not_found(Q0, None, 1).status is PullStatus.NO_NEW_MSG
        assert clock.monotonic_ns() // 1_000_000 - waited_from_ms >= 20_000


def test_a_queue_that_is_not_pulled_does_not_fill_memory(
    kafka: InMemoryKafka, consumer: PullConsumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull_consumer, "_BUFFER_COUNT", 20)
    consumer.pull(Q1, None, 0)
    fill(kafka, 3_000, 1)
    fill(kafka, 3_000, 0)
    found = [m.queue_offset for at in range(0, 3_000, 100) for m in consumer.pull(Q0, None, at, 100).messages]
    assert len(consumer._buffers["orders", 1].messages) < 20 + FETCH_COUNT
    assert found[:100] == list(range(100))
    offset = 0
    while (result := consumer.pull(Q1, None, offset, 500)).status is PullStatus.FOUND:
        assert [m.queue_offset for m in result.messages] == list(range(offset, result.next_begin_offset))
        offset = result.next_begin_offset
    assert offset == 3_000


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0, 1]), st.integers(-2, 12), st.integers(1, 5)), max_size=30))
def test_any_order_of_pulls_agrees_with_slices_of_the_logs(pulls: list[tuple[int, int, int]]) -> None:
    kafka = cluster()
    fill(kafka, 10, 0)
    fill(kafka, 10, 1)
    with consumer_of(kafka) as consumer:
        for number, offset, count in pulls:
            result = consumer.pull(MessageQueue("orders", queue_id=number), None, offset, count)
            if not 0 <= offset <= 10:
                assert result.status is PullStatus.OFFSET_ILLEGAL
                continue
            wanted = list(range(10))[offset : offset + count]
            found = [m.queue_offset for m in result.messages]
            assert found == wanted[: len(found)]
            assert bool(found) == bool(wanted)
            assert result.next_begin_offset == offset + len(found)


def test_offsets_of_the_group_are_committed_and_read(kafka: InMemoryKafka, consumer: PullConsumer) -> None:
    assert consumer.fetch_consume_offset(Q0) is None
    consumer.update_consume_offset(Q0, 7)
    consumer.update_consume_offset(Q0, 5)
    assert consumer.fetch_consume_offset(Q0) == 5
    with pytest.raises(ConfigError, match="-1"):
        consumer.update_consume_offset(Q0, -1)
    kafka.fail_commits(KafkaError(KafkaError.ILLEGAL_GENERATION))
    with pytest.raises(ConsumerError, match="not committed"):
        consumer.update_consume_offset(Q0, 6)
    assert consumer.fetch_consume_offset(Q0) == 5


def test_queues_bounds_and_offsets_for_times_can_be_looked_up(kafka: InMemoryKafka, consumer: PullConsumer) -> None:
    for at_ms in (1_000, 2_000, 3_000):
        kafka.append("orders", b"", timestamp_ms=at_ms)
    assert consumer.fetch_message_queues("orders") == [Q0, Q1]
    assert (consumer.min_offset(Q0), consumer.max_offset(Q0)) == (0, 3)
    assert consumer.search_offset(Q0, 2_000) == 1
    assert consumer.search_offset(Q0, 9_000) == 3


def test_invalid_pulls_are_rejected(kafka: InMemoryKafka, consumer: PullConsumer) -> None:
    with pytest.raises(ConfigError, match="max_count"):
        consumer.pull(Q0, None, 0, 0)
    with pytest.raises(FilterSyntaxError):
        consumer.pull(Q0, "||", 0)
    with pytest.raises(TopicMissingError):
        consumer.pull(MessageQueue("absent"), None, 0)
    with pytest.raises(ConfigError, match="begin at 0"):
        consumer.pull(MessageQueue("orders", queue_id=-1), None, 0)
    kafka.deny("orders")
    fill(kafka, 1)
    with pytest.raises(NotAuthorizedError):
        consumer.pull(Q0, None, 0)


def test_without_a_broker_pull_raises_and_misses_nothing(kafka: InMemoryKafka, consumer: PullConsumer) -> None:
    fill(kafka, 4)
    consumer.pull(Q0, None, 0, 2)
    kafka.stop_broker()
    assert len(consumer.pull(Q0, None, 2, 2).messages) == 2  # fetched before
    with pytest.raises((BrokerUnavailableError, TopicMissingError)):
        consumer.pull(Q0, None, 4)
    kafka.start_broker()
    fill(kafka, 1)
    assert len(consumer.pull(Q0, None, 4).messages) == 1


def test_an_empty_or_absent_body_is_a_message(kafka: InMemoryKafka, consumer: PullConsumer) -> None:
    for value in (b"", None, b""):
        kafka.append("orders", value)
    assert [m.body for m in consumer.pull(Q0, None, 0).messages] == [b"", None, b""]


def test_calls_before_start_and_after_stop_are_errors(kafka: InMemoryKafka) -> None:
    consumer = consumer_of(kafka)
    with pytest.raises(ConsumerError, match="not started"):
        consumer.pull(Q0, None, 0)
    consumer.start()
    consumer.start()
    consumer.stop()
    consumer.stop()
    with pytest.raises(ConsumerError, match="stopped"):
        consumer.pull(Q0, None, 0)
    with pytest.raises(ConsumerError, match="create a new one"):
        consumer.start()


def test_stop_during_a_pull_ends_the_pull(kafka: InMemoryKafka) -> None:
    """As a signal handler does: in the thread that pulls."""
    clock = kafka.clock
    assert isinstance(clock, VirtualClock)
    consumer: PullConsumer

    def on_wait(seconds: float) -> None:
        clock.advance(max(1, seconds * 1_000))
        consumer.stop()

    consumer = PullConsumer("memory:1", group="g", clients=kafka.clients(on_wait=on_wait), clock=clock)
    consumer.start()
    assert consumer.pull_block_if_not_found(Q0, None, 0).status is PullStatus.NO_NEW_MSG
    with pytest.raises(ConsumerError, match="stopped"):
        consumer.pull(Q0, None, 0)


def test_settings_and_arguments_exclude_each_other() -> None:
    one = PullConsumerSettings.make(bootstrap="b:1", group="g")
    assert PullConsumer(settings=one).settings is one
    with pytest.raises(ConfigError, match="not both"):
        PullConsumer("b:1", settings=one)
    assert set(PullConsumerOptions.__annotations__) == set(PullConsumerSettings.model_fields) - {"bootstrap", "group"}


def test_an_error_that_repeats_is_logged_once_and_then_counted(
    kafka: InMemoryKafka, consumer: PullConsumer, caplog: pytest.LogCaptureFixture
) -> None:
    clock = kafka.clock
    assert isinstance(clock, VirtualClock)
    for _ in range(3):
        kafka.raise_in_poll(consumer._reading, KafkaError(KafkaError._TRANSPORT))  # type: ignore[arg-type]
        consumer.pull(Q0, None, 0)
    assert caplog.text.count("consumer.client-error") == 1
    clock.advance(60_000)
    kafka.raise_in_poll(consumer._reading, KafkaError(KafkaError._TRANSPORT))  # type: ignore[arg-type]
    consumer.pull(Q0, None, 0)
    assert "count=3" in caplog.text
