"""A short run under faults on a real broker, judged by the checker: the cut of `python -m proof chaos` for CI."""

from pathlib import Path

import pytest

from proof.chaos.run import chaos
from proof.check import run
from proof.reader import read_folder

SEED = 24
"""Its first faults freeze an orderly owner and kill worker, sender and owner. The broker's restart comes late: what may
be lost then stands in proof/README.md, "Found"."""
MINUTES = 0.35


@pytest.mark.timeout(600)
def test_a_run_under_faults_breaks_no_promise(tmp_path: Path) -> None:
    said: list[str] = []
    chaos(tmp_path / "history", SEED, MINUTES, exactly_once=False, report=said.append)
    history = read_folder(tmp_path / "history")
    assert run(history) == [], said
    assert len(history.faults) >= 2
    assert sum(send.outcome == "ok" for send in history.sends) > 300
    assert any(delivery.outcome == "fail" for delivery in history.deliveries)
    assert history.commits
    assert history.sink
