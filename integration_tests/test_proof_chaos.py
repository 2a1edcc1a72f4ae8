"""A short run under faults on three real brokers, judged by the checker: the cut of `make chaos` for CI."""

from pathlib import Path

import pytest

from proof.chaos.plan import LANES
from proof.chaos.run import Course, chaos
from proof.check import run
from proof.reader import read_folder

COURSE = Course(seed=24, minutes=0.3, rate=100, clocks=False)


@pytest.mark.timeout(1_800)
def test_a_run_under_faults_breaks_no_promise(tmp_path: Path) -> None:
    said: list[str] = []
    assert chaos(tmp_path / "run", COURSE, said.append) == []
    faults = 0
    for lane in LANES:
        history = read_folder(tmp_path / "run" / lane.name)
        assert run(history) == [], said
        assert sum(send.outcome == "ok" for send in history.sends) > 200
        assert any(delivery.outcome == "fail" for delivery in history.deliveries)
        assert {delivery.group for delivery in history.deliveries} == {group.name for group in lane.groups}
        assert history.commits
        assert bool(history.folds) == any(group.mode == "orderly" for group in lane.groups)
        faults += len(history.faults)
    assert faults >= 4
