"""A queue of the schedule topic is first-in-first-out, never early, and only confirmations move its position.

The second half drives queues with a simulation of brokers and a worker: leaders whose clocks drift and step, partitions
that move between leaders, slow fetches and probes, and a worker that is restarted.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rocketshim.core.level_queue import Buffer, Due, LevelQueue

MS = 1_000_000
S = 1_000 * MS
EPOCH_MS = 1_700_000_000_000


class Record:
    """A record with an empty value: false in a boolean context."""

    def __init__(
        self, offset: int | None, append_ms: int = EPOCH_MS, size: int = 0, *, is_stamped: bool = True
    ) -> None:
        self._offset = offset
        self._append_ms = append_ms
        self._size = size
        self._kind = 2 if is_stamped else 1

    def offset(self) -> int | None:
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        return self._kind, self._append_ms

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"Record({self._offset}, {self._append_ms - EPOCH_MS:+}, {self._size})"


def records(*offsets: int, append_ms: int = EPOCH_MS) -> list[Record]:
    return [Record(offset, append_ms) for offset in offsets]


def offsets_of(due: Due[Record] | None) -> list[int | None]:
    return [] if due is None else [record.offset() for record in due.records]


def patience_ns(delay_ms: int) -> int:
    """Return the delay and a thousandth more."""
    return delay_ms * 1_001_000


# --- one queue, step by step ------------------------------------------------------------------------------------------


class QueueAgainstNaiveModel(RuleBasedStateMachine):
    """Offers, probes, takes, confirmations and failures in any order agree with a model of plain lists."""

    @initialize(delay_ms=st.sampled_from([0, 1, 32, 1_000]))
    def begin(self, delay_ms: int) -> None:
        self.queue: LevelQueue[Record] = LevelQueue(delay_ms, full_count=8, full_bytes=20)
        self.delay_ms = delay_ms
        self.now_ns = 100 * S
        self.offered: dict[int, tuple[Record, int]] = {}  # offset -> record, first sight
        self.waiting: list[int] = []
        self.sizes: dict[int, int] = {}  # offset -> mean size of the records offered together, in bytes
        self.readings: list[tuple[int, int]] = []
        self.flights: list[Due[Record]] = []
        self.failed: list[Due[Record]] = []
        self.confirmed: set[int] = set()
        self.position: int | None = None

    def naive_due(self, offset: int) -> bool:
        """Return whether its maximum wait has passed, or a reading at or after the end of its batch dates it."""
        record, seen_ns = self.offered[offset]
        if self.now_ns >= seen_ns + patience_ns(self.delay_ms):
            return True
        last = max(o for o, (_, seen) in self.offered.items() if seen == seen_ns)
        reading = max(reading for o, reading in self.readings if o >= last)
        clock_ns = self.now_ns - self.now_ns // 10_000 + reading
        return (record.timestamp()[1] + self.delay_ms) * MS <= clock_ns

    def note(self, offset: int, append_ms: int) -> None:
        self.readings.append((offset, append_ms * MS - (self.now_ns - self.now_ns // 10_000)))

    @rule(
        steps=st.lists(st.tuples(st.integers(1, 3), st.integers(-1_500, 1_500), st.integers(0, 9)), max_size=5),
        extra=st.integers(0, 3),
    )
    def offer(self, steps: list[tuple[int, int, int]], extra: int) -> None:
        self.now_ns += 1
        offset = max(self.offered, default=-1)
        batch = []
        for step, shift_ms, size in steps:
            offset += step
            batch.append(Record(offset, EPOCH_MS + self.now_ns // MS + shift_ms, size))
        self.queue.offer(batch, self.now_ns, extra)
        for record in batch:
            self.sizes[record.offset() or 0] = -(-sum(map(len, batch)) // len(batch)) + extra
            self.offered[record.offset() or 0] = (record, self.now_ns)
            self.waiting.append(record.offset() or 0)
        if batch:
            self.note(offset, batch[-1].timestamp()[1])

    @precondition(lambda self: self.offered)
    @rule(back=st.integers(0, 2))
    def offer_what_does_not_rise(self, back: int) -> None:
        highest = max(self.offered)
        with pytest.raises(ValueError, match="do not rise"):
            self.queue.offer(records(highest + 1, highest - back), self.now_ns)

    @rule(ahead=st.integers(0, 5), shift_ms=st.integers(-1_500, 200))
    def probe(self, ahead: int, shift_ms: int) -> None:
        offset, append_ms = max(self.offered, default=0) + ahead, EPOCH_MS + self.now_ns // MS + shift_ms
        self.queue.probed(offset, append_ms, self.now_ns)
        self.note(offset, append_ms)

    @rule(passed_ns=st.integers(0, 700 * MS))
    def time_passes(self, passed_ns: int) -> None:
        self.now_ns += passed_ns

    @precondition(lambda self: self.queue.next_ns() is not None)
    @rule()
    def sleep_until_there_is_something_to_do(self) -> None:
        self.now_ns = max(self.now_ns, self.queue.next_ns() or 0)

    @rule(limit=st.integers(1, 6), limit_bytes=st.integers(1, 40))
    def take(self, limit: int, limit_bytes: int) -> None:
        due = self.queue.take(self.now_ns, limit, limit_bytes)
        if self.failed:
            assert due is not None
            first = self.failed.pop(0)
            whole = offsets_of(first)
            bytes_count = -(-limit_bytes * len(whole) // max(1, first.size_bytes))
            taken = offsets_of(due)
            assert taken == whole[: min(limit, bytes_count)]
            self.flights.append(due)
            if taken != whole:
                rest = self.queue.take(self.now_ns, 10**6)
                assert rest is not None
                assert offsets_of(rest) == whole[len(taken) :]
                assert rest.appends_ms == first.appends_ms[len(taken) :]
                assert due.size_bytes + rest.size_bytes == first.size_bytes
                self.flights.append(rest)
            return
        expected: list[int] = []
        size = 0
        while self.waiting and len(expected) < limit and size < limit_bytes and self.naive_due(self.waiting[0]):
            expected.append(self.waiting.pop(0))
            size += self.sizes[expected[-1]]
        assert offsets_of(due) == expected
        if due is not None:
            assert due.size_bytes == size
            assert due.seen_ns == [self.offered[offset][1] for offset in expected]
            self.flights.append(due)

    @precondition(lambda self: self.flights)
    @rule(data=st.data())
    def confirm(self, data: st.DataObject) -> None:
        due = self.flights.pop(data.draw(st.integers(0, len(self.flights) - 1)))
        self.queue.confirmed(due.run)
        self.confirmed.update(record.offset() or 0 for record in due.records)
        with pytest.raises(ValueError, match="finished before"):
            self.queue.confirmed(due.run)
        with pytest.raises(ValueError, match="can fail"):
            self.queue.failed(due)

    @precondition(lambda self: self.flights)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        due = self.flights.pop(data.draw(st.integers(0, len(self.flights) - 1)))
        self.queue.failed(due)
        self.failed.append(due)
        self.failed.sort(key=lambda each: each.records[0].offset() or 0)

    @invariant()
    def position_moves_by_confirmations_only(self) -> None:
        left = [offset for offset in self.offered if offset not in self.waiting]
        position = None
        for offset in left:
            if offset not in self.confirmed:
                break
            position = offset + 1
        assert self.queue.next_offset == position
        assert self.position is None or (position is not None and position >= self.position)
        self.position = position
        assert self.queue.idle == (not self.flights and not self.failed)

    @invariant()
    def what_waits_is_counted(self) -> None:
        failed = [record for due in self.failed for record in due.records]
        waiting = [self.offered[offset][0] for offset in self.waiting]
        size = sum(self.sizes[offset] for offset in self.waiting)
        assert self.queue.waiting_count == len(waiting) + len(failed)
        assert self.queue._bytes == size
        assert self.queue.full == (len(waiting) >= 8 or size >= 20)
        assert self.queue.hungry == (len(waiting) <= 4 and size <= 10)
        expected = failed[0] if failed else (waiting[0] if waiting else None)
        assert self.queue.head is expected

    @invariant()
    def there_is_something_to_do_from_next_ns_on_and_not_before(self) -> None:
        """Check the real queue at that nanosecond and the one before."""
        next_ns = self.queue.next_ns()
        if self.failed:
            assert next_ns is not None
            assert next_ns <= self.now_ns
        elif not self.waiting:
            assert next_ns is None
            assert self.queue.take(self.now_ns + 10**18) is None
        else:
            assert next_ns is not None
            assert self._would_act(next_ns)
            if next_ns > self.offered[self.waiting[0]][1]:  # from first sight on
                assert not self._would_act(next_ns - 1)

    def _would_act(self, at_ns: int) -> bool:
        now_ns, self.now_ns = self.now_ns, at_ns
        due = self.naive_due(self.waiting[0])
        self.now_ns = now_ns
        wanted = self.queue._clock.probe_instant_ns(
            (self.offered[self.waiting[0]][0].timestamp()[1] + self.delay_ms) * MS
        )
        return due or wanted is None or wanted <= at_ns

    @rule()
    def ask(self) -> None:
        asked = self.queue.asks_for_probe(self.now_ns)
        if asked:
            assert self.waiting
            assert not self.failed
            assert not self.naive_due(self.waiting[0])
            assert not self.queue.asks_for_probe(self.now_ns + S - 1)


TestQueueAgainstNaiveModel = QueueAgainstNaiveModel.TestCase
TestQueueAgainstNaiveModel.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)


def test_record_fetched_immediately_leaves_one_delay_after_first_sight() -> None:
    queue: LevelQueue[Record] = LevelQueue(1_000)
    queue.offer(records(0), 50 * S)
    assert queue.take(51 * S - 1) is None
    due = queue.take(51 * S + 200_000)
    assert offsets_of(due) == [0]


def test_no_record_is_due_by_an_unknown_clock() -> None:
    """A record found after a restart may be a second or an hour old: it waits one delay, or for a probe to date it."""
    queue: LevelQueue[Record] = LevelQueue(1_000)
    queue.offer(records(0), 50 * S)
    assert queue.asks_for_probe(50 * S)
    assert queue.take(50 * S + 900 * MS) is None
    queue.probed(1, EPOCH_MS + 1_000, 50 * S + 901 * MS)
    assert offsets_of(queue.take(50 * S + 901 * MS)) == [0]


def test_clock_of_due_records_rests_on_evidence_younger_than_all_of_them() -> None:
    queue: LevelQueue[Record] = LevelQueue(0)
    queue.probed(0, EPOCH_MS + 5_000, S)
    queue.offer(records(0), S)
    queue.offer(records(1), S)
    due = queue.take(S)
    assert offsets_of(due) == [0, 1]
    assert due is not None
    assert due.clock_ms(S) == EPOCH_MS


@pytest.mark.parametrize("ahead_ms", [1, 500, 3_600_000])
def test_head_stamped_in_the_future_leaves_one_delay_and_a_thousandth_after_first_sight(ahead_ms: int) -> None:
    """Its leader's clock was ahead and has been set back: all records behind it would wait for hours."""
    queue: LevelQueue[Record] = LevelQueue(1_000)
    queue.probed(5, EPOCH_MS, 50 * S)
    queue.offer([Record(0, EPOCH_MS + ahead_ms), Record(1, EPOCH_MS)], 50 * S)
    expected = 50 * S + min(patience_ns(1_000), (1_000 + ahead_ms) * 1_000_101)
    assert queue.take(50 * S + 1_000 * MS) is None
    assert queue.take(expected - 1_000) is None
    assert offsets_of(queue.take(expected)) == [0, 1]


