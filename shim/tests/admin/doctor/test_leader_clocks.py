"""Measuring leaders' clocks: what is not taken for a fact."""

import pytest
from confluent_kafka import KafkaException

from rocketshim.admin.doctor.leader_clocks import clocks_ahead_ms
from rocketshim.testing import InMemoryKafka
from rocketshim_topics import TopicNames


def test_a_probe_that_is_reported_without_an_offset_says_nothing_of_a_clock() -> None:
    kafka = InMemoryKafka()
    kafka.create_topic(TopicNames().schedule, 32, config={"message.timestamp.type": "LogAppendTime"})
    kafka.fail_produce(None)
    config = {"bootstrap.servers": "memory:1"}
    with pytest.raises(KafkaException, match="without an offset"):
        clocks_ahead_ms(kafka.producer, config, TopicNames(), {1: 0}, now_ms=lambda: 0, timeout_s=15.0)
    assert set(clocks_ahead_ms(kafka.producer, config, TopicNames(), {1: 0}, now_ms=lambda: 0, timeout_s=15.0)) == {1}
