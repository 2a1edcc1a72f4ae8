"""A lake folder as jobs read it: its tables, its gaps, and how far it was landed.

How far it was landed is known from the table `records` alone (`read_landed`), so no other file of the folder can
contradict it. Each landing writes the ends of the partitions into the commit that adds its rows. If the newest rows
are not those of a landing (the table was restored, another program wrote to it, or Delta has removed the old entries of
its log), the highest offset of each partition counts.
"""

import datetime as dt
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it

from rocketshim_spark.errors import LakeError
from rocketshim_spark.small_frames import small_frame
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = [
    "GAPS_SCHEMA",
    "POSITIONS_SCHEMA",
    "TOPICS_SCHEMA",
    "Gap",
    "Landed",
    "Snapshot",
    "find_table",
    "lake_folder",
    "landing_note",
    "latest_version",
    "read_gaps",
    "read_landed",
    "read_records",
    "read_snapshot",
    "read_topics",
    "table_or_empty",
]

GAPS_SCHEMA: Final = (
    "found_at timestamp, topic string, topic_id string, partition int, gap_from bigint, gap_to bigint, reason string"
)
TOPICS_SCHEMA: Final = "topic string, topic_id string, first_landed_at timestamp"
POSITIONS_SCHEMA: Final = (
    "taken_at timestamp, version bigint, grp string, topic string, partition int, committed bigint"
)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NOTE: Final = "rocketshim"
_COMMITS: Final = 100  # of the newest ones, the last landing is looked for
_ADD_NO_RECORD: Final = frozenset(
    {
        *("OPTIMIZE", "VACUUM START", "VACUUM END", "REORG", "DELETE", "UPDATE", "CLUSTER BY", "UPGRADE PROTOCOL"),
        *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "COMPUTE STATS", "ADD CONSTRAINT", "DROP CONSTRAINT"),
    }
)
_NOT_FOUND: Final = frozenset(
    {"PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_ONLY_OPERATION"}
)


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """Offsets of one partition that retention deleted before they were landed.

    Attributes:
        topic: physical name of the topic.
        topic_id: Kafka's id of the topic.
        partition: from 0.
        gap_from: first missing offset.
        gap_to: offset after the last missing one.
        reason: `expired` (between two landings), `expired-before-first-landing`, `expired-while-landing`.
    """

    topic: str
    topic_id: str
    partition: int
    gap_from: int
    gap_to: int
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of the consumer groups just before a version of the lake was landed.

    Attributes:
        taken_at: time of the snapshot, timezone-aware; None: no landing has recorded one.
        committed: the committed positions of each group: (topic, partition) to the next offset.
        held: partitions that ended in an open transaction, each with the first offset that it blocked. Later deliveries
            are not among the records.
        newest_at: time of the newest record of the landed topics before the snapshot; None: not known.
    """

    taken_at: dt.datetime | None
    committed: Mapping[str, Mapping[TopicPartitionKey, int]]
    held: Mapping[TopicPartitionKey, int] = field(default_factory=dict)
    newest_at: dt.datetime | None = None


@dataclass(frozen=True, slots=True)
class Landed:
    """How far a lake was landed.

    Attributes:
        ends: the next offset to land of each partition.
        landing: number of the last landing; a later landing has a larger one.
        landing_id: id of the last landing; None: the newest rows are not those of a landing.
        rows: number of records that it landed.
    """

    ends: Mapping[TopicPartitionKey, int]
    landing: int
    landing_id: str | None = None
    rows: int = 0


def read_landed(spark: SparkSession, lake: str) -> Landed:
    """Return how far a lake was landed.

    Decides: What was landed, if the table was restored, or another program has written to it? The offsets in the table
        count.
    """
    commits = _commits(spark, lake, _COMMITS)
    for commit in commits:
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            note = json.loads(commit.userMetadata)[_NOTE]
            ends = {
                TopicPartitionKey(topic, int(number)): int(end)
                for topic, parts in note["ends"].items()
                for number, end in parts.items()
            }
            rows = int((commit.operationMetrics or {}).get("numOutputRows", 0))
            return Landed(ends, int(note["landing"]), str(note["id"]), rows)
        if commit.operation not in _ADD_NO_RECORD:
            break
    if not commits:
        return Landed({}, 0)
    highest = read_records(spark, lake).groupBy("topic", "partition").agg(F.max("offset").alias("highest"))
    # Each landing before has a smaller number than the next version.
    return Landed({TopicPartitionKey.of(row): row.highest + 1 for row in highest.collect()}, commits[0].version)


def landing_note(landed: Landed) -> str:
    """Return the text by which `read_landed` knows a landing, for the commit that adds its rows."""
    ends: dict[str, dict[str, int]] = {}
    for (topic, partition), end in sorted(landed.ends.items()):
        ends.setdefault(topic, {})[str(partition)] = end
    return json.dumps({_NOTE: {"landing": landed.landing, "id": landed.landing_id, "ends": ends}})


def lake_folder(spark: SparkSession, lake: str) -> str:
    """Return the folder as an absolute path, without a trailing slash; it may be `""`, which is no folder.

    Delta finds no history of a relative path, and Java's working directory is not Python's if that has changed. Where
    Spark's own file system is not this machine's (HDFS), a relative path begins in that file system's home folder.
    """
    lake = lake.rstrip("/")
    if not lake or lake.startswith("/") or ":" in lake.partition("/")[0]:
        return lake
    hadoop = spark._jsc.hadoopConfiguration()  # noqa: SLF001 PySpark has no other way
    if hadoop.get("fs.defaultFS", "file:///").startswith("file:"):
        return os.path.abspath(lake)  # noqa: PTH100 Path would resolve links
    path = spark._jvm.org.apache.hadoop.fs.Path(lake)  # type: ignore[union-attr]  # noqa: SLF001
    return str(path.getFileSystem(hadoop).makeQualified(path).toString())


def latest_version(spark: SparkSession, lake: str) -> int | None:
    """Return the current version of the table `records`, or None if the table does not exist."""
    newest = _commits(spark, lake, 1)
    return newest[0].version if newest else None


def _commits(spark: SparkSession, lake: str, limit: int) -> list[Any]:
    """Return the newest commits of the table `records`, the newest first; none if the table does not exist."""
    table = f"{lake_folder(spark, lake)}/records".replace("`", "``")
    try:
        commits = spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT {limit}").collect()
    except AnalysisException as error:
        if _is_absent(error):
            return []
        raise
    return sorted(commits, key=lambda commit: int(commit.version), reverse=True)


def read_records(spark: SparkSession, lake: str, version: int | None = None) -> DataFrame:
    """Return the landed records, in the columns of Spark's Kafka source.

    Args:
        spark: a session with Delta's jars.
        lake: the folder.
        version: the version to read; None: the newest one at this call, for all actions on the frame.

    Raises:
        LakeError: nothing was ever landed into the folder.
    """
    lake = lake_folder(spark, lake)
    version = latest_version(spark, lake) if version is None else version
    if version is None:
        raise LakeError(f"nothing was landed in {lake}: run `rocketshim spark land --lake {lake}` first")
    return spark.read.format("delta").option("versionAsOf", version).load(f"{lake}/records")


def read_gaps(spark: SparkSession, lake: str, version: int | None = None) -> DataFrame:
    """Return the recorded gaps, each with the time at which it was found; empty if there are none.

    Args:
        spark: a session with Delta's jars.
        lake: the folder.
        version: a version of `records`: gaps that landings of later versions found are left out. None: all gaps.
    """
    lake = lake_folder(spark, lake)
    # If two landings ran at the same time, and one failed, both may have recorded the same gap.
    found = table_or_empty(spark, f"{lake}/gaps", GAPS_SCHEMA).dropDuplicates(
        ["topic", "partition", "gap_from", "gap_to"]
    )
    if version is None:
        return found
    later = table_or_empty(spark, f"{lake}/positions", POSITIONS_SCHEMA).filter(F.col("version") > version)
    next_snapshot = F.broadcast(later.agg(F.min("taken_at").alias("next_snapshot")))
    return (
        found.crossJoin(next_snapshot).filter("next_snapshot IS NULL OR found_at < next_snapshot").drop("next_snapshot")
    )


def read_topics(spark: SparkSession, lake: str) -> DataFrame:
    """Return the landed topics, each once, with its Kafka id and its first landing; empty if there are none."""
    # If two landings ran at the same time, both may have recorded the same topic.
    found = table_or_empty(spark, f"{lake_folder(spark, lake)}/topics", TOPICS_SCHEMA).groupBy("topic")
    at = "first_landed_at"
    return found.agg(F.min_by("topic_id", at).alias("topic_id"), F.min(at).alias(at))


def read_snapshot(spark: SparkSession, lake: str, version: int | None = None) -> Snapshot:
    """Return the committed positions as they were just before a version of `records` was landed.

    Args:
        spark: a session with Delta's jars.
        lake: the folder.
        version: a version of `records`; None: the newest. If no landing ended with exactly this version, the landing
            before it counts: positions may be older than the records, never newer.
    """
    found = table_or_empty(spark, f"{lake_folder(spark, lake)}/positions", POSITIONS_SCHEMA)
    if version is not None:
        found = found.filter(F.col("version") <= version)
    # The version first: another landing may have run with a clock that was ahead.
    newest = found.agg(F.max(F.struct("version", "taken_at")).alias("newest"))
    rows = found.join(F.broadcast(newest), F.struct("version", "taken_at") == F.col("newest")).select(
        F.unix_micros("taken_at").alias("taken_us"), "grp", "topic", "partition", "committed"
    )
    taken_us, newest_ms = None, None
    held, committed = dict[TopicPartitionKey, int](), dict[str, dict[TopicPartitionKey, int]]()
    for row in rows.collect():
        taken_us = row.taken_us
        if row.grp is not None:
            committed.setdefault(row.grp, {})[TopicPartitionKey.of(row)] = row.committed
        elif row.topic is not None:
            held[TopicPartitionKey.of(row)] = row.committed
        else:
            newest_ms = row.committed
    taken_at = None if taken_us is None else _EPOCH + dt.timedelta(microseconds=taken_us)
    newest_at = None if newest_ms is None else _EPOCH + dt.timedelta(milliseconds=newest_ms)
    return Snapshot(taken_at, committed, held, newest_at)


def find_table(spark: SparkSession, path: str) -> DataFrame | None:
    """Read a Delta table, or return None if it does not exist."""
    try:
        found = spark.read.format("delta").load(path)
        found.schema  # noqa: B018 reading the schema raises the error of a missing table here
    except AnalysisException as error:
        if _is_absent(error):
            return None
        raise
    return found


def table_or_empty(spark: SparkSession, path: str, schema: str) -> DataFrame:
    """Read a Delta table, or return an empty frame if it does not exist."""
    found = find_table(spark, path)
    return small_frame(spark, [], schema) if found is None else found


def _is_absent(error: AnalysisException) -> bool:
    return error.getCondition() in _NOT_FOUND
