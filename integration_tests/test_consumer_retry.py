"""Failures on the real broker, hop by hop: what lies on the topics is compared with the table of the wire format."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition, murmur2
from confluent_kafka.admin import AdminClient, NewPartitions

from rocketshim import (
    ConsumeFromWhere,
    DeadLetter,
    DelayLevels,
    DelayWorker,
    Message,
    PushConsumer,
    RetryLater,
    TopicNames,
)
from rocketshim import Producer as ShimProducer
from rocketshim_local import Broker

from . import waiting
from .running import patient_worker, running

LEVELS = "1s 1s 1s 0s 0s 0s 0s 0s 0s 0s 0s 0s 0s 0s 0s 0s 0s 2s"
"""18 levels as RocketMQ's table has; retries wait at level 3 to 18."""
GUARD_S = 180.0
wait_until = partial(waiting.wait_until, within_s=GUARD_S)
NAMESPACE = f"consumer{os.getpid()}"
NAMES = TopicNames(NAMESPACE)


@pytest.fixture(scope="module")
def worker(broker: Broker) -> Iterator[DelayWorker]:
    """The delay worker of this file's namespace."""
    worker = patient_worker(broker.bootstrap, NAMESPACE, LEVELS)
    worker.start()
    with running(worker):
        yield worker


@pytest.fixture
def consumer(broker: Broker, worker: DelayWorker) -> Iterator[Callable[..., PushConsumer]]:
    """Make a consumer of a group over topics, its listener given; all are stopped after the test."""
    del worker
    made: list[PushConsumer] = []

    def make(group: str, listener: Callable[..., Any], *topics: str, **values: Any) -> PushConsumer:
        one = PushConsumer(
            broker.bootstrap,
            group=group,
            namespace=NAMESPACE,
            delay_levels=LEVELS,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            **{"persist_consumer_offset_interval_ms": 100, **values},
        )
        for topic in topics:
            one.register_message_listener(topic, listener)
        one.start()
        made.append(one)
        assert one.wait_assigned(GUARD_S)
        return one

    yield make
    for one in made:
        one.stop(GUARD_S)


@dataclass(frozen=True)
class Stage:
    """What every test of this file needs.

    Attributes:
        broker: the real one.
        topic, group: make unique names.
        consumer: makes a running consumer: `consumer(group, listener, *topics, **settings)`.
        plain: a Kafka producer that knows nothing of the shim.
    """

    broker: Broker
    topic: Callable[..., str]
    group: Callable[..., str]
    consumer: Callable[..., PushConsumer]
    plain: Producer


@pytest.fixture
def stage(
    broker: Broker, topic: Callable[..., str], group: Callable[..., str], consumer: Callable[..., PushConsumer]
) -> Stage:
    return Stage(broker, topic, group, consumer, Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0}))


@dataclass(frozen=True)
class Stored:
    """A record as it lies on a topic."""

    where: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    timestamp_ms: int

    def text(self, name: str) -> str | None:
        found = [value for key, value in self.headers if key == name]
        assert len(found) <= 1, f"{name} twice"
        return None if not found or found[0] is None else found[0].decode()

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.headers]


def read(broker: Broker, topic: str) -> list[Stored]:
    """Everything that lies in a topic, in the order of its append times."""
    client = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.auto.commit": False,
         "isolation.level": "read_committed", "enable.partition.eof": True}
    )  # fmt: skip
    try:
        partitions = client.list_topics(topic, timeout=GUARD_S).topics[topic].partitions
        ends = {number: client.get_watermark_offsets(TopicPartition(topic, number)) for number in partitions}
        waiting = {number for number, (low, high) in ends.items() if high > low}
        client.assign([TopicPartition(topic, number, ends[number][0]) for number in waiting])
        found: list[Stored] = []
        end = time.monotonic() + GUARD_S
        while waiting and time.monotonic() < end:
            message = client.poll(1.0)
            if message is None:
                continue
            if message.error() is not None:
                waiting.discard(message.partition())
                continue
            found.append(
                Stored(
                    f"{message.topic()}/{message.partition()}/{message.offset()}",
                    message.partition(),
                    message.key(),
                    message.value(),
                    tuple(message.headers() or ()),
                    message.timestamp()[1],
                )
            )
        assert not waiting
        return sorted(found, key=lambda record: record.timestamp_ms)
    finally:
        client.close()


