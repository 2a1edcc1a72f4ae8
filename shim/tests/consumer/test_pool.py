"""Listener threads: what is handed over comes back once, their number changes, and they end."""

import threading
from collections.abc import Callable, Iterator
from queue import Empty
from typing import Any

import pytest

from rocketshim.consumer.dispatch import ListenerPool
from rocketshim.core.process_queue import Chunk, ProcessQueue
from rocketshim_topics.coordinates import TopicPartitionKey

from .conftest import Record

GUARD_S = 60.0


Make = Callable[..., ListenerPool]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make a pool: `make(run, size)`; ended after the test."""
    made: list[ListenerPool] = []

    def one(run: Callable[[Chunk], Any], size: int = 1) -> ListenerPool:
        made.append(ListenerPool(run, size, "test"))
        return made[-1]

    yield one
    for pool in made:
        pool.stop(GUARD_S)


def chunks(count: int) -> list[Chunk]:
    queue: ProcessQueue = ProcessQueue(TopicPartitionKey("orders", 0))
    queue.put([Record(offset) for offset in range(count)])
    taken = [queue.take(1) for _ in range(count)]
    return [chunk for chunk in taken if chunk is not None]


def test_each_chunk_is_returned_once_with_its_outcomes(make: Make) -> None:
    pool = make(lambda chunk: chunk.messages[0].offset(), 4)
    given = chunks(50)
    for chunk in given:
        pool.submit(chunk)
    results = [pool.wait(GUARD_S, 0) for _ in given]
    assert sorted(result.outcomes for result in results) == list(range(50))  # type: ignore[type-var]
    assert {id(result.chunk) for result in results} == {id(chunk) for chunk in given}
    assert all(result.elapsed_ns >= 0 and result.died is None for result in results)
    with pytest.raises(Empty):
        pool.wait(0.0, 0)


def test_a_thread_that_dies_of_a_defect_reports_it_and_the_others_continue(make: Make) -> None:
    def run(chunk: Chunk) -> None:
        if chunk.messages[0].offset() == 0:
            raise AssertionError("a defect")

    pool = make(run, 2)
    for chunk in chunks(3):
        pool.submit(chunk)
    died = [pool.wait(GUARD_S, 0).died for _ in range(3)]
    assert [str(error) for error in died if error is not None] == ["a defect"]


def test_the_number_of_threads_grows_and_shrinks(make: Make) -> None:
    inside, go = threading.Semaphore(0), threading.Event()

    def run(chunk: Chunk) -> None:
        del chunk
        inside.release()
        assert go.wait(GUARD_S)

    pool = make(run, 1)
    for chunk in chunks(3):
        pool.submit(chunk)
    assert inside.acquire(timeout=GUARD_S)
    pool.resize(3)
    assert inside.acquire(timeout=GUARD_S)  # all three are running at the same time
    assert inside.acquire(timeout=GUARD_S)
    pool.resize(1)
    go.set()
    for _ in range(3):
        pool.wait(GUARD_S, 0)
    for chunk in chunks(5):
        pool.submit(chunk)
    for _ in range(5):
        pool.wait(GUARD_S, 0)
    assert pool.size == 1


def test_stop_waits_for_running_chunks_at_most_the_timeout(make: Make) -> None:
    inside, go = threading.Event(), threading.Event()

    def run(chunk: Chunk) -> None:
        del chunk
        inside.set()
        assert go.wait(GUARD_S)

    pool = make(run)
    (chunk,) = chunks(1)
    pool.submit(chunk)
    assert inside.wait(GUARD_S)
    assert not pool.stop(0.0)
    go.set()
    assert pool.stop(GUARD_S)
    assert pool.stop(GUARD_S)


def test_a_listener_thread_is_recognised(make: Make) -> None:
    own: list[bool] = []
    pools: list[ListenerPool] = []
    pool = make(lambda _: own.append(pools[0].is_own_thread()))
    pools.append(pool)
    (chunk,) = chunks(1)
    pool.submit(chunk)
    pool.wait(GUARD_S, 0)
    assert own == [True]
    assert not pool.is_own_thread()


@pytest.mark.usefixtures("broken_logging")
def test_a_thread_that_dies_reports_it_before_it_logs(make: Make, hostile: BaseException) -> None:
    def run(chunk: Chunk) -> None:
        del chunk
        raise hostile

    pool = make(run)
    (chunk,) = chunks(1)
    pool.submit(chunk)
    assert pool.wait(GUARD_S, 0).died is hostile
