"""A push consumer's life on the real broker: time-outs, members that come and go, the end in every state, processes."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from rocketshim import ConsumeFromWhere, MessageQueue, PushConsumer, TopicNames
from rocketshim.errors import ConsumerError
from rocketshim_local import Broker, LocalCluster
from rocketshim_topics import DelayLevels, provision
from rocketshim_topics.layout import Layout

from . import waiting
from .running import patient_worker

GUARD_S = 90.0
wait_until = partial(waiting.wait_until, within_s=GUARD_S)
LEVELS = "1s 1s 1s"
NAMESPACE = f"life{os.getpid()}"
NAMES = TopicNames(NAMESPACE)
PARTITIONS = 6


@pytest.fixture(scope="module")
def shared(admin: AdminClient) -> None:
    """The shim's own topics of this file's namespace."""
    provision.ensure_topics(admin, Layout(NAMES, DelayLevels.parse(LEVELS)).shared(), create=True)


@pytest.fixture
def make(broker: Broker, shared: None) -> Iterator[Callable[..., PushConsumer]]:
    """Make a consumer: `make(group, listener, topic, **settings)`; not started; stopped after the test."""
    del shared
    made: list[PushConsumer] = []

    def one(group: str, listener: Callable[..., Any], topic: str, **values: Any) -> PushConsumer:
        consumer = PushConsumer(
            values.pop("bootstrap", broker.bootstrap),
            group=group,
            namespace=NAMESPACE,
            delay_levels=LEVELS,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            **{"persist_consumer_offset_interval_ms": 100, **values},
        )
        consumer.register_message_listener(topic, listener)
        made.append(consumer)
        return consumer

    yield one
    for consumer in made:
        consumer.stop(1)


def send(bootstrap: str, topic: str, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number in range(first, first + count):
        producer.produce(topic, str(number).encode(), partition=number % PARTITIONS)
    assert producer.flush(GUARD_S) == 0


def ends(broker: Broker, topic: str) -> dict[int, int]:
    client = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "ends"})
    try:
        partitions = client.list_topics(topic, timeout=GUARD_S).topics[topic].partitions
        return {number: client.get_watermark_offsets(TopicPartition(topic, number))[1] for number in partitions}
    finally:
        client.close()


def committed(broker: Broker, group: str, topic: str) -> dict[int, int]:
    """A group's positions in a topic."""
    client = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        places = [TopicPartition(topic, number) for number in client.list_topics(topic).topics[topic].partitions]
        return {item.partition: max(0, item.offset) for item in client.committed(places, timeout=GUARD_S)}
    finally:
        client.close()


def test_a_call_that_lasts_too_long_is_sent_back_once_and_its_late_answer_changes_nothing(
    broker: Broker, make: Callable[..., PushConsumer], topic: Callable[..., str], group: Callable[..., str]
) -> None:
    name, mine = topic(1), group("slow")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for body in (b"slow", b"quick"):
        producer.produce(name, body)
    producer.flush(GUARD_S)
    worker = patient_worker(broker.bootstrap, NAMESPACE, LEVELS)
    worker.start()
    thread = threading.Thread(target=worker.run)
    thread.start()
    again, go = threading.Event(), threading.Event()
    calls: list[tuple[bytes, int]] = []

    def handle(message: Any) -> None:
        calls.append((message.body, message.reconsume_times))
        if message.body == b"slow" and message.reconsume_times == 0:
            assert go.wait(GUARD_S)
            raise OSError("too late to count")
        if message.body == b"slow":
            again.set()

    consumer = make(mine, handle, name, consume_timeout_ms=1_000)
    try:
        consumer.start()
        assert again.wait(GUARD_S)
        assert committed(broker, mine, name)[0] in {0, 1, 2}
        go.set()  # the first call ends at last, and fails
        wait_until(lambda: committed(broker, mine, name) == {0: 2}, "both are done")
        state = consumer.state
        assert state is not None
        assert consumer.send_back_counts.retried == 1
        consumer.stop()
    finally:
        go.set()
        worker.stop()
        thread.join(GUARD_S)
    assert Counter(calls) == {(b"slow", 0): 1, (b"slow", 1): 1, (b"quick", 0): 1}


