"""Exactly-once delivery: what is due, and the positions after it, in one Kafka transaction.

* A turn of the loop is a transaction: everything due is produced in it, and while more lies ready it is fetched and
  produced too, up to 5,000 records or 50 ms, so it grows with the backlog; then the positions, as the member of the
  group that we are now; then the commit. Between a commit and the next begin lie 5 ms: without them librdkafka waits
  20 ms for the coordinator to finish the last one (measured).
* A run with a record whose target is not known yet waits in its queue until it is; the other queues go on.
* A transaction with a record that was not stored does not commit. The reports of failures name the target, and it is
  avoided. A success without an offset (`kafka.reports`) would commit: it aborts the transaction, hence all reports are
  read before the commit. Where one record spoils its batch, the producer sends records
  one a batch for a while, and then the report names the record.
* A record that no topic of our own takes (it is to be parked, and that is not allowed) would abort every transaction:
  its queue rests, a second at first, then twice as long each time, up to five.
* After an abort that is known to have worked, what was taken is due again; nothing was delivered, no position moved.
* After anything indefinite (time-out, fenced, fatal, a commit that took longer than its time) the producer is thrown
  away, a new one made, `init_transactions` (which fences the old one and ends what it left open), and the committed
  positions read: they say which of the transactions there were. librdkafka speaks a transaction protocol in which a
  late request may hit the next transaction; a new producer per doubt closes that (KIP-890).
* Positions move by transactions only. Those that pass probes get one of their own: a commit of the consumer's may reach
  the coordinator after the next transaction, and would take its position back.
* A rebalance ends the transaction that grows when it comes, without effect: what it asks of the cluster may outlast it.
* Fenced three times in a minute: another worker has the same `transactional.id`, and this one ends, naming it.
* Probes are not part of transactions and have a producer of their own.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

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
from rocketshim.kafka.reports import delivery_error
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
_LONGEST_REST_NS: Final = 5_000 * _NS
_CAREFUL_NS: Final = 30_000 * _NS
_MINUTE_NS: Final = 60_000 * _NS
_MOST_FENCINGS: Final = 3
_FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})  # noqa: SLF001
_PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001
_SPOILS: Final = frozenset({KafkaError._STATE, KafkaError._FATAL})  # noqa: SLF001
_LISTED_FAILURES: Final = 1_000
_LAST_REPORTS_S: Final = 1.0
_OVERDUE_S: Final = 6.0  # a call that has not returned so long after its time-out never will


class _Taken:
    """What one queue gave into the running transaction."""

    __slots__ = ("due", "held")

    def __init__(self, held: AssignedPartition, due: Due[Any]) -> None:
        self.held = held
        self.due = due


class ExactlyOnce:
    """Delivery in transactions.

    Args:
        make_producer: of `Clients`.
        config: settings of the producer, `transactional.id` among them.
        probe_config: settings of the producer of probes.
        router: where records go.
        counts: what was done.
        clock: to wait by.
        prober: writes probes.
        alarm: told an event and its facts.
        api_timeout_ms: longest wait for one transactional call; below the transaction's time-out.
        patience_ms: how long targets may take to store the records of a transaction.
        denied: says which topics among those named may not be written to.
        point: called with the name of a point of the protocol as it is passed; for fault tests.
        heart: told before each call that may take its time, how long that is.

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
        self._taken: list[_Taken] = []
        self._passed: list[AssignedPartition] = []
        self._records = 0
        self._is_spoilt = False
        self._is_silent = False
        self._begun_ns: int | None = None
        self._not_before_ns = 0
        self._is_stale = False
        self._renewed_ns = 0
        self._doubtful: list[_Taken] = []
        self._careful_until_ns = 0
        self._is_careful = False
        self._fenced_ns: deque[int] = deque(maxlen=_MOST_FENCINGS)
        self._twin: WorkerError | None = None
        self._failures: list[tuple[Any, Kind, str, KafkaError]] = []
        self._dues_ms: list[int] = []
        self._tried: set[TargetHealth] = set()
        self._done: list[tuple[Kind, str]] = []
        self._own: list[tuple[Any, str]] = []  # records that went to a topic of our own, and to which

    # --- the transaction ---------------------------------------------------------------------------------------------

    def start(self, consumer: ConsumerClient) -> None:
        """Make the producers; the transactional one is made ready by the first turn."""
        self._consumer = consumer
        self._probes = self._make_producer(self._probe_config)
        self._prober.use(self._probes)
        self._renew()

    def capacity(self, now_ns: int) -> int:
        """How many records may still go into this transaction."""
        if self._producer is None or now_ns < self._not_before_ns:
            return 0
        if self._is_spoilt or (self._begun_ns is not None and now_ns - self._begun_ns >= _LONGEST_NS):
            return 0
        return _MOST_RECORDS - self._records

    def relay(self, held: AssignedPartition, due: Due[Any], now_ns: int) -> None:
        """Produce what left a queue, in the running transaction."""
        placed, awaited = self._route(held, due, now_ns)
        if awaited:
            held.awaited = awaited
            held.queue.failed(due)
            return
        if self._begun_ns is None and not self._begin(now_ns):
            held.queue.failed(due)
            return
        self._point("before-produce")
        self._taken.append(_Taken(held, due))
        self._records += len(due.records)
        producer = self._producer
        if producer is None:
            return
        for each in placed:
            if self._is_spoilt:
                return
            if isinstance(each, PlainGroup):
                self._produce_plain(producer, due, each, now_ns)
            else:
                self._produce_slowly(producer, due, *each, now_ns)
        self._is_spoilt = poll_callbacks(producer) is not None or self._is_spoilt
        self._point("after-produce")

    def _route(
        self, held: AssignedPartition, due: Due[Any], now_ns: int
    ) -> tuple[list[PlainGroup | tuple[int, Placement]], set[TargetHealth]]:
        """Where each record of a run goes, and the targets that are not known yet: with one of them, all of it waits.

        All of a run is looked at before any of it is produced, so that none of a transaction is aborted for it.
        """
        placed: list[PlainGroup | tuple[int, Placement]] = []
        awaited: set[TargetHealth] = set()
        place, end = 0, len(due.records)
        while place < end:
            if not self._is_careful:
                groups, place = self._router.plain_ones(due, place, held, now_ns)
                placed += groups
            if place < end:
                placement = self._router.route_due(due, place, now_ns)
                if placement.kind is Kind.NOT_YET and placement.target is not None:
                    awaited.add(placement.target)
                placed.append((place, placement))
                place += 1
        return placed, awaited

    def _produce_plain(self, producer: ProducerClient, due: Due[Any], group: PlainGroup, now_ns: int) -> None:
        """Produce the plain due ones of one target partition."""
        produce, failed, add_due = producer.produce, self._failed, self._dues_ms.append
        topic, partition = group.target.topic, group.partition
        for place, value, key, headers, due_ms in group.records:
            if self._is_spoilt:
                return
            try:
                produce(topic, value, key, partition, on_delivery=failed, headers=headers)
            except (BufferError, KafkaException):
                placement = self._router.route_due(due, place, now_ns)
                self._produce_slowly(producer, due, place, placement, now_ns)  # it looks at the error
            else:
                add_due(due_ms)

    def _begin(self, now_ns: int) -> bool:
        producer = self._producer
        if producer is None:
            return False
        try:
            producer.begin_transaction()
        except KafkaException as error:
            self._doubt(error.args[0], now_ns)
            return False
        self._begun_ns = now_ns
        return True

    def _produce_slowly(  # noqa: C901 - one record, and all that can come of producing it
        self, producer: ProducerClient, due: Due[Any], place: int, placement: Placement, now_ns: int
    ) -> None:
        """Produce one record; one that cannot even be produced is routed again, which parks it or lets it wait."""
        record = due.records[place]
        for _ in range(4):
            if placement.kind is Kind.NOT_YET:
                self._is_spoilt = True  # the producer has to learn what its target has got
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
                        self._is_spoilt = poll_callbacks(producer, 0.02) is not None or self._is_spoilt
                    else:
                        break
            except KafkaException as problem:
                error = problem.args[0]
                if error.code() in _SPOILS or error.fatal() or error.txn_requires_abort():
                    self._is_spoilt = True  # something before it failed; nobody's fault here
                    return
                self._router.refused(record, placement.kind, placement.topic, error, now_ns, alone=True)
                placement = self._router.route_due(due, place, now_ns)
                continue
            if placement.kind is Kind.DELIVER:
                self._dues_ms.append(placement.due_ms)
                if placement.target is not None:
                    self._tried.add(placement.target)
            else:
                self._done.append((placement.kind, placement.reason))
                self._own.append((record, placement.topic))
            return
        # nothing takes it, not even the parking topic: the transaction must not commit without it
        self._failures.append((record, Kind.PARK, "", KafkaError(KafkaError._FAIL)))  # noqa: SLF001

    def _failed(self, error: KafkaError | None, message: Any) -> None:
        error = delivery_error(error, message)
        if error is not None and len(self._failures) < _LISTED_FAILURES:
            self._failures.append((None, Kind.DELIVER, message.topic(), error))

    def _failed_record(self, record: Any, kind: Kind, topic: str, error: KafkaError | None, message: Any) -> None:
        error = delivery_error(error, message)
        if error is not None and len(self._failures) < _LISTED_FAILURES:
            self._failures.append((record, kind, topic, error))

    def can_extend(self, now_ns: int) -> bool:
        """Whether a transaction is open and has room."""
        return self._begun_ns is not None and self.capacity(now_ns) > 0

    def end_turn(self, now_ns: int) -> None:
        """Commit the running transaction, if there is one."""
        producer, consumer = self._producer, self._consumer
        if self._begun_ns is None or producer is None or consumer is None:
            return
        ends = {taken.held: taken.due.run.next_offset for taken in self._taken}
        ends.update({held: held.skipped_to for held in self._passed})
        offsets = [held.at(end) for held, end in ends.items()]
        began_ns = now_ns
        try:
            left = 0 if self._is_spoilt else producer.flush(self._patience_s)
            self._is_silent = left > 0
            if left or self._has_culprit() or any(taken.held.gone for taken in self._taken):
                self._abort(producer, None)
                return
            self._call_begins()
            # a transaction that has failed says here why it did
            producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), self._api_timeout_s)
            if self._is_spoilt or self._failures:
                self._abort(producer, None)
                return
            self._point("before-commit")
            self._call_begins()
            producer.commit_transaction(self._api_timeout_s)
        except KafkaException as problem:
            error = problem.args[0]
            if error.txn_requires_abort() and not error.fatal():
                self._abort(producer, error)
            else:
                self._doubt(error, self._clock.monotonic_ns())
            return
        self._point("after-commit")
        self._committed(began_ns, ends)

    def _committed(self, began_ns: int, ends: dict[AssignedPartition, int]) -> None:
        now_ns = self._clock.monotonic_ns()
        for taken in self._taken:
            self._confirm(taken)
        for held, end in ends.items():
            held.committed = max(held.committed, end)
            held.rests = 0
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
            self._renew()  # something in it was tried again for long: no late request may hit the next one
        elif self._is_careful and now_ns >= self._careful_until_ns:
            self._renew()

    def _confirm(self, taken: _Taken) -> None:
        if self._router.holds_blame:
            for record in taken.due.records:
                self._router.settled(record)
        if not taken.held.gone:
            taken.held.queue.confirmed(taken.due.run)

    def _reset(self) -> None:
        self._is_spoilt = self._is_silent = False
        self._taken = []
        self._passed = []
        self._records = 0
        self._begun_ns = None
        self._failures = []
        self._tried = set()
        self._dues_ms = []
        self._done = []
        self._own = []

    def _call_begins(self) -> None:
        self._heart.beat(self._api_timeout_s + _OVERDUE_S)

    # --- what goes wrong ---------------------------------------------------------------------------------------------

    def _abort(self, producer: ProducerClient, cause: KafkaError | None, why: str = "") -> None:
        """End the transaction without effect; if even that is in doubt, the producer goes."""
        self._counts.aborted += 1
        self._call_begins()
        purge_producer(producer, self._patience_s)  # an abort waits in vain for reports that nobody serves
        try:
            producer.abort_transaction(self._api_timeout_s)
            now_ns = self._clock.monotonic_ns()
        except KafkaException as problem:
            now_ns = self._clock.monotonic_ns()
            self._learn_from_failures(now_ns, cause)
            self._doubt(problem.args[0], now_ns)
            return
        poll_callbacks(producer)
        reason = str(cause) if cause is not None else why or f"{len(self._failures)} records were not stored"
        self._alarm("worker.transaction-aborted", error=reason, records=self._records)
        careful, was_silent = self._learn_from_failures(now_ns, cause), self._is_silent
        for taken in reversed(self._taken):
            if not taken.held.gone:
                taken.held.queue.failed(taken.due)
        self._reset()
        self._not_before_ns = now_ns + _BACK_OFF_NS
        if careful:
            self._careful_until_ns = now_ns + _CAREFUL_NS
        if cause is not None or was_silent or (careful and not self._is_careful):
            # a producer whose broker was away may hang for ever in a later call (seen after a broker's restart)
            self._renew()

    def _has_culprit(self) -> bool:
        """Whether a record was refused for a reason of its own or of its target's."""
        return any(error.code() not in _PURGED for _, _, _, error in self._failures)

    def _learn_from_failures(self, now_ns: int, cause: KafkaError | None = None) -> bool:
        """Tell the router what was not stored; True if the culprit is one record of a batch, and not known."""
        unknown = False
        was_refused = self._has_culprit()
        if cause is not None and cause.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self._ask_who_is_denied(cause, now_ns)
        for record, kind, topic, error in self._failures:
            if error.code() in _FENCED or error.code() in _SPOILS:
                continue
            if error.code() in _PURGED:
                # where one was refused, what is purged with it had no time to be stored; else it was not taken in time
                if kind is Kind.DELIVER and self._is_silent and not was_refused:
                    self._router.target_failed(self._router.targets.target(topic, now_ns), now_ns, "no-answer")
            elif record is not None:
                verdict = self._router.refused(record, kind, topic, error, now_ns, alone=self._is_careful)
                if verdict is Verdict.WAIT:
                    self._rest(record, topic, error, now_ns)
            else:
                unknown = self._router.batch_refused(topic, error, now_ns) or unknown
        return unknown

    def _ask_who_is_denied(self, cause: KafkaError, now_ns: int) -> None:
        """A transaction failed for a missing right: find out whose."""
        targets = {topic for _, kind, topic, _ in self._failures if kind is Kind.DELIVER}
        denied = self._denied(targets | {topic for _, topic in self._own})
        for topic in denied & targets:
            self._router.target_failed(self._router.targets.target(topic, now_ns), now_ns, cause.name())
        for record, topic in self._own:
            if topic in denied:
                self._rest(record, topic, cause, now_ns)

    def _rest(self, record: Any, topic: str, error: KafkaError, now_ns: int) -> None:
        """A record of a queue can be placed nowhere at the moment: nothing of it goes into the next transactions."""
        held = next((taken.held for taken in self._taken if taken.held.number == record.partition()), None)
        if held is not None and held.rest_until_ns <= now_ns:
            held.rest_until_ns = now_ns + min(_AGAIN_NS << min(held.rests, 8), _LONGEST_REST_NS)
            held.rests += 1
            self._alarm("worker.hop-not-stored", topic=topic, error=error.name(), record=coordinates(record))

    def _doubt(self, error: KafkaError, now_ns: int) -> None:
        """It is not known what has become of the transaction: a new producer, and the positions will tell."""
        if error.code() in _FENCED:
            self._alarm("worker.fenced", error=str(error), transactional_id=self._config["transactional.id"])
            self._fenced_ns.append(now_ns)
            if len(self._fenced_ns) == _MOST_FENCINGS and now_ns - self._fenced_ns[0] < _MINUTE_NS:
                self._twin = WorkerError(
                    f"fenced {_MOST_FENCINGS} times in a minute: another worker runs with transactional.id "
                    f"{self._config['transactional.id']!r}; give each its own --instance"
                )
        self._counts.recycled += 1
        self._alarm("worker.producer-recycled", error=str(error))
        self._doubtful += self._taken
        self._is_silent = error.code() == KafkaError._TIMED_OUT  # noqa: SLF001
        self._renew()
        self._learn_from_failures(now_ns)
        self._reset()

    def _renew(self) -> None:
        """Throw the producer away; the next `settle` makes a new one."""
        old, self._producer = self._producer, None
        self._router.targets.use()
        if old is not None:
            close_producer(old, _LAST_REPORTS_S)

    def connection_lost(self) -> None:
        """Have a new producer before the next transaction, but not more than one a second.

        `send_offsets_to_transaction` of librdkafka ignores its time-out, and waits for ever for a coordinator that it
        remembers and that has gone from its metadata meanwhile (librdkafka 5456 and 5511; without this, the worker hung
        in most restarts of a broker on a busy machine). A new producer remembers none.
        """
        self._is_stale = True

    def settle(self, now_ns: int) -> None:
        """Make the producer ready where there is none, and find out what has become of doubtful transactions.

        Raises:
            WorkerError: fenced three times in a minute.
        """
        if self._twin is not None:
            raise self._twin
        if self._probes is not None:
            error = poll_callbacks(self._probes)
            if error is not None:
                self._alarm("worker.producer-recycled", error=str(error))
                close_producer(self._probes, _LAST_REPORTS_S)
                self._probes = self._make_producer(self._probe_config)
                self._prober.use(self._probes)
        if self._is_stale and self._begun_ns is None and now_ns - self._renewed_ns >= _AGAIN_NS:
            self._renew()
        if self._producer is not None or now_ns < self._not_before_ns or self._consumer is None:
            return
        self._is_careful = now_ns < self._careful_until_ns
        config = {**self._config, "batch.num.messages": 1} if self._is_careful else self._config
        producer = self._make_producer(config)
        self._call_begins()
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
        """The committed positions say which doubtful transactions were committed."""
        doubtful = [taken for taken in self._doubtful if not taken.held.gone]
        if doubtful:
            numbers = {taken.held.number for taken in doubtful}
            asked = [TopicPartition(self._prober.topic, number) for number in numbers]
            found = {item.partition: item.offset for item in consumer.committed(asked, timeout=self._api_timeout_s)}
            for taken in reversed(doubtful):
                if found[taken.held.number] >= taken.due.run.next_offset:
                    self._confirm(taken)
                else:
                    taken.held.queue.failed(taken.due)
        self._doubtful = []

    # --- waiting, committing, ending ---------------------------------------------------------------------------------

    def wait_ns(self, now_ns: int) -> int | None:
        """Until the next transaction may begin."""
        if self._producer is None:
            return max(0, self._not_before_ns - now_ns)
        if self._is_stale:
            return max(0, self._renewed_ns + _AGAIN_NS - now_ns)
        return max(0, self._not_before_ns - now_ns) or (_BUSY_NS if self._prober.outstanding > 0 else None)

    def commit(self, held: list[AssignedPartition], *, asynchronous: bool) -> None:
        """Positions are committed with their transactions; what only passes probes, in one here, if there is time."""
        if not asynchronous:
            return  # the next owner reads the probes again
        passed = [each for each in held if each.has_uncommitted and each.position == each.skipped_to]
        now_ns = self._clock.monotonic_ns()
        if passed and self.capacity(now_ns) > 0 and self._begin(now_ns):
            self._passed = passed
            self.end_turn(now_ns)

    def drain(self, held: list[AssignedPartition], longest_ns: int) -> None:
        """Abort what is open: partitions come or go. What is in doubt is the next owner's."""
        del held, longest_ns
        if self._begun_ns is not None and self._producer is not None:
            self._abort(self._producer, None, "partitions come or go")

    def probe(self, held: AssignedPartition, now_ns: int) -> None:
        """Write a probe, outside any transaction."""
        self._prober.probe(held, now_ns)

    def close(self) -> None:
        """Abort what is open and end."""
        if self._begun_ns is not None and self._producer is not None:
            try:
                self._producer.abort_transaction(self._api_timeout_s)
            except KafkaException as error:
                self._alarm("worker.transaction-aborted", error=str(error), records=self._records)
        self._renew()
        if self._probes is not None:
            close_producer(self._probes, _LAST_REPORTS_S)
        self._probes = self._consumer = None
        self._reset()
