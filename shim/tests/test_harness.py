"""`Harness` runs consumers on a Kafka in memory, and its time passes as on a real one."""

import asyncio
import functools
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Message as Record
from pydantic import BaseModel, Field

from rocketshim import (
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    DeadLetter,
    DelayLevels,
    DelayWorker,
    LitePullConsumer,
    Message,
    MessageModel,
    MessageView,
    Producer,
    PullConsumer,
    PushConsumer,
    RetryLater,
    WorkerSettings,
    dropin,
)
from rocketshim.aio import AsyncProducer
from rocketshim.codecs import JsonCodec
from rocketshim.errors import ConfigError, MessageError
from rocketshim.harness import Harness
from rocketshim.kafka.clients import confluent_admin
from rocketshim.producer.hooks import SendMessageContext
from rocketshim.testing import InMemoryKafka
from rocketshim.transactions import LocalTransactionState, TransactionMQProducer

MINUTE_S = 60


class Attempts:
    """A consumer whose listener fails a number of times, and what it saw: virtual seconds and failures so far."""

    def __init__(self, failures: int = 10_000, **options: object) -> None:
        self.consumer = PushConsumer("localhost:9092", group="payments", **options)  # type: ignore[arg-type]  # of a test
        self.seen: list[tuple[int, int]] = []
        self.harness = Harness(
            namespace=self.consumer.settings.namespace, delay_levels=self.consumer.settings.delay_levels
        )

        @self.consumer.listener("orders")
        def handle(message: MessageView) -> None:
            self.seen.append((self.harness.clock.monotonic_ns() // 1_000_000_000, message.reconsume_times))
            if message.reconsume_times < failures:
                raise ConnectionError("the bank does not answer")


class Parcel(BaseModel):
    """A typed body."""

    weight: float = Field(alias="kg")


def test_send_takes_what_a_producer_takes(rocketshim_harness: Harness) -> None:
    seen: list[Any] = []
    consumer = PushConsumer("localhost:9092", group="parcels")

    @consumer.listener("parcels", body=Parcel)
    def handle(message: MessageView[Parcel]) -> None:
        seen.append((message.value.weight, message.tag))

    rocketshim_harness.run(consumer)
    [result] = rocketshim_harness.send("parcels", Parcel(kg=1.5), tag="a")
    assert result.message_queue.topic == "parcels"
    rocketshim_harness.send("parcels", {"kg": 2}, codec=JsonCodec())
    rocketshim_harness.send("parcels", body=b'{"kg": 3}')
    rocketshim_harness.send(Message("parcels", b'{"kg": 4}'), Message("parcels", b'{"kg": 5}'))
    assert seen == [(1.5, "a"), (2.0, None), (3.0, None), (4.0, None), (5.0, None)]
    assert rocketshim_harness.kafka.records("parcels")[0].value() == b'{"kg":1.5}', "a model is sent as JSON"


@pytest.mark.parametrize("status", [ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT])
def test_a_concurrent_listener_may_answer_with_an_orderly_success(
    rocketshim_harness: Harness, status: ConsumeOrderlyStatus
) -> None:
    consumer = PushConsumer("localhost:9092", group="g")
    consumer.listener("orders")(lambda _: status)
    rocketshim_harness.run(consumer)
    rocketshim_harness.send("orders", b"")
    assert rocketshim_harness.waiting() == []


@pytest.mark.parametrize("passes_on", [False, True])
def test_a_decorator_may_add_an_argument_of_its_own(rocketshim_harness: Harness, passes_on: bool) -> None:
    """`functools.wraps` shows the arguments of the function in it; one of them is not the context."""
    seen: list[object] = []

    def with_session(function: Any) -> Any:
        @functools.wraps(function)
        def call(message: Any) -> Any:
            return function(message, "session")

        return call

    def logged(function: Any) -> Any:
        @functools.wraps(function)
        def call(*args: Any) -> Any:
            return function(*args)

        return call

    def charge(message: Any, session: str) -> None:
        seen.append((message.body, session))

    def charge_alone(message: Any) -> None:
        seen.append((message.body, "session"))

    consumer = PushConsumer("localhost:9092", group="g")
    consumer.listener("orders")(logged(charge_alone) if passes_on else with_session(charge))
    rocketshim_harness.run(consumer)
    rocketshim_harness.send("orders", b"1")
    assert seen == [(b"1", "session")]


def test_a_listener_that_returns_a_coroutine_is_told_to_be_async(rocketshim_harness: Harness) -> None:
    async def charge(message: Any) -> None:
        del message

    consumer = PushConsumer("localhost:9092", group="g", max_reconsume_times=0)
    consumer.listener("orders")(lambda message: charge(message))  # noqa: PLW0108 - a decorator that hides it
    rocketshim_harness.run(consumer)
    rocketshim_harness.send("orders", b"")
    [dead] = rocketshim_harness.dead("g")
    assert dict(dead.record.headers() or ())["FAIL_TEXT"].endswith(b"make the listener itself an `async def` function")


def test_sixteen_retries_of_rocketmqs_schedule() -> None:
    attempts = Attempts()
    with attempts.harness as harness:
        harness.run(attempts.consumer)
        harness.send(Message("orders", b"o-7"))
        harness.pass_time("286m")
        (dead,) = harness.dead("payments")
    assert (dead.body, dead.reconsume_times) == (b"o-7", 17)
    levels = DelayLevels.default()
    waits = [levels.delay_ms(level) // 1_000 for level in range(3, 19)]
    assert [count for _, count in attempts.seen] == list(range(17))
    for number, wait_s in enumerate(waits):
        gap_s = attempts.seen[number + 1][0] - attempts.seen[number][0]
        assert wait_s <= gap_s <= wait_s + 2
    assert sum(waits) == 4 * 60 * MINUTE_S + 46 * MINUTE_S - 20


def test_a_retry_is_not_early() -> None:
    attempts = Attempts(failures=1)
    with attempts.harness as harness:
        harness.run(attempts.consumer)
        harness.send(Message("orders", b"o-7"))
        (waiting,) = harness.waiting("%RETRY%payments")
        assert waiting.reconsume_times == 1
        harness.pass_time("9.99s")
        assert len(attempts.seen) == 1
        harness.pass_time("10ms")
        assert len(attempts.seen) == 2
        assert harness.waiting() == []
        assert harness.dead("payments") == []


def test_a_delayed_message_comes_when_it_is_due() -> None:
    attempts = Attempts(failures=0)
    with attempts.harness as harness:
        harness.run(attempts.consumer)
        harness.send(Message("orders", b"o-7", delay="90s"))
        assert [each.target for each in harness.waiting()] == ["orders"]
        harness.pass_time("89s")
        assert attempts.seen == []
        harness.pass_time("1s")
        assert len(attempts.seen) == 1


class CountingKafka(InMemoryKafka):
    """A cluster that counts the records that it returns."""

    returned = 0

    def records(self, topic: str, partition: int | None = None, *, read_committed: bool = True) -> list[Record]:
        found = super().records(topic, partition, read_committed=read_committed)
        self.returned += len(found)
        return found


def test_the_cost_of_passing_time_does_not_grow_with_what_was_sent_before() -> None:
    kafka = CountingKafka()
    with Harness(kafka=kafka) as harness:
        harness.send(*(Message("orders", b"x", delay=second) for second in range(1, 31)))
        harness.pass_time("31s")
        assert harness.waiting() == []
        assert kafka.returned == 0
        assert len(kafka.records("orders")) == 30


def test_a_message_that_retention_has_deleted_does_not_wait() -> None:
    with Harness() as harness:
        first, _ = harness.send(Message("orders", b"1", delay_level=3), Message("orders", b"2", delay_level=3))
        assert len(harness.waiting()) == 2
        harness.kafka.truncate("SCHEDULE_TOPIC_XXXX", first.message_queue.queue_id, before_offset=1)
        assert len(harness.waiting()) == 1


def test_a_delivery_time_of_the_real_calendar_is_understood() -> None:
    attempts = Attempts(failures=0)
    with attempts.harness as harness:
        harness.run(attempts.consumer)
        harness.send(Message("orders", b"o-7", deliver_at=datetime.now(UTC) + timedelta(hours=1)))
        harness.pass_time("59m")
        assert attempts.seen == []
        harness.pass_time("2m")
        assert len(attempts.seen) == 1


def test_a_listener_chooses_delay_and_death() -> None:
    consumer = PushConsumer("localhost:9092", group="payments")

    @consumer.listener("orders")
    async def handle(message: MessageView) -> None:
        if message.reconsume_times == 0:
            raise RetryLater("2h")
        raise DeadLetter("no such customer")

    with Harness() as harness:
        harness.run(consumer)
        harness.send(Message("orders", b"o-7"), Message("orders", b"o-8"))
        harness.pass_time("119m")
        assert harness.dead("payments") == []
        harness.pass_time("2m")
        assert sorted(dead.body or b"" for dead in harness.dead("payments")) == [b"o-7", b"o-8"]


def test_one_consumer_of_a_module_runs_in_many_tests() -> None:
    attempts = Attempts(failures=0)
    attempts.harness.close()
    for _ in range(2):
        with Harness() as harness:
            (running,) = harness.run(attempts.consumer)
            harness.send(Message("orders", b"o-7"))
            assert running is not attempts.consumer
            assert running.settings.group == "payments"
    assert len(attempts.seen) == 2


def test_what_was_sent_before_waits_for_a_group_that_begins_at_the_first_offset() -> None:
    attempts = Attempts(failures=0, consume_from_where=ConsumeFromWhere.FIRST_OFFSET)
    with attempts.harness as harness:
        harness.send(Message("orders", b"o-7"))
        harness.run(attempts.consumer)
        assert len(attempts.seen) == 1


def test_namespace_levels_and_several_partitions() -> None:
    attempts = Attempts(failures=1, namespace="shop", delay_levels="1s 2s 3s")
    with attempts.harness as harness:
        harness.topic("orders", partitions=3)
        harness.run(attempts.consumer)
        harness.send(*(Message("orders", b"x", key=str(number)) for number in range(9)))
        harness.pass_time("4s")
        assert [count for _, count in attempts.seen] == [0] * 9 + [1] * 9


def test_a_producer_of_the_program_sends_to_the_harness() -> None:
    producer = Producer("localhost:9092")
    consumer = PushConsumer("localhost:9092", group="payments")

    @consumer.listener("orders")
    def handle(message: MessageView) -> None:
        producer.send(Message("invoices", message.body))

    with Harness() as harness, producer:
        harness.connect(producer)
        harness.topic("invoices")
        harness.run(consumer)
        harness.send(Message("orders", b"o-7"))
        assert [record.value() for record in harness.kafka.records("invoices")] == [b"o-7"]


def test_one_producer_of_a_module_sends_to_the_harness_of_each_test() -> None:
    producer, seen = Producer("localhost:9092"), []

    class Hook:
        def send_message_before(self, context: SendMessageContext) -> None:
            seen.append(context.message.body)

        def send_message_after(self, context: SendMessageContext) -> None: ...

    producer.register_send_message_hook(Hook())
    for body in (b"first", b"second"):
        with Harness() as harness:
            harness.topic("orders")
            harness.connect(producer)
            producer.send(Message("orders", body, deliver_at=harness.clock.wall_ms()))
            producer.close()
            harness.pass_time("1s")
            assert [record.value() for record in harness.kafka.records("orders")] == [body]
    assert seen == [b"first", b"second"]


def test_an_asynchronous_producer_sends_to_the_harness() -> None:
    producer = AsyncProducer("localhost:9092")
    with Harness() as harness:
        harness.topic("orders")
        harness.connect(producer)
        asyncio.run(producer.send("orders", b"o-7"))
        assert [record.value() for record in harness.kafka.records("orders")] == [b"o-7"]


def test_only_a_producer_is_connected() -> None:
    with Harness() as harness, pytest.raises(ConfigError, match="give a Producer or an AsyncProducer"):
        harness.connect(PushConsumer("localhost:9092", group="payments"))  # type: ignore[arg-type]  # what is tested


def test_what_a_running_copy_subscribes_to_does_not_reach_the_next_test() -> None:
    attempts = Attempts(failures=0)
    attempts.harness.close()
    for _ in range(2):
        with Harness() as harness:
            (running,) = harness.run(attempts.consumer)
            harness.send(Message("orders", b"o-7"))
            running.unsubscribe("orders")
    assert len(attempts.seen) == 2


def test_a_misspelt_name_is_not_taken_for_nothing() -> None:
    attempts = Attempts()
    with attempts.harness as harness:
        harness.run(attempts.consumer)
        assert harness.dead("payments") == harness.waiting("%RETRY%payments") == harness.waiting("orders") == []
        with pytest.raises(ConfigError, match="group 'payment' has no topic"):
            harness.dead("payment")
        with pytest.raises(ConfigError, match="target '%RETRY%payment' has no topic"):
            harness.waiting("%RETRY%payment")


def test_a_listener_that_does_not_return_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, may_return = PushConsumer("localhost:9092", group="payments"), threading.Event()

    @consumer.listener("orders")
    def handle(message: MessageView) -> None:
        del message
        may_return.wait()

    with Harness() as harness:
        harness.run(consumer)
        harness.producer.send(Message("orders", b"o-7"), timeout_s=30)
        monkeypatch.setattr("rocketshim.harness.GUARD_S", 0.05)
        with pytest.raises(TimeoutError, match=r"groups \['payments'\] have not finished"):
            harness.pass_time("1s")
        may_return.set()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"namespace": "shop"}, r"namespace 'shop'.*Harness\(namespace="),
        ({"delay_levels": "1s 2s"}, "delay levels '1s 2s'"),
        ({"message_model": MessageModel.BROADCASTING}, "broadcasting"),
    ],
)
def test_a_consumer_that_does_not_fit_is_refused(options: dict[str, object], message: str) -> None:
    consumer = PushConsumer("localhost:9092", group="payments", **options)  # type: ignore[arg-type]  # of a test
    consumer.listener("orders")(lambda _: None)
    with Harness() as harness, pytest.raises(ConfigError, match=message):
        harness.run(consumer)


