"""`rocketshim spark …`: land topics into a lake folder, and ask it what happened.

The commands end as all of rocketshim's do: 0 fine, 2 a finding, 1 an error. Spark and its Java start only when a
command needs them, which takes seconds; `--help` does without.

Under `spark-submit` the file is `rocketshim_spark/submit.py` with the same words behind it.
"""

import datetime as dt
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from rocketshim.cli.app import FINDING
from rocketshim.cli.options import Bootstrap, DelayLevelsText, Namespace
from rocketshim.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = typer.Typer(
    help="Spark jobs over the topics: what failed, is anything lost, how late, what do we send again.",
    epilog="Example: rocketshim spark land orders --lake ./lake --bootstrap localhost:9092",
    no_args_is_help=True,
)

Lake = Annotated[str, typer.Option("--lake", envvar="ROCKETSHIM_LAKE", help="The lake folder; any path Spark knows.")]
Master = Annotated[
    str | None, typer.Option("--master", help="Where Spark runs; without it as spark-submit says, else local[*].")
]
Connector = Annotated[
    str, typer.Option("--connector", help="Where Spark's jars come from: auto, cache, packages, provided.")
]
DriverMemory = Annotated[str | None, typer.Option("--driver-memory", help="Heap of a local Spark: 1g, 2g.")]
SparkClient = Annotated[
    list[str] | None,
    typer.Option(
        "--kafka-property", metavar="NAME=VALUE", help="A setting of Spark's Kafka client (Java); repeatable."
    ),
]
DriverClient = Annotated[
    list[str] | None,
    typer.Option(
        "--client-property", metavar="NAME=VALUE", help="A setting of the driver's client (librdkafka); repeatable."
    ),
]


def _say(line: str) -> None:
    typer.echo(line, err=True)


@contextmanager
def session(master: str | None, connector: str, driver_memory: str | None) -> Iterator["SparkSession"]:
    """A session for one command, stopped at its end; one that runs already (a notebook's) is used and left running.

    Raises:
        ConfigError: PySpark is not installed, or an option is not right.
    """
    try:
        from pydantic import ValidationError  # noqa: PLC0415 `--help` does without
        from pyspark.sql import SparkSession  # noqa: PLC0415

        from rocketshim_spark.session import SessionSettings, create  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'rocketshim[spark]'") from error
    try:
        settings = SessionSettings.model_validate(
            {"master": master, "connector": connector, "driver_memory": driver_memory}
        )
    except ValidationError as error:
        wrong = error.errors()[0]
        raise ConfigError(
            f"--{'-'.join(str(wrong['loc'][0]).split('_'))} {wrong['input']!r}: {wrong['msg']}"
        ) from error
    running = SparkSession.getActiveSession()
    spark = create(settings)
    if running is None:
        spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        if running is None:
            spark.stop()


def properties(given: list[str] | None) -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping.

    Raises:
        ConfigError: one of them is not of this form.
    """
    found = {}
    for text in given or []:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"{text!r} is no property: write NAME=VALUE, for example security.protocol=SSL")
        found[name.strip()] = value.strip()
    return found


@app.command(epilog="Example: rocketshim spark fetch")
def fetch() -> None:
    """Download the jars with which Spark reads Kafka and writes Delta (30 MB) into rocketshim's cache."""
    try:
        from rocketshim_spark.session import fetch as fetch_all  # noqa: PLC0415 `--help` does without
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'rocketshim[spark]'") from error
    jars = fetch_all(report=_say)
    _say(f"ready: {len(jars)} jars in {jars[0].parent}")


@app.command(epilog="Example: rocketshim spark land orders --lake s3a://lake/shim --bootstrap localhost:9092")
def land(
    *,
    topics: Annotated[list[str], typer.Argument(help="Source topics; all topics of the shim's are landed with them.")],
    lake: Lake,
    bootstrap: Bootstrap,
    namespace: Namespace = "",
    group: Annotated[
        list[str] | None, typer.Option("--group", help="Note the positions of this group only; repeatable.")
    ] = None,
    kafka_property: SparkClient = None,
    client_property: DriverClient = None,
    master: Master = None,
    connector: Connector = "auto",
    driver_memory: DriverMemory = None,
) -> None:
    """Land what is new, each record once. Exit code 2 if retention was faster and records are missing."""
    with session(master, connector, driver_memory) as spark:
        from rocketshim_spark.events import event_topics  # noqa: PLC0415 Spark is there now
        from rocketshim_spark.land import land as land_now  # noqa: PLC0415
        from rocketshim_spark.sources import Cluster  # noqa: PLC0415

        kafka, config = properties(kafka_property), properties(client_property)
        chosen = event_topics(Cluster(bootstrap, config).topics(), topics, namespace)
        done = land_now(spark, bootstrap, chosen, lake, kafka=kafka, config=config, groups=group)
    version = "no table yet" if done.version is None else f"version {done.version}"
    typer.echo(f"landed {done.rows} new records of {len(chosen)} topics into {lake} ({version})")
    for gap in done.gaps:
        typer.echo(
            f"gap: {gap.topic}/{gap.partition} offsets {gap.gap_from} to {gap.gap_to - 1} were deleted by retention "
            f"before they were landed ({gap.reason})"
        )
    if done.gaps:
        raise typer.Exit(FINDING)


Out = Annotated[str | None, typer.Option("--out", help="Folder for the result and its page; without it LAKE/reports.")]
Version = Annotated[
    int | None, typer.Option("--version", min=0, help="Version of the landed records; without it the newest.")
]


