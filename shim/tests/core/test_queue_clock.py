"""Only later appends date a record, and our clock is assumed to be slower than it is."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rocketshim.core.level_queue import QueueClock

MS = 1_000_000
S = 1_000 * MS
EPOCH_MS = 1_700_000_000_000


def slowed(ns: int) -> int:
    """Return the time on a clock that runs 100 ppm slower."""
    return ns - ns // 10_000


class ClockAgainstNaiveModel(RuleBasedStateMachine):
    """The bound for an offset is the largest of all readings at that offset or above, in any order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = QueueClock()
        self.readings: list[tuple[int, int]] = []
        self.asked_for = 0
        self.now_ns = 5 * S

    @rule(offset=st.integers(0, 40), append_ms=st.integers(0, 60), passed=st.integers(0, 20), probe=st.booleans())
    def see(self, offset: int, append_ms: int, passed: int, probe: bool) -> None:
        self.now_ns += passed * MS
        append_ms += EPOCH_MS
        (self.clock.probed if probe else self.clock.saw)(offset, append_ms, self.now_ns)
        self.readings.append((offset, append_ms * MS - slowed(self.now_ns)))

    @rule(further=st.integers(0, 6))
    def move_on(self, further: int) -> None:
        self.asked_for += further

    @invariant()
    def bound_is_that_of_the_naive_model(self) -> None:
        since = [reading for offset, reading in self.readings if offset >= self.asked_for]
        expected = slowed(self.now_ns) + max(since) if since else None
        assert self.clock.now_ns(self.asked_for, self.now_ns) == expected

    @invariant()
    def evidence_is_a_staircase(self) -> None:
        kept = list(self.clock._evidence)
        assert all(left[0] < right[0] and left[1] > right[1] for left, right in pairwise(kept))


TestClockAgainstNaiveModel = ClockAgainstNaiveModel.TestCase
TestClockAgainstNaiveModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@given(
    append_ms=st.integers(0, 2**41),
    seen_ns=st.integers(0, 2**60),
    ahead_ns=st.integers(-(2**50), 2**50),
)
def test_instant_is_the_first_nanosecond_at_which_the_bound_is_reached(
    append_ms: int, seen_ns: int, ahead_ns: int
) -> None:
    clock = QueueClock()
    clock.saw(3, append_ms, seen_ns)
    target = append_ms * MS + ahead_ns
    instant = clock.instant_ns(3, target)
    assert instant is not None
    at, before = clock.now_ns(3, instant), clock.now_ns(3, instant - 1)
    assert at is not None
    assert before is not None
    assert before < target <= at


@given(st.integers(0, 7_200), st.integers(-50, 50), st.integers(-50, 50))
def test_bound_holds_for_hours_between_clocks_that_drift_apart(seconds: int, leader_ppm: int, ours_ppm: int) -> None:
    """The leader's clock and ours are each up to 50 ppm fast or slow."""
    clock = QueueClock()
    clock.saw(0, EPOCH_MS, 0)
    leader_ns = EPOCH_MS * MS + seconds * (S + leader_ppm * 1_000)
    bound = clock.now_ns(0, seconds * (S + ours_ppm * 1_000))
    assert bound is not None
    assert bound <= leader_ns
    assert leader_ns - bound <= 200 * 1_000 * seconds


def test_without_evidence_the_clock_is_unknown() -> None:
    clock = QueueClock()
    assert clock.now_ns(0, S) is None
    assert clock.instant_ns(0, EPOCH_MS * MS) is None
    clock.saw(4, EPOCH_MS, S)
    assert clock.now_ns(5, S) is None


def test_evidence_older_than_the_record_does_not_date_it() -> None:
    """The leader's clock was set back by a minute between the two: the first proves nothing about the second."""
    clock = QueueClock()
    clock.probed(0, EPOCH_MS, S)
    clock.saw(1, EPOCH_MS - 60_000, S)
    assert clock.now_ns(1, S) == (EPOCH_MS - 60_000) * MS


def test_probe_dates_everything_below_it_including_later_fetches() -> None:
    clock = QueueClock()
    clock.probed(1_000, EPOCH_MS, S)
    clock.saw(10, EPOCH_MS - 3_600_000, 2 * S)
    assert clock.now_ns(10, 2 * S) == EPOCH_MS * MS - slowed(S) + slowed(2 * S)


def test_probe_is_requested_immediately_while_the_age_of_records_is_unknown() -> None:
    clock = QueueClock()
    clock.saw(0, EPOCH_MS, S)
    assert clock.probe_instant_ns((EPOCH_MS + 1_000) * MS) is None


def test_probe_is_requested_again_every_second_until_it_arrives() -> None:
    clock = QueueClock()
    clock.asked(7 * S)
    assert clock.probe_instant_ns(EPOCH_MS * MS) == 8 * S
    clock.probed(5, EPOCH_MS, 9 * S)
    due_in_10_s = (EPOCH_MS + 10_000) * MS
    assert clock.probe_instant_ns(due_in_10_s) == 19 * S + 10 * MS
    clock.asked(19 * S + 10 * MS)
    assert clock.probe_instant_ns(due_in_10_s) == 20 * S + 10 * MS


def test_next_probe_corrects_the_guess_after_the_clock_was_set_back() -> None:
    """A record with a future timestamp causes one probe, not an endless series of probes."""
    clock = QueueClock()
    clock.probed(0, EPOCH_MS, S)
    clock.saw(1, EPOCH_MS + 3_600_000, S)
    due = (EPOCH_MS + 1_000) * MS
    wanted = clock.probe_instant_ns(due)
    assert wanted is not None
    assert wanted < S
    clock.probed(2, EPOCH_MS + 1, S + MS)
    assert clock.probe_instant_ns(due) == 2 * S + 10 * MS
