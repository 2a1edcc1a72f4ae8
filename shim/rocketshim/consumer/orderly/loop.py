"""The poll thread of an orderly consumer: a poll loop whose queues are consumed in order, each under its lock.

What it does its own way:

* A partition that is assigned is paused until its lock is ours: *wanted*. When the group's log says so
  (`QueueStarted`) its start is looked up, committed with the new token, and only then anything is read: *running*.
* A queue that is given up (revoked, lock lost, log cut) is *ending*: nothing more of it begins, and when its listener
  has returned and its dead letters are stored, the lock is released with the position reached, or the log is told that
  it is drained, or it begins anew. A listener that outlasts the drain of a rebalance so keeps the lock, not the group
  waiting; nobody else can begin the queue before it has returned or the lease has run out.
* Nothing is handed out and nothing committed under a lease that does not hold (`OrderlyPartition.holds`); the listener
  thread asks again before each call.
* Where to begin: the committed position. The group's log may know a later one (from the last owner's renewal or
  release); that counts if the commit carries a token. A commit without one was made by somebody else after ours: an
  operator has reset the group, or it was consumed concurrently meanwhile, and that counts alone; and without any commit
  the topic was made anew.
* No consume timeout: a listener call that hangs holds its queue (RocketMQ has none either).
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
from rocketshim.core.orderly_queue import OrderlyQueue
from rocketshim.core.queue_lock_actions import ReconsumeCounts, StopReason
from rocketshim.core.retry_rotation import RetryRotation
from rocketshim.group.lease import Lease, MembersChanged, QueueStarted, QueueStopped
from rocketshim.group.log_thread import GroupLogThread
from rocketshim.kafka.clients import ConsumerClient
from rocketshim.kafka.partitions import TopicPartitionKey, partition_names
from rocketshim.logs import safe_logger
from rocketshim_topics import Failure, MalformedRecordError, MessageView
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
_TELL_MS: Final = 1_000  # to tell takes a look at all failed attempts of a queue, so not at each failure


@dataclass(frozen=True, slots=True)
class OrderlySettings:
    """The figures of orderly consumption.

    Attributes:
        max_reconsume_times: failed attempts before a dead letter; -1: never.
        suspend_ms: wait after a failure when the listener names none, in ms.
        by_key: order within a key only (`order="key"`).
        retry_topic: physical name of the group's retry topic.
    """

    retry_topic: str
    max_reconsume_times: int = -1
    suspend_ms: int = 1_000
    by_key: bool = False


@dataclass(slots=True)
class OrderlyCounts:
    """What happened; read from any thread, written by the poll thread.

    Attributes:
        suspended: failed attempts after which a queue (or its keys) waited.
        stuck: of these, those of messages without a limit that had failed 16 times or more: a message stands for ever.
        starts: how often a queue began, by a lock that was won.
        lost: how often a lock was lost while the queue was held.
    """

    suspended: int = 0
    stuck: int = 0
    starts: int = 0
    lost: int = 0


class _Then(Enum):
    """What follows when an ending queue is drained."""

    RELEASE = auto()
    """Its lock is released with the position reached."""
    FORGET = auto()
    """The lock is not ours any more: only say that it is drained."""
    BEGIN_ANEW = auto()
    """The log was cut: go on where it goes on, under the same lease."""


@dataclass(slots=True)
class _Ending:
    place: OrderlyPartition
    then: _Then
    offset: int = 0
    at_ms: int = 0  # not begun anew before


class OrderlyDispatch(Dispatch[OrderlyPartition, OrderlyTask, BatchAnswer]):
    """Hands runs to listener threads: one of each queue at a time.

    Thread-safety: none; the poll thread's.
    """

    def hand_out(self, queues: Iterable[OrderlyPartition]) -> None:
        """Hand out a run of each queue that may give one."""
        for place in queues:
            task = place.take(self._batch_count)
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
    """One thread's loop over one Kafka consumer, in order.

    Args:
        log: of the group; not started. The loop starts it and ends it. None: no locks (broadcasting).
        orderly: the figures.
        loop: the arguments of `PollLoop`.

    Thread-safety: as `PollLoop`.
    """

    def __init__(self, *, log: GroupLogThread | None, orderly: OrderlySettings, **loop: Any) -> None:
        super().__init__(**loop)
        self.orderly_counts = OrderlyCounts()
        self._log = log
        self._orderly = orderly
        self._wanted: set[TopicPartitionKey] = set()
        self._leases: dict[TopicPartitionKey, Lease] = {}
        self._starting: dict[TopicPartitionKey, QueueStarted] = {}
        self._turns: RetryRotation[TopicPartitionKey] = RetryRotation()
        self._ending: list[_Ending] = []
        self._counts: dict[TopicPartitionKey, ReconsumeCounts] = {}
        self._untold: set[OrderlyPartition] = set()  # where a message has failed since the group's log was told
        self._next_tell_ms = 0
        self._misplaced = False
        self._starts.token_of = self._token_of

    # --- the turn ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Make the clients, start the group-log thread, subscribe."""
        super().open()
        if self._log is not None:
            self._log.start(f"rocketshim-group-log-{self._log.owner.client_id}")

    def turn(self) -> None:
        """One turn; errors as `PollLoop.turn`."""
        if self._log is not None:
            self._take_events(self._log)
            self.error = self.error or self._log.error
        super().turn()

    def close(self) -> None:
        """Finish what is in work within the deadline, commit, release, leave. Safe twice."""
        try:
            super().close()
        finally:
            log = self._log
            if log is not None:
                log.stop(_LOG_STOP_S, lambda: self._wind_up(log))

    def _wind_up(self, log: GroupLogThread) -> None:
        """The loop has closed: give back what is won, or returned by a listener, all the same."""
        self._take_events(log)
        self.dispatch.take_results(self._now_ms())
        self._end_drained()

    def _failed(self, chunk: Work, outcome: FailedMessage) -> None:
        if self._consumer is not None:  # else the loop has closed: what is not stored keeps its queue's lock
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
        if committing or (self._untold and now_ms >= self._next_tell_ms):
            for place in self.queues if committing else self._untold:
                if not place.dropped:
                    self._tell(place)
            self._untold.clear()
            self._next_tell_ms = now_ms + _TELL_MS

    def _sweep(self, now_ms: int) -> None:
        """Orderly consumption has no consume timeout."""

    def resume_reading(self, consumer: ConsumerClient) -> None:
        """Read again, also what has lost its lock meanwhile and will be locked anew. For `ask`."""
        super().resume_reading(consumer)
        self._pauses.release(consumer, self._wanted, PauseReason.SUSPENDED)

    def _idle_s(self) -> float:
        if self._starting or self._ending or len(self._queues) < len(self._wanted):
            return _AWAITING_S
        now_ms = self._now_ms()
        due_ms = [at_ms for place in self.queues if (at_ms := place.next_wakeup_ms) is not None]
        return _IDLE_S if not due_ms else min(_IDLE_S, max(0, min(due_ms) - now_ms) / 1_000)

    # --- locks -------------------------------------------------------------------------------------------------------

    def _take_events(self, log: GroupLogThread) -> None:
        while log.events.qsize():
            event = log.events.get()
            match event:
                case QueueStarted(lease, next_offset, reconsume_counts):
                    place = (lease.queue.topic, lease.queue.queue_id)
                    if place in self._wanted:
                        self._leases[place] = lease
                        self._starting[place] = event
                    else:  # it was given up meanwhile, and that was said before
                        self._release(lease, next_offset, reconsume_counts)
                case QueueStopped(lease, reason):
                    self._lock_stopped(lease, reason)
                case MembersChanged():
                    pass
                case _:
                    assert_never(event)
        self._end_drained()

    def _lock_stopped(self, lease: Lease, reason: StopReason) -> None:
        place = (lease.queue.topic, lease.queue.queue_id)
        unwanted = reason is StopReason.UNWANTED  # if it is held it has gone and come back before this was heard
        ending = next((each for each in self._ending if each.place.lease is lease), None)
        if ending is not None and not unwanted:
            ending.then = _Then.FORGET
        elif ending is not None and ending.then is _Then.BEGIN_ANEW:
            ending.then = _Then.RELEASE
        if self._leases.get(place) is not lease:
            return  # given back already, or when its listener returns
        self.orderly_counts.lost += 1
        del self._leases[place]
        if ending is not None:
            return
        running = self._queues.pop(place, None)
        unbegun = self._starting.pop(place, None)
        if place in self._wanted:
            self._hold(place)
        if running is not None:
            self._end(running, _Then.RELEASE if unwanted else _Then.FORGET)
        elif unbegun is not None and unwanted:
            self._release(lease, unbegun.next_offset, unbegun.reconsume_counts)
        elif self._log is not None:
            self._log.drained(lease)

    def _hold(self, place: TopicPartitionKey) -> None:
        """Read nothing of a partition until its next run begins; that one is not paused for what the last one held."""
        consumer = self._client()
        self._pauses.hold(consumer, [place], PauseReason.LOCK)
        self._pauses.release(consumer, [place], PauseReason.FLOW)
        self.commits.forget(place)

    def _start(self, consumer: ConsumerClient) -> None:
        """Begin queues whose lock is ours; one that cannot begin (its leader is away) holds up no other."""
        began_ms = self._now_ms()
        busy = {(ending.place.topic, ending.place.partition) for ending in self._ending}
        waiting = [place for place in self._starting if place not in busy and self._leases[place].holds(began_ms)]
        places, timeout_s = self._turns.pick(waiting, began_ms)
        if not places:
            return
        why = self._start_these(consumer, places, timeout_s)
        self._turns.tried(places, failed=why is not None, began_ms=began_ms, now_ms=self._now_ms())
        if why is not None:
            _LOG.warning("consumer.start-unknown", extra={"error": why, "partitions": partition_names(places)})

    def _start_these(self, consumer: ConsumerClient, places: list[TopicPartitionKey], timeout_s: float) -> str | None:
        """Look up, commit, read; why that was not possible, or None. A lock that is lost meanwhile begins nothing."""
        try:
            found, _ = self._starts.find(consumer, [TopicPartition(*place) for place in places], timeout_s)
            offsets = {(item.topic, item.partition): self._begin_at(item) for item in found}
            now_ms = self._now_ms()
            offsets = {place: offset for place, offset in offsets.items() if self._leases[place].holds(now_ms)}
            commits = [
                TopicPartition(*place, offset, metadata=self._starts.metadata(place))
                for place, offset in offsets.items()
            ]
            answers = consumer.commit(offsets=commits, asynchronous=False) if commits else []
            refused = [str(answer.error) for answer in answers if answer.error is not None]
            if refused:
                return str(refused)
            for place, offset in offsets.items():
                consumer.seek(TopicPartition(*place, offset))
        except KafkaException as error:
            return str(error)
        for place, offset in offsets.items():
            self._counts[place] = self._starting.pop(place).reconsume_counts
            self._begin(place, offset)
            self.orderly_counts.starts += 1
        self._read(consumer, list(offsets))
        self._throttle.share(len(self._queues))
        if offsets:
            _LOG.info("consumer.locked", extra={"partitions": partition_names(offsets)})
        return None

    def _read(self, consumer: ConsumerClient, places: list[TopicPartitionKey]) -> None:
        if self._suspended or self._closing:
            self._pauses.hold(consumer, places, PauseReason.SUSPENDED)
        self._pauses.release(consumer, places, PauseReason.LOCK)

    def _begin_at(self, found: TopicPartition) -> int:
        """The position to begin at: the committed one, or a later one that the group's log knows."""
        place = (found.topic, found.partition)
        known = self._starting[place].next_offset
        if known is None or self._starts.found_tokens.get(place) is None:
            return found.offset
        return max(found.offset, known)

    def _token_of(self, place: TopicPartitionKey) -> int | None:
        lease = self._leases.get(place)
        return None if lease is None else lease.token

    def _want(self) -> None:
        if self._log is not None:
            self._log.want([MessageQueue(topic, queue_id=number) for topic, number in self._wanted])

    def _tell(self, place: OrderlyPartition) -> None:
        """Tell the group's log how far a queue is, if that is new."""
        progress = place.progress
        if self._log is not None and place.lease is not None and progress != place.told:
            place.told = progress
            self._log.progress(place.lease, *progress)

    # --- ending ------------------------------------------------------------------------------------------------------

    def _end(self, place: OrderlyPartition, then: _Then, offset: int = 0) -> None:
        """Begin nothing more of a queue; `_end_drained` concludes it."""
        place.withhold()
        self._ending.append(_Ending(place, then, offset))

    def _end_drained(self) -> None:
        """Conclude the endings that are drained. A look at all of them."""
        self._ending = [ending for ending in self._ending if not (ending.place.settled and self._concludes(ending))]

    def _concludes(self, ending: _Ending) -> bool:
        """Whether what is to follow a drained queue could be done."""
        place, lease = ending.place, ending.place.lease
        if ending.then is _Then.BEGIN_ANEW:
            if not self._begin_anew(ending):
                return False
        elif lease is not None and ending.then is _Then.RELEASE:
            self._release(lease, *place.progress)
        elif lease is not None and self._log is not None:
            self._log.drained(lease)
        place.drop()
        return True

    def _begin_anew(self, ending: _Ending) -> bool:
        """Whether it could; else it is tried again a little later. Rebalance callbacks call this, too: never raises."""
        now_ms = self._now_ms()
        if now_ms < ending.at_ms:
            return False
        place = (ending.place.topic, ending.place.partition)
        consumer = self._client()
        try:
            consumer.seek(TopicPartition(*place, ending.offset))
        except KafkaException as error:
            ending.at_ms = now_ms + _SEEK_AGAIN_MS
            _LOG.warning("consumer.start-unknown", extra={"error": str(error), "partitions": partition_names([place])})
            return False
        self._begin(place, ending.offset)
        self._read(consumer, [place])
        return True

    def _release(self, lease: Lease, next_offset: int | None, counts: ReconsumeCounts) -> None:
        if self._log is not None:
            self._log.drained(lease)
            self._log.committed(lease, next_offset, counts)

    def _give_up(self, places: Iterable[TopicPartitionKey]) -> None:
        """These partitions are not ours any more: say so, and release what is drained, now or when it is."""
        gone = list(places)
        self._wanted.difference_update(gone)
        self._want()
        cut = {
            (ending.place.topic, ending.place.partition): ending
            for ending in self._ending
            if ending.then is _Then.BEGIN_ANEW
        }
        for place in gone:
            lease = self._leases.pop(place, None)
            running = self._queues.pop(place, None)
            unbegun = self._starting.pop(place, None)
            self._counts.pop(place, None)
            if place in cut:
                cut[place].then = _Then.RELEASE
                lease = None
            if running is not None:
                self._end(running, _Then.RELEASE)
            elif lease is not None:
                known = (None, ()) if unbegun is None else (unbegun.next_offset, unbegun.reconsume_counts)
                self._release(lease, *known)
        self._end_drained()

    # --- what the poll loop does another way -------------------------------------------------------------------------

    def _make_dispatch(self, pool: Pool[Any, Any], batch_count: int) -> OrderlyDispatch:
        return OrderlyDispatch(pool, batch_count, self._left)

    def _make_queue(self, place: TopicPartitionKey, epoch: int) -> OrderlyPartition:
        is_retry = place[0] == self._orderly.retry_topic
        key_of = _key_of if self._orderly.by_key else None
        queue: OrderlyQueue[Any] = OrderlyQueue(
            epoch,
            max_reconsume_times=self._orderly.max_reconsume_times,
            suspend_ms=self._orderly.suspend_ms,
            reconsume_counts=self._counts.pop(place, ()),
            stored_count=_stored_count if is_retry else None,
            message_limit=lambda message: _message_limit(message, trusted=is_retry),
            key_of=key_of,
        )
        return OrderlyPartition(
            *place,
            epoch,
            lease=self._leases.get(place),
            queue=queue,
            key_of=key_of,
            now_ms=self._now_ms,
            perform=self._perform,
        )

    def _committable(self) -> list[TopicPartitionKey]:
        return [(place.topic, place.partition) for place in self.queues if place.holds()]

    def _put(self, place: TopicPartitionKey, run: list[Any]) -> None:
        queue = self._queues.get(place)
        if queue is None or place in self._uptake:
            return
        if place in self._fresh:  # it has begun anew within this fetch, and what follows was read before that
            self._client().seek(TopicPartition(*place, self.commits.position(place)))
            return
        first = run[0].offset()
        expected = self.commits.position(place) if queue.is_fresh else queue.next_put
        if first < expected:
            rest = [message for message in run if message.offset() >= expected]
            if self._is_stale(place, expected, seek=not rest):
                if not rest:
                    return
                run, first = rest, rest[0].offset()  # what follows them in this fetch would pass them else
        try:
            if queue.is_fresh and first < self.commits.position(place):
                self.commits.adopt(place, first)  # the log is shorter than what was committed: made anew, or cut
                self._say_cut(place, first)
            queue.put(run)
        except ValueError:
            self._say_cut(place, first)
            del self._queues[place]
            self._hold(place)
            self._end(queue, _Then.BEGIN_ANEW, first)
            self._end_drained()

    def _is_stale(self, place: TopicPartitionKey, expected: int, *, seek: bool) -> bool:
        """Whether what was fetched lies before the position asked for though that position is there.

        `seek`: ask for that position again if so.

        Seen under load: a look-up of a start that was answered late moved a partition that had been told where to read.
        """
        consumer = self._client()
        try:
            bounds = self.lookups.get_watermark_offsets(TopicPartition(*place), timeout=_BOUNDS_S)
            if bounds is None or bounds[1] < expected:
                return False
            if seek:
                consumer.seek(TopicPartition(*place, expected))
        except KafkaException:
            return False
        _LOG.warning("consumer.fetched-before-its-position", extra={"partition": f"{place[0]}/{place[1]}"})
        return True

    def _say_cut(self, place: TopicPartitionKey, first_offset: int) -> None:
        _LOG.warning("consumer.log-cut", extra={"partition": f"{place[0]}/{place[1]}", "first_offset": first_offset})

    def _on_assign(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        if self._log is None:
            super()._on_assign(consumer, partitions)
            return
        places = [(item.topic, item.partition) for item in partitions]
        try:
            consumer.incremental_assign(paused_assignment(partitions))
            self._pauses.adopt(consumer, places)
            self._pauses.hold(consumer, places, PauseReason.LOCK)
        except (KafkaException, RuntimeError) as error:
            self.error = self.error or error
            return
        if not self._closing:
            self._wanted.update(places)
            self._want()
        self._next_comparison_ms = self._now_ms()
        self.assigned.set()
        _LOG.info("consumer.assigned", extra={"partitions": partition_names(places)})

    def _depart(
        self, consumer: ConsumerClient, partitions: list[TopicPartition], places: list[TopicPartitionKey]
    ) -> None:
        self._give_up(places)
        super()._depart(consumer, partitions, places)

    def _forget(self, places: list[TopicPartitionKey]) -> None:
        """The loop has closed, or `_depart` has given the queues up: what listeners still hold keeps its lock."""
        if self._closing:
            self._give_up(list(self._wanted))
            if self._log is not None:
                self._take_events(self._log)  # before listeners are waited for
        super()._forget(places)

    def _queue_shown(self, consumer: ConsumerClient, queue: OrderlyPartition, now_ms: int) -> ConsumerQueueState:
        times, failing_ms = queue.failing
        return replace(super()._queue_shown(consumer, queue, now_ms), reconsume_times=times, failing_ms=failing_ms)

    # --- actions of the core -----------------------------------------------------------------------------------------

    def _perform(self, place: OrderlyPartition, task: OrderlyTask, actions: Iterable[OrderlyAction[Any]]) -> None:
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
                    self._say_suspended(action, task)
                    self._untold.add(place)
                case StatusMisplaced(status):
                    if not self._misplaced:
                        self._misplaced = True
                        _LOG.warning("consumer.status-misplaced", extra={"status": status.name})
                case _:
                    assert_never(action)

    def _say_suspended(self, action: Suspended[Any], task: OrderlyTask) -> None:
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
