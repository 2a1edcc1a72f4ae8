"""Landing: copy Kafka topics into a lake folder, every record once, restartable at any point.

The folder holds Delta tables:

===============  ===================================================================================================
`records`        one row per Kafka record: topic, partition, offset, timestamp, timestampType, key, value, headers
`gaps`           offsets that retention deleted before they were landed
`topics`         the Kafka id under which each topic was landed
`positions`      the committed positions of the groups, read before the end offsets of what was landed
===============  ===================================================================================================

A landing reads from the ends of the landing before it to the current last stable offsets, and adds its rows in one
commit, which also holds the new ends. So there is no state in which rows are stored and their ends are not: a landing
that is stopped has stored everything or nothing. Nothing but the table says what was landed
(`rocketshim_spark.lake.read_landed`).

Before Spark reads, the driver compares the cluster with what was landed:

* A topic has another id, or does not exist any more: the landing is refused. The offsets of a new topic begin at 0
  again, and one table cannot hold two records of the same coordinates. Land into a new folder instead.
* A partition ends before what was landed, because the brokers have lost records: refused, for the same reason.
* The earliest offset lies after what was landed: the driver writes a row to `gaps` *before* the landing, so that a
  crash cannot hide it. Only then may Spark skip what retention deletes while it reads (`failOnDataLoss=false`), and the
  driver checks afterwards.
* New partitions and topics are read from their beginning. If that is not offset 0, it is a gap too.

The committed positions are read first, then the end offsets. A consumer writes the next hop of a message before it
commits. So for each committed message the next hop is among the landed records, and a message that only moved is never
reported as lost.

A gap counts offsets, so it is an upper bound of missing records: some offsets may have been control records or
compacted away.

Only one landing may run per folder. Each commit has the number of its landing, as a transaction of Delta: of two
landings with one number, Delta stores the first, and the second one fails and has landed nothing.

Speed: statistics exist for the coordinates only, because those of keys and values take time and help no job.
Dictionaries exist only for columns with repeated values. zstd runs at its lowest level, where files are no larger. Each
task reads one partition, so each file holds one topic, and a job that reads retries skips the files of the source
topics.
"""

import datetime as dt
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from confluent_kafka import IsolationLevel
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it
from pyspark.sql.window import Window

from rocketshim_spark.errors import LandingFailedError, TopicRecreatedError
from rocketshim_spark.lake import (
    GAPS_SCHEMA,
    POSITIONS_SCHEMA,
    TOPICS_SCHEMA,
    Gap,
    Landed,
    Snapshot,
    find_table,
    lake_folder,
    landing_note,
    latest_version,
    read_landed,
    read_records,
)
from rocketshim_spark.session import conf_set, reason_of, require, without_dictionaries
from rocketshim_spark.small_frames import small_frame
from rocketshim_spark.sources import Cluster, PartitionBounds, read_batch
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.errors import ConfigError, TopicMissingError
from rocketshim_topics.names import TopicNames

__all__ = [
    "Landing",
    "add_records",
    "find_gaps",
    "land",
    "missing_offsets",
]

_WRITE_SETTINGS: Final[Mapping[str, str]] = {
    "spark.databricks.delta.properties.defaults.dataSkippingStatsColumns": "topic,partition,offset,timestamp",
    "spark.databricks.delta.history.metricsEnabled": "true",  # the number of landed rows
    "spark.sql.parquet.compression.codec": "zstd",
    "parquet.compression.codec.zstd.level": "1",  # files as small as with Parquet's default 3, for a sixth less CPU
    **without_dictionaries(["offset", "timestamp", "value"]),
}
_RANGE: Final = "topic string, partition int, low bigint, high bigint"
_TASKS_PER_CORE: Final = 3
_OPEN_TRANSACTION_WAIT_S: Final = 5.0  # most transactions are shorter
_MIN_RECORDS_PER_TASK: Final = 100_000  # for fewer records, opening a consumer costs more than it saves
_LANDING: Final = "rocketshim.land"
_NOTHING_LANDED: Final = "Nothing of this landing was stored: run it again, and it reads the same records"