def scheduled(broker: Broker, group: str) -> list[Stored]:
    """The schedule records of one group, by their count of attempts."""
    mine = [record for record in read(broker, NAMES.schedule) if record.text("REAL_TOPIC") == f"%RETRY%{group}"]
    return sorted(mine, key=lambda record: int(record.text("RECONSUME_TIMES") or 0))


USER = (
    ("a", b"1"),
    ("empty", b""),
    ("none", None),
    ("a", b"2"),
    ("traceparent", b"00-11-22-01"),
    ("bytes", b"\x00\xff"),
)
FOREIGN = (("RECONSUME_TIMES", b"7"), ("REAL_TOPIC", b"elsewhere"))
TRAVELLED = (*USER[:2], ("USER.RECONSUME_TIMES", b"7"), *USER[2:], ("USER.REAL_TOPIC", b"elsewhere"))


def test_a_message_that_always_fails_passes_every_hop_of_the_table(stage: Stage) -> None:
    name, mine = stage.topic(1), stage.group("hops")
    bodies: list[bytes | None] = [b"body", b"", None]
    for body in bodies:
        headers = [*USER[:2], FOREIGN[0], *USER[2:], FOREIGN[1]]
        stage.plain.produce(name, body, b"key" if body else None, headers=headers)
    stage.plain.flush()
    sources = read(stage.broker, name)
    seen: list[Any] = []

    def handle(message: Any) -> None:
        seen.append((message.msg_id, message.topic, message.reconsume_times, message.headers, message.body))
        raise ValueError(f"attempt {message.reconsume_times}")

    stage.consumer(mine, handle, name)
    dead_topic = NAMES.dead_letter(mine)
    wait_until(lambda: len(seen) >= 17 * len(bodies), "17 deliveries each")
    wait_until(lambda: len(read(stage.broker, dead_topic)) == len(bodies), "dead letters")

    waiting, retried, dead = (
        scheduled(stage.broker, mine),
        read(stage.broker, NAMES.retry(mine)),
        read(stage.broker, dead_topic),
    )
    assert (len(waiting), len(retried), len(dead)) == (16 * len(bodies), 16 * len(bodies), len(bodies))
    levels = DelayLevels.parse(LEVELS)
    for source in sources:
        mine_of = [[r for r in records if r.text("UNIQ_KEY") == source.where] for records in (waiting, retried, dead)]
        before = source
        back = sorted(mine_of[1], key=lambda record: int(record.text("RECONSUME_TIMES") or 0))
        for attempt, (wait, again) in enumerate(zip(mine_of[0], back, strict=True), start=1):
            common = {
                "UNIQ_KEY": source.where,
                "BORN_TIMESTAMP": str(source.timestamp_ms),
                "RETRY_TOPIC": name,
                "ORIGIN_MESSAGE_ID": source.where,
                "RECONSUME_TIMES": str(attempt),
                "CONSUMER_GROUP": mine,
                "FAIL_CLASS": "ValueError",
                "FAIL_TEXT": f"attempt {attempt - 1}",
            }
            level = attempt + 2
            scheduling = {"REAL_TOPIC": f"%RETRY%{mine}", "DELAY": str(level), "DELAY_MS": str(levels.delay_ms(level))}
            assert {key: wait.text(key) for key in [*common, *scheduling]} == common | scheduling
            assert wait.text("HOP_ID") == before.where
            assert wait.partition == levels.partition(level, 0)
            assert {key: again.text(key) for key in common} == common
            assert again.text("HOP_ID") == wait.where
            assert not set(again.names) & {"REAL_TOPIC", "REAL_QID", "DELAY", "DELAY_MS", "DELIVER_AT_MS"}
            assert again.timestamp_ms >= wait.timestamp_ms + levels.delay_ms(level)
            for record in (wait, again):
                assert (record.text("FAIL_STACK") or "").endswith("\nValueError\n")
                assert record.headers[-len(TRAVELLED) :] == TRAVELLED
                assert (record.key, record.value) == (source.key, source.value)
            before = again
        (letter,) = mine_of[2]
        assert letter.text("RECONSUME_TIMES") == "17"
        assert letter.text("HOP_ID") == before.where
        assert letter.text("FAIL_TEXT") == "attempt 16"
        assert letter.text("ORIGIN_MESSAGE_ID") == source.where
        assert not set(letter.names) & {"REAL_TOPIC", "REAL_QID", "DELAY", "DELAY_MS", "DELIVER_AT_MS"}
        assert (letter.key, letter.value, letter.headers[-len(TRAVELLED) :]) == (source.key, source.value, TRAVELLED)
    assert Counter(count for _, _, count, _, _ in seen) == dict.fromkeys(range(17), len(bodies))
    assert {first_topic for _, first_topic, _, _, _ in seen} == {name}
    given = (*USER[:2], FOREIGN[0], *USER[2:], FOREIGN[1])
    assert {headers for _, _, _, headers, _ in seen} == {given}


