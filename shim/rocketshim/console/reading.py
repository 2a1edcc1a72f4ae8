"""Read some records of a topic, newest first, within the limits of a page; and say how the reading ended.

A cursor names what was not read: `PARTITION:START-END` for each partition, joined by `.`. The topic is in the page's
path, so a cursor made by hand can only name records that its user may read anyway.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from rocketshim.console.context import Console
from rocketshim.core.read_windows import Spans
from rocketshim.errors import ConfigError
from rocketshim.kafka.bounded_reading import BoundedReading, Ending
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["ReadRecords", "read_newest"]

_SPAN: Final = re.compile(r"(\d{1,9}):(\d{1,18})-(\d{1,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ReadRecords:
    """What a page has read."""

    records: Any  # the matching records, newest first; or what was collected from them
    ending: Ending  # how the reading ended
    error: str | None  # why it failed; None: it did not
    read: int  # number of records read, matching or not
    size_bytes: int  # their size
    fraction: float  # how much of what was asked for was read, from 0 to 1
    cursor: str | None  # where to continue; None: everything was read


def read_newest(
    console: Console,
    reader: TopicReader,
    topics: list[str],
    matching: Callable[[Any], bool],
    *,
    results: int,
    since_ms: int | None = None,
    spans: Spans | None = None,
    cursor: str | None = None,
    collect: Callable[[Iterable[Any]], Any] = list,
) -> ReadRecords:
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
    reading = BoundedReading(reader, spans, limits=console.limits(results), matching=matching)
    records = collect(reading)
    ending = reading.ending or Ending.END
    left = ".".join(f"{key[1]}:{start}-{end}" for key, (start, end) in sorted(reading.rest.items()))
    error = None if reading.error is None else str(reading.error)
    return ReadRecords(records, ending, error, reading.read_count, reading.size_bytes, reading.fraction, left or None)


def _spans(topic: str, cursor: str) -> dict[TopicPartitionKey, tuple[int, int]]:
    spans = {}
    for text in cursor.split("."):
        found = _SPAN.fullmatch(text)
        if found is None:
            raise ConfigError("the position in the URL is not valid: begin again at the newest record")
        partition, start, end = map(int, found.groups())
        spans[TopicPartitionKey(topic, partition)] = (start, end)
    return spans
