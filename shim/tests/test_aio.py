"""`AsyncProducer` and `async with`: sends are awaited, the event loop is never blocked, nothing is left behind."""

import asyncio
import gc
import math
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from rocketshim import ConsumeFromWhere, Message, MessageView, PushConsumer, SendStatus
from rocketshim.aio import AsyncProducer
from rocketshim.clock import SystemClock
from rocketshim.codecs import JsonCodec, SerializerCodec
from rocketshim.errors import ClosedError, ConfigError, MessageError, SendTimeoutError, TopicMissingError
from rocketshim.kafka.clients import Clients
from rocketshim.testing import InMemoryKafka
from rocketshim_topics import DelayLevels
from rocketshim_topics.layout import Layout
from rocketshim_topics.names import TopicNames


@pytest.fixture
def kafka() -> InMemoryKafka:
    cluster = InMemoryKafka(SystemClock())
    cluster.create_topic("orders", 2)
    cluster.create_topics(Layout(TopicNames(), DelayLevels.default()).shared())
    return cluster


def producer_on(kafka: InMemoryKafka, **options: Any) -> AsyncProducer:
    return AsyncProducer("memory:1", clients=kafka.clients(), **options)


def test_a_send_is_awaited_until_it_is_stored(kafka: InMemoryKafka) -> None:
    async def main() -> None:
        async with producer_on(kafka, codec=JsonCodec()) as producer:
            result = await producer.send("orders", {"id": 7}, key="o-7", tag="paid")
            assert result.status is SendStatus.SEND_OK
            await producer.send(Message("orders", b"raw", key="o-7"), timeout_s=math.inf)
            await asyncio.gather(*(producer.send("orders", number, key="o-7") for number in range(50)))

    asyncio.run(main())
    first, second, *others = kafka.records("orders")
    assert (first.value(), second.value()) == (b'{"id":7}', b"raw")
    assert sorted(int(record.value()) for record in others) == list(range(50))


def test_a_delay_and_a_selector_work_as_with_the_plain_producer(kafka: InMemoryKafka) -> None:
    async def main() -> None:
        async with producer_on(kafka) as producer:
            delayed = await producer.send("orders", b"later", delay="30m")
            assert delayed.message_queue.topic == "SCHEDULE_TOPIC_XXXX"
            chosen = await producer.send("orders", b"x", selector=lambda queues, *_: queues[1])
            assert chosen.message_queue.queue_id == 1
            results = await producer.send_batch([Message("orders", b"1"), Message("orders", b"2", delay="1s")])
            assert len({result.msg_id for result in results}) == 2
            assert await producer.flush() == 0

    asyncio.run(main())


def test_bad_input_is_refused_at_the_call_and_nothing_is_sent(kafka: InMemoryKafka) -> None:
    async def main() -> None:
        async with producer_on(kafka) as producer:
            with pytest.raises(MessageError, match="'soon' is not a duration"):
                await producer.send("orders", b"x", delay="soon")
            with pytest.raises(MessageError, match="timeout_s is -1: give seconds, 0 or more"):
                await producer.send("orders", b"x", timeout_s=-1)
            with pytest.raises(MessageError, match="as a batch: give a list of messages"):
                await producer.send_batch(Message("orders", b"x"))  # type: ignore[arg-type]
            with pytest.raises(MessageError, match="cannot send b'x'"):
                await producer.send_batch([Message("orders", b"1"), b"x"])  # type: ignore[list-item]
            with pytest.raises(TopicMissingError):
                await producer.send("nowhere", b"x")

    asyncio.run(main())
    assert kafka.records("orders") == []


def test_a_closed_producer_refuses(kafka: InMemoryKafka) -> None:
    before = set(threading.enumerate())

    async def main() -> None:
        producer = producer_on(kafka)
        async with producer:
            await producer.send("orders", b"x")
        await producer.close()
        with pytest.raises(ClosedError):
            await producer.send("orders", b"x")

    asyncio.run(main())
    assert not set(threading.enumerate()) - before


class Gated:
    """A Kafka client whose `method` waits until the event loop opens the gate: a blocked loop never could."""

    def __init__(self, inner: Any, method: str, gate: threading.Event) -> None:
        self._inner, self._method, self._gate = inner, method, gate

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._method:
            return found

        def wait(*arguments: Any, **options: Any) -> Any:
            assert self._gate.wait(30)
            return found(*arguments, **options)

        return wait

    def __len__(self) -> int:
        return len(self._inner)


def gated(kafka: InMemoryKafka, method: str, gate: threading.Event) -> Clients:
    return Clients(kafka.consumer, lambda config: Gated(kafka.producer(config), method, gate))  # type: ignore[arg-type,return-value]


async def opening(gate: threading.Event, send: Callable[[], Any]) -> Any:
    """Await a send that can end only if the event loop runs meanwhile."""
    sending = asyncio.ensure_future(send())
    await asyncio.sleep(0)
    assert not sending.done()
    gate.set()
    return await sending


