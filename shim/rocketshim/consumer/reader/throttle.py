"""Which queues hold too much to be read on, and which of them may go on.

`core.flow_control` says what too much is. Owned by the poll thread.
"""

from collections.abc import Callable, Iterable
from typing import Final

from rocketshim.consumer.reader.partition_queue import PartitionQueue
from rocketshim.consumer.reader.pauses import PauseReason, Pauses
from rocketshim.core.flow_control import FlowLimits, must_pause, per_queue_limits, should_resume
from rocketshim.kafka.clients import ConsumerClient

__all__ = ["Throttle"]

_MAX_IN_FLIGHT: Final = 10_000


class Throttle:
    """Pauses queues and lets them go on.

    Args:
        limits: of a queue.
        topic_count: messages that all queues may hold together; -1: any number.
        topic_size_bytes: their bytes; -1: any number.
        in_flight: asks how many messages listeners have.
        pauses: of the consumer.

    Thread-safety: none; the poll thread's.
    """

    def __init__(
        self,
        limits: FlowLimits,
        topic_count: int,
        topic_size_bytes: int,
        *,
        in_flight: Callable[[], int],
        pauses: Pauses,
    ) -> None:
        self._of_queue = self._limits = limits
        self._topic_count = topic_count
        self._topic_size_bytes = topic_size_bytes
        self._in_flight = in_flight
        self._pauses = pauses

    def share(self, queues_held: int) -> None:
        """Share the thresholds of a topic out among all queues held."""
        self._limits = per_queue_limits(self._of_queue, self._topic_count, self._topic_size_bytes, queues_held)

    def is_reached(self, queues: Iterable[PartitionQueue]) -> bool:
        """Whether more is held than may be: by one of these that is read all the same, or by listeners altogether."""
        return self._is_full or bool(self._over(queues))

    def pause(self, consumer: ConsumerClient, queues: Iterable[PartitionQueue]) -> None:
        """Read no further; all that are read now, where listeners have too much altogether."""
        held = [queue for queue in queues if not queue.paused] if self._is_full else self._over(queues)
        for queue in held:
            queue.paused = True
        self._pauses.hold(consumer, [(queue.topic, queue.partition) for queue in held], PauseReason.FLOW)

    def go_on(self, consumer: ConsumerClient, queues: Iterable[PartitionQueue]) -> None:
        """Read on what was paused and has come down."""
        if self._in_flight() * 2 > _MAX_IN_FLIGHT:
            return
        calm = [queue for queue in queues if queue.paused and should_resume(queue, self._limits)]
        for queue in calm:
            queue.paused = False
        self._pauses.release(consumer, [(queue.topic, queue.partition) for queue in calm], PauseReason.FLOW)

    @property
    def _is_full(self) -> bool:
        """Whether listeners have as many messages as they may."""
        return self._in_flight() >= _MAX_IN_FLIGHT

    def _over(self, queues: Iterable[PartitionQueue]) -> list[PartitionQueue]:
        """Those above a threshold that are read all the same."""
        limits = self._limits
        return [queue for queue in queues if not queue.paused and must_pause(queue, limits)]
