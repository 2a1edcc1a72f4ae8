"""The partitions of an assignment: what may be sent back, how far offsets are stored, and which are the program's."""

from concurrent.futures import Future

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, Message, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st

from rocketshim.dropin.partitions import Partitions
from rocketshim.errors import StaleMessageError
from rocketshim_topics import TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey

KEY = TopicPartitionKey("orders", 0)
NAMES = TopicNames()
RETRY = NAMES.retry("g")
MINE, OTHER, RETRIES = (TopicPartitionKey(*key) for key in (("orders", 0), ("orders", 1), (RETRY, 0)))


def assigned(began_at: int = 0) -> Partitions:
    partitions = Partitions(RETRY, NAMES)
    partitions.add([KEY])
    partitions.by_key[KEY].began_at = began_at
    return partitions


def hand_out(partitions: Partitions, position: int) -> None:
    """Hand out the message before a position; a negative one: none was."""
    if position > 0:
        partitions.handed_out(Message("orders", 0, position - 1, value=b"x"))


def begin(partitions: Partitions, offset: int, position: int) -> tuple[Future[None], bool]:
    """Begin a send-back after messages up to a position were handed out."""
    hand_out(partitions, position)
    return partitions.begin(KEY, offset)


def store(partitions: Partitions, positions: dict[TopicPartitionKey, int]) -> dict[TopicPartitionKey, int]:
    """Store what is to be stored."""
    found = to_store(partitions, positions)
    partitions.stored(found)
    return {TopicPartitionKey.of(each): each.offset for each in found}


def to_store(partitions: Partitions, positions: dict[TopicPartitionKey, int]) -> list[TopicPartition]:
    return partitions.to_store({key: TopicPartition(*key, offset) for key, offset in positions.items()})


@pytest.mark.parametrize(("began_at", "position", "offset"), [(0, 5, 5), (0, 5, 9), (0, -1001, 0), (4, 5, 3)])
def test_a_message_that_this_assignment_has_not_handed_out_is_stale(began_at: int, position: int, offset: int) -> None:
    with pytest.raises(StaleMessageError, match=f"orders/0/{offset}"):
        begin(assigned(began_at), offset, position)


def test_a_message_of_a_revoked_partition_is_stale_also_if_it_is_assigned_again_and_begins_later() -> None:
    partitions = assigned()
    hand_out(partitions, 5)
    partitions.remove([KEY])
    with pytest.raises(StaleMessageError):
        partitions.begin(KEY, 0)
    partitions.add([KEY])
    for _ in range(2):
        with pytest.raises(StaleMessageError):
            partitions.begin(KEY, 4)
        hand_out(partitions, 6)
    assert partitions.begin(KEY, 5)[1]


def test_the_first_message_of_many_is_noted_where_the_client_was_asked_instead_of_each_message() -> None:
    partitions = Partitions(RETRY, NAMES)
    partitions.add([KEY, OTHER])
    for _ in range(2):
        partitions.answered({KEY: TopicPartition(*KEY, 8), OTHER: TopicPartition(*OTHER, OFFSET_INVALID)})
        partitions.began([Message("orders", 0, number, value=b"x") for number in (5, 6, 7)])
    assert [each.began_at for each in partitions.by_key.values()] == [5, None]
    assert partitions.begin(KEY, 5)[1]
    with pytest.raises(StaleMessageError):
        partitions.begin(KEY, 4)


def test_a_send_back_is_begun_once_and_again_after_it_failed() -> None:
    partitions = assigned()
    future, first = begin(partitions, 2, 5)
    assert (first, begin(partitions, 2, 5)) == (True, (future, False))
    partitions.end(KEY, 2, future, OSError("away"))
    assert isinstance(future.exception(), OSError)
    again, is_ours = begin(partitions, 2, 5)
    assert is_ours
    partitions.end(KEY, 2, again, None)
    assert begin(partitions, 2, 5) == (again, False)


def test_the_offset_stays_below_a_running_or_failed_send_back() -> None:
    partitions = assigned()
    future, _ = begin(partitions, 2, 5)
    assert store(partitions, {KEY: 5}) == {KEY: 2}
    assert store(partitions, {KEY: 6}) == {}
    partitions.end(KEY, 2, future, OSError())
    assert store(partitions, {KEY: 7}) == {}
    again, _ = begin(partitions, 2, 7)
    partitions.end(KEY, 2, again, None)
    assert store(partitions, {KEY: 7}) == {KEY: 7}


