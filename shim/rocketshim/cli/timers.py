"""`rocketshim timers ls | show | cancel | now | apply`: messages with a name that wait, what became of one, commands.

`ls` reads the names that the worker has stored as pending. The others read the log of commands, which decides.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rocketshim.admin.record_view import time_text
from rocketshim.admin.timer_view import FoundTimer, from_now, is_named, moment_ms, utc_text
from rocketshim.cli.app import FINDING
from rocketshim.cli.completion import complete_topic
from rocketshim.cli.kinds import Limit
from rocketshim.cli.options import Connected, Connection, DryRun, Json, selection
from rocketshim.cli.records import counting, echo_safe, label_of, require_topic, show_rows
from rocketshim.cli.table import show_table
from rocketshim.core.named_timers import Command, Effect
from rocketshim.core.timer_history import PendingTimer, TimerFate
from rocketshim.errors import RocketshimError, SendError
from rocketshim.kafka.timer_log import (
    pending_timers,
    read_histories,
    read_recurring,
    read_states,
    unread_since_ms,
)
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics import Message, TopicNames
from rocketshim_topics.names import init_command

if TYPE_CHECKING:
    from rocketshim.cli.timers_file import Step
    from rocketshim.producer.producer import Producer
    from rocketshim.producer.result import SendResult

app = typer.Typer(
    help="Show named timers (delayed messages with a name): which are pending, what became of one; and cancel.",
    epilog="Example: rocketshim timers ls --bootstrap localhost:9092",
    no_args_is_help=True,
)

_HIDDEN_S: Final = 10.0
_SEND_S: Final = 30.0

Topic = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic of the messages.", autocompletion=complete_topic)
]

OfTopic = Annotated[
    str | None, selection("--topic", "-t", help="Only messages for this topic.", autocompletion=complete_topic)
]

Names = Annotated[list[str], typer.Argument(metavar="NAME…", help="The names of the messages.")]
Apply = Annotated[bool, typer.Option("--apply", help="Do it; without it, only show what became of them.")]


@app.command(epilog="Example: rocketshim timers ls --topic order-timeouts --name 'o-*' --due-before 2h")
def ls(
    *,
    at: Connected,
    topic: OfTopic = None,
    name: Annotated[
        str | None, selection("--name", metavar="NAME|PREFIX*", help="Only this name, or names that begin like this.")
    ] = None,
    due_before: Annotated[
        str | None,
        selection(
            metavar="DURATION|TIME",
            help="Only messages that are due within this duration, or before this time: 2h, 2026-11-20T18:00:00Z.",
        ),
    ] = None,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List the pending names, the next one that is due first. The worker stores them, a moment after their commands.

    Messages in transactions are listed by `tx ls`.
    """
    now_ms = time.time_ns() // 1_000_000
    before_ms = None if due_before is None else moment_ms(due_before, "--due-before", now_ms)

    def is_wanted(each: PendingTimer) -> bool:
        return topic in {None, each.topic} and is_named(each.name, name) and not each.asks

    with at.reader() as reader:
        pending = stored_timers(reader, at.names, is_wanted)
    rows = (_row(each, now_ms) for each in pending if before_ms is None or each[0] < before_ms)
    show_rows(("target", "timer", "due (UTC)", "due in", "set at"), rows, limit=limit, as_json=as_json)


