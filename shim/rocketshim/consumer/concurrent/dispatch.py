"""Hands out chunks of the messages of concurrent queues, and processes what the listeners report of them.

* `core.chunk_sizes` decides how many messages a thread gets.
* If a chunk is in the same call as 10 ms ago, its messages that have not begun are taken back, and its finished ones
  are processed. So one slow message does not delay its neighbours. For a chunk that several coroutines share, this
  happens when a call has timed out.

Owned by the poll thread.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import islice, takewhile
from typing import Any, Final

from rocketshim.consumer.dispatch import Dispatch, LoopParts, Result
from rocketshim.core.chunk_sizes import ChunkSizes
from rocketshim.core.consume_concurrently import return_type_of
from rocketshim.core.next_hop import FailedMessage
from rocketshim.core.process_queue import Chunk, ProcessQueue
from rocketshim_topics import Failure
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["ConcurrentDispatch"]

_STUCK_MS: Final = 10


class ConcurrentDispatch(Dispatch[ProcessQueue]):
    """Hands out chunks to be consumed concurrently."""

    def __init__(self, parts: LoopParts) -> None:
        super().__init__(parts)
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
        """Return how long results may wait, in seconds: `core.chunk_sizes` decides."""
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
