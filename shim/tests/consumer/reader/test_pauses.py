"""A partition is read again only when its last reason for a pause has gone."""

from typing import Any

import pytest

from rocketshim.consumer.reader.pauses import PauseReason, Pauses
from rocketshim_topics.coordinates import TopicPartitionKey

KEY = TopicPartitionKey("orders", 0)


class Client:
    """A Kafka consumer that records pauses and resumes."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[tuple[str, int]]]] = []

    def pause(self, partitions: list[Any]) -> None:
        self.calls.append(("pause", [(item.topic, item.partition) for item in partitions]))

    def position(self, partitions: list[Any]) -> None:
        self.calls.append(("position", [(item.topic, item.partition) for item in partitions]))

    def resume(self, partitions: list[Any]) -> None:
        self.calls.append(("resume", [(item.topic, item.partition) for item in partitions]))


@pytest.fixture
def client() -> Any:
    return Client()


def test_the_last_reason_resumes(client: Any) -> None:
    pauses = Pauses(lambda: client)
    pauses.hold([KEY], PauseReason.FLOW)
    pauses.hold([KEY], PauseReason.SUSPENDED)
    pauses.release([KEY], PauseReason.FLOW)
    assert pauses.why(KEY) == PauseReason.SUSPENDED
    pauses.release([KEY], PauseReason.SUSPENDED)
    assert not pauses.why(KEY)
    assert client.calls == [("pause", [KEY]), ("resume", [KEY])]


def test_a_partition_that_is_not_paused_is_not_resumed(client: Any) -> None:
    pauses = Pauses(lambda: client)
    pauses.release([KEY], PauseReason.FLOW)
    pauses.hold([], PauseReason.FLOW)
    pauses.adopt([])
    assert client.calls == []


def test_an_assigned_partition_is_resumed_from_any_earlier_pause(client: Any) -> None:
    pauses = Pauses(lambda: client)
    pauses.hold([KEY], PauseReason.FLOW)
    pauses.forget([KEY])
    pauses.adopt([KEY])
    assert client.calls[-1] == ("resume", [KEY])
    assert not pauses.why(KEY)


def test_a_partition_is_known_to_the_client_before_it_is_paused_for_its_assignment(client: Any) -> None:
    pauses = Pauses(lambda: client)
    pauses.prepare([], PauseReason.UNRESOLVED)
    pauses.prepare([KEY], PauseReason.UNRESOLVED)
    assert client.calls == [("position", [KEY]), ("pause", [KEY])]
    assert pauses.why(KEY) == PauseReason.UNRESOLVED
