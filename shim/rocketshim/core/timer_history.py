"""What became of a name of a timer: the commands for it in the log, and what each of them did. Pure.

The log alone decides, so its records tell everything, as far back as retention has left them. The worker's stored state
adds the names that are pending since before the log's first record. Of any other name that may have been pending then,
the effect of a command is unknown until a SET, a CANCEL or a NOW: from there on it is certain.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, NamedTuple

from rocketshim.core.named_timers import Command, Effect, TimerTable
from rocketshim_topics.errors import MalformedRecordError
from rocketshim_topics.hops import checks_left, command_problem, is_misplaced, timer_digest, timer_times
from rocketshim_topics.hops.timers import COMMANDED_BY
from rocketshim_topics.wire import REAL_TOPIC, TIMER, decode, read_headers

__all__ = ["PendingTimer", "TimerEvent", "TimerFate", "TimerHistory", "TimerOutcome", "timer_histories"]


class PendingTimer(NamedTuple):
    """A name that the worker has stored as pending. Plain, since there may be a million."""

    due_ms: int
    topic: str
    name: str
    partition: int
    generation: int
    recurs: bool = False
    asks: str = ""  # of a half message: the producer group that is asked
    asked: int = 0  # how often it was


class TimerFate(StrEnum):
    """What became of a message with a name. Each is a text, too: `outcome.fate == "fired"`."""

    PENDING = "pending"
    FIRED = "fired"  # it was due, and is delivered
    DELIVERED_NOW = "delivered-now"  # by a NOW, before it was due
    CANCELLED = "cancelled"
    REPLACED = "replaced"  # by another SET
    ASKED = "asked"  # its producers were asked for the outcome of a transaction, and it waits again
    UNANSWERED = "unanswered"  # they were asked often enough, and it is parked
    DROPPED = "dropped"  # it was sent with `if_absent`, and another one was pending
    UNKNOWN = "unknown"  # the log does not have it (any more)


_BEGINS: Final[dict[Effect | None, TimerFate]] = {
    Effect.SCHEDULE: TimerFate.PENDING,
    Effect.NOTHING: TimerFate.DROPPED,
}
_DELIVERED: Final = frozenset({TimerFate.FIRED, TimerFate.DELIVERED_NOW})
_ENDS: Final[dict[Effect | None, TimerFate]] = {
    Effect.SCHEDULE: TimerFate.REPLACED,
    Effect.FORGET: TimerFate.CANCELLED,
    Effect.DELIVER: TimerFate.FIRED,
    Effect.DELIVER_PENDING: TimerFate.DELIVERED_NOW,
    Effect.ASK: TimerFate.ASKED,
    Effect.GIVE_UP: TimerFate.UNANSWERED,
    None: TimerFate.UNKNOWN,
}


_BY_HAND: Final = frozenset({Command.CANCEL, Command.NOW})
_FIRES: Final = frozenset({Effect.DELIVER, Effect.ASK, Effect.GIVE_UP})


@dataclass(frozen=True, slots=True)
class TimerEvent:
    """One command for a name. The generation of a message is the offset of the command that set it."""

    offset: int
    stored_ms: int  # append time, epoch ms
    command: Command
    effect: Effect | None  # None: unknown
    before: int | None  # the generation that was pending
    after: int | None  # the generation that is pending since
    due_ms: int | None  # of a message that is set, epoch ms
    msg_id: str  # of the message; of a CANCEL or NOW its own
    asks: str = ""  # of a half message: the producer group that is asked
    by: str = ""  # the person who gave the command, if that is known


@dataclass(frozen=True, slots=True)
class TimerOutcome:
    """What became of a message with a name, as far as the log of timers has decided by now.

    Attributes:
        fate: what became of it. `PENDING` may still change. Only the message of a given send may be `REPLACED` or
            `DROPPED`. `UNKNOWN`: the log does not have it (any more), or nothing was ever sent under the name.
        set_at: offset of the command that set the message, the `queue_offset` of its send; of a message that recurs,
            of the command that set its next occurrence. None: unknown.
        due_ms: when the message is due, or was, epoch ms; None: unknown.
        decided_ms: when the broker stored the command that ended the waiting, epoch ms; None: it is pending or unknown.
        is_cancel_late: the message is delivered, and a cancel for it was stored later.
        log_begins_ms: age of the oldest record that is left of this part of the log, epoch ms. What was decided before
            is unknown. None: nothing was deleted.
    """

    fate: TimerFate
    set_at: int | None
    due_ms: int | None
    decided_ms: int | None
    is_cancel_late: bool
    log_begins_ms: int | None


@dataclass(frozen=True, slots=True)
class TimerHistory:
    """The commands for one name that the log has, in its order."""

    events: tuple[TimerEvent, ...]
    is_certain: bool  # False: a message that was set before the log's first record may be pending
    before: int | None = None  # the generation that was pending before the log's first record, if that is known
    stored: PendingTimer | None = None  # what the worker had stored
    begins_ms: int | None = None  # append time of the first record that the log has left, if others were deleted

    @property
    def last(self) -> int | None:
        """Return the generation that was set last; None: none is known."""
        return next((each.offset for each in reversed(self.events) if each.after == each.offset), self.before)

    def fate(self, generation: int | None = None) -> tuple[TimerFate, TimerEvent | None]:
        """Return what became of a generation (None: of the last one), and the command that decided it.

        Decides: What became of a message with a name? What the command did that ended it; as long as none has: pending.
        """
        generation = self.last if generation is None else generation
        begin = next((each for each in self.events if each.offset == generation), None)
        is_set = begin is None or begin.effect is not None  # otherwise only its FIRE shows that it was pending
        ends = [
            each
            for each in self.events
            if each.before == generation is not None and each.after != generation and each.effect in _ENDS
            if is_set or each.command is Command.FIRE
        ]
        for each in sorted(ends, key=lambda each: each.effect is None):
            return _ENDS[each.effect], each
        for each in self.events:
            if each.after == generation == each.offset and each.command is Command.FIRE:
                return TimerFate.PENDING, each  # the next occurrence of a message that recurs
            if each.offset == generation and each.command in {Command.SET, Command.SET_IF_ABSENT}:
                return _BEGINS.get(each.effect, TimerFate.UNKNOWN), each
        return TimerFate.UNKNOWN if generation is None or generation != self.before else TimerFate.PENDING, None

    def due_ms(self, generation: int | None) -> int | None:
        """Return when a generation is due, epoch ms; None: that is unknown."""
        if self.stored is not None and self.stored.generation == generation:
            return self.stored.due_ms
        return next((each.due_ms for each in self.events if each.offset == generation == each.after), None)

    def outcome(self, command: int | None = None) -> TimerOutcome:
        """Return what became of the message that the command at an offset sent, or was for; None: of the last one.

        Of a message that recurs, the newest occurrence counts.
        """
        generation = self.last if command is None else self._message_of(command)
        for each in self.events:  # in the order of the log, in which the occurrences follow each other
            if each.command is Command.FIRE and each.before == generation is not None and each.after == each.offset:
                generation = each.after
        fate, event = self.fate(generation) if generation is not None else (TimerFate.UNKNOWN, None)
        is_over = event is not None and fate not in {TimerFate.PENDING, TimerFate.UNKNOWN}
        is_late = event is not None and fate in _DELIVERED and self._is_cancelled_after(event.offset)
        ended_ms = event.stored_ms if event is not None and is_over else None
        return TimerOutcome(fate, generation, self.due_ms(generation), ended_ms, is_late, self.begins_ms)

    def _message_of(self, command: int) -> int | None:
        """Return the generation that a command set, or else that it ended, or else that was set last before it."""
        generation = self.before
        for each in self.events:
            if each.offset > command:
                break
            if each.offset == command and each.command in {Command.SET, Command.SET_IF_ABSENT}:
                return command
            if each.after == each.offset:
                generation = each.after
        return generation

    def _is_cancelled_after(self, offset: int) -> bool:
        """Return whether the next command that follows one for this name, FIREs apart, is a CANCEL."""
        later = (each.command for each in self.events if each.offset > offset)
        return next((each for each in later if each not in {Command.FIRE, Command.NOW}), None) is Command.CANCEL


def timer_histories(
    records: Iterable[Any],
    topic: str,
    names: Iterable[str],
    *,
    first_offset: int,
    stored: Mapping[str, PendingTimer],
    begins_ms: int | None = None,
) -> dict[str, TimerHistory]:
    """Return what became of names of a target topic, which have one partition of the log.

    `records` are all that this partition has, in order, from `first_offset` on. `stored` has what the worker had stored
    of each pending name before these records were read.
    """
    table, target = TimerTable(), topic.encode()
    events: dict[bytes, list[TimerEvent]] = {name.encode(): [] for name in names}
    known = {name.encode(): each for name, each in stored.items() if each.generation < first_offset}
    before = {key: each.generation for key, each in known.items()}
    certain = {name: first_offset == 0 or name in before for name in events}
    for each in known.values():
        table.load(timer_digest(topic, each.name), each.generation, is_pending=True, recurs=each.recurs)
    for record in records:
        with suppress(MalformedRecordError):
            headers = read_headers(record)
            found = dict(headers or ())
            name = found.get(TIMER)
            if found.get(REAL_TOPIC) != target or name not in events:
                continue
            envelope = decode(headers, trusted=True)
            if command_problem(record, envelope) or is_misplaced(record, envelope):
                continue
            command, offset, stored_ms = Command(envelope.timer_do), record.offset(), record.timestamp()[1]
            times = timer_times(envelope, stored_ms)
            change = table.apply(
                offset,
                command,
                timer_digest(topic, envelope.timer or ""),
                generation=envelope.timer_set_at,
                due_ms=times.next_ms,
                appended_ms=stored_ms,
                at_most_ms=envelope.timer_at_most_ms,
                recurs=envelope.timer_repeat is not None,
                is_missed=times.is_missed,
                checks_left=checks_left(envelope),
            )
            certain[name] |= command is Command.SET or change.effect in _FIRES
            # a NOW needs the message itself, which retention may have deleted
            is_lost = change.effect is Effect.DELIVER_PENDING and (change.before or 0) < first_offset
            is_known = certain[name] and not is_lost
            effect = change.effect if is_known else None
            certain[name] |= command in _BY_HAND
            due = change.due_ms if change.after == offset else None
            msg_id = envelope.uniq_key or f"{record.topic()}/{record.partition()}/{offset}"
            by = (found.get(COMMANDED_BY) or b"").decode("utf-8", "replace") if command in _BY_HAND else ""
            ids = (msg_id, envelope.timer_asks or "", by)
            event = TimerEvent(offset, stored_ms, command, effect, change.before, change.after, due, *ids)
            events[name].append(event)
    return {
        name: TimerHistory(tuple(events[key]), certain[key], before.get(key), stored.get(name), begins_ms)
        for key, name in ((key, key.decode()) for key in events)
    }
