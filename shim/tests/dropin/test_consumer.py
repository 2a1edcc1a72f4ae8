"""The drop-in consumer as far as it goes without a broker: what is refused, and what its class is."""

import gc
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import OFFSET_END, OFFSET_INVALID, KafkaError, KafkaException, Message, TopicPartition

from rocketshim.dropin import Consumer
from rocketshim.dropin.rebalancing import _on_lost
from rocketshim.dropin.retrying_consumer import RetryingConsumer
from rocketshim.dropin.state import Rebalance
from rocketshim.errors import ConfigError, FeatureNotEnabledError, MalformedRecordError, StaleMessageError
from rocketshim_topics.coordinates import TopicPartitionKey

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}
ON = {**NOWHERE, "rocketshim.retry.enable": True}
PARTITION = TopicPartitionKey("t", 0)
PLACE = TopicPartition("t", 0, 1)


@pytest.mark.parametrize("config", [NOWHERE, {**NOWHERE, "rocketshim.retry.enable": "false"}])
def test_without_retry_the_new_methods_name_the_setting(config: dict[str, Any]) -> None:
    message = Message("t", 0, 1, headers=[("TAGS", b"a")])
    with Consumer(config) as consumer:
        assert type(consumer) is Consumer
        with pytest.raises(FeatureNotEnabledError, match=r"rocketshim\.retry\.enable"):
            consumer.reconsume_later(message)
        with pytest.raises(FeatureNotEnabledError, match=r"rocketshim\.retry\.enable"):
            consumer.dead_letter(message, "why")
        assert (consumer.reconsume_times(message), consumer.tag(message)) == (0, "a")
        assert str(consumer.origin(message)) == consumer.uniq_key(message) == "t/0/1"


@pytest.mark.parametrize(
    "message", [Message("t", 0, 1, error=KafkaError(KafkaError._PARTITION_EOF)), Message("t"), Message()]
)
@pytest.mark.parametrize("config", [NOWHERE, ON])
def test_an_event_instead_of_a_message_is_a_value_error(config: dict[str, Any], message: Message) -> None:
    with Consumer(config) as consumer:
        for look in (consumer.reconsume_times, consumer.origin, consumer.tag, consumer.uniq_key):
            with pytest.raises(ValueError, match=r"error\(\)|never fetched"):
                look(message)
        if config is ON:
            with pytest.raises(ValueError, match=r"error\(\)|never fetched"):
                consumer.dead_letter(message, "why")


def test_only_headers_of_retry_records_are_trusted() -> None:
    headers = [("RECONSUME_TIMES", b"3"), ("RETRY_TOPIC", b"orders"), ("ORIGIN_MESSAGE_ID", b"orders/1/7")]
    with Consumer(ON) as consumer:
        assert consumer.reconsume_times(Message("orders", 0, 1, headers=headers)) == 0
        retried = Message("rmq.retry.g", 0, 1, headers=headers)
        assert (consumer.reconsume_times(retried), str(consumer.origin(retried))) == (3, "orders/1/7")
        assert [consumer.is_retried(each) for each in (retried, Message("orders", 0, 1))] == [True, False]
        with pytest.raises(MalformedRecordError):
            consumer.reconsume_times(Message("rmq.retry.g", 0, 1, headers=[("RECONSUME_TIMES", b"three")]))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"group.id": ""}, "group.id"),
        ({"isolation.level": "read_uncommitted"}, "isolation.level"),
        ({"default.topic.config": {"isolation.level": "read_uncommitted"}}, "isolation.level"),
        ({"rocketshim.retry.enabled": True}, "did you mean rocketshim.retry.enable"),
        ({"rocketshim.hop.timeout.ms": 1}, "rocketshim.hop.timeout.ms=1"),
        ({"rocketshim.producer.acks": "1"}, "acks"),
        ({"rocketshim.delay.levels": "soon"}, "soon"),
    ],
)
def test_a_setting_that_does_not_work_with_retries_is_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Consumer({**ON, **config})


