"""A topic is read also while the leader of a partition moves."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.errors import BrokerUnavailableError
from rocketshim.kafka import topic_reader
from rocketshim.kafka.clients import Clients
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim.testing.partition_result import PartitionResult, named
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.kafka_codes import LEADER_MOVES


@pytest.mark.parametrize("code", sorted(LEADER_MOVES))
@pytest.mark.parametrize("request_name", ["get_watermark_offsets", "offsets_for_times", "list_topics"])
def test_a_leader_that_has_just_moved_is_asked_again(request_name: str, code: int) -> None:
    """The client raises if all partitions of a request are refused, as those of a topic that was just made."""
    kafka = InMemoryKafka(VirtualClock())
    kafka.create_topic("orders", 1)
    kafka.append("orders", b"x")
    clients = kafka.clients()
    refusals = [KafkaException(KafkaError(code))]

    def consumer(settings: dict[str, Any]) -> Any:
        made = clients.consumer(settings)
        ask = getattr(made, request_name)

        def refuse_once(*args: Any, **kwargs: Any) -> Any:
            if refusals:
                raise refusals.pop()
            return ask(*args, **kwargs)

        setattr(made, request_name, refuse_once)
        return made

    with TopicReader("memory:1", clients=replace(clients, consumer=consumer)) as reader:
        assert reader.bounds("orders", 0) == (0, 1)
        assert [record.value() for record in reader.read(["orders"], since_ms=0)] == [b"x"]
    assert not refusals


def test_a_slow_cluster_is_asked_again_for_the_positions_of_a_group_and_an_absent_one_is_an_error() -> None:
    kafka = InMemoryKafka(VirtualClock())
    kafka.create_topic("orders", 1)
    member = kafka.consumer({"bootstrap.servers": "memory:1", "group.id": "g"})
    member.commit(offsets=[TopicPartition("orders", 0, 7, metadata="m")], asynchronous=False)
    clients, late = kafka.clients(), [2]

    def consumer(settings: dict[str, Any]) -> Any:
        made = clients.consumer(settings)
        ask = made.committed

        def committed(*args: Any, **kwargs: Any) -> Any:
            late[0] -= 1
            if late[0] >= 0:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
            return ask(*args, **kwargs)

        made.committed = committed  # type: ignore[method-assign]
        return made

    key = TopicPartitionKey("orders", 0)
    with TopicReader("memory:1", clients=replace(clients, consumer=consumer)) as reader:
        assert reader.positions("g", [key]) == {key: 7}
        late[0] = 100
        with pytest.raises(BrokerUnavailableError):
            reader.positions("g", [key])


def _asking(kafka: InMemoryKafka, before: Callable[[str], None]) -> Clients:
    """Clients of a Kafka in memory that call `before` with a group before they answer for its positions."""
    clients = kafka.clients()

    def consumer(settings: dict[str, Any]) -> Any:
        made = clients.consumer(settings)
        ask = made.committed

        def committed(*args: Any, **kwargs: Any) -> Any:
            before(settings["group.id"])
            return ask(*args, **kwargs)

        made.committed = committed  # type: ignore[method-assign]
        return made

    return replace(clients, consumer=consumer)


def test_several_groups_are_asked_for_their_positions_at_a_time() -> None:
    kafka = InMemoryKafka(VirtualClock())
    kafka.create_topic("orders", 1)
    key, all_ask = TopicPartitionKey("orders", 0), threading.Barrier(8)
    for number in range(8):
        member = kafka.consumer({"bootstrap.servers": "memory:1", "group.id": f"g{number}"})
        member.commit(offsets=[TopicPartition("orders", 0, number)], asynchronous=False)

    def before(_: str) -> None:
        all_ask.wait(60)

    with TopicReader("memory:1", clients=_asking(kafka, before)) as reader:
        found = reader.committed_by_groups({f"g{number}": [key] for number in range(8)})
        positions = {group: each[key].offset for group, each in found if isinstance(each, dict)}
    assert positions == {f"g{number}": number for number in range(8)}


def test_groups_that_were_not_asked_when_the_caller_stops_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = InMemoryKafka(VirtualClock())
    kafka.create_topic("orders", 1)
    asked: list[str] = []
    has_stopped = threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, *_: object, **options: bool) -> None:
            super().shutdown(**{**options, "wait": False})
            has_stopped.set()
            super().shutdown()

    def before(group: str) -> None:
        asked.append(group)
        if group != "g0":
            assert has_stopped.wait(60)

    monkeypatch.setattr(topic_reader, "ThreadPoolExecutor", Pool)
    with TopicReader("memory:1", clients=_asking(kafka, before)) as reader:
        answers = reader.committed_by_groups({f"g{number}": [TopicPartitionKey("orders", 0)] for number in range(100)})
        assert next(answers) == ("g0", {})
        answers.close()
    assert len(asked) < 100


def test_the_bounds_of_a_thousand_partitions_are_requested_together() -> None:
    kafka = InMemoryKafka(VirtualClock())
    topics = [f"t{number}" for number in range(1_000)]
    for topic in topics:
        kafka.create_topic(topic, 1)
    kafka.append(topics[7], b"x", partition=0)
    clients = kafka.clients()
    requests: list[str] = []

    def counted(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            requests.append(name)
            return call(*args, **kwargs)

        return ask

    def consumer(settings: dict[str, Any]) -> Any:
        made = clients.consumer(settings)
        for name in ("get_watermark_offsets", "offsets_for_times"):
            setattr(made, name, counted(name, getattr(made, name)))
        return made

    with TopicReader("memory:1", clients=replace(clients, consumer=consumer)) as reader:
        [record] = reader.read(topics)
    assert record.topic() == topics[7]
    assert requests == ["offsets_for_times"] * 2


def test_a_partition_whose_offset_of_a_time_is_not_known_is_not_passed_over() -> None:
    kafka = InMemoryKafka(VirtualClock())
    kafka.create_topic("orders", 2)
    for partition in range(2):
        kafka.append("orders", b"x", partition=partition)
    clients = kafka.clients()

    def consumer(settings: dict[str, Any]) -> Any:
        made = clients.consumer(settings)
        ask = made.offsets_for_times

        def answer(partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
            away = KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
            found = ask(partitions, timeout)
            return [PartitionResult.of(named(each), -1, error=away) if each.partition else each for each in found]

        made.offsets_for_times = answer  # type: ignore[method-assign]
        return made

    with (
        TopicReader("memory:1", clients=replace(clients, consumer=consumer)) as reader,
        pytest.raises(BrokerUnavailableError),
    ):
        list(reader.read(["orders"], since_ms=0))


def test_records_that_are_there_are_returned_without_a_wait_for_more() -> None:
    """A client waits for the number of records that `consume` asks for, or for the whole time."""
    kafka = InMemoryKafka(VirtualClock())
    kafka.create_topic("orders", 1)
    for number in range(3):
        kafka.append("orders", b"%d" % number)
    clients, waits_s = kafka.clients(), set()

    def consumer(settings: dict[str, Any]) -> Any:
        made = clients.consumer(settings)
        consume = made.consume

        def watched(count: int, timeout_s: float) -> Any:
            waits_s.add(timeout_s)
            return consume(count, timeout_s)

        made.consume = watched  # type: ignore[method-assign, assignment]
        return made

    with TopicReader("memory:1", clients=replace(clients, consumer=consumer)) as reader:
        assert [message.value() for message in reader.read(["orders"])] == [b"0", b"1", b"2"]
    assert waits_s == {0}


@pytest.mark.parametrize(
    ("throttle_s", "cause"), [(0.0, "is a leader unavailable"), (2.5, "a quota of this client.id")]
)
def test_a_reader_waits_longer_for_a_quota_and_its_error_names_what_holds_the_records_back(
    throttle_s: float, cause: str
) -> None:
    kafka = InMemoryKafka(VirtualClock())
    kafka.create_topic("orders", 1)
    kafka.append("orders", b"x")
    clients, polls = kafka.clients(), 0

    def consumer(settings: dict[str, Any]) -> Any:
        made = clients.consumer(settings)

        def poll(_: float) -> None:
            nonlocal polls
            polls += 1
            settings["throttle_cb"](SimpleNamespace(throttle_time=throttle_s))

        made.poll = poll  # type: ignore[assignment]
        return made

    silent = TopicReader("memory:1", clients=replace(clients, consumer=consumer), patience_s=0.01)
    began_s = time.monotonic()
    with silent as reader, pytest.raises(BrokerUnavailableError, match=cause):
        list(reader.read(["orders"]))
    assert polls > 1
    assert time.monotonic() - began_s > (0.02 if throttle_s else 0.01)
