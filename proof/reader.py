"""Read a history: a folder of `*.jsonl`, one file a process.

A last line without its line feed was torn by the death of its process and is ignored. Everything else that is wrong is
an error that names file and line.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

from pydantic import ValidationError

from proof.history import CommitCall, Delivery, History, Hop, Outcome, Seen, Send, Source
from proof.lines import (
    Commit,
    End,
    Fault,
    FoldSeen,
    Invoke,
    Line,
    Process,
    Record,
    Sample,
    Setup,
    SinkWrite,
    parse_line,
)

__all__ = ["HistoryError", "read_folder", "read_lines"]


class HistoryError(Exception):
    """A history cannot be read; the text names file and line."""


def read_folder(folder: Path) -> History:
    """Read the history in a folder.

    Raises:
        HistoryError: there is none, or it breaks the format.
    """
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise HistoryError(f"{folder} has no history: no *.jsonl file exists in it")
    return read_lines({path.name: _whole_lines(path) for path in paths})


def _whole_lines(path: Path) -> Iterable[bytes]:
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield line


def read_lines(files: Mapping[str, Iterable[bytes]]) -> History:
    """Read a history from lines by file name.

    Raises:
        HistoryError: it breaks the format.
    """
    contents = [content for file, lines in files.items() if (content := _read_file(file, lines)) is not None]
    setups = [line for content in contents for line in content.setups]
    if not setups:
        raise HistoryError(f"no setup line in {', '.join(files) or 'no files'}: it says what the run was")
    if len(setups) > 1:
        raise HistoryError(f"{setups[1].source}: a second setup line; the first is {setups[0].source}")
    history = History(setups[0].it)
    for content in contents:
        process = content.process.it
        if process.name in history.processes:
            raise HistoryError(f"{content.process.source}: process {process.name} has another file already")
        history.processes[process.name] = process
        _add_operations(history, content)
        for seen in content.others:
            _add_line(history, seen)
    return history


@dataclass(slots=True)
class _Content:
    """What one file holds."""

    process: Seen[Process]
    setups: list[Seen[Setup]] = field(default_factory=list)
    begun: dict[int, Seen[Invoke]] = field(default_factory=dict)
    ended: dict[int, End] = field(default_factory=dict)
    others: list[Seen[Line]] = field(default_factory=list)


def _read_file(file: str, lines: Iterable[bytes]) -> _Content | None:
    """Read one file; None: its process was killed before its first line was whole."""
    content: _Content | None = None
    for number, text in enumerate(lines, start=1):
        source = Source(file, number)
        line = _parsed(source, text)
        if content is not None:
            _add_to_file(content, source, line)
        elif isinstance(line, Process):
            content = _Content(Seen(source, line))
        else:
            raise HistoryError(f"{source}: the first line of a file says which process writes it")
    return content


def _add_to_file(content: _Content, source: Source, line: Line) -> None:
    match line:
        case Process():
            raise HistoryError(f"{source}: a file has one process line, its first")
        case Setup():
            content.setups.append(Seen(source, line))
        case Invoke():
            if line.op in content.begun:
                raise HistoryError(f"{source}: operation {line.op} began before, {content.begun[line.op].source}")
            content.begun[line.op] = Seen(source, line)
        case End():
            if line.op not in content.begun:
                raise HistoryError(f"{source}: operation {line.op} ends, but has no invoke before")
            if line.op in content.ended:
                raise HistoryError(f"{source}: operation {line.op} ends a second time")
            content.ended[line.op] = line
        case _:
            content.others.append(Seen(source, line))


def _parsed(source: Source, text: bytes) -> Line:
    try:
        return parse_line(text)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or "line"
        raise HistoryError(f"{source}: {field}: {first['msg']}") from error


def _add_line(history: History, seen: Seen[Line]) -> None:
    source = seen.source
    match seen.it:
        case SinkWrite() as line:
            history.sink.append(Seen(source, line))
        case FoldSeen() as line:
            history.folds.append(Seen(source, line))
        case Fault() as line:
            history.faults.append(Seen(source, line))
        case Record() as line:
            history.records.append(Seen(source, line))
        case Commit() as line:
            history.commits.append(Seen(source, line))
        case Sample() as line:
            history.samples.append(Seen(source, line))
        case Setup() | Process() | Invoke() | End():
            raise AssertionError(f"{source}: {seen.it.type} lines are sorted out while a file is read")
        case _:
            assert_never(seen.it)


def _add_operations(history: History, content: _Content) -> None:
    for number, begun in content.begun.items():
        _add_operation(history, content.process.it.name, begun.source, begun.it, content.ended.get(number))


def _add_operation(history: History, process: str, source: Source, line: Invoke, end: End | None) -> None:
    end_ns = None if end is None else end.at_ns
    outcome: Outcome = "info" if end is None else end.type
    where = None if end is None else end.where

    def given(name: str) -> str:
        value = getattr(line, name)
        if value is None:
            raise HistoryError(f"{source}: {line.f} needs {name}")
        return str(value)

    match line.f:
        case "send":
            history.sends.append(
                Send(
                    source=source, process=process, begin_ns=line.at_ns, end_ns=end_ns, outcome=outcome,
                    topic=given("topic"), key=line.key, digest=line.digest, headers=line.headers,
                    delay_ms=line.delay_ms, deliver_at_ms=line.deliver_at_ms, timer=line.timer, command=line.command,
                    where=where, id=None if end is None else end.id,
                )
            )  # fmt: skip
        case "deliver":
            history.deliveries.append(
                Delivery(
                    source=source, process=process, begin_ns=line.at_ns, end_ns=end_ns, outcome=outcome,
                    group=given("group"), where=given("where"), id=given("id"), attempt=int(given("attempt")),
                    replay=line.replay, token=line.token, key=line.key, digest=line.digest, headers=line.headers,
                    then=None if end is None else end.then,
                )
            )  # fmt: skip
        case "commit":
            if line.positions is None:
                raise HistoryError(f"{source}: commit needs positions")
            history.commit_calls.append(
                CommitCall(
                    source=source, process=process, begin_ns=line.at_ns, end_ns=end_ns, outcome=outcome,
                    group=given("group"), epoch=line.epoch or 0, positions=line.positions,
                )
            )  # fmt: skip
        case "hop":
            history.hops.append(
                Hop(
                    source=source, process=process, begin_ns=line.at_ns, end_ns=end_ns, outcome=outcome,
                    group=given("group"), made_from=given("where"), topic=given("topic"), where=where,
                )
            )  # fmt: skip
        case _:
            assert_never(line.f)
