"""Mutated records on every topic that rocketshim reads: nothing crashes, stands still, or writes elsewhere."""

import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from rocketshim import DelayLevels, Layout, Message, MessageView, PushConsumer, TopicNames
from rocketshim.cli import main
from rocketshim_local import Broker
from rocketshim_topics import provision
from test_support.mutated_records import mutated

from .conftest import await_led, user_topics
from .waiting import wait_until
from .worker_stage import DEADLINE_S, LEVELS, WorkerStage

COUNTS = [2_000, pytest.param(50_000, marks=[pytest.mark.long, pytest.mark.timeout(1_200)])]
CONCURRENT, ORDERLY = "pay", "ship"
COMMANDS = [
    ["dlq", "stats", "--group", CONCURRENT],
    ["dlq", "ls", "--group", ORDERLY],
    ["retry", "ls", "--group", CONCURRENT],
    ["parked", "ls"],
    ["group", "lag", ORDERLY],
    ["group", "locks", ORDERLY],
]
VALUES = [None, b"", b"{}", b"\x00\xff", b'{"v":1}', b"x" * 2_000]


class Handled:
    """The bodies of sound messages that a group was given."""

    def __init__(self) -> None:
        self.bodies: set[bytes] = set()
        self._lock = threading.Lock()

    def __call__(self, message: MessageView) -> None:
        with self._lock:
            self.bodies.add(message.body or b"")


def send_mutated(bootstrap: str, partitions: dict[str, int], count: int) -> None:
    draw = random.Random(19)  # noqa: S311 - the same records in each run
    producer = Producer({"bootstrap.servers": bootstrap})
    names = sorted(partitions)
    for number, headers in zip(range(count), mutated(draw), strict=False):
        name = names[number % len(names)]
        given: Any = headers
        producer.produce(name, draw.choice(VALUES), b"k", draw.randrange(partitions[name]), headers=given)
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0


def bounds(bootstrap: str, topic: str, partitions: int) -> list[int]:
    """The end of each partition now."""
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": "bounds"})) as client:
        return [client.get_watermark_offsets(TopicPartition(topic, at))[1] for at in range(partitions)]


def has_read(bootstrap: str, group: str, ends: dict[str, list[int]]) -> bool:
    """Whether a group has committed up to these ends, or further."""
    wanted = [TopicPartition(topic, at) for topic, found in ends.items() for at in range(len(found))]
    with closing(Consumer({"bootstrap.servers": bootstrap, "group.id": group})) as client:
        committed = client.committed(wanted, timeout=DEADLINE_S)
    return all(max(0, each.offset) >= ends[each.topic][each.partition] for each in committed)


@pytest.fixture
def stage(broker: Broker, admin: AdminClient, namespace: str, tmp_path: Path) -> WorkerStage:
    """All topics of an installation with a concurrent and an orderly group, and the topic that they consume."""
    names, levels = TopicNames(namespace), DelayLevels.parse(LEVELS)
    layout = Layout(names, levels)
    groups = [*layout.for_group(CONCURRENT, with_log=False), *layout.for_group(ORDERLY, with_log=True)]
    provision.ensure_topics(admin, [*layout.shared(), *layout.timers(), layout.redrive_log(), *groups])
    orders = f"{namespace}.orders"
    admin.create_topics([NewTopic(orders, 2)])[orders].result(DEADLINE_S)
    await_led(admin, orders, 2)
    return WorkerStage(broker.bootstrap, names, tmp_path, admin)


@contextmanager
def consumer(stage: WorkerStage, group: str) -> Iterator[Handled]:
    """A consumer of the orders; what it was given."""
    namespace, handled = stage.names.namespace, Handled()
    made = PushConsumer(stage.bootstrap, group=group, namespace=namespace, delay_levels=LEVELS)
    made.register_message_listener(f"{namespace}.orders", handled, orderly=group == ORDERLY)
    with made:
        yield handled


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])
@pytest.mark.parametrize("count", COUNTS)
def test_mutated_records_stop_nothing_and_go_nowhere(
    stage: WorkerStage, pytestconfig: pytest.Config, count: int, *, exactly_once: bool
) -> None:
    names, orders = stage.names, f"{stage.names.namespace}.orders"
    there = stage.admin.list_topics(timeout=DEADLINE_S).topics
    ours = {name: len(found.partitions) for name, found in there.items() if name.startswith(names.namespace)}
    before = user_topics(pytestconfig)
    send_mutated(stage.bootstrap, ours, count)
    readers = {names.worker_group: [names.schedule, names.timers]}
    readers |= {group: [orders, names.retry(group)] for group in (CONCURRENT, ORDERLY)}
    ends = {
        group: {name: bounds(stage.bootstrap, name, ours[name]) for name in read} for group, read in readers.items()
    }
    worker = stage.worker("--allow", orders, *(["--exactly-once"] if exactly_once else []))
    with stage.sender() as producer, consumer(stage, CONCURRENT) as one, consumer(stage, ORDERLY) as other:
        sound = {b"sound %d" % number for number in range(2 * len(LEVELS.split()))}
        for number, body in enumerate(sorted(sound)):
            level = number // 2 + 1 if number % 2 else None
            producer.send(Message(orders, body, delay_level=level), timeout_s=DEADLINE_S)
        wait_until(lambda: sound <= one.bodies and sound <= other.bodies, within_s=DEADLINE_S)
        for group, read in ends.items():
            wait_until(partial(has_read, stage.bootstrap, group, read), within_s=2 * DEADLINE_S)
    assert worker.poll() is None
    stage.kill()
    for words in COMMANDS:
        assert main([*words, "--bootstrap", stage.bootstrap, "--namespace", names.namespace]) in {0, 2}, words
    assert user_topics(pytestconfig) == before
