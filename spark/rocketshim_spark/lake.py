"""A lake folder as jobs read it: its tables, its gaps, and how far it was landed."""

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

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
    "Snapshot",
    "batch_positions",
    "find_table",
    "latest_version",
    "read_gaps",
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


def batch_positions(
    spark: SparkSession, lake: str
) -> tuple[dict[TopicPartitionKey, int], dict[TopicPartitionKey, int]]:
    """Return the offsets after the last committed batch, and after a batch that was begun but not committed.

    Either is empty if there is no such batch.

    Raises:
        LakeError: the checkpoint does not belong to a Kafka source.
    """
    commits = _checkpoint(spark, lake, "commits")
    offsets = _checkpoint(spark, lake, "offsets")
    done, last = max(set(commits) & set(offsets), default=None), max(offsets, default=None)
    ends = [{} if batch is None else _batch_ends(lake, batch, offsets[batch]) for batch in (done, last)]
    return ends[0], {} if last == done else ends[1]


def _batch_ends(lake: str, batch: int, text: str) -> dict[TopicPartitionKey, int]:
    try:
        found: dict[str, dict[str, int]] = json.loads(text.splitlines()[2])
        return {
            TopicPartitionKey(topic, int(number)): at for topic, parts in found.items() for number, at in parts.items()
        }
    except (IndexError, ValueError, AttributeError) as error:
        raise LakeError(
            f"{lake}/checkpoint holds no Kafka offsets in batch {batch}, so it belongs to another query: "
            "name another lake folder"
        ) from error


def latest_version(spark: SparkSession, lake: str) -> int | None:
    """Return the current version of the table `records`, or None if the table does not exist."""
    try:
        table = f"{lake.rstrip('/')}/records".replace("`", "``")
        history = spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 1")
        return int(history.collect()[0].version)
    except AnalysisException as error:
        if _is_absent(error):
            return None
        raise


def read_records(spark: SparkSession, lake: str, version: int | None = None) -> DataFrame:
    """Return the landed records, in the columns of Spark's Kafka source.

    Args:
        spark: a session with Delta's jars.
        lake: the folder.
        version: the version to read; None: the newest one at this call, for all actions on the frame.

    Raises:
        LakeError: nothing was ever landed into the folder.
    """
    lake = lake.rstrip("/")
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
    lake = lake.rstrip("/")
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
    found = table_or_empty(spark, f"{lake.rstrip('/')}/topics", TOPICS_SCHEMA).groupBy("topic")
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
    found = table_or_empty(spark, f"{lake.rstrip('/')}/positions", POSITIONS_SCHEMA)
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


def _checkpoint(spark: SparkSession, lake: str, folder: str) -> dict[int, str]:
    """Return the files of a checkpoint folder, batch number to text; read by Spark, so on any of its file systems."""
    try:
        files = spark.read.text(f"{lake.rstrip('/')}/checkpoint/{folder}", wholetext=True)
        rows = files.select(F.element_at(F.split(F.input_file_name(), "/"), -1), "value").collect()
    except AnalysisException as error:
        if _is_absent(error):
            return {}
        raise
    return {int(name): text for name, text in rows if name.isdigit()}


def _is_absent(error: AnalysisException) -> bool:
    return error.getCondition() in _NOT_FOUND
