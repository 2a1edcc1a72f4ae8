"""`dlq plan` and `dlq apply`: what is checked before a topic is read, and what a dry run reports."""

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message as Record

from rocketshim.admin.dead_letter_formats import Decoder
from rocketshim.admin.plan_from_topic import make_plan
from rocketshim.admin.record_filter import RecordFilter
from rocketshim.admin.redrive import record_maker
from rocketshim.cli import main
from rocketshim.cli.options import Connection
from rocketshim.cli.redrive import _plan, _report, _write_private, write_plan
from rocketshim.core.redrive_progress import RedriveProgress
from rocketshim.errors import ConfigError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.testing import InMemoryKafka, VirtualClock
from rocketshim_topics import TopicNames
from rocketshim_topics.redrive_log import MarkRecord, encode_redrive_record
from rocketshim_topics.redrive_plan import HeldBack, PlannedLetter, RedrivePlan, RedriveRules

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
    at = Connection(bootstrap="memory:1", client={}, clients=kafka.clients())
    everything = RecordFilter()
    with pytest.raises(ConfigError, match="--out /dev/full: the plan could not be written"):
        _plan(at, ("g", None), RedriveRules(), everything, Path("/dev/full"), as_json=False)


def _plan_parked(reader: TopicReader, **rules: Any) -> RedrivePlan:
    return make_plan(reader, reader, TopicNames().parked, RedriveRules(**rules), RecordFilter())


def test_parked_records_whose_marks_may_be_gone_are_named_and_not_sent(capsys: pytest.CaptureFixture[str]) -> None:
    names = TopicNames()
    kafka = InMemoryKafka(VirtualClock())
    kafka.create_topic(names.parked)
    kafka.create_topic(names.redrive_log, config={"message.timestamp.type": "LogAppendTime"})
    kafka.append(names.parked, b"x", headers=[("PARK_REASON", b"forbidden"), ("REAL_TOPIC", b"orders")])
    kafka.append(names.redrive_log, b"{}")
    kafka.truncate(names.redrive_log, before_offset=1)
    with TopicReader("memory:1", clients=kafka.clients()) as reader:
        plan = _plan_parked(reader)
        nevertheless = _plan_parked(reader, again=True)
    assert (plan.letters, [each.reason for each in plan.held_back], plan.log_end) == ((), ["marks-lost"], 1)
    write_plan(plan, None, as_json=False)
    assert "may have been sent before; plan them nevertheless (--again)" in capsys.readouterr().out
    assert len(nevertheless.letters) == 1


def test_a_parked_record_that_was_sent_again_is_held_back_not_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """Who names it by its position must not read that there is no such record."""
    names = TopicNames()
    kafka = InMemoryKafka(VirtualClock())
    kafka.create_topic(names.parked)
    kafka.create_topic(names.redrive_log, config={"message.timestamp.type": "LogAppendTime"})
    kafka.append(names.parked, b"x", headers=[("PARK_REASON", b"forbidden"), ("REAL_TOPIC", b"orders")])
    with TopicReader("memory:1", clients=kafka.clients()) as reader:
        (letter,) = _plan_parked(reader).letters
        mark = MarkRecord(
            state="redriven", source=names.parked, plan="p1", session="s", by="me", letters=((0, 0, letter.digest),)
        )
        kafka.append(names.redrive_log, encode_redrive_record(mark))
        plan = _plan_parked(reader)
        again = _plan_parked(reader, again=True)
    assert (plan.letters, [each.reason for each in plan.held_back]) == ((), ["redriven-by:p1"])
    write_plan(plan, None, as_json=False)
    assert "1 held back: sent again or discarded before" in capsys.readouterr().out
    assert again.letters == (letter,)


