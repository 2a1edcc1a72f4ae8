"""The producer on the in-memory Kafka: the topics, partitions and headers of its records, and its errors."""

import math
import os
import signal
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError

from rocketshim import Message, MessageQueue, MessageView, Producer, ProducerSettings, SendStatus
from rocketshim.clock import SystemClock
from rocketshim.errors import (
    ClosedError,
    ConfigError,
    MessageError,
    MessageTooLargeError,
    NotAuthorizedError,
    SendError,
    SendTimeoutError,
    TopicMissingError,
)
from rocketshim.kafka.clients import Clients
from rocketshim.testing import InMemoryKafka
from rocketshim_topics.levels import DelayLevels

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
DAY_MS = 86_400_000


@pytest.fixture
def kafka() -> InMemoryKafka:
    cluster = InMemoryKafka(SystemClock())
    cluster.create_topic("orders", 4)
    cluster.create_topic(SCHEDULE, 64, config={"message.timestamp.type": "LogAppendTime"})
    return cluster


@pytest.fixture
def producer(kafka: InMemoryKafka) -> Iterator[Producer]:
    with Producer("memory:1", clients=Clients(kafka.consumer, kafka.producer)) as made:
        yield made


def records(kafka: InMemoryKafka, topic: str) -> list[Any]:
    return [record for number in range(64 if topic == SCHEDULE else 4) for record in kafka.records(topic, number)]


def headers(record: Any) -> dict[str, bytes | None]:
    return dict(record.headers() or [])


def test_a_result_has_the_coordinates_of_the_stored_record(kafka: InMemoryKafka, producer: Producer) -> None:
    result = producer.send(Message("orders", b"now", key="k", tag="created", keys=("a", "b")))
    (record,) = records(kafka, "orders")
    assert result.status is SendStatus.SEND_OK
    assert result.offset_msg_id == f"orders/{record.partition()}/{record.offset()}"
    assert result.message_queue == MessageQueue("orders", queue_id=record.partition())
    assert headers(record)["UNIQ_KEY"] == result.msg_id.encode()
    assert (headers(record)["TAGS"], headers(record)["KEYS"]) == (b"created", b"a b")
    assert (record.key(), record.value()) == (b"k", b"now")


@pytest.mark.parametrize("body", [None, b""])
def test_a_tombstone_and_an_empty_body_stay_different(
    kafka: InMemoryKafka, producer: Producer, body: bytes | None
) -> None:
    producer.send(Message("orders", body, key="k", delay_level=1))
    (record,) = records(kafka, SCHEDULE)
    assert record.value() == body
    assert (record.value() is None) is (body is None)


def test_an_object_that_is_not_a_message_is_rejected(kafka: InMemoryKafka, producer: Producer) -> None:
    with pytest.raises(MessageError, match="cannot send 'orders': give a Message"):
        producer.send("orders")  # type: ignore[call-overload]
    assert kafka.records("orders") == []


def test_a_topic_and_a_body_are_sent_like_the_message_of_the_same_arguments(
    kafka: InMemoryKafka, producer: Producer
) -> None:
    given: Any = {"key": "k", "tag": "paid", "keys": ("a",), "properties": {"p": "1"}}
    producer.send("orders", b"1", **given)
    producer.send(Message("orders", b"1", **given))
    producer.send_async("orders", body=b"1", **given).result(3)
    producer.send_oneway("orders", b"1", **given)
    producer.flush()
    sent = records(kafka, "orders")
    own: dict[str, bytes | None] = {"UNIQ_KEY": b"", "BORN_TIMESTAMP": b""}  # differ in each message
    found = [(each.partition(), each.key(), each.value(), headers(each) | own) for each in sent]
    assert found == [found[0]] * 4
    assert (sent[0].key(), sent[0].value(), headers(sent[0])["TAGS"], headers(sent[0])["p"]) == (
        b"k",
        b"1",
        b"paid",
        b"1",
    )


@pytest.mark.parametrize("delay", ["30m", timedelta(minutes=30), 1_800])
def test_a_delay_is_a_text_of_rocketmq_a_timedelta_or_seconds(
    kafka: InMemoryKafka, producer: Producer, delay: str | timedelta | int
) -> None:
    producer.send("orders", b"later", delay=delay)
    (record,) = records(kafka, SCHEDULE)
    assert headers(record)["DELAY_MS"] == b"1800000"


def test_a_delay_level_is_an_option_of_its_own(kafka: InMemoryKafka, producer: Producer) -> None:
    producer.send("orders", b"later", delay_level=16)
    (record,) = records(kafka, SCHEDULE)
    assert (headers(record)["DELAY"], headers(record)["DELAY_MS"]) == (b"16", b"1800000")


