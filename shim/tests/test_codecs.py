"""Typed bodies: what a codec refuses is not sent, and what it cannot decode is a dead letter at the first attempt."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka.serialization import SerializationContext, StringDeserializer, StringSerializer
from pydantic import BaseModel, Field

from rocketshim import ConsumeStatus, Message, MessageView, Producer, PushConsumer, RetryLater
from rocketshim.codecs import JsonCodec, PydanticCodec, SerializerCodec
from rocketshim.errors import ConfigError, MessageError
from rocketshim.harness import Harness
from rocketshim_topics.wire import decode


class Order(BaseModel):
    """An order of the examples."""

    id: int
    total: float = Field(default=0, ge=0, alias="sum")


@dataclass
class Refund:
    """A plain dataclass."""

    id: int


@pytest.fixture
def harness() -> Iterator[Harness]:
    with Harness() as made:
        made.topic("orders")
        yield made


@pytest.fixture
def producer(harness: Harness) -> Iterator[Producer]:
    with Producer("localhost:9092", codec=PydanticCodec(Order)) as made:
        harness.connect(made)
        yield made


def payments(**options: Any) -> PushConsumer:
    return PushConsumer("localhost:9092", group="payments", **options)


def bodies(harness: Harness) -> list[bytes]:
    return [record.value() for record in harness.kafka.records("orders")]


def causes(harness: Harness) -> list[tuple[bytes | None, str | None, int]]:
    dead = harness.dead("payments")
    return [(each.body, decode(each.record.headers(), trusted=True).fail_class, each.reconsume_times) for each in dead]


# --- sending ---------------------------------------------------------------------------------------------------------


def test_a_model_is_sent_as_json_and_received_as_a_model(harness: Harness, producer: Producer) -> None:
    consumer, seen = payments(), []

    @consumer.listener("orders", body=Order)
    def handle(message: MessageView[Order]) -> None:
        seen.append(message.value)
        assert message.body == b'{"id":7,"sum":1.5}'

    harness.run(consumer)
    producer.send("orders", Order(id=7, sum=1.5), key="o-7")
    producer.send_async("orders", Order(id=7, sum=1.5)).result(3)
    producer.send_oneway("orders", Order(id=7, sum=1.5))
    producer.flush()
    harness.pass_time(0)
    assert seen == [Order(id=7, sum=1.5)] * 3


@pytest.mark.parametrize("value", [{"id": 7}, Refund(1), b"raw", "text", object()])
def test_a_value_that_the_codec_refuses_is_not_sent(harness: Harness, producer: Producer, value: object) -> None:
    for send in (producer.send, producer.send_async, producer.send_oneway):
        with pytest.raises(MessageError, match=r"the codec refuses the body for 'orders', a \w+; nothing was sent: "):
            send("orders", value)
    producer.flush()
    assert bodies(harness) == []


def test_a_message_is_sent_as_it_is_and_a_codec_of_one_send_counts_first(harness: Harness, producer: Producer) -> None:
    producer.send(Message("orders", b"raw"))
    producer.send("orders", {"id": "é"}, codec=JsonCodec())
    assert bodies(harness) == [b"raw", '{"id":"é"}'.encode()]


def test_a_message_that_is_not_legal_does_not_reach_its_codec(harness: Harness) -> None:
    class Never:
        def encode(self, value: Any, topic: str, headers: Any) -> bytes:
            raise AssertionError((value, topic, headers))

        decode = encode

    producer = Producer("localhost:9092", codec=Never())  # type: ignore[arg-type]
    harness.connect(producer)
    for options in ({"delay": "soon"}, {"tag": "*"}, {"keys": 7}):
        with pytest.raises(MessageError, match=r"soon|tag|keys"):
            producer.send("orders", {}, **options)  # type: ignore[arg-type]
    with pytest.raises(MessageError, match="body is None"):
        producer.send("orders", None)


@pytest.mark.parametrize("returned", [None, "text", bytearray(b"x"), 7])
def test_a_codec_that_returns_no_bytes_sends_nothing(harness: Harness, producer: Producer, returned: object) -> None:
    class Wrong(JsonCodec):
        def encode(self, value: Any, topic: str, headers: Any) -> Any:
            del value, topic, headers
            return returned

    with pytest.raises(MessageError, match=f"the codec returned {type(returned).__name__} for 'orders', not bytes"):
        producer.send("orders", 1, codec=Wrong())
    assert bodies(harness) == []


@pytest.mark.parametrize("codec", [JsonCodec, object(), "json"])
def test_an_object_that_is_no_codec_is_refused(codec: Any) -> None:
    with pytest.raises(ConfigError, match="is not a codec: give an object with encode and decode, such as JsonCodec"):
        Producer("localhost:9092", codec=codec)
    with pytest.raises(ConfigError, match="is not a codec"):
        payments(codec=codec)
    with pytest.raises(ConfigError, match="is not a codec"):
        payments().listener("orders", codec=codec)(print)


def test_body_and_codec_together_are_refused_and_so_is_a_type_that_pydantic_does_not_know() -> None:
    with pytest.raises(ConfigError, match="body and codec are given"):
        payments().listener("orders", body=Order, codec=JsonCodec())(print)
    with pytest.raises(ConfigError, match="is not a type that pydantic validates"):
        payments().listener("orders", body=Harness)(print)
    with pytest.raises(ConfigError, match="give a serializer, a deserializer or both"):
        SerializerCodec()
    with pytest.raises(ConfigError, match="is not a serializer: it must be callable"):
        SerializerCodec(StringSerializer)


# --- receiving -------------------------------------------------------------------------------------------------------


def test_the_cause_does_not_have_the_values_of_the_body(harness: Harness) -> None:
    consumer = payments()
    consumer.register_message_listener("orders", print, body=Order)
    harness.run(consumer)
    harness.send(Message("orders", b'{"id": "card 4711", "sum": -5}'))
    (dead,) = harness.dead("payments")
    assert decode(dead.record.headers(), trusted=True).fail_text == (
        "ValueError: id: Input should be a valid integer, unable to parse string as an integer; "
        "sum: Input should be greater than or equal to 0"
    )


BROKEN = [b"", b"{", b"\xff", b'{"id":"x"}', b"[" * 100_000, b"NaN", b"null"]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_body_that_cannot_be_decoded_is_dead_at_once_with_its_cause(harness: Harness, is_async: bool) -> None:
    consumer, seen = payments(), []

    def handle(message: MessageView[Order]) -> None:
        seen.append(message.value.id)

    async def await_handle(message: MessageView[Order]) -> None:
        await asyncio.sleep(0)
        handle(message)

    consumer.register_message_listener("orders", await_handle if is_async else handle, body=Order)
    harness.run(consumer)
    harness.send(*(Message("orders", body) for body in [*BROKEN, b'{"id":7}']))
    assert seen == [7]
    assert sorted(causes(harness)) == sorted((body, "UndecodableBody", 1) for body in BROKEN)
    assert harness.waiting() == []
    texts = {decode(each.record.headers(), trusted=True).fail_text or "" for each in harness.dead("payments")}
    assert all(text.startswith("ValueError: ") for text in texts)
    assert "ValueError: id: Input should be a valid integer, unable to parse string as an integer" in texts


class SchemaRegistryError(Exception):
    """As the registry's client has it."""

    def __init__(self, http_status_code: int) -> None:
        super().__init__(http_status_code)
        self.http_status_code = http_status_code