@pytest.mark.parametrize(("key", "value"), [("lingr.ms", 5), ("batch.size", "big"), ("retries", 0)])
def test_a_setting_of_the_inner_producer_that_the_client_refuses_is_an_error_at_the_start(key: str, value: Any) -> None:
    with pytest.raises(KafkaException, match=key):
        Consumer({**ON, f"rocketshim.producer.{key}": value})


def test_settings_in_the_former_form_count_like_the_others() -> None:
    nested = {"enable.auto.offset.store": False, "group.id": "nested"}
    with Consumer({**ON, "default.topic.config": nested}) as consumer:
        assert (consumer._rocketshim.stores, consumer._rocketshim.retries.topic) == (False, "rmq.retry.nested")


def test_a_missing_configuration_is_refused_as_by_the_original() -> None:
    with pytest.raises(TypeError, match="expected configuration dict"):
        Consumer(["group.id"], **{"rocketshim.retry.enable": True})


def test_a_subclass_keeps_its_name_and_identity() -> None:
    class Mine(Consumer):
        pass

    with Mine(ON) as consumer:
        assert isinstance(consumer, Mine)
        assert isinstance(consumer, confluent_kafka.Consumer)
        assert type(consumer).__qualname__ == Mine.__qualname__
    with Mine(ON) as second:
        assert type(second) is type(consumer)


def test_a_hook_for_subclasses_is_called_for_the_programs_classes_only() -> None:
    topics: list[str] = []

    class Base(Consumer):
        def __init_subclass__(cls, *, topic: str) -> None:
            topics.append(topic)

    class Orders(Base, topic="orders"):
        pass

    with Orders(ON) as consumer:
        assert isinstance(consumer, RetryingConsumer)
    assert topics == ["orders"]


def test_calls_after_close_are_the_originals_errors() -> None:
    ours, theirs = Consumer(ON), confluent_kafka.Consumer(NOWHERE)
    for consumer in (ours, theirs):
        consumer.close()
        consumer.close()
    for call in (
        lambda consumer: consumer.poll(0),
        lambda consumer: consumer.consume(1, 0),
        lambda consumer: consumer.commit(),
        lambda consumer: consumer.assignment(),
        lambda consumer: consumer.pause([]),
    ):
        for consumer in (ours, theirs):
            with pytest.raises(RuntimeError, match="Consumer closed"):
                call(consumer)


