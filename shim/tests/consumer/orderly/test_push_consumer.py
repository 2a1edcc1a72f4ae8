"""Orderly listeners through the facade, with threads, on the in-memory Kafka on real time."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rocketshim.clock import SystemClock
from rocketshim.consumer.push.push_consumer import PushConsumer
from rocketshim.core.message_model import MessageModel
from rocketshim.core.start_position import ConsumeFromWhere
from rocketshim.errors import ConfigError
from rocketshim.kafka.clients import Clients
from rocketshim.testing import InMemoryKafka
from rocketshim_topics import DelayLevels, TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.layout import Layout

GUARD_S = 180.0


class Heard:
    """A listener that keeps (offset, failed attempts, token); the first delivery of `failing` raises."""

    def __init__(self, failing: int = -1) -> None:
        self.calls: list[tuple[int, int, int | None]] = []
        self.failing = failing
        self.lock = threading.Lock()

    def __call__(self, message: Any, context: Any) -> None:
        with self.lock:
            self.calls.append((message.queue_offset, message.reconsume_times, context.fencing_token))
        if message.queue_offset == self.failing and message.reconsume_times == 0:
            raise OSError("no")

    @property
    def offsets(self) -> list[int]:
        with self.lock:
            return [offset for offset, _, _ in self.calls]


@pytest.fixture
def kafka() -> InMemoryKafka:
    kafka = InMemoryKafka(SystemClock())
    layout = Layout(TopicNames(), DelayLevels.default())
    kafka.create_topics([*layout.shared(), *layout.for_group("g", with_log=True)])
    kafka.create_topic("orders")
    return kafka


def consumer_of(kafka: InMemoryKafka, listener: Callable[..., Any], **values: Any) -> PushConsumer:
    consumer = PushConsumer(
        "memory:1",
        group="g",
        clients=Clients(kafka.consumer, kafka.producer),
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        suspend_current_queue_time_ms=10,
        **values,
    )
    consumer.register_message_listener("orders", listener, orderly=True)
    return consumer


def fill(kafka: InMemoryKafka, count: int) -> None:
    for number in range(count):
        kafka.append("orders", b"" if number % 2 else None)


def test_an_orderly_listener_gets_its_queue_in_order_and_a_failure_in_place(kafka: InMemoryKafka) -> None:
    fill(kafka, 100)
    heard = Heard(failing=40)
    with consumer_of(kafka, heard):
        kafka.wait_until(lambda: len(heard.offsets) >= 101, guard_s=GUARD_S)
    assert heard.offsets == [*range(41), *range(40, 100)]
    assert kafka.committed("g")["orders", 0] == 100
    assert None not in {token for _, _, token in heard.calls}


def test_by_key_the_others_go_on(kafka: InMemoryKafka) -> None:
    for number in range(50):
        kafka.append("orders", None, key=b"%d" % (number % 5))
    heard = Heard(failing=10)
    with consumer_of(kafka, heard, order="key"):
        kafka.wait_until(lambda: len(heard.offsets) >= 51, guard_s=GUARD_S)
    for key in range(5):
        first_successes = list(dict.fromkeys(offset for offset in heard.offsets if offset % 5 == key))
        assert first_successes == list(range(key, 50, 5))


def test_a_second_start_goes_on_behind_the_first_with_a_higher_token(kafka: InMemoryKafka) -> None:
    fill(kafka, 3)
    first, second = Heard(), Heard()
    with consumer_of(kafka, first):
        kafka.wait_until(lambda: len(first.offsets) >= 3, guard_s=GUARD_S)
    fill(kafka, 2)
    with consumer_of(kafka, second):
        kafka.wait_until(lambda: len(second.offsets) >= 2, guard_s=GUARD_S)
    assert second.offsets == [3, 4]
    tokens = [token or 0 for _, _, token in (first.calls[-1], second.calls[0])]
    assert tokens == sorted(set(tokens))


def test_broadcasting_in_order_needs_no_lock_and_no_topic_of_ours(tmp_path: Path) -> None:
    kafka = InMemoryKafka(SystemClock())
    kafka.create_topic("orders")
    fill(kafka, 20)
    one, other = Heard(failing=7), Heard()
    options: dict[str, Any] = {
        "message_model": MessageModel.BROADCASTING,
        "offset_store_dir": str(tmp_path),
        "rebalance_interval_ms": 20,
    }
    with consumer_of(kafka, one, client_id="a", **options), consumer_of(kafka, other, client_id="b", **options):
        kafka.wait_until(lambda: len(one.offsets) >= 21 and len(other.offsets) >= 20, guard_s=GUARD_S)
    assert one.offsets == [*range(8), *range(7, 20)]
    assert other.offsets == list(range(20))
    assert {token for _, _, token in one.calls} == {None}
    again = Heard()
    fill(kafka, 1)
    with consumer_of(kafka, again, client_id="a", **options):
        kafka.wait_until(lambda: len(again.offsets) >= 1, guard_s=GUARD_S)
    assert again.offsets == [20]


def test_broadcasting_reads_a_topic_again_once_the_listener_of_its_former_run_returns(tmp_path: Path) -> None:
    kafka = InMemoryKafka(SystemClock())
    kafka.create_topic("orders")
    kafka.create_topic("others")
    fill(kafka, 1)
    heard, may_return = Heard(), threading.Event()

    def wait(message: Any, context: Any) -> None:
        heard(message, context)
        assert may_return.wait(GUARD_S)

    consumer: Any = consumer_of(
        kafka,
        wait,
        client_id="a",
        message_model=MessageModel.BROADCASTING,
        offset_store_dir=str(tmp_path),
        rebalance_interval_ms=20,
        revoke_drain_ms=10,
    )
    consumer.register_message_listener("others", print, orderly=True)
    with consumer:
        kafka.wait_until(lambda: heard.offsets == [0], guard_s=GUARD_S)
        consumer.unsubscribe("orders")
        kafka.wait_until(lambda: [each.key.topic for each in consumer._loop.mode.queues] == ["others"], guard_s=GUARD_S)
        consumer.subscribe("orders")
        mode, key = consumer._loop.mode, TopicPartitionKey("orders", 0)
        kafka.wait_until(lambda: key in mode._assigned and key in mode._draining, guard_s=GUARD_S)
        may_return.set()
        fill(kafka, 2)
        kafka.wait_until(lambda: heard.offsets[-1] == 2, guard_s=GUARD_S)
    assert heard.offsets == [0, 0, 1, 2], "its former run has committed nothing"


def test_broadcasting_at_the_limit_drops_a_message_and_goes_on(tmp_path: Path) -> None:
    kafka = InMemoryKafka(SystemClock())
    kafka.create_topic("orders")
    fill(kafka, 3)
    heard = Heard(failing=1)
    options = {"message_model": MessageModel.BROADCASTING, "offset_store_dir": str(tmp_path), "max_reconsume_times": 0}
    consumer = consumer_of(kafka, heard, client_id="a", **options)
    with consumer:
        kafka.wait_until(lambda: len(heard.offsets) >= 3, guard_s=GUARD_S)
        assert consumer.send_back_counts.dropped == 1
    assert heard.offsets == [0, 1, 2]


def test_listeners_of_one_consumer_are_of_one_kind(kafka: InMemoryKafka) -> None:
    consumer = consumer_of(kafka, Heard())
    with pytest.raises(ConfigError, match="all orderly or all concurrent"):
        consumer.register_message_listener("others", Heard())


@pytest.mark.parametrize(
    "values", [{"lock_hold_ms": 60_000}, {"lock_renew_ms": 30_000}, {"order": "tag"}, {"order_by_key_max_span": 0}]
)
def test_settings_that_do_not_fit_are_refused(kafka: InMemoryKafka, values: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        consumer_of(kafka, Heard(), **values)


@pytest.mark.usefixtures("broken_logging")
def test_an_exception_that_cannot_be_read_comes_again_and_the_queue_goes_on(
    kafka: InMemoryKafka, hostile: BaseException
) -> None:
    heard = Heard()

    def handle(message: Any, context: Any) -> None:
        heard(message, context)
        if message.queue_offset == 1 and message.reconsume_times == 0:
            raise hostile

    fill(kafka, 3)
    with consumer_of(kafka, handle):
        kafka.wait_until(lambda: len(heard.offsets) >= 4, guard_s=GUARD_S)
    assert heard.offsets == [0, 1, 1, 2]
    assert kafka.committed("g")["orders", 0] == 3
