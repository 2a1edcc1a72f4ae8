"""Exactly-once delivery: due records and the positions after them in one Kafka transaction.

* A turn of the loop is a transaction. It produces every due record. While more records are ready, it fetches and
  produces them too, up to 5,000 records or 50 ms, so it grows with the backlog. Then it sends the positions, with the
  worker's current membership of the group. Then it commits. The next transaction begins 5 ms after a commit: without
  this gap librdkafka waits 20 ms for the coordinator to finish the last transaction (measured).
* A run with a record whose target is unknown waits in its queue until the target is known. Other queues continue.
* A transaction with a record that was not stored does not commit. The report of a failure names the target, which is
  then avoided. If one record makes the broker refuse its batch, the producer sends one record per batch for a while,
  and then the report names the record. A success without an offset (`kafka.reports`) would be committed: it aborts the
  transaction. So the worker reads all reports before the commit.
* A record that no topic of the shim accepts (it must be parked, and the worker may not) would abort every transaction.
  Its queue backs off: a second at first, then twice as long each time, up to five seconds.
* After an abort that certainly succeeded, the records that were taken are due again. Nothing was delivered and no
  position moved.
* An uncertain outcome (time-out, fenced, fatal error, a commit that took longer than its time) has four steps. The
  worker closes the producer and creates a new one. The new one calls `init_transactions`, which fences the old producer
  and ends its open transaction. The worker reads the committed positions, which show whether the transaction was
  committed. librdkafka's transaction protocol allows a late request to hit the next transaction; a new producer after
  each uncertain outcome prevents that (KIP-890).
* Only transactions move positions. Positions after probes get their own transaction: a commit by the consumer may reach
  the coordinator after the next transaction, and would move the position back.
* A rebalance aborts the open transaction: its requests to the cluster may take longer than the rebalance.
* A worker that is fenced three times in a minute ends with an error: another worker has the same `transactional.id`.
* Probes are not part of transactions and have a separate producer.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.core.backoff import Backoff
from rocketshim.core.clock import Clock
from rocketshim.core.level_queue import Due
from rocketshim.errors import WorkerError
from rocketshim.kafka.clients import (
    ConsumerClient,
    ProducerClient,
    ProducerFactory,
    close_producer,
    poll_callbacks,
    purge_producer,
)
from rocketshim.kafka.reports import DeliveryReports
from rocketshim.worker.assignment import AssignedPartition
from rocketshim.worker.delivery import WorkerCounts, re_append_event
from rocketshim.worker.prober import Prober
from rocketshim.worker.router import Kind, Placement, PlainGroup, Router, Verdict
from rocketshim.worker.target_health import TargetHealth
from rocketshim.worker.watchdog import Heartbeat
from rocketshim_topics.wire import coordinates

__all__ = ["ExactlyOnce"]

_NS: Final = 1_000_000
_MOST_RECORDS: Final = 5_000
_LONGEST_NS: Final = 50 * _NS
_GAP_NS: Final = 5 * _NS
_BACK_OFF_NS: Final = 100 * _NS
_AGAIN_NS: Final = 1_000 * _NS
_BUSY_NS: Final = 2 * _NS
_REFUSED_NS: Final = Backoff(_AGAIN_NS, 5_000 * _NS)
_CAREFUL_NS: Final = 30_000 * _NS
_MINUTE_NS: Final = 60_000 * _NS
_MOST_FENCINGS: Final = 3
_FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})  # noqa: SLF001
_PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001
_SPOILS: Final = frozenset({KafkaError._STATE, KafkaError._FATAL})  # noqa: SLF001
_LISTED_FAILURES: Final = 1_000
_LAST_REPORTS_S: Final = 1.0
_OVERDUE_S: Final = 6.0  # a call that has not returned by this time after its time-out never will


class _Taken:
    """Due records of one partition that are part of the open transaction."""

    __slots__ = ("assigned", "due")

    def __init__(self, assigned: AssignedPartition, due: Due[Any]) -> None:
        self.assigned = assigned
        self.due = due


class ExactlyOnce:
    """Delivery in transactions.

    Args:
        make_producer: the factory of `Clients`.
        config: settings of the producer, including `transactional.id`.
        probe_config: settings of the producer of probes.
        router: decides where records go.
        counts: the worker's counters.
        clock: the clock for waits.
        prober: writes probes.
        alarm: called with an event and its facts.
        api_timeout_ms: longest wait for one transactional call; below the transaction's time-out.
        patience_ms: how long targets may take to store the records of a transaction.
        denied: returns which of the given topics the worker may not write to.
        point: called with the name of a point of the protocol when it is passed; for fault tests.
        heart: gets a beat before each long call, with the longest time that the call may take.

    Thread-safety: none; the worker's thread.
    """

    def __init__(
        self,
        make_producer: ProducerFactory,
        config: dict[str, Any],
        probe_config: dict[str, Any],
        router: Router,
        counts: WorkerCounts,
        *,
        clock: Clock,
        prober: Prober,
        alarm: Callable[..., None],
        api_timeout_ms: int,
        patience_ms: int,
        denied: Callable[[set[str]], set[str]],
        point: Callable[[str], None],
        heart: Heartbeat,
    ) -> None:
        self._make_producer = make_producer
        self._config = config
        self._probe_config = probe_config
        self._router = router
        self._counts = counts
        self._clock = clock
        self._prober = prober
        self._alarm = alarm
        self._api_timeout_s = api_timeout_ms / 1_000
        self._patience_s = patience_ms / 1_000
        self._denied = denied
        self._point = point
        self._heart = heart
        self._consumer: ConsumerClient | None = None
        self._producer: ProducerClient | None = None
        self._probes: ProducerClient | None = None
        self._reports = DeliveryReports()
        self._taken: list[_Taken] = []
        self._passed: list[AssignedPartition] = []
        self._records = 0
        self._must_abort = False
        self._is_silent = False
        self._begun_ns: int | None = None
        self._not_before_ns = 0
        self._is_stale = False
        self._renewed_ns = 0
        self._uncertain: list[_Taken] = []
        self._careful_until_ns = 0
        self._is_careful = False
        self._fenced_ns: deque[int] = deque(maxlen=_MOST_FENCINGS)
        self._instance_conflict: WorkerError | None = None
        self._failures: list[tuple[Any, Kind, str, KafkaError]] = []
        self._dues_ms: list[int] = []
        self._tried: set[TargetHealth] = set()
        self._done: list[tuple[Kind, str]] = []
        self._own: list[tuple[Any, str]] = []  # records written to a topic of the shim, and that topic

    # --- the transaction ---------------------------------------------------------------------------------------------

    def start(self, consumer: ConsumerClient) -> None:
        """Create the producer of probes; the first turn creates the transactional producer."""
        self._consumer = consumer
        self._probes = self._make_producer(self._probe_config)
        self._prober.use(self._probes, DeliveryReports())
        self._discard_producer()

    def capacity(self, now_ns: int) -> int:
        """Return the number of records that may still go into this transaction."""
        if self._producer is None or now_ns < self._not_before_ns:
            return 0
        if self._must_abort or (self._begun_ns is not None and now_ns - self._begun_ns >= _LONGEST_NS):
            return 0
        return _MOST_RECORDS - self._records

    def relay(self, assigned: AssignedPartition, due: Due[Any], now_ns: int) -> None:
        """Produce the records that left a queue, in the open transaction."""
        placed, awaited = self._route(assigned, due, now_ns)
        if awaited:
            assigned.awaited = awaited
            assigned.queue.failed(due)
            return
        if self._begun_ns is None and not self._begin(now_ns):
            assigned.queue.failed(due)
            return
        self._point("before-produce")
        self._taken.append(_Taken(assigned, due))
        self._records += len(due.records)
        producer = self._producer
        if producer is None:
            return
        for each in placed:
            if self._must_abort:
                return
            if isinstance(each, PlainGroup):
                self._produce_plain(producer, due, each, now_ns)
            else:
                self._produce_slowly(producer, due, *each, now_ns)
        self._must_abort = poll_callbacks(producer) is not None or self._must_abort
        self._point("after-produce")

    def _route(
        self, assigned: AssignedPartition, due: Due[Any], now_ns: int
    ) -> tuple[list[PlainGroup | tuple[int, Placement]], set[TargetHealth]]:
        """Return where each record of a run goes, and its unknown targets; with an unknown target the whole run waits.

        The whole run is routed before a record of it is produced, so that an unknown target aborts no transaction.
        """
        placed: list[PlainGroup | tuple[int, Placement]] = []
        awaited: set[TargetHealth] = set()
        index, end = 0, len(due.records)
        while index < end:
            if not self._is_careful:
                groups, index = self._router.plain_ones(due, index, assigned, now_ns)
                placed += groups
            if index < end:
                placement = self._router.route_due(due, index, now_ns)
                if placement.kind is Kind.NOT_YET and placement.target is not None:
                    awaited.add(placement.target)
                placed.append((index, placement))
                index += 1
        return placed, awaited

    def _produce_plain(self, producer: ProducerClient, due: Due[Any], group: PlainGroup, now_ns: int) -> None:
        """Produce the plain due records of one target partition."""
        produce, failed, add_due = producer.produce, self._failed, self._dues_ms.append
        topic, partition = group.target.topic, group.partition
        for index, value, key, headers, due_ms in group.records:
            if self._must_abort:
                return
            try:
                produce(topic, value, key, partition, on_delivery=failed, headers=headers)
            except (BufferError, KafkaException):
                placement = self._router.route_due(due, index, now_ns)
                self._produce_slowly(producer, due, index, placement, now_ns)  # it handles the error
            else:
                add_due(due_ms)

    def _begin(self, now_ns: int) -> bool:
        producer = self._producer
        if producer is None:
            return False
        try:
            producer.begin_transaction()
        except KafkaException as error:
            self._on_uncertain_outcome(error.args[0], now_ns)
            return False
        self._begun_ns = now_ns
        return True

    def _produce_slowly(  # noqa: C901 - one record, and every result of producing it
        self, producer: ProducerClient, due: Due[Any], index: int, placement: Placement, now_ns: int
    ) -> None:
        """Produce one record; if `produce` refuses it, route it again, which parks it or makes it wait."""
        record = due.records[index]
        for _ in range(4):
            if placement.kind is Kind.NOT_YET:
                self._must_abort = True  # the producer has to learn about the target's new partitions
                return
            if placement.kind is Kind.SKIP:
                self._counts.skipped += 1
                return
            report = (
                partial(self._failed_record, record, placement.kind, placement.topic)
                if self._is_careful or placement.kind is not Kind.DELIVER
                else self._failed
            )
            try:
                while True:
                    try:
                        producer.produce(
                            placement.topic,
                            placement.value,
                            placement.key,
                            placement.partition,
                            on_delivery=report,
                            headers=placement.headers,
                        )
                    except BufferError:
                        self._must_abort = poll_callbacks(producer, 0.02) is not None or self._must_abort
                    else:
                        break
            except KafkaException as problem:
                error = problem.args[0]
                if error.code() in _SPOILS or error.fatal() or error.txn_requires_abort():
                    self._must_abort = True  # an earlier record failed, not this one
                    return
                self._router.refused(record, placement.kind, placement.topic, error, now_ns, alone=True)
                placement = self._router.route_due(due, index, now_ns)
                continue
            if placement.kind is Kind.DELIVER:
                self._dues_ms.append(placement.due_ms)
                if placement.target is not None:
                    self._tried.add(placement.target)
            else:
                self._done.append((placement.kind, placement.reason))
                self._own.append((record, placement.topic))
            return
        # no topic accepts it, not even the parking topic; the transaction must not commit without it
        self._failures.append((record, Kind.PARK, "", KafkaError(KafkaError._FAIL)))  # noqa: SLF001

    def _failed(self, error: KafkaError | None, message: Any) -> None:
        error = self._reports.error(error, message)
        if error is not None and len(self._failures) < _LISTED_FAILURES:
            self._failures.append((None, Kind.DELIVER, message.topic(), error))

    def _failed_record(self, record: Any, kind: Kind, topic: str, error: KafkaError | None, message: Any) -> None:
        error = self._reports.error(error, message)
        if error is not None and len(self._failures) < _LISTED_FAILURES:
            self._failures.append((record, kind, topic, error))

    def can_extend(self, now_ns: int) -> bool:
        """Return whether a transaction is open and can take more records."""
        return self._begun_ns is not None and self.capacity(now_ns) > 0

    def end_turn(self, now_ns: int) -> None:
        """Commit the open transaction, if there is one."""
        producer, consumer = self._producer, self._consumer
        if self._begun_ns is None or producer is None or consumer is None:
            return
        ends = {taken.assigned: taken.due.run.next_offset for taken in self._taken}
        ends.update({assigned: assigned.skipped_to for assigned in self._passed})
        offsets = [assigned.at(end) for assigned, end in ends.items()]
        began_ns = now_ns
        try:
            left = 0 if self._must_abort else producer.flush(self._patience_s)
            self._is_silent = left > 0
            if left or self._has_refusal() or any(taken.assigned.gone for taken in self._taken):
                self._abort(producer, None)
                return
            self._beat_before_call()
            # if the transaction has failed, this call raises the cause
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), self._api_timeout_s)
            if self._must_abort or self._failures:
                self._abort(producer, None)
                return
            self._point("before-commit")
            self._beat_before_call()
            producer.commit_transaction(self._api_timeout_s)
        except KafkaException as problem:
            error = problem.args[0]
            if error.txn_requires_abort() and not error.fatal():
                self._abort(producer, error)
            else:
                self._on_uncertain_outcome(error, self._clock.monotonic_ns())
            return
        self._point("after-commit")
        self._committed(began_ns, ends)

    def _committed(self, began_ns: int, ends: dict[AssignedPartition, int]) -> None:
        now_ns = self._clock.monotonic_ns()
        for taken in self._taken:
            self._confirm(taken)
        for assigned, end in ends.items():
            assigned.committed = max(assigned.committed, end)
            assigned.backoffs = 0
        clock_ms = self._taken[-1].due.clock_ms if self._taken else 0
        waited_ms = (now_ns - (self._begun_ns or now_ns)) // _NS
        for target in self._tried:
            target.record_success()
        self._counts.delivered += len(self._dues_ms)
        self._counts.observe_lateness([max(0, clock_ms + waited_ms - due_ms) for due_ms in self._dues_ms])
        for kind, reason in self._done:
            if kind is Kind.HOP:
                self._counts.hopped += 1
            elif kind is Kind.RE_APPEND:
                self._counts.re_appended += 1
                self._alarm(re_append_event(reason), error=reason)
            else:
                self._counts.count_parked(reason)
                self._alarm("worker.parked", reason=reason)
        self._reset()
        self._not_before_ns = now_ns + _GAP_NS
        if now_ns - began_ns > self._api_timeout_s * 1e9:
            self._discard_producer()  # it retried for long; no late request may hit the next transaction
        elif self._is_careful and now_ns >= self._careful_until_ns:
            self._discard_producer()

    def _confirm(self, taken: _Taken) -> None:
        if self._router.has_marks:
            for record in taken.due.records:
                self._router.settled(record)
        if not taken.assigned.gone:
            taken.assigned.queue.confirmed(taken.due.run)

    def _reset(self) -> None:
        self._must_abort = self._is_silent = False
        self._taken = []
        self._passed = []
        self._records = 0
        self._begun_ns = None
        self._failures = []
        self._tried = set()
        self._dues_ms = []
        self._done = []
        self._own = []

    def _beat_before_call(self) -> None:
        self._heart.beat(self._api_timeout_s + _OVERDUE_S)

    # --- failures ----------------------------------------------------------------------------------------------------

    def _abort(self, producer: ProducerClient, cause: KafkaError | None, why: str = "") -> None:
        """Abort the transaction; if the outcome of the abort is uncertain, replace the producer."""
        self._counts.aborted += 1
        self._beat_before_call()
        purge_producer(producer, self._patience_s)  # otherwise the abort waits for reports that no poll serves
        try:
            producer.abort_transaction(self._api_timeout_s)
            now_ns = self._clock.monotonic_ns()
        except KafkaException as problem:
            now_ns = self._clock.monotonic_ns()
            self._learn_from_failures(now_ns, cause)
            self._on_uncertain_outcome(problem.args[0], now_ns)
            return
        poll_callbacks(producer)
        reason = str(cause) if cause is not None else why or f"{len(self._failures)} records were not stored"
        self._alarm("worker.transaction-aborted", error=reason, records=self._records)
        careful, was_silent = self._learn_from_failures(now_ns, cause), self._is_silent
        for taken in reversed(self._taken):
            if not taken.assigned.gone:
                taken.assigned.queue.failed(taken.due)
        self._reset()
        self._not_before_ns = now_ns + _BACK_OFF_NS
        if careful:
            self._careful_until_ns = now_ns + _CAREFUL_NS
        if cause is not None or was_silent or (careful and not self._is_careful):
            # a producer whose broker was unavailable may block forever in a later call (seen after a broker's restart)
            self._discard_producer()

    def _has_refusal(self) -> bool:
        """Return whether a record was refused because of itself or of its target, and not only purged."""
        return any(error.code() not in _PURGED for _, _, _, error in self._failures)

    def _learn_from_failures(self, now_ns: int, cause: KafkaError | None = None) -> bool:
        """Report failures to the router; return True if one unknown record made the broker refuse its batch."""
        unknown = False
        was_refused = self._has_refusal()
        if cause is not None and cause.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self._find_denied_topics(cause, now_ns)
        for record, kind, topic, error in self._failures:
            if error.code() in _FENCED or error.code() in _SPOILS:
                continue
            if error.code() in _PURGED:
                # if another record was refused, this one had no time to be stored; otherwise its target was too slow
                if kind is Kind.DELIVER and self._is_silent and not was_refused:
                    self._router.target_failed(self._router.targets.target(topic, now_ns), now_ns, "no-answer")
            elif record is not None:
                verdict = self._router.refused(record, kind, topic, error, now_ns, alone=self._is_careful)
                if verdict is Verdict.WAIT:
                    self._back_off(record, topic, error, now_ns)
            else:
                unknown = self._router.batch_refused(topic, error, now_ns) or unknown
        return unknown

    def _find_denied_topics(self, cause: KafkaError, now_ns: int) -> None:
        """Find out which topic denied a transaction that failed because of a missing ACL."""
        targets = {topic for _, kind, topic, _ in self._failures if kind is Kind.DELIVER}
        denied = self._denied(targets | {topic for _, topic in self._own})
        for topic in denied & targets:
            self._router.target_failed(self._router.targets.target(topic, now_ns), now_ns, cause.name())
        for record, topic in self._own:
            if topic in denied:
                self._back_off(record, topic, cause, now_ns)

    def _back_off(self, record: Any, topic: str, error: KafkaError, now_ns: int) -> None:
        """Let a partition back off: no topic accepts one of its records, so the next transactions leave it out."""
        assigned = next((taken.assigned for taken in self._taken if taken.assigned.number == record.partition()), None)
        if assigned is not None and assigned.backoff_until_ns <= now_ns:
            assigned.backoff_until_ns = now_ns + _REFUSED_NS.pause(assigned.backoffs)
            assigned.backoffs += 1
            self._alarm("worker.hop-not-stored", topic=topic, error=error.name(), record=coordinates(record))

    def _on_uncertain_outcome(self, error: KafkaError, now_ns: int) -> None:
        """Replace the producer after an uncertain outcome; the committed positions will show the outcome."""
        if error.code() in _FENCED:
            self._alarm("worker.fenced", error=str(error), transactional_id=self._config["transactional.id"])
            self._fenced_ns.append(now_ns)
            if len(self._fenced_ns) == _MOST_FENCINGS and now_ns - self._fenced_ns[0] < _MINUTE_NS:
                self._instance_conflict = WorkerError(
                    f"fenced {_MOST_FENCINGS} times in a minute: another worker runs with transactional.id "
                    f"{self._config['transactional.id']!r}; give each worker its own --instance"
                )
        self._counts.recycled += 1
        self._alarm("worker.producer-recycled", error=str(error))
        self._uncertain += self._taken
        self._is_silent = error.code() == KafkaError._TIMED_OUT  # noqa: SLF001
        self._discard_producer()
        self._learn_from_failures(now_ns)
        self._reset()

    def _discard_producer(self) -> None:
        """Close the producer; the next `settle` creates a new one."""
        old, self._producer = self._producer, None
        self._router.targets.use()
        if old is not None:
            close_producer(old, _LAST_REPORTS_S)

    def connection_lost(self) -> None:
        """Replace the producer before the next transaction, at most once a second.

        `send_offsets_to_transaction` of librdkafka ignores its time-out. It waits forever for a remembered coordinator
        that has left its metadata meanwhile (librdkafka 5456 and 5511). Without the replacement, the worker blocked in
        most restarts of a broker on a busy machine. A new producer remembers no coordinator.
        """
        self._is_stale = True

    def settle(self, now_ns: int) -> None:
        """Create and initialise a producer if there is none, and find out the outcome of uncertain transactions.

        Raises:
            WorkerError: the worker was fenced three times in a minute.
        """
        if self._instance_conflict is not None:
            raise self._instance_conflict
        if self._probes is not None:
            error = poll_callbacks(self._probes)
            if error is not None:
                self._alarm("worker.producer-recycled", error=str(error))
                close_producer(self._probes, _LAST_REPORTS_S)
                self._probes = self._make_producer(self._probe_config)
                self._prober.use(self._probes, DeliveryReports())
        if self._is_stale and self._begun_ns is None and now_ns - self._renewed_ns >= _AGAIN_NS:
            self._discard_producer()
        if self._producer is not None or now_ns < self._not_before_ns or self._consumer is None:
            return
        self._is_careful = now_ns < self._careful_until_ns
        config = {**self._config, "batch.num.messages": 1} if self._is_careful else self._config
        producer = self._make_producer(config)
        self._beat_before_call()
        try:
            producer.init_transactions(self._api_timeout_s)
            self._resolve(self._consumer)
        except KafkaException as problem:
            self._alarm("worker.producer-recycled", error=str(problem))
            self._not_before_ns = self._clock.monotonic_ns() + _AGAIN_NS
            return
        self._producer = producer
        self._router.targets.use(producer)
        self._is_stale, self._renewed_ns = False, self._clock.monotonic_ns()

    def _resolve(self, consumer: ConsumerClient) -> None:
        """Read the committed positions: they show which uncertain transactions were committed."""
        uncertain = [taken for taken in self._uncertain if not taken.assigned.gone]
        if uncertain:
            numbers = {taken.assigned.number for taken in uncertain}
            asked = [TopicPartition(self._prober.topic, number) for number in numbers]
            found = {item.partition: item.offset for item in consumer.committed(asked, timeout=self._api_timeout_s)}
            for taken in reversed(uncertain):
                if found[taken.assigned.number] >= taken.due.run.next_offset:
                    self._confirm(taken)
                else:
                    taken.assigned.queue.failed(taken.due)
        self._uncertain = []

    # --- waiting, committing, closing --------------------------------------------------------------------------------

    def wait_ns(self, now_ns: int) -> int | None:
        """Return the time until the next transaction may begin; None: no limit."""
        if self._producer is None:
            return max(0, self._not_before_ns - now_ns)
        if self._is_stale:
            return max(0, self._renewed_ns + _AGAIN_NS - now_ns)
        return max(0, self._not_before_ns - now_ns) or (_BUSY_NS if self._prober.outstanding > 0 else None)

    def commit(self, assigned: list[AssignedPartition], *, asynchronous: bool) -> None:
        """Commit positions that pass only probes, in a separate transaction; other transactions commit their own."""
        if not asynchronous:
            return  # the next owner reads the probes again
        passed = [each for each in assigned if each.has_uncommitted and each.position == each.skipped_to]
        now_ns = self._clock.monotonic_ns()
        if passed and self.capacity(now_ns) > 0 and self._begin(now_ns):
            self._passed = passed
            self.end_turn(now_ns)

    def drain(self, assigned: list[AssignedPartition], longest_ns: int) -> None:
        """Abort the open transaction before a rebalance; the next owner resolves an uncertain one."""
        del assigned, longest_ns
        if self._begun_ns is not None and self._producer is not None:
            self._abort(self._producer, None, "the group rebalances")

    def probe(self, assigned: AssignedPartition, now_ns: int) -> None:
        """Write a probe, outside any transaction."""
        self._prober.probe(assigned, now_ns)

    def close(self) -> None:
        """Abort the open transaction and close the producers."""
        if self._begun_ns is not None and self._producer is not None:
            try:
                self._producer.abort_transaction(self._api_timeout_s)
            except KafkaException as error:
                self._alarm("worker.transaction-aborted", error=str(error), records=self._records)
        self._discard_producer()
        if self._probes is not None:
            close_producer(self._probes, _LAST_REPORTS_S)
        self._probes = self._consumer = None
        self._reset()
