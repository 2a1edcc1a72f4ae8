"""The judge of runs with named timers finds each broken promise, and messages that recur come as the calendar says."""

from datetime import UTC, datetime, timedelta

import pytest

from proof.timers.calendar import occurrences
from proof.timers.judge import Arrived, Told, judge
from proof.timers.lateness import judge_lateness
from proof.timers.recurring import BOTH_CHANGES, LINES, Recurring, recurring
from rocketshim_topics.recurrence import Recurrence


def told(offset: int, command: str, body: bytes | None = None, generation: int | None = None) -> Told:
    return Told(0, offset, offset, command, "o-7", generation, 100 + offset, body)


SET_AND_FIRED = [told(0, "SET", b"a"), told(1, "FIRE", b"a", 0)]


def wrong(commands: list[Told], *arrived: tuple[bytes, int], most_repeats: int = 0) -> tuple[str, ...]:
    return judge(commands, [Arrived(*each) for each in arrived], most_repeats=most_repeats).wrong


def test_a_timer_that_fired_is_delivered_once_and_in_time() -> None:
    found = judge(SET_AND_FIRED, [Arrived(b"a", 103)], most_repeats=0)
    assert (found.wanted, found.wrong, found.late_ms) == (1, (), (3,))
    assert found.lines()[-1] == "late by 3 ms (median), 3 ms (99 of 100), 3 ms at most"


def test_what_is_lost_early_or_repeated_is_found() -> None:
    assert wrong(SET_AND_FIRED) == ("b'a' is not delivered",)
    assert wrong(SET_AND_FIRED, (b"a", 99)) == ("b'a' came 1 ms early",)
    assert wrong(SET_AND_FIRED, (b"a", 100), (b"a", 100)) == ("1 repeats, 0 are allowed",)
    assert wrong(SET_AND_FIRED, (b"a", 100), (b"a", 100), most_repeats=1) == ()


def test_what_was_voided_and_delivered_is_found() -> None:
    cancelled = [told(0, "SET", b"a"), told(1, "CANCEL"), told(2, "FIRE", b"a", 0)]
    assert wrong(cancelled) == ()
    assert wrong(cancelled, (b"a", 200)) == ("b'a' was voided, and delivered",)
    replaced = [told(0, "SET", b"a"), told(1, "SET", b"b"), told(2, "FIRE", b"a", 0), told(3, "FIRE", b"b", 1)]
    assert wrong(replaced, (b"b", 200)) == ()
    assert wrong(replaced, (b"a", 200), (b"b", 200)) == ("b'a' was voided, and delivered",)


def test_a_cancel_behind_the_fire_is_too_late() -> None:
    found = judge([*SET_AND_FIRED, told(2, "CANCEL")], [Arrived(b"a", 101)], most_repeats=0)
    assert (found.cancelled, found.too_late, found.wrong) == (0, 1, ())


def test_a_name_that_never_ends_is_found() -> None:
    assert wrong([told(0, "SET", b"a")]) == ("1 names are pending",)


def test_the_calendar_knows_both_changes_of_the_clock() -> None:
    def shown(line: str, day: str) -> list[str]:
        after = datetime.fromisoformat(day).replace(tzinfo=UTC)
        found = sorted(occurrences(line, "Europe/Berlin", after, after + timedelta(days=1)))
        return [f"{datetime.fromtimestamp(ms / 1_000, UTC):%H:%M}" for ms in found]

    assert shown("30 2 * * *", "2026-03-29") == ["01:00"]
    assert shown("30 2 * * *", "2026-10-25") == ["00:30"]
    assert shown("0 */12 * * 1-5,0", "2026-03-28T12:00") == ["23:00", "10:00"]
    assert shown("20 * * * 0", "2026-10-24T22:00")[:5] == ["22:20", "23:20", "00:20", "01:20", "02:20"]


@pytest.mark.parametrize(
    ("tz", "change"),
    [
        ("Europe/Berlin", "2026-03-29T01:00"), ("Europe/Berlin", "2026-10-25T01:00"),
        ("America/Havana", "2026-03-08T05:00"), ("America/Havana", "2026-11-01T05:00"),  # at midnight
        ("Antarctica/Troll", "2026-03-29T01:00"), ("Antarctica/Troll", "2026-10-25T01:00"),  # by two hours
    ],
)  # fmt: skip
def test_each_line_is_due_when_the_calendar_says_around_a_change_of_the_clock(tz: str, change: str) -> None:
    moment = datetime.fromisoformat(change).replace(tzinfo=UTC)
    after, until = moment - timedelta(hours=4), moment + timedelta(hours=6)
    for line in LINES:
        recurrence, found = Recurrence(line, tz), []
        due_ms: int | None = round(after.timestamp() * 1_000)
        while (due_ms := recurrence.next_ms(due_ms or 0, due_ms or 0)) and due_ms <= until.timestamp() * 1_000:
            found.append(due_ms)
        assert found == sorted(occurrences(line, tz, after, until)), line


@pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly-once", "at-least-once"])
@pytest.mark.parametrize(
    "start",
    [
        pytest.param(BOTH_CHANGES, id="forward"),
        pytest.param(datetime(2026, 4, 4, 12, tzinfo=UTC), id="back"),
        pytest.param(datetime(2026, 10, 25, 1, 10, tzinfo=UTC), id="sent-in-the-second-of-two-hours"),
    ],
)
def test_messages_recur_as_the_calendar_says_while_workers_are_restarted(start: datetime, exactly_once: bool) -> None:
    found = recurring(Recurring(3, 50, 0.3, exactly_once, start), print)
    assert found.wrong == ()
    assert found.wanted > 50
    assert found.restarts >= 6


def test_what_a_name_costs_is_the_difference_of_the_latest() -> None:
    sent = {b"named.0": 100, b"plain.0": 100, b"named.1": 6_000, b"plain.1": 6_000}
    came = [Arrived(b"named.0", 900), Arrived(b"plain.0", 101), Arrived(b"named.1", 6_030), Arrived(b"plain.1", 6_010)]
    found = judge_lateness(sent, came, (), warm_s=5.0)
    assert (found.more_ms, found.wrong) == (20, ())
    spoilt = judge_lateness(sent, [*came[1:3], Arrived(b"plain.1", 5_999), Arrived(b"plain.1", 6_000)], (), warm_s=5.0)
    assert spoilt.wrong == (
        "b'named.0' came 0 times", "b'plain.1' came 2 times", "b'plain.1' came early",
    )  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly-once", "at-least-once"])
def test_a_hundred_messages_recur_for_seven_days(exactly_once: bool) -> None:
    found = recurring(Recurring(1, exactly_once=exactly_once), print)
    assert found.wrong == ()
    assert found.restarts > 160
