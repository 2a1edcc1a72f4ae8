"""What the commands of `rocketshim spark` share: options, the Spark session, and exit codes.

A command prints its own words only. What Java writes to standard error while it starts is the same at each start and
no error; it is shown only if Spark cannot start. After Ctrl-C the calls that were interrupted write traces in both
languages, so nothing more is shown than that the command can be run again. `ROCKETSHIM_DEBUG` shows everything.
"""

import logging
import os
import signal
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from rocketshim.cli.app import FINDING
from rocketshim.cli.options import CONNECTION, OUTPUT, SELECTION, Namespace, ProfileName, checked_bootstrap
from rocketshim.errors import ConfigError
from rocketshim.extras import missing_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rocketshim_spark.running import OpenLake

_NO_WAREHOUSE: Final = {"spark.sql.warehouse.dir": Path(tempfile.gettempdir()).as_uri()}
"""No command makes tables there, but Spark makes the folder, by default in the working directory."""

_INTERRUPTED: Final = "interrupted: run the same command again; it continues, and does nothing twice"
SPARK: Final = "Spark"
"""The group of Spark's own options in each `--help`."""

Lake = Annotated[
    str,
    typer.Option(
        "--lake",
        envvar="ROCKETSHIM_LAKE",
        help="The lake folder: any path that Spark can read.",
        rich_help_panel=CONNECTION,
    ),
]


def brokers(about: str) -> Any:
    """Return the option of a command that reads a lake, and knows more with a connection."""
    return typer.Option("--bootstrap", "-b", envvar="ROCKETSHIM_BOOTSTRAP", callback=checked_bootstrap, help=about)


Master = Annotated[
    str | None,
    typer.Option(
        "--master", help="Where Spark runs. Default: as spark-submit sets it, else local[*].", rich_help_panel=SPARK
    ),
]
Connector = Annotated[
    str,
    typer.Option(
        "--connector",
        help="Where Spark's jars come from: auto, cache, packages, provided.",
        rich_help_panel=SPARK,
    ),
]
DriverMemory = Annotated[
    str | None,
    typer.Option("--driver-memory", help="Java heap of a local Spark: 1g, 2g.", rich_help_panel=SPARK),
]
JavaClient = Annotated[
    list[str] | None,
    typer.Option(
        "--java-client",
        envvar="ROCKETSHIM_JAVA_CLIENT",
        metavar="NAME=VALUE|@FILE",
        help="A setting of Spark's Kafka client, which is Java's, or a file with one NAME=VALUE per line; repeatable.",
        rich_help_panel=CONNECTION,
    ),
]
GroupOnly = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        help="Only failures and dead letters of this consumer group.",
        rich_help_panel=SELECTION,
    ),
]
Out = Annotated[
    str | None,
    typer.Option(
        "--out",
        "-o",
        help="Folder for results and their HTML pages. Default: LAKE/reports.",
        rich_help_panel=OUTPUT,
    ),
]
Version = Annotated[
    int | None,
    typer.Option(
        "--version", min=0, help="Version of the landed records. Default: the newest.", rich_help_panel=SELECTION
    ),
]


class JavaErrors:
    """Java's standard error: kept back until `show`, then passed on until `hide`."""

    _MAX_BYTES: Final = 100_000

    def __init__(self) -> None:
        self._is_shown = False
        self._kept = b""
        self._lock = threading.Lock()

    @contextmanager
    def redirected(self) -> Iterator[None]:
        """Give processes that are started inside this pipe as their standard error; show it if that fails."""
        if "ROCKETSHIM_DEBUG" in os.environ:
            yield
            return
        own, (source, sink) = os.dup(2), os.pipe()
        reader = threading.Thread(target=self._pass_on, args=(source,), name="rocketshim-java", daemon=True)
        reader.start()
        os.dup2(sink, 2)
        os.close(sink)
        try:
            yield
        except Exception:
            os.dup2(own, 2)
            reader.join(1.0)  # Java has ended, or will say no more
            with self._lock:
                os.write(2, self._kept)
            raise
        finally:
            os.dup2(own, 2)
            os.close(own)

    def show(self) -> None:
        """Drop what was kept, and pass on what comes."""
        with self._lock:
            self._is_shown, self._kept = True, b""

    def hide(self) -> None:
        """Keep back what comes from now on."""
        with self._lock:
            self._is_shown = False

    def _pass_on(self, source: int) -> None:
        while data := os.read(source, 65_536):
            with self._lock:
                if self._is_shown:
                    os.write(2, data)
                else:
                    self._kept = (self._kept + data)[-self._MAX_BYTES :]


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Let Ctrl-C wait until Java has started: a Java process whose caller has gone meanwhile would never end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    previous = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)
    if pressed:
        raise KeyboardInterrupt


_PY4J_LOGGERS: Final = ("", "py4j.clientserver")  # py4j also logs by the root logger
_PY4J_TRACES: Final = (
    "KeyboardInterrupt while sending",
    "Exception while sending",
    "Exception occurred while shutting down connection",
)


def is_no_trace_of_py4j(record: logging.LogRecord) -> bool:
    """Return False for what py4j logs when a call to Java was interrupted, or Java has ended: the command says it."""
    return "ROCKETSHIM_DEBUG" in os.environ or not str(record.msg).startswith(_PY4J_TRACES)


