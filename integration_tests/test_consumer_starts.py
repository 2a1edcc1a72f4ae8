"""Where queues begin on a real broker: new groups, queues that are added, starts that are unknown for a while."""

import os
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from rocketshim import ConsumeFromWhere, DelayLevels, MessageModel, PushConsumer, TopicNames
from rocketshim.consumer_metrics import ConsumerState
from rocketshim.errors import ConsumerError
from rocketshim.kafka.clients import Clients, confluent_clients
from rocketshim_local import Broker
from rocketshim_topics import provision
from rocketshim_topics.layout import Layout

from . import waiting

GUARD_S = 60.0
wait_until = partial(waiting.wait_until, within_s=GUARD_S)
NAMESPACE = f"starts{os.getpid()}"
NAMES = TopicNames(NAMESPACE)


@pytest.fixture(scope="module", autouse=True)
def shared_topics(admin: AdminClient) -> None:
    provision.ensure_topics(admin, Layout(NAMES, DelayLevels.default()).shared())


class Heard:
    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self._lock = threading.Lock()

    def __call__(self, message: Any) -> None:
        with self._lock:
            self.bodies.append(message.body)


def member(broker: Broker, group: str, where: ConsumeFromWhere, **values: Any) -> PushConsumer:
    return PushConsumer(
        broker.bootstrap,
        group=group,
        namespace=NAMESPACE,
        consume_from_where=where,
        rebalance_interval_ms=200,
        client={"topic.metadata.refresh.interval.ms": 500},
        **{"persist_consumer_offset_interval_ms": 100, **values},
    )


def send(broker: Broker, topic: str, *bodies: bytes, partition: int = 0, timestamp_ms: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for body in bodies:
        producer.produce(topic, body, partition=partition, timestamp=timestamp_ms)
    assert producer.flush(GUARD_S) == 0


def committed(broker: Broker, group: str, topic: str, partitions: int) -> list[int]:
    """Of each partition; nothing while the group's coordinator is not there yet."""
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        found = reader.committed([TopicPartition(topic, number) for number in range(partitions)], timeout=GUARD_S)
    except KafkaException:
        return []
    finally:
        reader.close()
    return [item.offset for item in found]


class Unanswered:
    """A Kafka client that is not told for a while what its group has committed."""

    def __init__(self, inner: Any, times: int) -> None:
        self._inner = inner
        self.left = times

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        mine = {name: lambda _, partitions, call=call: call(self, partitions) for name, call in callbacks.items()}
        self._inner.subscribe(topics, **mine)

    def committed(self, partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        if self.left:
            self.left -= 1
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        found: list[TopicPartition] = self._inner.committed(partitions, timeout=timeout)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("mode", ["concurrent", "orderly", "broadcasting"])
def test_what_is_sent_directly_after_start_is_received_by_a_new_group_at_the_end(
    broker: Broker, group: Callable[..., str], topic: Callable[..., str], tmp_path: Path, mode: str
) -> None:
    orders, mine, heard = topic(3), group(), Heard()
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})
    for number in range(3):
        producer.produce(orders, b"old", partition=number)
    assert producer.flush(GUARD_S) == 0
    model = MessageModel.BROADCASTING if mode == "broadcasting" else MessageModel.CLUSTERING
    consumer = member(
        broker,
        mine,
        ConsumeFromWhere.LAST_OFFSET,
        young_queue_max_messages=0,
        message_model=model,
        offset_store_dir=str(tmp_path) if mode == "broadcasting" else None,
    )
    consumer.register_message_listener(orders, heard, orderly=mode == "orderly")
    consumer.start(wait_s=GUARD_S)
    try:
        for number in range(30):
            producer.produce(orders, b"%d" % number, partition=number % 3)
        assert producer.flush(GUARD_S) == 0
        wait_until(lambda: len(heard.bodies) >= 30)
    finally:
        consumer.stop()
    assert sorted(heard.bodies) == sorted(b"%d" % number for number in range(30))


def test_a_start_that_is_told_late_is_kept_to(
    broker: Broker, group: Callable[..., str], topic: Callable[..., str], admin: AdminClient
) -> None:
    """LAST_OFFSET on a log that begins above 0: not one old message, every new one, and the start is committed."""
    orders, mine, heard = topic(3), group(), Heard()
    for number in range(3):
        send(broker, orders, *[b"old"] * 50, partition=number)
    cut = admin.delete_records([TopicPartition(orders, number, 20) for number in range(3)])
    for future in cut.values():
        future.result(GUARD_S)
    made: list[Unanswered] = []
    real = confluent_clients()

    def unanswered(config: Any) -> Any:
        made.append(Unanswered(real.consumer(config), 3))
        return made[-1]

    clients = Clients(unanswered, real.producer, real.admin)
    consumer = member(broker, mine, ConsumeFromWhere.LAST_OFFSET, clients=clients)
    consumer.register_message_listener(orders, heard)
    with consumer:
        wait_until(lambda: committed(broker, mine, orders, 3) == [50, 50, 50], "the starts are committed")
        for number in range(3):
            send(broker, orders, *[b"new"] * 10, partition=number)
        wait_until(lambda: len(heard.bodies) >= 30)
        wait_until(lambda: committed(broker, mine, orders, 3) == [60, 60, 60])
    assert made[0].left == 0
    assert heard.bodies == [b"new"] * 30


