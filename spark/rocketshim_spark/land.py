"""Kafka into a lake folder: every record once, restartable at every point, and what was missed is said.

What lies in the folder, all of it Delta tables but the checkpoint:

===============  ===================================================================================================
`records`        one row per Kafka record: topic, partition, offset, timestamp, timestampType, key, value, headers
`gaps`           offsets that retention deleted before they were landed; not a word is lost silently
`topics`         the Kafka id under which each topic was landed
`positions`      the committed positions of the groups, taken before the ends of what was landed
`checkpoint`     Spark's record of what was read and what was committed
===============  ===================================================================================================

Spark's streaming engine with `Trigger.AvailableNow` reads from where the checkpoint ends to the last stable offsets of
now, and ends. Its batch number goes into Delta's log in the same commit as the rows; so a batch that was written and
not noted in the checkpoint is not written again. There is no ledger of our own.

Before that, the driver compares the cluster with what was landed:

* another topic id, or no such topic any more: refused. Offsets begin anew there, and one table cannot hold two records
  of the same coordinates. The way out is a new folder;
* the earliest offset lies behind what was landed: a row in `gaps`, written *before* the landing, so that a crash
  cannot hide it. Only then is Spark allowed to go on past the hole (`failOnDataLoss=false`), and afterwards the driver
  looks again whether retention took more while it read;
* partitions and topics that are new are read from their beginning; where that is not offset 0, it is a gap too.

Committed positions are taken first, then the ends. A consumer writes the next hop of a message before it commits, so
whatever was committed at the cut has left its trace in what is landed: a message that only moves is never taken for
lost.

A gap counts offsets, so it is the most that can be missing: some may have been control records or compacted away.

One landing at a time per folder: a second writer of one checkpoint fails in Delta's log, and lands nothing.

Speed. Statistics are kept of the coordinates only (those of keys and values cost time and help nobody), dictionaries
of columns that repeat themselves, and zstd runs at its lowest level, where files are no larger; each task reads one
partition, so each file holds one topic, and a job that asks for retries skips the files of the source.
"""

import datetime as dt
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import IsolationLevel
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it
from pyspark.sql.window import Window

from rocketshim_spark.errors import LakeError, LandingFailedError, TopicRecreatedError
from rocketshim_spark.session import conf_set, require, without_dictionaries
from rocketshim_spark.small_frames import small_frame
from rocketshim_spark.sources import Cluster, PartitionBounds, offsets_json, spark_options
from rocketshim_topics.errors import ConfigError, TopicMissingError

__all__ = [
    "Gap",
    "Landing",
    "Snapshot",
    "find_gaps",
    "find_table",
    "land",
    "latest_version",
    "positions",
    "read_gaps",
    "read_records",
    "read_snapshot",
    "read_topics",
]

_WRITE_SETTINGS: Final[Mapping[str, str]] = {
    "spark.databricks.delta.properties.defaults.dataSkippingStatsColumns": "topic,partition,offset,timestamp",
    "spark.sql.parquet.compression.codec": "zstd",
    "parquet.compression.codec.zstd.level": "1",  # files as small as with Parquet's own 3, for a sixth less CPU
    **without_dictionaries(["offset", "timestamp", "value"]),
}
_TASKS_PER_CORE: Final = 3
_OPEN_TRANSACTION_WAIT_S: Final = 5.0  # most transactions are shorter
_MIN_RECORDS_PER_TASK: Final = 100_000  # opening a consumer for less costs more than it saves
_GAPS_SCHEMA: Final = (
    "found_at timestamp, topic string, topic_id string, partition int, gap_from bigint, gap_to bigint, reason string"
)
_TOPICS_SCHEMA: Final = "topic string, topic_id string, first_landed_at timestamp"
_POSITIONS_SCHEMA: Final = (
    "taken_at timestamp, version bigint, grp string, topic string, partition int, committed bigint"
)
_MAX_REASON_CHARS: Final = 1_000
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_NOT_FOUND: Final = frozenset(
    {"PATH_NOT_FOUND", "DELTA_TABLE_NOT_FOUND", "DELTA_PATH_DOES_NOT_EXIST", "DELTA_TABLE_ONLY_OPERATION"}
)

PartitionKey = tuple[str, int]


@dataclass(frozen=True, slots=True, order=True)
class Gap:
    """Offsets of one partition that were never landed, because retention had deleted them.

    Attributes:
        topic, topic_id, partition: where.
        gap_from, gap_to: first offset, and the one behind the last.
        reason: `expired` (between two landings), `expired-before-first-landing`, `expired-while-landing`.
    """

    topic: str
    topic_id: str
    partition: int
    gap_from: int
    gap_to: int
    reason: str


