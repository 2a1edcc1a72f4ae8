"""Properties of the checker itself, and its command."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proof.__main__ import main
from proof.check import commits, duplicates, run
from proof.check.commits import relayed_ms
from proof.check.duplicates import causes
from proof.check.fold import find
from proof.check.memory import slope_mib_per_min
from proof.check.timing import lateness_ms
from proof.index import Index
from proof.lines import Commit
from proof.report import figures
from proof.violation import Kind
from rocketshim.locks.fold import Folded, GroupLog
from rocketshim_topics.group_log import GroupRecord

from .anomalies import ANOMALIES, fault
from .doctor import Doctor
from .shapes import SHAPES, sound
from .world import BEGIN_NS, Files, S, parsed


@settings(max_examples=25)
@given(shape=st.sampled_from(list(SHAPES)), seed=st.integers(5, 1_000_000))
def test_no_seed_of_any_shape_has_violations(shape: str, seed: int) -> None:
    assert run(parsed(sound(shape, seed))) == []


def test_there_are_enough_anomalies_and_every_kind_has_one() -> None:
    assert len(ANOMALIES) >= 40
    assert {anomaly.kind for anomaly in ANOMALIES.values()} == set(get_args(Kind))


@given(order=st.randoms(use_true_random=False))
@settings(max_examples=5)
def test_the_order_of_files_does_not_matter(order: object) -> None:
    files = sound("killed", 1)
    names = list(files)
    order.shuffle(names)  # type: ignore[attr-defined]
    assert run(parsed({name: files[name] for name in names})) == []


def test_violations_carry_lines_that_exist() -> None:
    doctor = Doctor("concurrent", 1)
    ANOMALIES["a delivery is left out (concurrent)"].change(doctor)
    files = doctor.finish()
    for violation in run(parsed(files)):
        assert violation.evidence
        for source in violation.evidence:
            assert 1 <= source.line <= len(files[source.file.removesuffix(".jsonl")])


def test_a_delivery_may_wait_in_a_run_that_was_not_drained() -> None:
    doctor = Doctor("concurrent", 1)
    ANOMALIES["the last message of a queue waits for its group (concurrent)"].change(doctor)
    doctor.setup["drained"] = False
    assert run(parsed(doctor.finish())) == []


def test_an_acknowledgement_without_an_offset_is_found_by_its_id() -> None:
    doctor = Doctor("concurrent", 1)
    record = doctor.pick(doctor.is_sent_leaf)
    del doctor.end_of(doctor.index.sends_by_record[record.it.where].source)["where"]
    assert run(parsed(doctor.finish())) == []


def test_a_fault_explains_a_second_delivery() -> None:
    doctor = Doctor("concurrent", 1)
    call = doctor.calls(doctor.pick(doctor.is_sent_leaf))[0]
    fault(doctor, "kill-9", call.process, call.begin_ns, call.begin_ns + S)
    doctor.repeat(call)
    history = parsed(doctor.finish())
    assert run(history) == []
    assert causes(Index(history)) == {"kill-9": 1}


@pytest.mark.parametrize(
    ("kind", "shape", "expected"),
    [
        ("quota", "concurrent", ["duplicate"]),
        ("quota", "orderly", []),
        ("client-clock", "concurrent", ["duplicate"]),
        ("client-clock", "orderly", ["duplicate"]),
        ("link-replies-late", "concurrent", []),
        ("listeners-changed", "concurrent", []),
    ],
)
def test_a_fault_explains_a_second_delivery_only_if_it_may_cost_one(kind: str, shape: str, expected: list[str]) -> None:
    doctor = Doctor(shape, 1)
    call = doctor.calls(doctor.pick(doctor.is_sent_leaf))[0]
    target = f"group:{call.group}" if kind == "listeners-changed" else call.process
    fault(doctor, kind, target, call.begin_ns, call.begin_ns + S)
    doctor.repeat(call)
    assert [each.kind for each in duplicates.find(Index(parsed(doctor.finish())))] == ["duplicate" for _ in expected]


def test_a_broker_fault_explains_a_second_delivery_to_any_group() -> None:
    doctor = Doctor("concurrent", 1)
    call = doctor.calls(doctor.pick(doctor.is_sent_leaf))[0]
    fault(doctor, "broker-restart", "broker-1", call.begin_ns - S, call.begin_ns)
    doctor.repeat(call)
    assert run(parsed(doctor.finish())) == []


@pytest.mark.parametrize(
    ("at_fault", "returns", "far", "expected"),
    [(True, True, False, 0), (False, True, False, 1), (True, False, False, 1), (True, True, True, 1)],
    ids=["sound", "no fault", "the position does not return", "below what was stored before the fault"],
)
def test_a_commit_may_come_late_while_a_broker_is_at_fault_if_the_position_returns(
    *, at_fault: bool, returns: bool, far: bool, expected: int
) -> None:
    doctor = Doctor("concurrent", 1)
    commits = next(found for found in doctor.index.commits_by_queue.values() if len(found) > 2)
    (_, before), (_, last) = commits[-2:]
    assert before.ms < last.ms
    late = before.position + 1 if last.position > before.position + 1 else before.position
    doctor.add("dump", replace(before, ms=last.ms, position=before.position - 1 if far else late))
    if returns:
        doctor.add("dump", last)
    if at_fault:
        fault(
            doctor,
            "broker-kill",
            "broker-1",
            (doctor.index.host_ns(before.ms) or 0) + 1,
            doctor.index.host_ns(last.ms) or 0,
        )
    assert [each.kind for each in run(parsed(doctor.finish()))] == ["commit-back"] * expected


def test_stamps_are_not_compared_where_a_clock_was_set() -> None:
    doctor = Doctor("delayed", 1)
    ANOMALIES["a message is stored a millisecond early (delayed)"].change(doctor)
    fault(doctor, "clock-step", "broker-1", BEGIN_NS, BEGIN_NS)
    history = parsed(doctor.finish())
    assert run(history) == []
    assert lateness_ms(Index(history)) == []


class Forgetful(GroupLog):
    """A fold that loses every third record."""

    def fold(self, offset: int, append_ms: int, record: GroupRecord) -> Folded:
        return self.skip(offset, append_ms) if offset % 3 == 0 else super().fold(offset, append_ms, record)


def test_a_fold_that_is_not_a_function_of_the_log_is_found() -> None:
    index = Index(parsed(sound("orderly, owners lost", 1)))
    assert list(find(index)) == []
    assert {violation.kind for violation in find(index, Forgetful)} == {"fold-differs"}


def test_a_log_that_was_lost_still_tells_who_was_given_which_token() -> None:
    doctor = Doctor("orderly", 1)
    for topic in doctor.index.group_logs:
        for record in doctor.index.queues[f"{topic}/0"]:
            doctor.line(record.source)["lost"] = 1
    lost = doctor.finish()
    assert run(parsed(lost)) == []
    call = next(each for each in doctor.history.deliveries if each.token is not None)
    doctor.line(call.source)["token"] = (call.token or 0) + 1_000_000
    assert "token-not-granted" in {violation.kind for violation in run(parsed(lost))}


@given(slope=st.floats(-5, 5), base=st.integers(50, 500), minutes=st.integers(8, 30))
def test_the_slope_of_memory_is_found(slope: float, base: int, minutes: int) -> None:
    samples = [(minute * 60 * S, max(0, round((base + 200 + slope * minute) * 1_048_576))) for minute in range(minutes)]
    found = slope_mib_per_min(samples)
    assert found is not None
    assert found == pytest.approx(slope, abs=0.01)
    assert slope_mib_per_min(samples[:6]) is None


@given(minutes=st.integers(8, 30), share=st.floats(0, 1), size=st.integers(-50, 50))
def test_a_step_of_memory_is_not_growth(minutes: int, share: float, size: int) -> None:
    times = range(0, minutes * 60, 5)
    at = int(len(times) * share)
    samples = [(each * S, (100 + (size if number >= at else 0)) * 1_048_576) for number, each in enumerate(times)]
    found = slope_mib_per_min(samples)
    assert found is not None
    assert found <= 0


def test_it_is_not_known_when_a_record_was_relayed_if_a_copy_of_it_has_its_sender_s_time() -> None:
    doctor = Doctor("concurrent", 1)
    relayed = next(each for each in doctor.index.messages() if relayed_ms(each) > 0)
    (copy,) = relayed.committed_children()
    doctor.line(copy.source)["stamp"] = "create"
    again = Index(parsed(doctor.finish()))
    assert relayed_ms(next(each for each in again.messages() if each.it.where == relayed.it.where)) == -math.inf


def test_a_repeat_does_not_tell_when_a_record_was_relayed_whose_target_may_have_been_deleted_since() -> None:
    doctor = Doctor("concurrent", 1)
    relayed = next(each for each in doctor.index.messages() if relayed_ms(each) > 0)
    (copy,) = relayed.committed_children()
    doctor.line(copy.source)["ms"] += 600_000  # the first copy is gone, with its topic

    def kinds() -> set[str]:
        return {violation.kind for violation in commits.find(Index(parsed(doctor.files)))}

    assert kinds() == {"commit-past-unfinished"}
    doctor.set_header(relayed, "REAL_TOPIC", b"deleted")
    doctor.setup["fleeting"] = ["deleted"]
    assert kinds() == set()


def write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in content))


def test_the_command_reports_figures_and_violations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    doctor = Doctor("killed", 1)
    write(tmp_path, doctor.files)
    assert main(["check", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "no violations" in said
    assert "(kill-9 3, rebalance 1)" in said

    (_, commits) = next((key, found) for key, found in doctor.index.commits_by_queue.items() if len(found) > 1)
    last = commits[-1][1]
    doctor.add("dump", Commit(group=last.group, queue=last.queue, position=last.position - 1, ms=last.ms))
    write(tmp_path, doctor.finish())
    assert main(["check", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    assert "1 violations" in said
    assert f"commit-back: {last.group}'s position of {last.queue} went back" in said
    assert f"dump.jsonl:{len(doctor.files['dump'])}" in said

    (tmp_path / "dump.jsonl").write_text("{}\n")
    assert main(["check", str(tmp_path)]) == 2
    assert "dump.jsonl:1" in capsys.readouterr().err


def test_figures_count_what_was_done() -> None:
    found = figures(parsed(sound("delayed", 1)))
    history = parsed(sound("delayed", 1))
    assert found["sends acknowledged"] == sum(send.outcome == "ok" for send in history.sends)
    assert found["of them delayed"] == found["sends acknowledged"]
    assert str(found["lateness in ms"]).startswith("p50 ")
