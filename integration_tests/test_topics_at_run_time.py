"""Patterns, several topics, unsubscribing while running and subscriptions that differ, on a real broker."""

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from rocketshim import ConsumeFromWhere, DelayLevels, PushConsumer, TopicNames
from rocketshim.cli import main
from rocketshim.errors import TopicMissingError
from rocketshim.kafka.positions import LATEST, listed_offsets
from rocketshim.kafka.queue_lookup import QueueLookup
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_local import Broker
from rocketshim_topics import provision
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.layout import Layout
from rocketshim_topics.message_queue import MessageQueue

from . import waiting

GUARD_S = 180.0
wait_until = partial(waiting.wait_until, within_s=GUARD_S)
NAMESPACE = f"runtime{os.getpid()}"
NAMES = TopicNames(NAMESPACE)


@pytest.fixture(scope="module", autouse=True)
def shared_topics(admin: AdminClient) -> None:
    provision.ensure_topics(admin, Layout(NAMES, DelayLevels.default()).shared())


@pytest.fixture
def topics(admin: AdminClient) -> Iterator[Callable[[str], None]]:
    """Make a topic of a certain name; deleted after the test."""
    made: list[str] = []

    def make(name: str, partitions: int = 2, *, wait: bool = True) -> None:
        admin.create_topics([NewTopic(name, num_partitions=partitions)])[name].result(GUARD_S)
        made.append(name)
        if wait:
            wait_until(lambda: len(leaders(admin, name)) == partitions)

    yield make
    for future in admin.delete_topics(made).values() if made else ():
        future.result(GUARD_S)


def leaders(admin: AdminClient, topic: str) -> list[int]:
    found = admin.list_topics(timeout=GUARD_S).topics.get(topic)
    return [part.leader for part in found.partitions.values() if part.leader >= 0] if found else []


def send(broker: Broker, topic: str, *bodies: bytes, tag: bytes = b"") -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for body in bodies:
        producer.produce(topic, body, key=body, headers=[("TAGS", tag)])
    assert producer.flush(GUARD_S) == 0


def committed(broker: Broker, group: str, topic: str) -> int:
    """Of both queues together."""
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    found = reader.committed([TopicPartition(topic, number) for number in range(2)], timeout=GUARD_S)
    reader.close()
    return sum(max(0, item.offset) for item in found)


class Heard:
    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._lock = threading.Lock()

    def __call__(self, message: Any) -> None:
        with self._lock:
            self.bodies.append(message.body)


def member(broker: Broker, group: str, **values: Any) -> PushConsumer:
    return PushConsumer(
        broker.bootstrap,
        group=group,
        namespace=NAMESPACE,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        rebalance_interval_ms=200,
        persist_consumer_offset_interval_ms=100,
        **values,
    )


def differing(broker: Broker, group: str, orders: str) -> tuple[PushConsumer, PushConsumer]:
    """Two members of one group with different filters of a topic."""
    members = member(broker, group), member(broker, group)
    for each, tag in zip(members, ("created", "paid"), strict=True):
        each.register_message_listener(orders, Heard(), tags=tag)
    return members


def test_a_pattern_reads_what_is_there_and_what_comes_and_nothing_of_the_shim(
    broker: Broker, group: Callable[..., str], topics: Callable[..., None]
) -> None:
    mark, heard = f"p{uuid.uuid4().hex[:8]}", Heard()
    topics(f"{mark}.orders")
    topics(f"{mark}.rmq.retry.somebody")  # has the form of a shim topic of another namespace
    consumer = member(broker, group())
    consumer.register_message_listener(f"^{mark}[.]", heard)
    with consumer:
        send(broker, f"{mark}.orders", b"1", b"2")
        wait_until(lambda: set(heard.bodies) == {b"1", b"2"})
        topics(f"{mark}.refunds")
        send(broker, f"{mark}.rmq.retry.somebody", b"never")
        send(broker, f"{mark}.refunds", b"3", b"4")
        wait_until(lambda: len(set(heard.bodies)) >= 4)
    assert set(heard.bodies) == {b"1", b"2", b"3", b"4"}


def test_unsubscribing_while_running_keeps_the_other_topics_going(
    broker: Broker, group: Callable[..., str], topic: Callable[..., str]
) -> None:
    orders, refunds, mine, heard = topic(2), topic(2), group(), Heard()
    consumer = member(broker, mine)
    consumer.register_message_listener(orders, heard)
    consumer.register_message_listener(refunds, heard)
    with consumer:
        send(broker, orders, b"1")
        wait_until(lambda: set(heard.bodies) == {b"1"})
        consumer.unsubscribe(orders)
        send(broker, refunds, b"2")
        wait_until(lambda: set(heard.bodies) == {b"1", b"2"})
        send(broker, orders, b"nobody")
        send(broker, refunds, b"3")
        wait_until(lambda: b"3" in heard.bodies)
    assert set(heard.bodies) == {b"1", b"2", b"3"}
    assert committed(broker, mine, orders) == 1


