"""`rocketshim spark replay plan | run | verify`: send dead letters again, and prove that they were."""

from typing import TYPE_CHECKING, Annotated

import typer

from rocketshim.cli.options import Bootstrap, DryRun, Namespace
from rocketshim.core.redrive import DEFAULT_STOP_RATIO
from rocketshim.errors import ConfigError
from rocketshim_spark.cli_options import (
    Connector,
    DriverClient,
    DriverMemory,
    Lake,
    Master,
    Out,
    SparkClient,
    Version,
    exit_if_finding,
    open_view,
    parse_properties,
    print_note,
)
from rocketshim_spark.report import printable
from rocketshim_topics.redrive_plan import DEFAULT_MAX_REPLAYS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from rocketshim.core.redrive import RedriveProgress
    from rocketshim_spark.running import OpenLake
    from rocketshim_spark.sources import Cluster, PartitionBounds

app = typer.Typer(
    help="Send dead letters again: plan, run, verify. Safe to run twice, safe to kill.",
    epilog="Example: rocketshim spark replay plan --lake ./lake --plan monday --group payments",
    no_args_is_help=True,
)

PlanName = Annotated[str, typer.Option("--plan", help="The plan's name; part of every replay id.")]


@app.command(
    epilog="Example: rocketshim spark replay plan --lake ./lake --plan monday --where \"FAIL_CLASS = 'Timeout'\""
)
def plan(
    *,
    lake: Lake,
    plan_name: PlanName,
    group: Annotated[str | None, typer.Option("--group", help="Dead letters of this group only.")] = None,
    where: Annotated[
        str | None, typer.Option("--where", help="SQL92 over headers: \"FAIL_CLASS = 'Timeout'\".")
    ] = None,
    to_source: Annotated[bool, typer.Option("--to-source", help="To the source topic, and so to every group.")] = False,
    max_replays: Annotated[
        int, typer.Option("--max-replays", min=1, max=2**31 - 1, help="Skip what was redriven so often.")
    ] = DEFAULT_MAX_REPLAYS,
    max_messages: Annotated[int | None, typer.Option("--max", min=1, help="Send so many at most.")] = None,
    namespace: Namespace = "",
    version: Version = None,
    out: Out = None,
    master: Master = None,
    connector: Connector = "auto",
    driver_memory: DriverMemory = None,
) -> None:
    """Write down what would be sent, to be looked at. Nothing is sent."""
    with open_view(
        lake, out, namespace, version, master=master, connector=connector, driver_memory=driver_memory
    ) as view:
        from pydantic import ValidationError  # noqa: PLC0415 Spark is there now
        from pyspark.sql import functions as F  # noqa: N812, PLC0415

        from rocketshim.filters import SqlFilter  # noqa: PLC0415
        from rocketshim_spark.filters import header_property, selects  # noqa: PLC0415
        from rocketshim_spark.jobs import replay as job  # noqa: PLC0415
        from rocketshim_spark.running import publish, write_report  # noqa: PLC0415

        try:
            params = job.PlanParams(
                plan_id=plan_name,
                namespace=namespace,
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
            chosen = view.records.filter(condition).select(coordinates)
        named = job.named_targets(view.events, params)
        planned = job.plan(view.events, view.topics(), named, params, chosen=chosen, settled=view.settled)
        written = publish(view, f"replay-{plan_name}", planned)
        write_report(view, job.plan_report(written))


@app.command(epilog="Example: rocketshim spark replay run --lake ./lake --plan monday --max-per-second 200")
def run(
    *,
    lake: Lake,
    plan_name: PlanName,
    bootstrap: Bootstrap,
    max_per_second: Annotated[
        float | None, typer.Option("--max-per-second", min=0.01, help="Not faster than this.")
    ] = None,
    stop_ratio: Annotated[
        float,
        typer.Option("--stop-ratio", min=0, max=1, help="Stop if more than this share fails or dies again."),
    ] = DEFAULT_STOP_RATIO,
    dry_run: DryRun = False,
    namespace: Namespace = "",
    out: Out = None,
    client_property: DriverClient = None,
    master: Master = None,
    connector: Connector = "auto",
    driver_memory: DriverMemory = None,
) -> None:
    """Send what is planned and was neither sent nor discarded yet, by whatever: each letter exactly once.

    Exit code 2 if letters could not be sent, or died again while this was running.
    """
    with open_view(lake, out, namespace, None, master=master, connector=connector, driver_memory=driver_memory) as view:
        from rocketshim.cli.redrive import ensure_log  # noqa: PLC0415
        from rocketshim_spark.jobs import replay as job  # noqa: PLC0415 Spark is there now
        from rocketshim_spark.sources import Cluster  # noqa: PLC0415
        from rocketshim_topics import TopicNames  # noqa: PLC0415

        config = parse_properties(client_property)
        planned = _read_plan(view, plan_name)
        cluster = Cluster(bootstrap, config)
        _check_sources(view, planned, cluster)
        landed = job.landed_letters(planned, view.records)
        if not dry_run:
            record_target_ends(view, planned, plan_name, cluster)
            ensure_log(bootstrap, config, TopicNames(namespace))
        done = job.send(
            bootstrap,
            planned,
            landed,
            namespace=namespace,
            config=config,
            max_per_second=max_per_second,
            stop_ratio=stop_ratio,
            dry_run=dry_run,
            report=_print_progress,
        )
    typer.echo(f"{'would send' if dry_run else 'sent'} {done.sent} letters; settled before: {done.settled}")
    for reason, count in done.failed.items():
        typer.echo(printable(f"not sent: {count} letters: {reason}"))
    if done.dead_again:
        typer.echo(f"{done.dead_again} of those sent are dead again")
    if done.left:
        print_note(f"stopped: too many failed or died again (--stop-ratio); {done.left} letters are left")
    exit_if_finding(fine=not done.failed and not done.dead_again)


@app.command(epilog="Example: rocketshim spark replay verify --lake ./lake --plan monday")
def verify(
    *,
    lake: Lake,
    plan_name: PlanName,
    bootstrap: Bootstrap,
    namespace: Namespace = "",
    out: Out = None,
    kafka_property: SparkClient = None,
    client_property: DriverClient = None,
    master: Master = None,
    connector: Connector = "auto",
    driver_memory: DriverMemory = None,
) -> None:
    """Read the targets and say, letter by letter, what is not as planned. Exit code 2 if one is missing or altered."""
    with open_view(lake, out, namespace, None, master=master, connector=connector, driver_memory=driver_memory) as view:
        from rocketshim_spark import events  # noqa: PLC0415 Spark is there now
        from rocketshim_spark.jobs import replay as job  # noqa: PLC0415
        from rocketshim_spark.running import publish, write_report  # noqa: PLC0415
        from rocketshim_spark.sources import Cluster, read_batch  # noqa: PLC0415
        from rocketshim_topics import TopicNames  # noqa: PLC0415

        kafka, config = parse_properties(kafka_property), parse_properties(client_property)
        planned = _read_plan(view, plan_name)
        cluster = Cluster(bootstrap, config)
        bounds = _bounds_to_verify(view, planned, plan_name, cluster)
        found = read_batch(view.spark, bootstrap, bounds, kafka=kafka) if bounds else view.records.limit(0)
        log = TopicNames(namespace).redrive_log
        settled = view.settled
        if log in cluster.topics():  # what the lake knows of it may be old
            settled = events.settled(read_batch(view.spark, bootstrap, cluster.bounds([log]), kafka=kafka), namespace)
        checked = publish(view, f"replay-{plan_name}-verified", job.check(planned, found, settled))
        report = job.verify_report(checked)
        write_report(view, report)
    exit_if_finding(fine=report.fine)


def _read_plan(view: "OpenLake", plan_name: str) -> "DataFrame":
    from rocketshim_spark.errors import LakeError  # noqa: PLC0415 Spark is there now
    from rocketshim_spark.running import find_published  # noqa: PLC0415

    planned = find_published(view, f"replay-{plan_name}")
    if planned is None:
        raise LakeError(f"there is no plan {plan_name}: run `rocketshim spark replay plan --plan {plan_name}` first")
    return planned


def _check_sources(view: "OpenLake", planned: "DataFrame", cluster: "Cluster") -> None:
    """Refuse letters of topics that are not the landed ones any more, or are another cluster's."""
    from rocketshim_spark.errors import TopicRecreatedError  # noqa: PLC0415 Spark is there now

    known = {row.topic: row.topic_id for row in view.topics().collect()}
    sources = [row.topic for row in planned.filter("action = 'send'").select("topic").distinct().collect()]
    for each in cluster.bounds(sorted(sources)):
        if known.get(each.topic) != each.topic_id:
            raise TopicRecreatedError(
                f"{each.topic} is not the topic that was landed (its id was {known.get(each.topic)} and is "
                f"{each.topic_id}): is --bootstrap another cluster? If it was made anew, land it into a new folder"
            )


def record_target_ends(view: "OpenLake", planned: "DataFrame", plan_name: str, cluster: "Cluster") -> None:
    """Note where the plan's targets end, unless that was done before: what it sends lies beyond."""
    from rocketshim_spark.jobs import replay as job  # noqa: PLC0415 Spark is there now
    from rocketshim_spark.running import find_published, publish  # noqa: PLC0415

    name = f"replay-{plan_name}-ends"
    if find_published(view, name) is None:
        ends = [(each.topic, each.partition, each.end) for each in cluster.bounds(_target_topics(planned))]
        publish(view, name, job.target_ends(view.spark, ends))


def _bounds_to_verify(
    view: "OpenLake", planned: "DataFrame", plan_name: str, cluster: "Cluster"
) -> "list[PartitionBounds]":
    """The plan's targets from where they ended before its first record; nothing of them if it was never run."""
    from rocketshim_spark.running import find_published  # noqa: PLC0415 Spark is there now
    from rocketshim_spark.sources import since  # noqa: PLC0415

    ends = find_published(view, f"replay-{plan_name}-ends")
    if ends is None:
        return []
    starts = {(row.topic, row.partition): row.end for row in ends.collect()}
    # A partition that was added since is read from its beginning.
    return since(cluster.bounds(_target_topics(planned)), starts)


def _target_topics(planned: "DataFrame") -> list[str]:
    return sorted(row.target for row in planned.filter("action = 'send'").select("target").distinct().collect())


def _print_progress(topic: str, progress: "RedriveProgress") -> None:
    print_note(f"{topic}: {progress.sent} of {progress.planned} letters sent")
