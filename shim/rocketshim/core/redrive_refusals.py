"""Which records a redrive need not send, because their topic has refused such a record. Pure.

Each refusal costs a session of the redrive, so a record that would certainly be refused is not sent. What is certain
depends on the cause:

* A topic limits the size of a batch. Of records that are sent one per batch, uncompressed, each one at least as large
  as a refused one would be refused.
* A topic or partition that does not exist takes no record.
* A compacted topic takes no record without a key. Apache Kafka has no other reason to call such a record invalid.
  So one with a key, which another broker's own rules may refuse, says nothing about others.

Source: Kafka's `UnifiedLog#analyzeAndValidateRecords` and `LogValidator`, its record format 2.
"""

from enum import Enum, auto
from typing import assert_never

from rocketshim_topics.hops import OutgoingRecord

__all__ = ["Cause", "Refusals"]


class Cause(Enum):
    """Why a topic has refused a record."""

    TOO_LARGE = auto()
    MISSING = auto()
    INVALID = auto()


class Refusals:
    """The refusals of a redrive.

    Args:
        is_compressed: records may be stored smaller than they are, so that their sizes say nothing.

    Thread-safety: none; belongs to one thread.
    """

    def __init__(self, *, is_compressed: bool) -> None:
        self._is_compressed = is_compressed
        self._sizes: dict[str, tuple[int, str]] = {}  # topic to the smallest refused size, and the reason
        self._missing: dict[tuple[str, int | None], str] = {}  # topic and partition to the reason
        self._compacted: dict[str, str] = {}  # topic to the reason

    def add(self, record: OutgoingRecord, cause: Cause, reason: str) -> None:
        """Record that a record was refused."""
        match cause:
            case Cause.TOO_LARGE:
                size_bytes, known = _stored_bytes(record), self._sizes.get(record.topic)
                if not self._is_compressed and (known is None or size_bytes < known[0]):
                    self._sizes[record.topic] = size_bytes, reason
            case Cause.MISSING:
                self._missing[record.topic, record.partition] = reason
            case Cause.INVALID:
                if record.key is None:
                    self._compacted[record.topic] = reason
            case _:
                assert_never(cause)

    def reason(self, record: OutgoingRecord) -> str | None:
        """Return why a record would certainly be refused; None: it may be accepted."""
        size = self._sizes.get(record.topic)
        if size is not None and _stored_bytes(record) >= size[0]:
            return size[1]
        if record.key is None and record.topic in self._compacted:
            return self._compacted[record.topic]
        return self._missing.get((record.topic, record.partition))


def _stored_bytes(record: OutgoingRecord) -> int:
    """Return a record's size in record format 2, alone in its batch, without the parts that all records share."""
    fields = [record.key, record.value]
    for name, value in record.headers:
        fields += [name.encode(), value]
    lengths = [len(field or b"") for field in fields]
    return _length_bytes(len(record.headers)) + sum(lengths) + sum(map(_length_bytes, lengths))


def _length_bytes(length: int) -> int:
    """Return the size of an encoded length: seven bits per byte, one bit for the sign."""
    return max(1, -(-(2 * length).bit_length() // 7))
