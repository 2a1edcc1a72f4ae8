"""What the commands share: open a lake at one version, publish a result, say the verdict.

Every job of one report reads the same snapshot: the version of the landed records, and the committed positions as they
were before it was landed. A result is a Delta table under `<lake>/reports` (or `--out`), replaced in one commit, so
that a reader sees the old one or the new one; the page lies beside it where that is a local folder, else in the current
directory. The page is written anew and renamed, never half.
"""

import datetime as dt
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it

from rocketshim_spark import events
from rocketshim_spark.errors import LakeError
from rocketshim_spark.jobs import lineage
from rocketshim_spark.land import (
    PartitionKey,
    Snapshot,
    find_table,
    latest_version,
    read_gaps,
    read_records,
    read_snapshot,
    read_topics,
)
from rocketshim_spark.report import Report, as_html, as_text
from rocketshim_spark.session import conf_set, without_dictionaries
from rocketshim_topics import TopicNames
from rocketshim_topics.errors import ConfigError

__all__ = ["OpenLake", "find_published", "local_folder", "open_lake", "publish", "publish_lifecycles", "write_report"]

# Rows of a result lie in no order by which a reader could skip files.
_NO_STATISTICS: Final[Mapping[str, str]] = {
    "spark.databricks.delta.properties.defaults.dataSkippingNumIndexedCols": "0"
}


