"""Delays: measure how late messages were delivered, and find early, overtaken, stuck and undelivered ones.

Each schedule record is joined with the records that were made from it (`HOP_ID`). A move to another delay queue is not
a delivery; only the last schedule record of a message is delivered. Lateness is the Kafka timestamp of the delivered
record minus the due time. That a record was parked is no lateness of the worker: after a redrive (`redriven`) it is
due when it is sent again, unless it was due later. On topics with `LogAppendTime` the timestamp is from the broker's
clock, on others from the worker's. So it contains the difference between the clocks of two machines; `skew_ms` allows
for that before a delivery counts as early. If the record has the timestamp that its sender gave
(`TARGET_TIMESTAMP_MS`), the lateness is unknown.

============  ======================================================================================================
outcome       meaning for one schedule record
============  ======================================================================================================
`delivered`   it was delivered; deliveries after the first are counted as `repeats`
`hopped`      it moved to another delay queue; or it was parked, and `rocketshim parked redrive` has sent it there again
`parked`      the worker could not deliver it
`voided`      it has a name, and the log of timers has cancelled or replaced it, delivered it before its time (NOW), or
              missed this occurrence (`late="skip"`)
`never`       the worker's position is beyond it, and no record follows
`stuck`       it was due more than `grace_ms` before `now`, and the worker's position is not beyond it
`waiting`     none of these: it is not due yet, or overdue for less than `grace_ms`
============  ======================================================================================================

A record with a name goes through the log of timers: the worker appends a FIRE when it is due, and the record that is
made from the FIRE is the delivery.

A delay queue is first-in-first-out. A record was `overtaken` if a later record of its queue was delivered before it to
the same partition; records with names are compared if they go through the same partition of the log.
Offsets decide this, not clocks. Records that were delivered to different partitions, or moved to another queue, are not
compared. A record that was delivered more than once is never reported as overtaken, only as repeated.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it
from pyspark.sql.window import Window

from rocketshim_spark.jobs.lineage import is_landed
from rocketshim_spark.report import MOST_ROWS, Chart, Report, Table, utc
from rocketshim_spark.small_frames import small_frame
from rocketshim_spark.timers import fates
from rocketshim_topics import TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["DelayParams", "outcomes", "report", "transform"]


class DelayParams(BaseModel):
    """Facts and limits beside the records.

    Attributes:
        now: the time at which the records were landed; `stuck` refers to it.
        worker: the worker's committed positions: (topic, partition) to the next offset; read before the end offsets.
        landed: the landed topics; None: all. Records for other topics are left out.
        namespace: namespace of the shim's topics.
        grace_ms: an undelivered record is stuck when it is overdue for longer than this; 0 or more, default 60 s.
        skew_ms: how early a delivery may be, because clocks differ; 0 or more, default 0.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    now: AwareDatetime
    worker: Mapping[TopicPartitionKey, int] = {}
    landed: frozenset[str] | None = None
    namespace: str = ""
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
        skew), overtaken, repeats, redriven (it was parked before).

    Thread-safety: a pure function of the frame; nothing is read.
    """
    spark = events.sparkSession
    rows = [(topic, partition, offset) for (topic, partition), offset in params.worker.items()]
    passed = F.broadcast(small_frame(spark, rows, "of string, part int, committed bigint"))
    waited = events.filter((F.col("kind") == "schedule") & F.col("decode_error").isNull())
    waited = waited.filter(is_landed(F.col("real_topic"), params.landed))
    # Earlier versions sent parked records again with the due time 0.
    is_due_again = F.col("was_parked") | (F.unix_millis("due_at") <= 0)
    due_again = F.when(is_due_again, F.greatest("due_at", "stored_at")).otherwise(F.col("due_at"))
    waited = waited.withColumn("due_at", due_again)
    made_from = F.col("hop_id").alias("from")
    followed = events.filter(_is_next_hop()).groupBy(made_from).agg(*_made())
    names = TopicNames(params.namespace)
    again = _sent_again(events, names)
    joined = (
        waited.join(followed, F.col("coordinates") == F.col("from"), "left")
        .join(again, F.col("coordinates") == F.col("again_from"), "left")
        .withColumn("moved", F.coalesce("moved", F.lit(col=False)) | F.col("again_from").isNotNull())
        .join(passed, (F.col("topic") == F.col("of")) & (F.col("partition") == F.col("part")), "left")
    )
    joined = joined.withColumn("is_passed", F.col("committed") > F.col("offset"))
    log = names.timers
    if params.landed is None or log in params.landed:
        joined = _with_names(joined, events, log, passed, again)
    else:
        joined = joined.withColumns({"log_partition": F.lit(None).cast("int"), "is_void": F.lit(col=False)})
    # From the newest to the oldest: a window that looks forward takes quadratic time in the length of a queue.
    ways = Window.partitionBy("topic", "partition", "log_partition", "first.topic", "first.partition")
    newer = ways.orderBy(F.desc("offset"))
    passed_by = F.min("first.offset").over(newer.rowsBetween(Window.unboundedPreceding, -1))
    # A record whose sender gave a timestamp does not tell when it was delivered.
    is_timed = ~F.col("first.stored_at").eqNullSafe(F.col("target_timestamp"))
    late = F.when(is_timed, F.unix_millis("first.stored_at") - F.unix_millis("due_at"))
    overdue = F.col("due_at") < F.lit(params.now.astimezone(dt.UTC) - dt.timedelta(milliseconds=params.grace_ms))
    outcome = (
        F.when(F.col("first").isNotNull(), "delivered")
        .when(F.col("moved"), "hopped")
        .when(F.col("parked"), "parked")
        .when(F.col("is_void"), "voided")
        .when(F.col("is_passed"), "never")
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
        F.col("was_parked").alias("redriven"),
    )


def _sent_again(events: DataFrame, names: TopicNames) -> DataFrame:
    """Return the coordinates of what was parked and sent again since; with the topics named, Delta skips files."""
    again = events.filter(F.col("topic").isin(names.schedule, names.timers))
    again = again.filter(F.col("hop_id").startswith(f"{names.parked}/")).select(F.col("hop_id").alias("of_parked"))
    parked = events.filter(F.col("topic") == names.parked)
    parked = parked.join(again, F.col("coordinates") == F.col("of_parked"), "left_semi")
    return parked.select(F.col("hop_id").alias("again_from")).distinct()


def _is_delivery() -> Column:
    return F.col("kind").isin("source", "retry", "replay")


def _is_next_hop() -> Column:
    return (_is_delivery() | F.col("kind").isin("schedule", "parked")) & F.col("hop_id").isNotNull()


def _made() -> Sequence[Column]:
    """Return what was made from one record."""
    return (
        F.min(F.when(_is_delivery(), F.struct("stored_at", "topic", "partition", "offset"))).alias("first"),
        F.count_if(_is_delivery()).alias("deliveries"),
        F.max(F.col("kind") == "schedule").alias("moved"),
        F.max(F.col("kind") == "parked").alias("parked"),
    )


def _is_ended() -> Column:
    return F.coalesce(F.col("fate").isin("cancelled", "replaced", "voided", "delivered-now"), F.lit(col=False))


def _with_names(waited: DataFrame, events: DataFrame, log: str, passed: DataFrame, again: DataFrame) -> DataFrame:
    """Add what was made from the FIREs of records with names, and whether the log of timers has voided them.

    An occurrence of a message that recurs is delivered under an id of its own, with its due time. A record without a
    name that follows a FIRE waits for its target; one with a name is the next occurrence.
    """
    by_log = events.filter(_is_next_hop() & F.col("hop_id").startswith(f"{log}/"))
    made_by = by_log.groupBy("hop_id", "msg_id", "timer").agg(*_made())
    made_by = made_by.toDF("fire", "made_id", "made_name", "f_first", "f_deliveries", "f_moved", "f_parked")
    decided = fates(events.filter(F.col("kind").isin("timer", "parked")))
    fires = decided.filter(F.col("timer_do") == "FIRE").join(
        passed, (F.col("topic") == F.col("of")) & (F.col("partition") == F.col("part")), "left"
    )
    fires = fires.select(
        F.col("hop_id").alias("due"),
        F.col("coordinates").alias("at"),
        F.col("partition").alias("log_partition"),
        F.col("recurs").alias("f_recurs"),
        F.col("asks").alias("f_asks"),
        F.when(F.col("recurs") == "skip", F.lit(col=True)).otherwise(~F.col("counts") & _is_ended()).alias("f_void"),
        F.coalesce(F.col("committed") > F.col("offset"), F.lit(col=False)).alias("f_passed"),
    )
    occurrence = F.concat_ws(".", "msg_id", F.unix_millis("due_at").cast("string"))
    named = waited.filter(F.col("timer").isNotNull()).select("coordinates", "msg_id", "due_at")
    by_fire = (
        named.join(fires, F.col("coordinates") == F.col("due"))
        .join(made_by, F.col("at") == F.col("fire"), "left")
        .join(again.toDF("parked_fire"), F.col("at") == F.col("parked_fire"), "left")
        # A NOW delivers a message that recurs under another id.
        .withColumn("is_its", F.col("f_recurs").isNull() | (F.col("made_id") == occurrence))
        # A question is no delivery. The half message waits for the next one, or a COMMIT delivers it.
        .withColumn("is_delivery", F.col("is_its") & F.col("f_asks").isNull())
        .withColumn("waits_on", F.col("f_moved") & (F.col("made_name").isNull() | F.col("f_asks").isNotNull()))
        .groupBy(F.col("coordinates").alias("named"))
        .agg(
            F.max("log_partition").alias("log_partition"),
            F.min(F.when(F.col("is_delivery"), F.col("f_first"))).alias("f_first"),
            F.sum(F.when(F.col("is_delivery"), F.col("f_deliveries"))).alias("f_deliveries"),
            F.max((F.col("is_its") & F.col("waits_on")) | F.col("parked_fire").isNotNull()).alias("f_moved"),
            F.max(F.col("f_parked") & F.col("is_its")).alias("f_parked"),
            F.bool_and("f_void").alias("f_void"),
            F.bool_and("f_passed").alias("f_passed"),
        )
    )
    ended = decided.filter(_is_ended())
    ended = ended.select("real_topic", "timer", "offset").toDF("its_topic", "its_name", "its_generation")
    joined = waited.join(by_fire, F.col("coordinates") == F.col("named"), "left").join(
        ended,
        (F.col("real_topic") == F.col("its_topic"))
        & (F.col("timer") == F.col("its_name"))
        & (F.col("timer_generation") == F.col("its_generation")),
        "left",
    )
    return joined.withColumns(
        {
            "first": F.coalesce("first", "f_first"),
            "deliveries": F.coalesce("f_deliveries", "deliveries"),
            "moved": F.col("moved") | F.coalesce("f_moved", F.lit(col=False)),
            "parked": F.coalesce("parked", F.lit(col=False)) | F.coalesce("f_parked", F.lit(col=False)),
            "is_void": F.coalesce("f_void", F.lit(col=False)) | F.col("its_name").isNotNull(),
            "is_passed": F.coalesce("f_passed", "is_passed"),
        }
    )


def transform(found: DataFrame) -> DataFrame:
    """Count outcomes and lateness by delay level and hour.

    Args:
        found: as `outcomes` returns it.

    Returns:
        delay_level, hour (UTC, of the due time), delivered, hopped, parked, voided, never, stuck, waiting, early,
        overtaken, repeats, redriven, late_p50_ms, late_p99_ms, late_max_ms.

    Thread-safety: a pure function of the frame; nothing is read.
    """
    names = ("delivered", "hopped", "parked", "voided", "never", "stuck", "waiting")
    return found.groupBy("delay_level", F.date_trunc("hour", "due_at").alias("hour")).agg(
        *(F.count_if(F.col("outcome") == name).alias(name) for name in names),
        F.count_if("early").alias("early"),
        F.count_if("overtaken").alias("overtaken"),
        F.sum("repeats").alias("repeats"),
        F.count_if("redriven").alias("redriven"),
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
        *("delay_level", "hour", "delivered", "hopped", "parked", "voided", "never", "stuck", "waiting", "early"),
        *("overtaken", "repeats", "redriven", "late_p50_ms", "late_p99_ms", "late_max_ms"),
    )
    counted = by_level.orderBy("hour", "delay_level").collect()
    bad_names = ("early", "overtaken", "never", "stuck", "parked")
    sums = {name: sum(row[name] for row in counted) for name in ("delivered", *bad_names)}
    bad = found.filter(F.col("early") | F.col("overtaken") | F.col("outcome").isin("never", "stuck", "parked"))
    listed = ("coordinates", "msg_id", "grp", "real_topic", "outcome", "early", "overtaken", "due_at", "late_ms")
    worst = bad.orderBy("outcome", "due_at", "coordinates").limit(MOST_ROWS).collect()
    tables = [Table.of("by level and hour", fields, counted)]
    if worst:
        total = len(worst) if len(worst) < MOST_ROWS else bad.count()
        tables.append(Table.of("early, overtaken, stuck, parked or never delivered", listed, worst, total))
    latest: dict[str, int] = {}
    for row in counted:
        if row.late_p99_ms is not None:
            level = "fine" if row.delay_level is None else f"level {row.delay_level}"
            latest[level] = max(latest.get(level, 0), row.late_p99_ms)
    return Report(
        job="delays",
        verdict=(
            f"{sums['delivered']:,} delivered: {sums['early']:,} early, {sums['never']:,} never delivered, "
            f"{sums['stuck']:,} stuck, {sums['parked']:,} parked, {sums['overtaken']:,} overtaken"
        ),
        fine=not any(sums[name] for name in bad_names),
        tables=tuple(tables),
        bars=tuple(latest.items()),
        bars_title="lateness, ms at p99 (the worst hour)",
        charts=_over_time(counted),
        notes=("delivery times are Kafka timestamps: from the worker's clock if the topic has no LogAppendTime",),
    )


def _over_time(counted: Sequence[Any]) -> tuple[Chart, ...]:
    """Return the chart of the lateness by hour, each of the delay level that was worst."""
    by_hour: dict[dt.datetime, tuple[int, int]] = {}
    for row in counted:
        if row.late_p99_ms is not None:
            p50, p99 = by_hour.get(utc(row.hour), (row.late_p50_ms, row.late_p99_ms))
            by_hour[utc(row.hour)] = max(p50, row.late_p50_ms), max(p99, row.late_p99_ms)
    if not by_hour:
        return ()
    hours = sorted(by_hour)
    series = [(name, [by_hour[hour][at] for hour in hours]) for at, name in enumerate(("p50", "p99"))]
    title = "lateness by hour of the due time, ms, UTC (the worst level)"
    return (Chart(title, [hour.strftime("%m-%d %H:00") for hour in hours], series),)
