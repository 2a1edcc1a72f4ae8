"""Every message is in one state: pending, in flight or done; the position never passes a message that is not done."""

import gc
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Barrier, Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rocketshim.core.process_queue import Chunk, ProcessQueue
from rocketshim_topics.coordinates import TopicPartitionKey

TIMEOUT_MS = 100


class Record:
    """A message of some size; one of size 0 is false in a boolean context, like Kafka's with an empty value."""

    def __init__(self, offset: int | None, size: int = 0) -> None:
        self._offset = offset
        self._size = size

    def offset(self) -> int | None:
        return self._offset

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"Record({self._offset}, {self._size})"


def records(*offsets: int) -> list[Record]:
    return [Record(offset) for offset in offsets]


def offsets_of(messages: list[Record]) -> list[int | None]:
    return [message.offset() for message in messages]


def queue_of(*offsets: int) -> ProcessQueue:
    queue: ProcessQueue = ProcessQueue(TopicPartitionKey("orders", 0))
    queue.put(records(*offsets))
    return queue


def taken(queue: ProcessQueue, limit: int = 100) -> Chunk:
    chunk = queue.take(limit)
    assert chunk is not None
    return chunk


def begin(chunk: Chunk, count: int = 1) -> list[Record]:
    """Act as a listener thread: take messages from the chunk and process them in one call."""
    batch = [next(chunk.todo) for _ in range(count)]
    chunk.in_work = batch
    return batch


def work_off(chunk: Chunk) -> None:
    """Act as a listener thread that processes a whole chunk."""
    while chunk.todo_count:
        begin(chunk)


@dataclass(eq=False)
class ChunkModel:
    """The model's state of one chunk."""

    chunk: Chunk
    todo: list[int]
    begun: list[int] = field(default_factory=list)
    call: list[int] | None = None
    seen_ms: int | None = None
    expired: set[int] = field(default_factory=set)
    reported: bool = False