def test_with_the_new_group_protocol_members_share_and_hand_over(
    broker: Broker, make: Callable[..., PushConsumer], topic: Callable[..., str], group: Callable[..., str]
) -> None:
    name, mine = topic(PARTITIONS), group("kip848")
    seen: Counter[bytes] = Counter()
    lock = threading.Lock()
    by_member: dict[str, set[int]] = {"a": set(), "b": set()}

    def listener(member: str) -> Callable[[Any], None]:
        def handle(message: Any) -> None:
            with lock:
                seen[message.body] += 1
                by_member[member].add(message.queue_id)

        return handle

    client = {"group.protocol": "consumer"}
    first = make(mine, listener("a"), name, client=client)
    first.start()
    send(broker.bootstrap, name, 0, 300)
    wait_until(lambda: len(seen) == 300, "the first member reads all")
    second = make(mine, listener("b"), name, client=client)
    second.start()
    wait_until(lambda: bool(second.state and second.state.queues), "the second member gets a share")
    wait_until(lambda: bool(first.state and len(first.state.queues) < PARTITIONS + 1), "the first gives some away")
    send(broker.bootstrap, name, 300, 300)
    wait_until(lambda: len(seen) == 600, "both read")
    first.stop()
    send(broker.bootstrap, name, 600, 300)
    wait_until(lambda: len(seen) == 900, "the second takes over")
    second.stop()
    assert by_member["b"]
    assert committed(broker, mine, name) == ends(broker, name)


def test_with_the_new_group_protocol_a_member_without_queues_is_ready(
    make: Callable[..., PushConsumer], topic: Callable[..., str], group: Callable[..., str]
) -> None:
    """One queue of the topic, one of the retry topic: of four members, two get none, and Kafka's client is silent."""
    name, mine = topic(1), group("idle848")
    members = [make(mine, lambda _: None, name, client={"group.protocol": "consumer"}) for _ in range(4)]
    for member in members:
        member.start()
    assert all(member.wait_assigned(GUARD_S) for member in members)
    wait_until(lambda: all(member.state and member.state.is_member for member in members), "every state shows it")
    wait_until(lambda: sum(not member.state.queues for member in members if member.state) >= 2, "two have no queue")
    for member in members:
        member.stop()


ASKS_DURING_AN_OUTAGE = """
import time
from confluent_kafka.admin import AdminClient
from rocketshim.observe.groups import GroupReader
from rocketshim.errors import BrokerUnavailableError
from rocketshim.kafka.membership import GroupQuestion
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_local import LocalCluster

asked = []

class Client(AdminClient):
    def describe_consumer_groups(self, *args, **options):
        answers = super().describe_consumer_groups(*args, **options)
        asked.extend(answers.values())
        return answers

def ask_until(is_enough):
    while not is_enough():
        question.answer(int(time.monotonic() * 1_000))
        time.sleep(0.02)

def is_answered():
    return asked and asked[-1].done() and asked[-1].exception() is None

with LocalCluster() as cluster:
    cluster.touch_internal_topics()
    client = cluster.client_config() | {"log_level": "0"}
    question = GroupQuestion(Client, client, "g")
    reader = GroupReader(TopicReader(cluster.bootstrap, client={"log_level": "0"}))
    ask_until(is_answered)
    assert reader.read("g").state == "DEAD"
    cluster.kill(1)
    before = len(asked)
    ask_until(lambda: len(asked) >= before + 3)  # two are given up, 5 s after they were asked
    try:
        reader.read("g")
    except BrokerUnavailableError:
        print("away")
    cluster.restart(1)
    ask_until(is_answered)
    assert reader.read("g").state == "DEAD"
print("survived")
"""


def test_a_process_that_asked_for_a_group_in_vain_survives_the_end_of_the_outage() -> None:
    """Freed memory is filled: librdkafka uses what it has freed once an unanswered request has reached its limit."""
    environment = os.environ | {"MALLOC_PERTURB_": "255"}
    command = [sys.executable, "-c", ASKS_DURING_AN_OUTAGE]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=4 * GUARD_S, check=False)
    assert (ran.returncode, ran.stdout) == (0, "away\nsurvived\n"), ran.stderr[-2_000:]