def test_an_offset_that_was_not_stored_or_stored_late_is_returned_again() -> None:
    partitions = assigned()
    late = to_store(partitions, {KEY: 5})
    assert late == to_store(partitions, {KEY: 5}) == [TopicPartition(*KEY, 5)]
    begin(partitions, 2, 5)
    assert store(partitions, {KEY: 5}) == {KEY: 2}
    partitions.stored(late)  # by a thread that had asked before
    assert store(partitions, {KEY: 5}) == {KEY: 2}
    assert store(partitions, {KEY: 5}) == {}


def test_an_offset_stored_too_far_is_stored_again_lower() -> None:
    partitions = assigned()
    assert store(partitions, {KEY: 5}) == {KEY: 5}
    begin(partitions, 2, 5)
    assert store(partitions, {KEY: 5}) == {KEY: 2}


def test_after_a_seek_a_failed_message_limits_the_offset_until_it_is_handed_out_again() -> None:
    partitions = assigned()
    future, _ = begin(partitions, 2, 5)
    partitions.end(KEY, 2, future, OSError())
    partitions.sought(KEY, 1)
    assert begin(partitions, 4, -1001)[1], "handed out before the seek: not stale"
    assert store(partitions, {KEY: -1001}) == {}
    assert store(partitions, {KEY: 2}) == {KEY: 2}
    assert store(partitions, {KEY: 3}) == {KEY: 3}


def test_after_a_seek_a_message_may_be_sent_back_again() -> None:
    partitions = assigned(3)
    future, _ = begin(partitions, 4, 5)
    partitions.end(KEY, 4, future, None)
    partitions.sought(KEY, 0)
    assert begin(partitions, 4, 5)[1]
    assert begin(partitions, 0, 1)[1], "before where the assignment began"


def test_a_topic_created_again_starts_before_the_start_of_the_assignment() -> None:
    partitions = assigned(5_000)
    assert begin(partitions, 2, 3)[1], "the client has reset the offset: not stale"
    partitions = assigned(5_000)
    store(partitions, {KEY: 3})
    assert begin(partitions, 2, 6_000)[1]


def test_the_end_of_an_earlier_assignments_send_back_changes_nothing() -> None:
    partitions = assigned()
    old, _ = begin(partitions, 2, 5)
    partitions.remove([KEY])
    partitions.add([KEY])
    partitions.by_key[KEY].began_at = 0
    new, _ = begin(partitions, 2, 5)
    partitions.end(KEY, 2, old, None)
    assert store(partitions, {KEY: 5}) == {KEY: 2}
    partitions.end(KEY, 2, new, None)
    assert store(partitions, {KEY: 5}) == {KEY: 5}


def test_the_record_of_stored_send_backs_is_bounded() -> None:
    partitions = assigned()
    for offset in range(10_001):
        future, _ = begin(partitions, offset, 20_000)
        partitions.end(KEY, offset, future, None)
    assert begin(partitions, 0, 20_000)[1]
    assert not begin(partitions, 10_000, 20_000)[1]


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["hand out", "begin", "store", "fail"]), st.integers(0, 9)), max_size=60))
def test_the_stored_offset_is_the_lowest_that_is_not_done(steps: list[tuple[str, int]]) -> None:
    partitions, position, open_, last = assigned(), 0, {}, 0
    for step, number in steps:
        if step == "hand out":
            position += number
        elif step == "begin" and number < position:
            future, is_ours = begin(partitions, number, position)
            if is_ours:
                open_[number] = future
        elif number in open_ and not open_[number].done():
            error = OSError() if step == "fail" else None
            partitions.end(KEY, number, open_[number], error)
            if error is None:
                del open_[number]
        last = store(partitions, {KEY: position}).get(KEY, last)
        assert last == min([position, *open_]) or position == 0


# --- positions -----------------------------------------------------------------------------------------------


def offsets(partitions: Partitions) -> list[int]:
    return [each.offset for each in partitions.positions().values()]


def test_what_was_handed_out_is_known_without_asking_the_client() -> None:
    partitions = assigned()
    assert offsets(partitions) == []
    hand_out(partitions, 3)
    partitions.handed_out(Message("orders", 0, 3, error=KafkaError(KafkaError._PARTITION_EOF)))
    partitions.handed_out(Message("others", 0, 7, value=b"x"))
    assert offsets(partitions) == [3]