def test_head_that_is_not_due_blocks_the_records_behind_it() -> None:
    queue: LevelQueue[Record] = LevelQueue(1_000)
    queue.probed(5, EPOCH_MS, 50 * S)
    queue.offer([Record(0, EPOCH_MS), Record(1, EPOCH_MS - 900)], 50 * S)
    assert queue.take(50 * S + 200 * MS) is None


def test_failed_records_are_due_again_lowest_offset_first_and_before_waiting_ones() -> None:
    queue: LevelQueue[Record] = LevelQueue(0)
    flights = []
    for offset in range(3):
        queue.offer(records(offset), S)
        due = queue.take(S)
        assert due is not None
        flights.append(due)
    queue.offer(records(3), S)
    queue.failed(flights[2])
    queue.failed(flights[0])
    assert (queue.waiting_count, queue.next_ns(), queue.head) == (3, 0, flights[0].records[0])
    assert [offsets_of(queue.take(S)) for _ in range(3)] == [[0], [2], [3]]
    queue.confirmed(flights[2].run)
    assert queue.next_offset is None
    queue.confirmed(flights[0].run)
    assert queue.next_offset == 1


def test_the_clock_of_a_failed_run_goes_on_as_slowly_as_that_of_waiting_records() -> None:
    queue: LevelQueue[Record] = LevelQueue(0)
    queue.offer(records(0), S)
    due = queue.take(S)
    assert due is not None
    queue.failed(due)
    again = queue.take(10_001 * S)
    assert again is not None
    assert again.clock_ms(10_001 * S) == due.clock_ms(S) + 9_999_000


