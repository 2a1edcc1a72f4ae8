"""Committed positions, asked for from outside a group.

A coordinator that has just come up (a new cluster, a broker that restarts) refuses for a moment, and librdkafka hands
that on as an error: it is asked again until the time is over.
"""

import time
from collections.abc import Collection
from typing import Final

from confluent_kafka import KafkaException, TopicPartition

from rocketshim.kafka.clients import ConsumerClient
from rocketshim_topics.kafka_codes import COORDINATOR_AWAY

__all__ = ["LOOK_AGAIN_S", "committed_positions", "group_positions"]

LOOK_AGAIN_S: Final = 0.1


def committed_positions(
    consumer: ConsumerClient, places: list[TopicPartition], timeout_s: float
) -> list[TopicPartition]:
    """The positions that the consumer's group has committed; it need not be a member.

    Args:
        consumer: its `group.id` is the group; may have joined or not.
        places: partitions.
        timeout_s: longest wait, seconds.

    Raises:
        KafkaException: no answer in time, or another one.
    """
    until = time.monotonic() + timeout_s
    while True:
        try:
            return consumer.committed(places, timeout=timeout_s)
        except KafkaException as error:
            if error.args[0].code() not in COORDINATOR_AWAY or time.monotonic() > until:
                raise
            time.sleep(LOOK_AGAIN_S)


def group_positions(
    consumer: ConsumerClient, timeout_s: float, topics: Collection[str] | None = None
) -> list[TopicPartition]:
    """What the consumer's group has committed; partitions without a commit are absent.

    A consumer that joins nothing asks: librdkafka's admin client dies of a segmentation fault when a coordinator is not
    there yet (librdkafka #5040).

    Args:
        consumer: its `group.id` is the group.
        timeout_s: longest wait for each answer, seconds.
        topics: physical names; those that do not exist are passed over. None: all that may be seen but Kafka's own.

    Raises:
        KafkaException: no answer in time, or another one.
    """
    places = [
        TopicPartition(name, number)
        for name, topic in consumer.list_topics(timeout=timeout_s).topics.items()
        if (name in topics if topics is not None else not name.startswith("__"))
        for number in topic.partitions
    ]
    found = committed_positions(consumer, places, timeout_s) if places else []
    return [item for item in found if item.offset >= 0]
