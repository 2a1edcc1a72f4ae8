"""Concurrent consumption: a partition starts when it is assigned; what takes a listener too long is sent back.

Owned by the poll thread.
"""

from collections.abc import Collection
from typing import Any, Final

from confluent_kafka import TopicPartition

from rocketshim.consumer.dispatch import ChunkDispatch
from rocketshim.consumer.loop_parts import LoopParts
from rocketshim.consumer.queues import AssignedQueues
from rocketshim.core.consume_concurrently import ConsumeReturnType
from rocketshim.core.process_queue import ProcessQueue
from rocketshim.core.timer import Timer
from rocketshim.logs import safe_logger
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["ConcurrentMode"]

_LOG = safe_logger("rocketshim.consumer")
_IDLE_S: Final = 0.1
_SWEEPS: Final = 10  # sweeps per consume timeout


class ConcurrentMode:
    """The `Mode` of concurrent consumption."""

    def __init__(self, parts: LoopParts, queues: AssignedQueues[ProcessQueue[Any]], dispatch: ChunkDispatch) -> None:
        self._reader = parts.reader
        self._queues = queues
        self._dispatch = dispatch
        self._timeout_ms = parts.settings.consume_timeout_ms
        self._sweep = Timer(max(10, min(1_000, self._timeout_ms // _SWEEPS)))
        self._clock = parts.clock

    def take_up(self, partitions: list[TopicPartition]) -> None:
        """See `Mode`."""
        self._reader.start(partitions)

    def give_up(self, keys: Collection[TopicPartitionKey]) -> None:
        """See `Mode`."""

    def put(self, key: TopicPartitionKey, run: list[Any]) -> None:
        """See `Mode`: a log that was cut begins a new epoch."""
        queue = self._queues.by_key.get(key)
        if queue is None:
            return  # it was revoked meanwhile
        expected = max(queue.next_put, self._queues.commits.positions.sent(key))
        wanted = self._reader.from_position(key, run, expected)
        if wanted is None:
            first = run[0].offset()
            _LOG.warning("consumer.log-cut", extra={"partition": str(key), "first_offset": first})
            self._queues.begin(key, first)
            self._queues.by_key[key].put(run)
        else:
            queue.put(wanted)

    def turn(self, now_ms: int) -> float:
        """See `Mode`: send back what takes too long."""
        if self._sweep.is_due(now_ms):
            for queue in self._queues:
                self._expire(queue, now_ms)
        return _IDLE_S

    def _expire(self, queue: ProcessQueue[Any], now_ms: int) -> None:
        for chunk, message in queue.expire(now_ms, self._timeout_ms):
            record = f"{queue.topic}/{queue.partition}/{message.offset()}"
            _LOG.warning("consumer.timed-out", extra={"record": record})
            self._dispatch.counts.add_failed(ConsumeReturnType.TIME_OUT)
            self._dispatch.send_back.send_timed_out(chunk, message, self._clock.wall_ms())
        self._dispatch.ask_for_part(queue)

    def finish(self) -> bool:
        """See `Mode`."""
        return True

    def close(self) -> None:
        """See `Mode`."""
