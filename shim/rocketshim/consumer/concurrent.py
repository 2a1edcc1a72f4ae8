"""Concurrent consumption: what the poll loop does with partitions whose messages are consumed at the same time.

A partition starts when it is assigned. A message whose listener call takes too long is sent back. If a chunk is in the
same call as 10 ms ago, its messages that have not begun are taken back, and its finished ones are processed. So one
slow message does not delay its neighbours. For a chunk that several coroutines share, this happens when a call has
timed out.

`ConcurrentRunner`, in listener threads, calls user code for one chunk: its filter, its listener, its outcomes.

* Concurrent listeners and filters are called only there, under no lock, and never get a Kafka object.
* Every exception of user code is an outcome, `SystemExit` included, as RocketMQ catches every Throwable. A message must
  not be able to end a thread, and with it the consumer, each time it is delivered.
* A message that the filter does not match has succeeded: no listener is called, and its offset moves on.
* A record of the group's own retry topic has the topic of its first delivery, and goes to that topic's listener. If
  there is no such listener, it is sent on, since another member may have one (`core.next_hop`); after a day it goes to
  the dead-letter topic (`NoListener`). If it breaks the wire format, it is parked.
* An exception, a context or a status from user code is user code, too: its `str()` may raise, its `ack_index` may be a
  text, its `__class__` may lie. It is read with care (`core.user_values`, `type(…)`). If it cannot be read, the message
  has failed, and `FAIL_TEXT` or the log has the reason.
* What can be looked up per chunk is not looked up per message: `_one_by_one` is the hot path.

`AsyncPool` runs `async def` listeners in place of `ListenerPool`: one event loop in its own thread, many calls.

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
from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from contextvars import copy_context
from itertools import islice, takewhile
from queue import SimpleQueue
from typing import Any, Final, cast

from confluent_kafka import TopicPartition

from rocketshim.consumer.dispatch import Dispatch, Pool, Result
from rocketshim.consumer.listeners import Runner, WithoutContext, asked_level, wants
from rocketshim.consumer.mode import Mode
from rocketshim.consumer.reader.partition_reader import PartitionReader
from rocketshim.consumer.send_back import SendBack
from rocketshim.core.clock import Clock, Interval
from rocketshim.core.listener_answers import (
    ALL,
    DEAD_LETTER_LEVEL,
    NOT_ASKED,
    ConsumeConcurrentlyContext,
    ConsumeOrderlyStatus,
    ConsumeReturnType,
    ConsumeStatus,
    Rules,
    is_success,
    item_answers,
    return_type_of,
    succeeded_count,
)
from rocketshim.core.next_hop import FailedMessage
from rocketshim.core.partition import FlowLimits
from rocketshim.core.process_queue import Chunk, ProcessQueue
from rocketshim.core.subscriptions import Subscription
from rocketshim.core.user_values import as_int, attribute, safe_text
from rocketshim.filters.selection import matching
from rocketshim.logs import safe_logger
from rocketshim.settings.consumer import PushConsumerSettings
from rocketshim_topics import Failure, MessageView
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.message import FirstView, first_views

__all__ = ["AsyncPool", "ChunkSizes", "ConcurrentDispatch", "ConcurrentMode", "ConcurrentRunner"]

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
_CANCEL_GRACE_S: Final = 1.0


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
        self._sweep = Interval(max(10, min(1_000, settings.consume_timeout_ms // _SWEEPS)))

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


class ConcurrentRunner(Runner):
    """Runs chunks."""

    __slots__ = ()

    def run(self, chunk: Chunk) -> list[FailedMessage] | None:
        """Call the listener for all that is still in `todo`; return the messages that failed, None: none has."""
        topic, context = chunk.queue.key.topic, self.context_of(chunk)
        subscription = self._subscription_of(topic)
        if topic == self._retry_topic or subscription is None or subscription.selects is not None:
            return self._routed(chunk, context)
        if self._batch_count == 1:
            return self._one_by_one(chunk, subscription, context)
        return self._in_batches(chunk, subscription, context)

    def context_of(self, chunk: Chunk) -> ConsumeConcurrentlyContext:
        """Return a new context for calls with messages of a chunk."""
        return ConsumeConcurrentlyContext(self._group, self._message_queue(chunk.queue.key), chunk.queue.epoch)

    def _one_by_one(
        self, chunk: Chunk, subscription: Subscription, context: ConsumeConcurrentlyContext
    ) -> list[FailedMessage] | None:
        outcomes: list[FailedMessage] = chunk.outcomes
        listener, success = subscription.listener, ConsumeStatus.CONSUME_SUCCESS
        alone = listener.function if type(listener) is WithoutContext else None
        for message in self._matching(chunk, subscription, outcomes):
            chunk.in_work = message
            view = FirstView()  # in C; the assignment is what its constructor would do
            view._record = message  # noqa: SLF001
            try:
                status = listener(view, context) if alone is None else alone(view)
                succeeded = status is None or status is success
                if succeeded and context.ack_index is ALL and context.delay_level_when_next_consume is NOT_ASKED:
                    continue  # nearly always: the context is untouched
                outcomes += self._answered((message,), status, context, subscription.rules)
            except BaseException as error:  # noqa: BLE001 - user code: its message failed, whatever it has raised
                outcomes.append(self._raised(message, error, context, subscription.rules))
            context = context.fresh()
        return outcomes or None

    def _in_batches(
        self, chunk: Chunk, subscription: Subscription, context: ConsumeConcurrentlyContext
    ) -> list[FailedMessage] | None:
        outcomes: list[FailedMessage] = chunk.outcomes
        source, wanted = self._matching(chunk, subscription, outcomes), self._batch_count
        while batch := list(islice(source, wanted)):
            chunk.in_work = batch
            outcomes += self._call(subscription, first_views(batch), batch, context)
            context = context.fresh()
        return outcomes or None

    def _matching(self, chunk: Chunk, subscription: Subscription, outcomes: list[FailedMessage]) -> Iterator[Any]:
        """Yield the messages for the listener; a record that the filter cannot read has failed, but no other."""
        matches = subscription.matches
        if matches is None:
            return chunk.todo

        def unreadable(message: Any, error: Exception) -> None:
            outcomes.append(self._raised(message, error, self.context_of(chunk)))  # no listener has set anything

        if subscription.sieve is not None:
            return subscription.sieve(chunk.todo, unreadable)
        return matching(matches, chunk.todo, unreadable)

    def _routed(self, chunk: Chunk, context: ConsumeConcurrentlyContext) -> list[FailedMessage] | None:
        """Process messages that may differ in their listener, or that a selector of the user looks at."""
        outcomes: list[FailedMessage] = chunk.outcomes
        while True:
            chunk.in_work = None  # a finished message must not time out while the selector runs
            taken = self.next_batch(chunk, context, outcomes)
            if taken is None:
                return outcomes or None
            subscription, batch, given = taken
            chunk.in_work = batch
            outcomes += self._call(subscription, given, batch, context)
            context = context.fresh()

    def next_batch(
        self, chunk: Chunk, context: ConsumeConcurrentlyContext, outcomes: list[FailedMessage]
    ) -> tuple[Subscription, list[Any], Any] | None:
        """Take the next messages of a chunk for one call, and what the listener gets; None: no message is left.

        Messages that never reach a listener (filtered, malformed, without a listener) are completed here.
        """
        trusted = chunk.queue.key.topic == self._retry_topic
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
        return None if found is None else (found, batch, views if self._batch_count > 1 else views[0])

    def _wanted(
        self, view: MessageView, message: Any, context: ConsumeConcurrentlyContext, outcomes: list[FailedMessage]
    ) -> Subscription | None:
        """Return the subscription whose listener gets the message; None if it is finished or has failed already."""
        found = self._route(view)
        if not isinstance(found, Subscription):
            failure, malformed = found
            # a malformed message is parked; without a listener it is dead only when it can no longer be sent on
            level = NOT_ASKED if malformed else DEAD_LETTER_LEVEL
            outcomes.append(FailedMessage(message, failure, asked_level=level, malformed=malformed))
            return None
        try:
            return found if wants(found, view) else None
        except BaseException as error:  # noqa: BLE001 - user code, or a record that the filter cannot read
            outcomes.append(self._raised(message, error, context))
            return None

    def _call(
        self, subscription: Subscription, given: Any, batch: Sequence[Any], context: ConsumeConcurrentlyContext
    ) -> Iterable[FailedMessage]:
        """Call a listener; return the messages that did not succeed."""
        try:
            status = subscription.listener(given, context)
            return self._answered(batch, status, context, subscription.rules)
        except BaseException as error:  # noqa: BLE001 - user code: its messages failed, whatever it raised
            return self.raised(batch, error, context, subscription.rules)

    async def await_call(
        self, subscription: Subscription, given: Any, batch: Sequence[Any], context: ConsumeConcurrentlyContext
    ) -> Iterable[FailedMessage]:
        """Call an `async def` listener; return the messages that did not succeed.

        Raises CancelledError: the call was cancelled, or the listener raised it.
        """
        try:
            status = await subscription.listener(given, context)
            return self._answered(batch, status, context, subscription.rules)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - user code: its messages failed, whatever it raised
            return self.raised(batch, error, context, subscription.rules)

    def raised(
        self, batch: Sequence[Any], error: BaseException, context: ConsumeConcurrentlyContext, rules: Rules = None
    ) -> list[FailedMessage]:
        """Return the messages of a call that raised."""
        return [self._raised(message, error, context, rules) for message in batch]

    def _raised(
        self, message: Any, error: BaseException, context: ConsumeConcurrentlyContext, rules: Rules = None
    ) -> FailedMessage:
        set_level = asked_level(attribute(context, "delay_level_when_next_consume", NOT_ASKED))
        is_final, level, delay_ms = self._meaning_of(error, rules, has_asked=set_level != NOT_ASKED)
        level = DEAD_LETTER_LEVEL if is_final else level or set_level
        failure = self._failure_of_call(error, message.topic())
        return FailedMessage(message, failure, asked_level=level, asked_delay_ms=delay_ms)

    def _answered(
        self, batch: Sequence[Any], status: object, context: ConsumeConcurrentlyContext, rules: Rules
    ) -> Iterable[FailedMessage]:
        """Return the messages that did not succeed in a call that returned.

        Decides: What does a listener's return value mean? In order, `consumer.orderly.OrderlyRunner._answered`.
        """
        if context.untouched and (status is None or status is ConsumeStatus.CONSUME_SUCCESS):
            return ()  # nearly always
        items = item_answers(status, len(batch)) if self._batch_count > 1 else None
        if items is not None:
            pairs = zip(batch, items, strict=True)
            return [self._item(message, item, context, rules) for message, item in pairs if not is_success(item)]
        done, failure = 0, self._failure_of(status)
        if is_success(status):
            ack_index = as_int(context.ack_index)
            if ack_index is None:
                text = f"the listener set ack_index={safe_text(context.ack_index, repr):.200}: it is a whole number"
                failure = Failure("AckIndexError", text, failure.at_ms)
            else:
                done = succeeded_count(status, ack_index, len(batch))
        if done == len(batch):
            return ()
        level = asked_level(context.delay_level_when_next_consume)
        return [FailedMessage(message, failure, asked_level=level) for message in batch[done:]]

    def _item(self, message: Any, answer: object, context: ConsumeConcurrentlyContext, rules: Rules) -> FailedMessage:
        """Make the outcome of one message of a batch that the listener has reported as failed."""
        if issubclass(type(answer), BaseException):
            return self._raised(message, cast("BaseException", answer), context, rules)
        level = asked_level(context.delay_level_when_next_consume)
        return FailedMessage(message, self._failure_of(answer), asked_level=level)

    def _failure_of(self, answer: object) -> Failure:
        """Return the failure that a listener's answer means; a success means that it asked for a retry of others."""
        if not is_success(answer) and type(answer) not in {ConsumeStatus, ConsumeOrderlyStatus}:
            return self._no_status(answer, "ConsumeStatus")
        return Failure("ReconsumeLater", "the listener asked for it", self._clock.wall_ms())


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