def test_what_a_listener_asks_for(stage: Stage) -> None:
    name, mine = stage.topic(1), stage.group("asks")
    for body in (b"level", b"delay", b"context", b"minus", b"dead", b"exit"):
        stage.plain.produce(name, body)
    stage.plain.flush()
    done: list[bytes] = []

    def handle(message: Any, context: Any) -> None:
        if message.reconsume_times:
            done.append(message.body)
            return
        match message.body:
            case b"level":
                raise RetryLater(level=18)
            case b"delay":
                raise RetryLater("40ms")
            case b"context":
                context.delay_level_when_next_consume = 2
                raise OSError
            case b"minus":
                context.delay_level_when_next_consume = -1
                raise OSError
            case b"dead":
                raise DeadLetter("no such customer")
            case _:
                sys.exit(3)

    stage.consumer(mine, handle, name)
    wait_until(lambda: len(done) == 4, "four come back")
    assert sorted(done) == [b"context", b"delay", b"exit", b"level"]
    levels = DelayLevels.parse(LEVELS)
    partitions = {record.value: record.partition for record in scheduled(stage.broker, mine)}
    assert partitions == {
        b"level": levels.partition(18, 0),
        b"delay": levels.queue_for(40, 0),
        b"context": levels.partition(2, 0),
        b"exit": levels.partition(3, 0),
    }
    assert {record.value for record in read(stage.broker, NAMES.dead_letter(mine))} == {b"minus", b"dead"}


@pytest.mark.parametrize(("limit", "own", "deliveries"), [(0, None, 1), (1, None, 2), (-2, None, 1), (3, 2, 3)])
def test_limits_of_group_and_message(stage: Stage, limit: int, own: int | None, deliveries: int) -> None:
    name, mine = stage.topic(1), stage.group("limit")
    with ShimProducer(stage.broker.bootstrap, namespace=NAMESPACE, delay_levels=LEVELS) as producer:
        producer.send(Message(name, b"x", max_reconsume_times=own), timeout_s=GUARD_S)
    seen: list[int] = []

    def handle(message: Any) -> None:
        seen.append(message.reconsume_times)
        raise OSError

    stage.consumer(mine, handle, name, max_reconsume_times=limit)
    wait_until(lambda: len(read(stage.broker, NAMES.dead_letter(mine))) == 1, "a dead letter")
    assert seen == list(range(deliveries))
    assert read(stage.broker, NAMES.dead_letter(mine))[0].text("RECONSUME_TIMES") == str(deliveries)


