"""What of an assignment belongs to the program, and when the retry topic is paused."""

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from rocketshim.dropin.retry_partitions import RetryPartitions
from rocketshim_topics import TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey

NAMES = TopicNames()
RETRY = NAMES.retry("g")
MINE, OTHER, RETRIES = (TopicPartitionKey(*key) for key in (("orders", 0), ("orders", 1), (RETRY, 0)))


def made(*, is_read: bool = True) -> RetryPartitions:
    partitions = RetryPartitions(RETRY, NAMES)
    partitions.is_read = is_read
    partitions.named = frozenset({"orders"})
    return partitions


def paused(partitions: RetryPartitions, *assigned: TopicPartitionKey, asked: bool = False) -> list[bool]:
    return [is_paused for _, is_paused in partitions.pauses(assigned, asked=asked)]


def test_the_program_sees_its_partitions_only() -> None:
    partitions = [TopicPartition(*MINE), TopicPartition(*RETRIES), TopicPartition(NAMES.parked, 0)]
    split = made().split(partitions)
    assert (split.theirs, split.retries) == ([partitions[0]], [partitions[1]])


def test_a_rocketshim_topic_that_was_subscribed_by_name_is_the_programs() -> None:
    partitions = made()
    assert partitions.is_internal(NAMES.parked)
    partitions.named = frozenset({NAMES.parked})
    assert not partitions.is_internal(NAMES.parked)
    assert partitions.is_internal(RETRY)


def test_the_retry_topic_is_paused_while_all_of_the_programs_partitions_are() -> None:
    partitions = made()
    partitions.paused = {MINE}
    assert paused(partitions, MINE, OTHER, RETRIES) == [False]
    partitions.paused = {MINE, OTHER}
    assert paused(partitions, MINE, OTHER, RETRIES) == [True]


def test_a_program_of_the_retry_topic_alone_pauses_it_by_an_empty_list() -> None:
    assert paused(made(), RETRIES, asked=True) == [True]
    assert paused(made(), RETRIES) == [False]


def test_a_partition_whose_start_is_unknown_is_paused() -> None:
    partitions = made()
    partitions.awaiting_start = {RETRIES}
    assert paused(partitions, MINE, RETRIES) == [True]


def test_what_the_program_has_paused_itself_and_what_is_not_read_is_left_alone() -> None:
    partitions = made()
    partitions.paused = {RETRIES}
    assert paused(partitions, MINE, RETRIES) == []
    assert paused(made(is_read=False), MINE, RETRIES) == []


def retried(topic: str | None, *, of: str = RETRY, **headers: bytes) -> Message:
    named = [] if topic is None else [("RETRY_TOPIC", topic.encode())]
    return Message(of, 0, 7, value=b"x", headers=[*named, *headers.items()])


def test_a_retry_of_a_topic_that_was_never_subscribed_to_belongs_to_other_members() -> None:
    partitions = made()
    partitions.subscribed(["orders", "^bills[.]"])
    partitions.subscribed(["orders"])  # instead of the former ones, whose retries may still come
    found = {topic: partitions.topic_of_others(retried(topic)) for topic in ("orders", "bills.eu", "bills", "refunds")}
    assert found == {"orders": None, "bills.eu": None, "bills": "bills", "refunds": "refunds"}


def test_a_pattern_that_python_cannot_read_counts_as_one_that_matches() -> None:
    partitions = made()
    partitions.subscribed(["^(orders"])
    assert partitions.topic_of_others(retried("refunds")) is None


@pytest.mark.parametrize(
    "message",
    [retried("refunds", of="orders"), retried(None), retried("refunds", RECONSUME_TIMES=b"x"),
     Message(RETRY, 0, 7, error=KafkaError(KafkaError._PARTITION_EOF))],
    ids=["of another topic", "of another program", "malformed", "an event"],
)  # fmt: skip
def test_every_other_message_is_the_programs(message: Message) -> None:
    partitions = made()
    partitions.subscribed(["orders"])
    assert partitions.topic_of_others(message) is None
