"""Both back ends have every method that the shells use; `mypy` checks the signatures in `rocketshim.testing.kafka`."""

import inspect
from typing import Any

import confluent_kafka
import pytest

from rocketshim.kafka.clients import ConsumerClient, ProducerClient
from rocketshim.testing import InMemoryConsumer, InMemoryProducer


def methods(protocol: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(protocol, inspect.isfunction) if name == "__len__" or name[0] != "_"]


@pytest.mark.parametrize(
    ("protocol", "client"),
    [
        (ConsumerClient, confluent_kafka.Consumer),
        (ConsumerClient, InMemoryConsumer),
        (ProducerClient, confluent_kafka.Producer),
        (ProducerClient, InMemoryProducer),
    ],
)
def test_every_method_of_the_protocol_is_there(protocol: type, client: type) -> None:
    assert [name for name in methods(protocol) if not callable(getattr(client, name, None))] == []


@pytest.mark.parametrize(
    ("protocol", "client"), [(ConsumerClient, InMemoryConsumer), (ProducerClient, InMemoryProducer)]
)
def test_every_argument_of_the_protocol_is_taken(protocol: Any, client: Any) -> None:
    for name in methods(protocol):
        wanted = set(inspect.signature(getattr(protocol, name)).parameters) - {"args", "kwds", "kwargs"}
        assert wanted <= set(inspect.signature(getattr(client, name)).parameters), name
