"""The figures of the flights file that comes with the package, and their scaling."""

from pathlib import Path

import pytest

from rocketshim.errors import ConfigError
from rocketshim_local.demo.flights import Timetable, load


def test_the_flights_file_has_the_documented_figures() -> None:
    day = load()
    assert len(day) == 943
    assert sum(flight.cancelled for flight in day) == 204
    assert sum(flight.late for flight in day) == 218
    assert [flight.line for flight in day] == list(range(1, 944))


def test_scaled_departures_are_in_order_and_within_the_day() -> None:
    day, timetable = load(), Timetable(45_000)
    departures = [timetable.departure_ms(flight) for flight in day]
    assert departures == sorted(departures)
    assert 0 <= departures[0] <= departures[-1] < 45_000
    assert all(timetable.lateness_ms(flight) >= 0 for flight in day)


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", "sched_dep_time,dep_delay_min,carrier,flight,origin,dest\nx,,,,,\n"]
)
def test_an_empty_or_another_file_raises_a_config_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "day.csv"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"cannot read .*day\.csv as a day of flights|day\.csv has no flights"):
        load(path)


def test_the_error_for_a_missing_file_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        load(tmp_path / "nowhere.csv")
