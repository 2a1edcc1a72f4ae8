"""`async def` listeners: one event loop in a thread of its own, many calls at once.

The pool of the poll thread for coroutines, in place of `pool.ListenerPool`. Rules of this file:

* At most `size` calls are in work. A worker is a task that takes messages until there are none and then ends; there are
  as many as there is work for. A task a message would cost 3 µs each, a wake-up of the loop a message 4 (measured).
* Workers share chunks: each takes the next batch of the oldest chunk that has one. A chunk is reported when nothing of
  it is left and its last call has ended. What a call holds stands in `Chunk.calls`, for the consume timeout.
* Everything but `submit`, `resize` and `stop` runs in the loop's thread, and so needs no lock.
* `stop` cancels what is still in work at its deadline; such messages come again. A listener that blocks the loop is
  abandoned with its thread, as a plain one is.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future  # noqa: TC003 - read as an annotation by those who look
from itertools import islice
from queue import SimpleQueue
from typing import Any, Final

from rocketshim.consumer.dispatch import Result
from rocketshim.consumer.listener import ChunkRunner, Subscription
from rocketshim.consumer.outcome import ConsumeConcurrentlyContext, Outcome
from rocketshim.core.consume_concurrently import ConsumeStatus
from rocketshim.core.process_queue import Chunk
from rocketshim.logs import safe_logger
from rocketshim_topics import MalformedRecordError, MessageView
from rocketshim_topics.wire import read_headers

__all__ = ["AsyncPool", "AsyncRunner", "is_async"]

_LOG = safe_logger("rocketshim.consumer")
_CANCEL_GRACE_S: Final = 1.0


class AsyncRunner(ChunkRunner):
    """Calls `async def` listeners; routing, filters and outcomes are those of `ChunkRunner`."""

    __slots__ = ()

    async def call(
        self, subscription: Subscription, views: Any, batch: list[Any], context: ConsumeConcurrentlyContext
    ) -> list[Outcome]:
        """Await one listener call; the messages that did not succeed."""
        try:
            status = await subscription.listener(views, context)
            if context.untouched and (status is None or status is ConsumeStatus.CONSUME_SUCCESS):
                return []
            return list(self._answered(batch, status, context))
        except BaseException as error:  # noqa: BLE001 - user code: its messages failed, whatever it raised
            return [self._raised(message, error, context) for message in batch]

    def next_batch(
        self, chunk: Chunk[Any], context: ConsumeConcurrentlyContext, outcomes: list[Outcome]
    ) -> tuple[Subscription, list[Any], list[MessageView]] | None:
        """Take the next messages of a chunk that one call may get; None: nothing is left.

        What ends before it reaches a listener (filtered, malformed, without a listener) is dealt with here.
        """
        trusted = chunk.queue.topic == self._retry_topic
        wanted = 1 if trusted else self._batch_count
        found: Subscription | None = None
        batch: list[Any] = []
        views: list[MessageView] = []
        for message in chunk.todo:
            view = MessageView(message, trusted)
            subscription = self._wanted(view, message, context, outcomes)
            if subscription is not None:
                found = subscription
                batch.append(message)
                views.append(view)
                if len(batch) == wanted:
                    break
        return None if found is None else (found, batch, views)

    def _wanted(
        self, view: MessageView, message: Any, context: ConsumeConcurrentlyContext, outcomes: list[Outcome]
    ) -> Subscription | None:
        try:
            topic = view.topic
        except MalformedRecordError as error:
            outcomes.append(self._malformed(message, error))
            return None
        subscription = self._subscription_of(topic)
        if subscription is None:
            outcomes.append(self._no_listener(message, topic))
            return None
        try:
            if view.trusted:  # filtered before its first delivery
                again = subscription.matches_retry
                return subscription if again is None or again(read_headers(message)) else None
            if subscription.selects is not None:
                return subscription if subscription.selects(view) else None
            return subscription if subscription.matches is None or subscription.matches(read_headers(message)) else None
        except BaseException as error:  # noqa: BLE001 - user code, or a record that the filter cannot read
            outcomes.append(self._raised(message, error, context))
            return None


class _Work:
    """A chunk that is being worked off."""

    __slots__ = ("active", "began_ns", "chunk", "context", "handed_out", "outcomes", "reported")

    def __init__(self, chunk: Chunk[Any], context: ConsumeConcurrentlyContext) -> None:
        self.chunk = chunk
        self.context = context
        self.active = 0
        self.handed_out = False  # to the last message
        self.reported = False
        self.began_ns = time.perf_counter_ns()
        self.outcomes: list[Outcome] = chunk.outcomes


class AsyncPool:
    """Runs chunks through coroutines.

    Args:
        runner: calls the listeners.
        size: calls in work at once, 1 or more.
        name: of the thread.
        lists: whether a listener gets lists.
        loop: an event loop that runs in another thread, to be used in place of one of our own; it is not stopped.

    Thread-safety: `submit`, `resize`, `stop`, `wait` belong to one owner thread; `is_own_thread` to any.
    """

    shares_chunks = True

    def __init__(
        self,
        runner: AsyncRunner,
        size: int,
        name: str,
        *,
        lists: bool,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.results: SimpleQueue[Result[Chunk[Any], Outcome]] = SimpleQueue()
        self.size = size
        self._runner = runner
        self._lists = lists
        self._chunks: deque[Chunk[Any]] = deque()
        self._head: _Work | None = None
        self._numbers = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._running = 0
        self._pump_asked = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._loop = loop or asyncio.new_event_loop()
        if loop is None:
            self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
            self._thread.start()

    def submit(self, chunk: Chunk[Any]) -> None:
        """Hand a chunk over."""
        self._chunks.append(chunk)
        self._ask_pump()

    def resize(self, size: int) -> None:
        """Have at most so many calls in work; calls in work are not interrupted."""
        self.size = size
        self._ask_pump()

    def report_part(self, chunk: Chunk[Any]) -> None:
        """Have said what of a chunk is through while a call of it lasts too long."""
        self._loop.call_soon_threadsafe(self._report_part, chunk)

    def wait(self, timeout_s: float, gather_s: float) -> Result[Chunk[Any], Outcome]:
        """The next result; raises `queue.Empty` when none came in time."""
        del gather_s
        return self.results.get(timeout=timeout_s)

    def is_own_thread(self) -> bool:
        """Whether the caller is the event loop's thread."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def stop(self, timeout_s: float) -> bool:
        """Let calls end within the time, then cancel them; returns whether all have ended. Safe twice."""
        if self._stopping or self._loop.is_closed():
            return not self._tasks
        self._stopping = True
        self._chunks.clear()
        ended: Future[None] = asyncio.run_coroutine_threadsafe(self._wind_up(timeout_s), self._loop)
        try:
            ended.result(timeout_s + 2 * _CANCEL_GRACE_S)
        except TimeoutError:
            return False  # something blocks the loop
        if self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CANCEL_GRACE_S)
            if not self._thread.is_alive():
                self._loop.close()
        return not self._tasks

    async def _wind_up(self, timeout_s: float) -> None:
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=_CANCEL_GRACE_S)
        if self._thread is not None:
            await self._loop.shutdown_asyncgens()

    # --- in the loop's thread ----------------------------------------------------------------------------------------

    def _ask_pump(self) -> None:
        if not self._pump_asked:
            self._pump_asked = True
            self._loop.call_soon_threadsafe(self._pump)

    def _pump(self) -> None:
        """Have a worker for each batch that waits, up to the limit."""
        self._pump_asked = False
        free = self.size - self._running
        if free <= 0 or self._stopping:
            return
        waiting = sum(max(1, chunk.todo_count) for chunk in islice(tuple(self._chunks), free))
        if self._head is not None:
            waiting += self._head.chunk.todo_count
        for _ in range(min(waiting, free)):
            self._running += 1
            task = self._loop.create_task(self._work())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        """Take batches until there are none."""
        try:
            while self._running <= self.size and not self._stopping:
                work = self._next()
                if work is None:
                    return
                try:
                    called = await self._call_next(work)
                except Exception as error:  # noqa: BLE001 - a defect of ours: the poll thread decides what follows
                    _LOG.exception("consumer.async-worker-failed")
                    self.results.put(Result(work.chunk, None, 0, died=error))
                    return
                if not called:
                    await asyncio.sleep(0)  # listeners that never wait leave the loop to others, too
        finally:
            self._running -= 1

    async def _call_next(self, work: _Work) -> bool:
        """Call the listener with the next batch of a chunk; whether there was one."""
        chunk = work.chunk
        taken = self._runner.next_batch(chunk, work.context, work.outcomes)
        if taken is None:
            work.handed_out = True
            if self._head is work:
                self._head = None
        else:
            subscription, batch, views = taken
            self._numbers = number = self._numbers + 1
            chunk.calls[number] = batch
            work.active += 1
            try:
                given = views if self._lists else views[0]
                work.outcomes += await self._runner.call(subscription, given, batch, work.context.copy())
            finally:
                work.active -= 1
                chunk.calls.pop(number, None)
        if work.handed_out and not work.active and not work.reported:
            work.reported = True
            self.results.put(Result(chunk, work.outcomes or None, time.perf_counter_ns() - work.began_ns))
        return taken is not None

    def _report_part(self, chunk: Chunk[Any]) -> None:
        """In this thread, in which no call begins or ends meanwhile."""
        if chunk.calls and not chunk.todo_count:
            still_open = frozenset(message.offset() for call in chunk.calls.values() for message in call)
            self.results.put(Result(chunk, list(chunk.outcomes), 0, still_open=still_open))

    def _next(self) -> _Work | None:
        if self._head is None:
            try:
                chunk = self._chunks.popleft()
            except IndexError:
                return None
            self._head = _Work(chunk, self._runner.context_of(chunk))
        return self._head


def is_async(function: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine."""
    return asyncio.iscoroutinefunction(function) or asyncio.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004
