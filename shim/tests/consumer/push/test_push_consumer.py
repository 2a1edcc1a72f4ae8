"""The facade: what it rejects, how it starts and stops. The tests use the in-memory Kafka on real time."""

import math
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from rocketshim.consumer.push.push_consumer import PushConsumer
from rocketshim.core.allocate import AllocateMessageQueueAveragely
from rocketshim.core.listener_answers import ConsumeStatus
from rocketshim.core.message_model import MessageModel
from rocketshim.core.retry_policy import LevelTableRetryPolicy
from rocketshim.core.start_position import ConsumeFromWhere
from rocketshim.errors import BrokerUnavailableError, ConfigError, ConsumerError, NotAuthorizedError
from rocketshim.kafka.clients import Clients
from rocketshim.settings.consumer import PushConsumerSettings
from rocketshim.stop_signals import StopSignals
from rocketshim.testing import InMemoryKafka

from ..conftest import consumer_of

GUARD_S = 60.0


@pytest.fixture
def patient_leaving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the group in as much time as the machine needs, whatever time was given."""
    monkeypatch.setattr("rocketshim.consumer.poll_loop._LEAVE_S", GUARD_S)
    monkeypatch.setattr("rocketshim.consumer.push.push_consumer._JOIN_GRACE_S", 2 * GUARD_S)


def test_settings_and_arguments_exclude_each_other() -> None:
    settings = PushConsumerSettings.make(bootstrap="b:1", group="g")
    assert PushConsumer(settings=settings).settings is settings
    with pytest.raises(ConfigError, match="not both"):
        PushConsumer("b:1", settings=settings)


def test_a_setting_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="consume_threads"):
        PushConsumer("b:1", group="g", consume_threads=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("topic", ["orders", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "pay.rmq.dlq.x", "no topic"])
def test_a_listener_for_an_invalid_topic_is_rejected(live: InMemoryKafka, topic: str) -> None:
    consumer = consumer_of(live)
    consumer.register_message_listener("orders", print)
    with pytest.raises(ConfigError):
        consumer.register_message_listener(topic, print)


def test_a_function_that_takes_no_message_is_rejected(live: InMemoryKafka) -> None:
    with pytest.raises(ConfigError, match="takes neither"):
        consumer_of(live).register_message_listener("orders", lambda: None)


@pytest.mark.parametrize("hook", [3, print, object(), type("Half", (), {"consume_message_before": print})()])
def test_registering_an_object_without_hook_methods_is_an_error(live: InMemoryKafka, hook: Any) -> None:
    consumer = consumer_of(live)
    with pytest.raises(ConfigError, match="pass an object with the method consume_message"):
        consumer.register_consume_message_hook(hook)
    with pytest.raises(ConfigError, match="pass an object with the method filter_message"):
        consumer.register_filter_message_hook(hook)


def test_the_decorator_without_a_topic_is_an_error(live: InMemoryKafka) -> None:
    with pytest.raises(ConfigError, match=r"give the topic: @consumer\.listener"):
        consumer_of(live).listener(print)  # type: ignore[arg-type]


def test_without_a_listener_it_does_not_start(live: InMemoryKafka) -> None:
    with pytest.raises(ConfigError, match="listener"):
        consumer_of(live).start()


def test_start_raises_if_kafka_rejects_a_setting_and_may_be_called_again(
    live: InMemoryKafka,
) -> None:
    tries: list[int] = []

    def factory(config: Any) -> Any:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("no such setting")
        return live.consumer(config)

    consumer = PushConsumer("memory:1", group="g", clients=Clients(factory, live.producer))
    consumer.register_message_listener("orders", print)
    with pytest.raises(ConfigError, match="no such setting"):
        consumer.start()
    consumer.start()
    assert consumer.wait_assigned(GUARD_S)
    consumer.stop()


@pytest.mark.parametrize(
    ("name", "orderly", "model"),
    [
        ("rocketshim-listener-g-2", False, MessageModel.CLUSTERING),
        ("rocketshim-poll-g", False, MessageModel.CLUSTERING),
        ("rocketshim-poll-g", False, MessageModel.BROADCASTING),
        ("rocketshim-group-log-", True, MessageModel.CLUSTERING),
    ],
)
def test_if_the_system_has_no_thread_left_nothing_runs_and_start_may_be_called_again(
    live: InMemoryKafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    name: str,
    orderly: bool,
    model: MessageModel,
) -> None:
    consumer = consumer_of(live, message_model=model, offset_store_dir=str(tmp_path))
    consumer.register_message_listener("orders", lambda _: None, orderly=orderly)
    live.create_topic(consumer.names.group_log("g"), config={"message.timestamp.type": "LogAppendTime"})
    start, before = threading.Thread.start, set(threading.enumerate())

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(name):
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            consumer.start()
    assert _until(lambda: not set(threading.enumerate()) - before)
    consumer.stop()
    consumer.start()
    assert consumer.wait_assigned(GUARD_S)
    consumer.stop()


def test_the_start_of_a_consumer_that_has_failed_raises_why(live: InMemoryKafka) -> None:
    consumer = consumer_of(live)
    consumer.register_message_listener("orders", print)
    consumer.start()
    live.deny("orders", write=False)
    live.append("orders", b"x")
    assert consumer._ended.wait(GUARD_S)
    for call in (consumer.start, consumer.run, consumer.stop):
        with pytest.raises(NotAuthorizedError, match="not authorized to read orders"):
            call()


def test_it_starts_once_may_be_stopped_twice_and_does_not_start_again(live: InMemoryKafka) -> None:
    consumer = consumer_of(live)
    consumer.register_message_listener("orders", print)
    consumer.stop()  # before start: nothing
    consumer.start()
    consumer.start()
    assert consumer.wait_assigned(GUARD_S)
    assert len(live.members("g")) == 1
    consumer.stop()
    consumer.stop()
    assert live.members("g") == []
    with pytest.raises(ConsumerError, match="runs only once"):
        consumer.start()


def test_a_stop_that_interrupts_start_takes_effect(live: InMemoryKafka, tmp_path: Path) -> None:
    starting = threading.get_ident()

    def interrupted(settings: dict[str, Any]) -> Any:
        if threading.get_ident() == starting:
            consumer.stop()  # as a signal handler does
        return live.consumer(settings)

    consumer = PushConsumer(
        "memory:1",
        group="g",
        clients=Clients(interrupted, live.producer),
        message_model=MessageModel.BROADCASTING,
        offset_store_dir=str(tmp_path),
    )
    consumer.register_message_listener("orders", lambda _: None)
    consumer.start()
    with pytest.raises(ConsumerError, match="not running"):
        consumer.suspend()
    with pytest.raises(ConsumerError, match="runs only once"):
        consumer.start()
    assert not [thread for thread in threading.enumerate() if thread.name == "rocketshim-poll-g"]


def test_a_stop_during_a_start_that_fails_does_not_stop_the_next_one(live: InMemoryKafka) -> None:
    def fail() -> None:
        consumer.stop()  # as a signal handler does
        raise ConfigError("a setting is wrong")

    consumer = consumer_of(live)
    consumer.register_message_listener("orders", print)
    start, consumer._start = consumer._start, fail  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="a setting is wrong"):
        consumer.start()
    consumer._start = start  # type: ignore[method-assign]
    consumer.start()
    assert consumer.wait_assigned(GUARD_S)
    assert len(live.members("g")) == 1
    consumer.stop()


@pytest.mark.usefixtures("patient_leaving")
def test_a_stop_of_another_thread_during_start_keeps_to_its_time(live: InMemoryKafka) -> None:
    go_on = threading.Event()

    def slow(settings: dict[str, Any]) -> Any:
        go_on.wait(GUARD_S)
        return live.consumer(settings)

    consumer = PushConsumer("memory:1", group="g", clients=Clients(slow, live.producer))
    consumer.register_message_listener("orders", lambda _: None)
    starting = threading.Thread(target=consumer.start)
    starting.start()
    assert _until(lambda: consumer._starting_thread is not None)
    with pytest.raises(ConsumerError, match=r"did not stop within 0\.01 s: it is still starting"):
        consumer.stop(0.01)
    go_on.set()
    starting.join()
    assert live.members("g") == []
    with pytest.raises(ConsumerError, match="runs only once"):
        consumer.start()


@pytest.mark.parametrize("timeout_s", [None, "5", math.nan])
def test_a_stop_whose_time_is_not_a_number_changes_nothing(live: InMemoryKafka, timeout_s: Any) -> None:
    consumer = consumer_of(live)
    consumer.register_message_listener("orders", lambda _: None)
    consumer.start()
    with pytest.raises(ConfigError, match=r"stop\(.*\): pass a number of seconds"):
        consumer.stop(timeout_s)
    consumer.suspend()
    consumer.stop(math.inf)
    assert live.members("g") == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_during_the_shutdown_do_not_interrupt_it(
    live: InMemoryKafka, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rocketshim.stop_signals._FORCE_AFTER_S", GUARD_S)  # a test of its own has the repeated signal
    live.append("orders", b"x")
    began, ended = threading.Event(), threading.Event()
    consumer = consumer_of(live)

    @consumer.listener("orders")
    def handle(_: Any) -> None:
        began.set()
        signal.raise_signal(number)
        assert _until(lambda: consumer._stopped)
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(number)
        ended.set()

    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    consumer.run()
    assert began.is_set()
    assert ended.is_set()
    assert live.committed("g")["orders", 0] == 1
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_signal_that_came_before_the_run_means_no_start(live: InMemoryKafka) -> None:
    consumer = consumer_of(live)
    consumer.register_message_listener("orders", lambda _: None)
    with StopSignals() as outer:
        signal.raise_signal(signal.SIGTERM)
        consumer.run()
        assert outer.asked
    assert consumer.state is None


@pytest.mark.parametrize("is_asked", [False, True])
def test_a_consumer_that_starts_in_vain_ends_without_an_error_if_a_signal_has_asked_it_to_stop(
    live: InMemoryKafka, monkeypatch: pytest.MonkeyPatch, *, is_asked: bool
) -> None:
    consumer = consumer_of(live)
    consumer.register_message_listener("orders", lambda _: None)

    def start(*, wait_s: float) -> None:
        del wait_s
        if is_asked:
            signal.raise_signal(signal.SIGTERM)
        raise BrokerUnavailableError("no broker answers")

    monkeypatch.setattr(consumer, "start", start)
    with nullcontext() if is_asked else pytest.raises(BrokerUnavailableError):
        consumer.run()
    assert consumer.state is None


@pytest.mark.parametrize("mode", ["concurrent", "orderly", "strategy", "broadcasting"])
def test_start_returns_when_the_starts_of_its_queues_are_chosen_and_stored(
    live: InMemoryKafka, tmp_path: Path, mode: str
) -> None:
    """A new group at the end of an old topic gets what is sent directly after start()."""
    live.add_partitions("orders", 4)
    for number in range(4):
        live.append("orders", b"old", partition=number)
        live.truncate("orders", number, before_offset=1)
    seen: list[bytes | None] = []
    made: dict[str, dict[str, Any]] = {
        "broadcasting": {"message_model": MessageModel.BROADCASTING, "offset_store_dir": str(tmp_path)},
        "strategy": {"allocate_message_queue_strategy": AllocateMessageQueueAveragely()},
    }
    consumer = consumer_of(live, consume_from_where=ConsumeFromWhere.LAST_OFFSET, **made.get(mode, {}))
    live.create_topic(consumer.names.group_log("g"), config={"message.timestamp.type": "LogAppendTime"})
    consumer.register_message_listener("orders", lambda message: seen.append(message.body), orderly=mode == "orderly")
    consumer.start(wait_s=GUARD_S)
    try:
        assert consumer.wait_assigned(0)
        if mode != "broadcasting":
            assert [live.committed("g").get(("orders", number)) for number in range(4)] == [1] * 4
        for number in range(12):
            live.append("orders", b"%d" % number, partition=number % 4)
        assert _until(lambda: len(seen) == 12)
    finally:
        consumer.stop()


def of_a_silent_coordinator(kafka: InMemoryKafka, answers: threading.Event) -> PushConsumer:
    """A consumer that is not told what its group has committed, until this event."""

    def make(config: Any) -> Any:
        client = kafka.consumer(config)
        committed = client.committed

        def asked(*arguments: Any, **named: Any) -> Any:
            if not answers.is_set():
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return committed(*arguments, **named)

        client.committed = asked  # type: ignore[method-assign]
        return client

    consumer = PushConsumer("memory:1", group="g", clients=Clients(make, kafka.producer))
    consumer.register_message_listener("orders", lambda _: None)
    return consumer


def test_start_waits_no_longer_than_it_may_for_starts_that_are_unknown(live: InMemoryKafka) -> None:
    answers = threading.Event()
    consumer = of_a_silent_coordinator(live, answers)
    consumer.start(wait_s=0.1)
    assert not consumer.wait_assigned(0)
    answers.set()
    assert consumer.wait_assigned(GUARD_S)
    consumer.stop()


def test_start_does_not_wait_for_queues_that_other_members_have(live: InMemoryKafka) -> None:
    members = [consumer_of(live), consumer_of(live)]
    for member in members:
        member.register_message_listener("orders", lambda _: None)
        member.start(wait_s=GUARD_S)
        assert member.wait_assigned(0)
    for member in members:
        member.stop()


def test_stop_ends_the_wait_of_start(live: InMemoryKafka) -> None:
    consumer = of_a_silent_coordinator(live, threading.Event())
    starter = threading.Thread(target=lambda: consumer.start(wait_s=math.inf))
    starter.start()
    assert _until(lambda: len(live.members("g")) == 1)
    consumer.stop()
    starter.join(GUARD_S)
    assert not starter.is_alive()
    assert not consumer.wait_assigned(0)


@pytest.mark.parametrize("time_s", ["1", math.nan, None])
def test_start_refuses_a_wait_that_is_no_number(live: InMemoryKafka, time_s: Any) -> None:
    consumer = consumer_of(live)
    consumer.register_message_listener("orders", lambda _: None)
    with pytest.raises(ConfigError, match="0 means no wait"):
        consumer.start(wait_s=time_s)
    assert not consumer.wait_assigned(0)


def _until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + GUARD_S
    while not condition() and time.monotonic() < end:
        time.sleep(0.001)
    return condition()


def test_handled_messages_are_committed_when_stop_returns(live: InMemoryKafka) -> None:
    seen: list[bytes | None] = []
    done = threading.Event()
    consumer = consumer_of(live)

    @consumer.listener("orders")
    def handle(message: Any, context: Any) -> ConsumeStatus:
        assert context.group == "g"
        seen.append(message.body)
        if len(seen) == 10:
            done.set()
        return ConsumeStatus.CONSUME_SUCCESS

    for _ in range(10):
        live.append("orders", b"")
    with consumer:
        assert done.wait(GUARD_S)
    assert seen == [b""] * 10
    assert live.committed("g")["orders", 0] == 10


def test_a_group_whose_position_was_deleted_gets_all_remaining_messages(
    live: InMemoryKafka,
) -> None:
    seen: list[bytes | None] = []

    def consume(count: int) -> None:
        consumer = consumer_of(live, consume_from_where=ConsumeFromWhere.LAST_OFFSET)
        done = threading.Event()

        @consumer.listener("orders")
        def handle(message: Any) -> None:
            seen.append(message.body)
            if len(seen) == count:
                done.set()

        with consumer:
            assert consumer.wait_assigned(GUARD_S)
            if not seen:
                live.append("orders", b"0")
            assert done.wait(GUARD_S)

    consume(1)
    for number in range(1, 8):
        live.append("orders", b"%d" % number)
    live.truncate("orders", 0, before_offset=5)
    consume(4)
    assert sorted(seen) == [b"0", b"5", b"6", b"7"]


def test_a_listener_may_stop_its_consumer(live: InMemoryKafka) -> None:
    consumer = consumer_of(live)
    consumer.register_message_listener("orders", lambda message: consumer.stop() if message.body == b"" else None)
    live.append("orders", b"")
    consumer.run()
    assert live.committed("g")["orders", 0] == 1


@pytest.mark.usefixtures("patient_leaving")
def test_a_listener_that_never_returns_does_not_delay_stop_beyond_its_timeout(live: InMemoryKafka) -> None:
    begun, over = threading.Event(), threading.Event()

    def handle(message: Any) -> None:
        del message
        begun.set()
        over.wait(GUARD_S)

    consumer = consumer_of(live)
    consumer.register_message_listener("orders", handle)
    live.append("orders", None)
    consumer.start()
    assert begun.wait(GUARD_S)
    consumer.stop(timeout_s=0.2)
    assert live.members("g") == []
    assert live.committed("g")["orders", 0] == 0
    over.set()


def test_the_number_of_listener_threads_changes_while_it_runs(live: InMemoryKafka) -> None:
    together = 5
    barrier = threading.Barrier(together + 1)
    consumer = consumer_of(live, consume_thread_min=1)

    @consumer.listener("orders")
    def meet(message: Any) -> None:
        del message
        barrier.wait(GUARD_S)

    consumer.start()
    with pytest.raises(ConfigError):
        consumer.update_core_pool_size(0)
    consumer.update_core_pool_size(together)
    for _ in range(together):
        live.append("orders", b"x")
    barrier.wait(GUARD_S)  # all five are in their listener at the same time
    consumer.update_core_pool_size(1)
    consumer.stop()
    with pytest.raises(ConsumerError, match="not running"):
        consumer.update_core_pool_size(2)


@pytest.mark.parametrize("orderly", [False, True])
def test_a_consumer_that_was_suspended_before_start_reads_nothing_until_it_is_resumed(
    live: InMemoryKafka, orderly: bool
) -> None:
    seen: list[bytes | None] = []
    consumer = consumer_of(live)
    live.create_topic(consumer.names.group_log("g"), config={"message.timestamp.type": "LogAppendTime"})
    live.append("orders", b"1")
    consumer.register_message_listener("orders", lambda message: seen.append(message.body), orderly=orderly)
    consumer.resume()
    consumer.suspend()
    consumer.suspend()
    consumer.start(wait_s=GUARD_S)
    assert consumer.wait_assigned(0)
    assert _until(lambda: consumer.state is not None and consumer.state.suspended)
    for _ in range(20):  # turns of its loop
        consumer.suspend()
    assert seen == []
    consumer.resume()
    assert _until(lambda: seen == [b"1"])
    consumer.stop()
    for act in (consumer.suspend, consumer.resume):
        with pytest.raises(ConsumerError, match="not running"):
            act()


def test_suspend_and_resume_may_be_called_twice_and_the_last_word_before_start_counts(live: InMemoryKafka) -> None:
    consumer = consumer_of(live)
    consumer.suspend()
    consumer.resume()
    consumer.register_message_listener("orders", print)
    with consumer:
        assert _until(lambda: consumer.state is not None)
        assert consumer.state is not None
        assert not consumer.state.suspended
        consumer.suspend()
        consumer.suspend()
        consumer.resume()


def test_a_consumer_that_has_ended_by_an_error_answers_with_it(live: InMemoryKafka) -> None:
    consumer = consumer_of(live)
    consumer.register_message_listener("orders", print)
    consumer.start()
    loop: Any = consumer._loop
    live.raise_in_poll(loop.reader._consumer, KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    assert consumer._ended.wait(GUARD_S)
    with pytest.raises(ConsumerError, match="not running: it stopped after an error: not authorized"):
        consumer.suspend()


def test_kip_848_gets_no_assignor_of_the_client(live: InMemoryKafka) -> None:
    readers = [_settings_of_the_reader(live, {"group.protocol": protocol}) for protocol in ("consumer", "classic")]
    assert ["partition.assignment.strategy" in config for config in readers] == [False, True]


@pytest.mark.parametrize(
    ("client", "longest_ms"),
    [
        ({"group.protocol": "consumer"}, 48_000),
        ({"group.protocol": "consumer", "max.poll.interval.ms": 90_000}, 90_000),
        ({"group.protocol": "classic"}, None),
    ],
)
def test_with_kip_848_a_member_that_keeps_partitions_of_others_is_put_out_after_48_s(
    live: InMemoryKafka, client: dict[str, Any], longest_ms: int | None
) -> None:
    """Librdkafka may miss that it has to revoke: the broker then waits for this time, by default for five minutes."""
    assert _settings_of_the_reader(live, client).get("max.poll.interval.ms") == longest_ms


def _settings_of_the_reader(live: InMemoryKafka, client: dict[str, Any]) -> dict[str, Any]:
    (reader,) = [config for config in _settings_of_all_clients(live, client) if "on_commit" in config]
    return reader


def _settings_of_all_clients(live: InMemoryKafka, client: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of the clients that a push consumer makes, in the order in which it makes them."""
    configs: list[dict[str, Any]] = []

    def noted(make: Any) -> Any:
        def made(config: Any) -> Any:
            configs.append(dict(config))
            return make(config)

        return made

    clients = Clients(noted(live.consumer), noted(live.producer))
    consumer = PushConsumer("memory:1", group="g", clients=clients, client=client)
    consumer.register_message_listener("orders", print)
    with consumer:
        pass
    return configs


