"""The format: what is written is read, torn lines are legal, and what is wrong is named by file and line."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proof.lines import Commit, End, Fault, Invoke, Line, Process, Record, Sample, Setup, SinkWrite, parse_line, to_json
from proof.reader import HistoryError, read_folder, read_lines
from proof.writer import HistoryWriter

SETUP = b'{"type":"setup","levels":"1s","groups":[],"allow":[]}'
WHO = b'{"type":"process","name":"pay-1","role":"consumer","group":"pay"}'

texts = st.text(max_size=20)
times = st.integers(0, 2**62)
headers = st.lists(st.tuples(texts, st.none() | texts), max_size=3).map(tuple)
counts = st.integers(0, 2**40)
lines: st.SearchStrategy[Line] = st.one_of(
    st.builds(
        Invoke, op=counts, f=st.sampled_from(["send", "deliver", "commit", "hop"]), at_ns=times,
        topic=st.none() | texts, key=st.none() | texts, headers=headers, delay_ms=st.none() | counts,
        positions=st.none() | st.dictionaries(texts, counts, max_size=3),
    ),
    st.builds(
        End, type=st.sampled_from(["ok", "fail", "info"]), op=counts, at_ns=times, where=st.none() | texts,
        then=st.none() | st.sampled_from(["retry", "dead", "again"]),
    ),
    st.builds(Record, where=texts, ms=counts, stamp=st.sampled_from(["create", "append"]), lost=counts),
    st.builds(Fault, kind=texts, target=texts, begin_ns=times, end_ns=times),
    st.builds(Commit, group=texts, queue=texts, position=counts, ms=counts, metadata=texts),
    st.builds(SinkWrite, at_ns=times, group=texts, where=texts, token=counts, by=texts, accepted=st.booleans()),
    st.builds(Sample, what=st.just("lag"), of=texts, at_ns=times, value=counts),
    st.builds(Setup, levels=texts, groups=st.just(()), allow=st.lists(texts, max_size=3).map(tuple)),
)  # fmt: skip


@given(line=lines)
def test_every_line_is_read_as_it_was_written(line: Line) -> None:
    text = to_json(line)
    assert parse_line(text) == line
    assert b"\n" not in text


@given(cut=st.integers(0, 400), written=st.lists(lines.filter(lambda line: isinstance(line, Record)), max_size=4))
def test_a_file_that_was_cut_anywhere_holds_its_whole_lines(
    tmp_path_factory: pytest.TempPathFactory, cut: int, written: list[Line]
) -> None:
    folder = tmp_path_factory.mktemp("history")
    (folder / "a.jsonl").write_bytes(b'{"type":"process","name":"a","role":"harness"}\n' + SETUP + b"\n")
    with HistoryWriter(folder, Process(name="dump", role="harness")) as writer:
        for line in written:
            writer.write(line)
    path = folder / "dump.jsonl"
    whole = path.read_bytes()
    os.truncate(path, min(cut, len(whole)))
    records = read_folder(folder).records
    assert [seen.it for seen in records] == written[: max(0, whole[:cut].count(b"\n") - 1)]


def test_a_killed_process_leaves_what_it_wrote(tmp_path: Path) -> None:
    (tmp_path / "harness.jsonl").write_bytes(b'{"type":"process","name":"harness","role":"harness"}\n' + SETUP + b"\n")
    program = """
import sys
from pathlib import Path
from proof.lines import End, Invoke, Process
from proof.writer import HistoryWriter
writer = HistoryWriter(Path(sys.argv[1]), Process(name="pay-1", role="consumer", group="pay"))
call = dict(f="deliver", group="pay", where="orders/0/1", id="x", attempt=0)
writer.invoke(lambda op, now: Invoke(op=op, at_ns=now, **call))
print("written", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(  # noqa: S603 - this very program
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == b"written\n"
        process.send_signal(signal.SIGKILL)
    delivery = read_folder(tmp_path).deliveries[0]
    assert (delivery.process, delivery.where, delivery.outcome, delivery.end_ns) == (
        "pay-1",
        "orders/0/1",
        "info",
        None,
    )


def test_a_process_name_is_used_once(tmp_path: Path) -> None:
    HistoryWriter(tmp_path, Process(name="pay-1", role="consumer")).close()
    with pytest.raises(FileExistsError):
        HistoryWriter(tmp_path, Process(name="pay-1", role="consumer"))


DELIVER = b'{"type":"invoke","op":1,"f":"deliver","at_ns":1,"group":"pay","where":"a/0/0","id":"x","attempt":0}'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([WHO, b"{"], "pay-1.jsonl:2: line"),
        ([WHO, b'{"type":"invoke"}'], "pay-1.jsonl:2: invoke.op: Field required"),
        ([WHO, b'{"type":"sent","op":1}'], "pay-1.jsonl:2: line"),
        ([WHO, b'{"type":"ok","op":1,"at_ns":1}'], "pay-1.jsonl:2: operation 1 ends, but has no invoke"),
        ([WHO, DELIVER, DELIVER], "pay-1.jsonl:3: operation 1 began before, pay-1.jsonl:2"),
        ([WHO, DELIVER.replace(b"deliver", b"commit")], "pay-1.jsonl:2: commit needs positions"),
        ([WHO, DELIVER.replace(b'"attempt":0', b'"attempt":0,"atempt":0')], "pay-1.jsonl:2: invoke.atempt: Unexpected"),
        ([WHO, *[b'{"type":"ok","op":1,"at_ns":1}'] * 2], "pay-1.jsonl:2: operation 1 ends"),
        ([WHO, WHO], "pay-1.jsonl:2: a file has one process line"),
        ([DELIVER], "pay-1.jsonl:1: the first line of a file says which process"),
        ([WHO, SETUP], "pay-1.jsonl:2: a second setup line; the first is a.jsonl:2"),
    ],
)
def test_what_is_wrong_is_named_by_file_and_line(content: list[bytes], message: str) -> None:
    first = [b'{"type":"process","name":"a","role":"harness"}', SETUP]
    with pytest.raises(HistoryError) as error:
        read_lines({"a.jsonl": first, "pay-1.jsonl": content})
    assert str(error.value).startswith(message)


def test_a_folder_without_a_history_is_said(tmp_path: Path) -> None:
    with pytest.raises(HistoryError, match="has no history"):
        read_folder(tmp_path)
    (tmp_path / "pay-1.jsonl").write_bytes(WHO + b"\n")
    with pytest.raises(HistoryError, match="no setup line"):
        read_folder(tmp_path)
