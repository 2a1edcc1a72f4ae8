"""The in-memory Kafka behaves as the real one: the conformance suite, without a broker."""

from collections.abc import Mapping
from typing import Any

import pytest

from rocketshim.kafka.clients import ConsumerClient, ProducerClient
from rocketshim.testing import InMemoryKafka

from . import Features, Scenario, scenarios


class MemoryBackend:
    features = Features()
    attempts = 20
    poll_s = 0.1

    def __init__(self) -> None:
        self.kafka = InMemoryKafka()
        self._count = 0

    def consumer(self, config: Mapping[str, Any]) -> ConsumerClient:
        return self.kafka.consumer(config)

    def producer(self, config: Mapping[str, Any]) -> ProducerClient:
        return self.kafka.producer(config)

    def new_topic(self, partitions: int = 1, *, config: Mapping[str, str] | None = None) -> str:
        name = self.new_name()
        self.kafka.create_topic(name, partitions, config=config)
        return name

    def new_name(self) -> str:
        self._count += 1
        return f"name-{self._count}"

    def truncate(self, topic: str, partition: int, before_offset: int) -> None:
        self.kafka.truncate(topic, partition, before_offset=before_offset)


@pytest.mark.parametrize("scenario", scenarios(MemoryBackend.features), ids=lambda scenario: scenario.name)
def test_conforms(scenario: Scenario) -> None:
    scenario.run(MemoryBackend())
