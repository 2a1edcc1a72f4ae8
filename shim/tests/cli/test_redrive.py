"""`dlq plan` and `dlq apply`: what is checked before a topic is read, and what a dry run reports."""

from pathlib import Path

import pytest

from rocketshim.cli import main
from rocketshim.cli.redrive import _report
from rocketshim.core.redrive_progress import RedriveProgress
from rocketshim_topics.redrive_plan import PlannedLetter, RedrivePlan, RedriveRules

LETTERS = tuple(PlannedLetter(0, offset, "f" * 16, "rmq.retry.g", "Timeout", f"m{offset}") for offset in range(100))
PLAN = RedrivePlan(
    source="rmq.dlq.g", cluster_id="c", created_ms=1, rules=RedriveRules(), choice={}, letters=LETTERS, held_back=()
)


@pytest.mark.parametrize("command", ["plan", "discard"])
def test_a_file_that_cannot_be_written_is_refused_before_a_broker_is_asked(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "missing" / "plan.json"
    assert main(["dlq", command, "--group", "g", "--out", str(file), "--bootstrap", "127.0.0.1:1"]) == 1
    assert f"error: --out {file}: cannot write there" in capsys.readouterr().err


@pytest.mark.parametrize(("most", "count"), [(None, 100), (10, 10), (200, 100)])
def test_a_dry_run_reports_as_many_letters_as_the_run_would_send(
    most: int | None, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    _report(PLAN, RedriveProgress(LETTERS, most=most), dry_run=True, as_json=False)
    assert capsys.readouterr().out.startswith(f"would be sent: {count}, ")
