"""Failures: count failed attempts by cause, with first and last time, and find new causes.

A failed attempt sets `FAIL_*` headers on every record that follows from it: the schedule records while it waits, the
retry record, or the dead letter. The job counts them as one failure: it groups events by group, message, attempt and
replay, and takes the earliest record. So a worker that repeats a delivery after a crash adds no failure, and offsets
are never counted.

Two failures have the same *fingerprint* if their texts differ only in numbers and ids. A cause (group, class,
fingerprint) is *new* if the given events do not contain it before `new_since`; so give the job more days of events than
it reports.
"""

import datetime as dt
import functools
import operator
from collections.abc import Sequence
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it

from rocketshim.core.user_values import count_text
from rocketshim_spark.report import MOST_ROWS, Chart, Report, Table, utc

__all__ = ["FailureParams", "attempts", "report", "transform"]

_CAUSE = ("grp", "fail_class", "fingerprint")
_CHARTED = 5  # causes with a colour of their own
_HOURLY = dt.timedelta(days=3)
_NAME_CHARS = 100


class FailureParams(BaseModel):
    """Which failures to report.

    Attributes:
        since: earliest time of a failure; None: no limit.
        until: only failures before this time; None: no limit.
        new_since: causes first seen at or after this time are new; None: `since`. If both are None, no cause is new.
        group: only failures of this consumer group; None: all groups.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    since: AwareDatetime | None = None
    until: AwareDatetime | None = None
    new_since: AwareDatetime | None = None
    group: str | None = None


def attempts(events: DataFrame) -> DataFrame:
    """Return one row per failed attempt: grp, msg_id, attempt, replay_id, and the earliest record that reports it.

    The time is `FAIL_AT_MS`, from the consumer's clock, or else the Kafka timestamp of that record. Malformed records
    are left out; `audit` counts them.

    Decides: Is an attempt that was delivered twice one failure? Yes.
    """
    failed = events.filter(
        F.col("kind").isin("schedule", "retry", "replay", "dlq")
        & F.col("grp").isNotNull()
        & F.col("fail_class").isNotNull()
        & F.col("decode_error").isNull()
        & (
            F.coalesce("attempt", F.lit(1)) > 0
        )  # a redriven dead letter keeps its FAIL_* headers, with attempt 0; this is not another failure
    )
    record = F.struct(
        "stored_at", "topic", "partition", "offset", "coordinates", "origin_topic", "tag", *_CAUSE[1:], "failed_at"
    )
    grouped = failed.groupBy("grp", "msg_id", "attempt", "replay_id").agg(
        F.min(record).alias("first"), F.max((F.col("kind") == "dlq").cast("int")).alias("dead")
    )
    return grouped.select(
        "grp",
        "msg_id",
        "attempt",
        "replay_id",
        F.col("first.origin_topic").alias("topic"),
        F.col("first.tag").alias("tag"),
        F.col("first.fail_class").alias("fail_class"),
        F.coalesce(F.col("first.fingerprint"), F.lit("")).alias("fingerprint"),
        F.coalesce("first.failed_at", "first.stored_at").alias("failed_at"),
        F.col("first.coordinates").alias("coordinates"),
        (F.col("dead") == 1).alias("dead"),
    )


def transform(events: DataFrame, params: FailureParams | None = None) -> DataFrame:
    """Count failures by group, topic, tag, class, fingerprint and hour.

    Args:
        events: as `rocketshim_spark.events.transform` returns them.
        params: which failures to report; None: all, none of them new.

    Returns:
        grp, topic, tag, fail_class, fingerprint, hour (UTC), failures, messages (distinct), dead (failures after which
        the message was dead), first_seen, last_seen, is_new, samples (coordinates of at most three records).

    Thread-safety: a pure function of the frame; nothing is read.
    """
    params = FailureParams() if params is None else params
    found = attempts(events)
    if params.group is not None:
        found = found.filter(F.col("grp") == params.group)
    causes = found.groupBy(*_CAUSE).agg(F.min("failed_at").alias("cause_since"))
    reported = found
    if params.since is not None:
        reported = reported.filter(F.col("failed_at") >= F.lit(params.since))
    if params.until is not None:
        reported = reported.filter(F.col("failed_at") < F.lit(params.until))
    new_since = params.new_since or params.since
    is_new = F.lit(col=False) if new_since is None else F.col("cause_since") >= F.lit(new_since)
    coordinates = F.col("coordinates")
    samples = F.array(
        F.min_by(coordinates, "failed_at"),
        F.max_by(coordinates, "failed_at"),
        F.min_by(coordinates, F.xxhash64(coordinates)),
    )
    return (
        reported.groupBy(*_CAUSE, "topic", "tag", F.date_trunc("hour", "failed_at").alias("hour"))
        .agg(
            F.count("*").alias("failures"),
            F.count_distinct("msg_id").alias("messages"),
            F.sum(F.col("dead").cast("long")).alias("dead"),
            F.min("failed_at").alias("first_seen"),
            F.max("failed_at").alias("last_seen"),
            F.array_sort(F.array_distinct(samples)).alias("samples"),
        )
        .join(causes, [*_CAUSE])
        .select(
            *("grp", "topic", "tag", "fail_class", "fingerprint", "hour", "failures", "messages", "dead"),
            *("first_seen", "last_seen"),
            is_new.alias("is_new"),
            "samples",
        )
    )


def report(found: DataFrame) -> Report:
    """Make the report of the causes: new ones first, then those that made messages dead, then the most frequent ones.

    Findings: a message that became dead, and a new cause.

    Args:
        found: as `transform` returns it.
    """
    causes = found.groupBy(*_CAUSE).agg(
        F.sum("failures").alias("failures"),
        F.sum("dead").alias("dead"),
        F.min("first_seen").alias("first_seen"),
        F.max("last_seen").alias("last_seen"),
        F.max("is_new").alias("is_new"),
        F.max_by(F.element_at("samples", -1), "last_seen").alias("sample"),
    )
    totals = causes.agg(F.count("*"), F.sum("failures"), F.sum("dead"), F.count_if("is_new")).collect()[0]
    count, failures, dead, new = (value or 0 for value in totals)
    fields = ("grp", "fail_class", "fingerprint", "failures", "dead", "is_new", "first_seen", "last_seen", "sample")
    worst_first = (F.desc("is_new"), F.desc("dead"), F.desc("failures"), *_CAUSE)
    rows = causes.orderBy(*worst_first).limit(MOST_ROWS).collect()
    return Report(
        job="failures",
        verdict=(
            f"{count_text(failures, 'failure')} of {count_text(count, 'cause')}: {dead:,} ended dead, "
            f"{count_text(new, 'cause')} {'is' if new == 1 else 'are'} new"
        ),
        fine=not dead and not new,
        tables=(Table.of("causes", fields, rows, count),),
        charts=_trend(found, sorted(rows, key=lambda row: -row.failures)[:_CHARTED]),
    )


def _trend(found: DataFrame, top: Sequence[Any]) -> tuple[Chart, ...]:
    """Return the chart of the most frequent causes: by hour, or by day if there are more than three."""
    first, last = found.agg(F.min("hour"), F.max("hour")).collect()[0]
    if first is None:
        return ()
    unit = dt.timedelta(hours=1) if utc(last) - utc(first) <= _HOURLY else dt.timedelta(days=1)
    word, form = ("hour", "%m-%d %H:00") if unit < dt.timedelta(days=1) else ("day", "%Y-%m-%d")
    number = F.lit(len(top))
    for at, row in enumerate(top):
        is_it = functools.reduce(operator.and_, [F.col(name).eqNullSafe(F.lit(row[name])) for name in _CAUSE])
        number = F.when(is_it, F.lit(at)).otherwise(number)
    counted = (
        found.groupBy(F.date_trunc(word, "hour").alias("at"), number.alias("cause"))
        .agg(F.sum("failures").alias("failures"))
        .collect()
    )
    began = utc(first).replace(hour=0 if word == "day" else utc(first).hour)
    times = [began + unit * step for step in range((utc(last) - began) // unit + 1)]
    sums = {(utc(row.at), row.cause): row.failures for row in counted}
    names = [f"{row.grp}, {row.fail_class}: {row.fingerprint}"[:_NAME_CHARS] for row in top]
    if any(cause == len(top) for _, cause in sums):
        names.append("other causes")
    series = [(name, [sums.get((at, cause), 0) for at in times]) for cause, name in enumerate(names)]
    title = f"failures by {word} and cause, UTC"
    return (Chart(title, [at.strftime(form) for at in times], series, stacked=True),)
