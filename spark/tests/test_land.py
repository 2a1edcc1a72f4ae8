"""What a landing finds out about gaps, in how many queries."""

import pytest
from pyspark.sql import SparkSession

from rocketshim_spark import land as landing
from rocketshim_spark.lake import Gap
from rocketshim_spark.land import _expired_while_landing, _next_after_rows
from rocketshim_spark.small_frames import small_frame
from rocketshim_spark.sources import PartitionBounds
from rocketshim_topics.coordinates import TopicPartitionKey

ROWS = [("a", 0, 12), ("a", 0, 15), ("a", 1, 11), ("b", 0, 30)]


def bounds(topic: str, partition: int, earliest: int) -> PartitionBounds:
    return PartitionBounds(topic, partition, f"id of {topic}", earliest, earliest, 100)


def test_what_expired_in_many_partitions_while_landing_is_found_in_one_query(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = 0

    def read_records(*_: object) -> object:
        nonlocal queries
        queries += 1
        return small_frame(spark, ROWS, "topic string, partition int, offset bigint")

    after = [bounds("a", 0, 17), bounds("a", 1, 12), bounds("b", 0, 40), bounds("c", 0, 3), bounds("d", 0, 5)]
    starts = dict.fromkeys((TopicPartitionKey(each.topic, each.partition) for each in after), 10)
    starts[TopicPartitionKey("d", 0)] = 0
    landed = {TopicPartitionKey("b", 0): 31, TopicPartitionKey("a", 1): 12}
    monkeypatch.setattr(landing, "read_records", read_records)
    monkeypatch.setattr(landing, "batch_positions", lambda *_: (landed, {}))
    found = _expired_while_landing(spark, "lake", after, starts)
    assert [(gap.topic, gap.topic_id, gap.partition, gap.gap_from, gap.gap_to) for gap in found] == [
        ("a", "id of a", 0, 10, 12), ("a", "id of a", 0, 13, 15), ("a", "id of a", 0, 16, 17),
        ("a", "id of a", 1, 10, 11),
        ("b", "id of b", 0, 10, 30),
        ("d", "id of d", 0, 0, 5),
    ]  # fmt: skip
    assert queries == 1


def test_only_rows_inside_a_gap_move_where_it_begins(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A position lies behind its last row where transaction markers follow: that is no gap."""
    rows = small_frame(spark, ROWS, "topic string, partition int, offset bigint")
    monkeypatch.setattr(landing, "read_records", lambda *_: rows)
    monkeypatch.setattr(landing, "latest_version", lambda *_: 1)
    gaps = [Gap("a", "id of a", 0, 10, 15, "expired"), Gap("a", "id of a", 1, 12, 20, "expired")]
    assert _next_after_rows(spark, "lake", gaps) == {TopicPartitionKey("a", 0): 13}