def unanswered(error: Exception) -> Exception:
    made = ValueError("cannot decode")
    made.__cause__ = error
    return made


@pytest.mark.parametrize(
    ("error", "dead"),
    [
        (ConnectionError("no registry"), False),
        (unanswered(TimeoutError("no registry")), False),
        (SchemaRegistryError(503), False),
        (SchemaRegistryError(401), False),
        (RetryLater("1m"), False),
        (type("ConnectError", (Exception,), {"__module__": "httpx._exceptions"})("no registry"), False),
        (SchemaRegistryError(404), True),
        (unanswered(KeyError("x")), True),
    ],
)
@pytest.mark.parametrize("batch_count", [1, 2])
def test_a_registry_that_does_not_answer_is_no_reason_for_a_dead_letter(
    harness: Harness, error: Exception, dead: bool, batch_count: int
) -> None:
    def deserialize(body: bytes, _context: Any) -> bytes:
        if body == b"good":
            return body
        raise error

    consumer, seen = payments(consume_message_batch_max_size=batch_count), []

    @consumer.listener("orders", codec=SerializerCodec(deserialize, deserialize))
    def handle(messages: Any) -> None:
        seen.extend(message.value for message in ([messages] if batch_count == 1 else messages))

    for body in (b"bad", b"good"):
        harness.kafka.append("orders", body)
    harness.run(consumer)
    assert seen == [b"good"]
    assert len(harness.dead("payments")) == dead
    assert len(harness.waiting()) == 1 - dead


@pytest.mark.parametrize("rules", [{"retry_on": KeyError}, {"dead_on": OSError}])
@pytest.mark.parametrize("batch_count", [1, 2])
def test_the_rules_of_a_listener_do_not_make_dead_letters_of_what_a_registry_did_not_answer(
    harness: Harness, rules: Any, batch_count: int
) -> None:
    def deserialize(_body: bytes, _context: Any) -> bytes:
        raise ConnectionError("no registry")

    consumer = payments(consume_message_batch_max_size=batch_count)
    seen: list[Any] = []
    codec = SerializerCodec(deserialize, deserialize)
    consumer.register_message_listener("orders", seen.append, codec=codec, **rules)
    harness.kafka.append("orders", b"x")
    harness.run(consumer)
    assert (seen, causes(harness)) == ([], [])
    retried: Any
    (retried,) = (each for each in harness.kafka.records("SCHEDULE_TOPIC_XXXX", 2) if each.value())  # else a probe
    headers = decode(retried.headers(), trusted=True)
    assert (headers.fail_class, headers.fail_text) == ("UnansweredCodec", "ConnectionError: no registry")


