"""`rocketshim spark replay plan | run | verify`: send dead letters again, and check that they arrived."""

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rocketshim.cli.kinds import Where
from rocketshim.cli.options import ClientSettings, Connected, DryRun, Json, client_settings
from rocketshim.cli.redrive_options import MaxLetters, MaxReplays, Rate, StopRatio, ToSource
from rocketshim.core.redrive_progress import DEFAULT_STOP_RATIO
from rocketshim.core.user_values import count_text
from rocketshim.errors import ConfigError
from rocketshim_spark.cli_options import (
    AtLake,
    GroupOnly,
    JavaClient,
    NewestOfLake,
    brokers,
    exit_if_finding,
    print_note,
)
from rocketshim_spark.report import printable
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.errors import TopicMissingError
from rocketshim_topics.redrive_plan import DEFAULT_MAX_REPLAYS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from rocketshim.core.redrive_progress import RedriveProgress
    from rocketshim_spark.jobs.replay_send import RunResult
    from rocketshim_spark.running import OpenLake
    from rocketshim_spark.sources import Cluster, PartitionBounds

app = typer.Typer(
    help="Send dead letters again: plan, run, verify. Each step can be repeated, and killed at any time.",
    epilog="Example: rocketshim spark replay plan --lake ./lake --plan monday --group payments",
    no_args_is_help=True,
)

_TABLES_OF_A_PLAN: Final = ("-ends", "-verified")


def _refuse_name_of_another_table(name: str) -> str:
    if name.endswith(_TABLES_OF_A_PLAN):
        endings = " or ".join(_TABLES_OF_A_PLAN)
        raise ConfigError(f"--plan {name!r:.110}: a name may not end in {endings}: other plans' tables are named so")
    return name


PlanName = Annotated[
    str,
    typer.Option("--plan", help="Name of the plan; part of every replay id.", callback=_refuse_name_of_another_table),
]


@app.command(
    epilog="Example: rocketshim spark replay plan --lake ./lake --plan monday --where \"FAIL_CLASS = 'Timeout'\""
)
def plan(
    *,
    lake: AtLake,
    plan_name: PlanName,
    group: GroupOnly = None,
    where: Where = None,
    to_source: ToSource = False,
    max_replays: MaxReplays = DEFAULT_MAX_REPLAYS,
    max_messages: MaxLetters = None,
    bootstrap: Annotated[
        str | None, brokers("Skip also dead letters whose target does not exist at these brokers, or refuses them.")
    ] = None,
    client: ClientSettings,
    as_json: Json = False,
) -> None:
    """Write a plan of what would be sent, for review. Nothing is sent."""
    with lake.open() as view:
        from pydantic import ValidationError  # noqa: PLC0415 Spark is installed
        from pyspark.sql import functions as F  # noqa: N812, PLC0415

        from rocketshim.filters import SqlFilter  # noqa: PLC0415
        from rocketshim_spark.filters import header_property, selects  # noqa: PLC0415
        from rocketshim_spark.jobs import replay as job  # noqa: PLC0415
        from rocketshim_spark.running import publish, write_report  # noqa: PLC0415
        from rocketshim_spark.sources import Cluster  # noqa: PLC0415
        from rocketshim_topics import TopicNames  # noqa: PLC0415

        try:
            params = job.PlanParams(
                plan_id=plan_name,
                namespace=lake.namespace,
                group=group,
                to_source=to_source,
                max_replays=max_replays,
                max_messages=max_messages,
            )
        except ValidationError as error:
            raise ConfigError(f"--plan {plan_name!r}: {error.errors()[0]['msg']}") from error
        view.check_groups([group] if group else [])
        chosen = None
        if where is not None:
            condition = selects(SqlFilter(where), lambda name: header_property(F.col("headers"), name))
            coordinates = F.concat_ws("/", "topic", "partition", "offset").alias("coordinates")
            letters = view.records.filter(F.col("topic").startswith(TopicNames(lake.namespace).dead_letter_prefix))
            chosen = letters.filter(condition).select(coordinates)
        known: dict[str, Any] = {"settled": view.settled, "gaps": view.gaps}
        if bootstrap is not None:
            cluster = Cluster(bootstrap, client)
            known |= {"existing": frozenset(cluster.topics()), "is_compacted": cluster.is_compacted}
        planned = job.plan(view.records, view.events, view.topics(), params, chosen=chosen, **known)
        written = publish(view, f"replay-{plan_name}", planned)
        write_report(view, job.plan_report(written, plan_name), as_json=as_json)