class Storm:
    """Members of one group that come and go, each on its own thread, while messages are sent.

    Attributes:
        seen: how often each message was handled.
        backwards: commits that went back.
    """

    def __init__(self, make: Callable[..., PushConsumer], broker: Broker, group: str, topic: str) -> None:
        self.seen: Counter[int] = Counter()
        self.backwards: list[str] = []
        self.members: list[PushConsumer] = []
        self._make = make
        self._broker = broker
        self._group = group
        self._topic = topic
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()

    def handle(self, message: Any) -> None:
        with self._lock:
            self.seen[int(message.body)] += 1

    def join(self) -> None:
        consumer = self._make(
            self._group, self.handle, self._topic, consume_thread_min=2, client={"session.timeout.ms": 10_000}
        )
        consumer.start()
        self.members.append(consumer)

    def leave(self) -> None:
        self.members.pop(0).stop(60)

    def end(self) -> None:
        self._over.set()
        self._watcher.join(GUARD_S)

    def _watch(self) -> None:
        """Positions as the group's coordinator has them, again and again: none may go back."""
        client = Consumer({"bootstrap.servers": self._broker.bootstrap, "group.id": self._group})
        highest: dict[int, int] = {}
        places = [TopicPartition(self._topic, number) for number in range(PARTITIONS)]
        while not self._over.wait(0.05):
            try:
                found = client.committed(places, timeout=GUARD_S)
            except KafkaException:  # its coordinator is not there yet
                continue
            for item in found:
                before = highest.get(item.partition, -1)
                if item.offset < 0:  # nothing is committed, or the coordinator did not say now
                    continue
                if item.offset < before:
                    self.backwards.append(f"{item.partition}: {before} to {item.offset}")
                highest[item.partition] = max(item.offset, before)
        client.close()


@pytest.mark.parametrize("seconds", [pytest.param(8), pytest.param(60, marks=pytest.mark.long)])
def test_in_a_storm_of_rebalances_nothing_is_lost_and_no_commit_goes_back(
    broker: Broker,
    make: Callable[..., PushConsumer],
    topic: Callable[..., str],
    group: Callable[..., str],
    seconds: int,
) -> None:
    name, mine = topic(PARTITIONS), group("storm")
    storm = Storm(make, broker, mine, name)
    sent = 0
    try:
        for turn in range(seconds * 2):
            send(broker.bootstrap, name, sent, 600)
            sent += 600
            if len(storm.members) < 2 or (turn % 2 and len(storm.members) < 4):
                storm.join()
            else:
                storm.leave()
            time.sleep(0.5)  # the storm's beat, nothing waits on it
        while not storm.members:
            storm.join()
        wait_until(lambda: len(storm.seen) == sent, "every message is handled")
        wait_until(lambda: committed(broker, mine, name) == ends(broker, name), "no lag is left")
        while storm.members:
            storm.leave()
    finally:
        storm.end()
    assert storm.backwards == []
    repeated = sum(count - 1 for count in storm.seen.values())
    print(f"{sent} messages, {repeated} handled again")  # noqa: T201 - for proof/HISTORY.md


def thread_names() -> str:
    return " ".join(thread.name for thread in threading.enumerate())


def closes(consumer: PushConsumer, timeout_s: float) -> float:
    """Stop a consumer twice; seconds the first took."""
    began = time.monotonic()
    with suppress(ConsumerError):  # it says what it could not do in time
        consumer.stop(timeout_s)
    took = time.monotonic() - began
    with suppress(ConsumerError):
        consumer.stop(timeout_s)
    return took


def test_it_ends_in_time_in_a_storm_and_with_listeners_that_never_return(
    broker: Broker, make: Callable[..., PushConsumer], topic: Callable[..., str], group: Callable[..., str]
) -> None:
    name, mine = topic(PARTITIONS), group("ends")
    send(broker.bootstrap, name, 0, 600)
    go, held = threading.Event(), threading.Event()

    def never(message: Any) -> None:
        del message
        held.set()
        assert go.wait(GUARD_S)

    async def never_either(message: Any) -> None:
        del message
        held.set()
        await asyncio.Event().wait()

    try:
        for listener in (never, never_either):
            held.clear()
            stuck = make(group("stuck"), listener, name)
            stuck.start()
            assert held.wait(GUARD_S)
            assert closes(stuck, 1.0) < 60.0
        members = [make(mine, lambda message: None, name) for _ in range(4)]  # noqa: ARG005
        for consumer in members:
            consumer.start()  # each start is a rebalance; the stops come before it is over
        assert max(closes(consumer, 5.0) for consumer in members) < 60.0
        wait_until(lambda: f"rocketshim-poll-{mine}" not in thread_names(), "the threads end")
    finally:
        go.set()


