"""Positions of a pull consumer: the messages of a poll are done when the next poll begins."""

from hypothesis import given
from hypothesis import strategies as st

from rocketshim.consumer.pull.lite_pull_consumer import PullPartitions
from rocketshim.core.partition import Partition
from rocketshim.settings.consumer import LitePullConsumerSettings
from rocketshim.testing import InMemoryKafka
from rocketshim_topics import TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey

A, B = TopicPartitionKey("t", 0), TopicPartitionKey("t", 1)


def assigned(*keys: TopicPartitionKey, start: int = 0) -> PullPartitions:
    kafka = InMemoryKafka()
    settings = LitePullConsumerSettings.make(bootstrap="memory:1", group="g")
    made = PullPartitions(settings, TopicNames(), kafka.clients(), kafka.clock)
    for key in keys:
        made.by_key[key] = Partition(key)
        made.begin(key, start)
    return made


def due(positions: PullPartitions) -> dict[TopicPartitionKey, int]:
    return {key: each.done for key, each in positions.by_key.items() if each.is_due}


def of(positions: PullPartitions, key: TopicPartitionKey = A) -> Partition:
    return positions.by_key[key]


def send_due(positions: PullPartitions) -> None:
    for key, position in due(positions).items():
        of(positions, key).send(position)


def test_messages_of_the_current_poll_are_not_due() -> None:
    positions = assigned(A)
    positions.begin_poll()
    of(positions).hand_out(5)
    assert due(positions) == {}
    assert positions.unconfirmed(everything=True) == {A: 5}
    positions.begin_poll()
    assert due(positions) == {A: 5}


def test_the_done_part_of_a_partition_that_this_poll_moves_stays_due() -> None:
    positions = assigned(A)
    positions.begin_poll()
    of(positions).hand_out(5)
    positions.begin_poll()
    of(positions).hand_out(7)
    of(positions).hand_out(9)
    assert due(positions) == {A: 5}


def test_what_no_reader_sees_is_done_with_the_message_before_it() -> None:
    positions = assigned(A, start=3)
    of(positions).position = 4
    assert due(positions) == {A: 4}
    positions.begin_poll()
    of(positions).hand_out(6)
    of(positions).position = 9
    assert due(positions) == {A: 4}
    assert positions.unconfirmed(everything=True) == {A: 9}
    positions.begin_poll()
    assert due(positions) == {A: 9}


def test_a_start_counts_as_committed_and_a_position_sent_is_not_due_again() -> None:
    positions = assigned(A, start=3)
    assert positions.unconfirmed(everything=True) == {}
    of(positions).hand_out(4)
    positions.begin_poll()
    send_due(positions)
    assert due(positions) == {}


def test_a_position_is_not_due_before_the_answer_to_the_one_before() -> None:
    """Otherwise a commit that librdkafka repeats, with the coordinator changing, may be stored after a later one."""
    positions = assigned(A)
    of(positions).seek(5)
    of(positions).send(5)
    of(positions).seek(6)
    assert due(positions) == {}
    assert positions.unconfirmed() == {A: 6}
    of(positions).commit_answered(5, is_stored=True)
    assert due(positions) == {A: 6}


def test_a_refused_position_is_due_again_unless_a_later_one_was_sent() -> None:
    positions = assigned(A)
    of(positions).seek(5)
    of(positions).send(5)
    of(positions).commit_answered(4, is_stored=False)
    assert due(positions) == {}
    of(positions).commit_answered(5, is_stored=False)
    assert due(positions) == {A: 5}


def test_a_position_sought_back_is_due_immediately() -> None:
    positions = assigned(A, start=10)
    positions.begin_poll()
    of(positions).hand_out(20)
    of(positions).seek(2)
    assert due(positions) == {A: 2}


def test_nothing_is_committed_of_unassigned_partitions() -> None:
    positions = assigned(A, B)
    of(positions).hand_out(5)
    del positions.by_key[A]
    assert positions.unconfirmed(everything=True) == {}
    assert positions.unconfirmed([A, TopicPartitionKey("other", 0)], everything=True) == {}
    assert positions.position(A) is None


def test_a_position_that_was_only_sent_is_part_of_a_commit_that_is_waited_for() -> None:
    positions = assigned(A)
    of(positions).hand_out(5)
    positions.begin_poll()
    send_due(positions)
    assert positions.unconfirmed() == {A: 5}
    of(positions).commit_answered(4, is_stored=True)
    assert positions.unconfirmed() == {A: 5}
    of(positions).commit_answered(5, is_stored=True)
    assert positions.unconfirmed() == {}


def test_a_position_sought_back_to_is_committed_again_if_a_later_one_was_sent() -> None:
    positions = assigned(A, start=3)
    of(positions).hand_out(5)
    positions.begin_poll()
    send_due(positions)
    of(positions).seek(3)
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
                of(positions).hand_out(position)
            case "seek":
                position = done = number
                of(positions).seek(number)
            case "commit":
                expected = {A: done} if done != sent and sent in (confirmed, -1) else {}
                assert due(positions) == expected
                send_due(positions)
                sent = expected.get(A, sent)
            case "commit all":
                expected = {} if position == sent == confirmed else {A: position}
                assert positions.unconfirmed(everything=True) == expected
                if expected:
                    of(positions).send(position)
                    sent = done = position
            case "refuse":
                of(positions).commit_answered(sent, is_stored=False)
                sent = -1
            case "confirm" if sent >= 0:
                of(positions).commit_answered(sent, is_stored=True)
                confirmed = sent
        assert positions.unconfirmed() == ({} if done == sent == confirmed else {A: done})
    assert positions.position(A) == position
