"""Records as a consumer reads them, without a broker."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from rocketshim_topics import OutgoingRecord
from rocketshim_topics.wire import Header

APPEND_TIME = 2


@dataclass(slots=True)
class StoredRecord:
    """A record that lies at some place, read through the accessors of `confluent_kafka.Message`."""

    stored: OutgoingRecord
    stored_partition: int
    stored_offset: int
    timestamp_ms: int
    timestamp_type: int = APPEND_TIME

    def topic(self) -> str:
        return self.stored.topic

    def partition(self) -> int:
        return self.stored_partition

    def offset(self) -> int:
        return self.stored_offset

    def key(self) -> bytes | None:
        return self.stored.key

    def value(self) -> bytes | None:
        return self.stored.value

    def headers(self) -> list[Header] | None:
        return self.stored.headers or None

    def timestamp(self) -> tuple[int, int]:
        return (self.timestamp_type, self.timestamp_ms)

    def __bool__(self) -> bool:
        """A confluent_kafka message with an empty or absent value is false: so is this one, always."""
        return False


@pytest.fixture
def store() -> Callable[..., StoredRecord]:
    """Puts an outgoing record to a place and returns what a consumer would read there."""

    def put(
        outgoing: OutgoingRecord,
        *,
        offset: int = 0,
        partition: int | None = None,
        timestamp_ms: int = 1_700_000_000_000,
    ) -> StoredRecord:
        place = partition if partition is not None else outgoing.partition or 0
        return StoredRecord(outgoing, place, offset, timestamp_ms)

    return put


@pytest.fixture
def foreign() -> Callable[..., StoredRecord]:
    """A record of a plain Kafka producer on an ordinary topic."""

    def make(
        headers: list[Header] | None = None,
        *,
        topic: str = "orders",
        key: bytes | None = b"k",
        value: bytes | None = b"v",
        partition: int = 2,
        offset: int = 7,
        timestamp_ms: int = 1_700_000_000_000,
    ) -> StoredRecord:
        return StoredRecord(OutgoingRecord(topic, None, key, value, headers or []), partition, offset, timestamp_ms)

    return make
