"""The one place where a Spark session is made, and where its jars come from.

What every session of ours has, because results depend on it: UTC, `mapKeyDedupPolicy=LAST_WIN` (Kafka permits a header
twice; Spark's default fails the job), and adaptive execution. `require` refuses a session without these, so that a
transform called in somebody's notebook says what is missing, and does not fail on the first odd record.

Where the jars for Kafka and Delta come from (`connector`):

=============  =====================================================================================================
`auto`         `provided` under `spark-submit`, else `cache`
`cache`        rocketshim's own cache, filled by `rocketshim spark fetch`; passed as `spark.jars`. Ivy is not involved
`packages`     `spark.jars.packages`: Spark resolves by itself, with the user's Ivy settings
`provided`     they are on the class path already: images, `--jars`, `--packages`, managed platforms
`none`         no Kafka, no Delta: for transforms on frames that come from elsewhere
=============  =====================================================================================================

Coordinates are built from the versions of the installed `pyspark` and `delta-spark`. Of a resolved set, jars that the
PySpark wheel carries itself (Hadoop, Scala, slf4j) are left out: two versions of one library on a class path end in
errors that nobody can read.

Spark takes `spark.jars` when its JVM starts and ignores it afterwards, so a process has one session; `create` gives
the running one. Wherever they were to come from, `create` looks whether Spark has them: without, its own first error
is a Java trace about a catalog. Workers get `PYSPARK_PYTHON` of this interpreter when it is not
set (Spark would take `python3` from PATH, which need not have the same packages).
"""

import importlib.metadata
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import pyspark
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
    "require",
    "without_dictionaries",
]

Connector = Literal["auto", "cache", "packages", "provided", "none"]

_SCALA: Final = "2.13"
_SUBMIT_VARIABLE: Final = "PYSPARK_GATEWAY_PORT"  # set by spark-submit for the Python it starts
_DELTA: Final[Mapping[str, str]] = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
_REQUIRED: Final[Mapping[str, str]] = {
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.session.timeZone": "UTC",
}
_DELTA_LOG_TASKS: Final = "2"  # a log of some hundred entries is read by one task faster than by the 50 of the default
_CONNECTOR_CLASSES: Final[Mapping[str, str]] = {
    "org.apache.spark.sql.kafka010.KafkaSourceProvider": "spark-sql-kafka-0-10",
    "org.apache.kafka.clients.consumer.Consumer": "kafka-clients",
    "io.delta.sql.DeltaSparkSessionExtension": "delta-spark",
}
_MAX_METHOD_BYTES: Final = (
    "8000"  # HotSpot never compiles a longer method; Spark then splits it instead (twice as fast)
)
_ARTIFACT = re.compile(r"(.+?)-\d[\w.]*\.jar")


class SessionSettings(BaseModel):
    """How a session is made.

    Attributes:
        app_name: what the cluster's manager shows.
        master: where it runs, for example `local[2]`. None: what `spark-submit` or Spark's own files say, else
            `local[*]`.
        connector: where the jars come from, see the module.
        shuffle_partitions: partitions of a shuffle before adaptive execution joins small ones, 1 to 100,000. None:
            Spark's own 200.
        driver_memory: heap of the driver as Spark writes it, for example `2g`; matters in `local` mode only. None:
            Spark's own 1g.
        ui: whether Spark's web user interface runs.
        conf: any other Spark setting; those that results depend on cannot be overridden.
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
    """The Maven coordinates that the installed PySpark and Delta need, for `--packages` on a cluster, for example."""
    return [
        f"org.apache.spark:spark-sql-kafka-0-10_{_SCALA}:{pyspark.__version__}",
        f"io.delta:delta-spark_{_SCALA}:{importlib.metadata.version('delta-spark')}",
    ]


def fetch(*, report: Callable[[str], None] | None = None) -> list[Path]:
    """Download the jars into rocketshim's cache; nothing is done when they are there.

    Args:
        report: gets progress, one line of text a call; None: the logger `rocketshim_local`.

    Returns:
        what a session is given, see `connector_jars`.

    Raises:
        ConnectorMissingError: the repository cannot be reached, or has no such version.

    Thread-safety: any thread, any number of processes.
    """
    try:
        files = fetch_jars(connector_coordinates(), report=report)
    except LocalBrokerError as error:
        raise ConnectorMissingError(f"{error}. {_HOW_TO_FIX}") from error
    return _not_in_pyspark(sorted(files.path / name for name in files.files))


def connector_jars() -> list[Path] | None:
    """The jars in the cache that PySpark does not carry itself, or None when they were not fetched. No download."""
    files = cached_jars(connector_coordinates())
    return None if files is None else _not_in_pyspark(sorted(files.path / name for name in files.files))


_HOW_TO_FIX: Final = (
    "Run `rocketshim spark fetch` on a machine that reaches a Maven repository; or let Spark resolve them with "
    "connector='packages' (`--connector packages`); or put them on the class path (`spark-submit --packages …`, "
    "`--jars …`) and say connector='provided'"
)


def create(settings: SessionSettings | None = None, *, environ: Mapping[str, str] | None = None) -> SparkSession:
    """Start a session, or give the one that runs with what results depend on set.

    Args:
        settings: how; None: the defaults.
        environ: where to look for `spark-submit`'s mark; None: this process's environment.

    Raises:
        ConnectorMissingError: `cache` is asked for and nothing was fetched, or the session has not got the jars. None
            was started, or it was stopped again; one that was running before runs on.
        SessionError: `settings.conf` overrides a setting that results depend on. Nothing was started.

    Thread-safety: the session may be shared; call this from one thread.
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
            raise ConnectorMissingError(f"this Spark has no {', no '.join(missing)} on its class path. {_HOW_TO_FIX}")
    return spark


