"""What the commands share: open a lake at one version, publish results, write reports.

All jobs of one report read the same snapshot: one version of the landed records, with the committed positions from just
before it was landed. A result is a Delta table under `<lake>/reports` (or `--out`). It is replaced in one commit, so a
reader sees the old table or the new one. The HTML page lies in the same folder if that is local, else in the current
directory. It is written to a temporary file and renamed, so a reader never sees half a page.
"""

import datetime as dt
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import typer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it

from rocketshim_spark import events, redrive_marks
from rocketshim_spark.errors import LakeError
from rocketshim_spark.jobs import lineage
from rocketshim_spark.lake import (
    Snapshot,
    find_table,
    lake_folder,
    latest_version,
    read_gaps,
    read_records,
    read_snapshot,
    read_topics,
)
from rocketshim_spark.report import Link, Report, as_html, as_text, json_value, report_json
from rocketshim_spark.session import conf_set, without_dictionaries
from rocketshim_topics import TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.durations import duration_text
from rocketshim_topics.errors import ConfigError

__all__ = [
    "OpenLake",
    "find_published",
    "local_folder",
    "open_lake",
    "publish",
    "publish_lifecycles",
    "write_page",
    "write_report",
]

_PAGES: Final = ("index", "audit", "failures", "delays", "dlq-trend", "keys", "lineage")
_QUIET: Final = dt.timedelta(hours=1)
_MINUTE: Final = dt.timedelta(minutes=1)
# The rows of a result are in no useful order, so file statistics would not let a reader skip files.
_NO_STATISTICS: Final[Mapping[str, str]] = {
    "spark.databricks.delta.properties.defaults.dataSkippingNumIndexedCols": "0"
}


@dataclass(frozen=True, slots=True)
class OpenLake:
    """A lake folder at one version.

    Attributes:
        spark: the session.
        path: the folder, absolute and without a trailing slash.
        namespace: namespace of the shim's topics.
        version: version of the landed records.
        out: the folder of results, likewise.
        records: the landed records, in the columns of Spark's Kafka source.
        events: one row per record, as `rocketshim_spark.events.transform` returns them.
        settled: dead letters that were sent again or discarded, as `redrive_marks.settled` returns them.
        gaps: offsets that retention deleted before they were landed.
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
    def worker(self) -> Mapping[TopicPartitionKey, int]:
        """The committed positions of the worker."""
        return self.snapshot.committed.get(TopicNames(self.namespace).worker_group, {})

    @property
    def now(self) -> dt.datetime:
        """The time of the landing; the current time if none was recorded."""
        return self.snapshot.taken_at or dt.datetime.now(dt.UTC)

    @property
    def caveats(self) -> tuple[str, ...]:
        """What is unknown about this lake, and its effect on the results; sentences for a report."""
        found = [
            f"{topic}/{partition} ended in an open transaction at {offset}: deliveries after it are not landed yet, "
            "and may be reported as lost or never delivered"
            for (topic, partition), offset in sorted(self.snapshot.held.items())
        ]
        if not self.gaps.isEmpty():
            found.append("retention deleted records before they were landed: their messages may be reported as lost")
        at, newest_at = self.snapshot.taken_at, self.snapshot.newest_at
        if at is not None and newest_at is not None and at - newest_at > _QUIET:
            found.append(
                f"the newest record is {duration_text((at - newest_at) // _MINUTE * 60_000)} older than the landing: "
                "if messages were sent meanwhile, the clock of the machine that landed is ahead, and messages are "
                "called stuck, old or near their deletion too early by as much"
            )
        schedule = TopicNames(self.namespace).schedule
        if not self.worker and not self.topics().filter(F.col("topic") == schedule).isEmpty():
            found.append("the worker's position is unknown: lost messages are reported as retrying, scheduled or stuck")
        return tuple(found)

    def check_groups(self, groups: Iterable[str]) -> None:
        """Raise `ConfigError` for a group with neither a committed position nor a failed message in the lake."""
        known = set(self.snapshot.committed)
        for group in groups:
            if group not in known and self.events.filter(F.col("grp") == group).isEmpty():
                listed = ", ".join(sorted(known - {TopicNames(self.namespace).worker_group})) or "none"
                raise ConfigError(
                    f"{self.path} holds no position and no failure of group {group}; groups with positions: {listed}"
                )

    def topics(self) -> DataFrame:
        """Return the landed topics, each with its Kafka id."""
        return read_topics(self.spark, self.path)

    @property
    def landed(self) -> frozenset[str]:
        """The names of the topics that were landed by the time of the snapshot; all, if none was recorded."""
        topics = self.topics()
        if self.snapshot.taken_at is not None:
            topics = topics.filter(F.col("first_landed_at") <= F.lit(self.snapshot.taken_at))
        return frozenset(row.topic for row in topics.collect())

    def lifecycles(self) -> DataFrame:
        """Return the lifecycle of every message, as `lineage.transform` computes it."""
        params = lineage.LineageParams(
            namespace=self.namespace,
            committed=self.snapshot.committed,
            landed=self.landed,
            taken_at=self.snapshot.taken_at,
        )
        return lineage.transform(self.events, params)

    lives = lifecycles  # the former name, which scripts may use


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
        namespace: namespace of the shim's topics.
        delay_levels: the worker's delay levels; None: RocketMQ's.
        version: version of the landed records; None: the newest one now.
        out: the folder of results; None: `reports` in the lake.

    Raises:
        LakeError: nothing was landed into the folder, or it has no such version.
        ConfigError: the folder holds shim topics, but none of this namespace.
    """
    lake = lake_folder(spark, lake)
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
        out=lake_folder(spark, out or f"{lake}/reports"),
        records=records,
        events=events.transform(records, events.EventParams(namespace=namespace, delay_levels=delay_levels)),
        settled=redrive_marks.settled(records, namespace),
        gaps=read_gaps(spark, lake, at),
        snapshot=read_snapshot(spark, lake, at),
    )


