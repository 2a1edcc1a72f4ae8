"""A sender's estimate of the brokers' clock is never behind it, for any behaviour of the sender's clocks."""

from hypothesis import given
from hypothesis import strategies as st

from rocketshim.core.broker_clock import BrokerClock

MS = 1_000_000
TEN_DAYS_MS = 864_000_000


def test_the_estimate_is_unknown_without_a_report() -> None:
    assert BrokerClock().now_ms(5, 5) is None


def test_the_estimate_continues_from_the_last_report_for_five_minutes() -> None:
    clock = BrokerClock()
    clock.reported(1_000, 0, 7)
    clock.reported(2_000_000, 50 * MS, 9)
    assert clock.now_ms(50 * MS, 9) == 2_000_000
    assert clock.now_ms(50 * MS + 1, 9) == 2_000_001, "rounded up, so that it is never behind"
    assert clock.now_ms(300_050 * MS, 9) == 2_300_000
    assert clock.now_ms(300_051 * MS, 9) is None


def test_a_wall_clock_step_or_machine_sleep_does_not_make_the_estimate_late() -> None:
    clock = BrokerClock()
    clock.reported(2_000_000, 0, 1_000_000)
    assert clock.now_ms(1_000 * MS, 1_000_000 - TEN_DAYS_MS) == 2_001_000, "the wall clock was set back"
    assert clock.now_ms(1_000 * MS, 1_060_000) == 2_060_000, "the monotonic clock stood still"
    assert clock.now_ms(1_000 * MS, 1_000_000 + TEN_DAYS_MS) is None, "set forward: the estimate is not known"


@given(
    offset_ms=st.integers(-TEN_DAYS_MS, TEN_DAYS_MS),
    stored_after_ms=st.integers(0, 120_000),
    asked_after_ms=st.integers(0, 400_000),
)
def test_the_estimate_is_never_behind_the_brokers(offset_ms: int, stored_after_ms: int, asked_after_ms: int) -> None:
    sent_ms = 2 * TEN_DAYS_MS
    clock = BrokerClock()
    clock.reported(sent_ms + offset_ms + stored_after_ms, 0, sent_ms)
    known_ms = clock.now_ms((stored_after_ms + asked_after_ms) * MS, sent_ms + stored_after_ms + asked_after_ms)
    if known_ms is not None:
        assert 0 <= known_ms - (sent_ms + offset_ms + stored_after_ms + asked_after_ms) <= stored_after_ms


def test_only_a_certain_difference_above_one_second_counts() -> None:
    assert BrokerClock.ahead_ms(100_000, 90_000, 101_000) == 0, "a slow report proves nothing"
    assert BrokerClock.ahead_ms(100_000, 101_000, 101_010) == 0
    assert BrokerClock.ahead_ms(100_000, 101_001, 101_010) == 1_001
    assert BrokerClock.ahead_ms(100_000, 98_000, 98_999) == -1_001
