"""`rocketshim parked ls | show | plan`: show the messages that the worker could not deliver, and send them again."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from rocketshim.admin.parked import ParkedRecord, parked_record
from rocketshim.admin.record_view import as_read, time_text
from rocketshim.admin.redrive import read_log
from rocketshim.admin.redrive_planning import plan_parked
from rocketshim.cli.app import FINDING
from rocketshim.cli.options import SELECTION, Connected, Json
from rocketshim.cli.records import (
    Coordinates,
    Everything,
    Follow,
    Limit,
    echo_safe,
    parse_coordinates,
    require_topic,
    show_raw,
    show_rows,
)
from rocketshim.cli.redrive import Again, Out, check_out, hand_over
from rocketshim.errors import ConfigError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics import TopicNames

app = typer.Typer(
    help="Show parked records (malformed, forbidden, or refused by their target), and send them again (plan; then: "
    "rocketshim dlq apply).",
    epilog="Example: rocketshim parked ls --bootstrap localhost:9092",
    no_args_is_help=True,
)

Reason = Annotated[
    str | None,
    typer.Option("--reason", help="Only records whose reason begins with this text.", rich_help_panel=SELECTION),
]
Topic = Annotated[
    str | None,
    typer.Option(
        "--topic", "-t", help="Only records for this topic: %RETRY%g or rmq.retry.g.", rich_help_panel=SELECTION
    ),
]


def _is_selected(entry: ParkedRecord, names: TopicNames, reason: str | None, topic: str | None) -> bool:
    return (reason is None or entry.reason.startswith(reason)) and _goes_to(entry.target, topic, names)


def _goes_to(target: str | None, topic: str | None, names: TopicNames) -> bool:
    """Whether a record's target is this topic, by its logical or its physical name; None: any topic."""
    if topic is None or target == topic:
        return True
    try:
        return target is not None and names.physical(target) == topic
    except ConfigError:  # the target is not a name of a topic
        return False


@app.command(epilog="Example: rocketshim parked ls --reason forbidden-target")
def ls(
    *,
    at: Connected,
    reason: Reason = None,
    topic: Topic = None,
    limit: Limit = 50,
    everything: Everything = False,
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """List parked records that were not sent again since, oldest first."""
    names, hidden = at.names, 0

    def rows(reader: TopicReader) -> Iterator[tuple[dict[str, Any], list[str]]]:
        nonlocal hidden
        log = read_log(reader, names.redrive_log, names.parked)
        for message in reader.read([names.parked], follow=follow):
            if message is None or not _is_selected(entry := parked_record(message), names, reason, topic):
                continue
            found = log.settled_record(message)
            if found is not None and not everything:
                hidden += 1
                continue
            size = "-" if entry.size_bytes is None else str(entry.size_bytes)
            parked, target = time_text(entry.at_ms), entry.target or ""
            cells = [entry.place, parked, entry.reason, target, entry.origin, entry.uniq_key or "", size]
            yield {**asdict(entry), "plan": None if found is None else found.plan}, cells

    columns = ("partition/offset", "parked (UTC)", "reason", "target", "from", "id", "bytes")
    with at.reader() as reader:
        show_rows(columns, rows(reader), limit=limit, as_json=as_json, follow=follow)
    if hidden:
        typer.echo(f"{hidden} more were sent again; --all shows them", err=True)


@app.command(epilog="Example: rocketshim parked show 0/3")
def show(
    *,
    coordinates: Coordinates,
    at: Connected,
    as_json: Json = False,
) -> None:
    """Show one parked record with headers and body. Exit code 2 if it does not exist (any more)."""
    position, topic = parse_coordinates(coordinates, "parked ls"), at.names.parked
    with at.reader() as reader:
        message = reader.fetch(require_topic(reader, topic, f"there is no topic {topic}"), *position)
    if message is None:
        typer.echo(f"{coordinates} does not exist (any more)", err=True)
        raise typer.Exit(FINDING)
    if as_json:
        typer.echo(json.dumps({**asdict(parked_record(message)), **as_read(message)}, indent=1))
        return
    show_raw(asdict(parked_record(message)), message)


@app.command(
    epilog="Example: rocketshim parked plan --topic orders --reason target-refused --out plan.json; "
    "then: rocketshim dlq apply plan.json"
)
def plan(
    *,
    coordinates: Annotated[
        list[str] | None,
        typer.Argument(metavar="PARTITION/OFFSET", help="The records to send; or select them by an option."),
    ] = None,
    at: Connected,
    reason: Reason = None,
    topic: Topic = None,
    again: Again = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Plan which parked records to send to the worker again, due immediately. Sends nothing.

    Exit code 2 if a record does not exist, or names no target.
    """
    if not coordinates and reason is None and topic is None:
        raise ConfigError("select records by PARTITION/OFFSET, --reason or --topic (--reason '' means all)")
    check_out(out)
    missing = {"{}/{}".format(*parse_coordinates(text, "parked ls")) for text in coordinates or ()}
    places = frozenset(missing)

    def wants(entry: ParkedRecord) -> bool:
        is_wanted = (not places or entry.place in places) and _is_selected(entry, at.names, reason, topic)
        missing.difference_update([entry.place] if is_wanted else ())
        return is_wanted

    choice = {"records": " ".join(sorted(places)), "reason": reason, "topic": topic}
    with at.reader() as reader:
        made = plan_parked(reader, at.names, wants, {name: what for name, what in choice.items() if what}, again=again)
    hand_over(made, out, as_json=as_json)
    for place in sorted(missing):
        echo_safe(f"{place} does not exist (any more), or the other options exclude it", err=True)
    if missing or any(each.reason == "no-target" for each in made.held_back):
        raise typer.Exit(FINDING)
