"""Keys go where Kafka's default partitioner sends them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rocketshim_topics import ConfigError, lane_for, murmur2, partition_for


@pytest.mark.parametrize(
    ("data", "signed"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_has_the_values_of_kafka_s_own_test(data: bytes, signed: int) -> None:
    assert murmur2(data) == signed % 2**32


@given(st.binary(max_size=40), st.integers(1, 200))
def test_partition_is_in_range_and_positive_as_java_makes_it(key: bytes, count: int) -> None:
    signed = murmur2(key) - 2**32 if murmur2(key) >= 2**31 else murmur2(key)
    assert partition_for(key, count) == (signed & 0x7FFFFFFF) % count
    assert 0 <= partition_for(key, count) < count
    assert lane_for(key, count) == partition_for(key, count)


@pytest.mark.parametrize("count", [0, -1])
def test_no_partition_among_none(count: int) -> None:
    with pytest.raises(ConfigError):
        partition_for(b"k", count)
    with pytest.raises(ConfigError):
        lane_for(b"k", count)
