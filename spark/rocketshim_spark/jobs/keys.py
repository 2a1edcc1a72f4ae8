"""Keys: find poison keys, keys whose order was broken, and how long their failures blocked a queue.

The job reads lifecycles (`rocketshim_spark.jobs.lineage`) and returns one row per group, topic and key. A message
*failed* if at least one attempt failed or it became dead, even if it was redriven since. *Consecutive* failures are
counted in the order of the first delivery, per partition.

`blocked_ms` is the time from the first delivery (or else the send) of the key's failed messages to their last record:
how long an orderly listener would have blocked.

`overtaken` counts the key's messages that were still being retried when a later message of the same partition had been
delivered and, judging by the committed position, handled. This is normal in concurrent groups. In a group that relies
on order it is a violation, and a finding if `orderly` names the group. What was handled is inferred. A dead letter
without a retry before it was not overtaken: an orderly listener retries in place, and the queue waits.

A key is *poison* if at least `min_failures` of its messages failed, and at least half of them.
"""

from typing import Final

from pydantic import BaseModel, ConfigDict, Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it
from pyspark.sql.window import Window

from rocketshim.core.user_values import count_text
from rocketshim_spark.jobs.lineage import DEAD, DELIVERED
from rocketshim_spark.report import MOST_ROWS, Report, Table, bytes_text

__all__ = ["KeyParams", "report", "transform"]

_BARS: Final = 20


class KeyParams(BaseModel):
    """The limits of a poison key, and the groups that need order.

    Attributes:
        min_failures: minimum number of failed messages of a poison key; 1 or more, default 3.
        orderly: groups that rely on message order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_failures: int = Field(default=3, ge=1)
    orderly: tuple[str, ...] = ()


def transform(lifecycles: DataFrame, params: KeyParams | None = None) -> DataFrame:
    """Return one row per group, topic and key.

    Args:
        lifecycles: as `lineage.transform` returns them.
        params: the limits; None: the defaults.

    Returns:
        grp, topic, key, messages, failed, dead, most_attempts, consecutive, blocked_ms, overtaken, failed_share (of the
        key's messages), share_of_all (of the group's failed messages with a key), poison, violation.

    Thread-safety: a pure function of the frame; nothing is read.
    """
    params = KeyParams() if params is None else params
    origin_parts = F.split("origin", "/")
    first = F.filter("history", lambda each: each["step"] == DELIVERED)
    of_key = ["grp", "topic", "key"]
    of_queue = [*of_key, "of_topic", "of_partition"]  # offsets of different topics have no order
    messages = lifecycles.filter(F.col("key").isNotNull() & F.col("grp").isNotNull()).select(
        *of_key,
        "state",
        "attempts",
        "last_at",
        F.get(origin_parts, F.lit(0)).alias("of_topic"),
        F.get(origin_parts, F.lit(1)).try_cast("int").alias("of_partition"),
        F.get(origin_parts, F.lit(2)).try_cast("bigint").alias("at"),
        F.coalesce(F.get(first, F.lit(0))["at"], F.col("first_sent")).alias("began_at"),
        F.exists("history", lambda each: each["attempt"] > 0).alias("failed"),
        F.exists("history", lambda each: (each["attempt"] > 0) & (each["step"] < DEAD)).alias("sent_back"),
    )
    in_order = Window.partitionBy(*of_queue).orderBy("at")
    handled_at = F.when(F.col("state") == "acknowledged", F.col("began_at"))
    # From the last to the first: a window that looks forward takes quadratic time in the messages of a key.
    from_last = Window.partitionBy(*of_queue).orderBy(F.desc("at"))
    later = F.min(handled_at).over(from_last.rowsBetween(Window.unboundedPreceding, -1))
    run = F.row_number().over(in_order) - F.row_number().over(Window.partitionBy(*of_queue, "failed").orderBy("at"))
    messages = messages.withColumns({"overtaken": F.col("sent_back") & (later < F.col("last_at")), "run": run})
    runs = messages.groupBy(*of_queue, "failed", "run").agg(
        F.count("*").alias("messages"),
        F.count_if(F.col("state") == "dead").alias("dead"),
        F.max("attempts").alias("attempts"),
        F.sum(F.unix_millis("last_at") - F.unix_millis("began_at")).alias("under_way_ms"),
        F.count_if("overtaken").alias("overtaken"),
    )
    failed = F.when(F.col("failed"), F.col("messages")).otherwise(0)
    keys = runs.groupBy(*of_key).agg(
        F.sum("messages").alias("messages"),
        F.sum(failed).alias("failed"),
        F.sum("dead").alias("dead"),
        F.max("attempts").alias("most_attempts"),
        F.max(failed).alias("consecutive"),
        F.sum(F.when(F.col("failed"), F.col("under_way_ms")).otherwise(0)).alias("blocked_ms"),
        F.sum("overtaken").alias("overtaken"),
    )
    all_failed = F.sum("failed").over(Window.partitionBy("grp"))
    return keys.select(
        "*",
        (F.col("failed") / F.col("messages")).alias("failed_share"),
        F.when(all_failed > 0, F.col("failed") / all_failed).otherwise(0.0).alias("share_of_all"),
        ((F.col("failed") >= params.min_failures) & (F.col("failed") * 2 >= F.col("messages"))).alias("poison"),
        (F.col("grp").isin(*params.orderly) & (F.col("overtaken") > 0)).alias("violation"),
    )


def report(found: DataFrame) -> Report:
    """Make the report of the keys, findings first: a poison key, and broken order in a group that relies on it.

    Args:
        found: as `transform` returns it.
    """
    fields = (
        *("grp", "topic", "key", "messages", "failed", "dead", "most_attempts", "consecutive", "blocked_ms"),
        *("overtaken", "failed_share", "share_of_all", "poison", "violation"),
    )
    is_listed = F.col("failed") > 0
    count, poison, overtaken, violations, listed = found.agg(
        F.count("*"),
        F.count_if("poison"),
        F.sum("overtaken"),
        F.sum(F.when(F.col("violation"), F.col("overtaken"))),
        F.count_if(is_listed),
    ).collect()[0]
    worst_first = (F.desc(F.col("violation") | F.col("poison")), F.desc("failed"), F.desc("blocked_ms"))
    rows = found.filter(is_listed).orderBy(*worst_first, "grp", "topic", "key").limit(MOST_ROWS).collect()
    return Report(
        job="keys",
        verdict=(
            f"{count_text(count, 'key')}: {poison:,} poison; {count_text(overtaken or 0, 'message')} overtaken, "
            f"{violations or 0:,} of them where order matters"
        ),
        fine=not poison and not violations,
        tables=(Table.of("keys with failures", fields, rows, listed),),
        bars=tuple((f"{row.topic} {bytes_text(row.key) or '(empty)'}", row.failed) for row in rows[:_BARS]),
        bars_title="failed messages by key",
        notes=("overtaken is inferred: committed positions show which messages were handled",),
    )
