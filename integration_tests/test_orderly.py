"""Orderly consumption on the real broker: hand-overs, deaths, freezes, a group log that is lost."""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from rocketshim import ConsumeFromWhere, ConsumeOrderlyStatus, PushConsumer, TopicNames
from rocketshim.cli.app import main
from rocketshim.errors import TopicMismatchError
from rocketshim.local import Broker
from rocketshim_topics import DelayLevels, provision
from rocketshim_topics.layout import Layout

from . import waiting
from .orderly_chaos import Fleet, Sink

GUARD_S = 120.0
wait_until = partial(waiting.wait_until, within_s=GUARD_S)
SHORT: dict[str, Any] = {"lock_lease_ms": 6_000, "lock_hold_ms": 3_000, "lock_renew_ms": 1_000}


@dataclass(frozen=True)
class Stage:
    """What every test of this file needs; the namespace has its shared topics."""

    broker: Broker
    admin: AdminClient
    namespace: str
    topic: Callable[..., str]
    group: str
    consumer: Callable[..., PushConsumer]

    @property
    def names(self) -> TopicNames:
        return TopicNames(self.namespace)

    @property
    def layout(self) -> Layout:
        return Layout(self.names, DelayLevels.default())

    def send(self, topic: str, count: int, partitions: int = 1, key: Callable[[int], bytes] | None = None) -> None:
        producer = Producer({"bootstrap.servers": self.broker.bootstrap})
        for number in range(count):
            key_of = None if key is None else key(number)
            producer.produce(topic, b"%d" % number, key=key_of, partition=number % partitions)
            producer.poll(0)
        producer.flush()


@pytest.fixture
def stage(
    broker: Broker, admin: AdminClient, namespace: str, topic: Callable[..., str], group: Callable[..., str]
) -> Iterator[Stage]:
    provision.ensure_topics(admin, Layout(TopicNames(namespace), DelayLevels.default()).shared())
    name = group()
    made: list[PushConsumer] = []

    def make(listener: Callable[..., Any], *topics: str, **values: Any) -> PushConsumer:
        one = PushConsumer(
            broker.bootstrap,
            group=name,
            namespace=namespace,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            **{"persist_consumer_offset_interval_ms": 200, **SHORT, **values},
        )
        for each in topics:
            one.register_message_listener(each, listener, orderly=True)
        one.start()
        made.append(one)
        return one

    yield Stage(broker, admin, namespace, topic, name, make)
    for one in made:
        one.stop(10)


