"""Who says which partitions a consumer reads, where Kafka's group protocol does not.

A consumer that shares out by itself is no member of a Kafka group: it assigns itself what a `PartitionAssigner` wants.
The poll loop asks it each turn and treats what comes and goes like any assignment and revocation.
"""

from collections.abc import Callable, Collection
from typing import Final, Protocol

from confluent_kafka import KafkaException

from rocketshim.kafka.clients import LookupClient
from rocketshim.kafka.partitions import TopicPartitionKey
from rocketshim.logs import safe_logger

__all__ = ["BroadcastAssigner", "PartitionAssigner", "partitions_of"]

_LOG = safe_logger("rocketshim.consumer")
_TIMEOUT_S: Final = 1.0


class PartitionAssigner(Protocol):
    """Says which partitions are to be read. Owned by the poll thread."""

    def open(self) -> None:
        """The loop begins."""

    def wanted(
        self, lookups: LookupClient, held: Collection[TopicPartitionKey], now_ms: int
    ) -> set[TopicPartitionKey] | None:
        """The partitions to read from now on.

        Args:
            lookups: to ask about topics.
            held: what is read now.
            now_ms: monotonic time in ms.

        Returns:
            All of them; None: as before.

        Raises:
            RocketshimError: the consumer cannot go on.
        """

    def holds(self, place: TopicPartitionKey, now_ms: int) -> bool:
        """Whether messages of a partition may be handed out and committed at this instant."""

    def gave_up(self, place: TopicPartitionKey) -> None:
        """The loop has given a partition up: committed if it held, and nothing more of it begins."""

    def close(self) -> None:
        """The loop has ended; everything was given up."""


def partitions_of(
    lookups: LookupClient, topics: Collection[str], held: Collection[TopicPartitionKey]
) -> set[TopicPartitionKey]:
    """Every partition of these topics; of a topic that cannot be told now, those held.

    Raises:
        KafkaException: the cluster did not answer.
    """
    found: set[TopicPartitionKey] = set()
    for topic in topics:
        listed = lookups.list_topics(topic, timeout=_TIMEOUT_S).topics.get(topic)
        if listed is None or listed.error is not None or not listed.partitions:
            _LOG.warning("consumer.topic-unknown", extra={"topic": topic})
            found.update(place for place in held if place[0] == topic)
        else:
            found.update((topic, number) for number in listed.partitions)
    return found


class BroadcastAssigner:
    """BROADCASTING: every queue of every topic, looked up at an interval.

    Args:
        topics: asked for the physical topics.
        interval_ms: between two looks, in ms.

    Source: `RebalanceImpl#rebalanceByTopic`, case BROADCASTING.
    """

    def __init__(self, topics: Callable[[], Collection[str]], interval_ms: int) -> None:
        self._topics = topics
        self._interval_ms = interval_ms
        self._next_look_ms: int | None = None
        self._looked_for: frozenset[str] = frozenset()

    def open(self) -> None:
        """See `PartitionAssigner`."""

    def holds(self, place: TopicPartitionKey, now_ms: int) -> bool:
        """See `PartitionAssigner`: there is nobody to share with."""
        del place, now_ms
        return True

    def gave_up(self, place: TopicPartitionKey) -> None:
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