def test_the_oldest_record_is_due_when_it_was_due_first_until_it_is_confirmed() -> None:
    queue: LevelQueue[Record] = LevelQueue(1_000)
    assert queue.oldest_due_ns is None
    queue.probed(0, EPOCH_MS, 0)
    queue.offer(records(0), 0)
    first_ns = queue.oldest_due_ns
    assert first_ns == queue.next_ns()
    due = queue.take(5 * S)
    queue.offer(records(1), 5 * S)
    assert due is not None
    assert queue.oldest_due_ns == first_ns
    queue.failed(due)
    assert queue.oldest_due_ns == first_ns
    assert queue.take(6 * S) is due
    queue.confirmed(due.run)
    assert (queue.oldest_due_ns or 0) > 5 * S


def test_a_failed_part_of_a_run_keeps_the_whole_run_open() -> None:
    queue: LevelQueue[Record] = LevelQueue(0)
    queue.offer(records(0, 1, 2), S)
    due = queue.take(S)
    assert due is not None
    queue.failed(Due(due.records[1:], due.appends_ms[1:], due.seen_ns[1:], due.run, due.clock_offset_ns))
    again = queue.take(S)
    assert offsets_of(again) == [1, 2]
    assert queue.next_offset is None
    queue.confirmed(due.run)
    assert queue.next_offset == 3


