"""Concurrent consumption: what the poll loop does with partitions whose messages are consumed at the same time.

A partition starts when it is assigned. A message whose listener call takes too long is sent back.
"""

from typing import Any, Final

from confluent_kafka import TopicPartition

from rocketshim.consumer.concurrent.dispatch import ConcurrentDispatch
from rocketshim.consumer.dispatch import LoopParts
from rocketshim.consumer.mode import Mode
from rocketshim.core.consume_concurrently import ConsumeReturnType
from rocketshim.core.process_queue import ProcessQueue
from rocketshim.core.timer import Timer
from rocketshim.logs import safe_logger
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["ConcurrentMode"]

_LOG = safe_logger("rocketshim.consumer")
_IDLE_S: Final = 0.1
_SWEEPS: Final = 10  # sweeps per consume timeout


class ConcurrentMode(Mode[ProcessQueue]):
    """The `Mode` of concurrent consumption. Only the poll thread uses it."""

    def __init__(self, parts: LoopParts) -> None:
        super().__init__(parts, ConcurrentDispatch(parts))
        self._timeout_ms = parts.settings.consume_timeout_ms
        self._sweep = Timer(max(10, min(1_000, self._timeout_ms // _SWEEPS)))
        self._clock = parts.clock

    def accept(self, partitions: list[TopicPartition]) -> None:
        """Start partitions."""
        self._reader.start(partitions)

    def put(self, key: TopicPartitionKey, run: list[Any]) -> None:
        """Add a fetched run to its queue; a log that was cut begins a new epoch."""
        queue = self.get(key)
        if queue is None:
            return  # it was revoked meanwhile
        expected = max(queue.next_put, self._reader.partitions[key].sent)
        wanted = self._reader.from_position(key, run, expected)
        if wanted is None:
            first = run[0].offset()
            _LOG.warning("consumer.log-cut", extra={"partition": str(key), "first_offset": first})
            self._reader.care.end_care(key)
            self.begin(key, first)
            wanted, queue = run, self.get(key)
        if queue is not None:
            queue.put(wanted)

    def turn(self, now_ms: int) -> float:
        """Send back what takes too long."""
        if self._sweep.is_due(now_ms):
            for queue in self.queues:
                self._expire(queue, now_ms)
        return _IDLE_S

    def _expire(self, queue: ProcessQueue, now_ms: int) -> None:
        for chunk, message in queue.expire(now_ms, self._timeout_ms):
            _LOG.warning("consumer.timed-out", extra={"record": f"{queue.key}/{message.offset()}"})
            self.dispatch.counts.add_failed(ConsumeReturnType.TIME_OUT)
            self.dispatch.send_back.send_timed_out(chunk, message, self._clock.wall_ms())
        for chunk in queue.late:
            self.dispatch.pool.report_part(chunk)
