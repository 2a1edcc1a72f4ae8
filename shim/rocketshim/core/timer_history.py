"""What became of a name of a timer: the commands for it in the log, and what each of them did. Pure.

The log alone decides, so its records tell everything, as far back as retention has left them. The worker's stored state
adds the names that are pending since before the log's first record. Of any other name that may have been pending then,
the effect of a command is unknown until a SET, a CANCEL or a NOW: from there on it is certain.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from rocketshim.core.named_timers import Command, Effect, TimerTable
from rocketshim_topics.errors import MalformedRecordError
from rocketshim_topics.hops import command_problem, is_misplaced, timer_times
from rocketshim_topics.wire import REAL_TOPIC, TIMER, decode, read_headers

__all__ = ["TimerEvent", "TimerFate", "TimerHistory", "timer_histories"]


class TimerFate(Enum):
    """What became of a message with a name."""

    PENDING = "pending"
    FIRED = "fired"  # it was due, and is delivered
    DELIVERED_NOW = "delivered-now"  # by a NOW, before it was due
    CANCELLED = "cancelled"
    REPLACED = "replaced"  # by another SET
    DROPPED = "dropped"  # it was sent with `if_absent`, and another one was pending
    UNKNOWN = "unknown"  # the log does not have it (any more)


_BEGINS: Final[dict[Effect | None, TimerFate]] = {
    Effect.SCHEDULE: TimerFate.PENDING,
    Effect.NOTHING: TimerFate.DROPPED,
}
_ENDS: Final[dict[Effect | None, TimerFate]] = {
    Effect.SCHEDULE: TimerFate.REPLACED,
    Effect.FORGET: TimerFate.CANCELLED,
    Effect.DELIVER: TimerFate.FIRED,
    Effect.DELIVER_PENDING: TimerFate.DELIVERED_NOW,
    None: TimerFate.UNKNOWN,
}


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


@dataclass(frozen=True, slots=True)
class TimerHistory:
    """The commands for one name that the log has, in its order."""

    events: tuple[TimerEvent, ...]
    is_certain: bool  # False: a message that was set before the log's first record may be pending
    before: int | None = None  # the generation that was pending before the log's first record, if that is known

    @property
    def last(self) -> int | None:
        """Return the generation that was set last; None: none is known."""
        return next((each.offset for each in reversed(self.events) if each.after == each.offset), self.before)

    def fate(self, generation: int | None = None) -> tuple[TimerFate, TimerEvent | None]:
        """Return what became of a generation (None: of the last one), and the command that decided it.

        Decides: What became of a message with a name?
        """
        generation = self.last if generation is None else generation
        ends = [each for each in self.events if each.before == generation is not None and each.effect in _ENDS]
        for each in sorted(ends, key=lambda each: each.effect is None):
            return _ENDS[each.effect], each
        for each in self.events:
            if each.after == generation == each.offset and each.command is Command.FIRE:
                return TimerFate.PENDING, each  # the next occurrence of a message that recurs
            if each.offset == generation and each.command in {Command.SET, Command.SET_IF_ABSENT}:
                return _BEGINS.get(each.effect, TimerFate.UNKNOWN), each
        return TimerFate.UNKNOWN if generation is None or generation != self.before else TimerFate.PENDING, None


def timer_histories(
    records: Iterable[Any], topic: str, names: Iterable[str], *, first_offset: int, stored: Mapping[str, int]
) -> dict[str, TimerHistory]:
    """Return what became of names of a target topic, which have one partition of the log.

    `records` are all that this partition has, in order, from `first_offset` on. `stored` has the generation of each
    name that the worker had stored as pending before these records were read.
    """
    table, target = TimerTable(), topic.encode()
    events: dict[bytes, list[TimerEvent]] = {name.encode(): [] for name in names}
    before = {name.encode(): generation for name, generation in stored.items() if generation < first_offset}
    certain = {name: first_offset == 0 or name in before for name in events}
    for key, generation in before.items():
        table.load(key, generation, is_pending=True)
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
                name,
                generation=envelope.timer_set_at,
                due_ms=times.next_ms,
                appended_ms=stored_ms,
                at_most_ms=envelope.timer_at_most_ms,
                recurs=envelope.timer_repeat is not None,
                is_missed=times.is_missed,
            )
            certain[name] |= command is Command.SET or change.effect is Effect.DELIVER
            # a NOW needs the message itself, which retention may have deleted
            is_lost = change.effect is Effect.DELIVER_PENDING and (change.before or 0) < first_offset
            is_known = certain[name] and not is_lost
            effect = change.effect if is_known else None
            certain[name] |= command in {Command.CANCEL, Command.NOW}
            due = change.due_ms if change.after == offset else None
            msg_id = envelope.uniq_key or f"{record.topic()}/{record.partition()}/{offset}"
            event = TimerEvent(offset, stored_ms, command, effect, change.before, change.after, due, msg_id)
            events[name].append(event)
    return {key.decode(): TimerHistory(tuple(each), certain[key], before.get(key)) for key, each in events.items()}
