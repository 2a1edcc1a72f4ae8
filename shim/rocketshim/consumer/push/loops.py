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
    reader, settings = parts.reader, parts.settings
    dispatch = ChunkDispatch(parts.pool, settings.batch_count, parts.send_back, reader.now_ms)
    queues = AssignedQueues(make_process_queue, reader, dispatch, settings)
    return PollLoop(parts, dispatch, queues, ConcurrentMode(reader, queues, dispatch, settings, parts.clock))


def orderly_loop(parts: LoopParts, settings: OrderlySettings) -> tuple[PollLoop[OrderlyPartition], OrderlyCounts]:
    """Make the loop of an orderly consumer, and its counts. It commits often, since a crash repeats what it did not."""
    if parts.log is not None:
        often_ms = min(parts.settings.commit_interval_ms, _ORDERLY_COMMIT_MS)
        parts = replace(parts, settings=replace(parts.settings, commit_interval_ms=often_ms))
    reader, now_ms = parts.reader, parts.reader.now_ms
    dispatch = OrderlyDispatch(parts.pool, parts.settings.batch_count, parts.send_back, now_ms)
    made = OrderlyQueues(settings, reader.ownership, parts.send_back, parts.clock, now_ms)
    queues = AssignedQueues(made.make, reader, dispatch, parts.settings)
    mode = OrderlyMode(reader, queues, dispatch, made, log=parts.log, now_ms=now_ms)
    return PollLoop(parts, dispatch, queues, mode), made.counts