def require(spark: SparkSession) -> None:
    """Raise `SessionError` if the session lacks a setting that these jobs rest on."""
    for name, wanted in _REQUIRED.items():
        found = spark.conf.get(name)
        if found != wanted:
            raise SessionError(
                f"the session has {name}={found}, and these jobs need {wanted}: make it with "
                f"rocketshim_spark.session.create, or call spark.conf.set({name!r}, {wanted!r})"
            )


@contextmanager
def conf_set(spark: SparkSession, values: Mapping[str, str]) -> Iterator[None]:
    """Settings for what is done inside; afterwards the session has again what it had.

    Args:
        spark: the session.
        values: settings of Spark, or of what it hands them on to (Parquet's writer, Delta).

    Thread-safety: none; the settings are the session's, and so every thread's.
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
    """Settings that let Parquet begin no dictionary of columns that hardly repeat themselves: it would throw it away.

    Args:
        columns: Parquet's paths, for example `history.list.element.at`.
    """
    return {f"parquet.enable.dictionary#{column}": "false" for column in columns}


def _conf(settings: SessionSettings, environ: Mapping[str, str]) -> dict[str, str]:
    for name, wanted in _REQUIRED.items():
        if settings.conf.get(name, wanted) != wanted:
            raise SessionError(f"{name} cannot be {settings.conf[name]!r}: results of these jobs depend on {wanted}")
    conf = {
        **_REQUIRED,
        "spark.sql.adaptive.enabled": "true",
        "spark.ui.enabled": str(settings.ui).lower(),
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),  # not into logs
        "spark.databricks.delta.snapshotPartitions": _DELTA_LOG_TASKS,
        "spark.sql.codegen.hugeMethodLimit": _MAX_METHOD_BYTES,
        "spark.sql.execution.replaceHashWithSortAgg": "true",  # where rows lie in order already (lineage)
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
                f"the jars with which Spark {pyspark.__version__} reads Kafka and Delta are not in the cache. "
                f"{_HOW_TO_FIX}"
            )
        conf["spark.jars"] = ",".join(jar.as_posix() for jar in jars)
    return {**conf, **settings.conf}


def _missing_artifacts(is_loadable: Callable[[str], bool]) -> list[str]:
    """The artifacts that a Spark lacks for these jobs, by whether it can load a class of each."""
    return [artifact for name, artifact in _CONNECTOR_CLASSES.items() if not is_loadable(name)]


def _not_in_pyspark(jars: list[Path]) -> list[Path]:
    in_pyspark = {_artifact(jar.name) for jar in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    return [jar for jar in jars if _artifact(jar.name) not in in_pyspark]


def _artifact(file_name: str) -> str:
    found = _ARTIFACT.fullmatch(file_name)
    return file_name if found is None else found[1]
