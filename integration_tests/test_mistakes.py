"""The mistakes that only a broker shows: the error, and the words that help.

`shim/tests/test_mistakes.py` has the others.
"""

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest
from confluent_kafka.admin import AdminClient
from pydantic import BaseModel

from rocketshim import (
    ConsumeFromWhere,
    ConsumeOrderlyStatus,
    ConsumeStatus,
    LitePullConsumer,
    MessageView,
    Producer,
    PushConsumer,
)
from rocketshim.errors import BrokerUnavailableError, SendTimeoutError, TopicMissingError
from rocketshim_local import Broker
from rocketshim_topics import DelayLevels, TopicNames, provision
from rocketshim_topics.layout import Layout

GUARD_S = 60.0
TLS = {"security.protocol": "SSL", "enable.ssl.certificate.verification": False}
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "u", "sasl.password": "p",
}  # fmt: skip


class Order(BaseModel):
    """A body."""

    id: int


@pytest.fixture
def prepared(admin: AdminClient, namespace: str) -> str:
    """A namespace with the topics that consumers need."""
    provision.ensure_topics(admin, Layout(TopicNames(namespace), DelayLevels.default()).shared())
    return namespace


def test_a_send_to_a_topic_that_does_not_exist(broker: Broker, group: Callable[..., str]) -> None:
    with Producer(broker.bootstrap) as producer, pytest.raises(TopicMissingError, match="does not exist"):
        producer.send(group("nosuch"), b"", timeout_s=GUARD_S)


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer])
def test_a_subscription_of_a_topic_that_does_not_exist(broker: Broker, group: Callable[..., str], kind: Any) -> None:
    topic = group("nosuch")
    consumer = kind(broker.bootstrap, group=group())
    if kind is PushConsumer:
        consumer.listener(topic)(print)
    else:
        consumer.subscribe(topic)
    with pytest.raises(TopicMissingError, match=f"{topic}.*rocketshim init --topic {topic}"):
        consumer.start()


@pytest.mark.parametrize(
    ("client", "helpful"),
    [(TLS, "TLS handshake failed: does .* speak TLS"), (LOGIN, "SASL")],
    ids=["TLS to a plain listener", "SASL to a plain listener"],
)
def test_a_protocol_that_the_broker_does_not_speak(broker: Broker, client: dict[str, Any], helpful: str) -> None:
    producer = Producer(broker.bootstrap, client=client)
    with pytest.raises((SendTimeoutError, BrokerUnavailableError), match=helpful):
        producer.send("orders", b"", timeout_s=10)
    producer.close(0)


@pytest.mark.parametrize("orderly", [True, False])
def test_the_success_of_the_other_kind_of_listener_is_understood(
    broker: Broker, prepared: str, topic: Callable[..., str], group: Callable[..., str], orderly: bool
) -> None:
    """An orderly queue must not wait forever behind a message that has succeeded."""
    name, seen, done = topic(1), list[int](), threading.Event()
    model = cast("Any", "first_offset")
    consumer = PushConsumer(broker.bootstrap, group=group(), namespace=prepared, consume_from_where=model)
    assert consumer.settings.consume_from_where is ConsumeFromWhere.FIRST_OFFSET

    @consumer.listener(name, orderly=orderly, body=Order)
    def handle(message: MessageView[Order]) -> object:
        seen.append(message.value.id)
        if len(seen) == 3:
            done.set()
        return ConsumeStatus.CONSUME_SUCCESS if orderly else ConsumeOrderlyStatus.SUCCESS

    with Producer(broker.bootstrap) as producer:
        for number in range(3):  # a pydantic model needs no codec, as the listener needs none
            producer.send(name, Order(id=number), key="o", timeout_s=GUARD_S)
    consumer.start()
    try:
        assert done.wait(GUARD_S)
    finally:
        consumer.stop()
    assert sorted(seen) == [0, 1, 2]
