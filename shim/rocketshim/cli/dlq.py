"""`rocketshim dlq`: show dead letters and why they failed, send them again, or mark them as discarded.

`ls`, `show`, `stats` and `export` are in this module; `plan`, `apply` and `discard` are in `rocketshim.cli.redrive`.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer
from rich.table import Table

from rocketshim.admin.decoder import Decoder
from rocketshim.admin.record_view import time_text
from rocketshim.admin.redrive import read_log
from rocketshim.admin.statistics import by_cause
from rocketshim.cli import redrive
from rocketshim.cli.app import FINDING
from rocketshim.cli.options import Connected, Connection, Json
from rocketshim.cli.records import (
    Choice,
    Everything,
    Follow,
    Limit,
    OfGroup,
    OfTopic,
    console,
    counting,
    dead_letter_topic_of,
    find,
    select,
    show_list,
    show_one,
)
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics.redrive_log import RedriveLog

app = typer.Typer(
    help="Show dead letters and why they failed (stats, ls, show; then: rocketshim trace ID), and send them again "
    "(plan, apply).",
    epilog="Example: rocketshim dlq stats --bootstrap localhost:9092 --group payments",
    no_args_is_help=True,
)


@contextmanager
def _dead_letters(
    at: Connection, group: str | None, topic: str | None
) -> Iterator[tuple[TopicReader, Decoder, RedriveLog]]:
    """Open the topic that `--group` or `--topic` names, and read what was sent again of it."""
    with at.reader() as reader, at.reader() as sources:
        names = at.names
        source = dead_letter_topic_of(reader, names, group, topic)
        log = read_log(reader, names.redrive_log, source)
        if log.lost_until_ms:
            typer.echo(
                f"the redrive log {names.redrive_log} has lost its first records: dead letters that were sent before "
                "may be shown as not sent",
                err=True,
            )
        yield reader, Decoder(names, source, fetch=sources.fetch), log


@app.command(epilog="Example: rocketshim dlq stats --group payments --since 1d")
def stats(
    *,
    at: Connected,
    group: OfGroup = None,
    topic: OfTopic = None,
    choice: Choice,
    everything: Everything = False,
    as_json: Json = False,
) -> None:
    """Count dead letters by cause. The command reads and counts records; it does not subtract offsets."""
    with _dead_letters(at, group, topic) as (reader, decoder, log):
        counts = by_cause(counting(select(reader, decoder, choice, log=log, everything=everything)))
    if as_json:
        rows = [
            {
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
    typer.echo(f"{sum(each.count for each in counts)} dead letters in {decoder.topic}")
    if not counts:
        return
    table = Table(box=None, pad_edge=False)
    for column in ("count", "messages"):
        table.add_column(column, justify="right")
    for column in ("cause", "text"):
        table.add_column(column, overflow="fold")
    for column in ("first (UTC)", "last (UTC)", "the last one"):
        table.add_column(column, no_wrap=True)
    for each in counts:
        times = (time_text(each.first_ms)[:-4], time_text(each.last_ms)[:-4])
        coordinates = each.sample.removeprefix(f"{decoder.topic}/")
        table.add_row(str(each.count), str(len(each.ids)), each.cause, each.text, *times, coordinates)
    console().print(table)


@app.command(epilog="Example: rocketshim dlq ls --group payments --where \"FAIL_CLASS = 'Timeout'\" --since 2d")
def ls(
    *,
    at: Connected,
    group: OfGroup = None,
    topic: OfTopic = None,
    choice: Choice,
    everything: Everything = False,
    limit: Limit = 50,
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """List the dead letters of a group, oldest first within a partition."""
    with _dead_letters(at, group, topic) as (reader, decoder, log):
        entries = select(reader, decoder, choice, follow=follow, log=log, everything=everything)
        show_list(entries, limit=limit, as_json=as_json, follow=follow, with_state=True)


@app.command(epilog="Example: rocketshim dlq show 0/17 --group payments")
def show(
    *,
    what: Annotated[str, typer.Argument(metavar="ID|PARTITION/OFFSET", help="The dead letter to show.")],
    at: Connected,
    group: OfGroup = None,
    topic: OfTopic = None,
    as_json: Json = False,
) -> None:
    """Show one dead letter in full. Exit code 2 if it does not exist."""
    with _dead_letters(at, group, topic) as (reader, decoder, log):
        entry = find(reader, decoder, what, log=log)
    if entry is None:
        typer.echo(f"no dead letter {what} in {decoder.topic}", err=True)
        raise typer.Exit(FINDING)
    show_one(entry, as_json=as_json)


app.command(epilog=redrive.PLAN_EXAMPLE)(redrive.plan)
app.command(epilog="Example: rocketshim dlq apply plan.json --rate 50")(redrive.apply)
app.command(epilog=redrive.DISCARD_EXAMPLE)(redrive.discard)


@app.command(epilog="Example: rocketshim dlq export --group payments --since 1d > letters.jsonl")
def export(
    *,
    at: Connected,
    group: OfGroup = None,
    topic: OfTopic = None,
    choice: Choice,
    everything: Everything = False,
) -> None:
    """Write complete dead letters as JSON Lines, with headers and bodies (as base64 where they are not text)."""
    with _dead_letters(at, group, topic) as (reader, decoder, log):
        for entry in select(reader, decoder, choice, log=log, everything=everything):
            typer.echo(json.dumps(entry.as_json()))