def test_it_ends_in_time_with_the_broker_down() -> None:
    levels = DelayLevels.parse(LEVELS)
    with LocalCluster(1) as cluster:
        from confluent_kafka.cimpl import NewTopic

        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        provision.ensure_topics(admin, Layout(TopicNames(), levels).shared(), create=True)
        admin.create_topics([NewTopic("orders", 2)])["orders"].result(GUARD_S)
        consumers: list[PushConsumer] = []
        for orderly in (False, True):
            consumer = PushConsumer(
                cluster.bootstrap,
                group=f"down-{orderly}",
                delay_levels=LEVELS,
                consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            )
            seen = [threading.Event(), threading.Event()]

            def handle(message: Any, *, seen: list[threading.Event] = seen) -> None:
                seen[message.queue_id].set()
                if message.queue_id:
                    raise OSError(message)  # its retry cannot be stored any more; the other one is to be committed

            consumer.register_message_listener("orders", handle, orderly=orderly)
            consumer.start()
            consumers.append(consumer)
            assert consumer.wait_assigned(GUARD_S)
            producer = Producer({"bootstrap.servers": cluster.bootstrap})
            for partition in range(2):
                producer.produce("orders", b"", partition=partition)
            producer.flush()
            assert all(each.wait(GUARD_S) for each in seen)
        cluster.kill(cluster.nodes[0])
        for consumer in consumers:
            with suppress(ConsumerError):  # it says that it could not commit; it does not hang
                consumer.stop(3.0)
        wait_until(lambda: "rocketshim-poll-down-" not in thread_names(), "the threads end")


def test_seek_and_reset_move_the_group(
    broker: Broker, make: Callable[..., PushConsumer], topic: Callable[..., str], group: Callable[..., str]
) -> None:
    name, mine = topic(1), group("seek")
    seen: list[int] = []
    consumer = make(mine, lambda message: seen.append(message.queue_offset), name, consume_thread_min=1)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for number in range(50):
        producer.produce(name, b"x", partition=0, timestamp=1_000_000 + number)
    producer.flush(GUARD_S)
    consumer.start()
    wait_until(lambda: len(seen) == 50, "all are read")
    seen.clear()
    consumer.seek(MessageQueue(name, queue_id=0), 40)
    assert committed(broker, mine, name)[0] >= 40
    wait_until(lambda: len(seen) == 10, "the last ten again")
    seen.clear()
    consumer.reset_offset_by_timestamp(name, 1_000_020)
    wait_until(lambda: len(seen) == 30, "from the time on")
    assert seen == list(range(20, 50))
    with pytest.raises(ConsumerError, match="not read by this consumer"):
        consumer.seek(MessageQueue(name, queue_id=7), 0)
    consumer.stop()
    assert committed(broker, mine, name) == {0: 50}


PROGRAM = """
import os
from rocketshim import ConsumeFromWhere, PushConsumer

consumer = PushConsumer({bootstrap!r}, group={group!r}, namespace={namespace!r}, delay_levels={levels!r},
                        consume_from_where=ConsumeFromWhere.FIRST_OFFSET, persist_consumer_offset_interval_ms=100)

@consumer.listener({topic!r})
def handle(message):
    with open({out!r} + str(os.getpid()), "a") as out:
        out.write(message.body.decode() + "\\n")
"""


def answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/live", timeout=GUARD_S) as answer:
            return bool(answer.status == 200)
    except urllib.error.HTTPError as error:  # it has not turned yet
        error.close()
        return False


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("processes", [1, 2])
def test_rocketshim_run_runs_a_consumer_in_processes_and_ends_them_well(
    broker: Broker,
    topic: Callable[..., str],
    group: Callable[..., str],
    tmp_path: Path,
    processes: int,
) -> None:
    name, mine, out = topic(PARTITIONS), group("run"), tmp_path / "out-"
    module = f"shop_{uuid.uuid4().hex}"
    (tmp_path / f"{module}.py").write_text(
        PROGRAM.format(
            bootstrap=broker.bootstrap, group=mine, namespace=NAMESPACE, levels=LEVELS, topic=name, out=str(out)
        )
    )
    command = [sys.executable, "-m", "rocketshim", "run", f"{module}:consumer", "--log-format", "json", "--health", "0"]
    log = (tmp_path / "log").open("wb")
    running = subprocess.Popen([*command, "--processes", str(processes)], cwd=tmp_path, stderr=log)
    try:
        send(broker.bootstrap, name, 0, 600)

        def handled() -> set[str]:
            return {line for path in tmp_path.glob("out-*") for line in path.read_text().splitlines()}

        wait_until(lambda: len(handled()) == 600 or running.poll() is not None, "all are handled")
        assert running.poll() is None, (tmp_path / "log").read_text()

        def ports() -> list[int]:
            lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
            return [line["port"] for line in lines if line.get("event") == "health.listening"]

        wait_until(lambda: len(ports()) == processes, "each serves its state")
        for port in ports():
            wait_until(lambda port=port: answers(port), f"the process at {port} is live")  # type: ignore[misc]
        running.send_signal(signal.SIGTERM)
        assert running.wait(GUARD_S) == 0, (tmp_path / "log").read_text()
    finally:
        if running.poll() is None:
            running.kill()
        log.close()
    assert committed(broker, mine, name) == ends(broker, name)
