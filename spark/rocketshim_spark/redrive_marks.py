"""The marks of the redrive log: which dead letters were sent again or discarded.

A dead letter is *settled* once it was sent again (`redriven`) or discarded.
"""

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it

from rocketshim_spark.small_frames import small_frame
from rocketshim_topics import TopicNames

__all__ = ["empty_settled", "join_settled", "settled"]

_SETTLED: Final = (
    "topic string, partition int, offset bigint, digest string, state string, settled_by string, settled_at timestamp"
)
_MARK: Final = "v int, kind string, source string, plan string, state string, letters array<array<string>>"


def settled(records: DataFrame, namespace: str = "") -> DataFrame:
    """Return the last mark of each dead letter in the redrive log (docs/wire-format.md), from any writer.

    Args:
        records: as for `rocketshim_spark.events.transform`; only records of the redrive log are used. Marks of an
            unknown version are ignored here; `Redriver`, which sends dead letters, stops at them.
        namespace: namespace of the shim's topics.

    Returns:
        topic, partition, offset and digest of the dead letter, state (`redriven`, `discarded`), settled_by (id of the
        plan), settled_at (Kafka timestamp of the mark).

    Thread-safety: a pure function of the frame; nothing is read.
    """
    mark = F.from_json(F.make_valid_utf8(F.col("value").cast("string")), _MARK).alias("mark")
    letter = F.explode("mark.letters").alias("letter")
    columns = [F.col("mark.source").alias("topic")]
    for index, (name, kind) in enumerate((("partition", "int"), ("offset", "bigint"), ("digest", "string"))):
        columns.append(F.get("letter", F.lit(index)).try_cast(kind).alias(name))
    return (
        records.filter(F.col("topic") == TopicNames(namespace).redrive_log)
        .select(mark, F.col("offset").alias("at"), "timestamp")
        .filter("mark.v = 1 AND mark.kind = 'mark' AND mark.state IN ('redriven', 'discarded')")
        .select("mark", letter, "at", "timestamp")
        .select(*columns, "mark.state", F.col("mark.plan").alias("settled_by"), "at", "timestamp")
        .groupBy("topic", "partition", "offset")
        .agg(
            F.max_by(F.struct("digest", "state", "settled_by", F.col("timestamp").alias("settled_at")), "at").alias(
                "last"
            )
        )
        .select("topic", "partition", "offset", "last.*")
    )


def empty_settled(spark: SparkSession) -> DataFrame:
    """Return the result of `settled` for an empty redrive log."""
    return small_frame(spark, [], _SETTLED)


def join_settled(letters: DataFrame, settled: DataFrame) -> DataFrame:
    """Join dead letters with their marks in the redrive log.

    Args:
        letters: events of kind `dlq`.
        settled: as `settled` returns it.

    Returns:
        the dead letters, each with state, settled_by and settled_at. They are null without a mark, and where the mark's
        digest is that of another record.

    Thread-safety: a pure function of the frames.
    """
    mark_columns = ("state", "settled_by", "settled_at")
    marks = settled.select(
        "topic", "partition", "offset", F.col("digest").alias("meant"), F.struct(*mark_columns).alias("mark")
    )
    joined = letters.join(marks, ["topic", "partition", "offset"], "left")
    is_meant = (F.col("meant") == F.col("digest")) | (F.col("meant") == F.col("digest_unread"))
    return joined.withColumns({name: F.when(is_meant, F.col(f"mark.{name}")) for name in mark_columns}).drop(
        "meant", "mark"
    )