@dataclass(frozen=True, slots=True)
class OpenLake:
    """A lake folder at one version.

    Attributes:
        spark: the session.
        path: the folder, without a slash at its end.
        namespace: of the shim's topics.
        version: of the landed records.
        out: the folder of results, without a slash at its end.
        records, events, settled, gaps: the frames.
        snapshot: the committed positions.
    """

    spark: SparkSession
    path: str
    namespace: str
    version: int
    out: str
    records: DataFrame
    events: DataFrame
    settled: DataFrame
    gaps: DataFrame
    snapshot: Snapshot

    @property
    def worker(self) -> Mapping[PartitionKey, int]:
        """The worker's positions."""
        return self.snapshot.committed.get(TopicNames(self.namespace).worker_group, {})

    @property
    def now(self) -> dt.datetime:
        """The moment of the landing; without any note of one, this moment."""
        return self.snapshot.taken_at or dt.datetime.now(dt.UTC)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What is not known here, and what it costs; in words for a report."""
        found = [
            f"{topic}/{partition} ended in an open transaction at {offset}: what was delivered behind it is not landed "
            "yet, and may be called lost or never delivered"
            for (topic, partition), offset in sorted(self.snapshot.held.items())
        ]
        if not self.gaps.isEmpty():
            found.append("retention deleted records before they were landed: what was delivered there may look lost")
        schedule = TopicNames(self.namespace).schedule
        if not self.worker and not self.topics().filter(F.col("topic") == schedule).isEmpty():
            found.append("no position of the worker is known: what it has lost is called retrying, scheduled or stuck")
        return tuple(found)

    def check_groups(self, groups: Iterable[str]) -> None:
        """Raise `ConfigError` for a group of which nothing is known, neither a position nor a failure."""
        known = set(self.snapshot.committed)
        for group in groups:
            if group not in known and self.events.filter(F.col("grp") == group).isEmpty():
                listed = ", ".join(sorted(known - {TopicNames(self.namespace).worker_group})) or "none"
                raise ConfigError(
                    f"nothing is known of a group {group} in {self.path}; groups with positions: {listed}"
                )

    def topics(self) -> DataFrame:
        """The topics that were landed, each with its Kafka id."""
        return read_topics(self.spark, self.path)

    def lifecycles(self) -> DataFrame:
        """The life of every message."""
        params = lineage.LineageParams(namespace=self.namespace, committed=self.snapshot.committed)
        return lineage.transform(self.events, params)

    lives = lifecycles  # the name under which version 0.1 documented it


def open_lake(
    spark: SparkSession,
    lake: str,
    *,
    namespace: str = "",
    delay_levels: str | None = None,
    version: int | None = None,
    out: str | None = None,
) -> OpenLake:
    """Open a lake folder.

    Args:
        spark: a session with Delta's jars.
        lake: the folder.
        namespace: of the shim's topics.
        delay_levels: the worker's level table; None: RocketMQ's.
        version: of the landed records; None: the newest, resolved now.
        out: the folder of results; None: `reports` in the lake.

    Raises:
        LakeError: nothing was landed there, or it has no such version.
        ConfigError: of this namespace nothing was landed there, of another one topics were.
    """
    lake = lake.rstrip("/")
    newest = latest_version(spark, lake)
    if newest is not None and version is not None and version > newest:
        raise LakeError(f"{lake} has no version {version}: its newest is {newest}")
    at = version if newest is not None and version is not None else newest
    records = read_records(spark, lake, at)
    _check_namespace([row.topic for row in read_topics(spark, lake).collect()], lake, namespace)
    return OpenLake(
        spark=spark,
        path=lake,
        namespace=namespace,
        version=at or 0,
        out=(out or f"{lake}/reports").rstrip("/"),
        records=records,
        events=events.transform(records, events.EventParams(namespace=namespace, delay_levels=delay_levels)),
        settled=events.settled(records, namespace),
        gaps=read_gaps(spark, lake, at),
        snapshot=read_snapshot(spark, lake, at),
    )


def _check_namespace(topics: Sequence[str], lake: str, namespace: str) -> None:
    """Refuse another namespace than was landed: in it nothing ever failed, and all would look fine."""
    names = TopicNames(namespace)
    ours = [topic for topic in topics if names.is_ours(topic)]
    if ours and all(events.kind_of(topic, namespace) is None and topic != names.redrive_log for topic in ours):
        raise ConfigError(
            f"no topic of the shim's in namespace {namespace!r} was landed in {lake}, but {ours[0]}: "
            "say whose they are with --namespace"
        )


def publish(lake: OpenLake, name: str, result: DataFrame, *, high_cardinality: Iterable[str] = ()) -> DataFrame:
    """Write a result as a Delta table and give it back as it was written, so that it is computed once.

    Args:
        lake: where.
        name: of the table.
        result: its rows.
        high_cardinality: columns (Parquet's paths) of which no dictionary is worth beginning.
    """
    path = f"{lake.out}/{name}"
    with conf_set(lake.spark, {**_NO_STATISTICS, **without_dictionaries(high_cardinality)}):
        result.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)
    return lake.spark.read.format("delta").load(path)


def publish_lifecycles(lake: OpenLake) -> DataFrame:
    """The life of every message, as the table `lineage`."""
    return publish(lake, "lineage", lake.lifecycles(), high_cardinality=lineage.HIGH_CARDINALITY)


def find_published(lake: OpenLake, name: str) -> DataFrame | None:
    """A result as it was written; None: there is none of that name."""
    return find_table(lake.spark, f"{lake.out}/{name}")


def write_report(lake: OpenLake, report: Report) -> None:
    """Print the verdict and write the page, with what is not known of this lake."""
    report = replace(report, notes=(*report.notes, *lake.caveats))
    typer.echo(as_text(report))
    target = local_folder(lake.out) or Path()
    target.mkdir(parents=True, exist_ok=True)
    page = target / f"{report.job}.html"
    about = f"{lake.path}, version {lake.version}, positions of {lake.snapshot.taken_at or 'no landing'}"
    unfinished = target / f".{report.job}.{os.getpid()}.html"  # others may read it, as they may the tables
    unfinished.write_text(as_html(report, about=about), encoding="utf-8")
    unfinished.replace(page)
    typer.echo(f"page: {page}", err=True)


def local_folder(path: str) -> Path | None:
    """The folder on this machine that a path of Spark's names (no scheme, or `file:`); None: another file system."""
    scheme, colon, rest = path.partition(":")
    if not colon or "/" in scheme:
        return Path(path)
    return Path(f"/{rest.lstrip('/')}") if scheme == "file" else None