@pytest.mark.usefixtures("broken_logging")
def test_if_logging_raises_every_message_is_handled_and_failed_ones_are_retried(live: InMemoryKafka) -> None:
    seen: list[int] = []

    def handle(message: Any, context: Any) -> None:
        context.delay_level_when_next_consume = "nonsense"  # which is logged
        seen.append(message.queue_offset)
        if message.queue_offset % 2:
            raise SystemExit  # which is logged too

    for _ in range(60):
        live.append("orders", b"")
    consumer = consumer_of(live)
    consumer.register_message_listener("orders", handle)
    with consumer:
        live.wait_until(lambda: len(live.records("SCHEDULE_TOPIC_XXXX")) == 30, guard_s=GUARD_S)
    assert sorted(seen) == list(range(60))
    assert live.committed("g")["orders", 0] == 60


@pytest.mark.usefixtures("broken_logging")
def test_run_raises_the_error_of_the_poll_thread_even_if_logging_raises(live: InMemoryKafka) -> None:
    class Broken(LevelTableRetryPolicy):
        def next_hop(self, reconsume_times: int, unit: float) -> Any:
            if threading.current_thread() is threading.main_thread():
                return super().next_hop(reconsume_times, unit)  # as it is asked when the consumer is made
            raise OSError(f"{reconsume_times} {unit}")  # logged, and the level table decides

    handled = threading.Event()
    consumer = consumer_of(live, retry_policy=Broken())

    def handle(message: Any) -> None:
        del message
        handled.set()
        raise OSError

    def deny() -> None:
        assert handled.wait(GUARD_S)
        loop: Any = consumer._loop
        live.wait_until(lambda: len(live.records("SCHEDULE_TOPIC_XXXX")) == 1, guard_s=GUARD_S)
        live.raise_in_poll(loop.reader._consumer, KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))

    consumer.register_message_listener("orders", handle)
    live.append("orders", b"")
    denying = threading.Thread(target=deny)
    denying.start()
    with pytest.raises(NotAuthorizedError):
        consumer.run()
    denying.join()


