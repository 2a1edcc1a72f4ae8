"""Create a Spark session with the settings and jars that the jobs need.

Results depend on two settings: time zone UTC, and `mapKeyDedupPolicy=LAST_WIN` (Kafka permits repeated headers; Spark's
default fails the job). `create` sets them, and adaptive execution. `require` refuses a session without them, so that a
transform called in a notebook reports what is missing instead of failing on the first record with a repeated header.

Where the jars for Kafka and Delta come from (`connector`):

=============  =====================================================================================================
`auto`         `provided` under `spark-submit`, else `cache`
`cache`        rocketshim's own cache, filled by `rocketshim spark fetch`; passed as `spark.jars`. Ivy is not involved
`packages`     `spark.jars.packages`: Spark resolves by itself, with the user's Ivy settings
`provided`     they are on the class path already: images, `--jars`, `--packages`, managed platforms
`none`         no Kafka, no Delta: for transforms on frames that come from elsewhere
=============  =====================================================================================================

The coordinates follow from the version of the installed `pyspark`: Delta has a jar of its own for each minor version of
Spark (`_DELTA_JARS`). Jars that the PySpark wheel contains itself (Hadoop, Scala, slf4j) are left out of the resolved
set, because two versions of one library on a class path cause obscure errors.

Spark reads `spark.jars` only when its JVM starts, so a process has one session, and `create` returns the running one.
`create` checks that Spark can load the connectors, wherever they come from; otherwise Spark's first error would be a
Java stack trace about a catalog. If `PYSPARK_PYTHON` is not set, `create` sets it to this interpreter; Spark would use
`python3` from PATH, which may not have the same packages.
"""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import pyspark
from py4j.protocol import Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]
from pydantic import BaseModel, ConfigDict, Field
from pyspark.sql import SparkSession

from rocketshim.errors import LocalBrokerError
from rocketshim_local import cached_jars, fetch_jars
from rocketshim_spark.errors import ConnectorMissingError, SessionError

__all__ = [
    "Connector",
    "SessionSettings",
    "conf_set",
    "connector_coordinates",
    "connector_jars",
    "create",
    "fetch",
    "reason_of",
    "require",
    "without_dictionaries",
]

Connector = Literal["auto", "cache", "packages", "provided", "none"]

_SCALA: Final = "2.13"
_MAX_REASON_CHARS: Final = 1_000
_DELTA_JARS: Final[Mapping[str, tuple[str, str]]] = {
    "4.0": ("4.0.0", f"delta-spark_{_SCALA}:4.0.1"),
    "4.1": ("4.1.1", f"delta-spark_4.1_{_SCALA}:4.3.1"),
    "4.2": ("4.2.0", f"delta-spark_4.2_{_SCALA}:4.4.0"),
}
"""Minor version of Spark to the version that the tests run with, and to the artifact and version of Delta for it."""

_SUBMIT_VARIABLE: Final = "PYSPARK_GATEWAY_PORT"  # set by spark-submit for the Python it starts
_DELTA: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_REQUIRED: Final[Mapping[str, str]] = {
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.session.timeZone": "UTC",
}
_DELTA_LOG_TASKS: Final = "2"  # one or two tasks read a log of some hundred entries faster than the default 50
_CONNECTOR_CLASSES: Final[Mapping[str, str]] = {
    "org.apache.spark.sql.kafka010.KafkaSourceProvider": "spark-sql-kafka-0-10",
    "org.apache.kafka.clients.consumer.Consumer": "kafka-clients",
    "io.delta.sql.DeltaSparkSessionExtension": "delta-spark",
}
_MAX_METHOD_BYTES: Final = (
    "8000"  # HotSpot never compiles a longer method; with this limit Spark splits it (twice as fast)
)
_ARTIFACT = re.compile(r"(.+?)-\d[\w.]*\.jar")