def stored_timers(
    reader: TopicReader, names: TopicNames, is_wanted: Callable[[PendingTimer], bool]
) -> list[PendingTimer]:
    """Return the pending names that the worker has stored; say if it has not read all commands."""
    records = counting(reader.read([reader.require(names.timer_state)]))
    found = sorted(pending_timers(records, is_wanted))
    if (unread_ms := unread_since_ms(reader, names, time.time_ns() // 1_000_000)) is not None:
        typer.echo(
            f"no worker has read the commands since {utc_text(unread_ms)}: names may be missing here, and others "
            "may have ended. `rocketshim status` says why",
            err=True,
        )
    return found


@app.command(epilog="Example: rocketshim timers show order-timeouts o-7 --json")
def show(
    *,
    topic: Topic,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the message.")],
    at: Connected,
    as_json: Json = False,
) -> None:
    """Show what became of a name: pending until when, fired, cancelled (in time or too late), replaced.

    The command reads the log of commands, as far back as retention has left it. Exit code 2 if nothing is known of the
    name.
    """
    show_history(at, topic, name, as_json=as_json, kind=FoundTimer)


def show_history(at: Connection, topic: str, name: str, *, as_json: bool, kind: type[FoundTimer]) -> None:
    """Show what became of a name, in the words of a kind."""
    check_names(topic, [name])
    with at.reader() as reader:
        states = read_states(reader, at.names, topic, [name], counting)
        history = read_histories(reader, at.names, topic, states, {}, hidden_s=0, watch=counting)[name]
        found = _checked(kind(topic, name, history), reader, at.names)
    if as_json:
        typer.echo(json.dumps(found.facts(), indent=1))
    else:
        echo_safe(f"{name}: {found.outcome}")
        facts = found.facts()
        for field in found.also_shown:
            if facts[field] is not None:
                echo_safe(f"{label_of(field)}: {facts[field]}")
        columns = ("partition/offset", "stored (UTC)", "id", "command", "by", "effect")
        if events := found.history.events:
            show_table(columns, map(found.cells, events), wraps=True)
    if found.history.fate()[0] is TimerFate.UNKNOWN:
        raise typer.Exit(FINDING)


@app.command(epilog="Example: rocketshim timers cancel order-timeouts o-7 o-8 --apply")
def cancel(*, topic: Topic, name: Names, at: Connected, apply: Apply = False, as_json: Json = False) -> None:
    """Show what became of names, and with --apply cancel those that are pending.

    Each cancel is stored at an offset of the log, which decides: it is in time if the message's FIRE is not stored
    before it. Exit code 2 if a name was not pending.
    """
    run_command(at, Command.CANCEL, topic, name, apply=apply, as_json=as_json)


@app.command(epilog="Example: rocketshim timers now order-timeouts o-7 --apply")
def now(*, topic: Topic, name: Names, at: Connected, apply: Apply = False, as_json: Json = False) -> None:
    """Show what became of names, and with --apply have those that are pending delivered now.

    Exit code 2 if a name was not pending.
    """
    run_command(at, Command.NOW, topic, name, apply=apply, as_json=as_json)


@app.command("apply", epilog="Example: rocketshim timers apply cron.toml --dry-run")
def apply_(
    *,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A TOML file with the recurring messages; see docs/timers.md.")
    ],
    at: Connected,
    remove_others: Annotated[
        bool,
        typer.Option(
            "--remove-others", help="Also cancel the recurring messages of the file's topics that it does not have."
        ),
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Send the recurring messages that a file declares: the new and the changed ones.

    What is pending as declared is not sent again, so the command may be repeated. Before anything is sent, the whole
    file is checked. Recurring messages of its topics that the file does not have are listed, and stay unless you give
    --remove-others. Other messages and other topics are never touched.
    """
    from rocketshim.cli.timers_file import planned, read_declarations  # noqa: PLC0415 - it imports pydantic

    declared, topics = read_declarations(file, at.names)
    with at.reader() as reader:
        for topic in sorted(topics):
            physical = at.names.physical(topic)
            way_out = f"nothing was sent; to create it: {init_command(physical)}"
            require_topic(reader, physical, f"there is no topic {physical}; {way_out}")
        pending = read_recurring(reader, at.names, topics, declared, counting)
    steps = planned(declared, pending, at.names, time.time_ns() // 1_000_000, remove_others=remove_others)
    sends = {f"{each.topic}/{each.name}": ("message", each.send) for each in steps if each.changes}
    stored = {} if dry_run else _stored(at, sends)
    columns = ("action", "target", "timer", "recurs", "next (UTC)", "stored at")
    show_rows(columns, (_step_row(each, stored) for each in steps), limit=len(steps), as_json=as_json)
    if not as_json:
        typer.echo(f"dry run: {len(sends)} would be sent" if dry_run else f"{len(stored)} sent")


def run_command(
    at: Connection,
    command: Command,
    topic: str,
    given: Iterable[str],
    *,
    apply: bool,
    as_json: bool,
    kind: type[FoundTimer] = FoundTimer,
) -> None:
    """Show what became of names, or send the command for each and show what it did, in the words of a kind."""
    check_names(topic, names := list(dict.fromkeys(given)))
    word = kind.words.get(command, command.value)
    with at.reader() as reader:
        states = read_states(reader, at.names, topic, names, counting)
        histories = read_histories(reader, at.names, topic, states, {}, hidden_s=0, watch=counting)
        for name, history in histories.items():
            _checked(kind(topic, name, history), reader, at.names)
        stored: dict[str, Any] = {}
        if apply:
            results = _stored(at, {name: (word, partial(_send, command, topic, name)) for name in names})
            stored = {name: each.queue_offset for name, each in results.items()}
            histories = read_histories(reader, at.names, topic, states, stored, hidden_s=_HIDDEN_S, watch=counting)
    pending = 0
    for name, history in histories.items():
        found = kind(topic, name, history)
        event = next((each for each in found.history.events if each.offset == stored.get(name)), None)
        is_effective = event is not None and event.effect is not Effect.NOTHING
        pending += is_effective or (not apply and found.history.fate()[0] is TimerFate.PENDING)
        stored_at = f"{at.names.timers}/{found.partition}/{stored[name]}" if name in stored else None
        if as_json:
            typer.echo(json.dumps(found.facts() | {"command": word, "stored_at": stored_at}))
        elif not apply:
            echo_safe(f"{name}: {found.outcome}")
        else:
            did = "the log decides" if event is None else found.effect(event)
            echo_safe(f"{name}: {word} stored at {stored_at}: {did}")
    if not apply and not as_json:
        typer.echo("nothing was changed; to do it, add --apply")
    raise typer.Exit(FINDING if pending < len(names) else 0)


def _checked(found: FoundTimer, reader: TopicReader, names: TopicNames) -> FoundTimer:
    """Return what was found, if it is of this kind. A topic that does not exist may have had messages."""
    found.check_kind()
    if not found.history.events and found.history.last is None:
        physical = names.physical(found.topic)
        require_topic(reader, physical, f"there is no topic {physical}, and the log has no message {found.name!r:.80}")
    return found


def check_names(topic: str, names: Iterable[str]) -> None:
    """Refuse what no message can have: the same is legal as for a send."""
    for name in names:
        Message(topic, b"", timer=name, delay=1)


def _send(command: Command, topic: str, name: str, producer: "Producer") -> "SendResult":
    send = producer.cancel if command is Command.CANCEL else producer.send_now
    return send(topic, timer=name, timeout_s=_SEND_S)


def _stored(
    at: Connection, sends: "Mapping[str, tuple[str, Callable[[Producer], SendResult]]]"
) -> "dict[str, SendResult]":
    """Send what each name has, of a kind; return where each is stored."""
    from rocketshim.producer.producer import Producer  # noqa: PLC0415 - the other commands do without

    stored: dict[str, SendResult] = {}
    with Producer(at.bootstrap, namespace=at.namespace, client=at.client, clients=at.clients) as producer:
        for name, (kind, send) in sends.items():
            try:
                stored[name] = send(producer)
            except RocketshimError as error:
                others = ", ".join(stored) or "none"
                raise SendError(f"the {kind} for {name!r}: {error}. Stored before: {others}") from error
    return stored


def _step_row(step: "Step", stored: "Mapping[str, SendResult]") -> tuple[dict[str, Any], list[str]]:
    result = stored.get(f"{step.topic}/{step.name}")
    at = None if result is None else result.offset_msg_id
    facts: dict[str, Any] = {"action": step.action, "target": step.topic, "timer": step.name, "recurs": step.recurs}
    facts |= {"next_ms": step.next_ms, "differs": list(step.differs), "stored_at": at}
    action = f"{step.action}: {', '.join(step.differs)}" if step.differs else step.action
    next_text = "" if step.next_ms is None else time_text(step.next_ms)
    return facts, [action, step.topic, step.name, step.recurs, next_text, at or ""]


def _row(pending: PendingTimer, now_ms: int) -> tuple[dict[str, Any], list[str]]:
    due_ms, topic, name, partition, generation, *_ = pending
    facts = {"target": topic, "timer": name, "due_ms": due_ms, "partition": partition, "set_at": generation}
    return facts, [topic, name, time_text(due_ms), from_now(due_ms, now_ms), f"{partition}/{generation}"]
