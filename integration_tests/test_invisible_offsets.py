"""On a real broker: behind transaction markers and aborted records, each of our consumers commits to the end."""

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from rocketshim import ConsumeFromWhere, LitePullConsumer, MessageModel, PushConsumer, TopicNames
from rocketshim.cli import main
from rocketshim.consumer.reader.local_offsets import decode
from rocketshim.dropin import Consumer
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, provision
from rocketshim_topics.layout import Layout

from . import waiting
from .waiting import await_ends_of_transactions

GUARD_S = 90.0
wait_until = partial(waiting.wait_until, within_s=GUARD_S)
FIRST = ConsumeFromWhere.FIRST_OFFSET


class Transactions:
    """Writes transactions into a topic with one partition."""

    def __init__(self, bootstrap: str, admin: AdminClient, topic: str) -> None:
        self.admin, self.topic = admin, topic
        self.producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
        self.producer.init_transactions(GUARD_S)

    def write(self, count: int, *, is_committed: bool) -> None:
        self.producer.begin_transaction()
        for _ in range(count):
            self.producer.produce(self.topic, b"x", partition=0)
        self.producer.flush(GUARD_S)
        self.producer.commit_transaction(GUARD_S) if is_committed else self.producer.abort_transaction(GUARD_S)
        await_ends_of_transactions(self.admin)


@pytest.fixture
def topics(admin: AdminClient, namespace: str) -> None:
    provision.ensure_topics(admin, Layout(TopicNames(namespace), DelayLevels.default()).shared())


@pytest.fixture
def committed(broker: Broker) -> Iterator[Callable[[str, str], int]]:
    """Return the committed position of a group in partition 0 of a topic."""
    made: list[KafkaConsumer] = []

    def position(group: str, topic: str) -> int:
        made.append(KafkaConsumer({"bootstrap.servers": broker.bootstrap, "group.id": group}))
        return made[-1].committed([TopicPartition(topic, 0)], timeout=GUARD_S)[0].offset

    yield position
    for client in made:
        client.close()


class Reader:
    """Makes a consumer of one kind for a `with` block; it calls a function for each message, and gives its position."""

    def __init__(
        self, kind: str, bootstrap: str, namespace: str, folder: Path, committed: Callable[[str, str], int]
    ) -> None:
        self.kind, self.bootstrap, self.namespace = kind, bootstrap, namespace
        self.folder, self.committed = folder, committed
        self.file: Path | None = None  # where a broadcasting consumer keeps its positions

    def __call__(self, group: str, topic: str, heard: Callable[[], None]) -> AbstractContextManager[Callable[[], int]]:
        make = {"lite pull": self.lite, "drop-in": self.dropin}.get(self.kind, self.push)
        return make(group, topic, heard)

    @contextmanager
    def push(self, group: str, topic: str, heard: Callable[[], None]) -> Iterator[Callable[[], int]]:
        is_local = self.kind == "broadcasting"
        consumer = PushConsumer(
            self.bootstrap,
            group=group,
            namespace=self.namespace,
            consume_from_where=FIRST,
            persist_consumer_offset_interval_ms=100,
            message_model=MessageModel.BROADCASTING if is_local else MessageModel.CLUSTERING,
            offset_store_dir=str(self.folder) if is_local else None,
        )

        def handle(message: Any, context: Any) -> None:
            del message, context
            heard()

        async def handle_async(message: Any, context: Any) -> None:
            handle(message, context)

        listener = handle_async if self.kind == "async" else handle
        consumer.register_message_listener(topic, listener, orderly=self.kind == "orderly")
        with consumer:
            yield lambda: self.stored(topic) if is_local else self.committed(group, topic)

    def stored(self, topic: str) -> int:
        if self.file is None:  # a listing of a folder may miss a file that is just replaced
            self.file = next(self.folder.rglob("offsets.json"))
        positions = decode(self.file.read_bytes()).positions
        return next(offset for key, (offset, _) in positions.items() if key.topic == topic)

    @contextmanager
    def lite(self, group: str, topic: str, heard: Callable[[], None]) -> Iterator[Callable[[], int]]:
        consumer = LitePullConsumer(
            self.bootstrap,
            group=group,
            namespace=self.namespace,
            consume_from_where=FIRST,
            auto_commit_interval_ms=1_000,
            poll_timeout_ms=100,
        )
        consumer.subscribe(topic)
        consumer.start()
        with polled_in_a_thread(lambda: [heard() for _ in consumer.poll()], consumer.stop):
            yield lambda: self.committed(group, topic)

    @contextmanager
    def dropin(self, group: str, topic: str, heard: Callable[[], None]) -> Iterator[Callable[[], int]]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 100,
                "rocketshim.retry.enable": True,
                "rocketshim.namespace": self.namespace,
            }
        )
        consumer.subscribe([topic])
        with polled_in_a_thread(lambda: None if consumer.poll(0.1) is None else heard(), consumer.close):
            yield lambda: self.committed(group, topic)


@contextmanager
def polled_in_a_thread(poll: Callable[[], Any], close: Callable[[], None]) -> Iterator[None]:
    ended = threading.Event()

    def run() -> None:
        while not ended.is_set():
            poll()
        close()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.fixture(params=["concurrent", "orderly", "broadcasting", "async", "lite pull", "drop-in"])
def reader(
    request: pytest.FixtureRequest,
    broker: Broker,
    namespace: str,
    tmp_path: Path,
    committed: Callable[[str, str], int],
) -> Reader:
    return Reader(request.param, broker.bootstrap, namespace, tmp_path, committed)


@pytest.mark.usefixtures("topics")
def test_a_consumer_commits_to_the_end_and_then_nothing_counts_as_lost(  # noqa: PLR0917 - fixtures
    broker: Broker,
    admin: AdminClient,
    topic: Callable[..., str],
    group: Callable[..., str],
    reader: Reader,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, members = topic(1), group()
    heard = threading.Semaphore(0)
    transactions = Transactions(broker.bootstrap, admin, name)
    transactions.write(10, is_committed=True)
    transactions.write(10, is_committed=False)
    with reader(members, name, heard.release) as position:
        for _ in range(10):
            assert heard.acquire(timeout=GUARD_S)
        wait_until(lambda: position() == 22)
        transactions.write(5, is_committed=False)
        wait_until(lambda: position() == 28)
    assert position() == 28
    if reader.kind != "broadcasting":
        everything = TopicPartition(name, 0, -1)
        admin.delete_records([everything])[everything].result(GUARD_S)
        assert main(["group", "lag", members, "--bootstrap", broker.bootstrap, "--max-lag", "0"]) == 0
        assert "lost" not in capsys.readouterr().out