def test_orderly_listeners_are_refused() -> None:
    consumer = PushConsumer("localhost:9092", group="payments")
    consumer.listener("orders", orderly=True)(lambda _: None)
    with Harness() as harness, pytest.raises(ConfigError, match="queue locks"):
        harness.run(consumer)


def test_a_cluster_on_the_real_clock_is_refused() -> None:
    from rocketshim.clock import SystemClock

    with pytest.raises(ConfigError, match="VirtualClock"):
        Harness(kafka=InMemoryKafka(SystemClock()))


def test_closing_twice_does_nothing() -> None:
    attempts = Attempts()
    attempts.harness.run(attempts.consumer)
    attempts.harness.close()
    attempts.harness.close()


def _unconnected() -> dict[str, Callable[[], object]]:
    """A use of each kind of client that no harness knows; without a broker each would wait for it, or go on."""
    producer, awaited = Producer("localhost:1"), AsyncProducer("localhost:1")
    consumer = PushConsumer("localhost:1", group="g")
    consumer.register_message_listener("orders", print)
    lite, pull = LitePullConsumer("localhost:1", group="g"), PullConsumer("localhost:1", group="g")
    worker = DelayWorker(WorkerSettings.make(bootstrap="localhost:1", allow=("*",)))
    dropin_before = dropin.Producer({"bootstrap.servers": "localhost:1", "rocketshim.exit.timeout.ms": 0})
    return {
        "Producer": lambda: producer.send(Message("orders", b"1")),
        "send_oneway": lambda: producer.send_oneway("orders", b"1", delay="1s"),
        "AsyncProducer": lambda: asyncio.run(awaited.send(Message("orders", b"1"))),
        "PushConsumer": consumer.start,
        "LitePullConsumer": lite.start,
        "PullConsumer": pull.start,
        "DelayWorker": worker.start,
        "dropin.Producer": lambda: dropin.Producer({"bootstrap.servers": "localhost:1"}),
        "dropin.Consumer": lambda: dropin.Consumer({"bootstrap.servers": "localhost:1", "group.id": "g"}),
        "produce": lambda: dropin_before.produce("orders", b"1"),
        "admin": lambda: confluent_admin({"bootstrap.servers": "localhost:1"}),
    }


