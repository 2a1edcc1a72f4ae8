"""Which failures are logged: the first of a cause in full, a few in short, the rest as a count; and which errors."""

from hypothesis import given
from hypothesis import strategies as st

from rocketshim.core.log_limits import FailureWindows, RepeatedErrors

MINUTE_MS = 60_000
failures = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 40)), max_size=200)  # cause, ms since the last


def test_each_cause_is_logged_up_to_its_limit_and_then_counted() -> None:
    windows: FailureWindows[str] = FailureWindows(window_ms=1_000, lines=2)
    assert [windows.note("a", now_ms) for now_ms in range(5)] == [1, 2, 0, 0, 0]
    assert windows.note("b", 5) == 1
    assert windows.ended(999) == []
    assert windows.ended(1_000) == [("a", 3)]
    assert windows.ended(2_000) == [], "a count is returned once"
    assert windows.note("a", 2_000) == 1


@given(failures)
def test_no_failure_is_lost_between_lines_and_counts(given_failures: list[tuple[str, int]]) -> None:
    windows: FailureWindows[str] = FailureWindows(window_ms=100, lines=3)
    logged: dict[str, int] = {}
    counted: dict[str, int] = {}
    opened: dict[str, int] = {}
    now_ms = 0
    for cause, later_ms in given_failures:
        now_ms += later_ms
        is_new = now_ms >= opened.get(cause, -(10**9)) + 100
        noted = windows.note(cause, now_ms)
        assert (noted == 1) == is_new, "a window is one hundred milliseconds from its first failure"
        if is_new:
            opened[cause] = now_ms
        logged[cause] = logged.get(cause, 0) + (noted > 0)
    for cause, count in windows.ended(now_ms + 100):
        counted[cause] = counted.get(cause, 0) + count
    for name in "abcd":
        assert logged.get(name, 0) + counted.get(name, 0) == sum(cause == name for cause, _ in given_failures)


@given(st.lists(st.integers(0, 1_000), min_size=20, max_size=300))
def test_memory_is_bounded_by_the_number_of_causes(causes: list[int]) -> None:
    windows: FailureWindows[int] = FailureWindows(causes=10, lines=1)
    for now_ms, cause in enumerate(causes):
        windows.note(cause, now_ms)
        assert len(windows._windows) <= 10
        assert len(windows._ended) <= 10


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
