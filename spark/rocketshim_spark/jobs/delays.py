"""Delays: measure how late messages were delivered, and find early, overtaken, stuck and undelivered ones.

Each schedule record is joined with the records that were made from it (`HOP_ID`). A move to another delay queue is not
a delivery; only the last schedule record of a message is delivered. Lateness is the Kafka timestamp of the delivered
record minus the due time. On topics with `LogAppendTime` the timestamp is from the broker's clock, on others from the
worker's. So it contains the difference between the clocks of two machines; `skew_ms` allows for that before a delivery
counts as early. If the record has the timestamp that its sender gave (`TARGET_TIMESTAMP_MS`), the lateness is unknown.

============  ======================================================================================================
outcome       meaning for one schedule record
============  ======================================================================================================
`delivered`   it was delivered; deliveries after the first are counted as `repeats`
`hopped`      it moved to another delay queue
`parked`      the worker could not deliver it
`never`       the worker's position is beyond it, and no record follows
`stuck`       it was due more than `grace_ms` before `now`, and the worker's position is not beyond it
`waiting`     none of these: it is not due yet, or overdue for less than `grace_ms`
============  ======================================================================================================

A delay queue is first-in-first-out. A record was `overtaken` if a later record of its queue was delivered before it to
the same partition. Offsets decide this, not clocks. Records that were delivered to different partitions, or moved to
another queue, are not compared. A record that was delivered more than once is never reported as overtaken, only as
repeated.
"""

import datetime as dt
from collections.abc import Mapping
from typing import Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it
from pyspark.sql.window import Window

from rocketshim_spark.jobs.lineage import is_landed
from rocketshim_spark.report import Report, Table
from rocketshim_spark.small_frames import small_frame
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["DelayParams", "outcomes", "report", "transform"]

_LISTED: Final = 50


