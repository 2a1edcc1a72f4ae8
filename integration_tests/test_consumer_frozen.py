"""Members of a concurrent group are frozen and killed at random: nothing is lost, and no commit goes back.

A member that was frozen past its session wakes up with messages in its hands that others have handled since; what it
then commits or sends back is refused, or is a repeat.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from rocketshim import DelayLevels, DelayWorker, TopicNames, WorkerSettings
from rocketshim_local import Broker
from rocketshim_topics import provision
from rocketshim_topics.layout import Layout

from .running import running
from .waiting import wait_until

GUARD_S = 120.0
LEVELS = "1s"
QUEUES, MEMBERS, EVENTS, EACH = 4, 3, 12, 1_000
MEMBER = f"""
import sys, time
from rocketshim import ConsumeFromWhere, PushConsumer

bootstrap, namespace, group, topic, out = sys.argv[1:]
handled = open(out, "ab", buffering=0)
consumer = PushConsumer(
    bootstrap, group=group, namespace=namespace, delay_levels={LEVELS!r},
    client={{"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}},
    consume_from_where=ConsumeFromWhere.FIRST_OFFSET, persist_consumer_offset_interval_ms=1_000,
)

@consumer.listener(topic)
def handle(message):
    if message.reconsume_times == 0 and int(message.body) % 11 == 0:
        raise OSError("not yet")
    time.sleep(0.002)
    handled.write(message.body + b"\\n")

consumer.run()
"""


@contextmanager
def watching(bootstrap: str, group: str, topic: str) -> Iterator[list[tuple[int, ...]]]:
    """The group's positions, again and again."""
    seen: list[tuple[int, ...]] = []
    ended = threading.Event()

    def look() -> None:
        looks = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
        queues = [TopicPartition(topic, number) for number in range(QUEUES)]
        while not ended.wait(0.2):
            with suppress(KafkaException):  # the coordinator of a new group is not known everywhere yet
                seen.append(tuple(each.offset for each in looks.committed(queues, timeout=GUARD_S)))
        looks.close()

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        ended.set()
        looking.join()


@pytest.mark.long
def test_members_that_are_frozen_and_killed_lose_nothing_and_take_no_commit_back(
    broker: Broker,
    topic: Callable[..., str],
    group: Callable[..., str],
    namespace: str,
    tmp_path: Path,
) -> None:
    name, mine, chance = topic(QUEUES), group(), random.Random(7)  # noqa: S311 - which member, not a secret
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    provision.ensure_topics(admin, Layout(TopicNames(namespace), DelayLevels.parse(LEVELS)).shared())
    worker = DelayWorker(
        WorkerSettings.make(bootstrap=broker.bootstrap, namespace=namespace, delay_levels=LEVELS, allow=("nothing",))
    )
    outs: list[Path] = []

    def member() -> subprocess.Popen[bytes]:
        outs.append(tmp_path / str(len(outs)))
        return subprocess.Popen([sys.executable, "-c", MEMBER, broker.bootstrap, namespace, mine, name, str(outs[-1])])

    def handled() -> Counter[bytes]:
        return Counter(line for out in outs if out.exists() for line in out.read_bytes().split(b"\n") if line)

    producer = Producer({"bootstrap.servers": broker.bootstrap})
    members = [member() for _ in range(MEMBERS)]
    try:
        with running(worker), watching(broker.bootstrap, mine, name) as positions:
            for event in range(EVENTS):
                for number in range(event * EACH, (event + 1) * EACH):
                    producer.produce(name, b"%d" % number, key=b"%d" % number)
                assert producer.flush(GUARD_S) == 0
                place = chance.randrange(MEMBERS)
                if chance.random() < 0.5:
                    frozen = members[place]
                    os.kill(frozen.pid, signal.SIGSTOP)
                    threading.Timer(chance.choice([2, 9]), frozen.send_signal, [signal.SIGCONT]).start()
                else:
                    members[place].kill()
                    members[place].wait()
                    members[place] = member()
                time.sleep(1.2)  # so that events meet the group in all its states; nothing is concluded from it
            wait_until(lambda: len(handled()) == EVENTS * EACH, "every message is handled", within_s=GUARD_S)
            wait_until(
                lambda: bool(positions) and sum(positions[-1]) == EVENTS * EACH, "all is committed", within_s=GUARD_S
            )
    finally:
        for each in members:
            each.send_signal(signal.SIGCONT)
            each.terminate()
        codes = [each.wait(GUARD_S) for each in members]
    assert codes == [0] * MEMBERS
    assert set(handled()) == {b"%d" % number for number in range(EVENTS * EACH)}
    for before, after in pairwise(positions):
        assert all(new >= old for old, new in zip(before, after, strict=True)), (before, after)
