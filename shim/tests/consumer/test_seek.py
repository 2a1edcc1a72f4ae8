"""Seeking: forwards and backwards, committed immediately, also during running calls; and pull intervals."""

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from rocketshim.errors import ConsumerError
from rocketshim.testing import InMemoryKafka
from rocketshim_topics.coordinates import TopicPartitionKey

Make = Callable[..., Any]
KEY = TopicPartitionKey("orders", 0)


def fill(kafka: InMemoryKafka, count: int) -> None:
    for _ in range(count):
        kafka.append("orders", b"")


def do(b: Any, targets: dict[TopicPartitionKey, int]) -> None:
    asked = b.loop.ask(lambda loop: loop.mode.seek(targets))
    b.turn()
    asked.result(0)


@pytest.mark.parametrize("target", [0, 3, 9, 10])
def test_reading_continues_at_the_requested_offset_which_is_committed(
    kafka: InMemoryKafka, bench: Make, target: int
) -> None:
    fill(kafka, 10)
    seen: list[int] = []
    b = bench(lambda message: seen.append(message.queue_offset))
    b.run()
    b.commit_now()
    assert b.committed() == 10
    seen.clear()
    do(b, {KEY: target})
    assert b.committed() == target
    b.run()
    assert seen == list(range(target, 10))
    b.commit_now()
    assert b.committed() == 10


def test_running_and_prefetched_messages_no_longer_count(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 10)
    seen: list[int] = []
    b = bench(lambda message: seen.append(message.queue_offset))
    b.turn(3)
    begun = b.pool.tasks[0]
    do(b, {KEY: 8})
    b.run()
    assert begun.queue.dropped
    assert seen == [8, 9]
    b.commit_now()
    assert b.committed() == 10


def test_a_queue_that_is_not_read_here_moves_nothing(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 3)
    b = bench(lambda message: None)  # noqa: ARG005
    b.run()
    b.commit_now()
    asked = b.loop.ask(lambda loop: loop.mode.seek({KEY: 0, TopicPartitionKey("orders", 7): 0}))
    b.turn()
    with pytest.raises(ConsumerError, match="orders/7"):
        asked.result(0)
    assert b.committed() == 3


def test_a_seek_that_cannot_be_committed_raises_in_its_caller(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 3)
    b = bench(lambda message: None)  # noqa: ARG005
    b.run()
    kafka.fail_commits(KafkaError(KafkaError.REBALANCE_IN_PROGRESS))
    asked = b.loop.ask(lambda loop: loop.mode.seek({KEY: 0}))
    b.turn()
    with pytest.raises(KafkaException):
        asked.result(0)
    b.run()
    b.commit_now()
    assert (b.loop.error, b.committed()) == (None, 3)


def test_with_a_pull_interval_one_fetch_comes_each_interval(kafka: InMemoryKafka, bench: Make) -> None:
    fill(kafka, 40)
    began = kafka.clock.monotonic_ns()
    times: list[int] = []
    b = bench(
        lambda message: times.append((kafka.clock.monotonic_ns() - began) // 1_000_000),  # noqa: ARG005
        settings={"pull_batch_size": 10, "pull_interval_ms": 400},
    )
    for _ in range(4_000):
        b.run(1)
        if len(times) == 40:
            break
    assert len(times) == 40
    assert times[-1] - times[0] >= 3 * 400 - 100  # four fetches of ten; one message more may come each half second
