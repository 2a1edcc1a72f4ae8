"""Positions of a pull consumer: the messages of a poll are done when the next poll begins."""

from hypothesis import given
from hypothesis import strategies as st

from rocketshim.core.pull_positions import PullPositions
from rocketshim_topics.coordinates import TopicPartitionKey

A, B = TopicPartitionKey("t", 0), TopicPartitionKey("t", 1)


def assigned(*keys: TopicPartitionKey, start: int = 0) -> PullPositions:
    positions = PullPositions()
    for key in keys:
        positions.adopt(key, start)
    return positions


def test_messages_of_the_current_poll_are_not_due() -> None:
    positions = assigned(A)
    positions.begin_poll()
    positions.hand_out(A, 5)
    assert positions.due() == {}
    assert positions.unconfirmed(everything=True) == {A: 5}
    positions.begin_poll()
    assert positions.due() == {A: 5}


def test_the_done_part_of_a_partition_that_this_poll_moves_stays_due() -> None:
    positions = assigned(A)
    positions.begin_poll()
    positions.hand_out(A, 5)
    positions.begin_poll()
    positions.hand_out(A, 7)
    positions.hand_out(A, 9)
    assert positions.due() == {A: 5}


def test_what_no_reader_sees_is_done_with_the_message_before_it() -> None:
    positions = assigned(A, start=3)
    positions.skip_to(A, 2)
    positions.skip_to(B, 9)
    assert positions.due() == {}
    positions.skip_to(A, 4)
    assert positions.due() == {A: 4}
    positions.begin_poll()
    positions.hand_out(A, 6)
    positions.skip_to(A, 9)
    assert positions.due() == {A: 4}
    assert positions.unconfirmed(everything=True) == {A: 9}
    positions.begin_poll()
    assert positions.due() == {A: 9}


def test_a_start_counts_as_committed_and_a_position_sent_is_not_due_again() -> None:
    positions = assigned(A, start=3)
    assert positions.unconfirmed(everything=True) == {}
    positions.hand_out(A, 4)
    positions.begin_poll()
    positions.sent(positions.due())
    assert positions.due() == {}


def test_a_position_is_not_due_before_the_answer_to_the_one_before() -> None:
    """Otherwise a commit that librdkafka repeats, with the coordinator changing, may be stored after a later one."""
    positions = assigned(A)
    positions.seek(A, 5)
    positions.sent({A: 5})
    positions.seek(A, 6)
    assert positions.due() == {}
    assert positions.unconfirmed() == {A: 6}
    positions.confirmed(A, 5)
    assert positions.due() == {A: 6}


def test_a_refused_position_is_due_again_unless_a_later_one_was_sent() -> None:
    positions = assigned(A)
    positions.seek(A, 5)
    positions.sent({A: 5})
    positions.refused(A, 4)
    assert positions.due() == {}
    positions.refused(A, 5)
    assert positions.due() == {A: 5}


def test_a_position_sought_back_is_due_immediately() -> None:
    positions = assigned(A, start=10)
    positions.begin_poll()
    positions.hand_out(A, 20)
    positions.seek(A, 2)
    assert positions.due() == {A: 2}


def test_nothing_is_kept_of_unassigned_partitions() -> None:
    positions = assigned(A, B)
    positions.hand_out(A, 5)
    positions.forget([A])
    positions.sent({A: 5})
    assert A not in positions
    assert positions.assigned_keys() == [B]
    positions.adopt(A, 0)
    assert positions.unconfirmed(everything=True) == {}
    assert positions.unconfirmed([A, TopicPartitionKey("other", 0)], everything=True) == {}


def test_a_position_that_was_only_sent_is_part_of_a_commit_that_is_waited_for() -> None:
    positions = assigned(A)
    positions.hand_out(A, 5)
    positions.begin_poll()
    positions.sent(positions.due())
    assert positions.unconfirmed() == {A: 5}
    positions.confirmed(A, 4)
    assert positions.unconfirmed() == {A: 5}
    positions.confirmed(A, 5)
    assert positions.unconfirmed() == {}


def test_a_position_sought_back_to_is_committed_again_if_a_later_one_was_sent() -> None:
    positions = assigned(A, start=3)
    positions.hand_out(A, 5)
    positions.begin_poll()
    positions.sent(positions.due())
    positions.seek(A, 3)
    assert positions.unconfirmed() == {A: 3}


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("poll"), st.just(0)),
        st.tuples(st.just("hand"), st.integers(1, 5)),
        st.tuples(st.just("seek"), st.integers(0, 50)),
        st.tuples(st.just("commit"), st.just(0)),
        st.tuples(st.just("commit all"), st.just(0)),
        st.tuples(st.just("refuse"), st.just(0)),
        st.tuples(st.just("confirm"), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_positions_agree_with_a_model_that_keeps_every_poll(steps: list[tuple[str, int]]) -> None:
    """The model: position and done as two plain numbers; what was sent last, and what is confirmed, as two more."""
    positions = assigned(A)
    position = done = sent = confirmed = 0
    for what, number in steps:
        match what:
            case "poll":
                positions.begin_poll()
                done = position
            case "hand":
                position += number
                positions.hand_out(A, position)
            case "seek":
                position = done = number
                positions.seek(A, number)
            case "commit":
                due = positions.due()
                assert due == ({A: done} if done != sent and sent in (confirmed, -1) else {})
                positions.sent(due)
                sent = due.get(A, sent)
            case "commit all":
                due = positions.unconfirmed(everything=True)
                assert due == ({} if position == sent == confirmed else {A: position})
                positions.sent(due)
                if due:
                    sent = done = position
            case "refuse":
                positions.refused(A, sent)
                sent = -1
            case "confirm" if sent >= 0:
                positions.confirmed(A, sent)
                confirmed = sent
        assert positions.unconfirmed() == ({} if done == sent == confirmed else {A: done})
    assert positions.position(A) == position