def keep_py4j_quiet(*, is_quiet: bool) -> None:
    """Filter py4j's traces out of its loggers; False: from now on they are logged, because the program may go on."""
    for name in _PY4J_LOGGERS:
        logger = logging.getLogger(name)
        (logger.addFilter if is_quiet else logger.removeFilter)(is_no_trace_of_py4j)


def print_note(line: str) -> None:
    """Print a line on stderr, apart from the results on stdout."""
    typer.echo(line, err=True)


@dataclass(frozen=True, slots=True)
class SparkOptions:
    """How a command starts Spark."""

    master: str | None
    connector: str
    driver_memory: str | None

    @contextmanager
    def session(self) -> Iterator["SparkSession"]:
        """Open a Spark session for one command and stop it afterwards.

        A session that is already running (a notebook's) is used, and left running.

        Raises:
            ConfigError: PySpark is not installed, or an option is invalid.
            LakeError: Spark failed, for example because of a read-only folder, a full disk or an unreachable master; or
                its Java process has ended.
        """
        try:
            from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # noqa: PLC0415
            from pydantic import ValidationError  # noqa: PLC0415 `--help` works without Spark
            from pyspark.errors import PySparkException  # noqa: PLC0415
            from pyspark.sql import SparkSession  # noqa: PLC0415

            from rocketshim_spark.errors import LakeError  # noqa: PLC0415
            from rocketshim_spark.session import SessionSettings, create, reason_of  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise missing_extra("rocketshim spark", error, "spark") from error
        try:
            settings = SessionSettings.model_validate({**asdict(self), "conf": _NO_WAREHOUSE})
        except ValidationError as error:
            wrong = error.errors()[0]
            option = str(wrong["loc"][0]).replace("_", "-")
            raise ConfigError(f"--{option} {wrong['input']!r}: {wrong['msg']}") from error
        running = SparkSession.getActiveSession()
        java = JavaErrors()
        try:
            if running is None:
                with _interrupted_later(), java.redirected():
                    spark = create(settings)
            else:
                spark = create(settings)
        except KeyboardInterrupt:
            print_note(_INTERRUPTED)
            raise
        if running is None:
            spark.sparkContext.setLogLevel("ERROR")
            if threading.current_thread() is threading.main_thread():
                # PySpark's own handler calls Java while another call to Java is running; the user sees a long trace.
                signal.signal(signal.SIGINT, signal.default_int_handler)
            keep_py4j_quiet(is_quiet=True)
        java.show()
        try:
            yield spark
        except KeyboardInterrupt:
            running = spark  # a call to Java was interrupted, so do not call stop(); Java exits with this process
            java.hide()
            print_note(_INTERRUPTED)
            raise
        except (Py4JError, PySparkException, ConnectionError) as error:
            raise LakeError(f"Spark failed: {reason_of(error)}") from error
        finally:
            if running is None:
                with suppress(Py4JError, ConnectionError), warnings.catch_warnings(action="ignore"):  # it has ended
                    spark.stop()
            keep_py4j_quiet(is_quiet=False)


@dataclass(frozen=True, slots=True)
class LakeOptions:
    """The lake that a command analyses, and where its results go."""

    folder: str
    namespace: str
    version: int | None
    out: str | None
    spark: SparkOptions

    @contextmanager
    def open(self, delay_levels: str | None = None) -> Iterator["OpenLake"]:
        """Open the lake at its version, in a session.

        Raises:
            ConfigError: as `SparkOptions.session`.
            LakeError: as `SparkOptions.session`, or nothing was landed into the folder.
        """
        with self.spark.session() as spark:
            yield self.view(spark, delay_levels)

    def view(self, spark: "SparkSession", delay_levels: str | None = None) -> "OpenLake":
        """Open the lake at its version.

        Raises:
            LakeError: nothing was landed into the folder.
        """
        from rocketshim_spark.running import open_lake  # noqa: PLC0415 Spark is installed

        return open_lake(
            spark,
            self.folder,
            namespace=self.namespace,
            delay_levels=delay_levels,
            version=self.version,
            out=self.out,
        )


def _spark(*, master: Master = None, connector: Connector = "auto", driver_memory: DriverMemory = None) -> SparkOptions:
    return SparkOptions(master, connector, driver_memory)


WithSpark = Annotated[SparkOptions, _spark]


def _newest_of_lake(
    *, profile: ProfileName = None, lake: Lake, namespace: Namespace = "", out: Out = None, spark: WithSpark
) -> LakeOptions:
    del profile
    return LakeOptions(lake, namespace, None, out, spark)


def _lake(
    *,
    profile: ProfileName = None,
    lake: Lake,
    namespace: Namespace = "",
    version: Version = None,
    out: Out = None,
    spark: WithSpark,
) -> LakeOptions:
    del profile
    return LakeOptions(lake, namespace, version, out, spark)


NewestOfLake = Annotated[LakeOptions, _newest_of_lake]
AtLake = Annotated[LakeOptions, _lake]


def exit_if_finding(*, fine: bool) -> None:
    """Exit with the code of a finding, unless there is none (`fine`)."""
    if not fine:
        raise typer.Exit(FINDING)
