"""Consumption in order: what the poll loop does with queues of which each is consumed under its lock.

It differs from concurrent consumption in these points:

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

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final, assert_never

from confluent_kafka import KafkaException, TopicPartition

from rocketshim.consumer.dispatch import Dispatch, Result
from rocketshim.consumer.feed import ListenerFeed
from rocketshim.consumer.housekeeping import Timer
from rocketshim.consumer.orderly.partition import OrderlyPartition, OrderlyTask
from rocketshim.consumer.orderly.queues import OrderlyQueues
from rocketshim.consumer.queues import AssignedQueues
from rocketshim.consumer.reader.partition_reader import PartitionReader
from rocketshim.consumer.reader.pauses import PauseReason
from rocketshim.core.consume_orderly import BatchAnswer
from rocketshim.core.lease import Lease, ReconsumeCounts
from rocketshim.core.queue_lock_actions import QueueStarted, QueueStopped, StopReason
from rocketshim.core.retry_rotation import RetryRotation
from rocketshim.group.log_thread import GroupLogThread
from rocketshim.kafka.clients import ConsumerClient
from rocketshim.kafka.partitions import partition_names
from rocketshim.logs import safe_logger
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["OrderlyDispatch", "OrderlyMode"]

_LOG = safe_logger("rocketshim.consumer")
_AWAITING_S: Final = 0.005
_IDLE_S: Final = 0.1
_SEEK_AGAIN_MS: Final = 100
_BOUNDS_S: Final = 2.0
_LOG_STOP_S: Final = 2.0
_REPORT_MS: Final = 1_000  # a report reads all failed attempts of a queue, so it is not sent for each failure


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
                self.pool.submit(task)

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


class OrderlyMode:
    """The `Mode` of consumption in order.

    Args:
        reader, queues, feed: the parts of the loop.
        made: makes the queues.
        log: the thread of the group's log; None: no locks (broadcasting).
        commit_interval_ms: time between two reports of progress to the group's log, in ms.
        now_ms: returns monotonic time in ms.

    Thread-safety: none; the poll thread's.
    """

    def __init__(
        self,
        reader: PartitionReader,
        queues: AssignedQueues[OrderlyPartition],
        feed: ListenerFeed[OrderlyPartition],
        made: OrderlyQueues,
        *,
        log: GroupLogThread | None,
        commit_interval_ms: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._reader = reader
        self._queues = queues
        self._feed = feed
        self._made = made
        self._log = log
        self._now_ms = now_ms
        self._leases = reader.ownership.leases
        self._wanted: set[TopicPartitionKey] = set()
        self._starting: dict[TopicPartitionKey, QueueStarted] = {}
        self._rotation: RetryRotation[TopicPartitionKey] = RetryRotation()
        self._ending: list[_Ending] = []
        self._progress = Timer(commit_interval_ms)
        self._next_report_ms = 0

    # --- the loop ----------------------------------------------------------------------------------------------------

    def turn(self, now_ms: int) -> float:
        """See `Mode`: start and end queues, and report progress."""
        if self._log is not None:
            self._take_events(self._log)
            if self._log.error is not None:
                raise self._log.error
        if self._starting:
            self._start(self._reader.client())
        self._end_drained()
        self._report_progress(now_ms)
        if self._starting or self._ending or len(self._queues) < len(self._wanted):
            return _AWAITING_S
        due_ms = [at_ms for queue in self._queues if (at_ms := queue.next_wakeup_ms) is not None]
        return _IDLE_S if not due_ms else min(_IDLE_S, max(0, min(due_ms) - now_ms) / 1_000)

    def finish(self) -> bool:
        """See `Mode`: conclude the queues that are drained."""
        self._end_drained()
        return not self._ending

    def close(self) -> None:
        """See `Mode`: stop the group-log thread."""
        log = self._log
        if log is not None:
            log.stop(_LOG_STOP_S, lambda: self._wind_up(log))

    def _wind_up(self, log: GroupLogThread) -> None:
        """Release locks after the loop has closed: those acquired late, and those whose listeners have now returned."""
        self._take_events(log)
        self._feed.dispatch.take_results(self._now_ms())
        self._end_drained()

    def _report_progress(self, now_ms: int) -> None:
        """Report changed progress to the group's log: of all queues at an interval, of failing queues sooner."""
        unreported = self._made.unreported
        of_all = self._progress.is_due(now_ms)
        if of_all or (unreported and now_ms >= self._next_report_ms):
            for queue in self._queues if of_all else unreported:
                progress = queue.progress
                if self._log is None or queue.lease is None or queue.dropped or progress == queue.reported:
                    continue
                queue.reported = progress
                self._log.progress(queue.lease, *progress)
            unreported.clear()
            self._next_report_ms = now_ms + _REPORT_MS

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
        self._made.counts.lost += 1
        del self._leases[key]
        if ending is not None:
            return
        running = self._queues.take_out(key)
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
        consumer, pauses = self._reader.client(), self._reader.pauses
        pauses.hold(consumer, [key], PauseReason.LOCK)
        pauses.release(consumer, [key], PauseReason.FLOW)
        self._queues.commits.forget(key)

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
            found, _ = self._reader.starts.find(consumer, [TopicPartition(*key) for key in keys], timeout_s)
            offsets = {TopicPartitionKey.of(item): self._begin_at(item) for item in found}
            now_ms = self._now_ms()
            offsets = {key: offset for key, offset in offsets.items() if self._leases[key].holds(now_ms)}
            metadata = self._reader.starts.metadata
            commits = [TopicPartition(*key, offset, metadata=metadata(key)) for key, offset in offsets.items()]
            answers = consumer.commit(offsets=commits, asynchronous=False) if commits else []
            refused = [str(answer.error) for answer in answers if answer.error is not None]
            if refused:
                return str(refused)
            for key, offset in offsets.items():
                self._reader.seek(key, offset)
        except KafkaException as error:
            return str(error)
        for key, offset in offsets.items():
            self._made.reconsume_counts[key] = self._starting.pop(key).reconsume_counts
            self._queues.begin(key, offset)
            self._made.counts.starts += 1
        self._reader.pauses.release(consumer, offsets, PauseReason.LOCK)
        if offsets:
            _LOG.info("consumer.locked", extra={"partitions": partition_names(offsets)})
        return None

    def _begin_at(self, found: TopicPartition) -> int:
        """Return the start offset: the committed one, or a later one that the group's log knows."""
        key = TopicPartitionKey.of(found)
        known = self._starting[key].next_offset
        if known is None or self._reader.starts.found_tokens.get(key) is None:
            return found.offset
        return max(found.offset, known)

    def _want(self) -> None:
        if self._log is not None:
            self._log.want([MessageQueue(topic, queue_id=number) for topic, number in self._wanted])

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
        try:
            self._reader.seek(key, ending.offset)
        except KafkaException as error:
            ending.at_ms = now_ms + _SEEK_AGAIN_MS
            _LOG.warning("consumer.start-unknown", extra={"error": str(error), "partitions": partition_names([key])})
            return False
        self._queues.begin(key, ending.offset)
        self._reader.pauses.release(self._reader.client(), [key], PauseReason.LOCK)
        return True

    def _release(self, lease: Lease, next_offset: int | None, counts: ReconsumeCounts) -> None:
        if self._log is not None:
            self._log.release(lease, next_offset, counts)

    def give_up(self, keys: Collection[TopicPartitionKey]) -> None:
        """See `Mode`: release the locks of partitions, now or when they are drained."""
        if self._log is None:
            return
        self._wanted.difference_update(keys)
        self._want()
        cut = {
            TopicPartitionKey.of(ending.queue): ending for ending in self._ending if ending.then is _AfterDrain.RESTART
        }
        for key in keys:
            lease = self._leases.pop(key, None)
            running = self._queues.take_out(key)
            unstarted = self._starting.pop(key, None)
            self._made.reconsume_counts.pop(key, None)
            if key in cut:
                cut[key].then = _AfterDrain.RELEASE
                lease = None
            if running is not None:
                self._end(running, _AfterDrain.RELEASE)
            elif lease is not None:
                known = (None, ()) if unstarted is None else (unstarted.next_offset, unstarted.reconsume_counts)
                self._release(lease, *known)
        self._end_drained()
        if self._reader.is_closing:
            self._take_events(self._log)  # before the loop waits for listeners

    # --- partitions --------------------------------------------------------------------------------------------------

    def take_up(self, partitions: list[TopicPartition]) -> None:
        """See `Mode`: a partition waits, paused, for its lock."""
        if self._log is None:
            self._reader.start(partitions)
            return
        self._reader.assign_paused(partitions, PauseReason.LOCK)
        if not self._reader.is_closing:
            self._wanted.update(TopicPartitionKey.of(item) for item in partitions)
            self._want()

    def put(self, key: TopicPartitionKey, run: list[Any]) -> None:
        """See `Mode`: a log that was cut ends the queue, which restarts when it is drained."""
        queue = self._queues.by_key.get(key)
        if queue is None:
            return
        commits = self._queues.commits
        first = run[0].offset()
        expected = commits.position(key) if queue.is_fresh else queue.next_put
        if first < expected:
            not_before = [message for message in run if message.offset() >= expected]
            if self._is_stale(key, expected, seek=not not_before):
                if not not_before:
                    return
                run, first = not_before, not_before[0].offset()  # keep these: later records must not pass them
        try:
            if queue.is_fresh and first < commits.position(key):
                commits.adopt(key, first)  # the log is shorter than the commit: created again, or cut
                self._log_cut(key, first)
            queue.put(run)
        except ValueError:
            self._log_cut(key, first)
            self._queues.take_out(key)
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
        try:
            bounds = self._reader.lookups.get_watermark_offsets(TopicPartition(*key), timeout=_BOUNDS_S)
            if bounds is None or bounds[1] < expected:
                return False
            if seek:
                self._reader.client().seek(TopicPartition(*key, expected))
        except KafkaException:
            return False
        _LOG.warning("consumer.fetched-before-its-position", extra={"partition": str(key)})
        return True

    def _log_cut(self, key: TopicPartitionKey, first_offset: int) -> None:
        _LOG.warning("consumer.log-cut", extra={"partition": str(key), "first_offset": first_offset})
