"""A push consumer that cannot join its group says why, once, and does not hold up its own end."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient

from rocketshim import AllocateMessageQueueAveragely, LitePullConsumer, PushConsumer, TopicNames
from rocketshim.errors import ConsumerError
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, provision
from rocketshim_topics.layout import Layout

from . import waiting

GUARD_S = 90.0
wait_until = partial(waiting.wait_until, within_s=GUARD_S)


@pytest.fixture
def shared(admin: AdminClient, namespace: str) -> str:
    """A namespace with the topics that all its groups share."""
    provision.ensure_topics(admin, Layout(TopicNames(namespace), DelayLevels.default()).shared(), create=True)
    return namespace


@pytest.fixture
def made(topic: Callable[..., str], group: Callable[..., str]) -> tuple[str, str]:
    """A topic, and the name of a group."""
    return topic(), group()


@contextmanager
def plain_member(broker: Broker, group: str, topic: str) -> Iterator[None]:
    """A consumer of `confluent_kafka`, which takes range as its strategy."""
    client = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    assigned, over = threading.Event(), threading.Event()
    client.subscribe([topic], on_assign=lambda *_: assigned.set())

    def poll() -> None:
        while not over.is_set():
            client.poll(0.1)
        client.close()

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        assert assigned.wait(GUARD_S)
        yield
    finally:
        over.set()
        thread.join()


def make(broker: Broker, group: str, namespace: str, topic: str, **client: Any) -> PushConsumer:
    consumer = PushConsumer(broker.bootstrap, group=group, namespace=namespace, client=client)
    consumer.register_message_listener(topic, print)
    return consumer


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[Any]:
    return [vars(record) for record in caplog.records if vars(record).get("event") == event]


def refusals(consumer: PushConsumer) -> int:
    """How many errors the group has answered that have no line of their own."""
    assert consumer._loop is not None
    return sum(each[2] for each in consumer._loop.reader.joining._errors._repeated._causes.values())


def test_a_group_of_members_with_another_strategy_is_named_once_and_joined_when_they_are_gone(
    broker: Broker, made: tuple[str, str], shared: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, members = made
    consumer, ended = make(broker, members, shared, name), make(broker, members, shared, name)
    with plain_member(broker, members, name):
        consumer.start()
        ended.start()
        wait_until(lambda: refusals(consumer) > 1 and refusals(ended) > 1)
        ended.stop()
        refused = lines(caplog, "consumer.client-error")
        assert len(refused) == 2, "one for each of the two consumers"
        assert "another assignment strategy than cooperative-sticky" in refused[0]["hint"]
        assert not lines(caplog, "consumer.not-left"), "nobody waits for a member that was refused"
    assert consumer.wait_assigned(GUARD_S)
    consumer.stop()


def test_beside_plain_members_a_consumer_with_the_new_group_protocol_joins(
    broker: Broker, made: tuple[str, str], shared: str
) -> None:
    name, members = made
    consumer = make(broker, members, shared, name, **{"group.protocol": "consumer"})
    with plain_member(broker, members, name):
        consumer.start()
        assert consumer.wait_assigned(GUARD_S)
    consumer.stop()


def test_a_session_outside_of_the_limits_names_setting_and_limits(
    broker: Broker, made: tuple[str, str], shared: str, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = make(broker, made[1], shared, made[0], **{"session.timeout.ms": 100})
    began_s = time.monotonic()
    consumer.start(wait_s=GUARD_S)
    assert time.monotonic() - began_s < GUARD_S, "it returns when it knows that the group refuses it"
    wait_until(lambda: refusals(consumer) > 1)
    consumer.stop()
    (line,) = lines(caplog, "consumer.client-error")
    assert "session.timeout.ms=100 is outside" in line["hint"]
    assert not lines(caplog, "consumer.not-left")


def test_start_raises_what_has_ended_the_consumer_meanwhile(broker: Broker, made: tuple[str, str], shared: str) -> None:
    client = {"group.protocol": "consumer", "group.instance.id": "shop-1"}
    with make(broker, made[1], shared, made[0], **client):
        second = make(broker, made[1], shared, made[0], **client)
        with pytest.raises(ConsumerError, match=r"same group\.instance\.id=shop-1"):
            second.start(wait_s=GUARD_S)


DYING = """
import os, signal, sys
from confluent_kafka import Consumer

bootstrap, group, topic = sys.argv[1:]
settings = {"partition.assignment.strategy": "cooperative-sticky", "session.timeout.ms": 20_000}
consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "client.id": "old-shop", **settings})
consumer.subscribe([topic], on_assign=lambda *_: os.kill(os.getpid(), signal.SIGKILL))
while True:
    consumer.poll(1)
"""


@pytest.mark.parametrize("kind", ["push", "lite"])
def test_the_members_that_a_group_waits_for_are_named(
    kind: str, broker: Broker, made: tuple[str, str], shared: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, members = made
    died = subprocess.run([sys.executable, "-c", DYING, broker.bootstrap, members, name], timeout=GUARD_S, check=False)
    assert died.returncode == -signal.SIGKILL
    if kind == "push":
        with make(broker, members, shared, name) as consumer:
            assert consumer.wait_assigned(GUARD_S)
    else:
        with LitePullConsumer(broker.bootstrap, group=members) as lite:
            lite.subscribe(name)
            wait_until(lambda: not lite.poll(100) and bool(lite.assignment()))
    (line,) = lines(caplog, "consumer.group-awaited")
    assert [each.partition("@")[0] for each in line["members"]] == ["old-shop"]
    assert "session.timeout.ms" in line["hint"]


DYING_OWNER = """
import os, signal, sys
from rocketshim import AllocateMessageQueueAveragely, PushConsumer

bootstrap, group, namespace, topic, orderly = sys.argv[1:]
consumer = PushConsumer(
    bootstrap, group=group, namespace=namespace, client_id="old-shop", lock_lease_ms=15_000, lock_hold_ms=9_000,
    lock_renew_ms=3_000, allocate_message_queue_strategy=AllocateMessageQueueAveragely(),
)
consumer.register_message_listener(topic, print, orderly=bool(orderly))
consumer.start()
assert consumer.wait_assigned(60)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("orderly", ["", "orderly"])
def test_the_dead_owner_of_a_lock_is_named(
    orderly: str, broker: Broker, made: tuple[str, str], shared: str, caplog: pytest.LogCaptureFixture
) -> None:
    name, members = made
    program = [sys.executable, "-c", DYING_OWNER, broker.bootstrap, members, shared, name, orderly]
    died = subprocess.run(program, timeout=GUARD_S, check=False)
    assert died.returncode == -signal.SIGKILL
    consumer = PushConsumer(
        broker.bootstrap,
        group=members,
        namespace=shared,
        client_id="new-shop",
        lock_lease_ms=15_000,
        lock_hold_ms=9_000,
        lock_renew_ms=3_000,
        allocate_message_queue_strategy=AllocateMessageQueueAveragely(),
    )
    consumer.register_message_listener(name, print, orderly=bool(orderly))
    with consumer:
        assert consumer.wait_assigned(GUARD_S)
    (line,) = lines(caplog, "consumer.lock-awaited")
    assert [each.partition(" ")[0] for each in line["owners"]] == ["old-shop"]
    assert line["waited_s"] < 10
    assert 0 < line["lease_left_s"] <= 15
