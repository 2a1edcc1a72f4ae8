"""The API of rocketmq-client-python 2.0 on the in-memory Kafka."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message as Record

from rocketshim import ConsumeFromWhere
from rocketshim.clock import SystemClock
from rocketshim.compat import rocketmq
from rocketshim.compat.rocketmq import client
from rocketshim.compat.rocketmq.client import (
    ConsumeStatus,
    Message,
    MessageModel,
    Producer,
    PushConsumer,
    ReceivedMessage,
    RocketMQException,
    SendStatus,
    TransactionMQProducer,
    TransactionStatus,
    _listener,
)
from rocketshim.compat.rocketmq.consts import MessageProperty
from rocketshim.compat.rocketmq.exceptions import (
    ConsumerException,
    MallocFailed,
    NullPointerException,
    ProducerException,
    ProducerSendAsyncFailed,
    ProducerSendOnewayFailed,
    ProducerSendOrderlyFailed,
    ProducerSendSyncFailed,
    ProducerStartFailed,
    PushConsumerStartFailed,
)
from rocketshim.core import listener_answers
from rocketshim.errors import ClosedError, ConfigError, MessageError, NotSupportedError
from rocketshim.kafka.clients import Clients
from rocketshim.testing import InMemoryKafka
from rocketshim_topics import DelayLevels, TopicNames, decode
from rocketshim_topics.layout import Layout
from rocketshim_topics.message import MessageView
from rocketshim_topics.partitioner import TIMER_PARTITIONS

NAMES = TopicNames()


@pytest.fixture
def kafka() -> InMemoryKafka:
    made = InMemoryKafka(SystemClock())
    made.create_topic("orders", 4)
    made.create_topic(NAMES.schedule, DelayLevels.STRIDE, config={"message.timestamp.type": "LogAppendTime"})
    made.create_topic(NAMES.retry("g"))
    made.create_topic(NAMES.dead_letter("g"))
    return made


@pytest.fixture
def producer(kafka: InMemoryKafka) -> Producer:
    made = Producer("pg", timeout=20_000, clients=Clients(kafka.consumer, kafka.producer))
    made.set_name_server_address("memory:1")
    made.start()
    return made


def message(body: str | bytes = "XXXX", **more: Any) -> Message:
    made = Message("orders")
    made.set_body(body)
    for name, value in more.items():
        getattr(made, f"set_{name}")(value)
    return made


def full() -> Message:
    made = message(tags=b"a", keys="k1 k2")
    for name, value in (("p", "v"), ("p", "w"), (b"q", "ü")):
        made.set_property(name, value)
    return made


def consumer_of(kafka: InMemoryKafka, group: str = "g") -> PushConsumer:
    made = PushConsumer(group, clients=Clients(kafka.consumer, kafka.producer))
    made.set_name_server_address(b"memory:1")
    made.set_thread_count(2)
    made.set_message_batch_max_size(32)
    made.set_consume_from_where(ConsumeFromWhere.FIRST_OFFSET)
    return made


def viewed(kafka: InMemoryKafka, topic: str = "orders") -> ReceivedMessage:
    (record,) = kafka.records(topic)
    return ReceivedMessage(MessageView(record, topic != "orders"))


def test_a_sent_message_has_the_values_that_were_set(kafka: InMemoryKafka, producer: Producer) -> None:
    sent = producer.send_sync(full())
    assert (sent.status, sent.offset, len(sent.msg_id)) == (SendStatus.OK, 0, 32)
    (record,) = kafka.records("orders")
    envelope = decode(record.headers(), trusted=False)
    assert (record.value(), envelope.tags, envelope.keys) == (b"XXXX", "a", "k1 k2")
    assert envelope.user == (("p", b"w"), ("q", "ü".encode()))


def test_a_received_message_has_the_properties_of_the_other_client(kafka: InMemoryKafka, producer: Producer) -> None:
    producer.send_sync(full())
    got = viewed(kafka)
    assert (got.topic, got.tags, got.keys, got.body, bytes(got), str(got)) == (
        "orders", b"a", b"k1 k2", b"XXXX", b"XXXX", "XXXX",
    )  # fmt: skip
    assert (got["p"], got[b"q"], got.get_property("none"), got["TAGS"]) == (b"w", "ü".encode(), b"", b"a")
    assert (got[MessageProperty.KEYS], got["UNIQ_KEY"], got["RECONSUME_TIME"]) == (b"k1 k2", got.id.encode(), b"0")
    assert got["BORN_TIMESTAMP"] == str(got.born_timestamp).encode()
    assert (got.delay_time_level, got.reconsume_times, got.queue_offset, got.commit_log_offset) == (0, 0, 0, 0)
    assert (got.prepared_transaction_offset, got.born_timestamp > 0, got.store_timestamp > 0) == (0, True, True)
    assert 0 <= got.queue_id < 4
    assert got.store_size > 4
    assert "XXXX" in repr(got)


def test_a_message_without_any_values_has_empty_properties(kafka: InMemoryKafka, producer: Producer) -> None:
    producer.send_oneway(Message("orders"))
    producer.shutdown()
    got = viewed(kafka)
    assert (got.body, got.tags, got.keys) == (b"", b"", b"")


def test_text_that_is_not_utf8_is_received_as_the_bytes_that_were_sent() -> None:
    headers = [("TAGS", b"\xe4"), ("KEYS", b"\xfc 7"), ("UNIQ_KEY", b"\xff")]
    got = ReceivedMessage(MessageView(Record("orders", 0, 1, value=b"x", headers=headers), trusted=False))
    assert (got.tags, got.keys, got["TAGS"], got["KEYS"], got["UNIQ_KEY"]) == (
        b"\xe4", b"\xfc 7", b"\xe4", b"\xfc 7", b"\xff",
    )  # fmt: skip


def test_messages_of_one_sharding_key_share_a_queue(kafka: InMemoryKafka, producer: Producer) -> None:
    for number in range(5):
        producer.send_orderly_with_sharding_key(message(str(number)), b"o-7")
    assert len({record.partition() for record in kafka.records("orders")}) == 1


def test_a_message_with_a_delay_level_goes_to_the_schedule_topic(kafka: InMemoryKafka, producer: Producer) -> None:
    producer.send_sync(message(delay_time_level=3))
    (record,) = kafka.records(NAMES.schedule)
    assert (record.partition(), decode(record.headers(), trusted=True).delay_ms) == (2, 10_000)


def test_an_invalid_message_is_rejected(producer: Producer) -> None:
    wrong = message()
    wrong.set_property("REAL_TOPIC", "x")
    for send, failure in (
        (producer.send_sync, ProducerSendSyncFailed),
        (producer.send_oneway, ProducerSendOnewayFailed),
        (lambda message: producer.send_orderly_with_sharding_key(message, "o-7"), ProducerSendOrderlyFailed),
    ):
        with pytest.raises(failure, match="REAL_TOPIC") as caught:
            send(wrong)
        assert isinstance(caught.value.__cause__, MessageError)
        assert isinstance(caught.value, ProducerException)
        assert isinstance(caught.value, RocketMQException)


def test_a_producer_that_is_not_running_raises(kafka: InMemoryKafka, producer: Producer) -> None:
    producer.shutdown()
    producer.shutdown()
    with pytest.raises(ProducerSendSyncFailed, match="start") as caught:
        producer.send_sync(message())
    assert isinstance(caught.value.__cause__, ClosedError)
    with producer:
        producer.send_sync(message())
    assert len(kafka.records("orders")) == 1


def test_producer_settings_become_settings_of_rocketshim() -> None:
    made = Producer("g", orderly=True, timeout=500, compress_level=5, max_message_size=10_000)
    made.set_name_server_address("a:1;b:2")
    made.set_kafka_settings({"sasl.mechanism": "SCRAM-SHA-512"})
    made.set_session_credentials("ak", b"sk", "ALIYUN")
    made.set_instance_name("one")
    made.set_message_trace(True)
    made.set_namespace("pay")
    made.set_delay_levels("1s 2s")
    made.set_group("other")
    made.start()
    assert made._producer is not None
    settings = made._producer.settings
    assert (settings.bootstrap, settings.namespace, settings.max_message_bytes) == ("a:1,b:2", "pay", 10_000)
    assert settings.client == {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "SCRAM-SHA-512", "sasl.username": "ak",
        "sasl.password": "sk", "client.id": "one", "compression.type": "gzip", "compression.level": 5,
    }  # fmt: skip
    assert "sk" not in repr(settings).replace("SASL_SSL", "")


def test_the_error_for_an_unsupported_feature_says_what_to_do_instead() -> None:
    with pytest.raises(NotSupportedError, match="set_name_server_address"):
        Producer("g").set_name_server_domain("http://x")


def test_start_checks_that_a_consumer_has_a_listener_and_an_address(kafka: InMemoryKafka) -> None:
    for consumer, missing in ((consumer_of(kafka), "listener"), (PushConsumer("g"), "set_name_server_address")):
        with pytest.raises(PushConsumerStartFailed, match=missing) as caught:
            consumer.start()
        assert isinstance(caught.value.__cause__, ConfigError)
        assert isinstance(caught.value, ConsumerException)


def test_start_checks_that_a_producer_has_an_address() -> None:
    with pytest.raises(ProducerStartFailed, match="set_name_server_address") as caught:
        Producer("pg").start()
    assert isinstance(caught.value.__cause__, ConfigError)


def test_names_that_are_never_raised_can_be_caught() -> None:
    failed = ProducerSendAsyncFailed("no", 1, "Send.cpp", 7, "MQClientException")
    assert isinstance(failed, ProducerException)
    assert (str(failed), failed.error, failed.file, failed.line, failed.type) == (
        "no", 1, "Send.cpp", 7, "MQClientException",
    )  # fmt: skip
    assert issubclass(NullPointerException, RocketMQException)
    assert issubclass(MallocFailed, RocketMQException)


def test_every_name_of_the_client_can_be_imported_from_the_package() -> None:
    assert {name for name in client.__all__ if getattr(rocketmq, name) is not getattr(client, name)} == set()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the offsets of broadcasting consumers."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path / ".rocketshim_offsets"


@pytest.mark.usefixtures("home")
def test_consumer_settings_become_settings_of_rocketshim(kafka: InMemoryKafka) -> None:
    made = consumer_of(kafka)
    made.set_group(b"other")
    made.set_thread_count(3)
    made.set_instance_name("one")
    made.set_session_credentials("ak", "sk", "ALIYUN")
    made.set_message_model(MessageModel.BROADCASTING)
    made.subscribe("orders", lambda _: ConsumeStatus.CONSUME_SUCCESS)
    with made:
        assert made._consumer is not None
        settings = made._consumer.settings
    assert (settings.group, settings.consume_thread_min, settings.message_model.name) == ("other", 3, "BROADCASTING")
    assert settings.client == {
        "client.id": "one", "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "ak",
        "sasl.password": "sk",
    }  # fmt: skip


def test_with_broadcasting_every_consumer_gets_every_message(
    kafka: InMemoryKafka, producer: Producer, home: Path
) -> None:
    came: list[str] = []
    consumers = []
    for name in ("one", "two"):
        made = consumer_of(kafka)
        made.set_message_model(MessageModel.BROADCASTING)
        made.set_instance_name(name)
        made.subscribe("orders", lambda _, name=name: came.append(name) or ConsumeStatus.CONSUME_SUCCESS)  # type: ignore[misc]
        consumers.append(made)
    with consumers[0], consumers[1]:
        producer.send_sync(message())
        kafka.wait_until(lambda: sorted(came) == ["one", "two"])
    host = socket.gethostname()
    assert {each.name for each in home.iterdir()} == {f"{host}@one", f"{host}@two"}


def test_a_callback_gets_the_messages_that_match_its_expression(kafka: InMemoryKafka, producer: Producer) -> None:
    came: list[bytes] = []

    def callback(got: ReceivedMessage) -> ConsumeStatus:
        came.append(got.body)
        return ConsumeStatus.CONSUME_SUCCESS

    consumer = consumer_of(kafka)
    consumer.subscribe("orders", print, "b")
    consumer.subscribe(b"orders", callback, "a || c")
    for tag in ("a", "b", "c"):
        producer.send_sync(message(tag, tags=tag))
    with consumer:
        kafka.wait_until(lambda: sorted(came) == [b"a", b"c"])
        with pytest.raises(ConfigError, match="before"):
            consumer.subscribe("orders", callback)
    consumer.shutdown()
    with consumer:
        assert consumer._consumer is not None, "a stopped consumer can start again"
    assert sorted(came) == [b"a", b"c"]


@pytest.mark.parametrize("answer", [0, False])
def test_a_value_equal_to_success_counts_as_success(kafka: InMemoryKafka, producer: Producer, answer: object) -> None:
    producer.send_sync(message())
    (record,) = kafka.records("orders")
    status = _listener(lambda _: answer)(MessageView(record, trusted=False))  # type: ignore[arg-type, return-value]
    assert status is listener_answers.ConsumeStatus.CONSUME_SUCCESS


@pytest.mark.parametrize(
    ("answer", "failure"),
    [
        (lambda: ConsumeStatus.RECONSUME_LATER, "the listener asked for it"),
        (lambda: True, "the listener asked for it"),
        (lambda: None, "the callback returned None: return a ConsumeStatus"),
        (lambda: "fine", "the callback returned 'fine': return a ConsumeStatus"),
        (lambda: 1 // 0, "by zero"),
    ],
)
def test_a_message_without_success_is_sent_back(
    kafka: InMemoryKafka, producer: Producer, answer: Callable[[], object], failure: str
) -> None:
    producer.send_sync(message())
    consumer = consumer_of(kafka)
    consumer.subscribe("orders", lambda _: answer())
    with consumer:
        kafka.wait_until(lambda: bool(kafka.records(NAMES.schedule)))
    (record,) = kafka.records(NAMES.schedule)
    assert failure in (decode(record.headers(), trusted=True).fail_text or "")


def test_a_retried_message_has_its_original_topic_and_its_reconsume_times(kafka: InMemoryKafka) -> None:
    headers = [("RETRY_TOPIC", b"orders"), ("ORIGIN_MESSAGE_ID", b"orders/1/7"), ("RECONSUME_TIMES", b"3")]
    kafka.append(NAMES.retry("g"), b"x", headers=headers)
    got = viewed(kafka, NAMES.retry("g"))
    assert (got.topic, got.reconsume_times, got["ORIGIN_MESSAGE_ID"], got["RECONSUME_TIME"]) == (
        "orders", 3, b"orders/1/7", b"3",
    )  # fmt: skip


class Answers:
    """The callbacks of a transactional producer, with an answer that a test chooses."""

    def __init__(self) -> None:
        self.answer: Any = TransactionStatus.UNKNOWN
        self.executed: list[tuple[ReceivedMessage, Any]] = []
        self.checked: list[ReceivedMessage] = []

    def execute(self, message: ReceivedMessage, user_args: Any) -> Any:
        self.executed.append((message, user_args))
        return self.given()

    def check(self, message: ReceivedMessage) -> Any:
        self.checked.append(message)
        return self.given()

    def given(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def transactional(kafka: InMemoryKafka, answers: Answers, **values: Any) -> TransactionMQProducer:
    layout = Layout(NAMES, DelayLevels.default())
    for spec in (*layout.timers(), layout.check("pg")):
        if spec.name not in kafka.topics():
            kafka.create_topics([spec])
    made = TransactionMQProducer("pg", answers.check, clients=Clients(kafka.consumer, kafka.producer), **values)
    made.set_name_server_address("memory:1")
    return made


def ends(kafka: InMemoryKafka, name: str) -> list[str]:
    """Return the commands in the log of timers that have this name."""
    log = (dict(record.headers()) for at in range(TIMER_PARTITIONS) for record in kafka.records(NAMES.timers, at))
    return [told["TIMER_DO"].decode() for told in log if told["TIMER"] == name.encode()]


@pytest.mark.parametrize(
    ("answer", "command"),
    [
        (TransactionStatus.COMMIT, ["NOW"]),
        (0, ["NOW"]),
        (TransactionStatus.ROLLBACK, ["CANCEL"]),
        (TransactionStatus.UNKNOWN, []),
        (OSError("the database does not answer"), []),
        (None, []),
        (True, []),
        (False, []),
        ([], []),
    ],
)
def test_a_transaction_ends_as_its_callback_answers(kafka: InMemoryKafka, answer: Any, command: list[str]) -> None:
    answers = Answers()
    answers.answer = answer
    with transactional(kafka, answers, user_args=1, timeout=20_000) as producer:
        sent = producer.send_message_in_transaction(full(), answers.execute, "mine")
        assert ends(kafka, sent.msg_id) == ["SET", *command]
        kafka.append("rmq.check.pg", b"XXXX", partition=0, headers=[("RETRY_TOPIC", b"orders"), ("UNIQ_KEY", b"tx-1")])
        kafka.wait_until(lambda: len(answers.checked) == 1, guard_s=60)
    assert ends(kafka, "tx-1") == command
    [(message, user_args)] = answers.executed
    assert (sent.status, message.id, message.body, message["p"], user_args) == (
        SendStatus.OK, sent.msg_id, b"XXXX", b"w", "mine",
    )  # fmt: skip
    [checked] = answers.checked
    assert (checked.topic, checked.id, checked.body, checked.prepared_transaction_offset) == (
        "orders", "tx-1", b"XXXX", 0,
    )  # fmt: skip


def test_a_transaction_that_cannot_begin_calls_nothing(kafka: InMemoryKafka) -> None:
    answers = Answers()
    producer = transactional(kafka, answers)
    with pytest.raises(ProducerSendSyncFailed, match="start"):
        producer.send_message_in_transaction(message(), answers.execute)
    with producer, pytest.raises(ProducerSendSyncFailed, match="no delay"):
        producer.send_message_in_transaction(message(delay_time_level=3), answers.execute)
    assert answers.executed == []


def test_a_checker_that_cannot_be_called_and_a_missing_topic_are_found_at_the_start(kafka: InMemoryKafka) -> None:
    with pytest.raises(ConfigError, match="checker_callback="):
        TransactionMQProducer("pg", lambda: None)  # type: ignore[arg-type,misc]
    producer = transactional(kafka, Answers())
    producer.set_group("other")
    with pytest.raises(ProducerStartFailed, match="--producer-group other"):
        producer.start()
    producer.set_group("pg")
    producer.start()
    producer.shutdown()
