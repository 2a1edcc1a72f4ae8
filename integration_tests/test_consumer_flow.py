"""How a push consumer reads and hands over, on the real broker: limits, suspension, batches, hooks, retry policies."""

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from rocketshim import AfterDelay, ConsumeFromWhere, MessageQueue, PushConsumer, TopicNames
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, provision
from rocketshim_topics.layout import Layout

from . import waiting

GUARD_S = 90.0
wait_until = partial(waiting.wait_until, within_s=GUARD_S)
NAMESPACE = f"flow{os.getpid()}"
NAMES = TopicNames(NAMESPACE)


@pytest.fixture
def make(broker: Broker, admin: AdminClient) -> Iterator[Callable[..., PushConsumer]]:
    """Make a consumer: `make(group, topic, listener, **settings)`; not started; stopped after the test."""
    provision.ensure_topics(admin, Layout(NAMES, DelayLevels.default()).shared(), create=True)
    made: list[PushConsumer] = []

    def one(group: str, topic: str, listener: Callable[..., Any], **values: Any) -> PushConsumer:
        consumer = PushConsumer(
            broker.bootstrap,
            group=group,
            namespace=NAMESPACE,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            persist_consumer_offset_interval_ms=100,
            **values,
        )
        consumer.register_message_listener(topic, listener)
        made.append(consumer)
        return consumer

    yield one
    for consumer in made:
        consumer.stop(1)


class Seen:
    """Messages as they were handed over; a listener of single messages and of batches."""

    def __init__(self) -> None:
        self.times: Counter[bytes] = Counter()
        self.calls: list[int] = []
        self._lock = threading.Lock()

    def __call__(self, messages: Any, context: Any) -> None:
        del context
        batch = messages if isinstance(messages, list) else [messages]
        with self._lock:
            self.calls.append(len(batch))
            self.times.update(message.body for message in batch)


def send(broker: Broker, topic: str, numbers: range, *, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5})
    for number in numbers:
        producer.produce(topic, b"%d" % number, partition=partition)
    assert producer.flush(GUARD_S) == 0


def committed(broker: Broker, group: str, topic: str, partition: int = 0) -> int:
    """-1 for nothing, and while the group's coordinator is not there yet."""
    client = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        (found,) = client.committed([TopicPartition(topic, partition)], timeout=GUARD_S)
    except KafkaException:
        return -1
    else:
        return found.offset
    finally:
        client.close()


def scheduled(broker: Broker) -> Counter[tuple[bytes | None, bytes | None]]:
    """Body and `DELAY_MS` of every record of the schedule topic."""
    client = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "look", "enable.partition.eof": True})
    places = client.list_topics(NAMES.schedule, timeout=GUARD_S).topics[NAMES.schedule].partitions
    client.assign([TopicPartition(NAMES.schedule, number, 0) for number in places])
    found: Counter[tuple[bytes | None, bytes | None]] = Counter()
    left = len(places)
    while left:
        message = client.poll(GUARD_S)
        assert message is not None
        if message.error() is not None:
            left -= 1
            continue
        found[message.value(), dict(message.headers() or ()).get("DELAY_MS")] += 1
    client.close()
    return found


def test_a_message_that_stands_holds_its_queue_within_the_span_and_no_other(
    broker: Broker, topic: Callable[..., str], group: Callable[..., str], make: Callable[..., PushConsumer]
) -> None:
    name, mine, seen, go = topic(2), group(), Seen(), threading.Event()
    send(broker, name, range(5_000), partition=0)
    send(broker, name, range(5_000, 10_000), partition=1)

    def listener(message: Any, context: Any) -> None:
        if message.body == b"0":
            assert go.wait(GUARD_S)
        seen(message, context)

    consumer = make(mine, name, listener, consume_concurrently_max_span=500, pull_batch_size=100)
    try:
        with consumer:
            wait_until(lambda: committed(broker, mine, name, 1) == 5_000, "the other queue is through")

            def why() -> list[str]:
                queues = consumer.state.queues if consumer.state is not None else ()
                return [queue.paused for queue in queues if (queue.topic, queue.queue_id) == (name, 0)]

            wait_until(lambda: why() == ["FLOW"], "the queue is paused")
            behind = [body for body in seen.times if int(body) < 5_000]
            assert len(behind) <= 500 + 100 + 1  # a fetch may come on top of the span
            assert committed(broker, mine, name) == 0
            go.set()
            wait_until(lambda: committed(broker, mine, name) == 5_000, "it goes on")
    finally:
        go.set()
    assert set(seen.times.values()) == {1}
    assert len(seen.times) == 10_000


