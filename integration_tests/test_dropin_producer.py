"""The drop-in producer on a real broker: delays, transactions, and what it leaves to the original."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message
from confluent_kafka.admin import AdminClient

from rocketshim import DelayLevels, DelayWorker, TopicNames
from rocketshim.dropin import FeatureNotEnabledError, Producer
from rocketshim.errors import TopicMissingError
from rocketshim_local import Broker
from rocketshim_topics import decode, provision
from rocketshim_topics.layout import Layout

from .running import patient_worker, running

LEVELS = "1s 2s"
GUARD_S = 150.0


class Reported:
    """Delivery reports in their order."""

    def __init__(self) -> None:
        self.of: list[Message] = []

    def __call__(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        self.of.append(message)


@pytest.fixture
def config(broker: Broker, admin: AdminClient, namespace: str) -> dict[str, Any]:
    """A producer's configuration; the topics of its namespace are there."""
    provision.ensure_topics(admin, Layout(TopicNames(namespace), DelayLevels.parse(LEVELS)).shared())
    return {
        "bootstrap.servers": broker.bootstrap,
        "linger.ms": 0,
        "rocketshim.namespace": namespace,
        "rocketshim.delay.levels": LEVELS,
    }


@pytest.fixture
def worker(broker: Broker, namespace: str, config: dict[str, Any]) -> Iterator[DelayWorker]:
    del config
    with running(patient_worker(broker.bootstrap, namespace, LEVELS)) as worker:
        yield worker


def read(broker: Broker, topic: str, count: int) -> list[Message]:
    """The first messages of a topic."""
    found: list[Message] = []
    deadline = time.monotonic() + GUARD_S
    with Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": f"of {topic}", "auto.offset.reset": "earliest"}
    ) as consumer:
        consumer.subscribe([topic])
        while len(found) < count:
            assert time.monotonic() < deadline
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                found.append(message)
    return found


def test_a_delayed_message_comes_when_its_time_is_over_and_looks_like_any_other(
    broker: Broker, worker: DelayWorker, config: dict[str, Any], topic: Callable[..., str]
) -> None:
    del worker
    name, reported = topic(partitions=3), Reported()
    producer = Producer(config)
    producer.produce(name, "level", key="k", delay_level=1, tag="a", keys=["o-7"], headers={"mine": b"\xff"})
    producer.produce(name, b"", partition=2, delay="200ms", on_delivery=reported)
    producer.produce(name, None, key=b"gone", deliver_at=1)
    producer.produce(name, b"now", tag="b")
    assert producer.flush(GUARD_S) == 0
    assert [each.topic() for each in reported.of] == [TopicNames(config["rocketshim.namespace"]).schedule]
    found = {each.value(): each for each in read(broker, name, 4)}
    assert found.keys() == {b"level", b"", None, b"now"}
    level = decode(found[b"level"].headers(), trusted=False)
    assert (level.tags, level.keys, level.user) == ("a", "o-7", (("mine", b"\xff"),))
    assert found[b"level"].key() == b"k"
    assert found[b"level"].timestamp()[1] >= (level.born_timestamp_ms or 0) + 1_000
    assert (found[b""].partition(), found[None].key()) == (2, b"gone")
    assert decode(found[b"now"].headers(), trusted=False).tags == "b"


@pytest.mark.parametrize("exactly_once", [False, True], ids=["at-least-once", "exactly-once"])
def test_a_delayed_message_has_its_timestamp_at_its_target_unless_the_topic_refuses_it(
    broker: Broker, config: dict[str, Any], namespace: str, topic: Callable[..., str], exactly_once: bool
) -> None:
    """With one record that is too far ahead the broker refuses a batch; with two it names them."""
    name, now_ms = topic(1, {"message.timestamp.after.max.ms": "3600000"}), time.time_ns() // 1_000_000
    old_ms, future_ms = now_ms - 3_600_000, now_ms + 2 * 86_400_000
    sent = {b"old": old_ms, b"older": old_ms - 86_400_000, b"future": future_ms, b"later": future_ms + 1_000, b"now": 0}
    producer = Producer({**config, "linger.ms": 100})
    with running(patient_worker(broker.bootstrap, namespace, LEVELS, exactly_once=exactly_once)) as worker:
        for value, stamp_ms in sent.items():
            producer.produce(name, value, delay="1s", timestamp=stamp_ms)
        assert producer.flush(GUARD_S) == 0
        found = {each.value(): each for each in read(broker, name, len(sent))}
        counts = dict(worker.counts.alarms)
    for value, stamp_ms in sent.items():
        envelope = decode(found[value].headers(), trusted=False)
        assert (envelope.born_timestamp_ms, envelope.user) == (stamp_ms or envelope.born_timestamp_ms, ())
        if value in {b"old", b"older"}:
            assert found[value].timestamp()[1] == stamp_ms
        else:
            assert now_ms + 1_000 <= found[value].timestamp()[1] <= time.time_ns() // 1_000_000
    assert counts["worker.timestamp-refused"] == 1
    assert not counts.keys() & {"worker.parked", "worker.re-appended", "worker.target-avoided"}


