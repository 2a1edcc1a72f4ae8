"""A soak of the drop-in: members that are killed, frozen, leave, come, pause and retry, for five minutes in all.

Nothing is lost, and nothing is committed past what is unfinished: at the end of each round every member is killed at
once, and then each message before a committed position has to be charged, dead, or on its way again.
"""

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from rocketshim import DelayWorker, TopicNames, WorkerSettings
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_local import LocalCluster
from rocketshim_topics import decode, provision
from rocketshim_topics.layout import TopicSpec
from rocketshim_topics.wire import read_headers

from .running import running
from .waiting import wait_until

LEVELS = "0s"
GUARD_S = 180.0
ROUND_S = 18.0
MEMBERS = 3
PARTITIONS = 4
FREEZE_S = 8.0
"""Longer than the session lasts: the others get what the frozen member had."""

PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 300},
    "cooperative": {
        "session.timeout.ms": 6_000, "heartbeat.interval.ms": 300,
        "partition.assignment.strategy": "cooperative-sticky",
    },
    "consumer": {"group.protocol": "consumer"},
}  # fmt: skip

PROGRAM = """
import json, os, random, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from confluent_kafka import KafkaException, TopicPartition
from rocketshim.dropin import Consumer
from rocketshim.errors import StaleMessageError

config, topic, commits, path, seed = json.loads(sys.argv[1]), *sys.argv[2:]
charged = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
dice, over = random.Random(int(seed)), threading.Event()
signal.signal(signal.SIGTERM, lambda *_: over.set())
consumer = Consumer(config)
consumer.subscribe([topic])


def handle(message):
    "Whether it is finished."
    order = int(message.value())
    try:
        if order % 10 == 9:
            consumer.dead_letter(message, "no such customer")
        elif consumer.reconsume_times(message) < order % 4:
            consumer.reconsume_later(message, "the bank is busy")
        else:
            os.write(charged, b"%d\\n" % order)
    except StaleMessageError:
        return False
    return True


def came(wait_s, most=20):
    if most > 20 or dice.random() < 0.5:
        found = consumer.consume(dice.randint(1, most), wait_s)
    else:
        found = [each for each in [consumer.poll(wait_s)] if each is not None]
    return [each for each in found if each.error() is None]


def in_threads(messages, pool):
    "Polls on, paused, while threads are at work, as the client's documentation has it; commits when all are done."
    paused = consumer.assignment()
    consumer.pause(paused)
    done = [(each, pool.submit(handle, each)) for each in messages]
    while not all(work.done() for _, work in done):
        done += [(each, pool.submit(handle, each)) for each in came(0.01)]
    ends, stale = {}, set()
    for message, work in done:
        place = message.topic(), message.partition()
        if not work.result():
            stale.add(place)  # what lies behind it is not committed, whether it is finished or not
        elif place not in stale:
            ends[place] = max(ends.get(place, 0), message.offset() + 1)
    for place, end in ends.items():
        commit(offsets=[TopicPartition(*place, end)])
    here = consumer.assignment()
    consumer.resume([each for each in paused if each in here])


def commit(**what):
    try:
        consumer.commit(asynchronous=dice.random() < 0.5, **what)
    except KafkaException:
        pass  # it is another's by now


def one_by_one(messages):
    stale = set()
    for message in messages:
        place = message.topic(), message.partition()
        if place in stale or not handle(message):
            stale.add(place)  # what lies behind it is whoever's that has it now, too
        elif commits == "each":
            commit(message=message)
        elif commits == "stored":
            try:
                consumer.store_offsets(message=message)
            except KafkaException:
                pass  # likewise


with ThreadPoolExecutor(4) as pool:
    while not over.is_set():
        if commits == "threads":
            messages = came(0.2, 200)  # many, since after each resume the client itself needs half a second to fetch
            in_threads(messages, pool) if messages else None
            continue
        messages = came(0.2)
        one_by_one(messages)
        if dice.random() < 0.02:
            here = consumer.assignment()
            consumer.pause(here)
            until = time.monotonic() + dice.random()
            while time.monotonic() < until:
                one_by_one(came(0.1))
            left = consumer.assignment()
            consumer.resume([each for each in here if each in left])
consumer.close()
"""


class Round:
    """A topic, a group, and its members as processes, in which things happen to them."""

    def __init__(self, config: dict[str, Any], topic: str, commits: str, folder: Path, seed: int) -> None:
        self._command = [sys.executable, "-c", PROGRAM, json.dumps(config), topic, commits]
        self._folder = folder
        self._dice = random.Random(seed)  # noqa: S311 - nothing secret
        self._began = 0
        self.members = [self._start() for _ in range(MEMBERS)]
        self.events: Counter[str] = Counter()

    def _start(self) -> subprocess.Popen[bytes]:
        self._began += 1
        return subprocess.Popen([*self._command, str(self._folder / f"{self._began}"), str(self._began)])

    def happen(self) -> None:
        """Something happens to one member; a member that is gone is replaced."""
        event = self._dice.choice(["killed", "left", "frozen"])
        number = self._dice.randrange(MEMBERS)
        member = self.members[number]
        assert member.poll() is None, "no member ends by itself"
        self.events[event] += 1
        match event:
            case "frozen":
                member.send_signal(signal.SIGSTOP)
                threading.Timer(FREEZE_S, _wake, [member]).start()
                return
            case "killed":
                member.kill()
            case _:
                member.send_signal(signal.SIGCONT)
                member.terminate()
                self.events["left in time"] += member.wait(GUARD_S) == 0
        member.wait()
        self.members[number] = self._start()

    def kill_all(self) -> None:
        for member in self.members:
            member.kill()
        for member in self.members:
            member.wait()

    def begin_again(self) -> None:
        self.members = [self._start()]

    @property
    def charged(self) -> Counter[int]:
        return Counter(int(line) for path in self._folder.iterdir() for line in path.read_text().splitlines())


