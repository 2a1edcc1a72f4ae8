"""`rocketshim trace`: show the history of one message."""

import json
from contextlib import suppress
from typing import Annotated, Any

import typer

from rocketshim.admin.record_view import RecordView, time_text
from rocketshim.admin.trace import Missing, history, message_at, missing_text, records_of, step_text
from rocketshim.cli.app import FINDING
from rocketshim.cli.options import ConnectedWithLevels, Json
from rocketshim.cli.records import counting, echo_safe, echo_trace
from rocketshim.cli.table import show_table
from rocketshim.core.timer_history import TimerHistory
from rocketshim.errors import NotAuthorizedError, TopicMissingError
from rocketshim.kafka.timer_log import read_histories, read_states
from rocketshim_topics import TopicNames

app = typer.Typer()


@app.command(epilog="Example: rocketshim trace rmq.dlq.payments/0/17 --bootstrap localhost:9092")
def trace(
    *,
    what: Annotated[str, typer.Argument(metavar="ID|TOPIC/PARTITION/OFFSET", help="The message to show.")],
    at: ConnectedWithLevels,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            help="A topic it was sent to; needed only for the id of a message that was never delayed and never failed.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show every record of one message in order: when, where, how late, why it failed. Exit code 2 if there is none.

    The command reads the namespace's delayed, retried, dead and parked messages. A record that retention has deleted
    is listed as missing; its coordinates still find the records that followed from it.
    """
    names = at.names
    with at.reader() as reader:
        wanted, there = message_at(reader, names, what)
        if wanted is None:
            typer.echo(f"no record exists at {what} (any more)", err=True)
            raise typer.Exit(FINDING)
        sources = {names.physical(each) for each in topic or []}
        records = records_of(reader, names, wanted, sources, watch=counting)
        records += [] if there is None else [there]  # a topic that was not searched may have it

        def look(of_topic: str, name: str) -> TimerHistory | None:
            with suppress(TopicMissingError, NotAuthorizedError):
                states = read_states(reader, names, of_topic, [name], counting)
                return read_histories(reader, names, of_topic, states, {}, hidden_s=0, watch=counting)[name]
            return None

        hops = history(reader, names, at.levels, records, look)
    if not hops:
        echo_safe(
            f"no record of {wanted} was found; if it was sent without delay and never failed, use --topic", err=True
        )
        raise typer.Exit(FINDING)
    if as_json:
        typer.echo(json.dumps([_json(hop) for hop in hops], indent=1))
    else:
        _show(wanted, hops, names)


def _show(wanted: str, hops: list[RecordView | Missing], names: TopicNames) -> None:
    echo_safe(wanted)
    columns = ("stored (UTC)", "topic/partition/offset", "failures", "what")
    show_table(columns, (_cells(hop, names) for hop in hops), wraps=True)
    failed = [hop for hop in hops if isinstance(hop, RecordView) and hop.envelope.fail_stack]
    if failed:
        typer.echo()
        echo_trace(f"stack trace of the last failure, from {failed[-1].at}:", failed[-1].envelope.fail_stack or "")


def _cells(hop: RecordView | Missing, names: TopicNames) -> list[str]:
    if isinstance(hop, Missing):
        return ["?", hop.at, "", f"missing: {missing_text(hop)}"]
    return [time_text(hop.stored_ms), hop.at, str(hop.envelope.reconsume_times or 0), step_text(hop, names)]


def _json(hop: RecordView | Missing) -> dict[str, Any]:
    if isinstance(hop, Missing):
        return {"at": hop.at, "is_missing": True, "expired": hop.expired, "attempts": hop.attempts}
    return {**hop.as_json(body=False), "late_ms": hop.late_ms, "decision": hop.decision or None}
