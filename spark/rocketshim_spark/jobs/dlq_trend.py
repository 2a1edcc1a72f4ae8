"""Do dead letters pile up, and when will retention delete those that nobody has sent again.

Per group and day (UTC): how many arrived, how many were replayed, and how many were left (`depth`) at its end. A dead
letter is *replayed* when a redrive was made from it; its topic is not emptied by that. What retention has deleted
since counts on as left: it was neither sent again nor read. Repeats of one letter (a consumer that died between sending
and committing) count once, by message, attempt and replay.
"""

import datetime as dt
from typing import Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it
from pyspark.sql.window import Window

from rocketshim_spark.report import Report, Table

__all__ = ["TrendParams", "letters", "open_letters", "report", "transform"]

_HOUR_MS: Final = 3_600_000


class TrendParams(BaseModel):
    """What is known beside the records.

    Attributes:
        now: the moment for which ages and hours are said: that of the landing.
        retention_ms: of the dead-letter topics; 1 or more, 30 days (the layout's default).
        warn_hours: a letter that is deleted within so many hours is a finding; 0 or more, 24.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    now: AwareDatetime
    retention_ms: int = Field(default=30 * 24 * _HOUR_MS, ge=1)
    warn_hours: float = Field(default=24.0, ge=0)


def letters(events: DataFrame) -> DataFrame:
    """One row per dead letter: grp, arrived_at, replayed_at (null: not yet), coordinates."""
    replays = (
        events.filter(F.col("kind") == "replay")
        .groupBy(F.col("hop_id").alias("of"))
        .agg(F.min("stored_at").alias("replayed_at"))
    )
    joined = events.filter(F.col("kind") == "dlq").join(replays, F.col("coordinates") == F.col("of"), "left")
    once = ["grp", "msg_id", "attempt", "replay_id"]
    return joined.groupBy(*once).agg(
        F.min("stored_at").alias("arrived_at"),
        F.min("replayed_at").alias("replayed_at"),
        F.min_by("coordinates", "stored_at").alias("coordinates"),
    )


def transform(found: DataFrame) -> DataFrame:
    """Per group and day: arrived, replayed, depth.

    Args:
        found: as `letters` makes it.
    """
    arrived = found.select(
        "grp", F.to_date("arrived_at").alias("day"), F.lit(1).alias("arrived"), F.lit(0).alias("gone")
    )
    gone = found.filter(F.col("replayed_at").isNotNull()).select(
        "grp", F.to_date("replayed_at").alias("day"), F.lit(0), F.lit(1)
    )
    days = (
        arrived.union(gone)
        .groupBy("grp", "day")
        .agg(F.sum("arrived").alias("arrived"), F.sum("gone").alias("replayed"))
    )
    so_far = Window.partitionBy("grp").orderBy("day")
    return days.withColumn("depth", F.sum(F.col("arrived") - F.col("replayed")).over(so_far))


def open_letters(found: DataFrame, params: TrendParams) -> DataFrame:
    """Per group: depth now, the oldest letter that was not replayed, and the hours until retention may delete it.

    Args:
        found: as `letters` makes it.
        params: what is known beside.
    """
    now = F.lit(params.now.astimezone(dt.UTC))
    age_ms = F.unix_millis(now) - F.unix_millis("oldest_at")
    left = found.filter(F.col("replayed_at").isNull()).groupBy("grp")
    counted = left.agg(
        F.count("*").alias("depth"),
        F.min("arrived_at").alias("oldest_at"),
        F.min_by("coordinates", "arrived_at").alias("oldest"),
    )
    return counted.select(
        "*",
        (age_ms / _HOUR_MS).alias("oldest_age_hours"),
        ((params.retention_ms - age_ms) / _HOUR_MS).alias("hours_left"),
    )


def report(days: DataFrame, left: DataFrame, params: TrendParams) -> Report:
    """The verdict. A finding: letters that retention deletes within `warn_hours`, or has deleted already.

    Args:
        days: as `transform` makes it.
        left: as `open_letters` makes it.
        params: as for `open_letters`.
    """
    groups = left.orderBy("hours_left").collect()
    rows = days.orderBy("grp", "day").collect()
    soon = [row.grp for row in groups if row.hours_left < params.warn_hours]
    by_day: dict[str, int] = {}
    for row in rows:
        by_day[str(row.day)] = by_day.get(str(row.day), 0) + row.arrived
    of_group = ("grp", "depth", "oldest", "oldest_at", "oldest_age_hours", "hours_left")
    of_day = ("grp", "day", "arrived", "replayed", "depth")
    return Report(
        job="dlq-trend",
        verdict=(
            f"{sum(row.depth for row in groups)} dead letters were never sent again; "
            f"{len(soon)} groups lose some within {params.warn_hours:g} hours"
        ),
        fine=not soon,
        tables=(
            Table("not sent again", of_group, [tuple(row[name] for name in of_group) for row in groups]),
            Table("by day", of_day, [tuple(row[name] for name in of_day) for row in rows]),
        ),
        bars=tuple(sorted(by_day.items()))[-31:],
        bars_title="dead letters by day",
    )
