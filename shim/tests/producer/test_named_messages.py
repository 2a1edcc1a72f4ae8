"""Named messages of a producer on the in-memory Kafka: each is a command in the log of timers, and so is a cancel."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from rocketshim import Message, MessageQueue, Producer, SendStatus
from rocketshim.aio import AsyncProducer
from rocketshim.clock import SystemClock
from rocketshim.codecs import JsonCodec
from rocketshim.errors import MessageError, SendTimeoutError, TopicMissingError
from rocketshim.testing import InMemoryKafka
from rocketshim_topics import DelayLevels, Layout, TopicNames
from rocketshim_topics.partitioner import TIMER_PARTITIONS, timer_partition

TIMERS = "rmq.timers"


@pytest.fixture
def kafka() -> InMemoryKafka:
    cluster = InMemoryKafka(SystemClock())
    cluster.create_topic("orders", 4)
    cluster.create_topics(Layout(TopicNames(), DelayLevels.default()).timers())
    return cluster


@pytest.fixture
def producer(kafka: InMemoryKafka) -> Iterator[Producer]:
    with Producer("memory:1", clients=kafka.clients()) as made:
        yield made


def commands(kafka: InMemoryKafka) -> list[Any]:
    return [record for number in range(TIMER_PARTITIONS) for record in kafka.records(TIMERS, number)]


def headers(record: Any) -> dict[str, bytes | None]:
    return dict(record.headers() or [])


def test_a_named_message_is_a_command_in_the_partition_of_its_name(kafka: InMemoryKafka, producer: Producer) -> None:
    result = producer.send("orders", b"o-7", key="k", delay="30m", timer="o-7")
    (record,) = commands(kafka)
    found = headers(record)
    assert (found["REAL_TOPIC"], found["TIMER"], found["TIMER_DO"]) == (b"orders", b"o-7", b"SET")
    assert (record.key(), record.value(), found["DELAY_MS"]) == (b"k", b"o-7", b"1800000")
    assert record.partition() == timer_partition("orders", "o-7")
    assert result.status is SendStatus.SEND_OK
    assert result.message_queue == MessageQueue(TIMERS, queue_id=record.partition())
    assert result.offset_msg_id == f"{TIMERS}/{record.partition()}/{record.offset()}"
    assert found["UNIQ_KEY"] == result.msg_id.encode()


def test_its_options_travel_in_the_command(kafka: InMemoryKafka, producer: Producer) -> None:
    producer.send("orders", b"1", delay="30m", timer="a", if_absent=True)
    producer.send("orders", b"1", delay="5s", timer="b", at_most="2m")
    found = {headers(each)["TIMER"]: headers(each) for each in commands(kafka)}
    assert found[b"a"]["TIMER_DO"] == b"SET-IF-ABSENT"
    assert (found[b"b"]["TIMER_DO"], found[b"b"]["TIMER_AT_MOST_MS"]) == (b"SET", b"120000")


def test_every_way_to_send_takes_a_name(kafka: InMemoryKafka, producer: Producer) -> None:
    in_an_hour_ms = SystemClock().wall_ms() + 3_600_000
    producer.send(Message("orders", b"send", delay="1m", timer="t"))
    producer.send_async("orders", b"send_async", delay="1m", timer="t").result(60)
    producer.send_oneway("orders", b"send_oneway", delay_level=3, timer="t")
    producer.send_batch([Message("orders", b"send_batch", deliver_at=in_an_hour_ms, timer="t")])
    producer.send("orders", "codec", codec=JsonCodec(), delay="1m", timer="t")
    producer.send_orderly(Message("orders", b"send_orderly", delay="1m", timer="t"), "o-7")
    producer.flush()
    sent = commands(kafka)
    assert [each.value() for each in sent] == [
        b"send", b"send_async", b"send_oneway", b"send_batch", b'"codec"', b"send_orderly",
    ]  # fmt: skip
    assert len({each.partition() for each in sent}) == 1, "commands for a name have one order"
    assert headers(sent[-1])["REAL_QID"] is not None, "the target's partition may be chosen, too"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"timer": "o-7"}, "timer is given without a delay"),
        ({"timer": "o-7", "delay": 0}, "the delay is 0: a named message has to wait"),
        ({"timer": "", "delay": "1m"}, "timer is '': give a name"),
        ({"timer": "x" * 256, "delay": "1m"}, "256 bytes are more than 255"),
        ({"timer": "a\nb", "delay": "1m"}, "control characters"),
        ({"timer": 7, "delay": "1m"}, "timer is 7: give a name"),
        ({"if_absent": True, "delay": "1m"}, "if_absent is given without a timer"),
        ({"timer": "a", "delay": "1m", "if_absent": 1}, "if_absent is 1: give True or False"),
        ({"timer": "a", "delay": "1m", "at_most": "soon"}, "at_most: 'soon' is not a duration"),
        ({"timers": "o-7", "delay": "1m"}, "a message has no option timers: did you mean timer?"),
    ],
)
def test_bad_options_are_named_and_nothing_is_sent(
    kafka: InMemoryKafka, producer: Producer, options: dict[str, Any], text: str
) -> None:
    for send in (producer.send, producer.send_async, producer.send_oneway):
        with pytest.raises(MessageError, match=text):
            send("orders", b"x", **options)
    producer.flush()
    assert commands(kafka) == kafka.records("orders") == []


def test_a_cancel_is_a_command_behind_the_message_in_the_same_partition(
    kafka: InMemoryKafka, producer: Producer
) -> None:
    producer.send("orders", b"o-7", delay="30m", timer="o-7")
    result = producer.cancel("orders", timer="o-7")
    _, record = kafka.records(TIMERS, timer_partition("orders", "o-7"))
    found = headers(record)
    assert (found["REAL_TOPIC"], found["TIMER"], found["TIMER_DO"]) == (b"orders", b"o-7", b"CANCEL")
    assert record.value() is None
    assert found["UNIQ_KEY"] == result.msg_id.encode()
    assert result.offset_msg_id == f"{TIMERS}/{record.partition()}/{record.offset()}"
    assert result.message_queue == MessageQueue(TIMERS, queue_id=record.partition())


def test_a_message_can_be_asked_for_now(kafka: InMemoryKafka, producer: Producer) -> None:
    async def main() -> None:
        async with AsyncProducer("memory:1", clients=kafka.clients()) as other:
            await other.send_now("orders", timer="o-7")

    producer.send("orders", b"o-7", delay="30m", timer="o-7")
    result = producer.send_now("orders", timer="o-7")
    asyncio.run(main())
    _, first, second = kafka.records(TIMERS, timer_partition("orders", "o-7"))
    assert headers(first)["TIMER_DO"] == headers(second)["TIMER_DO"] == b"NOW"
    assert (first.value(), result.queue_offset) == (None, 1)


@pytest.mark.parametrize(
    ("topic", "timer", "text"),
    [
        ("orders", None, "timer is None: give a name"),
        ("orders", " ", "timer is ' ': give a name"),
        ("orders", "x" * 256, "more than 255"),
        ("no topic", "a", "'no topic' is not a topic name"),
        (None, "a", "topic is of type NoneType"),
        ("%RETRY%g", "a", "it takes no delayed messages from senders"),
        (TIMERS, "a", "it takes no delayed messages from senders"),
    ],
)
def test_a_cancel_that_names_no_message_is_refused(
    kafka: InMemoryKafka, producer: Producer, topic: Any, timer: Any, text: str
) -> None:
    with pytest.raises(MessageError, match=text):
        producer.cancel(topic, timer=timer)
    producer.flush()
    assert commands(kafka) == []


def test_a_cancel_without_a_report_has_an_unknown_outcome(kafka: InMemoryKafka, producer: Producer) -> None:
    with pytest.raises(MessageError, match="timeout_s is -1"):
        producer.cancel("orders", timer="o-7", timeout_s=-1)
    kafka.hold_reports()
    with pytest.raises(SendTimeoutError, match=r"report for the CANCEL for 'o-7' .* may or may not be stored"):
        producer.cancel("orders", timer="o-7", timeout_s=0.05)
    kafka.release()


def test_without_the_log_of_timers_nothing_is_sent_and_the_error_says_how_to_create_it() -> None:
    kafka = InMemoryKafka(SystemClock())
    kafka.create_topic("orders")
    with Producer("memory:1", clients=kafka.clients(), namespace="shop") as producer:
        for send in (
            lambda: producer.send("orders", b"x", delay="1m", timer="o-7"),
            lambda: producer.cancel("orders", timer="o-7"),
        ):
            with pytest.raises(TopicMissingError, match=r"'shop.rmq.timers' does not exist; .* init --namespace shop"):
                send()
    assert kafka.topics() == ["orders"]


def test_named_messages_do_without_the_delay_queues_and_others_without_the_log(kafka: InMemoryKafka) -> None:
    with Producer("memory:1", clients=kafka.clients()) as producer:
        producer.send("orders", b"x", delay="1m", timer="o-7")
        with pytest.raises(TopicMissingError, match="'SCHEDULE_TOPIC_XXXX' does not exist"):
            producer.send("orders", b"x", delay="1m")


def test_an_async_producer_awaits_named_messages_and_their_cancels(kafka: InMemoryKafka) -> None:
    async def main() -> None:
        async with AsyncProducer("memory:1", clients=kafka.clients()) as producer:
            sent = await producer.send("orders", b"o-7", delay="30m", timer="o-7")
            cancelled = await producer.cancel("orders", timer="o-7")
            assert sent.message_queue == cancelled.message_queue
            assert cancelled.queue_offset == sent.queue_offset + 1
            with pytest.raises(MessageError, match="timer is None"):
                await producer.cancel("orders", timer=None)  # type: ignore[arg-type]
            kafka.hold_reports()
            with pytest.raises(SendTimeoutError, match="the CANCEL for 'o-7'"):
                await producer.cancel("orders", timer="o-7", timeout_s=0.05)
            kafka.release()

    asyncio.run(main())
    assert [headers(each)["TIMER_DO"] for each in commands(kafka)][:2] == [b"SET", b"CANCEL"]


def test_hooks_see_named_messages_and_no_commands(kafka: InMemoryKafka, producer: Producer) -> None:
    seen: list[str | None] = []

    class Hook:
        def send_message_before(self, context: Any) -> None:
            seen.append(context.message.timer)

        def send_message_after(self, context: Any) -> None:
            seen.append(context.result.message_queue.topic)

    producer.register_send_message_hook(Hook())
    producer.send("orders", b"o-7", delay="30m", timer="o-7")
    producer.cancel("orders", timer="o-7")
    assert seen == ["o-7", TIMERS]
    assert len(commands(kafka)) == 2
