"""Named timers on a real broker: a short run of `python -m proof timers` for CI, with workers that are killed."""

from pathlib import Path

import pytest

from proof.timers.run import Course, timers


@pytest.mark.parametrize("exactly_once", [True, False], ids=["exactly-once", "at-least-once"])
def test_a_cancelled_timer_never_comes_and_every_other_does(tmp_path: Path, exactly_once: bool) -> None:
    course = Course(7, names=1_200, kills=2, exactly_once=exactly_once, workers=2, delay_s=(1.0, 8.0), rate=150.0)
    said: list[str] = []
    found = timers(tmp_path / "run", course, said.append)
    assert found.wrong == (), said
    assert found.wanted + found.cancelled + found.replaced >= 1_200
    assert found.cancelled > 300
    assert found.replaced > 100
