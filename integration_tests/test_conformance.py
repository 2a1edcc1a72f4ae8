"""A real broker passes the suite that the in-memory Kafka passes: so the one can stand for the other.

Topics are not deleted one by one: names are unique to the run, and the session's broker goes when the session does.
"""

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from rocketshim.kafka.clients import ConsumerClient, ProducerClient
from rocketshim_local import Broker
from shim.tests.conformance import Features, Scenario, scenarios

DEADLINE_S = 60.0


class RealBackend:
    features = Features()
    attempts = 2_400  # of which a scenario takes the few it needs: no machine is slow enough for all of them
    poll_s = 0.1

    def __init__(self, bootstrap: str, admin: AdminClient) -> None:
        self._bootstrap = bootstrap
        self._admin = admin
        self._consumers: list[Consumer] = []
        self._producers: list[Producer] = []
        self._topics: list[str] = []

    def consumer(self, config: Mapping[str, Any]) -> ConsumerClient:
        consumer = Consumer({"bootstrap.servers": self._bootstrap, "log_level": 0, **config})
        self._consumers.append(consumer)
        return consumer

    def producer(self, config: Mapping[str, Any]) -> ProducerClient:
        producer = Producer({"bootstrap.servers": self._bootstrap, "log_level": 0, "linger.ms": 0, **config})
        self._producers.append(producer)
        return producer

    def new_topic(self, partitions: int = 1, *, config: Mapping[str, str] | None = None) -> str:
        name = self.new_name()
        self._admin.create_topics([NewTopic(name, partitions, config=dict(config or {}))])[name].result(DEADLINE_S)
        self._topics.append(name)
        self._await_led(name, partitions)
        return name

    def _await_led(self, name: str, partitions: int) -> None:
        """A topic that was confirmed is known to the broker a little later."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            found = self._admin.list_topics(name, timeout=DEADLINE_S).topics[name]
            led = [part for part in found.partitions.values() if part.leader >= 0 and part.error is None]
            if found.error is None and len(led) == partitions:
                return
        raise TimeoutError(f"{name} has no leaders after {DEADLINE_S} s")

    def new_name(self) -> str:
        return f"conf-{uuid.uuid4().hex}"

    def truncate(self, topic: str, partition: int, before_offset: int) -> None:
        asked = TopicPartition(topic, partition, before_offset)
        for future in self._admin.delete_records([asked]).values():
            future.result(DEADLINE_S)

    def close(self) -> None:
        for consumer in self._consumers:
            with suppress(KafkaException):
                consumer.close()
        for producer in self._producers:
            producer.purge()
        if self._topics:
            self._admin.delete_topics(self._topics)


@pytest.fixture
def backend(broker: Broker, admin: AdminClient) -> Iterator[RealBackend]:
    backend = RealBackend(broker.bootstrap, admin)
    yield backend
    backend.close()


@pytest.mark.parametrize("scenario", scenarios(RealBackend.features), ids=lambda scenario: scenario.name)
def test_conforms(backend: RealBackend, scenario: Scenario) -> None:
    scenario.run(backend)
