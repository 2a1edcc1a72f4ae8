"""Waiting for a fact on a real broker, which gives no signal of it."""

import time
from collections.abc import Callable

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, OffsetSpec

from rocketshim.kafka.positions import LATEST, listed_offsets
from rocketshim_topics.coordinates import TopicPartitionKey

_LOOK_EVERY_S = 0.02
_ANSWER_S = 60.0


def wait_until(condition: Callable[[], bool], what: str | Callable[[], str] = "a fact", *, within_s: float) -> None:
    """Look again and again; the time is for broken tests only. `what` may be a function, called at the end."""
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, f"not within {within_s} s: {what if isinstance(what, str) else what()}"
        time.sleep(_LOOK_EVERY_S)


def has_records(admin: AdminClient, topic: str, partition: int) -> bool:
    """Whether a partition has records; a partition that was just made, and has no leader yet, has none."""
    admin.list_topics(topic, timeout=_ANSWER_S)  # by itself, a client that knows fewer partitions never asks again
    asked = TopicPartition(topic, partition)
    end = admin.list_offsets({asked: OffsetSpec.latest()})[asked]
    return end.exception(_ANSWER_S) is None and end.result().offset > 0


def await_ends_of_transactions(admin: AdminClient) -> None:
    """Wait until readers of committed records get to the ends: a commit returns before its markers are written."""
    failed: dict[TopicPartitionKey, KafkaException] = {}  # a partition that was just made may have no leader yet

    def are_at_the_ends() -> bool:
        failed.clear()
        topics = admin.list_topics(timeout=_ANSWER_S).topics
        partitions = [
            TopicPartitionKey(name, number)
            for name in topics
            if not name.startswith("__")
            for number in topics[name].partitions
        ]
        committed, every = (
            listed_offsets(admin, partitions, LATEST, committed=level, timeout_s=_ANSWER_S, failed=failed)
            for level in (True, False)
        )
        return not failed and committed == every

    wait_until(are_at_the_ends, lambda: f"no transaction is open; without answer: {failed}", within_s=3 * _ANSWER_S)


def add_partitions(admin: AdminClient, topic: str, count: int) -> None:
    """Let a topic have this number of partitions, and wait until each has a leader."""
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(_ANSWER_S)

    def led() -> bool:
        found = admin.list_topics(topic, timeout=_ANSWER_S).topics[topic].partitions
        return len(found) == count and all(each.leader >= 0 for each in found.values())

    wait_until(led, "the new partitions have leaders", within_s=_ANSWER_S)
