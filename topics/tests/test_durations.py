"""Durations are read in whole milliseconds, never shorter than written."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim_topics import ConfigError, parse_duration_ms
from rocketshim_topics.durations import duration_text


@pytest.mark.parametrize(
    ("value", "milliseconds"),
    [
        ("500ms", 500),
        ("90s", 90_000),
        ("30m", 1_800_000),
        ("2h", 7_200_000),
        ("40d", 3_456_000_000),
        ("1.5h", 5_400_000),
        ("0.1ms", 1),
        ("0s", 0),
        (90, 90_000),
        (0.25, 250),
        (0.0001, 1),
        (0, 0),
        (timedelta(minutes=1, microseconds=1), 60_001),
        (timedelta(), 0),
    ],
)
def test_these_are_durations(value: Any, milliseconds: int) -> None:
    assert parse_duration_ms(value) == milliseconds


@pytest.mark.parametrize(
    "value",
    [
        "",
        "90",
        "1m30s",
        "90 s",
        "-1s",
        "1S",
        "s",
        "1w",
        "1,5h",
        "٣s",
        "1e3s",
        " 1s",
        "1s\n",
        -1,
        -0.5,
        True,
        None,
        b"1s",
        float("nan"),
        float("inf"),
        timedelta(seconds=-1),
        10**20,
        10**400,
        "9999999999999999999d",
        ["1s"],
    ],
)
def test_these_are_not(value: Any) -> None:
    with pytest.raises(ConfigError, match="not a duration"):
        parse_duration_ms(value)


@given(st.timedeltas(min_value=timedelta()))
def test_timedelta_is_never_shortened(value: timedelta) -> None:
    milliseconds = parse_duration_ms(value)
    assert timedelta(milliseconds=milliseconds) >= value
    assert timedelta(milliseconds=milliseconds - 1) < value


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0 s"),
        (0.4, "0 s"),
        (512, "512 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (12_500, "12.5 s"),
        (90_000, "1 min 30 s"),
        (3_600_000, "1 h"),
        (90_061_000, "1 d 1 h"),
        (864_000_000, "10 d"),
    ],
)
def test_a_duration_for_people_has_two_units_at_most(milliseconds: float, text: str) -> None:
    assert duration_text(milliseconds) == text
