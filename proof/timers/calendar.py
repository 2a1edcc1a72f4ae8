"""When lines of cron are due, found by looking at every minute: the oracle for messages that recur. Pure.

It knows nothing of the library's way. What it says of changes of the clock is what `docs/timers.md` promises: a time
that does not exist comes when the clock is set forward, one that exists twice comes the first time, and `*` in the
minutes or hours counts every hour that passes.
"""

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

__all__ = ["occurrences"]

_MINUTE = timedelta(minutes=1)
_LONGEST_CHANGE = timedelta(hours=4)
_RANGES = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))


def occurrences(line: str, tz: str, after: datetime, until: datetime) -> set[int]:
    """Return when a line of cron is due after a time and until another, epoch ms. Times have their zones."""
    fields = line.split()
    if fields[0].startswith("*") or fields[1].startswith("*"):
        found = _minutes_that_pass(fields, ZoneInfo(tz), after, until)
    else:
        found = _minutes_of_the_wall(fields, ZoneInfo(tz), after, until)
    return {round(each.timestamp() * 1_000) for each in found if after < each <= until}


def _minutes_that_pass(fields: list[str], zone: ZoneInfo, after: datetime, until: datetime) -> set[datetime]:
    minute, found = after.astimezone(UTC).replace(second=0, microsecond=0), set()
    while minute <= until:
        if _fits(fields, minute.astimezone(zone)):
            found.add(minute)
        minute += _MINUTE
    return found


def _minutes_of_the_wall(fields: list[str], zone: ZoneInfo, after: datetime, until: datetime) -> set[datetime]:
    wall = (after.astimezone(zone) - timedelta(days=1)).replace(tzinfo=None, second=0, microsecond=0)
    last, found = until.astimezone(zone).replace(tzinfo=None), set()
    while wall <= last:
        if _fits(fields, wall):
            found.add(_first_moment(wall, zone))
        wall += _MINUTE
    return found


def _first_moment(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the first moment at which a clock of the zone shows this time, or a later one."""
    moment = wall.replace(tzinfo=UTC) - zone.utcoffset(wall) - _LONGEST_CHANGE  # type: ignore[operator]
    while moment.astimezone(zone).replace(tzinfo=None) < wall:
        moment += _MINUTE
    return moment


def _fits(fields: list[str], time: datetime) -> bool:
    minute, hour, day, month, weekday = (
        _numbers(field, *bounds) for field, bounds in zip(fields, _RANGES, strict=True)
    )
    is_day, is_weekday = time.day in day, bool({time.isoweekday(), time.isoweekday() % 7} & weekday)
    has_star = fields[2].startswith("*") or fields[4].startswith("*")
    is_today = (is_day and is_weekday) if has_star else (is_day or is_weekday)
    return time.minute in minute and time.hour in hour and time.month in month and is_today


def _numbers(field: str, least: int, most: int) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = (f"{least}-{most}" if span == "*" else span).partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found
