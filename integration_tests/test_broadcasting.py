"""BROADCASTING on a real broker: every process gets everything, and goes on where it was, also after a kill -9."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from rocketshim import ConsumeFromWhere, MessageModel, PushConsumer
from rocketshim_local import Broker

from . import waiting

GUARD_S = 60.0
wait_until = partial(waiting.wait_until, within_s=GUARD_S)
MEMBER = """
import sys
from rocketshim import ConsumeFromWhere, MessageModel, PushConsumer

consumer = PushConsumer(
    sys.argv[1], group=sys.argv[2], message_model=MessageModel.BROADCASTING, client_id="child",
    offset_store_dir=sys.argv[4], consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    persist_consumer_offset_interval_ms=5,
)

@consumer.listener(sys.argv[3])
def hear(message):
    sys.stdout.write(message.body.decode() + "\\n")  # in one piece: other threads write too
    sys.stdout.flush()

consumer.run()
"""


def fill(broker: Broker, topic: str, numbers: range, partitions: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in numbers:
        producer.produce(topic, str(number).encode(), partition=number % partitions)
    assert producer.flush(GUARD_S) == 0


def partitions_of(admin: AdminClient, topic: str) -> list[Any]:
    found = admin.list_topics(timeout=GUARD_S).topics.get(topic)
    return [] if found is None else list(found.partitions.values())


class Heard:
    def __init__(self) -> None:
        self.numbers: list[int] = []
        self._lock = threading.Lock()

    def __call__(self, message: Any) -> None:
        with self._lock:
            self.numbers.append(int(message.body))


def member(broker: Broker, group: str, topic: str, folder: Path, heard: Heard, *, name: str = "one") -> PushConsumer:
    consumer = PushConsumer(
        broker.bootstrap,
        group=group,
        message_model=MessageModel.BROADCASTING,
        client_id=name,
        offset_store_dir=str(folder),
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        rebalance_interval_ms=200,
    )
    consumer.register_message_listener(topic, heard)
    return consumer


def test_every_member_gets_everything_also_of_queues_that_are_added(
    broker: Broker, admin: AdminClient, topic: Callable[..., str], group: Callable[..., str], tmp_path: Path
) -> None:
    orders, mine = topic(3), group()
    one, two, again = Heard(), Heard(), Heard()
    with member(broker, mine, orders, tmp_path, one), member(broker, mine, orders, tmp_path, two, name="two"):
        fill(broker, orders, range(300), 3)
        wait_until(lambda: len(one.numbers) >= 300 and len(two.numbers) >= 300)
        waiting.add_partitions(admin, orders, 5)
        fill(broker, orders, range(300, 400), 5)
        wait_until(lambda: len(one.numbers) >= 400 and len(two.numbers) >= 400)
    assert sorted(one.numbers) == sorted(two.numbers) == list(range(400))
    fill(broker, orders, range(400, 410), 5)
    with member(broker, mine, orders, tmp_path, again):
        wait_until(lambda: len(again.numbers) >= 10)
    assert sorted(again.numbers) == list(range(400, 410))


def test_a_topic_that_was_made_anew_is_read_from_its_beginning(
    broker: Broker, admin: AdminClient, topic: Callable[..., str], group: Callable[..., str], tmp_path: Path
) -> None:

    orders, mine, first, second = topic(1), group(), Heard(), Heard()
    fill(broker, orders, range(5), 1)
    with member(broker, mine, orders, tmp_path, first):
        wait_until(lambda: len(first.numbers) == 5)
    admin.delete_topics([orders])[orders].result(GUARD_S)
    wait_until(lambda: not partitions_of(admin, orders))
    admin.create_topics([NewTopic(orders, num_partitions=1)])[orders].result(GUARD_S)
    wait_until(lambda: [part.leader >= 0 for part in partitions_of(admin, orders)] == [True])
    fill(broker, orders, range(100, 108), 1)
    with member(broker, mine, orders, tmp_path, second):
        wait_until(lambda: len(second.numbers) == 8)
    assert sorted(second.numbers) == list(range(100, 108))


def test_killed_again_and_again_it_misses_nothing(
    broker: Broker, topic: Callable[..., str], group: Callable[..., str], tmp_path: Path
) -> None:
    orders, mine = topic(2), group()
    fill(broker, orders, range(2_000), 2)
    heard: set[int] = set()
    rounds = 0
    while len(heard) < 2_000:
        rounds += 1
        assert rounds <= 40, f"{len(heard)} of 2000"
        child = subprocess.Popen(
            [sys.executable, "-c", MEMBER, broker.bootstrap, mine, orders, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        for count, line in enumerate(child.stdout, 1):
            heard.add(int(line))
            if len(heard) >= 2_000 or (rounds < 4 and count >= 300):
                os.kill(child.pid, signal.SIGKILL)
                heard.update(map(int, child.stdout))  # written before; it may be stored as handled
                break
        child.stdout.close()
        child.wait(GUARD_S)
    assert heard == set(range(2_000))