class Seen:
    """What a listener was called with."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls: list[tuple[int, int, int, int]] = []

    def note(self, message: Any, context: Any) -> None:
        with self.lock:
            call = (message.queue_id, message.queue_offset, message.reconsume_times, context.fencing_token)
            self.calls.append(call)

    def offsets(self, queue: int) -> list[int]:
        with self.lock:
            return [offset for number, offset, _, _ in self.calls if number == queue]


def test_queues_change_hands_in_order_and_without_repeats_when_members_come_and_go(stage: Stage) -> None:
    topic = stage.topic(4)
    seen = Seen()
    first = stage.consumer(seen.note, topic)
    stage.send(topic, 400, 4)
    wait_until(lambda: len(seen.calls) >= 400, "the first messages")
    stage.consumer(seen.note, topic)
    stage.send(topic, 400, 4)
    wait_until(lambda: len(seen.calls) >= 800, "messages in a rebalance")
    first.stop()
    stage.send(topic, 400, 4)
    wait_until(lambda: len(seen.calls) >= 1_200, "messages after a clean stop")
    for queue in range(4):
        assert seen.offsets(queue) == list(range(300))
        tokens = [token for number, _, _, token in seen.calls if number == queue]
        assert tokens == sorted(tokens)


def test_a_failing_message_keeps_its_count_over_a_restart_and_dies_at_the_limit(stage: Stage) -> None:
    topic = stage.topic(1)
    seen = Seen()

    def fail(message: Any, context: Any) -> Any:
        seen.note(message, context)
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT if message.queue_offset == 0 else None

    stage.send(topic, 3)
    options = {"max_reconsume_times": 6, "suspend_current_queue_time_ms": 100}
    first = stage.consumer(fail, topic, **options)
    wait_until(lambda: len(seen.calls) >= 3, "three attempts")
    first.stop()
    stage.consumer(fail, topic, **options)
    wait_until(lambda: seen.offsets(0)[-2:] == [1, 2], "the messages behind it")
    counts = [times for _, offset, times, _ in seen.calls if offset == 0]
    assert counts == list(range(7))


def test_one_failing_key_holds_up_no_other(stage: Stage) -> None:
    topic = stage.topic(1)
    seen = Seen()
    release = threading.Event()

    def fail(message: Any, context: Any) -> None:
        seen.note(message, context)
        if message.queue_offset == 0 and not release.is_set():
            raise ValueError("not yet")

    stage.send(topic, 200, key=lambda number: b"bad" if number in {0, 100} else b"good-%d" % (number % 7))
    stage.consumer(fail, topic, order="key", suspend_current_queue_time_ms=50)
    wait_until(lambda: len(set(seen.offsets(0))) == 199, "all others")
    assert 100 not in seen.offsets(0)
    release.set()
    wait_until(lambda: 100 in seen.offsets(0), "the next of the key")
    good = [offset for offset in seen.offsets(0) if offset not in {0, 100}]
    for residue in range(7):
        of_key = [offset for offset in good if offset % 7 == residue]
        assert of_key == sorted(of_key)


def test_a_log_without_append_times_is_refused_at_start(stage: Stage) -> None:
    topic = stage.topic(1)
    spec = stage.layout.group_log(stage.group)
    stage.admin.create_topics([NewTopic(spec.name, 1)])[spec.name].result(GUARD_S)
    with pytest.raises(TopicMismatchError, match="LogAppendTime"):
        stage.consumer(Seen().note, topic)


def test_the_command_line_shows_locks_and_members_and_frees_the_queue_of_a_dead_owner(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = stage.topic(2)
    seen = Seen()
    stage.send(topic, 20, 2)
    stage.consumer(seen.note, topic, client_id="worker-1")
    wait_until(lambda: len(seen.calls) >= 20, "the messages")
    where = ["--bootstrap", stage.broker.bootstrap, "--namespace", stage.namespace]

    assert main(["group", "locks", stage.group, *where, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["locks"]
    assert {(row["topic"], row["partition"]) for row in shown} >= {(topic, 0), (topic, 1)}
    assert {row["owner"] for row in shown} == {"worker-1"}
    token = next(row["token"] for row in shown if row["topic"] == topic and row["partition"] == 1)
    assert main(["group", "members", stage.group, *where, "--json"]) == 0
    assert [row["client_id"] for row in json.loads(capsys.readouterr().out)["members"]] == ["worker-1"]
    assert main(["group", "locks", stage.group, *where]) == 0
    assert "worker-1" in capsys.readouterr().out

    assert main(["group", "release", stage.group, f"{topic}/1", *where]) == 2
    assert main(["group", "release", stage.group, f"{topic}/1", *where, "--owner-is-gone"]) == 0

    def taken_anew() -> bool:
        stage.send(topic, 2, 2)
        return any(queue == 1 and mine > token for queue, _, _, mine in seen.calls)

    wait_until(taken_anew, "the owner, which lives, stops and claims anew")
    with seen.lock:
        offsets = [offset for queue, offset, _, _ in seen.calls if queue == 1]
    assert sorted(set(offsets)) == list(range(max(offsets) + 1))


# --- everything at once -----------------------------------------------------------------------------------------


class Trouble:
    """What goes wrong, a step every three seconds."""

    def __init__(self, stage: Stage, fleet: Fleet) -> None:
        self.stage, self.fleet = stage, fleet
        self.log = stage.names.group_log(stage.group)
        self.lost_logs = 0
        self.ended = 0
        self._steps = {
            1: self._kill,
            2: self._freeze,
            4: self._truncate,
            5: self._kill,
            6: self._freeze,
            7: self._freeze,
            11: self._kill,
            12: self._create_again,
            15: self._freeze,
        }

    def run(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        step = 0
        while time.monotonic() < until:
            step += 1
            self._steps.get(step % 16, lambda: None)()
            deadline = time.monotonic() + 3.0
            while time.monotonic() < deadline:
                self.fleet.thaw()
                self.ended += self.fleet.replace_ended()
                time.sleep(0.05)

    def _kill(self) -> None:
        member = self.fleet.any()
        if member is not None:
            self.fleet.kill(member)

    def _freeze(self) -> None:
        member = self.fleet.any()
        if member is not None:
            self.fleet.freeze(member, 12.0)  # twice the lease; its listeners are inside their calls

    def _create_again(self) -> None:
        admin = self.stage.admin
        admin.delete_topics([self.log])[self.log].result(GUARD_S)
        # a broker still shows for a moment what it has just deleted, and what is shown is not created
        wait_until(lambda: self.log not in admin.list_topics(timeout=GUARD_S).topics, "the log is gone")
        provision.ensure_topics(self.stage.admin, [self.stage.layout.group_log(self.stage.group)])
        self.lost_logs += 1

    def _truncate(self) -> None:
        end = _end_of(self.stage, self.log)  # whoever is frozen has not read all of it
        for future in self.stage.admin.delete_records([TopicPartition(self.log, 0, end)]).values():
            future.result(GUARD_S)
        self.lost_logs += 1


class Source(threading.Thread):
    """Writes to every queue ten times a second; `ends` is where each queue ends."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(daemon=True)
        self.ends = dict.fromkeys(range(partitions), 0)
        self.over = threading.Event()
        self._address, self._topic = bootstrap, topic

    def run(self) -> None:
        producer = Producer({"bootstrap.servers": self._address, "acks": "all", "enable.idempotence": True})
        while not self.over.wait(0.1):
            for partition in self.ends:
                producer.produce(self._topic, None if self.ends[partition] % 2 else b"", partition=partition)
                self.ends[partition] += 1
            producer.poll(0)
        producer.flush()

    def stop(self) -> None:
        self.over.set()
        self.join(GUARD_S)


