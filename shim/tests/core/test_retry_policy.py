"""The next hop of a failed message equals RocketMQ's, for every limit, level, delay and count."""

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from rocketshim.core.retry_policy import (
    DEFAULT_MAX_RECONSUME_TIMES,
    AfterDelay,
    AtLevel,
    Dead,
    Decision,
    ExponentialRetryPolicy,
    LevelTableRetryPolicy,
    RetryPolicy,
    decide,
    effective_limit,
)
from rocketshim_topics.levels import DelayLevels

TABLE = LevelTableRetryPolicy()
COUNTS = st.integers(min_value=0, max_value=10**12)
LIMITS = st.one_of(st.integers(-5, 40), st.integers(-(2**31), 2**31 - 1))
UNITS = st.floats(min_value=0, max_value=1, exclude_max=True)


class Stubborn:
    """A policy that always gives the same answer."""

    def next_hop(self, reconsume_times: int, unit: float) -> AtLevel | AfterDelay:
        del reconsume_times, unit
        return AfterDelay(12_345)


def decided(
    policy: RetryPolicy, count: int, *, limit: int = -1, message_limit: int | None = None, **asked: Any
) -> Decision:
    return decide(policy, count, limit=effective_limit(limit, message_limit), **asked)


def deliveries(limit: int = -1, message_limit: int | None = None) -> list[Decision]:
    """Return the next hop after each failure of a message that always fails, up to its dead letter."""
    hops: list[Decision] = []
    while not hops or not isinstance(hops[-1], Dead):
        hops.append(decided(TABLE, len(hops), limit=limit, message_limit=message_limit))
    return hops


def test_message_that_fails_every_time_goes_through_levels_3_to_18_and_dies_at_its_17th_delivery() -> None:
    hops = deliveries()
    assert hops == [*(AtLevel(level) for level in range(3, 19)), Dead(asked=False)]
    assert len(hops) == 17
    delays_ms = [DelayLevels.default().delay_ms(hop.level) for hop in hops if isinstance(hop, AtLevel)]
    assert delays_ms[:3] == [10_000, 30_000, 60_000]
    assert delays_ms[-1] == 7_200_000


@pytest.mark.parametrize(
    ("limit", "expected"),
    [(-1, 17), (0, 1), (1, 2), (3, 4), (16, 17), (40, 41), (-2, 1), (-16, 1), (-(2**31), 1)],
)
def test_deliveries_are_one_more_than_the_limit_and_one_for_negatives_other_than_minus_1(
    limit: int, expected: int
) -> None:
    assert len(deliveries(limit)) == expected


def test_levels_above_the_table_are_requested_and_clamped_by_the_table() -> None:
    hop = decided(TABLE, 30, limit=40)
    assert hop == AtLevel(33)
    assert DelayLevels.default().clamp(33) == 18


@pytest.mark.parametrize(
    ("limit", "message_limit", "expected"),
    [(-1, None, 16), (-1, 5, 5), (-1, 20, 16), (3, 5, 3), (5, 3, 3), (0, 9, 0), (7, 0, 0), (-4, 9, -4)],
)
def test_limit_of_the_message_counts_if_it_is_lower_than_the_groups(
    limit: int, message_limit: int | None, expected: int
) -> None:
    assert effective_limit(limit, message_limit) == expected
    assert len(deliveries(limit, message_limit)) == max(expected, 0) + 1


@given(count=COUNTS, asked=st.integers(max_value=-1), delay=st.none() | st.integers(0, 10**9), limit=LIMITS)
def test_requested_level_below_0_always_means_an_immediate_dead_letter(
    count: int, asked: int, delay: int | None, limit: int
) -> None:
    assert decided(TABLE, count, asked_level=asked, asked_delay_ms=delay, limit=limit) == Dead(asked=True)


@given(count=COUNTS, level=st.integers(1, 10**6), limit=LIMITS)
def test_requested_level_is_used_exactly_until_the_limit(count: int, level: int, limit: int) -> None:
    hop = decided(TABLE, count, asked_level=level, limit=limit)
    assert hop == (Dead(asked=False) if count >= effective_limit(limit, None) else AtLevel(level))


@given(count=st.integers(0, 15), level=st.integers(0, 20), delay_ms=st.integers(-5, 10**12))
def test_requested_delay_overrides_a_requested_level_and_is_never_negative(
    count: int, level: int, delay_ms: int
) -> None:
    hop = decided(TABLE, count, asked_level=level, asked_delay_ms=delay_ms)
    assert hop == AfterDelay(max(0, delay_ms))


