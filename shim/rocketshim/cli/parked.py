"""`rocketshim parked ls | show | redrive`: what the worker could not deliver, why, and sending it again."""

import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from rocketshim.admin.parked import parked_record, redriven_parked
from rocketshim.admin.record_view import as_read, time_text
from rocketshim.admin.redrive import Redriver, read_log
from rocketshim.cli.app import FINDING
from rocketshim.cli.options import Bootstrap, Client, DryRun, Json, Namespace, client_settings
from rocketshim.cli.records import Everything, Follow, Limit, echo_safe, say_limit, show_raw, show_table
from rocketshim.cli.redrive import ensure_log
from rocketshim.core.redrive import RedriveProgress
from rocketshim.errors import ConfigError, MessageError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics import TopicNames
from rocketshim_topics.redrive_log import RedriveLog, record_digest
from rocketshim_topics.redrive_plan import PlannedLetter

app = typer.Typer(
    help="Parked records: malformed, forbidden, or refused by their target.",
    epilog="Example: rocketshim parked ls --bootstrap localhost:9092",
    no_args_is_help=True,
)

Reason = Annotated[str | None, typer.Option("--reason", help="Only those whose reason begins so.")]
Topic = Annotated[str | None, typer.Option("--topic", help="Only those that were to go to this logical topic.")]


def _chosen(
    reader: TopicReader, names: TopicNames, reason: str | None, topic: str | None, *, follow: bool = False
) -> Iterator[Any]:
    for message in reader.read([names.parked], follow=follow):
        if message is None:
            continue
        entry = parked_record(message)
        if (reason is None or entry.reason.startswith(reason)) and topic in {None, entry.target}:
            yield message


def _place(text: str) -> tuple[int, int]:
    partition, _, offset = text.partition("/")
    if not partition.isdecimal() or not offset.isdecimal():
        raise ConfigError(f"{text!r}: write PARTITION/OFFSET, as `rocketshim parked ls` shows it")
    return int(partition), int(offset)


