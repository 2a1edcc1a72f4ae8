"""Simulated runs under faults: nothing goes wrong, a seed repeats exactly, and planted defects are found."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from proof.simulate.bugs import BUGS, Bug, planted
from proof.simulate.plan import make_plan
from proof.simulate.run import Outcome, simulate
from proof.simulate.shrink import shrink
from proof.simulate.world import World

ENOUGH_SEEDS = 500
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("first", range(0, 200, 20))
def test_nothing_goes_wrong_in_simulated_runs_under_faults(first: int) -> None:
    failed = {seed: problems for seed in range(first, first + 20) if (problems := simulate(make_plan(seed)).problems)}
    assert not failed


@pytest.mark.parametrize("seed", [1, 6, 8, 16, 31, 35, 87])
def test_a_seed_gives_the_same_trace_each_time(seed: int) -> None:
    assert simulate(make_plan(seed)).trace == simulate(make_plan(seed)).trace


def test_a_seed_gives_the_same_trace_in_every_process() -> None:
    code = (
        "import hashlib, logging; from proof.simulate.plan import make_plan; from proof.simulate.run import simulate\n"
        "logging.disable(logging.CRITICAL)\n"
        "text = repr([simulate(make_plan(seed)).trace for seed in (1, 2, 35, 87)])\n"
        "print(hashlib.sha256(text.encode()).hexdigest())"
    )
    digests = set()
    for hash_seed in ("1", "2"):
        path = os.pathsep.join([str(ROOT), *sys.path])
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path}
        made = subprocess.run(  # noqa: S603 - this interpreter
            [sys.executable, "-c", code], capture_output=True, check=True, env=environment, text=True
        )
        digests.add(made.stdout)
    assert len(digests) == 1


def test_the_shortest_wait_moves_the_virtual_time_so_that_a_loop_until_a_time_ends() -> None:
    world = World(exactly_once=False, is_orderly=False)
    begin_ns = world.clock.monotonic_ns()
    world.kafka.producer({}).poll(1e-12)
    assert world.clock.monotonic_ns() > begin_ns


@pytest.mark.parametrize("seed", [35, 92, 133])
def test_a_message_is_not_early_where_its_wait_ended_because_a_clock_was_set_forward(seed: int) -> None:
    outcome = simulate(make_plan(seed))
    assert any("fault" in line and " clock " in line for line in outcome.trace)
    assert not outcome.problems


def test_a_wrong_answer_is_a_fault_when_it_is_given_not_only_when_it_was_ordered() -> None:
    """In this seed a refusal is given 15 s after it was ordered, and a program reads a message again because of it."""
    assert not simulate(make_plan(2633)).problems


def test_of_two_equal_commands_the_one_that_failed_is_not_taken_for_the_one_that_was_stored() -> None:
    """In this seed a cancel fails for certain; the same one is sent again, and its sender dies before the report."""
    assert not simulate(make_plan(456)).problems


def first_failure(bug: Bug) -> Outcome | None:
    plans = map(make_plan, range(ENOUGH_SEEDS))
    outcomes = (simulate(plan) for plan in plans if not bug.needs or getattr(plan, bug.needs))
    return next((outcome for outcome in outcomes if outcome.problems), None)


@pytest.mark.parametrize("bug", BUGS, ids=[bug.name.replace(" ", "-") for bug in BUGS])
def test_a_planted_defect_is_found(bug: Bug) -> None:
    with planted(bug):
        found = first_failure(bug)
    assert found is not None
    assert not simulate(found.plan).problems  # it is the defect that was found


def test_what_a_member_folds_is_compared_with_the_log_of_its_group() -> None:
    with planted(next(bug for bug in BUGS if bug.name == "a member measures leases with its own clock")):
        found = simulate(next(plan for plan in map(make_plan, range(ENOUGH_SEEDS)) if plan.orderly))
    assert any("a member's fold" in problem for problem in found.problems)


def test_a_failing_run_is_shrunk_to_a_few_steps_with_the_same_problem() -> None:
    bug = next(bug for bug in BUGS if bug.name == "a refused hop counts as stored")
    with planted(bug):
        found = first_failure(bug)
        assert found is not None
        small = shrink(found)
        assert small.kinds & found.kinds
        assert simulate(small.plan).trace == small.trace
    assert len(small.plan.steps) < len(found.plan.steps) / 4
