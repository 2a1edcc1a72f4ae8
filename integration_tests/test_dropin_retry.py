"""The drop-in consumer with retry switched on, on a real broker."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import OFFSET_END, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from rocketshim import DelayWorker, Origin, TopicNames
from rocketshim.dropin import Consumer
from rocketshim.errors import (
    BrokerUnavailableError,
    NotSupportedError,
    SendTimeoutError,
    StaleMessageError,
    TopicMissingError,
)
from rocketshim_local import Broker
from rocketshim_topics import decode

from .running import patient_worker, running

LEVELS = "0s 0s 0s 0s 0s 0s"
GUARD_S = 150.0


class Stage:
    """A namespace, a topic, a group, and consumers of it that are closed after the test."""

    def __init__(
        self, broker: Broker, admin: AdminClient, namespace: str, topic: Callable[..., str], group: str
    ) -> None:
        self.bootstrap = broker.bootstrap
        self.admin = admin
        self.names = TopicNames(namespace)
        self.topic = topic()
        self.group = group
        self.made: list[confluent_kafka.Consumer] = []
        self.producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 0})

    def config(self, **more: Any) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "rocketshim.retry.enable": True,
            "rocketshim.namespace": self.names.namespace,
            "rocketshim.delay.levels": LEVELS,
            **{key.replace("_", "."): value for key, value in more.items()},
        }

    def consumer(self, **more: Any) -> Consumer:
        consumer = Consumer(self.config(**more))
        self.made.append(consumer)
        return consumer

    def send(self, *values: bytes | None, topic: str | None = None, partition: int = 0, **more: Any) -> None:
        for value in values:
            self.producer.produce(topic or self.topic, value, partition=partition, **more)
        assert self.producer.flush(GUARD_S) == 0

    def records(self, topic: str) -> list[Message]:
        """Everything on a topic."""
        counts = self.counts(topic)
        with confluent_kafka.Consumer({"bootstrap.servers": self.bootstrap, "group.id": "reader"}) as reader:
            reader.assign([TopicPartition(topic, number, 0) for number, count in counts.items() if count])
            return [got(reader) for _ in range(sum(counts.values()))]

    def counts(self, topic: str) -> dict[int, int]:
        """Records in each partition; a topic just made has leaders that do not know it yet."""
        partitions = self.admin.list_topics(timeout=GUARD_S).topics[topic].partitions
        asked = {TopicPartition(topic, number): OffsetSpec.latest() for number in partitions}
        deadline = time.monotonic() + GUARD_S
        while True:
            try:
                found = self.admin.list_offsets(asked).items()
                return {place.partition: end.result(GUARD_S).offset for place, end in found}
            except KafkaException:
                if time.monotonic() > deadline:
                    raise

    def committed(self, topic: str | None = None) -> int:
        (answer,) = self.made[0].committed([TopicPartition(topic or self.topic, 0)], timeout=GUARD_S)
        return answer.offset


@pytest.fixture
def stage(
    broker: Broker, admin: AdminClient, namespace: str, topic: Callable[..., str], group: Callable[..., str]
) -> Iterator[Stage]:
    one = Stage(broker, admin, namespace, topic, group())
    yield one
    for consumer in one.made:
        consumer.close()


@pytest.fixture
def worker(stage: Stage) -> Iterator[DelayWorker]:
    """The delay worker of this test's namespace."""
    worker = patient_worker(stage.bootstrap, stage.names.namespace, LEVELS)
    worker.start()
    with running(worker):
        yield worker


def got(consumer: confluent_kafka.Consumer) -> Message:
    """The next message; an error event fails the test."""
    deadline = time.monotonic() + GUARD_S
    while time.monotonic() < deadline:
        message = consumer.poll(1.0)
        if message is not None:
            assert message.error() is None, message.error()
            return message
    raise TimeoutError("no message came")


def until(done: Callable[[], object]) -> None:
    deadline = time.monotonic() + GUARD_S
    while not done():
        assert time.monotonic() < deadline


def leave(consumer: Consumer) -> None:
    """Unsubscribe, and wait until nothing is assigned."""
    consumer.unsubscribe()
    until(lambda: consumer.poll(0.1) is None and not consumer.assignment())


def none_comes(consumer: Consumer, seconds: float = 0.5) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert consumer.poll(0.1) is None


