"""`async def` listeners: one event loop in its own thread, many concurrent calls.

`AsyncPool` is the pool for coroutines; it replaces `pool.ListenerPool`. Rules of this file:

* Each call is a separate task, in a copy of the context in which the consumer was started. So a cancellation, a timeout
  or a context variable of one message never affects another message, not even after the call has ended. This costs 3 to
  4 µs more per message than tasks for many messages (measured); waking the loop for each message would add 4 µs.
* At most `size` calls are in progress. A task's done callback processes the result, in whatever way the task ended, and
  starts the next call. `submit` wakes the loop once for all waiting chunks.
* Each call takes the next batch of the oldest chunk that has one. A chunk is reported when no message of it is left and
  its last call has ended. `Chunk.calls` contains the messages of each call, for the consume timeout.
* A call that ends as cancelled has failed, no matter what cancelled it, and its messages are retried. Only calls that
  `stop` cancels at its deadline are not reported: their messages are delivered again.
* Everything except `submit`, `resize` and `stop` runs in the loop's thread, and so needs no lock.
* No exception of user code ends the thread of the pool's own loop. If that thread ends anyway, every chunk is reported
  with the reason. A listener that blocks the loop is abandoned together with its thread, like a plain listener.
"""

import asyncio
import threading
import time
from collections import deque
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from contextvars import copy_context
from queue import SimpleQueue
from typing import Any, Final

from rocketshim.consumer.dispatch import Result
from rocketshim.consumer.listener import ChunkRunner
from rocketshim.core.consume_concurrently import ConsumeConcurrentlyContext, ConsumeStatus
from rocketshim.core.failure_rules import Rules
from rocketshim.core.next_hop import FailedMessage
from rocketshim.core.process_queue import Chunk
from rocketshim.core.subscriptions import Subscription
from rocketshim.core.user_values import safe_text
from rocketshim.logs import safe_logger

__all__ = ["AsyncPool", "AsyncRunner"]

_LOG = safe_logger("rocketshim.consumer")
_CANCEL_GRACE_S: Final = 1.0


class AsyncRunner(ChunkRunner):
    """Calls `async def` listeners, with the routing, filters and outcomes of `ChunkRunner`."""

    __slots__ = ()

    async def call(
        self, subscription: Subscription, views: Any, batch: list[Any], context: ConsumeConcurrentlyContext
    ) -> list[FailedMessage]:
        """Await one listener call; return the messages that did not succeed.

        Raises:
            CancelledError: the call was cancelled, or the listener raised it.
        """
        try:
            status = await subscription.listener(views, context)
            if context.untouched and (status is None or status is ConsumeStatus.CONSUME_SUCCESS):
                return []
            return list(self._answered(batch, status, context, subscription.rules))
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - user code: its messages failed, whatever it raised
            return self.raised(batch, error, context, subscription.rules)

    def raised(
        self, batch: list[Any], error: BaseException, context: ConsumeConcurrentlyContext, rules: Rules = None
    ) -> list[FailedMessage]:
        """Return the outcomes of a call that raised."""
        return [self._raised(message, error, context, rules) for message in batch]


class _Work:
    """A chunk in progress."""

    __slots__ = ("active", "began_ns", "chunk", "context", "handed_out", "outcomes", "reported")

    def __init__(self, chunk: Chunk[Any], context: ConsumeConcurrentlyContext) -> None:
        self.chunk = chunk
        self.context = context
        self.active = 0
        self.handed_out = False  # all messages are handed out
        self.reported = False
        self.began_ns = time.perf_counter_ns()
        self.outcomes: list[FailedMessage] = chunk.outcomes


_Call = tuple[_Work, int, list[Any], ConsumeConcurrentlyContext]
"""A call in progress: its chunk, number, messages and context. A plain tuple is cheap; each call creates one."""


