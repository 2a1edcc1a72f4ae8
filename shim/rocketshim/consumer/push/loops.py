"""Puts a poll loop together from its parts, for concurrent or orderly consumption."""

from dataclasses import dataclass, replace
from typing import Any, Final

from rocketshim.consumer.dispatch import ChunkDispatch, Dispatch, Pool
from rocketshim.consumer.housekeeping import Housekeeping
from rocketshim.consumer.loop_settings import LoopSettings
from rocketshim.consumer.orderly.dispatch import OrderlyDispatch
from rocketshim.consumer.orderly.mode import OrderlyMode
from rocketshim.consumer.orderly.partition import OrderlyPartition
from rocketshim.consumer.orderly.queues import OrderlyCounts, OrderlyQueues, OrderlySettings
from rocketshim.consumer.poll_loop import Mode, PollLoop
from rocketshim.consumer.push.concurrent import ConcurrentMode, make_process_queue
from rocketshim.consumer.queues import AssignedQueues, MakeQueue
from rocketshim.consumer.reader.commits import OffsetStore
from rocketshim.consumer.reader.partition_queue import QueueT
from rocketshim.consumer.reader.partition_reader import PartitionReader
from rocketshim.consumer.send_back import SendBack
from rocketshim.core.clock import Clock, now_ms_of
from rocketshim.core.process_queue import ProcessQueue
from rocketshim.core.subscriptions import Subscriptions
from rocketshim.group.log_thread import GroupLogThread
from rocketshim.kafka.membership import MemberCheck

__all__ = ["LoopParts", "concurrent_loop", "orderly_loop"]

_ORDERLY_COMMIT_MS: Final = 500


@dataclass(frozen=True, slots=True)
class LoopParts:
    """What a poll loop is made from.

    Attributes:
        reader: reads the partitions; not opened.
        source: what the consumer subscribes to.
        pool: runs the listeners.
        send_back: stores what has failed.
        settings: the settings of the loop.
        clock: tells the time.
        store: where offsets are stored; None: in Kafka.
        log: the group-log thread, not started; None: the group needs no locks.
        membership: detects that the group has assigned no partitions; None: Kafka's client tells.
    """

    reader: PartitionReader
    source: Subscriptions
    pool: Pool[Any, Any]
    send_back: SendBack
    settings: LoopSettings
    clock: Clock
    store: OffsetStore | None = None
    log: GroupLogThread | None = None
    membership: MemberCheck | None = None


def concurrent_loop(parts: LoopParts) -> PollLoop[ProcessQueue[Any]]:
    """Make the loop of a concurrent consumer."""
    now_ms = now_ms_of(parts.clock)
    dispatch = ChunkDispatch(parts.pool, parts.settings.batch_count, parts.send_back, now_ms)
    queues = _queues(parts, dispatch, make_process_queue)
    mode = ConcurrentMode(parts.reader, queues, dispatch, settings=parts.settings, clock=parts.clock)
    return _loop(parts, dispatch, queues, mode)


def orderly_loop(parts: LoopParts, settings: OrderlySettings) -> tuple[PollLoop[OrderlyPartition], OrderlyCounts]:
    """Make the loop of an orderly consumer, and its counts. It commits often, since a crash repeats what it did not."""
    if parts.log is not None:
        often_ms = min(parts.settings.commit_interval_ms, _ORDERLY_COMMIT_MS)
        parts = replace(parts, settings=replace(parts.settings, commit_interval_ms=often_ms))
    now_ms, reader = now_ms_of(parts.clock), parts.reader
    dispatch = OrderlyDispatch(parts.pool, parts.settings.batch_count, parts.send_back, now_ms)
    made = OrderlyQueues(settings, reader.ownership, parts.send_back, parts.clock, now_ms)
    queues = _queues(parts, dispatch, made.make)
    mode = OrderlyMode(reader, queues, dispatch, made, log=parts.log, now_ms=now_ms)
    return _loop(parts, dispatch, queues, mode), made.counts


def _queues(
    parts: LoopParts, dispatch: Dispatch[QueueT, Any, Any], make_queue: MakeQueue[QueueT]
) -> AssignedQueues[QueueT]:
    now_ms, settings, reader = now_ms_of(parts.clock), parts.settings, parts.reader
    return AssignedQueues(make_queue, reader, dispatch, settings, now_ms=now_ms, store=parts.store)


def _loop(
    parts: LoopParts, dispatch: Dispatch[QueueT, Any, Any], queues: AssignedQueues[QueueT], mode: Mode
) -> PollLoop[QueueT]:
    now_ms, settings, reader = now_ms_of(parts.clock), parts.settings, parts.reader
    house = Housekeeping(
        reader,
        queues,
        dispatch,
        parts.source,
        settings=settings,
        now_ms=now_ms,
        membership=parts.membership,
    )
    return PollLoop(
        reader=reader,
        queues=queues,
        dispatch=dispatch,
        house=house,
        mode=mode,
        settings=settings,
        now_ms=now_ms,
        log=parts.log,
    )
