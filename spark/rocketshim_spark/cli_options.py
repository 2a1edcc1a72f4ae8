"""What the commands of `rocketshim spark` share: their options, the session they run in, how they end."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from rocketshim.cli.app import FINDING
from rocketshim.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rocketshim_spark.running import OpenLake

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
Out = Annotated[str | None, typer.Option("--out", help="Folder for the result and its page; without it LAKE/reports.")]
Version = Annotated[
    int | None, typer.Option("--version", min=0, help="Version of the landed records; without it the newest.")
]


def print_note(line: str) -> None:
    """Say something on the error output, where results are not."""
    typer.echo(line, err=True)


@contextmanager
def session(master: str | None, connector: str, driver_memory: str | None) -> Iterator["SparkSession"]:
    """A session for one command, stopped at its end; one that runs already (a notebook's) is used and left running.

    Raises:
        ConfigError: PySpark is not installed, or an option is not right.
        LakeError: Spark failed: a folder that cannot be written, a full disk, a master that is not there.
    """
    try:
        from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # noqa: PLC0415
        from pydantic import ValidationError  # noqa: PLC0415 `--help` does without
        from pyspark.errors import PySparkException  # noqa: PLC0415
        from pyspark.sql import SparkSession  # noqa: PLC0415

        from rocketshim_spark.errors import LakeError  # noqa: PLC0415
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
        if threading.current_thread() is threading.main_thread():
            # PySpark's own handler calls Java in the midst of a call to Java, which ends in a long trace.
            signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield spark
    except KeyboardInterrupt:
        running = spark  # a call was cut in two: no further one; Java ends with this process
        raise
    except (Py4JJavaError, PySparkException) as error:
        text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
        raise LakeError(f"Spark failed: {' '.join(text.split())[:1_000]}") from error
    finally:
        if running is None:
            spark.stop()


@contextmanager
def open_view(
    lake: str,
    out: str | None,
    namespace: str,
    version: int | None,
    *,
    master: str | None,
    connector: str,
    driver_memory: str | None,
    delay_levels: str | None = None,
) -> Iterator["OpenLake"]:
    """A lake at one version, in a session as of `session`. Each argument is the option of its name.

    Raises:
        ConfigError: as `session`.
        LakeError: nothing was landed there.
    """
    with session(master, connector, driver_memory) as spark:
        from rocketshim_spark.running import open_lake  # noqa: PLC0415 Spark is there now

        yield open_lake(spark, lake, namespace=namespace, delay_levels=delay_levels, version=version, out=out)


def parse_properties(given: list[str] | None) -> dict[str, str]:
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


def exit_if_finding(*, fine: bool) -> None:
    """End with the exit code of a finding, unless all is fine."""
    if not fine:
        raise typer.Exit(FINDING)
