"""The poll loop of a concurrent consumer. Each queue is a `ProcessQueue`, handed out in chunks, with timeouts."""

from typing import Any

from rocketshim.consumer.dispatch import ChunkDispatch, Pool
from rocketshim.consumer.poll_loop import PollLoop
from rocketshim.core.consume_concurrently import ConsumeReturnType
from rocketshim.core.process_queue import ProcessQueue
from rocketshim.logs import safe_logger
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["ConcurrentLoop"]

_LOG = safe_logger("rocketshim.consumer")


class ConcurrentLoop(PollLoop[ProcessQueue[Any]]):
    """The loop of one thread over one Kafka consumer, for consumption without order.

    Args and thread-safety: see `PollLoop`.
    """

    dispatch: ChunkDispatch

    def _make_dispatch(self, pool: Pool[Any, Any], batch_count: int) -> ChunkDispatch:
        return ChunkDispatch(pool, batch_count, self._failed, self._left)

    def _make_queue(self, key: TopicPartitionKey, epoch: int) -> ProcessQueue[Any]:
        return ProcessQueue(*key, epoch)

    def _sweep(self, now_ms: int) -> None:
        for queue in self._queues.values():
            for chunk, message in queue.expire(now_ms, self._settings.consume_timeout_ms):
                record = f"{queue.topic}/{queue.partition}/{message.offset()}"
                _LOG.warning("consumer.timed-out", extra={"record": record})
                self.dispatch.counts.add_failed(ConsumeReturnType.TIME_OUT)
                if self._send_back is not None:
                    self._send_back.send_timed_out(chunk, message, self._clock.wall_ms())
            self.dispatch.ask_for_part(queue)
