"""When a recurring message is due: a line of cron in a time zone, or a fixed time again and again.

An occurrence follows from the one before and from the brokers' clock, so that any worker continues where another one
has stopped. Changes of daylight saving time are as in Debian's cron (the library `cronsim`): a time that does not exist
on that day comes immediately after the change, one that exists twice comes the first time, and `*` in the hours counts
real hours. Not handled: where clocks change by half an hour (only on Lord Howe Island), `cronsim` may pass over the
next time of a line with `*` in the minutes or hours.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

from rocketshim_topics.durations import Duration, parse_duration_ms
from rocketshim_topics.errors import ConfigError, MessageError

__all__ = ["LATE", "Recurrence"]

LATE: Final = ("once", "skip")
"""What becomes of an occurrence whose successor is due, too: it is delivered, or not."""

_LEAST_MS: Final = 1_000
_FIELDS: Final = 5


@dataclass(frozen=True, slots=True)
class Recurrence:
    """When a message recurs. Immutable.

    Args:
        line: five fields of cron (`0 9 * * 1-5`), or a duration of 1 s or more (`15m`).
        tz: time zone of a cron line, as `Europe/Berlin`.
        late: `once`: what was missed, since no worker ran, is delivered once. `skip`: an occurrence is not delivered if
            the next one is due already.

    Raises:
        MessageError: from `check`: the line is neither, or never comes; the zone is not known.
    """

    line: str
    tz: str = "UTC"
    late: str = "once"

    @classmethod
    def of_cron(cls, line: object, tz: object = None, late: object = None) -> "Recurrence":
        """Return the recurrence of a cron line; None: UTC, and `once`."""
        if not isinstance(line, str):
            raise _no_line(line)
        if tz is not None and not isinstance(tz, str):
            raise MessageError(f"tz is {tz!r:.80}: give the name of a time zone, as 'Europe/Berlin'")
        return cls(" ".join(line.split()), tz or "UTC", _late(late)).check()

    @classmethod
    def of_every(cls, every: Duration, late: object = None) -> "Recurrence":
        """Return the recurrence of a duration."""
        try:
            every_ms = parse_duration_ms(every)
        except ConfigError as error:
            raise MessageError(f"every: {error}") from error
        if every_ms < _LEAST_MS:
            raise MessageError(f"every is {every_ms} ms: it is 1 s or more")
        return cls(f"{every_ms}ms", "UTC", _late(late))

    def check(self) -> "Recurrence":
        """Return this recurrence; raise `MessageError` if it never comes, or cannot be."""
        now_ms = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1_000)
        _late(self.late)
        if self._every_ms is None and self.next_ms(now_ms, now_ms) is None:
            raise MessageError(f"cron is {self.line!r:.80}: it never comes: give a day that the month has")
        return self

    @property
    def _every_ms(self) -> int | None:
        fields = len(self.line.split())
        if fields > 1:
            if fields != _FIELDS:
                raise _no_line(self.line)
            return None
        try:
            every_ms = parse_duration_ms(self.line)
        except ConfigError as error:
            raise MessageError(f"{self.line!r:.80} is neither a line of cron nor a duration") from error
        if every_ms < _LEAST_MS:
            raise MessageError(f"every is {every_ms} ms: it is 1 s or more")
        return every_ms

    def next_ms(self, due_ms: int, now_ms: int) -> int | None:
        """Return the first occurrence after both times, epoch ms; None: there is none within 50 years.

        Args:
            due_ms: of the occurrence before, or when the message was set. A duration counts from it.
            now_ms: by the brokers' clock.
        """
        every_ms = self._every_ms
        if every_ms is not None:
            return due_ms + every_ms * max(1, (now_ms - due_ms) // every_ms + 1)
        return _next_of_cron(self.line, self.tz, max(due_ms, now_ms))

    def is_missed(self, due_ms: int, now_ms: int) -> bool:
        """Return whether an occurrence is not delivered, since its successor is due."""
        following = self.next_ms(due_ms, due_ms)
        return self.late == "skip" and following is not None and following <= now_ms


def _no_line(line: object) -> MessageError:
    return MessageError(f"cron is {line!r:.80}: give five fields, minute hour day month weekday: '0 9 * * 1-5'")


def _late(late: object) -> str:
    if late is None:
        return LATE[0]
    if late not in LATE:
        raise MessageError(f"late is {late!r:.80}: it is {' or '.join(LATE)}")
    return str(late)


@lru_cache(maxsize=1_000)
def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (KeyError, OSError, ValueError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise MessageError(
            f"tz is {name!r:.80}: there is no such time zone here: give a name as 'Europe/Berlin'"
        ) from error


@lru_cache(maxsize=1_000)
def _next_of_cron(line: str, tz: str, after_ms: int) -> int | None:
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - only recurring messages need it

    after = datetime.fromtimestamp(after_ms / 1_000, _zone(tz))
    try:
        found = (round(each.timestamp() * 1_000) for each in CronSim(line, after))
        # In an hour that exists twice, the second time, CronSim begins with occurrences of the first time.
        return next((each_ms for each_ms in found if each_ms > after_ms), None)
    except CronSimError as error:
        raise MessageError(f"cron is {line!r:.80}: {error}") from error
