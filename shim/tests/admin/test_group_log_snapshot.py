"""A group's log is read within the time that every other command waits for an answer."""

from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from rocketshim.admin.group_log_snapshot import group_log
from rocketshim.errors import BrokerUnavailableError
from rocketshim.settings import ConnectionSettings
from rocketshim.testing import InMemoryKafka
from rocketshim_topics.names import TopicNames

SETTINGS = ConnectionSettings.make(bootstrap="memory:1", namespace="", client={})


@pytest.mark.parametrize(("is_refused", "requests"), [(True, 1), (False, 3)])
def test_brokers_that_refuse_connections_are_asked_once_and_slow_ones_three_times(
    *, is_refused: bool, requests: int
) -> None:
    kafka = InMemoryKafka()
    kafka.create_topic(TopicNames("").group_log("g"), 1)
    clients = kafka.clients()
    limits: list[float] = []

    def consumer(settings: dict[str, Any]) -> Any:
        made: Any = clients.consumer(settings)

        def list_topics(*_: object, timeout: float) -> None:
            limits.append(timeout)
            if is_refused:
                settings["logger"].log(3, "%s %s %s", "FAIL", "rocketshim", "Connect failed: Connection refused")
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

        made.list_topics = list_topics
        return made

    with pytest.raises(BrokerUnavailableError, match="Connection refused" if is_refused else "_TIMED_OUT"):
        group_log(SETTINGS, "g", replace(clients, consumer=consumer))
    assert limits == [10.0] * requests
