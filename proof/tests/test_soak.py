"""A leak is found in the samples of a soak, and none in flat noisy ones."""

import random
from collections.abc import Callable

import pytest

from proof.soak.judge import CYCLE_S, Closing, Sample, find

MIB = 1_048_576
HOUR_S = 3_600


def samples(
    *,
    seconds: int = 2 * HOUR_S,
    mib: Callable[[float], float] = lambda _: 0.0,
    threads: Callable[[float], int] = lambda _: 0,
    sockets: Callable[[float], int] = lambda _: 0,
    process: str = "worker-once.1",
) -> list[Sample]:
    """Samples of a process whose memory and sockets vary; the functions of the time add to them."""
    dice = random.Random(7)  # noqa: S311 - nothing secret
    found = []
    for at_s in range(10, seconds, 10):
        resident = 60 + dice.uniform(-4, 4) + mib(at_s)
        open_sockets = 6 + (dice.random() < 0.1) - (dice.random() < 0.1) + sockets(at_s)
        found.append(
            Sample(process, at_s, int(resident * MIB), 14 + threads(at_s), 20 + open_sockets, open_sockets)
        )  # fmt: skip
    return found


def test_nothing_is_found_in_flat_noisy_samples() -> None:
    assert list(find(samples(), [Closing("worker-once.1", 9.9, 0)])) == []


def test_nothing_is_found_in_what_repeats_with_each_cycle() -> None:
    def while_members_join(at_s: float) -> int:
        return 3 if 120 <= at_s % CYCLE_S < 300 else 0

    found = samples(mib=while_members_join, threads=while_members_join, sockets=while_members_join)
    assert list(find(found, [])) == []


def test_the_warm_up_is_not_judged() -> None:
    assert list(find(samples(mib=lambda at_s: min(at_s, 600), threads=lambda at_s: int(min(at_s, 600))), [])) == []


@pytest.mark.parametrize(("mib_per_min", "is_found"), [(0.9, False), (1.1, True), (10, True)])
def test_memory_that_grows_is_found(mib_per_min: float, is_found: bool) -> None:
    found = list(find(samples(mib=lambda at_s: mib_per_min * at_s / 60), []))
    assert [line.partition(" grew")[0] for line in found] == ["the memory of worker-once.1"] * is_found


@pytest.mark.parametrize("what", ["threads", "sockets"])
def test_what_is_not_closed_in_each_cycle_is_found(what: str) -> None:
    def one_a_cycle(at_s: float) -> int:
        return int(at_s // CYCLE_S)

    found = list(find(samples(**{what: one_a_cycle}), []))  # type: ignore[arg-type]
    assert f"worker-once.1 had 10 more {what} in the last cycle than in the first one" in found


def test_a_single_thread_too_many_is_found() -> None:
    assert len(list(find(samples(threads=lambda at_s: int(at_s > HOUR_S)), []))) == 1


def test_a_process_that_ran_briefly_and_the_broker_are_not_judged() -> None:
    short = samples(seconds=HOUR_S // 3, mib=lambda at_s: at_s)
    assert list(find([*short, *samples(process="broker", mib=lambda at_s: at_s)], [])) == []


@pytest.mark.parametrize(
    "closing", [Closing("pull.2", 10.1, 0), Closing("pull.2", 0.1, -9), Closing("pull.2", 0.0, 0, by_itself=True)]
)
def test_a_process_that_does_not_end_as_it_should_is_found(closing: Closing) -> None:
    assert len(list(find([], [closing]))) == 1
