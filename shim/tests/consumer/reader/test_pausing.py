"""A partition is read again only when its last reason for a pause has gone."""

from typing import Any

import pytest

from rocketshim.consumer.reader.partition_reader import PartitionReader
from rocketshim.core.partition import PauseReason
from rocketshim.core.start_position import ConsumeFromWhere, StartRules
from rocketshim.locks.lease import Ownership
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

    def incremental_assign(self, partitions: list[Any]) -> None:
        self.calls.append(("assign", [(item.topic, item.partition) for item in partitions]))

    def incremental_unassign(self, partitions: list[Any]) -> None:
        self.calls.append(("unassign", [(item.topic, item.partition) for item in partitions]))


class Owner:
    """Does nothing with its partitions."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


@pytest.fixture
def client() -> Client:
    return Client()


@pytest.fixture
def reader(client: Any) -> PartitionReader:
    made = PartitionReader(
        make_consumer=lambda _: client,
        make_lookup_client=lambda: client,
        rules=StartRules("retry", ConsumeFromWhere.FIRST_OFFSET, 0),
        ownership=Ownership(lambda: 0),
        now_ms=lambda: 0,
    )
    made.open(Owner(), lambda *_: None, print)  # type: ignore[arg-type]
    return made


def test_the_last_reason_resumes(client: Any, reader: PartitionReader) -> None:
    reader.start_at({KEY: 0})
    client.calls.clear()
    reader.pause([KEY], PauseReason.FLOW)
    reader.pause([KEY], PauseReason.SUSPENDED)
    reader.unpause([KEY], PauseReason.FLOW)
    assert reader.partitions[KEY].pauses == PauseReason.SUSPENDED
    reader.unpause([KEY], PauseReason.SUSPENDED)
    assert not reader.partitions[KEY].pauses
    assert client.calls == [("pause", [KEY]), ("resume", [KEY])]


def test_a_partition_that_is_not_paused_or_not_assigned_is_not_resumed(client: Any, reader: PartitionReader) -> None:
    reader.unpause([KEY], PauseReason.FLOW)
    reader.pause([KEY], PauseReason.FLOW)
    reader.start_at({KEY: 0})
    client.calls.clear()
    reader.unpause([KEY], PauseReason.FLOW)
    reader.pause([], PauseReason.FLOW)
    assert client.calls == []


def test_an_assigned_partition_is_resumed_from_any_earlier_pause(client: Any, reader: PartitionReader) -> None:
    reader.start_at({KEY: 0})
    reader.pause([KEY], PauseReason.FLOW)
    reader.unassign([KEY])
    reader.start_at({KEY: 0})
    assert client.calls[-1] == ("resume", [KEY])
    assert not reader.partitions[KEY].pauses


def test_a_partition_is_known_to_the_client_before_it_is_paused_for_its_assignment(
    client: Any, reader: PartitionReader
) -> None:
    reader.start_at({KEY: -1})
    assert client.calls == [("position", [KEY]), ("pause", [KEY]), ("assign", [KEY])]
    assert reader.partitions[KEY].pauses == PauseReason.UNRESOLVED
