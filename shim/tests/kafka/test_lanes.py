"""The lane that a record goes to, and the errors if the lanes cannot be looked up."""

import itertools
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from confluent_kafka import KafkaError, KafkaException

from rocketshim.errors import BrokerUnavailableError, TopicMissingError
from rocketshim.kafka.lanes import Lanes, lane_of
from rocketshim_topics import lane_for


def cluster(partitions: int, asked: list[float]) -> Any:
    def list_topics(*, timeout: float) -> Any:
        asked.append(timeout)
        return SimpleNamespace(topics={"schedule": SimpleNamespace(partitions=dict.fromkeys(range(partitions)))})

    return list_topics


def test_keyed_records_keep_their_lane_and_keyless_ones_take_turns() -> None:
    asked: list[float] = []
    lanes, list_topics = Lanes("schedule"), cluster(96, asked)
    assert {lanes.choose(b"o-7", list_topics) for _ in range(3)} == {lane_for(b"o-7", 3)}
    assert [lanes.choose(None, list_topics) for _ in range(4)] == [0, 1, 2, 0]
    assert len(asked) == 1, "known for a minute"


def test_one_request_a_minute_serves_every_topic() -> None:
    asked: list[float] = []

    def list_topics(*, timeout: float) -> Any:
        asked.append(timeout)
        partitions = {f"t{number}": dict.fromkeys(range(number)) for number in range(1, 100)}
        return SimpleNamespace(topics={name: SimpleNamespace(partitions=each) for name, each in partitions.items()})

    counts = Lanes("schedule")
    assert [counts.count(f"t{number}", list_topics) for number in range(1, 100)] == list(range(1, 100))
    assert len(asked) == 1
    for _ in range(2):
        with pytest.raises(TopicMissingError):
            counts.count("new", list_topics)
    assert len(asked) == 3, "a topic that is not known is looked up each time"


@pytest.mark.parametrize("partitions", [1, 32])
def test_there_is_at_least_one_lane(partitions: int) -> None:
    assert Lanes("schedule").choose(b"k", cluster(partitions, [])) == 0


@pytest.mark.parametrize("topic", ["missing", "schedule"])
def test_a_missing_topic_is_named_with_the_solution(topic: str) -> None:
    with pytest.raises(TopicMissingError, match=f"{topic}.*rocketshim init"):
        Lanes(topic).choose(None, cluster(0, []))


def test_a_cluster_that_does_not_answer_is_named() -> None:
    def away(*, timeout: float) -> NoReturn:
        del timeout
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    with pytest.raises(BrokerUnavailableError, match=r"_TRANSPORT.*nothing was sent"):
        Lanes("schedule").choose(None, away)


def test_keyed_records_keep_their_lane_and_keyless_ones_rotate() -> None:
    turns = itertools.count()
    assert {lane_of(b"o-7", 3, turns) for _ in range(3)} == {lane_for(b"o-7", 3)}
    assert [lane_of(None, 3, turns) for _ in range(4)] == [0, 1, 2, 0]
    assert lane_of(b"o-7", 1, turns) == 0
