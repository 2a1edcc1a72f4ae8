"""A program written for rocketmq-client-python 2.0, on a real broker: sent, failed, delayed, received."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from confluent_kafka.admin import AdminClient

from rocketshim import ConsumeFromWhere, DelayLevels, TopicNames
from rocketshim.compat.rocketmq.client import (
    ConsumeStatus,
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendStatus,
    TransactionMQProducer,
    TransactionStatus,
)
from rocketshim.compat.rocketmq.exceptions import PushConsumerStartFailed
from rocketshim_local import Broker
from rocketshim_topics import provision
from rocketshim_topics.layout import Layout

from .running import patient_worker

LEVELS = "0s 0s 0s 0s 0s 0s"
GUARD_S = 150.0


@pytest.mark.timeout(300)
def test_a_message_that_fails_and_one_that_waits_are_received(
    broker: Broker, admin: AdminClient, namespace: str, topic: Callable[..., str], group: Callable[..., str]
) -> None:
    provision.ensure_topics(admin, Layout(TopicNames(namespace), DelayLevels.parse(LEVELS)).shared())
    worker = patient_worker(broker.bootstrap, namespace, LEVELS)
    moving = threading.Thread(target=worker.run)
    moving.start()
    name, over = topic(), threading.Event()
    seen: list[tuple[bytes, bytes, bytes, int]] = []

    def callback(message: ReceivedMessage) -> ConsumeStatus | None:
        seen.append((message.body, message.tags, message["property"], message.reconsume_times))
        if len(seen) == 4:
            over.set()
        if message.body == b"twice" and message.reconsume_times == 0:
            return None
        return ConsumeStatus.CONSUME_SUCCESS

    producer = Producer("producer group", timeout=60_000)
    consumer = PushConsumer(group())
    for each in (producer, consumer):
        each.set_name_server_address(broker.bootstrap)
        each.set_namespace(namespace)
        each.set_delay_levels(LEVELS)
    consumer.set_consume_from_where(ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe(name, callback, "a || b")
    with producer, consumer:
        for body, tag, level in (("twice", "a", 0), ("later", "b", 2), ("not for us", "c", 0), ("once", "a", 0)):
            message = Message(name)
            message.set_body(body)
            message.set_tags(tag)
            message.set_keys("o-7")
            message.set_property("property", "test")
            message.set_delay_time_level(level)
            assert producer.send_sync(message).status == SendStatus.OK
        assert over.wait(GUARD_S), seen
    worker.stop()
    moving.join(GUARD_S)
    assert sorted(seen) == [
        (b"later", b"b", b"test", 0),
        (b"once", b"a", b"test", 0),
        (b"twice", b"a", b"test", 0),
        (b"twice", b"a", b"test", 1),
    ]


@pytest.mark.timeout(300)
def test_an_orderly_consumer_holds_its_queue_up_until_a_message_is_done(
    broker: Broker, admin: AdminClient, namespace: str, topic: Callable[..., str], group: Callable[..., str]
) -> None:
    provision.ensure_topics(admin, Layout(TopicNames(namespace), DelayLevels.parse(LEVELS)).shared())
    name, over = topic(partitions=2), threading.Event()
    seen: list[tuple[bytes, int]] = []

    def callback(message: ReceivedMessage) -> ConsumeStatus | None:
        seen.append((message.body, message.reconsume_times))
        if message.body == b"2" and message.reconsume_times == 0:
            return ConsumeStatus.RECONSUME_LATER
        if message.body == b"3" and message.reconsume_times == 0:
            return None
        if message.body == b"4":
            over.set()
        return ConsumeStatus.CONSUME_SUCCESS

    producer = Producer("producer group", timeout=60_000)
    consumer = PushConsumer(group(), orderly=True)
    for each in (producer, consumer):
        each.set_name_server_address(broker.bootstrap)
        each.set_namespace(namespace)
        each.set_delay_levels(LEVELS)
    consumer.set_consume_from_where(ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe(name, callback)
    with producer, consumer:
        for number in range(5):
            message = Message(name)
            message.set_body(str(number))
            producer.send_orderly_with_sharding_key(message, "o-7")
        assert over.wait(GUARD_S), seen
    assert seen == [(b"0", 0), (b"1", 0), (b"2", 0), (b"2", 1), (b"3", 0), (b"3", 1), (b"4", 0)]


@pytest.mark.timeout(300)
def test_a_new_group_gets_what_was_sent_in_every_way_before_it_started(
    broker: Broker, admin: AdminClient, namespace: str, topic: Callable[..., str], group: Callable[..., str]
) -> None:
    provision.ensure_topics(admin, Layout(TopicNames(namespace), DelayLevels.default()).shared())
    name, over = topic(partitions=2), threading.Event()
    seen: list[tuple[str, bytes, bytes, bytes]] = []

    def message(body: str) -> Message:
        made = Message(name)
        made.set_keys("XXX")
        made.set_tags("XXX")
        made.set_property("property", "test")
        made.set_body(body)
        return made

    def callback(got: ReceivedMessage) -> ConsumeStatus:
        seen.append((str(got), got.keys, got.tags, got.get_property("property")))
        if len(seen) == 7:
            over.set()
        return ConsumeStatus.CONSUME_SUCCESS

    producer = Producer("producer_group", timeout=60_000)
    consumer = PushConsumer(group())
    for each in (producer, consumer):
        each.set_name_server_address(broker.bootstrap)
        each.set_namespace(namespace)
    with producer, ThreadPoolExecutor(max_workers=5) as threads:
        sent = list(threads.map(producer.send_sync, [message(str(number)) for number in range(5)]))
        sent.append(producer.send_orderly_with_sharding_key(message("orderly"), "order1"))
        producer.send_oneway(message("one-way"))
    assert {each.status for each in sent} == {SendStatus.OK}
    consumer.subscribe(name, callback)
    with consumer:
        assert over.wait(GUARD_S), seen
    assert sorted(seen) == [(body, b"XXX", b"XXX", b"test") for body in sorted([*"01234", "orderly", "one-way"])]


@pytest.mark.timeout(300)
def test_the_checker_decides_a_transaction_with_an_unknown_status(
    broker: Broker, admin: AdminClient, namespace: str, topic: Callable[..., str], group: Callable[..., str]
) -> None:
    layout = Layout(TopicNames(namespace), DelayLevels.parse(LEVELS))
    provision.ensure_topics(admin, [*layout.shared(), *layout.timers()])
    worker = patient_worker(broker.bootstrap, namespace, LEVELS)
    moving = threading.Thread(target=worker.run)
    moving.start()
    name, over = topic(), threading.Event()
    executed: list[tuple[str, bytes, object]] = []
    checked: list[tuple[str, bytes]] = []
    received: list[tuple[str, bytes, bytes]] = []

    def local_execute(message: ReceivedMessage, user_args: object) -> TransactionStatus:
        executed.append((message.id, message.body, user_args))
        return TransactionStatus.UNKNOWN if message.body == b"checked" else TransactionStatus.ROLLBACK

    def checker(message: ReceivedMessage) -> TransactionStatus:
        checked.append((message.id, message.body))
        return TransactionStatus.COMMIT

    def callback(message: ReceivedMessage) -> ConsumeStatus:
        received.append((message.id, message.body, message["property"]))
        over.set()
        return ConsumeStatus.CONSUME_SUCCESS

    producer = TransactionMQProducer(group(), checker, timeout=15_000, compress_level=1)  # asked after 30 s
    consumer = PushConsumer(group())
    for each in (producer, consumer):
        each.set_name_server_address(broker.bootstrap)
        each.set_namespace(namespace)
        each.set_delay_levels(LEVELS)
    consumer.set_consume_from_where(ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe(name, callback)
    ids = []
    with producer, consumer:  # start() creates the topic for the checks
        for body in ("rolled back", "checked"):
            message = Message(name)
            message.set_body(body)
            message.set_property("property", "test")
            ids.append(producer.send_message_in_transaction(message, local_execute, body).msg_id)
        assert over.wait(GUARD_S), (executed, checked)
    worker.stop()
    moving.join()
    assert executed == [(ids[0], b"rolled back", "rolled back"), (ids[1], b"checked", "checked")]
    assert set(checked) == {(ids[1], b"checked")}
    assert set(received) == {(ids[1], b"checked", b"test")}


def test_a_consumer_without_a_subscription_does_not_start(broker: Broker, group: Callable[..., str]) -> None:
    consumer = PushConsumer(group())
    consumer.set_name_server_address(broker.bootstrap)
    with pytest.raises(PushConsumerStartFailed, match="listener"):
        consumer.start()
    consumer.shutdown()