@pytest.mark.parametrize("kind", sorted(_unconnected()))
def test_a_client_outside_of_an_open_harness_is_refused(kind: str) -> None:
    use = _unconnected()[kind]
    with Harness(), pytest.raises(ConfigError, match=r"a test harness is open, .*harness\.connect\(\)"):
        use()


def test_the_error_names_the_brokers_that_would_get_the_message() -> None:
    with Harness(), pytest.raises(ConfigError, match="it would use kafka-1:9092"):
        Producer("kafka-1:9092").send(Message("orders", b"1"))


def test_a_producer_that_has_sent_before_the_harness_is_refused_and_sends_again_afterwards() -> None:
    producer = Producer("localhost:1", delivery_timeout_ms=100, exit_timeout_ms=0)
    producer.send_async("orders", b"before")
    with Harness() as harness:
        with pytest.raises(ConfigError):
            producer.send_async("orders", b"lost")
        harness.close()
        producer.send_async("orders", b"after")
    producer.close(0)


def test_a_harness_may_allow_other_clients() -> None:
    with Harness(allow_real_clients=True):
        Producer("localhost:1", exit_timeout_ms=0).send_oneway("orders", b"1")


def test_one_of_two_open_harnesses_refuses_until_it_is_closed() -> None:
    before = dropin.Producer.produce
    with Harness() as first:
        with Harness():
            assert dropin.Producer.produce is not before
        with pytest.raises(ConfigError):
            confluent_admin({"bootstrap.servers": "localhost:1"})
        first.close()
        confluent_admin({"bootstrap.servers": "localhost:1"})
    assert dropin.Producer.produce is before