def test_an_empty_body_is_sent_and_is_not_a_tombstone(kafka: InMemoryKafka, producer: Producer) -> None:
    producer.send("orders", b"")
    (record,) = records(kafka, "orders")
    assert MessageView(record, trusted=False).body == b""


@pytest.mark.parametrize(
    ("body", "options", "text"),
    [
        (b"x", {"delay": "30 minutes"}, "'30 minutes' is not a duration: write a number and one of ms, s, m, h, d"),
        (b"x", {"delay": -1}, "-1 is not a duration"),
        (b"x", {"delay": "2h", "delay_level": 3}, "delay and delay_level are given: a message has at most one"),
        (b"x", {"delay_level": "3"}, "delay_level is '3': give a whole number"),
        (b"x", {"delay": "41d"}, "41|3542400000"),
        (b"x", {"tags": "paid"}, "a message has no option tags: did you mean tag?"),
        (
            b"x",
            {"zzz": 1},
            "a message has no option zzz: the options are at_most, cron, delay, delay_level, deliver_at",
        ),
        (None, {}, "body is None: give bytes, b'' for an empty body; a tombstone is a Message"),
        ("text", {}, "body is of type str: give bytes"),
    ],
)
def test_bad_arguments_of_a_send_are_named_and_nothing_is_sent(
    kafka: InMemoryKafka, producer: Producer, body: Any, options: dict[str, Any], text: str
) -> None:
    for send in (producer.send, producer.send_async, producer.send_oneway):
        with pytest.raises(MessageError, match=text):
            send("orders", body, **options)
    producer.flush()
    assert records(kafka, "orders") == records(kafka, SCHEDULE) == []


def test_options_beside_a_message_are_refused(kafka: InMemoryKafka, producer: Producer) -> None:
    with pytest.raises(MessageError, match="a Message and delay are given: give delay to the Message"):
        producer.send(Message("orders", b"x"), delay="30m")  # type: ignore[call-overload]
    with pytest.raises(MessageError, match="a Message and body are given"):
        producer.send(Message("orders", b"x"), b"y")  # type: ignore[call-overload]
    with pytest.raises(MessageError, match="cannot send b'x': give a Message"):
        producer.send_batch([Message("orders", b"x"), b"x"])  # type: ignore[list-item]
    assert records(kafka, "orders") == []


@pytest.mark.parametrize("timeout_s", [-1, -0.001, math.nan, None, "3", True])
def test_an_invalid_timeout_is_named_and_nothing_is_sent(
    kafka: InMemoryKafka, producer: Producer, timeout_s: Any
) -> None:
    text = f"timeout_s is {timeout_s!r}: give seconds, 0 or more; math.inf waits without a limit"
    for send in (
        lambda: producer.send("orders", b"x", timeout_s=timeout_s),
        lambda: producer.send_orderly(Message("orders", b"x"), "o-7", timeout_s=timeout_s),
        lambda: producer.send_batch([Message("orders", b"x")], timeout_s=timeout_s),
    ):
        with pytest.raises(MessageError, match=text):
            send()
    producer.flush()
    assert records(kafka, "orders") == []


@pytest.mark.parametrize("timeout_s", [math.inf, 1e10, 10**400])
def test_a_very_long_timeout_waits_until_the_message_is_stored(producer: Producer, timeout_s: float) -> None:
    assert producer.send("orders", b"x", timeout_s=timeout_s).status is SendStatus.SEND_OK
    (result,) = producer.send_batch([Message("orders", b"x")], timeout_s=timeout_s)
    assert result.status is SendStatus.SEND_OK
    producer.close(timeout_s=math.inf)


@pytest.mark.parametrize("given", [Message("orders", b"x"), None])
def test_a_batch_is_several_messages(kafka: InMemoryKafka, producer: Producer, given: Any) -> None:
    with pytest.raises(MessageError, match=r"cannot send .* as a batch: give a list of messages"):
        producer.send_batch(given)
    assert records(kafka, "orders") == []


def test_ids_never_repeat(producer: Producer) -> None:
    results = producer.send_batch([Message("orders", b"x") for _ in range(200)])
    assert len({result.msg_id for result in results}) == 200


