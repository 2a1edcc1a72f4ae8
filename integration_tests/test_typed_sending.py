"""Awaited sends, typed bodies and final exceptions on a real broker: what lies on the topics afterwards."""

import asyncio
import os
import uuid
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from rocketshim import ConsumeFromWhere, MessageView, PushConsumer, TopicNames
from rocketshim.aio import AsyncProducer
from rocketshim.codecs import JsonCodec
from rocketshim.errors import MessageError
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, provision
from rocketshim_topics.layout import Layout
from rocketshim_topics.wire import decode

NAMESPACE = f"typed{os.getpid()}"
NAMES = TopicNames(NAMESPACE)


@pytest.fixture
def topic(broker: Broker) -> Iterator[str]:
    """A topic of this test, and the group's topics of its namespace; all are deleted afterwards."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    name = f"{NAMESPACE}-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, 1)])[name].result(30)
    provision.ensure_topics(admin, Layout(NAMES, DelayLevels.default()).shared(), create=True)
    yield name
    found = [each for each in admin.list_topics(timeout=30).topics if each == name or each.startswith(f"{NAMESPACE}.")]
    for future in admin.delete_topics(found).values():
        future.result(30)


def stored(broker: Broker, topic: str, count: int) -> list[KafkaMessage]:
    """The first records of a topic with one partition."""
    client = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.auto.commit": False})
    client.assign([TopicPartition(topic, 0, 0)])
    try:
        records: list[KafkaMessage] = []
        while len(records) < count:
            record = client.poll(30)
            assert record is not None, f"{len(records)} of {count} records in {topic}"
            assert record.error() is None
            records.append(record)
        return records
    finally:
        client.close()


def test_what_async_programs_send_and_fail_on_lies_on_the_topics(broker: Broker, topic: str) -> None:
    seen: list[object] = []

    async def main() -> None:
        consumer = PushConsumer(
            broker.bootstrap, group="payments", namespace=NAMESPACE, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
        )
        done = asyncio.Event()

        @consumer.listener(topic, codec=JsonCodec(), dead_on=ValueError)
        async def handle(message: MessageView[int]) -> None:
            seen.append(message.value)
            if message.value == 3:
                done.set()
            if message.value == 2:
                raise ValueError("two")

        async with AsyncProducer(broker.bootstrap, namespace=NAMESPACE, codec=JsonCodec()) as producer:
            with pytest.raises(MessageError):
                await producer.send(topic, {1, 2}, timeout_s=60)
            await producer.send(topic, 1, key="k", timeout_s=60)
            await producer.send(topic, 2, timeout_s=60)
            delayed = await producer.send(topic, 9, delay="1h", timeout_s=60)
            assert delayed.message_queue.topic == NAMES.schedule
            await producer.send(topic, 3, timeout_s=60)
            async with consumer:
                await asyncio.wait_for(done.wait(), 60)

    asyncio.run(main())
    assert [record.value() for record in stored(broker, topic, 3)] == [b"1", b"2", b"3"]
    assert sorted(map(str, seen)) == ["1", "2", "3"]
    (dead,) = stored(broker, NAMES.dead_letter("payments"), 1)
    envelope = decode(dead.headers(), trusted=True)
    assert (dead.value(), envelope.fail_class, envelope.fail_text, envelope.reconsume_times) == (
        b"2",
        "ValueError",
        "two",
        1,
    )
    stack = envelope.fail_stack or ""
    assert stack.endswith("ValueError\n")
    assert ", in handle\n" in stack


def test_an_empty_body_stays_empty_and_a_body_that_cannot_be_decoded_is_dead(broker: Broker, topic: str) -> None:
    bodies: list[bytes | None] = []

    async def main() -> None:
        consumer = PushConsumer(
            broker.bootstrap, group="bytes", namespace=NAMESPACE, consume_from_where=ConsumeFromWhere.FIRST_OFFSET
        )
        done = asyncio.Event()

        @consumer.listener(topic)
        async def handle(message: MessageView) -> None:
            bodies.append(message.body)
            if len(bodies) == 2:
                done.set()

        typed = PushConsumer(
            broker.bootstrap,
            group="typed",
            namespace=NAMESPACE,
            consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
        )
        values: list[object] = []
        decoded = asyncio.Event()

        @typed.listener(topic, codec=JsonCodec())
        async def handle_typed(message: MessageView[int]) -> None:
            values.append(message.value)
            decoded.set()

        async with AsyncProducer(broker.bootstrap, namespace=NAMESPACE) as producer:
            await producer.send(topic, b"", timeout_s=60)
            await producer.send(topic, b"7", timeout_s=60)
            async with consumer, typed:
                await asyncio.wait_for(done.wait(), 60)
                await asyncio.wait_for(decoded.wait(), 60)
        assert values == [7]

    asyncio.run(main())
    assert sorted(bodies, key=str) == [b"", b"7"]
    (dead,) = stored(broker, NAMES.dead_letter("typed"), 1)
    assert (dead.value(), decode(dead.headers(), trusted=True).fail_class) == (b"", "UndecodableBody")
