"""`rocketshim spark …`: land topics into a lake folder, and ask it what happened.

The commands end as all of rocketshim's do: 0 fine, 2 a finding, 1 an error. Spark and its Java start only when a
command needs them, which takes seconds; `--help` does without.

Under `spark-submit` the file is `rocketshim_spark/submit.py` with the same words behind it.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from rocketshim.cli.app import FINDING
from rocketshim.cli.options import Bootstrap, Namespace
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
    """A session for one command, stopped at its end.

    Raises:
        ConfigError: PySpark is not installed, or an option is not right.
    """
    try:
        from pydantic import ValidationError  # noqa: PLC0415 `--help` does without

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
    spark = create(settings)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
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


def main(arguments: list[str] | None = None) -> int:
    """Run one command of this module as `rocketshim spark` would; returns its exit code."""
    from rocketshim.cli.app import main as run  # noqa: PLC0415 it finds this module by its entry point

    return run(["spark", *(sys.argv[1:] if arguments is None else arguments)])