def test_a_reset_to_a_time_below_zero_is_rejected(live: InMemoryKafka) -> None:
    """For Kafka, -1 and -2 mean the end and the beginning of the log."""
    consumer = consumer_of(live)
    consumer.register_message_listener("orders", print)
    with consumer, pytest.raises(ConfigError, match="timestamp_ms=-1: give epoch milliseconds"):
        consumer.reset_offset_by_timestamp("orders", -1)


def test_a_reset_by_time_uses_the_lookup_client(live: InMemoryKafka) -> None:
    seen: list[int] = []
    producer = live.producer({})
    for number in range(5):
        producer.produce("orders", b"x", timestamp=1_000_000 + number)
    consumer = consumer_of(live)
    consumer.register_message_listener("orders", lambda message: seen.append(message.queue_offset))
    with consumer:
        live.wait_until(lambda: len(seen) == 5, guard_s=GUARD_S)
        consumer.reset_offset_by_timestamp("orders", 1_000_003)
        live.wait_until(lambda: sorted(seen[5:]) == [3, 4], guard_s=GUARD_S)  # by several threads
    assert live.delayed_lookups == []


@pytest.mark.parametrize(
    ("client", "wanted_ms"),
    [({}, [5_000, 10_000]), ({"topic.metadata.refresh.interval.ms": 70}, [70, 70])],
)
def test_the_clients_notice_added_partitions_within_seconds(
    live: InMemoryKafka, client: dict[str, Any], wanted_ms: list[int]
) -> None:
    intervals = [config.get("topic.metadata.refresh.interval.ms") for config in _settings_of_all_clients(live, client)]
    assert sorted(intervals[:2]) == wanted_ms
    assert len(intervals) == 3, "the third client only looks up"
