"""`dlq plan` and `dlq apply`: what is checked before a topic is read, and what a dry run reports."""

from functools import partial
from pathlib import Path

import pytest

from rocketshim.admin.record_filter import RecordFilter
from rocketshim.cli import main
from rocketshim.cli.redrive import _plan, _report
from rocketshim.core.redrive_progress import RedriveProgress
from rocketshim.errors import ConfigError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.testing import InMemoryKafka, VirtualClock
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


def test_a_plan_that_does_not_fit_on_its_disk_is_an_error_that_names_the_file() -> None:
    kafka = InMemoryKafka(VirtualClock())
    kafka.create_topic("rmq.dlq.g", 1)
    open_reader = partial(TopicReader, "memory:1", clients=kafka.clients())
    everything = RecordFilter(where=None, tags=None, key=None, since=None)
    with pytest.raises(ConfigError, match="--out /dev/full: the plan could not be written"):
        _plan(open_reader, ("g", None), RedriveRules(), everything, Path("/dev/full"), as_json=False)


@pytest.mark.parametrize(("most", "count"), [(None, 100), (10, 10), (200, 100)])
def test_a_dry_run_reports_as_many_letters_as_the_run_would_send(
    most: int | None, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    _report(PLAN, RedriveProgress(LETTERS, most=most), dry_run=True, as_json=False)
    assert capsys.readouterr().out.startswith(f"would be sent: {count}, ")