class DelayParams(BaseModel):
    """Facts and limits beside the records.

    Attributes:
        now: the time at which the records were landed; `stuck` refers to it.
        worker: the worker's committed positions: (topic, partition) to the next offset; read before the end offsets.
        landed: the landed topics; None: all. Records for other topics are left out.
        grace_ms: an undelivered record is stuck when it is overdue for longer than this; 0 or more, default 60 s.
        skew_ms: how early a delivery may be, because clocks differ; 0 or more, default 0.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    now: AwareDatetime
    worker: Mapping[TopicPartitionKey, int] = {}
    landed: frozenset[str] | None = None
    grace_ms: int = Field(default=60_000, ge=0)
    skew_ms: int = Field(default=0, ge=0)


def outcomes(events: DataFrame, params: DelayParams) -> DataFrame:
    """Return the outcome of each schedule record whose target was landed.

    Args:
        events: as `rocketshim_spark.events.transform` returns them.
        params: facts and limits beside the records.

    Returns:
        msg_id, grp, real_topic, delay_level (null: a fine queue), stored_at, due_at, coordinates, outcome, late_ms
        (null: not delivered, or delivered with the sender's timestamp; negative: early), early (by more than the
        skew), overtaken, repeats.

    Thread-safety: a pure function of the frame; nothing is read.
    """
    spark = events.sparkSession
    rows = [(topic, partition, offset) for (topic, partition), offset in params.worker.items()]
    passed = F.broadcast(small_frame(spark, rows, "of string, part int, committed bigint"))
    waited = events.filter((F.col("kind") == "schedule") & F.col("decode_error").isNull())
    waited = waited.filter(is_landed(F.col("real_topic"), params.landed))
    is_delivery = F.col("kind").isin("source", "retry", "replay")
    next_hop = (is_delivery | F.col("kind").isin("schedule", "parked")) & F.col("hop_id").isNotNull()
    followed = (
        events.filter(next_hop)
        .groupBy(F.col("hop_id").alias("from"))
        .agg(
            F.min(F.when(is_delivery, F.struct("stored_at", "topic", "partition", "offset"))).alias("first"),
            F.count_if(is_delivery).alias("deliveries"),
            F.max(F.col("kind") == "schedule").alias("moved"),
            F.max(F.col("kind") == "parked").alias("parked"),
        )
    )
    joined = waited.join(followed, F.col("coordinates") == F.col("from"), "left").join(
        passed, (F.col("topic") == F.col("of")) & (F.col("partition") == F.col("part")), "left"
    )
    # From the newest to the oldest: a window that looks forward takes quadratic time in the length of a queue.
    newer = Window.partitionBy("topic", "partition", "first.topic", "first.partition").orderBy(F.desc("offset"))
    passed_by = F.min("first.offset").over(newer.rowsBetween(Window.unboundedPreceding, -1))
    # A record whose sender gave a timestamp does not tell when it was delivered.
    is_timed = ~F.col("first.stored_at").eqNullSafe(F.col("target_timestamp"))
    late = F.when(is_timed, F.unix_millis("first.stored_at") - F.unix_millis("due_at"))
    overdue = F.col("due_at") < F.lit(params.now.astimezone(dt.UTC) - dt.timedelta(milliseconds=params.grace_ms))
    outcome = (
        F.when(F.col("first").isNotNull(), "delivered")
        .when(F.col("moved"), "hopped")
        .when(F.col("parked"), "parked")
        .when(F.col("committed") > F.col("offset"), "never")
        .when(overdue, "stuck")
        .otherwise("waiting")
    )
    return joined.select(
        "msg_id",
        "grp",
        "real_topic",
        "delay_level",
        "stored_at",
        "due_at",
        "coordinates",
        outcome.alias("outcome"),
        late.alias("late_ms"),
        F.coalesce(late < -params.skew_ms, F.lit(col=False)).alias("early"),
        F.coalesce((F.col("deliveries") == 1) & (passed_by < F.col("first.offset")), F.lit(col=False)).alias(
            "overtaken"
        ),
        F.greatest(F.coalesce("deliveries", F.lit(0)) - 1, F.lit(0)).alias("repeats"),
    )


def transform(found: DataFrame) -> DataFrame:
    """Count outcomes and lateness by delay level and hour.

    Args:
        found: as `outcomes` returns it.

    Returns:
        delay_level, hour (UTC, of the due time), delivered, hopped, parked, never, stuck, waiting, early, overtaken,
        repeats, late_p50_ms, late_p99_ms, late_max_ms.

    Thread-safety: a pure function of the frame; nothing is read.
    """
    names = ("delivered", "hopped", "parked", "never", "stuck", "waiting")
    return found.groupBy("delay_level", F.date_trunc("hour", "due_at").alias("hour")).agg(
        *(F.count_if(F.col("outcome") == name).alias(name) for name in names),
        F.count_if("early").alias("early"),
        F.count_if("overtaken").alias("overtaken"),
        F.sum("repeats").alias("repeats"),
        F.percentile_approx("late_ms", 0.5).alias("late_p50_ms"),
        F.percentile_approx("late_ms", 0.99).alias("late_p99_ms"),
        F.max("late_ms").alias("late_max_ms"),
    )


def report(found: DataFrame, by_level: DataFrame) -> Report:
    """Make the report. Findings: messages that are early, overtaken, never delivered, stuck or parked.

    Args:
        found: as `outcomes` returns it.
        by_level: as `transform` returns it.
    """
    fields = (
        *("delay_level", "hour", "delivered", "hopped", "parked", "never", "stuck", "waiting", "early", "overtaken"),
        *("repeats", "late_p50_ms", "late_p99_ms", "late_max_ms"),
    )
    counted = by_level.orderBy("hour", "delay_level").collect()
    bad_names = ("early", "overtaken", "never", "stuck", "parked")
    sums = {name: sum(row[name] for row in counted) for name in ("delivered", *bad_names)}
    bad = found.filter(F.col("early") | F.col("overtaken") | F.col("outcome").isin("never", "stuck", "parked"))
    listed = ("coordinates", "msg_id", "grp", "real_topic", "outcome", "early", "overtaken", "due_at", "late_ms")
    worst = bad.orderBy("outcome", "due_at", "coordinates").limit(_LISTED).collect()
    tables = [Table.of("by level and hour", fields, counted)]
    if worst:
        title = f"early, overtaken, stuck, parked or never delivered (the first {_LISTED})"
        tables.append(Table.of(title, listed, worst))
    latest: dict[str, int] = {}
    for row in counted:
        if row.late_p99_ms is not None:
            level = "fine" if row.delay_level is None else f"level {row.delay_level}"
            latest[level] = max(latest.get(level, 0), row.late_p99_ms)
    return Report(
        job="delays",
        verdict=(
            f"{sums['delivered']} delivered: {sums['early']} early, {sums['never']} never delivered, "
            f"{sums['stuck']} stuck, {sums['parked']} parked, {sums['overtaken']} overtaken"
        ),
        fine=not any(sums[name] for name in bad_names),
        tables=tuple(tables),
        bars=tuple(latest.items()),
        bars_title="lateness, ms at p99 (the worst hour)",
        notes=("delivery times are Kafka timestamps: from the worker's clock if the topic has no LogAppendTime",),
    )
