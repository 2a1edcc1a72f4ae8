"""At-least-once delivery: a record is finished when the delivery report of its hop has arrived.

* Records that left a queue together form a `_Flight`. It is confirmed when each of its records is finished.
* A flight's records are produced in `_ProducedBatch`es, one for each target partition, because the reports of one
  partition arrive in the order of its records (idempotent producer). So one callback object serves many records by
  counting: a report's number identifies its record. If the order is unreliable (time-outs), the whole batch is produced
  again.
* The `Router` routes a record again if its hop was refused. It parks or re-appends the record, or tries again a second
  later.
* If a target has not answered within `target_patience_ms`, its records are re-appended as soon as a record that was
  produced `target_patience_ms` later is stored. Without such a record the broker may be slow for all targets. If
  nothing else was produced, a probe of the clock shows whether the schedule topic still accepts records, as
  re-appending requires. The first copy may still be stored: a duplicate with the same identity.
* A record whose target is unknown is buffered until the target is known. It is produced before records that left their
  queue later.
* Two limits, number and bytes, bound the records in flight: those without a report, and those that wait to be produced
  again. Copies for a silent target that were replaced since stay in the producer until their time-out. They have their
  own limit, so that such a target does not block the others.
* After a fatal error of the producer (a broken sequence) the worker creates a new producer and produces all records in
  flight again.
* Callbacks only count and hand over.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from rocketshim.core.clock import Clock
from rocketshim.core.level_queue import Due
from rocketshim.kafka.clients import ConsumerClient, ProducerClient, ProducerFactory, close_producer, poll_callbacks
from rocketshim.kafka.reports import DeliveryError, DeliveryReports
from rocketshim.worker.assignment import AssignedPartition
from rocketshim.worker.delivery import WorkerCounts, re_append_event
from rocketshim.worker.prober import Prober
from rocketshim.worker.router import Kind, Placement, PlainGroup, Router, Verdict
from rocketshim.worker.target_health import TargetHealth

__all__ = ["AtLeastOnce"]

_UNREADY_MS: Final = 2  # while records wait for the lookup of their targets
_BUSY_MS: Final = 20  # while hops are in flight: how long their reports may stay unread
_RESEND_NS: Final = 1_000_000_000
_PROOF_NS: Final = 1_000_000_000
_LAST_REPORTS_S: Final = 1.0
_UNORDERED: Final = frozenset({KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT_QUEUE})  # noqa: SLF001


class _Flight:
    """A run of records that left their queue together."""

    __slots__ = ("assigned", "due", "mean_bytes", "pending", "run", "sent_ns")

    def __init__(self, assigned: AssignedPartition, due: Due[Any], sent_ns: int) -> None:
        self.assigned = assigned
        self.due = due
        self.run = due.run
        self.pending = len(due.records)
        self.mean_bytes = due.size_bytes / len(due.records)
        self.sent_ns = sent_ns


class _ProducedBatch:
    """Records of one flight that were produced to one partition.

    Attributes:
        indexes: their indexes in the flight, in the order in which they were produced.
        dues_ms: when they were due, for deliveries only.
        reports: number of reports that have arrived.
        errors: the records that were not stored: index in `indexes`, and error.
        is_done: whether the batch was processed, or replaced by other batches; later reports are dropped.
        alone: whether each of its records was a separate batch on the wire.
        reason: why it was re-appended or parked.
        sent_ns: monotonic instant at which it was produced.
    """

    __slots__ = (
        "alone",
        "delivery_error",
        "dues_ms",
        "errors",
        "flight",
        "inbox",
        "indexes",
        "is_done",
        "kind",
        "reason",
        "reports",
        "sent_ns",
        "target",
        "topic",
    )

    def __init__(  # noqa: PLR0917 - called a hundred thousand times a second
        self,
        flight: _Flight,
        kind: Kind,
        topic: str,
        target: TargetHealth | None,
        inbox: "deque[_ProducedBatch]",
        delivery_error: DeliveryError,
        sent_ns: int,
    ) -> None:
        self.flight = flight
        self.kind = kind
        self.topic = topic
        self.target = target
        self.inbox = inbox
        self.delivery_error = delivery_error
        self.sent_ns = sent_ns
        self.indexes: list[int] = []
        self.dues_ms: list[int] = []
        self.reports = 0
        self.errors: list[tuple[int, KafkaError]] = []
        self.is_done = False
        self.alone = False
        self.reason = ""

    def reported(self, error: KafkaError | None, message: Any) -> None:
        """Count a delivery report; hand the batch over when all reports have arrived."""
        error = self.delivery_error(error, message)
        if error is not None:
            self.errors.append((self.reports, error))
        self.reports += 1
        if self.reports == len(self.indexes):
            self.inbox.append(self)


class AtLeastOnce:
    """Delivery that may repeat a record but never loses one.

    Args:
        make_producer: the factory of `Clients`.
        config: settings of the producer.
        router: decides where records go.
        counts: the worker's counters.
        clock: the clock for waits.
        alarm: called with an event and its facts.
        max_in_flight: maximum number of records in flight.
        max_in_flight_bytes: maximum bytes of records in flight; the last run may exceed it.
        patience_ns: how long a target may take before its records are re-appended.
        point: called with the name of a point of the protocol when it is passed; for fault tests.

    Thread-safety: none; the worker's thread.
    """

    def __init__(
        self,
        make_producer: ProducerFactory,
        config: dict[str, Any],
        router: Router,
        counts: WorkerCounts,
        *,
        clock: Clock,
        prober: Prober,
        alarm: Callable[..., None],
        max_in_flight: int,
        max_in_flight_bytes: int,
        patience_ns: int,
        point: Callable[[str], None],
    ) -> None:
        self._make_producer = make_producer
        self._config = config
        self._router = router
        self._counts = counts
        self._clock = clock
        self._prober = prober
        self._alarm = alarm
        self._max_in_flight = max_in_flight
        self._max_in_flight_bytes = max_in_flight_bytes
        self._patience_ns = patience_ns
        self._point = point
        self._producer: ProducerClient | None = None
        self._one_by_one: ProducerClient | None = None
        self._consumer: ConsumerClient | None = None
        self._reports = DeliveryReports()
        self._delivery_error = self._reports.error
        self._inbox: deque[_ProducedBatch] = deque()
        self._deliveries: deque[_ProducedBatch] = deque()  # deliveries, in the order in which they were produced
        self._open_batches: set[_ProducedBatch] = set()
        self._waiting: deque[tuple[int, _Flight, int]] = deque()  # (when, ns; flight; index of the record)
        self._unready: dict[
            TargetHealth, list[tuple[_Flight, int]]
        ] = {}  # (flight; index of the record), by the unknown target
        self._in_flight_count = 0  # records of open batches, and records that wait
        self._in_flight_bytes = 0.0
        self._confirmed_ns = 0  # when the newest stored record was produced
        self._proof_asked_ns = -_PROOF_NS
        self._fatal: KafkaError | None = None

    # --- sending -----------------------------------------------------------------------------------------------------

    def start(self, consumer: ConsumerClient) -> None:
        """Create the producer."""
        self._consumer = consumer
        self._open()

    def capacity(self, now_ns: int) -> int:
        """Return the number of records that may be produced now."""
        del now_ns
        if self._in_flight_bytes >= self._max_in_flight_bytes:
            return 0
        return max(0, min(self._max_in_flight - self._in_flight_count, 2 * self._max_in_flight - self._outstanding()))

    def _add_in_flight(self, flight: _Flight, count: int) -> None:
        """Add a number of records of a flight to those in flight; a negative number removes them."""
        self._in_flight_count += count
        self._in_flight_bytes += count * flight.mean_bytes

    def _outstanding(self) -> int:
        count = 0 if self._producer is None else len(self._producer)
        return count if self._one_by_one is None else count + len(self._one_by_one)

    def relay(self, assigned: AssignedPartition, due: Due[Any], now_ns: int) -> None:
        """Produce the records that left a queue."""
        self._point("before-produce")
        self._route_ready(now_ns)
        flight = _Flight(assigned, due, now_ns)
        index, end = 0, len(due.records)
        while index < end:
            groups, index = self._router.plain_ones(due, index, assigned, now_ns)
            for group in groups:
                self._send_plain(flight, group, now_ns)
            if index < end:
                self._route_record(flight, index, now_ns)
                index += 1
        self._point("after-produce")

    def _batch(
        self, flight: _Flight, kind: Kind, topic: str, target: TargetHealth | None, now_ns: int
    ) -> _ProducedBatch:
        return _ProducedBatch(flight, kind, topic, target, self._inbox, self._delivery_error, now_ns)

    def _send_plain(self, flight: _Flight, group: PlainGroup, now_ns: int) -> None:
        """Produce the plain due records of one target partition."""
        produce = self._open().produce
        topic, partition = group.target.topic, group.partition
        batch = self._batch(flight, Kind.DELIVER, topic, group.target, now_ns)
        reported, add_index, add_due = batch.reported, batch.indexes.append, batch.dues_ms.append
        for index, value, key, headers, due_ms in group.records:
            try:
                produce(topic, value, key, partition, on_delivery=reported, headers=headers)
            except (BufferError, KafkaException):
                self._register_delivery(batch)
                self._route_record(flight, index, now_ns)  # it tries again and handles the error
                produce = self._open().produce
                batch = self._batch(flight, Kind.DELIVER, topic, group.target, now_ns)
                reported, add_index, add_due = batch.reported, batch.indexes.append, batch.dues_ms.append
            else:
                add_index(index)
                add_due(due_ms)
        self._register_delivery(batch)

    def _register_delivery(self, batch: _ProducedBatch) -> None:
        """Register a batch that is produced completely. It has no report yet: nothing polls between its records."""
        if batch.indexes:
            self._deliveries.append(batch)
            self._opened(batch)

    def _opened(self, batch: _ProducedBatch) -> None:
        self._open_batches.add(batch)
        self._add_in_flight(batch.flight, len(batch.indexes))

    def _route_record(self, flight: _Flight, index: int, now_ns: int) -> None:
        """Route one record and produce it."""
        due = flight.due
        self._send(flight, index, self._router.route_due(due, index, now_ns), now_ns)

    def _send(self, flight: _Flight, index: int, placement: Placement, now_ns: int) -> None:
        kind = placement.kind
        if kind is Kind.SKIP:
            self._counts.skipped += 1
            self._finished(flight, 1)
            return
        if kind is Kind.NOT_YET and placement.target is not None:
            self._unready.setdefault(placement.target, []).append((flight, index))
            self._add_in_flight(flight, 1)
            return
        batch = self._batch(flight, kind, placement.topic, placement.target, now_ns)
        batch.indexes.append(index)
        batch.reason = placement.reason
        if kind is Kind.DELIVER:
            batch.dues_ms.append(placement.due_ms)
            batch.alone = placement.one_per_batch
        self._opened(batch)
        producer = self._one_by_one_producer() if placement.one_per_batch else self._open()
        while True:
            try:
                producer.produce(
                    placement.topic,
                    placement.value,
                    placement.key,
                    placement.partition,
                    on_delivery=batch.reported,
                    headers=placement.headers,
                )
            except BufferError:
                self._fatal = poll_callbacks(producer, _BUSY_MS / 1_000) or self._fatal  # reports make room
            except KafkaException as error:
                batch.alone = True
                batch.errors.append((0, error.args[0]))
                batch.reports = 1
                self._inbox.append(batch)
                break
            else:
                break
        if kind is Kind.DELIVER:
            self._deliveries.append(batch)

    def can_extend(self, now_ns: int) -> bool:
        """Return False: there is no transaction to extend."""
        del now_ns
        return False

    def end_turn(self, now_ns: int) -> None:
        """Do nothing: the records are produced already."""

    # --- results -----------------------------------------------------------------------------------------------------

    def settle(self, now_ns: int) -> None:
        """Process reports, produce failed records again, and handle targets that do not answer."""
        self._poll(0)
        while self._inbox:
            self._process_batch(self._inbox.popleft(), now_ns)
        if self._fatal is not None:
            self._replace_producer(now_ns)
        self._route_ready(now_ns)
        while self._waiting and self._waiting[0][0] <= now_ns:
            _, flight, index = self._waiting.popleft()
            self._add_in_flight(flight, -1)
            if not flight.assigned.gone:
                self._counts.resent += 1
                self._route_record(flight, index, now_ns)
        self._check_silent_targets(now_ns)

    def _route_ready(self, now_ns: int) -> None:
        """Route records whose targets have become known."""
        if not self._unready:
            return
        self._router.targets.hear(now_ns)
        for target in [target for target in self._unready if now_ns >= target.ready_ns]:
            for flight, index in self._unready.pop(target):
                self._add_in_flight(flight, -1)
                if not flight.assigned.gone:
                    self._route_record(flight, index, now_ns)

    def _poll(self, timeout_s: float) -> None:
        for producer, wait_s in ((self._producer, timeout_s), (self._one_by_one, 0.0)):
            if producer is not None:
                self._fatal = poll_callbacks(producer, wait_s) or self._fatal

    def _process_batch(self, batch: _ProducedBatch, now_ns: int) -> None:
        if batch.is_done:
            return
        if any(error.fatal() or error.code() == KafkaError._FATAL for _, error in batch.errors):  # noqa: SLF001
            self._fatal = batch.errors[0][1]
            return
        self._done(batch)
        if batch.flight.assigned.gone:
            return
        if batch.errors:
            self._failed(batch, now_ns)
        else:
            self._confirmed_ns = max(self._confirmed_ns, batch.sent_ns)
            self._stored(batch, batch.indexes, now_ns)

    def _done(self, batch: _ProducedBatch) -> None:
        batch.is_done = True
        if batch in self._open_batches:
            self._open_batches.remove(batch)
            self._add_in_flight(batch.flight, -len(batch.indexes))

    def _stored(self, batch: _ProducedBatch, indexes: list[int], now_ns: int) -> None:
        flight = batch.flight
        if batch.kind is Kind.DELIVER:
            self._counts.delivered += len(indexes)
            late_ms = flight.due.clock_ms + (now_ns - flight.sent_ns) // 1_000_000
            self._counts.observe_lateness([late_ms - due_ms for due_ms in batch.dues_ms])
            if batch.target is not None:
                batch.target.record_success()
        elif batch.kind is Kind.HOP:
            self._counts.hopped += len(indexes)
        else:
            self._count_rerouted(batch, indexes)
        if self._router.has_marks:
            for index in indexes:
                self._router.settled(flight.due.records[index])
        self._finished(flight, len(indexes))

    def _count_rerouted(self, batch: _ProducedBatch, indexes: list[int]) -> None:
        """Count records that were re-appended or parked, and log an alarm for each."""
        for index in indexes:
            record = _name(batch.flight.due.records[index])
            if batch.kind is Kind.RE_APPEND:
                self._counts.re_appended += 1
                self._alarm(re_append_event(batch.reason), record=record, error=batch.reason)
            else:
                self._counts.count_parked(batch.reason)
                self._alarm("worker.parked", reason=batch.reason, record=record)

    def _finished(self, flight: _Flight, count: int) -> None:
        flight.pending -= count
        if flight.pending == 0 and not flight.assigned.gone:
            flight.assigned.queue.confirmed(flight.run)

    def _failed(self, batch: _ProducedBatch, now_ns: int) -> None:
        """Handle a batch of which some records were not stored."""
        errors = batch.errors
        flight = batch.flight
        if any(error.code() in _UNORDERED for _, error in errors) and len(errors) < len(batch.indexes):
            failed = dict.fromkeys(range(len(batch.indexes)), errors[0][1])
        else:
            failed = dict(errors)
        stored = [index for at, index in enumerate(batch.indexes) if at not in failed]
        if batch.dues_ms:
            batch.dues_ms = [due_ms for at, due_ms in enumerate(batch.dues_ms) if at not in failed]
        if stored:
            self._stored(batch, stored, now_ns)
        alone = batch.alone
        for at, error in failed.items():
            index = batch.indexes[at]
            record = flight.due.records[index]
            verdict = self._router.refused(record, batch.kind, batch.topic, error, now_ns, alone=alone)
            if verdict is Verdict.WAIT:
                self._alarm("worker.hop-not-stored", hop=batch.kind.value, error=error.name(), record=_name(record))
                self._waiting.append((now_ns + _RESEND_NS, flight, index))
                self._add_in_flight(flight, 1)
            else:
                self._counts.resent += 1
                self._route_record(flight, index, now_ns)

    def _check_silent_targets(self, now_ns: int) -> None:
        """Re-append records that a target has not accepted in time, if other records or a probe were stored since."""
        deliveries = self._deliveries
        while deliveries:
            batch = deliveries[0]
            if batch.is_done or batch.flight.assigned.gone:
                self._done(batch)
                deliveries.popleft()
                continue
            if now_ns - batch.sent_ns < self._patience_ns:
                return
            if not self._is_overtaken(batch):
                self._probe_for_proof(batch.flight.assigned, now_ns)
                return
            deliveries.popleft()
            if batch.reports == len(batch.indexes):
                continue  # all reports have arrived and are in the inbox
            self._replace(batch, now_ns)

    def _is_overtaken(self, batch: _ProducedBatch) -> bool:
        """Return whether a record or probe that was produced `patience_ns` after this batch is stored."""
        by_ns = batch.sent_ns + self._patience_ns
        return self._confirmed_ns >= by_ns or self._prober.confirmed_ns >= self._proof_asked_ns >= by_ns

    def _probe_for_proof(self, assigned: AssignedPartition, now_ns: int) -> None:
        """Write a probe to find out whether only the target is silent."""
        if self._prober.outstanding == 0 and now_ns - self._proof_asked_ns >= _PROOF_NS:
            self._proof_asked_ns = now_ns
            self._prober.probe(assigned, now_ns)

    def _replace(self, batch: _ProducedBatch, now_ns: int) -> None:
        """Re-append the records of a batch that have no report: their target has not answered."""
        due = batch.flight.due
        if batch.target is not None:
            self._router.target_failed(batch.target, now_ns, "no-answer")
        for index in self._finish_batch(batch, now_ns):
            placement = self._router.re_append(
                due.records[index],
                clock_ms=due.clock_ms,
                seen_ns=due.seen_ns[index],
                now_ns=now_ns,
                reason="no-answer",
            )
            self._send(batch.flight, index, placement, now_ns)

    def _finish_batch(self, batch: _ProducedBatch, now_ns: int) -> list[int]:
        """Finish a batch: confirm its stored records, and return the indexes of the others."""
        self._done(batch)
        failed = {at for at, _ in batch.errors}
        reports = batch.reports
        if any(error.code() in _UNORDERED for _, error in batch.errors):
            reports = 0  # the order of the reports is unknown, so the whole batch is produced again
        stored = [at for at in range(reports) if at not in failed]
        unstored = [index for at, index in enumerate(batch.indexes) if at >= reports or at in failed]
        if batch.dues_ms:
            batch.dues_ms = [batch.dues_ms[at] for at in stored]
        if stored and not batch.flight.assigned.gone:
            self._stored(batch, [batch.indexes[at] for at in stored], now_ns)
        return unstored

    # --- waiting, committing, closing --------------------------------------------------------------------------------

    def connection_lost(self) -> None:
        """Do nothing: librdkafka sends again by itself."""

    def wait_ns(self, now_ns: int) -> int | None:
        """Return a short wait while reports are outstanding, else None."""
        del now_ns
        if self._unready:
            return _UNREADY_MS * 1_000_000
        return _BUSY_MS * 1_000_000 if self._waiting or self._outstanding() else None

    def commit(self, assigned: list[AssignedPartition], *, asynchronous: bool) -> None:
        """Commit the confirmed positions of these partitions."""
        consumer = self._consumer
        if consumer is None:
            return
        moved = [(each, position) for each in assigned if (position := each.position) and position > each.committed]
        if not moved:
            return
        offsets = [each.at(position) for each, position in moved]
        self._point("before-commit")
        try:
            if asynchronous:
                consumer.commit(offsets=offsets, asynchronous=True)
            else:
                consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            self._alarm("worker.commit-failed", error=str(error))
            return
        self._point("after-commit")
        for each, position in moved:
            each.committed = position

    def drain(self, assigned: list[AssignedPartition], longest_ns: int) -> None:
        """Wait until these partitions have no records in flight, or the time is over."""
        end_ns = self._clock.monotonic_ns() + longest_ns
        while any(not each.queue.idle for each in assigned):
            now_ns = self._clock.monotonic_ns()
            if now_ns >= end_ns:
                return
            self._poll(_BUSY_MS / 1_000)
            self.settle(now_ns)

    def probe(self, assigned: AssignedPartition, now_ns: int) -> None:
        """Write a probe into this partition."""
        self._prober.probe(assigned, now_ns)

    def close(self) -> None:
        """Abandon records in flight and close the producers."""
        for producer in (self._producer, self._one_by_one):
            if producer is not None:
                close_producer(producer, _LAST_REPORTS_S)
        self._producer = self._one_by_one = self._consumer = None
        self._inbox.clear()
        self._deliveries.clear()
        self._waiting.clear()
        self._unready.clear()
        self._router.targets.use()
        self._open_batches.clear()
        self._in_flight_count = 0
        self._in_flight_bytes = 0.0

    def _replace_producer(self, now_ns: int) -> None:
        """Replace a producer after a fatal error, and produce all records in flight again."""
        error, self._fatal = self._fatal, None
        self._counts.recycled += 1
        self._alarm("worker.producer-recycled", error=str(error))
        for old in (self._producer, self._one_by_one):
            if old is not None:
                close_producer(old, _LAST_REPORTS_S)
        self._producer = self._one_by_one = None
        self._open()
        lost = sorted(self._open_batches, key=_began)
        self._inbox.clear()
        self._deliveries.clear()
        for batch in lost:
            unstored = self._finish_batch(batch, now_ns)
            if not batch.flight.assigned.gone:
                for index in unstored:
                    self._counts.resent += 1
                    self._route_record(batch.flight, index, now_ns)

    def _open(self) -> ProducerClient:
        if self._producer is None:
            self._producer = self._make_producer(self._config)
            self._prober.use(self._producer, self._reports)
            self._router.targets.use(self._producer)
        return self._producer

    def _one_by_one_producer(self) -> ProducerClient:
        if self._one_by_one is None:
            self._one_by_one = self._make_producer({**self._config, "batch.num.messages": 1})
            self._router.targets.use(self._open(), self._one_by_one)
        return self._one_by_one


def _began(batch: _ProducedBatch) -> tuple[int, int]:
    return batch.flight.run.first_offset, batch.indexes[0]


def _name(record: Any) -> str:
    return f"{record.topic()}/{record.partition()}/{record.offset()}"
