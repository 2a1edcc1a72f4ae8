"""Print records, their causes and untrusted text on a terminal, or for a program."""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console

from rocketshim.admin.cause_counts import CauseCount
from rocketshim.admin.record_view import RecordView, time_text
from rocketshim.cli.table import show_table
from rocketshim.core.user_values import count_text, one_line, printable_lines
from rocketshim.errors import TopicMissingError
from rocketshim.kafka.acls import OR_HIDDEN
from rocketshim.kafka.topic_reader import TopicReader

_PARTITION: Final = re.compile("(.+)/([0-9]{1,19})")
_COUNT_EVERY = 10_000
_NOT_SHOWN: Final = frozenset({"topic", "partition", "offset", "headers", "size_bytes", "body"})
"""Fields of a record that `show` prints in another way: the address, the headers one by one, the body cut."""

_T = TypeVar("_T")

CELLS: Final[Mapping[str, Callable[[RecordView], str]]] = {
    "partition/offset": lambda entry: f"{entry.partition}/{entry.offset}",
    "stored (UTC)": lambda entry: time_text(entry.stored_ms)[:-4],
    "due (UTC)": lambda entry: time_text(entry.due_ms),
    "state": lambda entry: entry.state,
    "failures": lambda entry: str(entry.envelope.reconsume_times or 0),
    "cause": lambda entry: entry.cause or (f"malformed: {entry.malformed}" if entry.malformed else ""),
    "park reason": lambda entry: entry.envelope.park_reason or "",
    "trouble": lambda entry: entry.malformed or ("" if entry.envelope.real_topic else "missing-header:REAL_TOPIC"),
    "text": lambda entry: entry.envelope.fail_text or "",
    "origin topic": lambda entry: entry.envelope.retry_topic or "",
    "target": lambda entry: entry.envelope.real_topic or "",
    "park from": lambda entry: entry.envelope.park_from or "",
    "group": lambda entry: entry.envelope.consumer_group or "",
    "id": lambda entry: entry.id,
    "key": lambda entry: "" if entry.key is None else entry.key.decode(errors="replace"),
    "tag": lambda entry: entry.envelope.tags or "",
    "bytes": lambda entry: "-" if entry.value is None else str(len(entry.value)),
    "body": lambda entry: entry.value_text(),
}
"""Column of a listing to its cell: named as the field in JSON, see `label_of`."""


def echo_safe(line: str, *, err: bool = False) -> None:
    """Print one line that contains untrusted text."""
    typer.echo(one_line(line), err=err)


def echo_trace(head: str, trace: str) -> None:
    """Print a stack trace below a line that says of what."""
    for line in (head, *(f"  {each}" for each in trace.rstrip("\n").split("\n"))):
        echo_safe(line)


def counting(records: Iterable[_T], out: Console | None = None) -> Iterator[_T]:
    """Return the same records; on a terminal, show meanwhile on standard error how many have been read."""
    out = out or Console(stderr=True)
    if not out.is_terminal:
        yield from records
        return
    with out.status("reading") as status:
        for number, record in enumerate(records, start=1):
            if number % _COUNT_EVERY == 0:
                status.update(f"read {number:,} records")
            yield record


def require_topic(reader: TopicReader, physical: str, otherwise: str, prefix: str = "") -> str:
    """Return the topic if it exists; the error is `otherwise`, and similar names that have the prefix."""
    known = reader.topics()
    if not known.get(physical):
        names = [name.removeprefix(prefix) for name in known if name.startswith(prefix)]
        like = difflib.get_close_matches(physical.removeprefix(prefix), names, n=5)
        raise TopicMissingError(
            f"{otherwise}; did you mean {' or '.join(like)}?" if like else f"{otherwise}. {OR_HIDDEN}"
        )
    return physical


def show_rows(
    columns: Sequence[str],
    rows: Iterable[tuple[dict[str, Any], Sequence[str]]],
    *,
    limit: int,
    as_json: bool,
    follow: bool = False,
) -> None:
    """Print rows as a table; with `as_json` one JSON object each, with `follow` one line each, and no limit.

    A row is its facts for programs, and its cells.
    """
    shown: list[Sequence[str]] = []
    for number, (facts, cells) in enumerate(rows):
        if number == limit and not follow:
            typer.echo(f"the first {limit}; --limit shows more", err=True)
            break
        if as_json:  # JSON escapes control characters itself
            typer.echo(json.dumps(facts))
        elif follow:
            echo_safe("  ".join(filter(None, cells)))
        else:
            shown.append(cells)
    if not (as_json or follow):
        show_table(columns, shown)


def show_one(entry: RecordView, *, as_json: bool) -> None:
    """Print one record in full."""
    if as_json:
        typer.echo(json.dumps(entry.as_json(), indent=1))
        return
    headers = entry.user_headers if entry.malformed is None else entry.headers
    fields = (
        *((label_of(name), _text_of(name, value)) for name, value in entry.facts().items() if name not in _NOT_SHOWN),
        *((f"header {name}", "(none)" if value is None else _text_of(name, value)) for name, value in headers),
        ("body", entry.value_text()),
    )
    shown = [(one_line(label), printable_lines(value)) for label, value in fields if value]
    width = max(cell_len(label) for label, _ in shown)
    for label, value in shown:
        first, *others = value.split("\n")
        typer.echo(f"{label}{' ' * (width - cell_len(label))}  {first}")
        for line in others:
            typer.echo(f"{' ' * width}  {line}")


def label_of(name: str) -> str:
    """Return what a field of a record is called for people: its name in JSON, without its unit."""
    return name.removesuffix("_ms").replace("_", " ")


def _text_of(name: str, value: Any) -> str:
    match value:
        case None:
            return ""
        case bytes():
            return value.decode(errors="replace")
        case list():
            return " ".join(value)
        case _:
            return time_text(value) if name.endswith("_ms") else str(value).rstrip("\n")


def show_causes(counts: Sequence[CauseCount], topic: str, what: str, *, as_json: bool) -> None:
    """Print how many records of a topic have failed, by cause."""
    if as_json:
        rows = [
            {
                "cause_id": each.id,
                "cause": each.cause,
                "text": each.text,
                "count": each.count,
                "messages": len(each.ids),
                "first_ms": each.first_ms,
                "last_ms": each.last_ms,
                "sample": each.sample,
            }
            for each in counts
        ]
        typer.echo(json.dumps(rows, indent=1))
        return
    typer.echo(f"{count_text(sum(each.count for each in counts), what)} in {topic}")
    if not counts:
        return
    show_table(
        ("count", "messages", "cause id", "cause", "text", "first (UTC)", "last (UTC)", "sample"),
        (
            (
                str(each.count),
                str(len(each.ids)),
                each.id,
                each.cause,
                each.text,
                time_text(each.first_ms)[:-4],
                time_text(each.last_ms)[:-4],
                each.sample.removeprefix(f"{topic}/"),
            )
            for each in counts
        ),
    )


def split_partition(text: str) -> tuple[str, int | None]:
    """Split `TOPIC/PARTITION` at its last slash, because a retry topic is named after any group; None: no partition."""
    found = _PARTITION.fullmatch(text)
    return (text, None) if found is None else (found[1], int(found[2]))
