"""Opening letters: what a record of a dead-letter topic says, by the rules that hold in that topic.

A topic of the shim's own holds letters in the wire format; any other one other projects' (`dead_letter_formats`), or
records in which nothing is recognised: they are shown, and can be discarded, but not sent again, since they do not say
where to.

A dialect that copies neither headers nor, perhaps, the body is completed from the place of the first delivery, if a way
to fetch records is given: `source-gone` if there is no record any more and the letter holds no body.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rocketshim.admin.dead_letter_formats import read_foreign
from rocketshim.errors import MalformedRecordError
from rocketshim_topics import Envelope, Record, TopicNames, decode
from rocketshim_topics.wire import read_headers

__all__ = ["DeadLetterRecord", "Decoder"]

Fetch = Callable[[str, int, int], Any]
"""The record at topic, partition and offset; None: there is none (any more)."""


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A letter as far as it could be read.

    Attributes:
        message: the record as read.
        record: what would be sent again: the same place, with key and value of the first delivery.
        envelope: what it says; empty where it breaks the wire format.
        malformed: why it could not be read; None: it could.
        dialect: whose it is; None: ours.
    """

    message: Record
    record: Record
    envelope: Envelope
    malformed: str | None = None
    dialect: str | None = None


class Decoder:
    """Opens the letters of one topic.

    Args:
        names: of the namespace.
        topic: physical name.
        fetch: how a record of another topic is read; None: letters are not completed.

    Thread-safety: none.
    """

    def __init__(self, names: TopicNames, topic: str, *, fetch: Fetch | None = None) -> None:
        self.topic = topic
        self.is_ours = names.is_ours(topic)
        self._fetch = fetch

    def open(self, message: Record) -> DeadLetterRecord:
        """What a record of the topic says."""
        try:
            headers = read_headers(message)
            if self.is_ours:
                return DeadLetterRecord(message, message, decode(headers, trusted=True))
        except MalformedRecordError as error:
            return DeadLetterRecord(message, message, Envelope(), error.reason, None if self.is_ours else "unknown")
        found = read_foreign(headers)
        if found is None:
            return DeadLetterRecord(message, message, decode(headers, trusted=False), dialect="unknown")
        name, envelope = found.dialect.name, found.envelope
        if not found.dialect.by_reference or self._fetch is None or found.source is None:
            return DeadLetterRecord(message, message, envelope, dialect=name)
        first = self._fetch(envelope.retry_topic or "", *found.source)
        if first is None:
            return DeadLetterRecord(
                message, message, envelope, None if message.value() is not None else "source-gone", name
            )
        try:
            kept = decode(read_headers(first), trusted=False)
        except MalformedRecordError as error:
            return DeadLetterRecord(message, message, envelope, error.reason, name)
        envelope.user, envelope.tags, envelope.keys = kept.user, kept.tags, kept.keys
        envelope.uniq_key = kept.uniq_key or envelope.uniq_key
        envelope.born_timestamp_ms = kept.born_timestamp_ms
        return DeadLetterRecord(message, _Completed(message, first), envelope, dialect=name)


class _Completed:
    """A letter with key and value of the record it is about."""

    def __init__(self, letter: Record, first: Record) -> None:
        self._letter = letter
        self._first = first

    def topic(self) -> str | None:
        return self._letter.topic()

    def partition(self) -> int | None:
        return self._letter.partition()

    def offset(self) -> int | None:
        return self._letter.offset()

    def key(self) -> Any:
        return self._first.key()

    def value(self) -> Any:
        return self._first.value()

    def headers(self) -> Any:
        return read_headers(self._first)

    def timestamp(self) -> tuple[int, int]:
        return self._first.timestamp()
