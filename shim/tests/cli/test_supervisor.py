"""When a process of `--processes` is started again, and when all are stopped."""

import signal

from hypothesis import given
from hypothesis import strategies as st

from rocketshim.cli.supervisor import GIVE_UP, Restarts


def test_a_killed_process_is_started_again_after_growing_pauses() -> None:
    restarts = Restarts()
    assert [restarts.pause_s(-signal.SIGKILL, 0.5) for _ in range(7)] == [1, 2, 4, 8, 16, 30, 30]


def test_a_process_that_lived_for_a_minute_begins_with_the_shortest_pause() -> None:
    restarts = Restarts()
    for _ in range(6):
        restarts.pause_s(-signal.SIGSEGV, 1)
    assert [restarts.pause_s(1, 60.0), restarts.pause_s(-signal.SIGSEGV, 1)] == [1, 2]


def test_an_error_at_the_first_start_is_final() -> None:
    assert Restarts().pause_s(1, 9.9) is GIVE_UP
    assert Restarts().pause_s(0, 0.1) is GIVE_UP


def test_an_error_at_a_later_start_is_not() -> None:
    restarts = Restarts()
    assert restarts.pause_s(1, 10.0) == 1
    assert restarts.pause_s(1, 0.1) == 2


@given(st.lists(st.tuples(st.integers(-15, 3), st.floats(0, 200)), min_size=25, max_size=60))
def test_only_twenty_quick_deaths_in_a_row_end_it(deaths: list[tuple[int, float]]) -> None:
    restarts, quick = Restarts(), 0
    restarts.pause_s(-signal.SIGKILL, 100.0)
    quick = 1
    for code, lived_s in deaths:
        quick = quick + 1 if lived_s < 60 else 1
        assert (restarts.pause_s(code, lived_s) is GIVE_UP) == (quick >= 20)