def chaos(stage: Stage, logs: Path, *, seconds: float, members: int = 6, partitions: int = 24) -> str:
    """Consume while members die and freeze and the group log is lost; hold the sink's account against the promise."""
    topic = stage.topic(partitions)
    sink = Sink()
    fleet = Fleet(stage.broker.bootstrap, stage.namespace, stage.group, topic, sink=sink, count=members, logs=logs)
    source = Source(stage.broker.bootstrap, topic, partitions)
    trouble = Trouble(stage, fleet)
    source.start()
    try:
        wait_until(lambda: sink.count > partitions, "the first messages")
        trouble.run(seconds)
        source.stop()
        fleet.thaw(everybody=True)
        deadline = time.monotonic() + GUARD_S
        while not sink.reached(source.ends):
            trouble.ended += fleet.replace_ended()
            assert time.monotonic() < deadline, _missing(sink, source.ends, logs)
            time.sleep(0.1)
    finally:
        source.stop()
        fleet.stop()
        sink.close()
    repeats = sum(sink.queues[queue].check(end) for queue, end in source.ends.items())
    handovers = sum(written.handovers() for written in sink.queues.values())
    refused = sum(len(written.refused) for written in sink.queues.values())
    assert trouble.ended == 0, f"{trouble.ended} members ended by themselves: {_tails(logs)}"
    assert handovers > 0
    return (
        f"{sum(source.ends.values())} messages, {partitions} queues, {members} members, {fleet.kills} killed, "
        f"{fleet.freezes} frozen, log lost {trouble.lost_logs} times: {handovers} hand-overs, {repeats} repeats, "
        f"{refused} late writes refused"
    )


def _end_of(stage: Stage, topic: str) -> int:
    reader = Consumer({"bootstrap.servers": stage.broker.bootstrap, "group.id": "reader"})
    try:
        end: int = reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=GUARD_S)[1]
        return end
    finally:
        reader.close()


def _missing(sink: Sink, ends: dict[int, int], logs: Path) -> str:
    behind = {q: (len(sink.queues[q].accepted), end) for q, end in ends.items() if not sink.reached({q: end})}
    return f"not all came within {GUARD_S} s: {behind}; {_tails(logs)}"


def _tails(logs: Path) -> str:
    return "\n".join(f"{path.name}: {path.read_text()[-2_000:]}" for path in sorted(logs.glob("*.log")))


def test_order_holds_while_members_die_and_freeze_and_the_log_is_lost(stage: Stage, tmp_path: Path) -> None:
    logging.getLogger("rocketshim.tests").info(chaos(stage, tmp_path, seconds=40))


@pytest.mark.long
@pytest.mark.timeout(1_800)
def test_order_holds_for_ten_minutes(stage: Stage, tmp_path: Path) -> None:
    account = chaos(stage, tmp_path, seconds=600)
    (tmp_path / "account.txt").write_text(account)
    print(account)  # noqa: T201 - for docs/reliability.md
