"""Hand messages to the listener threads and process their results. Owned by the poll thread.

* `core.chunk_sizes` decides how many messages a thread gets.
* If a chunk is in the same call as 10 ms ago, its messages that have not begun are taken back, and its finished ones
  are processed. So one slow message does not delay its neighbours. For a chunk that several coroutines share, this
  happens when a call has timed out.
* A failed message goes to `SendBack` as soon as its chunk is reported. While failed messages are on their way to their
  next topic, no wait is longer than 5 ms, and none waits for listeners alone: the producer's reports arrive only
  through its `poll`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, takewhile
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeVar

from rocketshim.consumer.reader.partition_queue import QueueT
from rocketshim.consumer.send_back import SendBack
from rocketshim.core.chunk_sizes import ChunkSizes
from rocketshim.core.consume_concurrently import ConsumeReturnType, return_type_of
from rocketshim.core.histogram import Histogram
from rocketshim.core.next_hop import FailedMessage
from rocketshim.core.process_queue import Chunk, ProcessQueue

__all__ = ["ChunkDispatch", "Dispatch", "DispatchCounts", "Pool", "Result"]

_LISTENER_BOUNDS_S: Final = (1e-4, 1e-3, 5e-3, 1e-2, 5e-2, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 600.0)
_LATENCY_BOUNDS_S: Final = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 600.0, 3_600.0, 86_400.0)
_STUCK_MS: Final = 10
_REPORTS_S: Final = 0.005
_DRAIN_STEP_S: Final = 0.01


TaskT = TypeVar("TaskT")
AnswerT = TypeVar("AnswerT")


@dataclass(slots=True)
class Result(Generic[TaskT, AnswerT]):
    """A chunk that a listener thread has finished.

    Attributes:
        chunk: the chunk; in orderly mode an `OrderlyTask`.
        outcomes: the messages that did not succeed; None if all did. In orderly mode, every answer.
        elapsed_ns: how long the thread had the chunk.
        still_open: offsets in progress, if the thread has not finished the chunk; None: it has.
        died: a defect in rocketshim that ended the thread; user code cannot end it.
    """

    chunk: TaskT
    outcomes: list[AnswerT] | None
    elapsed_ns: int
    died: BaseException | None = None
    still_open: Collection[int] | None = None


class Pool(Protocol[TaskT, AnswerT]):
    """Runs chunks: threads (`pool.ListenerPool`) or an event loop."""

    results: SimpleQueue[Result[TaskT, AnswerT]]
    size: int
    shares_chunks: bool
    """Whether several workers process one chunk at the same time: then no message waits for its neighbour."""

    def submit(self, chunk: TaskT) -> None:
        """Accept a chunk; never block."""

    def report_part(self, chunk: TaskT) -> None:
        """Report the finished messages of a chunk, if several workers share it."""

    def resize(self, size: int) -> None:
        """Set the number of workers."""

    def stop(self, timeout_s: float) -> bool:
        """End every worker after its chunk; return whether all ended in time."""

    def wait(self, timeout_s: float, gather_s: float) -> Result[TaskT, AnswerT]:
        """Return the next result; raise `queue.Empty` if none came in time.

        Once one result is available, wait up to `gather_s` for more.
        """


@dataclass(slots=True)
class DispatchCounts:
    """Counts of listener results; any thread reads them, the poll thread writes them.

    Attributes:
        succeeded, failed: numbers of messages.
        listener_ns: time that listeners had messages.
        failed_by_type: number of failed messages by result.
        listener_times: seconds per message. The messages of a chunk share its mean, as no clock is read between them;
            from 8 ms per message on a chunk is one call.
        latencies: seconds from the append of a message to the end of its call; the oldest message stands for its chunk.
    """

    succeeded: int = 0
    failed: int = 0
    listener_ns: int = 0
    failed_by_type: dict[str, int] = field(default_factory=dict)
    listener_times: Histogram = field(default_factory=lambda: Histogram(_LISTENER_BOUNDS_S))
    latencies: Histogram = field(default_factory=lambda: Histogram(_LATENCY_BOUNDS_S))

    def add_call(self, elapsed_ns: int, messages: Sequence[Any], wall_ms: Callable[[], int] | None) -> None:
        """Count the time of a chunk, and how old its messages are now."""
        self.listener_ns += elapsed_ns
        count = len(messages)
        if not count:
            return
        self.listener_times.add(elapsed_ns / count / 1e9, count)
        if wall_ms is not None:
            self.latencies.add(max(0, wall_ms() - messages[0].timestamp()[1]) / 1e3, count)

    def add_failed(self, kind: ConsumeReturnType) -> None:
        """Count a failed message of this type; a new type gets a new dictionary, as other threads may be reading it."""
        name = kind.value
        if name in self.failed_by_type:
            self.failed_by_type[name] += 1
        else:
            self.failed_by_type = self.failed_by_type | {name: 1}


class Dispatch(ABC, Generic[QueueT, TaskT, AnswerT]):
    """The poll thread's side of the listener threads; a listener call gets at most `batch_count` messages.

    `wall_ms` tells how old messages are; None: their age is not measured.
    """

    def __init__(
        self,
        pool: Pool[TaskT, AnswerT],
        batch_count: int,
        send_back: SendBack,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int] | None = None,
    ) -> None:
        self._wall_ms = wall_ms
        self.send_back = send_back
        self._now_ms = now_ms
        self.counts = DispatchCounts()
        self.in_flight = 0  # messages handed out and not yet reported
        self.died: BaseException | None = None
        self.pool = pool
        self._batch_count = batch_count

    @abstractmethod
    def hand_out(self, queues: Iterable[QueueT]) -> None:
        """Hand out all messages that may be processed now."""

    @abstractmethod
    def _take(self, result: Result[TaskT, AnswerT]) -> None:
        """Process a result."""

    def gather_s(self) -> float:
        """Return how long results may wait without a worker running out of work, in seconds."""
        return 0.0

    @property
    def has_results(self) -> bool:
        """Return whether a result is available."""
        return self.pool.results.qsize() > 0

    def take_results(self, now_ms: int) -> None:
        """Process every available result."""
        del now_ms
        results = self.pool.results
        while results.qsize():
            self._take(results.get())

    @property
    def is_busy(self) -> bool:
        """Return whether a listener has messages, or a failed message is not stored yet."""
        return self.in_flight > 0 or self.send_back.outstanding > 0

    @property
    def is_saturated(self) -> bool:
        """Return whether every listener thread has work, or hops are on their way: waiting longer pays."""
        return self.send_back.outstanding > 0 or self.in_flight >= 2 * self.pool.size

    def take(self, reports_s: float = 0.0) -> None:
        """Process all results and delivery reports that have arrived; wait up to `reports_s` seconds for a report."""
        now_ms = self._now_ms()
        self.send_back.turn(now_ms)
        self.take_results(now_ms)
        if self.send_back.outstanding:
            self.send_back.settle(now_ms, reports_s)

    def wait(self, timeout_s: float) -> None:
        """Wait for one result (for a delivery report, if no listener has work); process all that have arrived."""
        if self.send_back.outstanding:
            timeout_s = min(timeout_s, _REPORTS_S)
            if not self.in_flight:
                self.take(timeout_s)
                return
        with suppress(Empty):
            self._take(self.pool.wait(timeout_s, self.gather_s()))
        self.take()

    def drain(self, queues: Collection[QueueT], others: Callable[[], Iterable[QueueT]], deadline_ms: int) -> None:
        """Hand out nothing more of these queues, and wait until they have nothing in progress, or until the deadline.

        Messages of the `others` are handed out meanwhile.
        """
        self.withhold(queues)
        while any(not queue.settled for queue in queues):
            left_ms = deadline_ms - self._now_ms()
            if left_ms <= 0:
                return
            self.wait(min(left_ms / 1_000, _DRAIN_STEP_S))
            self.hand_out(others())

    def withhold(self, queues: Iterable[QueueT]) -> None:
        """Stop handing out messages of these queues."""
        for queue in queues:
            self.in_flight -= queue.withhold()


class ChunkDispatch(Dispatch[ProcessQueue[Any], Chunk[Any], FailedMessage]):
    """Hands out chunks to be consumed concurrently; see `Dispatch`."""

    def __init__(
        self,
        pool: Pool[Chunk[Any], FailedMessage],
        batch_count: int,
        send_back: SendBack,
        now_ms: Callable[[], int],
        wall_ms: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(pool, batch_count, send_back, now_ms, wall_ms)
        self._splittable: dict[Chunk[Any], Any] = {}  # chunks that can be split, and their call at the last check
        self._sizes = ChunkSizes(batch_count, shared=pool.shares_chunks)
        self._next_check_ms = 0

    def hand_out(self, queues: Iterable[ProcessQueue[Any]]) -> None:
        """Hand out all pending messages."""
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

    def gather_s(self) -> float:
        """See `Dispatch`."""
        return self._sizes.gather_s(self.in_flight, self.pool.size)

    def take_results(self, now_ms: int) -> None:
        """Process every available result; split chunks that are stuck."""
        super().take_results(now_ms)
        if now_ms >= self._next_check_ms:
            self._next_check_ms = now_ms + _STUCK_MS
            self._split_stuck()

    def ask_for_part(self, queue: ProcessQueue[Any]) -> None:
        """Ask for the finished messages in chunks of a queue whose calls have timed out."""
        for chunk in queue.late:
            self.pool.report_part(chunk)

    def _take(self, result: Result[Chunk[Any], FailedMessage]) -> None:
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
        self.counts.add_call(result.elapsed_ns, chunk.messages, self._wall_ms)
        queue = chunk.queue
        if outcomes is not None and chunk.outcomes_taken:
            outcomes = outcomes[chunk.outcomes_taken :]
        if outcomes:
            self._send_failed(chunk, outcomes, queue.report(chunk, [outcome.message for outcome in outcomes]))
            count -= len(outcomes)
        else:
            queue.report(chunk)
        self.counts.succeeded += count

    def _take_part(self, chunk: Chunk[Any], still_open: Collection[int], outcomes: list[FailedMessage]) -> None:
        queue, count = chunk.queue, len(chunk.messages)
        if queue.dropped or chunk.reported:
            return
        new = outcomes[chunk.outcomes_taken :]
        chunk.outcomes_taken = max(chunk.outcomes_taken, len(outcomes))
        to_send = queue.report_part(chunk, still_open, [outcome.message for outcome in new])
        finished = count - len(chunk.messages)
        self.in_flight -= finished
        self._send_failed(chunk, new, to_send)
        self.counts.succeeded += finished - len(new)

    def _send_failed(self, chunk: Chunk[Any], outcomes: list[FailedMessage], to_send: Iterable[Any]) -> None:
        by_offset = {outcome.message.offset(): outcome for outcome in outcomes}
        for message in to_send:
            outcome = by_offset[message.offset()]
            self.counts.add_failed(return_type_of(outcome.failure.exception_class))
            self.send_back.send(chunk, outcome)
        self.counts.failed += len(outcomes)

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

    def _take_before(self, chunk: Chunk[Any], in_work: Any) -> None:
        """Process the messages that the chunk's thread had finished when it began this call."""
        first = (in_work[0] if isinstance(in_work, tuple | list) else in_work).offset()
        before = list(takewhile(lambda outcome: outcome.message.offset() < first, chunk.outcomes))
        still_open = {offset for message in chunk.messages if (offset := message.offset()) >= first}
        self._take_part(chunk, still_open, before)
