"""`rocketshim doctor`: check the set-up and print each problem, its impact and the command that fixes it."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from rocketshim.admin.acls import Role
from rocketshim.admin.doctor import CHECKS, examine
from rocketshim.cli.app import FINDING
from rocketshim.cli.completion import complete_group, complete_topic
from rocketshim.cli.findings import counts, show_findings
from rocketshim.cli.options import ConnectedWithLevels, Json, Quiet, seconds
from rocketshim.core.user_values import count_text, one_line
from rocketshim.observe.finding import has_problem

app = typer.Typer()


@app.command(epilog="Example: rocketshim doctor --bootstrap localhost:9092 --topic orders --group payments")
def doctor(
    *,
    at: ConnectedWithLevels,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", help="One of your source or target topics; repeatable.", autocompletion=complete_topic
        ),
    ] = None,
    group: Annotated[
        list[str] | None,
        typer.Option(
            "--group",
            "-g",
            help="Another group to check, besides those whose topics exist; repeatable.",
            autocompletion=complete_group,
        ),
    ] = None,
    role: Annotated[
        list[Role] | None, typer.Option("--role", help="Check that this principal has the ACLs of a role; repeatable.")
    ] = None,
    consume_timeout: Annotated[
        float | None,
        typer.Option(
            parser=seconds(),
            metavar="DURATION",
            help="Longest time a handler in your own poll loop may take: 90s, 15m.",
        ),
    ] = None,
    probe: Annotated[
        bool,
        typer.Option(
            "--probe",
            help="Measure the brokers' clocks by a record that every reader skips, and what the cluster can do, on a "
            "topic and groups that are deleted again.",
        ),
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Check the set-up: print each problem, its impact and the command that fixes it. Changes nothing that stays.

    Exit code 2 if there are errors or warnings; notes alone give 0.
    """
    from rocketshim.admin.doctor.gather import gather  # noqa: PLC0415 - `--help` does without

    facts = gather(
        at.bootstrap,
        at.names,
        at.levels,
        groups=group or (),
        topics=topic or (),
        roles=[each.value for each in role or ()],
        client=at.client,
        consume_timeout_ms=None if consume_timeout is None else round(consume_timeout * 1_000),
        probe=probe,
    )
    found = examine(facts)
    if quiet and not has_problem(found):
        return
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in found], indent=1))
    else:
        for each in facts.capabilities:
            does = "not measured" if each.works is None else "works" if each.works else "does not work"
            typer.echo(one_line(f"{each.name}: {does}, {each.seen} (needed by: {each.needed_by})"))
        show_findings(found)
        seen = {"topic": facts.topics, "group": facts.standings, "broker": facts.brokers}
        looked = ", ".join(count_text(len(each), noun) for noun, each in seen.items())
        typer.echo(f"{len(CHECKS)} checks on {looked}: {counts(found)}")
    if has_problem(found):
        raise typer.Exit(FINDING)
