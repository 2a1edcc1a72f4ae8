"""Windows from the newest offsets to the oldest cover every offset once."""

from hypothesis import given
from hypothesis import strategies as st

from rocketshim.console.reading import (
    FIRST_WINDOW_COUNT,
    WINDOW_BYTES,
    Spans,
    next_window,
    offset_count,
    without,
)
from rocketshim_topics.coordinates import TopicPartitionKey

A, B = TopicPartitionKey("orders", 0), TopicPartitionKey("orders", 1)


def test_the_first_window_is_small_and_the_second_sixteen_times_as_large() -> None:
    first = next_window({A: (0, 10_000)}, 0, 0, 0, None)
    assert first == {A: (10_000 - FIRST_WINDOW_COUNT, 10_000)}
    second = next_window(without({A: (0, 10_000)}, first), 16, 16, 1_600, None)
    assert second == {A: (10_000 - 16 - 256, 10_000 - 16)}


def test_a_window_is_expected_to_fit_into_memory_and_into_the_bytes_that_are_left() -> None:
    megabyte = 1_000_000
    large = next_window({A: (0, 10_000)}, 16, 16, 16 * megabyte, None, memory_bytes=32 * megabyte)
    assert offset_count(large) == WINDOW_BYTES // (2 * megabyte)
    little_left = next_window({A: (0, 10_000)}, 16, 16, 16 * megabyte, 2 * megabyte)
    assert offset_count(little_left) == 2


def test_each_partition_gives_the_same_number_of_offsets_and_at_least_one() -> None:
    assert next_window({A: (0, 100), B: (95, 100)}, 0, 0, 0, None) == {A: (92, 100), B: (95, 100)}
    assert next_window({A: (0, 100), B: (0, 100)}, 16, 16, 16_000_000_000, 1) == {A: (99, 100), B: (99, 100)}


@given(
    rest=st.dictionaries(
        st.sampled_from([A, B, TopicPartitionKey("bills", 0)]),
        st.tuples(st.integers(0, 500), st.integers(0, 500)).map(lambda pair: (min(pair), max(pair))),
    ),
    record_bytes=st.integers(0, 5_000_000),
)
def test_windows_cover_every_offset_once(rest: Spans, record_bytes: int) -> None:
    total, seen, last = offset_count(rest), [], 0
    while rest:
        memory_bytes = len(seen) * (record_bytes + 6_000)
        window = next_window(rest, last, len(seen), len(seen) * record_bytes, None, memory_bytes=memory_bytes)
        last = offset_count(window)
        seen += [(key, offset) for key, (start, end) in window.items() for offset in range(start, end)]
        rest = without(rest, window)
    assert len(seen) == len(set(seen)) == total
