"""A poll loop that begins partitions with care: what waits for a commit, or begins alone, or fails without a call."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition

from rocketshim.core.clock import now_ms_of
from rocketshim.core.process_deaths import CarefulStart, Handling
from rocketshim.core.start_position import CommitMetadata, decode_metadata, encode_metadata
from rocketshim.testing import InMemoryKafka

Make = Callable[..., Any]
OPEN = Handling(is_open=True)


def careful() -> CarefulStart:
    return CarefulStart(max_deaths=3, window=4)


def left(kafka: InMemoryKafka, handling: Handling, topic: str = "orders", position: int = 0) -> None:
    """What the last owner of partition 0 has committed."""
    before = kafka.consumer({"group.id": "g"})
    metadata = encode_metadata(CommitMetadata("d", 1, handling=handling))
    before.commit(offsets=[TopicPartition(topic, 0, position, metadata=metadata)], asynchronous=False)
    before.close()


def found(kafka: InMemoryKafka, topic: str = "orders") -> Handling | None:
    """What the last commit says."""
    commit = [each for each in kafka.commits("g") if each.topic == topic][-1]
    metadata = decode_metadata(commit.metadata)
    return None if metadata is None else metadata.handling


def send(kafka: InMemoryKafka, count: int, topic: str = "orders") -> None:
    for number in range(count):
        kafka.append(topic, b"%d" % number, partition=0)


def nothing(_: Any) -> None:
    """Succeed."""


@pytest.fixture
def seen() -> list[bytes | None]:
    """The bodies that the listener got."""
    return []


def test_an_owner_says_so_after_its_start_and_gives_back_at_its_end(
    kafka: InMemoryKafka, bench: Make, seen: list[Any]
) -> None:
    b = bench(lambda message: seen.append(message.body), care=careful())
    b.turn(2)
    assert found(kafka) == OPEN
    count = len(kafka.commits("g"))
    b.clock.advance(60_000)
    b.turn(4)
    assert len(kafka.commits("g")) == count
    b.loop.stop(1_000)
    b.loop.close()
    assert found(kafka) == Handling(is_open=False)


def test_after_an_open_end_nothing_begins_before_a_commit_has_noted_it(
    kafka: InMemoryKafka, bench: Make, seen: list[Any]
) -> None:
    left(kafka, OPEN)
    send(kafka, 6)
    kafka.fail_commits(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE), count=3)
    b = bench(lambda message: seen.append(message.body), care=careful())
    b.run(4)
    assert not seen
    for _ in range(4):
        b.clock.advance(500)
        b.run(3)
    b.run(6)
    assert seen == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert b.committed() == 6  # long before the interval


def test_the_commit_names_what_may_be_in_progress(kafka: InMemoryKafka, bench: Make) -> None:
    left(kafka, OPEN)
    send(kafka, 6)
    b = bench(nothing, care=careful())
    b.turn(4)
    assert found(kafka) == Handling(is_open=True, deaths=1, begun=((0, 1), (1, 1), (2, 1), (3, 1)))
    assert [chunk.messages[0].offset() for chunk in b.pool.tasks] == [0, 1, 2, 3]


def test_while_a_suspect_is_in_progress_nothing_else_of_the_consumer_is(
    kafka: InMemoryKafka, bench: Make, seen: list[Any]
) -> None:
    kafka.create_topic("bills")
    left(kafka, Handling(is_open=False, begun=((1, 1),)))
    send(kafka, 3)
    b = bench(lambda message: seen.append(message.topic), topics=("orders", "bills"), care=careful())
    while not (b.pool.tasks and b.pool.tasks[0].messages[0].offset() == 1):
        b.run(1)
    send(kafka, 2, "bills")
    b.turn(6)
    assert len(b.pool.tasks) == 1
    assert dict(found(kafka).begun)[1] == 2  # type: ignore[union-attr]
    b.run(8)
    assert sorted(seen) == ["bills", "bills", "orders", "orders", "orders"]


def test_a_message_at_the_limit_fails_without_a_call(kafka: InMemoryKafka, bench: Make, seen: list[Any]) -> None:
    left(kafka, Handling(is_open=True, begun=((1, 3),)))
    send(kafka, 3)
    b = bench(lambda message: seen.append(message.body), limit=2, care=careful())
    b.run(20)
    assert seen == [b"0", b"2"]
    headers = dict(b.dead()[0].headers() or ())
    assert (headers["FAIL_CLASS"], headers["RECONSUME_TIMES"]) == (b"ProcessDied", b"3")
    b.commit_now()
    assert b.committed() == 3


@pytest.mark.parametrize("pause_ms", [1_000, 700_000])
def test_a_call_that_lost_sessions_cut_off_does_not_fail(
    kafka: InMemoryKafka, bench: Make, seen: list[Any], pause_ms: int
) -> None:
    send(kafka, 2)
    care = CarefulStart(max_deaths=3, window=4, now_ms=now_ms_of(kafka.clock))
    b = bench(lambda message: seen.append(message.body), limit=0, care=care)
    for _ in range(8):
        b.turn(8)
        assert b.pool.tasks, "the message is handed out again"
        b.pool.tasks.clear()  # its call goes on
        kafka.evict(b.consumer)
        b.clock.advance(pause_ms)
        b.turn(8)
    b.run(12)
    assert set(seen) == {b"0", b"1"}
    assert not b.dead()


def test_a_message_whose_processes_died_is_retried_below_the_limit(kafka: InMemoryKafka, bench: Make) -> None:
    left(kafka, Handling(is_open=True, begun=((0, 3),)))
    send(kafka, 1)
    b = bench(nothing, care=careful())
    b.run(10)
    (retry,) = b.retries()
    headers = dict(retry.headers() or ())
    assert (headers["FAIL_CLASS"], headers["RECONSUME_TIMES"]) == (b"ProcessDied", b"3")


def test_suspects_come_alone_to_a_listener_of_batches(kafka: InMemoryKafka, bench: Make, seen: list[Any]) -> None:
    left(kafka, Handling(is_open=False, begun=((0, 1), (2, 1))))
    send(kafka, 12)
    b = bench(lambda messages: seen.append(len(messages)), batch_count=4, care=careful())
    b.run(30)
    assert seen[:3] == [1, 1, 1]
    assert sum(seen) == 12
    assert max(seen) == 4


@pytest.mark.parametrize("handling", [OPEN, Handling(is_open=False, begun=((0, 1),))])
def test_a_closing_consumer_gives_back_what_waits_for_a_commit(
    kafka: InMemoryKafka, bench: Make, seen: list[Any], handling: Handling
) -> None:
    left(kafka, handling)
    send(kafka, 3)
    b = bench(lambda message: seen.append(message.body), care=careful())
    kafka.fail_commits(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE), count=2)
    b.turn(4)
    assert b.loop.dispatch.awaits_commit
    began_ms = b.clock.monotonic_ns() // 1_000_000
    b.loop.stop(5_000)
    b.loop.close()
    assert b.clock.monotonic_ns() // 1_000_000 - began_ms < 1_000
    assert not seen
    assert found(kafka) == Handling(is_open=False, begun=handling.begun)
    assert b.loop.dispatch.in_flight == 0


def test_a_revoked_partition_gives_back_what_waits_for_a_commit(
    kafka: InMemoryKafka, bench: Make, seen: list[Any]
) -> None:
    left(kafka, OPEN)
    send(kafka, 3)
    b = bench(lambda message: seen.append(message.body), care=careful())
    kafka.fail_commits(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE), count=1)
    b.turn(2)
    b.loop.mode.drain_and_commit(list(b.loop.reader.partitions))
    assert found(kafka) == Handling(is_open=False)
    assert not b.loop.dispatch.awaits_commit
    assert b.loop.dispatch.in_flight == 0


def test_a_seek_ends_the_care(kafka: InMemoryKafka, bench: Make, seen: list[Any]) -> None:
    left(kafka, Handling(is_open=True, begun=((0, 2),)))
    send(kafka, 3)
    b = bench(lambda message: seen.append(message.body), care=careful())
    b.loop.mode.seek({key: 1 for key in b.loop.reader.partitions if key.topic == "orders"})
    b.run(6)
    assert seen == [b"1", b"2"]
    assert found(kafka) == OPEN
