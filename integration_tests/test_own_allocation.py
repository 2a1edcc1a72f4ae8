"""RocketMQ's own allocation on a real broker: members come, go and die; each queue under a lease, nothing is lost."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from rocketshim import (
    AllocateMessageQueueAveragely,
    AllocateMessageQueueAveragelyByCircle,
    ConsumeFromWhere,
    DelayLevels,
    PushConsumer,
    TopicNames,
)
from rocketshim_local import Broker
from rocketshim_topics import provision
from rocketshim_topics.layout import Layout
from test_support.frozen import freeze

from . import waiting

GUARD_S = 180.0
wait_until = partial(waiting.wait_until, within_s=GUARD_S)
NAMESPACE = f"own{os.getpid()}"
NAMES = TopicNames(NAMESPACE)
QUEUES = 6
SHORT: dict[str, Any] = {"lock_lease_ms": 6_000, "lock_hold_ms": 3_000, "lock_renew_ms": 1_000}
MEMBER = f"""
import sys
from rocketshim import AllocateMessageQueueAveragely, ConsumeFromWhere, PushConsumer

consumer = PushConsumer(
    sys.argv[1], group=sys.argv[2], namespace=sys.argv[4], client_id="child",
    allocate_message_queue_strategy=AllocateMessageQueueAveragely(),
    consume_from_where=ConsumeFromWhere.FIRST_OFFSET, persist_consumer_offset_interval_ms=50,
    **{SHORT!r},
)

@consumer.listener(sys.argv[3])
def hear(message):
    sys.stdout.write(message.body.decode() + "\\n")
    sys.stdout.flush()