@dataclass(frozen=True, slots=True)
class Landing:
    """What one landing did.

    Attributes:
        rows: records landed now.
        gaps: what was found missing now; gaps that an earlier landing noted are not repeated.
        version: version of the table `records` afterwards: the snapshot that jobs of one report read. None: the table
            does not exist, since there has never been a record.
        held: where an open transaction held back records that are for a later landing, and from which offset on.
    """

    rows: int
    gaps: tuple[Gap, ...]
    version: int | None
    held: Mapping[PartitionKey, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was known of the groups just before a version of the lake was landed.

    Attributes:
        taken_at: when, aware; None: no landing has noted anything.
        committed: of each group its committed positions, (topic, partition) to the next offset.
        held: where an open transaction held back records, and from which offset on. What was delivered behind it is
            not among the records.
    """

    taken_at: dt.datetime | None
    committed: Mapping[str, Mapping[PartitionKey, int]]
    held: Mapping[PartitionKey, int] = field(default_factory=dict)


def land(
    spark: SparkSession,
    bootstrap: str,
    topics: Sequence[str],
    lake: str,
    *,
    kafka: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
    groups: Sequence[str] | None = None,
    max_records_per_task: int | None = 1_000_000,
) -> Landing:
    """Land what is new in these topics.

    Args:
        spark: a session with the jars for Kafka and Delta.
        bootstrap: addresses of the brokers.
        topics: physical names; those that were landed into the folder before are landed with them.
        lake: the folder, local, or of any file system that Spark knows (`s3a://…`, `hdfs://…`).
        kafka: settings of the Java client that Spark reads with; None: none.
        config: settings of the librdkafka client that the driver asks with; None: none.
        groups: consumer groups whose committed positions are noted; None: every group of the cluster that has committed
            any on these topics.
        max_records_per_task: most offsets that one task reads. A partition that holds more than its share of what is
            new is read in pieces in any case, of 100,000 offsets or more, so that no core waits for it. None: one task
            per partition.

    Returns:
        what was done.

    Raises:
        ConfigError: no topic, or no folder.
        TopicMissingError: a topic does not exist and was never landed. Nothing was landed.
        TopicRecreatedError: a topic that was landed is gone or was made anew. Nothing was landed.
        BrokerUnavailableError, NotAuthorizedError: as of `Cluster.bounds`. Nothing was landed.
        LandingFailedError: Spark failed; what was committed stays, and the next call goes on there.

    Thread-safety: one at a time per folder.
    """
    require(spark)
    if not topics:
        raise ConfigError("no topics to land: name at least one")
    lake = lake.rstrip("/")
    if not lake:
        raise ConfigError("the lake folder is empty or /: name one of its own")
    known = {row.topic: row.topic_id for row in _rows(spark, f"{lake}/topics")}
    wanted = list(dict.fromkeys([*topics, *sorted(known)]))
    cluster = Cluster(bootstrap, config)
    before = _current_bounds(cluster, wanted, known)
    taken_at, committed = dt.datetime.now(dt.UTC), _committed(cluster, wanted, groups)
    held = _wait_for_open_transactions(cluster, [(each.topic, each.partition) for each in before])
    landed = positions(spark, lake)
    recorded = _recorded_gaps(spark, lake)
    gaps = find_gaps(before, landed, recorded)
    if gaps:
        gaps = find_gaps(before, {**landed, **_next_after_rows(spark, lake, gaps)}, recorded)
    now = dt.datetime.now(dt.UTC)
    ids = {each.topic: each.topic_id for each in before}
    new_ids = [(topic, topic_id, now) for topic, topic_id in ids.items() if topic not in known]
    _append(spark, f"{lake}/topics", new_ids, _TOPICS_SCHEMA)
    _write_gaps(spark, lake, gaps, now)

    starts = {
        (each.topic, each.partition): max(landed.get((each.topic, each.partition), 0), each.earliest) for each in before
    }
    # A hole that an earlier attempt noted before it failed must still be passed.
    holes = any(landed.get((each.topic, each.partition), 0) < each.earliest for each in before)
    options = spark_options(bootstrap, kafka)
    # In numbers, not "earliest": what retention takes from here on fails the landing, or is found out afterwards.
    options.update(
        subscribe=",".join(wanted), startingOffsets=offsets_json(starts), failOnDataLoss=str(not holes).lower()
    )
    if max_records_per_task is not None:
        new_count = sum(max(0, each.end - starts[each.topic, each.partition]) for each in before)
        share = -(-new_count // (_TASKS_PER_CORE * spark.sparkContext.defaultParallelism))
        options["maxRecordsPerPartition"] = str(min(max_records_per_task, max(_MIN_RECORDS_PER_TASK, share)))
    try:
        rows = _stream(spark, options, lake)
    except StreamingQueryException as error:
        reason = " ".join(str(error).partition("=== Streaming Query ===")[0].split())
        raise LandingFailedError(
            f"Spark failed while it landed into {lake}, and landing again goes on from what is committed. If another "
            f"landing into this folder is running, it goes on too. Spark says: {reason[:_MAX_REASON_CHARS]}"
        ) from error
    if holes:
        # Spark was told to pass over holes: what retention took since the look before must not stay unsaid.
        late = _expired_while_landing(spark, lake, cluster.bounds(wanted), starts)
        _write_gaps(spark, lake, late, dt.datetime.now(dt.UTC))
        gaps += late
    version = latest_version(spark, lake)
    if version is not None:
        known_positions = [
            (taken_at, version, group, topic, partition, offset)
            for group, offsets in committed.items()
            for (topic, partition), offset in offsets.items()
        ]
        # Without a group: that the look was taken, also where nothing is committed, and what open transactions held.
        markers = [(None, None, None), *((topic, partition, offset) for (topic, partition), offset in held.items())]
        _append(
            spark,
            f"{lake}/positions",
            [*((taken_at, version, None, *marker) for marker in markers), *known_positions],
            _POSITIONS_SCHEMA,
        )
    return Landing(rows, tuple(gaps), version, held)


def find_gaps(
    bounds: Iterable[PartitionBounds],
    landed: Mapping[PartitionKey, int],
    recorded: Mapping[PartitionKey, Sequence[tuple[int, int]]],
) -> list[Gap]:
    """What retention took: offsets behind the landed position and before the earliest that is left. Pure.

    Args:
        bounds: the partitions as they are.
        landed: next offset to land of each partition that was landed before.
        recorded: gaps recorded already, as (from, to) of each partition; what they cover is not found again.
    """
    gaps = []
    for each in bounds:
        key = (each.topic, each.partition)
        start = landed.get(key, 0)
        for gap_from, gap_to in sorted(recorded.get(key, ())):
            if gap_from <= start < gap_to:
                start = gap_to
        if start < each.earliest:
            reason = "expired" if key in landed else "expired-before-first-landing"
            gaps.append(Gap(each.topic, each.topic_id, each.partition, start, each.earliest, reason))
    return gaps


def positions(spark: SparkSession, lake: str) -> dict[PartitionKey, int]:
    """The next offset to land of every partition, by the last batch that is committed; empty before the first one.

    Raises:
        LakeError: the checkpoint is not one of a Kafka source.
    """
    commits = _checkpoint(spark, lake, "commits")
    offsets = _checkpoint(spark, lake, "offsets")
    done = max(set(commits) & set(offsets), default=None)
    if done is None:
        return {}
    try:
        found: dict[str, dict[str, int]] = json.loads(offsets[done].splitlines()[2])
        return {(topic, int(number)): at for topic, parts in found.items() for number, at in parts.items()}
    except (IndexError, ValueError, AttributeError) as error:
        raise LakeError(
            f"{lake}/checkpoint holds no offsets of Kafka in batch {done}: is it the folder of another query?"
        ) from error


def latest_version(spark: SparkSession, lake: str) -> int | None:
    """The version that the table `records` has now; None: there is no such table."""
    try:
        table = f"{lake.rstrip('/')}/records".replace("`", "``")
        history = spark.sql(f"DESCRIBE HISTORY delta.`{table}` LIMIT 1")
        return int(history.collect()[0].version)
    except AnalysisException as error:
        if _is_absent(error):
            return None
        raise


def read_records(spark: SparkSession, lake: str, version: int | None = None) -> DataFrame:
    """The landed records, in the columns of Spark's Kafka source.

    Args:
        spark: a session with Delta's jars.
        lake: the folder.
        version: a fixed snapshot; None: the newest one, resolved now, so that all actions on the frame see it.

    Raises:
        LakeError: nothing was ever landed there.
    """
    lake = lake.rstrip("/")
    version = latest_version(spark, lake) if version is None else version
    if version is None:
        raise LakeError(f"nothing was landed in {lake}: run `rocketshim spark land --lake {lake}` first")
    return spark.read.format("delta").option("versionAsOf", version).load(f"{lake}/records")


def read_gaps(spark: SparkSession, lake: str, version: int | None = None) -> DataFrame:
    """The gaps that were noted, with the time at which they were found; empty when there are none.

    Args:
        spark: a session with Delta's jars.
        lake: the folder.
        version: of `records`: without the gaps that a landing of a later version found. None: all.
    """
    lake = lake.rstrip("/")
    # Two landings at a time, of which one fails, may both have noted one.
    found = _table(spark, f"{lake}/gaps", _GAPS_SCHEMA).dropDuplicates(["topic", "partition", "gap_from", "gap_to"])
    if version is None:
        return found
    later = _table(spark, f"{lake}/positions", _POSITIONS_SCHEMA).filter(F.col("version") > version)
    next_look = F.broadcast(later.agg(F.min("taken_at").alias("next_look")))
    return found.crossJoin(next_look).filter("next_look IS NULL OR found_at < next_look").drop("next_look")


def read_topics(spark: SparkSession, lake: str) -> DataFrame:
    """The topics that were landed, each once, with its Kafka id; empty when there are none."""
    return _table(spark, f"{lake.rstrip('/')}/topics", _TOPICS_SCHEMA).dropDuplicates(["topic"])


def read_snapshot(spark: SparkSession, lake: str, version: int | None = None) -> Snapshot:
    """The committed positions as they were just before a version of `records` was landed.

    Args:
        spark: a session with Delta's jars.
        lake: the folder.
        version: of `records`; None: the newest. Where no landing ended at exactly this version the one before counts:
            positions may be older than the records, never newer.
    """
    found = _table(spark, f"{lake.rstrip('/')}/positions", _POSITIONS_SCHEMA)
    if version is not None:
        found = found.filter(F.col("version") <= version)
    newest = found.agg(F.max("taken_at").alias("newest"))
    rows = found.join(F.broadcast(newest), F.col("taken_at") == F.col("newest")).select(
        F.unix_micros("taken_at").alias("taken_us"), "grp", "topic", "partition", "committed"
    )
    taken_us, held, committed = None, dict[PartitionKey, int](), dict[str, dict[PartitionKey, int]]()
    for row in rows.collect():
        taken_us = row.taken_us
        if row.grp is not None:
            committed.setdefault(row.grp, {})[(row.topic, row.partition)] = row.committed
        elif row.topic is not None:
            held[row.topic, row.partition] = row.committed
    taken_at = None if taken_us is None else _EPOCH + dt.timedelta(microseconds=taken_us)
    return Snapshot(taken_at, committed, held)


def find_table(spark: SparkSession, path: str) -> DataFrame | None:
    """A Delta table; None: there is none."""
    try:
        found = spark.read.format("delta").load(path)
        found.schema  # noqa: B018 resolved here, so that a missing table is noticed here
    except AnalysisException as error:
        if _is_absent(error):
            return None
        raise
    return found


def _table(spark: SparkSession, path: str, schema: str) -> DataFrame:
    found = find_table(spark, path)
    return small_frame(spark, [], schema) if found is None else found


def _committed(
    cluster: Cluster, topics: Sequence[str], groups: Sequence[str] | None
) -> dict[str, dict[PartitionKey, int]]:
    wanted = set(topics)
    found = {}
    for group in cluster.groups() if groups is None else groups:
        offsets = cluster.committed(group, wanted)
        if offsets:
            found[group] = offsets
    return found


def _current_bounds(cluster: Cluster, wanted: Sequence[str], known: Mapping[str, str]) -> list[PartitionBounds]:
    """The bounds now; refuses topics that are not what was landed under their names."""
    bounds: list[PartitionBounds] = []
    how_to_go_on = "Its records in the lake stay readable; land into a new folder (`--lake`) from here on"
    for topic in wanted:
        try:
            found = cluster.bounds([topic])
        except TopicMissingError as error:
            if topic in known:
                raise TopicRecreatedError(
                    f"{topic} was landed before and does not exist any more. {how_to_go_on}"
                ) from error
            raise
        if known.get(topic, found[0].topic_id) != found[0].topic_id:
            raise TopicRecreatedError(
                f"{topic} was made anew since it was landed (its id was {known[topic]} and is {found[0].topic_id}): "
                f"its offsets begin again and would mean other records. {how_to_go_on}"
            )
        bounds += found
    return bounds


def _stream(spark: SparkSession, options: Mapping[str, str], lake: str) -> int:
    source = spark.readStream.format("kafka").options(**options).load()
    columns = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")
    with conf_set(spark, _WRITE_SETTINGS):
        query = (
            source.select(*columns)
            .writeStream.format("delta")
            .option("checkpointLocation", f"{lake}/checkpoint")
            .trigger(availableNow=True)
            .start(f"{lake}/records")
        )
        query.awaitTermination()
    return sum(int(progress["numInputRows"]) for progress in query.recentProgress)


def _next_after_rows(spark: SparkSession, lake: str, gaps: Sequence[Gap]) -> dict[PartitionKey, int]:
    """The offset behind the last row in each gap: after a crash between table and checkpoint, no position tells it."""
    if latest_version(spark, lake) is None:
        return {}
    records, behind = read_records(spark, lake), {}
    for gap in gaps:
        within = F.col("offset").between(gap.gap_from, gap.gap_to - 1)
        last = records.filter(_is_partition(gap.topic, gap.partition) & within).agg(F.max("offset")).collect()[0][0]
        if last is not None:
            behind[gap.topic, gap.partition] = int(last) + 1
    return behind


def _expired_while_landing(
    spark: SparkSession, lake: str, after: Iterable[PartitionBounds], starts: Mapping[PartitionKey, int]
) -> list[Gap]:
    """What is not there of the offsets that this landing was to read and retention has passed since.

    Tasks read pieces of a partition one after the other, so a hole may be in the midst of what was landed.
    """
    gaps = []
    landed = positions(spark, lake)
    for each in after:
        key = (each.topic, each.partition)
        start, end = starts.get(key, each.earliest), min(each.earliest, landed.get(key, each.earliest))
        if start >= end:
            continue
        rows = (
            read_records(spark, lake)
            .filter(_is_partition(*key) & F.col("offset").between(start, end - 1))
            .select("offset")
        )
        before = F.lag("offset", 1, start - 1).over(Window.partitionBy(F.lit(0)).orderBy("offset"))
        ends = rows.union(spark.range(end, end + 1)).select((before + 1).alias("low"), F.col("offset").alias("high"))
        gaps += [
            Gap(each.topic, each.topic_id, each.partition, row.low, row.high, "expired-while-landing")
            for row in ends.filter("low < high").orderBy("low").collect()
        ]
    return gaps


def _is_partition(topic: str, partition: int) -> Column:
    return (F.col("topic") == topic) & (F.col("partition") == partition)


def _wait_for_open_transactions(cluster: Cluster, partitions: Sequence[PartitionKey]) -> dict[PartitionKey, int]:
    """Wait until all that was written by now can be read; what open transactions hold back after that, from where on.

    A consumer that has committed past a message has written its next hop before, but may have written it behind an open
    transaction of somebody else's: it would be taken for lost.
    """
    written = cluster.ends(partitions, IsolationLevel.READ_UNCOMMITTED)
    deadline = time.monotonic() + _OPEN_TRANSACTION_WAIT_S
    while True:
        stable = cluster.ends(partitions, IsolationLevel.READ_COMMITTED)
        held = {key: stable[key] for key in partitions if stable[key] < written[key]}
        if not held or time.monotonic() > deadline:
            return held
        time.sleep(_OPEN_TRANSACTION_WAIT_S / 50)


def _recorded_gaps(spark: SparkSession, lake: str) -> dict[PartitionKey, list[tuple[int, int]]]:
    recorded: dict[PartitionKey, list[tuple[int, int]]] = {}
    for row in _rows(spark, f"{lake}/gaps"):
        recorded.setdefault((row.topic, row.partition), []).append((row.gap_from, row.gap_to))
    return recorded


def _write_gaps(spark: SparkSession, lake: str, gaps: Sequence[Gap], now: dt.datetime) -> None:
    rows = [(now, g.topic, g.topic_id, g.partition, g.gap_from, g.gap_to, g.reason) for g in gaps]
    _append(spark, f"{lake}/gaps", rows, _GAPS_SCHEMA)


def _append(spark: SparkSession, path: str, rows: Sequence[tuple[Any, ...]], schema: str) -> None:
    if rows:
        small_frame(spark, rows, schema).write.format("delta").mode("append").save(path)


def _rows(spark: SparkSession, path: str) -> list[Any]:
    found = find_table(spark, path)
    return [] if found is None else found.collect()


def _checkpoint(spark: SparkSession, lake: str, folder: str) -> dict[int, str]:
    """Batch number to text of a folder of the checkpoint, read through Spark: any file system will do."""
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
