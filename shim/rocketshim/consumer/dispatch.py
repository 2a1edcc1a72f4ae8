"""Handing messages to the listener threads and taking results back. Owned by the poll thread.

* How large a chunk is follows from the *minimum* time per message of the last 32 chunks, never from the mean: it
  contains waiting for the interpreter lock and takes fast listeners for slow (tried: 0.86 of raw with the minimum, 0.56
  with chunks of one). Below 10 µs a chunk holds 1,024 messages, since to wake a thread costs more than the listener
  does; below 200 µs 64; above, as many as take 8 ms, one batch from 8 ms on, and never so many that a thread is left
  without work while another has a quarter of its chunks before it.
* A chunk that is at the same call as 10 ms ago gives back what it has not begun, and what it is through with is taken
  in, so that one slow message does not hold its neighbours. Of a chunk that coroutines share the same is asked for when
  a call has timed out.
* What failed goes to `SendBack` as soon as its chunk is reported.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice, takewhile
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Protocol, TypeVar

from rocketshim.consumer.outcome import FailedMessage
from rocketshim.consumer.reader.partition_queue import QueueT
from rocketshim.consumer.state import return_type_of
from rocketshim.core.consume_concurrently import ConsumeReturnType
from rocketshim.core.process_queue import Chunk, ProcessQueue

__all__ = ["ChunkDispatch", "Dispatch", "DispatchCounts", "Pool", "Result"]

_CHUNK: Final = 64
_LARGE_CHUNK: Final = 1_024
_FAST_NS: Final = 10_000
_SLOW_NS: Final = 200_000
_SLOW_CHUNK_NS: Final = 8_000_000
_CHUNKS_A_WORKER: Final = 4
_SHARED_CHUNK: Final = 16
_GATHER_S: Final = 0.004
_WINDOW: Final = 32
_STUCK_MS: Final = 10


TaskT = TypeVar("TaskT")
AnswerT = TypeVar("AnswerT")


@dataclass(slots=True)
class Result(Generic[TaskT, AnswerT]):
    """A chunk that a listener thread is through with.

    Attributes:
        chunk: as taken; in order, an `OrderlyTask`.
        outcomes: the messages that did not succeed; None when all did. In order, every answer.
        elapsed_ns: how long the thread held the chunk.
        still_open: it is not through with the chunk: these offsets are in work; None: it is.
        died: a defect of ours that ended the thread; user code cannot.
    """

    chunk: TaskT
    outcomes: list[AnswerT] | None
    elapsed_ns: int
    died: BaseException | None = None
    still_open: Collection[int] | None = None


class Pool(Protocol[TaskT, AnswerT]):
    """What runs chunks: threads (`pool.ListenerPool`) or an event loop."""

    results: SimpleQueue[Result[TaskT, AnswerT]]
    size: int
    shares_chunks: bool
    """Whether several workers take from one chunk at once: then no message waits for its neighbour."""

    def submit(self, chunk: TaskT) -> None:
        """Hand a chunk over; never blocks."""

    def report_part(self, chunk: TaskT) -> None:
        """Have said what of a chunk is through, if several workers share it."""

    def resize(self, size: int) -> None:
        """Have this many workers from now on."""

    def stop(self, timeout_s: float) -> bool:
        """Let every worker end after its chunk; whether all did within the time."""

    def wait(self, timeout_s: float, gather_s: float) -> Result[TaskT, AnswerT]:
        """The next result; raises `queue.Empty` when none came in time.

        Having one, it waits so long for others to gather.
        """


@dataclass(slots=True)
class DispatchCounts:
    """What the listeners did; read from any thread, written by the poll thread."""

    succeeded: int = 0
    failed: int = 0
    listener_ns: int = 0
    failed_by_type: dict[str, int] = field(default_factory=dict)

    def add_failed(self, kind: ConsumeReturnType) -> None:
        """One more message that failed so; the dictionary is replaced, since others may be reading it."""
        self.failed_by_type = self.failed_by_type | {kind.value: self.failed_by_type.get(kind.value, 0) + 1}


class Dispatch(ABC, Generic[QueueT, TaskT, AnswerT]):
    """The poll thread's side of the listener threads.

    Args:
        pool: runs what is handed out.
        batch_count: most messages of one listener call.
        left: called with a queue of which messages have left.

    Thread-safety: none; the poll thread's.
    """

    def __init__(self, pool: Pool[TaskT, AnswerT], batch_count: int, left: Callable[[QueueT], None]) -> None:
        self.counts = DispatchCounts()
        self.in_flight = 0  # messages handed out and not reported
        self.died: BaseException | None = None
        self._pool = pool
        self._batch_count = batch_count
        self._left = left

    @abstractmethod
    def hand_out(self, queues: Iterable[QueueT]) -> None:
        """Hand out everything that may begin."""

    @abstractmethod
    def _take(self, result: Result[TaskT, AnswerT]) -> None:
        """Take in a result."""

    def gather_s(self) -> float:
        """How long results may lie there without a worker being short of work, in seconds."""
        return 0.0

    @property
    def has_results(self) -> bool:
        """Whether a result lies there."""
        return self._pool.results.qsize() > 0

    def take_results(self, now_ms: int) -> None:
        """Take in every result that lies there.

        Args:
            now_ms: monotonic time in ms.
        """
        del now_ms
        results = self._pool.results
        while results.qsize():
            self._take(results.get())

    def wait(self, timeout_s: float) -> None:
        """Wait for one result, no longer than this."""
        try:
            result = self._pool.wait(timeout_s, self.gather_s())
        except Empty:
            return
        self._take(result)

    def withhold(self, queues: Iterable[QueueT]) -> None:
        """Let nothing more of these queues begin."""
        for queue in queues:
            self.in_flight -= queue.withhold()


class ChunkDispatch(Dispatch[ProcessQueue[Any], Chunk[Any], FailedMessage]):
    """Hands out chunks to be consumed concurrently.

    Args:
        pool, batch_count, left: as `Dispatch`.
        send_back: called with each message that failed.

    Thread-safety: none; the poll thread's.
    """

    def __init__(
        self,
        pool: Pool[Chunk[Any], FailedMessage],
        batch_count: int,
        send_back: Callable[[Chunk[Any], FailedMessage], None],
        left: Callable[[ProcessQueue[Any]], None],
    ) -> None:
        super().__init__(pool, batch_count, left)
        self._send_back = send_back
        self._many: dict[Chunk[Any], Any] = {}  # chunks that can be split, and the call they were in at the last look
        self._per_message_ns: deque[int] = deque(maxlen=_WINDOW)
        self._next_look_ms = 0

    def hand_out(self, queues: Iterable[ProcessQueue[Any]]) -> None:
        """Hand out everything that is pending."""
        waiting = [queue for queue in queues if queue.pending_count]
        if not waiting:
            return
        limit = self.chunk_count(self.in_flight + sum(queue.pending_count for queue in waiting))
        for queue in waiting:
            while queue.pending_count:
                chunk = queue.take(limit)
                if chunk is None:
                    break
                count = len(chunk.messages)
                self.in_flight += count
                if count > self._batch_count and not self._pool.shares_chunks:
                    self._many[chunk] = None
                self._pool.submit(chunk)

    def chunk_count(self, backlog: int) -> int:
        """Most messages of the next chunk, when so many are in flight or pending."""
        if self._pool.shares_chunks:
            return max(self._batch_count, min(_SHARED_CHUNK, backlog // _SHARED_CHUNK))
        quickest = self._quickest_ns()
        if quickest is None:
            return self._batch_count
        if quickest <= _SLOW_NS:
            return max(_CHUNK if quickest > _FAST_NS else _LARGE_CHUNK, self._batch_count)
        fair = min(_SLOW_CHUNK_NS // quickest, backlog // (_CHUNKS_A_WORKER * self._pool.size))
        return max(fair - fair % self._batch_count, self._batch_count)

    def gather_s(self) -> float:
        """How long results may lie there without a worker being short of work, in seconds.

        Taking them in one by one would cost more than the listeners do.
        """
        quickest = self._quickest_ns()
        if quickest is None or quickest <= _SLOW_NS or self._pool.shares_chunks:
            return 0.0
        return min(_GATHER_S, self.in_flight * quickest / (2e9 * self._pool.size))

    def _quickest_ns(self) -> int | None:
        times = self._per_message_ns
        return min(times) if len(times) == _WINDOW else None

    def take_results(self, now_ms: int) -> None:
        """Take in every result that lies there; split chunks that are stuck."""
        super().take_results(now_ms)
        if now_ms >= self._next_look_ms:
            self._next_look_ms = now_ms + _STUCK_MS
            self._give_back()

    def ask_for_part(self, queue: ProcessQueue[Any]) -> None:
        """Calls of a queue have timed out: have what else is through of their chunks."""
        for chunk in queue.late:
            self._pool.report_part(chunk)

    def _take(self, result: Result[Chunk[Any], FailedMessage]) -> None:
        chunk, outcomes = result.chunk, result.outcomes
        if result.still_open is not None:
            self._take_part(chunk, result.still_open, outcomes or [])
            return
        self._many.pop(chunk, None)
        count = len(chunk.messages)
        self.in_flight -= count
        if result.died is not None:
            self.died = self.died or result.died
            return
        if count:
            self._per_message_ns.append(result.elapsed_ns // count)
        self.counts.listener_ns += result.elapsed_ns
        queue = chunk.queue
        if outcomes is not None and chunk.outcomes_taken:
            outcomes = outcomes[chunk.outcomes_taken :]
        if outcomes:
            self._send_failed(chunk, outcomes, queue.report(chunk, [outcome.message for outcome in outcomes]))
            count -= len(outcomes)
        else:
            queue.report(chunk)
        self.counts.succeeded += count
        if not queue.dropped:
            self._left(queue)

    def _take_part(self, chunk: Chunk[Any], still_open: Collection[int], outcomes: list[FailedMessage]) -> None:
        queue, count = chunk.queue, len(chunk.messages)
        if queue.dropped or chunk.reported:
            return
        new = outcomes[chunk.outcomes_taken :]
        chunk.outcomes_taken = max(chunk.outcomes_taken, len(outcomes))
        to_send = queue.report_part(chunk, still_open, [outcome.message for outcome in new])
        through = count - len(chunk.messages)
        self.in_flight -= through
        self._send_failed(chunk, new, to_send)
        self.counts.succeeded += through - len(new)
        self._left(queue)

    def _send_failed(self, chunk: Chunk[Any], outcomes: list[FailedMessage], to_send: Iterable[Any]) -> None:
        by_offset = {outcome.message.offset(): outcome for outcome in outcomes}
        for message in to_send:
            outcome = by_offset[message.offset()]
            self.counts.add_failed(return_type_of(outcome.failure.exception_class))
            self._send_back(chunk, outcome)
        self.counts.failed += len(outcomes)

    def _give_back(self) -> None:
        first = islice(self._many.items(), 2 * self._pool.size)  # what is begun is among the oldest
        for chunk, seen in list(first):
            at = chunk.in_work
            if at is not None and at is seen:
                del self._many[chunk]
                for part in chunk.queue.split(chunk, self._batch_count):
                    self._pool.submit(part)
                self._take_before(chunk, at)
            else:
                self._many[chunk] = at

    def _take_before(self, chunk: Chunk[Any], in_work: Any) -> None:
        """Take in what a chunk's thread was through with when it began this call."""
        first = (in_work[0] if isinstance(in_work, tuple | list) else in_work).offset()
        before = list(takewhile(lambda outcome: outcome.message.offset() < first, chunk.outcomes))
        still_open = {offset for message in chunk.messages if (offset := message.offset()) >= first}
        self._take_part(chunk, still_open, before)