@app.command(epilog="Example: rocketshim spark failures --lake ./lake --since 2026-11-20T00:00:00Z")
def failures(
    *,
    lake: Lake,
    since: Annotated[str | None, typer.Option("--since", help="From this time on, ISO 8601.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Before this time, ISO 8601.")] = None,
    new_since: Annotated[
        str | None, typer.Option("--new-since", help="A cause never seen before it is new; without it, --since.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", help="Of this consumer group only.")] = None,
    namespace: Namespace = "",
    version: Version = None,
    out: Out = None,
    master: Master = None,
    connector: Connector = "auto",
    driver_memory: DriverMemory = None,
) -> None:
    """What failed and why, since when, what is new. Exit code 2 if something died or failed in a new way."""
    times = {"since": _time(since), "until": _time(until), "new_since": _time(new_since)}
    with session(master, connector, driver_memory) as spark:
        from rocketshim_spark.jobs import failures as job  # noqa: PLC0415 Spark is there now
        from rocketshim_spark.running import open_lake, publish, say  # noqa: PLC0415

        opened = open_lake(spark, lake, namespace=namespace, version=version)
        found = job.transform(opened.events, job.FailureParams.model_validate({**times, "group": group}))
        report = job.report(publish(opened, "failures", found, out))
        say(opened, report, out)
    _end(fine=report.fine)


@app.command(epilog="Example: rocketshim spark lineage --lake ./lake --id AC1100012A9C18B4AAC2")
def lineage(
    *,
    lake: Lake,
    message: Annotated[str | None, typer.Option("--id", help="Print this one message's life and nothing else.")] = None,
    namespace: Namespace = "",
    version: Version = None,
    out: Out = None,
    master: Master = None,
    connector: Connector = "auto",
    driver_memory: DriverMemory = None,
) -> None:
    """The life of every message. Exit code 2 if one was lost or its trail is broken, or there is none with that id."""
    with session(master, connector, driver_memory) as spark:
        from rocketshim_spark.jobs import lineage as job  # noqa: PLC0415 Spark is there now
        from rocketshim_spark.running import open_lake, publish, say  # noqa: PLC0415

        opened = open_lake(spark, lake, namespace=namespace, version=version)
        if message is None:
            report = job.report(publish(opened, "lineage", opened.lives(), out))
            say(opened, report, out)
            fine = report.fine
        else:
            lives = job.biography(opened.lives(), message)
            for life in lives:
                typer.echo(job.story(life))
            fine = bool(lives)
            if not fine:
                _say(f"nothing is known of a message {message} in {lake}")
    _end(fine=fine)


@app.command(epilog="Example: rocketshim spark delays --lake ./lake --grace 5m")
def delays(
    *,
    lake: Lake,
    grace: Annotated[str, typer.Option("--grace", help="How long overdue before it is called stuck: 60s, 5m.")] = "60s",
    skew: Annotated[str, typer.Option("--skew", help="How early may seem early by two clocks only: 0, 50ms.")] = "0ms",
    namespace: Namespace = "",
    delay_levels: DelayLevelsText = None,
    version: Version = None,
    out: Out = None,
    master: Master = None,
    connector: Connector = "auto",
    driver_memory: DriverMemory = None,
) -> None:
    """How late delayed messages came. Exit code 2 if one was early, forgotten, parked, or is stuck."""
    from rocketshim_topics import parse_duration_ms  # noqa: PLC0415 `--help` does without

    grace_ms, skew_ms = parse_duration_ms(grace), parse_duration_ms(skew)
    with session(master, connector, driver_memory) as spark:
        from rocketshim_spark.jobs import delays as job  # noqa: PLC0415 Spark is there now
        from rocketshim_spark.running import open_lake, publish, say  # noqa: PLC0415

        opened = open_lake(spark, lake, namespace=namespace, delay_levels=delay_levels, version=version)
        now = opened.snapshot.taken_at or dt.datetime.now(dt.UTC)
        params = job.DelayParams(
            now=now.replace(tzinfo=dt.UTC) if now.tzinfo is None else now,
            worker=opened.worker,
            grace_ms=grace_ms,
            skew_ms=skew_ms,
        )
        found = publish(opened, "delay_outcomes", job.outcomes(opened.events, params), out)
        report = job.report(found, publish(opened, "delays", job.transform(found), out))
        say(opened, report, out)
    _end(fine=report.fine)


@app.command(epilog="Example: rocketshim spark audit --lake ./lake")
def audit(
    *,
    lake: Lake,
    namespace: Namespace = "",
    version: Version = None,
    out: Out = None,
    master: Master = None,
    connector: Connector = "auto",
    driver_memory: DriverMemory = None,
) -> None:
    """Is anything lost. Exit code 2 if a message is unaccounted for or parked, or retention took records unseen."""
    with session(master, connector, driver_memory) as spark:
        from rocketshim_spark.jobs import audit as job  # noqa: PLC0415 Spark is there now
        from rocketshim_spark.running import open_lake, publish, say  # noqa: PLC0415

        opened = open_lake(spark, lake, namespace=namespace, version=version)
        lives = publish(opened, "lineage", opened.lives(), out)
        missing = publish(opened, "residuals", job.residuals(lives, opened.gaps), out)
        account = publish(opened, "audit", job.transform(lives, opened.gaps), out)
        report = job.report(account, missing, opened.gaps)
        say(opened, report, out)
    _end(fine=report.fine)


def _time(text: str | None) -> dt.datetime | None:
    if text is None:
        return None
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is no time: write it as 2026-11-20T18:00:00Z") from error
    return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found


def _end(*, fine: bool) -> None:
    if not fine:
        raise typer.Exit(FINDING)


def main(arguments: list[str] | None = None) -> int:
    """Run one command of this module as `rocketshim spark` would; returns its exit code."""
    from rocketshim.cli.app import main as run  # noqa: PLC0415 it finds this module by its entry point

    return run(["spark", *(sys.argv[1:] if arguments is None else arguments)])
