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
from rocketshim.dropin import retry_side as retries_module
from rocketshim.dropin.retry_side import Rebalance, RetrySide, _on_lost
from rocketshim.dropin.settings import with_credentials
from rocketshim.errors import ConfigError, FeatureNotEnabledError, MalformedRecordError, StaleMessageError
from rocketshim_topics.coordinates import TopicPartitionKey

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0}
ON = {**NOWHERE, "rocketshim.retry.enable": True}
PARTITION = TopicPartitionKey("t", 0)
PLACE = TopicPartition("t", 0, 1)


def retries_of(consumer: Consumer) -> RetrySide:
    assert consumer._rocketshim is not None
    return consumer._rocketshim


def nine_handed_out(consumer: Consumer) -> RetrySide:
    """Assign a partition, as if nine messages of it were handed out."""
    retries = retries_of(consumer)
    retries.partitions.add([PARTITION])
    for offset in (0, 8):
        retries.partitions.handed_out(Message("t", 0, offset, value=b"x"))
    return retries


class Acts:
    """The original's methods that change an assignment, which are noted and not called."""

    def __init__(self) -> None:
        self.done: list[tuple[str, list[tuple[str, int, int]]]] = []

    def __getattr__(self, name: str) -> Any:
        def act(_: Consumer, *given: list[TopicPartition]) -> None:
            self.done.append((name, [(each.topic, each.partition, each.offset) for part in given for each in part]))

        return act


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
        retries = retries_of(consumer)
        assert (retries.facts.stores, retries.partitions.retry_topic) == (False, "rmq.retry.nested")


def test_a_missing_configuration_is_refused_as_by_the_original() -> None:
    with pytest.raises(TypeError, match="expected configuration dict"):
        Consumer(["group.id"], **{"rocketshim.retry.enable": True})


def test_a_subclass_keeps_its_name_and_identity() -> None:
    class Mine(Consumer):
        pass

    with Mine(ON) as consumer:
        assert isinstance(consumer, Mine)
        assert isinstance(consumer, confluent_kafka.Consumer)
        assert type(consumer) is Mine


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
    retries_of(consumer).send_back._sender._open()
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
        store, before, after = retries_of(consumer).send_back, Client(), Client()
        with_credentials(before, store.credentials)
        consumer.set_sasl_credentials("new", "secret")
        with_credentials(after, store.credentials)
        assert (before.told, after.told) == (None, ("new", "secret"))
        assert store._sender._open() is store._sender._open(), "made with the new ones"
        consumer.set_sasl_credentials("newer", "secret")


def test_a_callback_may_wait_for_a_thread_that_sends_back() -> None:
    begun, refused = threading.Event(), threading.Event()
    in_time: list[bool] = []

    def failed(_: KafkaError) -> None:  # that nobody listens there; a callback that comes without a broker
        if not begun.is_set():
            begun.set()
            in_time.append(refused.wait(60))

    def work() -> None:
        begun.wait(60)
        with pytest.raises(StaleMessageError):
            consumer.dead_letter(Message("t", 0, 3, value=b"x"), "why")
        refused.set()

    consumer = Consumer({**ON, "error_cb": failed})
    retries_of(consumer).partitions.add([PARTITION])
    thread = threading.Thread(target=work)
    thread.start()
    deadline = time.monotonic() + 60
    while not in_time:
        assert consumer.poll(0) is None
        assert time.monotonic() < deadline
    thread.join(60)
    assert in_time == [True]
    consumer.close()


@pytest.mark.parametrize("wrong", ["3", 2.5, float("nan"), -0.5, True, b"1", [3]])
def test_a_level_that_is_not_a_whole_number_is_refused_and_blocks_no_offset(wrong: Any) -> None:
    with Consumer(ON) as consumer:
        retries = nine_handed_out(consumer)
        retries.partitions.reads_retries = True
        with pytest.raises(ConfigError, match=re.escape(f"level={wrong!r} is not a delay level: give a whole number")):
            consumer.reconsume_later(Message("t", 0, 3, value=b"x"), "why", level=wrong)
        assert [each.offset for each in retries.partitions.to_store(retries.partitions.positions())] == [9]


def test_messages_of_a_lost_partition_are_stale_in_its_callback() -> None:
    refused: list[bool] = []

    def lost(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        (place,) = partitions
        with pytest.raises(StaleMessageError):
            consumer.dead_letter(Message(place.topic, place.partition, 3, value=b"x"), "why")
        refused.append(True)

    with Consumer(ON) as consumer:
        retries = nine_handed_out(consumer)
        retries.callbacks = (None, None, lost)
        _on_lost(consumer, [TopicPartition("t", 0)])
        assert (refused, list(retries.errors)) == ([True], [])


def test_a_consumer_of_the_retry_topic_alone_pauses_it_with_an_empty_list(monkeypatch: pytest.MonkeyPatch) -> None:
    acts = Acts()
    with Consumer(ON) as consumer:
        partitions = retries_of(consumer).partitions
        partitions.reads_retries = True
        partitions.add([TopicPartitionKey(partitions.retry_topic, 0)])
        visible = consumer.assignment()
        with monkeypatch.context() as patched:
            patched.setattr(retries_module, "_Original", acts)
            consumer.pause(visible)
            consumer.resume(visible)
        topic = partitions.retry_topic
    assert [(name, [topic for topic, _, _ in given]) for name, given in acts.done] == [
        ("pause", []),
        ("pause", [topic]),
        ("resume", []),
        ("resume", [topic]),
    ]


@pytest.mark.parametrize("is_cooperative", [False, True])
def test_a_callback_that_changes_its_list_changes_no_assignment(
    monkeypatch: pytest.MonkeyPatch, *, is_cooperative: bool
) -> None:
    def changed(_: Consumer, partitions: list[TopicPartition]) -> None:
        partitions[0].offset = OFFSET_END
        while len(partitions) > 1:
            partitions.pop()

    acts = Acts()
    strategy = "cooperative-sticky" if is_cooperative else "range"
    with Consumer({**ON, "partition.assignment.strategy": strategy}) as consumer, monkeypatch.context() as patched:
        patched.setattr(retries_module, "_Original", acts)
        retries = retries_of(consumer)
        retries.callbacks = (changed, changed, None)
        retries.assigned(consumer, [TopicPartition("t", 0), TopicPartition("t", 1)])
        retries.released(consumer, [TopicPartition("t", 0), TopicPartition("t", 1)], changed)
    both = [("t", 0, OFFSET_INVALID), ("t", 1, OFFSET_INVALID)]
    assert acts.done[:2] == (
        [("incremental_assign", both), ("incremental_unassign", both)]
        if is_cooperative
        else [("assign", both), ("unassign", [])]
    )


def test_a_callback_whose_assign_is_refused_has_not_assigned() -> None:
    with Consumer(ON) as consumer:
        retries = retries_of(consumer)
        retries.rebalance = Rebalance([])
        with pytest.raises(TypeError):
            consumer.assign(["t"])  # type: ignore[list-item]
        assert not retries.rebalance.done
        retries.rebalance = None


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
        retries = nine_handed_out(consumer)
        retries.partitions.remove([PARTITION])
        retries.partitions.add([PARTITION])
        assert retries.partitions.positions() == {}