# --- named timers ----------------------------------------------------------------------------------------------------


def test_code_under_test_sends_and_cancels_with_names_while_time_passes() -> None:
    """The code has the producer, so that nothing waits for the worker between a send and the time that passes."""
    with Harness() as harness:
        harness.topic("orders")
        for name in ("goes", "stays"):
            harness.producer.send("orders", name.encode(), delay="30m", timer=name, timeout_s=60)
        harness.pass_time("10m")
        harness.producer.cancel("orders", timer="goes", timeout_s=60)
        for _ in range(10):
            harness.producer.send("orders", b"debounced", delay="5s", timer="often", timeout_s=60)
            harness.pass_time("1s")
        harness.pass_time("19m")
        assert [record.value() for record in harness.kafka.records("orders")] == [b"debounced"]
        harness.pass_time("1m")
        assert [record.value() for record in harness.kafka.records("orders")] == [b"debounced", b"stays"]


def test_a_named_message_can_be_cancelled_replaced_and_sent_now() -> None:
    consumer = PushConsumer("localhost:9092", group="shop")
    seen: list[bytes | None] = []
    consumer.register_message_listener("orders", lambda message: seen.append(message.body))
    with Harness() as harness:
        harness.run(consumer)
        for name in ("goes", "stays", "now"):
            harness.send("orders", name.encode(), delay="30m", timer=name)
        harness.send("orders", b"new", delay="40m", timer="stays")
        assert len(harness.waiting("orders")) == 3
        assert harness.cancel("orders", timer="goes")
        assert not harness.cancel("orders", timer="goes")
        assert harness.send_now("orders", timer="now")
        assert seen == [b"now"]
        assert [each.due_ms for each in harness.waiting("orders")] == [harness.clock.wall_ms() + 2_400_000]
        harness.pass_time("39m")
        assert seen == [b"now"]
        harness.pass_time("2m")
        assert seen == [b"now", b"new"]
        assert not harness.cancel("orders", timer="stays")
        assert harness.waiting() == []


