"""The partitions of the schedule topic that are assigned to this worker: start, progress and fetching of each.

* librdkafka calls the rebalance callbacks from inside `poll` and `close`. An exception in a callback would destroy a
  record, so none leaves it: `failure` keeps the error, and the worker's next step raises it.
* A partition starts at its committed position. If there is none, the worker commits the earliest offset immediately, so
  that a later start finds it. If the last commit carries another level table, the worker commits the position again
  with its own table, so that operators can see the table in use
  (test_a_running_workers_table_is_known_from_its_commits). If the position is outside the log, the worker starts at the
  earliest offset and logs an alarm.
* One request asks for the bounds of all partitions: one request for each takes long on an overloaded machine. If the
  cluster refuses (the leaders of a new topic do not know it yet), the worker asks again for two seconds. If it cannot
  read the positions then or in time, it starts at the broker's own count (`OFFSET_STORED`), which means the same.
  Kafka's client then waits silently for the answer; so the worker asks again every 10 s, and repeats the alarm. If the
  client has stopped reading, the worker asks every second, and resumes when it knows the committed position.
* Each assignment of a partition has its own `AssignedPartition`. A revoked one is `gone`, and results that still arrive
  for it are dropped. The same happens if a log starts again below the offsets already read (re-created topic).
* Fetching pauses when enough is buffered (`LevelQueue.pauses`). The limit is small while the head is due in more than
  two seconds, so memory does not depend on the backlog. It is larger when the head is near, so draining does not stall.
  All partitions share a buffer, so memory does not depend on their number either, except for one record of each.

Not handled here: which worker gets which partition; the group protocol (cooperative-sticky) decides that.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, KafkaError, KafkaException, TopicPartition

from rocketshim.core.clock import Clock
from rocketshim.core.level_queue import LevelQueue
from rocketshim.core.worker_notes import levels_metadata
from rocketshim.kafka.clients import ConsumerClient
from rocketshim.kafka.lookups import check_answers, offsets_at
from rocketshim.logs import safe_logger
from rocketshim.worker.timer_state import OwnedTimers
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.levels import DelayLevels, time_in_queue_ms

if TYPE_CHECKING:
    from rocketshim.worker.targets import TargetHealth

__all__ = ["AssignedPartition", "Assignment"]

_LOG = safe_logger("rocketshim.worker")
_TIMEOUT_S: Final = 5.0
_TRIES: Final = 20
_TRY_AGAIN_S: Final = 0.1
_LOOK_S: Final = 0.5
_LOOK_NS: Final = 10_000_000_000
_AGAIN_NS: Final = 1_000_000_000


class AssignedPartition:
    """One assignment of one partition."""

    __slots__ = (
        "awaited", "awaits_commit", "backoff_until_ns", "backoffs", "gone", "hop_prefix", "key", "metadata",
        "number", "paused", "queue", "sent", "sent_metadata", "skipped_to", "stored", "timers",
    )  # fmt: skip

    def __init__(self, topic: str, number: int, queue: LevelQueue[Any], start: int, metadata: str = "") -> None:
        self.key = TopicPartitionKey(topic, number)
        self.metadata = self.sent_metadata = metadata
        self.number = number
        self.queue = queue
        self.sent = self.stored = start  # positions: of the last commit, and of the last that is known to be stored
        self.awaits_commit = False  # the answer of an asynchronous one
        self.paused = False
        self.gone = False  # revoked: results that arrive for it are dropped
        self.skipped_to = -1  # behind the last probe that was read, or the markers behind all records
        self.backoff_until_ns = 0  # no record leaves it before, since a hop was refused
        self.backoffs = 0  # in a row
        self.awaited: set[TargetHealth] = set()  # no record leaves it while one of them is unknown
        self.timers: OwnedTimers | None = None  # None: a delay queue
        self.hop_prefix = f"{topic}/{number}/".encode()

    @property
    def position(self) -> int | None:
        """The position to commit; None while nothing is confirmed."""
        position = self.queue.next_offset
        if self.skipped_to > (position or -1) and self.queue.waiting_count == 0 and self.queue.idle:
            return self.skipped_to
        return position

    def at(self, offset: int) -> TopicPartition:
        """Return an offset of the partition for a commit, with this worker's metadata."""
        return TopicPartition(*self.key, offset, metadata=self.metadata)

    def is_waiting(self, now_ns: int) -> bool:
        """Return whether no record leaves it: a target is still unknown, or the state of its timers."""
        if self.timers is not None and not self.timers.is_ready(self.queue):
            return True
        return any(now_ns < target.ready_ns for target in self.awaited)

    @property
    def uncommitted(self) -> int | None:
        """The position that the next commit has to store; None: it is committed, and with the metadata of now."""
        position = self.position
        if position is not None and position > self.sent:
            return position
        return self.sent if self.sent_metadata != self.metadata and self.sent >= 0 else None

    def confirm(self, position: int) -> None:
        """Note that a position is stored."""
        self.stored = max(self.stored, position)
        self.sent = max(self.sent, self.stored)

    def refuse(self) -> None:
        """Note that a commit has failed: the next one stores the position again."""
        self.sent, self.sent_metadata = self.stored, ""