class QueueAgainstNaiveModel(RuleBasedStateMachine):
    """Any interleaving of the owner's and the listener threads' steps agrees with a model of plain lists and sets."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: ProcessQueue = ProcessQueue(TopicPartitionKey("orders", 4), epoch=2)
        self.put: dict[int, Record] = {}  # everything that was ever put, in order
        self.pending: list[int] = []
        self.withheld: list[int] | None = None  # never begun after `withhold` was called
        self.done: set[int] = set()
        self.awaiting_hop: list[tuple[ChunkModel, int]] = []
        self.sent: list[int] = []  # every message that had to be sent back
        self.tasks: list[ChunkModel] = []
        self.now_ms = 0
        self.position: int | None = None
        self.skipped: list[int] = []

    # --- the owner thread

    @rule(distance=st.integers(-3, 6))
    def skip_what_no_reader_sees(self, distance: int) -> None:
        end = self.queue.next_put
        self.queue.skip_to(end + distance)
        if distance > 0 and not self.pending and self.withheld is None and not self.queue.dropped:
            self.skipped.append(end + distance)

    @rule(steps=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), max_size=6))
    def put_messages(self, steps: list[tuple[int, int]]) -> None:
        offset = max([*self.put, *(each - 1 for each in self.skipped)], default=-1)
        messages = []
        for step, size in steps:
            offset += step
            messages.append(Record(offset, size))
        if self.queue.dropped:
            with pytest.raises(ValueError, match="dropped"):
                self.queue.put(messages)
            return
        self.queue.put(messages)
        for message in [] if self.withheld is not None else messages:
            offset = message.offset() or 0
            self.put[offset] = message
            self.pending.append(offset)

    @precondition(lambda self: self.put and self.withheld is None and not self.queue.dropped)
    @rule(back=st.integers(0, 3))
    def put_what_does_not_rise(self, back: int) -> None:
        with pytest.raises(ValueError, match="do not rise"):
            self.queue.put(records(max(self.put) - back))

    @rule(limit=st.integers(1, 5))
    def take(self, limit: int) -> None:
        chunk = self.queue.take(limit)
        if self.queue.dropped or self.withheld is not None or not self.pending:
            assert chunk is None
            return
        assert chunk is not None
        expected, self.pending = self.pending[:limit], self.pending[limit:]
        assert [message.offset() for message in chunk.messages] == expected
        self.tasks.append(ChunkModel(chunk, list(expected)))

    @precondition(lambda self: self.tasks)
    @rule(data=st.data(), limit=st.integers(1, 3))
    def split(self, data: st.DataObject, limit: int) -> None:
        task = data.draw(st.sampled_from(self.tasks))
        chunks = self.queue.split(task.chunk, limit)
        if self.queue.dropped or task.reported:
            assert chunks == []
            return
        parts = [task.todo[at : at + limit] for at in range(0, len(task.todo), limit)]
        assert [[message.offset() for message in chunk.messages] for chunk in chunks] == parts
        self.tasks += [ChunkModel(chunk, list(part)) for chunk, part in zip(chunks, parts, strict=True)]
        task.todo = []

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        self._report(data.draw(st.sampled_from(self.tasks)), data)

    @precondition(lambda self: any(not task.reported for task in self.tasks))
    @rule(data=st.data(), sweeps=st.sampled_from([0, 1, 2]))
    def work_off_and_report(self, data: st.DataObject, sweeps: int) -> None:
        """Let a listener thread process the rest of its chunk; the last call may take very long."""
        task = data.draw(st.sampled_from([task for task in self.tasks if not task.reported]))
        while task.todo and task.chunk.todo_count:
            self._begin(task, min(len(task.todo), 2))
        for _ in range(sweeps):
            self._sweep(TIMEOUT_MS)
        self._report(task, data)

    def _report(self, task: ChunkModel, data: st.DataObject) -> None:
        refused = data.draw(st.sets(st.sampled_from(task.begun))) if task.begun else set()
        failed = [self.put[offset] for offset in sorted(refused, reverse=True)]
        if task.reported or (task.todo and not self.queue.dropped):
            with pytest.raises(ValueError, match=r"reported before|not begun"):
                self.queue.report(task.chunk, failed)
            return
        to_send = self.queue.report(task.chunk, failed)
        task.reported = True
        task.call = None
        if self.queue.dropped:
            assert to_send == []
            return
        expected = [offset for offset in task.begun if offset in refused and offset not in task.expired]
        assert to_send == [self.put[offset] for offset in expected]
        self.sent += expected
        self.awaiting_hop += [(task, offset) for offset in expected]
        self.done |= set(task.begun) - refused - task.expired

    @precondition(lambda self: any(task.call for task in self.tasks))
    @rule(data=st.data())
    def report_part(self, data: st.DataObject) -> None:
        """Report the completed messages of a thread whose call still runs."""
        task = data.draw(st.sampled_from([task for task in self.tasks if task.call]))
        call = task.call or []
        completed = [offset for offset in task.begun if offset not in call]
        refused = data.draw(st.sets(st.sampled_from(completed))) if completed else set()
        failed = [self.put[offset] for offset in refused]
        if self.queue.dropped or task.reported:
            assert self.queue.report_part(task.chunk, set(call), failed) == []
            return
        if task.todo:
            with pytest.raises(ValueError, match="not begun"):
                self.queue.report_part(task.chunk, set(call), failed)
            return
        expected = [offset for offset in completed if offset in refused and offset not in task.expired]
        assert self.queue.report_part(task.chunk, set(call), failed) == [self.put[offset] for offset in expected]
        self.sent += expected
        self.awaiting_hop += [(task, offset) for offset in expected]
        self.done |= set(completed) - refused - task.expired
        task.begun = list(call)

    @precondition(lambda self: self.awaiting_hop)
    @rule(data=st.data())
    def stored(self, data: st.DataObject) -> None:
        pair = data.draw(st.sampled_from(self.awaiting_hop))
        task, offset = pair
        self.queue.stored(task.chunk, [self.put[offset]])
        if not self.queue.dropped:
            self.awaiting_hop.remove(pair)
            self.done.add(offset)

    @precondition(lambda self: self.tasks and not self.queue.dropped)
    @rule(data=st.data())
    def stored_but_not_owed(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.tasks))
        offset = data.draw(st.sampled_from(sorted(self.put)))
        if (task, offset) not in self.awaiting_hop:
            with pytest.raises(ValueError, match="await a next hop"):
                self.queue.stored(task.chunk, [self.put[offset]])

    @rule(sweeps=st.lists(st.sampled_from([0, 40, TIMEOUT_MS - 1, TIMEOUT_MS]), min_size=1, max_size=2))
    def expire(self, sweeps: list[int]) -> None:
        for passed_ms in sweeps:
            self._sweep(passed_ms)

    def _sweep(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        named = self.queue.expire(self.now_ms, TIMEOUT_MS)
        expected: list[tuple[Chunk, Record]] = []
        for task in [] if self.queue.dropped else self.tasks:
            if task.call is None or task.reported:
                task.seen_ms = None
            elif task.seen_ms is None:
                task.seen_ms = self.now_ms
            elif self.now_ms - task.seen_ms >= TIMEOUT_MS:
                late = [offset for offset in task.call if offset not in task.expired]
                task.expired.update(late)
                self.sent += late
                self.awaiting_hop += [(task, offset) for offset in late]
                expected += [(task.chunk, self.put[offset]) for offset in late]
        assert named == expected

    # --- listener threads

    @precondition(lambda self: self.tasks)
    @rule(data=st.data(), count=st.integers(1, 3))
    def begin_a_call(self, data: st.DataObject, count: int) -> None:
        task = data.draw(st.sampled_from(self.tasks))
        count = min(count, len(task.todo))
        if count and not task.reported and task.chunk.todo_count >= count:
            self._begin(task, count)

    def _begin(self, task: ChunkModel, count: int) -> None:
        begin(task.chunk, count)
        task.call, task.todo = task.todo[:count], task.todo[count:]
        task.begun += task.call
        task.seen_ms = None

    @precondition(lambda self: self.tasks)
    @rule(data=st.data())
    def end_a_call(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(self.tasks))
        task.chunk.in_work = task.call = None

    # --- invariants

    @invariant()
    def nothing_is_said_after_drop(self) -> None:
        if self.queue.dropped:
            assert self.queue.next_offset is None
            assert (self.queue.msg_count, self.queue.msg_bytes, self.queue.span, self.queue.pending_count) == (
                0,
                0,
                0,
                0,
            )
            assert not self.queue.chunks

    @invariant()
    def every_message_is_in_exactly_one_state(self) -> None:
        if self.queue.dropped:
            return
        assert self.queue.pending_count == len(self.pending)
        awaiting_hop = [offset for _, offset in self.awaiting_hop]
        in_work = [offset for task in self.tasks if not task.reported for offset in (*task.begun, *task.todo)]
        in_flight = [offset for offset in in_work if offset not in self.done]
        in_flight += [offset for offset in awaiting_hop if offset not in in_work]  # reported earlier or with its chunk
        assert sorted([*self.pending, *in_flight, *self.done, *(self.withheld or ())]) == list(self.put)
        chunked = [message.offset() for chunk in self.queue.chunks for message in chunk.messages]
        assert sorted(offset for offset in chunked if offset is not None) == sorted(in_work)

    @invariant()
    def counts_and_bytes_add_up(self) -> None:
        if self.queue.dropped:
            return
        open_ = [message for offset, message in self.put.items() if offset not in self.done]
        assert self.queue.msg_count == len(open_)
        assert self.queue.msg_bytes == sum(map(len, open_))
        assert self.queue.span == (max(self.put) - (open_[0].offset() or 0) if open_ else 0)

    @invariant()
    def position_is_the_longest_prefix_that_is_done_and_never_goes_back(self) -> None:
        if self.queue.dropped:
            return
        position = None
        for offset in self.put:
            if offset not in self.done:
                break
            position = offset + 1
        first_open = min((offset for offset in self.put if offset not in self.done), default=None)
        passed = [each for each in self.skipped if first_open is None or each <= first_open]
        position = max([*passed, *([] if position is None else [position])], default=None)
        assert self.queue.next_offset == position
        assert self.position is None or (position is not None and position >= self.position)
        self.position = position

    @invariant()
    def settled_says_that_no_listener_holds_a_message_and_no_hop_is_owed(self) -> None:
        is_busy = any(not task.reported and (task.begun or task.todo) for task in self.tasks)
        assert self.queue.is_drained == (self.queue.dropped or not (is_busy or self.awaiting_hop))

    @invariant()
    def no_message_is_sent_back_twice(self) -> None:
        assert len(self.sent) == len(set(self.sent))


class QueueThatIsGivenUp(QueueAgainstNaiveModel):
    """The same, but the assignment may end at any moment."""

    @precondition(lambda self: self.put and not self.queue.dropped)
    @rule()
    def withhold(self) -> None:
        unbegun = [offset for task in self.tasks if not task.reported for offset in task.todo]
        self.withheld = [*(self.withheld or ()), *unbegun]
        for task in self.tasks:
            task.todo = []
        assert self.queue.withhold() == len(unbegun)

    @precondition(lambda self: len(self.put) > 3)
    @rule()
    def drop(self) -> None:
        self.queue.drop()


TestQueueAgainstNaiveModel = QueueAgainstNaiveModel.TestCase
TestQueueAgainstNaiveModel.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestQueueThatIsGivenUp = QueueThatIsGivenUp.TestCase
TestQueueThatIsGivenUp.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_chunk_is_handed_out_in_delivery_order_over_holes() -> None:
    queue = queue_of(3, 9, 10, 400)
    assert offsets_of(list(taken(queue, 3).messages)) == [3, 9, 10]
    assert offsets_of(list(taken(queue, 3).messages)) == [400]
    assert queue.take(3) is None


def test_split_takes_back_what_the_thread_has_not_begun_and_nothing_else() -> None:
    queue = queue_of(0, 1, 2, 3)
    chunk = taken(queue)
    begin(chunk)
    parts = queue.split(chunk)
    assert [offsets_of(list(part.messages)) for part in parts] == [[1], [2], [3]]
    assert [offsets_of(list(part.todo)) for part in parts] == [[1], [2], [3]]
    assert offsets_of(list(chunk.messages)) == [0]
    assert not chunk.todo_count
    assert queue.split(chunk) == []


def test_thread_and_owner_that_take_concurrently_never_get_the_same_message() -> None:
    for _ in range(50):
        queue = queue_of(*range(500))
        chunk = taken(queue, 500)
        begun: list[Record] = []
        ready = Barrier(2)

        def task(todo: Iterator[Record] = chunk.todo, begun: list[Record] = begun, ready: Barrier = ready) -> None:
            ready.wait()
            for record in todo:
                begun.append(record)  # noqa: PERF402 - one by one, as a listener thread does

        thread = Thread(target=task)
        thread.start()
        ready.wait()
        parts = queue.split(chunk, 500)
        thread.join()
        assert offsets_of(begun) == offsets_of(list(chunk.messages))
        assert offsets_of(begun + [record for part in parts for record in part.messages]) == list(range(500))
        queue.report(chunk)
        assert queue.next_offset == (len(begun) or None)


def test_chunk_split_before_its_thread_began_is_reported_empty_after_the_others() -> None:
    """All parts may be done before the thread reaches the empty chunk."""
    queue = queue_of(0, 1)
    chunk = taken(queue)
    for part in queue.split(chunk):
        work_off(part)
        queue.report(part)
    assert queue.next_offset == 2
    assert queue.report(chunk) == []
    assert queue.msg_count == 0


def test_all_chunks_in_flight_can_be_split_in_one_loop() -> None:
    queue = queue_of(*range(6))
    taken(queue, 3)
    taken(queue, 3)
    for chunk in queue.chunks:
        queue.split(chunk)
    assert sorted(len(chunk.messages) for chunk in queue.chunks) == [0, 0, 1, 1, 1, 1, 1, 1]


def test_failed_message_blocks_the_position_until_its_next_hop_is_stored() -> None:
    queue = queue_of(0, 1, 2)
    chunk = taken(queue)
    work_off(chunk)
    failed = [chunk.messages[1]]
    assert queue.report(chunk, failed) == failed
    assert queue.next_offset == 1
    assert queue.msg_count == 1
    queue.stored(chunk, [failed[0]])
    assert queue.next_offset == 3
    assert queue.msg_count == 0


def test_failed_messages_come_back_in_delivery_order_and_once() -> None:
    queue = queue_of(0, 1, 2)
    chunk = taken(queue)
    work_off(chunk)
    first, _, last = chunk.messages
    assert queue.report(chunk, [last, first, last]) == [first, last]


def test_report_that_names_an_unknown_message_changes_nothing() -> None:
    queue = queue_of(0, 1)
    chunk, other = taken(queue, 1), taken(queue, 1)
    work_off(chunk)
    with pytest.raises(ValueError, match="not all"):
        queue.report(chunk, list(other.messages))
    assert not chunk.reported
    assert queue.msg_count == 2
    assert queue.report(chunk) == []
    assert queue.next_offset == 1


def test_chunk_of_another_queue_is_refused() -> None:
    queue, stranger = queue_of(0), queue_of(0)
    chunk = taken(stranger)
    work_off(chunk)
    with pytest.raises(ValueError, match="not one of"):
        queue.report(chunk)
    assert not chunk.reported
    assert queue.split(chunk) == []
    stranger.report(chunk)
    assert stranger.next_offset == 1


def test_a_second_stored_is_refused_and_counts_once() -> None:
    queue = queue_of(0, 1)
    chunk = taken(queue)
    work_off(chunk)
    message = chunk.messages[0]
    queue.report(chunk, [message])
    queue.stored(chunk, [message])
    with pytest.raises(ValueError, match="await a next hop"):
        queue.stored(chunk, [message])
    assert (queue.msg_count, queue.next_offset) == (0, 2)


@pytest.mark.parametrize("limit", [0, -1])
def test_chunk_of_less_than_one_message_is_refused(limit: int) -> None:
    queue = queue_of(0)
    with pytest.raises(ValueError, match="at least one"):
        queue.take(limit)
    assert queue.pending_count == 1


@pytest.mark.parametrize("offsets", [(5, 4), (5, 5), (None,), (5, None), (2,)])
def test_put_of_offsets_that_do_not_rise_changes_nothing(offsets: tuple[int | None, ...]) -> None:
    queue = queue_of(1, 2)
    with pytest.raises(ValueError, match="do not rise"):
        queue.put([Record(offset) for offset in offsets])
    assert (queue.pending_count, queue.msg_count) == (2, 2)


def test_put_below_what_was_taken_is_refused() -> None:
    queue = queue_of(7)
    taken(queue)
    with pytest.raises(ValueError, match="do not rise"):
        queue.put(records(7))


def test_empty_put_is_allowed() -> None:
    queue = queue_of()
    assert queue.msg_count == 0
    assert queue.take(1) is None


@given(sweep_ms=st.integers(1, 500), timeout_ms=st.integers(1, 2_000), phase=st.integers(0, 499))
def test_sweep_reports_a_call_within_two_sweeps_after_the_timeout(sweep_ms: int, timeout_ms: int, phase: int) -> None:
    queue = queue_of(0)
    chunk = taken(queue)
    begun_ms = 10_000
    now_ms = begun_ms + phase % sweep_ms
    queue.expire(now_ms - sweep_ms, timeout_ms)
    begin(chunk)
    while not queue.expire(now_ms, timeout_ms):
        now_ms += sweep_ms
    assert timeout_ms <= now_ms - begun_ms < timeout_ms + 2 * sweep_ms


def test_each_call_has_its_own_age() -> None:
    """A call is not old because its chunk is old."""
    queue = queue_of(0, 1, 2)
    chunk = taken(queue)
    for now_ms in (0, 90, 180):
        begin(chunk)
        assert queue.expire(now_ms, TIMEOUT_MS) == []
    assert queue.oldest_in_work_ms(230) == 50
    assert [message.offset() for _, message in queue.expire(280, TIMEOUT_MS)] == [2]


def test_expired_message_is_sent_once_whatever_its_listener_answers_later() -> None:
    queue = queue_of(0, 1)
    chunk = taken(queue)
    batch = begin(chunk, 2)
    queue.expire(0, TIMEOUT_MS)
    assert queue.expire(TIMEOUT_MS, TIMEOUT_MS) == [(chunk, batch[0]), (chunk, batch[1])]
    assert queue.expire(9 * TIMEOUT_MS, TIMEOUT_MS) == []
    queue.stored(chunk, [batch[0]])
    assert queue.next_offset == 1
    assert queue.report(chunk, batch) == []
    assert queue.next_offset == 1
    queue.stored(chunk, [batch[1]])
    assert (queue.next_offset, queue.msg_count) == (2, 0)


def test_late_success_of_an_expired_message_does_not_finish_it() -> None:
    """Its second copy is in flight; the message finishes only when that copy is stored."""
    queue = queue_of(0)
    chunk = taken(queue)
    (message,) = begin(chunk)
    queue.expire(0, TIMEOUT_MS)
    queue.expire(TIMEOUT_MS, TIMEOUT_MS)
    assert queue.report(chunk) == []
    assert queue.next_offset is None
    queue.stored(chunk, [message])
    assert queue.next_offset == 1


def test_call_that_hangs_blocks_neither_its_neighbours_nor_their_positions() -> None:
    queue = queue_of(0, 1, 2)
    chunk = taken(queue)
    begin(chunk)
    for part in queue.split(chunk):
        work_off(part)
        queue.report(part)
    assert queue.next_offset is None
    assert (queue.msg_count, queue.span) == (1, 2)


def test_a_call_that_never_ends_lets_its_neighbour_be_reported_after_another_late_call_has_ended() -> None:
    queue = queue_of(0, 1, 2)
    chunk = taken(queue)
    slow, endless, neighbour = chunk.take_back()
    chunk.calls = {1: [slow], 2: [endless]}
    queue.expire(0, TIMEOUT_MS)
    expired = queue.expire(TIMEOUT_MS, TIMEOUT_MS)
    chunk.calls = {2: [endless], 3: [neighbour]}
    queue.report_part(chunk, still_open={1, 2}, failed=())
    queue.stored(chunk, [message for _, message in expired])
    chunk.calls = {2: [endless]}
    assert list(queue.late) == [chunk]
    queue.report_part(chunk, still_open={1}, failed=())
    assert queue.next_offset == 3
    assert list(queue.late) == []


def test_age_of_the_oldest_call_counts_from_first_sight() -> None:
    queue = queue_of(0, 1)
    assert queue.oldest_in_work_ms(5) == 0
    slow, quick = taken(queue, 1), taken(queue, 1)
    begin(slow)
    queue.expire(100, TIMEOUT_MS)
    begin(quick)
    queue.expire(150, TIMEOUT_MS)
    assert queue.oldest_in_work_ms(170) == 70
    queue.report(slow)
    assert queue.oldest_in_work_ms(170) == 20


def test_results_after_drop_are_ignored() -> None:
    queue = queue_of(0, 1, 2)
    chunk, awaiting_hop = taken(queue, 1), taken(queue, 1)
    work_off(awaiting_hop)
    (failed,) = queue.report(awaiting_hop, awaiting_hop.messages)
    queue.drop()
    queue.drop()
    queue.stored(awaiting_hop, [failed])
    work_off(chunk)
    assert queue.report(chunk, chunk.messages) == []
    assert queue.expire(10 * TIMEOUT_MS, TIMEOUT_MS) == []
    assert queue.take(1) is None
    assert queue.next_offset is None


def test_withheld_queue_begins_no_message_and_commits_those_in_progress() -> None:
    """Pending messages, messages in a chunk that no thread has begun, and late arrivals are not begun."""
    queue = queue_of(*range(8))
    at_work, waiting = taken(queue, 3), taken(queue, 3)
    batch = begin(at_work)
    assert queue.withhold() == 2 + 3
    assert queue.withhold() == 0
    queue.put(records(8))
    assert queue.take(10) is None
    assert not queue.is_drained
    assert queue.report(waiting) == []
    assert queue.report(at_work, batch) == batch
    assert not queue.is_drained
    queue.stored(at_work, [batch[0]])
    assert queue.is_drained
    assert queue.next_offset == 1


def test_thread_may_report_a_chunk_of_a_dropped_queue() -> None:
    queue = queue_of(0, 1)
    chunk = taken(queue)
    queue.drop()
    assert queue.report(chunk) == []


def test_unbegun_messages_cannot_be_reported() -> None:
    queue = queue_of(0, 1)
    chunk = taken(queue)
    begin(chunk)
    with pytest.raises(ValueError, match="not begun"):
        queue.report(chunk)
    assert queue.next_offset is None


def test_dropped_queue_frees_its_messages_although_a_slow_listener_still_has_a_chunk() -> None:
    queue = queue_of(0)
    chunk = taken(queue)
    queue.put(records(1, 2))
    taken(queue, 1)
    waiting = queue._pending[0][queue._head_taken :]
    alive = [weakref.ref(message) for message in (*queue.chunks[1].messages, *waiting)]
    del waiting
    assert len(alive) == 2
    queue.drop()
    gc.collect()
    assert [reference() for reference in alive] == [None, None]
    assert chunk.queue is queue


def test_stuck_message_does_not_keep_the_ones_behind_it_in_memory() -> None:
    queue = queue_of(0)
    taken(queue)
    behind = records(*range(1, 100))
    alive = [weakref.ref(message) for message in behind]
    queue.put(behind)
    del behind
    chunk = taken(queue)
    work_off(chunk)
    queue.report(chunk)
    del chunk
    gc.collect()
    assert not [reference for reference in alive if reference() is not None]
    assert (queue.msg_count, queue.span, queue.next_offset) == (1, 99, None)


def test_a_message_in_flight_does_not_keep_its_chunk_in_memory() -> None:
    queue = queue_of(0, 1, 2)
    chunk = taken(queue)
    work_off(chunk)
    others = [weakref.ref(chunk.messages[0]), weakref.ref(chunk.messages[2])]
    (failed,) = queue.report(chunk, [chunk.messages[1]])
    gc.collect()
    assert [other() for other in others] == [None, None]
    queue.stored(chunk, [failed])
    assert queue.next_offset == 3


def test_a_chunk_is_split_into_chunks_of_the_requested_size() -> None:
    queue = queue_of(*range(10))
    chunk = taken(queue)
    begin(chunk)
    parts = queue.split(chunk, 4)
    assert [offsets_of(list(part.messages)) for part in parts] == [[1, 2, 3, 4], [5, 6, 7, 8], [9]]
    assert offsets_of(list(chunk.messages)) == [0]
    for part in [chunk, *parts]:
        work_off(part)
        queue.report(part)
    assert queue.next_offset == 10


def test_a_split_into_empty_chunks_is_refused() -> None:
    queue = queue_of(0, 1)
    chunk = taken(queue)
    with pytest.raises(ValueError, match="limit=0"):
        queue.split(chunk, 0)
    assert chunk.todo_count == 2


def test_no_message_of_a_dropped_queue_is_begun() -> None:
    queue = queue_of(0, 1, 2)
    chunk = taken(queue)
    begin(chunk)
    queue.drop()
    assert not chunk.todo_count
    assert queue.report(chunk, chunk.messages) == []