class SessionSettings(BaseModel):
    """The settings of a session.

    Attributes:
        app_name: name of the application in the cluster manager.
        master: where Spark runs, for example `local[2]`. None: as `spark-submit` or Spark's configuration files set it,
            else `local[*]`.
        connector: where the jars come from, see the module.
        shuffle_partitions: partitions of a shuffle before adaptive execution joins small ones, 1 to 100,000. None:
            Spark's default, 200.
        driver_memory: Java heap of the driver in Spark's notation, for example `2g`; used in `local` mode only. None:
            Spark's default, 1g.
        ui: whether Spark's web user interface runs.
        conf: further Spark settings; those that results depend on cannot be overridden.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    app_name: str = "rocketshim"
    master: str | None = None
    connector: Connector = "auto"
    shuffle_partitions: int | None = Field(default=None, ge=1, le=100_000)
    driver_memory: str | None = Field(default=None, pattern=r"^\d+[kmgt]$")
    ui: bool = False
    conf: Mapping[str, str] = Field(default_factory=dict)


def connector_coordinates() -> list[str]:
    """Return the Maven coordinates that the installed PySpark needs, for example for `--packages`.

    Raises:
        ConnectorMissingError: rocketshim knows no Delta for this version of Spark.
    """
    found = _DELTA_JARS.get(_minor(pyspark.__version__))
    if found is None:
        raise ConnectorMissingError(
            f"PySpark {pyspark.__version__} is installed, and rocketshim knows Delta only for Spark "
            f"{', '.join(_DELTA_JARS)}. Install another version: pip install {_tested()}"
        )
    _, delta = found
    return [f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{pyspark.__version__}", f"io.delta:{delta}"]


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _tested() -> str:
    """Return what to install: the tested version of this minor version of Spark, else the newest tested one."""
    tested, _ = _DELTA_JARS.get(_minor(pyspark.__version__)) or list(_DELTA_JARS.values())[-1]
    return f"pyspark=={tested}"


def fetch(*, report: Callable[[str], None] | None = None) -> list[Path]:
    """Download the jars into rocketshim's cache, unless they are there already.

    Args:
        report: called with one line of progress at a time; None: the logger `rocketshim.local` reports progress.

    Returns:
        the jars for a session, as `connector_jars` returns them.

    Raises:
        ConnectorMissingError: the repository cannot be reached, or has no such version; the error names one to pin.

    Thread-safety: any thread, any number of processes.
    """
    try:
        files = fetch_jars(connector_coordinates(), report=report)
    except LocalBrokerError as error:
        raise ConnectorMissingError(f"{error}. {_how_to_fix()}") from error
    return _not_in_pyspark(sorted(files.path / name for name in files.files))


def connector_jars() -> list[Path] | None:
    """Return the cached jars that PySpark does not contain itself; None if they were not fetched. No download."""
    files = cached_jars(connector_coordinates())
    return None if files is None else _not_in_pyspark(sorted(files.path / name for name in files.files))


def _how_to_fix() -> str:
    return (
        f"If the repository has no jars of this version, install one that the tests run with: pip install {_tested()}. "
        "Run `rocketshim spark fetch` on a machine that can reach a Maven repository; or let Spark download the jars "
        "with connector='packages' (`--connector packages`); or put them on the class path (`spark-submit --packages "
        "…`, `--jars …`) and use connector='provided'"
    )


def create(settings: SessionSettings | None = None, *, environ: Mapping[str, str] | None = None) -> SparkSession:
    """Start a session, or return the running one with the settings that results depend on.

    Args:
        settings: the settings; None: the defaults.
        environ: the environment that shows whether `spark-submit` started us; None: that of this process.

    Raises:
        ConnectorMissingError: the connector is `cache` and nothing was fetched, or Spark cannot load the jars. A new
            session was not started, or was stopped again; one that was running before is still running.
        SessionError: `settings.conf` overrides a setting that results depend on. Nothing was started.

    Thread-safety: any thread may use the session; call `create` from one thread.
    """
    settings = SessionSettings() if settings is None else settings
    conf = _conf(settings, os.environ if environ is None else environ)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(settings.app_name)
    if settings.master is not None:
        builder = builder.master(settings.master)
    for name, value in conf.items():
        builder = builder.config(name, value)
    running = SparkSession.getActiveSession()
    spark = builder.getOrCreate()
    if settings.connector != "none":
        missing = _missing_artifacts(spark._jvm.org.apache.spark.util.Utils.classIsLoadable)  # type: ignore[union-attr]  # noqa: SLF001
        if missing:
            if running is None:
                spark.stop()
            raise ConnectorMissingError(f"Spark's class path lacks {', '.join(missing)}. {_how_to_fix()}")
    return spark


def require(spark: SparkSession) -> None:
    """Raise `SessionError` if the session lacks a setting that the jobs' results depend on."""
    for name, wanted in _REQUIRED.items():
        found = spark.conf.get(name)
        if found != wanted:
            raise SessionError(
                f"the session has {name}={found}, and the jobs need {wanted}: create it with "
                f"rocketshim_spark.session.create, or call spark.conf.set({name!r}, {wanted!r})"
            )


