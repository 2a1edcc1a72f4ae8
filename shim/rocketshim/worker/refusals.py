"""What a hop that was not stored shows about its record, its target or neither, and what to do with the record.

Both deliveries report each failure here and then route the record again, or wait. What was learnt is kept in two
places: the state of the target (`TargetHealth`), and marks of single records (park it with this reason; park it without
its body). The `Router` reads both.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError

from rocketshim.errors import TopicMismatchError
from rocketshim.kafka.reports import is_unconfirmed
from rocketshim.worker.hop_writer import Action, HopBatch
from rocketshim.worker.targets import TargetHealth, TargetTable
from rocketshim.worker.topic_lookup import NO_TARGET
from rocketshim_topics.coordinates import RecordCoordinates, TopicPartitionKey
from rocketshim_topics.kafka_codes import TOO_LARGE
from rocketshim_topics.names import init_command
from rocketshim_topics.wire import coordinates

__all__ = ["REFUSED_RECORD", "SPOILS_BATCH", "Refusals", "compacted"]

REFUSED_RECORD: Final = TOO_LARGE | frozenset(
    {
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_MSG,
        KafkaError._INVALID_ARG,  # noqa: SLF001 - librdkafka's local errors have no public spelling
    }
)
"""Errors of one record that its target or queue never takes; the broker refuses the record's whole batch."""
SPOILS_BATCH: Final = REFUSED_RECORD | {KafkaError.INVALID_TIMESTAMP}
"""Errors with which a target refuses a whole batch because of one record."""
_NO_CAUSE: Final = frozenset(
    {
        KafkaError._PURGE_QUEUE,  # noqa: SLF001
        KafkaError._PURGE_INFLIGHT,  # noqa: SLF001
        KafkaError._INVALID_DIFFERENT_RECORD,  # noqa: SLF001
        KafkaError._MSG_TIMED_OUT,  # noqa: SLF001
        KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
    }
)
"""Errors caused neither by the record nor by the target: produce the record again.

A record that was not sent in time shows that the broker is slow. A silent target is found in another way.
"""
_PRODUCER_LACKS: Final = frozenset({KafkaError._UNKNOWN_PARTITION, KafkaError._UNKNOWN_TOPIC})  # noqa: SLF001
"""Errors caused by a producer's metadata, which may be older than the router's or the consumer's. The target is not to
blame (test_a_target_that_grows_gets_every_record_and_its_new_partitions_within_five_seconds)."""


def compacted(topic: str) -> TopicMismatchError:
    """Return the error for a topic that refuses a record as invalid: it has no key, and the topic is compacted."""
    return TopicMismatchError(
        f"{topic} has cleanup.policy=compact: it refuses records without a key, and deletes waiting messages with the "
        f"same key. Set it to delete: {init_command(topic, '--fix')}"
    )


