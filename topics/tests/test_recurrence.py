"""When a recurring message is due."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim_topics.errors import MessageError
from rocketshim_topics.recurrence import Recurrence

BERLIN = ZoneInfo("Europe/Berlin")
MINUTE_MS = 60_000


def ms(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp() * 1_000)


def occurrences(recurrence: Recurrence, start_ms: int, count: int) -> list[str]:
    found = []
    for _ in range(count):
        following = recurrence.next_ms(start_ms, start_ms)
        assert following is not None
        start_ms = following
        found.append(datetime.fromtimestamp(start_ms / 1_000, BERLIN).isoformat(timespec="minutes"))
    return found


def test_a_line_of_cron_is_read_in_its_time_zone() -> None:
    working_days = Recurrence.of_cron("0 9 * * 1-5", "Europe/Berlin")
    assert occurrences(working_days, ms("2026-03-27T08:00"), 3) == [
        "2026-03-27T09:00+01:00", "2026-03-30T09:00+02:00", "2026-03-31T09:00+02:00",
    ]  # fmt: skip


def test_both_changes_of_the_clock_are_as_a_person_expects() -> None:
    night = Recurrence.of_cron("30 2 * * *", "Europe/Berlin")
    assert occurrences(night, ms("2026-03-28T12:00"), 2) == ["2026-03-29T03:00+02:00", "2026-03-30T02:30+02:00"]
    assert occurrences(night, ms("2026-10-24T12:00"), 2) == ["2026-10-25T02:30+02:00", "2026-10-26T02:30+01:00"]
    often = Recurrence.of_cron("*/30 * * * *", "Europe/Berlin")
    assert occurrences(often, ms("2026-10-25T01:45"), 5) == [
        "2026-10-25T02:00+02:00", "2026-10-25T02:30+02:00", "2026-10-25T02:00+01:00", "2026-10-25T02:30+01:00",
        "2026-10-25T03:00+01:00",
    ]  # fmt: skip


def test_a_late_occurrence_does_not_come_again_in_the_hour_that_exists_twice() -> None:
    night = Recurrence.of_cron("30 2 * * *", "Europe/Berlin")
    due_ms = ms("2026-10-25T02:30")
    for late_minutes in range(0, 90, 5):
        following_ms = night.next_ms(due_ms, due_ms + late_minutes * MINUTE_MS)
        assert following_ms == ms("2026-10-26T02:30")


@given(
    st.sampled_from(["30 2 * * *", "0,45 1-3 * * 0", "15 2 25 10 *", "*/20 2 * * *", "10 */2 * * *"]),
    st.sampled_from(["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "UTC"]),
    st.integers(ms("2026-03-01T00:00"), ms("2026-11-30T00:00")),
)
def test_the_next_occurrence_is_later_than_the_time_it_is_asked_for(line: str, tz: str, now_ms: int) -> None:
    following_ms = Recurrence.of_cron(line, tz).next_ms(now_ms, now_ms)
    assert following_ms is None or following_ms > now_ms


@given(st.integers(0, 10**13), st.integers(0, 10**10), st.integers(1_000, 10**9))
def test_a_duration_keeps_its_raster_however_late_it_is(due_ms: int, late_ms: int, every_ms: int) -> None:
    following = Recurrence.of_every(every_ms / 1_000).next_ms(due_ms, due_ms + late_ms)
    assert following is not None
    assert following > due_ms + late_ms
    assert following - every_ms <= due_ms + late_ms
    assert (following - due_ms) % every_ms == 0


def test_an_occurrence_is_missed_when_the_next_one_is_due() -> None:
    skips, once = Recurrence.of_every("1m", "skip"), Recurrence.of_every("1m")
    assert not skips.is_missed(0, MINUTE_MS - 1)
    assert skips.is_missed(0, MINUTE_MS)
    assert not once.is_missed(0, 10 * MINUTE_MS)


@pytest.mark.parametrize("line", ["soon", "61 * * * *", "0 0 31 2 *", "10ms", "* * * * * *"])
def test_a_line_of_another_program_that_cannot_be_is_refused(line: str) -> None:
    with pytest.raises(MessageError):
        Recurrence(line).check()
