"""Dead-letter trend: count open dead letters per group and day, and tell when retention deletes the oldest.

For each group and day (UTC) the job counts the dead letters that arrived, were replayed or were discarded, and those
left at the end of the day (`depth`). A dead letter is *replayed* if a redrive made a record of its id from it, or the
redrive log has such a mark; it still lies on its topic. A dead letter that retention has deleted since still counts as
left. Repeats of one dead letter (a consumer stopped between sending and committing) count once, by message, first
delivery, attempt and replay, as in a replay plan.

The setting `retention.ms` of a topic decides when its dead letters are deleted; the job reads it from the brokers.
Kafka deletes whole segments, so a dead letter *may* be deleted after the reported hours, or later.
"""

import datetime as dt
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it
from pyspark.sql.window import Window

from rocketshim.core.user_values import count_text
from rocketshim_spark.redrive_marks import empty_settled, join_settled
from rocketshim_spark.report import Chart, Report, Table
from rocketshim_spark.small_frames import small_frame

__all__ = ["TrendParams", "letters", "open_letters", "report", "transform"]

_HOUR_MS: Final = 3_600_000


class TrendParams(BaseModel):
    """Facts and limits beside the records.

    Attributes:
        now: the time at which the records were landed; ages and remaining hours refer to it.
        retention_of: physical topic to its retention in ms, read from the brokers; -1: unlimited.
        retention_ms: retention of the topics that `retention_of` does not name; 1 or more, default 30 days (as
            `rocketshim init` sets it).
        warn_hours: a dead letter that retention deletes within this time is a finding; 0 or more, default 24.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    now: AwareDatetime
    retention_of: Mapping[str, int] = {}
    retention_ms: int = Field(default=30 * 24 * _HOUR_MS, ge=1)
    warn_hours: float = Field(default=24.0, ge=0)


def letters(events: DataFrame, settled: DataFrame | None = None) -> DataFrame:
    """Return one row per dead letter, without repeats.

    Args:
        events: as `rocketshim_spark.events.transform` returns them.
        settled: as `rocketshim_spark.redrive_marks.settled` returns it; None: no redrive log was landed.

    Returns:
        grp, topic, arrived_at, replayed_at, discarded_at (null: not yet), coordinates.

    Thread-safety: a pure function of the frames.
    """
    replays = (
        events.filter(F.col("kind") == "replay")
        .groupBy(F.col("hop_id").alias("of"), F.col("msg_id").alias("of_id"))
        .agg(F.min("stored_at").alias("sent_at"))
    )
    if settled is None:
        settled = empty_settled(events.sparkSession)
    joined = join_settled(events.filter(F.col("kind") == "dlq"), settled).join(
        replays, (F.col("coordinates") == F.col("of")) & (F.col("msg_id") == F.col("of_id")), "left"
    )
    origin = F.coalesce("origin_id", "coordinates").alias("origin")
    once = ("grp", "topic", "msg_id", origin, "attempt", "replay_id")
    marked_at = F.when(F.col("state") == "redriven", F.col("settled_at"))
    return joined.groupBy(*once).agg(
        F.min("stored_at").alias("arrived_at"),
        F.min(F.coalesce("sent_at", marked_at)).alias("replayed_at"),
        F.min(F.when(F.col("state") == "discarded", F.col("settled_at"))).alias("discarded_at"),
        F.min_by("coordinates", "stored_at").alias("coordinates"),
    )


def transform(found: DataFrame) -> DataFrame:
    """Count dead letters per group and day.

    Args:
        found: as `letters` returns it.

    Returns:
        grp, day (UTC), arrived, replayed, discarded, depth (dead letters left at the end of the day).
    """
    # A dead letter that was sent again and discarded later is counted as replayed only.
    times = F.array(
        F.struct(F.col("arrived_at").alias("at"), F.lit("arrived").alias("what")),
        F.struct(F.col("replayed_at").alias("at"), F.lit("replayed").alias("what")),
        F.struct(
            F.when(F.col("replayed_at").isNull(), F.col("discarded_at")).alias("at"), F.lit("discarded").alias("what")
        ),
    )
    moves = found.select("grp", F.inline(times)).filter("at IS NOT NULL")
    days = moves.groupBy("grp", F.to_date("at").alias("day")).agg(
        *(F.count_if(F.col("what") == name).alias(name) for name in ("arrived", "replayed", "discarded"))
    )
    so_far = Window.partitionBy("grp").orderBy("day")
    return days.withColumn("depth", F.sum(F.col("arrived") - F.col("replayed") - F.col("discarded")).over(so_far))


def open_letters(found: DataFrame, params: TrendParams) -> DataFrame:
    """Return each group's open dead letters, the oldest of them, and the hours until retention may delete it.

    Args:
        found: as `letters` returns it.
        params: facts and limits beside the records.

    Returns:
        grp, topic, depth, oldest_at, oldest (coordinates), oldest_age_hours, asked (whether the retention was read from
        the brokers), hours_left (null: retention is unlimited).
    """
    now = F.lit(params.now)
    age_ms = F.unix_millis(now) - F.unix_millis("oldest_at")
    left = found.filter("replayed_at IS NULL AND discarded_at IS NULL").groupBy("grp", "topic")
    counted = left.agg(
        F.count("*").alias("depth"),
        F.min("arrived_at").alias("oldest_at"),
        F.min_by("coordinates", "arrived_at").alias("oldest"),
    )
    kept = small_frame(found.sparkSession, list(params.retention_of.items()), "of string, kept_ms bigint")
    kept_ms = F.coalesce("kept_ms", F.lit(params.retention_ms))
    return counted.join(F.broadcast(kept), F.col("topic") == F.col("of"), "left").select(
        *counted.columns,
        (age_ms / _HOUR_MS).alias("oldest_age_hours"),
        F.col("kept_ms").isNotNull().alias("asked"),
        F.when(kept_ms >= 0, (kept_ms - age_ms) / _HOUR_MS).alias("hours_left"),
    )


def report(days: DataFrame, left: DataFrame, params: TrendParams) -> Report:
    """Make the report. A finding: dead letters that retention deletes within `warn_hours`, or may have deleted already.

    Args:
        days: as `transform` returns it.
        left: as `open_letters` returns it.
        params: as for `open_letters`.
    """
    groups = left.orderBy(F.asc_nulls_last("hours_left"), "topic").collect()
    rows = days.orderBy("grp", "day").collect()
    soon = [row.grp for row in groups if row.hours_left is not None and row.hours_left < params.warn_hours]
    assumed, depth = sum(not row.asked for row in groups), sum(row.depth for row in groups)
    of_group = ("grp", "topic", "depth", "oldest", "oldest_at", "oldest_age_hours", "hours_left")
    of_day = ("grp", "day", "arrived", "replayed", "discarded", "depth")
    return Report(
        job="dlq-trend",
        verdict=(
            f"{count_text(depth, 'dead letter')} {'is' if depth == 1 else 'are'} left; "
            f"{count_text(len(soon), 'group')} {'loses' if len(soon) == 1 else 'lose'} some within "
            f"{params.warn_hours:g} hours"
        ),
        fine=not soon,
        tables=(
            Table.of("left", of_group, groups),
            Table.of("by day", of_day, rows),
        ),
        charts=_by_day(rows),
        notes=(f"the retention of {count_text(assumed, 'topic')} is assumed, not read from the brokers",)
        if assumed
        else (),
    )


def _by_day(rows: Sequence[Any]) -> tuple[Chart, ...]:
    """Return the chart of all groups: what arrived, what was settled, and what was left in the evening."""
    if not rows:
        return ()
    arrived, settled = Counter[dt.date](), Counter[dt.date]()
    for row in rows:
        arrived[row.day] += row.arrived
        settled[row.day] += row.replayed + row.discarded
    first, last = min(arrived), max(arrived)
    days = [first + dt.timedelta(days=number) for number in range((last - first).days + 1)]
    left = list(itertools.accumulate(arrived[day] - settled[day] for day in days))
    series: list[tuple[str, list[float | None]]] = [
        ("arrived", [arrived[day] for day in days]),
        ("sent again or discarded", [settled[day] for day in days]),
        ("left in the evening", [*left]),
    ]
    return (Chart("dead letters by day, UTC", [day.isoformat() for day in days], series),)