@pytest.mark.parametrize("error", [ConnectionError("no registry"), SchemaRegistryError(503)])
def test_a_registry_that_does_not_answer_is_no_refusal_of_a_send(producer: Producer, error: Exception) -> None:
    def serialize(_value: object, _context: Any) -> bytes:
        raise error

    with pytest.raises(type(error)):
        producer.send("orders", "x", codec=SerializerCodec(serialize))


def test_a_retried_message_is_decoded_again_with_the_topic_of_its_first_delivery(harness: Harness) -> None:
    asked: list[str] = []

    class Recording(JsonCodec):
        def decode(self, body: bytes, topic: str, headers: Any) -> Any:
            asked.append(topic)
            return super().decode(body, topic, headers)

    consumer = payments(codec=Recording())

    @consumer.listener("orders")
    def handle(message: MessageView[dict[str, int]]) -> None:
        assert message.value == {"id": 7}
        if message.reconsume_times == 0:
            raise RetryLater("1s")

    harness.run(consumer)
    harness.send(Message("orders", b'{"id": 7}'))
    harness.pass_time("2s")
    assert asked == ["orders", "orders"]
    assert harness.dead("payments") == []


@pytest.mark.parametrize("is_async", [False, True])
def test_a_retried_message_that_only_another_member_can_decode_is_sent_on(harness: Harness, is_async: bool) -> None:
    """The codec is that of another version for a while: the member is an old one."""
    seen: list[int] = []

    class Changing(JsonCodec):
        is_old = False

        def decode(self, body: bytes, topic: str, headers: Any) -> Any:
            if self.is_old:
                raise ValueError("unknown version")
            return super().decode(body, topic, headers)

    def handle(message: MessageView[dict[str, int]]) -> None:
        seen.append(message.reconsume_times)
        if message.reconsume_times == 0:
            raise RetryLater("1s")

    async def await_handle(message: MessageView[dict[str, int]]) -> None:
        await asyncio.sleep(0)
        handle(message)

    codec = Changing()
    consumer = payments(max_reconsume_times=1)
    consumer.register_message_listener("orders", await_handle if is_async else handle, codec=codec)
    harness.run(consumer)
    harness.send(Message("orders", b'{"id": 7}'))
    codec.is_old = True
    harness.pass_time("15s")
    assert (seen, harness.dead("payments")) == ([0], [])
    codec.is_old = False
    harness.pass_time("10s")
    assert (seen, harness.dead("payments")) == ([0, 1], [])


def test_a_tombstone_has_the_value_none_and_an_empty_body_is_decoded(harness: Harness) -> None:
    consumer, seen = payments(codec=SerializerCodec(deserializer=StringDeserializer())), []

    @consumer.listener("orders")
    def handle(message: MessageView[str | None]) -> None:
        seen.append((message.body, message.value))

    harness.run(consumer)
    harness.send(Message("orders", None), Message("orders", b""))
    assert len(seen) == 2
    assert set(seen) == {(None, None), (b"", "")}, "by several threads"


def test_a_listener_without_a_codec_has_no_value(harness: Harness) -> None:
    consumer, errors = payments(), []

    @consumer.listener("orders")
    def handle(message: MessageView) -> None:
        with pytest.raises(ConfigError, match="its listener has no codec: give it body= or codec="):
            _ = message.value
        errors.append(message.body)

    harness.run(consumer)
    harness.send(Message("orders", b"x"))
    assert errors == [b"x"]


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(
    ("answer", "again"),
    [
        (None, []),
        (ConsumeStatus.RECONSUME_LATER, [b"1", b"2"]),
        ([None, ValueError()], [b"2"]),
        (OSError("no"), [b"1", b"2"]),
        ("ack 0", [b"2"]),
        (7, [b"1", b"2"]),
    ],
)
def test_a_body_that_cannot_be_decoded_fails_alone_in_a_batch(
    harness: Harness, answer: Any, again: list[bytes], is_async: bool
) -> None:
    consumer, seen = payments(consume_message_batch_max_size=4), []

    def handle(messages: list[MessageView[int]], context: Any) -> Any:
        seen.append([message.value for message in messages])
        if isinstance(answer, OSError):
            raise answer
        if answer == "ack 0":
            context.ack_index = 0
            return None
        return answer

    async def await_handle(messages: list[MessageView[int]], context: Any) -> Any:
        return handle(messages, context)

    for body in (b"{", b"1", b"{{", b"2"):
        harness.kafka.append("orders", body)
    consumer.register_message_listener("orders", await_handle if is_async else handle, codec=JsonCodec())
    harness.run(consumer)
    assert seen == [[1, 2]]
    assert [body for body, *_ in causes(harness)] == [b"{", b"{{"]
    retried = [record.value() for record in harness.kafka.records("SCHEDULE_TOPIC_XXXX", 2)]  # level 3
    assert [body for body in retried if body is not None] == again, "None is the probe of a clock"


