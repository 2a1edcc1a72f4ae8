"""Measuring leaders' clocks: what is not taken for a fact."""

from itertools import cycle

import pytest
from confluent_kafka import KafkaException

from rocketshim.admin.doctor.leader_clocks import clocks_ahead_ms
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics import TopicNames


def test_a_probe_that_is_reported_without_an_offset_says_nothing_of_a_clock() -> None:
    kafka = InMemoryKafka()
    kafka.create_topic(TopicNames().schedule, 32, config={"message.timestamp.type": "LogAppendTime"})
    kafka.fail_produce(None)
    config = {"bootstrap.servers": "memory:1"}
    with pytest.raises(KafkaException, match="without an offset"):
        clocks_ahead_ms(kafka.producer, config, TopicNames(), {1: 0}, now_ms=lambda: 0, timeout_s=15.0)
    assert set(clocks_ahead_ms(kafka.producer, config, TopicNames(), {1: 0}, now_ms=lambda: 0, timeout_s=15.0)) == {1}


@pytest.mark.parametrize(("skew_ms", "ahead_ms"), [(0, 0), (2_500, 0), (4_000, 1_000), (-2_000, -2_000)])
def test_a_probe_that_takes_long_does_not_make_a_clock_wrong(skew_ms: int, ahead_ms: int) -> None:
    """The probe is appended at 10,000, and is answered three seconds later."""
    clock = VirtualClock(start_wall_ms=10_000)
    kafka = InMemoryKafka(clock=clock)
    kafka.create_topic(TopicNames().schedule, 32, config={"message.timestamp.type": "LogAppendTime"})
    kafka.set_leader_clock(skew_ms)
    looks = cycle((10_000, 13_000))
    config = {"bootstrap.servers": "memory:1"}
    found = clocks_ahead_ms(kafka.producer, config, TopicNames(), {1: 0}, now_ms=lambda: next(looks), timeout_s=15.0)
    assert found == {1: ahead_ms}