def test_dead_letters_go_on_while_their_topic_grows_and_new_partitions_get_theirs(stage: Stage) -> None:
    name, mine = stage.topic(2), stage.group("grows")
    dead_topic = NAMES.dead_letter(mine)

    def refuse(_: Any) -> None:
        raise OSError

    one = stage.consumer(mine, refuse, name, max_reconsume_times=0)
    stopping, sent = threading.Event(), 0

    def send() -> None:
        nonlocal sent
        while not stopping.wait(0.01):
            stage.plain.produce(name, b"%d" % sent, b"%d" % sent)
            stage.plain.poll(0)
            sent += 1

    sender = threading.Thread(target=send)
    sender.start()
    try:
        wait_until(lambda: one.send_back_counts.dead >= 20, "dead letters")
        admin = AdminClient({"bootstrap.servers": stage.broker.bootstrap})
        admin.create_partitions([NewPartitions(dead_topic, 8)])[dead_topic].result(GUARD_S)
        wait_until(partial(waiting.has_records, admin, dead_topic, 7), "a new partition is used")
        enough = sent + 100
        wait_until(lambda: sent >= enough, "messages go on")
    finally:
        stopping.set()
        sender.join()
    assert stage.plain.flush(GUARD_S) == 0
    wait_until(lambda: one.send_back_counts.dead >= sent, "all are dead letters")
    found = {int(dead.value or b""): dead.partition for dead in read(stage.broker, dead_topic)}
    assert (sorted(found), one.send_back_counts.dead) == (list(range(sent)), sent), "each one, once"
    assert one.send_back_counts.not_stored == 0
    last = range(sent - 50, sent)
    assert [found[number] for number in last] == [murmur2(b"%d" % number, 8) for number in last]


def test_a_group_never_sees_the_retries_of_another(stage: Stage) -> None:
    name = stage.topic(2)
    seen: dict[str, list[int]] = {"fails": [], "works": []}
    retried = threading.Event()

    def fails(message: Any) -> None:
        seen["fails"].append(message.reconsume_times)
        if message.reconsume_times == 2:
            retried.set()
            return
        raise OSError

    stage.consumer(stage.group("fails"), fails, name)
    stage.consumer(stage.group("works"), lambda message: seen["works"].append(message.reconsume_times), name)
    stage.plain.produce(name, b"x")
    stage.plain.flush()
    assert retried.wait(GUARD_S)
    wait_until(lambda: bool(seen["works"]))
    assert seen == {"fails": [0, 1, 2], "works": [0]}