def reason_of(error: Exception) -> str:
    """Return why Spark failed, in one line of 1,000 characters at most; of an error of Java, without Python's trace."""
    if isinstance(error, Py4JNetworkError | ConnectionError):
        return "its Java process has ended; the same command can be run again"
    text = str(error.java_exception) if isinstance(error, Py4JJavaError) else str(error)
    return " ".join(text.split())[:_MAX_REASON_CHARS]


@contextmanager
def conf_set(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Change settings of a session inside a `with` block, and restore them afterwards.

    Args:
        spark: the session.
        values: settings of Spark, or of the libraries it passes them to (Parquet's writer, Delta).

    Thread-safety: none; all threads of the session see the settings.
    """
    previous = {name: spark.conf.get(name, None) for name in values}
    for name, value in values.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in previous.items():
            if earlier is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, earlier)


def without_dictionaries(columns: Iterable[str]) -> dict[str, str]:
    """Return settings with which Parquet builds no dictionary for these columns.

    For columns with few repeated values Parquet would start a dictionary and discard it again.

    Args:
        columns: Parquet paths, for example `history.list.element.at`.
    """
    return {f"parquet.enable.dictionary#{column}": "false" for column in columns}


def _conf(settings: SessionSettings, environ: Mapping[str, str]) -> dict[str, str]:
    for name, wanted in _REQUIRED.items():
        if settings.conf.get(name, wanted) != wanted:
            raise SessionError(f"{name} cannot be {settings.conf[name]!r}: the jobs' results depend on {wanted}")
    conf = {
        **_REQUIRED,
        "spark.sql.adaptive.enabled": "true",
        "spark.ui.enabled": str(settings.ui).lower(),
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),  # keep it out of log files
        "spark.databricks.delta.snapshotPartitions": _DELTA_LOG_TASKS,
        "spark.sql.codegen.hugeMethodLimit": _MAX_METHOD_BYTES,
        "spark.sql.execution.replaceHashWithSortAgg": "true",  # for rows that are sorted already (lineage)
    }
    if settings.shuffle_partitions is not None:
        conf["spark.sql.shuffle.partitions"] = str(settings.shuffle_partitions)
    if settings.driver_memory is not None:
        conf["spark.driver.memory"] = settings.driver_memory
    connector = settings.connector
    if connector == "auto":
        connector = "provided" if _SUBMIT_VARIABLE in environ else "cache"
    if connector != "none":
        conf.update(_DELTA)
    if connector == "packages":
        conf["spark.jars.packages"] = ",".join(connector_coordinates())
    elif connector == "cache":
        jars = connector_jars()
        if jars is None:
            raise ConnectorMissingError(
                f"the jars that Spark {pyspark.__version__} needs for Kafka and Delta are not in the cache. "
                f"{_how_to_fix()}"
            )
        conf["spark.jars"] = ",".join(jar.as_posix() for jar in jars)
    return {**conf, **settings.conf}


def _missing_artifacts(is_loadable: Callable[[str], bool]) -> list[str]:
    """Return the artifacts that are missing: those of which Spark cannot load a class."""
    return [artifact for name, artifact in _CONNECTOR_CLASSES.items() if not is_loadable(name)]


def _not_in_pyspark(jars: list[Path]) -> list[Path]:
    in_pyspark = {_artifact(jar.name) for jar in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    return [jar for jar in jars if _artifact(jar.name) not in in_pyspark]


def _artifact(file_name: str) -> str:
    found = _ARTIFACT.fullmatch(file_name)
    return file_name if found is None else found[1]