# --- the way of a message -----------------------------------------------------------------------------------------


def test_a_message_sent_back_comes_again_and_dies_at_the_limit(stage: Stage, worker: DelayWorker) -> None:
    del worker
    stage.send(b"body", key=b"k", headers=[("TAGS", b"t"), ("mine", None), ("mine", b"\xff")])
    consumer = stage.consumer(rocketshim_max_reconsume_times=2)
    consumer.subscribe([stage.topic])
    seen = []
    for attempt in range(3):
        message = got(consumer)
        seen.append(message)
        assert consumer.reconsume_times(message) == attempt
        assert consumer.origin(message) == Origin(stage.topic, 0, 0)
        assert (consumer.tag(message), consumer.uniq_key(message)) == ("t", f"{stage.topic}/0/0")
        assert (message.key(), message.value()) == (b"k", b"body")
        consumer.reconsume_later(message, ValueError(f"attempt {attempt}"))
        consumer.commit(message=message, asynchronous=False)
    retry = stage.names.retry(stage.group)
    assert [(each.topic(), each.partition(), each.offset()) for each in seen] == [
        (stage.topic, 0, 0), (retry, 0, 0), (retry, 0, 1)
    ]  # fmt: skip
    (dead,) = stage.records(stage.names.dead_letter(stage.group))
    envelope = decode(dead.headers(), trusted=True)
    assert (envelope.reconsume_times, envelope.fail_class, envelope.fail_text) == (3, "ValueError", "attempt 2")
    assert envelope.user == (("mine", None), ("mine", b"\xff"))
    assert (stage.committed(), stage.committed(retry)) == (1, 2)


def test_empty_and_absent_values_and_keys_are_returned_and_retried_byte_for_byte(
    stage: Stage, worker: DelayWorker
) -> None:
    del worker
    sent = [(value, key) for value in (None, b"") for key in (None, b"")]
    for value, key in sent:
        stage.send(value, key=key)
    consumer = stage.consumer()
    consumer.subscribe([stage.topic])
    expected = {(*each, attempt) for each in sent for attempt in range(3)}
    seen: set[tuple[Any, Any, int]] = set()
    while len(seen) < len(expected):
        (message,) = consumer.consume(1, GUARD_S) if len(seen) % 2 else [got(consumer)]
        seen.add((message.value(), message.key(), consumer.reconsume_times(message)))
        if consumer.reconsume_times(message) < 2:
            consumer.reconsume_later(message)
    assert seen == expected


