"""Decode dead letters by the format of their topic.

rocketshim's own topics contain dead letters in its wire format. Any other topic contains dead letters of other projects
(`dead_letter_formats`), or records in no known format. The latter can be shown and discarded, but not sent again,
because they do not name a target.

Some dialects do not copy the headers, and perhaps not the body. Their dead letters are completed from the record of the
first delivery, if a way to fetch records is given. The dead letter is malformed with `source-gone` if that record no
longer exists and the dead letter has no body.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rocketshim.admin.dead_letter_formats import read_foreign
from rocketshim.errors import ConfigError, MalformedRecordError
from rocketshim_topics import Envelope, Record, TopicNames, decode
from rocketshim_topics.names import check_topic
from rocketshim_topics.wire import read_headers

__all__ = ["DeadLetterRecord", "Decoder"]

Fetch = Callable[[str, int, int], Any]
"""Returns the record at topic, partition and offset; None if it does not exist (any more)."""


@dataclass(frozen=True, slots=True)
class DeadLetterRecord:
    """A dead letter, decoded as far as possible.

    * `record`: what would be sent again: same topic, partition and offset, with key and value of the first delivery.
    """

    message: Record  # the record as read
    record: Record
    envelope: Envelope  # the decoded headers; empty if the record breaks the wire format
    malformed: str | None = None  # why it could not be decoded; None: it could
    dialect: str | None = None  # name of the other project's format; None: rocketshim's own


class Decoder:
    """Decodes the dead letters of one topic.

    Args:
        fetch: reads a record of another topic; None: dead letters are not completed.

    Thread-safety: none.
    """

    def __init__(self, names: TopicNames, topic: str, *, fetch: Fetch | None = None) -> None:
        self.topic = topic
        self.is_ours = names.is_ours(topic)
        self._fetch = fetch

    def open(self, message: Record) -> DeadLetterRecord:
        """Decode a record of the topic."""
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
        try:
            first = self._fetch(check_topic(envelope.retry_topic or ""), *found.source)
        except ConfigError:
            first = None
        if first is None:
            return DeadLetterRecord(
                message, message, envelope, None if message.value() is not None else "source-gone", name
            )
        try:
            original = decode(read_headers(first), trusted=False)
        except MalformedRecordError as error:
            return DeadLetterRecord(message, message, envelope, error.reason, name)
        envelope.user, envelope.tags, envelope.keys = original.user, original.tags, original.keys
        envelope.uniq_key = original.uniq_key or envelope.uniq_key
        envelope.born_timestamp_ms = original.born_timestamp_ms
        return DeadLetterRecord(message, _Completed(message, first), envelope, dialect=name)


class _Completed:
    """A dead letter with the key, value, headers and timestamp of the record that it refers to."""

    def __init__(self, dead_letter: Record, first: Record) -> None:
        self._dead_letter = dead_letter
        self._first = first

    def topic(self) -> str | None:
        return self._dead_letter.topic()

    def partition(self) -> int | None:
        return self._dead_letter.partition()

    def offset(self) -> int | None:
        return self._dead_letter.offset()

    def key(self) -> Any:
        return self._first.key()

    def value(self) -> Any:
        return self._first.value()

    def headers(self) -> Any:
        return read_headers(self._first)

    def timestamp(self) -> tuple[int, int]:
        return self._first.timestamp()