@dataclass(frozen=True, slots=True)
class Landing:
    """The result of one landing.

    Attributes:
        rows: number of records landed.
        gaps: new gaps; gaps that an earlier landing recorded are not repeated.
        version: version of the table `records` afterwards: the snapshot for the jobs of one report. None: the table
            does not exist, because no record was ever landed.
        held: partitions that end in an open transaction, each with the first offset that it blocks. A later landing
            reads on from there.
    """

    rows: int
    gaps: tuple[Gap, ...]
    version: int | None
    held: Mapping[TopicPartitionKey, int] = field(default_factory=dict)


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
    """Land the new records of these topics.

    Args:
        spark: a session with the jars for Kafka and Delta.
        bootstrap: addresses of the brokers.
        topics: physical names. New records of topics that were landed into the folder before are landed too.
        lake: the folder, local or on any file system that Spark supports (`s3a://…`, `hdfs://…`).
        kafka: settings of Spark's Kafka client (Java); None: none.
        config: settings of the driver's Kafka client (librdkafka); None: none.
        groups: consumer groups whose committed positions are recorded; None: every group of the cluster that has
            committed on these topics.
        max_records_per_task: largest number of offsets for one task. If a partition has more than its share of the new
            records, its tasks are smaller, but not below 100,000 offsets, so that no core waits for it. None: one task
            per partition.

    Returns:
        the result of the landing.

    Raises:
        ConfigError: there is no topic, or no folder.
        TopicMissingError: a topic does not exist and was never landed. Nothing was landed.
        TopicRecreatedError: a landed topic was deleted, or deleted and created again. Nothing was landed.
        BrokerUnavailableError, NotAuthorizedError: as for `Cluster.bounds`. Nothing was landed.
        LandingFailedError: Spark failed, a partition ends before what was landed, or another landing was faster.
            Nothing was landed.

    Thread-safety: one call at a time per folder.

    Decides: Why is a message that moves on during a landing not lost? The worker's positions are read before the ends
        of the topics.
    """
    require(spark)
    if not topics:
        raise ConfigError("no topics to land: name at least one topic")
    lake = lake_folder(spark, lake)
    if not lake:
        raise ConfigError("the lake folder is empty or /: name a folder of its own")
    recorded_topics = _rows(spark, f"{lake}/topics")
    known = {row.topic: row.topic_id for row in recorded_topics}
    wanted = list(dict.fromkeys([*topics, *sorted(known)]))
    cluster = Cluster(bootstrap, config)
    before = _current_bounds(cluster, wanted, known)
    keys = [TopicPartitionKey.of(each) for each in before]
    newest = cluster.newest(keys)
    behind = _clock_behind(newest)
    taken_at, committed = _now() + behind, _committed(cluster, wanted, groups)
    held = _wait_for_open_transactions(cluster, keys)
    landed = read_landed(spark, lake)
    bounds = _bounds_to_read(before, cluster.bounds(wanted), landed.ends)
    gaps = find_gaps(bounds, landed.ends, _recorded_gaps(spark, lake))
    ids = {each.topic: each.topic_id for each in before}
    _append(spark, f"{lake}/topics", _topics_to_record(recorded_topics, ids, taken_at), TOPICS_SCHEMA)
    _write_gaps(spark, lake, gaps, taken_at)
    starts = {TopicPartitionKey.of(each): each.start for each in bounds}
    ends = {TopicPartitionKey.of(each): each.end for each in bounds}
    # A gap that an earlier attempt recorded before it failed counts too: the range begins at what retention has left.
    holes = any(landed.ends.get(key, 0) < start for key, start in starts.items())
    new = [each for each in bounds if each.start < each.end]
    rows = 0
    if new:
        count = sum(each.end - each.start for each in new)
        if max_records_per_task is not None:
            share = -(-count // (_TASKS_PER_CORE * spark.sparkContext.defaultParallelism))
            max_records_per_task = min(max_records_per_task, max(_MIN_RECORDS_PER_TASK, share))
        read = read_batch(
            spark, bootstrap, new, kafka=kafka, max_records_per_task=max_records_per_task, may_lose_records=holes
        )
        rows = add_records(spark, lake, read, Landed({**landed.ends, **ends}, landed.landing + 1, uuid.uuid4().hex))
    if holes:
        # Spark skips gaps silently here, so record what retention deleted since the first check.
        late = _expired_while_landing(spark, lake, cluster.bounds(wanted), starts, ends)
        _write_gaps(spark, lake, late, _now() + behind)
        gaps += late
    version = latest_version(spark, lake)
    if version is not None:
        _write_snapshot(spark, lake, version, Snapshot(taken_at, committed, held, max(newest.values(), default=None)))
    return Landing(rows, tuple(gaps), version, held)


def _now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


def _clock_behind(newest: Mapping[str, dt.datetime]) -> dt.timedelta:
    """Return how far this machine's clock is surely behind the brokers', which stamp the schedule topic."""
    stamped = [at for topic, at in newest.items() if f".{topic}".endswith(f".{TopicNames().schedule}")]
    return max([at - _now() for at in stamped] + [dt.timedelta()])


def _topics_to_record(recorded: list[Any], ids: Mapping[str, str], taken_at: dt.datetime) -> list[tuple[Any, ...]]:
    """Return the rows of the topics that no landing has recorded before `taken_at`.

    They have the time of the positions: a report on an older version, or after a landing that was killed here, knows
    from it that the topic's records are not among its own. A topic that was first landed by a clock that was ahead is
    recorded again.
    """
    earlier = {row.topic for row in recorded if row.first_landed_at.astimezone(dt.UTC) <= taken_at}
    return [(topic, topic_id, taken_at) for topic, topic_id in ids.items() if topic not in earlier]


def _write_snapshot(spark: SparkSession, lake: str, version: int, taken: Snapshot) -> None:
    positions = [
        (taken.taken_at, version, group, topic, partition, offset)
        for group, offsets in taken.committed.items()
        for (topic, partition), offset in offsets.items()
    ]
    # Rows without a group hold the blocked partitions; one more says that a snapshot was taken, even without commits,
    # and has the time of the newest record.
    newest_ms = None if taken.newest_at is None else round(taken.newest_at.timestamp() * 1_000)
    markers = [
        (None, None, newest_ms),
        *((topic, partition, offset) for (topic, partition), offset in taken.held.items()),
    ]
    _append(
        spark,
        f"{lake}/positions",
        [*((taken.taken_at, version, None, *marker) for marker in markers), *positions],
        POSITIONS_SCHEMA,
    )


def find_gaps(
    bounds: Iterable[PartitionBounds],
    landed: Mapping[TopicPartitionKey, int],
    recorded: Mapping[TopicPartitionKey, Sequence[tuple[int, int]]],
) -> list[Gap]:
    """Return what retention deleted: offsets from the next one to land to the earliest one that is left. Pure.

    Args:
        bounds: the partitions as they are now.
        landed: the next offset to land, for each partition that was landed before.
        recorded: the recorded gaps of each partition, as (from, to); their offsets are not returned again.

    Decides: What if retention took records before they were landed? The landing goes on, and the lake's table of gaps
        says so; `rocketshim_spark.jobs.audit.residuals` explains missing records by it.
    """
    gaps = []
    for each in bounds:
        key = TopicPartitionKey.of(each)
        start = landed.get(key, 0)
        for gap_from, gap_to in sorted(recorded.get(key, ())):
            if gap_from <= start < gap_to:
                start = gap_to
        if start < each.earliest:
            reason = "expired" if key in landed else "expired-before-first-landing"
            gaps.append(Gap(each.topic, each.topic_id, each.partition, start, each.earliest, reason))
    return gaps


def _committed(
    cluster: Cluster, topics: Sequence[str], groups: Sequence[str] | None
) -> dict[str, dict[TopicPartitionKey, int]]:
    wanted = set(topics)
    found = {}
    for group in cluster.groups() if groups is None else groups:
        offsets = cluster.committed(group, wanted)
        if offsets:
            found[group] = offsets
    return found


def _current_bounds(cluster: Cluster, wanted: Sequence[str], known: Mapping[str, str]) -> list[PartitionBounds]:
    """Return the current bounds of the topics; refuse a topic that is not the one landed under its name."""
    bounds: list[PartitionBounds] = []
    how_to_go_on = "Its records in the lake stay readable; land into a new folder (`--lake`) from now on"
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
                f"{topic} was deleted and created again since it was landed (its id was {known[topic]} and is now "
                f"{found[0].topic_id}): the same offsets now belong to other records. {how_to_go_on}"
            )
        bounds += found
    return bounds


