"""What a landing finds out about gaps, in how many queries."""

import pytest
from pyspark.sql import SparkSession

from rocketshim_spark import land as landing
from rocketshim_spark.errors import LandingFailedError
from rocketshim_spark.land import _bounds_to_read, _expired_while_landing
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
    found = _expired_while_landing(spark, "lake", after, starts, landed)
    assert [(gap.topic, gap.topic_id, gap.partition, gap.gap_from, gap.gap_to) for gap in found] == [
        ("a", "id of a", 0, 10, 12), ("a", "id of a", 0, 13, 15), ("a", "id of a", 0, 16, 17),
        ("a", "id of a", 1, 10, 11),
        ("b", "id of b", 0, 10, 30),
        ("d", "id of d", 0, 0, 5),
    ]  # fmt: skip
    assert queries == 1


def test_a_partition_that_ends_before_what_was_landed_is_refused() -> None:
    """The brokers have lost its last records, and other records have their offsets now."""
    before = [bounds("a", 0, 3), bounds("a", 1, 3)]
    landed = {TopicPartitionKey("a", 0): 100, TopicPartitionKey("a", 1): 101}
    (read,) = _bounds_to_read(before[:1], before[:1], landed)
    assert (read.start, read.end) == (100, 100)
    with pytest.raises(LandingFailedError, match=r"a/1 ends at offset 100, and was landed up to 101.*new folder"):
        _bounds_to_read(before, before, landed)


def test_a_landing_reads_from_the_earliest_offset_that_it_has_compared() -> None:
    """What retention deletes afterwards lies in the range, so that it is noticed."""
    read = _bounds_to_read([bounds("a", 0, 3)], [bounds("a", 0, 7), bounds("a", 1, 2)], {})
    assert [(each.partition, each.earliest, each.start, each.end) for each in read] == [(0, 3, 3, 100), (1, 2, 2, 100)]
