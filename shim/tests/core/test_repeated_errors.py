"""An error that repeats each second gets a line at first, and then a count now and then."""

from rocketshim.core.repeated_errors import RepeatedErrors

MINUTE_MS = 60_000


def lines(errors: RepeatedErrors, until_ms: int, *, cause: str = "refused", since_ms: int = 0) -> dict[int, int]:
    """One occurrence a second; at which second a line was due, and for how many occurrences."""
    noted = {at_ms: errors.note(cause, at_ms) for at_ms in range(since_ms, until_ms, 1_000)}
    return {at_ms // 1_000: count for at_ms, count in noted.items() if count}


def test_the_first_is_logged_and_then_counts_after_a_minute_ten_and_each_hour() -> None:
    assert lines(RepeatedErrors(), 3 * 60 * MINUTE_MS) == {0: 1, 60: 60, 660: 600, 4_260: 3_600, 7_860: 3_600}


def test_each_cause_counts_alone() -> None:
    errors = RepeatedErrors()
    assert (errors.note("a", 0), errors.note("b", 1), errors.note("a", 2), errors.note("b", 3)) == (1, 1, 0, 0)


def test_a_cause_that_was_silent_for_ten_minutes_begins_again() -> None:
    errors = RepeatedErrors()
    assert lines(errors, 10_000) == {0: 1}
    assert errors.note("refused", 9_000 + 10 * MINUTE_MS) == 1


def test_memory_is_bounded() -> None:
    errors = RepeatedErrors()
    for number in range(10_000):
        assert errors.note(number, number) == 1
    assert len(errors._causes) == 256
