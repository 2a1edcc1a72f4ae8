"""What became of a named timer, in words, and which names are chosen: for commands and pages."""

import time
from contextlib import suppress
from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from rocketshim.admin.record_view import time_text
from rocketshim.admin.times import time_ms
from rocketshim.core.named_timers import Command, Effect
from rocketshim.core.timer_history import TimerEvent, TimerFate, TimerHistory
from rocketshim.errors import ConfigError
from rocketshim_topics import parse_duration_ms
from rocketshim_topics.durations import duration_text
from rocketshim_topics.partitioner import timer_partition

__all__ = ["FoundTimer", "from_now", "is_named", "moment_ms", "utc_text"]


def moment_ms(text: str, option: str, now_ms: int) -> int:
    """Return the time that a duration from now, or a time, names; epoch ms."""
    with suppress(ConfigError):
        return now_ms + parse_duration_ms(text)
    return time_ms(text, option, otherwise="a duration from now (30m, 2h, 3d), or ")


def is_named(found: str, wanted: str | None) -> bool:
    """Return whether a name is the wanted one, or fits its `*`, `?` and `[…]`; None: each does."""
    return wanted is None or found == wanted or fnmatchcase(found, wanted)


def from_now(at_ms: int, now_ms: int) -> str:
    """Return a time as a distance from now: `2h`, `30s ago`."""
    return duration_text(at_ms - now_ms) if at_ms >= now_ms else f"{duration_text(now_ms - at_ms)} ago"


def utc_text(at_ms: int) -> str:
    """Return a time with its zone, for a sentence."""
    return f"{time_text(at_ms)} UTC"


class FoundTimer:
    """What the log says of one name."""

    words: ClassVar[dict[Command, str]] = {}  # other names of commands
    also_shown: ClassVar[tuple[str, ...]] = ()  # fields that the outcome does not name

    def __init__(self, topic: str, name: str, history: TimerHistory) -> None:
        self.topic = topic
        self.name = name
        self.partition = timer_partition(topic, name)
        self.history = history
        self.due_ms = history.due_ms(history.last)

    @property
    def is_half(self) -> bool:
        """Whether it is a message in a transaction, which its producers end, or `rocketshim tx`."""
        stored = self.history.stored
        return bool(stored is not None and stored.asks) or any(each.asks for each in self.history.events)

    def check_kind(self) -> None:
        """Raise `ConfigError` if the name is of another kind."""
        if self.is_half:
            raise ConfigError(f"{self.name!r:.80} is the id of a message in a transaction: see `rocketshim tx`")

    @property
    def outcome(self) -> str:
        """What became of the last message."""
        fate, event = self.history.fate()
        begins = "" if self.history.begins_ms is None else f"; the log begins at {utc_text(self.history.begins_ms)}"
        if fate is TimerFate.PENDING:
            now_ms, due_ms = time.time_ns() // 1_000_000, self.due_ms or 0
            why = "" if due_ms >= now_ms else "; is a worker running, or was it parked?"
            when = from_now(due_ms, now_ms)
            return f"pending, due at {utc_text(due_ms)} ({when if why else f'in {when}'}){why}"
        if event is None or fate is TimerFate.UNKNOWN:
            return f"unknown: the log has no message of this name{begins}"
        return f"{fate.value} at {utc_text(event.stored_ms)}"

    def effect(self, event: TimerEvent) -> str:
        """What a command did."""
        match event.effect:
            case None:
                return "unknown, as the log does not have what was pending before"
            case Effect.SCHEDULE:
                replaced = "" if event.before is None else f", replaces that of offset {event.before}"
                return f"waits until {time_text(event.due_ms)}{replaced}"
            case Effect.FORGET:
                return f"in time: that of offset {event.before} is not delivered"
            case Effect.DELIVER | Effect.DELIVER_PENDING:
                return f"delivers that of offset {event.before}"
            case Effect.ASK:
                return f"asks the producers, and again at {time_text(event.due_ms)}"
            case Effect.GIVE_UP:
                return "parks it: no producer has answered"
            case Effect.NOTHING:
                return self._nothing(event)

    def _nothing(self, event: TimerEvent) -> str:
        if event.command is Command.SET_IF_ABSENT:
            return f"dropped: that of offset {event.before} is pending"
        if event.command is Command.FIRE:
            return "nothing: the message was cancelled, replaced or delivered before"
        before = [each for each in self.history.events if each.offset < event.offset]
        ended = next((each for each in reversed(before) if each.effect not in {None, Effect.NOTHING}), None)
        if ended is None or ended.effect is Effect.FORGET:
            return "nothing: no message was pending"
        return f"too late: {'parked' if ended.effect is Effect.GIVE_UP else 'delivered'} by offset {ended.offset}"

    def cells(self, event: TimerEvent) -> list[str]:
        """A row of the table."""
        at = f"{self.partition}/{event.offset}"
        word = self.word(event.command)
        return [at, time_text(event.stored_ms)[:-4], event.msg_id, word, event.by, self.effect(event)]

    def word(self, command: Command) -> str:
        """Return the name of a command."""
        return self.words.get(command, command.value)

    def facts(self) -> dict[str, Any]:
        """The same for programs: the fields of `TimerOutcome`, and what else the log shows."""
        return {
            "target": self.topic,
            "timer": self.name,
            **asdict(self.history.outcome()),
            "is_certain": self.history.is_certain,
            "partition": self.partition,
            "history": [
                {
                    "offset": each.offset,
                    "stored_ms": each.stored_ms,
                    "command": each.command.value,
                    "effect": None if each.effect is None else each.effect.value,
                    "before": each.before,
                    "after": each.after,
                    "due_ms": each.due_ms,
                    "id": each.msg_id,
                    "by": each.by or None,
                }
                for each in self.history.events
            ],
        }
