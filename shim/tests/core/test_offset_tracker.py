"""The position to commit never passes an unfinished message, never goes back, and is right in a log with holes."""

import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from rocketshim.core.offset_tracker import OffsetTracker, Run


class Record:
    """A message that is false in a boolean context, as one of Kafka's with an empty value is."""

    def __init__(self, offset: int | None) -> None:
        self._offset = offset

    def offset(self) -> int | None:
        return self._offset

    def __len__(self) -> int:
        return 0


def records(*offsets: int) -> list[Record]:
    return [Record(offset) for offset in offsets]


def naive_next_offset(delivered: list[int], finished: set[int], skipped: list[int]) -> int | None:
    """Return the position after the longest finished prefix, by walking everything delivered, in delivery order.

    Behind the prefix it passes what is known to have no message: up to the last position before its next message.
    """
    position, rest = None, list(delivered)
    while rest and rest[0] in finished:
        position = rest.pop(0) + 1
    passed = [each for each in skipped if each > (position or 0) and (not rest or each <= rest[0])]
    return max(passed, default=position)


def naive_span(delivered: list[int], finished: set[int]) -> int:
    unfinished = [offset for offset in delivered if offset not in finished]
    return delivered[-1] - unfinished[0] if unfinished else 0


class TrackerAgainstNaiveModel(RuleBasedStateMachine):
    """Any interleaving of deliveries and finishes, legal and illegal, agrees with walking the whole history."""

    def __init__(self) -> None:
        super().__init__()
        self.tracker = OffsetTracker()
        self.delivered: list[int] = []
        self.finished: set[int] = set()
        self.runs: list[tuple[Run, list[int]]] = []
        self.skipped: list[int] = []
        self.highest: int | None = None
        self.foreign = OffsetTracker().deliver(records(0, 1))

    @rule(steps=st.lists(st.integers(min_value=1, max_value=9), min_size=1, max_size=6), only_offsets=st.booleans())
    def deliver(self, steps: list[int], only_offsets: bool) -> None:
        offset = max(self.delivered[-1:] + [each - 1 for each in self.skipped], default=-1)
        offsets = []
        for step in steps:
            offset += step
            offsets.append(offset)
        run = self.tracker.deliver_offsets(offsets) if only_offsets else self.tracker.deliver(records(*offsets))
        self.runs.append((run, offsets))
        self.delivered += offsets

    @rule(distance=st.integers(min_value=0, max_value=9))
    def skip_what_no_reader_sees(self, distance: int) -> None:
        self.skipped.append(max([offset + 1 for offset in self.delivered[-1:]] + self.skipped, default=1) + distance)
        self.tracker.skip_to(self.skipped[-1])

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def finish_one(self, data: st.DataObject) -> None:
        run, offsets = data.draw(st.sampled_from(self.runs))
        offset = data.draw(st.sampled_from(offsets))
        if offset in self.finished:
            with pytest.raises(ValueError, match=r"finished before|all open"):
                self.tracker.finish_many(run, (offset,))
        else:
            self.tracker.finish_many(run, (offset,))
            self.finished.add(offset)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def finish_several(self, data: st.DataObject) -> None:
        run, offsets = data.draw(st.sampled_from(self.runs))
        some = data.draw(st.lists(st.sampled_from(offsets), max_size=20))
        if self.finished.issuperset(offsets) or len(set(some)) < len(some) or self.finished.intersection(some):
            with pytest.raises(ValueError, match=r"finished before|all open"):
                self.tracker.finish_many(run, some)
        else:
            self.tracker.finish_many(run, some)
            self.finished.update(some)

    @precondition(lambda self: len(self.delivered) > len(self.finished))
    @rule(data=st.data(), order=st.sampled_from(["delivery", "any"]), leave_out=st.booleans())
    def finish_messages_of_any_runs(self, data: st.DataObject, order: str, leave_out: bool) -> None:
        unfinished = [offset for offset in self.delivered if offset not in self.finished]
        first = 0 if order == "delivery" else data.draw(st.integers(0, len(unfinished) - 1))
        some = unfinished[first : data.draw(st.integers(first, len(unfinished) - 1)) + 1]
        if order == "any":
            some = data.draw(st.permutations(some))
        left_out = data.draw(st.sets(st.sampled_from(some))) if leave_out else set()
        finished = [offset for offset in some if offset not in left_out]
        self.tracker.finish(finished)
        self.finished.update(finished)

    @precondition(lambda self: len(self.delivered) > len(self.finished))
    @rule(data=st.data())
    def finish_the_first_unfinished_ones(self, data: st.DataObject) -> None:
        unfinished = [offset for offset in self.delivered if offset not in self.finished]
        count = data.draw(st.integers(1, len(unfinished)))
        assert not self.tracker.finish_first(count, unfinished[count - 1] + 1)
        if self.tracker.finish_first(count, unfinished[count - 1]):
            self.finished.update(unfinished[:count])

    @precondition(lambda self: self.finished)
    @rule(data=st.data())
    def finish_a_finished_message_of_any_run(self, data: st.DataObject) -> None:
        offset = data.draw(st.sampled_from(sorted(self.finished)))
        with pytest.raises(ValueError, match=r"not open|finished before|all open"):
            self.tracker.finish([offset])

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def split_a_run(self, data: st.DataObject) -> None:
        run, offsets = data.draw(st.sampled_from(self.runs))
        count = data.draw(st.integers(0, len(offsets)))
        if 0 < count < len(offsets) and len(run.messages) == len(offsets):
            first, rest = self.tracker.split(run, count)
            at = self.runs.index((run, offsets))
            self.runs[at : at + 1] = [(first, offsets[:count]), (rest, offsets[count:])]
            with pytest.raises(ValueError, match="finished before"):
                self.tracker.finish_all(run)
        else:
            with pytest.raises(ValueError, match=r"cannot divide|finished before"):
                self.tracker.split(run, count)

    @precondition(lambda self: not self.tracker.idle)
    @rule()
    def drop_finished_runs(self) -> None:
        self.tracker._drop_finished()

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def finish_the_whole_run(self, data: st.DataObject) -> None:
        run, offsets = data.draw(st.sampled_from(self.runs))
        if self.finished.issuperset(offsets):
            with pytest.raises(ValueError, match="finished before"):
                self.tracker.finish_all(run)
        else:
            self.tracker.finish_all(run)
            self.finished.update(offsets)

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def finish_the_run_but_a_few(self, data: st.DataObject) -> None:
        run, offsets = data.draw(st.sampled_from(self.runs))
        kept = data.draw(st.sets(st.sampled_from(offsets)))
        if self.finished.issuperset(offsets) or self.finished & kept:
            with pytest.raises(ValueError, match=r"finished before|all open"):
                self.tracker.finish_all(run, kept)
        else:
            self.tracker.finish_all(run, kept)
            self.finished.update(set(offsets) - kept)

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), distance=st.integers(min_value=1, max_value=50))
    def finish_what_was_not_delivered(self, data: st.DataObject, distance: int) -> None:
        run, offsets = data.draw(st.sampled_from(self.runs))
        with pytest.raises(ValueError, match=r"all open|finished before"):
            self.tracker.finish_many(run, (offsets[-1] + distance,))
        with pytest.raises(ValueError, match=r"all open|finished before"):
            self.tracker.finish_all(run, (offsets[-1] + distance,))

    @precondition(lambda self: self.delivered)
    @rule(back=st.integers(min_value=0, max_value=20))
    def deliver_what_does_not_rise(self, back: int) -> None:
        with pytest.raises(ValueError, match=r"do not rise|without an offset"):
            self.tracker.deliver(records(self.delivered[-1] - back))

    @rule()
    def name_a_run_of_another_tracker(self) -> None:
        with pytest.raises(ValueError, match="another tracker"):
            self.tracker.finish_many(self.foreign, (0,))
        with pytest.raises(ValueError, match="another tracker"):
            self.tracker.finish_all(self.foreign)
        assert self.foreign.unfinished == 2

    @invariant()
    def position_is_that_of_the_naive_model(self) -> None:
        assert self.tracker.next_offset == naive_next_offset(self.delivered, self.finished, self.skipped)

    @invariant()
    def position_never_goes_back(self) -> None:
        position = self.tracker.next_offset
        if self.highest is not None:
            assert position is not None
            assert position >= self.highest
        self.highest = position

    @invariant()
    def the_rest_agrees_too(self) -> None:
        unfinished = [offset for offset in self.delivered if offset not in self.finished]
        assert self.tracker.lowest_unfinished == (unfinished[0] if unfinished else None)
        assert self.tracker.idle == (not unfinished)
        assert self.tracker.span == (naive_span(self.delivered, self.finished) if self.delivered else 0)
        assert self.tracker.last_offset == (self.delivered[-1] if self.delivered else -1)
        for run, offsets in self.runs:
            assert run.unfinished == sum(offset not in self.finished for offset in offsets)
            assert run.next_offset >= offsets[-1] + 1


