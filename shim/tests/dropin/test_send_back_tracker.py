"""The ledger of an assignment: what may be sent back, and how far an offset may be stored."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketshim.dropin.send_back_tracker import SendBackTracker, TopicPartitionKey
from rocketshim.errors import StaleMessageError

PLACE = ("orders", 0)


def held(began_at: int = 0) -> SendBackTracker:
    ledger = SendBackTracker()
    ledger.add({PLACE: began_at})
    return ledger


def store(ledger: SendBackTracker, positions: dict[TopicPartitionKey, int]) -> dict[TopicPartitionKey, int]:
    """Store what is to be stored."""
    offsets = ledger.to_store(positions)
    ledger.stored(offsets)
    return offsets


@pytest.mark.parametrize(("began_at", "position", "offset"), [(0, 5, 5), (0, 5, 9), (0, -1001, 0), (4, 5, 3)])
def test_a_message_that_this_assignment_has_not_handed_out_is_stale(began_at: int, position: int, offset: int) -> None:
    with pytest.raises(StaleMessageError, match=f"orders/0/{offset}"):
        held(began_at).begin(PLACE, offset, position)


def test_a_revoked_partition_is_stale_and_known_as_once_assigned() -> None:
    ledger = held()
    assert not ledger.was_held(PLACE)
    ledger.remove([PLACE])
    with pytest.raises(StaleMessageError):
        ledger.begin(PLACE, 0, 5)
    assert (ledger.places(), ledger.was_held(PLACE)) == ([], True)


def test_a_send_back_is_begun_once_and_again_after_it_failed() -> None:
    ledger = held()
    future, first = ledger.begin(PLACE, 2, 5)
    assert (first, ledger.begin(PLACE, 2, 5)) == (True, (future, False))
    ledger.end(PLACE, 2, future, OSError("away"))
    assert isinstance(future.exception(), OSError)
    again, is_ours = ledger.begin(PLACE, 2, 5)
    assert is_ours
    ledger.end(PLACE, 2, again, None)
    assert ledger.begin(PLACE, 2, 5) == (again, False)


def test_the_offset_stays_below_a_running_or_failed_send_back() -> None:
    ledger = held()
    future, _ = ledger.begin(PLACE, 2, 5)
    assert store(ledger, {PLACE: 5}) == {PLACE: 2}
    assert store(ledger, {PLACE: 6}) == {}
    ledger.end(PLACE, 2, future, OSError())
    assert store(ledger, {PLACE: 7}) == {}
    again, _ = ledger.begin(PLACE, 2, 7)
    ledger.end(PLACE, 2, again, None)
    assert store(ledger, {PLACE: 7}) == {PLACE: 7}


def test_an_offset_that_was_not_stored_or_stored_late_is_returned_again() -> None:
    ledger = held()
    late = ledger.to_store({PLACE: 5})
    assert late == ledger.to_store({PLACE: 5}) == {PLACE: 5}
    ledger.begin(PLACE, 2, 5)
    assert store(ledger, {PLACE: 5}) == {PLACE: 2}
    ledger.stored(late)  # by a thread that had asked before
    assert store(ledger, {PLACE: 5}) == {PLACE: 2}
    assert store(ledger, {PLACE: 5}) == {}


def test_an_offset_stored_too_far_is_stored_again_lower() -> None:
    ledger = held()
    assert store(ledger, {PLACE: 5}) == {PLACE: 5}
    ledger.begin(PLACE, 2, 5)
    assert store(ledger, {PLACE: 5}) == {PLACE: 2}


def test_after_a_seek_a_failed_message_limits_the_offset_until_it_is_handed_out_again() -> None:
    ledger = held()
    future, _ = ledger.begin(PLACE, 2, 5)
    ledger.end(PLACE, 2, future, OSError())
    ledger.sought(PLACE, 1, 5)
    assert ledger.begin(PLACE, 4, -1001)[1], "handed out before the seek: not stale"
    assert store(ledger, {PLACE: -1001}) == {}
    assert store(ledger, {PLACE: 2}) == {PLACE: 2}
    assert store(ledger, {PLACE: 3}) == {PLACE: 3}


def test_after_a_seek_a_message_may_be_sent_back_again() -> None:
    ledger = held(3)
    future, _ = ledger.begin(PLACE, 4, 5)
    ledger.end(PLACE, 4, future, None)
    ledger.sought(PLACE, 0, 5)
    assert ledger.begin(PLACE, 4, 5)[1]
    assert ledger.begin(PLACE, 0, 1)[1], "before where the assignment began"


def test_a_topic_created_again_starts_before_the_start_of_the_assignment() -> None:
    ledger = held(5_000)
    assert ledger.begin(PLACE, 2, 3)[1], "the client has reset the offset: not stale"
    ledger = held(5_000)
    store(ledger, {PLACE: 3})
    assert ledger.begin(PLACE, 2, 6_000)[1]


def test_the_end_of_an_earlier_assignments_send_back_changes_nothing() -> None:
    ledger = held()
    old, _ = ledger.begin(PLACE, 2, 5)
    ledger.remove([PLACE])
    ledger.add({PLACE: 0})
    new, _ = ledger.begin(PLACE, 2, 5)
    ledger.end(PLACE, 2, old, None)
    assert store(ledger, {PLACE: 5}) == {PLACE: 2}
    ledger.end(PLACE, 2, new, None)
    assert store(ledger, {PLACE: 5}) == {PLACE: 5}


def test_the_record_of_stored_send_backs_is_bounded() -> None:
    ledger = held()
    for offset in range(10_001):
        future, _ = ledger.begin(PLACE, offset, 20_000)
        ledger.end(PLACE, offset, future, None)
    assert ledger.begin(PLACE, 0, 20_000)[1]
    assert not ledger.begin(PLACE, 10_000, 20_000)[1]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["hand out", "begin", "store", "fail"]), st.integers(0, 9)), max_size=60))
def test_the_stored_offset_is_the_lowest_that_is_not_done(steps: list[tuple[str, int]]) -> None:
    ledger, position, open_, last = held(), 0, {}, 0
    for step, number in steps:
        if step == "hand out":
            position += number
        elif step == "begin" and number < position:
            future, is_ours = ledger.begin(PLACE, number, position)
            if is_ours:
                open_[number] = future
        elif number in open_ and not open_[number].done():
            error = OSError() if step == "fail" else None
            ledger.end(PLACE, number, open_[number], error)
            if error is None:
                del open_[number]
        last = store(ledger, {PLACE: position}).get(PLACE, last)
        assert last == min([position, *open_]) or position == 0