@pytest.mark.parametrize("is_global", [True, False])
def test_a_time_finds_its_queue_once_a_report_has_shown_the_brokers_clock(
    broker: Broker, worker: DelayWorker, config: dict[str, Any], topic: Callable[..., str], is_global: bool
) -> None:
    del worker
    name, reported = topic(), Reported()
    producer = Producer({**config, "on_delivery": reported} if is_global else config)
    own: dict[str, Any] = {} if is_global else {"on_delivery": reported}
    for value in (b"first", b"second"):
        producer.produce(name, value, deliver_at=time.time_ns() // 1_000_000 + 3_000, **own)
        assert producer.flush(GUARD_S) == 0
    slots = [each.partition() % DelayLevels.STRIDE for each in reported.of]
    assert slots == [31, 1], "the finest queue while the clock is not known, then that of two seconds"
    assert {each.value() for each in read(broker, name, 2)} == {b"first", b"second"}


def test_transactions_pass_through_and_a_delayed_send_inside_one_is_refused(
    broker: Broker, config: dict[str, Any], topic: Callable[..., str], admin: AdminClient
) -> None:
    name = topic()
    producer = Producer({**config, "transactional.id": f"tx of {name}"})
    producer.init_transactions(GUARD_S)
    for end, value in ((producer.abort_transaction, b"aborted"), (producer.commit_transaction, b"committed")):
        producer.begin_transaction()
        producer.produce(name, value)
        with pytest.raises(FeatureNotEnabledError, match=r"rocketshim\.allow\.delay\.in\.transaction"):
            producer.produce(name, b"later", delay="1s")
        producer.produce(name, value, delay_level=0)
        end(GUARD_S)
    assert [each.value() for each in read(broker, name, 2)] == [b"committed", b"committed"]
    assert admin.list_topics(timeout=GUARD_S).topics[TopicNames(config["rocketshim.namespace"]).schedule]


def test_a_delayed_send_inside_a_transaction_can_be_allowed(
    broker: Broker, worker: DelayWorker, config: dict[str, Any], topic: Callable[..., str]
) -> None:
    del worker
    name = topic()
    settings = {"transactional.id": f"tx of {name}", "rocketshim.allow.delay.in.transaction": "true"}
    producer = Producer({**config, **settings})
    producer.init_transactions(GUARD_S)
    for end, value in ((producer.abort_transaction, b"aborted"), (producer.commit_transaction, b"committed")):
        producer.begin_transaction()
        producer.produce(name, value, delay="100ms")
        end(GUARD_S)
    assert [each.value() for each in read(broker, name, 1)] == [b"committed"]


def test_without_the_schedule_topic_nothing_is_sent_or_created(
    broker: Broker, namespace: str, topic: Callable[..., str], admin: AdminClient
) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "rocketshim.namespace": namespace})
    with pytest.raises(TopicMissingError, match="rocketshim init"):
        producer.produce(topic(), b"x", delay="1s")
    producer.flush(GUARD_S)
    assert not [each for each in admin.list_topics(timeout=GUARD_S).topics if each.startswith(namespace)]


def test_a_producer_of_delayed_messages_logs_that_no_worker_runs(
    config: dict[str, Any], topic: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    name, started = topic(), time.monotonic()
    with caplog.at_level("WARNING", "rocketshim.dropin"):
        producer = Producer({**config, "error_cb": lambda error: pytest.fail(str(error))})
        producer.produce(name, b"later", delay="1h")
        while not caplog.records:
            assert time.monotonic() < started + GUARD_S
            producer.poll(0.1)
    assert time.monotonic() >= started + 5, "workers that start, or hand over"
    group = TopicNames(config["rocketshim.namespace"]).worker_group
    assert [each.getMessage() for each in caplog.records] == [
        f"dropin.no-worker: workers={group} fix=rocketshim worker --allow TOPIC"
    ]