def _bounds_to_read(
    before: Iterable[PartitionBounds], after: Iterable[PartitionBounds], landed: Mapping[TopicPartitionKey, int]
) -> list[PartitionBounds]:
    """Return what to read: from what was landed, or the earliest offset of before, to the current ends.

    The earliest offset is that of before, because a gap is known up to there.
    """
    earliest = {TopicPartitionKey.of(each): each.earliest for each in before}
    bounds = []
    for each in after:
        key = TopicPartitionKey.of(each)
        first = earliest.get(key, each.earliest)
        start = max(landed.get(key, 0), first)
        if start > each.end:
            raise LandingFailedError(
                f"{each.topic}/{each.partition} ends at offset {each.end}, and was landed up to {start} before: the "
                "brokers have lost records since (after an unclean election of a leader, or a restore), so the same "
                "offsets now belong to other records. Nothing was landed. The records in the lake stay readable; land "
                "into a new folder (`--lake`) from now on"
            )
        bounds.append(replace(each, earliest=first, start=start))
    return bounds


def add_records(
    spark: SparkSession,
    lake: str,
    records: DataFrame,
    landed: Landed,
    *,
    mode: Literal["append", "overwrite"] = "append",
) -> int:
    """Write the rows and the ends in one commit; return the number of rows."""
    columns = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")
    writer = records.select(*columns).write.format("delta").mode(mode)
    writer = writer.option("userMetadata", landing_note(landed))
    writer = writer.option("txnAppId", _LANDING).option("txnVersion", str(landed.landing))
    try:
        with conf_set(spark, _WRITE_SETTINGS):
            writer.save(f"{lake}/records")
    except (Py4JJavaError, PySparkException) as error:
        raise LandingFailedError(
            f"Spark failed during the landing into {lake}. {_NOTHING_LANDED}. Error of Spark: {reason_of(error)}"
        ) from error
    stored = read_landed(spark, lake)
    if stored.landing_id != landed.landing_id:
        raise LandingFailedError(f"another landing into {lake} was faster. {_NOTHING_LANDED}")
    return stored.rows


