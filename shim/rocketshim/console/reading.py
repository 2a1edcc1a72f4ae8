"""Read records within limits, and say how the reading ended.

For lists that people wait for: topics may be large, records too, and a leader may be away. A reading yields the newest
records first. It ends at the end of its spans, at a limit, or by an error, and `BoundedReading.ending` names which. An
incomplete list is never taken for a complete one. `BoundedReading.rest` is what was not read: another reading of it
continues without a gap and without repetition.

Rules:

* The limit of results counts matching records only. A search that finds nothing ends by bytes or by time.
* Bytes count keys, values and headers of every record that was read. The limit is exceeded by at most one window
  (`rocketshim.core.read_windows`).
* A window is read as a whole before its records are yielded. A window that time cuts stays in `rest`, and nothing of it
  is yielded.
* Time is checked at least every 0.2 s while the cluster answers. A single lookup blocks for 10 s at most.

A cursor names what was not read: `PARTITION:START-END` for each partition, joined by `.`. The topic is in the page's
path, so a cursor made by hand can only name records that its user may read anyway.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from rocketshim.core.read_windows import Spans, newest_first, next_window, offset_count, without
from rocketshim.errors import ConfigError, RocketshimError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.errors import MalformedRecordError
from rocketshim_topics.wire import read_headers

__all__ = ["BoundedReading", "Ending", "ReadLimits", "read_newest"]

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

    Args:
        spans: what to read (`TopicReader.spans`, or the `rest` of another reading).
        limits: limits; default none.
        matching: returns whether a record is a result; default: every record is.
        monotonic_ns: the clock of `limits.time_s`.

    Attributes:
        ending: how the reading ended; None: it has not ended.
        error: the error with `Ending.ERROR`. Iteration ends then; nothing is raised.
        rest: what was not read. When a record is yielded, it is no longer in `rest`.
        read_count: number of records read, matching or not.
        size_bytes: bytes of keys, values and headers of the records read.
        records: the results, or what was collected from them; set by `read_newest`.

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
        self.ending: Ending | None = None
        self.error: RocketshimError | None = None
        self.rest: Spans = {key: span for key, span in spans.items() if span[0] < span[1]}
        self.read_count = self.size_bytes = 0
        self.records: Any = ()
        self._reader = reader
        self._limits = limits
        self._matching = matching
        self._monotonic_ns = monotonic_ns
        self._began_ns = monotonic_ns()
        self._total = offset_count(self.rest)

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
            window = next_window(self.rest, last_count, done, self.size_bytes, left)
            records = self._read(window)
            if self.ending is not None:
                return
            last_count, after = offset_count(window), without(self.rest, window)
            for record in newest_first(records):
                if self._matching(record):
                    key = TopicPartitionKey(record.topic(), record.partition())
                    self.rest = {**self.rest, key: (self.rest[key][0], record.offset())}
                    result_count += 1
                    yield record
                    if self._is_full(Ending.RESULTS, result_count, limits.results):
                        return
            self.rest = after
        self.ending = self.ending or Ending.END

    def _read(self, window: Spans) -> list[Any]:
        """Return the records of a window; if the time is over before its end, `ending` says so."""
        records: list[Any] = []
        if self._is_time_over():
            return records
        with closing(self._reader.read_spans(window, with_silence=True)) as reading:
            for record in reading:
                if record is not None:
                    self.read_count += 1
                    self.size_bytes += record_bytes(record)
                    records.append(record)
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


def record_bytes(record: Any) -> int:
    """Return the bytes of a record's key, value and headers; headers that cannot be read do not count."""
    try:
        headers = read_headers(record) or ()
    except MalformedRecordError:
        headers = ()
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
    """Read the newest matching records.

    * `topics`: physical names; one, if there is a cursor.
    * `since_ms`: ignore records stored before, epoch ms; None: none.
    * `spans`: read only these offsets; None: all of the topics.
    * `cursor`: continue there; None: at the end of the topics.
    * `collect`: makes of the records what the page needs, one after the other, so that not all are in memory.

    Raises:
        ConfigError: the cursor is not valid.
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
