"""`rocketshim delayed ls | show | stats`: show the messages in the delay queues and when they are due."""

import json
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from rocketshim.admin.record_filter import selecting
from rocketshim.admin.record_view import as_read, time_text
from rocketshim.cli.app import FINDING
from rocketshim.cli.options import SELECTION, ConnectedWithLevels, Connection, Json
from rocketshim.cli.records import (
    Coordinates,
    Follow,
    Limit,
    Tags,
    Where,
    counting,
    parse_coordinates,
    say_limit,
    show_raw,
    show_rows,
    show_table,
)
from rocketshim.observe.delay_queues import DelayedReader
from rocketshim.observe.snapshot import WaitingRecord, waiting_record
from rocketshim_topics import DelayLevels
from rocketshim_topics.durations import duration_text
from rocketshim_topics.levels import time_in_queue_ms
from rocketshim_topics.wire import headers_shown

app = typer.Typer(
    help="Show waiting delayed and retried messages, without affecting the worker.",
    epilog="Example: rocketshim delayed stats --bootstrap localhost:9092",
    no_args_is_help=True,
)


def _reader(at: Connection) -> DelayedReader:
    return DelayedReader(at.reader(), at.names, at.levels)


@app.command(epilog="Example: rocketshim delayed ls --topic orders --tags 'created || paid' --limit 20")
def ls(
    *,
    at: ConnectedWithLevels,
    topic: Annotated[
        str | None,
        typer.Option("--topic", "-t", help="Only messages for this logical topic.", rich_help_panel=SELECTION),
    ] = None,
    where: Where = None,
    tags: Tags = None,
    limit: Limit = 50,
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """List the waiting messages that leave their queues first; with --follow all, in the order of reading."""
    selects = selecting(where, tags)
    reader, levels = _reader(at), at.levels

    def is_wanted(message: Any) -> bool:
        return topic in {None, waiting_record(message, levels).target} and selects(headers_shown(message))

    def row(entry: WaitingRecord) -> tuple[dict[str, Any], list[str]]:
        due = "" if entry.due_ms is None else time_text(entry.due_ms)
        failures = "" if entry.reconsume_times is None else str(entry.reconsume_times)
        named = [entry.target or "", entry.uniq_key or "", entry.group or ""]
        return asdict(entry), [entry.place, due, *named, failures, entry.trouble or ""]

    columns = ("partition/offset", "due (UTC)", "target", "id", "group", "failures", "trouble")
    with reader:
        if follow:
            found = filter(is_wanted, reader.records(follow=True))
            show_rows(
                columns, (row(waiting_record(each, levels)) for each in found), limit=0, as_json=as_json, follow=True
            )
        first = reader.first(limit + 1, is_wanted)
    if len(first) > limit:
        say_limit(limit)
    shown = sorted((waiting_record(each, levels) for each in first[:limit]), key=_by_due)
    show_rows(columns, map(row, shown), limit=limit, as_json=as_json)


def _by_due(entry: WaitingRecord) -> int:
    return entry.due_ms or 0


@app.command(epilog="Example: rocketshim delayed show 2/17")
def show(
    *,
    coordinates: Coordinates,
    at: ConnectedWithLevels,
    as_json: Json = False,
) -> None:
    """Show one record of the schedule topic with headers and body. Exit code 2 if it does not exist (any more)."""
    position = parse_coordinates(coordinates, "delayed ls")
    reader, levels = _reader(at), at.levels
    with reader:
        message = reader.fetch(*position)
    if message is None:
        typer.echo(f"{coordinates} does not exist (any more)", err=True)
        raise typer.Exit(FINDING)
    if as_json:
        typer.echo(json.dumps({**asdict(waiting_record(message, levels)), **as_read(message)}, indent=1))
        return
    show_raw(asdict(waiting_record(message, levels)), message)


@app.command(epilog="Example: rocketshim delayed stats --json")
def stats(
    *,
    at: ConnectedWithLevels,
    as_json: Json = False,
) -> None:
    """Count the waiting messages of each queue and show which leaves next. The command reads all of them.

    Exit code 2 if a message should have left over a minute ago.
    """
    reader, levels = _reader(at), at.levels
    with reader:
        counted = reader.counted(counting)
    now_ms = time.time_ns() // 1_000_000
    late_ms = 0
    table = Table(
        "partition",
        "queue",
        "waiting",
        "next leaves (UTC)",
        "next is due (UTC)",
        "next goes to",
        box=None,
        pad_edge=False,
    )
    rows = []
    for number, (waiting, head) in counted.items():
        delay_ms = levels.queue_delay_ms(number)
        rows.append({"partition": number, "delay_ms": delay_ms, "waiting": waiting, "head": asdict(head)})
        leaves_ms = head.appended_ms + time_in_queue_ms(levels, number)
        late_ms = max(late_ms, now_ms - leaves_ms)
        table.add_row(
            str(number),
            _queue(number, delay_ms, levels),
            str(waiting),
            time_text(leaves_ms),
            "" if head.due_ms is None else time_text(head.due_ms),
            head.target or "",
        )
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    else:
        show_table(table)
    if late_ms > 60_000:
        typer.echo(f"the oldest should have left {late_ms / 1_000:.0f} s ago: is a worker running?", err=True)
        raise typer.Exit(FINDING)


def _queue(partition: int, delay_ms: int | None, levels: DelayLevels) -> str:
    if delay_ms is None:
        return "unknown level"
    kind = f"level {partition % levels.STRIDE + 1}" if levels.is_level(partition) else "fine"
    return f"{kind}, {duration_text(delay_ms)}"
