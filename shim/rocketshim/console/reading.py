"""Read records within limits, and say how the reading ended.

For lists that people wait for: topics may be large, records too, and a leader may be away. A reading yields the newest
records first. It ends at the end of its spans, at a limit, or by an error, and `BoundedReading.ending` names which. An
incomplete list is never taken for a complete one. `BoundedReading.rest` is what was not read: another reading of it
continues without a gap and without repetition.

Rules:

* The limit of results counts matching records only. A search that finds nothing ends by bytes or by time.
* Bytes count keys, values and headers of every record that was read. The limit is exceeded by at most one window
  (`next_window`).
* A window is read as a whole before its records are yielded. A window that time cuts while it is read stays in `rest`,
  and nothing of it is yielded. One whose records turn out to be much larger than those before is read again, in
  smaller ones.
* Time is checked at least every 0.2 s while the cluster answers. A single lookup blocks for 10 s at most.

A cursor names what was not read: `PARTITION:START-END` for each partition, joined by `.`. The topic is in the page's
path, so a cursor made by hand can only name records that its user may read anyway.

Kafka reads forward only. So a newest-first listing reads a window of the newest offsets of each partition, turns it
round, and goes on with the window before it. The first window is small, because the size of records is not known yet.
Each later window is at most 16 times as large, and is expected to be as large as one window may be in memory, where a
small record takes thirty times its bytes: there it is a few objects for each of its headers. Windows
are merged by append time; the order of one partition is always that of its offsets, so that its unread part is one span
at any moment.
"""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from heapq import merge
from typing import Any, Final

from rocketshim.errors import ConfigError, RocketshimError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.errors import MalformedRecordError
from rocketshim_topics.wire import read_headers

__all__ = [
    "FIRST_WINDOW_COUNT",
    "WINDOW_BYTES",
    "BoundedReading",
    "Ending",
    "ReadLimits",
    "Spans",
    "newest_first",
    "next_window",
    "offset_count",
    "read_newest",
    "without",
]

Spans = Mapping[TopicPartitionKey, tuple[int, int]]
"""Offsets by partition: from the first up to, but not including, the second."""

FIRST_WINDOW_COUNT: Final = 16
WINDOW_BYTES: Final = 20 * 1024 * 1024
"""What the records of a window may take in memory."""

_GROWTH: Final = 16
_RECORD_BYTES: Final = 2_048  # of the objects of a record without headers, and of the client's copy; measured
_HEADER_BYTES: Final = 384


def offset_count(spans: Spans) -> int:
    """Return the number of offsets of these spans, an upper bound of the number of records."""
    return sum(max(0, end - start) for start, end in spans.values())


