"""The poll thread of an orderly consumer: a poll loop whose queues are consumed in order, each under its lock.

It differs from the concurrent loop in these points:

* An assigned partition is paused until this consumer has its lock: *wanted*. When the group's log grants the lock
  (`QueueStarted`), the loop looks up the start offset and commits it with the new token. Only then it reads: *running*.
* A queue that is revoked, loses its lock or has its log cut is *ending*: no further message of it starts. When its
  listener has returned and its dead letters are stored, one of three things follows: the lock is released with the
  position reached, or the group's log is notified that the queue is drained, or the queue restarts. So a listener that
  takes longer than the drain of a rebalance keeps the lock, and the group does not wait for it. No other consumer can
  start the queue before the listener has returned or the lease has expired.
* Without a valid lease (`OrderlyPartition.holds`) nothing is handed out and nothing is committed. The listener thread
  checks the lease again before each call.
* The start offset is the committed one. The group's log may know a later one (from the last owner's renewal or
  release), which counts if the commit contains a token. A commit without a token was made later by another program: an
  operator reset the group, or the group was consumed concurrently meanwhile. Then the commit alone counts. If there is
  no commit at all, the topic was created again.
* There is no consume timeout: a listener call that hangs blocks its queue (as in RocketMQ).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Final, assert_never

from confluent_kafka import KafkaException, TopicPartition

from rocketshim.consumer.dispatch import Dispatch, Pool, Result
from rocketshim.consumer.orderly.partition import OrderlyPartition, OrderlyTask
from rocketshim.consumer.outcome import DEAD_LETTER_LEVEL, FailedMessage
from rocketshim.consumer.poll_loop import PollLoop
from rocketshim.consumer.reader.partition_queue import Work
from rocketshim.consumer.reader.pauses import PauseReason
from rocketshim.consumer.reader.start_offsets import paused_assignment
from rocketshim.consumer.state import ConsumerQueueState
from rocketshim.core.consume_orderly import BatchAnswer, DeadLetterOrderly, OrderlyAction, StatusMisplaced, Suspended
from rocketshim.core.lease import Lease, ReconsumeCounts
from rocketshim.core.orderly_queue import OrderlyQueue
from rocketshim.core.queue_lock_actions import QueueStarted, QueueStopped, StopReason
from rocketshim.core.retry_rotation import RetryRotation
from rocketshim.group.log_thread import GroupLogThread
from rocketshim.kafka.clients import ConsumerClient
from rocketshim.kafka.partitions import partition_names
from rocketshim.logs import safe_logger
from rocketshim_topics import Failure, MalformedRecordError, MessageView
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.wire import coordinates

__all__ = ["OrderlyCounts", "OrderlyDispatch", "OrderlyLoop", "OrderlySettings"]

_LOG = safe_logger("rocketshim.consumer")
_AWAITING_S: Final = 0.005
_IDLE_S: Final = 0.1
_SEEK_AGAIN_MS: Final = 100
_BOUNDS_S: Final = 2.0
_LOG_STOP_S: Final = 2.0
_STUCK_FROM: Final = 16
_REPORT_MS: Final = 1_000  # a report reads all failed attempts of a queue, so it is not sent for each failure


@dataclass(frozen=True, slots=True)
class OrderlySettings:
    """The settings of orderly consumption.

    Attributes:
        max_reconsume_times: failed attempts before a message becomes a dead letter; -1: never.
        suspend_ms: wait after a failure in ms, if the listener does not set one.
        by_key: keep the order within a key only (`order="key"`).
        retry_topic: physical name of the group's retry topic.
    """

    retry_topic: str
    max_reconsume_times: int = -1
    suspend_ms: int = 1_000
    by_key: bool = False


@dataclass(slots=True)
class OrderlyCounts:
    """Counters; the poll thread writes them, any thread may read them.

    Attributes:
        suspended: failed attempts after which a queue (or its keys) waited.
        stuck: the part of `suspended` that belongs to messages without a limit that had failed 16 times or more. Such a
            message blocks its queue indefinitely.
        starts: how often a queue was started after its lock was acquired.
        lost: how often a lock was lost while the consumer had the queue.
    """

    suspended: int = 0
    stuck: int = 0
    starts: int = 0
    lost: int = 0


class _AfterDrain(Enum):
    """The action when an ending queue is drained."""

    RELEASE = auto()
    """Release the lock with the position reached."""
    FORGET = auto()
    """The lock is already lost: only report that the queue is drained."""
    RESTART = auto()
    """The log was cut: restart at its first remaining message, under the same lease."""


@dataclass(slots=True)
class _Ending:
    queue: OrderlyPartition
    then: _AfterDrain
    offset: int = 0
    at_ms: int = 0  # earliest time of a restart


class OrderlyDispatch(Dispatch[OrderlyPartition, OrderlyTask, BatchAnswer]):
    """Hands runs to listener threads, one run of each queue at a time.

    Thread-safety: none; only the poll thread uses it.
    """

    def hand_out(self, queues: Iterable[OrderlyPartition]) -> None:
        """Hand out a run of each queue that is ready."""
        for queue in queues:
            task = queue.take(self._batch_count)
            if task is not None:
                self.in_flight += len(task.messages)
                self._pool.submit(task)

    def _take(self, result: Result[OrderlyTask, BatchAnswer]) -> None:
        task, answers = result.chunk, result.outcomes or []
        self.in_flight -= len(task.messages)
        if result.died is not None:
            self.died = self.died or result.died
            return
        stopped = sum(answer.msg_count for answer in answers if answer.stops)
        self.counts.failed += stopped
        self.counts.succeeded += sum(answer.msg_count for answer in answers) - stopped
        self.counts.listener_ns += result.elapsed_ns
        task.queue.report(task, answers)
        if not task.queue.withheld:
            self._left(task.queue)


class OrderlyLoop(PollLoop[OrderlyPartition]):
    """The loop of one thread over one Kafka consumer, for consumption in order.

    Args:
        log: the thread of the group's log, not started. The loop starts and stops it. None: no locks (broadcasting).
        orderly: the settings.
        loop: the arguments of `PollLoop`.

    Thread-safety: see `PollLoop`.
    """

    def __init__(self, *, log: GroupLogThread | None, orderly: OrderlySettings, **loop: Any) -> None:
        super().__init__(**loop)
        self.orderly_counts = OrderlyCounts()
        self._log = log
        self._orderly = orderly
        self._wanted: set[TopicPartitionKey] = set()
        self._leases: dict[TopicPartitionKey, Lease] = {}
        self._starting: dict[TopicPartitionKey, QueueStarted] = {}
        self._rotation: RetryRotation[TopicPartitionKey] = RetryRotation()
        self._ending: list[_Ending] = []
        self._counts: dict[TopicPartitionKey, ReconsumeCounts] = {}
        self._unreported: set[OrderlyPartition] = set()  # queues with a failure that the group's log does not know yet
        self._next_report_ms = 0
        self._misplaced = False
        self._starts.token_of = self._token_of

    # --- the turn ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the clients, start the group-log thread, subscribe."""
        super().open()
        if self._log is not None:
            self._log.start(f"rocketshim-group-log-{self._log.owner.client_id}")

    def turn(self) -> None:
        """Run one turn; raise the errors of `PollLoop.turn`."""
        if self._log is not None:
            self._take_events(self._log)
            self.error = self.error or self._log.error
        super().turn()

    def close(self) -> None:
        """Finish the messages in progress within the deadline, commit, release locks, leave. Safe to call twice."""
        try:
            super().close()
        finally:
            log = self._log
            if log is not None:
                log.stop(_LOG_STOP_S, lambda: self._wind_up(log))

    def _wind_up(self, log: GroupLogThread) -> None:
        """Release locks after the loop has closed: those acquired late, and those whose listeners have now returned."""
        self._take_events(log)
        self.dispatch.take_results(self._now_ms())
        self._end_drained()

    def _failed(self, chunk: Work, outcome: FailedMessage) -> None:
        if self._consumer is not None:  # else the loop has closed: a message that is not stored keeps its queue's lock
            super()._failed(chunk, outcome)

    def _finish_up(self, consumer: ConsumerClient, deadline_ms: int) -> None:
        super()._finish_up(consumer, deadline_ms)
        while self._ending and self.error is None and self._now_ms() < deadline_ms:
            self._wait(_AWAITING_S)
            self._end_drained()

    def _keep_house(self, now_ms: int) -> None:
        committing = now_ms >= self._next_commit_ms
        super()._keep_house(now_ms)
        if self._starting:
            self._start(self._client())
        self._end_drained()
        if committing or (self._unreported and now_ms >= self._next_report_ms):
            for queue in self.queues if committing else self._unreported:
                if not queue.dropped:
                    self._report_progress(queue)
            self._unreported.clear()
            self._next_report_ms = now_ms + _REPORT_MS

    def _sweep(self, now_ms: int) -> None:
        """Do nothing: orderly consumption has no consume timeout."""

    def resume_reading(self, consumer: ConsumerClient) -> None:
        """Continue to read, also partitions that lost their lock meanwhile and will be locked again. For `ask`."""
        super().resume_reading(consumer)
        self._pauses.release(consumer, self._wanted, PauseReason.SUSPENDED)

    def _idle_s(self) -> float:
        if self._starting or self._ending or len(self._queues) < len(self._wanted):
            return _AWAITING_S
        now_ms = self._now_ms()
        due_ms = [at_ms for queue in self.queues if (at_ms := queue.next_wakeup_ms) is not None]
        return _IDLE_S if not due_ms else min(_IDLE_S, max(0, min(due_ms) - now_ms) / 1_000)

    # --- locks -------------------------------------------------------------------------------------------------------

    def _take_events(self, log: GroupLogThread) -> None:
        while log.events.qsize():
            event = log.events.get()
            match event:
                case QueueStarted(lease, next_offset, reconsume_counts):
                    key = TopicPartitionKey(lease.queue.topic, lease.queue.queue_id)
                    if key in self._wanted:
                        self._leases[key] = lease
                        self._starting[key] = event
                    else:  # the partition was released meanwhile, and the log knows that already
                        self._release(lease, next_offset, reconsume_counts)
                case QueueStopped(lease, reason):
                    self._lock_stopped(lease, reason)
                case _:
                    assert_never(event)
        self._end_drained()

    def _lock_stopped(self, lease: Lease, reason: StopReason) -> None:
        key = TopicPartitionKey(lease.queue.topic, lease.queue.queue_id)
        unwanted = reason is StopReason.UNWANTED  # then a queue that we have was revoked and assigned again
        ending = next((each for each in self._ending if each.queue.lease is lease), None)
        if ending is not None and not unwanted:
            ending.then = _AfterDrain.FORGET
        elif ending is not None and ending.then is _AfterDrain.RESTART:
            ending.then = _AfterDrain.RELEASE
        if self._leases.get(key) is not lease:
            return  # released already, or it will be when its listener returns
        self.orderly_counts.lost += 1
        del self._leases[key]
        if ending is not None:
            return
        running = self._queues.pop(key, None)
        unstarted = self._starting.pop(key, None)
        if key in self._wanted:
            self._pause_until_locked(key)
        if running is not None:
            self._end(running, _AfterDrain.RELEASE if unwanted else _AfterDrain.FORGET)
        elif unstarted is not None and unwanted:
            self._release(lease, unstarted.next_offset, unstarted.reconsume_counts)
        else:
            self._release(lease, None, ())

    def _pause_until_locked(self, key: TopicPartitionKey) -> None:
        """Pause the partition until it is started again, and clear any flow-control pause of the previous run."""
        consumer = self._client()
        self._pauses.hold(consumer, [key], PauseReason.LOCK)
        self._pauses.release(consumer, [key], PauseReason.FLOW)
        self.commits.forget(key)

    def _start(self, consumer: ConsumerClient) -> None:
        """Start queues whose lock we have; a queue that cannot start (its leader is away) does not block the others."""
        began_ms = self._now_ms()
        busy = {TopicPartitionKey.of(ending.queue) for ending in self._ending}
        waiting = [key for key in self._starting if key not in busy and self._leases[key].holds(began_ms)]
        keys, timeout_s = self._rotation.pick(waiting, began_ms)
        if not keys:
            return
        why = self._start_keys(consumer, keys, timeout_s)
        self._rotation.tried(keys, failed=why is not None, began_ms=began_ms, now_ms=self._now_ms())
        if why is not None:
            _LOG.warning("consumer.start-unknown", extra={"error": why, "partitions": partition_names(keys)})

    def _start_keys(self, consumer: ConsumerClient, keys: list[TopicPartitionKey], timeout_s: float) -> str | None:
        """Look up and commit start offsets, then read; return the reason if that failed, else None.

        A queue whose lock is lost meanwhile is not started.
        """
        try:
            found, _ = self._starts.find(consumer, [TopicPartition(*key) for key in keys], timeout_s)
            offsets = {TopicPartitionKey.of(item): self._begin_at(item) for item in found}
            now_ms = self._now_ms()
            offsets = {key: offset for key, offset in offsets.items() if self._leases[key].holds(now_ms)}
            commits = [
                TopicPartition(*key, offset, metadata=self._starts.metadata(key)) for key, offset in offsets.items()
            ]
            answers = consumer.commit(offsets=commits, asynchronous=False) if commits else []
            refused = [str(answer.error) for answer in answers if answer.error is not None]
            if refused:
                return str(refused)
            for key, offset in offsets.items():
                consumer.seek(TopicPartition(*key, offset))
        except KafkaException as error:
            return str(error)
        for key, offset in offsets.items():
            self._counts[key] = self._starting.pop(key).reconsume_counts
            self._begin(key, offset)
            self.orderly_counts.starts += 1
        self._read(consumer, list(offsets))
        self._throttle.share(len(self._queues))
        if offsets:
            _LOG.info("consumer.locked", extra={"partitions": partition_names(offsets)})
        return None

    def _read(self, consumer: ConsumerClient, keys: list[TopicPartitionKey]) -> None:
        if self._suspended or self._closing:
            self._pauses.hold(consumer, keys, PauseReason.SUSPENDED)
        self._pauses.release(consumer, keys, PauseReason.LOCK)

    def _begin_at(self, found: TopicPartition) -> int:
        """Return the start offset: the committed one, or a later one that the group's log knows."""
        key = TopicPartitionKey.of(found)
        known = self._starting[key].next_offset
        if known is None or self._starts.found_tokens.get(key) is None:
            return found.offset
        return max(found.offset, known)

    def _token_of(self, key: TopicPartitionKey) -> int | None:
        lease = self._leases.get(key)
        return None if lease is None else lease.token

    def _want(self) -> None:
        if self._log is not None:
            self._log.want([MessageQueue(topic, queue_id=number) for topic, number in self._wanted])

    def _report_progress(self, queue: OrderlyPartition) -> None:
        """Report a queue's progress to the group's log, if it has changed."""
        progress = queue.progress
        if self._log is not None and queue.lease is not None and progress != queue.reported:
            queue.reported = progress
            self._log.progress(queue.lease, *progress)

    # --- ending ------------------------------------------------------------------------------------------------------

    def _end(self, queue: OrderlyPartition, then: _AfterDrain, offset: int = 0) -> None:
        """Start no further message of a queue; `_end_drained` does the rest."""
        queue.withhold()
        self._ending.append(_Ending(queue, then, offset))

    def _end_drained(self) -> None:
        """Finish the ending queues that are drained. The cost is linear in the number of ending queues."""
        self._ending = [ending for ending in self._ending if not (ending.queue.settled and self._conclude(ending))]

    def _conclude(self, ending: _Ending) -> bool:
        """Do the action that follows a drained queue; return whether it succeeded."""
        queue, lease = ending.queue, ending.queue.lease
        if ending.then is _AfterDrain.RESTART:
            if not self._restart(ending):
                return False
        elif lease is not None and ending.then is _AfterDrain.RELEASE:
            self._release(lease, *queue.progress)
        elif lease is not None:
            self._release(lease, None, ())
        queue.drop()
        return True

    def _restart(self, ending: _Ending) -> bool:
        """Restart a queue; return whether it succeeded, else try again later. Never raises: callbacks call it, too."""
        now_ms = self._now_ms()
        if now_ms < ending.at_ms:
            return False
        key = TopicPartitionKey.of(ending.queue)
        consumer = self._client()
        try:
            consumer.seek(TopicPartition(*key, ending.offset))
        except KafkaException as error:
            ending.at_ms = now_ms + _SEEK_AGAIN_MS
            _LOG.warning("consumer.start-unknown", extra={"error": str(error), "partitions": partition_names([key])})
            return False
        self._begin(key, ending.offset)
        self._read(consumer, [key])
        return True

    def _release(self, lease: Lease, next_offset: int | None, counts: ReconsumeCounts) -> None:
        if self._log is not None:
            self._log.release(lease, next_offset, counts)

    def _give_up(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Report that these partitions are no longer ours; release their locks, now or when they are drained."""
        gone = list(keys)
        self._wanted.difference_update(gone)
        self._want()
        cut = {
            TopicPartitionKey.of(ending.queue): ending for ending in self._ending if ending.then is _AfterDrain.RESTART
        }
        for key in gone:
            lease = self._leases.pop(key, None)
            running = self._queues.pop(key, None)
            unstarted = self._starting.pop(key, None)
            self._counts.pop(key, None)
            if key in cut:
                cut[key].then = _AfterDrain.RELEASE
                lease = None
            if running is not None:
                self._end(running, _AfterDrain.RELEASE)
            elif lease is not None:
                known = (None, ()) if unstarted is None else (unstarted.next_offset, unstarted.reconsume_counts)
                self._release(lease, *known)
        self._end_drained()

    # --- overrides of the poll loop ----------------------------------------------------------------------------------

    def _make_dispatch(self, pool: Pool[Any, Any], batch_count: int) -> OrderlyDispatch:
        return OrderlyDispatch(pool, batch_count, self._left)

    def _make_queue(self, key: TopicPartitionKey, epoch: int) -> OrderlyPartition:
        is_retry = key.topic == self._orderly.retry_topic
        key_of = _key_of if self._orderly.by_key else None
        queue: OrderlyQueue[Any] = OrderlyQueue(
            epoch,
            max_reconsume_times=self._orderly.max_reconsume_times,
            suspend_ms=self._orderly.suspend_ms,
            reconsume_counts=self._counts.pop(key, ()),
            stored_count=_stored_count if is_retry else None,
            message_limit=lambda message: _message_limit(message, trusted=is_retry),
            key_of=key_of,
        )
        return OrderlyPartition(
            *key,
            epoch,
            lease=self._leases.get(key),
            queue=queue,
            key_of=key_of,
            now_ms=self._now_ms,
            perform=self._perform,
        )

    def _committable(self) -> list[TopicPartitionKey]:
        return [TopicPartitionKey.of(queue) for queue in self.queues if queue.holds()]

    def _put(self, key: TopicPartitionKey, run: list[Any]) -> None:
        queue = self._queues.get(key)
        if queue is None or key in self._uptake:
            return
        if key in self._fresh:  # it restarted within this fetch, and these records were read before that
            self._client().seek(TopicPartition(*key, self.commits.position(key)))
            return
        first = run[0].offset()
        expected = self.commits.position(key) if queue.is_fresh else queue.next_put
        if first < expected:
            not_before = [message for message in run if message.offset() >= expected]
            if self._is_stale(key, expected, seek=not not_before):
                if not not_before:
                    return
                run, first = not_before, not_before[0].offset()  # keep these: later records must not pass them
        try:
            if queue.is_fresh and first < self.commits.position(key):
                self.commits.adopt(key, first)  # the log is shorter than the commit: created again, or cut
                self._log_cut(key, first)
            queue.put(run)
        except ValueError:
            self._log_cut(key, first)
            del self._queues[key]
            self._pause_until_locked(key)
            self._end(queue, _AfterDrain.RESTART, first)
            self._end_drained()

    def _is_stale(self, key: TopicPartitionKey, expected: int, *, seek: bool) -> bool:
        """Return whether fetched records lie before the requested position although that position exists.

        Args:
            key: the partition.
            expected: the requested position.
            seek: if so, seek to that position again.

        This was seen under load: a late answer to the lookup of a start offset moved a partition that already had a
        position.
        """
        consumer = self._client()
        try:
            bounds = self.lookups.get_watermark_offsets(TopicPartition(*key), timeout=_BOUNDS_S)
            if bounds is None or bounds[1] < expected:
                return False
            if seek:
                consumer.seek(TopicPartition(*key, expected))
        except KafkaException:
            return False
        _LOG.warning("consumer.fetched-before-its-position", extra={"partition": str(key)})
        return True

    def _log_cut(self, key: TopicPartitionKey, first_offset: int) -> None:
        _LOG.warning("consumer.log-cut", extra={"partition": str(key), "first_offset": first_offset})

    def _on_assign(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        if self._log is None:
            super()._on_assign(consumer, partitions)
            return
        keys = [TopicPartitionKey.of(item) for item in partitions]
        try:
            consumer.incremental_assign(paused_assignment(partitions))
            self._pauses.adopt(consumer, keys)
            self._pauses.hold(consumer, keys, PauseReason.LOCK)
        except (KafkaException, RuntimeError) as error:
            self.error = self.error or error
            return
        if not self._closing:
            self._wanted.update(keys)
            self._want()
        self._next_comparison_ms = self._now_ms()
        self.assigned.set()
        _LOG.info("consumer.assigned", extra={"partitions": partition_names(keys)})

    def _depart(
        self, consumer: ConsumerClient, partitions: list[TopicPartition], keys: list[TopicPartitionKey]
    ) -> None:
        self._give_up(keys)
        super()._depart(consumer, partitions, keys)

    def _forget(self, keys: list[TopicPartitionKey]) -> None:
        """Forget partitions after closing or `_depart`; queues of busy listeners keep their lock."""
        if self._closing:
            self._give_up(list(self._wanted))
            if self._log is not None:
                self._take_events(self._log)  # before the loop waits for listeners
        super()._forget(keys)

    def _queue_shown(self, consumer: ConsumerClient, queue: OrderlyPartition, now_ms: int) -> ConsumerQueueState:
        times, failing_ms = queue.failing
        return replace(super()._queue_shown(consumer, queue, now_ms), reconsume_times=times, failing_ms=failing_ms)

    # --- actions of the core -----------------------------------------------------------------------------------------

    def _perform(self, queue: OrderlyPartition, task: OrderlyTask, actions: Iterable[OrderlyAction[Any]]) -> None:
        for action in actions:
            match action:
                case DeadLetterOrderly(message, reconsume_times, _):
                    failure, malformed = task.why(message)
                    outcome = FailedMessage(
                        message,
                        failure or Failure("Suspended", "", self._clock.wall_ms()),
                        asked_level=DEAD_LETTER_LEVEL,
                        malformed=malformed,
                        reconsume_times=reconsume_times,
                    )
                    self._failed(task, outcome)
                case Suspended():
                    self._log_suspended(action, task)
                    self._unreported.add(queue)
                case StatusMisplaced(status):
                    if not self._misplaced:
                        self._misplaced = True
                        _LOG.warning("consumer.status-misplaced", extra={"status": status.name})
                case _:
                    assert_never(action)

    def _log_suspended(self, action: Suspended[Any], task: OrderlyTask) -> None:
        self.orderly_counts.suspended += 1
        times = action.reconsume_times
        failure, _ = task.why(action.message)
        stuck = action.forever and times >= _STUCK_FROM
        if stuck:
            self.orderly_counts.stuck += 1
        if stuck and times & (times - 1) == 0:  # 16, 32, 64 … times
            _LOG.error(
                "consumer.message-stuck",
                extra={
                    "record": coordinates(action.message),
                    "reconsume_times": times,
                    "failure": "" if failure is None else f"{failure.exception_class}: {failure.text}"[:300],
                },
            )


def _key_of(message: Any) -> Any:
    return message.key()


def _stored_count(message: Any) -> int:
    try:
        return MessageView(message, trusted=True).reconsume_times
    except MalformedRecordError:
        return 0


def _message_limit(message: Any, *, trusted: bool) -> int | None:
    try:
        return MessageView(message, trusted).max_reconsume_times
    except MalformedRecordError:
        return None
