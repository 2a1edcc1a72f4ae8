"""A sender's estimate of the brokers' clock is never behind it, for any behaviour of the sender's clocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim.core.broker_clock import BrokerClock
from rocketshim.testing import VirtualClock

MS = 1_000_000
TEN_DAYS_MS = 864_000_000


def test_the_estimate_is_unknown_without_a_report() -> None:
    assert BrokerClock(VirtualClock()).now_ms(5, 5) is None


def test_the_estimate_continues_from_the_last_report_for_five_minutes() -> None:
    clock = BrokerClock(VirtualClock())
    clock.reported(1_000, 0, 7, 0)
    clock.reported(2_000_000, 50 * MS, 9, 60 * MS)
    assert clock.now_ms(50 * MS, 9) == 2_000_000
    assert clock.now_ms(50 * MS + 1, 9) == 2_000_001, "rounded up, so that it is never behind"
    assert clock.now_ms(300_050 * MS, 9) == 2_300_000
    assert clock.now_ms(300_051 * MS, 9) is None


def test_a_wall_clock_step_or_machine_sleep_does_not_make_the_estimate_late() -> None:
    clock = BrokerClock(VirtualClock())
    clock.reported(2_000_000, 0, 1_000_000, MS)
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
    clock = BrokerClock(VirtualClock())
    clock.reported(sent_ms + offset_ms + stored_after_ms, 0, sent_ms, stored_after_ms * MS)
    known_ms = clock.now_ms((stored_after_ms + asked_after_ms) * MS, sent_ms + stored_after_ms + asked_after_ms)
    if known_ms is not None:
        assert 0 <= known_ms - (sent_ms + offset_ms + stored_after_ms + asked_after_ms) <= stored_after_ms


@pytest.mark.parametrize(
    ("sent_ms", "heard_ms", "ahead_ms"),
    [(90_000, 101_000, 0), (101_000, 101_010, 0), (101_001, 101_010, 1_001), (98_000, 98_999, -1_001)],
    ids=["a slow report proves nothing", "at the limit", "ahead", "behind"],
)
def test_only_a_certain_difference_beyond_the_limit_counts(sent_ms: int, heard_ms: int, ahead_ms: int) -> None:
    clock, heard_ns = BrokerClock(VirtualClock()), (heard_ms - sent_ms) * MS
    clock.reported(100_000, 0, sent_ms, heard_ns)
    assert clock.wrong_by_ms(heard_ns, heard_ms, 1_000) == ahead_ms


@given(
    offset_ms=st.integers(-TEN_DAYS_MS, TEN_DAYS_MS),
    stored_after_ms=st.integers(0, 120_000),
    heard_after_ms=st.integers(0, 120_000),
    asked_after_ms=st.integers(0, TEN_DAYS_MS),
)
def test_a_stamp_is_never_ahead_of_the_brokers_and_a_clock_is_called_wrong_only_if_it_is(
    offset_ms: int, stored_after_ms: int, heard_after_ms: int, asked_after_ms: int
) -> None:
    sent_ms = 2 * TEN_DAYS_MS
    heard_ms = stored_after_ms + heard_after_ms
    asked_ms = heard_ms + asked_after_ms
    clock = BrokerClock(VirtualClock())
    clock.reported(sent_ms + offset_ms + stored_after_ms, 0, sent_ms, heard_ms * MS)
    stamp_ms = clock.stamp_ms(asked_ms * MS, sent_ms + asked_ms)
    assert 0 <= sent_ms + offset_ms + asked_ms - stamp_ms <= heard_after_ms
    wrong_by_ms = clock.wrong_by_ms(asked_ms * MS, sent_ms + asked_ms)
    assert abs(wrong_by_ms) <= abs(offset_ms)
    assert wrong_by_ms * -offset_ms >= 0
    if abs(offset_ms) > 60_000 + heard_ms:
        assert wrong_by_ms != 0


def test_what_was_learned_ends_when_the_wall_clock_is_set_or_the_machine_sleeps() -> None:
    clock = BrokerClock(VirtualClock())
    assert clock.stamp_ms(0, 0) == 0
    assert not clock.is_known(0, 0, within_ns=MS)
    clock.reported(2_000_000, 0, 10_000_000, 0)
    assert clock.stamp_ms(1_000 * MS, 10_001_000) == 2_001_000
    assert clock.wrong_by_ms(1_000 * MS, 10_001_000) == 8_000_000
    assert clock.is_known(1_000 * MS, 10_001_000, within_ns=1_000 * MS)
    assert not clock.is_known(1_001 * MS, 10_001_001, within_ns=1_000 * MS), "too long ago"
    for wall_ms in (2_001_000, 18_001_000):
        assert clock.stamp_ms(1_000 * MS, wall_ms) == 0
        assert clock.wrong_by_ms(1_000 * MS, wall_ms) == 0
        assert not clock.is_known(1_000 * MS, wall_ms, within_ns=1_000 * MS)