@pytest.mark.parametrize("append_ms", [EPOCH_MS - 3_600_000, EPOCH_MS, EPOCH_MS + 3_600_000])
def test_records_without_an_append_time_are_returned_and_leave_only_after_a_probe(append_ms: int) -> None:
    queue: LevelQueue[Record] = LevelQueue(1_000)
    queue.probed(0, EPOCH_MS, 0)
    ours, theirs = Record(1), Record(2, append_ms, is_stamped=False)
    assert queue.offer([ours], S) == []
    assert queue.offer([theirs], S) == [theirs]
    assert offsets_of(queue.take(9 * S)) == [1]
    assert not queue.has_due(9 * S)
    assert queue.take(9 * S) is None
    assert queue.asks_for_probe(9 * S)
    assert queue.next_ns() == 10 * S, "a probe may be lost"
    assert queue.asks_for_probe(10 * S)
    queue.probed(3, EPOCH_MS + 11_000, 11 * S)
    assert offsets_of(queue.take(11 * S)) == [2]


def test_an_empty_or_confirmed_run_cannot_fail() -> None:
    queue: LevelQueue[Record] = LevelQueue(0)
    queue.offer(records(0), S)
    due = queue.take(S)
    assert due is not None
    with pytest.raises(ValueError, match="can fail"):
        queue.failed(Due([], [], [], due.run, due.clock_offset_ns))
    assert queue.next_ns() is None


@pytest.mark.parametrize("offsets", [(3,), (2,), (5, 5), (5, 4), (None,), (4, None)])
def test_offer_of_offsets_that_do_not_rise_accepts_nothing(offsets: tuple[int | None, ...]) -> None:
    queue: LevelQueue[Record] = LevelQueue(1_000)
    queue.offer(records(3), S)
    with pytest.raises(ValueError, match="do not rise"):
        queue.offer([Record(offset) for offset in offsets], S)
    assert (queue.waiting_count, queue._bytes) == (1, 0)
    queue.offer(records(4), S)


def test_empty_offer_is_allowed() -> None:
    queue: LevelQueue[Record] = LevelQueue(1_000)
    queue.offer([], S)
    assert queue.next_ns() is None
    assert not queue.asks_for_probe(S)


@pytest.mark.parametrize("limits", [(0, 1), (-1, 1), (1, 0)])
def test_take_of_less_than_one_record_is_refused(limits: tuple[int, int]) -> None:
    queue: LevelQueue[Record] = LevelQueue(0)
    queue.offer(records(0), S)
    with pytest.raises(ValueError, match="at least one"):
        queue.take(S, *limits)
    assert queue.waiting_count == 1


def test_negative_delay_and_limits_without_a_gap_are_refused() -> None:
    with pytest.raises(ValueError, match="negative"):
        LevelQueue(-1)
    for bad in ({"full_count": 0}, {"full_bytes": 0}):
        with pytest.raises(ValueError, match="need"):
            LevelQueue(0, None, **bad)


@given(
    limits=st.fixed_dictionaries({"full_count": st.integers(1, 20), "full_bytes": st.integers(1, 20)}),
    sizes=st.lists(st.integers(0, 8), max_size=60),
)
def test_fetching_pauses_and_resumes_without_flapping_and_never_gets_stuck(
    limits: dict[str, int], sizes: list[int]
) -> None:
    queue: LevelQueue[Record] = LevelQueue(0, None, **limits)
    for offset, size in enumerate(sizes):
        queue.offer([Record(offset, size=size)], S)
        assert not (queue.full and queue.hungry)
        if queue.full:
            while not queue.hungry:
                assert queue.take(S, 1) is not None
            assert not queue.full
    while queue.take(S) is not None:
        pass
    assert queue.hungry


