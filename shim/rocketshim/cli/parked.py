"""`rocketshim parked ls | show | redrive`: show the messages that the worker could not deliver, and send them again."""

import json
import re
import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from rocketshim.admin.parked import parked_record, redriven_parked
from rocketshim.admin.record_view import as_read, time_text
from rocketshim.admin.redrive import Redriver, read_log
from rocketshim.admin.redrive_planning import ensure_log
from rocketshim.cli.app import FINDING
from rocketshim.cli.options import SELECTION, Connected, Connection, DryRun, Json
from rocketshim.cli.records import (
    Coordinates,
    Everything,
    Follow,
    Limit,
    echo_safe,
    parse_coordinates,
    require_topic,
    say_limit,
    show_raw,
    show_table,
)
from rocketshim.core.redrive_progress import RedriveProgress
from rocketshim.errors import ConfigError, MessageError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics import TopicNames
from rocketshim_topics.redrive_log import RedriveLog, record_digest
from rocketshim_topics.redrive_plan import PlannedLetter

app = typer.Typer(
    help="Show parked records (malformed, forbidden, or refused by their target), and send them again.",
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


def _select(
    reader: TopicReader, names: TopicNames, reason: str | None, topic: str | None, *, follow: bool = False
) -> Iterator[Any]:
    for message in reader.read([names.parked], follow=follow):
        if message is None:
            continue
        entry = parked_record(message)
        if (reason is None or entry.reason.startswith(reason)) and _goes_to(entry.target, topic, names):
            yield message


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
    names = at.names
    table = Table(
        "partition/offset", "parked (UTC)", "reason", "target", "from", "id", "bytes", box=None, pad_edge=False
    )
    with at.reader() as reader:
        log = read_log(reader, names.redrive_log, names.parked)
        shown = hidden = 0
        for message in _select(reader, names, reason, topic, follow=follow):
            plan = _redriven_by(log, message)
            if plan is not None and not everything:
                hidden += 1
                continue
            if shown == limit and not follow:
                say_limit(limit)
                break
            shown += 1
            entry = parked_record(message)
            if as_json:
                typer.echo(json.dumps({**asdict(entry), "plan": plan}))
            elif follow:
                target, uniq_key = entry.target or "(no target)", entry.uniq_key or ""
                echo_safe(f"{time_text(entry.at_ms)}  {entry.place}  {entry.reason}  {target}  {uniq_key}".rstrip())
            else:
                table.add_row(
                    entry.place,
                    time_text(entry.at_ms),
                    entry.reason,
                    entry.target or "",
                    entry.origin,
                    entry.uniq_key or "",
                    "-" if entry.size_bytes is None else str(entry.size_bytes),
                )
    if not as_json:
        show_table(table)
    if hidden:
        typer.echo(f"{hidden} more were sent again; --all shows them", err=True)


def _redriven_by(log: RedriveLog, message: Any) -> str | None:
    """Return the id of the plan that sent a parked record again; None if none did."""
    found = log.settled_record(message)
    return None if found is None else found.plan


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


@app.command(epilog="Example: rocketshim parked redrive --topic orders --reason target-refused --dry-run")
def redrive(
    *,
    coordinates: Annotated[
        list[str] | None,
        typer.Argument(metavar="PARTITION/OFFSET", help="The records to send; or select them by an option."),
    ] = None,
    at: Connected,
    reason: Reason = None,
    topic: Topic = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also send records that were sent before; needs --plan.")
    ] = False,
    plan_name: Annotated[
        str | None,
        typer.Option(
            "--plan",
            metavar="NAME",
            help="Name of this redrive. Each record is sent once per name, so you can repeat the same command.",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Send parked records to the worker again, due immediately: each once, even if you run, stop or kill this often.

    Exit code 2 if a record could not be sent: it does not exist, names no target, or was parked without its body.
    """
    if not coordinates and reason is None and topic is None:
        raise ConfigError("select records by PARTITION/OFFSET, --reason or --topic (--reason '' means all)")
    if plan_name is not None and not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", plan_name):
        raise ConfigError(f"--plan {plan_name!r:.110}: write a name of 1 to 100 letters, digits, - and _")
    if again and plan_name is None:
        raise ConfigError("--again needs --plan NAME, so that each record is sent once if you repeat the command")
    names = at.names
    plan = f"parked-{plan_name or uuid.uuid4().hex[:12]}"
    wanted = {parse_coordinates(text, "parked ls") for text in coordinates or ()}
    with at.reader() as reader:
        picked = _Selection(names, read_log(reader, names.redrive_log, names.parked), again=again, plan=plan)
        for message in _select(reader, names, reason, topic):
            position = (message.partition(), message.offset())
            if not wanted or position in wanted:
                picked.add(message)
    for partition, offset in sorted(wanted - picked.seen):
        picked.refuse(f"{partition}/{offset} does not exist (any more), or the other options exclude it")
    progress = RedriveProgress(picked.letters)
    if not dry_run:
        _send(at, progress, picked)
    if _report(picked, progress, dry_run=dry_run, as_json=as_json):
        raise typer.Exit(FINDING)


def _report(picked: "_Selection", progress: RedriveProgress, *, dry_run: bool, as_json: bool) -> int:
    """Print what was done; return how many records could not be sent."""
    left = len(picked.refused) + (0 if dry_run else progress.failed + progress.waiting)
    facts = {
        "sent": len(picked.letters) if dry_run else progress.sent,
        "sent_before": picked.sent_before + progress.settled,
        "failed": left,
        "dry_run": dry_run,
        "failures": dict(progress.failures),
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return left
    for letter in picked.letters if dry_run else ():
        echo_safe(f"would send {letter.partition}/{letter.offset}, parked as {letter.cause}")
    for cause, count in progress.failures.most_common():
        echo_safe(f"  {count:7} failed: {cause}")
    done = "would be sent" if dry_run else "sent"
    typer.echo(f"{facts['sent']} {done}, {facts['sent_before']} before, {left} not")
    return left


class _Selection:
    """The parked records to send, and those that cannot be sent."""

    def __init__(self, names: TopicNames, log: RedriveLog, *, again: bool, plan: str) -> None:
        self.again = again
        self.plan = plan
        self.log_end = log.end
        self.letters: list[PlannedLetter] = []
        self.refused: list[str] = []
        self.seen: set[tuple[int, int]] = set()
        self.sent_before = 0
        self._names = names
        self._log = log

    def add(self, message: Any) -> None:
        """Add a record that the user selected, unless it was sent before or cannot be sent."""
        position = (message.partition(), message.offset())
        entry, digest = parked_record(message), record_digest(message)
        redriven = self._log.settled(*position, digest)
        self.seen.add(position)
        if self._log.is_done(self.plan, *position) or (redriven is not None and not self.again):
            self.sent_before += 1
            return
        if self._log.may_have_lost(message) and not self.again:
            self.refuse(
                f"{position[0]}/{position[1]} may have been sent before: the redrive log has lost its first records "
                "(marks-lost). To send it nevertheless: --again --plan NAME, with a new name"
            )
            return
        try:
            redriven_parked(message, self._names)
        except MessageError as error:
            self.refuse(str(error))
            return
        self.letters.append(PlannedLetter(*position, digest, self._names.schedule, entry.reason, entry.uniq_key or ""))

    def refuse(self, why: str) -> None:
        """Note and print that a record cannot be sent, and why."""
        self.refused.append(why)
        echo_safe(why, err=True)


def _send(at: Connection, progress: RedriveProgress, picked: _Selection) -> None:
    """Send the selected records.

    The marks in the redrive log prevent repeats of what this plan has sent and, unless `again`, what another plan has.
    """
    if not picked.letters:
        return
    names = at.names
    ensure_log(at.bootstrap, names, client=at.client)
    redriver = Redriver(
        at.bootstrap,
        names.redrive_log,
        source=names.parked,
        plan=picked.plan,
        state="redriven",
        make=lambda message, _: redriven_parked(message, names),
        again=picked.again,
        log_end=picked.log_end,
        progress=progress,
        client=at.client,
    )
    with closing(redriver):
        redriver.run()
