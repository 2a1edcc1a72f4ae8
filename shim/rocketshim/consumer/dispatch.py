"""The listener threads, and the poll thread's side of them: it hands out messages and processes the results.

While a partition is read with care (`core.process_deaths`), its messages are taken and kept here, and submitted once a
commit has noted them. A message that has killed too many processes is not submitted; it has failed.

A failed message goes to `SendBack` as soon as its chunk is reported. While failed messages are on their way to their
next topic, no wait is longer than 5 ms, and none waits for listeners alone: the producer's reports arrive only through
its `poll`, and a queue moves no faster than they are read (test_a_failure_is_finished_only_when_its_retry_is_stored).

Passing a chunk by `SimpleQueue` costs 0.03 to 0.26 µs per message; an executor costs 6 to 12 µs (our measurement). The
threads are daemons: a thread whose listener never returns does not keep the process alive after the consumer is closed.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Final, Generic, Protocol

from rocketshim.consumer.reader.partition_reader import PartitionReader
from rocketshim.consumer.send_back import SendBack
from rocketshim.consumer_metrics import DispatchCounts, OrderlyCounts
from rocketshim.core.clock import Clock, now_ms_of
from rocketshim.core.partition import PartitionQueue, QueueT, Work
from rocketshim.core.process_deaths import PROCESS_DIED
from rocketshim.logs import safe_logger
from rocketshim.settings.consumer import PushConsumerSettings
from rocketshim_topics import Failure
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["Dispatch", "ListenerPool", "Pool", "Result"]

_LOG = safe_logger("rocketshim.consumer")
_REPORTS_S: Final = 0.005
_DRAIN_STEP_S: Final = 0.01


@dataclass(slots=True)
class Result:
    """A chunk that a listener thread has finished, or offsets of it that are `still_open`.

    `outcomes` are the messages that did not succeed (None: all did); in orderly mode, every answer. `died` is a defect
    in rocketshim that ended the thread; user code cannot end it.
    """

    chunk: Any
    outcomes: list[Any] | None
    elapsed_ns: int
    died: BaseException | None = None
    still_open: Collection[int] | None = None


class Pool(Protocol):
    """Runs chunks: threads (`ListenerPool`) or an event loop (`concurrent.AsyncPool`).

    Thread-safety: only one owner thread calls it; any thread calls `is_own_thread`.
    """

    results: SimpleQueue[Result]
    size: int
    shares_chunks: bool
    """Whether several workers process one chunk at the same time: then no message waits for its neighbour."""

    def submit(self, chunk: Any) -> None:
        """Accept a chunk; never block."""

    def report_part(self, chunk: Any) -> None:
        """Report the finished messages of a chunk, if several workers share it."""
        del chunk

    def resize(self, size: int) -> None:
        """Set the number of workers."""

    def stop(self, timeout_s: float) -> bool:
        """End every worker after its chunk; return whether all ended in time."""

    def is_own_thread(self) -> bool:
        """Return whether the caller runs in one of its threads."""

    def wait(self, timeout_s: float, gather_s: float) -> Result:
        """Return the next result; raise `queue.Empty` if none came in time.

        Once one result is available, a pool of threads waits up to `gather_s` for more.
        """
        del gather_s
        return self.results.get(timeout=timeout_s)


class Dispatch(ABC, Generic[QueueT]):
    """The poll thread's side of the listener threads."""

    def __init__(
        self, pool: Pool, send_back: SendBack, settings: PushConsumerSettings, clock: Clock, reader: PartitionReader
    ) -> None:
        self.pool = pool
        self.send_back = send_back
        self.counts = DispatchCounts()
        self.orderly_counts = OrderlyCounts()
        self.in_flight = 0  # messages handed out and not yet reported
        self.died: BaseException | None = None
        self.care = reader.care
        self.send_back.on_stored = self._stored
        self._kept: dict[TopicPartitionKey, list[Work]] = {}  # taken, and not submitted yet
        self._batch_count = settings.consume_message_batch_max_size
        self._now_ms = now_ms_of(clock)
        self._wall_ms = clock.wall_ms

    @abstractmethod
    def make_queue(self, key: TopicPartitionKey, epoch: int) -> QueueT:
        """Make the queue of a partition in an epoch."""

    def hand_out(self, queues: Iterable[QueueT]) -> None:
        """Hand out all messages that may be processed now."""
        if self.care.is_active or self._kept:
            queues = self._hand_out_carefully(list(queues))
        self._hand_out(queues)

    @abstractmethod
    def _hand_out(self, queues: Iterable[QueueT]) -> None:
        """Hand out all messages of queues that are not careful."""

    @abstractmethod
    def _take_few(self, queue: QueueT, limit: int) -> Work | None:
        """Take messages of a careful queue, for one task: at most `limit`; None: there is none now."""

    @abstractmethod
    def _fail(self, task: Any, failure: Failure, times: int) -> None:
        """Process a task of one message as failed that many times, without a call."""

    @abstractmethod
    def _is_withheld(self, task: Any) -> bool:
        """Return whether a task that was not submitted is not to be; if so, put it back."""

    def _hand_out_carefully(self, queues: Sequence[QueueT]) -> Sequence[QueueT]:
        """Hand out messages of careful queues; return the others, whose messages may be handed out, too."""
        self._drop_withheld()
        others: list[QueueT] = []
        waiting: dict[TopicPartitionKey, list[int]] = {}
        running: dict[TopicPartitionKey, set[int]] = {}
        for queue in queues:
            if self.care.is_careful(queue.key, queue.next_offset):
                waiting[queue.key], running[queue.key] = self._take_carefully(queue.key, queue)
            else:
                others.append(queue)
        begin = self.care.next(waiting, running, lambda: any(map(_is_in_progress, others)), self._now_ms())
        for key in waiting:
            tasks = self._kept.get(key, [])
            while tasks and all((key, offset) in begin for offset in _offsets_of(tasks[0])):
                self.pool.submit(tasks.pop(0))
            if not tasks:
                self._kept.pop(key, None)
        if self.care.holds_others:
            return []
        for queue in others:
            for task in self._kept.pop(queue.key, ()):  # it was careful until now
                self.pool.submit(task)
        return others

    def _take_carefully(self, key: TopicPartitionKey, queue: QueueT) -> tuple[list[int], set[int]]:
        """Take as many messages of a careful queue as may be noted; return those that wait, and those in progress."""
        kept = self._kept.setdefault(key, [])
        waiting = [offset for task in kept for offset in _offsets_of(task)]
        running = set(queue.in_progress()).difference(waiting)
        while True:
            limit = 1 if self.care.has_suspects(key) else self.care.share
            room = limit - len(waiting) - len(running)
            task = self._take_few(queue, room) if room > 0 else None
            if task is None:
                return waiting, running
            offsets = _offsets_of(task)
            self.in_flight += len(offsets)
            times = self.care.at_limit(key).get(offsets[0])
            if times is None:
                kept.append(task)
                waiting += offsets
                continue
            self.care.fail(key, offsets[0])
            text = f"{times} processes died while it was in progress"
            self._fail(task, Failure(PROCESS_DIED, text, self._wall_ms()), times)

    def _drop_withheld(self) -> None:
        """Forget kept tasks of queues that are not handed out any more."""
        for key, tasks in list(self._kept.items()):
            left = [task for task in tasks if not self._is_withheld(task)]
            if left:
                self._kept[key] = left
            else:
                del self._kept[key]

    @abstractmethod
    def _take(self, result: Result) -> None:
        """Process a result."""

    @abstractmethod
    def _stored(self, task: Any, messages: Sequence[Any]) -> None:
        """Note that the next hops of these messages are stored, so that they are done."""

    def gather_s(self) -> float:
        """Return how long results may wait without a worker running out of work, in seconds."""
        return 0.0

    def take_results(self, now_ms: int) -> None:
        """Process every available result."""
        del now_ms
        results = self.pool.results
        while results.qsize():
            self._take(results.get())

    def _add_call(self, elapsed_ns: int, messages: Sequence[Any]) -> None:
        """Count the time of a chunk, and how old its messages are now."""
        age_ms = self._wall_ms() - messages[0].timestamp()[1] if messages else 0
        self.counts.add_call(elapsed_ns, len(messages), age_ms)

    @property
    def awaits_commit(self) -> bool:
        """Return whether messages wait until a commit has noted them."""
        return bool(self._kept)

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
            self.send_back.take_reports(reports_s)

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

        Decides: Is a message withheld because its partition is revoked? Yes; what listeners have may end in time.
        """
        self.withhold(queues)
        while any(not queue.is_drained for queue in queues):
            left_ms = deadline_ms - self._now_ms()
            if left_ms <= 0:
                return
            self.wait(min(left_ms / 1_000, _DRAIN_STEP_S))
            self.hand_out(others())

    def withhold(self, queues: Iterable[QueueT]) -> None:
        """Stop handing out messages of these queues."""
        for queue in queues:
            self.in_flight -= queue.withhold()
        if self._kept:
            self._drop_withheld()


def _offsets_of(task: Any) -> list[int]:
    return [message.offset() for message in task.messages]


def _is_in_progress(queue: PartitionQueue) -> bool:
    return next(queue.in_progress(), None) is not None


class ListenerPool(Pool):
    """The `Pool` of plain functions: a number of threads that run chunks."""

    shares_chunks = False

    def __init__(self, run: Callable[[Any], list[Any] | None], size: int, name: str) -> None:
        self.results: SimpleQueue[Result] = SimpleQueue()
        self._run = run
        self._name = name
        self._tasks: SimpleQueue[Work | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._started = 0
        self.size = 0
        try:
            self.resize(size)
        except RuntimeError:  # the system has no thread left
            self.resize(0)
            raise

    def submit(self, chunk: Any) -> None:
        """Hand a chunk to the first free thread."""
        self._tasks.put(chunk)

    def wait(self, timeout_s: float, gather_s: float) -> Result:
        """Return the next result. The owner does not wake for each: 20 threads that sleep 1 ms make 20,000 a second."""
        result = self.results.get(timeout=timeout_s)
        if gather_s > 0:
            time.sleep(min(gather_s, timeout_s))
        return result

    def resize(self, size: int) -> None:
        """Set the number of threads; surplus threads end after their current chunk.

        Source: `DefaultMQPushConsumer#updateCorePoolSize` of RocketMQ.
        """
        self._threads = [thread for thread in self._threads if thread.is_alive()]
        while self.size < size:
            self._started += 1
            thread = threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True)
            thread.start()
            self._threads.append(thread)
            self.size += 1
        while self.size > size:
            self._tasks.put(None)
            self.size -= 1

    def stop(self, timeout_s: float) -> bool:
        """End every thread after its chunk; return whether all ended in time. A second call is safe."""
        self.resize(0)
        deadline = time.monotonic() + timeout_s
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def is_own_thread(self) -> bool:
        """Return whether the caller runs in one of these threads."""
        return threading.current_thread() in self._threads

    def _work(self) -> None:
        take, put, run, clock = self._tasks.get, self.results.put, self._run, time.perf_counter_ns
        while True:
            chunk = take()
            if chunk is None:
                return
            began = clock()
            try:
                outcomes = run(chunk)
            except BaseException as error:  # noqa: BLE001 - the top of a thread: the poll thread decides what to do
                put(Result(chunk, None, clock() - began, died=error))
                _LOG.exception("consumer.listener-thread-failed")
                return
            put(Result(chunk, outcomes, clock() - began))
            del chunk, outcomes  # a thread that waits keeps no messages
