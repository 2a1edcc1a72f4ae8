"""Concurrent consumption: what the poll loop does with partitions whose messages are consumed at the same time.

A partition starts when it is assigned. A message whose listener call takes too long is sent back. If a chunk is in the
same call as 10 ms ago, its messages that have not begun are taken back, and its finished ones are processed. So one
slow message does not delay its neighbours. For a chunk that several coroutines share, this happens when a call has
timed out.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from itertools import islice, takewhile
from typing import Any, Final

from confluent_kafka import TopicPartition

from rocketshim.consumer.dispatch import Dispatch, Pool, Result
from rocketshim.consumer.mode import Mode
from rocketshim.consumer.reader.partition_reader import PartitionReader
from rocketshim.consumer.send_back import SendBack
from rocketshim.core.clock import Clock
from rocketshim.core.flow_control import FlowLimits
from rocketshim.core.listener_answers import ConsumeReturnType, return_type_of
from rocketshim.core.next_hop import FailedMessage
from rocketshim.core.process_queue import Chunk, ProcessQueue
from rocketshim.core.timer import Timer
from rocketshim.logs import safe_logger
from rocketshim.settings.consumer import PushConsumerSettings
from rocketshim_topics import Failure
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["ChunkSizes", "ConcurrentDispatch", "ConcurrentMode"]

_LOG = safe_logger("rocketshim.consumer")
_IDLE_S: Final = 0.1
_SWEEPS: Final = 10  # sweeps per consume timeout
_STUCK_MS: Final = 10


_CHUNK: Final = 64
_LARGE_CHUNK: Final = 1_024
_FAST_NS: Final = 10_000
_SLOW_NS: Final = 200_000
_SLOW_CHUNK_NS: Final = 8_000_000
_CHUNKS_A_WORKER: Final = 4
_SHARED_CHUNK: Final = 16
_GATHER_S: Final = 0.004
_WINDOW: Final = 32


class ChunkSizes:
    """How many messages a chunk for a listener thread has, and how long results may gather. Pure.

    The size follows from the *minimum* time per message of the last 32 chunks, never from the mean. The mean includes
    waiting for the interpreter lock, and makes fast listeners look slow (tried: 0.86 of raw with the minimum, 0.56 with
    chunks of one). Below 10 µs per message a chunk has 1,024 messages, because waking a thread costs more than the
    listener. Below 200 µs it has 64. Above that it has as many as take 8 ms, from 8 ms per message on one batch, and
    never more than leave work for every thread: none is idle while another still has a quarter of its chunks to do.
    """

    def __init__(self, batch_count: int, *, shared: bool) -> None:
        self._batch_count = batch_count
        self._shared = shared
        self._per_message_ns: deque[int] = deque(maxlen=_WINDOW)

    def note(self, elapsed_ns: int, count: int) -> None:
        """Note how long a chunk of `count` messages, 1 or more, has taken."""
        self._per_message_ns.append(elapsed_ns // count)

    def count(self, backlog: int, workers: int) -> int:
        """Return the maximum size of the next chunk, if `backlog` messages are in flight or pending.

        Decides: How many messages does a listener thread get together? By the least time per message of the last 32
            chunks.
        """
        if self._shared:
            return max(self._batch_count, min(_SHARED_CHUNK, backlog // _SHARED_CHUNK))
        quickest = self._quickest_ns()
        if quickest is None:
            return self._batch_count
        if quickest <= _SLOW_NS:
            return max(_CHUNK if quickest > _FAST_NS else _LARGE_CHUNK, self._batch_count)
        fair = min(_SLOW_CHUNK_NS // quickest, backlog // (_CHUNKS_A_WORKER * workers))
        return max(fair - fair % self._batch_count, self._batch_count)

    def gather_s(self, in_flight: int, workers: int) -> float:
        """Return how long results may wait without a worker running out of work, in seconds.

        Processing them one by one would cost more than the listeners do.
        """
        quickest = self._quickest_ns()
        if quickest is None or quickest <= _SLOW_NS or self._shared:
            return 0.0
        return min(_GATHER_S, in_flight * quickest / (2e9 * workers))

    def _quickest_ns(self) -> int | None:
        times = self._per_message_ns
        return min(times) if len(times) == _WINDOW else None


class ConcurrentDispatch(Dispatch[ProcessQueue]):
    """Hands out chunks of concurrent queues, and processes what the listeners report of them."""

    def __init__(
        self, pool: Pool, send_back: SendBack, settings: PushConsumerSettings, clock: Clock, reader: PartitionReader
    ) -> None:
        super().__init__(pool, send_back, settings, clock, reader)
        self._timeout_ms = settings.consume_timeout_ms
        self._splittable: dict[Chunk, Any] = {}  # chunks that can be split, and their call at the last check
        self._sizes = ChunkSizes(self._batch_count, shared=self.pool.shares_chunks)
        self._next_check_ms = 0

    def make_queue(self, key: TopicPartitionKey, epoch: int) -> ProcessQueue:
        """Make the queue of a partition in an epoch."""
        return ProcessQueue(key, epoch)

    def _hand_out(self, queues: Iterable[ProcessQueue]) -> None:
        waiting = [queue for queue in queues if queue.pending_count]
        if not waiting:
            return
        backlog = self.in_flight + sum(queue.pending_count for queue in waiting)
        limit = self._sizes.count(backlog, self.pool.size)
        for queue in waiting:
            while queue.pending_count:
                chunk = queue.take(limit)
                if chunk is None:
                    break
                count = len(chunk.messages)
                self.in_flight += count
                if count > self._batch_count and not self.pool.shares_chunks:
                    self._splittable[chunk] = None
                self.pool.submit(chunk)

    def _take_few(self, queue: ProcessQueue, limit: int) -> Chunk | None:
        del limit  # each is a chunk of its own, so that one never waits for another
        return queue.take(1)

    def _is_withheld(self, task: Chunk) -> bool:
        return not task.todo_count  # its queue has taken it back

    def _fail(self, task: Chunk, failure: Failure, times: int) -> None:
        messages = task.take_back()
        self.in_flight -= len(messages)
        failed = [FailedMessage(message, failure, uncounted=times - 1) for message in messages]
        self._send_failed(task, failed, task.queue.report(task, messages))

    def gather_s(self) -> float:
        """Return how long results may wait, in seconds; see `ChunkSizes.gather_s`."""
        return self._sizes.gather_s(self.in_flight, self.pool.size)

    def take_results(self, now_ms: int) -> None:
        """Process every available result; split chunks that are stuck."""
        super().take_results(now_ms)
        if now_ms >= self._next_check_ms:
            self._next_check_ms = now_ms + _STUCK_MS
            self._split_stuck()

    def _take(self, result: Result) -> None:
        chunk, outcomes = result.chunk, result.outcomes
        if result.still_open is not None:
            self._take_part(chunk, result.still_open, outcomes or [])
            return
        self._splittable.pop(chunk, None)
        count = len(chunk.messages)
        self.in_flight -= count
        if result.died is not None:
            self.died = self.died or result.died
            return
        if count:
            self._sizes.note(result.elapsed_ns, count)
        self._add_call(result.elapsed_ns, chunk.messages)
        queue = chunk.queue
        unfinished = queue.msg_count
        new = outcomes[chunk.outcomes_taken :] if outcomes else []
        to_send = queue.report(chunk, [outcome.message for outcome in new])
        self.counts.succeeded += unfinished - queue.msg_count  # not those that have timed out, which count as failed
        if new:
            self._send_failed(chunk, new, to_send)

    def _take_part(self, chunk: Chunk, still_open: Collection[int], outcomes: list[FailedMessage]) -> None:
        queue, count, unfinished = chunk.queue, len(chunk.messages), chunk.queue.msg_count
        if queue.dropped or chunk.reported:
            return
        new = outcomes[chunk.outcomes_taken :]
        chunk.outcomes_taken = max(chunk.outcomes_taken, len(outcomes))
        to_send = queue.report_part(chunk, still_open, [outcome.message for outcome in new])
        self.in_flight -= count - len(chunk.messages)
        self.counts.succeeded += unfinished - queue.msg_count
        self._send_failed(chunk, new, to_send)

    def _stored(self, task: Chunk, messages: Sequence[Any]) -> None:
        task.queue.stored(task, messages)

    def expire(self, queues: Iterable[ProcessQueue], now_ms: int) -> None:
        """Send back what takes longer than the consume timeout."""
        for queue in queues:
            for chunk, message in queue.expire(now_ms, self._timeout_ms):
                _LOG.warning("consumer.timed-out", extra={"record": f"{queue.key}/{message.offset()}"})
                self.counts.add_failed(ConsumeReturnType.TIME_OUT)
                self.send_back.send_timed_out(chunk, message, self._wall_ms())
            for chunk in queue.late:
                self.pool.report_part(chunk)

    def _send_failed(self, chunk: Chunk, outcomes: list[FailedMessage], to_send: Iterable[Any]) -> None:
        by_offset = {outcome.message.offset(): outcome for outcome in outcomes}
        for message in to_send:
            outcome = by_offset[message.offset()]
            if not outcome.failure.unhandled:
                self.counts.add_failed(return_type_of(outcome.failure.exception_class))
            self.send_back.send(chunk, outcome)

    def _split_stuck(self) -> None:
        """Split chunks that are in the same call as at the last check."""
        first = islice(self._splittable.items(), 2 * self.pool.size)  # running chunks are among the oldest
        for chunk, seen in list(first):
            at = chunk.in_work
            if at is not None and at is seen:
                del self._splittable[chunk]
                for part in chunk.queue.split(chunk, self._batch_count):
                    self.pool.submit(part)
                self._take_before(chunk, at)
            else:
                self._splittable[chunk] = at

    def _take_before(self, chunk: Chunk, in_work: Any) -> None:
        """Process the messages that the chunk's thread had finished when it began this call."""
        first = (in_work[0] if isinstance(in_work, tuple | list) else in_work).offset()
        before = list(takewhile(lambda outcome: outcome.message.offset() < first, chunk.outcomes))
        still_open = {offset for message in chunk.messages if (offset := message.offset()) >= first}
        self._take_part(chunk, still_open, before)


class ConcurrentMode(Mode[ProcessQueue]):
    """The `Mode` of concurrent consumption. Only the poll thread uses it."""

    dispatch: ConcurrentDispatch

    def __init__(
        self, reader: PartitionReader, dispatch: ConcurrentDispatch, settings: PushConsumerSettings, limits: FlowLimits
    ) -> None:
        super().__init__(reader, dispatch, settings, limits)
        self._sweep = Timer(max(10, min(1_000, settings.consume_timeout_ms // _SWEEPS)))

    def accept(self, partitions: list[TopicPartition]) -> None:
        """Start partitions."""
        self.reader.start(partitions)

    def _begin_again(self, key: TopicPartitionKey, run: list[Any]) -> None:
        self.begin(key, run[0].offset())
        queue = self.get(key)
        if queue is not None:
            queue.put(run)

    def turn(self, now_ms: int) -> float:
        """Send back what takes too long."""
        if self._sweep.is_due(now_ms):
            self.dispatch.expire(self.queues, now_ms)
        return _IDLE_S