@app.command(epilog="Example: rocketshim parked ls --reason forbidden-target")
def ls(
    *,
    bootstrap: Bootstrap,
    client: Client = None,
    namespace: Namespace = "",
    reason: Reason = None,
    topic: Topic = None,
    limit: Limit = 50,
    everything: Everything = False,
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """List parked records, oldest first: those that were not sent again since."""
    names = TopicNames(namespace)
    table = Table("place", "parked", "reason", "target", "from", "id", "bytes")
    with TopicReader(bootstrap, client=client_settings(client)) as reader:
        log = read_log(reader, names.redrive_log)
        shown = hidden = 0
        for message in _chosen(reader, names, reason, topic, follow=follow):
            plan = _settled_by(log, names, message)
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
                where, name = entry.target or "(no target)", entry.uniq_key or ""
                echo_safe(f"{time_text(entry.at_ms)}  {entry.place}  {entry.reason}  {where}  {name}".rstrip())
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


def _settled_by(log: RedriveLog, names: TopicNames, message: Any) -> str | None:
    """The plan that sent a parked record again; None: none did."""
    place = (names.parked, message.partition(), message.offset())
    found = log.settled(*place, record_digest(message)) if log.is_marked(*place) else None
    return None if found is None else found.plan


@app.command(epilog="Example: rocketshim parked show 0/3")
def show(
    *,
    place: Annotated[str, typer.Argument(metavar="PARTITION/OFFSET", help="A place that `ls` has shown.")],
    bootstrap: Bootstrap,
    client: Client = None,
    namespace: Namespace = "",
    as_json: Json = False,
) -> None:
    """Show one parked record: headers and body. Exit code 2 if it is not there (any more)."""
    with TopicReader(bootstrap, client=client_settings(client)) as reader:
        message = reader.fetch(TopicNames(namespace).parked, *_place(place))
    if message is None:
        typer.echo(f"{place} is not there (any more)", err=True)
        raise typer.Exit(FINDING)
    if as_json:
        typer.echo(json.dumps({**asdict(parked_record(message)), **as_read(message)}, indent=1))
        return
    show_raw(asdict(parked_record(message)), message)


@app.command(epilog="Example: rocketshim parked redrive --topic orders --reason target-refused --dry-run")
def redrive(
    *,
    places: Annotated[
        list[str] | None, typer.Argument(metavar="PARTITION/OFFSET", help="These; or choose by an option.")
    ] = None,
    bootstrap: Bootstrap,
    client: Client = None,
    namespace: Namespace = "",
    reason: Reason = None,
    topic: Topic = None,
    again: Annotated[
        str | None,
        typer.Option(
            "--again",
            metavar="NAME",
            help="Also those that were sent before. NAME is yours: under one name each is sent once, so that the same "
            "command may be repeated; another name sends them another time.",
        ),
    ] = None,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Send parked records to the worker again, as due: each once, however often this is run, stopped or killed.

    Exit code 2 if some could not be sent (not there, they do not say where to, or were parked without their body).
    """
    if not places and reason is None and topic is None:
        raise ConfigError("say which: PARTITION/OFFSET, --reason or --topic (--reason '' means all)")
    if again is not None and not re.fullmatch(r"[A-Za-z0-9_-]{1,100}", again):
        raise ConfigError(f"--again {again!r:.110}: a name of 1 to 100 letters, digits, - and _")
    names, settings = TopicNames(namespace), client_settings(client)
    plan = f"parked-{again or uuid.uuid4().hex[:12]}"
    wanted = {_place(text) for text in places or ()}
    picked = _Picked(names, again=again is not None, plan=plan)
    with TopicReader(bootstrap, client=settings) as reader:
        picked.log = read_log(reader, names.redrive_log)
        for message in _chosen(reader, names, reason, topic):
            place = (message.partition(), message.offset())
            if not wanted or place in wanted:
                picked.add(message)
    for partition, offset in sorted(wanted - picked.seen):
        picked.refuse(f"{partition}/{offset} is not there (any more), or not among those asked for")
    progress = RedriveProgress(picked.letters)
    if not dry_run:
        _send(bootstrap, settings, names, progress, picked)
    if _tell(picked, progress, dry_run=dry_run, as_json=as_json):
        raise typer.Exit(FINDING)


def _tell(picked: "_Picked", progress: RedriveProgress, *, dry_run: bool, as_json: bool) -> int:
    """Say what was done; how many could not be sent."""
    left = len(picked.refused) + (0 if dry_run else progress.failed + progress.waiting)
    facts = {
        "sent": len(picked.letters) if dry_run else progress.sent,
        "sent_before": picked.before + progress.settled,
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


class _Picked:
    """The parked records that are to be sent, and those that cannot be."""

    def __init__(self, names: TopicNames, *, again: bool, plan: str) -> None:
        self.log = RedriveLog()
        self.again = again
        self.plan = plan
        self.letters: list[PlannedLetter] = []
        self.refused: list[str] = []
        self.seen: set[tuple[int, int]] = set()
        self.before = 0
        self._names = names

    def add(self, message: Any) -> None:
        """One that was asked for."""
        place = (message.partition(), message.offset())
        entry, digest = parked_record(message), record_digest(message)
        settled = self.log.settled(self._names.parked, *place, digest)
        self.seen.add(place)
        if self.log.is_done(self.plan, self._names.parked, *place) or (settled is not None and not self.again):
            self.before += 1
            return
        try:
            redriven_parked(message, self._names)
        except MessageError as error:
            self.refuse(str(error))
            return
        self.letters.append(PlannedLetter(*place, digest, self._names.schedule, entry.reason, entry.uniq_key or ""))

    def refuse(self, why: str) -> None:
        """One that cannot be sent."""
        self.refused.append(why)
        echo_safe(why, err=True)


def _send(
    bootstrap: str, client: dict[str, str], names: TopicNames, progress: RedriveProgress, picked: _Picked
) -> None:
    """Send them; the log's marks keep from repeating what this plan or, unless `again`, another has sent."""
    if not picked.letters:
        return
    ensure_log(bootstrap, client, names)
    redriver = Redriver(
        bootstrap,
        names.redrive_log,
        source=names.parked,
        plan=picked.plan,
        state="redriven",
        make=lambda message, _: redriven_parked(message, names),
        again=picked.again,
        progress=progress,
        client=client,
    )
    try:
        redriver.run()
    finally:
        redriver.close()