def _wake(member: subprocess.Popen[bytes]) -> None:
    member.send_signal(signal.SIGCONT)  # of one that has ended by now: nothing


@pytest.fixture(scope="module")
def impatient() -> Iterator[LocalCluster]:
    """A broker that misses a member of the new protocol as soon as one of the old."""
    names = ("group.consumer.min.session.timeout.ms", "group.consumer.session.timeout.ms")
    with LocalCluster(1, properties=dict.fromkeys(names, "6000")) as cluster:
        yield cluster


@pytest.fixture
def namespace(protocol: str, commits: str) -> str:
    return f"{protocol}-{commits}"


@pytest.fixture
def worker(impatient: LocalCluster, namespace: str) -> Iterator[DelayWorker]:
    settings = WorkerSettings.make(
        bootstrap=impatient.bootstrap, namespace=namespace, allow=("*",), delay_levels=LEVELS
    )
    with running(DelayWorker(settings)) as worker:
        yield worker


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("commits", ["automatic", "each", "stored", "threads"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nothing_is_lost_and_nothing_committed_past_what_is_unfinished(  # noqa: PLR0917 - fixtures
    impatient: LocalCluster,
    worker: DelayWorker,
    namespace: str,
    tmp_path: Path,
    protocol: str,
    commits: str,
) -> None:
    del worker
    bootstrap, names, orders, payments = impatient.bootstrap, TopicNames(namespace), f"{namespace}-orders", "payments"
    provision.ensure_topics(AdminClient({"bootstrap.servers": bootstrap}), [TopicSpec(orders, PARTITIONS)])
    config = {
        "bootstrap.servers": bootstrap, "group.id": payments, "auto.offset.reset": "earliest", "log_level": 2,
        "enable.auto.commit": commits in {"automatic", "stored"}, "auto.commit.interval.ms": 30,
        "enable.auto.offset.store": commits == "automatic", "rocketshim.retry.enable": True,
        "rocketshim.namespace": namespace, "rocketshim.delay.levels": LEVELS, "rocketshim.max.reconsume.times": 50,
        **PROTOCOLS[protocol],
    }  # fmt: skip
    happening = Round(config, orders, commits, tmp_path, seed=len(protocol) * 10 + len(commits))
    producer, sent = confluent_kafka.Producer({"bootstrap.servers": bootstrap}), 0
    with TopicReader(bootstrap) as reader:

        def facts(name: str) -> list[tuple[int, int, int, int]]:
            """Partition, offset, order and failures of each record; none of a topic that is not there yet."""
            found = reader.read([name]) if reader.topics().get(name) else ()
            return [
                (each.partition(), each.offset(), int(each.value()), times(each, trusted=name != orders))
                for each in found
                if each.value() is not None
            ]

        try:
            until, next_event = time.monotonic() + ROUND_S, time.monotonic() + 3.0
            while time.monotonic() < until:
                for _ in range(20):
                    producer.produce(orders, b"%d" % sent)
                    sent += 1
                producer.poll(0)
                time.sleep(0.15)
                if time.monotonic() > next_event:
                    happening.happen()
                    next_event = time.monotonic() + 1.5
            assert producer.flush(GUARD_S) == 0
            happening.kill_all()

            committed = positions(config, {orders: PARTITIONS, names.retry(payments): 1})
            on_their_way = max_times(facts(names.schedule))
            finished = set(happening.charged) | {order for _, _, order, _ in facts(names.dead_letter(payments))}
            for name in (orders, names.retry(payments)):
                for partition, offset, order, failures in facts(name):
                    if offset < committed[name, partition]:
                        assert order in finished or on_their_way.get(order, 0) > failures, (name, partition, offset)

            happening.begin_again()
            dead = {order for order in range(sent) if order % 10 == 9}

            def uncharged() -> set[int]:
                return set(range(sent)) - dead - set(happening.charged)

            wait_until(lambda: not uncharged(), lambda: f"charged: {sorted(uncharged())[:20]}", within_s=GUARD_S)
            wait_until(
                lambda: {order for _, _, order, _ in facts(names.dead_letter(payments))} == dead,
                "each dead letter once or more",
                within_s=GUARD_S,
            )
        finally:
            happening.kill_all()
    repeats = sum(happening.charged.values()) - len(happening.charged)
    print(f"{protocol} {commits}: {sent} sent, {len(dead)} dead, {repeats} repeats, {dict(happening.events)}")  # noqa: T201


def times(message: Any, *, trusted: bool) -> int:
    return decode(read_headers(message), trusted=trusted).reconsume_times or 0


def max_times(found: list[tuple[int, int, int, int]]) -> dict[int, int]:
    """The most failures each order was seen with."""
    most: dict[int, int] = {}
    for _, _, order, failures in found:
        most[order] = max(failures, most.get(order, 0))
    return most


def positions(config: dict[str, Any], topics: dict[str, int]) -> dict[tuple[str, int], int]:
    """What the group has committed; -1001 for nothing."""
    plain = {name: config[name] for name in ("bootstrap.servers", "group.id")}
    with confluent_kafka.Consumer(plain) as asking:
        asked = [TopicPartition(name, number) for name, count in topics.items() for number in range(count)]
        return {(each.topic, each.partition): each.offset for each in asking.committed(asked, timeout=GUARD_S)}