def test_the_first_retry_of_a_new_group_is_not_late(stage: Stage) -> None:
    name, mine = stage.topic(1), stage.group("fresh")
    stage.plain.produce(name, b"x")
    stage.plain.flush()
    back: list[int] = []

    def handle(message: Any) -> None:
        if message.reconsume_times == 0:
            raise OSError
        back.append(time.time_ns() // 1_000_000 - message.store_timestamp_ms)

    stage.consumer(mine, handle, name)
    wait_until(lambda: bool(back), "the retry")
    (wait,) = scheduled(stage.broker, mine)
    (again,) = read(stage.broker, NAMES.retry(mine))
    # RocketMQ: about 20 s; here 1 s, and whatever a busy machine takes
    assert 1_000 <= again.timestamp_ms - wait.timestamp_ms < 15_000
    assert back[0] < 15_000


def test_a_retry_whose_topic_no_member_has_any_more_is_dead_when_the_time_is_over(stage: Stage) -> None:
    name, other, mine = stage.topic(1), stage.topic(1), stage.group("moved")

    def handle(message: Any) -> None:
        del message
        raise RetryLater("1s")

    first = stage.consumer(mine, handle, name)
    stage.plain.produce(name, b"x")
    stage.plain.flush()
    wait_until(lambda: bool(scheduled(stage.broker, mine)), "a retry")
    first.stop()
    stage.consumer(mine, handle, other, send_on_timeout_ms=3_000)
    wait_until(lambda: bool(read(stage.broker, NAMES.dead_letter(mine))), "a dead letter")
    (dead,) = read(stage.broker, NAMES.dead_letter(mine))
    assert (dead.text("FAIL_CLASS"), dead.text("RETRY_TOPIC"), dead.value) == ("NoListener", name, b"x")
    assert "its last failure: RetryLater" in (dead.text("FAIL_TEXT") or "")
    came = read(stage.broker, NAMES.retry(mine))
    counts = [each.text("RECONSUME_TIMES") for each in came if each.text("UNHANDLED_SINCE_MS") is not None]
    assert counts
    assert set(counts) == {came[-1].text("RECONSUME_TIMES")}, "nothing is counted while it is sent on"
    assert came[-1].timestamp_ms - came[0].timestamp_ms >= 3_000


@pytest.mark.parametrize("is_old_first", [True, False])
def test_retries_of_a_topic_that_only_some_members_have_yet_wait_for_the_others(
    stage: Stage, is_old_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Of four queues, the new member gets the two that only it can read, so the old one gets the retry queue."""
    known, new_topic, mine = stage.topic(1), stage.topic(2), stage.group("rolling")
    handled: Counter[tuple[bytes, int]] = Counter()

    def handle(message: Any) -> None:
        handled[message.body, message.reconsume_times] += 1
        if message.reconsume_times == 0:
            raise ConnectionError("the bank does not answer")

    def old() -> PushConsumer:
        return stage.consumer(mine, handle, known)

    def new() -> PushConsumer:
        return stage.consumer(mine, handle, known, new_topic)

    first = old() if is_old_first else None
    new()
    first = first or old()
    wait_until(lambda: any(queue.topic == NAMES.retry(mine) for queue in first.state.queues), "its retry queue")
    for number in range(20):
        stage.plain.produce(new_topic, b"%d" % number)
    stage.plain.flush()
    wait_until(lambda: first.send_back_counts.sent_on >= 20, "every retry to be sent on by the old member")
    assert sum(handled.values()) == 20
    first.stop()
    new()
    wait_until(lambda: len(handled) == 40, "the second attempt of each message")
    assert {times for _, times in handled} == {0, 1}
    assert read(stage.broker, NAMES.dead_letter(mine)) == []
    alerts = [each for each in caplog.records if getattr(each, "event", "") == "consumer.sent-on"]
    assert [(each.topic, each.error_class) for each in alerts] == [(new_topic, "NoListener")]  # type: ignore[attr-defined]


def test_a_message_too_large_for_its_next_hop_is_dead_by_reference(stage: Stage) -> None:
    name, mine = stage.topic(1, {"max.message.bytes": "12000000"}), stage.group("large")
    body = os.urandom(9_000_000)
    large = Producer({"bootstrap.servers": stage.broker.bootstrap, "message.max.bytes": 12_000_000})
    large.produce(name, body, b"k", headers=[("a", b"b")])
    large.produce(name, b"small")
    large.flush()

    def handle(message: Any) -> None:
        if message.body != b"small":
            raise OSError("large")

    one = stage.consumer(mine, handle, name)
    wait_until(lambda: one.send_back_counts.dead_by_reference == 1, "a dead letter by reference")
    (dead,) = read(stage.broker, NAMES.dead_letter(mine))
    assert (dead.key, dead.value, dead.headers[-1]) == (b"k", None, ("a", b"b"))
    assert f"size_bytes={len(body)}" in (dead.text("FAIL_TEXT") or "")
    one.stop()
    assert committed(stage.broker, mine, name) == 2


def committed(broker: Broker, group: str, topic: str) -> int:
    """Sum of a group's positions in a topic."""
    client = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        places = [TopicPartition(topic, number) for number in client.list_topics(topic).topics[topic].partitions]
        return sum(max(0, item.offset) for item in client.committed(places, timeout=GUARD_S))
    finally:
        client.close()


def test_a_hop_that_cannot_be_stored_holds_the_commit_until_it_can(stage: Stage, admin: AdminClient) -> None:
    name, mine = stage.topic(1), stage.group("held")

    def handle(message: Any) -> None:
        if message.body == b"hopeless":
            raise DeadLetter("hopeless")

    one = stage.consumer(
        mine, handle, name, hop_timeout_ms=500, hop_back_off_ms=200, client={"allow.auto.create.topics": False}
    )
    dead_topic = NAMES.dead_letter(mine)
    admin.delete_topics([dead_topic])[dead_topic].result(GUARD_S)
    for body in (b"fine", b"hopeless", b"fine", b"fine"):
        stage.plain.produce(name, body)
    stage.plain.flush()
    wait_until(lambda: one.send_back_counts.not_stored >= 2, "two hops that were not stored")
    wait_until(lambda: committed(stage.broker, mine, name) == 1, "the commit stops before it")
    from rocketshim_topics import provision
    from rocketshim_topics.layout import Layout

    provision.ensure_topics(
        admin, Layout(NAMES, DelayLevels.parse(LEVELS)).for_group(mine, with_log=False), create=True
    )
    wait_until(lambda: committed(stage.broker, mine, name) == 4, "the commit goes on")
    times = {record.text("RECONSUME_TIMES") for record in read(stage.broker, dead_topic)}
    assert times == {"1"}, "twice, if an answer came after hop_timeout_ms"


PROGRAM = """
import json, os, sys, threading
from rocketshim import ConsumeFromWhere, PushConsumer
bootstrap, namespace, levels, group, topic, out = sys.argv[1:]
consumer = PushConsumer(bootstrap, group=group, namespace=namespace, delay_levels=levels,
    consume_from_where=ConsumeFromWhere.FIRST_OFFSET, persist_consumer_offset_interval_ms=200,
    client={"session.timeout.ms": 6000, "group.instance.id": "one"})
lock = threading.Lock()
file = open(out, "a", buffering=1)

@consumer.listener(topic)
def handle(message):
    number = int(message.body)
    with lock:
        file.write(json.dumps([message.msg_id, message.reconsume_times, number]) + "\\n")
    if number % 10 == 0 and message.reconsume_times < 2:
        raise OSError("not yet")

consumer.run()
"""


def test_a_consumer_killed_in_mid_listener_loses_nothing_and_repeats_recognisably(stage: Stage, tmp_path: Path) -> None:
    """Half of the records are sent by a plain Kafka producer without any header, half by our producer.

    A static member, so that nobody waits for the session of the one that was killed.
    """
    name, mine, count = stage.topic(3), stage.group("killed"), 600
    out = tmp_path / "seen"
    out.touch()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    command = [sys.executable, str(program), stage.broker.bootstrap, NAMESPACE, LEVELS, mine, name, str(out)]

    def seen() -> list[list[Any]]:
        return [json.loads(line) for line in out.read_text().splitlines() if line.endswith("]")]

    process = subprocess.Popen(command)
    try:
        with ShimProducer(stage.broker.bootstrap, namespace=NAMESPACE, delay_levels=LEVELS) as producer:
            for part in range(3):
                for number in range(part * count // 3, (part + 1) * count // 3):
                    if number % 2:
                        producer.send_async(Message(name, str(number).encode()))
                    else:
                        stage.plain.produce(name, str(number).encode())
                producer.flush()
                stage.plain.flush()
                in_the_middle = part * count // 3 + 50
                wait_until(lambda n=in_the_middle: len({each[2] for each in seen()}) > n, "progress")  # type: ignore[misc]
                process.send_signal(signal.SIGKILL)
                process.wait()
                process = subprocess.Popen(command)
        expected = {(number, times) for number in range(count) for times in range(3 if number % 10 == 0 else 1)}
        wait_until(
            lambda: {(number, times) for _, times, number in seen()} >= expected, "every attempt of every message"
        )
    finally:
        process.terminate()
        assert process.wait(GUARD_S) == 0
    attempts = Counter((number, times) for _, times, number in seen())
    assert set(attempts) == expected
    for number in range(count):  # whatever came twice came with the same identity
        assert len({msg_id for msg_id, _, of in seen() if of == number}) == 1 if attempts[number, 0] > 1 else True
    by_attempt: dict[tuple[Any, ...], set[bytes | None]] = {}
    for record in scheduled(stage.broker, mine):
        names = ("UNIQ_KEY", "CONSUMER_GROUP", "RECONSUME_TIMES", "REPLAY_ID")
        by_attempt.setdefault(tuple(record.text(each) for each in names), set()).add(record.value)
    assert all(len(values) == 1 for values in by_attempt.values())
    assert len(by_attempt) == 2 * len(range(0, count, 10))
    assert committed(stage.broker, mine, name) == count
