"""The record of every answer of `decide`, and its lane."""

from typing import Any, NoReturn

import pytest
from confluent_kafka import Message

from rocketshim.core.failed_hop import LaneSelector, failed_hop
from rocketshim.core.retry_policy import AfterDelay, AtLevel, Dead, NextHop
from rocketshim_topics import DelayLevels, Failure, TopicNames, decode, lane_for
from rocketshim_topics.hops import OutgoingRecord

NAMES, LEVELS = TopicNames(), DelayLevels.default()
RECORD = Message("orders", 0, 7, key=b"k", value=b"x", timestamp=(1, 5))


def hop(decided: NextHop, lane: Any = lambda: 1) -> OutgoingRecord:
    failure = Failure("ValueError", "bad", 9)
    return failed_hop(
        decided, RECORD, NAMES, LEVELS, group="g", trusted=False, failure=failure, reconsume_times=2, lane=lane
    )


@pytest.mark.parametrize(
    ("decided", "delay_ms", "partition"),
    [(AtLevel(4), 30_000, 32 + 3), (AfterDelay(30_000), 30_000, LEVELS.queue_for(30_000, 1))],
)
def test_a_retry_has_the_decided_delay_and_the_given_lane(decided: NextHop, delay_ms: int, partition: int) -> None:
    out = hop(decided)
    envelope = decode(out.headers, trusted=True)
    assert (out.topic, out.partition, envelope.delay_ms) == (NAMES.schedule, partition, delay_ms)
    assert (envelope.reconsume_times, envelope.fail_class) == (2, "ValueError")


@pytest.mark.parametrize("asked", [True, False])
def test_a_dead_letter_does_not_request_a_lane(asked: bool) -> None:
    def no_lane() -> NoReturn:
        raise AssertionError("nobody has to know the lanes")

    out = hop(Dead(asked), no_lane)
    assert (out.topic, decode(out.headers, trusted=True).reconsume_times) == (NAMES.dead_letter("g"), 2)


def test_keyed_records_keep_their_lane_and_keyless_ones_rotate() -> None:
    turns = LaneSelector()
    assert {turns.choose(b"o-7", 3) for _ in range(3)} == {lane_for(b"o-7", 3)}
    assert [turns.choose(None, 3) for _ in range(4)] == [0, 1, 2, 0]
    assert turns.choose(b"o-7", 1) == 0