def test_a_coroutine_that_stands_holds_its_queue_within_the_span_until_it_times_out(
    broker: Broker, topic: Callable[..., str], group: Callable[..., str], make: Callable[..., PushConsumer]
) -> None:
    name, mine, span, fetched = topic(1), group(), 500, 100
    go, late = threading.Event(), threading.Event()
    times: Counter[int] = Counter()  # the event loop's thread alone writes it
    too_early: list[int] = []
    send(broker, name, range(70_000, 72_000))

    async def listener(message: Any) -> None:
        number = message.queue_offset
        times[number] += 1
        if number == 0:
            await asyncio.to_thread(go.wait, GUARD_S)
            late.set()
            raise OSError  # too late: it was sent back when it timed out
        if number > span + fetched + 10 and not consumer.send_back_counts.retried:  # a few were on their way
            too_early.append(number)

    consumer = make(
        mine, name, listener,
        consume_concurrently_max_span=span, pull_batch_size=fetched, consume_timeout_ms=1_000, async_concurrency=50,
    )  # fmt: skip
    try:
        with consumer:
            wait_until(lambda: committed(broker, mine, name) == 2_000, "the commit passes what timed out")
            assert not late.is_set()
            go.set()
            assert late.wait(GUARD_S)
    finally:
        go.set()
    assert too_early == []
    assert times == Counter(range(2_000))
    assert {hop: count for hop, count in scheduled(broker).items() if hop[0] == b"70000"} == {(b"70000", b"10000"): 1}


def test_suspended_it_handles_and_commits_what_it_has_and_reads_nothing_more(
    broker: Broker, topic: Callable[..., str], group: Callable[..., str], make: Callable[..., PushConsumer]
) -> None:
    name, mine, seen = topic(1), group(), Seen()
    send(broker, name, range(100))
    consumer = make(mine, name, seen, consume_thread_min=1)
    with consumer:
        wait_until(lambda: len(seen.times) == 100)
        consumer.suspend()
        wait_until(lambda: committed(broker, mine, name) == 100)
        send(broker, name, range(100, 200))
        consumer.seek(MessageQueue(name, queue_id=0), 50)  # another turn of the loop, and it still reads nothing
        assert consumer.state is not None
        assert len(seen.times) == 100
        consumer.update_core_pool_size(8)
        consumer.resume()
        wait_until(lambda: committed(broker, mine, name) == 200)
        wait_until(lambda: consumer.state is not None and consumer.state.workers == 8, "the pool has grown")
    assert sorted(seen.times) == sorted(b"%d" % number for number in range(200))
    assert all(seen.times[b"%d" % number] == (2 if 50 <= number < 100 else 1) for number in range(200))


def test_of_a_batch_what_lies_behind_the_ack_index_is_retried_and_hooks_see_each_call(
    broker: Broker, topic: Callable[..., str], group: Callable[..., str], make: Callable[..., PushConsumer]
) -> None:
    name, mine, seen = topic(1), group(), Seen()
    send(broker, name, range(64))

    class Watch:
        def __init__(self) -> None:
            self.labels: Counter[str] = Counter()
            self.asked = 0

        def consume_message_before(self, context: Any) -> None:
            context.kept["count"] = len(context.messages)

        def consume_message_after(self, context: Any) -> None:
            self.labels[context.return_type.value] += context.kept["count"]

        def filter_message(self, message: Any) -> bool:
            self.asked += 1
            return bool(message.body != b"63")

    def listener(messages: Any, context: Any) -> None:
        seen(messages, context)
        if any(message.body == b"7" for message in messages):
            raise OSError("the whole batch")
        context.ack_index = 0

    watch = Watch()
    consumer = make(mine, name, listener, consume_message_batch_max_size=8, consume_thread_min=1)
    consumer.register_consume_message_hook(watch)
    consumer.register_filter_message_hook(watch)
    with consumer:
        wait_until(lambda: committed(broker, mine, name) == 64)
        counts = consumer.send_back_counts
    calls = len(seen.calls)
    failed = next(size for size, bodies in _batches(seen) if b"7" in bodies)
    assert set(seen.times) == {b"%d" % number for number in range(63)}
    assert counts.retried == 63 - (calls - 1)  # of each batch the first is done, of the one that raised none
    assert watch.labels == {"SUCCESS": 63 - failed, "EXCEPTION": failed}
    assert watch.asked == 64


def _batches(seen: Seen) -> Iterator[tuple[int, list[bytes]]]:
    bodies = list(seen.times)
    for size in seen.calls:
        yield size, bodies[:size]
        bodies = bodies[size:]


class Slower:
    """A policy of a user's own."""

    def next_hop(self, reconsume_times: int, unit: float) -> AfterDelay:
        del unit
        return AfterDelay(1_234 + reconsume_times)


def test_a_policy_of_ones_own_says_how_long_a_retry_waits(
    broker: Broker, topic: Callable[..., str], group: Callable[..., str], make: Callable[..., PushConsumer]
) -> None:
    name, mine = topic(1), group()
    send(broker, name, range(1_000_000, 1_000_003))

    def listener(message: Any) -> None:
        raise OSError(message)

    with make(mine, name, listener, retry_policy=Slower()):
        wait_until(lambda: committed(broker, mine, name) == 3, "the retries are stored")
    waits = scheduled(broker)
    assert [waits[b"%d" % number, b"1234"] for number in range(1_000_000, 1_000_003)] == [1, 1, 1]