@given(
    limit=st.integers(1, 40),
    steps=st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["offer", "take", "confirm", "drop"]), st.integers(0, 9))
    ),
)
def test_queues_share_a_buffer_and_each_can_always_get_a_record(limit: int, steps: list[tuple[int, str, int]]) -> None:
    """The buffer counts what waits and what is in flight; a queue that has nothing never stays paused."""
    buffer = Buffer(limit)
    queues: list[LevelQueue[Record]] = [LevelQueue(0, buffer, full_count=100, full_bytes=100) for _ in range(5)]
    waiting: list[list[int]] = [[] for _ in queues]
    flying: list[list[tuple[Due[Record], int]]] = [[] for _ in queues]
    offset = 0
    for number, act, size in steps:
        queue, offset = queues[number], offset + 1
        if act == "offer":
            queue.offer([Record(offset, size=size)], S)
            waiting[number].append(size)
        elif act == "take" and (due := queue.take(S, 1)) is not None:
            if all(each is not due for each, _ in flying[number]):
                flying[number].append((due, waiting[number].pop(0)))
        elif act == "confirm" and flying[number]:
            queue.confirmed(flying[number].pop(0)[0].run)
        elif act == "drop":
            queue.drop()
            queues[number], waiting[number], flying[number] = (
                LevelQueue(0, buffer, full_count=100, full_bytes=100),
                [],
                [],
            )
        held = sum(map(sum, waiting)) + sum(each for taken in flying for _, each in taken)
        assert buffer.held_bytes == held
        for each, sizes, taken in zip(queues, waiting, flying, strict=True):
            if not sizes and not taken:
                assert each.resumes(S)
                assert not each.pauses(S)
            elif held >= limit:
                assert each.pauses(S)
                assert not each.resumes(S)
            assert not (each.pauses(S) and each.resumes(S)), "fetching does not flap"


def test_a_run_that_failed_and_leaves_in_parts_gives_all_its_memory_back() -> None:
    buffer = Buffer()
    queue: LevelQueue[Record] = LevelQueue(0, buffer, full_count=100, full_bytes=100)
    queue.offer([Record(offset, size=3) for offset in range(4)], S)
    due = queue.take(S)
    assert due is not None
    queue.failed(due)
    for number in (1, 3):
        part = queue.take(S, number)
        assert part is not None
        assert buffer.held_bytes == (12 if number == 1 else 9)
        queue.confirmed(part.run)
    assert buffer.held_bytes == 0


def test_a_queue_whose_head_is_far_buffers_a_twentieth_by_number_and_by_bytes() -> None:
    for size, most in ((1, 5), (100, 1)):
        queue: LevelQueue[Record] = LevelQueue(60_000, full_count=100, full_bytes=2_000)
        queue.probed(0, 1_000, S)  # the leader's clock shows 1 s now
        for offset in range(1, most + 1):
            assert not queue.pauses(S)
            queue.offer([Record(offset, 1_000, size=size)], S)
        queue.probed(most + 1, 1_000, S)
        assert queue.pauses(S)
        assert not queue.resumes(S)
        assert queue.resumes(S + 59 * S), "its head is near"


# --- brokers, a worker, and time --------------------------------------------------------------------------------------


@dataclass
class Leader:
    """A broker's clock: true time, a skew, a drift, and steps."""

    skew_ns: int
    drift_ppm: int
    steps: list[tuple[int, int]]  # (true time, size of the step)

    def clock_ns(self, t: int) -> int:
        stepped = sum(by for at, by in self.steps if at <= t)
        return EPOCH_MS * MS + t + t * self.drift_ppm // 1_000_000 + self.skew_ns + stepped


class Appended(Record):
    """A record and the true time of its append; `probe` marks the worker's own records."""

    def __init__(self, offset: int, append_ms: int, appended_ns: int, *, probe: bool) -> None:
        super().__init__(offset, append_ms)
        self.appended_ns = appended_ns
        self.probe = probe
        self.seen_ns: int | None = None  # true time of the first sight since the worker was last started


@dataclass
class Scenario:
    """The events of the cluster and the worker, in true time."""

    seed: int
    delays_ms: list[int]
    leaders: list[Leader]
    moves: list[tuple[int, int]] = field(default_factory=list)  # (true time, leader of every partition from then on)
    restarts: list[tuple[int, int]] = field(default_factory=list)  # (stopped at, duration)
    horizon_ns: int = 40 * S
    per_second: float = 2.0
    worker_drift_ppm: int = 0
    longest_fetch_ns: int = 8 * MS
    full_count: int = 1_000
    fetch_count: int = 1_000
    lost_probes: float = 0.0

    def leader(self, t: int) -> Leader:
        number = 0
        for at, to in self.moves:
            if at <= t:
                number = to
        return self.leaders[number]


