"""How long to wait before the next try, by the rules of `core.clock`."""

from hypothesis import given
from hypothesis import strategies as st

from rocketshim.core.clock import Backoff


def test_pauses_double_up_to_the_longest() -> None:
    backoff = Backoff(100, 1_000)
    assert [backoff.pause(failures) for failures in range(6)] == [100, 200, 400, 800, 1_000, 1_000]


def test_another_factor_grows_faster_or_not_at_all() -> None:
    assert [Backoff(5, 1_000, 3).pause(failures) for failures in range(4)] == [5, 15, 45, 135]
    assert [Backoff(5, 1_000, 1).pause(failures) for failures in (0, 7, 2**31)] == [5, 5, 5]


@given(st.integers(0, 2**63), st.integers(1, 10**12), st.integers(0, 10**12))
def test_any_number_of_failures_has_a_pause_within_the_bounds(failures: int, first: int, more: int) -> None:
    backoff = Backoff(first, first + more)
    assert first <= backoff.pause(failures) <= first + more
    assert backoff.pause(failures) <= backoff.pause(failures + 1)