@pytest.mark.parametrize("how", ["poll", "consume"])
def test_a_retry_of_a_topic_that_a_member_does_not_subscribe_to_is_sent_on_uncounted(
    stage: Stage, worker: DelayWorker, topic: Callable[..., str], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    del worker
    new_topic, brief = topic(), {"rocketshim_delay_levels": "1s 1s 1s"}
    stage.send(*(b"%d" % number for number in range(5)), topic=new_topic)
    with Consumer(stage.config(**brief)) as upgraded:
        upgraded.subscribe([stage.topic, new_topic])
        for _ in range(5):
            message = got(upgraded)
            upgraded.reconsume_later(message, "down", delay="0s")
            upgraded.commit(message=message, asynchronous=False)
    with Consumer(stage.config(**brief, enable_auto_commit=True)) as old:
        assert old._rocketshim is not None
        store = old._rocketshim.send_back
        errors, send_on = iter([SendTimeoutError("slow"), SendTimeoutError("slow")]), store.send_on

        def refused_twice(message: Message, topic: str) -> None:
            if (error := next(errors, None)) is not None:
                raise error
            send_on(message, topic)

        store.send_on = refused_twice  # type: ignore[method-assign]
        old.subscribe([stage.topic])
        until(lambda: not came_to(old, how) and store._counts.sent_on >= 5)
        stage.send(b"mine")
        until(lambda: b"mine" in came_to(old, how))
    again = stage.consumer(**brief)
    again.subscribe([stage.topic, new_topic])
    messages = [got(again) for _ in range(5)]
    assert {message.value() for message in messages} == {b"%d" % number for number in range(5)}
    assert {again.reconsume_times(message) for message in messages} == {1}
    assert stage.records(stage.names.dead_letter(stage.group)) == []
    alerts = [each for each in caplog.records if getattr(each, "event", "") == "dropin.sent-on"]
    assert [each.topic for each in alerts] == [new_topic]  # type: ignore[attr-defined]


def came_to(consumer: Consumer, how: str) -> list[bytes | None]:
    """What one call returns, as values."""
    found = [consumer.poll(0.2)] if how == "poll" else consumer.consume(10, 0.2)
    return [message.value() for message in found if message is not None]


def test_a_retry_that_no_member_subscribes_to_is_dead_when_the_time_is_over(
    stage: Stage, worker: DelayWorker, topic: Callable[..., str]
) -> None:
    del worker
    former = topic()
    stage.send(b"a", topic=former)
    with Consumer(stage.config()) as before:
        before.subscribe([former])
        before.reconsume_later(got(before), "down")
    consumer = stage.consumer(rocketshim_send_on_timeout_ms=0)
    consumer.subscribe([stage.topic])
    dead_letters = stage.names.dead_letter(stage.group)
    until(lambda: consumer.poll(0.2) is None and sum(stage.counts(dead_letters).values()))
    (dead,) = stage.records(dead_letters)
    envelope = decode(dead.headers(), trusted=True)
    assert (envelope.fail_class, envelope.retry_topic) == ("NoListener", former)


def test_a_level_and_a_delay_choose_the_queue(stage: Stage) -> None:
    stage.send(b"a", b"b", b"c")
    consumer = stage.consumer(rocketshim_delay_levels="1s 2s 3s 4s")
    consumer.subscribe([stage.topic])
    consumer.reconsume_later(got(consumer), level=2)
    consumer.reconsume_later(got(consumer), delay="90s")
    consumer.reconsume_later(got(consumer), level=-1)
    first, second = sorted(stage.records(stage.names.schedule), key=lambda each: each.value() or b"")
    assert (first.partition(), decode(first.headers(), trusted=True).delay_ms) == (1, 2_000)
    assert decode(second.headers(), trusted=True).delay_ms == 90_000
    assert len(stage.records(stage.names.dead_letter(stage.group))) == 1


def test_a_dead_letter_says_why(stage: Stage) -> None:
    stage.send(b"a")
    consumer = stage.consumer()
    consumer.subscribe([stage.topic])
    consumer.dead_letter(got(consumer), "no such customer")
    (dead,) = stage.records(stage.names.dead_letter(stage.group))
    envelope = decode(dead.headers(), trusted=True)
    assert (envelope.fail_class, envelope.fail_text, envelope.reconsume_times) == ("DeadLetter", "no such customer", 1)


def test_a_second_call_for_a_message_has_no_effect_from_whatever_thread(stage: Stage) -> None:
    stage.send(b"a")
    consumer = stage.consumer()
    consumer.subscribe([stage.topic])
    message = got(consumer)
    threads = [threading.Thread(target=consumer.reconsume_later, args=(message,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(GUARD_S)
    consumer.reconsume_later(message, "again")
    consumer.dead_letter(message, "and again")
    assert len(stage.records(stage.names.schedule)) == 1
    assert stage.records(stage.names.dead_letter(stage.group)) == []


def test_another_thread_sends_back_while_the_poll_thread_waits_for_messages(stage: Stage) -> None:
    stage.send(b"a")
    consumer = stage.consumer()
    consumer.subscribe([stage.topic])
    message = got(consumer)
    began = threading.Event()
    came: list[Message | None] = []

    def poll() -> None:
        began.set()
        came.append(consumer.poll(2 * GUARD_S))

    poller = threading.Thread(target=poll)
    poller.start()
    assert began.wait(GUARD_S)
    consumer.reconsume_later(message)
    assert poller.is_alive()
    assert sum(stage.counts(stage.names.schedule).values()) == 1
    stage.send(b"b")
    poller.join(GUARD_S)
    assert [each.value() for each in came if each is not None] == [b"b"]


@pytest.mark.parametrize("how", ["poll", "close"])
def test_a_revoke_callback_may_wait_for_a_thread_that_sends_back(stage: Stage, how: str) -> None:
    stage.send(b"a", b"b")
    reader, consumer = stage.consumer(), stage.consumer()
    begun, sent = threading.Event(), threading.Event()

    def work() -> None:
        assert begun.wait(GUARD_S)
        consumer.reconsume_later(message)
        sent.set()

    def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        del partitions
        begun.set()
        in_time.append(sent.wait(GUARD_S / 2))
        consumer.commit(asynchronous=False)

    in_time: list[bool] = []
    consumer.subscribe([stage.topic], on_revoke=revoked)
    message = got(consumer)
    thread = threading.Thread(target=work)
    thread.start()
    if how == "poll":
        consumer.unsubscribe()
        until(lambda: consumer.poll(0) or in_time)
    else:
        consumer.close()
    thread.join(GUARD_S)
    assert in_time == [True]
    assert sum(stage.counts(stage.names.schedule).values()) == 1
    (answer,) = reader.committed([TopicPartition(stage.topic, 0)], timeout=GUARD_S)
    assert answer.offset == message.offset() + 1


class WaitsForASendBack:
    """A callback that waits for a thread that sends a message back."""

    def __init__(self) -> None:
        self.consumer: Consumer | None = None
        self.message: Message | None = None
        self.in_time: list[bool] = []

    def __call__(self, *_: object) -> None:
        message, self.message = self.message, None  # once: the inner producer calls it too, from a thread of its own
        if message is None or self.consumer is None:
            return
        thread = threading.Thread(target=self.consumer.reconsume_later, args=(message,), daemon=True)
        thread.start()
        thread.join(GUARD_S / 2)
        self.in_time.append(not thread.is_alive())

    def meet(self, stage: Stage, **config: Any) -> None:
        """Be called while the consumer polls."""
        stage.send(b"a")
        self.consumer = consumer = Consumer({**stage.config(), **config})
        stage.made.append(consumer)
        consumer.subscribe([stage.topic])
        message = got(consumer)
        consumer.commit(message=message)
        self.message = message
        until(lambda: consumer.poll(0) or self.in_time)
        assert self.in_time == [True]
        assert sum(stage.counts(stage.names.schedule).values()) == 1


@pytest.mark.parametrize("name", ["stats_cb", "on_commit"])
def test_any_callback_may_wait_for_a_thread_that_sends_back(stage: Stage, name: str) -> None:
    callback = WaitsForASendBack()
    callback.meet(stage, **{name: callback, "statistics.interval.ms": 50})


def test_a_log_handler_may_wait_for_a_thread_that_sends_back(stage: Stage) -> None:
    handler = WaitsForASendBack()
    logger = logging.getLogger(stage.group)
    logger.setLevel(logging.DEBUG)
    logger.addFilter(lambda _: handler() is not None)
    handler.meet(stage, logger=logger, debug="fetch")


@pytest.mark.parametrize("how", ["poll", "close"])
def test_a_send_back_that_fails_in_a_revoke_callback_holds_down_what_is_committed(stage: Stage, how: str) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise RuntimeError("not stored")

    def revoked(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        del partitions
        with pytest.raises(RuntimeError, match="not stored"):
            consumer.reconsume_later(messages[1])
        called.append(True)

    called: list[bool] = []
    stage.send(b"a", b"b", b"c")
    reader, consumer = stage.consumer(), stage.consumer(enable_auto_commit=True)
    consumer.subscribe([stage.topic], on_revoke=revoked)
    messages = [got(consumer) for _ in range(3)]
    consumer._rocketshim.send_back.reconsume_later = refused
    if how == "poll":
        leave(consumer)
    consumer.close()
    assert called == [True]
    (answer,) = reader.committed([TopicPartition(stage.topic, 0)], timeout=GUARD_S)
    assert answer.offset == messages[1].offset()


# --- what is refused ----------------------------------------------------------------------------------------------


def test_an_event_is_no_message(stage: Stage) -> None:
    consumer = stage.consumer(enable_partition_eof=True)
    consumer.subscribe([stage.topic])
    event = None
    while event is None:
        event = consumer.poll(1.0)
    assert event.error().code() == KafkaError._PARTITION_EOF
    for call in (
        lambda: consumer.reconsume_later(event),
        lambda: consumer.dead_letter(event, "x"),
        lambda: consumer.reconsume_times(event),
    ):
        with pytest.raises(ValueError, match="_PARTITION_EOF"):
            call()
    none_comes(consumer)  # the end of the retry topic is swallowed


def test_a_message_of_a_lost_assignment_is_refused_and_nothing_is_sent(stage: Stage) -> None:
    stage.send(b"a", b"b")
    consumer = stage.consumer()
    consumer.subscribe([stage.topic])
    old = got(consumer)
    leave(consumer)
    with pytest.raises(StaleMessageError):
        consumer.reconsume_later(old)
    consumer.close()
    with pytest.raises(StaleMessageError):
        consumer.dead_letter(old, "x")
    assert stage.records(stage.names.schedule) == []
    assert stage.records(stage.names.dead_letter(stage.group)) == []


def test_a_message_that_another_member_has_finished_is_stale_after_the_partition_is_regained(stage: Stage) -> None:
    stage.send(b"a", b"b")
    consumer = stage.consumer()
    consumer.subscribe([stage.topic])
    old = got(consumer)
    consumer.commit(message=old, asynchronous=False)
    leave(consumer)
    consumer.subscribe([stage.topic])
    new = got(consumer)
    assert (old.offset(), new.offset()) == (0, 1)
    with pytest.raises(StaleMessageError):
        consumer.reconsume_later(old)
    consumer.reconsume_later(new)
    assert [each.value() for each in stage.records(stage.names.schedule)] == [b"b"]


def test_with_assign_nothing_is_read_along(stage: Stage) -> None:
    stage.send(b"a")
    consumer = stage.consumer()
    consumer.assign([TopicPartition(stage.topic, 0, 0)])
    message = got(consumer)
    with pytest.raises(NotSupportedError, match=r"assign\(\)"):
        consumer.reconsume_later(message)
    consumer.dead_letter(message, "hopeless")
    assert len(stage.records(stage.names.dead_letter(stage.group))) == 1


def test_offsets_are_not_sent_to_transactions(stage: Stage) -> None:
    consumer = stage.consumer()
    with pytest.raises(NotSupportedError, match="send_offsets_to_transaction"):
        consumer.consumer_group_metadata()


def test_a_failed_send_back_raises_and_holds_the_stored_offset_down(stage: Stage, admin: AdminClient) -> None:
    stage.send(b"a", b"b", b"c")
    consumer = stage.consumer()
    consumer.subscribe([stage.topic])
    failing = [got(consumer) for _ in range(3)][1]
    admin.delete_topics([stage.names.schedule])[stage.names.schedule].result(GUARD_S)
    while stage.names.schedule in admin.list_topics(timeout=GUARD_S).topics:
        pass
    with pytest.raises(TopicMissingError, match="rocketshim init"):
        consumer.reconsume_later(failing)
    none_comes(consumer, 0.2)
    consumer.commit(asynchronous=False)
    assert stage.committed() == 1
    consumer.dead_letter(failing, "later, then")
    none_comes(consumer, 0.2)
    consumer.commit(asynchronous=False)
    assert stage.committed() == 3
    assert len(stage.records(stage.names.dead_letter(stage.group))) == 1


def test_a_send_back_that_no_broker_takes_raises_after_the_hop_timeout(stage: Stage) -> None:
    stage.send(b"a")
    consumer = stage.consumer(rocketshim_producer_bootstrap_servers="127.0.0.1:1", rocketshim_hop_timeout_ms=500)
    consumer.subscribe([stage.topic])
    message = got(consumer)
    with pytest.raises(SendTimeoutError):
        consumer.dead_letter(message, "x")
    with pytest.raises(BrokerUnavailableError):
        consumer.reconsume_later(message)
    consumer.commit(asynchronous=False)
    assert stage.committed() == 0, "held down"
    consumer.commit(message=message, asynchronous=False)
    assert stage.committed() == 1, "an explicit commit does what it says"
    assert stage.records(stage.names.dead_letter(stage.group)) == []


def test_errors_of_the_retry_topic_come_as_messages_and_are_no_messages(stage: Stage, admin: AdminClient) -> None:
    consumer = stage.consumer(topic_metadata_refresh_interval_ms=200, topic_metadata_propagation_max_ms=200)
    consumer.subscribe([stage.topic])
    until(lambda: consumer.poll(0.1) is None and consumer.assignment())
    retry = stage.names.retry(stage.group)
    admin.delete_topics([retry])[retry].result(GUARD_S)
    events: list[Message] = []
    until(lambda: events.extend(consumer.consume(1, 0.2)) or events)
    error = events[0].error()
    assert error is not None
    assert (events[0].topic(), error.code()) == (retry, KafkaError.UNKNOWN_TOPIC_OR_PART)
    with pytest.raises(ValueError, match="UNKNOWN_TOPIC_OR_PART"):
        consumer.reconsume_later(events[0])


# --- offsets ------------------------------------------------------------------------------------------------------


def test_a_message_is_handled_when_the_caller_comes_back(stage: Stage) -> None:
    stage.send(b"a", b"b")
    consumer = stage.consumer(enable_auto_commit=True, auto_commit_interval_ms=50)
    consumer.subscribe([stage.topic])
    got(consumer)
    time.sleep(0.3)  # what must not happen has no signal: six intervals without a commit
    assert stage.committed() < 0
    got(consumer)
    until(lambda: stage.committed() == 1)
    consumer.close()
    stage.made = [stage.consumer()]
    assert stage.committed() == 2


@pytest.mark.parametrize("how", ["poll", "consume"])
def test_what_is_committed_passes_the_marks_of_transactions_while_no_message_comes(stage: Stage, how: str) -> None:
    config = {"bootstrap.servers": stage.bootstrap, "transactional.id": stage.group}
    producer = confluent_kafka.Producer(config)
    producer.init_transactions(GUARD_S)
    for _ in range(2):
        producer.begin_transaction()
        producer.produce(stage.topic, b"x", partition=0)
        producer.commit_transaction(GUARD_S)
    consumer = stage.consumer(enable_auto_commit=True, auto_commit_interval_ms=50)
    consumer.subscribe([stage.topic])
    values: list[bytes | None] = []
    until(lambda: values.extend(came_to(consumer, how)) or stage.committed() == 4)
    assert values == [b"x", b"x"]


def test_a_commit_without_arguments_says_that_all_is_handled(stage: Stage) -> None:
    stage.send(b"a", b"b")
    consumer = stage.consumer()
    consumer.subscribe([stage.topic])
    got(consumer)
    consumer.commit(asynchronous=False)
    assert stage.committed() == 1


def test_going_back_by_seek_frees_what_was_held_down_once_it_is_handed_out_again(
    stage: Stage, admin: AdminClient
) -> None:
    stage.send(b"a", b"b")
    consumer = stage.consumer(rocketshim_create_topics=False)
    # no topic of the shim's is there: nothing can be sent back
    with pytest.raises(TopicMissingError):
        consumer.subscribe([stage.topic])
    del admin
    consumer.assign([TopicPartition(stage.topic, 0, 0)])
    message = got(consumer)
    with pytest.raises(TopicMissingError):
        consumer.dead_letter(message, "x")
    none_after = got(consumer)
    consumer.commit(asynchronous=False)
    assert (none_after.value(), stage.committed()) == (b"b", 0)
    consumer.seek(TopicPartition(stage.topic, 0, 0))
    assert [got(consumer).value(), got(consumer).value()] == [b"a", b"b"]
    consumer.commit(asynchronous=False)
    assert stage.committed() == 2


def test_what_lies_before_the_target_of_a_seek_is_handled(stage: Stage) -> None:
    stage.send(b"a", b"b", b"c")
    consumer = stage.consumer()
    consumer.subscribe([stage.topic])
    # the end is the last: the client looks it up, and a late answer undoes the next seek, as in the original
    for target, handled in ((0, 0), (2, 2), (3, 2), (1, 1), (OFFSET_END, 2)):
        assert [got(consumer).value(), got(consumer).value()] == [b"a", b"b"]
        consumer.seek(TopicPartition(stage.topic, 0, target))
        consumer.commit(asynchronous=False)
        assert stage.committed() == handled, target
        consumer.seek(TopicPartition(stage.topic, 0, 0))
        # commit() sends what is more than was committed: go back there, too
        consumer.commit(offsets=[TopicPartition(stage.topic, 0, 0)], asynchronous=False)


def test_storing_is_ours_while_the_client_would_store(stage: Stage) -> None:
    mine, theirs = stage.consumer(), confluent_kafka.Consumer({"bootstrap.servers": stage.bootstrap, "group.id": "g"})
    stage.made.append(theirs)
    partitions = [TopicPartition(stage.topic, 0, 1)]
    errors = []
    for consumer in (mine, theirs):
        consumer.assign([TopicPartition(stage.topic, 0, 0)])
        with pytest.raises(KafkaException) as caught:
            consumer.store_offsets(offsets=partitions)
        errors.append((caught.value.args[0].code(), caught.value.args[0].str()))
    assert errors[0] == errors[1]
