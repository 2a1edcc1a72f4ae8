"""Named timers: the partitions of the timer log that this worker owns, and where their commands go.

`core.named_timers` decides what a command does; `rocketshim_topics.hops.timers` makes its records. A partition of the
log is a queue without a delay for the rest of the worker. Rules of this file:

* The state of a partition is loaded when it is assigned, in a thread of its own (`TimerLoader`); until then no command
  leaves the queue. First come the entries of the compacted topic. If they are behind the position, the commands between
  are read again and applied without effects (`core.named_timers` says why this is the same).
* What a command does is decided once, in the order of the log (`OwnedTimers.changes`). A record that is routed again,
  since its hop was refused or its transaction aborted, gets the same answer.
* Exactly once: effects, state and position are one transaction. At least once: effects, then the state, then the
  position, and the next run of the partition leaves when all of that is stored.
* A FIRE that counts is an ordinary due record from then on: its target may be slow, missing or refused
  (`worker.router`), and a re-appended record has no name any more.
* Whether a record is a command, and may be one, depends on the record and the configuration, never on a clock, so that
  reading it again has the same result.
"""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from rocketshim.core.level_queue import Due, LevelQueue
from rocketshim.core.named_timers import Change, Command, Effect, TimerTable
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.worker.allow_list import AllowList
from rocketshim.worker.assignment import AssignedPartition
from rocketshim.worker.hop_writer import HopGroup, Kind
from rocketshim.worker.router import Router
from rocketshim.worker.state import Alarms
from rocketshim.worker.target_health import NEVER_NS, TargetHealth
from rocketshim_topics.coordinates import RecordCoordinates, TopicPartitionKey
from rocketshim_topics.errors import MalformedRecordError, RocketshimError
from rocketshim_topics.hops import (
    OutgoingRecord,
    command_problem,
    due_at_ms,
    forwarded,
    is_misplaced,
    put_back,
    scheduled_timer,
    timer_digest,
    timer_state,
)
from rocketshim_topics.names import TopicNames, group_of
from rocketshim_topics.wire import TIMER_SET_AT, TIMER_SINCE_MS, Envelope, coordinates, decode, read_headers

__all__ = ["OwnedTimers", "TimerLoader", "TimerRouter", "TimerRules"]

_EARLY_MS: Final = 60_000  # leaders' clocks may differ by this; a FIRE that is earlier was not written by a worker
_CLOSE_S: Final = 1.0
_SETS: Final = frozenset({Command.SET, Command.SET_IF_ABSENT})


class OwnedTimers:
    """The timers of one partition of the log, in one assignment.

    Attributes:
        table: the pending names; None: not loaded yet.
        changes: what the commands do whose run is not confirmed, by offset.
        messages: the messages that a NOW delivers, by the offset of the NOW; None: it is not there any more.
        loaded: the messages that are read now, as a target that is not known yet.
        skip_below: offset below which commands are passed over: there was no position, and they are applied.
    """

    __slots__ = ("asked", "changes", "loaded", "messages", "one_run", "skip_below", "table")

    def __init__(self, topic: str, *, one_run: bool) -> None:
        self.table: TimerTable | None = None
        self.changes: dict[int, Change] = {}
        self.messages: dict[int, Any] = {}
        self.loaded = TargetHealth(topic, ready_ns=0)
        self.asked: set[int] = set()
        self.skip_below = 0
        self.one_run = one_run

    def is_ready(self, waiting: LevelQueue[Any]) -> bool:
        """Return whether a run may leave the queue."""
        return self.table is not None and (waiting.idle or not self.one_run)

    def confirmed(self, next_offset: int) -> None:
        """Forget what commands below this offset have done: their position is stored."""
        for known in (self.changes, self.messages):
            for offset in [offset for offset in known if offset < next_offset]:
                del known[offset]


@dataclass(slots=True)
class _Judged:
    """A record of the log by the rules: a command to apply, or why it is none."""

    envelope: Envelope
    due_ms: int = 0
    reason: str = ""  # to park it
    is_misplaced: bool = False
    is_early: bool = False  # a FIRE that another program wrote

    @property
    def is_command(self) -> bool:
        return not (self.reason or self.is_misplaced or self.is_early)


