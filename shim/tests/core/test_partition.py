"""Which offset may be sent next: only higher ones."""

from hypothesis import given
from hypothesis import strategies as st

from rocketshim.core.partition import Partition
from rocketshim_topics.coordinates import TopicPartitionKey

KEY = TopicPartitionKey("orders", 0)
STEPS = st.lists(st.tuples(st.sampled_from(["send", "confirm"]), st.integers(0, 9)))


@given(STEPS)
def test_stored_offsets_never_go_back_and_no_offset_is_sent_below_another_that_counts(
    steps: list[tuple[str, int]],
) -> None:
    partition = Partition(KEY)
    partition.begin(0)
    unanswered: list[int] = []
    for step, offset in steps:
        before = partition.stored
        if step == "send":
            may_send = partition.may_send(offset)
            assert not may_send or offset > max([before, *unanswered])
            if may_send:
                partition.sent = offset
                unanswered.append(offset)
        elif unanswered:
            partition.confirm(unanswered.pop(0))
        assert before <= partition.stored <= partition.sent


def test_a_partition_that_has_not_begun_may_send_nothing() -> None:
    partition = Partition(KEY)
    assert not partition.may_send(7)
    partition.begin(0)
    partition.begin(-1)
    assert not partition.is_last_sent(-1)
    assert (partition.may_send(7), partition.sent, partition.stored) == (False, -1, -1)
