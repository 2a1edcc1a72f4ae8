"""Orderly consumption on the real broker: order, counts, keys, hand-overs, the command line."""

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import rocketshim
from rocketshim import ConsumeFromWhere, ConsumeOrderlyStatus, Message, MessageModel, PushConsumer, TopicNames
from rocketshim.cli.app import main
from rocketshim.errors import TopicMismatchError
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, partition_for, provision
from rocketshim_topics.layout import Layout

from . import waiting

GUARD_S = 120.0
wait_until = partial(waiting.wait_until, within_s=GUARD_S)
RENEWING: dict[str, Any] = {"lock_lease_ms": 60_000, "lock_hold_ms": 50_000, "lock_renew_ms": 1_000}


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
            **{"persist_consumer_offset_interval_ms": 200, **RENEWING, **values},
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
        self.calls: list[tuple[int, int, int, Any]] = []

    def note(self, message: Any, context: Any) -> None:
        with self.lock:
            call = (message.queue_id, message.queue_offset, message.reconsume_times, context.fencing_token)
            self.calls.append(call)

    def offsets(self, queue: int) -> list[int]:
        with self.lock:
            return [offset for number, offset, _, _ in self.calls if number == queue]


def test_what_is_sent_in_order_by_a_sharding_key_or_by_kafkas_key_is_handled_in_that_order(stage: Stage) -> None:
    topic = stage.topic(4)
    lock = threading.Lock()
    handled: dict[str, list[int]] = defaultdict(list)

    def note(message: Any) -> None:
        of, number = message.body.decode().split()
        with lock:
            handled[of].append(int(number))

    for _ in range(2):
        stage.consumer(note, topic)
    with rocketshim.Producer(stage.broker.bootstrap, namespace=stage.namespace) as producer:
        for number in range(20):
            for order in ("o-1", "o-2", "支付"):
                producer.send_orderly(Message(topic, f"sharded-{order} {number}".encode()), order, timeout_s=GUARD_S)
                keyed = Message(topic, f"keyed-{order} {number}".encode(), key=order)
                sent = producer.send(keyed, timeout_s=GUARD_S)
                assert sent.message_queue.queue_id == partition_for(order.encode(), 4), "as the Java client chooses"
    wait_until(lambda: sum(map(len, handled.values())) >= 6 * 20, "everything")
    assert all(numbers == list(range(20)) for numbers in handled.values())


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


def test_by_hand_only_a_commit_commits_and_a_rollback_brings_back_what_is_open(stage: Stage) -> None:
    topic = stage.topic(1)
    seen = Seen()
    rolled_back = threading.Event()

    def by_hand(message: Any, context: Any) -> Any:
        seen.note(message, context)
        context.auto_commit = False
        if message.queue_offset == 2:
            return ConsumeOrderlyStatus.COMMIT
        if message.queue_offset == 4 and not rolled_back.is_set():
            rolled_back.set()
            return ConsumeOrderlyStatus.ROLLBACK
        return ConsumeOrderlyStatus.SUCCESS

    stage.send(topic, 6)
    first = stage.consumer(by_hand, topic, suspend_current_queue_time_ms=10)
    wait_until(lambda: len(seen.calls) >= 8, "the messages, two of them again")
    first.stop()
    assert seen.offsets(0) == [0, 1, 2, 3, 4, 3, 4, 5]
    stage.consumer(by_hand, topic)
    wait_until(lambda: len(seen.calls) >= 11, "what was not committed")
    assert seen.offsets(0)[8:] == [3, 4, 5]
    assert {times for _, _, times, _ in seen.calls} == {0}, "a rollback counts nothing"


def test_a_message_of_a_mixed_batch_that_is_at_its_limit_is_dead_lettered_once(stage: Stage) -> None:
    topic = stage.topic(1)
    done = threading.Event()
    tried: list[int] = []

    def fail(messages: list[Any]) -> Any:
        tried.extend(message.queue_offset for message in messages)
        if min(message.reconsume_times for message in messages) < 3:
            return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT
        if messages[-1].queue_offset == 3:
            done.set()
        return None

    with rocketshim.Producer(stage.broker.bootstrap, namespace=stage.namespace) as producer:
        for number in range(4):
            limit = 1 if number == 1 else None
            producer.send(Message(topic, b"%d" % number, max_reconsume_times=limit), timeout_s=GUARD_S)
    stage.consumer(fail, topic, consume_message_batch_max_size=4, suspend_current_queue_time_ms=10)
    assert done.wait(GUARD_S)
    assert [tried.count(offset) for offset in range(4)] == [4, 2, 4, 4]
    letters = Consumer({"bootstrap.servers": stage.broker.bootstrap, "group.id": "reader"})
    where = TopicPartition(stage.names.dead_letter(stage.group), 0)
    assert letters.get_watermark_offsets(where, timeout=GUARD_S) == (0, 1)
    letters.close()


def test_broadcast_in_order_each_member_handles_everything_without_a_lock(stage: Stage, tmp_path: Path) -> None:
    topic = stage.topic(2)
    members = [Seen(), Seen()]
    stage.send(topic, 40, 2)
    for number, seen in enumerate(members):
        stage.consumer(
            seen.note,
            topic,
            message_model=MessageModel.BROADCASTING,
            client_id=f"member-{number}",
            offset_store_dir=str(tmp_path),
        )
    for seen in members:
        wait_until(lambda seen=seen: len(seen.calls) >= 40, "everything")  # type: ignore[misc]
        assert [seen.offsets(queue) for queue in (0, 1)] == [list(range(20))] * 2
        assert {token for _, _, _, token in seen.calls} == {None}
    assert stage.names.group_log(stage.group) not in stage.admin.list_topics(timeout=GUARD_S).topics


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

    wait_until(taken_anew, "the owner, which lives, stops and claims again")
    with seen.lock:
        offsets = [offset for queue, offset, _, _ in seen.calls if queue == 1]
    assert sorted(set(offsets)) == list(range(max(offsets) + 1))
