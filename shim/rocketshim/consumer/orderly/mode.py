"""Consumption in order: what the poll loop does with partitions of which each is consumed under its lock.

`core.orderly_assignment` has the states of a partition and decides what follows from an event. This module makes the
events and performs the actions. The rules that concern offsets:

* Without a valid lease (`OrderlyPartition.holds`) nothing is handed out and nothing is committed. The listener thread
  checks the lease again before each call.
* The start offset is the committed one, or a later one that the group's log has from an earlier owner's renewal or
  release. `QueueStarted.start_after` decides which of the two counts.
* The start offset is committed with the new token before the partition is read.
* Broadcasting needs no locks: there each assigned partition is granted in the next turn, or when the run before it is
  drained.
* There is no consume timeout: a listener call that hangs blocks its partition (as in RocketMQ).
"""

from collections.abc import Collection, Iterable
from typing import Any, Final, assert_never

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.consumer.dispatch import LoopParts
from rocketshim.consumer.mode import Mode
from rocketshim.consumer.orderly.dispatch import OrderlyDispatch
from rocketshim.consumer.queues import AssignedQueues
from rocketshim.consumer.reader.pauses import PauseReason
from rocketshim.core.lookup_rotation import LookupRotation
from rocketshim.core.orderly_assignment import (
    EndRun,
    OrderlyAssignment,
    PartitionAction,
    PartitionState,
    PauseReading,
    ReleaseLock,
)
from rocketshim.core.orderly_partition import OrderlyPartition, Progress
from rocketshim.core.timer import Timer
from rocketshim.locks.lease import Lease, QueueStarted, QueueStopped, ReconsumeCounts
from rocketshim.locks.log_thread import GroupLogThread
from rocketshim.logs import safe_logger
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.kafka_codes import REBALANCING
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["OrderlyMode"]

_LOG = safe_logger("rocketshim.consumer")
_AWAITING_S: Final = 0.005
_AWAITING_LOCK_S: Final = 0.02  # many members that start at the same time wait for each other
_IDLE_S: Final = 0.1
_SEEK_AGAIN_MS: Final = 100
_REBALANCE_MS: Final = 100
_LOG_STOP_S: Final = 2.0
_REPORT_MS: Final = 1_000
_COMMIT_MS: Final = 500
_NO_LOCK: Final = QueueStarted(Lease(MessageQueue("", queue_id=0), -1, 2**62), None, ())