def test_a_consumer_that_was_never_closed_leaves_no_thread() -> None:
    consumer = Consumer(ON)
    consumer._rocketshim.hop_store._sender._open()
    (thread,) = [each for each in threading.enumerate() if each.name == "rocketshim-dropin-reports"]
    del consumer
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_credentials_that_are_set_reach_every_client_of_the_consumer() -> None:
    class Client:
        told: tuple[str, str] | None = None

        def set_sasl_credentials(self, username: str, password: str) -> None:
            self.told = (username, password)

    config = {**ON, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
    with Consumer({**config, "sasl.username": "old", "sasl.password": "old"}) as consumer:
        store, before, after = consumer._rocketshim.hop_store, Client(), Client()
        store.tell_credentials(before)
        consumer.set_sasl_credentials("new", "secret")
        store.tell_credentials(after)
        assert (before.told, after.told) == (None, ("new", "secret"))
        assert store._sender._open() is store._sender._open(), "made with the new ones"
        consumer.set_sasl_credentials("newer", "secret")


def test_a_callback_of_a_poll_that_does_not_wait_may_wait_for_a_thread_that_sends_back(
    at_once: type[Any],
) -> None:
    begun, refused = threading.Event(), threading.Event()
    in_time: list[bool] = []

    def revoked(_: Consumer, __: list[TopicPartition]) -> None:
        begun.set()
        in_time.append(refused.wait(60))

    def failed(_: KafkaError) -> None:  # that nobody listens there; a callback that comes without a broker
        if not begun.is_set():
            consumer._shim_call(revoked, [TopicPartition("t", 0)], Rebalance([], {}))

    def work() -> None:
        begun.wait(60)
        with pytest.raises(StaleMessageError):
            consumer.dead_letter(Message("t", 0, 3, value=b"x"), "why")
        refused.set()

    consumer = at_once({**ON, "error_cb": failed})
    consumer.waits = False
    assert isinstance(consumer, RetryingConsumer)
    consumer._rocketshim.tracker.add({TopicPartitionKey("t", 0): 0})
    thread = threading.Thread(target=work)
    thread.start()
    deadline = time.monotonic() + 60
    while not in_time:
        assert consumer.poll() is None
        assert time.monotonic() < deadline
    thread.join(60)
    assert in_time == [True]
    assert not consumer._rocketshim.gate.waiting
    consumer.close()


@pytest.mark.parametrize("was", [False, True], ids=["outside", "in a callback, or closed"])
def test_a_signal_handler_that_raises_as_a_poll_begins_does_not_leave_it_waiting(*, was: bool) -> None:
    class Interrupted:
        def __enter__(self) -> None: ...

        def __exit__(self, *_: object) -> None:
            raise InterruptedError

    with Consumer(ON) as consumer:
        gate = consumer._rocketshim.gate
        gate._lock, lock = Interrupted(), gate._lock  # type: ignore[assignment]
        gate.waiting = was
        with pytest.raises(InterruptedError):
            consumer.poll(0)
        gate._lock = lock
        assert gate.waiting is was
        assert consumer.poll(0) is None
        assert gate.waiting is was


@pytest.mark.parametrize("wrong", ["3", 2.5, float("nan"), -0.5, True, b"1", [3]])
def test_a_level_that_is_not_a_whole_number_is_refused_and_blocks_no_offset(wrong: Any) -> None:
    with Consumer(ON) as consumer:
        assert isinstance(consumer, RetryingConsumer)
        state = consumer._rocketshim
        state.retries.is_read = True
        state.tracker.add({PARTITION: 0})
        state.tracker.sought(PARTITION, 0, 9)  # nine were handed out
        with pytest.raises(ConfigError, match=re.escape(f"level={wrong!r} is not a delay level: give a whole number")):
            consumer.reconsume_later(Message("t", 0, 3, value=b"x"), "why", level=wrong)
        assert state.tracker.to_store({PARTITION: 9}) == {PARTITION: 9}


def test_messages_of_a_lost_partition_are_stale_in_its_callback() -> None:
    refused: list[bool] = []

    def lost(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        (place,) = partitions
        with pytest.raises(StaleMessageError):
            consumer.dead_letter(Message(place.topic, place.partition, 3, value=b"x"), "why")
        refused.append(True)

    with Consumer(ON) as consumer:
        assert isinstance(consumer, RetryingConsumer)
        state = consumer._rocketshim
        state.callbacks = (None, None, lost)
        state.tracker.add({TopicPartitionKey("t", 0): 0})
        state.tracker.sought(TopicPartitionKey("t", 0), 0, 9)  # nine were handed out
        state.send_back = None  # type: ignore[assignment]  # nothing is sent
        _on_lost(consumer, [TopicPartition("t", 0)])
        assert (refused, list(state.buffered.errors)) == ([True], [])


def test_a_consumer_of_the_retry_topic_alone_pauses_it_with_an_empty_list() -> None:
    class Watched(Consumer):
        def _shim_finish(self, act: Any, *arguments: Any) -> None:
            acts.append((act.__name__, [each.topic for each in arguments[0]]))

    acts: list[tuple[str, list[str]]] = []
    with Watched(ON) as consumer:
        state = consumer._rocketshim
        state.retries.is_read = True
        state.tracker.add({TopicPartitionKey(state.retries.topic, 0): 0})
        consumer.pause(consumer.assignment())
        consumer.resume(consumer.assignment())
        assert acts == [("pause", [state.retries.topic]), ("resume", [state.retries.topic])]


@pytest.mark.parametrize("is_cooperative", [False, True])
def test_a_callback_that_changes_its_list_changes_no_assignment(*, is_cooperative: bool) -> None:
    class Watched(Consumer):
        def _shim_finish(self, act: Any, *arguments: Any) -> None:
            acts.append((act.__name__, [(each.partition, each.offset) for given in arguments for each in given]))

    def changed(_: Consumer, partitions: list[TopicPartition]) -> None:
        partitions[0].offset = OFFSET_END
        while len(partitions) > 1:
            partitions.pop()

    acts: list[tuple[str, list[tuple[int, int]]]] = []
    with Watched(ON) as consumer:
        assert isinstance(consumer, RetryingConsumer)
        consumer._rocketshim.cooperative = is_cooperative
        consumer._rocketshim.callbacks = (changed, changed, None)
        consumer._shim_assigned([TopicPartition("t", 0), TopicPartition("t", 1)])
        consumer._shim_released([TopicPartition("t", 0), TopicPartition("t", 1)], changed)
    both = [(0, OFFSET_INVALID), (1, OFFSET_INVALID)]
    assert acts == (
        [("incremental_assign", both), ("incremental_unassign", both)]
        if is_cooperative
        else [("assign", both), ("unassign", [])]
    )


def test_a_callback_whose_assign_is_refused_has_not_assigned() -> None:
    with Consumer(ON) as consumer:
        state = consumer._rocketshim
        state.rebalance = Rebalance([], {})
        with pytest.raises(TypeError):
            consumer.assign(["t"])  # type: ignore[list-item]
        assert not state.rebalance.done
        state.rebalance = None


def test_subscribing_to_nothing_is_refused_as_by_the_original() -> None:
    with Consumer(ON) as ours, confluent_kafka.Consumer(NOWHERE) as theirs:
        for consumer in (ours, theirs):
            with pytest.raises(KafkaException, match="_INVALID_ARG"):
                consumer.subscribe([])


@pytest.mark.parametrize(
    "call",
    [
        lambda consumer: consumer.assign((PLACE,)),
        lambda consumer: consumer.assign("t"),
        lambda consumer: consumer.assign(None),
        lambda consumer: consumer.assign(partitions=[PLACE]),
        lambda consumer: consumer.incremental_assign((PLACE,)),
        lambda consumer: consumer.incremental_unassign((PLACE,)),
        lambda consumer: consumer.seek(PLACE),
        lambda consumer: consumer.seek(5),
        lambda consumer: consumer.store_offsets(foo=[PLACE]),
        lambda consumer: consumer.store_offsets(None, message=Message("t", 0, 1)),
        lambda consumer: consumer.store_offsets(None, None, Message("t", 0, 1)),
        lambda consumer: consumer.store_offsets(offsets=(PLACE,)),
        lambda consumer: consumer.store_offsets(Message("t", 0, 1), [PLACE]),
        lambda consumer: consumer.store_offsets(),
        lambda consumer: consumer.subscribe(["t"], print, on_assign=print),
        lambda consumer: consumer.subscribe(["t"], on_assign=None),
        lambda consumer: consumer.subscribe(["t"], print, print, print, print),
        lambda consumer: consumer.subscribe(("t",)),
    ],
)
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_wrong_argument_is_refused_as_by_the_original(call: Callable[[Any], None], *, is_closed: bool) -> None:
    errors = []
    for consumer in (Consumer(ON), confluent_kafka.Consumer(NOWHERE)):
        with consumer:
            if is_closed:
                consumer.close()
            with pytest.raises((TypeError, ValueError, KafkaException, RuntimeError)) as caught:
                call(consumer)
            code = caught.value.args[0].code() if isinstance(caught.value, KafkaException) else None
            errors.append((caught.type, code))
    assert errors[0] == errors[1]


def test_offsets_of_an_earlier_assignment_are_not_stored_in_the_next() -> None:
    with Consumer(ON) as consumer:
        assert isinstance(consumer, RetryingConsumer)
        state, (old, kept) = consumer._rocketshim, (TopicPartition("t", 0, 100), TopicPartition("t", 1, 7))
        state.tracker.add({TopicPartitionKey("t", 0): 0, TopicPartitionKey("t", 1): 0})
        state.offsets.positions = {TopicPartitionKey("t", 0): old, TopicPartitionKey("t", 1): kept}
        state.tracker.remove([TopicPartitionKey("t", 0)])
        consumer._shim_begin([TopicPartition("t", 0)], {TopicPartitionKey("t", 0): 50})
        assert state.offsets.positions == {TopicPartitionKey("t", 1): kept}
