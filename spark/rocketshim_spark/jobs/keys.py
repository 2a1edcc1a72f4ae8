"""Which keys are poison, which were overtaken, and how long they kept others waiting.

From lives (`rocketshim_spark.jobs.lineage`), one row per group, topic and key. A message *failed* if it failed at
least once, or died, also where it was redriven since. *Consecutive* failures are counted in the order of the first
delivery, per partition.

`blocked_ms` is how long failing messages of the key were under way, from their first delivery or send to their last
record: what an orderly listener would have waited.

`overtaken`: messages of the key that were still being retried when a later one of the same partition had been
delivered and, by the committed position, handled. That is how concurrent groups work; in a group that relies on order
it is a violation, and a finding where the group is named in `orderly`. What was handled is inferred. A dead letter
without any retry before it let nothing pass: an orderly listener tries in place, and the queue waits.

A key is *poison* if at least `min_failures` of its messages failed, and at least half of all.
"""

from typing import Final

from pydantic import BaseModel, ConfigDict, Field
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it
from pyspark.sql.window import Window

from rocketshim_spark.jobs.lineage import DEAD, DELIVERED
from rocketshim_spark.report import Report, Table

__all__ = ["KeyParams", "report", "transform"]

_LISTED: Final = 30


class KeyParams(BaseModel):
    """What counts as what.

    Attributes:
        min_failures: failed messages from which on a key can be poison; 1 or more, 3.
        orderly: groups that rely on order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_failures: int = Field(default=3, ge=1)
    orderly: tuple[str, ...] = ()


def transform(lifecycles: DataFrame, params: KeyParams | None = None) -> DataFrame:
    """One row per group, topic and key.

    Args:
        lifecycles: as `lineage.transform` makes them.
        params: what counts as what; None: the defaults.

    Returns:
        grp, topic, key, messages, failed, dead, most_attempts, consecutive, blocked_ms, overtaken, failed_share (of the
        key's messages), share_of_all (of the group's failed messages), poison, violation.

    Thread-safety: a pure function of the frame; nothing is read.
    """
    params = KeyParams() if params is None else params
    origin_parts = F.split("origin", "/")
    first = F.filter("history", lambda each: each["step"] == DELIVERED)
    of_key = ["grp", "topic", "key"]
    of_queue = [*of_key, "of_topic", "of_partition"]  # offsets of another topic say nothing about order
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
    # From the last back to the first: a frame that looks forward costs the square of a key's messages.
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
    """The worst keys, for a person. A finding: poison keys, and broken order in a group that relies on it.

    Args:
        found: as `transform` makes it.
    """
    fields = (
        *("grp", "topic", "key", "messages", "failed", "dead", "most_attempts", "consecutive", "blocked_ms"),
        *("overtaken", "failed_share", "share_of_all", "poison", "violation"),
    )
    count, poison, overtaken, violations = found.agg(
        F.count("*"), F.count_if("poison"), F.sum("overtaken"), F.sum(F.when(F.col("violation"), F.col("overtaken")))
    ).collect()[0]
    worst = found.filter("failed > 0").orderBy(F.desc("failed"), F.desc("blocked_ms"), "grp", "key").limit(_LISTED)
    rows = worst.collect()
    return Report(
        job="keys",
        verdict=(
            f"{count} keys: {poison} poison; {overtaken or 0} messages overtaken, "
            f"{violations or 0} of them where order matters"
        ),
        fine=not poison and not violations,
        tables=(Table("keys with failures", fields, [tuple(row[name] for name in fields) for row in rows]),),
        bars=tuple((f"{row.grp} {bytes(row.key).decode('utf-8', 'replace')}", row.failed) for row in rows[:20]),
        bars_title="failed messages by key",
        notes=("overtaken: what was handled is inferred from committed positions",),
    )
