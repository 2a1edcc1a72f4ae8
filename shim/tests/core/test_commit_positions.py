"""Which offset may be sent next: only higher ones; one that was refused may be sent again."""

from hypothesis import given
from hypothesis import strategies as st

from rocketshim.core.commit_positions import CommitPositions
from rocketshim_topics.coordinates import TopicPartitionKey

KEY = TopicPartitionKey("orders", 0)
STEPS = st.lists(st.tuples(st.sampled_from(["send", "confirm", "refuse"]), st.integers(0, 9)))


@given(STEPS)
def test_stored_offsets_never_go_back_and_no_offset_is_sent_below_another_that_counts(
    steps: list[tuple[str, int]],
) -> None:
    positions = CommitPositions()
    positions.adopt(KEY, 0)
    unanswered: list[int] = []
    for step, offset in steps:
        before = positions.stored(KEY)
        if step == "send":
            may_send = positions.may_send(KEY, offset)
            assert not may_send or offset > max([before, *unanswered])
            if may_send:
                positions.send({KEY: offset})
                unanswered.append(offset)
        elif unanswered:
            answered = unanswered.pop(0)
            (positions.confirm if step == "confirm" else positions.refuse)(KEY, answered)
            assert step == "confirm" or unanswered or positions.may_send(KEY, answered)
        assert before <= positions.stored(KEY) <= positions.sent(KEY)


def test_a_partition_that_is_not_assigned_may_send_nothing() -> None:
    positions = CommitPositions()
    assert not positions.may_send(KEY, 7)
    positions.adopt(KEY, 0)
    positions.forget(KEY)
    positions.refuse(KEY, 0)
    assert (positions.may_send(KEY, 7), positions.sent(KEY), positions.stored(KEY)) == (False, -1, -1)
