"""A stopped object keeps nothing: as many threads and sockets as before, while the object is still held.

Counted in the operating system (`/proc/self`), since a Kafka client's threads and connections are not Python's. Each
case works before it stops, so that it has all of its clients: messages that succeed, and messages that are sent back.
The end of a thread that was joined may show a moment later; garbage collection is off meanwhile, so that nothing ends
for being found unreachable.
"""

import gc
import os
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from rocketshim import (
    AllocateMessageQueueAveragely,
    ConsumeFromWhere,
    DelayWorker,
    LitePullConsumer,
    Message,
    MessageModel,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    TopicNames,
    WorkerSettings,
    dropin,
)
from rocketshim.clock import SystemClock
from rocketshim.compat import rocketmq
from rocketshim.errors import RocketshimError
from rocketshim.health import HealthServer
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_local import Broker, LocalCluster
from rocketshim_topics import DelayLevels, provision
from rocketshim_topics.layout import Layout

from . import waiting

GUARD_S = 90.0
wait_until = partial(waiting.wait_until, within_s=GUARD_S)
LEVELS = "1s 1s 1s"
COUNT = 20


@dataclass(frozen=True)
class Standing:
    """Threads of this process by name, and how many sockets it has."""

    threads: Counter[str]
    sockets: int

    @staticmethod
    def now() -> "Standing":
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        threads: Counter[str] = Counter()
        for task in Path("/proc/self/task").iterdir():
            with suppress(OSError):  # it has ended
                threads[names.get(int(task.name)) or (task / "comm").read_text().strip()] += 1
        sockets = 0
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(OSError):  # the one that lists this folder
                sockets += descriptor.readlink().name.startswith("socket:")
        return Standing(threads, sockets)

    def beyond(self, before: "Standing") -> str:
        """What there is more of now; `""`: nothing."""
        sockets = self.sockets - before.sockets
        threads = self.threads - before.threads
        return "" if not threads and sockets <= 0 else f"threads {dict(threads)}, {max(0, sockets)} sockets"


@dataclass(frozen=True)
class World:
    """Where the cases work.

    Attributes:
        topic: has `COUNT` messages.
        folder: for files.
        client: librdkafka settings of consumers.
        stop_s: time that stopping may take.
    """

    bootstrap: str
    names: TopicNames
    topic: str
    folder: Path
    client: dict[str, Any]
    stop_s: float = GUARD_S

    @property
    def common(self) -> dict[str, Any]:
        return {"namespace": self.names.namespace, "delay_levels": LEVELS}


Stop = Callable[[], object]
Case = Callable[[World], tuple[Any, Stop]]
"""Makes something, works with it; returns it, and what ends it."""

STOP_S = 3.0


def push(*, stop: Callable[[PushConsumer], object] | None = None, **values: Any) -> Case:
    """A push consumer; a concurrent one whose messages all fail."""

    def work(world: World) -> tuple[PushConsumer, Stop]:
        orderly, awaits = bool(values.get("orderly")), bool(values.get("awaits"))
        settings = {name: value for name, value in values.items() if name not in {"orderly", "awaits"}}
        if settings.get("message_model") is MessageModel.BROADCASTING:
            settings["offset_store_dir"] = str(world.folder)
        consumer = PushConsumer(
            world.bootstrap,
            group=f"g-{uuid.uuid4().hex[:10]}",
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            client=world.client,
            **world.common,
            **settings,
        )
        seen: set[tuple[int, int]] = set()

        def handle(given: Any) -> None:
            for message in given if isinstance(given, list) else [given]:
                seen.add((message.queue_id, message.queue_offset))
            if not orderly:
                raise OSError("sent back")

        async def await_it(given: Any) -> None:
            handle(given)

        consumer.register_message_listener(world.topic, await_it if awaits else handle, orderly=orderly)
        consumer.start()
        wait_until(lambda: len(seen) >= COUNT, "all are handled")
        if not orderly and "message_model" not in settings:
            wait_until(lambda: consumer.send_back_counts.retried >= COUNT, "all are sent back")
        return consumer, lambda: (stop or (lambda each: each.stop(world.stop_s)))(consumer)

    return work


def push_that_its_listener_stops(world: World) -> tuple[PushConsumer, Stop]:
    consumer = PushConsumer(
        world.bootstrap, group=f"g-{uuid.uuid4().hex[:10]}", consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        client=world.client, **world.common,
    )  # fmt: skip
    asked = threading.Event()

    @consumer.listener(world.topic)
    def handle(_: Any) -> None:
        consumer.stop(world.stop_s)
        asked.set()

    consumer.start()
    assert asked.wait(GUARD_S)
    return consumer, lambda: None


def push_that_cannot_start(world: World) -> tuple[PushConsumer, Stop]:
    consumer = PushConsumer(world.bootstrap, group="g", **world.common)
    consumer.register_message_listener("nowhere", print)
    with pytest.raises(RocketshimError, match="nowhere"):
        consumer.start()
    return consumer, consumer.stop