class TimerRules:
    """Which records of the log are commands. Any thread; no clock."""

    def __init__(self, names: TopicNames, policy: AllowList, max_delay_ms: int) -> None:
        self.names = names
        self._policy = policy
        self._max_delay_ms = max_delay_ms

    def judge(self, record: Any) -> _Judged:
        """Return a record by the rules.

        Decides: Which commands of named timers are refused? Malformed ones, and a SET that no worker would deliver or
            whose delay is too long: they are parked. A CANCEL, NOW or FIRE for a name that nobody could set finds
            nothing.
        """
        append_ms = record.timestamp()[1]
        try:
            envelope = decode(read_headers(record), trusted=True)
        except MalformedRecordError as error:
            return _Judged(Envelope(), reason=error.reason)
        due_ms = due_at_ms(envelope.deliver_at_ms, envelope.delay_ms, append_ms, 0)
        reason = command_problem(record, envelope)
        if not reason and envelope.timer_do in {each.value for each in _SETS}:
            reason = self._policy.refusal(envelope.real_topic or "", None) or ""
            if group_of(envelope.real_topic or "") is not None:
                reason = "forbidden-target:retry-topic"
            elif not reason and due_ms - append_ms > self._max_delay_ms:
                reason = "due-too-late"
        return _Judged(
            envelope,
            due_ms,
            reason,
            is_misplaced=not reason and is_misplaced(record, envelope),
            is_early=envelope.timer_do == Command.FIRE.value and due_ms > append_ms + _EARLY_MS,
        )

    @staticmethod
    def apply(table: TimerTable, record: Any, judged: _Judged) -> Change:
        """Apply a command to the state."""
        envelope = judged.envelope
        return table.apply(
            record.offset(),
            Command(envelope.timer_do),
            timer_digest(envelope.real_topic or "", envelope.timer or ""),
            generation=envelope.timer_set_at,
            due_ms=judged.due_ms,
            appended_ms=record.timestamp()[1],
            at_most_ms=envelope.timer_at_most_ms,
        )