class Assignment:
    """The partitions assigned to this worker.

    `leave` is called with the partitions that are about to be revoked, while they may still be committed, and with an
    empty list before partitions are added; it must be bounded in time. `gone` is called with each partition that was
    revoked, or whose log started again. `own_timers` makes the timers of a partition of the timer log: its number, the
    position, and whether there was none.
    """

    def __init__(
        self,
        topic: str,
        levels: DelayLevels,
        make_queue: Callable[[int], LevelQueue[Any]],
        *,
        leave: Callable[[list[AssignedPartition]], None],
        gone: Callable[[TopicPartitionKey], None],
        own_timers: Callable[[int, int], OwnedTimers],
        alarm: Callable[..., None],
        clock: Clock,
        sleep: Callable[[float], None],
    ) -> None:
        self.held: dict[TopicPartitionKey, AssignedPartition] = {}
        self.failure: Exception | None = None
        self.has_joined = False  # whether the first rebalance is over
        self.is_member = False  # false also when the group has put the worker out
        self.topic = topic
        self._levels = levels
        self._metadata = levels_metadata(levels)
        self._make_queue = make_queue
        self._leave = leave
        self._gone = gone
        self._own_timers = own_timers
        self._alarm = alarm
        self._clock = clock
        self._sleep = sleep
        self._commits_fail_since_ns: int | None = None
        self.is_closing = False  # from `closing` on, for good
        self._unread: set[TopicPartitionKey] = set()
        self._unread_ns = 0
        self._unknown: set[TopicPartitionKey] = set()  # whose positions could not be read at the assignment
        self._look_s = _LOOK_S
        self._unknown_ns = 0  # when they are asked for again; 0: right after the assignment, which has just asked

    # --- callbacks of the Kafka consumer; nothing may escape from them -----------------------------------------------

    def on_assign(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        """Start these partitions."""
        self.has_joined = self.is_member = True
        try:
            if self.is_closing:  # the consumer releases them immediately
                consumer.incremental_assign(partitions)
                return
            if partitions:
                self._leave([])
            starts = self._starts(consumer, partitions)
            consumer.incremental_assign(starts)
            consumer.resume(starts)
        except (KafkaException, RuntimeError) as error:
            self.failure = error
            return
        for start in starts:
            key = TopicPartitionKey.of(start)
            self.held[key] = self._new_partition(key, max(start.offset, -1))
        if starts:
            _LOG.info("worker.assigned", extra={"partitions": self._shown(map(TopicPartitionKey.of, starts))})

    def on_revoke(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        """Release these partitions in order: finish or abandon records in flight, commit, unassign."""
        leaving = self._held_of(partitions)
        try:
            self._leave(leaving)
        except (KafkaException, RuntimeError) as error:
            self.failure = error
        self._unassign(consumer, partitions, leaving)
        if leaving:
            _LOG.info("worker.revoked", extra={"partitions": self._shown(each.key for each in leaving)})

    def on_lost(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> None:
        """Drop these partitions without a commit: another member may own them already."""
        self.is_member = False
        self._alarm("worker.partitions-lost", partitions=self._shown(map(TopicPartitionKey.of, partitions)))
        self._unassign(consumer, partitions, self._held_of(partitions))

    def _held_of(self, partitions: Iterable[TopicPartition]) -> list[AssignedPartition]:
        keys = map(TopicPartitionKey.of, partitions)
        return [self.held[key] for key in keys if key in self.held]

    def _shown(self, keys: Iterable[TopicPartitionKey]) -> list[int | str]:
        """Return partitions for a log line: delay queues by number, others by topic and number."""
        return [key.partition if key.topic == self.topic else str(key) for key in sorted(keys)]

    def _unassign(
        self, consumer: ConsumerClient, partitions: list[TopicPartition], leaving: Iterable[AssignedPartition]
    ) -> None:
        for assigned in leaving:
            assigned.gone = True
            assigned.queue.drop()
            self.held.pop(assigned.key, None)
            self._unread.discard(assigned.key)
            self._unknown.discard(assigned.key)
            self._gone(assigned.key)
        try:
            consumer.incremental_unassign(partitions)
        except (KafkaException, RuntimeError) as error:
            if not self.is_closing:
                self.failure = error

    def publish_clock(self, ahead_ms: int) -> None:
        """Have the next commits carry how far this machine's clock is ahead of the brokers'; 0: it is right."""
        self._metadata = levels_metadata(self._levels, ahead_ms)
        for assigned in self.held.values():
            assigned.metadata = self._metadata

    def in_turn(self, after: TopicPartitionKey) -> list[AssignedPartition]:
        """Return the partitions in which something waits, in turn, beginning after this one."""
        waiting = [each for each in self.held.values() if each.queue.next_ns() is not None]  # of 40, often one or two
        queues = sorted(waiting, key=attrgetter("key"))
        first = bisect_right(queues, after, key=attrgetter("key"))
        return queues[first:] + queues[:first]

    def closing(self) -> None:
        """Prepare for the consumer's close: partitions revoked from now on are drained and committed already."""
        self.is_closing = True
        self._leave = lambda _: None

    def _starts(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> list[TopicPartition]:
        if not partitions:
            return []
        for left in reversed(range(_TRIES)):
            try:
                return self._known_starts(consumer, partitions)
            except KafkaException as error:
                if not left or error.args[0].code() == KafkaError._TIMED_OUT:  # noqa: SLF001 - no public spelling
                    self._alarm("worker.positions-unknown", error=str(error))
                    break
                self._sleep(_TRY_AGAIN_S)
        self._unknown.update(map(TopicPartitionKey.of, partitions))
        self._unknown_ns = 0
        return [TopicPartition(item.topic, item.partition, OFFSET_STORED) for item in partitions]

    def _look_for_positions(self, consumer: ConsumerClient, now_ns: int) -> None:
        """Ask again for positions that could not be read; repeat the alarm until there is an answer."""
        if self._unknown_ns:
            asked = [TopicPartition(*key) for key in sorted(self._unknown)]
            try:
                for item in check_answers(consumer.committed(asked, timeout=self._look_s)):
                    self.held[TopicPartitionKey.of(item)].confirm(item.offset)
                self._unknown.clear()
                self._look_s = _LOOK_S
            except KafkaException as error:
                self._look_s = min(_TIMEOUT_S, 2 * self._look_s)  # the brokers may be slow
                self._alarm("worker.positions-unknown", partitions=self._shown(self._unknown), error=str(error))
        self._unknown_ns = now_ns + (_AGAIN_NS if self._unread & self._unknown else _LOOK_NS)

    def _known_starts(self, consumer: ConsumerClient, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return where to begin on each partition, and commit it where nothing was committed.

        Decides: Where does a worker begin on a delay queue? At the committed position, without one at the earliest
            record, which it commits. If retention deleted the position, it begins at the earliest record, with an
            alarm.
        """
        starts: list[TopicPartition] = []
        first: list[TopicPartition] = []
        without: list[TopicPartitionKey] = []  # partitions with records, and without a position
        bounds = _bounds(consumer, partitions)
        for item in check_answers(consumer.committed(partitions, timeout=_TIMEOUT_S)):
            low, high = bounds[TopicPartitionKey.of(item)]
            offset = item.offset
            if offset < 0:
                offset = low
                if high > low and item.topic == self.topic:  # the state of timers knows what was applied
                    without.append(TopicPartitionKey.of(item))
                first.append(TopicPartition(item.topic, item.partition, low, metadata=self._metadata))
            elif not low <= offset <= high:
                self._alarm(
                    "worker.position-out-of-range", partition=item.partition, position=offset, low=low, high=high
                )
                offset = low
            elif item.metadata != self._metadata:
                first.append(TopicPartition(item.topic, item.partition, offset, metadata=self._metadata))
            starts.append(TopicPartition(item.topic, item.partition, offset))
        if without:
            _LOG.warning("worker.positions-missing", extra={"partitions": self._shown(without)})
        if first:
            consumer.commit(offsets=first, asynchronous=False)
        return starts

    def _new_partition(self, key: TopicPartitionKey, committed: int) -> AssignedPartition:
        """Make the state of a delay queue whose reading begins.

        Decides: Which delay has a queue that the worker's table does not know? 1 s; the record's headers say when it is
            due (`worker.router.Router.route`).
        """
        # records of a level that only another worker's longer table has hop again if they are not due after a second
        is_queue = key.topic == self.topic
        queue = self._make_queue(time_in_queue_ms(self._levels, key.partition) if is_queue else 0)
        assigned = AssignedPartition(*key, queue, committed, self._metadata)
        if not is_queue:
            assigned.timers = self._own_timers(key.partition, committed)
        return assigned

    # --- commits -----------------------------------------------------------------------------------------------------

    def commits_fail_since_ns(self) -> int | None:
        """Return since when commits fail; None: they succeed, or nothing is due or to be committed any more."""
        now_ns = self._clock.monotonic_ns()
        if not any(_has_work(each, now_ns) for each in self.held.values()):
            self._commits_fail_since_ns = None  # what could not be committed was revoked
        return self._commits_fail_since_ns

    def committed(self) -> None:
        """Note that a commit has succeeded."""
        self._commits_fail_since_ns = None

    def not_committed(self) -> None:
        """Note that a commit has failed."""
        if self._commits_fail_since_ns is None:
            self._commits_fail_since_ns = self._clock.monotonic_ns()

    def on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Take the result of a commit; the next one repeats positions that were not committed."""
        answered = set(map(TopicPartitionKey.of, partitions))
        for key, each in self.held.items():
            if key in answered or not answered:
                each.awaits_commit = False
        if error is None and all(item.error is None for item in partitions):
            self.committed()
        else:
            self.not_committed()
        for item in partitions:
            assigned, failure = self.held.get(TopicPartitionKey.of(item)), error or item.error
            if failure is not None:
                self._alarm("worker.commit-failed", partition=item.partition, error=str(failure))
            if assigned is not None and failure is not None:
                assigned.refuse()
            elif assigned is not None:
                assigned.confirm(item.offset)

    # --- fetching ----------------------------------------------------------------------------------------------------

    def restarted(self, old: AssignedPartition) -> AssignedPartition:
        """Replace a partition whose log started again: drop its buffered records and return the new one."""
        old.gone = True
        old.queue.drop()
        self._gone(old.key)
        self._alarm("worker.log-restarted", partition=old.number)
        fresh = self.held[old.key] = self._new_partition(old.key, 0)
        fresh.paused = old.paused
        return fresh

    def overtaken(self, key: TopicPartitionKey) -> None:
        """Note that the client has stopped reading a partition because its position is, or seems, outside the log.

        The next `throttle` resumes reading.
        """
        if key in self.held:
            self._unread.add(key)
            self._unread_ns = 0
            self._unknown_ns = min(self._unknown_ns, 1)  # ask now

    def skip_invisible(self, consumer: ConsumerClient) -> None:
        """Have the next commits pass what no reader sees behind the last records: markers, aborted records.

        Otherwise a finished queue would seem to have a waiting record, and after retention a lost one. Call it only
        after everything that was fetched is in the queues
        (test_a_finished_queue_is_committed_to_its_end_behind_markers_and_aborted_records).
        """
        finished = [each for each in self.held.values() if each.queue.waiting_count == 0 and each.queue.idle]
        asked = [TopicPartition(*each.key) for each in finished]
        for item in consumer.position(asked) if asked else ():
            assigned = self.held[TopicPartitionKey.of(item)]
            if item.offset > max(assigned.position or -1, assigned.sent):  # negative: nothing was read yet
                assigned.skipped_to = item.offset

    def throttle(self, consumer: ConsumerClient, now_ns: int) -> None:
        """Pause and resume fetching by what is buffered; resume partitions that the client stopped."""
        if self._unknown and now_ns >= self._unknown_ns:
            self._look_for_positions(consumer, now_ns)
        if (unread := self._unread - self._unknown) and now_ns >= self._unread_ns:
            self._unread_ns = now_ns + _AGAIN_NS
            self._resume_reading(consumer, sorted(unread))
        for assigned in self.held.values():
            queue = assigned.queue
            if not assigned.paused:
                if queue.pauses(now_ns):
                    consumer.pause([TopicPartition(*assigned.key)])
                    assigned.paused = True
            elif queue.resumes(now_ns):
                consumer.resume([TopicPartition(*assigned.key)])
                assigned.paused = False

    def _resume_reading(self, consumer: ConsumerClient, keys: list[TopicPartitionKey]) -> None:
        """Resume partitions that the client has stopped reading.

        If retention has deleted the position, reading resumes at the earliest record. The records between are lost, and
        the worker logs an alarm. Records fetched before are still delivered. If the position is in the log after all (a
        leader that has just moved may deny it), reading resumes there. If the cluster does not answer, the worker asks
        again a second later. One request asks for all partitions. If a broker refuses it, there is one request for
        each, so that a partition without a leader does not block another. If a broker does not answer in time, requests
        for each would stop the loop for minutes.
        """
        partitions = [TopicPartition(*key) for key in keys]
        try:
            bounds = _bounds(consumer, partitions)
            positions = {TopicPartitionKey.of(item): item.offset for item in consumer.position(partitions)}
        except KafkaException as error:
            if len(keys) == 1 or error.args[0].code() == KafkaError._TIMED_OUT:  # noqa: SLF001 - as above
                self._alarm("worker.positions-unknown", error=str(error))
                return
            for key in keys:
                self._resume_reading(consumer, [key])
            return
        starts: list[TopicPartition] = []
        for key in keys:
            assigned, (low, high) = self.held[key], bounds[key]
            at = positions[key] if positions[key] >= 0 else assigned.stored  # negative: nothing read yet
            starts.append(TopicPartition(*key, at if low <= at <= high else low))
            if starts[-1].offset != at:
                self._alarm("worker.position-out-of-range", partition=key.partition, position=at, low=low, high=high)
        try:
            # the client has stopped fetching them and would refuse to seek
            consumer.incremental_unassign(partitions)
            consumer.incremental_assign(starts)
            consumer.resume(starts)  # a partition stays paused when it is unassigned and assigned again
        except (KafkaException, RuntimeError) as error:
            self.failure = error
            return
        for key in keys:
            self.held[key].paused = False
        self._unread.difference_update(keys)


def _has_work(assigned: AssignedPartition, now_ns: int) -> bool:
    due_ns = assigned.queue.oldest_due_ns
    return assigned.awaits_commit or assigned.uncommitted is not None or (due_ns is not None and due_ns <= now_ns)


def _bounds(consumer: ConsumerClient, partitions: list[TopicPartition]) -> dict[TopicPartitionKey, tuple[int, int]]:
    """Return where the logs of partitions begin and end."""
    keys = list(map(TopicPartitionKey.of, partitions))
    lows, highs = (offsets_at(consumer, keys, which, _TIMEOUT_S) for which in (OFFSET_BEGINNING, OFFSET_END))
    return {key: (lows[key], highs[key]) for key in keys}