def test_a_batch_that_cannot_be_decoded_at_all_does_not_reach_its_listener(harness: Harness) -> None:
    consumer = payments(consume_message_batch_max_size=4)
    consumer.register_message_listener("orders", lambda messages: 1 / 0, codec=JsonCodec())  # noqa: ARG005
    harness.kafka.append("orders", b"{")
    harness.run(consumer)
    assert causes(harness) == [(b"{", "UndecodableBody", 1)]


def test_an_orderly_listener_of_lists_cannot_have_a_codec() -> None:
    with pytest.raises(ConfigError, match="set consume_message_batch_max_size=1"):
        payments(consume_message_batch_max_size=2).listener("orders", orderly=True, body=Order)(print)
    payments().listener("orders", orderly=True, body=Order)(print)


def test_a_new_listener_gets_the_codec_of_the_consumer_and_a_new_filter_keeps_that_of_the_listener() -> None:
    consumer = payments(codec=JsonCodec())
    consumer.register_message_listener("orders", lambda message: message.value, body=Order)
    first = consumer._subscriptions.get("orders")
    consumer.subscribe("orders", tags="paid")
    assert consumer._subscriptions.get("orders").listener is first.listener  # type: ignore[union-attr]
    consumer.subscribe("refunds", lambda message: message.value)
    (record,) = [view(b'{"id": 7}')]
    assert consumer._subscriptions.get("refunds").listener(record, None) == {"id": 7}  # type: ignore[union-attr]


def view(body: bytes) -> MessageView[Any]:
    with Harness() as harness:
        harness.topic("refunds")
        harness.kafka.append("refunds", body)
        return MessageView(harness.kafka.records("refunds")[0], trusted=False)


# --- codecs ----------------------------------------------------------------------------------------------------------


def test_serializers_of_confluent_get_topic_field_and_headers_and_may_add_headers(harness: Harness) -> None:
    seen: list[tuple[Any, ...]] = []

    def serialize(value: Any, context: SerializationContext) -> bytes:
        seen.append((value, context.topic, context.field))
        context.headers.append(("__value_schema_id", b"\x01id"))  # type: ignore[union-attr]
        return str(value).encode()

    def deserialize(body: bytes, context: SerializationContext) -> Any:
        seen.append((body, context.topic, context.field, dict(context.headers or [])))
        return int(body)

    codec = SerializerCodec(serialize, deserialize)
    consumer = payments()
    consumer.register_message_listener("orders", lambda message: seen.append(message.value), codec=codec)
    with Producer("localhost:9092", codec=codec) as producer:
        harness.connect(producer)
        harness.run(consumer)
        producer.send("orders", 7, properties={"mine": "1"})
        harness.pass_time(0)
    headers = {"mine": b"1", "__value_schema_id": b"\x01id"}
    assert seen == [(7, "orders", "value"), (b"7", "orders", "value", headers), 7]


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (JsonCodec(), float("nan")),
        (JsonCodec(), {1, 2}),
        (JsonCodec(), "\ud800"),
        (SerializerCodec(deserializer=StringDeserializer()), "x"),
        (SerializerCodec(StringSerializer("ascii")), "é"),
        (SerializerCodec(lambda value, context: None), "x"),  # noqa: ARG005
        (PydanticCodec(list[Order]), [{"id": 7}]),
        (PydanticCodec(Refund), Order(id=1)),
    ],
)
def test_values_that_codecs_refuse(producer: Producer, codec: Any, value: object) -> None:
    with pytest.raises(MessageError, match="the codec refuses the body for 'orders'"):
        producer.send("orders", value, codec=codec)


def test_pydantic_knows_more_than_models(harness: Harness, producer: Producer) -> None:
    producer.send("orders", [Order(id=1)], codec=PydanticCodec(list[Order]))
    producer.send("orders", Refund(2), codec=PydanticCodec(Refund))
    first, second = bodies(harness)
    assert PydanticCodec(list[Order]).decode(first, "orders", ()) == [Order(id=1)]
    assert PydanticCodec(Refund).decode(second, "orders", ()) == Refund(2)