@given(count=COUNTS, limit=LIMITS)
def test_custom_policy_decides_only_below_the_limit_and_without_a_request(count: int, limit: int) -> None:
    hop = decided(Stubborn(), count, limit=limit)
    naive = DEFAULT_MAX_RECONSUME_TIMES if limit == -1 else limit
    assert hop == (AfterDelay(12_345) if count < naive else Dead(asked=False))


@given(count=COUNTS, first=st.integers(1, 18), unit=UNITS)
def test_level_grows_by_one_with_each_attempt(count: int, first: int, unit: float) -> None:
    assert LevelTableRetryPolicy(first).next_hop(count, unit) == AtLevel(first + count)


def test_exponential_without_jitter_is_rocketmqs_5_s_doubled_up_to_2_h() -> None:
    policy = ExponentialRetryPolicy(jitter=0)
    delays = [policy.next_hop(count, 0.9) for count in range(13)]
    assert delays[:4] == [AfterDelay(5_000), AfterDelay(10_000), AfterDelay(20_000), AfterDelay(40_000)]
    assert delays[10:] == [AfterDelay(5_120_000), AfterDelay(7_200_000), AfterDelay(7_200_000)]


FORTY_DAYS_MS = 40 * 86_400_000

EXPONENTIAL = st.builds(
    lambda initial, more, factor, jitter: ExponentialRetryPolicy(
        initial, factor, min(initial + more, FORTY_DAYS_MS), jitter
    ),
    initial=st.integers(1, 10**9),
    more=st.integers(0, 10**10),
    factor=st.floats(1, 1e300),
    jitter=st.floats(0, 1),
)


@given(policy=EXPONENTIAL, count=COUNTS, unit=UNITS)
@example(policy=ExponentialRetryPolicy(factor=1.0), count=10**12, unit=0.0)
@example(policy=ExponentialRetryPolicy(factor=1.0000001), count=10**9, unit=0.999)
def test_exponential_policy_answers_fast_within_cap_and_jitter_for_any_count(
    policy: ExponentialRetryPolicy, count: int, unit: float
) -> None:
    """Counts come from a header: a hostile value costs no time and causes no overflow."""
    hop = policy.next_hop(count, unit)
    assert isinstance(hop, AfterDelay)
    assert 1 <= hop.delay_ms <= policy.cap_ms
    lowest, highest = policy.next_hop(count, 0.0), policy.next_hop(count, math.nextafter(1.0, 0.0))
    assert isinstance(lowest, AfterDelay)
    assert isinstance(highest, AfterDelay)
    assert lowest.delay_ms <= hop.delay_ms <= highest.delay_ms
    middle = (lowest.delay_ms + highest.delay_ms) / 2
    assert highest.delay_ms - lowest.delay_ms == pytest.approx(policy.jitter * middle, rel=1e-6, abs=2)


@given(policy=EXPONENTIAL, count=st.integers(0, 100), unit=UNITS)
def test_exponential_delay_never_shrinks_from_attempt_to_attempt(
    policy: ExponentialRetryPolicy, count: int, unit: float
) -> None:
    first, second = policy.next_hop(count, unit), policy.next_hop(count + 1, unit)
    assert isinstance(first, AfterDelay)
    assert isinstance(second, AfterDelay)
    assert first.delay_ms <= second.delay_ms


def test_delays_at_the_cap_are_spread_below_it() -> None:
    """Messages that failed together during an outage must not come back at the same instant."""
    policy = ExponentialRetryPolicy(initial_ms=1_000, cap_ms=60_000, jitter=0.5)
    delays = {policy.next_hop(50, number / 100) for number in range(100)}
    assert len(delays) == 100
    assert max(hop.delay_ms for hop in delays if isinstance(hop, AfterDelay)) <= 60_000


@pytest.mark.parametrize(
    "settings",
    [
        {"initial_ms": 0},
        {"initial_ms": 10, "cap_ms": 9},
        {"factor": 0.99},
        {"factor": math.nan},
        {"factor": math.inf},
        {"jitter": -0.1},
        {"jitter": 1.1},
        {"jitter": math.nan},
    ],
)
def test_invalid_exponential_policy_is_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="need"):
        ExponentialRetryPolicy(**settings)  # type: ignore[arg-type]


def test_levels_begin_at_1() -> None:
    with pytest.raises(ValueError, match="begin at 1"):
        LevelTableRetryPolicy(0)
