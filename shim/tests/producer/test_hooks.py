"""Hooks around sends: they see each send once, and whatever they do, the send gets its result."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError

from rocketshim import Message, Producer
from rocketshim.aio import AsyncProducer
from rocketshim.clock import SystemClock
from rocketshim.errors import ConfigError, SendTimeoutError
from rocketshim.kafka.clients import Clients
from rocketshim.testing import InMemoryKafka


@pytest.fixture
def kafka() -> InMemoryKafka:
    cluster = InMemoryKafka(SystemClock())
    cluster.create_topic("orders", 1)
    return cluster


@pytest.fixture
def producer(kafka: InMemoryKafka) -> Iterator[Producer]:
    with Producer("memory:1", clients=kafka.clients()) as made:
        yield made


class Seen:
    """A hook that notes what it sees."""

    def __init__(self) -> None:
        self.before: list[Message] = []
        self.after: list[Any] = []

    def send_message_before(self, context: Any) -> None:
        self.before.append(context.message)

    def send_message_after(self, context: Any) -> None:
        self.after.append(context.error or context.result)


def test_a_hook_sees_the_message_and_its_result(kafka: InMemoryKafka, producer: Producer) -> None:
    seen, message = Seen(), Message("orders", b"x")
    producer.register_send_message_hook(seen)
    result = producer.send(message)
    kafka.fail_produce(KafkaError(KafkaError._MSG_TIMED_OUT), topic="orders")
    with pytest.raises(SendTimeoutError) as caught:
        producer.send(message)
    assert seen.before == [message, message]
    assert seen.after == [result, caught.value]


class OnlyBefore:
    def send_message_before(self, context: Any) -> None:
        pass


class OnlyAfter:
    def send_message_after(self, context: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("hook", "missing"),
    [
        (OnlyBefore(), "send_message_after"),
        (OnlyAfter(), "send_message_before"),
        (None, "send_message_before and send_message_after"),
        (Seen, "send_message_before and send_message_after"),
    ],
)
def test_an_object_without_both_methods_is_not_a_hook(producer: Producer, hook: Any, missing: str) -> None:
    with pytest.raises(ConfigError, match=f"is not a hook: pass an object with the method {missing}$"):
        producer.register_send_message_hook(hook)


class Removes:
    """A hook that puts something else in place of the message."""

    def send_message_before(self, context: Any) -> None:
        context.message = None

    def send_message_after(self, context: Any) -> None:
        del context.message


class Raises:
    """A hook that replaces the message, and then raises."""

    def send_message_before(self, context: Any) -> None:
        context.message = Message("orders", b"y")
        raise SystemExit

    def send_message_after(self, context: Any) -> None:
        raise SystemExit(context.message.topic)


class Loses:
    """A hook whose methods are gone when they are called."""

    def __init__(self) -> None:
        self.send_message_before: Any = self._lose
        self.send_message_after: Any = self._lose

    def _lose(self, context: Any) -> None:
        del self.send_message_after, context.kept


@pytest.mark.parametrize("hook", [Removes(), Raises(), Loses()])
def test_a_bad_hook_is_logged_and_the_message_is_sent(
    kafka: InMemoryKafka, producer: Producer, caplog: pytest.LogCaptureFixture, hook: Any
) -> None:
    producer.register_send_message_hook(hook)
    assert producer.send_async("orders", b"x").result(30).queue_offset == 0
    assert [record.value() for record in kafka.records("orders")] == [b"x"]
    assert {record.event for record in caplog.records} == {"producer.hook-failed"}  # type: ignore[attr-defined]


class FullThrice:
    """A Kafka client whose queue is full at the next three sends."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.count = 3

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __len__(self) -> int:
        return len(self._inner)

    def produce(self, *values: Any, **named: Any) -> None:
        if self.count:
            self.count -= 1
            raise BufferError
        self._inner.produce(*values, **named)


@pytest.mark.parametrize(("timeout_s", "refused"), [(30, 0), (0, 1)])
def test_hooks_and_counts_see_a_send_that_waits_for_room_once(
    kafka: InMemoryKafka, timeout_s: float, refused: int
) -> None:
    seen = Seen()

    async def main() -> None:
        clients: Any = Clients(kafka.consumer, lambda config: FullThrice(kafka.producer(config)))  # type: ignore[arg-type, return-value]
        async with AsyncProducer("memory:1", clients=clients) as producer:
            producer.producer.register_send_message_hook(seen)
            producer.producer.sender._sender._open()
            try:
                await producer.send("orders", b"x", timeout_s=timeout_s)
            except BufferError:
                assert refused
            assert producer.producer.sender._counts.refused == refused

    asyncio.run(main())
    assert len(seen.before) == len(seen.after) == 1
    assert len(kafka.records("orders")) == 1 - refused