def test_a_message_is_recalled_by_the_handle_of_its_result() -> None:
    consumer = PushConsumer("localhost:9092", group="shop")
    seen: list[bytes | None] = []
    consumer.register_message_listener("orders", lambda message: seen.append(message.body))
    with Harness() as harness:
        harness.run(consumer)
        goes, stays = (
            harness.producer.send("orders", body, delay="30m", recallable=True) for body in (b"goes", b"stays")
        )
        assert harness.producer.send("orders", b"now").recall_handle == ""
        assert harness.producer.send("orders", b"zero", delay=0, recallable=True).recall_handle == ""
        harness.producer.recall("orders", goes.recall_handle)
        for handle in ("", "x", goes.recall_handle[:-4], stays.msg_id):
            with pytest.raises(MessageError, match="no recall handle"):
                harness.producer.recall("orders", handle)
        with pytest.raises(MessageError, match="it is of 'orders'"):
            harness.producer.recall("payments", stays.recall_handle)
        harness.pass_time("31m")
    assert sorted(body or b"" for body in seen) == [b"now", b"stays", b"zero"]


def test_a_message_recurs_on_time() -> None:
    consumer = PushConsumer("localhost:9092", group="shop")
    seen: list[tuple[int, str]] = []
    with Harness() as harness:
        consumer.register_message_listener("reports", lambda view: seen.append((harness.clock.wall_ms(), view.msg_id)))
        harness.run(consumer)
        start_ms = harness.clock.wall_ms()
        harness.send("reports", b"daily", timer="daily", every="1h")
        harness.pass_time("150m")
        assert harness.cancel("reports", timer="daily")
        harness.pass_time("2h")
    assert [round((at_ms - start_ms) / 60_000) for at_ms, _ in seen] == [60, 120]
    assert len({msg_id for _, msg_id in seen}) == 2


