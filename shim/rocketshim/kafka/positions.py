"""Lookups of a group's committed positions from outside the group, and of offsets by an admin client.

A coordinator that has just started (a new cluster, a broker that restarts) refuses requests for a moment, and
librdkafka reports that as an error. The lookups of positions ask again until the time is over. A request that is
refused or not answered in time is a `KafkaException`.
"""

import time
from collections.abc import Collection, Iterable
from functools import partial
from typing import Any, Final

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # the stubs lack this name

from rocketshim.kafka.clients import ConsumerClient, LookupClient
from rocketshim.kafka.lookups import LOOK_AGAIN_S, ask_again, check_answers, in_parts
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.kafka_codes import COORDINATOR_AWAY, LEADER_MOVES, MISSING

__all__ = [
    "EARLIEST",
    "LATEST",
    "answer_of",
    "committed_positions",
    "group_positions",
    "listed_groups",
    "listed_offsets",
    "visible_partitions",
]

EARLIEST: Final[Any] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Final[Any] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_GRACE_S: Final = 5.0


def committed_positions(
    consumer: ConsumerClient, partitions: list[TopicPartition], timeout_s: float
) -> list[TopicPartition]:
    """Return the positions that the consumer's group has committed, part by part; the consumer need not be a member."""
    return in_parts(partial(_committed, consumer, timeout_s), partitions)


def _committed(consumer: ConsumerClient, timeout_s: float, partitions: list[TopicPartition]) -> list[TopicPartition]:
    return ask_again(
        lambda: check_answers(consumer.committed(partitions, timeout=timeout_s)), COORDINATOR_AWAY, timeout_s
    )


def visible_partitions(
    client: LookupClient, timeout_s: float, topics: Collection[str] | None = None
) -> list[TopicPartition]:
    """Return the partitions of those of these topics that exist; None: of all visible topics except Kafka's own."""
    return [
        TopicPartition(name, number)
        for name, topic in client.list_topics(timeout=timeout_s).topics.items()
        if (name in topics if topics is not None else not name.startswith("__"))
        for number in topic.partitions
    ]


def group_positions(
    consumer: ConsumerClient, partitions: list[TopicPartition], timeout_s: float
) -> list[TopicPartition]:
    """Return the positions that the consumer's group has committed; partitions without a commit are absent.

    A consumer that joins no group asks, because librdkafka's admin client crashes with a segmentation fault if the
    coordinator answers with an error, as before `__consumer_offsets` exists (librdkafka #5040;
    test_positions_of_a_group_are_known_before_the_cluster_has_a_coordinator).
    """
    return [item for item in committed_positions(consumer, partitions, timeout_s) if item.offset >= 0]


def listed_offsets(
    admin: AdminClient,
    partitions: Iterable[TopicPartitionKey],
    spec: Any,
    *,
    committed: bool = True,
    timeout_s: float = 10.0,
    failed: dict[TopicPartitionKey, KafkaException] | None = None,
) -> dict[TopicPartitionKey, int]:
    """Return an offset of each partition that exists, with one request to each of their leaders.

    The client's metadata is refreshed before. By itself, a client that has learnt that a topic has two partitions
    answers a question about a third one for as long as it lives: it has no leader (librdkafka 2.16, our measurement).

    `committed`: as a `read_committed` reader sees them. The first error of a partition is raised, or all are added to
    `failed`.
    """
    level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
    requested = {TopicPartition(*partition): spec for partition in partitions}
    found: dict[TopicPartitionKey, int] = {}
    until_s = time.monotonic() + timeout_s
    while requested:
        admin.list_topics(timeout=timeout_s)
        answers = admin.list_offsets(requested, isolation_level=level, request_timeout=timeout_s)
        requested = {}
        for key, future in answers.items():
            try:
                found[TopicPartitionKey.of(key)] = answer_of(future, timeout_s).offset
            except KafkaException as error:
                code = error.args[0].code()
                if code in LEADER_MOVES and time.monotonic() < until_s:
                    requested[key] = spec  # only this one is asked for again
                elif code in MISSING:
                    continue
                elif failed is None:
                    raise
                else:
                    failed[TopicPartitionKey.of(key)] = error
        if requested:
            time.sleep(LOOK_AGAIN_S)
    return found


def listed_groups(admin: AdminClient, timeout_s: float) -> list[str]:
    """Return the names of all consumer groups that the principal may see, sorted.

    A broker that did not answer in time is a KafkaException, since its groups would be missing.
    """
    found = answer_of(admin.list_consumer_groups(request_timeout=timeout_s), timeout_s)
    if found.errors:
        raise KafkaException(found.errors[0])  # each is a KafkaError, whatever the client's documentation says
    return sorted(each.group_id for each in found.valid)


def answer_of(future: Any, timeout_s: float) -> Any:
    """Return the answer to a request of an admin client whose time limit is this."""
    try:
        return future.result(timeout_s + _GRACE_S)
    except TimeoutError as error:  # the client kept neither its own time limit nor the grace after it
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from error  # noqa: SLF001 - no public spelling
