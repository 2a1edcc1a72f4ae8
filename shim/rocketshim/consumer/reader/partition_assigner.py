"""Decide which partitions a consumer reads where Kafka's group protocol does not decide it.

Such a consumer is not a member of a Kafka group: it assigns itself the partitions that a `PartitionAssigner` wants. The
poll loop asks the assigner in each iteration, and treats changes like assignments and revocations of a group.
"""

from collections.abc import Callable, Collection
from typing import Final, Protocol

from confluent_kafka import KafkaException

from rocketshim.kafka.clients import LookupClient
from rocketshim.logs import safe_logger
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["BroadcastAssigner", "PartitionAssigner", "partitions_of"]

_LOG = safe_logger("rocketshim.consumer")
_TIMEOUT_S: Final = 1.0


class PartitionAssigner(Protocol):
    """Decides which partitions the consumer reads. Owned by the poll thread."""

    def wanted(
        self, lookups: LookupClient, held: Collection[TopicPartitionKey], now_ms: int
    ) -> set[TopicPartitionKey] | None:
        """Return the partitions to read from now on.

        Args:
            lookups: client for look-ups of topics.
            held: partitions that are assigned now.
            now_ms: monotonic time in ms.

        Returns:
            All partitions to read; None: no change.

        Raises:
            RocketshimError: the consumer cannot continue.
        """

    def gave_up(self, key: TopicPartitionKey) -> None:
        """Note that the loop has given up a partition.

        It was committed if it was still owned (`Ownership`), and no further message of it is handed out.
        """

    def close(self) -> None:
        """Clean up; the loop has ended and has given up every partition."""


def partitions_of(
    lookups: LookupClient, topics: Collection[str], held: Collection[TopicPartitionKey]
) -> set[TopicPartitionKey]:
    """Return every partition of these topics; if a topic cannot be looked up now, return its partitions in `held`.

    Raises:
        KafkaException: the cluster did not answer.
    """
    found: set[TopicPartitionKey] = set()
    for topic in topics:
        listed = lookups.list_topics(topic, timeout=_TIMEOUT_S).topics.get(topic)
        if listed is None or listed.error is not None or not listed.partitions:
            _LOG.warning("consumer.topic-unknown", extra={"topic": topic})
            found.update(key for key in held if key.topic == topic)
        else:
            found.update(TopicPartitionKey(topic, number) for number in listed.partitions)
    return found


class BroadcastAssigner:
    """BROADCASTING: every queue of every topic, looked up at an interval.

    Args:
        topics: returns the physical topics.
        interval_ms: time between two look-ups, in ms.

    Source: `RebalanceImpl#rebalanceByTopic`, case BROADCASTING.
    """

    def __init__(self, topics: Callable[[], Collection[str]], interval_ms: int) -> None:
        self._topics = topics
        self._interval_ms = interval_ms
        self._next_look_ms: int | None = None
        self._looked_for: frozenset[str] = frozenset()

    def gave_up(self, key: TopicPartitionKey) -> None:
        """See `PartitionAssigner`."""

    def close(self) -> None:
        """See `PartitionAssigner`."""

    def wanted(
        self, lookups: LookupClient, held: Collection[TopicPartitionKey], now_ms: int
    ) -> set[TopicPartitionKey] | None:
        """See `PartitionAssigner`."""
        topics = frozenset(self._topics())
        if topics == self._looked_for and self._next_look_ms is not None and now_ms < self._next_look_ms:
            return None
        self._next_look_ms = now_ms + self._interval_ms
        self._looked_for = topics
        try:
            return partitions_of(lookups, topics, held)
        except KafkaException as error:
            _LOG.warning("consumer.topics-unknown", extra={"error": str(error)})
            self._next_look_ms = now_ms + min(self._interval_ms, 1_000)
            return None
