"""Read records within limits, and say how the reading ended.

For listings and searches that people wait for: topics may be large, records too, and a leader may be away. A reading
ends at the end of its spans, at a limit, when it is cancelled, or by an error, and `BoundedReading.ending` names which.
An incomplete list is never taken for a complete one. `BoundedReading.rest` is what was not read: another reading of it
continues without a gap and without repetition.

Rules:

* Limits on results count matching records only. A search that finds nothing ends by bytes or by time.
* Bytes count keys, values and headers of every record that was read. Oldest first, the limit is exceeded by at most one
  record; newest first by at most one window (`rocketshim.core.read_windows`).
* Newest first, a window is read as a whole before its records are yielded. A window that time or a cancellation cuts
  stays in `rest`, and nothing of it is yielded.
* Cancellation and time are checked at least every 0.2 s while the cluster answers. A single lookup blocks for 10 s at
  most.
"""

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Self

from rocketshim.core.read_windows import Spans, newest_first, next_window, offset_count, without
from rocketshim.errors import RocketshimError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.errors import MalformedRecordError
from rocketshim_topics.wire import read_headers

__all__ = ["BoundedReading", "Ending", "ReadLimits", "ReadProgress"]

_CHECK_EVERY: Final = 64
"""Records between two checks: of time, of cancellation, and calls of `on_progress`."""


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
    STOPPED = "stopped"
    """It was cancelled or closed."""
    ERROR = "error"
    """The cluster refused or did not answer; `BoundedReading.error` has the reason."""


@dataclass(frozen=True, slots=True)
class ReadLimits:
    """Limits of a reading. None: no limit.

    Attributes:
        results: most matching records.
        size_bytes: most bytes of records, matching or not.
        time_s: longest time from the first record requested, in seconds.
    """

    results: int | None = None
    size_bytes: int | None = None
    time_s: float | None = None


@dataclass(frozen=True, slots=True)
class ReadProgress:
    """How far a reading is.

    Attributes:
        records: records read.
        results: records yielded: those that match.
        size_bytes: bytes of keys, values and headers of the records read.
        offsets_done: offsets passed.
        offsets_total: offsets of the spans to read.
        elapsed_s: seconds since the reading began.
    """

    records: int = 0
    results: int = 0
    size_bytes: int = 0
    offsets_done: int = 0
    offsets_total: int = 0
    elapsed_s: float = 0.0

    @property
    def fraction(self) -> float:
        """Return the part of the offsets that is done, from 0 to 1."""
        return self.offsets_done / self.offsets_total if self.offsets_total else 1.0