@pytest.mark.parametrize("where", [ConsumeFromWhere.LAST_OFFSET, ConsumeFromWhere.TIMESTAMP])
def test_the_policy_counts_for_queues_that_were_there_and_no_others(
    broker: Broker, group: Callable[..., str], topic: Callable[..., str], admin: AdminClient, where: ConsumeFromWhere
) -> None:
    """What lies in a queue that was added later was sent to a topic the group was consuming: nothing of it is lost."""
    orders, mine, heard = topic(1), group(), Heard()
    send(broker, orders, b"old", timestamp_ms=1_000_000)
    is_timestamp = where is ConsumeFromWhere.TIMESTAMP
    after = {"consume_timestamp_ms": 2_000_000} if is_timestamp else {"young_queue_max_messages": 0}
    first = member(broker, mine, where, **after)
    first.register_message_listener(orders, heard)
    with first:
        wait_until(lambda: committed(broker, mine, orders, 1) == [1], "the start is committed before anything is read")
    waiting.add_partitions(admin, orders, 2)
    send(broker, orders, b"while nobody consumed", partition=1, timestamp_ms=1_500_000)
    send(broker, orders, b"new", timestamp_ms=3_000_000)
    second = member(broker, mine, where, **after)
    second.register_message_listener(orders, heard)
    with second:
        wait_until(lambda: len(set(heard.bodies)) >= 2)
        waiting.add_partitions(admin, orders, 3)
        send(broker, orders, b"before it was noticed", partition=2, timestamp_ms=1_500_000)
        wait_until(lambda: len(set(heard.bodies)) >= 3)
    assert set(heard.bodies) == {b"before it was noticed", b"new", b"while nobody consumed"}


def test_a_new_group_that_crashes_before_its_first_commit_loses_nothing(
    broker: Broker, group: Callable[..., str], topic: Callable[..., str]
) -> None:
    """LAST_OFFSET: where it began is committed before the first message is handed out, and counts after the crash."""
    orders, mine = topic(1), group()
    send(broker, orders, b"old")
    abandoned = threading.Event()
    reached = threading.Event()

    def hangs(message: Any) -> None:
        del message
        reached.set()
        abandoned.wait(GUARD_S)

    at_end = {"young_queue_max_messages": 0}
    first = member(broker, mine, ConsumeFromWhere.LAST_OFFSET, persist_consumer_offset_interval_ms=600_000, **at_end)
    first.register_message_listener(orders, hangs)
    first.start()
    wait_until(lambda: committed(broker, mine, orders, 1) == [1])
    send(broker, orders, uuid.uuid4().bytes)
    assert reached.wait(GUARD_S)
    with suppress(ConsumerError):  # not in that time
        first.stop(timeout_s=0)  # nothing was finished, so nothing is committed, as after a crash
    abandoned.set()
    heard = Heard()
    second = member(broker, mine, ConsumeFromWhere.LAST_OFFSET, **at_end)
    second.register_message_listener(orders, heard)
    with second:
        wait_until(lambda: len(heard.bodies) == 1)
    assert heard.bodies != [b"old"]


def test_a_new_group_begins_at_the_start_of_young_queues_and_at_the_end_of_others(
    broker: Broker, group: Callable[..., str], topic: Callable[..., str], admin: AdminClient
) -> None:
    """LAST_OFFSET as RocketMQ does it: young is a queue that never lost a message and is small."""
    orders, mine, heard = topic(3), group(), Heard()
    for number, count in enumerate((5, 5, 6)):
        send(broker, orders, *[b"%d" % number] * count, partition=number)
    (cut,) = admin.delete_records([TopicPartition(orders, 1, 2)]).values()
    cut.result(GUARD_S)
    consumer = member(broker, mine, ConsumeFromWhere.LAST_OFFSET, young_queue_max_messages=5)
    consumer.register_message_listener(orders, heard)
    with consumer:
        wait_until(lambda: committed(broker, mine, orders, 3) == [5, 5, 6])
        send(broker, orders, b"new", partition=2)
        wait_until(lambda: len(heard.bodies) >= 6)
    assert sorted(heard.bodies) == [b"0"] * 5 + [b"new"]


def test_partitions_added_to_the_groups_own_topics_are_read_and_written_within_seconds(
    broker: Broker, admin: AdminClient, topic: Callable[..., str], group: Callable[..., str]
) -> None:
    """With the interval that users have: librdkafka's own would be five minutes."""
    name, mine = topic(1), group("grown")
    heard = Heard()

    def retries(state: ConsumerState) -> set[int]:
        return {queue.queue_id for queue in state.queues if queue.topic == NAMES.retry(mine)}

    def handle(message: Any) -> None:
        heard(message)
        if message.body == b"dies":
            raise ValueError

    consumer = PushConsumer(
        broker.bootstrap,
        group=mine,
        namespace=NAMESPACE,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        max_reconsume_times=0,
    )
    consumer.register_message_listener(name, handle)
    send(broker, name, b"dies", b"lives")
    with consumer:
        wait_until(lambda: len(heard.bodies) == 2, "it reads, and has sent to the dead letters")
        waiting.add_partitions(admin, NAMES.retry(mine), 8)
        waiting.add_partitions(admin, NAMES.dead_letter(mine), 8)
        wait_until(lambda: consumer.state is not None and retries(consumer.state) == set(range(8)), "all are read")
        reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": mine})
        reader.list_topics(NAMES.dead_letter(mine), timeout=GUARD_S)

        def is_used() -> bool:
            send(broker, name, *[b"dies"] * 20)
            added = [TopicPartition(NAMES.dead_letter(mine), number) for number in range(1, 8)]
            return any(reader.get_watermark_offsets(each, timeout=GUARD_S)[1] for each in added)

        wait_until(is_used, "dead letters go to new partitions")
        reader.close()
