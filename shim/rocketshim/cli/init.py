"""`rocketshim init`: create the topics that rocketshim needs, or show what would be created."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketshim.cli.app import FINDING
from rocketshim.cli.options import ConnectedWithLevels, DryRun, Json
from rocketshim.errors import ConfigError

if TYPE_CHECKING:
    from rocketshim_topics.layout import Difference, Plan

app = typer.Typer()


@app.command(epilog="Example: rocketshim init --bootstrap localhost:9092 --topic orders --group payments")
def init(
    *,
    at: ConnectedWithLevels,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", help="Also create the topics of this consumer group; repeatable."),
    ] = None,
    with_log: Annotated[
        bool,
        typer.Option("--with-log", help="Also create the group log, for orderly listeners and allocation strategies."),
    ] = False,
    producer_group: Annotated[
        list[str] | None,
        typer.Option("--producer-group", help="Also create the topic for checks of these producers; repeatable."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", help="Also create your own topic if it is missing; repeatable. Never changed later."
        ),
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Partitions of a topic that --topic creates. Default 1.")
    ] = None,
    lanes: Annotated[
        int | None, typer.Option(min=1, help="Lanes of the schedule topic; lanes are added if it has fewer. Default 1.")
    ] = None,
    max_message_bytes: Annotated[
        int, typer.Option(min=1_024, help="max.message.bytes of your largest topic.")
    ] = 1_048_588,
    replication_factor: Annotated[
        int | None, typer.Option(min=1, help="Replicas of each new topic. Default: the cluster's default.")
    ] = None,
    fix: Annotated[
        bool, typer.Option("--fix", help="Also correct existing topics: settings, and lanes that are not whole.")
    ] = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Create missing topics. Existing topics are not changed unless you give --lanes or --fix.

    Exit code 2 if an existing topic is not as it should be.
    """
    from rocketshim.kafka.client_config import merge  # noqa: PLC0415 - `--help` does without
    from rocketshim.kafka.clients import LastClientError, answer_time_s, confluent_admin, explained  # noqa: PLC0415
    from rocketshim_topics import provision  # noqa: PLC0415
    from rocketshim_topics.layout import Layout, TopicSpec  # noqa: PLC0415
    from rocketshim_topics.names import check_consumer_group, check_topic  # noqa: PLC0415

    if partitions is not None and not topic:
        raise ConfigError("--partitions applies to the topics of --topic only; for the delay queues use --lanes")
    names = at.names
    layout = Layout(
        names,
        at.levels,
        lanes=lanes or 1,
        max_message_bytes=max_message_bytes,
        replication_factor=replication_factor,
    )
    specs = [*layout.shared(), *layout.timers(), layout.redrive_log()]
    for each in group or []:
        specs.extend(layout.for_group(check_consumer_group(each), with_log=with_log))
    specs.extend(layout.check(each) for each in producer_group or [])
    for each in topic or []:
        if names.is_ours(check_topic(each)):
            raise ConfigError(
                f"--topic {each!r} is a topic of rocketshim: init creates these by itself, a group's with --group"
            )
        specs.append(
            TopicSpec(each, partitions or 1, purpose="yours", replication_factor=replication_factor, grows=False)
        )
    complaints = LastClientError()
    required = {"bootstrap.servers": at.bootstrap}
    admin = confluent_admin(merge(at.client, defaults=complaints.settings, required=required))
    with explained(complaints, admin):
        planned = provision.plan(
            admin, specs, grow=lanes is not None, fix=fix, timeout_s=answer_time_s(admin, complaints)
        )
    if not as_json:
        for line in planned.lines():
            typer.echo(line)
    is_applied = not dry_run and not planned.is_done
    refused: list[Difference] = []
    if is_applied:
        provision.apply(admin, planned)
        refused = _refused(admin, planned)
    if as_json:
        facts = _facts(planned) | {"applied": is_applied, "refused": [asdict(each) for each in refused]}
        typer.echo(json.dumps(facts))
    else:
        for difference in refused:
            typer.echo(f"note  {difference}: this cluster sets it otherwise")
        typer.echo(_end(planned, is_applied=is_applied))
    raise typer.Exit(FINDING if any(_is_left(each) for each in planned.differences) else 0)


def _refused(admin: Any, planned: "Plan") -> "list[Difference]":
    """Return what is not as planned after the plan was applied: the cluster has refused or ignored it."""
    from rocketshim_topics import provision  # noqa: PLC0415 - `--help` does without

    missing = {spec.name for spec in planned.missing}
    touched = missing | {each.topic for each in planned.differences if each.will_change}
    left = provision.plan(admin, [spec for spec in planned.specs if spec.name in touched]).differences
    return [each for each in left if each.is_note or each.topic in missing]


def _end(planned: "Plan", *, is_applied: bool) -> str:
    """Return what was done, and what corrects the differences that are left."""
    text = "done" if is_applied else "nothing to do" if planned.is_done else "dry run: nothing was changed"
    left = {each.topic for each in planned.differences if _is_left(each)}
    ours = {spec.name: spec.init_command for spec in planned.specs if spec.grows}
    commands = dict.fromkeys(f"{command} --fix" for name, command in ours.items() if name in left)
    if commands:
        text += f"; to correct what differs: {'; '.join(commands)}"
    if left - ours.keys():
        text += "; init does not change your own topics"
    return text


def _is_left(difference: "Difference") -> bool:
    return not difference.will_change and not difference.is_note


def _facts(planned: "Plan") -> dict[str, Any]:
    """Return the plan for programs: missing topics, and existing topics that are not as they should be."""
    create = [
        {"topic": spec.name, "partitions": spec.partitions, "config": dict(spec.config)} for spec in planned.missing
    ]
    return {"create": create, "differences": [asdict(each) for each in planned.differences]}
