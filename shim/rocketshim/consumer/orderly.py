"""Consumption in order: what the poll loop does with partitions of which each is consumed under its lock.

A partition that is assigned is paused until the log grants the lease of its queue. Then its start offset is looked up
and committed, and it is read. Kafka's group and the group's log change independently of each other, and listeners may
be slow. So a lease is first *in use* (`Ownership.leases`), then *draining*, then released, exactly once:

* It drains when the partition is revoked, or when the lease was stopped. The run of the partition ends: no further call
  begins, and nothing is committed.
* It is released when the run is drained: its listeners have returned, and its dead letters are stored. So a listener
  that takes longer than a rebalance keeps the lock. No other member starts the queue before the listener has returned
  or the lease has expired. Until then this member does not start it again, either, even if it is assigned again: the
  group-log thread claims a queue only after its release.
* When the log of a partition was cut, the run ends, too. When it is drained, the partition starts again at the first
  message that remains, under the same lease.

The rules that concern offsets:

* Without a valid lease (`Lease.holds`) nothing is handed out and nothing is committed. The listener thread asks the
  lease again before each call.
* The start offset is the committed one, or a later one that the group's log has from an earlier owner's renewal or
  release. `Lease.start_after` decides which of the two counts.
* The start offset is committed with the new token before the partition is read.
* Broadcasting needs no locks: there each assigned partition is started in the next turn, or when the run before it is
  drained.
* A person's command for a message (`locks.holder.Commanded`) is obeyed only under the lease that it came with. Its
  effect is that of an attempt that comes early, or of a failure at the limit: nothing is passed before it is stored.
* There is no consume timeout: a listener call that hangs blocks its partition (as in RocketMQ).

Listener threads run the runs that are handed out: `OrderlyRunner` calls the listener for the messages of one, in order,
up to the first answer that stops.

* With order by key and one message per call, a failure does not end the run. The run continues with the messages of
  other keys, and the messages of the failed key stay for a later run. Otherwise every failure would cost a hand-over
  between two threads, which would take all the time of a queue with many failing keys.
* Before each call the runner checks the lease, whether the queue is withheld, and the run's time slice. If one of them
  does not allow the call, the run ends, and the messages not reached go back. The lock costs one read of the monotonic
  clock per call, and nothing else.
* A run ends after at most 100 ms plus the current call, so that commits, renewals and rebalances see progress.
* The filter is evaluated first, for the whole run: messages that it skips are finished in any case. A message that the
  filter cannot read fails when its turn comes.
* Every exception is SUSPEND (`RetryLater` sets the wait, `DeadLetter` requests the dead-letter topic), also
  `SystemExit` and similar ones, as RocketMQ catches every Throwable.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from itertools import islice
from queue import SimpleQueue
from typing import Any, Final, assert_never

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.consumer.dispatch import Dispatch, Pool, Result
from rocketshim.consumer.listeners import Runner, WithoutContext, wants
from rocketshim.consumer.mode import Mode
from rocketshim.consumer.reader.partition_reader import PartitionReader
from rocketshim.consumer.send_back import SendBack
from rocketshim.core.clock import Clock, Interval
from rocketshim.core.listener_answers import (
    DEAD_LETTER_LEVEL,
    NOT_ASKED,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    ConsumeReturnType,
    ConsumeStatus,
    Rules,
    orderly_status,
)
from rocketshim.core.next_hop import FailedMessage
from rocketshim.core.orderly_queue import (
    BatchAnswer,
    OrderlyAction,
    OrderlyQueue,
    OrderlyTask,
    Progress,
    Suspended,
    ToDeadLetters,
)
from rocketshim.core.partition import FlowLimits, PauseReason
from rocketshim.core.start_position import LookupRotation
from rocketshim.core.subscriptions import Subscription
from rocketshim.core.user_values import as_int, attribute, safe_text
from rocketshim.locks.holder import Commanded
from rocketshim.locks.lease import NO_LOCK, NO_TROUBLE, Lease, ReconsumeCounts
from rocketshim.locks.log_thread import GroupLogThread
from rocketshim.logs import safe_logger
from rocketshim.settings.consumer import PushConsumerSettings
from rocketshim_topics import Failure, MalformedRecordError, MessageView, TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.group_log import CommandRecord, QueueCommand
from rocketshim_topics.kafka_codes import REBALANCING
from rocketshim_topics.message import FirstView
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.wire import Record, coordinates, read_again, read_headers

__all__ = ["OrderlyDispatch", "OrderlyMode", "OrderlyRunner"]

_LOG = safe_logger("rocketshim.consumer")
_AWAITING_S: Final = 0.005
_AWAITING_LOCK_S: Final = 0.02  # many members that start at the same time wait for each other
_IDLE_S: Final = 0.1
_SEEK_AGAIN_MS: Final = 100
_REBALANCE_MS: Final = 100
_LOG_STOP_S: Final = 2.0
_REPORT_MS: Final = 1_000
_COMMIT_MS: Final = 500
_STUCK_FROM: Final = 16
_NEEDS_NO_AUTO_COMMIT: Final = (ConsumeOrderlyStatus.COMMIT, ConsumeOrderlyStatus.ROLLBACK)
_SLICE_NS: Final = 100_000_000
_NS: Final = 1_000_000
_SUSPEND: Final = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


class OrderlyDispatch(Dispatch[OrderlyQueue]):
    """Makes orderly queues, hands out one run of each at a time, and performs what `OrderlyQueue` decides."""

    def __init__(
        self, pool: Pool, send_back: SendBack, settings: PushConsumerSettings, clock: Clock, reader: PartitionReader
    ) -> None:
        super().__init__(pool, send_back, settings, clock, reader)
        self.reconsume_counts: dict[TopicPartitionKey, ReconsumeCounts] = {}  # of the log, until a queue is made
        self._settings = settings
        self._retry_topic = TopicNames(settings.namespace).retry(settings.group)
        self._leases = reader.ownership.leases
        self._misplaced = False

    def make_queue(self, key: TopicPartitionKey, epoch: int) -> OrderlyQueue:
        """Make the queue of a partition in an epoch.

        Decides: What does the next owner of a queue know of failed attempts? What renewals and the release carried into
            the group's log; it comes with the grant.
        """
        is_retry = key.topic == self._retry_topic
        return OrderlyQueue(
            key,
            epoch,
            max_reconsume_times=self._settings.max_reconsume_times,
            suspend_ms=self._settings.suspend_current_queue_time_ms,
            reconsume_counts=self._counts_of(key),
            stored_count=_stored_count if is_retry else None,
            message_limit=lambda message: _message_limit(message, trusted=is_retry),
            key_of=_key_of if self._settings.order == "key" else None,
        )

    def _counts_of(self, key: TopicPartitionKey) -> Iterable[tuple[int, int]]:
        """Return the failed attempts of a partition's messages, including processes that died too often at one.

        Both may count the same deaths, because renewals carry the sum: so the larger one counts.
        """
        counts = dict(self.reconsume_counts.pop(key, ()))
        for offset, times in self.care.at_limit(key).items():
            counts[offset] = max(counts.get(offset, 0), times - 1)
        return sorted(counts.items())

    def obey(self, queue: OrderlyQueue, command: CommandRecord) -> None:
        """Do what a person wants done with a message of a queue that this process owns now, and log it."""
        is_done = (
            queue.give_up(command.offset, command.by)
            if command.do is QueueCommand.DEAD_LETTER
            else queue.try_now(command.offset)
        )
        facts = {"record": f"{queue.key}/{command.offset}", "do": command.do.value, "by": command.by}
        _LOG.info(
            "consumer.commanded", extra=facts | {"effect": "accepted" if is_done else "nothing: it does not wait"}
        )

    def _take_few(self, queue: OrderlyQueue, limit: int) -> OrderlyTask | None:
        for given_up, dead_letter, by in queue.take_given_up():
            why = "it failed under the queue's last owner"
            failure = given_up.failure or Failure("Suspended", why, self._wall_ms())
            given_up.failure = replace(failure, text=f"[given up by {by}] {failure.text}", unhandled=False)
            self._perform(given_up, [dead_letter])
        task = queue.take(limit, self._now_ms())
        if task is not None:
            task.lease = self._leases[queue.key]
        return task

    def _is_withheld(self, task: OrderlyTask) -> bool:
        if not task.withheld:
            return False
        self.in_flight -= len(task.messages)
        task.queue.report((), self._now_ms())
        return True

    def _fail(self, task: OrderlyTask, failure: Failure, times: int) -> None:
        del times  # the queue has counted them
        task.failure = failure
        self.in_flight -= len(task.messages)
        self.counts.add_failed(ConsumeReturnType.FAILED)
        answer = BatchAnswer(1, ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, skipped=True)
        self._perform(task, task.queue.report([answer], self._now_ms()))

    def _hand_out(self, queues: Iterable[OrderlyQueue]) -> None:
        for queue in queues:
            task = self._take_few(queue, max(queue.run_limit, self._batch_count))
            if task is not None:
                self.in_flight += len(task.messages)
                self.pool.submit(task)

    def _take(self, result: Result) -> None:
        task, answers = result.chunk, result.outcomes or []
        self.in_flight -= len(task.messages)
        if result.died is not None:
            self.died = self.died or result.died
            return
        stopped = sum(answer.msg_count for answer in answers if answer.stops)
        self.counts.add_failed(ConsumeReturnType.FAILED, stopped)
        self.counts.succeeded += sum(answer.msg_count for answer in answers) - stopped
        self._add_call(result.elapsed_ns, task.messages)
        self._log_misplaced(answers)
        self._perform(task, task.queue.report(answers, self._now_ms()))

    def _stored(self, task: OrderlyTask, messages: Iterable[Any]) -> None:
        for message in messages:
            self._perform(task, task.queue.dead_lettered(message.offset(), self._now_ms()))

    def _perform(self, task: OrderlyTask, actions: Iterable[OrderlyAction]) -> None:
        for action in actions:
            match action:
                case ToDeadLetters(message, reconsume_times):
                    failure, malformed = task.why(message)
                    outcome = FailedMessage(
                        message,
                        failure or Failure("Suspended", "", self._wall_ms()),
                        asked_level=DEAD_LETTER_LEVEL,
                        malformed=malformed,
                        reconsume_times=reconsume_times,
                    )
                    self.send_back.send(task, outcome)
                case Suspended():
                    self._log_suspended(action, task)
                case _:
                    assert_never(action)

    def _log_misplaced(self, answers: Iterable[BatchAnswer]) -> None:
        """Log, once, that COMMIT or ROLLBACK under auto-commit was taken for SUCCESS."""
        if not self._misplaced:
            misplaced = (each.status for each in answers if each.auto_commit and each.status in _NEEDS_NO_AUTO_COMMIT)
            if (status := next(misplaced, None)) is not None:
                self._misplaced = True
                _LOG.warning("consumer.status-misplaced", extra={"status": status.name})

    def _log_suspended(self, action: Suspended, task: OrderlyTask) -> None:
        """Log a failed attempt, and that a message holds up its queue.

        Decides: How is a message noticed that holds up its orderly queue? An error in the log at 16, 32, 64 … attempts;
            metrics failing_reconsume_times and failing_seconds (`consumer_metrics.ConsumerState`).
        """
        self.orderly_counts.suspended += 1
        times = action.reconsume_times
        failure, _ = task.why(action.message)
        if failure is not None:
            task.queue.note_failure(action.message, failure)
            self.send_back.suspended(action.message, failure, times, max(0, action.until_ms - self._now_ms()))
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


class OrderlyMode(Mode[OrderlyQueue]):
    """The `Mode` of consumption in order. Only the poll thread uses it."""

    dispatch: OrderlyDispatch

    def __init__(
        self,
        reader: PartitionReader,
        dispatch: OrderlyDispatch,
        settings: PushConsumerSettings,
        limits: FlowLimits,
        log: GroupLogThread | None = None,
    ) -> None:
        super().__init__(reader, dispatch, settings, limits)
        if log is not None:  # a crash repeats what was not committed
            self._commit_interval = Interval(min(settings.persist_consumer_offset_interval_ms, _COMMIT_MS))
        self._log = log  # None: no locks (broadcasting)
        self._now_ms = reader.now_ms
        self._assigned: set[TopicPartitionKey] = set()
        self._leases = reader.ownership.leases  # in use: the partition is started, or can be
        self._owns = reader.ownership.owns
        self._draining: dict[TopicPartitionKey, Lease] = {}  # used no longer, and not released yet
        self._ended: dict[TopicPartitionKey, OrderlyQueue] = {}  # runs that have ended and may not be drained
        self._restarts: dict[TopicPartitionKey, int] = {}  # first remaining offsets of partitions whose log was cut
        self._start_from_ms = 0  # while Kafka's group rebalances, nothing can be committed
        self._restart_from_ms = 0
        self._rotation: LookupRotation[TopicPartitionKey] = LookupRotation()
        self._report = Interval(_REPORT_MS)
        self._alarmed: set[int] = set()  # epochs whose missing commit was logged

    @property
    def ended(self) -> Iterable[OrderlyQueue]:
        """Return the queues that are read no longer while a listener still has messages of them."""
        return self._ended.values()

    # --- the loop ----------------------------------------------------------------------------------------------------

    def turn(self, now_ms: int) -> float:
        """Start and end partitions, and report progress."""
        if self._log is not None:
            self._take_leases(self._log)
            self._obey(self._log.commanded)
            if self._log.error is not None:
                raise self._log.error
        elif len(self._leases) < len(self._assigned):
            self._leases.update(dict.fromkeys(self._assigned - self._draining.keys(), NO_LOCK))
        self._start()
        self._end_drained()
        if self._report.is_due(now_ms):
            self._log_uncommitted()
            if self._log is not None:
                self._report_progress(self._log)
        queues = self.queues
        if self._draining or len(self._leases) > len(queues):
            return _AWAITING_S
        if len(self._assigned) > len(queues):
            return _AWAITING_LOCK_S
        due_ms = [at_ms for queue in queues if (at_ms := queue.next_wakeup_ms) is not None]
        return _IDLE_S if not due_ms else min(_IDLE_S, max(0, min(due_ms) - now_ms) / 1_000)

    def open(self) -> None:
        """Start the group-log thread."""
        if self._log is not None:
            self._log.start()

    def finish(self) -> bool:
        """Release what is drained; return whether all is."""
        self._end_drained()
        return not self._draining and not self._restarts

    def close(self) -> None:
        """Stop the group-log thread."""
        if (log := self._log) is not None:
            log.stop(_LOG_STOP_S, lambda: self._release_late(log))

    def _release_late(self, log: GroupLogThread) -> None:
        """Release locks after the loop has closed: those acquired late, and those whose listeners have now returned."""
        # else their queues would wait for a whole lease (test_a_lock_that_is_won_while_its_loop_closes_is_given_back,
        # test_what_a_listener_says_while_its_loop_closes_is_given_back_with_the_lock)
        self._take_leases(log)
        self.dispatch.take_results(self._now_ms())
        self._end_drained()

    def _log_uncommitted(self) -> None:
        """Log, once for each queue, that only a commit lets it be read further, and no call can make one."""
        for queue in self.queues:
            if queue.awaits_commit and self.is_full(queue) and queue.epoch not in self._alarmed:
                self._alarmed.add(queue.epoch)
                facts = {"partition": str(queue.key), "messages": queue.msg_count}
                _LOG.error("consumer.commit-missing", extra=facts)

    def _report_progress(self, log: GroupLogThread) -> None:
        """Report changed progress, so that renewals carry it to the next owner; also of runs that drain."""
        reporting = [(queue, self._leases[queue.key]) for queue in self.queues]
        reporting += [(run, self._draining[key]) for key, run in self._ended.items() if key in self._draining]
        for queue, lease in reporting:
            progress = queue.progress(self._now_ms())
            if progress != queue.reported:
                queue.reported = progress
                log.progress(lease, *progress)

    # --- events ------------------------------------------------------------------------------------------------------

    def accept(self, partitions: list[TopicPartition]) -> None:
        """Have partitions wait, paused, for their locks."""
        self.reader.assign_paused(partitions, PauseReason.LOCK)
        if self.reader.is_closing:
            return
        self._assigned.update(map(TopicPartitionKey.of, partitions))
        if self._log is not None:
            self._want(self._log)

    def forget(self, keys: Collection[TopicPartitionKey]) -> None:
        """Release the locks of partitions that are no longer assigned, now or when they are drained."""
        # Kafka does not release them: a process that it has evicted from the group still owns its locks in the log
        # (test_a_listener_that_outlasts_the_drain_keeps_the_lock_and_not_the_group_waiting), until this is done
        self._assigned.difference_update(keys)
        if self._log is not None:
            self._want(self._log)  # before the releases: the log releases only queues that are not wanted
        for key in keys:
            self._stop_using(key)
        self._end_drained()
        if self._log is not None and self.reader.is_closing:
            self._take_leases(self._log)  # before the loop waits for listeners
        super().forget(keys)

    def _want(self, log: GroupLogThread) -> None:
        log.want([MessageQueue(topic, queue_id=number) for topic, number in self._assigned])

    def _take_leases(self, log: GroupLogThread) -> None:
        while log.leases.qsize():
            lease = log.leases.get()
            key = lease.key
            if self._leases.get(key) is lease:
                self.dispatch.orderly_counts.lost += 1
                self._stop_using(key)
            elif lease.stopped is None and key in self._assigned:
                self._leases[key] = lease
            elif not lease.is_released:  # it comes too late, or leaves already
                self._draining[key] = lease
        self._end_drained()

    def _obey(self, commanded: SimpleQueue[Commanded]) -> None:
        while commanded.qsize():
            command = commanded.get()
            key = command.lease.key
            queue = self.get(key)
            if queue is not None and self._leases.get(key) is command.lease and self._owns(key):
                self.dispatch.obey(queue, command.record)

    def _stop_using(self, key: TopicPartitionKey) -> None:
        """Use the lease of a partition no longer, if it has one."""
        lease = self._leases.pop(key, None)
        if lease is not None:
            self._restarts.pop(key, None)
            self._draining[key] = lease
            self._end_run(key)
            self.reader.care.forget(key)  # not where a log was cut: this process lives, and goes on with the partition

    def _end_run(self, key: TopicPartitionKey) -> None:
        """Start no further message of a partition's run, and keep the run until it is drained."""
        run = self._detach(key)
        if run is None:
            return
        self._share_limits()
        run.withhold()
        self._ended[key] = run
        if key in self._assigned:
            self.reader.pause([key], PauseReason.LOCK)
            self.reader.partitions[key].begin(-1)

    def _end_drained(self) -> None:
        """Release the leases of drained runs; start again those whose log was cut. Never raises: callbacks call it."""
        for key in [key for key in (*self._draining, *self._restarts) if self._is_drained(key)]:
            if key in self._restarts:
                self._restart(key)
            else:
                self._release(self._draining.pop(key), self._ended.pop(key, None))

    def _is_drained(self, key: TopicPartitionKey) -> bool:
        run = self._ended.get(key)
        return run is None or run.is_drained

    def _release(self, lease: Lease, run: OrderlyQueue | None) -> None:
        progress: Progress = (None, lease.reconsume_counts, NO_TROUBLE)  # the log keeps the position, and whose it is
        if run is not None:
            progress = run.progress(self._now_ms())
            run.drop()
        if self._log is not None:
            self._log.release(lease, *progress)

    # --- starting ----------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        """Start partitions whose lock we have; one that cannot start (its leader is away) does not delay the others."""
        began_ms = self._now_ms()
        if began_ms < self._start_from_ms:
            return
        if len(self._leases) == len(self.queues):
            return
        stopped = {key for key in self._leases if self.get(key) is None} - self._restarts.keys()
        waiting = sorted(filter(self._owns, stopped))
        keys, timeout_s = self._rotation.pick(waiting, began_ms)
        if not keys:
            return
        error = self._start_keys(keys, timeout_s)
        now_ms = self._now_ms()
        if error is not None and error.code() in REBALANCING and self.reader.assigner is None:
            self._start_from_ms = now_ms + _REBALANCE_MS
            _LOG.debug("consumer.start-unknown", extra={"error": str(error), "partitions": list(map(str, keys))})
            return
        self._rotation.tried(keys, failed=error is not None, began_ms=began_ms, now_ms=now_ms)
        if error is not None:
            _LOG.warning("consumer.start-unknown", extra={"error": str(error), "partitions": list(map(str, keys))})

    def _start_keys(self, keys: list[TopicPartitionKey], timeout_s: float) -> KafkaError | None:
        """Look up and commit start offsets, then read; return the error if that failed, else None.

        A partition whose lock is lost meanwhile is not started.
        """
        try:
            found = self.reader.starts.find(keys, timeout_s)
            begins = {key: self._begin_at(key, found[key]) for key in filter(self._owns, found)}
            offsets = {key: offset for key, (offset, _) in begins.items()}
            self.reader.starts.commit(offsets)
            for key, offset in offsets.items():
                self.reader.seek(key, offset)
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
        return self._leases[key].start_after(found, self.reader.starts.found_tokens.get(key))

    def _restart(self, key: TopicPartitionKey) -> None:
        """Read a partition whose log was cut from its first remaining message on; if that fails, try again later."""
        now_ms, offset = self._now_ms(), self._restarts[key]
        if now_ms < self._restart_from_ms:
            return
        try:
            self.reader.seek(key, offset)
        except KafkaException as error:
            self._restart_from_ms = now_ms + _SEEK_AGAIN_MS
            _LOG.warning("consumer.start-unknown", extra={"error": str(error), "partitions": [str(key)]})
            return
        del self._restarts[key]
        ended = self._ended.pop(key, None)
        if ended is not None:
            ended.drop()
            if self._log is not None:
                self._log.progress(self._leases[key], offset, ())
        self._run(key, offset)

    def _run(self, key: TopicPartitionKey, offset: int) -> None:
        self.begin(key, offset)
        self.reader.unpause([key], PauseReason.LOCK)

    def _begin_again(self, key: TopicPartitionKey, run: list[Any]) -> None:
        self._restarts[key] = run[0].offset()
        self._end_run(key)  # it starts again when it is drained
        self._end_drained()


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


