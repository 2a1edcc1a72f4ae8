"""The fencing tokens in the group's commits: needed when the group log was created again while no member was alive."""

from collections.abc import Iterable
from typing import Final

from confluent_kafka import KafkaException, TopicPartition

from rocketshim.core.start_position import decode_metadata
from rocketshim.kafka.clients import ConsumerClient

__all__ = ["token_floor"]

_TIMEOUT_S: Final = 10.0


def token_floor(consumer: ConsumerClient, topics: Iterable[str]) -> int | None:
    """Return a number above every token that the group's commits on these topics carry; None: none carries one.

    Args:
        consumer: consumer with the group's id; it need not be a member.
        topics: physical names.

    Raises:
        KafkaException: the cluster did not answer.
    """
    tokens = []
    for topic in topics:
        listed = consumer.list_topics(topic, timeout=_TIMEOUT_S).topics.get(topic)
        asked = [TopicPartition(topic, number) for number in ([] if listed is None else listed.partitions)]
        for item in consumer.committed(asked, timeout=_TIMEOUT_S) if asked else []:
            if item.error is not None:
                raise KafkaException(item.error)
            found = decode_metadata(item.metadata) if item.offset >= 0 else None
            if found is not None and found.token is not None:
                tokens.append(found.token)
    return max(tokens) + 1 if tokens else None