def test_subscribing_while_running_adds_a_topic_and_changes_an_expression(
    broker: Broker, group: Callable[..., str], topic: Callable[..., str]
) -> None:
    orders, refunds, mine, heard, later = topic(2), topic(2), group(), Heard(), Heard()
    consumer = member(broker, mine)
    consumer.register_message_listener(orders, heard, tags="red")
    with consumer:
        send(broker, orders, b"1", tag=b"red")
        wait_until(lambda: set(heard.bodies) == {b"1"})
        with pytest.raises(TopicMissingError):
            consumer.subscribe(f"{orders}-not-there", later)
        consumer.subscribe(refunds, later)
        send(broker, refunds, b"2")
        wait_until(lambda: set(later.bodies) == {b"2"})
        consumer.subscribe(orders, tags="blue")
        send(broker, orders, b"never", tag=b"red")
        send(broker, orders, b"3", tag=b"blue")
        wait_until(lambda: b"3" in heard.bodies)
        wait_until(lambda: committed(broker, mine, orders) == 3)
        wait_until(lambda: committed(broker, mine, refunds) == 1)
    assert set(heard.bodies) == {b"1", b"3"}
    other = member(broker, mine)
    other.subscribe(orders, heard, tags="blue")
    other.subscribe(refunds, later)
    with other:  # it subscribes as the first one did in the end
        assert other.wait_assigned(GUARD_S)
        assert other.subscription_conflicts == {}


def test_two_subscriptions_of_one_group_that_differ_are_found_and_said(
    broker: Broker, group: Callable[..., str], topic: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    orders, mine = topic(2), group()
    one, two = differing(broker, mine, orders)
    with caplog.at_level(logging.ERROR, "rocketshim.consumer"), one:
        assert one.wait_assigned(GUARD_S)
        with two:
            wait_until(lambda: bool(two.subscription_conflicts))
    assert two.subscription_conflicts == {orders: f"{orders}=created"}
    event = "consumer.subscriptions-differ"
    lines: list[Any] = [each for each in caplog.records if getattr(each, "event", "") == event]
    said = next(each for each in lines if each.mine != f"{orders}=created")  # the first member may have found it, too
    assert (said.mine, said.theirs) == (f"{orders}=paid", f"{orders}=created")


def test_two_members_of_a_topic_with_one_partition_are_found_from_inside_and_outside(
    broker: Broker, group: Callable[..., str], topic: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    """One of them has the partition, the other one that of the retry topic. No message is sent."""
    orders, mine = topic(1), group()
    command = ["group", "subscriptions", mine, "--bootstrap", broker.bootstrap]
    one, two = differing(broker, mine, orders)
    with one:
        assert one.wait_assigned(GUARD_S)
        with two:
            wait_until(lambda: one.subscription_conflicts == {orders: f"{orders}=paid"})
            wait_until(lambda: two.subscription_conflicts == {orders: f"{orders}=created"})
            assert main([*command, "--namespace", NAMESPACE]) == 2
    assert f"{orders}: 2 subscriptions in one group" in capsys.readouterr().err


def test_a_member_that_was_there_first_hears_of_the_one_that_differs(
    broker: Broker, group: Callable[..., str], topic: Callable[..., str]
) -> None:
    orders, mine = topic(4), group()
    one, two = differing(broker, mine, orders)
    with one:
        assert one.wait_assigned(GUARD_S)
        with two:
            wait_until(lambda: bool(two.subscription_conflicts))
            send(broker, orders, *(str(number).encode() for number in range(100)))  # of which each commits its share
            wait_until(lambda: bool(one.subscription_conflicts))
    assert one.subscription_conflicts == {orders: f"{orders}=paid"}


def listed(broker: Broker, topic: str) -> dict[TopicPartitionKey, int]:
    return listed_offsets(AdminClient({"bootstrap.servers": broker.bootstrap}), keys(topic), LATEST)


def bounds(broker: Broker, topic: str) -> dict[TopicPartitionKey, int]:
    with TopicReader(broker.bootstrap) as reader:
        return {key: end for key, (_, end) in reader.bounds_of_all(keys(topic)).items()}


def times(broker: Broker, topic: str) -> dict[TopicPartitionKey, int]:
    with closing(Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic})) as client:
        lookup = QueueLookup(TopicNames(), lambda: client)
        return {key: lookup.offset_for_timestamp(MessageQueue(topic, queue_id=key.partition), 0) for key in keys(topic)}


def keys(topic: str) -> list[TopicPartitionKey]:
    return [TopicPartitionKey(topic, number) for number in range(20)]


@pytest.mark.parametrize("look_up", [listed, bounds, times])
def test_offsets_of_a_topic_are_known_as_soon_as_the_topic_is(
    broker: Broker,
    admin: AdminClient,
    topics: Callable[..., None],
    look_up: Callable[[Broker, str], dict[TopicPartitionKey, int]],
) -> None:
    """For some milliseconds more, the broker that should lead its partitions denies that it does."""
    for _ in range(3):
        name = f"new-{uuid.uuid4().hex[:8]}"
        topics(name, 20, wait=False)
        while len(leaders(admin, name)) < 20:
            pass
        assert look_up(broker, name) == dict.fromkeys(keys(name), 0)
