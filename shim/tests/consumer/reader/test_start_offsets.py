"""Assign partitions while their starts cannot be looked up; on the in-memory Kafka."""

from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, KafkaError, KafkaException, TopicPartition

from rocketshim.consumer.reader.group_offsets import StartOffsets
from rocketshim.core.partition import PauseReason
from rocketshim.core.start_position import ConsumeFromWhere, StartRules
from rocketshim.locks.lease import Ownership
from rocketshim.testing import InMemoryKafka
from rocketshim.testing.partition_result import PartitionResult
from rocketshim_topics.coordinates import TopicPartitionKey

Make = Callable[..., Any]


class LateLookUps:
    """A consumer whose look-ups of logical positions are answered at the worst moment: after the next seek."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self._looked_up: set[tuple[str, int]] = set()
        self.assigned: list[TopicPartition] = []

    def subscribe(self, topics: list[str], **callbacks: Any) -> None:
        mine = {name: lambda _, partitions, call=call: call(self, partitions) for name, call in callbacks.items()}
        self._inner.subscribe(topics, **mine)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self.assigned += partitions
        self._looked_up |= {(item.topic, item.partition) for item in partitions if item.offset < 0}
        self._inner.incremental_assign(partitions)

    def seek(self, partition: TopicPartition) -> None:
        self._inner.seek(partition)
        if (partition.topic, partition.partition) in self._looked_up:
            self._inner.seek(TopicPartition(partition.topic, partition.partition, 0))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class Unanswered:
    """Start offsets whose first look-ups fail."""

    def __init__(self, bench: Any, times: int) -> None:
        self._resolve = bench.starts.resolve
        self.left = times
        bench.starts.resolve = self

    def __call__(self, keys: Collection[TopicPartitionKey], timeout_s: float) -> dict[TopicPartitionKey, int]:
        if self.left:
            self.left -= 1
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return self._resolve(keys, timeout_s)


def test_positions_of_thousands_of_partitions_are_asked_for_in_parts(kafka: InMemoryKafka) -> None:
    kafka.create_topic("many", 2_500)
    client = kafka.consumer({"group.id": "g"})
    asked: list[int] = []

    def committed(partitions: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        asked.append(len(partitions))
        return client.committed(partitions, timeout=timeout)

    rules = StartRules("rmq.retry.g", ConsumeFromWhere.FIRST_OFFSET, 0)
    counting: Any = SimpleNamespace(committed=committed)
    StartOffsets(rules, client=lambda: counting, lookups=client, ownership=Ownership(lambda: 0)).look(["many"], 0.5)
    assert asked == [1_000, 1_000, 500]


def test_a_late_answer_of_a_look_up_moves_nothing(kafka: InMemoryKafka, unopened: Make) -> None:
    """Old messages are not handed out when the start of a new group at the end of the log is found out late."""
    for _ in range(5):
        kafka.append("orders", b"old")
    seen: list[bytes] = []
    b = unopened(lambda message: seen.append(message.body), where=ConsumeFromWhere.LAST_OFFSET)
    starts, make, late = Unanswered(b, 2), b.loop.reader._make_consumer, list[LateLookUps]()

    def make_late(on_commit: Any) -> Any:
        late.append(LateLookUps(make(on_commit)))
        return late[-1]

    b.loop.reader._make_consumer = make_late
    b.open()
    while starts.left:
        b.clock.advance(1_000)
        b.turn()
    b.clock.advance(1_000)
    b.turn(2)
    kafka.append("orders", b"new")
    b.run()
    assert seen == [b"new"]
    assert [item.offset for item in late[0].assigned] == [0, 0]  # nothing that Kafka's client would have to look up


def test_a_partition_is_paused_until_its_start_is_known_and_committed(kafka: InMemoryKafka, unopened: Make) -> None:
    kafka.append("orders", b"")
    b = unopened(lambda _: None)
    starts = Unanswered(b, 1_000)
    b.open()
    places = [("orders", 0), (b.names.retry("g"), 0)]
    for _ in range(5):
        assert [b.loop.reader.partitions[place].pauses for place in places] == [PauseReason.UNRESOLVED] * 2
        b.clock.advance(1_000)
        b.run(2)
        assert b.committed() is None
    assert starts.left > 900, "once a second"
    starts.left = 0
    b.clock.advance(1_000)
    b.turn(2)
    assert [b.loop.reader.partitions[place].pauses for place in places] == [PauseReason(0)] * 2
    assert b.committed() == 0
    b.run()
    b.commit_now()
    assert b.committed() == 1


def test_a_partition_with_an_unknown_start_delays_no_other(kafka: InMemoryKafka, unopened: Make) -> None:
    kafka.add_partitions("orders", 3)
    for number in range(3):
        kafka.append("orders", b"%d" % number, partition=number)
    seen: list[bytes] = []
    b = unopened(lambda message: seen.append(message.body))
    resolve, asked, away = b.starts.resolve, [0], [True]

    def without_leader(keys: Collection[TopicPartitionKey], timeout_s: float) -> dict[TopicPartitionKey, int]:
        if away[0] and ("orders", 1) in keys:
            asked[0] += 1
            b.clock.advance(round(timeout_s * 1_000))
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return resolve(keys, timeout_s)

    b.starts.resolve = without_leader
    b.open()
    b.run(10)
    assert sorted(seen) == [b"0", b"2"]
    before = asked[0]
    b.turn(10)
    assert asked[0] == before, "it takes no more than a tenth of the time"
    away[0] = False
    b.clock.advance(60_000)
    b.run()
    assert sorted(seen) == [b"0", b"1", b"2"]


def test_a_partition_that_is_revoked_while_it_waits_is_not_looked_up(unopened: Make) -> None:
    b = unopened(lambda _: None)
    starts = Unanswered(b, 1)
    b.open()
    b.loop.reader._on_lost(b.consumer, [TopicPartition("orders", 0)])
    b.clock.advance(1_000)
    b.turn(2)
    assert starts.left == 0
    assert ("orders", 0) not in b.loop.reader.partitions
    assert [queue.key.topic for queue in b.loop.mode.queues] == [b.names.retry("g")]


def test_seeking_a_waiting_partition_starts_it(kafka: InMemoryKafka, unopened: Make) -> None:
    for number in range(4):
        kafka.append("orders", b"%d" % number)
    seen: list[bytes] = []
    b = unopened(lambda message: seen.append(message.body))
    starts = Unanswered(b, 100)
    b.open()
    b.loop.mode.seek({TopicPartitionKey("orders", 0): 2})
    b.run()
    assert seen == [b"2", b"3"]
    starts.left = 0
    b.clock.advance(1_000)
    b.run()
    assert seen == [b"2", b"3"]  # it does not start again when the other one starts


def test_a_new_group_begins_nowhere_while_the_broker_refuses_one_of_its_requests(
    kafka: InMemoryKafka, unopened: Make
) -> None:
    for _ in range(3):
        kafka.append("orders", b"")
    b = unopened(lambda _: None, where=ConsumeFromWhere.LAST_OFFSET)
    lookups = b.loop.reader.lookups
    answer, refused_times = lookups.offsets_for_times, [OFFSET_BEGINNING, OFFSET_END]

    def refuse(asked: list[TopicPartition], **options: Any) -> list[TopicPartition]:
        answers = answer(asked, **options)
        if refused_times and asked[0].offset == refused_times[0]:
            when, error = refused_times.pop(0), KafkaError(KafkaError.LEADER_NOT_AVAILABLE)
            return [PartitionResult.of(TopicPartitionKey.of(each), when, error=error) for each in answers]
        return answers

    lookups.offsets_for_times = refuse
    b.open()
    b.clock.advance(1_000)
    b.run()
    assert (refused_times, b.committed()) == ([], 3)


def test_the_starts_of_many_partitions_take_few_requests(kafka: InMemoryKafka, unopened: Make) -> None:
    for number in range(30):
        kafka.create_topic(f"t{number}", 4)
    keys = [TopicPartitionKey(f"t{number}", partition) for number in range(30) for partition in range(4)]
    b = unopened(lambda _: None, where=ConsumeFromWhere.LAST_OFFSET).open()
    asked: list[str] = []

    def count(client: Any, *names: str) -> None:
        for name in names:
            ask = getattr(client, name)
            setattr(client, name, lambda *a, ask=ask, name=name, **o: (asked.append(name), ask(*a, **o))[1])

    count(b.loop.reader.lookups, "list_topics", "get_watermark_offsets", "offsets_for_times")
    count(b.loop.reader.client(), "committed")
    assert b.starts.find(keys, 1.0) == dict.fromkeys(keys, 0)
    assert sorted(asked) == ["committed", "list_topics", "offsets_for_times", "offsets_for_times"]


@pytest.mark.parametrize("code", [KafkaError.LEADER_NOT_AVAILABLE, KafkaError.UNKNOWN_TOPIC_OR_PART])
def test_a_new_partition_has_no_start_while_the_broker_does_not_know_the_topic(
    kafka: InMemoryKafka, unopened: Make, code: int
) -> None:
    b = unopened(lambda _: None, where=ConsumeFromWhere.LAST_OFFSET).open()
    assert b.committed() == 0
    kafka.add_partitions("orders", 2)
    kafka.append("orders", b"", partition=1)
    new = TopicPartitionKey("orders", 1)
    lookups = b.loop.reader.lookups
    answer, unknown = lookups.list_topics, SimpleNamespace(error=KafkaError(code), partitions={})
    lookups.list_topics = lambda topic, **_: SimpleNamespace(topics={topic: unknown})
    with pytest.raises(KafkaException):
        b.starts.find([new], 1.0)
    lookups.list_topics = answer
    assert b.starts.find([new], 1.0) == {new: 0}, "the group has begun before there was this partition"