TestTrackerAgainstNaiveModel = TrackerAgainstNaiveModel.TestCase
TestTrackerAgainstNaiveModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_what_no_reader_sees_is_passed_when_the_message_before_it_is_finished() -> None:
    tracker = OffsetTracker()
    first, second = tracker.deliver(records(5)), tracker.deliver(records(6))
    tracker.skip_to(20)
    tracker.finish_all(second)
    assert tracker.next_offset is None
    tracker.finish_all(first)
    assert tracker.next_offset == 20
    tracker.skip_to(19)
    assert tracker.next_offset == 20
    tracker.skip_to(30)
    assert tracker.next_offset == 30
    tracker.deliver(records(30))
    assert tracker.next_offset == 30


def test_there_is_no_position_to_commit_before_the_first_message_is_finished() -> None:
    tracker = OffsetTracker()
    assert tracker.next_offset is None
    assert tracker.idle
    run = tracker.deliver(records(7, 8))
    tracker.finish_many(run, (8,))
    assert tracker.next_offset is None


def test_position_follows_the_last_finished_message_not_the_next_delivered_one() -> None:
    """The position does not skip a hole of 90 offsets (transaction markers, compaction) before a later message ends."""
    tracker = OffsetTracker()
    first, second = tracker.deliver(records(5, 9)), tracker.deliver(records(100))
    tracker.finish_all(first)
    assert tracker.next_offset == 10
    tracker.finish_all(second)
    assert tracker.next_offset == 101


