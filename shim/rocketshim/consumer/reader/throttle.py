"""Flow control: pause queues that have too many buffered messages, and resume them later.

`core.flow_control` has the thresholds. Owned by the poll thread.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from rocketshim.consumer.reader.partition_queue import PartitionQueue
from rocketshim.consumer.reader.pauses import PauseReason, Pauses
from rocketshim.core.flow_control import FlowLimits, must_pause, per_queue_limits, should_resume
from rocketshim.kafka.clients import ConsumerClient
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["Throttle"]

_MAX_IN_FLIGHT: Final = 10_000


class InFlight(Protocol):
    """Counts the messages that listeners have (`Dispatch`)."""

    in_flight: int


class Throttle:
    """Pauses and resumes queues.

    Args:
        limits: limits of one queue.
        topic_count: messages that may be buffered over all queues; -1: unlimited.
        topic_size_bytes: bytes that may be buffered over all queues; -1: unlimited.
        listeners: counts the messages that listeners have.
        pauses: pauses of the consumer.

    Thread-safety: none; the poll thread's.
    """

    def __init__(
        self,
        limits: FlowLimits,
        topic_count: int,
        topic_size_bytes: int,
        *,
        listeners: InFlight,
        pauses: Pauses,
    ) -> None:
        self._queue_limits = self._limits = limits
        self._topic_count = topic_count
        self._topic_size_bytes = topic_size_bytes
        self._listeners = listeners
        self._pauses = pauses

    def share(self, queues_held: int) -> None:
        """Divide the thresholds of a topic among all assigned queues."""
        self._limits = per_queue_limits(self._queue_limits, self._topic_count, self._topic_size_bytes, queues_held)

    def is_reached(self, queues: Iterable[PartitionQueue]) -> bool:
        """Return whether a limit is reached: by a queue that is not paused, or by all listeners together."""
        return self._is_full or bool(self._over(queues))

    def pause(self, consumer: ConsumerClient, queues: Iterable[PartitionQueue]) -> None:
        """Pause the queues above a threshold; pause all queues if listeners together have too many messages."""
        full = [queue for queue in queues if not queue.paused] if self._is_full else self._over(queues)
        for queue in full:
            queue.paused = True
        self._pauses.hold(consumer, [TopicPartitionKey.of(queue) for queue in full], PauseReason.FLOW)

    def go_on(self, consumer: ConsumerClient, queues: Iterable[PartitionQueue]) -> None:
        """Resume paused queues that are below their thresholds again."""
        if self._listeners.in_flight * 2 > _MAX_IN_FLIGHT:
            return
        ready = [queue for queue in queues if queue.paused and should_resume(queue, self._limits)]
        for queue in ready:
            queue.paused = False
        self._pauses.release(consumer, [TopicPartitionKey.of(queue) for queue in ready], PauseReason.FLOW)

    @property
    def _is_full(self) -> bool:
        """Return whether listeners have the maximum number of messages."""
        return self._listeners.in_flight >= _MAX_IN_FLIGHT

    def _over(self, queues: Iterable[PartitionQueue]) -> list[PartitionQueue]:
        """Return the queues that are above a threshold and not paused."""
        limits = self._limits
        return [queue for queue in queues if not queue.paused and must_pause(queue, limits)]