def next_window(
    rest: Spans,
    last_count: int,
    read_count: int,
    read_bytes: int,
    bytes_left: int | None,
    *,
    memory_bytes: int = 0,
) -> Spans:
    """Return the newest offsets of each partition to read next; the same number from each.

    `last_count` is the number of offsets of the last window, 0 for the first; `bytes_left` None: any number;
    `memory_bytes` is what the records that were read took in memory.
    """
    wanted = last_count * _GROWTH if last_count else FIRST_WINDOW_COUNT
    if memory_bytes:
        wanted = min(wanted, WINDOW_BYTES * read_count // memory_bytes)
    if read_bytes and bytes_left is not None:
        wanted = min(wanted, max(0, bytes_left) * read_count // read_bytes)
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


_SPAN: Final = re.compile(r"(\d{1,9}):(\d{1,18})-(\d{1,18})", re.ASCII)
_CHECK_EVERY: Final = 64
"""Records between two checks of time."""


class Ending(StrEnum):
    """How a reading ended."""

    END = "end"
    """Everything was read."""
    RESULTS = "results"
    """The limit of results was reached."""
    BYTES = "bytes"
    """The limit of bytes was reached."""
    TIME = "time"
    """The time was over."""
    ERROR = "error"
    """The cluster refused or did not answer; `BoundedReading.error` has the reason."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of a reading. None: no limit."""

    results: int | None = None  # most matching records
    size_bytes: int | None = None  # most bytes of records, matching or not
    time_s: float | None = None  # longest time from the first record requested, in seconds


class BoundedReading:
    """The matching records of some spans, newest first; iterate over it once.

    An error of the cluster ends the iteration; nothing is raised. When a record is yielded, it is no longer in `rest`.

    Thread-safety: none; the thread that owns the reader.
    """

    def __init__(
        self,
        reader: TopicReader,
        spans: Spans,
        *,
        limits: ReadLimits = ReadLimits(),
        matching: Callable[[Any], bool] = lambda _: True,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.ending: Ending | None = None  # None: it has not ended
        self.error: RocketshimError | None = None
        self.rest: Spans = {key: span for key, span in spans.items() if span[0] < span[1]}
        self.read_count = self.size_bytes = 0
        self.records: Any = ()  # the results, or what `read_newest` collected from them
        self._reader = reader
        self._limits = limits
        self._matching = matching
        self._monotonic_ns = monotonic_ns
        self._began_ns = monotonic_ns()
        self._total = offset_count(self.rest)
        self._memory_bytes = 0  # of all records that were read

    @property
    def cursor(self) -> str | None:
        """Return where to continue; None: everything was read."""
        left = sorted(self.rest.items())
        return ".".join(f"{key.partition}:{start}-{end}" for key, (start, end) in left) or None

    @property
    def fraction(self) -> float:
        """The part of the offsets that was read, from 0 to 1."""
        return (self._total - offset_count(self.rest)) / self._total if self._total else 1.0

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self._results()
        except RocketshimError as error:
            self.ending, self.error = Ending.ERROR, error

    def _results(self) -> Iterator[Any]:
        last_count = result_count = 0
        limits = self._limits
        while self.rest and not self._is_full(Ending.BYTES, self.size_bytes, limits.size_bytes):
            left = None if limits.size_bytes is None else limits.size_bytes - self.size_bytes
            done = self._total - offset_count(self.rest)
            window = next_window(self.rest, last_count, done, self.size_bytes, left, memory_bytes=self._memory_bytes)
            records = self._read(window)
            if self.ending is not None:
                return
            last_count, after = offset_count(window), without(self.rest, window)
            if records is None:
                last_count = max(1, last_count // (4 * _GROWTH))
                continue
            tried: dict[TopicPartitionKey, tuple[int, int]] = {}
            for number, record in enumerate(newest_first(records)):
                if number % _CHECK_EVERY == 0 and self._is_time_over():  # a condition may take long
                    self.rest = {**self.rest, **tried}
                    return
                key = TopicPartitionKey(record.topic(), record.partition())
                tried[key] = (self.rest[key][0], record.offset())
                if self._matching(record):
                    self.rest = {**self.rest, **tried}
                    result_count += 1
                    yield record
                    if self._is_full(Ending.RESULTS, result_count, limits.results):
                        return
            self.rest = after
        self.ending = self.ending or Ending.END

    def _read(self, window: Spans) -> list[Any] | None:
        """Return the records of a window; None: they take too much memory. `ending` says if the time is over."""
        records: list[Any] = []
        if self._is_time_over():
            return records
        most_bytes = self._memory_bytes + 2 * WINDOW_BYTES
        with closing(self._reader.read_spans(window, with_silence=True)) as reading:
            for record in reading:
                if record is not None:
                    headers = _headers(record)
                    size_bytes = record_bytes(record, headers)
                    self.read_count += 1
                    self.size_bytes += size_bytes
                    self._memory_bytes += 2 * size_bytes + _RECORD_BYTES + _HEADER_BYTES * len(headers)
                    records.append(record)
                    if self._memory_bytes > most_bytes and offset_count(window) > len(window):
                        return None
                if (record is None or self.read_count % _CHECK_EVERY == 0) and self._is_time_over():
                    break
        return records

    def _is_time_over(self) -> bool:
        time_s = self._limits.time_s
        is_over = time_s is not None and self._monotonic_ns() - self._began_ns >= time_s * 1e9
        if is_over:
            self.ending = Ending.TIME
        return is_over

    def _is_full(self, ending: Ending, count: int, most: int | None) -> bool:
        is_full = most is not None and count >= most
        if is_full:
            self.ending = ending
        return is_full


def _headers(record: Any) -> Sequence[tuple[str, bytes | None]]:
    """Return a record's headers; none if they cannot be read."""
    try:
        return read_headers(record) or ()
    except MalformedRecordError:
        return ()


def record_bytes(record: Any, headers: Iterable[tuple[str, bytes | None]]) -> int:
    """Return the bytes of a record's key, value and headers."""
    key = record.key()
    return (
        len(record)
        + (0 if key is None else len(key))
        + sum(len(name) + (0 if value is None else len(value)) for name, value in headers)
    )


def read_newest(
    reader: TopicReader,
    topics: list[str],
    matching: Callable[[Any], bool],
    limits: ReadLimits,
    *,
    since_ms: int | None = None,
    spans: Spans | None = None,
    cursor: str | None = None,
    collect: Callable[[Iterable[Any]], Any] = list,
) -> BoundedReading:
    """Read the newest matching records of these topics, or only of these spans; a cursor is of one topic.

    `collect` makes of the records what the page needs, one after the other, so that not all are in memory.
    """
    if cursor is not None:
        spans = _spans(topics[0], cursor)
    elif spans is None:
        spans = reader.spans(topics, since_ms=since_ms)
    reading = BoundedReading(reader, spans, limits=limits, matching=matching)
    reading.records = collect(reading)
    return reading


def _spans(topic: str, cursor: str) -> dict[TopicPartitionKey, tuple[int, int]]:
    spans = {}
    for text in cursor.split("."):
        found = _SPAN.fullmatch(text)
        if found is None:
            raise ConfigError("the position in the URL is not valid: begin again at the newest record")
        partition, start, end = map(int, found.groups())
        spans[TopicPartitionKey(topic, partition)] = (start, end)
    return spans
