"""Shrink a failing plan: leave out steps while the run still fails in the same way."""

from dataclasses import replace

from proof.simulate.plan import Plan, Step
from proof.simulate.run import Outcome, simulate

__all__ = ["shrink"]


def shrink(outcome: Outcome, *, most_runs: int = 300) -> Outcome:
    """Return a run with as few steps as were found that has one of the kinds of problems of this one.

    Args:
        outcome: a run with problems.
        most_runs: number of runs after which the best one so far is returned.
    """
    best, runs = outcome, 0
    size = max(1, len(best.plan.steps) // 2)
    while size and runs < most_runs:
        at, is_smaller = 0, False
        while at < len(best.plan.steps) and runs < most_runs:
            steps: tuple[Step, ...] = best.plan.steps[:at] + best.plan.steps[at + size :]
            tried = simulate(_with(best.plan, steps))
            runs += 1
            if tried.kinds & outcome.kinds:
                best, is_smaller = tried, True
            else:
                at += size
        if not is_smaller or size > 1:
            size //= 2
    return best


def _with(plan: Plan, steps: tuple[Step, ...]) -> Plan:
    return replace(plan, steps=steps)
