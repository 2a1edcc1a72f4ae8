"""`async def` listeners: one event loop in its own thread, many concurrent calls.

`AsyncPool` is the pool for coroutines; it replaces `ListenerPool`. Rules of this file:

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

from rocketshim.consumer.concurrent.runner import ConcurrentRunner
from rocketshim.consumer.dispatch import Pool, Result
from rocketshim.core.listener_answers import ConsumeConcurrentlyContext
from rocketshim.core.process_queue import Chunk
from rocketshim.core.user_values import safe_text
from rocketshim.logs import safe_logger

__all__ = ["AsyncPool"]

_LOG = safe_logger("rocketshim.consumer")
_CANCEL_GRACE_S: Final = 1.0


_Call = tuple[Chunk, int, list[Any], ConsumeConcurrentlyContext]
"""A call in progress: its chunk, number, messages and context. A plain tuple is cheap; each call creates one."""


class AsyncPool(Pool):
    """The `Pool` of coroutines: at most `size` calls at the same time.

    With `loop`, the event loop of another thread, the pool makes none, and does not stop that one.
    """

    shares_chunks = True

    def __init__(
        self, runner: ConcurrentRunner, size: int, name: str, loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        self.results: SimpleQueue[Result] = SimpleQueue()
        self.size = size
        self._runner = runner
        self._chunks: deque[Chunk] = deque()
        self._begun: dict[Chunk, int] = {}  # chunks in progress, and since when, in ns
        self._head: Chunk | None = None  # the last one that was begun, if it may have messages left
        self._untouched: ConsumeConcurrentlyContext  # of its calls
        self._numbers = 0
        self._calls: dict[asyncio.Task[Any], _Call] = {}
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

    def submit(self, chunk: Chunk) -> None:
        """Queue a chunk."""
        self._chunks.append(chunk)
        self._request_pump()
        if self._died is not None:
            self._report_all(self._died)

    def resize(self, size: int) -> None:
        """Set the maximum number of concurrent calls; calls in progress are not interrupted."""
        self.size = size
        self._request_pump()

    def report_part(self, chunk: Chunk) -> None:
        """Request a report of a chunk's finished messages while one of its calls takes too long."""
        if self._died is None:
            self._loop.call_soon_threadsafe(self._report_part, chunk)

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
        ended: Future[None] = asyncio.run_coroutine_threadsafe(self._end_calls(timeout_s), self._loop)
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

    async def _end_calls(self, timeout_s: float) -> None:
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
        with suppress(KeyError):  # `submit` may run this at the same time
            while True:
                self.results.put(Result(self._begun.popitem()[0], None, 0, died=error))
        with suppress(IndexError):
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
            chunk = self._next()
            if chunk is None:
                return
            if not self._begin(chunk):
                self._loop.call_soon(self._pump, context=self._context)  # let other tasks run between two chunks
                return

    def _next(self) -> Chunk | None:
        """Return the chunk that has the next messages."""
        if self._head is None:
            try:
                self._head = self._chunks.popleft()
            except IndexError:
                return None
            self._begun[self._head] = time.perf_counter_ns()
            self._untouched = self._runner.context_of(self._head)
        return self._head

    def _begin(self, chunk: Chunk) -> bool:
        """Start a call with the next batch of a chunk; return whether there was one."""
        context, asked = copy_context(), self._untouched.copy()
        try:
            taken = context.run(self._runner.next_batch, chunk, asked, chunk.outcomes)  # calls the user's filters
        except Exception as error:  # noqa: BLE001 - a defect in rocketshim: the poll thread decides what to do
            self._failed(chunk, error)
            return False
        if taken is None or not chunk.todo_count:
            self._head = None
        if taken is None:
            self._report(chunk)
            return False
        subscription, batch, given = taken
        self._numbers = number = self._numbers + 1
        chunk.calls[number] = batch
        task = context.run(self._loop.create_task, self._runner.await_call(subscription, given, batch, asked))
        self._calls[task] = chunk, number, batch, asked
        task.add_done_callback(self._ended, context=self._context)
        return True

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        """Process the result of a call, in whatever way it ended, and start the next call.

        Decides: What follows if the task of an `async def` listener is cancelled? The message has failed; rules for
            final exceptions do not apply.
        """
        chunk, number, batch, context = self._calls.pop(task)
        chunk.calls.pop(number, None)
        if self._cancelling:
            return
        try:
            chunk.outcomes += task.result()
        except asyncio.CancelledError as error:
            chunk.outcomes += self._runner.raised(batch, error, context)
        except BaseException as error:  # noqa: BLE001 - a defect in rocketshim: the poll thread decides what to do
            self._failed(chunk, error)
            return
        self._report(chunk)
        self._pump()

    def _failed(self, chunk: Chunk, error: BaseException) -> None:
        if self._head is chunk:
            self._head = None
        self._begun.pop(chunk, None)
        self.results.put(Result(chunk, None, 0, died=error))
        _LOG.error("consumer.async-call-failed", exc_info=error)

    def _report(self, chunk: Chunk) -> None:
        """Report a chunk whose messages were all taken, when its last call has ended."""
        if chunk is not self._head and not chunk.calls and (began_ns := self._begun.pop(chunk, None)) is not None:
            self.results.put(Result(chunk, chunk.outcomes or None, time.perf_counter_ns() - began_ns))

    def _report_part(self, chunk: Chunk) -> None:
        """Report a chunk's finished messages. In the loop's thread no call starts or ends meanwhile."""
        if chunk.calls and not chunk.todo_count:
            still_open = frozenset(message.offset() for call in chunk.calls.values() for message in call)
            self.results.put(Result(chunk, list(chunk.outcomes), 0, still_open=still_open))


def _log_uncaught(loop: asyncio.AbstractEventLoop, facts: dict[str, Any]) -> None:
    """Log an uncaught exception as the loop does by default; ignore exceptions of the user's logging."""
    with suppress(Exception):
        loop.default_exception_handler(facts)
