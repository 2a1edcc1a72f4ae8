"""`rocketshim spark replay plan | run | verify`: send dead letters again, and prove that they were."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rocketshim.cli.options import Bootstrap, DryRun, Namespace
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
    end,
    note,
    properties,
    session,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from rocketshim_spark.running import OpenLake

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
    max_replays: Annotated[int, typer.Option("--max-replays", min=1, help="Skip what was redriven so often.")] = 2,
    max_messages: Annotated[int | None, typer.Option("--max", min=1, help="Send so many at most.")] = None,
    namespace: Namespace = "",
    version: Version = None,
    out: Out = None,
    master: Master = None,
    connector: Connector = "auto",
    driver_memory: DriverMemory = None,
) -> None:
    """Write down what would be sent, to be looked at. Nothing is sent."""
    with session(master, connector, driver_memory) as spark:
        from pydantic import ValidationError  # noqa: PLC0415 Spark is there now
        from pyspark.sql import functions as F  # noqa: N812, PLC0415

        from rocketshim.filters import SqlFilter  # noqa: PLC0415
        from rocketshim_spark.filters import header_property, selects  # noqa: PLC0415
        from rocketshim_spark.jobs import replay as job  # noqa: PLC0415
        from rocketshim_spark.land import read_topics  # noqa: PLC0415
        from rocketshim_spark.running import open_lake, publish, say  # noqa: PLC0415

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
        opened = open_lake(spark, lake, namespace=namespace, version=version)
        chosen = None
        if where is not None:
            condition = selects(SqlFilter(where), lambda name: header_property(F.col("headers"), name))
            place = F.concat_ws("/", "topic", "partition", "offset").alias("coordinates")
            chosen = opened.records.filter(condition).select(place)
        planned = job.plan(opened.events, read_topics(spark, opened.path), params, chosen=chosen)
        written = publish(opened, f"replay-{plan_name}", job.with_targets(planned, params), out)
        say(opened, job.plan_report(written), out)


@app.command(epilog="Example: rocketshim spark replay run --lake ./lake --plan monday --max-per-second 200")
def run(
    *,
    lake: Lake,
    plan_name: PlanName,
    bootstrap: Bootstrap,
    max_per_second: Annotated[
        float | None, typer.Option("--max-per-second", min=0.01, help="Not faster than this.")
    ] = None,
    dry_run: DryRun = False,
    namespace: Namespace = "",
    out: Out = None,
    kafka_property: SparkClient = None,
    client_property: DriverClient = None,
    master: Master = None,
    connector: Connector = "auto",
    driver_memory: DriverMemory = None,
) -> None:
    """Send what is planned and not there yet. Exit code 2 if a letter could not be made into a record."""
    with session(master, connector, driver_memory) as spark, _alone(lake, plan_name):
        from rocketshim_spark.jobs import replay as job  # noqa: PLC0415 Spark is there now
        from rocketshim_spark.running import open_lake  # noqa: PLC0415

        kafka, config = properties(kafka_property), properties(client_property)
        opened = open_lake(spark, lake, namespace=namespace)
        planned = _planned(opened, plan_name, out)
        found = _found(
            opened,
            planned,
            plan_name,
            bootstrap=bootstrap,
            out=out,
            kafka=kafka,
            config=config,
            note_ends=not dry_run,
        )
        present = job.replay_ids(found)
        todo = job.letters_to_send(planned, opened.records, present)
        if dry_run:
            typer.echo(f"would send {todo.count()} letters")
            return
        done = job.send(
            bootstrap,
            todo.toLocalIterator(),
            namespace=namespace,
            config=config,
            max_per_second=max_per_second,
            report=lambda count: note(f"{count} letters handed over"),
        )
    typer.echo(f"sent {done.sent} letters")
    for reason, count in done.refused.items():
        typer.echo(f"not sent: {count} letters: {reason}")
    end(fine=not done.refused)


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
    with session(master, connector, driver_memory) as spark:
        from rocketshim_spark.jobs import replay as job  # noqa: PLC0415 Spark is there now
        from rocketshim_spark.running import open_lake, publish, say  # noqa: PLC0415

        kafka, config = properties(kafka_property), properties(client_property)
        opened = open_lake(spark, lake, namespace=namespace)
        planned = _planned(opened, plan_name, out)
        found = _found(
            opened,
            planned,
            plan_name,
            bootstrap=bootstrap,
            out=out,
            kafka=kafka,
            config=config,
            note_ends=False,
        )
        report = job.verify_report(publish(opened, f"replay-{plan_name}-verified", job.check(planned, found), out))
        say(opened, report, out)
    end(fine=report.fine)


def _planned(opened: "OpenLake", plan_name: str, out: str | None) -> "DataFrame":
    from rocketshim_spark.errors import LakeError  # noqa: PLC0415 Spark is there now
    from rocketshim_spark.running import published  # noqa: PLC0415

    planned = published(opened, f"replay-{plan_name}", out)
    if planned is None:
        raise LakeError(f"there is no plan {plan_name}: run `rocketshim spark replay plan --plan {plan_name}` first")
    return planned


def _found(
    opened: "OpenLake",
    planned: "DataFrame",
    plan_name: str,
    *,
    bootstrap: str,
    out: str | None,
    kafka: dict[str, str],
    config: dict[str, str],
    note_ends: bool,
) -> "DataFrame":
    """The records of the plan's targets from where they ended before its first record."""
    from rocketshim_spark.jobs import replay as job  # noqa: PLC0415 Spark is there now
    from rocketshim_spark.running import publish, published  # noqa: PLC0415
    from rocketshim_spark.sources import Cluster, read_batch, since  # noqa: PLC0415

    targets = [row.target for row in planned.filter("action = 'send'").select("target").distinct().collect()]
    if not targets:
        return opened.records.limit(0)
    bounds = Cluster(bootstrap, config).bounds(sorted(targets))
    name = f"replay-{plan_name}-ends"
    ends = published(opened, name, out)
    if ends is None:
        rows = [(each.topic, each.partition, each.end) for each in bounds]
        ends = job.ends_frame(opened.spark, rows)
        if note_ends:
            ends = publish(opened, name, ends, out)
    starts = {(row.topic, row.partition): row.end for row in ends.collect()}
    # A partition that was added since is read from its beginning.
    return read_batch(opened.spark, bootstrap, since(bounds, starts), kafka=kafka)


@contextmanager
def _alone(lake: str, plan_name: str) -> Iterator[None]:
    """One run of a plan at a time, where the lake is a local folder; elsewhere it is the caller's to see to."""
    folder = Path(lake.removeprefix("file://"))
    if "://" in str(folder) or not folder.is_dir():
        yield
        return
    with (folder / f".replay-{plan_name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"another run of the plan {plan_name} is at work: wait for it") from error
        yield
