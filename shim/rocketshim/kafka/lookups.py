"""Questions about topics and offsets, asked where no fetch delays the answer.

A broker answers the requests of one connection in their order, and holds a fetch that finds nothing for
`fetch.wait.max.ms` (500 ms by default). So a consumer that reads waits half a second for each `list_topics`,
`get_watermark_offsets` and `offsets_for_times`, against 2 ms where nothing is fetched (measured). Committed offsets are
asked of the group's coordinator, to which a consumer has a connection of its own: they wait for nothing.

`Lookups` asks the consumer itself while it fetches nothing, and a second client from then on. That client is made when
it is needed first: a consumer whose partitions never change asks nothing more.
"""

from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import TopicPartition

from rocketshim.kafka.clients import ConsumerClient, close_consumer

__all__ = ["Lookups"]

_LEAVE_S: Final = 1.0


class Lookups:
    """A `LookupClient` beside a consumer.

    Args:
        consumer: gives the consumer; may raise when there is none.
        is_fetching: whether the consumer reads anything now.
        make: makes the second client, which joins no group.

    Thread-safety: none; the thread that owns the consumer.
    """

    def __init__(
        self,
        consumer: Callable[[], ConsumerClient],
        is_fetching: Callable[[], bool],
        make: Callable[[], ConsumerClient],
    ) -> None:
        self._consumer = consumer
        self._is_fetching = is_fetching
        self._make = make
        self._beside: ConsumerClient | None = None

    def list_topics(self, topic: Any = None, timeout: float = -1) -> Any:
        """As the client's."""
        client = self._client()
        return client.list_topics(timeout=timeout) if topic is None else client.list_topics(topic, timeout=timeout)

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float = -1) -> Any:
        """As the client's."""
        return self._client().get_watermark_offsets(partition, timeout=timeout)

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """As the client's."""
        return self._client().offsets_for_times(partitions, timeout=timeout)

    def close(self) -> None:
        """Close the second client; safe twice."""
        beside, self._beside = self._beside, None
        if beside is not None:
            close_consumer(beside, _LEAVE_S)

    def _client(self) -> ConsumerClient:
        consumer = self._consumer()
        if self._beside is None:
            if not self._is_fetching():
                return consumer
            self._beside = self._make()
        self._beside.poll(0)  # its callbacks, a login by token among them, are served by this alone
        return self._beside
