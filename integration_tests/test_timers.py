"""Named timers on a real broker: runs of `python -m proof timers`, short ones for CI, with workers that are killed."""

from pathlib import Path

import pytest

from proof.timers.lateness import Pace, lateness
from proof.timers.live import Names, live_names
from proof.timers.run import Course, timers

_SHORT = {"names": 1_200, "kills": 2, "workers": 2, "delay_s": (1.0, 8.0), "rate": 150.0}


@pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly-once", "at-least-once"])
@pytest.mark.parametrize("size", [_SHORT, pytest.param({}, marks=pytest.mark.long)], ids=["short", "full"])
def test_a_cancelled_timer_never_comes_and_every_other_does(
    tmp_path: Path, exactly_once: bool, size: dict[str, object]
) -> None:
    course = Course(7, exactly_once=exactly_once, **size)  # type: ignore[arg-type]
    said: list[str] = []
    found = timers(tmp_path / "run", course, said.append)
    assert found.wrong == (), said
    assert found.wanted + found.cancelled + found.replaced >= course.names
    assert found.cancelled > course.names / 4
    assert found.replaced > course.names / 12


def test_messages_with_and_without_names_come_once_and_not_early(tmp_path: Path) -> None:
    found = lateness(tmp_path / "run", Pace(rate=50.0, seconds=8.0, warm_s=5.0, delay="1s"), print)
    assert found.wrong == ()
    assert [len(late) > 0 for late in found.late_ms.values()] == [True, True], "those of the first seconds do not count"


@pytest.mark.parametrize(
    "names", [Names(2_000, near_s=5.0, settled_s=0.0), pytest.param(Names(), marks=pytest.mark.long)]
)
def test_a_worker_with_many_names_goes_on_after_a_kill(tmp_path: Path, names: Names) -> None:
    found = live_names(tmp_path / "run", names, print)
    assert found.wrong == ()
    assert found.first_s < found.all_s
    assert 20 < found.empty <= found.most_restarted < 256