@dataclass
class Release:
    """A record that left its queue."""

    partition: int
    record: Appended
    at_ns: int
    life: int


class Simulation:
    """A worker's loop over simulated partitions, run event by event; it never reads a real clock."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.random = Random(scenario.seed)  # noqa: S311 - a simulation
        self.logs: list[list[Appended]] = [[] for _ in scenario.delays_ms]
        self.releases: list[Release] = []
        self.probes = 0
        self.life = 0
        self.up = False
        self.queues: list[LevelQueue[Appended]] = []
        self.fetched: list[int] = []
        self.paused: list[bool] = []
        self.committed = [0] * len(self.logs)
        self.unconfirmed: list[tuple[int, LevelQueue[Appended], Due[Appended]]] = []
        self.wake_at: int | None = None
        self._events: list[tuple[int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = count()

    def at(self, t: int, what: Callable[..., object], *args: Any) -> None:
        heapq.heappush(self._events, (t, next(self._number), what, args))

    def mono(self, t: int) -> int:
        """Return the worker's monotonic clock."""
        return 7 * S + t + t * self.scenario.worker_drift_ppm // 1_000_000

    def true_at(self, mono_ns: int) -> int:
        """Return the first true time at which the worker's clock reaches an instant."""
        t = (mono_ns - 7 * S) * 1_000_000 // (1_000_000 + self.scenario.worker_drift_ppm) - 2
        while self.mono(t) < mono_ns:
            t += 1
        return t

    def run(self) -> "Simulation":
        scenario = self.scenario
        for partition in range(len(self.logs)):
            t = 0
            while (t := t + 1 + int(self.random.expovariate(scenario.per_second) * S)) < scenario.horizon_ns:
                self.at(t, self.append, partition)
        self.at(0, self.start)
        for down_at, length in scenario.restarts:
            self.at(down_at, self.stop)
            self.at(down_at + length, self.start)
        while self._events:
            t, _, what, args = heapq.heappop(self._events)
            what(t, *args)
        return self

    def append(self, t: int, partition: int, *, probe: bool = False) -> Appended:
        stamp_ms = self.scenario.leader(t).clock_ns(t) // MS
        record = Appended(len(self.logs[partition]), stamp_ms, t, probe=probe)
        self.logs[partition].append(record)
        if self.up:
            self.at(t + self.latency(), self.fetch, self.life, partition)
        return record

    def latency(self) -> int:
        return self.random.randint(MS // 2, self.scenario.longest_fetch_ns)

    def start(self, t: int) -> None:
        self.life += 1
        self.up = True
        self.queues = [
            LevelQueue(delay_ms, full_count=self.scenario.full_count) for delay_ms in self.scenario.delays_ms
        ]
        self.fetched = list(self.committed)
        self.paused = [False] * len(self.queues)
        self.wake_at = None
        for partition in range(len(self.queues)):
            self.at(t + self.latency(), self.fetch, self.life, partition)

    def stop(self, t: int) -> None:
        """Kill the worker: unconfirmed records are not committed."""
        del t
        self.up = False
        for partition, queue in enumerate(self.queues):
            self.committed[partition] = max(self.committed[partition], queue.next_offset or 0)

    def fetch(self, t: int, life: int, partition: int) -> None:
        if not self.up or life != self.life or self.paused[partition]:
            return
        queue, log = self.queues[partition], self.logs[partition]
        while not queue.full and self.fetched[partition] < len(log):
            first = self.fetched[partition]
            batch = log[first : first + self.scenario.fetch_count]
            self.fetched[partition] += len(batch)
            for record in batch:
                record.seen_ns = t
            queue.offer([record for record in batch if not record.probe], self.mono(t))
        self.paused[partition] = queue.full
        self.work(t, life)

    def work(self, t: int, life: int) -> None:
        """Run one turn of the worker's loop."""
        if not self.up or life != self.life:
            return
        for partition, queue in enumerate(self.queues):
            while (due := queue.take(self.mono(t), 7)) is not None:
                self.releases += [Release(partition, record, t, life) for record in due.records]
                self.at(t + self.latency(), self.confirm, queue, due)
            if self.paused[partition] and queue.hungry:
                self.paused[partition] = False
                self.at(t + self.latency(), self.fetch, life, partition)
            if queue.asks_for_probe(self.mono(t)):
                self.probes += 1
                if self.random.random() >= self.scenario.lost_probes:
                    self.at(t + self.random.randint(MS // 4, 3 * MS), self.probe, life, partition)
        self.sleep(t, life)

    def sleep(self, t: int, life: int) -> None:
        instants = [instant for queue in self.queues if (instant := queue.next_ns()) is not None]
        if instants:
            wake_at = max(t + 1, self.true_at(min(instants)))
            if self.wake_at is None or not t < self.wake_at <= wake_at:
                self.wake_at = wake_at
                self.at(wake_at, self.work, life)

    def probe(self, t: int, life: int, partition: int) -> None:
        record = self.append(t, partition, probe=True)
        self.at(t + self.random.randint(MS // 4, 3 * MS), self.probed, life, partition, record)

    def probed(self, t: int, life: int, partition: int, record: Appended) -> None:
        if self.up and life == self.life:
            self.queues[partition].probed(record.offset() or 0, record.timestamp()[1], self.mono(t))
            self.work(t, life)

    def confirm(self, t: int, queue: LevelQueue[Appended], due: Due[Appended]) -> None:
        del t
        queue.confirmed(due.run)


def check_always(simulation: Simulation) -> None:
    """Check what is true for any clocks: no record is early, lost, out of order or delayed too long."""
    scenario = simulation.scenario
    breaks = sorted({at for leader in scenario.leaders for at, _ in leader.steps} | {at for at, _ in scenario.moves})
    last: dict[tuple[int, int], int] = {}
    for release in simulation.releases:
        record, t, delay_ns = release.record, release.at_ns, scenario.delays_ms[release.partition] * MS
        # At some instant since the append the leader's clock showed a time; since then, true time has passed.
        moments = [t, *(at - 1 for at in breaks if record.appended_ns < at <= t)]
        shown = max(scenario.leader(moment).clock_ns(moment) + (t - moment) for moment in moments)
        passed_ns = max(shown - record.timestamp()[1] * MS, t - record.appended_ns)
        assert passed_ns >= delay_ns - MS - delay_ns // 10_000, f"{delay_ns - passed_ns} ns early: {release}"
        key = (release.life, release.partition)
        assert last.get(key, -1) < (record.offset() or 0), f"out of order: {release}"
        last[key] = record.offset() or 0
    for partition, log in enumerate(simulation.logs):
        released = {release.record for release in simulation.releases if release.partition == partition}
        assert released == {record for record in log if not record.probe}, "lost"


def check_held_no_longer_than_its_delay(simulation: Simulation) -> None:
    """Check that a delay and a thousandth after first sight all records have left, even behind a future timestamp."""
    drift = 1 + abs(simulation.scenario.worker_drift_ppm) / 1_000_000
    for release in simulation.releases:
        if release.life == simulation.life:
            seen_ns = release.record.seen_ns
            assert seen_ns is not None
            assert release.at_ns - seen_ns <= patience_ns(simulation.scenario.delays_ms[release.partition]) * drift + MS


def lateness_ms(simulation: Simulation) -> list[float]:
    delays = simulation.scenario.delays_ms
    return sorted((r.at_ns - r.record.appended_ns) / MS - delays[r.partition] for r in simulation.releases)


DELAYS = st.lists(st.sampled_from([0, 32, 256, 1_000, 5_000, 30_000]), min_size=1, max_size=3)
TIMES = st.integers(1 * S, 38 * S)
DRIFTS = st.integers(-50, 50)
BACK = st.integers(-30 * S, -1) | st.sampled_from([-3_600 * S, -100 * MS, -2 * S])
ANY_STEP = BACK | st.integers(1, 30 * S) | st.just(3_600 * S)


SIMULATED = settings(max_examples=150, deadline=None)


@st.composite
def scenarios(draw: st.DrawFn, steps: st.SearchStrategy[int] | None, leader_count: int = 1) -> Scenario:
    """Generate any cluster and worker; `steps`: how leaders' clocks step, None: they are steady."""
    stepping = st.just([]) if steps is None else st.lists(st.tuples(TIMES, steps), max_size=3)
    leader = st.builds(Leader, skew_ns=st.integers(-10 * S, 10 * S), drift_ppm=DRIFTS, steps=stepping)
    return Scenario(
        seed=draw(st.integers(0, 2**32)),
        delays_ms=draw(DELAYS),
        leaders=[draw(leader) for _ in range(leader_count)],
        moves=sorted(draw(st.lists(st.tuples(TIMES, st.integers(0, leader_count - 1)), max_size=3))),
        restarts=draw(st.lists(st.tuples(TIMES, st.integers(MS, 5 * S)), max_size=2)),
        worker_drift_ppm=draw(DRIFTS),
        lost_probes=0.0 if steps is None else draw(st.sampled_from([0.0, 0.5, 1.0])),
    )


@SIMULATED
@given(scenario=scenarios(ANY_STEP, leader_count=2))
def test_nothing_is_early_lost_or_stuck_for_any_leaders_and_clocks(scenario: Scenario) -> None:
    simulation = Simulation(scenario).run()
    check_always(simulation)
    check_held_no_longer_than_its_delay(simulation)


@SIMULATED
@given(scenario=scenarios(BACK))
@example(Scenario(1, [1_000], [Leader(0, 0, [(21 * S, -2 * S)])]))
@example(Scenario(2, [1_000, 5_000], [Leader(0, 0, [(21 * S, -100 * MS)])]))
@example(Scenario(3, [5_000], [Leader(0, 0, [(20 * S, -3_600 * S)])], restarts=[(22 * S, S)]))
def test_clock_that_only_steps_back_makes_no_record_early_by_true_time(scenario: Scenario) -> None:
    """That needs no detection of steps: evidence from before a record proves nothing about it."""
    simulation = Simulation(scenario).run()
    for release in simulation.releases:
        delay_ns = scenario.delays_ms[release.partition] * MS
        passed_ns = release.at_ns - release.record.appended_ns
        assert passed_ns >= delay_ns - MS - delay_ns // 10_000, f"{delay_ns - passed_ns} ns early: {release}"
    check_always(simulation)


@SIMULATED
@given(scenario=scenarios(None))
def test_with_steady_clocks_no_record_is_early_and_few_are_late_even_after_a_restart(
    scenario: Scenario,
) -> None:
    """A worker that was stopped finds records of unknown age: probes date them, and they do not wait again."""
    simulation = Simulation(scenario).run()
    (leader,) = scenario.leaders
    for release in simulation.releases:
        record, delay_ms = release.record, scenario.delays_ms[release.partition]
        assert leader.clock_ns(release.at_ns) // MS >= record.timestamp()[1] + delay_ms, f"early: {release}"
        assert record.seen_ns is not None
        if release.life == simulation.life:
            due_ns = record.appended_ns + delay_ms * MS
            assert release.at_ns - max(due_ns, record.seen_ns) <= 20 * MS + delay_ms * MS // 5_000, f"late: {release}"
    check_always(simulation)


@pytest.mark.parametrize("seed", range(5))
def test_more_records_than_fit_into_memory_leave_in_time(seed: int) -> None:
    """Records wait in the log while the queue is full; probes date those that arrive late."""
    scenario = Scenario(
        seed, [1_000], [Leader(0, 20, [])], per_second=400, horizon_ns=10 * S, full_count=100, fetch_count=40
    )
    simulation = Simulation(scenario).run()
    check_always(simulation)
    late = lateness_ms(simulation)
    assert late[len(late) // 2] <= 10
    assert late[-1] <= 60
    assert simulation.probes <= 60


@pytest.mark.parametrize("seed", range(5))
def test_busy_queue_needs_few_probes_and_an_idle_one_none(seed: int) -> None:
    busy = Simulation(Scenario(seed, [1_000], [Leader(0, 0, [])], per_second=200, horizon_ns=10 * S)).run()
    assert busy.probes <= 3
    assert lateness_ms(busy)[-1] <= 12
    idle = Simulation(Scenario(seed, [1_000], [Leader(0, 0, [])], per_second=1e-9)).run()
    assert (idle.probes, idle.releases) == (0, [])


def test_a_two_hour_delay_is_exact_to_a_hundredth_of_a_second_across_a_restart() -> None:
    """One record, alone in its queue, first found an hour later by a worker whose clock is 50 ppm slow."""
    queue: LevelQueue[Record] = LevelQueue(7_200_000)
    hour = 3_600 * S
    queue.offer(records(0), hour)
    assert queue.asks_for_probe(hour)
    queue.probed(1, EPOCH_MS + 3_600_000, hour + 2 * MS)
    next_ns = queue.next_ns()
    assert next_ns is not None
    assert 2 * hour + 10 * MS <= next_ns <= 2 * hour + 13 * MS
    assert queue.take(next_ns) is None
    assert queue.asks_for_probe(next_ns)
    queue.probed(2, EPOCH_MS + 7_200_000 + 12, next_ns + 2 * MS)
    assert offsets_of(queue.take(next_ns + 2 * MS)) == [0]


def test_has_due_uses_the_clock_that_decides_departure() -> None:
    queue: LevelQueue[Record] = LevelQueue(1_000)
    assert not queue.has_due(0)
    queue.offer(records(0), 50 * S)
    assert not queue.has_due(50 * S + 900 * MS)
    queue.probed(1, EPOCH_MS + 1_000, 50 * S + 901 * MS)
    assert queue.has_due(50 * S + 901 * MS)
    due = queue.take(50 * S + 901 * MS)
    assert due is not None
    assert not queue.has_due(60 * S)
    queue.failed(due)
    assert queue.has_due(60 * S)