class OrderlyMode(Mode[OrderlyPartition]):
    """The `Mode` of consumption in order. Only the poll thread uses it."""

    dispatch: OrderlyDispatch

    def __init__(self, parts: LoopParts) -> None:
        self.dispatch = OrderlyDispatch(parts)
        self.queues = AssignedQueues(parts, self.dispatch)
        self.commit_interval_ms = parts.settings.persist_consumer_offset_interval_ms
        if parts.log is not None:  # a crash repeats what was not committed
            self.commit_interval_ms = min(self.commit_interval_ms, _COMMIT_MS)
        self._reader = parts.reader
        self._log = parts.log  # None: no locks (broadcasting)
        self._now_ms = parts.reader.now_ms
        self._assignment: OrderlyAssignment[TopicPartitionKey] = OrderlyAssignment()
        self._ended: dict[TopicPartitionKey, OrderlyPartition] = {}  # runs that have ended and may not be drained
        self._restarts: dict[TopicPartitionKey, int] = {}  # first remaining offsets of partitions whose log was cut
        self._start_from_ms = 0  # while Kafka's group rebalances, nothing can be committed
        self._restart_from_ms = 0
        self._rotation: LookupRotation[TopicPartitionKey] = LookupRotation()
        self._report = Timer(_REPORT_MS)

    @property
    def ended(self) -> Iterable[OrderlyPartition]:
        """Return the queues that are read no longer while a listener still has messages of them."""
        return self._ended.values()

    # --- the loop ----------------------------------------------------------------------------------------------------

    def turn(self, now_ms: int) -> float:
        """Start and end partitions, and report progress."""
        if self._log is not None:
            self._take_events(self._log)
            if self._log.error is not None:
                raise self._log.error
        else:
            for key in self._assignment.waiting:
                self._assignment.grant(key, _NO_LOCK)
        self._start()
        self._end_drained()
        if self._report.is_due(now_ms):
            self._log_uncommitted()
            if self._log is not None:
                self._report_progress(self._log)
        if self._assignment.starting or self._assignment.draining:
            return _AWAITING_S
        if self._assignment.is_changing:
            return _AWAITING_LOCK_S
        due_ms = [at_ms for queue in self.queues if (at_ms := queue.next_wakeup_ms) is not None]
        return _IDLE_S if not due_ms else min(_IDLE_S, max(0, min(due_ms) - now_ms) / 1_000)

    def finish(self) -> bool:
        """Release what is drained; return whether all is."""
        self._end_drained()
        return not self._assignment.draining

    def close(self) -> None:
        """Stop the group-log thread."""
        if (log := self._log) is not None:
            log.stop(_LOG_STOP_S, lambda: self._wind_up(log))

    def _wind_up(self, log: GroupLogThread) -> None:
        """Release locks after the loop has closed: those acquired late, and those whose listeners have now returned."""
        # else their queues would wait for a whole lease (test_a_lock_that_is_won_while_its_loop_closes_is_given_back,
        # test_what_a_listener_says_while_its_loop_closes_is_given_back_with_the_lock)
        self._take_events(log)
        self.dispatch.take_results(self._now_ms())
        self._end_drained()

    def _log_uncommitted(self) -> None:
        """Log, once for each queue, that only a commit lets it be read further, and no call can make one."""
        for queue in self.queues:
            if queue.awaits_commit and self.queues.is_full(queue) and not queue.is_alarmed:
                queue.is_alarmed = True
                facts = {"partition": str(TopicPartitionKey.of(queue)), "messages": queue.msg_count}
                _LOG.error("consumer.commit-missing", extra=facts)

    def _report_progress(self, log: GroupLogThread) -> None:
        """Report changed progress, so that renewals carry it to the next owner."""
        for queue in self.queues:
            progress = queue.progress
            if queue.lease is not None and progress != queue.reported:
                queue.reported = progress
                log.progress(queue.lease, *progress)

    # --- events ------------------------------------------------------------------------------------------------------

    def take_up(self, partitions: list[TopicPartition]) -> None:
        """Have partitions wait, paused, for their locks."""
        self._reader.assign_paused(partitions, PauseReason.LOCK)
        if self._reader.is_closing:
            return
        self._assignment.assign(TopicPartitionKey.of(item) for item in partitions)
        if self._log is not None:
            self._want(self._log)

    def give_up(self, keys: Collection[TopicPartitionKey]) -> None:
        """Release the locks of partitions, now or when they are drained."""
        # Kafka does not release them: a process that it has evicted from the group still owns its locks in the log
        # (test_a_listener_that_outlasts_the_drain_keeps_the_lock_and_not_the_group_waiting), until this is done
        actions = self._assignment.revoke(keys)
        if self._log is not None:
            self._want(self._log)  # before the releases: the log releases only queues that are not wanted
        for key in keys:
            self._reader.ownership.leases.pop(key, None)
            self._restarts.pop(key, None)
        self._perform(actions)
        self._end_drained()
        if self._log is not None and self._reader.is_closing:
            self._take_events(self._log)  # before the loop waits for listeners

    def _want(self, log: GroupLogThread) -> None:
        log.want([MessageQueue(topic, queue_id=number) for topic, number in self._assignment.wanted])

    def _take_events(self, log: GroupLogThread) -> None:
        leases = self._reader.ownership.leases
        while log.events.qsize():
            event = log.events.get()
            key = event.lease.key
            match event:
                case QueueStarted():
                    actions = self._assignment.grant(key, event)
                case QueueStopped(lease):
                    actions = self._assignment.stop(key, lease)
                case _:
                    assert_never(event)
            usable = self._assignment.lease_of(key)
            if usable is None:
                leases.pop(key, None)
            else:
                leases[key] = usable
            self._perform(actions)
        self.dispatch.orderly_counts.lost = self._assignment.lost_count
        self._end_drained()

    def _end_drained(self) -> None:
        """Note which runs are drained; start again those whose log was cut. Never raises: callbacks call it, too."""
        for key in self._assignment.draining:
            run = self._ended.get(key)
            if run is not None and not run.settled:
                continue
            if self._assignment.state_of(key) is PartitionState.RESTARTING:
                self._restart(key)
            else:
                self._perform(self._assignment.drain(key))

    # --- actions -----------------------------------------------------------------------------------------------------

    def _perform(self, actions: Iterable[PartitionAction[TopicPartitionKey]]) -> None:
        for action in actions:
            match action:
                case EndRun(key):
                    run = self.queues.take_out(key)
                    if run is not None:
                        run.withhold()
                        self._ended[key] = run
                case PauseReading(key):
                    self._pause(key)
                case ReleaseLock(key, started):
                    self._release(started, self._ended.pop(key, None))
                case _:
                    assert_never(action)

    def _pause(self, key: TopicPartitionKey) -> None:
        """Pause the partition until it is started again."""
        self._reader.pauses.hold([key], PauseReason.LOCK)
        self.queues.commits.positions.forget(key)
        self._reader.care.forget(key)

    def _release(self, started: QueueStarted, run: OrderlyPartition | None) -> None:
        progress: Progress = (None, started.reconsume_counts)  # the log keeps the position, and whose it is
        if run is not None:
            progress = run.progress
            run.drop()
        if self._log is not None:
            self._log.release(started.lease, *progress)

    # --- starting ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start partitions whose lock we have; one that cannot start (its leader is away) does not delay the others."""
        began_ms = self._now_ms()
        if began_ms < self._start_from_ms:
            return
        waiting = [key for key in self._assignment.starting if self._may_start(key, began_ms)]
        if not waiting:
            return
        keys, timeout_s = self._rotation.pick(waiting, began_ms)
        if not keys:
            return
        error = self._start_keys(keys, timeout_s)
        now_ms = self._now_ms()
        if error is not None and error.code() in REBALANCING and self._reader.assigner is None:
            self._start_from_ms = now_ms + _REBALANCE_MS
            _LOG.debug("consumer.start-unknown", extra={"error": str(error), "partitions": list(map(str, keys))})
            return
        self._rotation.tried(keys, failed=error is not None, began_ms=began_ms, now_ms=now_ms)
        if error is not None:
            _LOG.warning("consumer.start-unknown", extra={"error": str(error), "partitions": list(map(str, keys))})

    def _may_start(self, key: TopicPartitionKey, now_ms: int) -> bool:
        lease = self._assignment.lease_of(key)
        return lease is not None and lease.holds(now_ms)

    def _start_keys(self, keys: list[TopicPartitionKey], timeout_s: float) -> KafkaError | None:
        """Look up and commit start offsets, then read; return the error if that failed, else None.

        A partition whose lock is lost meanwhile is not started.
        """
        try:
            found = self._reader.starts.find(keys, timeout_s)
            now_ms = self._now_ms()
            begins = {key: self._begin_at(key, at) for key, at in found.items() if self._may_start(key, now_ms)}
            offsets = {key: offset for key, (offset, _) in begins.items()}
            self._reader.starts.commit(offsets)
            for key, offset in offsets.items():
                self._reader.seek(key, offset)
        except KafkaException as error:
            refused: KafkaError = error.args[0]
            return refused
        for key, (offset, counts) in begins.items():
            self.dispatch.reconsume_counts[key] = counts
            self._run(key, offset)
            self.dispatch.orderly_counts.starts += self._log is not None
        if offsets:
            _LOG.info("consumer.locked", extra={"partitions": list(map(str, offsets))})
        return None

    def _begin_at(self, key: TopicPartitionKey, found: int) -> tuple[int, ReconsumeCounts]:
        """Return the start offset, the committed one or a later one of the group's log, and the failed attempts."""
        started = self._assignment.started(key)
        if started is None:
            return found, ()
        return started.start_after(found, self._reader.starts.found_tokens.get(key))

    def _restart(self, key: TopicPartitionKey) -> None:
        """Read a partition whose log was cut from its first remaining message on; if that fails, try again later."""
        now_ms, offset = self._now_ms(), self._restarts[key]
        if now_ms < self._restart_from_ms:
            return
        try:
            self._reader.seek(key, offset)
        except KafkaException as error:
            self._restart_from_ms = now_ms + _SEEK_AGAIN_MS
            _LOG.warning("consumer.start-unknown", extra={"error": str(error), "partitions": [str(key)]})
            return
        del self._restarts[key]
        ended = self._ended.pop(key, None)
        if ended is not None:
            ended.drop()
            if self._log is not None and ended.lease is not None:
                self._log.progress(ended.lease, offset, ())
        self._run(key, offset)

    def _run(self, key: TopicPartitionKey, offset: int) -> None:
        self.queues.begin(key, offset)
        self._assignment.start(key)
        self._reader.pauses.release([key], PauseReason.LOCK)

    # --- fetched messages --------------------------------------------------------------------------------------------

    def put(self, key: TopicPartitionKey, run: list[Any]) -> None:
        """Add a fetched run; a log that was cut ends the run, which starts again when it is drained."""
        queue = self.queues.by_key.get(key)
        if queue is None:
            return
        wanted = self._reader.from_position(key, run, max(queue.next_put, self.queues.commits.positions.sent(key)))
        if wanted is None:
            self._restarts[key] = first = run[0].offset()
            _LOG.warning("consumer.log-cut", extra={"partition": str(key), "first_offset": first})
            self._reader.care.end_care(key)
            self._perform(self._assignment.cut(key))
            self._end_drained()
        elif wanted:
            queue.put(wanted)
