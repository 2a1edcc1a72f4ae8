"""What is handed out, and what results do to the queues they come from."""

from collections.abc import Iterable
from queue import SimpleQueue
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.consumer.dispatch import Result
from rocketshim.core.next_hop import FailedMessage
from rocketshim.core.process_queue import Chunk, ProcessQueue
from rocketshim_topics import Failure
from rocketshim_topics.coordinates import TopicPartitionKey

from ..conftest import Record, dispatch_of


class Pool:
    """Keeps what it is given."""

    shares_chunks = False

    def __init__(self, size: int = 20) -> None:
        self.size = size
        self.results: SimpleQueue[Result] = SimpleQueue()
        self.given: list[Chunk] = []

    def submit(self, chunk: Chunk) -> None:
        self.given.append(chunk)


class Desk:
    """A dispatch with its pool, and a queue with a number of messages."""

    def __init__(self, count: int = 0, *, batch_count: int = 1, size: int = 20) -> None:
        self.pool = Pool(size)
        self.sent_back: list[int | None] = []
        self.dispatch = dispatch_of(self.pool, self, batch_count)
        self.queue: ProcessQueue = ProcessQueue(TopicPartitionKey("orders", 0))
        self.queue.put([Record(offset) for offset in range(count)])

    def send(self, _: Any, outcome: FailedMessage) -> None:
        """The sink of what failed."""
        self.sent_back.append(outcome.message.offset())

    def work(self, chunk: Chunk, *, failed: Iterable[int] = (), elapsed_ns: int = 1_000) -> None:
        """What a listener thread does with a chunk."""
        chunk.take_back()
        outcomes = [
            FailedMessage(message, Failure("Oops", "", 0))
            for message in chunk.messages
            if message.offset() in set(failed)
        ]
        self.pool.results.put(Result(chunk, outcomes or None, elapsed_ns))

    def learn(self, per_message_ns: int) -> None:
        """Report enough chunks with this time per message."""
        other: ProcessQueue = ProcessQueue(TopicPartitionKey("learnt", 0))
        other.put([Record(offset) for offset in range(40)])
        while (chunk := other.take(1)) is not None:
            self.dispatch.in_flight += 1
            self.work(chunk, elapsed_ns=per_message_ns)
        self.dispatch.take_results(0)


@given(st.lists(st.integers(min_value=1, max_value=60), min_size=1, max_size=4), st.data())
def test_each_message_is_handed_out_once_and_each_failure_is_sent_back_once(
    counts: list[int], data: st.DataObject
) -> None:
    desk = Desk()
    queues = [ProcessQueue(TopicPartitionKey("orders", number)) for number in range(len(counts))]
    for queue, count in zip(queues, counts, strict=True):
        queue.put([Record(offset) for offset in range(count)])
    desk.dispatch.hand_out(queues)
    assert desk.dispatch.in_flight == sum(counts)
    failed_in_all = 0
    for chunk in desk.pool.given:
        failed = {m.offset() for m in chunk.messages if data.draw(st.booleans())}
        failed_in_all += len(failed)
        desk.work(chunk, failed=failed)
    desk.dispatch.take_results(0)
    assert desk.dispatch.in_flight == 0
    assert len(desk.sent_back) == failed_in_all == desk.dispatch.counts.failed
    assert desk.dispatch.counts.succeeded == sum(counts) - failed_in_all
    assert all(queue.msg_count == 0 or not queue.is_drained for queue in queues)
    assert sum(queue.msg_count for queue in queues) == failed_in_all  # unfinished until their next hop is stored


def test_a_stuck_chunk_is_split_and_its_pending_messages_are_taken_back() -> None:
    desk = Desk(64)
    desk.learn(1_000)
    desk.dispatch.hand_out([desk.queue])
    (stuck,) = desk.pool.given
    stuck.in_work = next(stuck.todo)
    desk.dispatch.take_results(10)
    assert len(desk.pool.given) == 1  # it was seen at this call for the first time
    desk.dispatch.take_results(20)
    parts = desk.pool.given[1:]
    assert [message.offset() for part in parts for message in part.messages] == list(range(1, 64))
    assert desk.dispatch.in_flight == 64
    for part in parts:
        desk.work(part)
    desk.dispatch.take_results(30)
    assert (desk.queue.msg_count, desk.queue.next_offset) == (1, None)


@pytest.mark.parametrize("batch_count", [1, 2])
def test_finished_messages_of_a_stuck_chunk_count_immediately(batch_count: int) -> None:
    desk = Desk(64, batch_count=batch_count)
    desk.learn(1_000)
    desk.dispatch.hand_out([desk.queue])
    (stuck,) = desk.pool.given
    before = [next(stuck.todo) for _ in range(10)]
    stuck.outcomes += [FailedMessage(before[at], Failure("Oops", "", 0)) for at in (2, 7)]
    stuck.in_work = held = [next(stuck.todo) for _ in range(batch_count)]
    for now_ms in (10, 20):
        desk.dispatch.take_results(now_ms)
    assert desk.sent_back == [2, 7]
    assert (desk.queue.next_offset, desk.dispatch.in_flight) == (2, 54)
    assert [message.offset() for message in stuck.messages] == [message.offset() for message in held]
    desk.queue.stored(stuck, [before[2], before[7]])
    assert desk.queue.next_offset == 10
    for part in desk.pool.given[1:]:
        desk.work(part)
    stuck.outcomes += [FailedMessage(held[0], Failure("Late", "", 0))]
    desk.pool.results.put(Result(stuck, stuck.outcomes, 1))
    desk.dispatch.take_results(30)
    assert desk.sent_back == [2, 7, 10]
    counts = desk.dispatch.counts
    assert (counts.succeeded - 40, counts.failed, desk.dispatch.in_flight) == (61, 3, 0)
    desk.queue.stored(stuck, held[:1])
    assert (desk.queue.next_offset, desk.queue.msg_count, desk.queue.msg_bytes) == (64, 0, 0)


def test_a_timed_out_call_that_succeeds_later_is_not_a_success() -> None:
    desk = Desk(2)
    desk.dispatch.hand_out([desk.queue])
    late, timely = desk.pool.given
    late.in_work = next(late.todo)
    desk.queue.expire(0, 100)
    assert len(desk.queue.expire(100, 100)) == 1
    for chunk in (late, timely):
        desk.work(chunk)
    desk.dispatch.take_results(100)
    assert (desk.dispatch.counts.succeeded, desk.dispatch.in_flight) == (1, 0)


def test_withheld_messages_are_no_longer_in_flight() -> None:
    desk = Desk(10)
    desk.dispatch.hand_out([desk.queue])
    desk.dispatch.withhold([desk.queue])
    assert desk.dispatch.in_flight == 0
    desk.dispatch.hand_out([desk.queue])
    assert len(desk.pool.given) == 10


def test_results_of_a_dropped_queue_resume_nothing() -> None:
    desk = Desk(1)
    desk.dispatch.hand_out([desk.queue])
    desk.queue.drop()
    desk.work(desk.pool.given[0], failed=[0])
    desk.dispatch.take_results(0)
    assert (desk.sent_back, desk.dispatch.in_flight) == ([], 0)


def test_the_first_defect_of_a_listener_thread_is_kept() -> None:
    desk = Desk(2)
    desk.dispatch.hand_out([desk.queue])
    first, second = AssertionError("first"), AssertionError("second")
    for chunk, error in zip(desk.pool.given, (first, second), strict=True):
        desk.pool.results.put(Result(chunk, None, 0, died=error))
    desk.dispatch.take_results(0)
    assert desk.dispatch.died is first