def push_whose_settings_are_refused(world: World) -> tuple[PushConsumer, Stop]:
    """Kafka's admin client takes them, the consumer does not: its session may not outlast `max.poll.interval.ms`."""
    consumer = PushConsumer(world.bootstrap, group="g", client={"session.timeout.ms": 600_000}, **world.common)
    consumer.register_message_listener(world.topic, print, orderly=True)
    with pytest.raises(RocketshimError, match=r"max\.poll\.interval\.ms"):
        consumer.start()
    return consumer, consumer.stop


def lite_pull(*, assigned: bool) -> Case:
    def work(world: World) -> tuple[LitePullConsumer, Stop]:
        consumer = LitePullConsumer(
            world.bootstrap,
            group=f"g-{uuid.uuid4().hex[:10]}",
            namespace=world.names.namespace,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            client=world.client,
        )
        if assigned:
            consumer.assign([MessageQueue(world.topic, queue_id=0)])
        else:
            consumer.subscribe(world.topic)
        consumer.start()
        wait_until(lambda: bool(consumer.poll(1_000)), "something is read")
        consumer.poll(0)  # so that there is something to commit
        return consumer, consumer.stop

    return work


def pull(world: World) -> tuple[PullConsumer, Stop]:
    consumer = PullConsumer(world.bootstrap, group="g", namespace=world.names.namespace, client=world.client)
    consumer.start()
    for queue in consumer.fetch_message_queues(world.topic):
        consumer.pull(queue, None, consumer.min_offset(queue))
        consumer.update_consume_offset(queue, 1)
    return consumer, consumer.stop


def producer(world: World) -> tuple[Producer, Stop]:
    made = Producer(world.bootstrap, **world.common)
    made.send(Message(world.topic, b""), timeout_s=GUARD_S)
    made.send(Message(world.topic, b"", delay="1s"), timeout_s=GUARD_S)
    return made, lambda: made.close(world.stop_s)


def worker(*, exactly_once: bool) -> Case:
    def work(world: World) -> tuple[DelayWorker, Stop]:
        names = TopicNames(f"{world.names.namespace}w{int(exactly_once)}")
        made = DelayWorker(
            WorkerSettings.make(
                bootstrap=world.bootstrap, namespace=names.namespace, delay_levels=LEVELS, allow=("*",),
                exactly_once=exactly_once, stop_timeout_ms=round(world.stop_s * 1_000), client=world.client,
            )
        )  # fmt: skip
        with Producer(world.bootstrap, namespace=names.namespace, delay_levels=LEVELS) as sender:
            made.start()
            sender.send(Message(world.topic, b"", delay="1s"), timeout_s=GUARD_S)
        end = time.monotonic() + GUARD_S
        while made.counts.delivered == 0:
            assert time.monotonic() < end
            made.step()
        return made, made.close

    return work


def dropin_consumer(*, retry: bool) -> Case:
    def work(world: World) -> tuple[confluent_kafka.Consumer, Stop]:
        config = {
            "bootstrap.servers": world.bootstrap, "group.id": f"g-{uuid.uuid4().hex[:10]}",
            "auto.offset.reset": "earliest", **world.client,
        }  # fmt: skip
        if retry:
            config |= {"rocketshim.retry.enable": True, "rocketshim.namespace": world.names.namespace}
            config |= {"rocketshim.delay.levels": LEVELS, "rocketshim.hop.timeout.ms": 60_000}
        consumer = dropin.Consumer(config)
        consumer.subscribe([world.topic])
        message = consumer.poll(GUARD_S)
        assert message is not None
        if retry:
            consumer.reconsume_later(message, "no")
        return consumer, consumer.close

    return work


def dropin_producer(world: World) -> tuple[confluent_kafka.Producer, Stop]:
    made = dropin.Producer({"bootstrap.servers": world.bootstrap, "rocketshim.namespace": world.names.namespace})
    made.produce(world.topic, b"", delay="1s")
    assert made.flush(GUARD_S) == 0
    return made, made.close


def rocketmq_producer(world: World) -> tuple[rocketmq.Producer, Stop]:
    made = rocketmq.Producer("g")
    made.set_name_server_address(world.bootstrap)
    made.set_timeout(60_000)
    made.start()
    message = rocketmq.Message(world.topic)
    message.set_body("")
    made.send_sync(message)
    return made, made.shutdown


def rocketmq_consumer(world: World) -> tuple[rocketmq.PushConsumer, Stop]:
    made = rocketmq.PushConsumer("g")
    made.set_name_server_address(world.bootstrap)
    made.set_namespace(world.names.namespace)
    made.set_delay_levels(LEVELS)
    made.set_consume_from_where(ConsumeFromWhere.FIRST_OFFSET)
    heard = threading.Event()

    def handle(_: Any) -> rocketmq.ConsumeStatus:
        heard.set()
        return rocketmq.ConsumeStatus.CONSUME_SUCCESS

    made.subscribe(world.topic, handle)
    made.start()
    assert heard.wait(GUARD_S)
    return made, made.shutdown


def topic_reader(world: World) -> tuple[TopicReader, Stop]:
    reader = TopicReader(world.bootstrap)
    assert len(list(reader.read([world.topic]))) >= COUNT
    return reader, reader.close


