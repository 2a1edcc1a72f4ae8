"""`rocketshim tx ls | show | commit | rollback`: messages in transactions, what became of one, and its end by hand.

A half message is a named timer whose name is its id: `cli.timers` reads and writes, in other words.
"""

import time
from typing import Annotated, Any, ClassVar, Final

import typer

from rocketshim.admin.record_view import time_text
from rocketshim.admin.timer_view import FoundTimer, from_now, utc_text
from rocketshim.cli.kinds import Limit
from rocketshim.cli.options import Connected, Json, selection
from rocketshim.cli.records import show_rows
from rocketshim.cli.timers import Apply, OfTopic, Topic, run_command, show_history, stored_timers
from rocketshim.core.named_timers import Command, Effect
from rocketshim.core.timer_history import PendingTimer, TimerEvent, TimerFate
from rocketshim.core.user_values import count_text
from rocketshim.errors import ConfigError
from rocketshim_topics.hops import MOST_CHECKS

app = typer.Typer(
    help="Show transactional messages: which wait for their outcome, what became of one; commit or roll back.",
    epilog="Example: rocketshim tx ls --bootstrap localhost:9092",
    no_args_is_help=True,
)

_FATES: Final = {
    TimerFate.PENDING: "waiting",
    TimerFate.DELIVERED_NOW: "committed",
    TimerFate.CANCELLED: "rolled-back",
}
_ENDED: Final[dict[Effect | None, str]] = {
    Effect.DELIVER_PENDING: "committed",
    Effect.FORGET: "rolled back",
    Effect.GIVE_UP: "parked",
}

Ids = Annotated[list[str], typer.Argument(metavar="ID…", help="The ids of the messages.")]


@app.command(epilog="Example: rocketshim tx ls --producer-group shop --asked 3")
def ls(
    *,
    at: Connected,
    topic: OfTopic = None,
    producer_group: Annotated[str | None, selection(help="Only messages of these producers.")] = None,
    asked: Annotated[
        int, typer.Option(min=0, max=MOST_CHECKS, help="Only messages whose producers were asked this often or more.")
    ] = 0,
    limit: Limit = 50,
    as_json: Json = False,
) -> None:
    """List messages that wait for the outcome of their transaction, the one that is asked about next first.

    The worker stores them, a moment after they are sent.
    """

    def is_wanted(each: PendingTimer) -> bool:
        is_of_these = topic in {None, each.topic} and producer_group in {None, each.asks}
        return bool(each.asks) and is_of_these and each.asked >= asked

    with at.reader() as reader:
        waiting = stored_timers(reader, at.names, is_wanted)
    now_ms = time.time_ns() // 1_000_000
    columns = ("target", "id", "producer group", "asked", "next check (UTC)", "in")
    show_rows(columns, (_row(each, now_ms) for each in waiting), limit=limit, as_json=as_json)


@app.command(epilog="Example: rocketshim tx show orders 57f2338d5c3546d388cd000000000000 --json")
def show(
    *,
    topic: Topic,
    msg_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the message.")],
    at: Connected,
    as_json: Json = False,
) -> None:
    """Show what became of a transaction: waiting, committed, rolled back, or unanswered; and each check.

    The command reads the log of timers, as far back as retention has left it. Exit code 2 if nothing is known of it.
    """
    show_history(at, topic, msg_id, as_json=as_json, kind=_FoundTransaction)


@app.command(epilog="Example: rocketshim tx commit orders 57f2338d5c3546d388cd000000000000 --apply")
def commit(*, topic: Topic, msg_id: Ids, at: Connected, apply: Apply = False, as_json: Json = False) -> None:
    """Show what became of transactions, and with --apply commit those that wait: their messages are delivered.

    First find out that the local transaction has committed. Exit code 2 if one did not wait.
    """
    run_command(at, Command.NOW, topic, msg_id, apply=apply, as_json=as_json, kind=_FoundTransaction)


