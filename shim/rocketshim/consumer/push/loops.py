"""Puts a poll loop together from its parts, for concurrent or orderly consumption."""

from dataclasses import replace
from typing import Any, Final

from rocketshim.consumer.dispatch import ChunkDispatch
from rocketshim.consumer.loop_parts import LoopParts
from rocketshim.consumer.orderly.dispatch import OrderlyDispatch
from rocketshim.consumer.orderly.mode import OrderlyMode
from rocketshim.consumer.orderly.partition import OrderlyPartition
from rocketshim.consumer.orderly.queues import OrderlyCounts, OrderlyQueues, OrderlySettings
from rocketshim.consumer.poll_loop import PollLoop
from rocketshim.consumer.push.concurrent import ConcurrentMode, make_process_queue
from rocketshim.consumer.queues import AssignedQueues
from rocketshim.core.process_queue import ProcessQueue

__all__ = ["concurrent_loop", "orderly_loop"]

_ORDERLY_COMMIT_MS: Final = 500


def concurrent_loop(parts: LoopParts) -> PollLoop[ProcessQueue[Any]]:
    """Make the loop of a concurrent consumer."""
    batch_count = parts.settings.consume_message_batch_max_size
    dispatch = ChunkDispatch(parts.pool, batch_count, parts.send_back, parts.reader.now_ms)
    queues = AssignedQueues(make_process_queue, dispatch, parts)
    return PollLoop(parts, dispatch, queues, ConcurrentMode(parts, queues, dispatch))


def orderly_loop(parts: LoopParts, settings: OrderlySettings) -> tuple[PollLoop[OrderlyPartition], OrderlyCounts]:
    """Make the loop of an orderly consumer, and its counts. It commits often, since a crash repeats what it did not."""
    if parts.log is not None:
        often_ms = min(parts.settings.persist_consumer_offset_interval_ms, _ORDERLY_COMMIT_MS)
        often = parts.settings.model_copy(update={"persist_consumer_offset_interval_ms": often_ms})
        parts = replace(parts, settings=often)
    reader, now_ms = parts.reader, parts.reader.now_ms
    dispatch = OrderlyDispatch(parts.pool, parts.settings.consume_message_batch_max_size, parts.send_back, now_ms)
    made = OrderlyQueues(settings, reader.ownership, parts.send_back, parts.clock, now_ms)
    queues = AssignedQueues(made.make, dispatch, parts)
    mode = OrderlyMode(reader, queues, dispatch, made, log=parts.log, now_ms=now_ms)
    return PollLoop(parts, dispatch, queues, mode), made.counts
