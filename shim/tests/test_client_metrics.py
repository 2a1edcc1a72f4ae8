"""The metrics of producers, pull consumers and the drop-in classes, as a registry exports them."""

from typing import Any

import pytest
from confluent_kafka import KafkaError
from confluent_kafka import Message as KafkaMessage
from prometheus_client import CollectorRegistry

from rocketshim import LitePullConsumer, Message, MetricsCollector, Producer, PullConsumer
from rocketshim.client_metrics import Measured, ProducerCounts, PullCounts
from rocketshim.clock import SystemClock
from rocketshim.core.start_position import ConsumeFromWhere
from rocketshim.dropin.producer import delayed_messages
from rocketshim.dropin.retry_side import DropinSendBack
from rocketshim.dropin.settings import ConsumerDropinSettings
from rocketshim.errors import ConsumerError, SendError, SendTimeoutError
from rocketshim.kafka.clients import Clients
from rocketshim.metrics import Metric
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics import DelayLevels, Layout, TopicNames
from rocketshim_topics.message_queue import MessageQueue

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
Q0 = MessageQueue("orders", queue_id=0)


def value(client: Measured, name: str, **labels: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(MetricsCollector(client))
    return registry.get_sample_value(f"rocketshim_{name}", labels)


@pytest.fixture
def kafka() -> InMemoryKafka:
    cluster = InMemoryKafka(SystemClock())
    cluster.create_topic("orders", 4)
    cluster.create_topic(SCHEDULE, 64, config={"message.timestamp.type": "LogAppendTime"})
    return cluster


def producer_of(kafka: InMemoryKafka, **values: Any) -> Producer:
    return Producer("memory:1", clients=Clients(kafka.consumer, kafka.producer), **values)


def pull_clients(kafka: InMemoryKafka, clock: VirtualClock) -> Clients:
    return kafka.clients(on_wait=lambda seconds: clock.advance(max(1, seconds * 1_000)))


# --- producer ----------------------------------------------------------------------------------------------------


def test_every_series_of_a_producer_exists_before_the_first_send(kafka: InMemoryKafka) -> None:
    with producer_of(kafka) as producer:
        for kind in ("immediate", "delayed", "command"):
            for result in ("stored", "failed"):
                assert value(producer, "producer_messages_total", kind=kind, result=result) == 0
        for name in ("refused_total", "unconfirmed_total", "waiting_messages", "send_duration_seconds_count"):
            assert value(producer, f"producer_{name}") == 0


def test_a_producer_counts_stored_messages_by_kind_and_their_durations(kafka: InMemoryKafka) -> None:
    with producer_of(kafka) as producer:
        producer.send(Message("orders", b"1"))
        producer.send(Message("orders", b"2", delay="1s"))
        producer.send_oneway("orders", b"3")
        assert producer.flush() == 0
        assert value(producer, "producer_messages_total", kind="immediate", result="stored") == 2
        assert value(producer, "producer_messages_total", kind="delayed", result="stored") == 1
        assert value(producer, "producer_send_duration_seconds_count") == 3
        assert value(producer, "producer_waiting_messages") == 0


def test_a_producer_counts_a_named_message_as_delayed_and_its_cancel_as_a_command(kafka: InMemoryKafka) -> None:
    kafka.create_topics(Layout(TopicNames(), DelayLevels.default()).timers())
    with producer_of(kafka) as producer:
        producer.send("orders", b"o-7", delay="30m", timer="o-7")
        producer.cancel("orders", timer="o-7")
        for kind, count in (("immediate", 0), ("delayed", 1), ("command", 1)):
            assert value(producer, "producer_messages_total", kind=kind, result="stored") == count


def test_a_producer_counts_failed_reports(kafka: InMemoryKafka) -> None:
    with producer_of(kafka) as producer:
        kafka.fail_produce(KafkaError(KafkaError.KAFKA_STORAGE_ERROR))
        with pytest.raises(SendError):
            producer.send(Message("orders", b"1"))
        assert value(producer, "producer_messages_total", kind="immediate", result="failed") == 1
        assert value(producer, "producer_messages_total", kind="immediate", result="stored") == 0


def test_the_metrics_of_a_producer_in_a_namespace_have_its_label(kafka: InMemoryKafka) -> None:
    with producer_of(kafka, namespace="shop") as producer:
        assert value(producer, "producer_refused_total", namespace="shop") == 0


def test_clients_with_the_same_labels_share_series() -> None:
    class Client:
        def __init__(self, sent: int, age_s: float) -> None:
            self.sent, self.age_s = sent, age_s

        def metrics(self) -> list[Metric]:
            return [
                Metric("sent_total", "counter", "sent", (("", {"a": "b"}, self.sent),)),
                Metric("age_seconds", "gauge", "age", (("", {}, self.age_s),)),
            ]

    registry = CollectorRegistry()
    registry.register(MetricsCollector(Client(2, 7.0), Client(3, 5.0)))
    assert registry.get_sample_value("sent_total", {"a": "b"}) == 5
    assert registry.get_sample_value("age_seconds") == 7.0


# --- pull consumers ----------------------------------------------------------------------------------------------


def test_a_lite_pull_consumer_counts_polls_messages_queues_and_failed_commits() -> None:
    clock = VirtualClock()
    kafka = InMemoryKafka(clock)
    kafka.create_topic("orders", 2)
    for number in range(3):
        kafka.append("orders", str(number).encode(), partition=0)
    with LitePullConsumer(
        "memory:1",
        group="g",
        clients=pull_clients(kafka, clock),
        clock=clock,
        consume_from_where=ConsumeFromWhere.FIRST_OFFSET,
    ) as consumer:
        assert value(consumer, "pull_messages_total", group="g") == 0
        assert value(consumer, "pull_last_poll_seconds", group="g") is None
        consumer.subscribe("orders")
        found = 0
        while found < 3:
            found += len(consumer.poll(1_000))
        assert consumer.poll(0) == []
        assert value(consumer, "pull_messages_total", group="g") == 3
        assert value(consumer, "pull_polls_total", group="g", result="messages") == 1
        assert (value(consumer, "pull_polls_total", group="g", result="empty") or 0) >= 1
        assert value(consumer, "pull_assigned_queues", group="g") == 2
        clock.advance(5_000)
        assert value(consumer, "pull_last_poll_seconds", group="g") == 5.0
        kafka.fail_commits(KafkaError(KafkaError.UNKNOWN_MEMBER_ID))
        with pytest.raises(ConsumerError):
            consumer.commit_sync()
        assert value(consumer, "pull_commits_failed_total", group="g") == 1


def test_a_pull_consumer_counts_pulls_and_messages() -> None:
    clock = VirtualClock()
    kafka = InMemoryKafka(clock)
    kafka.create_topic("orders", 1)
    kafka.append("orders", b"x", partition=0)
    with PullConsumer("memory:1", group="g", clients=pull_clients(kafka, clock), clock=clock) as consumer:
        consumer.pull(Q0, None, 0)
        consumer.pull(Q0, None, 1)
        assert value(consumer, "pull_messages_total", group="g") == 1
        assert value(consumer, "pull_polls_total", group="g", result="messages") == 1
        assert value(consumer, "pull_polls_total", group="g", result="empty") == 1
        assert value(consumer, "pull_assigned_queues", group="g") is None


# --- drop-in -----------------------------------------------------------------------------------------------------


def test_a_drop_in_consumer_counts_what_it_sends_back_and_what_is_not_stored(kafka: InMemoryKafka) -> None:
    kafka.create_topic("rmq.dlq.g")
    client = DropinSendBack(lambda: kafka.producer({"enable.idempotence": True}), ConsumerDropinSettings(), "g")
    for hop in ("retried", "dead", "dead_by_reference", "parked", "not_stored"):
        assert value(client, "dropin_sent_back_total", group="g", hop=hop) == 0
    message = KafkaMessage(topic="orders", partition=0, offset=7, value=b"x", timestamp=(1, 5))
    client.reconsume_later(message, ValueError("bad"), level=None, delay_ms=None)
    client.dead_letter(message, ValueError("worse"))
    kafka.fail_produce(KafkaError(KafkaError._MSG_TIMED_OUT))
    with pytest.raises((SendError, SendTimeoutError)):
        client.dead_letter(message, "no reason")
    client.close()
    assert value(client, "dropin_sent_back_total", group="g", hop="retried") == 1
    assert value(client, "dropin_sent_back_total", group="g", hop="dead") == 1
    assert value(client, "dropin_sent_back_total", group="g", hop="not_stored") == 1
    assert value(client, "dropin_retries_total", group="g", attempt="1") == 1
    assert value(client, "dropin_dead_letters_total", group="g", cause="ValueError") == 1


def test_every_series_of_the_other_clients_exists_before_the_first_event() -> None:
    given = [*ProducerCounts().metrics(0, ""), *PullCounts().metrics("g", 0, 0)]
    sent_back = DropinSendBack(InMemoryKafka().producer, ConsumerDropinSettings(), "g")  # type: ignore[arg-type]  # is not called
    given += [*sent_back.metrics(), delayed_messages({}, "")]
    assert [metric.name for metric in given if not metric.samples] == []
    assert all(value == 0 for metric in given for _, _, value in metric.samples)
