"""The poll thread: it owns the Kafka consumer, every process queue, every commit and the rebalance callbacks.

A turn: take in what the listener threads are through with, take in delivery reports, commit when it is time, hand out
what is pending, wait for messages. Rules:

* User code is never called here, and nothing here blocks on a listener for longer than a fraction of a second.
* The consumer is polled at all times, so that a slow listener never costs the membership of the group. What holds too
  much is paused (`flow_control`), after the listeners were given 50 ms to catch up: a pause throws away what librdkafka
  has fetched.
* Commits are the positions after the longest finished prefixes, every `offset_commit_interval_ms`, at revoke and at
  close; they never go backwards within an assignment. They carry the metadata of `start_position`.
* A rebalance callback never raises (an exception there would eat a fetched record): what goes wrong is kept and raised
  in the loop.
* Chunks hold 64 messages, or 1 while the *minimum* time per message of the last 32 chunks is above 200 µs (the mean
  contains waiting for the interpreter lock and takes fast listeners for slow). A chunk stuck at one message for 10 ms
  gives the rest back.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.clients import ConsumerClient, ProducerClient
from rocketshim.consumer.assignment import Starts
from rocketshim.consumer.pool import ListenerPool, Result
from rocketshim.consumer.send_back import SendBack
from rocketshim.core.clock import Clock
from rocketshim.core.flow_control import FlowLimits, must_pause, should_resume
from rocketshim.core.process_queue import Chunk, ProcessQueue
from rocketshim.errors import ConsumerError, TopicMissingError

__all__ = ["LoopSettings", "PollLoop"]

_LOG = logging.getLogger("rocketshim.consumer")

_CHUNK: Final = 64
_SLOW_NS: Final = 200_000
_WINDOW: Final = 32
_STUCK_MS: Final = 10
_FETCH_COUNT: Final = 1_000
_MAX_IN_FLIGHT: Final = 10_000
_IDLE_S: Final = 0.1
_BUSY_S: Final = 0.005
_CATCH_UP_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """The figures of one poll loop; all durations in ms."""

    batch_count: int
    commit_interval_ms: int
    consume_timeout_ms: int
    sweep_interval_ms: int
    revoke_drain_ms: int
    limits: FlowLimits


class PollLoop:
    """One thread's loop over one Kafka consumer.

    Args:
        make_consumer, make_producer: called in the loop's own thread.
        topics: physical topics and patterns to subscribe to.
        make_send_back: makes the sender of failed messages over the producer.
        pool: the listener threads.
        starts: where partitions begin and what their commits carry.
        settings: the figures.
        clock: monotonic time.

    Thread-safety: `run` belongs to one thread; `stop`, `suspend`, `resume` may be called from any.
    """

    def __init__(
        self,
        *,
        make_consumer: Callable[[], ConsumerClient],
        make_producer: Callable[[], ProducerClient],
        topics: list[str],
        make_send_back: Callable[[ProducerClient], SendBack],
        pool: ListenerPool,
        starts: Starts,
        settings: LoopSettings,
        clock: Clock,
    ) -> None:
        self.error: BaseException | None = None
        self._make_consumer = make_consumer
        self._make_producer = make_producer
        self._topics = topics
        self._make_send_back = make_send_back
        self._pool = pool
        self._starts = starts
        self._settings = settings
        self._clock = clock
        self._stop_by_ms: int | None = None
        self._stopping = threading.Event()
        self.assigned = threading.Event()
        self._queues: dict[tuple[str, int], ProcessQueue[Any]] = {}
        self._committed: dict[tuple[str, int], int] = {}
        self._many: dict[Chunk[Any], Any] = {}  # chunks of several messages, and what they were at in the last look
        self._per_message_ns: deque[int] = deque(maxlen=_WINDOW)
        self._in_flight = 0  # messages handed out and not reported
        self._epoch = 0
        self._next_commit_ms = 0
        self._next_sweep_ms = 0
        self._next_look_ms = 0
        self._consumer: ConsumerClient | None = None
        self._producer: ProducerClient | None = None
        self._send_back: SendBack | None = None

    # --- life --------------------------------------------------------------------------------------------------------

    @property
    def send_back(self) -> SendBack | None:
        """The sender of failed messages, once the loop runs; for its counts."""
        return self._send_back

    @property
    def queues(self) -> list[ProcessQueue[Any]]:
        """The process queues held now; for figures."""
        return list(self._queues.values())

    def stop(self, timeout_ms: int) -> None:
        """Ask the loop to end within a time. Safe twice, from any thread."""
        self._stop_by_ms = self._now_ms() + timeout_ms
        self._stopping.set()

    def run(self) -> None:
        """Consume until `stop`, or until the loop cannot go on; then `error` says why."""
        try:
            self._open()
            while not self._stopping.is_set():
                self.turn()
        except BaseException as error:  # noqa: BLE001 - the top of a thread: kept, said, and raised by the facade
            _LOG.exception("consumer.poll-thread-failed")
            self.error = error
        finally:
            self._close()

    def turn(self) -> None:
        """One turn of the loop.

        Raises:
            ConsumerError: the loop cannot go on.
        """
        now_ms = self._now_ms()
        self._take_results(now_ms)
        self._settle(now_ms)
        self._keep_house(now_ms)
        self._hand_out()
        if self.error is not None:
            raise ConsumerError(f"the consumer cannot go on: {self.error}") from self.error
        self._fetch()

    def _open(self) -> None:
        self._producer = self._make_producer()
        self._send_back = self._make_send_back(self._producer)
        self._consumer = self._make_consumer()
        self._consumer.subscribe(
            self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def _close(self) -> None:
        """Finish what is in work within the deadline, commit, leave the group."""
        deadline_ms = self._now_ms() if self._stop_by_ms is None else self._stop_by_ms
        consumer, producer = self._consumer, self._producer
        try:
            if consumer is not None and self.error is None:
                self._drain(deadline_ms, list(self._queues.values()))
                self._commit(asynchronous=False)
        except (KafkaException, RuntimeError) as error:
            self.error = self.error or error
        finally:
            self._pool.stop(max(0, deadline_ms - self._now_ms()) / 1_000)
            if consumer is not None:
                consumer.close()
            self._forget(list(self._queues))
            self._consumer = None
            if producer is not None:
                producer.purge()
                producer.flush(1.0)

    # --- fetching ----------------------------------------------------------------------------------------------------

    def _fetch(self) -> None:
        consumer = self._client()
        if self._in_flight >= _MAX_IN_FLIGHT or any(
            not queue.paused and must_pause(queue, self._settings.limits) for queue in self._queues.values()
        ):
            self._catch_up(consumer)
            return
        outstanding = self._in_flight or (self._send_back is not None and self._send_back.outstanding)
        wait_s = 0.0 if self._pool.results.qsize() else (_BUSY_S if outstanding else _IDLE_S)
        first = consumer.poll(wait_s)
        if first is None:
            return
        batch = [first, *consumer.consume(_FETCH_COUNT - 1, 0)]
        runs: dict[tuple[str, int], list[Any]] = {}
        for message in batch:
            error = message.error()
            if error is not None:
                self._client_error(error)
            else:
                runs.setdefault((message.topic(), message.partition()), []).append(message)
        for place, run in runs.items():
            queue = self._queues.get(place)
            if queue is not None:
                queue.put(run)

    def _catch_up(self, consumer: ConsumerClient) -> None:
        """Give the listeners a moment; then pause what still holds too much, and keep polling."""
        end_ms = self._now_ms() + round(_CATCH_UP_S * 1_000)
        limits = self._settings.limits
        while True:
            over = [queue for queue in self._queues.values() if not queue.paused and must_pause(queue, limits)]
            if not over and self._in_flight < _MAX_IN_FLIGHT:
                return
            left_ms = end_ms - self._now_ms()
            if left_ms <= 0 or self._stopping.is_set():
                break
            self._wait_for_result(left_ms / 1_000)
            self._hand_out()
        if self._in_flight >= _MAX_IN_FLIGHT:
            over = [queue for queue in self._queues.values() if not queue.paused]
        if over:
            consumer.pause([TopicPartition(queue.topic, queue.partition) for queue in over])
            for queue in over:
                queue.paused = True
        message = consumer.poll(0)
        if message is not None:
            self._late(message)

    def _late(self, message: Any) -> None:
        """A message that came although everything is paused: fetched before the pause took hold."""
        error = message.error()
        if error is not None:
            self._client_error(error)
            return
        queue = self._queues.get((message.topic(), message.partition()))
        if queue is not None:
            queue.put([message])

    def _wait_for_result(self, timeout_s: float) -> None:
        try:
            result = self._pool.results.get(timeout=timeout_s)
        except Empty:
            pass
        else:
            self._take(result)
        now_ms = self._now_ms()
        self._take_results(now_ms)
        self._settle(now_ms)
        self._give_back(now_ms)

    def _client_error(self, error: KafkaError) -> None:
        if error.fatal():
            self.error = KafkaException(error)
        elif error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            self.error = TopicMissingError(f"a subscribed topic is not there ({error.str()}); create it first")
        else:
            _LOG.warning("consumer.client-error", extra={"error": str(error)})

    # --- listeners ---------------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        limit = self._chunk_count()
        for queue in self._queues.values():
            while queue.pending_count:
                chunk = queue.take(limit)
                if chunk is None:
                    break
                self._in_flight += len(chunk.messages)
                if len(chunk.messages) > self._settings.batch_count:
                    self._many[chunk] = None
                self._pool.submit(chunk)

    def _chunk_count(self) -> int:
        batch = self._settings.batch_count
        times = self._per_message_ns
        if len(times) < _WINDOW or min(times) > _SLOW_NS:
            return batch
        return max(_CHUNK, batch)

    def _take_results(self, now_ms: int) -> None:
        results = self._pool.results
        while results.qsize():
            self._take(results.get())
        if now_ms >= self._next_look_ms:
            self._give_back(now_ms)

    def _take(self, result: Result) -> None:
        chunk = result.chunk
        self._many.pop(chunk, None)
        count = len(chunk.messages)
        self._in_flight -= count
        if result.died is not None:
            self.error = self.error or result.died
            return
        if count:
            self._per_message_ns.append(result.elapsed_ns // count)
        queue = chunk.queue
        if result.outcomes is None:
            queue.report(chunk)
        else:
            by_offset = {outcome.message.offset(): outcome for outcome in result.outcomes}
            for message in queue.report(chunk, [outcome.message for outcome in result.outcomes]):
                if self._send_back is not None:
                    self._send_back.send(chunk, by_offset[message.offset()])
        if queue.paused and not queue.dropped and should_resume(queue, self._settings.limits):
            self._client().resume([TopicPartition(queue.topic, queue.partition)])
            queue.paused = False

    def _give_back(self, now_ms: int) -> None:
        """Chunks that are at the same message as 10 ms ago give back what they have not begun."""
        if now_ms < self._next_look_ms:
            return
        self._next_look_ms = now_ms + _STUCK_MS
        for chunk, seen in list(self._many.items()):
            at = chunk.in_work
            if at is not None and at is seen:
                del self._many[chunk]
                for part in chunk.queue.split(chunk):
                    self._pool.submit(part)
            else:
                self._many[chunk] = at

    # --- reports, commits, sweeps ------------------------------------------------------------------------------------

    def _settle(self, now_ms: int) -> None:
        if self._send_back is not None and self._send_back.outstanding and self._producer is not None:
            self._producer.poll(0)
            self._send_back.settle(now_ms)
            self._resume_calm()

    def _resume_calm(self) -> None:
        for queue in self._queues.values():
            if queue.paused and should_resume(queue, self._settings.limits):
                self._client().resume([TopicPartition(queue.topic, queue.partition)])
                queue.paused = False

    def _keep_house(self, now_ms: int) -> None:
        if now_ms >= self._next_sweep_ms:
            self._next_sweep_ms = now_ms + self._settings.sweep_interval_ms
            self._sweep(now_ms)
        if now_ms >= self._next_commit_ms:
            self._next_commit_ms = now_ms + self._settings.commit_interval_ms
            self._commit(asynchronous=True)

    def _sweep(self, now_ms: int) -> None:
        for queue in self._queues.values():
            for chunk, message in queue.expire(now_ms, self._settings.consume_timeout_ms):
                _LOG.warning(
                    "consumer.timed-out",
                    extra={"record": f"{queue.topic}/{queue.partition}/{message.offset()}"},
                )
                if self._send_back is not None:
                    self._send_back.send_timed_out(chunk, message, self._clock.wall_ms())

    def _commit(self, *, asynchronous: bool, places: list[tuple[str, int]] | None = None) -> None:
        consumer = self._consumer
        if consumer is None:
            return
        offsets: list[TopicPartition] = []
        for place in self._queues if places is None else places:
            queue = self._queues.get(place)
            position = None if queue is None else queue.next_offset
            if position is not None and position > self._committed.get(place, -1):
                offsets.append(TopicPartition(*place, position, metadata=self._starts.metadata(place)))
        if not offsets:
            return
        try:
            if asynchronous:
                consumer.commit(offsets=offsets, asynchronous=True)
            else:
                consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            _LOG.warning("consumer.commit-failed", extra={"error": str(error)})
            return
        for item in offsets:
            self._committed[item.topic, item.partition] = item.offset

    def on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """An asynchronous commit's result: what was not committed is committed again with the next one."""
        for item in partitions:
            if error is not None or item.error is not None:
                place = (item.topic, item.partition)
                if self._committed.get(place, -1) <= item.offset:
                    self._committed[place] = item.offset - 1
                _LOG.warning("consumer.commit-failed", extra={"error": str(error or item.error), "partition": place})

    # --- rebalancing: called from `poll` and `close`; none of these may raise -----------------------------------------

    def _on_assign(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        self._epoch += 1
        try:
            starts = self._starts.resolve(consumer, partitions)
            consumer.incremental_assign(starts)
            if starts:
                consumer.resume(starts)
        except (KafkaException, RuntimeError) as error:
            self.error = error
            return
        for start in starts:
            place = (start.topic, start.partition)
            self._queues[place] = ProcessQueue(*place, self._epoch)
            self._committed[place] = start.offset
        self.assigned.set()
        _LOG.info("consumer.assigned", extra={"partitions": [f"{s.topic}/{s.partition}" for s in starts]})

    def _on_revoke(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        places = [(item.topic, item.partition) for item in partitions]
        try:
            leaving = [self._queues[place] for place in places if place in self._queues]
            self._drain(self._now_ms() + self._settings.revoke_drain_ms, leaving)
            self._commit(asynchronous=False, places=places)
        except (KafkaException, RuntimeError) as error:
            self.error = self.error or error
        finally:
            self._forget(places)
            self._unassign(consumer, partitions)

    def _on_lost(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        _LOG.warning("consumer.lost", extra={"partitions": [f"{p.topic}/{p.partition}" for p in partitions]})
        self._forget([(item.topic, item.partition) for item in partitions])
        self._unassign(consumer, partitions)

    def _unassign(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        try:
            consumer.incremental_unassign(partitions)
        except (KafkaException, RuntimeError) as error:
            self.error = self.error or error

    def _forget(self, places: list[tuple[str, int]]) -> None:
        for place in places:
            queue = self._queues.pop(place, None)
            self._committed.pop(place, None)
            if queue is not None:
                queue.drop()

    def _drain(self, deadline_ms: int, queues: list[ProcessQueue[Any]]) -> None:
        """Wait for listeners and hops of these queues, no longer than to the deadline; nothing new is begun."""
        for queue in queues:
            self._in_flight -= queue.withhold()
        while any(not queue.settled for queue in queues):
            left_ms = deadline_ms - self._now_ms()
            if left_ms <= 0:
                return
            self._wait_for_result(min(left_ms, 10) / 1_000)

    def _now_ms(self) -> int:
        return self._clock.monotonic_ns() // 1_000_000

    def _client(self) -> ConsumerClient:
        if self._consumer is None:
            raise ConsumerError("the consumer is not open")
        return self._consumer