@app.command(epilog="Example: rocketshim tx rollback orders 57f2338d5c3546d388cd000000000000 --apply")
def rollback(*, topic: Topic, msg_id: Ids, at: Connected, apply: Apply = False, as_json: Json = False) -> None:
    """Show what became of transactions, and with --apply roll back those that wait: their messages are dropped.

    First find out that the local transaction has not committed, and cannot any more. Exit code 2 if one did not wait.
    """
    run_command(at, Command.CANCEL, topic, msg_id, apply=apply, as_json=as_json, kind=_FoundTransaction)


def _row(each: PendingTimer, now_ms: int) -> tuple[dict[str, Any], list[str]]:
    facts = {"target": each.topic, "id": each.name, "producer_group": each.asks, "asked": each.asked}
    facts |= {"next_check_ms": each.due_ms, "partition": each.partition, "set_at": each.generation}
    when = [time_text(each.due_ms), from_now(each.due_ms, now_ms)]
    return facts, [each.topic, each.name, each.asks, str(each.asked), *when]


class _FoundTransaction(FoundTimer):
    """What the log says of one transaction."""

    words: ClassVar[dict[Command, str]] = {
        Command.SET: "HALF",
        Command.NOW: "COMMIT",
        Command.CANCEL: "ROLLBACK",
        Command.FIRE: "CHECK",
    }
    also_shown: ClassVar[tuple[str, ...]] = ("producer_group",)

    def check_kind(self) -> None:
        if not self.is_half and self.history.last is not None:
            raise ConfigError(f"{self.name!r:.80} is a named timer, and no transaction: see `rocketshim timers`")

    @property
    def asked(self) -> int:
        """How often the producers were asked."""
        stored = self.history.stored
        events = [each for each in self.history.events if each.effect is Effect.ASK]
        known = 0 if stored is None else stored.asked + sum(each.offset > stored.generation for each in events)
        return max(known, len(events))

    @property
    def outcome(self) -> str:
        fate, event = self.history.fate()
        if fate is TimerFate.PENDING:
            now_ms, due_ms = time.time_ns() // 1_000_000, self.due_ms or 0
            late = "; is a worker running?" if due_ms < now_ms else ""
            times = count_text(self.asked, "time")
            return f"waits for its outcome, asked {times}, next at {utc_text(due_ms)}{late}"
        if event is None or fate not in _FATES:
            parked = "; it is parked: rocketshim parked ls --reason transaction-unanswered"
            return f"{super().outcome}{parked if fate is TimerFate.UNANSWERED else ''}"
        return f"{_ENDED[event.effect]} at {utc_text(event.stored_ms)}"

    def effect(self, event: TimerEvent) -> str:
        match event.effect:
            case Effect.SCHEDULE:
                return f"waits for its outcome; the first check is at {time_text(event.due_ms)}"
            case Effect.FORGET:
                return "rolls back: the message is dropped"
            case Effect.DELIVER_PENDING:
                return "commits: the message is delivered"
            case Effect.NOTHING if event.command is not Command.FIRE:
                before = [each for each in self.history.events if each.offset < event.offset]
                ended = next((each for each in reversed(before) if each.effect in _ENDED), None)
                if ended is None:
                    return "nothing: it did not wait"
                return f"too late: {_ENDED[ended.effect]} by offset {ended.offset}"
            case _:
                return super().effect(event)

    def facts(self) -> dict[str, Any]:
        facts = super().facts()
        stored = self.history.stored
        groups = [each.asks for each in self.history.events if each.asks] + ([stored.asks] if stored else [])
        others = {name: value for name, value in facts.items() if name not in {"timer", "fate", "due_ms"}}
        return {
            "target": self.topic,
            "id": self.name,
            "fate": _FATES.get(facts["fate"], facts["fate"]),
            "producer_group": next(iter(groups), None),
            "asked": self.asked,
            "next_check_ms": self.due_ms if facts["fate"] == TimerFate.PENDING else None,
            **others,
            "history": [each | {"command": self.word(Command(each["command"]))} for each in facts["history"]],
        }