def test_a_message_with_a_delay_level_goes_to_the_queue_of_its_level_in_a_lane(
    kafka: InMemoryKafka, producer: Producer
) -> None:
    for level in (1, 3, 18, 99):
        producer.send(Message("orders", b"x", key="k", delay_level=level))
    found = records(kafka, SCHEDULE)
    assert sorted(record.partition() % DelayLevels.STRIDE for record in found) == [0, 2, 17, 17]
    assert len({record.partition() // DelayLevels.STRIDE for record in found}) == 1, "one key, one lane"
    assert {headers(record)["REAL_TOPIC"] for record in found} == {b"orders"}


def test_delayed_messages_without_key_use_the_lanes_in_turn(kafka: InMemoryKafka, producer: Producer) -> None:
    for _ in range(4):
        producer.send(Message("orders", b"x", delay_level=1))
    lanes = [record.partition() // DelayLevels.STRIDE for record in records(kafka, SCHEDULE)]
    assert sorted(lanes) == [0, 0, 1, 1]


def test_an_arbitrary_delay_is_in_a_header_and_starts_in_the_longest_queue_that_fits(
    kafka: InMemoryKafka, producer: Producer
) -> None:
    producer.send(Message("orders", b"x", delay="7s"))
    (record,) = records(kafka, SCHEDULE)
    assert headers(record)["DELAY_MS"] == b"7000"
    assert record.partition() % DelayLevels.STRIDE == 1, "5 s is the longest level within 7 s"


@pytest.mark.parametrize("delay", [{"delay_level": 0}, {"delay_level": -1}, {"delay": "0s"}])
def test_a_message_without_delay_goes_directly_to_its_topic(
    kafka: InMemoryKafka, producer: Producer, delay: dict[str, Any]
) -> None:
    kafka.delete_topic(SCHEDULE)
    producer.send(Message("orders", b"x", **delay))
    assert len(records(kafka, "orders")) == 1


class Shifted(SystemClock):
    """A machine whose wall clock is wrong."""

    def __init__(self, ahead_ms: int) -> None:
        self.ahead_ms = ahead_ms

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


@pytest.mark.parametrize("days", [-10, 0, 10])
def test_deliver_at_selects_its_queue_by_the_brokers_clock_even_if_the_senders_is_wrong(
    kafka: InMemoryKafka, caplog: pytest.LogCaptureFixture, days: int
) -> None:
    at_ms = SystemClock().wall_ms() + 90_000
    with Producer("memory:1", clients=Clients(kafka.consumer, kafka.producer), clock=Shifted(days * DAY_MS)) as sender:
        sender.send(Message("orders", b"first", deliver_at=at_ms))
        sender.send(Message("orders", b"second", deliver_at=at_ms))
        sender.send(Message("orders", b"third", deliver_at=at_ms))
    waiting = {record.value(): record for record in records(kafka, SCHEDULE)}
    slots = {value: record.partition() % DelayLevels.STRIDE for value, record in waiting.items()}
    assert slots == {b"first": 31, b"second": 4, b"third": 4}, "unknown clock: the finest queue; then that of a minute"
    assert {headers(record)["DELIVER_AT_MS"] for record in waiting.values()} == {b"%d" % at_ms}
    logged = [record for record in caplog.records if getattr(record, "event", None) == "producer.clock-differs"]
    assert len(logged) == (1 if days else 0)
    assert all(abs(record.ahead_ms - days * DAY_MS) < 60_000 for record in logged)  # type: ignore[attr-defined]


def test_a_producer_does_not_learn_the_clock_from_create_time_timestamps() -> None:
    cluster = InMemoryKafka(SystemClock())
    cluster.create_topic(SCHEDULE, 32)
    at_ms = SystemClock().wall_ms() + 90_000
    with Producer("memory:1", clients=Clients(cluster.consumer, cluster.producer)) as sender:
        for _ in range(2):
            sender.send(Message("orders", b"x", deliver_at=at_ms))
    assert len(cluster.records(SCHEDULE, 31)) == 2


class Last:
    def select(self, queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
        del message, arg
        return queues[-1]


class Elsewhere:
    def select(self, queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
        del queues, message, arg
        return MessageQueue("orders", queue_id=99)


def test_a_selector_chooses_the_queue_of_immediate_and_delayed_messages(
    kafka: InMemoryKafka, producer: Producer
) -> None:
    assert producer.send(Message("orders", b"x"), selector=Last()).message_queue.queue_id == 3
    producer.send(Message("orders", b"x", delay_level=1), selector=Last())
    (record,) = records(kafka, SCHEDULE)
    assert headers(record)["REAL_QID"] == b"3"


def test_nothing_is_sent_if_a_selector_chooses_a_queue_outside_the_topic(
    kafka: InMemoryKafka, producer: Producer
) -> None:
    with pytest.raises(TopicMissingError, match="which is not a queue of 'orders'"):
        producer.send(Message("orders", b"x"), selector=Elsewhere())
    assert not records(kafka, "orders")


def test_a_selector_gets_a_list_of_its_own_with_the_same_queues_each_time(producer: Producer) -> None:
    """To make 200 queues for each send took twenty times as long as the rest of the send."""
    given: list[Any] = []

    def last(queues: Any, *_: Any) -> MessageQueue:
        given.append(list(queues))
        return queues.pop()

    for _ in range(2):
        assert producer.send(Message("orders", b"x"), selector=last).message_queue.queue_id == 3
    assert list(map(id, given[0])) == list(map(id, given[1]))


def test_a_plain_function_is_a_selector(kafka: InMemoryKafka, producer: Producer) -> None:
    def by_number(queues: list[MessageQueue], message: Message, arg: Any) -> MessageQueue:
        assert message.topic == "orders"
        return queues[arg]

    assert producer.send(Message("orders", b"x"), selector=by_number, arg=2).message_queue.queue_id == 2
    later = producer.send_async(Message("orders", b"x", delay_level=1), selector=lambda queues, *_: queues[1])
    assert later.result(3).status is SendStatus.SEND_OK
    (record,) = records(kafka, SCHEDULE)
    assert headers(record)["REAL_QID"] == b"1"


@pytest.mark.parametrize("selector", [3, "hash", object(), Last, type("Odd", (), {"select": 1})()])
def test_an_invalid_selector_is_rejected_and_nothing_is_sent(
    kafka: InMemoryKafka, producer: Producer, selector: Any
) -> None:
    with pytest.raises(MessageError, match=r"selector=.*: give a function of \(queues, message, arg\), or an object"):
        producer.send(Message("orders", b"x"), selector=selector)
    assert not records(kafka, "orders")


def test_messages_of_one_sharding_key_share_a_queue(producer: Producer) -> None:
    queues = {producer.send_orderly(Message("orders", b"x"), "o-7").message_queue for _ in range(5)}
    assert len(queues) == 1


def test_the_error_for_an_unknown_topic_names_it_and_says_what_to_do(producer: Producer) -> None:
    with pytest.raises(TopicMissingError, match=r"'nowhere'.*create it"):
        producer.send(Message("nowhere", b"x"))


def test_nothing_is_sent_if_the_schedule_topic_is_missing(kafka: InMemoryKafka, producer: Producer) -> None:
    kafka.delete_topic(SCHEDULE)
    with pytest.raises(TopicMissingError, match="rocketshim init"):
        producer.send(Message("orders", b"x", delay_level=1))
    assert not records(kafka, "orders")


def test_a_message_without_room_for_the_headers_of_later_hops_is_rejected(kafka: InMemoryKafka) -> None:
    settings = ProducerSettings.make(bootstrap="memory:1", max_message_bytes=10_000)
    with Producer(settings=settings, clients=Clients(kafka.consumer, kafka.producer)) as small:
        small.send(Message("orders", b"x" * 5_000))
        with pytest.raises(MessageTooLargeError, match="max_message_bytes=10000"):
            small.send(Message("orders", b"x" * 6_000))
    assert len(records(kafka, "orders")) == 1


def test_a_message_above_the_limit_of_its_topic_raises(producer: Producer) -> None:
    with pytest.raises(MessageTooLargeError, match=r"raise max\.message\.bytes"):
        producer.send(Message("orders", b"x" * 1_100_000))


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, NotAuthorizedError),
        (KafkaError._MSG_TIMED_OUT, SendTimeoutError),
        (KafkaError.KAFKA_STORAGE_ERROR, SendError),
    ],
)
def test_a_failed_delivery_report_becomes_a_typed_error(
    kafka: InMemoryKafka, producer: Producer, code: int, expected: type[Exception]
) -> None:
    kafka.fail_produce(KafkaError(code), topic="orders")
    with pytest.raises(expected):
        producer.send(Message("orders", b"x"))


def test_a_missing_delivery_report_is_a_timeout_with_an_uncertain_outcome(
    kafka: InMemoryKafka, producer: Producer
) -> None:
    kafka.hold_reports()
    with pytest.raises(SendTimeoutError, match="may or may not be stored"):
        producer.send(Message("orders", b"x"), timeout_s=0.05)
    kafka.release()


def test_a_future_resolves_when_the_delivery_report_arrives(producer: Producer) -> None:
    future = producer.send_async(Message("orders", b"x"))
    assert future.result(60).status is SendStatus.SEND_OK


def test_close_waits_for_sent_messages_and_later_sends_raise(kafka: InMemoryKafka, producer: Producer) -> None:
    futures = [producer.send_async(Message("orders", b"x")) for _ in range(50)]
    producer.send_oneway(Message("orders", b"x"))
    producer.close()
    producer.close()
    assert all(future.done() and future.exception() is None for future in futures)
    assert len(records(kafka, "orders")) == 51
    with pytest.raises(ClosedError):
        producer.send(Message("orders", b"x"))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_closes_nothing_and_may_not_send_or_flush(kafka: InMemoryKafka, producer: Producer) -> None:
    kafka.hold_sends("orders")
    future = producer.send_async(Message("orders", b"x"))
    if (child := os.fork()) == 0:
        signal.alarm(60)
        try:
            producer.close()
            for call in (producer.flush, partial(producer.send, Message("orders", b"x"))):
                with pytest.raises(ClosedError, match="another process"):
                    call()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    kafka.release("orders")
    assert future.result(60).status is SendStatus.SEND_OK


def test_creating_and_closing_a_producer_opens_no_connection() -> None:
    Producer("nowhere:1").close()


@pytest.mark.parametrize(
    "arguments",
    [
        {"bootstrap": ""},
        {"bootstrap": "x:1", "namespace": "a.b"},
        {"bootstrap": "x:1", "delay_levels": "1x"},
        {"bootstrap": "x:1", "client": {"acks": "1"}},
        {"bootstrap": "x:1", "client": {"enable.idempotence": False}},
        {"bootstrap": "x:1", "client": {"plugin.library.paths": "evil.so"}},
    ],
)
def test_an_invalid_setting_raises_a_config_error(kafka: InMemoryKafka, arguments: dict[str, Any]) -> None:
    with pytest.raises(ConfigError), Producer(**arguments, clients=Clients(kafka.consumer, kafka.producer)) as bad:
        bad.send(Message("orders", b"x"))


def test_the_constructor_of_a_message_rejects_a_property_with_a_reserved_name() -> None:
    with pytest.raises(MessageError, match="REAL_TOPIC"):
        Message("orders", b"x", properties={"REAL_TOPIC": "other"})


@pytest.mark.usefixtures("broken_logging")
@pytest.mark.parametrize("error", [OSError(), SystemExit()])
def test_the_poll_thread_survives_a_future_callback_that_raises(producer: Producer, error: BaseException) -> None:
    def raising(future: object) -> None:
        del future
        raise error

    for _ in range(3):
        producer.send_async(Message("orders", b"x")).add_done_callback(raising)
    assert producer.send(Message("orders", b"y")).status is SendStatus.SEND_OK


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("topic", ["orders", SCHEDULE])
def test_what_is_reported_without_an_offset_is_sent_again_as_the_same_message(
    kafka: InMemoryKafka, producer: Producer, topic: str, stored: bool
) -> None:
    kafka.fail_produce(None, topic=topic, count=3, stored=stored)
    delay: dict[str, Any] = {"delay_level": 1} if topic == SCHEDULE else {}
    futures = [producer.send_async(Message("orders", b"x", key="k", **delay)) for _ in range(2)]
    results = [future.result(60) for future in futures]
    found = records(kafka, topic)
    places = {result.offset_msg_id: result.msg_id.encode() for result in results}
    assert len(found) == (5 if stored else 2)
    for record in found[-2:]:
        assert places[f"{topic}/{record.partition()}/{record.offset()}"] == headers(record)["UNIQ_KEY"]


def test_what_is_never_confirmed_is_not_acknowledged(kafka: InMemoryKafka) -> None:
    for _ in range(100):
        kafka.fail_produce(None, topic="orders")
    clients = Clients(kafka.consumer, kafka.producer)
    with Producer("memory:1", clients=clients, delivery_timeout_ms=1_000) as made:
        with pytest.raises(SendTimeoutError, match=r"may or may not be stored|may be stored or not"):
            made.send(Message("orders", b"x"), timeout_s=0.2)
        future = made.send_async(Message("orders", b"y"))
        with pytest.raises(SendTimeoutError, match="stored or not"):
            future.result(60)


def test_closing_waits_for_what_is_sent_again_but_not_longer_than_asked(kafka: InMemoryKafka) -> None:
    clients = Clients(kafka.consumer, kafka.producer)
    kafka.fail_produce(None, topic="orders")
    with Producer("memory:1", clients=clients) as made:
        stored = made.send_async(Message("orders", b"x"))
    assert stored.result(0).queue_offset == 0
    for _ in range(100):
        kafka.fail_produce(None, topic="orders")
    made = Producer("memory:1", clients=clients)
    given_up = made.send_async(Message("orders", b"y"))
    made.close(0.05)
    assert isinstance(given_up.exception(60), SendTimeoutError)