def test_the_clients_position_counts_until_a_later_message_is_handed_out() -> None:
    partitions = assigned()
    hand_out(partitions, 3)
    partitions.answered({KEY: TopicPartition(*KEY, 5)})  # two marks of transactions behind the last message
    assert offsets(partitions) == [5]
    hand_out(partitions, 6)
    assert offsets(partitions) == [6]
    partitions.answered({KEY: TopicPartition(*KEY, OFFSET_INVALID), OTHER: TopicPartition(*OTHER, 1)})
    assert offsets(partitions) == [6]
    partitions.sought(KEY, 2)
    assert offsets(partitions) == []


# --- the retry topic beside the program's partitions ------------------------------------------------------------------


def subscribed(*assigned: TopicPartitionKey, is_read: bool = True) -> Partitions:
    partitions = Partitions(RETRY, NAMES)
    partitions.reads_retries = is_read
    partitions.named = frozenset({"orders"})
    partitions.add(assigned)
    return partitions


def pauses(partitions: Partitions, *, asked: bool = False) -> list[bool]:
    return [is_paused for _, is_paused in partitions.pauses(asked=asked)]


def test_the_program_sees_its_partitions_only() -> None:
    partitions = [TopicPartition(*MINE), TopicPartition(*RETRIES), TopicPartition(NAMES.parked, 0)]
    assert subscribed().split(partitions) == ([partitions[0]], [partitions[1]])


def test_a_rocketshim_topic_that_was_subscribed_by_name_is_the_programs() -> None:
    partitions = subscribed()
    assert partitions.is_internal(NAMES.parked)
    partitions.named = frozenset({NAMES.parked})
    assert not partitions.is_internal(NAMES.parked)
    assert partitions.is_internal(RETRY)


def test_the_retry_topic_is_paused_while_all_of_the_programs_partitions_are() -> None:
    partitions = subscribed(MINE, OTHER, RETRIES)
    partitions.paused = {MINE}
    assert pauses(partitions) == [False]
    partitions.paused = {MINE, OTHER}
    assert pauses(partitions) == [True]


def test_a_program_of_the_retry_topic_alone_pauses_it_by_an_empty_list() -> None:
    assert pauses(subscribed(RETRIES), asked=True) == [True]
    assert pauses(subscribed(RETRIES)) == [False]


def test_a_partition_whose_start_is_unknown_is_paused() -> None:
    partitions = subscribed(MINE)
    partitions.add([RETRIES], awaiting=[RETRIES])
    assert pauses(partitions) == [True]
    assert [TopicPartitionKey.of(each) for each in partitions.awaiting_start()] == [RETRIES]


def test_what_the_program_has_paused_itself_and_what_is_not_read_is_left_alone() -> None:
    partitions = subscribed(MINE, RETRIES)
    partitions.paused = {RETRIES}
    assert pauses(partitions) == []
    assert pauses(subscribed(MINE, RETRIES, is_read=False)) == []


def retried(topic: str | None, *, of: str = RETRY, **headers: bytes) -> Message:
    named = [] if topic is None else [("RETRY_TOPIC", topic.encode())]
    return Message(of, 0, 7, value=b"x", headers=[*named, *headers.items()])


def test_a_retry_of_a_topic_that_was_never_subscribed_to_belongs_to_other_members() -> None:
    partitions = Partitions(RETRY, NAMES)
    partitions.subscribed(["orders", "^bills[.]"])
    partitions.subscribed(["orders"])  # instead of the former ones, whose retries may still come
    found = {topic: partitions.topic_of_others(retried(topic)) for topic in ("orders", "bills.eu", "bills", "refunds")}
    assert found == {"orders": None, "bills.eu": None, "bills": "bills", "refunds": "refunds"}


def test_a_pattern_that_python_cannot_read_counts_as_one_that_matches() -> None:
    partitions = Partitions(RETRY, NAMES)
    partitions.subscribed(["^(orders"])
    assert partitions.topic_of_others(retried("refunds")) is None


@pytest.mark.parametrize(
    "message",
    [retried("refunds", of="orders"), retried(None), retried("refunds", RECONSUME_TIMES=b"x"),
     Message(RETRY, 0, 7, error=KafkaError(KafkaError._PARTITION_EOF))],
    ids=["of another topic", "of another program", "malformed", "an event"],
)  # fmt: skip
def test_every_other_message_is_the_programs(message: Message) -> None:
    partitions = Partitions(RETRY, NAMES)
    partitions.subscribed(["orders"])
    assert partitions.topic_of_others(message) is None
