"""Looking at a cluster: what is not taken for a fact."""

import pytest
from confluent_kafka import KafkaException

from rocketshim.admin.doctor.gather import _ClusterReader
from rocketshim.kafka.clients import Clients
from rocketshim.testing import InMemoryKafka
from rocketshim_topics import TopicNames


def test_a_probe_that_is_reported_without_an_offset_says_nothing_of_a_clock() -> None:
    kafka = InMemoryKafka()
    kafka.create_topic(TopicNames().schedule, 32, config={"message.timestamp.type": "LogAppendTime"})
    look = object.__new__(_ClusterReader)
    look._clients, look._names = Clients(kafka.consumer, kafka.producer), TopicNames()
    look._bootstrap, look._client = "memory:1", {}
    kafka.fail_produce(None)
    with pytest.raises(KafkaException, match="without an offset"):
        look._probe({1: 0})
    assert set(look._probe({1: 0})) == {1}