class AsyncPool:
    """The `Pool` of coroutines: at most `size` calls at the same time.

    With `lists` a listener gets lists. With `loop`, the event loop of another thread, the pool makes none, and does not
    stop that one.

    Thread-safety: one owner thread calls `submit`, `resize`, `stop` and `wait`; any thread may call `is_own_thread`.
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
        self.results: SimpleQueue[Result[Chunk[Any], FailedMessage]] = SimpleQueue()
        self.size = size
        self._runner = runner
        self._lists = lists
        self._chunks: deque[Chunk[Any]] = deque()
        self._head: _Work | None = None
        self._numbers = 0
        self._calls: dict[asyncio.Task[list[FailedMessage]], _Call] = {}
        self._context = copy_context()
        self._pump_requested = False
        self._stopping = False
        self._cancelling = False
        self._over = False
        self._died: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._loop = loop or asyncio.new_event_loop()
        if loop is None:
            self._loop.set_exception_handler(_log_uncaught)
            self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._thread.start()

    def submit(self, chunk: Chunk[Any]) -> None:
        """Queue a chunk."""
        self._chunks.append(chunk)
        self._request_pump()
        if self._died is not None:
            self._report_all(self._died)

    def resize(self, size: int) -> None:
        """Set the maximum number of concurrent calls; calls in progress are not interrupted."""
        self.size = size
        self._request_pump()

    def report_part(self, chunk: Chunk[Any]) -> None:
        """Request a report of a chunk's finished messages while one of its calls takes too long."""
        if self._died is None:
            self._loop.call_soon_threadsafe(self._report_part, chunk)

    def wait(self, timeout_s: float, gather_s: float) -> Result[Chunk[Any], FailedMessage]:
        """Return the next result; raise `queue.Empty` if none came in time."""
        del gather_s
        return self.results.get(timeout=timeout_s)

    def is_own_thread(self) -> bool:
        """Return whether the caller runs in the event loop's thread."""
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def stop(self, timeout_s: float) -> bool:
        """Wait for the calls within the time, then cancel them; return whether all have ended. Safe to call twice.

        In the pool's own loop, tasks that listeners left running are cancelled, too.
        """
        if self._stopping or self._loop.is_closed() or self._died is not None:
            return not self._calls
        self._stopping = True
        self._chunks.clear()
        ended: Future[None] = asyncio.run_coroutine_threadsafe(self._wind_up(timeout_s), self._loop)
        try:
            ended.result(timeout_s + 2 * _CANCEL_GRACE_S)
        except TimeoutError:
            return False  # user code blocks the loop
        except CancelledError:
            return not self._calls  # the user's loop is shutting down
        if self._thread is not None:
            self._over = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_CANCEL_GRACE_S)
            if not self._thread.is_alive():
                self._loop.close()
        return not self._calls

    async def _wind_up(self, timeout_s: float) -> None:
        if self._calls:
            await asyncio.wait(tuple(self._calls), timeout=timeout_s)
        self._cancelling = True
        own = self._thread is not None
        left: set[Any] = asyncio.all_tasks() - {asyncio.current_task()} if own else set(self._calls)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_CANCEL_GRACE_S)
        if own:
            await self._loop.shutdown_asyncgens()

    # --- in the loop's thread ----------------------------------------------------------------------------------------

    def _serve(self) -> None:
        """Run the pool's own loop until `stop`, whatever user code does to it."""
        try:
            while not self._over:
                try:
                    self._loop.run_forever()
                except (SystemExit, KeyboardInterrupt) as error:  # raised by a task that a listener left running
                    _LOG.warning("consumer.listener-raised", extra={"error": safe_text(error, repr)})
        except BaseException as error:  # noqa: BLE001 - the top of a thread: the poll thread decides what to do
            self._died = error
            self._report_all(error)
            _LOG.exception("consumer.event-loop-failed")
            with suppress(Exception):
                self._loop.close()

    def _report_all(self, error: BaseException) -> None:
        """Report every waiting chunk and every chunk in progress: the loop has died."""
        in_progress = {work.chunk for work, *_ in self._calls.values()}
        if self._head is not None:
            in_progress.add(self._head.chunk)
        for chunk in in_progress:
            self.results.put(Result(chunk, None, 0, died=error))
        with suppress(IndexError):  # `submit` may run this at the same time
            while True:
                self.results.put(Result(self._chunks.popleft(), None, 0, died=error))

    def _request_pump(self) -> None:
        if not self._pump_requested and self._died is None:
            self._pump_requested = True
            self._loop.call_soon_threadsafe(self._pump, context=self._context)

    def _pump(self) -> None:
        """Start calls, up to the limit."""
        self._pump_requested = False
        while len(self._calls) < self.size and not self._stopping:
            work = self._next()
            if work is None:
                return
            if not self._begin(work):
                self._loop.call_soon(self._pump, context=self._context)  # let other tasks run between two chunks
                return

    def _begin(self, work: _Work) -> bool:
        """Start a call with the next batch of a chunk; return whether there was one."""
        chunk, context = work.chunk, copy_context()
        try:
            taken = context.run(self._runner.next_batch, chunk, work.context, work.outcomes)  # calls the user's filters
        except Exception as error:  # noqa: BLE001 - a defect in rocketshim: the poll thread decides what to do
            self._failed(work, error)
            return False
        if taken is None or not chunk.todo_count:
            work.handed_out = True
            self._head = None
        if taken is None:
            self._report(work)
            return False
        subscription, batch, views = taken
        self._numbers = number = self._numbers + 1
        chunk.calls[number] = batch
        work.active += 1
        asked = work.context.copy()
        coroutine = self._runner.call(subscription, views if self._lists else views[0], batch, asked)
        task = context.run(self._loop.create_task, coroutine)
        self._calls[task] = work, number, batch, asked
        task.add_done_callback(self._ended, context=self._context)
        return True

    def _ended(self, task: "asyncio.Task[list[FailedMessage]]") -> None:
        """Process the result of a call, in whatever way it ended, and start the next call."""
        work, number, batch, context = self._calls.pop(task)
        work.active -= 1
        work.chunk.calls.pop(number, None)
        if self._cancelling:
            return
        try:
            work.outcomes += task.result()
        except asyncio.CancelledError as error:
            work.outcomes += self._runner.raised(batch, error, context)
        except BaseException as error:  # noqa: BLE001 - a defect in rocketshim: the poll thread decides what to do
            self._failed(work, error)
            return
        self._report(work)
        self._pump()

    def _failed(self, work: _Work, error: BaseException) -> None:
        self._head = None
        self.results.put(Result(work.chunk, None, 0, died=error))
        _LOG.error("consumer.async-call-failed", exc_info=error)

    def _report(self, work: _Work) -> None:
        if work.handed_out and not work.active and not work.reported:
            work.reported = True
            self.results.put(Result(work.chunk, work.outcomes or None, time.perf_counter_ns() - work.began_ns))

    def _report_part(self, chunk: Chunk[Any]) -> None:
        """Report a chunk's finished messages. In the loop's thread no call starts or ends meanwhile."""
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


def _log_uncaught(loop: asyncio.AbstractEventLoop, facts: dict[str, Any]) -> None:
    """Log an uncaught exception as the loop does by default; ignore exceptions of the user's logging."""
    with suppress(Exception):
        loop.default_exception_handler(facts)
