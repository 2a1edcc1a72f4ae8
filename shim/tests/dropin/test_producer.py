"""The drop-in producer as far as it goes without a broker."""

from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from rocketshim import Message as ShimMessage
from rocketshim.dropin import Producer
from rocketshim.errors import ConfigError, MessageError
from rocketshim_topics import decode

NOWHERE = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


def test_our_keys_are_removed_and_checked() -> None:
    assert isinstance(Producer(NOWHERE, **{"rocketshim.namespace": "pay"}), confluent_kafka.Producer)
    for wrong in ({"rocketshim.max.delay.ms": 0}, {"rocketshim.retry.enable": True}, {"rocketshim.namespace": "%"}):
        with pytest.raises(ConfigError):
            Producer({**NOWHERE, **wrong})


def test_a_call_without_the_new_arguments_is_the_originals() -> None:
    ours, theirs = Producer(NOWHERE), confluent_kafka.Producer(NOWHERE)
    calls: list[dict[str, Any]] = [
        {"value": 3}, {"key": 3}, {"topic": 3}, {"headers": 5}, {"headers": [("a",)]}, {"callback": 1}, {"no": 1},
        {"value": "text", "key": "k", "headers": {"RECONSUME_TIMES": "mine"}, "timestamp": 7, "partition": 2},
        {"on_delivery": None, "callback": None, "headers": None, "value": None, "key": None},
    ]  # fmt: skip
    for call in calls:
        outcomes = []
        for producer in (theirs, ours):
            try:
                producer.produce(**{"topic": "t", **call})
                outcomes.append("taken")
            except Exception as error:  # noqa: BLE001 - whatever the original raises
                outcomes.append(type(error).__name__)
        assert outcomes[0] == outcomes[1], call


def test_a_subclass_whose_delivery_callback_has_a_private_name_gets_its_reports() -> None:
    class Mine(Producer):
        def _on_delivery(self, error: KafkaError | None, _: Message) -> None:
            reports.append("" if error is None else error.name())

    reports: list[str] = []
    producer = Mine(NOWHERE)
    producer.produce("t", b"x", on_delivery=producer._on_delivery)
    producer.purge()
    producer.poll(0)
    assert reports == ["_PURGE_QUEUE"]


@pytest.mark.parametrize("more", [{}, {"tag": "paid"}])
def test_a_callback_of_none_does_not_hide_on_delivery(more: dict[str, Any]) -> None:
    reports: list[Any] = []
    producer = Producer(NOWHERE)
    producer.produce("t", b"x", callback=None, on_delivery=lambda error, _: reports.append(error.name()), **more)
    producer.purge()
    producer.poll(0)
    assert reports == ["_PURGE_QUEUE"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"delay": "1s", "delay_level": 1},
        {"delay": "soon"},
        {"deliver_at": "tomorrow"},
        {"tag": ""},
        {"keys": ["a b"]},
        {"tag": "a", "headers": {"RECONSUME_TIMES": "3"}},
    ],
)
def test_a_message_that_breaks_a_rule_is_refused(wrong: dict[str, Any]) -> None:
    producer = Producer(NOWHERE)
    with pytest.raises(MessageError):
        producer.produce("t", b"x", **wrong)


@pytest.mark.parametrize("level", [0, -1])
def test_a_level_of_zero_or_less_is_not_delayed_and_asks_no_broker(level: int) -> None:
    message = ShimMessage("t", b"x", delay_level=level, tag="a")
    out, _ = Producer(NOWHERE)._shim_maker.make(message, print, 0, 0, partition=2, timestamp_ms=7)
    envelope = decode(out.headers, trusted=True)
    assert (out.topic, out.partition, envelope.tags, envelope.born_timestamp_ms) == ("t", 2, "a", 7)


def test_each_message_has_an_id_of_its_own() -> None:
    producer = Producer(NOWHERE)
    made = [producer._shim_maker.make(ShimMessage("t", b"x"), print, 0, 0) for _ in range(3)]
    ids = {decode(out.headers, trusted=True).uniq_key for out, _ in made}
    assert len(ids) == 3


def test_a_transaction_that_could_not_begin_does_not_count() -> None:
    producer = Producer(NOWHERE)
    with pytest.raises(KafkaException):
        producer.begin_transaction()
    assert not producer._shim_in_transaction