class TimerLoader:
    """Reads the state of partitions, and messages for a NOW, in a thread with a client of its own.

    `failure` is why it cannot go on. A cluster that does not answer is asked again.
    """

    def __init__(
        self,
        rules: TimerRules,
        make_reader: Callable[[], TopicReader],
        alarm: Callable[..., None],
        *,
        in_background: bool,
    ) -> None:
        self.failure: Exception | None = None
        self._rules = rules
        self._make_reader = make_reader
        self._alarm = alarm
        self._reader: TopicReader | None = None
        self._asked: queue.SimpleQueue[Callable[[TopicReader], Callable[[], None]] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        if in_background:
            self._thread = threading.Thread(target=self._run, name="rocketshim-timers", daemon=True)
            self._thread.start()

    def load(self, owned: OwnedTimers, partition: int, position: int, *, is_first: bool) -> None:
        """Load the state of a partition whose commands are read from this position on.

        With `is_first` there was none: then the commands that the state knows are passed over.
        """

        def read(reader: TopicReader) -> Callable[[], None]:
            table = self._read_state(reader, partition, position)

            def answer() -> None:
                owned.table, owned.skip_below = table, table.next_offset if is_first else 0

            return answer

        self._asked.put(read)

    def fetch(self, owned: OwnedTimers, partition: int, *, offset: int, generation: int) -> None:
        """Fetch the message of a generation for the NOW at an offset; `owned.loaded` is ready when it is there."""
        owned.asked.add(offset)
        owned.loaded.ready_ns = NEVER_NS

        def read(reader: TopicReader) -> Callable[[], None]:
            message = reader.fetch(self._rules.names.timers, partition, generation)

            def answer() -> None:
                owned.messages[offset] = message
                owned.asked.discard(offset)
                owned.loaded.ready_ns = NEVER_NS if owned.asked else 0

            return answer

        self._asked.put(read)

    def process_answers(self) -> None:
        """Take what was read since. Without a thread (the in-memory Kafka) it is read here."""
        while self._thread is None and not self._asked.empty():
            self._work(self._asked.get())
        while not self._answers.empty():
            self._answers.get()()

    def close(self) -> None:
        """End the thread and its client; one that waits for a broker continues alone for a while."""
        self._asked.put(None)
        if self._thread is None:
            self._close_reader()
        else:
            self._thread.join(_CLOSE_S)

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            self._work(asked)
        self._close_reader()

    def _work(self, asked: Callable[[TopicReader], Callable[[], None]] | None) -> None:
        if asked is None:
            return
        try:
            if self._reader is None:
                self._reader = self._make_reader()
            self._answers.put(asked(self._reader))
        except RocketshimError as error:
            text = str(error)
            self._answers.put(lambda: self._alarm("worker.timers-unknown", error=text))
            self._asked.put(asked)
        except Exception as error:  # noqa: BLE001 - the loop raises it
            self.failure = error

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _read_state(self, reader: TopicReader, partition: int, position: int) -> TimerTable:
        names, table = self._rules.names, TimerTable()
        for record in _all(reader, TopicPartitionKey(names.timer_state, partition)):
            numbers = dict(read_headers(record) or ())
            since = numbers.get(TIMER_SINCE_MS)
            table.load(
                record.key(),
                int(numbers[TIMER_SET_AT] or 0),
                is_pending=record.value() is not None,
                since_ms=None if since is None else int(since),
            )
        if table.next_offset < position:
            for record in _all(reader, TopicPartitionKey(names.timers, partition), table.next_offset, position):
                judged = self._rules.judge(record)
                if judged.is_command:
                    self._rules.apply(table, record, judged)
        table.begin(position)
        return table


def _all(reader: TopicReader, key: TopicPartitionKey, start: int = 0, end: int | None = None) -> Any:
    """Yield the records of a partition between two offsets, as far as they are there."""
    low, high = reader.bounds(*key)
    return reader.read_spans({key: (max(low, start), high if end is None else min(high, end))})


class TimerRouter(Router):
    """A `Router` that knows the commands of named timers, too."""

    def __init__(self, names: TopicNames, *args: Any, rules: TimerRules, alarm: Alarms, **named: Any) -> None:
        super().__init__(names, *args, **named)
        self.loader: TimerLoader | None = None
        self._rules = rules
        self._alarm = alarm

    def route(
        self,
        due: Due[Any],
        assigned: AssignedPartition,
        now_ns: int,
        indexes: Any = None,
        *,
        re_append_reason: str = "",
    ) -> list[HopGroup]:
        """Return where records go now; commands of named timers by the rules at the top of this file."""
        owned = assigned.timers
        if owned is None:
            return super().route(due, assigned, now_ns, indexes, re_append_reason=re_append_reason)
        if indexes is None:
            owned.confirmed(assigned.queue.next_offset or 0)
        groups: list[HopGroup] = []
        for index in range(len(due.records)) if indexes is None else indexes:
            groups += self._command(_Told(index, due, assigned, owned, now_ns, re_append_reason))
        return groups

    def _command(self, told: "_Told") -> list[HopGroup]:
        record, owned = told.record, told.owned
        reason = self.marks.reasons.get(RecordCoordinates(*told.assigned.key, record.offset()), "")
        judged = self._rules.judge(record)
        table = owned.table
        if record.offset() < owned.skip_below or table is None:
            return [_nothing(told.index)]
        if not judged.is_command:
            return [self._no_command(told, judged, reason)]
        change = owned.changes.get(record.offset())
        if change is None:
            change = owned.changes[record.offset()] = self._rules.apply(table, record, judged)
            self._alarm.counts.count_timer(judged.envelope.timer_do or "", is_effective=change.is_change)
        if reason:  # its hop was refused: the name is free again
            name = timer_digest(judged.envelope.real_topic or "", judged.envelope.timer or "")
            is_freed = change.effect is Effect.SCHEDULE and table.forget(name, record.offset())
            parked = self._park(told.index, record, reason)
            return [self._state(told, judged, Change(Effect.FORGET, None, None)), parked] if is_freed else [parked]
        effect = self._effect(told, judged, change)
        has_state = owned.changes[record.offset()].is_change and effect.kind is not Kind.NOT_YET
        # the state first: at least once, a run that delivers nothing is finished with its last effect
        return [self._state(told, judged, change), effect] if has_state else [effect]

    def _no_command(self, told: "_Told", judged: _Judged, reason: str) -> HopGroup:
        """Return where a record goes that is no command of this partition."""
        if judged.reason or reason:
            return self._park(told.index, told.record, reason or judged.reason)
        if judged.is_misplaced:
            out = forwarded(told.record, judged.envelope, self._names, due_ms=judged.due_ms)
        else:
            partition = self._queue_for(judged.due_ms, told)
            out = put_back(told.record, judged.envelope, self._names, due_ms=judged.due_ms, partition=partition)
        return _hop(told.index, out, judged.due_ms)

    def _effect(self, told: "_Told", judged: _Judged, change: Change) -> HopGroup:
        match change.effect:
            case Effect.SCHEDULE:
                partition = self._queue_for(change.due_ms, told)
                out = scheduled_timer(
                    told.record, judged.envelope, self._names, due_ms=change.due_ms, partition=partition
                )
                return _hop(told.index, out, change.due_ms)
            case Effect.DELIVER:
                return self._now(told, told.record, max(0, told.clock_ms - judged.due_ms))
            case Effect.DELIVER_PENDING:
                return self._deliver_pending(told, judged, change)
            case _:
                return _nothing(told.index)

    def _deliver_pending(self, told: "_Told", judged: _Judged, change: Change) -> HopGroup:
        """Deliver the message that a NOW names; it is read from the log first."""
        owned, offset, generation = told.owned, told.record.offset(), change.before or 0
        if offset not in owned.messages:
            if offset not in owned.asked and self.loader is not None:
                self.loader.fetch(owned, told.assigned.number, offset=offset, generation=generation)
            return HopGroup(Kind.NOT_YET, target=owned.loaded, first=(told.index, None, None, [], 0))
        message = owned.messages[offset]
        if message is not None:
            return self._now(told, message, 0)
        # retention has deleted it from the log; it still waits in the schedule topic, and fires at its time
        name = timer_digest(judged.envelope.real_topic or "", judged.envelope.timer or "")
        if owned.table is not None and name not in owned.table.live:
            owned.table.load(name, generation, is_pending=True)
        owned.changes[offset] = Change(Effect.NOTHING, generation, generation)
        self._alarm("worker.timer-not-now", record=coordinates(told.record))
        return _nothing(told.index)

    def _now(self, told: "_Told", message: Any, late_ms: int) -> HopGroup:
        return self.deliver_now(
            told.index,
            message,
            late_ms=late_ms,
            clock_ms=told.clock_ms,
            now_ns=told.now_ns,
            re_append_reason=told.re_append_reason,
        )

    def _state(self, told: "_Told", judged: _Judged, change: Change) -> HopGroup:
        out = timer_state(
            self._names,
            told.assigned.number,
            judged.envelope,
            applied=told.record.offset(),
            generation=change.after,
            due_ms=change.due_ms,
            since_ms=change.since_ms,
        )
        return HopGroup(
            Kind.STATE, out.topic, out.partition or 0, first=(told.index, out.value, out.key, out.headers, 0)
        )

    def _queue_for(self, due_ms: int, told: "_Told") -> int:
        """Return the queue of the schedule topic for a message; each partition of the log has its lane."""
        lanes = (self.targets.target(self._names.schedule, told.now_ns).partitions or 0) // self._levels.STRIDE
        return self._levels.queue_for(due_ms - told.clock_ms, told.assigned.number % max(1, lanes))


@dataclass(slots=True)
class _Told:
    """One record of a run, and when and why it is routed."""

    index: int
    due: Due[Any]
    assigned: AssignedPartition
    owned: OwnedTimers
    now_ns: int
    re_append_reason: str

    @property
    def record(self) -> Any:
        return self.due.records[self.index]

    @property
    def clock_ms(self) -> int:
        return self.due.clock_ms(self.now_ns)


def _nothing(index: int) -> HopGroup:
    return HopGroup(Kind.SKIP, first=(index, None, None, [], 0))


def _hop(index: int, out: OutgoingRecord, due_ms: int) -> HopGroup:
    return HopGroup(Kind.REQUEUE, out.topic, out.partition or 0, first=(index, out.value, out.key, out.headers, due_ms))