class TriedMessageView(MessageView):
    """A message that has failed before and stayed in its queue: the queue, not the record, has its failure count."""

    __slots__ = ("_times",)

    def __init__(self, record: Record, trusted: bool, times: int) -> None:
        super().__init__(record, trusted)
        self._times = times

    @property
    def reconsume_times(self) -> int:
        """The number of failed attempts so far."""
        return self._times

    def __reduce__(self) -> tuple[Any, ...]:
        return TriedMessageView, (self._record, self._trusted, self._times), super().__reduce__()[2]


class OrderlyRunner(Runner):
    """Runs tasks through their listeners."""

    __slots__ = ()

    def run(self, task: OrderlyTask) -> list[BatchAnswer]:
        """Call the listener for the messages of a run, in order; return the answers, which cover its beginning."""
        task.began_ms = self._clock.monotonic_ns() // _NS
        topic = task.queue.key.topic
        if topic == self._retry_topic:
            return self._in_batches(
                task, ([message] for message in task.messages), lambda one: self._retried(task, *one)
            )
        subscription = self._subscription_of(topic)
        if subscription is None:
            task.failure = self._no_listener(topic)
            return [_unheard(dead_letter=True)]
        skipped, end = self._ask_filter(task, subscription)
        answers = [BatchAnswer(skipped, skipped=True)] if skipped else []
        if skipped == end < len(task.messages):  # the filter cannot read the next one
            return [*answers, _unheard(dead_letter=task.malformed is not None)]
        task.failure = task.malformed = None
        if self._batch_count == 1:
            self._one_by_one(task, subscription, skipped, end, answers)
            return answers
        return answers + self._in_batches(
            task,
            task.batches(skipped, end, self._batch_count),
            lambda batch: self._call(task, subscription, [self._view(each, task) for each in batch], batch),
        )

    # --- calls -------------------------------------------------------------------------------------------------------

    def _one_by_one(
        self, task: OrderlyTask, subscription: Subscription, begin: int, end: int, answers: list[BatchAnswer]
    ) -> None:
        listener: Any = subscription.listener
        alone = listener.function if type(listener) is WithoutContext else None
        now_ns, counts, success = self._clock.monotonic_ns, task.counts, ConsumeOrderlyStatus.SUCCESS
        lease = task.lease
        until_ms = lease.until_ms  # renewals only increase it; otherwise the lease has ended
        stop_ns = min(now_ns() + _SLICE_NS, until_ms * _NS)
        context = self._context(task)
        done = 0
        stopped = task.stopped
        for message in islice(task.messages, begin, end):
            if now_ns() >= stop_ns or lease.until_ms < until_ms or task.withheld:  # `_may_begin`, written out
                break
            if stopped and task.skips(message):
                continue
            times = counts.get(message.offset()) if counts else None
            view: MessageView
            if times is None:
                view = FirstView()  # in C; the assignment below does the work of its constructor
                view._record = message  # noqa: SLF001
            else:
                view = TriedMessageView(message, False, times)  # noqa: FBT003
            task.called = message
            try:
                status = listener(view, context) if alone is None else alone(view)
                if (status is None or status is success) and (
                    alone is not None or (context.auto_commit is True and context.suspend_current_queue_time_ms == -1)
                ):
                    done += 1  # the usual case
                    continue
                answer = self._answered(task, status, context, [message])
            except BaseException as error:  # noqa: BLE001 - user code: its message failed, whatever it raised
                answer = self._raised(task, error, context, [message], subscription.rules)
            if done:
                answers.append(BatchAnswer(done))
                done = 0
            answers.append(answer)
            if answer.stops and not task.continues_after(message, answer):
                break
            context = self._context(task)
        if done:
            answers.append(BatchAnswer(done))
        task.put_skipped_behind(answers)

    def _in_batches(
        self, task: OrderlyTask, batches: Iterable[list[Any]], answer_to: Callable[[list[Any]], BatchAnswer]
    ) -> list[BatchAnswer]:
        """Answer batch by batch, up to the first answer that stops, while calls may begin."""
        answers: list[BatchAnswer] = []
        slice_end_ns = self._clock.monotonic_ns() + _SLICE_NS
        for batch in batches:
            if not self._may_begin(task, slice_end_ns):
                break
            task.called = batch[0]
            answers.append(answer_to(batch))
            if answers[-1].stops:
                break
        return answers

    def _retried(self, task: OrderlyTask, message: Any) -> BatchAnswer:
        """Handle a message of the retry topic; it goes to the listener of its original topic."""
        view = self._view(message, task, trusted=True)
        found = self._route(view)
        if not isinstance(found, Subscription):
            task.failure, task.malformed = found
            return _unheard(dead_letter=True)
        if not wants(found, view):
            return BatchAnswer(1, skipped=True)
        return self._call(task, found, view if self._batch_count == 1 else [view], [message])

    def _call(self, task: OrderlyTask, subscription: Subscription, views: Any, messages: list[Any]) -> BatchAnswer:
        context = self._context(task)
        try:
            return self._answered(task, subscription.listener(views, context), context, messages)
        except BaseException as error:  # noqa: BLE001 - user code: its messages failed, whatever it raised
            return self._raised(task, error, context, messages, subscription.rules)

    def _may_begin(self, task: OrderlyTask, slice_end_ns: int) -> bool:
        now_ns = self._clock.monotonic_ns()
        return task.lease.holds(now_ns // _NS) and now_ns < slice_end_ns and not task.withheld

    def _ask_filter(self, task: OrderlyTask, subscription: Subscription) -> tuple[int, int]:
        """Move messages that the filter skips to the front; return their number, and how many messages the run has."""
        messages = task.messages
        suspect_until = task.queue.suspect_until
        if subscription.matches is None and subscription.selects is None and suspect_until < 0:
            return 0, len(messages)
        skipped: list[Any] = []
        matched: list[Any] = []
        read = 0
        for message in messages:
            try:
                if message.offset() <= suspect_until:  # a batch ends before an unreadable message: it is parked alone
                    read_headers(message)
                wanted = wants(subscription, self._view(message, task))
            except BaseException as error:  # noqa: BLE001 - user code, or a record that the filter cannot read
                task.failure, task.malformed = self._failures.of(error), _malformed(message)
                break
            (matched if wanted else skipped).append(message)
            read += 1
        messages[:read] = skipped + matched
        return len(skipped), read

    # --- answers -----------------------------------------------------------------------------------------------------

    def _context(self, task: OrderlyTask) -> ConsumeOrderlyContext:
        queue, token = task.queue, task.lease.fencing_token
        return ConsumeOrderlyContext(self._group, self._message_queue(queue.key), queue.epoch, token)

    def _view(self, message: Any, task: OrderlyTask, *, trusted: bool = False) -> MessageView:
        times = task.counts.get(message.offset()) if task.counts else None
        return MessageView(message, trusted) if times is None else TriedMessageView(message, trusted, times)

    def _answered(
        self, task: OrderlyTask, returned: object, context: ConsumeOrderlyContext, messages: list[Any]
    ) -> BatchAnswer:
        status = orderly_status(returned)
        if status is _SUSPEND:
            if returned is _SUSPEND or returned is ConsumeStatus.RECONSUME_LATER:
                task.failure = Failure("Suspended", "the listener asked for it", self._clock.wall_ms())
            else:
                task.failure = self._no_status(returned, "ConsumeOrderlyStatus")
        answer = BatchAnswer(len(messages), status, context.auto_commit is not False, _suspend_ms(context))
        if answer.stops and self._is_unreadable(task, messages) and status is _SUSPEND:
            answer = replace(answer, dead_letter=True)
        return answer

    def _raised(
        self, task: OrderlyTask, error: BaseException, context: ConsumeOrderlyContext, messages: list[Any], rules: Rules
    ) -> BatchAnswer:
        task.failure = self._failure_of_call(error, task.queue.key.topic)
        suspend_ms = _suspend_ms(context)
        is_final, level, delay_ms = self._meaning_of(error, rules, has_asked=suspend_ms != -1)
        if delay_ms is not None:
            suspend_ms = delay_ms
        elif level != NOT_ASKED:
            suspend_ms = self._levels.delay_ms(self._levels.clamp(level))
        dead_letter = self._is_unreadable(task, messages) or is_final
        auto_commit = attribute(context, "auto_commit") is not False
        return BatchAnswer(len(messages), _SUSPEND, auto_commit, suspend_ms, dead_letter=dead_letter)

    def _is_unreadable(self, task: OrderlyTask, messages: list[Any]) -> bool:
        """Return whether this is a single message with unreadable headers, which has to be parked.

        A batch that contains such a message is split at its next attempt.
        """
        found = next(((message, reason) for message in reversed(messages) if (reason := _malformed(message))), None)
        if found is None:
            return False
        last, reason = found
        task.queue.suspect_until = max(task.queue.suspect_until, last.offset())
        if len(messages) > 1:
            return False
        task.malformed = reason
        return True


def _unheard(*, dead_letter: bool) -> BatchAnswer:
    """Return the answer for a message that fails before it reaches a listener."""
    return BatchAnswer(1, _SUSPEND, dead_letter=dead_letter, skipped=True)


def _malformed(message: Any) -> str | None:
    """Return why the headers of a message that user code has seen are unreadable; None: they are readable."""
    try:
        read_again(message)
    except MalformedRecordError as error:
        return error.reason
    return None


def _suspend_ms(context: ConsumeOrderlyContext) -> int:
    """Return the wait that the listener set; log and ignore a value that is not a whole number."""
    value: object = attribute(context, "suspend_current_queue_time_ms", -1)  # a deleted attribute counts as not set
    wait_ms = as_int(value)
    if wait_ms is None:
        _LOG.error("consumer.suspend-time-ignored", extra={"asked": safe_text(value, repr)})
        return -1
    return wait_ms
