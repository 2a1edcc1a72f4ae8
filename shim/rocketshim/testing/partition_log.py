"""The log of one partition: records with offsets, transaction markers, and unused offsets.

Rules:

* A stored record never changes. Offsets only grow. An unused offset (`skip`, a transaction marker, compaction) is never
  read.
* A `read_uncommitted` reader sees a record of a transaction immediately. A `read_committed` reader sees nothing at or
  above the first record of the oldest open transaction (the last stable offset), and never a record of an aborted one.
* Truncation (retention, DeleteRecords) raises `log_start_offset`; compaction does not.

Pure: no clock, no lock, no client. Not handled: replication, leader epochs that truncate, batches (each record is one).
"""

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Headers", "PartitionLog", "StoredRecord", "Transaction"]

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(slots=True, eq=False)
class Transaction:
    """One Kafka transaction: the identity that its records share, and its state."""

    producer_id: int
    producer_epoch: int
    state: Literal["open", "committed", "aborted"] = "open"


@dataclass(frozen=True, slots=True)
class StoredRecord:
    """A record in the log."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_type: int
    timestamp_ms: int
    transaction: Transaction | None = None


@dataclass(slots=True)
class PartitionLog:
    """The log of one partition. The broker's lock guards it."""

    log_start_offset: int = 0  # lowest offset that a reader may request (the low watermark)
    next_offset: int = 0  # of the next record; also the high watermark, because there is one replica
    _records: list[StoredRecord] = field(default_factory=list)
    _offsets: list[int] = field(default_factory=list)
    _first_open: dict[Transaction, int] = field(default_factory=dict)

    def append(
        self,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_type: int,
        timestamp_ms: int,
        transaction: Transaction | None = None,
    ) -> StoredRecord:
        """Store one record at the next offset and return it as stored."""
        record = StoredRecord(self.next_offset, key, value, headers, timestamp_type, timestamp_ms, transaction)
        self._records.append(record)
        self._offsets.append(record.offset)
        self.next_offset += 1
        if transaction is not None:
            self._first_open.setdefault(transaction, record.offset)
        return record

    def skip(self, count: int) -> None:
        """Leave `count` offsets unused, as control records do."""
        self.next_offset += count

    def end_transaction(self, transaction: Transaction) -> bool:
        """Write the marker of a transaction that has ended; return False if it has no record here."""
        if self._first_open.pop(transaction, None) is None:
            return False
        self.skip(1)
        return True

    def last_stable_offset(self) -> int:
        """Return the first offset that a `read_committed` reader must not pass."""
        return min(self._first_open.values()) if self._first_open else self.next_offset

    def end_offset(self, *, read_committed: bool) -> int:
        """Return the end of the log for a reader of this isolation level."""
        return self.last_stable_offset() if read_committed else self.next_offset

    def read(self, offset: int, *, read_committed: bool) -> StoredRecord | None:
        """Return the first visible record at or after `offset`; None at the end."""
        end = self.end_offset(read_committed=read_committed)
        for index in range(bisect.bisect_left(self._offsets, offset), len(self._records)):
            record = self._records[index]
            if record.offset >= end:
                return None
            if not read_committed or _is_visible(record):
                return record
        return None

    def records(self, *, read_committed: bool) -> Iterator[StoredRecord]:
        """Yield every record that a reader of this isolation level sees, by offset."""
        end = self.end_offset(read_committed=read_committed)
        for record in self._records:
            if record.offset < end and (not read_committed or _is_visible(record)):
                yield record

    def offset_for_time(self, timestamp_ms: int) -> int | None:
        """Return the offset of the first record with this timestamp or a later one; None if there is none."""
        return next((record.offset for record in self._records if record.timestamp_ms >= timestamp_ms), None)

    def truncate(self, before_offset: int) -> None:
        """Drop every record below `before_offset` (at most to the end), as retention does."""
        self.log_start_offset = max(self.log_start_offset, min(before_offset, self.next_offset))
        cut = bisect.bisect_left(self._offsets, self.log_start_offset)
        del self._records[:cut]
        del self._offsets[:cut]

    def compact(self) -> None:
        """Keep only the last record of each key, and no tombstones, as a log cleaner does eventually."""
        last = {record.key: record.offset for record in self._records if record.transaction not in self._first_open}
        self._records = [
            record
            for record in self._records
            if record.transaction in self._first_open
            or (last.get(record.key) == record.offset and record.value is not None)
        ]
        self._offsets = [record.offset for record in self._records]


def _is_visible(record: StoredRecord) -> bool:
    return record.transaction is None or record.transaction.state == "committed"