def test_looking_up_the_cluster_does_not_block_the_event_loop(kafka: InMemoryKafka) -> None:
    gate = threading.Event()

    async def main() -> None:
        async with AsyncProducer("memory:1", clients=gated(kafka, "list_topics", gate)) as producer:
            await producer.send("orders", b"opens the client")
            await opening(gate, lambda: producer.send("orders", b"x", delay="1s"))
            gate.clear()
            producer.producer.sender._lanes._known.clear()
            await opening(gate, lambda: producer.send("orders", b"x", selector=lambda queues, *_: queues[0]))

    asyncio.run(main())


def test_a_codec_that_waits_does_not_block_the_event_loop(kafka: InMemoryKafka) -> None:
    gate = threading.Event()

    def serialize(value: int, context: object) -> bytes:
        del context
        assert gate.wait(30)
        return b"%d" % value

    async def main() -> None:
        async with producer_on(kafka, codec=SerializerCodec(serialize)) as producer:
            await opening(gate, lambda: producer.send("orders", 7))
            gate.clear()
            await producer.send("orders", 8, codec=JsonCodec())
            await producer.send(Message("orders", b"9"))

    asyncio.run(main())
    assert {record.value() for record in kafka.records("orders")} == {b"7", b"8", b"9"}


def test_a_full_queue_is_waited_for_without_blocking_the_event_loop(kafka: InMemoryKafka) -> None:
    room = threading.Event()

    def producer(config: Any) -> Any:
        inner = kafka.producer(config)
        produce = inner.produce

        def full(*arguments: Any, **options: Any) -> None:
            if not room.is_set():
                raise BufferError
            produce(*arguments, **options)

        inner.produce = full  # type: ignore[method-assign]
        return inner

    async def main() -> None:
        async with AsyncProducer("memory:1", clients=Clients(kafka.consumer, producer)) as producer_:
            producer_.producer.sender._sender._open()
            await opening(room, lambda: producer_.send("orders", b"x"))
            room.clear()
            with pytest.raises(BufferError):
                await producer_.send("orders", b"y", timeout_s=0.02)
            room.set()

    asyncio.run(main())
    assert [record.value() for record in kafka.records("orders")] == [b"x"]


def test_a_missing_report_is_a_timeout_and_a_late_one_is_ignored(kafka: InMemoryKafka) -> None:
    gate = threading.Event()

    async def main() -> None:
        async with AsyncProducer("memory:1", clients=gated(kafka, "poll", gate)) as producer:
            with pytest.raises(SendTimeoutError, match=r"no delivery report for 'orders' within 0.02 s from memory:1"):
                await producer.send("orders", b"x", timeout_s=0.02)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.send("orders", b"y"), 0.02)
            gate.set()
            assert await producer.flush() == 0
            await producer.send("orders", b"z")

    asyncio.run(main())
    assert {record.value() for record in kafka.records("orders")} == {b"x", b"y", b"z"}


def test_the_error_of_a_send_whose_task_was_cancelled_is_not_logged_as_never_retrieved(kafka: InMemoryKafka) -> None:
    logged: list[str] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, facts: logged.append(facts["message"]))
        async with producer_on(kafka) as producer:
            await producer.send("orders", b"x")  # later sends run in this task, not in a thread
            sending = asyncio.ensure_future(producer.send("missing", b"x"))
            await asyncio.sleep(0)
            sending.cancel()
            with suppress(asyncio.CancelledError, TopicMissingError):
                await sending
        gc.collect()

    asyncio.run(main())
    assert logged == []


@pytest.mark.parametrize("is_async", [True, False])
def test_async_with_runs_a_consumer_as_long_as_its_block(kafka: InMemoryKafka, is_async: bool) -> None:
    async def main() -> None:
        loop, seen = asyncio.get_running_loop(), asyncio.Queue[bytes | None]()
        consumer = PushConsumer(
            "memory:1",
            group="payments",
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
            clients=kafka.clients(),
        )

        async def await_handle(message: MessageView) -> None:
            assert asyncio.get_running_loop() is loop
            seen.put_nowait(message.body)

        def handle(message: MessageView) -> None:
            loop.call_soon_threadsafe(seen.put_nowait, message.body)

        consumer.register_message_listener("orders", await_handle if is_async else handle)
        async with consumer as started, producer_on(kafka) as producer:
            assert started is consumer
            await producer.send("orders", b"o-7")
            assert await asyncio.wait_for(seen.get(), 30) == b"o-7"

    asyncio.run(main())
    committed = kafka.committed("payments")
    assert sum(position for (topic, _), position in committed.items() if topic == "orders") == 1


def test_async_with_raises_what_start_raises_and_leaves_nothing(kafka: InMemoryKafka) -> None:
    async def main() -> None:
        consumer = PushConsumer("memory:1", group="payments", clients=kafka.clients())
        with pytest.raises(ConfigError, match="nothing to consume"):
            async with consumer:
                pass

    asyncio.run(main())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("rocketshim-poll")]
