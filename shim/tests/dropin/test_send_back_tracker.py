"""The tracker of an assignment: what may be sent back, and how far an offset may be stored."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketshim.dropin.send_back_tracker import SendBackTracker
from rocketshim.errors import StaleMessageError
from rocketshim_topics.coordinates import TopicPartitionKey

KEY = TopicPartitionKey("orders", 0)


def held(began_at: int = 0) -> SendBackTracker:
    tracker = SendBackTracker()
    tracker.add({KEY: began_at})
    return tracker


def store(tracker: SendBackTracker, positions: dict[TopicPartitionKey, int]) -> dict[TopicPartitionKey, int]:
    """Store what is to be stored."""
    offsets = tracker.to_store(positions)
    tracker.stored(offsets)
    return offsets


@pytest.mark.parametrize(("began_at", "position", "offset"), [(0, 5, 5), (0, 5, 9), (0, -1001, 0), (4, 5, 3)])
def test_a_message_that_this_assignment_has_not_handed_out_is_stale(began_at: int, position: int, offset: int) -> None:
    with pytest.raises(StaleMessageError, match=f"orders/0/{offset}"):
        held(began_at).begin(KEY, offset, position)


def test_a_revoked_partition_is_stale_and_known_as_once_assigned() -> None:
    tracker = held()
    assert not tracker.was_held(KEY)
    tracker.remove([KEY])
    with pytest.raises(StaleMessageError):
        tracker.begin(KEY, 0, 5)
    assert (tracker.assigned_keys(), tracker.was_held(KEY)) == ([], True)


def test_a_send_back_is_begun_once_and_again_after_it_failed() -> None:
    tracker = held()
    future, first = tracker.begin(KEY, 2, 5)
    assert (first, tracker.begin(KEY, 2, 5)) == (True, (future, False))
    tracker.end(KEY, 2, future, OSError("away"))
    assert isinstance(future.exception(), OSError)
    again, is_ours = tracker.begin(KEY, 2, 5)
    assert is_ours
    tracker.end(KEY, 2, again, None)
    assert tracker.begin(KEY, 2, 5) == (again, False)


def test_the_offset_stays_below_a_running_or_failed_send_back() -> None:
    tracker = held()
    future, _ = tracker.begin(KEY, 2, 5)
    assert store(tracker, {KEY: 5}) == {KEY: 2}
    assert store(tracker, {KEY: 6}) == {}
    tracker.end(KEY, 2, future, OSError())
    assert store(tracker, {KEY: 7}) == {}
    again, _ = tracker.begin(KEY, 2, 7)
    tracker.end(KEY, 2, again, None)
    assert store(tracker, {KEY: 7}) == {KEY: 7}


def test_an_offset_that_was_not_stored_or_stored_late_is_returned_again() -> None:
    tracker = held()
    late = tracker.to_store({KEY: 5})
    assert late == tracker.to_store({KEY: 5}) == {KEY: 5}
    tracker.begin(KEY, 2, 5)
    assert store(tracker, {KEY: 5}) == {KEY: 2}
    tracker.stored(late)  # by a thread that had asked before
    assert store(tracker, {KEY: 5}) == {KEY: 2}
    assert store(tracker, {KEY: 5}) == {}


def test_an_offset_stored_too_far_is_stored_again_lower() -> None:
    tracker = held()
    assert store(tracker, {KEY: 5}) == {KEY: 5}
    tracker.begin(KEY, 2, 5)
    assert store(tracker, {KEY: 5}) == {KEY: 2}


def test_after_a_seek_a_failed_message_limits_the_offset_until_it_is_handed_out_again() -> None:
    tracker = held()
    future, _ = tracker.begin(KEY, 2, 5)
    tracker.end(KEY, 2, future, OSError())
    tracker.sought(KEY, 1, 5)
    assert tracker.begin(KEY, 4, -1001)[1], "handed out before the seek: not stale"
    assert store(tracker, {KEY: -1001}) == {}
    assert store(tracker, {KEY: 2}) == {KEY: 2}
    assert store(tracker, {KEY: 3}) == {KEY: 3}


def test_after_a_seek_a_message_may_be_sent_back_again() -> None:
    tracker = held(3)
    future, _ = tracker.begin(KEY, 4, 5)
    tracker.end(KEY, 4, future, None)
    tracker.sought(KEY, 0, 5)
    assert tracker.begin(KEY, 4, 5)[1]
    assert tracker.begin(KEY, 0, 1)[1], "before where the assignment began"


def test_a_topic_created_again_starts_before_the_start_of_the_assignment() -> None:
    tracker = held(5_000)
    assert tracker.begin(KEY, 2, 3)[1], "the client has reset the offset: not stale"
    tracker = held(5_000)
    store(tracker, {KEY: 3})
    assert tracker.begin(KEY, 2, 6_000)[1]


def test_the_end_of_an_earlier_assignments_send_back_changes_nothing() -> None:
    tracker = held()
    old, _ = tracker.begin(KEY, 2, 5)
    tracker.remove([KEY])
    tracker.add({KEY: 0})
    new, _ = tracker.begin(KEY, 2, 5)
    tracker.end(KEY, 2, old, None)
    assert store(tracker, {KEY: 5}) == {KEY: 2}
    tracker.end(KEY, 2, new, None)
    assert store(tracker, {KEY: 5}) == {KEY: 5}


def test_the_record_of_stored_send_backs_is_bounded() -> None:
    tracker = held()
    for offset in range(10_001):
        future, _ = tracker.begin(KEY, offset, 20_000)
        tracker.end(KEY, offset, future, None)
    assert tracker.begin(KEY, 0, 20_000)[1]
    assert not tracker.begin(KEY, 10_000, 20_000)[1]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["hand out", "begin", "store", "fail"]), st.integers(0, 9)), max_size=60))
def test_the_stored_offset_is_the_lowest_that_is_not_done(steps: list[tuple[str, int]]) -> None:
    tracker, position, open_, last = held(), 0, {}, 0
    for step, number in steps:
        if step == "hand out":
            position += number
        elif step == "begin" and number < position:
            future, is_ours = tracker.begin(KEY, number, position)
            if is_ours:
                open_[number] = future
        elif number in open_ and not open_[number].done():
            error = OSError() if step == "fail" else None
            tracker.end(KEY, number, open_[number], error)
            if error is None:
                del open_[number]
        last = store(tracker, {KEY: position}).get(KEY, last)
        assert last == min([position, *open_]) or position == 0