def _expired_while_landing(
    spark: SparkSession,
    lake: str,
    after: Iterable[PartitionBounds],
    starts: Mapping[TopicPartitionKey, int],
    ends: Mapping[TopicPartitionKey, int],
) -> list[Gap]:
    """Return the offsets that this landing should have read, but retention deleted first.

    Tasks read a partition in pieces, one after the other, so a gap may lie between landed records.
    """
    ids, ranges = dict[str, str](), []
    for each in after:
        key = TopicPartitionKey.of(each)
        start, end = starts.get(key, each.earliest), min(each.earliest, ends.get(key, each.earliest))
        if start < end:
            ids[each.topic] = each.topic_id
            ranges.append((*key, start, end))
    return [
        Gap(topic, ids[topic], partition, start, end, "expired-while-landing")
        for topic, partition, _, _, start, end in missing_offsets(spark, lake, ranges)
    ]


def missing_offsets(
    spark: SparkSession, lake: str, ranges: Sequence[tuple[str, int, int, int]]
) -> list[tuple[str, int, int, int, int, int]]:
    """Return the offsets that are not landed within ranges (topic, partition, from, to), as the range and from, to.

    One query for all partitions, because thousands may have lost records. Delta skips the files of other topics.
    """
    if not ranges:
        return []
    columns = ("topic", "partition", "low", "high", "offset")
    wanted = small_frame(spark, ranges, _RANGE)
    records = read_records(spark, lake).filter(F.col("topic").isin(*{topic for topic, *_ in ranges}))
    within = records.join(F.broadcast(wanted), ["topic", "partition"]).filter("offset >= low AND offset < high")
    offsets = within.select(*columns).union(wanted.withColumn("offset", F.col("high")).select(*columns))
    previous = F.lag("offset").over(Window.partitionBy(*columns[:-1]).orderBy("offset"))
    holes = offsets.withColumn("start", F.coalesce(previous + 1, "low")).filter("start < offset")
    found = holes.select(*columns[:-1], "start", "offset").orderBy("topic", "partition", "low", "start").collect()
    return [tuple(row) for row in found]


def _wait_for_open_transactions(
    cluster: Cluster, partitions: Sequence[TopicPartitionKey]
) -> dict[TopicPartitionKey, int]:
    """Wait until the records written so far are readable; return the partitions still blocked by open transactions.

    A consumer writes the next hop of a message before it commits. But the hop may lie after an open transaction of
    another producer, where it is not readable yet, and the message would be reported as lost.

    Returns:
        the first blocked offset of each blocked partition.

    Decides: What if a transaction is open when topics are landed? After 5 s it lands what lies before it; reports carry
        a note (`rocketshim_spark.running.OpenLake.caveats`).
    """
    written = cluster.ends(partitions, IsolationLevel.READ_UNCOMMITTED)
    deadline = time.monotonic() + _OPEN_TRANSACTION_WAIT_S
    while True:
        stable = cluster.ends(partitions, IsolationLevel.READ_COMMITTED)
        held = {key: stable[key] for key in partitions if stable[key] < written[key]}
        if not held or time.monotonic() > deadline:
            return held
        time.sleep(_OPEN_TRANSACTION_WAIT_S / 50)


def _recorded_gaps(spark: SparkSession, lake: str) -> dict[TopicPartitionKey, list[tuple[int, int]]]:
    recorded: dict[TopicPartitionKey, list[tuple[int, int]]] = {}
    for row in _rows(spark, f"{lake}/gaps"):
        recorded.setdefault(TopicPartitionKey.of(row), []).append((row.gap_from, row.gap_to))
    return recorded


def _write_gaps(spark: SparkSession, lake: str, gaps: Sequence[Gap], now: dt.datetime) -> None:
    rows = [(now, g.topic, g.topic_id, g.partition, g.gap_from, g.gap_to, g.reason) for g in gaps]
    _append(spark, f"{lake}/gaps", rows, GAPS_SCHEMA)


def _append(spark: SparkSession, path: str, rows: Sequence[tuple[Any, ...]], schema: str) -> None:
    if rows:
        small_frame(spark, rows, schema).write.format("delta").mode("append").save(path)


def _rows(spark: SparkSession, path: str) -> list[Any]:
    found = find_table(spark, path)
    return [] if found is None else found.collect()
