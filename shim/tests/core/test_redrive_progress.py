"""A dead letter of a plan is in one state at a time; the rate, the maximum and the failure ratio are respected."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from rocketshim.core.redrive_progress import MOST_IN_TRANSACTION, RedriveProgress
from rocketshim.errors import ConfigError
from rocketshim_topics.redrive_plan import PlannedLetter


def dead_letters(count: int) -> list[PlannedLetter]:
    return [PlannedLetter(0, offset, "0" * 16, "t", "c", "i") for offset in range(count)]


def nothing(_letter: PlannedLetter) -> bool:
    return False


class Applying(RuleBasedStateMachine):
    """Transactions that are committed, aborted or have an uncertain outcome; the log is the source of truth."""

    @initialize(count=st.integers(0, 60), most=st.none() | st.integers(1, 40), before=st.sets(st.integers(0, 59)))
    def begin(self, count: int, most: int | None, before: set[int]) -> None:
        self.all = dead_letters(count)
        self.before = {each for each in self.all if each.offset in before}
        self.log = set(self.before)
        self.ours: set[PlannedLetter] = set()
        self.failed: set[PlannedLetter] = set()
        self.dead_again: set[PlannedLetter] = set()
        self.progress = RedriveProgress(self.all, most=most, stop_ratio=0.5)
        self.most = most
        self.left = self.progress.resume(self.log.__contains__)

    @rule(count=st.integers(0, 9), outcome=st.sampled_from(["committed", "aborted", "lost", "unknown"]))
    def transact(self, count: int, outcome: str) -> None:
        room = self.progress.capacity(0)
        taken = [each for each in self.left if each not in self.failed][: min(count, room)]
        self.progress.take(taken, 0)
        if outcome in {"committed", "unknown"}:
            self.log |= set(taken)
            self.ours |= set(taken)
        match outcome:
            case "committed":
                self.progress.committed()
                self.left = [each for each in self.left if each not in taken]
            case "aborted":
                self.progress.aborted()
            case _:
                self.left = self.progress.resume(self.log.__contains__)

    @precondition(lambda self: self.left)
    @rule(index=st.integers(0, 99))
    def fail(self, index: int) -> None:
        letter = self.left[index % len(self.left)]
        if letter not in self.failed:
            self.failed.add(letter)
            self.progress.fail(letter, "gone")

    @rule(offset=st.integers(0, 60))
    def one_is_seen_dead_again(self, offset: int) -> None:
        self.progress.died_again(0, offset)
        self.dead_again |= {each for each in self.ours if each.offset == offset}

    @rule(index=st.integers(0, 99))
    def another_plan_settles(self, index: int) -> None:
        free = [each for each in self.left if each not in self.failed]
        if free:
            self.log.add(free[index % len(free)])
            self.before.add(free[index % len(free)])
            self.left = self.progress.resume(self.log.__contains__)

    @invariant()
    def counts_are_those_of_the_log(self) -> None:
        progress = self.progress
        assert (progress.sent, progress.settled) == (len(self.ours), len(self.before))
        assert progress.failed == len(self.failed)
        assert progress.waiting == progress.planned - progress.sent - progress.settled - progress.failed
        assert self.most is None or progress.sent <= self.most
        assert progress.dead_again == len(self.dead_again)
        too_many = len(self.all) >= 20 and len(self.failed) > len(self.all) / 2
        too_many |= len(self.ours) >= 20 and len(self.dead_again) > len(self.ours) / 2
        reached = self.most is not None and progress.sent >= self.most
        assert progress.stopped_by == ("failures" if too_many else "most" if reached else None)
        assert (progress.capacity(0) == 0) == (too_many or reached)
        assert progress.failures == Counter({"gone": len(self.failed)} if self.failed else {})


TestApplying = Applying.TestCase


@given(
    rate=st.floats(0.1, 50),
    gaps=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5_000)), max_size=30),
)
def test_no_interval_exceeds_the_rate_except_the_last_second(rate: float, gaps: list[tuple[int, int]]) -> None:
    progress = RedriveProgress(dead_letters(1_500), rate_per_s=rate)
    left = progress.resume(nothing)
    now_ms, taken, begun = 0, 0, None
    for count, pause_ms in gaps:
        now_ms += pause_ms + progress.wait_ms(now_ms + pause_ms)
        room = progress.capacity(now_ms)
        assert 1 <= room <= max(1, min(rate, MOST_IN_TRANSACTION))
        begun = now_ms if begun is None else begun
        batch = left[taken : taken + min(count, room)]
        assert taken <= rate * (now_ms - begun + 1 + len(gaps)) / 1_000 + 1e-6
        progress.take(batch, now_ms)
        progress.committed()
        taken += len(batch)


def test_failures_count_against_the_whole_plan_wherever_they_are() -> None:
    everything = dead_letters(200)
    progress = RedriveProgress(everything)
    progress.resume(nothing)
    for each in everything[:20]:
        progress.fail(each, "changed")
    assert (progress.stopped_by, progress.capacity(0)) == (None, MOST_IN_TRANSACTION)
    progress.fail(everything[20], "changed")
    assert (progress.stopped_by, progress.capacity(0)) == ("failures", 0)


def test_dead_letters_of_an_earlier_run_that_die_now_do_not_stop_the_run() -> None:
    everything = dead_letters(100)
    progress = RedriveProgress(everything)
    progress.resume(lambda letter: letter.offset < 50)
    progress.take(everything[50:80], 0)
    progress.committed()
    for each in everything[:50]:
        progress.died_again(*each[:2])
    assert (progress.stopped_by, progress.dead_again) == (None, 0)
    for each in (*everything[50:53], everything[50]):
        progress.died_again(*each[:2])
    assert (progress.stopped_by, progress.dead_again) == (None, 3)
    progress.died_again(*everything[53][:2])
    assert progress.stopped_by == "failures"


def test_an_aborted_transaction_does_not_count_against_the_rate() -> None:
    everything = dead_letters(20)
    progress = RedriveProgress(everything, rate_per_s=10)
    progress.resume(nothing)
    progress.take(everything[:10], 0)
    progress.aborted()
    assert progress.wait_ms(0) == 0
    progress.take(everything[:10], 0)
    progress.committed()
    assert progress.wait_ms(0) == 1_000


def test_a_dead_letter_that_does_not_wait_cannot_be_taken() -> None:
    one, two, _ = everything = dead_letters(3)
    progress = RedriveProgress(everything)
    progress.resume(lambda letter: letter is one)
    progress.take([two], 0)
    for wrong in ([one], [two], [PlannedLetter(9, 9, "", "", "", "")]):
        with pytest.raises(ValueError, match="does not wait"):
            progress.take(wrong, 0)
    progress.committed()
    assert (progress.sent, progress.settled, progress.waiting) == (1, 1, 1)


def test_a_dead_letter_fails_once_and_a_sent_one_does_not_fail() -> None:
    one, two = everything = dead_letters(2)
    progress = RedriveProgress(everything)
    progress.resume(nothing)
    progress.take([one], 0)
    progress.committed()
    for _ in range(2):
        progress.fail(one, "gone")
        progress.fail(two, "changed")
    assert (progress.sent, progress.failed, progress.failures) == (1, 1, Counter(changed=1))


@pytest.mark.parametrize(
    "wrong",
    [
        {"rate_per_s": 0},
        {"rate_per_s": -1.0},
        {"rate_per_s": float("inf")},
        {"rate_per_s": float("nan")},
        {"most": 0},
        {"stop_ratio": 1.1},
    ],
)
def test_limits_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        RedriveProgress([], **wrong)  # type: ignore[arg-type]
