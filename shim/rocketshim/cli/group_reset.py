"""`rocketshim group reset`: move the positions of a group, after showing where to."""

import json
import re
import time
from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from rocketshim.admin.group_reset import GroupResetter, ResetPlan, ResetTarget
from rocketshim.admin.times import past_ms
from rocketshim.cli.app import FINDING
from rocketshim.cli.completion import GroupName, complete_topic
from rocketshim.cli.options import Connected, Json
from rocketshim.cli.records import echo_safe, show_table, split_partition

__all__ = ["EXAMPLE", "reset"]

EXAMPLE = (
    "Example: rocketshim group reset payments --to 2h --topic orders; "
    "then: rocketshim group reset payments --to 2h --topic orders --apply"
)


def reset(
    *,
    group: GroupName,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="earliest|latest|TIME|OFFSET",
            help="The new position: earliest, latest, a time or a duration before now (2026-11-20T18:00:00Z, 2h), or "
            "an offset.",
        ),
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="TOPIC[/PARTITION]",
            help="Only this topic or partition; repeatable. Default: what the group has committed, without its retry "
            "topic.",
            autocompletion=complete_topic,
        ),
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Move the positions; without it, only show the plan.")] = False,
    at: Connected,
    as_json: Json = False,
) -> None:
    """Show where the positions of a group would be, and with --apply move them there.

    Exit code 2 if the plan cannot be applied, because members are running. With --apply this is an error: exit code 1.
    """
    names = at.names
    resetter = GroupResetter(at.bootstrap, names, at.client)
    topics = [(names.physical(name), number) for name, number in map(split_partition, topic or ())]
    plan = resetter.plan(group, topics, _target(to))
    if apply:
        resetter.apply(plan)
    if as_json:
        typer.echo(json.dumps({**asdict(plan), "applied": apply}))
    else:
        _show(plan, is_applied=apply)
    if plan.refused is not None:
        raise typer.Exit(FINDING)


def _target(to: str) -> ResetTarget:
    if to in {"earliest", "latest"}:
        return ResetTarget(latest=to == "latest")
    if re.fullmatch("[0-9]{1,19}", to):
        return ResetTarget(offset=int(to))
    return ResetTarget(at_ms=past_ms(to, time.time_ns() // 1_000_000, "--to"))


def _show(plan: ResetPlan, *, is_applied: bool) -> None:
    table = Table(box=None, pad_edge=False)
    table.add_column("topic")
    for column in ("partition", "position", "new position", "change", "first", "end"):
        table.add_column(column, justify="right")
    for each in plan.resets:
        change = each.target - (each.low if each.position is None else each.position)
        table.add_row(
            each.topic,
            str(each.partition),
            "none" if each.position is None else str(each.position),
            str(each.target),
            f"{change:+}" if change and each.position is not None else "",
            str(each.low),
            str(each.end),
        )
    show_table(table)
    if is_applied:
        typer.echo(f"done: group {plan.group} continues at the new positions")
    elif plan.refused is not None:
        echo_safe(f"cannot be applied now: {plan.refused}", err=True)
    else:
        typer.echo("nothing was changed; to do it, add --apply")
