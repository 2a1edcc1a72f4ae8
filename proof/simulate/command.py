"""`python -m proof simulate`: run many seeds in all processes of the machine, or replay and shrink one."""

import logging
import multiprocessing
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from time import monotonic
from typing import Any, Final

from proof.simulate.plan import make_plan
from proof.simulate.run import Outcome, simulate
from proof.simulate.shrink import shrink

__all__ = ["replay", "run_seeds"]

_CHUNK: Final = 20
_LONGEST_S: Final = 300
"""How long a run may take. Most take 0.1 s; one in which the virtual time stands still would never end."""


def run_seeds(first: int, count: int, report: Callable[[str], object]) -> bool:
    """Run the seeds from `first` on; report each that fails, and the figures. Return whether none failed."""
    began_s, total, failed = monotonic(), Counter[str](), 0
    seeds = range(first, first + count)
    with multiprocessing.get_context("spawn").Pool(os.cpu_count() or 1, initializer=_quiet) as pool:
        for seed, problems, figures in pool.imap_unordered(_judged, seeds, chunksize=_CHUNK):
            total.update(figures)
            if problems:
                failed += 1
                report(f"seed {seed}: {problems[0]} ({len(problems)} problems)")
    report(
        f"{count} seeds in {monotonic() - began_s:.0f} s: {total['sends']} sends, {total['deliveries']} deliveries, "
        f"{total['faults']} faults, {failed} seeds failed"
    )
    return not failed


def replay(seed: int, report: Callable[[str], object]) -> bool:
    """Run one seed; if it fails, shrink it and report steps, trace and problems. Return whether it passes."""
    _quiet()
    outcome = simulate(make_plan(seed))
    if not outcome.problems:
        report(f"seed {seed} passes: {outcome.sends} sends, {outcome.deliveries} deliveries, {outcome.faults} faults")
        return True
    for line in _shown(outcome, shrink(outcome)):
        report(line)
    return False


def _shown(outcome: Outcome, small: Outcome) -> Iterator[str]:
    yield f"seed {outcome.plan.seed} fails; {len(small.plan.steps)} of its {len(outcome.plan.steps)} steps suffice:"
    yield from (f"  {step.kind} {step.who} {step.amount}" for step in small.plan.steps)
    yield "trace of the shorter run (virtual ms, process, call):"
    yield from small.trace
    yield "problems:"
    yield from small.problems


def _judged(seed: int) -> tuple[int, tuple[str, ...], dict[str, int]]:
    signal.setitimer(signal.ITIMER_REAL, _LONGEST_S, _LONGEST_S)
    outcome = simulate(make_plan(seed))
    signal.setitimer(signal.ITIMER_REAL, 0)
    figures = {"sends": outcome.sends, "deliveries": outcome.deliveries, "faults": outcome.faults}
    return seed, outcome.problems, figures


def _quiet() -> None:
    logging.disable(logging.CRITICAL)  # a run logs hundreds of the warnings that it provokes
    signal.signal(signal.SIGALRM, _end_run)


def _end_run(*_: Any) -> None:
    raise TimeoutError(f"the run did not end within {_LONGEST_S} s")
