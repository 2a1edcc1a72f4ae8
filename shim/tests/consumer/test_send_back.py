"""The next hop of a failed message: whatever policy, listener and producer do, it is stored or still pending."""

import logging
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, Message

from rocketshim.consumer.push.assembly import producer_config
from rocketshim.consumer.send_back import SendBack
from rocketshim.core.next_hop import FailedMessage
from rocketshim.core.process_queue import Chunk, ProcessQueue
from rocketshim.core.retry_policy import DEFAULT_MAX_RECONSUME_TIMES, AfterDelay, AtLevel, LevelTableRetryPolicy
from rocketshim.dropin.settings import ConsumerDropinSettings, inner_producer_config
from rocketshim.settings.consumer import PushConsumerSettings
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics import DelayLevels, Failure
from rocketshim_topics.coordinates import TopicPartitionKey

LEVELS = DelayLevels.parse("1s 2s 3s 4s 5s")


class Fixed:
    """A policy with one answer, which it does not have yet when the consumer is made and asks."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.asked_count = 0

    def next_hop(self, reconsume_times: int, unit: float) -> Any:
        del reconsume_times, unit
        self.asked_count += 1
        if self.asked_count <= DEFAULT_MAX_RECONSUME_TIMES:
            return AtLevel(1)
        if isinstance(self.answer, BaseException):
            raise self.answer
        return self.answer


class Mute(BaseException):
    def __str__(self) -> str:
        raise OSError("no text")

    __repr__ = __str__


def failed(kafka: InMemoryKafka, policy: Any = None, **asked: Any) -> tuple[Any, SendBack, ProcessQueue]:
    """Send one message back; its schedule record, or None."""
    send_back = SendBack(
        lambda: kafka.producer({"enable.idempotence": True}),
        PushConsumerSettings.make(
            bootstrap="memory:1", group="g", delay_levels=LEVELS, retry_policy=policy or LevelTableRetryPolicy()
        ),
        1,
        kafka.clock,
    )
    send_back.on_stored = lambda chunk, messages: chunk.queue.stored(chunk, messages)
    send_back.open()
    queue: ProcessQueue = ProcessQueue(TopicPartitionKey("orders", 0))
    queue.put([Message("orders", 0, 4, value=b"body", timestamp=(1, 1_000))])
    chunk: Chunk | None = queue.take(1)
    assert chunk is not None
    chunk.take_back()
    (message,) = queue.report(chunk, chunk.messages)
    send_back.send(chunk, FailedMessage(message, Failure("OSError", asked.pop("text", "no"), 5), **asked))
    send_back.take_reports(0)
    records = kafka.records("SCHEDULE_TOPIC_XXXX")
    return (records[0] if records else None), send_back, queue


@pytest.mark.parametrize(
    "answer",
    [
        OSError("a policy that raises"), SystemExit(1), Mute(), "nonsense", None, AtLevel(0), AtLevel(cast("int", "3")),
        AtLevel(cast("int", 2.5)), AfterDelay(-1), AfterDelay(cast("int", 1.5)), AfterDelay(10**30),
        AfterDelay(cast("int", None)),
    ],
    ids=lambda answer: type(answer).__name__,
)  # fmt: skip
def test_a_policy_with_an_invalid_result_is_not_called_twice(kafka: InMemoryKafka, answer: Any) -> None:
    record, send_back, queue = failed(kafka, Fixed(answer))
    assert record.partition() == LEVELS.partition(3, 0)
    assert send_back.counts.retried == 1
    assert queue.next_offset == 5


@pytest.mark.parametrize(("answer", "partition"), [(AtLevel(99), 4), (AtLevel(1), 0), (AfterDelay(2_000), 1)])
def test_a_policy_decides(kafka: InMemoryKafka, answer: Any, partition: int) -> None:
    assert failed(kafka, Fixed(answer))[0].partition() == partition


@pytest.mark.parametrize("text", ["\ud800", "a\x00b", "é" * 3_000, ""])
def test_any_text_of_a_failure_can_be_stored(kafka: InMemoryKafka, text: str) -> None:
    record, _, _ = failed(kafka, text=text)
    (stored,) = [value for name, value in record.headers() if name == "FAIL_TEXT"]
    assert len(stored) <= 1_024


@pytest.mark.parametrize(("level", "delay_ms"), [(10**30, None), (0, 10**30)])
def test_a_request_far_out_of_range_is_not_lost(kafka: InMemoryKafka, level: int, delay_ms: int | None) -> None:
    _, send_back, queue = failed(kafka, asked_level=level, asked_delay_ms=delay_ms)
    assert send_back.counts.retried == 1
    assert queue.next_offset == 5


@pytest.mark.parametrize(
    "config",
    [
        producer_config(PushConsumerSettings.make(bootstrap="memory", group="g")),
        inner_producer_config({"bootstrap.servers": "memory"}, ConsumerDropinSettings.make()),
    ],
    ids=["push consumer", "drop-in"],
)
def test_partitions_that_a_dead_letter_topic_was_given_are_used_within_five_seconds(config: dict[str, Any]) -> None:
    clock = VirtualClock()
    kafka = InMemoryKafka(clock)
    kafka.create_topic("rmq.dlq.g", 1)
    producer = kafka.producer(config)
    producer.produce("rmq.dlq.g", b"before", b"0")
    kafka.add_partitions("rmq.dlq.g", 4)
    clock.advance(5_000)
    for number in range(20):
        producer.produce("rmq.dlq.g", b"after", b"%d" % number)
    assert {record.partition() for record in kafka.records("rmq.dlq.g")} == {0, 1, 2, 3}
    assert producer.flush(0) == 0


@pytest.mark.parametrize("asked", [{"asked_level": -1}, {"malformed": "no-real-topic"}], ids=["dead", "parked"])
@pytest.mark.parametrize("ahead_ms", [7_200_000, 86_400_000])
def test_a_consumer_whose_clock_is_ahead_stores_dead_letters_at_the_brokers_time(
    kafka: InMemoryKafka, caplog: pytest.LogCaptureFixture, asked: dict[str, Any], ahead_ms: int
) -> None:
    kafka.set_leader_clock(-ahead_ms)
    _, send_back, queue = failed(kafka, **asked)
    assert queue.next_offset != 5, "the broker has refused the consumer's time"
    for now_ms in (5_000, 10_000):
        send_back.turn(now_ms)
        send_back.take_reports(0)
    assert queue.next_offset == 5
    (stored,) = kafka.records("rmq.dlq.g") or kafka.records("rmq.parked")
    assert kafka.clock.wall_ms() - ahead_ms - 1_000 <= stored.timestamp()[1] <= kafka.clock.wall_ms() - ahead_ms
    assert send_back.clock_ahead_ms == ahead_ms
    assert events(caplog).count(("WARNING", "consumer.clock-differs")) == 1
    assert [record.value() for record in kafka.records("SCHEDULE_TOPIC_XXXX")] == [None], "the probe"


def test_an_outage_does_not_fill_the_log_with_hops_that_are_not_stored(
    kafka: InMemoryKafka, caplog: pytest.LogCaptureFixture
) -> None:
    kafka.fail_produce(KafkaError(KafkaError.NOT_ENOUGH_REPLICAS), count=41)
    _, send_back, queue = failed(kafka)
    queue.put([Message("orders", 0, offset, value=b"body", timestamp=(1, 1_000)) for offset in range(5, 45)])
    chunk: Chunk | None = queue.take(40)
    assert chunk is not None
    chunk.take_back()
    for message in queue.report(chunk, chunk.messages):
        send_back.send(chunk, FailedMessage(message, Failure("OSError", "no", 5)))
    send_back.take_reports(0)
    logged = [vars(record) for record in caplog.records if vars(record).get("event") == "consumer.hop-not-stored"]
    assert (send_back.counts.not_stored, [each["count"] for each in logged]) == (41, [*range(1, 21)])


def test_a_retry_shows_the_brokers_time_so_that_later_dead_letters_are_not_refused(kafka: InMemoryKafka) -> None:
    kafka.set_leader_clock(-86_400_000)
    _, send_back, queue = failed(kafka)
    queue.put([Message("orders", 0, 5, value=b"body", timestamp=(1, 1_000))])
    chunk: Chunk | None = queue.take(1)
    assert chunk is not None
    chunk.take_back()
    (message,) = queue.report(chunk, chunk.messages)
    send_back.send(chunk, FailedMessage(message, Failure("OSError", "no", 5), asked_level=-1))
    send_back.take_reports(0)
    assert (send_back.counts.dead, send_back.counts.not_stored, queue.next_offset) == (1, 0, 6)


def events(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, getattr(record, "event", "")) for record in caplog.records]


def test_a_failed_message_is_logged_with_its_attempt_and_what_follows(
    kafka: InMemoryKafka, caplog: pytest.LogCaptureFixture
) -> None:
    failed(kafka)
    assert events(caplog) == [("WARNING", "consumer.listener-failed")]
    assert "attempt 1 of 17 of message orders/0/4 in group g failed: OSError: no; next attempt in 3 s (" in (
        caplog.text
    )


def test_a_dead_and_a_parked_message_are_logged_as_such(kafka: InMemoryKafka, caplog: pytest.LogCaptureFixture) -> None:
    failed(kafka, asked_level=-1)
    assert events(caplog) == [("ERROR", "consumer.message-dead")]
    caplog.clear()
    failed(kafka, malformed="no-real-topic")
    assert events(caplog) == [("WARNING", "consumer.message-parked")]


def test_a_log_handler_that_raises_keeps_no_hop_from_being_stored(kafka: InMemoryKafka) -> None:

    class Raises(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError(record)

    logger, handler = logging.getLogger("rocketshim.consumer"), Raises()
    logger.addHandler(handler)
    try:
        message, _, queue = failed(kafka)
    finally:
        logger.removeHandler(handler)
    assert message is not None
    assert queue.next_offset == 5
