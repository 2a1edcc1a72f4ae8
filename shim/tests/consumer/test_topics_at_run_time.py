"""Topics that come, and topics that are unsubscribed while messages are in work; on the in-memory Kafka."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rocketshim.clients import Clients
from rocketshim.clock import SystemClock
from rocketshim.consumer.push_consumer import PushConsumer
from rocketshim.core.start_position import ConsumeFromWhere
from rocketshim.errors import ConfigError
from rocketshim.testing import InMemoryKafka
from rocketshim_topics import DelayLevels, TopicNames

GUARD_S = 60.0
NAMES = TopicNames()


@pytest.fixture
def kafka() -> InMemoryKafka:
    kafka = InMemoryKafka(SystemClock())
    kafka.create_topic("orders")
    kafka.create_topic(NAMES.schedule, DelayLevels.STRIDE, config={"message.timestamp.type": "LogAppendTime"})
    for topic in (NAMES.retry("g"), NAMES.dead_letter("g"), NAMES.retry("other"), NAMES.dead_letter("other")):
        kafka.create_topic(topic)
    return kafka


@pytest.fixture
def consumer(kafka: InMemoryKafka) -> Iterator[PushConsumer]:
    one = PushConsumer(
        "memory:1",
        group="g",
        clients=Clients(kafka.consumer, kafka.producer),
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        rebalance_interval_ms=20,
        persist_consumer_offset_interval_ms=10,
    )
    yield one
    one.stop()


def listen(consumer: PushConsumer, *topics: str) -> Callable[[], list[bytes | None]]:
    heard: list[bytes | None] = []
    lock = threading.Lock()

    def listener(message: Any) -> None:
        with lock:
            heard.append(message.body)

    for topic in topics:
        consumer.register_message_listener(topic, listener)
    return lambda: sorted(heard)  # type: ignore[type-var]


def test_a_pattern_finds_topics_that_are_there_and_topics_that_come(
    kafka: InMemoryKafka, consumer: PushConsumer
) -> None:
    heard = listen(consumer, "^.*")
    kafka.append("orders", b"a")
    kafka.append(NAMES.dead_letter("other"), b"not for us")
    consumer.start()
    kafka.wait_until(lambda: heard() == [b"a"], guard_s=GUARD_S)
    kafka.create_topic("refunds")
    kafka.append("refunds", b"b")
    kafka.wait_until(lambda: heard() == [b"a", b"b"], guard_s=GUARD_S)
    kafka.wait_until(lambda: kafka.committed("g").get(("refunds", 0)) == 1, guard_s=GUARD_S)
    ours = {topic for topic, _ in kafka.committed("g")} - {"orders", "refunds"}
    assert ours == {NAMES.retry("g")}


def test_several_topics_share_a_consumer(kafka: InMemoryKafka, consumer: PushConsumer) -> None:
    kafka.create_topic("refunds")
    heard = listen(consumer, "orders", "refunds")
    kafka.append("orders", b"a")
    kafka.append("refunds", b"b")
    consumer.start()
    kafka.wait_until(lambda: heard() == [b"a", b"b"], guard_s=GUARD_S)


def test_a_topic_that_is_unsubscribed_is_read_no_longer_and_its_position_is_kept(
    kafka: InMemoryKafka, consumer: PushConsumer
) -> None:
    kafka.create_topic("refunds")
    heard = listen(consumer, "orders", "refunds")
    consumer.start()
    kafka.append("orders", b"a")
    kafka.wait_until(lambda: heard() == [b"a"], guard_s=GUARD_S)
    consumer.unsubscribe("orders")
    consumer.unsubscribe("orders")
    kafka.append("refunds", b"b")
    kafka.wait_until(lambda: heard() == [b"a", b"b"], guard_s=GUARD_S)
    kafka.append("orders", b"nobody listens")
    kafka.append("refunds", b"c")
    kafka.wait_until(lambda: heard() == [b"a", b"b", b"c"], guard_s=GUARD_S)
    assert kafka.committed("g")["orders", 0] == 1
    assert kafka.records(NAMES.dead_letter("g")) == []


def test_what_is_in_work_when_its_topic_is_unsubscribed_is_finished(
    kafka: InMemoryKafka, consumer: PushConsumer
) -> None:
    """Its message is handled and committed; what was fetched and not begun is neither lost nor a dead letter."""
    begun, go_on = threading.Event(), threading.Event()
    done: list[int] = []

    def listener(message: Any) -> None:
        begun.set()
        go_on.wait(GUARD_S)
        done.append(message.queue_offset)

    consumer.register_message_listener("orders", listener)
    for _ in range(100):
        kafka.append("orders", b"")
    consumer.start()
    assert begun.wait(GUARD_S)
    timer = threading.Timer(0.0, go_on.set)
    timer.start()
    consumer.unsubscribe("orders")
    timer.join()
    consumer.stop()
    committed = kafka.committed("g")["orders", 0]
    assert set(range(committed)) <= set(done)
    assert kafka.records(NAMES.dead_letter("g")) == []


def test_a_retry_of_an_unsubscribed_topic_reaches_its_listener(kafka: InMemoryKafka, consumer: PushConsumer) -> None:
    heard = listen(consumer, "orders")
    consumer.start()
    consumer.unsubscribe("orders")
    kafka.append(
        NAMES.retry("g"),
        b"again",
        headers=[
            ("RETRY_TOPIC", b"orders"),
            ("ORIGIN_MESSAGE_ID", b"orders/0/0"),
            ("RECONSUME_TIMES", b"1"),
            ("CONSUMER_GROUP", b"g"),
        ],
    )
    kafka.wait_until(lambda: heard() == [b"again"], guard_s=GUARD_S)


def test_before_the_start_a_topic_can_be_unsubscribed(consumer: PushConsumer) -> None:
    listen(consumer, "orders", "^p")
    consumer.unsubscribe("orders")
    consumer.unsubscribe("^p")
    with pytest.raises(ConfigError, match="listener"):
        consumer.start()


def test_a_pattern_that_is_no_regular_expression_is_refused(consumer: PushConsumer) -> None:
    with pytest.raises(ConfigError, match="regular expression"):
        consumer.register_message_listener("^(", print)