consumer.run()
"""


@pytest.fixture(scope="module", autouse=True)
def shared_topics(admin: AdminClient) -> None:
    provision.ensure_topics(admin, Layout(NAMES, DelayLevels.default()).shared())


class Heard:
    def __init__(self) -> None:
        self.order: list[int] = []
        self._lock = threading.Lock()

    def __call__(self, message: Any) -> None:
        with self._lock:
            self.order.append(int(message.body))

    @property
    def numbers(self) -> set[int]:
        return set(self.order)

    @property
    def count(self) -> int:
        return len(self.order)


@pytest.fixture
def member(broker: Broker) -> Iterator[Callable[..., PushConsumer]]:
    with ExitStack() as made:

        def of(group: str, topic: str, heard: Heard, name: str, **values: Any) -> PushConsumer:
            consumer = PushConsumer(
                broker.bootstrap,
                group=group,
                namespace=NAMESPACE,
                client_id=name,
                consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
                consume_thread_min=4,
                persist_consumer_offset_interval_ms=50,
                **{"allocate_message_queue_strategy": AllocateMessageQueueAveragely(), **SHORT, **values},
            )
            consumer.register_message_listener(topic, heard)
            made.callback(consumer.stop)
            consumer.start()
            return consumer

        yield of


def fill(broker: Broker, topic: str, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in numbers:
        producer.produce(topic, str(number).encode(), partition=number % QUEUES)
    assert producer.flush(GUARD_S) == 0


def held(consumer: PushConsumer, topic: str) -> set[int]:
    loop = consumer._loop
    return set() if loop is None else {queue.key.partition for queue in loop.mode.queues if queue.key.topic == topic}


def lag(broker: Broker, group: str, topic: str) -> int:
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        places = [TopicPartition(topic, number) for number in range(QUEUES)]
        committed = reader.committed(places, timeout=GUARD_S)
        ends = [reader.get_watermark_offsets(place, timeout=GUARD_S)[1] for place in places]
        return sum(end - max(item.offset, 0) for end, item in zip(ends, committed, strict=True))
    finally:
        reader.close()


def test_queues_are_shared_as_the_strategy_says_and_handed_over(
    broker: Broker, topic: Callable[..., str], group: Callable[..., str], member: Callable[..., PushConsumer]
) -> None:
    """By circle: 0, 2, 4 and 1, 3, 5; then all of them again for the one that is left."""
    orders, mine, heard = topic(QUEUES), group(), Heard()
    circle = {"allocate_message_queue_strategy": AllocateMessageQueueAveragelyByCircle()}
    one = member(mine, orders, heard, "a", **circle)
    wait_until(lambda: held(one, orders) == set(range(QUEUES)))
    fill(broker, orders, range(300))
    two = member(mine, orders, heard, "b", **circle)
    wait_until(lambda: held(one, orders) == {0, 2, 4} and held(two, orders) == {1, 3, 5})
    fill(broker, orders, range(300, 600))
    wait_until(lambda: heard.numbers == set(range(600)))
    one.stop()
    wait_until(lambda: held(two, orders) == set(range(QUEUES)))
    fill(broker, orders, range(600, 700))
    wait_until(lambda: heard.numbers == set(range(700)))
    wait_until(lambda: lag(broker, mine, orders) == 0)


def test_the_queues_of_a_member_that_was_killed_go_to_the_others(
    broker: Broker, topic: Callable[..., str], group: Callable[..., str], member: Callable[..., PushConsumer]
) -> None:
    orders, mine, heard = topic(QUEUES), group(), Heard()
    child = subprocess.Popen(
        [sys.executable, "-c", MEMBER, broker.bootstrap, mine, orders, NAMESPACE], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    try:
        fill(broker, orders, range(60))
        by_child = {int(child.stdout.readline())}  # it holds queues and consumes
        one = member(mine, orders, heard, "one")
        wait_until(lambda: len(held(one, orders)) == QUEUES // 2)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        by_child |= {int(line) for line in child.stdout if line.strip()}
        child.stdout.close()
        child.wait(GUARD_S)
    fill(broker, orders, range(60, 120))
    wait_until(lambda: held(one, orders) == set(range(QUEUES)))
    wait_until(lambda: heard.numbers | by_child == set(range(120)))
    wait_until(lambda: lag(broker, mine, orders) == 0)


def test_a_member_that_was_frozen_longer_than_its_leases_commits_nothing_when_it_wakes(
    broker: Broker, topic: Callable[..., str], group: Callable[..., str], member: Callable[..., PushConsumer]
) -> None:
    """What it had committed late would be read again: nothing that was done before it woke is heard a second time."""
    orders, mine, heard = topic(QUEUES), group(), Heard()
    child = subprocess.Popen(
        [sys.executable, "-c", MEMBER, broker.bootstrap, mine, orders, NAMESPACE], stdout=subprocess.PIPE, text=True
    )
    by_child: list[int] = []

    def read() -> None:
        assert child.stdout is not None
        by_child.extend(int(line) for line in child.stdout)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        fill(broker, orders, range(60))
        wait_until(lambda: bool(by_child))
        one = member(mine, orders, heard, "one")
        wait_until(lambda: len(held(one, orders)) == QUEUES // 2)
        wait_until(lambda: heard.numbers | set(by_child) == set(range(60)) and lag(broker, mine, orders) == 0)
        freeze(child.pid)
        fill(broker, orders, range(60, 120))
        wait_until(lambda: held(one, orders) == set(range(QUEUES)))
        wait_until(lambda: heard.numbers | set(by_child) == set(range(120)) and lag(broker, mine, orders) == 0)
        before, count = len(by_child), heard.count
        os.kill(child.pid, signal.SIGCONT)
        wait_until(lambda: len(held(one, orders)) == QUEUES // 2)
        fill(broker, orders, range(120, 180))
        wait_until(lambda: heard.numbers | set(by_child) == set(range(180)) and lag(broker, mine, orders) == 0)
        assert not [number for number in heard.order[count:] + by_child[before:] if number < 120]
    finally:
        child.kill()
        child.wait(GUARD_S)
        reader.join(GUARD_S)
        if child.stdout is not None:
            child.stdout.close()


def test_members_come_and_go_while_messages_flow_and_nothing_is_lost(
    broker: Broker, topic: Callable[..., str], group: Callable[..., str], member: Callable[..., PushConsumer]
) -> None:
    orders, mine, heard = topic(QUEUES), group(), Heard()
    members = [member(mine, orders, heard, "m0")]
    for number in range(1, 7):
        fill(broker, orders, range((number - 1) * 300, number * 300))
        members.append(member(mine, orders, heard, f"m{number}"))
        if number % 2 == 0:
            members.pop(0).stop()
    wait_until(lambda: heard.numbers == set(range(1_800)))
    wait_until(lambda: lag(broker, mine, orders) == 0)
    wait_until(lambda: sum(len(held(each, orders)) for each in members) == QUEUES)
