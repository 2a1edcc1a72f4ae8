"""The ledger of an assignment: what may be sent back, and how far an offset may be stored."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketshim.dropin.send_back_tracker import SendBackTracker
from rocketshim.errors import StaleMessageError
from rocketshim_topics.coordinates import TopicPartitionKey

KEY = TopicPartitionKey("orders", 0)


def held(began_at: int = 0) -> SendBackTracker:
    ledger = SendBackTracker()
    ledger.add({KEY: began_at})
    return ledger


def store(ledger: SendBackTracker, positions: dict[TopicPartitionKey, int]) -> dict[TopicPartitionKey, int]:
    """Store what is to be stored."""
    offsets = ledger.to_store(positions)
    ledger.stored(offsets)
    return offsets


@pytest.mark.parametrize(("began_at", "position", "offset"), [(0, 5, 5), (0, 5, 9), (0, -1001, 0), (4, 5, 3)])
def test_a_message_that_this_assignment_has_not_handed_out_is_stale(began_at: int, position: int, offset: int) -> None:
    with pytest.raises(StaleMessageError, match=f"orders/0/{offset}"):
        held(began_at).begin(KEY, offset, position)


def test_a_revoked_partition_is_stale_and_known_as_once_assigned() -> None:
    ledger = held()
    assert not ledger.was_held(KEY)
    ledger.remove([KEY])
    with pytest.raises(StaleMessageError):
        ledger.begin(KEY, 0, 5)
    assert (ledger.assigned_keys(), ledger.was_held(KEY)) == ([], True)


def test_a_send_back_is_begun_once_and_again_after_it_failed() -> None:
    ledger = held()
    future, first = ledger.begin(KEY, 2, 5)
    assert (first, ledger.begin(KEY, 2, 5)) == (True, (future, False))
    ledger.end(KEY, 2, future, OSError("away"))
    assert isinstance(future.exception(), OSError)
    again, is_ours = ledger.begin(KEY, 2, 5)
    assert is_ours
    ledger.end(KEY, 2, again, None)
    assert ledger.begin(KEY, 2, 5) == (again, False)


def test_the_offset_stays_below_a_running_or_failed_send_back() -> None:
    ledger = held()
    future, _ = ledger.begin(KEY, 2, 5)
    assert store(ledger, {KEY: 5}) == {KEY: 2}
    assert store(ledger, {KEY: 6}) == {}
    ledger.end(KEY, 2, future, OSError())
    assert store(ledger, {KEY: 7}) == {}
    again, _ = ledger.begin(KEY, 2, 7)
    ledger.end(KEY, 2, again, None)
    assert store(ledger, {KEY: 7}) == {KEY: 7}


def test_an_offset_that_was_not_stored_or_stored_late_is_returned_again() -> None:
    ledger = held()
    late = ledger.to_store({KEY: 5})
    assert late == ledger.to_store({KEY: 5}) == {KEY: 5}
    ledger.begin(KEY, 2, 5)
    assert store(ledger, {KEY: 5}) == {KEY: 2}
    ledger.stored(late)  # by a thread that had asked before
    assert store(ledger, {KEY: 5}) == {KEY: 2}
    assert store(ledger, {KEY: 5}) == {}


def test_an_offset_stored_too_far_is_stored_again_lower() -> None:
    ledger = held()
    assert store(ledger, {KEY: 5}) == {KEY: 5}
    ledger.begin(KEY, 2, 5)
    assert store(ledger, {KEY: 5}) == {KEY: 2}


def test_after_a_seek_a_failed_message_limits_the_offset_until_it_is_handed_out_again() -> None:
    ledger = held()
    future, _ = ledger.begin(KEY, 2, 5)
    ledger.end(KEY, 2, future, OSError())
    ledger.sought(KEY, 1, 5)
    assert ledger.begin(KEY, 4, -1001)[1], "handed out before the seek: not stale"
    assert store(ledger, {KEY: -1001}) == {}
    assert store(ledger, {KEY: 2}) == {KEY: 2}
    assert store(ledger, {KEY: 3}) == {KEY: 3}


def test_after_a_seek_a_message_may_be_sent_back_again() -> None:
    ledger = held(3)
    future, _ = ledger.begin(KEY, 4, 5)
    ledger.end(KEY, 4, future, None)
    ledger.sought(KEY, 0, 5)
    assert ledger.begin(KEY, 4, 5)[1]
    assert ledger.begin(KEY, 0, 1)[1], "before where the assignment began"


def test_a_topic_created_again_starts_before_the_start_of_the_assignment() -> None:
    ledger = held(5_000)
    assert ledger.begin(KEY, 2, 3)[1], "the client has reset the offset: not stale"
    ledger = held(5_000)
    store(ledger, {KEY: 3})
    assert ledger.begin(KEY, 2, 6_000)[1]


def test_the_end_of_an_earlier_assignments_send_back_changes_nothing() -> None:
    ledger = held()
    old, _ = ledger.begin(KEY, 2, 5)
    ledger.remove([KEY])
    ledger.add({KEY: 0})
    new, _ = ledger.begin(KEY, 2, 5)
    ledger.end(KEY, 2, old, None)
    assert store(ledger, {KEY: 5}) == {KEY: 2}
    ledger.end(KEY, 2, new, None)
    assert store(ledger, {KEY: 5}) == {KEY: 5}


def test_the_record_of_stored_send_backs_is_bounded() -> None:
    ledger = held()
    for offset in range(10_001):
        future, _ = ledger.begin(KEY, offset, 20_000)
        ledger.end(KEY, offset, future, None)
    assert ledger.begin(KEY, 0, 20_000)[1]
    assert not ledger.begin(KEY, 10_000, 20_000)[1]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["hand out", "begin", "store", "fail"]), st.integers(0, 9)), max_size=60))
def test_the_stored_offset_is_the_lowest_that_is_not_done(steps: list[tuple[str, int]]) -> None:
    ledger, position, open_, last = held(), 0, {}, 0
    for step, number in steps:
        if step == "hand out":
            position += number
        elif step == "begin" and number < position:
            future, is_ours = ledger.begin(KEY, number, position)
            if is_ours:
                open_[number] = future
        elif number in open_ and not open_[number].done():
            error = OSError() if step == "fail" else None
            ledger.end(KEY, number, open_[number], error)
            if error is None:
                del open_[number]
        last = store(ledger, {KEY: position}).get(KEY, last)
        assert last == min([position, *open_]) or position == 0