def test_messages_finish_first_only_in_order_of_delivery() -> None:
    tracker = OffsetTracker()
    tracker.deliver_offsets([1, 2, 5])
    tracker.deliver_offsets([6, 8, 9])
    assert not tracker.finish_first(2, 5)
    assert tracker.finish_first(2, 2)
    assert tracker.next_offset == 3
    assert tracker.finish_first(2, 6)
    assert (tracker.next_offset, tracker.lowest_unfinished) == (7, 8)
    tracker.finish([9])
    assert not tracker.finish_first(1, 8), "a message behind it has finished already"
    tracker.finish([8])
    assert (tracker.next_offset, tracker.idle) == (10, True)


def test_runs_finished_out_of_order_count_when_the_gap_closes() -> None:
    tracker = OffsetTracker()
    runs = [tracker.deliver(records(base, base + 1)) for base in (0, 2, 4)]
    tracker.finish_all(runs[2])
    tracker.finish_all(runs[1])
    assert tracker.next_offset is None
    tracker.finish_many(runs[0], (0,))
    assert tracker.next_offset == 1
    tracker.finish_many(runs[0], (1,))
    assert tracker.next_offset == 6


@pytest.mark.parametrize(
    "offsets",
    [(), (4,), (3,), (5, 5), (6, 5), (5, 6, 6), (None,), (5, None), (-1,)],
    ids=["none", "same as before", "below", "repeated", "falling", "too close", "no offset", "no last", "negative"],
)
def test_illegal_delivery_changes_nothing(offsets: tuple[int | None, ...]) -> None:
    tracker = OffsetTracker()
    run = tracker.deliver(records(3, 4))
    with pytest.raises(ValueError):  # noqa: PT011 - each case has its own text
        tracker.deliver([Record(offset) for offset in offsets])
    assert tracker.last_offset == 4
    tracker.finish_all(run)
    assert tracker.next_offset == 5
    assert tracker.idle


def test_finishing_an_offset_in_a_hole_of_the_run_changes_nothing() -> None:
    tracker = OffsetTracker()
    run = tracker.deliver(records(3, 7))
    with pytest.raises(ValueError, match="all open"):
        tracker.finish_many(run, (5,))
    tracker.finish_many(run, (3,))
    with pytest.raises(ValueError, match="all open"):
        tracker.finish_many(run, (5,))
    assert tracker.next_offset == 4
    assert run.unfinished == 1


def test_whole_run_may_be_finished_after_a_part_of_it() -> None:
    tracker = OffsetTracker()
    run = tracker.deliver(records(0, 1, 2))
    tracker.finish_many(run, (1,))
    tracker.finish_all(run)
    assert tracker.next_offset == 3


@given(st.permutations(range(6)))
def test_one_stuck_message_blocks_the_commit_but_not_the_memory_of_the_others(order: list[int]) -> None:
    """A message is released when it finishes, at any position; only the stuck run keeps offsets, and no message."""
    tracker = OffsetTracker()
    batches = [[Record(base * 2), Record(base * 2 + 1)] for base in range(6)]
    alive = [weakref.ref(record) for batch in batches for record in batch]
    runs = [tracker.deliver(batch) for batch in batches]
    del batches
    tracker.finish_many(runs[0], (1,))
    for number in order:
        if number != 0:
            tracker.finish_all(runs[number])
    assert not [reference for reference in alive if reference() is not None]
    assert tracker.next_offset is None
    tracker.finish_many(runs[0], (0,))
    assert tracker.next_offset == 12


def test_runs_that_finish_behind_a_stuck_message_do_not_accumulate() -> None:
    tracker = OffsetTracker()
    stuck = tracker.deliver(records(0))
    for offset in range(1, 10_000, 2):
        tracker.finish_all(tracker.deliver(records(offset)))
        assert len(tracker._runs) <= 100
    open_runs = [tracker.deliver(records(offset)) for offset in range(10_000, 20_000)]
    for run in open_runs[1::2] + open_runs[::2]:
        tracker.finish_all(run)
    assert len(tracker._runs) <= 100
    assert (tracker.next_offset, tracker.lowest_unfinished, tracker.span) == (None, 0, 19_999)
    tracker.finish_all(stuck)
    assert (tracker.next_offset, tracker.idle) == (20_000, True)


def test_dropped_tracker_is_freed_without_the_cycle_collector() -> None:
    """A run that is still referenced does not keep its tracker and all of the tracker's messages in memory."""
    tracker = OffsetTracker()
    kept, other = Record(0), Record(1)
    alive = weakref.ref(other)
    run = tracker.deliver([kept])
    tracker.deliver([other])
    del other, tracker
    assert run.unfinished == 1
    assert alive() is None
