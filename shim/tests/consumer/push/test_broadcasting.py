"""BROADCASTING on the in-memory Kafka: every member gets every message, nothing is retried, positions are local."""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rocketshim.clock import SystemClock
from rocketshim.consumer.push.push_consumer import PushConsumer
from rocketshim.consumer.reader.local_offsets import PROCESS_VARIABLE, stable_client_id
from rocketshim.core.message_model import MessageModel
from rocketshim.core.start_position import ConsumeFromWhere
from rocketshim.errors import OffsetStoreError
from rocketshim.kafka.clients import Clients
from rocketshim.testing import InMemoryKafka

GUARD_S = 60.0


class Heard:
    """A listener that records its messages; it raises for `failing` bodies."""

    def __init__(self, *failing: bytes) -> None:
        self.bodies: list[bytes | None] = []
        self.failing = failing
        self._lock = threading.Lock()

    def __call__(self, message: Any, context: Any) -> None:
        del context
        with self._lock:
            self.bodies.append(message.body)
        if message.body in self.failing:
            raise OSError("no")


@pytest.fixture
def kafka() -> InMemoryKafka:
    kafka = InMemoryKafka(SystemClock())
    kafka.create_topic("orders", 2)  # and no internal topic: broadcasting needs none
    return kafka


@pytest.fixture
def start(kafka: InMemoryKafka, tmp_path: Path) -> Iterator[Callable[..., PushConsumer]]:
    made: list[PushConsumer] = []

    def of(listener: Heard, client_id: str = "one", **values: Any) -> PushConsumer:
        options: dict[str, Any] = {
            "consume_from_where": ConsumeFromWhere.FIRST_OFFSET,
            "rebalance_interval_ms": 20,
            "persist_consumer_offset_interval_ms": 10,
        }
        consumer = PushConsumer(
            "memory:1",
            group="g",
            clients=Clients(kafka.consumer, kafka.producer),
            message_model=MessageModel.BROADCASTING,
            client_id=client_id,
            offset_store_dir=str(tmp_path),
            **{**options, **values},
        )
        consumer.register_message_listener("orders", listener)
        consumer.start()
        made.append(consumer)
        assert consumer.wait_assigned(GUARD_S)
        return consumer

    yield of
    for consumer in made:
        consumer.stop()


def test_every_member_gets_every_message(kafka: InMemoryKafka, start: Callable[..., PushConsumer]) -> None:
    one, two = Heard(), Heard()
    start(one, "one")
    start(two, "two")
    for number in range(10):
        kafka.append("orders", str(number).encode(), partition=number % 2)
    wanted = sorted(str(number).encode() for number in range(10))
    kafka.wait_until(lambda: sorted(one.bodies) == sorted(two.bodies) == wanted, guard_s=GUARD_S)
    assert kafka.committed("g") == {}
    assert kafka.members("g") == []


def test_it_continues_at_its_last_position(kafka: InMemoryKafka, start: Callable[..., PushConsumer]) -> None:
    first, second, other = Heard(), Heard(), Heard()
    kafka.append("orders", b"a")
    consumer = start(first)
    kafka.wait_until(lambda: first.bodies == [b"a"], guard_s=GUARD_S)
    consumer.stop()
    kafka.append("orders", b"b")
    start(second)
    start(other, "another client")
    kafka.wait_until(lambda: len(other.bodies) == 2 and len(second.bodies) == 1, guard_s=GUARD_S)
    assert second.bodies == [b"b"]


def test_the_start_offset_is_stored_before_the_first_message(
    kafka: InMemoryKafka, start: Callable[..., PushConsumer]
) -> None:
    kafka.append("orders", b"before")
    start(Heard(), consume_from_where=ConsumeFromWhere.LAST_OFFSET).stop()
    kafka.append("orders", b"while it was away")
    heard = Heard()
    start(heard, consume_from_where=ConsumeFromWhere.LAST_OFFSET)
    kafka.wait_until(lambda: bool(heard.bodies), guard_s=GUARD_S)
    assert heard.bodies == [b"while it was away"]


def test_an_added_queue_is_read_from_its_beginning(kafka: InMemoryKafka, start: Callable[..., PushConsumer]) -> None:
    heard = Heard()
    start(heard, consume_from_where=ConsumeFromWhere.LAST_OFFSET)
    kafka.add_partitions("orders", 3)
    kafka.append("orders", b"new queue", partition=2)
    kafka.wait_until(lambda: heard.bodies == [b"new queue"], guard_s=GUARD_S)


def test_a_failed_message_is_dropped_and_logged(
    kafka: InMemoryKafka, start: Callable[..., PushConsumer], caplog: pytest.LogCaptureFixture
) -> None:
    heard = Heard(b"bad")
    with caplog.at_level(logging.WARNING, "rocketshim.consumer"):
        consumer = start(heard)
        for body in (b"bad", b"good"):
            kafka.append("orders", body)
        kafka.wait_until(lambda: consumer.send_back_counts.dropped == 1 and len(heard.bodies) == 2, guard_s=GUARD_S)
        consumer.stop()
    (said,) = [record for record in caplog.records if getattr(record, "event", "") == "consumer.dropped"]
    assert (said.record, said.error_class) == ("orders/0/0", "OSError")  # type: ignore[attr-defined]
    again = Heard()
    start(again)
    kafka.append("orders", b"later")
    kafka.wait_until(lambda: again.bodies == [b"later"], guard_s=GUARD_S)
    assert kafka.topics() == ["orders"]


def test_a_listener_that_takes_too_long_does_not_block_the_position(
    kafka: InMemoryKafka, start: Callable[..., PushConsumer]
) -> None:
    release = threading.Event()

    class Slow(Heard):
        def __call__(self, message: Any, context: Any) -> None:
            super().__call__(message, context)
            if message.body == b"slow":
                release.wait(GUARD_S)

    kafka.append("orders", b"slow")
    consumer = start(Slow(), consume_timeout_ms=50)
    try:
        kafka.wait_until(lambda: consumer.send_back_counts.dropped == 1, guard_s=GUARD_S)
    finally:
        release.set()


def test_default_client_ids_differ_between_processes_and_survive_a_restart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(PROCESS_VARIABLE, raising=False)
    alone = stable_client_id()
    ids = []
    for number in range(3):
        monkeypatch.setenv(PROCESS_VARIABLE, str(number))
        ids += [stable_client_id(), stable_client_id()]
    assert ids == [alone, alone, f"{alone}-1", f"{alone}-1", f"{alone}-2", f"{alone}-2"]
    assert alone.endswith("@DEFAULT")


def test_a_second_client_with_the_same_id_is_rejected_and_the_first_continues(
    kafka: InMemoryKafka, start: Callable[..., PushConsumer]
) -> None:
    heard = Heard()
    start(heard)
    with pytest.raises(OffsetStoreError, match="client_id"):
        start(Heard())
    kafka.append("orders", b"a")
    kafka.wait_until(lambda: heard.bodies == [b"a"], guard_s=GUARD_S)
