"""A message between `produce` and its delivery report, and the conversion of arguments as in librdkafka.

Pure. Sizes are librdkafka's: 36 bytes of overhead, key, value, and each header with two varint lengths (measured to the
byte on 2.16).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from confluent_kafka import OFFSET_INVALID, TIMESTAMP_NOT_AVAILABLE, KafkaError, Message

from rocketshim.testing.partition_log import Headers, StoredRecord

__all__ = ["BATCH_OVERHEAD_BYTES", "CLIENT_OVERHEAD_BYTES", "DeliveryCallback", "Outgoing", "to_headers", "to_payload"]

DeliveryCallback = Callable[[KafkaError | None, Message], Any]
CLIENT_OVERHEAD_BYTES = 36
BATCH_OVERHEAD_BYTES = 61
"""Header of a record batch, format 2."""


@dataclass(slots=True)
class Outgoing:
    """A message in the queue of its producer."""

    topic: str
    partition: int  # −1 until one is chosen
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    callback: DeliveryCallback | None
    queued_ns: int
    is_done: bool = False  # the outcome is known, and only the report is pending
    error: KafkaError | None = None  # of the report; None: the message is stored
    stored: StoredRecord | None = None
    duplicate_offset: int | None = None

    def succeed(self, record: StoredRecord) -> None:
        """Record that the message is stored."""
        self.is_done, self.stored = True, record

    def fail(self, error: KafkaError) -> None:
        """Record that the message failed; it may or may not be stored."""
        self.is_done, self.error = True, error

    def succeed_as_duplicate(self, offset: int) -> None:
        """The broker called its batch a duplicate, which counts as stored; its offset is its number there, from -1."""
        self.is_done, self.duplicate_offset = True, offset

    def size_bytes(self) -> int:
        """Return the size that librdkafka compares with `message.max.bytes`."""
        headers = sum(_text_bytes(name.encode()) + _text_bytes(value or b"") for name, value in self.headers)
        return CLIENT_OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"") + headers

    def report(self) -> Message:
        """Return the message for the delivery callback: without headers, and without offset and time if it failed."""
        is_stored = self.stored is not None and self.error is None and self.duplicate_offset is None
        no_offset = OFFSET_INVALID if self.duplicate_offset is None else self.duplicate_offset
        stamp = (self.stored.timestamp_type, self.stored.timestamp_ms) if self.stored and is_stored else None
        return Message(
            topic=self.topic,
            partition=self.partition,
            offset=self.stored.offset if self.stored and is_stored else no_offset,
            key=self.key,
            value=self.value,
            error=self.error,
            timestamp=stamp or (TIMESTAMP_NOT_AVAILABLE, -1),
            latency=0.0 if self.duplicate_offset is None else 1.0,  # such a report follows a retry
        )


def to_payload(value: object) -> bytes | None:
    """Return a key or value as bytes; raise a `TypeError` as the client does."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"a bytes-like object is required, not '{type(value).__name__}'")


def to_headers(headers: object) -> Headers:
    """Return headers as they are stored: names become text and end at NUL, text values become UTF-8."""
    if headers is None:
        return ()
    if isinstance(headers, dict):
        return tuple(_to_header(pair) for pair in headers.items())
    if isinstance(headers, list):
        return tuple(_to_header(pair) for pair in headers)
    raise TypeError(f"expected headers to be dict or list of (key, value) tuples, not {type(headers).__name__}")


def _to_header(pair: Any) -> tuple[str, bytes | None]:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError("Headers are expected to be a list of (key, value) tuples")
    name, value = pair
    if value is not None and not isinstance(value, bytes | str):
        raise TypeError(f"expected header value to be None, binary, or unicode string, not {type(value).__name__}")
    return str(name).split("\0", 1)[0], value.encode() if isinstance(value, str) else value


def _text_bytes(text: bytes) -> int:
    """Return the size of a text and of its length as a zigzag varint, in bytes."""
    length_bytes = 1
    rest = len(text) << 1
    while rest := rest >> 7:
        length_bytes += 1
    return len(text) + length_bytes