def test_a_parked_record_that_is_parked_again_is_no_duplicate_of_the_one_that_was_sent() -> None:
    names, kafka = TopicNames(), InMemoryKafka(VirtualClock())
    kafka.create_topic(names.parked)
    kafka.create_topic(names.redrive_log, config={"message.timestamp.type": "LogAppendTime"})
    headers: list[tuple[str, bytes | None]] = [
        ("PARK_REASON", b"forbidden"), ("REAL_TOPIC", b"orders"), ("UNIQ_KEY", b"m1"), ("ORIGIN_MESSAGE_ID", b"o/0/1"),
    ]  # fmt: skip
    kafka.append(names.parked, b"x", headers=headers)
    with TopicReader("memory:1", clients=kafka.clients()) as reader:
        (letter,) = _plan_parked(reader).letters
        mark = MarkRecord(
            state="redriven", source=names.parked, plan="p1", session="s", by="me", letters=((0, 0, letter.digest),)
        )
        kafka.append(names.redrive_log, encode_redrive_record(mark))
        kafka.append(names.parked, b"x", headers=headers)
        assert [each.offset for each in _plan_parked(reader).letters] == [1]


@pytest.mark.parametrize("topic", ["rmq.parked", "rmq.dlq.g"])
def test_what_is_discarded_is_only_marked_a_parked_record_too(topic: str) -> None:
    record = Record(topic=topic, partition=0, offset=0, headers=[("REAL_TOPIC", b"orders")])
    make = record_maker("p1", RedriveRules(action="discard"), Decoder(TopicNames(), topic))
    assert make(record, LETTERS[0]) is None


@pytest.mark.parametrize(("most", "count"), [(None, 100), (10, 10), (200, 100)])
def test_a_dry_run_reports_as_many_letters_as_the_run_would_send(
    most: int | None, count: int, capsys: pytest.CaptureFixture[str]
) -> None:
    _report(PLAN, RedriveProgress(LETTERS, most=most), dry_run=True, as_json=False)
    assert capsys.readouterr().out.startswith(f"would be sent: {count}, ")


@pytest.mark.skipif(os.name == "nt", reason="Windows has other rights")
@pytest.mark.parametrize("exists", [False, True])
def test_only_its_owner_may_read_a_plan(tmp_path: Path, exists: bool) -> None:
    file = tmp_path / "plan.json"
    if exists:
        file.write_text("an older and longer one")
        file.chmod(0o644)
    _write_private(file, "plan")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("plan", 0o600)


def test_a_report_names_what_has_failed(capsys: pytest.CaptureFixture[str]) -> None:
    progress = RedriveProgress(LETTERS, stop_ratio=1)
    for letter in LETTERS[:30]:
        progress.fail(letter, "refused:INVALID_RECORD")
    _report(PLAN, progress, dry_run=False, as_json=False)
    shown = capsys.readouterr().out
    assert "rmq.dlq.g/0/0  m0  refused:INVALID_RECORD\n" in shown
    assert shown.count("refused:INVALID_RECORD") == 1 + 20
    assert "the first 20; --json has all" in shown
    _report(PLAN, progress, dry_run=False, as_json=True)
    named = json.loads(capsys.readouterr().out)["failed_letters"]
    assert len(named) == 30
    assert named[29] == {"record": "rmq.dlq.g/0/29", "id": "m29", "reason": "refused:INVALID_RECORD"}


def test_a_report_names_what_is_dead_again(capsys: pytest.CaptureFixture[str]) -> None:
    progress = RedriveProgress(LETTERS)
    progress.resume(lambda _: False)
    progress.take(LETTERS[:3], 0)
    progress.committed()
    progress.died_again(0, 1)
    _report(PLAN, progress, dry_run=False, as_json=False)
    shown = capsys.readouterr().out
    assert "1 of those sent is dead again\n          rmq.dlq.g/0/1  m1  " in shown
    _report(PLAN, progress, dry_run=False, as_json=True)
    told = json.loads(capsys.readouterr().out)
    assert (told["dead_again"], told["dead_again_letters"]) == (1, [{"record": "rmq.dlq.g/0/1", "id": "m1"}])


def test_a_plan_counts_as_the_statistics_do(capsys: pytest.CaptureFixture[str]) -> None:
    reasons = ["redriven-by:a", "redriven-by:b", "discarded-by:c", "replayed-too-often"]
    held_back = tuple(HeldBack(0, 900 + at, reason, "") for at, reason in enumerate(reasons))
    write_plan(PLAN.model_copy(update={"letters": PLAN.letters[:1], "held_back": held_back}), None, as_json=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(": send 1 of 2 dead letters")
    assert lines[-3:-1] == [
        "        1 held back: replayed-too-often",
        "        3 held back: sent again or discarded before; --again plans them, too",
    ]
