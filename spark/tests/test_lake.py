"""What a lake's checkpoint says about its batches."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from rocketshim_spark.errors import LakeError
from rocketshim_spark.lake import batch_positions
from rocketshim_topics.coordinates import TopicPartitionKey


def checkpoint(lake: Path, offsets: dict[int, str], commits: list[int]) -> str:
    for folder in ("offsets", "commits"):
        (lake / "checkpoint" / folder).mkdir(parents=True)
    for batch, ends in offsets.items():
        (lake / "checkpoint" / "offsets" / f"{batch}").write_text(f"v1\n{{}}\n{ends}")
    for batch in commits:
        (lake / "checkpoint" / "commits" / f"{batch}").write_text("v1\n{}")
    return str(lake)


@pytest.mark.parametrize(
    ("commits", "landed", "begun"),
    [([0, 1], {"a": 9}, {}), ([0], {"a": 5}, {"a": 9}), ([], {}, {"a": 9})],
)
def test_a_batch_that_was_begun_and_not_committed_is_known(
    spark: SparkSession, tmp_path: Path, commits: list[int], landed: dict[str, int], begun: dict[str, int]
) -> None:
    lake = checkpoint(tmp_path, {0: '{"a": {"0": 5}}', 1: '{"a": {"0": 9}}'}, commits)
    expected = [{TopicPartitionKey(topic, 0): end for topic, end in ends.items()} for ends in (landed, begun)]
    assert list(batch_positions(spark, lake)) == expected


def test_a_folder_without_a_checkpoint_has_no_batches_and_anothers_is_refused(
    spark: SparkSession, tmp_path: Path
) -> None:
    assert batch_positions(spark, str(tmp_path / "new")) == ({}, {})
    with pytest.raises(LakeError, match="batch 0, so it belongs to another query"):
        batch_positions(spark, checkpoint(tmp_path, {0: "7"}, [0]))