def _check_namespace(topics: Sequence[str], lake: str, namespace: str) -> None:
    """Refuse a namespace that was not landed: it has no failures, so every report would be fine."""
    names = TopicNames(namespace)
    ours = [topic for topic in topics if names.is_ours(topic)]
    if ours and all(events.kind_of(topic, namespace) is None and topic != names.redrive_log for topic in ours):
        raise ConfigError(
            f"no shim topic of namespace {namespace!r} was landed in {lake}, but {ours[0]} was: "
            "name the right namespace with --namespace"
        )


def publish(lake: OpenLake, name: str, result: DataFrame, *, high_cardinality: Iterable[str] = ()) -> DataFrame:
    """Write a result as a Delta table and return the written table, so that it is computed only once.

    Args:
        lake: the lake that the result belongs to.
        name: name of the table.
        result: the rows.
        high_cardinality: columns (Parquet paths) with too many distinct values for a dictionary.
    """
    path = f"{lake.out}/{name}"
    with conf_set(lake.spark, {**_NO_STATISTICS, **without_dictionaries(high_cardinality)}):
        result.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(path)
    return lake.spark.read.format("delta").load(path)


def publish_lifecycles(lake: OpenLake) -> DataFrame:
    """Write the lifecycle of every message as the table `lineage`, and return it."""
    return publish(lake, "lineage", lake.lifecycles(), high_cardinality=lineage.HIGH_CARDINALITY)


def find_published(lake: OpenLake, name: str) -> DataFrame | None:
    """Return a result that was written before, or None if there is none of that name."""
    return find_table(lake.spark, f"{lake.out}/{name}")


def write_report(lake: OpenLake, report: Report, *, as_json: bool = False) -> None:
    """Print a report, as text or as one JSON object, and write its HTML page; the lake's caveats become notes."""
    report = replace(report, notes=(*report.notes, *lake.caveats))
    typer.echo(json.dumps(report_json(report), default=json_value) if as_json else as_text(report))
    typer.echo(f"page: {write_page(lake, report)}", err=True)


def write_page(lake: OpenLake, report: Report, *, pages: Sequence[Link] = (), console: str | None = None) -> Path:
    """Write the HTML page of a report, with the navigation to others (none given: those in the folder); return it."""
    target = local_folder(lake.out) or Path()
    target.mkdir(parents=True, exist_ok=True)
    page = target / report.page
    about = f"{lake.path}, version {lake.version}, positions of {lake.snapshot.taken_at or 'no landing'}"
    unfinished = target / f".{report.page}.{os.getpid()}"  # others may read the page, like the tables
    if report.job.startswith("replay"):
        unfinished.touch(mode=0o600)  # as every plan's file
    pages = pages or [Link("overview" if name == "index" else name, f"{name}.html") for name in _pages_in(target)]
    unfinished.write_text(as_html(report, about=about, pages=pages, console=console), encoding="utf-8")
    unfinished.replace(page)
    return page


def _pages_in(folder: Path) -> list[str]:
    names = {page.stem for page in folder.glob("*.html")}
    plans = (name for name in sorted(names) if name.startswith(("replay-plan-", "replay-verify-")))
    return [*(name for name in _PAGES if name in names), *plans]


def local_folder(path: str) -> Path | None:
    """Return the local folder of a Spark path (no scheme, or `file:`); None for another file system."""
    scheme, colon, rest = path.partition(":")
    if not colon or "/" in scheme:
        return Path(path)
    return Path(f"/{rest.lstrip('/')}") if scheme == "file" else None
