"""Audit: compare the messages that were sent with their states, to find lost ones.

The audit counts distinct messages, never offsets. For each topic and group::

    sent = acknowledged + pending + scheduled + retrying + dead + parked + voided + open + lost

`sent` counts every message with at least one record. Each message is in exactly one state, as
`rocketshim_spark.jobs.lineage` defines them; a state that is inferred there is inferred here. The *residual* are the
messages with a missing record, listed one by one with the reason:

====================  ==============================================================================================
`lost`                it waited in the schedule, the worker's position is beyond it, and no record follows
`missing-attempt`     the record of an attempt exists, that of the attempt before does not
`no-source-record`    it has retries or dead letters, but its first delivery is not among the records (not *rooted*)
====================  ==============================================================================================

A residual message is *explained* if retention may have deleted its missing record before it was landed (`gaps`):

* `no-source-record`: its first delivery lies in a gap;
* `missing-attempt`: any of the shim's topics has a gap that was found after the message was sent;
* `lost`: its destination has a gap that was found after its last record. The destination is its own topic for the first
  delivery, else any retry topic. Of a message with a name, any gap in the log of timers explains it, since the command
  that voided it may be missing.

Explained messages are counted as `expired`. A gap is a finding in any case: only its number of offsets is known, an
upper bound of the missing records.

A record on a shim topic that breaks the wire format (`malformed`) belongs to no lifecycle, so it may be the missing
record of one. Such records are counted, each reason with a sample, and are a finding.

Kafka does not record that a message was *handled*: acknowledged means that its group has committed past it.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it

from rocketshim_spark.jobs.lineage import STATES
from rocketshim_spark.report import MOST_ROWS, Report, Table

__all__ = ["malformed", "report", "residuals", "transform"]


def residuals(lifecycles: DataFrame, gaps: DataFrame) -> DataFrame:
    """Return the messages with a missing record.

    Args:
        lifecycles: as `lineage.transform` returns them.
        gaps: as `lake.read_gaps` returns them.

    Returns:
        topic, grp, msg_id, reason, explained, state, origin, last_at.

    Thread-safety: a pure function of the frames.
    """
    reason = (
        F.when(F.col("state") == "lost", "lost")
        .when(~F.col("rooted"), "no-source-record")
        .when(F.col("broken"), "missing-attempt")
    )
    found = lifecycles.withColumn("reason", reason).filter(F.col("reason").isNotNull())
    origin_parts = F.split("origin", "/")
    found = found.withColumns(
        {
            # The origin comes from a header, so the text may have any number of parts.
            "at_topic": F.get(origin_parts, F.lit(0)),
            "at_partition": F.get(origin_parts, F.lit(1)).try_cast("int"),
            "at_offset": F.get(origin_parts, F.lit(2)).try_cast("bigint"),
        }
    )
    holes = F.broadcast(gaps.select("topic", "partition", "gap_from", "gap_to").toDF("of", "part", "low", "high"))
    within = (
        (F.col("at_topic") == F.col("of"))
        & (F.col("at_partition") == F.col("part"))
        & F.col("at_offset").between(F.col("low"), F.col("high") - 1)
    )
    is_shim_topic = F.col("topic").rlike(r"(SCHEDULE_TOPIC_XXXX|rmq\.(retry|dlq)\.)")
    # A gap that was found before a record was written does not contain it.
    gap_facts = F.broadcast(
        gaps.agg(
            F.max(F.when(is_shim_topic, F.col("found_at"))).alias("shim_gap_at"),
            F.max(F.when(F.col("topic").contains("rmq.retry."), F.col("found_at"))).alias("retry_gap_at"),
            F.coalesce(F.bool_or(F.col("topic").endswith("rmq.timers")), F.lit(col=False)).alias("has_timer_gap"),
        )
    )
    own_gaps = F.broadcast(gaps.groupBy(F.col("topic").alias("gap_topic")).agg(F.max("found_at").alias("own_gap_at")))
    target_gap_at = F.when(F.col("attempts") > 0, F.col("retry_gap_at")).otherwise(F.col("own_gap_at"))
    has_name = F.exists("history", lambda each: each["kind"] == "timer")
    joined = (
        found.join(holes, within, "left")
        .dropDuplicates(["grp", "msg_id"])
        .join(own_gaps, F.col("topic") == F.col("gap_topic"), "left")
        .crossJoin(gap_facts)
    )
    explained = (
        F.when(F.col("reason") == "no-source-record", F.col("low").isNotNull())
        .when(F.col("reason") == "missing-attempt", F.col("shim_gap_at") >= F.col("first_sent"))
        .when(F.col("has_timer_gap") & has_name, F.lit(col=True))
        .otherwise(target_gap_at >= F.col("last_at"))
    )
    return joined.select(
        "topic",
        "grp",
        "msg_id",
        "reason",
        F.coalesce(explained, F.lit(col=False)).alias("explained"),
        "state",
        "origin",
        "last_at",
    )


def transform(lifecycles: DataFrame, missing: DataFrame) -> DataFrame:
    """Count the messages of each topic and group by state.

    Args:
        lifecycles: as `lineage.transform` returns them.
        missing: as `residuals` returns them for these lifecycles.

    Returns:
        topic, grp, sent, one column for each state, copies (repeated records), residual (not explained), expired
        (explained).

    Thread-safety: a pure function of the frames.
    """
    listed = missing.select("grp", "msg_id", "explained").toDF("of_grp", "of_id", "explained")
    joined = lifecycles.join(
        listed, F.col("grp").eqNullSafe(F.col("of_grp")) & (F.col("msg_id") == F.col("of_id")), "left"
    )
    return joined.groupBy("topic", "grp").agg(
        F.count_distinct("msg_id").alias("sent"),
        *(F.count_if(F.col("state") == state).alias(state) for state in STATES),
        F.sum("copies").alias("copies"),
        F.count_if(~F.col("explained")).alias("residual"),
        F.count_if(F.col("explained")).alias("expired"),
    )


def malformed(events: DataFrame) -> DataFrame:
    """Count the records on shim topics that break the wire format.

    Args:
        events: as `rocketshim_spark.events.transform` returns them.

    Returns:
        topic, reason, records, first_at (earliest Kafka timestamp), sample (coordinates of the earliest record).
    """
    broken = events.filter(F.col("decode_error").isNotNull())
    return broken.groupBy("topic", F.col("decode_error").alias("reason")).agg(
        F.count("*").alias("records"),
        F.min("stored_at").alias("first_at"),
        F.min_by("coordinates", "stored_at").alias("sample"),
    )


def report(account: DataFrame, missing: DataFrame, gaps: DataFrame, malformed_records: DataFrame) -> Report:
    """Make the report. Findings: a residual that is not explained, a parked message, a malformed record, a gap.

    Topics and groups with findings come first.

    Args:
        account: as `transform` returns it.
        missing: as `residuals` returns it.
        gaps: as `lake.read_gaps` returns them.
        malformed_records: as `malformed` returns them.
    """
    counted = account.orderBy(F.desc(F.col("residual") + F.col("parked")), "topic", "grp").collect()
    listed = missing.orderBy("explained", "topic", "grp", "msg_id").limit(MOST_ROWS).collect()
    holes = gaps.orderBy("topic", "partition", "gap_from").collect()
    # Collected in one query, because it decodes the whole history. The kinds are few: a reason is not a free text.
    broken = malformed_records.orderBy(F.desc("records"), "topic", "reason").collect()
    residual = sum(row.residual for row in counted)
    malformed_count = sum(row.records for row in broken)
    parked = sum(row.parked for row in counted)
    expired = sum(row.gap_to - row.gap_from for row in holes)
    columns = ("topic", "group", "sent", *STATES, "residual", "expired", "copies")
    tables = [
        Table(
            "account",
            columns,
            [
                (row.topic, row.grp, row.sent, *(row[state] for state in STATES), row.residual, row.expired, row.copies)
                for row in counted
            ],
        )
    ]
    if listed:
        fields = ("topic", "grp", "msg_id", "reason", "explained", "state", "origin")
        total = sum(row.residual + row.expired for row in counted)
        tables.append(Table.of("residual, message by message", fields, listed, total))
    if broken:
        of_broken = ("topic", "reason", "records", "first_at", "sample")
        tables.append(Table.of("malformed records", of_broken, broken))
    if holes:
        of_gap = ("topic", "partition", "gap_from", "gap_to", "reason")
        tables.append(Table.of("gaps", of_gap, holes))
    return Report(
        job="audit",
        verdict=(
            f"residual {residual:,}; {parked:,} parked; {malformed_count:,} malformed; "
            f"at most {expired:,} deleted before they were landed"
        ),
        fine=not residual and not holes and not parked and not broken,
        tables=tuple(tables),
        bars=tuple((state, sum(row[state] for row in counted)) for state in STATES),
        notes=("acknowledged and pending are inferred from committed positions, read before the end offsets",),
    )
