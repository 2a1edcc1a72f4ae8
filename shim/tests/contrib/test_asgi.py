"""Producer and consumers that run as long as an ASGI application, on the in-memory Kafka."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from confluent_kafka import KafkaError
from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient

from rocketshim import ConsumeFromWhere, Message, MessageView, Producer, PushConsumer
from rocketshim.aio import AsyncProducer
from rocketshim.clock import SystemClock
from rocketshim.contrib.asgi import Lifespan, get_producer, lifespan, send
from rocketshim.errors import ClosedError, ConfigError, NotAuthorizedError, SendTimeoutError, TopicMissingError
from rocketshim.kafka.clients import Clients
from rocketshim.testing import InMemoryKafka
from rocketshim.testing.consumer import InMemoryConsumer
from rocketshim_topics import DelayLevels, TopicNames

NAMES = TopicNames()


@pytest.fixture
def kafka() -> InMemoryKafka:
    made = InMemoryKafka(SystemClock())
    made.create_topic("orders")
    made.create_topic(NAMES.schedule, DelayLevels.STRIDE, config={"message.timestamp.type": "LogAppendTime"})
    made.create_topic(NAMES.retry("g"))
    made.create_topic(NAMES.dead_letter("g"))
    return made


def producer_of(kafka: InMemoryKafka) -> Callable[[], Producer]:
    return lambda: Producer("memory:1", clients=kafka.clients())


def consumer_of(kafka: InMemoryKafka, listener: Callable[[MessageView], Any]) -> PushConsumer:
    consumer = PushConsumer(
        "memory:1", group="g", clients=kafka.clients(), consume_from_where=ConsumeFromWhere.FIRST_OFFSET
    )
    consumer.listener("orders")(listener)
    return consumer


def shop(lifespan: Lifespan) -> FastAPI:
    app = FastAPI(lifespan=lifespan)

    @app.post("/orders/{number}")
    async def place(number: str, producer: Annotated[Producer, Depends(get_producer)]) -> str:
        return (await send(producer, Message("orders", number.encode()), timeout_s=30)).msg_id

    return app


def test_a_request_sends_by_the_producer_of_the_application(kafka: InMemoryKafka) -> None:
    made: list[Producer] = []
    app = shop(lifespan(producer=lambda: made.append(producer_of(kafka)()) or made[-1]))
    for _ in range(2):
        with TestClient(app) as client:
            assert len(client.post("/orders/7").json()) == 32
    assert [record.value() for record in kafka.records("orders")] == [b"7", b"7"]
    for producer in made:
        with pytest.raises(ClosedError):
            producer.send(Message("orders", b"x"))


def test_consumers_run_as_long_as_the_application(kafka: InMemoryKafka) -> None:
    came: list[bytes | None] = []
    consumer = consumer_of(kafka, lambda message: came.append(message.body))
    with TestClient(shop(lifespan(producer=producer_of(kafka)(), consumers=[consumer]))) as client:
        client.post("/orders/7")
        kafka.wait_until(lambda: came == [b"7"])
    assert consumer.state is not None
    assert kafka.committed("g")["orders", 0] == 1


def test_async_listeners_run_in_the_event_loop_of_the_application(kafka: InMemoryKafka) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    @asynccontextmanager
    async def pool(_app: Any) -> AsyncIterator[Mapping[str, Any]]:
        loops.append(asyncio.get_running_loop())
        yield {"pool": "open"}

    async def listen(_message: MessageView) -> None:
        loops.append(asyncio.get_running_loop())

    app = shop(lifespan(producer=producer_of(kafka), consumers=[lambda: consumer_of(kafka, listen)], wrapping=pool))
    with TestClient(app) as client:
        client.post("/orders/7")
        kafka.wait_until(lambda: len(loops) == 2)
    assert loops[0] is loops[1]


def test_what_is_wrapped_is_open_while_listeners_run(kafka: InMemoryKafka) -> None:
    events: list[str] = []

    @asynccontextmanager
    async def pool(_app: Any) -> AsyncIterator[Mapping[str, Any]]:
        events.append("open")
        yield {"pool": events}
        events.append("closed")

    def listen(_message: MessageView) -> None:
        events.append("call")

    producer = producer_of(kafka)()
    producer.send(Message("orders", b"1"))
    app = shop(lifespan(producer=producer, consumers=[consumer_of(kafka, listen)], wrapping=pool))

    @app.get("/pool")
    async def of_pool(producer: Annotated[Producer, Depends(get_producer)]) -> bool:
        return producer is not None

    with TestClient(app) as client:
        kafka.wait_until(lambda: "call" in events)
        assert client.get("/pool").json() is True
    assert events == ["open", "call", "closed"]


def test_an_application_does_not_start_if_a_consumer_does_not(kafka: InMemoryKafka) -> None:
    first = consumer_of(kafka, lambda _: None)
    without_listener = PushConsumer("memory:1", group="g", clients=kafka.clients())
    producer = producer_of(kafka)()
    app = shop(lifespan(producer=producer, consumers=[first, without_listener]))
    with pytest.raises(ConfigError, match="listener"), TestClient(app):
        pass
    with pytest.raises(ClosedError):
        producer.send(Message("orders", b"x"))
    assert first._thread is not None
    assert not first._thread.is_alive()


@pytest.mark.parametrize("is_made", [True, False])
def test_an_application_does_not_start_with_another_kind_of_producer(kafka: InMemoryKafka, is_made: bool) -> None:
    other: Any = AsyncProducer("memory:1", clients=kafka.clients())
    app = shop(lifespan(producer=other if is_made else lambda: other))
    with pytest.raises(ConfigError, match=r"AsyncProducer object .*: give a Producer, or a function"), TestClient(app):
        pass


def test_the_error_of_a_consumer_is_raised_when_the_application_ends(kafka: InMemoryKafka) -> None:
    made: list[InMemoryConsumer] = []

    def capture(config: Mapping[str, Any]) -> InMemoryConsumer:
        made.append(kafka.consumer(config))
        return made[-1]

    consumer = PushConsumer("memory:1", group="g", clients=Clients(capture, kafka.producer))
    consumer.listener("orders")(lambda _: None)
    producer = producer_of(kafka)()

    def use() -> None:
        with TestClient(shop(lifespan(producer=producer, consumers=[consumer]))) as client:
            assert consumer.wait_assigned()
            kafka.raise_in_poll(made[0], KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
            kafka.wait_until(consumer._ended.is_set)
            assert client.post("/orders/7").status_code == 200, "the application goes on"

    with pytest.raises(NotAuthorizedError, match="not authorized to read in this group"):
        use()
    with pytest.raises(ClosedError):
        producer.send(Message("orders", b"x"))


def test_without_a_lifespan_there_is_no_producer() -> None:
    app = shop(lifespan())
    with TestClient(app) as client, pytest.raises(ConfigError, match=r"lifespan\(producer="):
        client.post("/orders/7")


def run(sending: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await sending

    return asyncio.run(main())


def test_errors_of_send_are_those_of_the_producer(kafka: InMemoryKafka) -> None:
    with producer_of(kafka)() as producer:
        with pytest.raises(TopicMissingError):
            run(send(producer, Message("nobody", b"x"), timeout_s=30))
        kafka.hold_reports("orders")
        with pytest.raises(SendTimeoutError, match="may or may not be stored"):
            run(send(producer, Message("orders", b"x"), timeout_s=0.05))
        kafka.release()