def test_transactions_are_committed_rolled_back_and_checked_while_time_passes() -> None:
    consumer = PushConsumer("localhost:9092", group="audit")
    seen: list[bytes | None] = []
    consumer.register_message_listener("orders", lambda message: seen.append(message.body))
    asked: list[bytes | None] = []

    def is_paid(message: MessageView) -> LocalTransactionState:
        asked.append(message.body)
        if asked.count(message.body) == 1:
            return LocalTransactionState.UNKNOWN
        return LocalTransactionState[f"{'COMMIT' if message.body == b'late' else 'ROLLBACK'}_MESSAGE"]

    producer = TransactionMQProducer("localhost:9092", group="shop", listener=is_paid)
    with Harness() as harness:
        harness.connect(producer)
        harness.run(consumer)
        with producer.transaction("orders", b"paid"):
            harness.pass_time("1s")
            assert seen == []
        producer.transaction("orders", b"late")
        producer.transaction("orders", b"never")
        producer.transaction("orders", b"no").rollback()
        harness.pass_time("5s")
        assert (seen, asked) == ([b"paid"], [])
        harness.pass_time("2s")
        assert set(asked) == {b"late", b"never"}
        harness.pass_time("10m")
        producer.close()
    assert seen == [b"paid", b"late"]
    assert (asked.count(b"late"), asked.count(b"never")) == (2, 2)