class BoundedReading:
    """An iterator over the matching records of some spans.

    Args:
        reader: reads the records; one reading at a time.
        spans: what to read (`TopicReader.spans`, or the `rest` of another reading).
        limits: limits; default none.
        newest_first: yield the newest records first, window by window; default False: in the order of offsets.
        matching: returns whether a record is a result; default: every record is.
        cancel: returns whether to stop, for example `Event.is_set`. Any thread may set that event.
        on_progress: gets the progress after every 64 records and while none arrives. It may wait, to limit the rate.
        monotonic_ns: the clock of `limits.time_s` and of the progress.

    Attributes:
        ending: how the reading ended; None: it has not ended.
        error: the error with `Ending.ERROR`. Iteration ends then; nothing is raised.
        rest: what was not read. With a record that was yielded, everything before it is read.

    Thread-safety: none; the thread that owns the reader. A context manager; `close` is idempotent.
    """

    def __init__(
        self,
        reader: TopicReader,
        spans: Spans,
        *,
        limits: ReadLimits = ReadLimits(),
        newest_first: bool = False,
        matching: Callable[[Any], bool] = lambda _: True,
        cancel: Callable[[], bool] = lambda: False,
        on_progress: Callable[[ReadProgress], None] = lambda _: None,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.ending: Ending | None = None
        self.error: RocketshimError | None = None
        self.rest: Spans = {key: span for key, span in spans.items() if span[0] < span[1]}
        self._reader = reader
        self._limits = limits
        self._matching = matching
        self._cancel = cancel
        self._on_progress = on_progress
        self._monotonic_ns = monotonic_ns
        self._began_ns = monotonic_ns()
        self._total = offset_count(self.rest)
        self._records = self._results = self._size_bytes = 0
        self._yields = self._from_the_newest() if newest_first else self._from_the_oldest()

    @property
    def progress(self) -> ReadProgress:
        """Return how far the reading is."""
        elapsed_s = (self._monotonic_ns() - self._began_ns) / 1e9
        done = self._total - offset_count(self.rest)
        return ReadProgress(self._records, self._results, self._size_bytes, done, self._total, elapsed_s)

    def close(self) -> None:
        """Stop reading; a reading that has not ended ends as stopped."""
        self._yields.close()
        self.ending = self.ending or Ending.STOPPED

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._yields)
        except StopIteration:
            raise
        except RocketshimError as error:
            self.ending, self.error = Ending.ERROR, error
            raise StopIteration from None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _from_the_oldest(self) -> Generator[Any]:
        rest = self.rest = dict(self.rest)
        for record in self._within_limits(self.rest):
            key = TopicPartitionKey(record.topic(), record.partition())
            rest[key] = (record.offset() + 1, rest[key][1])
            if self._is_result(record):
                yield record
            if self._is_full(Ending.RESULTS, self._results, self._limits.results):
                return
            if self._is_full(Ending.BYTES, self._size_bytes, self._limits.size_bytes):
                return
        self._end_of(rest)

    def _from_the_newest(self) -> Generator[Any]:
        last_count = 0
        limits = self._limits
        while self.rest and not self._is_full(Ending.BYTES, self._size_bytes, limits.size_bytes):
            left = None if limits.size_bytes is None else limits.size_bytes - self._size_bytes
            done = self._total - offset_count(self.rest)
            window = next_window(self.rest, last_count, done, self._size_bytes, left)
            records = list(self._within_limits(window))
            if self.ending is not None:
                return
            last_count, after = offset_count(window), without(self.rest, window)
            for record in newest_first(records):
                key = TopicPartitionKey(record.topic(), record.partition())
                if self._is_result(record):
                    self.rest = {**self.rest, key: (self.rest[key][0], record.offset())}
                    yield record
                    if self._is_full(Ending.RESULTS, self._results, limits.results):
                        return
            self.rest = after
        if self.ending is None:
            self._end_of({})

    def _within_limits(self, spans: Spans) -> Iterator[Any]:
        """Yield the records of these spans until time is over or the reading is cancelled."""
        if self._must_stop():
            return
        reading = self._reader.read_spans(spans, with_silence=True)
        try:
            for record in reading:
                if record is not None:
                    self._records += 1
                    self._size_bytes += record_bytes(record)
                    yield record
                if (record is None or self._records % _CHECK_EVERY == 0) and self._must_stop():
                    return
        finally:
            reading.close()

    def _must_stop(self) -> bool:
        self._on_progress(self.progress)
        if self._cancel():
            self.ending = Ending.STOPPED
        elif self._limits.time_s is not None and self._monotonic_ns() - self._began_ns >= self._limits.time_s * 1e9:
            self.ending = Ending.TIME
        return self.ending is not None

    def _is_result(self, record: Any) -> bool:
        matches = self._matching(record)
        self._results += matches
        return matches

    def _is_full(self, ending: Ending, count: int, most: int | None) -> bool:
        if most is not None and count >= most and self.ending is None:
            self.ending = ending
        return self.ending is ending

    def _end_of(self, rest: Spans) -> None:
        if self.ending is None:
            self.ending, self.rest = Ending.END, {}
        else:
            self.rest = {key: span for key, span in rest.items() if span[0] < span[1]}


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
