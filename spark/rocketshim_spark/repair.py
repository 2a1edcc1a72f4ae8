"""Repair a lake: remove records that it holds twice, and gaps of records that it holds.

A landing makes neither. Earlier versions landed every record again when Spark's checkpoint was lost, and took records
for deleted ones when the path had brackets. A gap that was found while records were missing, for example in a table
that was restored from an old backup, is cut down to what is missing now.

Earlier versions of the tables stay readable until Delta's `VACUUM`.
"""

import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it

from rocketshim_spark.lake import (
    GAPS_SCHEMA,
    Gap,
    Landed,
    find_table,
    lake_folder,
    latest_version,
    read_landed,
    read_records,
)
from rocketshim_spark.land import add_records, missing_offsets
from rocketshim_spark.small_frames import small_frame

__all__ = ["Repair", "repair"]

_COORDINATES = ("topic", "partition", "offset")


@dataclass(frozen=True, slots=True)
class Repair:
    """What was wrong with a lake.

    Attributes:
        doubled: number of records that were there again.
        gaps: gaps of which records were there.
        version: version of the table `records` afterwards.
    """

    doubled: int
    gaps: tuple[Gap, ...]
    version: int | None


def repair(spark: SparkSession, lake: str, *, dry_run: bool = False) -> Repair:
    """Remove what is wrong with a lake, and return what it was.

    Args:
        spark: a session with Delta's jars.
        lake: the folder.
        dry_run: whether to change nothing.

    Raises:
        LakeError: nothing was landed into the folder.
        LandingFailedError: Spark failed, or a landing ran at the same time. Nothing was changed.

    Thread-safety: one call at a time per folder, and no landing.
    """
    lake = lake_folder(spark, lake)
    landed = read_landed(spark, lake)
    records = read_records(spark, lake)
    (counted,) = records.agg(F.count("*").alias("all"), F.count_distinct(*_COORDINATES).alias("once")).collect()
    doubled = counted["all"] - counted.once
    if doubled and not dry_run:
        # Sorted, so that each file holds few topics, and a job skips the files of others.
        once = records.dropDuplicates([*_COORDINATES]).repartitionByRange(*_COORDINATES)
        of_landing = Landed(landed.ends, landed.landing + 1, uuid.uuid4().hex)
        add_records(spark, lake, once.sortWithinPartitions(*_COORDINATES), of_landing, mode="overwrite")
    return Repair(doubled, _repair_gaps(spark, lake, dry_run=dry_run), latest_version(spark, lake))


def _repair_gaps(spark: SparkSession, lake: str, *, dry_run: bool) -> tuple[Gap, ...]:
    found = find_table(spark, f"{lake}/gaps")
    if found is None:
        return ()
    at = {
        Gap(row.topic, row.topic_id, row.partition, row.gap_from, row.gap_to, row.reason): row.found_at
        for row in found.orderBy(F.desc("found_at")).collect()
    }
    pieces = _pieces(spark, lake, at)
    wrong = sorted(gap for gap, left in pieces.items() if left != [gap])
    if wrong and not dry_run:
        rows = [
            (at[gap], each.topic, each.topic_id, each.partition, each.gap_from, each.gap_to, each.reason)
            for gap, left in pieces.items()
            for each in left
        ]
        small_frame(spark, rows, GAPS_SCHEMA).write.format("delta").mode("overwrite").save(f"{lake}/gaps")
    return tuple(wrong)


def _pieces(spark: SparkSession, lake: str, gaps: Iterable[Gap]) -> dict[Gap, list[Gap]]:
    """Return what is missing of each gap."""
    left = dict[Gap, list[Gap]]((gap, []) for gap in gaps)
    ranges = {(gap.topic, gap.partition, gap.gap_from, gap.gap_to) for gap in left}
    for *within, start, end in missing_offsets(spark, lake, sorted(ranges)):
        for gap in left:
            if [gap.topic, gap.partition, gap.gap_from, gap.gap_to] == within:
                left[gap].append(replace(gap, gap_from=start, gap_to=end))
    return left
