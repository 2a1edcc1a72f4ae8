"""What one transaction contains and what was reported of it; `exactly_once` begins, commits and aborts it.

Whatever follows, its state is dropped with the object; the next transaction has a new one.
"""

from collections.abc import Iterator
from typing import Final

from confluent_kafka import KafkaError, TopicPartition

from rocketshim.core.send_pace import cost
from rocketshim.worker.assignment import AssignedPartition
from rocketshim.worker.hop_writer import Flight, HopBatch
from rocketshim.worker.target_health import TargetHealth

__all__ = ["PURGED", "Transaction"]

PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001 - no public spelling


class Transaction:
    """The records of one transaction.

    Attributes:
        begun_ns: monotonic instant of its begin.
        count: number of its records.
        cost: their cost in flight; see `core.send_pace`.
        flights: the due records that it contains, by run.
        batches: their hops as produced.
        topics: the topics to which they were produced.
        passed: positions that it commits although it has no record before them, by partition.
        must_abort: whether it cannot be committed: a record was not produced, or the producer has failed.
        is_late: whether its records were not stored in time, or the commit would not succeed in time.
        is_silent: whether the targets have not stored its records, and no report has arrived for a while.
        has_deleted: whether a target whose records were not stored was deleted.

    Thread-safety: none; the worker's thread.
    """

    __slots__ = (
        "batches", "begun_ns", "cost", "count", "flights", "has_deleted", "is_late", "is_silent", "must_abort",
        "passed", "topics",
    )  # fmt: skip

    def __init__(self, begun_ns: int, passed: dict[AssignedPartition, int] | None = None) -> None:
        self.begun_ns = begun_ns
        self.count = self.cost = 0
        self.flights: list[Flight] = []
        self.batches: list[HopBatch] = []
        self.topics: set[str] = set()
        self.passed = passed or {}
        self.must_abort = False
        self.is_silent = self.is_late = False
        self.has_deleted = False

    def add(self, flight: Flight) -> None:
        """Add the due records of a run."""
        self.flights.append(flight)
        self.count += len(flight.due.records)
        self.cost += cost(len(flight.due.records), flight.due.size_bytes)

    def ends(self) -> dict[AssignedPartition, int]:
        """Return the position to commit of each partition."""
        return self.passed | {flight.assigned: flight.due.run.next_offset for flight in self.flights}

    def offsets(self) -> list[TopicPartition]:
        """Return the positions to commit, as the client wants them."""
        return [assigned.at(end) for assigned, end in self.ends().items()]

    def failures(self) -> Iterator[tuple[HopBatch, int, KafkaError]]:
        """Yield what was reported as not stored: the batch, the position in it, and the error."""
        for batch in self.batches:
            for at, error in batch.errors:
                yield batch, at, error

    def unstored_targets(self) -> set[TargetHealth]:
        """Return the targets of the records that are not known to be stored."""
        return {
            batch.group.target
            for batch in self.batches
            if batch.group.target is not None and (batch.errors or batch.reports < len(batch.indexes))
        }

    @property
    def has_failure(self) -> bool:
        """Whether a record was reported as not stored."""
        return any(batch.errors for batch in self.batches)

    @property
    def has_stored(self) -> bool:
        """Whether all records of a batch are known to be stored."""
        return any(not batch.errors and batch.reports == len(batch.indexes) for batch in self.batches)

    @property
    def has_refusal(self) -> bool:
        """Whether a record was refused because of itself or of its target, and not only purged."""
        return any(error.code() not in PURGED for _, _, error in self.failures())

    @property
    def is_lost(self) -> bool:
        """Whether a partition of its records was revoked."""
        return any(flight.assigned.gone for flight in self.flights)