@app.command(epilog="Example: rocketshim spark replay run --lake ./lake --plan monday --rate 200")
def run(
    *,
    lake: NewestOfLake,
    plan_name: PlanName,
    at: Connected,
    rate: Rate = None,
    stop_ratio: StopRatio = DEFAULT_STOP_RATIO,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Send the planned dead letters that no command has sent or discarded yet, each exactly once.

    Exit code 2 if some could not be sent, or became dead again during the run.
    """
    config = at.client
    with lake.open() as view:
        from rocketshim.admin.redrive import ensure_log  # noqa: PLC0415
        from rocketshim_spark.jobs import replay, replay_send  # noqa: PLC0415 Spark is installed
        from rocketshim_spark.sources import Cluster  # noqa: PLC0415

        planned = _read_plan(view, plan_name)
        cluster = Cluster(at.bootstrap, config)
        _check_sources(view, planned, cluster)
        landed = replay.landed_letters(planned, view.records)
        bounds = target_bounds(planned, cluster)
        if not dry_run:
            record_target_ends(view, plan_name, bounds)
            ensure_log(at.bootstrap, at.names, client=config)
        done = replay_send.send(
            at.bootstrap,
            planned,
            landed,
            namespace=lake.namespace,
            targets={each.topic for each in bounds},
            config=config,
            max_per_second=rate,
            stop_ratio=stop_ratio,
            dry_run=dry_run,
            report=_print_progress,
        )
    if as_json:
        typer.echo(json.dumps(_facts(plan_name, done, dry_run=dry_run)))
    else:
        _print_result(done, dry_run=dry_run)
    exit_if_finding(fine=not done.failed and not done.dead_again)


def _facts(plan_name: str, done: "RunResult", *, dry_run: bool) -> dict[str, Any]:
    """Return the result for programs, with the names that `dlq apply --json` uses."""
    return {
        "plan": plan_name,
        "planned": done.sent + done.settled + sum(done.failed.values()) + done.left,
        "sent": 0 if dry_run else done.sent,
        "settled_before": done.settled,
        "failed": sum(done.failed.values()),
        "failures": dict(done.failed),
        "dead_again": done.dead_again,
        "left": done.sent if dry_run else done.left,
        "stopped_by": "failures" if done.is_stopped else None,
        "dry_run": dry_run,
    }


def _print_result(done: "RunResult", *, dry_run: bool) -> None:
    verb = "would send" if dry_run else "sent"
    typer.echo(f"{verb} {count_text(done.sent, 'dead letter')}; already sent or discarded: {done.settled}")
    for reason, count in done.failed.items():
        typer.echo(printable(f"not sent: {count_text(count, 'dead letter')}: {reason}"))
    if done.dead_again:
        typer.echo(f"{done.dead_again} of those sent are dead again")
    if done.is_stopped:
        stopped = (
            "stopped: too many failed or became dead again (--stop-ratio); "
            f"{count_text(done.left, 'dead letter')} not tried"
        )
        print_note("the run would stop: too many would fail (--stop-ratio)" if dry_run else stopped)


@app.command(epilog="Example: rocketshim spark replay verify --lake ./lake --plan monday")
def verify(
    *,
    lake: NewestOfLake,
    plan_name: PlanName,
    at: Connected,
    java_client: JavaClient = None,
    as_json: Json = False,
) -> None:
    """Read the target topics and list what differs from the plan. Exit code 2 if a record is missing or altered."""
    kafka, config = client_settings(java_client, "--java-client"), at.client
    with lake.open() as view:
        from rocketshim_spark import redrive_marks  # noqa: PLC0415 Spark is installed
        from rocketshim_spark.jobs import replay as job  # noqa: PLC0415
        from rocketshim_spark.running import publish, write_report  # noqa: PLC0415
        from rocketshim_spark.sources import Cluster, read_batch  # noqa: PLC0415

        planned = _read_plan(view, plan_name)
        cluster = Cluster(at.bootstrap, config)
        bounds = _bounds_to_verify(view, planned, plan_name, cluster)
        found = read_batch(view.spark, at.bootstrap, bounds, kafka=kafka) if bounds else view.records.limit(0)
        log = at.names.redrive_log
        settled = view.settled
        if log in cluster.topics():  # the landed copy of the redrive log may be out of date
            settled = redrive_marks.settled(
                read_batch(view.spark, at.bootstrap, cluster.bounds([log]), kafka=kafka), at.namespace
            )
        checked = publish(view, f"replay-{plan_name}-verified", job.check(planned, found, settled))
        report = job.verify_report(checked, plan_name)
        write_report(view, report, as_json=as_json)
    exit_if_finding(fine=report.fine)


def _read_plan(view: "OpenLake", plan_name: str) -> "DataFrame":
    from rocketshim_spark.errors import LakeError  # noqa: PLC0415 Spark is installed
    from rocketshim_spark.running import find_published  # noqa: PLC0415

    planned = find_published(view, f"replay-{plan_name}")
    if planned is None:
        raise LakeError(f"no plan named {plan_name}: run `rocketshim spark replay plan --plan {plan_name}` first")
    return planned


def _check_sources(view: "OpenLake", planned: "DataFrame", cluster: "Cluster") -> None:
    """Refuse dead letters of topics that were recreated since the landing, or of another cluster."""
    from rocketshim_spark.errors import TopicRecreatedError  # noqa: PLC0415 Spark is installed

    known = {row.topic: row.topic_id for row in view.topics().collect()}
    sources = [row.topic for row in planned.filter("action = 'send'").select("topic").distinct().collect()]
    for each in cluster.bounds(sorted(sources)):
        if known.get(each.topic) != each.topic_id:
            raise TopicRecreatedError(
                f"{each.topic} is not the topic that was landed (its id was {known.get(each.topic)} and is now "
                f"{each.topic_id}). Nothing was sent. Check that --bootstrap names the same cluster; if the topic was "
                "recreated, land it into a new folder"
            )


def record_target_ends(view: "OpenLake", plan_name: str, bounds: "list[PartitionBounds]") -> None:
    """Record the end offsets of the plan's target topics, once per plan: everything it sends lies beyond them."""
    from rocketshim_spark.running import find_published, publish  # noqa: PLC0415 Spark is installed
    from rocketshim_spark.small_frames import small_frame  # noqa: PLC0415

    name = f"replay-{plan_name}-ends"
    if find_published(view, name) is None:
        ends = [(each.topic, each.partition, each.end) for each in bounds]
        publish(view, name, small_frame(view.spark, ends, "topic string, partition int, end bigint"))


def _bounds_to_verify(
    view: "OpenLake", planned: "DataFrame", plan_name: str, cluster: "Cluster"
) -> "list[PartitionBounds]":
    """Return the bounds of the plan's target topics from the recorded ends on; none if the plan was never run."""
    from rocketshim_spark.running import find_published  # noqa: PLC0415 Spark is installed
    from rocketshim_spark.sources import since  # noqa: PLC0415

    ends = find_published(view, f"replay-{plan_name}-ends")
    if ends is None:
        return []
    starts = {TopicPartitionKey.of(row): row.end for row in ends.collect()}
    # Topics and partitions that were added later are read from their beginning.
    return since(target_bounds(planned, cluster), starts)


def target_bounds(planned: "DataFrame", cluster: "Cluster") -> "list[PartitionBounds]":
    """Return the bounds of the plan's target topics, without those that do not exist."""
    found: list[PartitionBounds] = []
    for row in planned.filter("action = 'send'").select("target").distinct().orderBy("target").collect():
        with suppress(TopicMissingError):
            found += cluster.bounds([row.target])
    return found


def _print_progress(topic: str, progress: "RedriveProgress", step: str) -> None:
    if step in {"resumed", "sent", "failed"}:
        print_note(f"{topic}: sent {progress.sent:,} of {count_text(progress.planned, 'dead letter')}")
