"""`rocketshim parked ls | show | redrive`: what the worker could not deliver, why, and sending it again."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any, Self

import typer
from rich.table import Table

from rocketshim.cli.app import FINDING
from rocketshim.cli.letters import Limit, console
from rocketshim.cli.options import Bootstrap, Client, DryRun, Json, Namespace, client_settings
from rocketshim.deadletter.entry import time_text
from rocketshim.deadletter.reading import TopicReader
from rocketshim.errors import ConfigError, MessageError
from rocketshim.worker.parked import parked_record, redriven_parked
from rocketshim_topics import TopicNames

app = typer.Typer(
    help="Parked records: malformed, forbidden, or refused by their target.",
    epilog="Example: rocketshim parked ls --bootstrap localhost:9092",
    no_args_is_help=True,
)

Reason = Annotated[str | None, typer.Option("--reason", help="Only those whose reason begins so.")]
Topic = Annotated[str | None, typer.Option("--topic", help="Only those that were to go to this logical topic.")]


def _chosen(reader: TopicReader, names: TopicNames, reason: str | None, topic: str | None) -> Iterator[Any]:
    for message in reader.read([names.parked]):
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
    as_json: Json = False,
) -> None:
    """List parked records, oldest first."""
    names = TopicNames(namespace)
    table = Table("place", "parked", "reason", "target", "from", "id", "bytes")
    with TopicReader(bootstrap, client=client_settings(client)) as reader:
        for number, message in enumerate(_chosen(reader, names, reason, topic)):
            if number == limit:
                break
            entry = parked_record(message)
            if as_json:
                typer.echo(json.dumps(asdict(entry)))
            size = "-" if entry.size_bytes is None else str(entry.size_bytes)
            table.add_row(
                entry.place,
                time_text(entry.at_ms),
                entry.reason,
                entry.target or "",
                entry.origin,
                entry.uniq_key or "",
                size,
            )
    if not as_json:
        console().print(table)


@app.command(epilog="Example: rocketshim parked show 0/3")
def show(
    *,
    place: Annotated[str, typer.Argument(metavar="PARTITION/OFFSET", help="A place that `ls` has shown.")],
    bootstrap: Bootstrap,
    client: Client = None,
    namespace: Namespace = "",
) -> None:
    """Show one parked record: headers and body. Exit code 2 if it is not there (any more)."""
    with TopicReader(bootstrap, client=client_settings(client)) as reader:
        message = reader.fetch(TopicNames(namespace).parked, *_place(place))
    if message is None:
        typer.echo(f"{place} is not there (any more)", err=True)
        raise typer.Exit(FINDING)
    for name, value in asdict(parked_record(message)).items():
        typer.echo(f"{name:12} {value}")
    typer.echo(f"{'key':12} {message.key()!r}")
    for name, value in message.headers() or ():
        typer.echo(f"  {name:20} {value!r}")
    typer.echo(f"{'body':12} {message.value()!r:.2000}")


@app.command(epilog="Example: rocketshim parked redrive --topic orders --reason target-refused --dry-run")
def redrive(
    *,
    places: Annotated[
        list[str] | None, typer.Argument(metavar="[PARTITION/OFFSET]…", help="These; or choose by an option.")
    ] = None,
    bootstrap: Bootstrap,
    client: Client = None,
    namespace: Namespace = "",
    reason: Reason = None,
    topic: Topic = None,
    dry_run: DryRun = False,
) -> None:
    """Send parked records to the worker again, as due. They stay listed; each redrive sends them once more.

    Exit code 2 if some could not be sent (they do not say where to, or were parked without their body).
    """
    if not places and reason is None and topic is None:
        raise ConfigError("say which: PARTITION/OFFSET, --reason or --topic (--reason '' means all)")
    names = TopicNames(namespace)
    wanted = {_place(text) for text in places or ()}
    sent = left = 0
    with (
        TopicReader(bootstrap, client=client_settings(client)) as reader,
        _Sender(bootstrap, client_settings(client), dry_run=dry_run) as sender,
    ):
        for message in _chosen(reader, names, reason, topic):
            place = (message.partition(), message.offset())
            if wanted and place not in wanted:
                continue
            try:
                out = redriven_parked(message, names)
            except MessageError as error:
                left += 1
                typer.echo(str(error), err=True)
                continue
            sent += 1
            sender.send(out)
            typer.echo(
                f"{'would send' if dry_run else 'sent'} {place[0]}/{place[1]} to {parked_record(message).target}"
            )
    if sender.failed:
        typer.echo(f"{sender.failed} were not stored", err=True)
    typer.echo(f"{sent - sender.failed} {'would be ' if dry_run else ''}sent, {left + sender.failed} not")
    if left or sender.failed:
        raise typer.Exit(FINDING)


class _Sender:
    """Produces records and counts those that were not stored."""

    def __init__(self, bootstrap: str, client: dict[str, str], *, dry_run: bool) -> None:
        from rocketshim.client_config import PROTECTED_PRODUCER, merge  # noqa: PLC0415 - `--help` does without
        from rocketshim.clients import confluent_clients  # noqa: PLC0415

        required = {**PROTECTED_PRODUCER, "bootstrap.servers": bootstrap}
        self._producer = (
            None if dry_run else confluent_clients().producer(merge(client, defaults={}, required=required))
        )
        self.failed = 0

    def send(self, out: Any) -> None:
        if self._producer is not None:
            self._producer.produce(
                out.topic, out.value, out.key, out.partition, on_delivery=self._reported, headers=out.headers
            )
            self._producer.poll(0)

    def _reported(self, error: Any, message: Any) -> None:
        del message
        if error is not None:
            self.failed += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._producer is not None:
            self.failed += self._producer.flush(30.0)
