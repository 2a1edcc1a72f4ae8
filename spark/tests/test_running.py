"""The folders to which report pages are written, and which topics a version of a lake contains."""

import datetime as dt
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from rocketshim_spark.lake import TOPICS_SCHEMA, Snapshot
from rocketshim_spark.running import OpenLake, local_folder
from rocketshim_spark.small_frames import small_frame

EARLIER = dt.datetime(2026, 11, 20, 6, 0, 0, 1, dt.UTC)
LATER = EARLIER + dt.timedelta(microseconds=1)


class TwoLandings(OpenLake):
    """A lake with a topic of an earlier landing, and one of a later landing."""

    def topics(self) -> DataFrame:
        return small_frame(self.spark, [("orders", "a", EARLIER), ("mails", "b", LATER)], TOPICS_SCHEMA)


@pytest.mark.parametrize(
    ("taken_at", "landed"), [(EARLIER, {"orders"}), (LATER, {"orders", "mails"}), (None, {"orders", "mails"})]
)
def test_a_topic_of_a_later_landing_is_not_landed_in_an_earlier_version(
    spark: SparkSession, taken_at: dt.datetime | None, landed: set[str]
) -> None:
    empty = spark.range(0)
    lake = TwoLandings(spark, "/lake", "", 0, "/out", empty, empty, empty, empty, Snapshot(taken_at, {}))
    assert lake.landed == landed


@pytest.mark.parametrize("path", ["/lake/a", "file:/lake/a", "file:///lake/a"])
def test_a_local_folder_is_recognised_in_every_notation(path: str) -> None:
    assert local_folder(path) == Path("/lake/a")


def test_a_relative_path_may_contain_a_colon_after_a_slash() -> None:
    assert local_folder("lake/a:b") == Path("lake/a:b")


@pytest.mark.parametrize("path", ["hdfs://name/lake", "hdfs:/lake", "s3a://bucket/lake", "viewfs://lake/a"])
def test_other_file_systems_have_no_local_folder(path: str) -> None:
    assert local_folder(path) is None