def health_server(world: World) -> tuple[HealthServer, Stop]:
    del world
    server = HealthServer("127.0.0.1", 0, lambda: None, SystemClock())
    server.start()
    with pytest.raises(urllib.error.HTTPError) as answer:
        urllib.request.urlopen(f"http://127.0.0.1:{server.port}/live", timeout=GUARD_S)
    answer.value.close()
    return server, server.stop


ON_THE_CLUSTER: dict[str, Case] = {
    "push": push(),
    "push, batches": push(consume_message_batch_max_size=8),
    "push, async": push(awaits=True),
    "push, orderly": push(orderly=True),
    "push, orderly by key": push(orderly=True, order="key"),
    "push, own allocation": push(allocate_message_queue_strategy=AllocateMessageQueueAveragely()),
    "push, broadcasting": push(message_model=MessageModel.BROADCASTING, client_id="left"),
    "lite pull, subscribed": lite_pull(assigned=False),
    "lite pull, assigned": lite_pull(assigned=True),
    "pull": pull,
    "producer": producer,
    "worker, at least once": worker(exactly_once=False),
    "worker, exactly once": worker(exactly_once=True),
}
"""What ends in time also when the cluster has gone; a drop-in consumer closes as the original does: in its session."""

CASES = ON_THE_CLUSTER | {
    "drop-in consumer": dropin_consumer(retry=False),
    "drop-in consumer, retry": dropin_consumer(retry=True),
    "push, stopped by its listener": push_that_its_listener_stops,
    "push, stopped by another thread": push(stop=lambda consumer: _in_another_thread(consumer.stop)),
    "push, left by with": push(stop=lambda consumer: consumer.__exit__(None, None, None)),
    "push that cannot start": push_that_cannot_start,
    "push whose settings are refused": push_whose_settings_are_refused,
    "drop-in producer": dropin_producer,
    "producer in RocketMQ's shape": rocketmq_producer,
    "consumer in RocketMQ's shape": rocketmq_consumer,
    "topic reader": topic_reader,
    "health server": health_server,
}


def _in_another_thread(stop: Callable[[], object]) -> None:
    thread = threading.Thread(target=stop)
    thread.start()
    thread.join(GUARD_S)
    assert not thread.is_alive()


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Nothing ends for being found unreachable."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def filled(bootstrap: str, admin: AdminClient, namespace: str, topic: str) -> None:
    """The shim's topics, of the workers' namespaces too, and messages in two partitions."""
    for each in (namespace, f"{namespace}w0", f"{namespace}w1"):
        provision.ensure_topics(admin, Layout(TopicNames(each), DelayLevels.parse(LEVELS)).shared(), create=True)
    sender = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(COUNT):
        sender.produce(topic, b"", partition=number % 2)
    assert sender.flush(GUARD_S) == 0


@pytest.fixture(scope="module")
def world(broker: Broker, admin: AdminClient, tmp_path_factory: pytest.TempPathFactory) -> World:
    """On the session's broker."""
    names, topic = TopicNames(f"left{os.getpid()}"), f"left-{uuid.uuid4().hex[:10]}"
    admin.create_topics([NewTopic(topic, 2)])[topic].result(GUARD_S)
    filled(broker.bootstrap, admin, names.namespace, topic)
    return World(broker.bootstrap, names, topic, tmp_path_factory.mktemp("offsets"), {})


def expect_nothing_beyond(before: Standing, what: str) -> None:
    wait_until(
        lambda: not Standing.now().beyond(before),
        lambda: f"nothing left of {what}: {Standing.now().beyond(before)}",
    )


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("case", CASES)
def test_after_the_end_nothing_is_left(world: World, case: str) -> None:
    before = Standing.now()
    held, stop = CASES[case](world)
    stop()
    expect_nothing_beyond(before, case)
    stop()  # a second time it does nothing
    assert held is not None


@pytest.mark.usefixtures("uncollected")
def test_with_the_cluster_gone_all_end_in_time_and_what_they_leave_behind_ends_when_it_is_back(tmp_path: Path) -> None:
    """The session is longer than the guard: librdkafka would wait for it to end."""
    with LocalCluster(1) as cluster:
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_topics([NewTopic("orders", 2)])["orders"].result(GUARD_S)
        filled(cluster.bootstrap, admin, "", "orders")
        del admin  # it would look for the cluster too
        session = {"session.timeout.ms": 600_000, "max.poll.interval.ms": 600_000}
        client = {**session, "reconnect.backoff.max.ms": 500, "log_level": 0}
        before = Standing.now()
        made = {
            case: work(World(cluster.bootstrap, TopicNames(), "orders", tmp_path, client, STOP_S))
            for case, work in ON_THE_CLUSTER.items()
        }
        (node,) = cluster.nodes
        cluster.kill(node)
        ended: set[str] = set()

        def end(case: str, stop: Stop) -> None:
            with suppress(RocketshimError):  # it says what could not be committed
                stop()
            ended.add(case)

        threads = [threading.Thread(target=end, args=(case, stop)) for case, (_, stop) in made.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(GUARD_S)
        assert ended == set(made)
        cluster.restart(node)
        expect_nothing_beyond(before, "all")
