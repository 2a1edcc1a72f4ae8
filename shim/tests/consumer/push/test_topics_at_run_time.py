"""New topics, and topics unsubscribed while messages are in progress; on the in-memory Kafka."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rocketshim.clock import SystemClock
from rocketshim.consumer.push.push_consumer import PushConsumer
from rocketshim.core.start_position import ConsumeFromWhere
from rocketshim.errors import ConfigError, ConsumerError, RocketshimError
from rocketshim.kafka.clients import Clients
from rocketshim.testing import InMemoryKafka
from rocketshim_topics import DelayLevels, TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey

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
        revoke_drain_ms=60_000,
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


def test_a_pattern_finds_existing_and_new_topics(kafka: InMemoryKafka, consumer: PushConsumer) -> None:
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


def test_an_unsubscribed_topic_is_no_longer_read_and_keeps_its_position(
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


def test_messages_in_progress_are_finished_after_unsubscribe(kafka: InMemoryKafka, consumer: PushConsumer) -> None:
    """Their message is handled and committed; fetched messages that did not start are not lost and not dead letters."""
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


def test_a_pattern_that_is_not_a_regular_expression_is_rejected(consumer: PushConsumer) -> None:
    with pytest.raises(ConfigError, match="regular expression"):
        consumer.register_message_listener("^(", print)


def test_an_added_topic_is_read_from_its_beginning_and_the_others_continue(
    kafka: InMemoryKafka, consumer: PushConsumer
) -> None:
    heard, heard_too = listen(consumer, "orders"), list[bytes | None]()
    consumer.start()
    kafka.append("orders", b"a")
    kafka.wait_until(lambda: heard() == [b"a"], guard_s=GUARD_S)
    kafka.create_topic("refunds")
    kafka.append("refunds", b"was there")
    consumer.subscribe("refunds", lambda message: heard_too.append(message.body))
    kafka.append("refunds", b"came")
    kafka.append("orders", b"b")
    kafka.wait_until(lambda: heard() == [b"a", b"b"], guard_s=GUARD_S)
    kafka.wait_until(lambda: len(heard_too) == 2, guard_s=GUARD_S)
    assert set(heard_too) == {b"was there", b"came"}, "by several threads"
    kafka.wait_until(lambda: kafka.committed("g").get(("refunds", 0)) == 2, guard_s=GUARD_S)


def test_a_changed_expression_applies_to_later_messages(kafka: InMemoryKafka, consumer: PushConsumer) -> None:
    heard: list[bytes | None] = []
    consumer.register_message_listener("orders", lambda message: heard.append(message.body), tags="red")
    consumer.start()
    for body, tag in ((b"1", b"red"), (b"2", b"blue")):
        kafka.append("orders", body, headers=[("TAGS", tag)])
    kafka.wait_until(lambda: kafka.committed("g").get(("orders", 0)) == 2, guard_s=GUARD_S)
    consumer.subscribe("orders", tags="blue")
    for body, tag in ((b"3", b"red"), (b"4", b"blue")):
        kafka.append("orders", body, headers=[("TAGS", tag)])
    kafka.wait_until(lambda: kafka.committed("g").get(("orders", 0)) == 4, guard_s=GUARD_S)
    assert heard == [b"1", b"4"]
    assert consumer._loop is not None
    (offset,) = consumer._loop.reader.starts.as_offsets({TopicPartitionKey("orders", 0): 0})
    assert "orders=blue" in offset.metadata


def test_idle_queues_commit_the_new_subscription_too(kafka: InMemoryKafka, consumer: PushConsumer) -> None:
    """Otherwise the group would seem to have two subscriptions while the queues are idle."""
    kafka.create_topic("refunds")
    listen(consumer, "orders", "refunds")
    consumer.start()
    kafka.wait_until(lambda: {("orders", 0), ("refunds", 0)} <= set(kafka.committed("g")), guard_s=GUARD_S)
    consumer.subscribe("orders", tags="blue")

    def said(topic: str) -> str:
        commit = next(each for each in reversed(kafka.commits("g")) if (each.topic, each.partition) == (topic, 0))
        return commit.metadata or ""

    kafka.wait_until(lambda: "orders=blue" in said("orders") and "orders=blue" in said("refunds"), guard_s=GUARD_S)
    assert kafka.committed("g")["refunds", 0] == 0


def test_a_pattern_can_be_added_while_running(kafka: InMemoryKafka, consumer: PushConsumer) -> None:
    heard, caught = listen(consumer, "orders"), list[bytes | None]()
    consumer.start()
    consumer.subscribe("^re", lambda message: caught.append(message.body))
    kafka.create_topic("refunds")
    kafka.append("refunds", b"b")
    kafka.wait_until(lambda: caught == [b"b"], guard_s=GUARD_S)
    consumer.unsubscribe("^re")
    kafka.append("refunds", b"nobody listens")
    kafka.append("orders", b"a")
    kafka.wait_until(lambda: heard() == [b"a"], guard_s=GUARD_S)
    assert caught == [b"b"]


def test_an_unsubscribed_topic_can_be_subscribed_again_and_continues_at_its_position(
    kafka: InMemoryKafka, consumer: PushConsumer
) -> None:
    heard = listen(consumer, "orders")
    consumer.start()
    kafka.append("orders", b"a")
    kafka.wait_until(lambda: heard() == [b"a"], guard_s=GUARD_S)
    consumer.unsubscribe("orders")
    kafka.append("orders", b"b")
    consumer.subscribe("orders")
    kafka.wait_until(lambda: heard() == [b"a", b"b"], guard_s=GUARD_S)


def test_subscribe_before_the_start_registers_a_listener(kafka: InMemoryKafka, consumer: PushConsumer) -> None:
    heard: list[bytes | None] = []
    consumer.subscribe("orders", lambda message: heard.append(message.body), tags="red")
    consumer.subscribe("orders", tags="blue")
    kafka.append("orders", b"1", headers=[("TAGS", b"red")])
    kafka.append("orders", b"2", headers=[("TAGS", b"blue")])
    consumer.start()
    kafka.wait_until(lambda: heard == [b"2"], guard_s=GUARD_S)


async def slow(message: Any) -> None:
    del message


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"topic": "refunds"}, "listener"),
        ({"topic": "refunds", "listener": slow}, "async"),
        ({"topic": "%RETRY%g", "listener": print}, "internal topic"),
        ({"topic": "%DLQ%other", "listener": print}, "LitePullConsumer, or send them to their group again"),
        ({"topic": "orders", "tags": "a", "sql": "b = 1"}, "tags"),
        ({"topic": "orders", "sql": "a ="}, "SQL"),
        ({"topic": "^(", "listener": print}, "regular expression"),
    ],
)
def test_an_invalid_subscription_changes_nothing(
    kafka: InMemoryKafka, consumer: PushConsumer, asked: dict[str, Any], why: str
) -> None:
    heard = listen(consumer, "orders")
    consumer.start()
    with pytest.raises(RocketshimError, match=why):
        consumer.subscribe(**asked)
    kafka.append("orders", b"a")
    kafka.wait_until(lambda: heard() == [b"a"], guard_s=GUARD_S)
    assert consumer._subscriptions.text() == "orders=*"


def test_subscribe_after_stop_is_an_error(consumer: PushConsumer) -> None:
    listen(consumer, "orders")
    consumer.start()
    consumer.stop()
    with pytest.raises(ConsumerError):
        consumer.subscribe("refunds", print)
