"""Choose which offsets to read next when partitions are read from their ends: window by window, newest first.

Kafka reads forward only. So a newest-first listing reads a window of the newest offsets of each partition, turns it
round, and goes on with the window before it. The first window is small, because the size of records is not known yet.
Each later window is at most 16 times as large, and is expected to be as large as one window may be in memory.

`newest_first` merges the partitions of a window by append time. The order of one partition is always that of its
offsets, so that the unread part of a partition is one span at any moment.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from typing import Any, Final

from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["FIRST_WINDOW_COUNT", "WINDOW_BYTES", "Spans", "newest_first", "next_window", "offset_count", "without"]

Spans = Mapping[TopicPartitionKey, tuple[int, int]]
"""Offsets by partition: from the first up to, but not including, the second."""

FIRST_WINDOW_COUNT: Final = 16
WINDOW_BYTES: Final = 4 * 1024 * 1024
_GROWTH: Final = 16


def offset_count(spans: Spans) -> int:
    """Return the number of offsets of these spans, an upper bound of the number of records."""
    return sum(max(0, end - start) for start, end in spans.values())


def next_window(rest: Spans, last_count: int, read_count: int, read_bytes: int, bytes_left: int | None) -> Spans:
    """Return the newest offsets of each partition to read next; the same number from each.

    `last_count` is the number of offsets of the last window, 0 for the first; `bytes_left` None: any number.
    """
    most_bytes = WINDOW_BYTES if bytes_left is None else min(WINDOW_BYTES, max(0, bytes_left))
    wanted = last_count * _GROWTH if last_count else FIRST_WINDOW_COUNT
    if read_bytes:
        wanted = min(wanted, most_bytes * read_count // read_bytes)
    each = max(1, wanted // max(1, len(rest)))
    return {key: (max(start, end - each), end) for key, (start, end) in rest.items() if start < end}


def without(rest: Spans, window: Spans) -> Spans:
    """Return what is left of `rest` when a window of its newest offsets has been read."""
    left = {key: (start, window[key][0] if key in window else end) for key, (start, end) in rest.items()}
    return {key: span for key, span in left.items() if span[0] < span[1]}


def newest_first(records: Iterable[Any]) -> Iterator[Any]:
    """Yield records by append time, newest first; records of one partition, given by offset, with the highest first."""
    lists: dict[tuple[str, int], list[Any]] = defaultdict(list)
    for record in records:
        lists[record.topic(), record.partition()].append(record)
    return merge(*(reversed(each) for each in lists.values()), key=lambda record: -record.timestamp()[1])
