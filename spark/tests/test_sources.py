"""The parts of `sources` that need no broker."""

import pytest

from rocketshim_spark.sources import Cluster, PartitionBounds, offsets_json, since
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.errors import ConfigError


def test_an_unknown_librdkafka_setting_is_named_in_the_error() -> None:
    with pytest.raises(ConfigError, match="nosuch"):
        Cluster("127.0.0.1:1", {"nosuch": "1"})


def test_changed_starts_stay_between_the_earliest_offset_and_the_end() -> None:
    bounds = [PartitionBounds("t", number, "id", 5, 5, 9) for number in range(4)]
    moved = since(bounds, {TopicPartitionKey("t", 0): 3, TopicPartitionKey("t", 1): 7, TopicPartitionKey("t", 2): 12})
    assert [each.start for each in moved] == [5, 7, 9, 5]
    assert [(each.earliest, each.end) for each in moved] == [(5, 9)] * 4


def test_offsets_are_formatted_for_spark() -> None:
    values = {TopicPartitionKey("a", 0): 1, TopicPartitionKey("a", 1): 2, TopicPartitionKey("b.c", 0): 3}
    assert offsets_json(values) == '{"a": {"0": 1, "1": 2}, "b.c": {"0": 3}}'
    assert offsets_json({TopicPartitionKey("a", 0): 0, TopicPartitionKey("a", 1): 1}, as_list=True) == '{"a": [0, 1]}'
