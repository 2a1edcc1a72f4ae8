"""Named timers: where the commands of the timer log go.

`core.named_timers` decides what a command does; `rocketshim_topics.hops.timers` makes its records. A partition of the
log is a queue without a delay for the rest of the worker, and `worker.timer_state` has its state. Rules of this file:

* What a command does is decided once, in the order of the log (`OwnedTimers.changes`). A record that is routed again,
  since its hop was refused or its transaction aborted, gets the same answer. A NOW is decided when its message was
  read; the commands behind it wait.
* Exactly once: effects and position are one transaction, and the state is part of it or of a later one
  (`worker.exactly_once.UnsavedStates`). At least once: effects, then the state, then the position, and the next run of
  the partition leaves when all of that is stored.
* A FIRE that counts is an ordinary due record from then on: its target may be slow, missing or refused
  (`worker.router`), and a re-appended record has no name any more.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from operator import methodcaller
from typing import Any, Final

from rocketshim.core.level_queue import Due
from rocketshim.core.named_timers import Change, Command, Effect, TimerTable
from rocketshim.core.worker_notes import UNANSWERED
from rocketshim.worker.assignment import AssignedPartition
from rocketshim.worker.hop_writer import Action, HopGroup, HopRecord, hop_record, merged
from rocketshim.worker.router import TOO_LATE, Router
from rocketshim.worker.state import Alarms
from rocketshim.worker.timer_state import Judged, OwnedTimers, TimerLoader, TimerRules
from rocketshim_topics.hops import OutgoingRecord, check, forwarded, put_back, scheduled_timer
from rocketshim_topics.names import TopicNames
from rocketshim_topics.wire import TIMER_REPEAT, coordinates, headers_shown

__all__ = ["TimerRouter"]

_FETCHED_AHEAD: Final = 16
_OFFSET: Final = methodcaller("offset")


class TimerRouter(Router):
    """A `Router` that knows the commands of named timers, too."""

    def __init__(self, names: TopicNames, *args: Any, rules: TimerRules, alarm: Alarms, **named: Any) -> None:
        super().__init__(names, *args, **named)
        self.loader: TimerLoader | None = None
        self._rules = rules
        self._alarm, self._counts = alarm, alarm.counts

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
        indexes = range(len(due.records)) if indexes is None else indexes
        for at, index in enumerate(indexes):
            told = _Told(index, due, assigned, owned, now_ns, re_append_reason)
            if found := self._command(told):
                groups += found
            else:  # the log decides in its order
                self._fetch_ahead(told, indexes[at:])
                groups += [HopGroup(Action.NOT_YET, target=owned.loaded, first=_empty(each)) for each in indexes[at:]]
                break
        return merged(groups)

    def _command(self, told: "_Told") -> list[HopGroup]:
        """Return the hops of a record; none: the message that it delivers is not read yet."""
        record, owned = told.record, told.owned
        table = owned.table
        if record.offset() < owned.skip_below or table is None:
            return [_nothing(told.index)]
        reason = self.refusals.reason(record)
        judged = self._rules.judge(record)
        if not judged.is_command:
            return [self._no_command(told, judged, reason)]
        change = owned.changes.get(record.offset())
        if change is None:
            change = self._decide(told, judged, table)
            if change is None:
                return []
            owned.changes[record.offset()] = change
            if change.effect is Effect.SCHEDULE and self._is_too_late(record, judged):
                reason = reason or TOO_LATE
                self.refusals.park(record, reason)
            owned.drop_half(judged.name, change.before)
            if change.effect is Effect.SCHEDULE and judged.envelope.timer_asks is not None:
                owned.keep_half(judged.name, record)
            self._counts.count_timer(judged.envelope.timer_do or "", change)
        effect = self._refused(told, judged, change, reason) if reason else self._effect(told, judged, change)
        change = owned.changes[record.offset()]
        if not change.is_change or effect.action is Action.NOT_YET:
            return [effect]
        following = [self._scheduled(told, judged, change, Action.NEXT)] if change.sets_next else []
        return [*following, self._state(told, judged, change), effect]

    def _decide(self, told: "_Told", judged: Judged, table: TimerTable) -> Change | None:
        """Return what a command does; None: the message that it delivers is not read yet.

        A NOW changes nothing if retention has deleted its message from the log: it still waits in the schedule topic,
        and comes at its time.
        """
        generation = table.pending(judged.name) if judged.envelope.timer_do == Command.NOW.value else None
        if generation is not None:
            if not self._is_read(told.owned, told.due.records, told.record.offset(), judged.name, generation):
                return None
            if told.owned.messages[told.record.offset()][1] is None:
                self._alarm("worker.timer-not-now", record=coordinates(told.record))
                return Change(Effect.NOTHING, generation, generation)
        return self._rules.apply(table, told.record, judged)

    def _is_read(self, owned: OwnedTimers, run: list[Any], offset: int, name: bytes, generation: int) -> bool:
        """Return whether the message of the NOW at an offset is known; it may be a record of the same run."""
        if owned.messages.get(offset, (-1, None))[0] == generation:
            return True
        if (half := owned.halves.get((name, generation))) is not None:
            owned.messages[offset] = generation, half
            return True
        at = bisect_left(run, generation, key=_OFFSET)
        if at == len(run) or run[at].offset() != generation or self._rules.judge(run[at]).name != name:
            return False
        owned.messages[offset] = generation, run[at]
        return True

    def _fetch_ahead(self, told: "_Told", indexes: Sequence[int]) -> None:
        """Have the messages read that the next commands of a run deliver."""
        owned, run = told.owned, told.due.records
        if self.loader is None or owned.table is None:
            return
        for record in (run[index] for index in indexes):
            judged = self._rules.judge(record)
            if not judged.is_command or judged.envelope.timer_do != Command.NOW.value:
                continue
            generation = owned.table.pending(judged.name)
            if generation is None or self._is_read(owned, run, record.offset(), judged.name, generation):
                continue
            self.loader.fetch(owned, told.assigned.number, judged.name, offset=record.offset(), generation=generation)
            if len(owned.asked) >= _FETCHED_AHEAD:
                return

    def _is_too_late(self, record: Any, judged: Judged) -> bool:
        delay_ms: int = judged.due_ms - record.timestamp()[1]
        return judged.envelope.timer_repeat is None and delay_ms > self._max_delay_ms

    def _refused(self, told: "_Told", judged: Judged, change: Change, reason: str) -> HopGroup:
        """Park the message of a command whose hop was refused; if it cannot wait, its name is free again."""
        owned, offset = told.owned, told.record.offset()
        if change.effect is Effect.ASK:
            return self._not_asked(told, reason)
        if change.effect is Effect.SCHEDULE:
            if owned.table is not None:
                owned.table.forget(judged.name, offset)
            owned.changes[offset] = Change(Effect.FORGET, offset, None)
            owned.must_save = True
        _, message = owned.messages.get(offset, (0, None))
        return self._park(told.index, told.record if message is None else message, reason, marked=told.record)

    def _no_command(self, told: "_Told", judged: Judged, reason: str) -> HopGroup:
        """Return where a record goes that is no command of this partition."""
        if judged.reason or reason:
            return self._park(told.index, told.record, reason or judged.reason)
        if judged.is_misplaced:
            out = forwarded(told.record, judged.envelope, self._names, due_ms=judged.due_ms)
        else:
            partition = self._queue_for(judged.due_ms, told)
            out = put_back(told.record, judged.envelope, self._names, due_ms=judged.due_ms, partition=partition)
        return _hop(told.index, out, judged.due_ms)

    def _effect(self, told: "_Told", judged: Judged, change: Change) -> HopGroup:
        match change.effect:
            case Effect.SCHEDULE:
                return self._scheduled(told, judged, change, Action.REQUEUE)
            case Effect.DELIVER:
                occurrence = f"{judged.due_ms}" if judged.envelope.timer_repeat is not None else ""
                return self._now(told, told.record, max(0, told.clock_ms - judged.due_ms), occurrence)
            case Effect.ASK:
                return self._question(told, judged)
            case Effect.GIVE_UP:
                return self._park(told.index, told.record, UNANSWERED)
            case Effect.DELIVER_PENDING:
                _, message = told.owned.messages[told.record.offset()]
                recurs = TIMER_REPEAT in dict(headers_shown(message))
                return self._now(told, message, 0, f"{told.record.offset()}" if recurs else "")
            case _:
                return _nothing(told.index)

    def _question(self, told: "_Told", judged: Judged) -> HopGroup:
        """Return the question to the producers of a half message. One that cannot be stored is left out.

        Decides: What if a check of a transaction cannot be delivered? Nothing is parked or repeated for it: the next
            one follows, and after the last one the half message is parked.
        """
        out = check(told.record, judged.envelope, self._names)
        target = self.targets.target(out.topic, told.now_ns)
        if told.now_ns < target.ready_ns:
            return HopGroup(Action.NOT_YET, target=target, first=_empty(told.index))
        if told.re_append_reason or target.partitions == 0 or not target.may_try(told.now_ns):
            return self._not_asked(told, told.re_append_reason or target.avoid_reason or f"unknown-topic:{out.topic}")
        target.turn += 1
        partition = -1 if target.partitions is None else target.turn % target.partitions
        first = hop_record(told.index, out, judged.due_ms)
        one_per_batch = told.now_ns < target.careful_until_ns
        return HopGroup(Action.DELIVER, out.topic, partition, target=target, one_per_batch=one_per_batch, first=first)

    def _not_asked(self, told: "_Told", reason: str) -> HopGroup:
        self._alarm("worker.check-not-stored", record=coordinates(told.record), reason=reason)
        return _nothing(told.index)

    def _scheduled(self, told: "_Told", judged: Judged, change: Change, action: Action) -> HopGroup:
        partition = self._queue_for(change.due_ms, told)
        out = scheduled_timer(
            told.record, judged.envelope, self._names, due_ms=change.due_ms, partition=partition, era=told.owned.era
        )
        return _hop(told.index, out, change.due_ms, action)

    def _now(self, told: "_Told", message: Any, late_ms: int, occurrence: str) -> HopGroup:
        """Deliver a message; each occurrence of one that recurs is a message of its own."""
        return self.deliver_now(
            told.index,
            message,
            occurrence=occurrence,
            late_ms=late_ms,
            clock_ms=told.clock_ms,
            now_ns=told.now_ns,
            re_append_reason=told.re_append_reason,
        )

    def _state(self, told: "_Told", judged: Judged, change: Change) -> HopGroup:
        out = self._rules.state(told.record, judged, change, told.assigned.number, told.owned.era)
        return _hop(told.index, out, 0, Action.STATE)

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
    return HopGroup(Action.SKIP, first=_empty(index))


def _empty(index: int) -> HopRecord:
    return index, None, None, [], 0


def _hop(index: int, out: OutgoingRecord, due_ms: int, action: Action = Action.REQUEUE) -> HopGroup:
    return HopGroup(action, out.topic, out.partition or 0, first=hop_record(index, out, due_ms))