class Refusals:
    """Learns from hops that were not stored; marks single records that are to be parked."""

    def __init__(self, targets: TargetTable, alarm: Callable[..., None]) -> None:
        self.targets = targets
        self.reasons: dict[RecordCoordinates, str] = {}  # why marked records are to be parked
        self._without_body: set[RecordCoordinates] = set()
        self._alarm = alarm

    def must_wait(self, batch: HopBatch, at: int, error: KafkaError, now_ns: int) -> bool:
        """Learn why the record at this position of a batch was not stored; return whether it waits before its next try.

        Otherwise it is routed again immediately. Raise TopicMismatchError if the schedule topic is compacted.

        Decides: In the worker: what does it mean that a hop was not stored, and what becomes of the other records of
            its batch? After the refusal of a batch its records are sent again, one per batch; the one that is refused
            alone is parked. If only the timestamp that its sender gave is refused, it is delivered without that. In a
            transaction: `worker.exactly_once.TransactionFailures`.
        """
        if is_unconfirmed(error):
            return True
        if error.code() in _NO_CAUSE:
            return False
        record, action, topic = batch.record(at), batch.group.action, batch.group.topic
        if action is not Action.DELIVER:
            if error.code() in _PRODUCER_LACKS:  # the schedule topic may have new lanes
                self.targets.producer_lacks(self.targets.target(topic, now_ns), now_ns)
            if action in {Action.NEXT, Action.STATE}:
                return True
            if action is not Action.PARK and error.code() == KafkaError.INVALID_RECORD:
                raise compacted(topic)
            return self._must_own_hop_wait(record, action, error)
        target = self.targets.target(topic, now_ns)
        given_ms = batch.group.timestamps.get(batch.indexes[at])
        if error.code() == KafkaError.INVALID_TIMESTAMP and batch.alone and given_ms is not None:
            if target.timestamp_refused(given_ms - batch.flight.due.clock_ms(now_ns), now_ns):
                self._alarm("worker.timestamp-refused", topic=topic, timestamp_ms=given_ms, record=coordinates(record))
        else:
            self._delivery_refused(record, target, error, now_ns, alone=batch.alone)
        return False

    def _delivery_refused(
        self, record: Any, target: TargetHealth, error: KafkaError, now_ns: int, *, alone: bool
    ) -> None:
        code = error.code()
        if code in _PRODUCER_LACKS and self.targets.producer_lacks(target, now_ns):
            return
        if code in NO_TARGET:
            self.targets.look_again(target.topic)
            # the next lookup decides; if the topic exists, the broker that refused may not know it for a moment
            target.failed(now_ns, error.name())
        elif code not in SPOILS_BATCH or (alone and code not in REFUSED_RECORD):
            self.target_failed(target, now_ns, error.name())
        elif alone:
            self.park(record, f"target-refused:{error.name()}")
        elif target.begin_careful(now_ns):
            self._alarm("worker.target-careful", topic=target.topic, error=error.name())

    def _must_own_hop_wait(self, record: Any, action: Action, error: KafkaError) -> bool:
        if error.code() not in REFUSED_RECORD:
            return True
        if action is not Action.PARK:
            self.park(record, f"hop-refused:{error.name()}")
        elif self.park_without_body(record):
            self._alarm("worker.parked-without-body", partition=record.partition(), offset=record.offset())
        else:
            return True
        return False

    def target_failed(self, target: TargetHealth, now_ns: int, reason: str) -> None:
        """Note that a target has refused or has not answered, for a reason that is not specific to one record."""
        if target.failed(now_ns, reason):
            self._alarm("worker.target-avoided", topic=target.topic, error=reason)

    # --- marks of records --------------------------------------------------------------------------------------------

    def park(self, record: Any, reason: str) -> None:
        """Mark a record for parking with this reason; no other rule matters for it from now on."""
        self.reasons[_place(record)] = reason

    def park_without_body(self, record: Any) -> bool:
        """Mark a record that is too large for the parking topic; return False if it is marked already."""
        position = _place(record)
        is_new = position not in self._without_body
        self._without_body.add(position)
        return is_new

    def reason(self, record: Any) -> str:
        """Return why to park a record; `""`: it is not marked."""
        return self.reasons.get(_place(record), "") if self.reasons else ""

    def is_without_body(self, record: Any) -> bool:
        """Return whether to park a record without its body."""
        return bool(self._without_body) and _place(record) in self._without_body

    def forget(self, partition: TopicPartitionKey) -> None:
        """Forget the marks of a partition's records: it was revoked, or its log started again."""
        for position in [position for position in self.reasons if position[:2] == partition]:
            del self.reasons[position]
        self._without_body -= {position for position in self._without_body if position[:2] == partition}

    def forget_stored(self, records: Sequence[Any]) -> None:
        """Forget the marks of records whose hops are stored."""
        if self.reasons or self._without_body:
            positions = set(map(_place, records))
            self._without_body -= positions
            for position in positions & self.reasons.keys():
                del self.reasons[position]


def _place(record: Any) -> RecordCoordinates:
    return RecordCoordinates(record.topic(), record.partition(), record.offset())
