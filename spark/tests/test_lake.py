"""What a lake's table says about how far it was landed, and the absolute path of a lake."""

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rocketshim_spark import lake as lake_module
from rocketshim_spark.lake import Landed, lake_folder, landing_note, read_landed
from rocketshim_spark.small_frames import small_frame
from rocketshim_topics.coordinates import TopicPartitionKey

ROWS = [("a", 0, 12), ("a", 0, 15), ("b", 3, 30)]
NOTED = Landed({TopicPartitionKey("a", 0): 17, TopicPartitionKey("c", 1): 0}, 4, "id", 2)


@pytest.mark.parametrize(
    ("commits", "landed"),
    [
        ([], Landed({}, 0)),
        ([(7, "WRITE", landing_note(NOTED), 2)], NOTED),
        ([(9, "DELETE", None, 0), (8, "OPTIMIZE", "me", 0), (7, "WRITE", landing_note(NOTED), 2)], NOTED),
        *(
            ([(8, operation, note, 0), (7, "WRITE", landing_note(NOTED), 2)], None)
            for operation, note in (
                ("RESTORE", None), ("WRITE", None), ("STREAMING UPDATE", "{}"), ("WRITE", "7"), ("WRITE", "{"),
                ("WRITE", json.dumps({"rocketshim": {"landing": 1, "id": "x", "ends": [1]}})),
            )
        ),
    ],
)  # fmt: skip
def test_the_newest_rows_say_how_far_a_lake_was_landed(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    commits: list[tuple[int, str, str | None, int]],
    landed: Landed | None,
) -> None:
    class Commit:
        def __init__(self, version: int, operation: str, note: str | None, rows: int) -> None:
            self.version, self.operation, self.userMetadata = version, operation, note
            self.operationMetrics = {"numOutputRows": str(rows)}

    monkeypatch.setattr(lake_module, "_commits", lambda *_: [Commit(*each) for each in commits])
    records = small_frame(spark, ROWS, "topic string, partition int, offset bigint")
    monkeypatch.setattr(lake_module, "read_records", lambda *_: records)
    of_rows = Landed({TopicPartitionKey("a", 0): 16, TopicPartitionKey("b", 3): 31}, 8)
    assert read_landed(spark, "lake") == (landed or of_rows)


@pytest.mark.parametrize("path", ["lake", "./lake/", "x/../lake"])
def test_a_relative_lake_begins_in_the_working_directory_of_python(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert lake_folder(spark, path) == str(tmp_path / "lake")


@pytest.mark.parametrize("path", ["/a/b", "s3a://bucket/lake", "hdfs:/a", "file:///a", "viewfs://t/shim"])
def test_a_lake_with_a_whole_path_is_taken_as_it_is(spark: SparkSession, path: str) -> None:
    assert lake_folder(spark, f"{path}/") == path


def test_a_relative_lake_in_another_file_system_begins_in_its_home_folder(spark: SparkSession, tmp_path: Path) -> None:
    hadoop = spark._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    mount = "fs.viewfs.mounttable.home.link./user"
    hadoop.set(mount, tmp_path.as_uri())
    hadoop.set("fs.defaultFS", "viewfs://home/")
    try:
        assert lake_folder(spark, "a/lake").startswith("viewfs://home/user/")
    finally:
        hadoop.set("fs.defaultFS", "file:///")
        hadoop.unset(mount)
