"""Exactly-once delivery: due records and the positions after them in one Kafka transaction.

* A turn of the loop is a transaction. It produces every due record. While more records are ready, it fetches and
  produces them too, up to 5,000 records, about 200 topics or 50 ms, so it grows with the backlog. It is no larger than
  what was stored in good time (`core.send_pace`): a broker with a quota would abort large ones forever. Then it sends
  the positions, with the worker's current membership of the group. Then it commits. The next transaction begins 3 ms
  after a commit: without this gap librdkafka waits 20 ms for the coordinator to finish the last transaction (measured).
* A run with a record whose target is unknown waits in its queue until the target is known. Other queues continue.
* A transaction with a record that was not stored does not commit; a target that refused it is then avoided. If one
  record makes the broker refuse its batch, the producer sends one record per batch for a while, and then the report is
  about the record. A success without an offset (`kafka.reports`) would be committed: it aborts the transaction. So the
  worker reads all reports before the commit.
* The worker waits while reports keep arriving. If none arrives for 100 ms, the targets of records that are not known to
  be stored are looked up: if one of them was deleted, the transaction is aborted. If none arrives for the patience
  (`core.send_pace`), and a probe that was written then is stored, the targets that have not answered are avoided. While
  a broker throttles this client, no target is silent. If it does so for longer than the transaction may last, the
  transaction is aborted, and the next one begins afterwards.
* If the broker refuses the transaction because of an unknown topic, the same targets are looked up. Otherwise the next
  transaction would fail as well.
* After an abort that certainly succeeded, the records that were taken are due again. Nothing was delivered and no
  position moved.
* An uncertain outcome (time-out, fenced, fatal error, a commit that took longer than its time) has four steps. The
  worker closes the producer and creates a new one 100 ms later. The new one calls `init_transactions`, which fences
  the old producer and ends its open transaction. The worker reads the committed positions, which show whether the
  transaction was committed. librdkafka's transaction protocol allows a late request to hit the next transaction; a new
  producer after each uncertain outcome prevents that (KIP-890).
* The coordinator ends a transaction only when each leader of it has written that. So a frozen leader, or one that lacks
  replicas, keeps the `transactional.id`, and the next producer has another one. That is safe: the positions of a
  transaction that is not ended cannot be read, and the worker reads them after each uncertain outcome. The first id is
  tried again after a minute, and then less often: Kafka keeps each id for seven days. A target is blamed if its
  transaction was the first of its producer; a later one may only have waited for the one before.
* Only transactions move positions. Positions after probes get their own transaction: a commit by the consumer may wait
  in librdkafka for the coordinator, reach it after the next transaction, and move the position back
  (test_a_late_commit_of_the_consumer_moves_no_position_back).
* A rebalance callback is served inside any `poll`. It aborts the open transaction first: its requests to the cluster
  may take longer than the transaction's time-out, and the fence would look like that of a second worker
  (test_a_rebalance_aborts_the_open_transaction_before_any_slow_request).
* A worker that is fenced three times in a minute ends with an error: another worker has the same `transactional.id`.
* A transaction saves the states of names of one partition of the timer log, in turn: each further one would cost about
  half a millisecond. A worker that begins reads the commands behind the last state again (`worker.timer_state`). Only a
  refusal cannot be read there: its partition is saved with it.
* Probes are not part of transactions and have a separate producer.
* Nor are the hops of named messages between the timer log and the delay queues: of equal FIREs the log lets one count,
  so such a hop may be stored twice. They are stored before the commit, by a producer without transactions, and so they
  are visible a transaction earlier. That producer is made for the first of them.

What the failures of a transaction say (`TransactionFailures`, the part of `refusals` for transactions):

* A record that no topic of the shim accepts (it must be parked, and the worker may not) would abort every transaction.
  Its partition backs off: a second at first, then twice as long each time, up to five seconds.
* Records that were purged with an aborted transaction say nothing about their targets, unless these were silent.
* The error of a missing right does not name the topic. So the cluster is asked which topics the worker may not write
  to.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.core.clock import Backoff, Clock
from rocketshim.core.level_queue import Due
from rocketshim.core.send_pace import SendPace, cost
from rocketshim.errors import WorkerError
from rocketshim.kafka.clients import (
    ConsumerClient,
    ProducerClient,
    init_transactions,
    poll_callbacks,
    purge_producer,
)
from rocketshim.kafka.lookups import check_answers
from rocketshim.worker.assignment import AssignedPartition, Assignment
from rocketshim.worker.hop_writer import Action, Flight, HopBatch, HopGroup, HopRecord, HopWriter, hop_record
from rocketshim.worker.prober import Prober
from rocketshim.worker.refusals import SPOILS_BATCH, Refusals
from rocketshim.worker.router import Router
from rocketshim.worker.state import Alarms
from rocketshim.worker.targets import TargetHealth
from rocketshim.worker.watchdog import Heartbeat
from rocketshim.worker.worker_clients import WorkerClients
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.wire import coordinates

__all__ = ["ExactlyOnce", "Transaction"]

_NS: Final = 1_000_000
_MOST_RECORDS: Final = 5_000
_MOST_UNSAVED: Final = 1_000  # states of names: they keep their commands in memory
_UNSAVED_NS: Final = 100 * _NS
_MOST_TOPICS: Final = 200  # about: each of them costs requests at the end of the transaction
_SMALL: Final = 32_000  # cost; a link that carries less in ten seconds needs a longer time-out
_LONGEST_NS: Final = 50 * _NS
_GAP_NS: Final = 3 * _NS
_BACK_OFF_NS: Final = 100 * _NS
_AGAIN_NS: Final = 1_000 * _NS
_BUSY_NS: Final = 2 * _NS
_ID_KEPT_S: Final = 1.0  # then the last transaction of the id waits for a leader
_FIRST_ID_NS: Final = Backoff(60_000 * _NS, 600_000 * _NS)  # until it is tried again
_CAREFUL_NS: Final = 30_000 * _NS
_MINUTE_NS: Final = 60_000 * _NS
_MOST_FENCINGS: Final = 3
_MOST_ROUTINGS: Final = 4  # of a record whose hop the producer refuses: target, queue, parking topic, without its body
_LAST_REPORTS_S: Final = 1.0
_LOOK_S: Final = 0.1  # to see whether reports arrive
_ANSWER_S: Final = 0.02  # to see whether lookups were answered
_PURGE_S: Final = 2.0
_CALLS: Final = 5  # requests of a transaction that wait for each other
_PROBES: Final = 3  # a record of a new transaction takes the time of these: metadata and partitions come first
_REMEMBERED_CALLS: Final = 8
_OVERDUE_S: Final = 6.0  # a call that has not returned by this time after its time-out never will
PURGED: Final = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})  # noqa: SLF001 - no public spelling
FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})  # noqa: SLF001
_SPOILS: Final = frozenset({KafkaError._STATE, KafkaError._FATAL})  # noqa: SLF001
_WAITS: Final = frozenset({Action.REQUEUE, Action.NEXT})
_BACKOFF_NS: Final = Backoff(1_000_000_000, 5_000_000_000)


States = dict[AssignedPartition, dict[bytes | None, tuple[Due[Any], str, HopRecord]]]
"""Of partitions of the timer log: by name the command that has changed it last, and topic and record of its state."""


@dataclass(slots=True, eq=False)
class Transaction:
    """The records of one transaction and what was reported of them. The next one has a new object."""

    begun_ns: int
    positions: dict[AssignedPartition, int]  # that it commits of partitions of which it has no record
    is_first: bool  # of its producer: it could begin, since no earlier one of the id has not ended
    count: int = 0
    cost: int = 0
    flights: list[Flight] = field(default_factory=list)
    batches: list[HopBatch] = field(default_factory=list)
    topics: set[str] = field(default_factory=set)
    states: States = field(default_factory=dict)  # of the names that its records have changed
    saved: set[AssignedPartition] = field(default_factory=set)  # whose states are in it
    must_abort: bool = False  # a record was not produced, or the producer has failed
    is_late: bool = False  # records were not stored in time, or the commit would not succeed in time
    is_silent: bool = False  # targets have not stored its records, and no report has arrived for a while
    has_deleted: bool = False  # a target whose records were not stored was deleted

    def add(self, flight: Flight) -> None:
        """Add the due records of a run."""
        self.flights.append(flight)
        self.count += len(flight.due.records)
        self.cost += cost(len(flight.due.records), flight.due.size_bytes)

    def all_positions(self) -> dict[AssignedPartition, int]:
        """Return the position to commit of each partition."""
        return self.positions | {flight.assigned: flight.due.run.next_offset for flight in self.flights}

    def offsets(self) -> list[TopicPartition]:
        """Return the positions to commit, as the client wants them."""
        return [assigned.at(position) for assigned, position in self.all_positions().items()]

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


class TransactionFailures:
    """Learns from the failures of transactions; `denied` returns the topics that the worker may not write to."""

    def __init__(self, refusals: Refusals, alarm: Callable[..., None], denied: Callable[[set[str]], set[str]]) -> None:
        self._refusals = refusals
        self._alarm = alarm
        self._denied = denied

    def refused(self, transaction: Transaction, batch: HopBatch, now_ns: int) -> None:
        """Learn why the producer refused a record; if no topic accepts it, its partition backs off."""
        _, error = batch.errors[0]
        if error.code() in _SPOILS or error.fatal() or error.txn_requires_abort():
            transaction.must_abort = True  # an earlier record failed, not this one
            return
        if self._refusals.must_wait(batch, 0, error, now_ns):
            transaction.must_abort = True
            self._back_off(batch, 0, error, now_ns)

    def learn(self, transaction: Transaction, now_ns: int, cause: KafkaError | None = None) -> bool:
        """Report failures to the router; return True if one unknown record made the broker refuse its batch."""
        if cause is not None and cause.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            self._find_denied_topics(transaction, cause, now_ns)
        # if a record was refused, those that were purged had no time to be stored; otherwise their targets are silent
        is_silent = transaction.is_silent and not transaction.has_refusal
        is_refused = False
        for batch, at, error in transaction.failures():
            group = batch.group
            if error.code() in PURGED:
                if is_silent and group.action is Action.DELIVER and group.target is not None:
                    self._refusals.target_failed(group.target, now_ns, "no-answer")
            elif error.code() not in FENCED | _SPOILS:
                if self._refusals.must_wait(batch, at, error, now_ns) and group.action is not Action.DELIVER:
                    self._back_off(batch, at, error, now_ns)
                is_refused = is_refused or (
                    group.action is Action.DELIVER and not batch.alone and error.code() in SPOILS_BATCH
                )
        return is_refused

    def _find_denied_topics(self, transaction: Transaction, cause: KafkaError, now_ns: int) -> None:
        """Find out which topic denied a transaction that failed because of a missing ACL."""
        denied = self._denied({batch.group.topic for batch in transaction.batches})
        for batch in transaction.batches:
            group = batch.group
            if group.topic in denied and group.action is not Action.DELIVER:
                self._back_off(batch, 0, cause, now_ns)
            elif group.topic in denied and group.target is not None:
                self._refusals.target_failed(group.target, now_ns, cause.name())

    def _back_off(self, batch: HopBatch, at: int, error: KafkaError, now_ns: int) -> None:
        """Let a partition back off: no topic accepts one of its records, so the next transactions leave it out."""
        assigned = batch.flight.assigned
        if assigned.backoff_until_ns <= now_ns:
            assigned.backoff_until_ns = now_ns + _BACKOFF_NS.pause(assigned.backoffs)
            assigned.backoffs += 1
            record = coordinates(batch.record(at))
            self._alarm("worker.hop-not-stored", topic=batch.group.topic, error=error.name(), record=record)


class UnsavedStates:
    """States of names that are not stored yet, of partitions of the timer log; the rule is at the top of this file."""

    def __init__(self) -> None:
        self._kept: States = {}  # of transactions that are committed; first the partition that has waited longest

    def changed(self, transaction: Transaction, flight: Flight, groups: list[HopGroup]) -> None:
        """Note in a transaction what one of its flights has changed."""
        timers = flight.assigned.timers
        if timers is not None and timers.unsaved:
            self._kept[flight.assigned] = {
                out.key: (_command(flight, command), out.topic, hop_record(0, out)) for command, out in timers.unsaved
            }
            timers.unsaved = []
        states = transaction.states.setdefault(flight.assigned, {})
        for group in groups:
            for hop in group.records:
                states[hop[2]] = _command(flight, flight.due.records[hop[0]]), group.topic, hop

    def waiting(self, now_ns: int, transaction: Transaction | None = None) -> list[AssignedPartition]:
        """Return the partitions that may be saved now."""
        self._kept = {each: states for each, states in self._kept.items() if not each.gone}
        states = self._kept if transaction is None else self._kept | transaction.states
        return [each for each in states if not each.gone and each.backoff_until_ns <= now_ns]

    def save(self, transaction: Transaction, now_ns: int) -> Iterator[tuple[Flight, HopGroup]]:
        """Choose the partitions that a transaction saves, and return what it has to write for each.

        One of them, if the transaction has records; all if it has none, or if too many states wait.
        """
        waiting = self.waiting(now_ns, transaction)
        states = {each: self._kept.get(each, {}) | transaction.states.get(each, {}) for each in waiting}
        left = sum(map(len, states.values()))
        for assigned in waiting:
            is_enough = bool(transaction.flights and transaction.saved) and left <= _MOST_UNSAVED
            if is_enough and not (assigned.timers and assigned.timers.must_save):
                continue
            transaction.saved.add(assigned)
            left -= len(states[assigned])
            if assigned.stored >= 0:  # a transaction without a position would not be fenced by the group
                transaction.positions.setdefault(assigned, assigned.stored)
            commands, (topic, *_), hops = zip(*states[assigned].values(), strict=True)
            group = HopGroup(Action.STATE, topic, assigned.number)
            group.records = [(at, *hop[1:]) for at, hop in enumerate(hops)]
            yield Flight(assigned, replace(commands[-1], records=[each.records[0] for each in commands])), group

    def keep(self, transaction: Transaction, committed: Iterable[AssignedPartition]) -> None:
        """Keep what a transaction has changed in these partitions and has not saved: it is committed."""
        for assigned in transaction.saved:
            self._kept.pop(assigned, None)
            if assigned.timers is not None:
                assigned.timers.must_save = False
        for assigned in committed:
            if assigned not in transaction.saved and (states := transaction.states.get(assigned)):
                self._kept.setdefault(assigned, {}).update(states)


def _command(flight: Flight, record: Any) -> Due[Any]:
    return replace(flight.due, records=[record], appends_ms=[], seen_ns=[])


class TransactionProducer:
    """The producer of the transactions: when it is replaced, and under which `transactional.id`."""

    def __init__(self, clients: WorkerClients, pace: SendPace, alarm: Alarms, heart: Heartbeat) -> None:
        self.current: ProducerClient | None = None
        self.timeout_s = clients.longest_ms / 1_000  # of a call
        self.not_before_ns = 0  # when the next transaction, or the next producer, may begin
        self.is_careful = False  # whether it sends one record per batch
        self.is_unused = True  # since it was accepted, no transaction has begun
        self._careful_until_ns = 0
        self._is_stale = False
        self._renewed_ns = 0
        self._number = 0  # of the id: 0 has no suffix, the others one that no --instance can have
        self._other = 1  # the number that is used while a transaction that cannot end keeps the first id
        self._first_ns, self._first_tries = 0, 0  # when to try the first id again; how often it was kept
        self._fenced_ns: deque[int] = deque(maxlen=_MOST_FENCINGS)
        self._config = clients.transactional_config(pace)
        self._clients = clients
        self._alarm = alarm
        self._heart = heart

    @property
    def _id(self) -> str:
        return f"{self._config['transactional.id']}{f'+{self._number}' * bool(self._number)}"

    def make(self, now_ns: int) -> ProducerClient:
        """Create the next producer; it counts when it is accepted."""
        self.is_careful = now_ns < self._careful_until_ns
        config = {**self._config, "batch.num.messages": 1} if self.is_careful else {**self._config}
        if now_ns >= self._first_ns:
            self._number = 0
        config["transactional.id"] = self._id
        return self._clients.make_producer(config)

    def initialise(self, producer: ProducerClient, topic: str) -> None:
        """Initialise a producer; raise `CONCURRENT_TRANSACTIONS` soon if the last transaction of its id cannot end."""
        self.beat()
        try:
            init_transactions(producer, topic, min(_ID_KEPT_S, self.timeout_s))
        except KafkaException as problem:
            error = problem.args[0]
            if error.code() == KafkaError.CONCURRENT_TRANSACTIONS or not error.retriable():
                raise
            self.beat()
            producer.init_transactions(self.timeout_s)

    def accept(self, producer: ProducerClient, now_ns: int) -> None:
        """Begin transactions with this producer."""
        self.current, self.is_unused = producer, True
        self._is_stale, self._renewed_ns = False, now_ns
        if not self._number:
            self._other, self._first_tries = 1, 0

    def discard(self, producer: ProducerClient | None = None) -> None:
        """Close the current producer, or one that is not accepted."""
        if producer is None:
            producer, self.current = self.current, None
        if producer is not None:
            self._clients.discard(producer, _LOOK_S)

    def begin_careful(self, now_ns: int) -> None:
        """Have the next producers send one record per batch for a while."""
        self._careful_until_ns = now_ns + _CAREFUL_NS

    def change_id(self, now_ns: int, *, is_refused: bool) -> None:
        """Give the next producer another id: the last transaction of this one waits for a leader.

        If it is refused, it was left by an earlier process, perhaps with many others: so the number doubles.
        """
        if not self._number:
            self._first_ns = now_ns + _FIRST_ID_NS.pause(self._first_tries)
            self._first_tries += 1
        else:
            self._other = 2 * self._other if is_refused else self._other + 1
        self._number = self._other

    def connection_lost(self) -> None:
        """Have the producer replaced before the next transaction, at most once a second.

        `send_offsets_to_transaction` of librdkafka ignores its time-out. It waits forever for a remembered coordinator
        that has left its metadata meanwhile (librdkafka 5456 and 5511). Without the replacement, the worker blocked in
        most restarts of a broker on a busy machine. A new producer remembers no coordinator.
        """
        self._is_stale = True

    def is_outdated(self, now_ns: int) -> bool:
        """Return whether the current producer is to be replaced before the next transaction."""
        is_careful_for_nothing = self.is_careful and now_ns >= self._careful_until_ns
        may_return = self._number > 0 and now_ns >= self._first_ns
        return is_careful_for_nothing or may_return or (self._is_stale and now_ns - self._renewed_ns >= _AGAIN_NS)

    def fenced(self, error: KafkaError, now_ns: int) -> None:
        """Note that another producer has taken the id."""
        self._alarm("worker.fenced", error=str(error), transactional_id=self._id)
        self._fenced_ns.append(now_ns)

    def check_fenced(self) -> None:
        """Raise `WorkerError` if the id was taken three times in a minute."""
        if len(self._fenced_ns) == _MOST_FENCINGS and self._fenced_ns[-1] - self._fenced_ns[0] < _MINUTE_NS:
            raise WorkerError(
                f"fenced {_MOST_FENCINGS} times in a minute: another worker runs with transactional.id {self._id!r}; "
                "give each worker its own --instance"
            )

    def wait_ns(self, now_ns: int) -> int:
        """Return the time until it may be made or used, or has to be replaced; 0: now."""
        if self.current is not None and self._is_stale:
            return max(0, self._renewed_ns + _AGAIN_NS - now_ns)
        return max(0, self.not_before_ns - now_ns)

    def beat(self) -> None:
        """Report that the loop lives, before a call that may take long."""
        self._heart.beat(self.timeout_s + _OVERDUE_S)


class ExactlyOnce:
    """Delivery in transactions."""

    def __init__(
        self,
        clients: WorkerClients,
        *,
        router: Router,
        prober: Prober,
        assignment: Assignment,
        alarm: Alarms,
        clock: Clock,
        point: Callable[[str], None],
        heart: Heartbeat,
    ) -> None:
        self._pace = clients.pace()
        self._router = router
        self._targets = router.targets
        self._failures = TransactionFailures(router.refusals, alarm, clients.denied)
        self._writer = HopWriter(alarm.counts, router.refusals.forget_stored, alarm)
        self._writer.inbox = deque(maxlen=0)  # a transaction reads the reports of its own batches; nobody empties this
        self._producer = TransactionProducer(clients, self._pace, alarm, heart)
        self._prober = prober
        self._assignment = assignment
        self._alarm = alarm
        self._counts = alarm.counts
        self._clock = clock
        self._point = point
        self._clients = clients
        self._beside: ProducerClient | None = None  # of hops that may be stored twice
        self._consumer: ConsumerClient | None = None
        self._open: Transaction | None = None
        self._uncertain: list[Transaction] = []
        self._unsaved = UnsavedStates()
        self._save_ns = 0  # when what is not saved gets its own transaction
        self._call_ns: deque[int] = deque(maxlen=_REMEMBERED_CALLS)  # how long the last commits took
        self._records_a_topic = _MOST_RECORDS  # in the last transaction

    # --- the transaction ---------------------------------------------------------------------------------------------

    def start(self, consumer: ConsumerClient) -> None:
        """Create the producer of probes; the first turn creates the transactional producer."""
        self._consumer = consumer
        self._prober.open(self._pace)
        self._discard_producer()

    def capacity(self, now_ns: int) -> int:
        """Return the number of records that may still go into this transaction."""
        if self._producer.current is None or now_ns < self._producer.not_before_ns:
            return 0
        transaction = self._open
        room = self._pace.room_count(now_ns)
        if transaction is None:
            return min(_MOST_RECORDS, _MOST_TOPICS * self._records_a_topic, room)
        if transaction.must_abort or now_ns - transaction.begun_ns >= _LONGEST_NS:
            return 0
        by_topics = (_MOST_TOPICS - len(transaction.topics)) * self._records_a_topic
        return max(0, min(_MOST_RECORDS - transaction.count, by_topics, room))

    def capacity_bytes(self, now_ns: int) -> int:
        """Return how many bytes of records may still go into this transaction."""
        return max(1, self._pace.room(now_ns))

    def relay(self, assigned: AssignedPartition, due: Due[Any], now_ns: int) -> None:
        """Produce the records that left a queue, in the open transaction.

        With an unknown target, the whole run waits. It is routed before a record of it is produced, so that an unknown
        target aborts no transaction.
        """
        for target in assigned.awaited:
            target.keep_missing(now_ns)
        groups = self._router.route(due, assigned, now_ns)
        awaited = {group.target for group in groups if group.action is Action.NOT_YET and group.target is not None}
        if awaited:
            assigned.awaited |= awaited
            assigned.queue.failed(due)
            return
        assigned.awaited.clear()
        transaction, producer = self._open or self._begin(now_ns), self._producer.current
        if transaction is None or producer is None:
            assigned.queue.failed(due)
            return
        self._point("before-produce")
        flight = Flight(assigned, due)
        before = transaction.cost
        transaction.add(flight)
        self._pace.sent(transaction.cost - before, now_ns)
        self._produce(producer, transaction, flight, groups, now_ns)
        failure = poll_callbacks(producer) or self._writer.failure
        self._writer.failure = None
        transaction.must_abort = transaction.must_abort or failure is not None
        self._point("after-produce")

    def _begin(self, now_ns: int, positions: dict[AssignedPartition, int] | None = None) -> Transaction | None:
        producer = self._producer.current
        if producer is None:
            return None
        try:
            producer.begin_transaction()
        except KafkaException as error:
            self._on_uncertain_outcome(error.args[0], now_ns)
            return None
        self._open = Transaction(now_ns, positions or {}, self._producer.is_unused)
        self._producer.is_unused = False
        return self._open

    def _produce(
        self, producer: ProducerClient, transaction: Transaction, flight: Flight, groups: list[HopGroup], now_ns: int
    ) -> None:
        """Produce the records of a flight; route those again that the producer refuses, which parks or diverts them.

        Decides: What if one record of a transaction is refused? By the client: only it is routed again. By the broker:
            the transaction is aborted, and all are due again (`worker.exactly_once.ExactlyOnce._abort`).
        """
        for _ in range(_MOST_ROUTINGS):
            refused = self._write(producer, transaction, flight, groups, now_ns)
            if transaction.must_abort:
                return
            if not refused:
                break
            groups = self._router.route(flight.due, flight.assigned, now_ns, refused)
        else:
            transaction.must_abort = True
            return
        while indexes := flight.begin_phase():
            groups = flight.later(indexes)
            if groups[0].action is Action.STATE:
                self._unsaved.changed(transaction, flight, groups)
            elif self._write(producer, transaction, flight, groups, now_ns):
                return

    def _write(
        self, producer: ProducerClient, transaction: Transaction, flight: Flight, groups: list[HopGroup], now_ns: int
    ) -> list[int]:
        """Produce groups of a flight; return the indexes of the records that the producer refuses."""
        refused: list[int] = []
        for group in groups:
            if group.action is Action.NOT_YET:
                transaction.must_abort = True  # the producer has to learn about the target's new partitions
            elif group.action is Action.SKIP:
                self._counts.skipped += len(group.records)
            elif not flight.keeps(group):
                of = self._producer_of(flight, group) or producer
                refused += self._write_group(of, transaction, flight, group, now_ns)
        return sorted(refused)

    def _write_group(
        self, producer: ProducerClient, transaction: Transaction, flight: Flight, group: HopGroup, now_ns: int
    ) -> list[int]:
        transaction.topics.add(group.topic)
        refused: list[int] = []
        for batch in self._writer.write(producer, flight, group, now_ns):
            batch.alone = batch.alone or self._producer.is_careful
            if batch.is_refused:
                self._failures.refused(transaction, batch, now_ns)
                refused.append(batch.indexes[0])
            else:
                transaction.batches.append(batch)
        return refused

    def _producer_of(self, flight: Flight, group: HopGroup) -> ProducerClient | None:
        """Return the producer of hops that may be stored twice, if this is one; None: it is part of the transaction."""
        is_of_log, is_to_queue = flight.assigned.timers is not None, group.topic == self._assignment.topic
        if group.action not in _WAITS or is_of_log is not is_to_queue:
            return None
        if self._beside is None:
            self._beside = self._clients.make_producer(self._clients.producer_config(self._pace))
            self._show_producers()
        return self._beside

    def _discard_beside(self) -> None:
        beside, self._beside = self._beside, None
        if beside is not None:
            self._show_producers()
            self._clients.discard(beside, _LOOK_S)

    def _show_producers(self) -> None:
        self._targets.set_producers(*(each for each in (self._producer.current, self._beside) if each is not None))

    def can_extend(self, now_ns: int) -> bool:
        """Return whether a transaction is open and can take more records."""
        return self._open is not None and self.capacity(now_ns) > 0

    def end_turn(self, now_ns: int) -> None:
        """Commit the open transaction; if there has been none for a while, begin one for states that are not saved."""
        if self._open is None and now_ns >= self._save_ns and self._unsaved.waiting(now_ns) and self.capacity(now_ns):
            self._begin(now_ns)
        transaction, producer, consumer = self._open, self._producer.current, self._consumer
        if transaction is None or producer is None or consumer is None:
            return
        try:
            for flight, group in self._unsaved.save(transaction, now_ns) if not transaction.must_abort else ():
                self._write_group(producer, transaction, flight, group, now_ns)
            left = 0 if transaction.must_abort else self._flush(producer, transaction)
            is_throttled = not transaction.must_abort and self._is_throttled_too_long(transaction)
            transaction.is_late = left > 0 or is_throttled
            if transaction.is_late or transaction.has_refusal or transaction.is_lost:
                self._abort(producer, transaction, None, "a broker throttles this client for long" * is_throttled)
                return
            self._producer.beat()
            # Not while the records are stored, though 1.5 ms faster: see the open findings in docs/reliability.md.
            # If the transaction has failed, this call raises the cause.
            producer.send_offsets_to_transaction(
                transaction.offsets(), consumer.consumer_group_metadata(), self._producer.timeout_s
            )
            if transaction.must_abort or transaction.has_failure:
                self._abort(producer, transaction, None)
                return
            self._point("before-commit")
            self._producer.beat()
            called_ns = self._clock.monotonic_ns()
            producer.commit_transaction(self._producer.timeout_s)
            self._call_ns.append(self._clock.monotonic_ns() - called_ns)
        except KafkaException as problem:
            error = problem.args[0]
            if error.txn_requires_abort() and not error.fatal():
                self._abort(producer, transaction, error)
            else:
                self._on_uncertain_outcome(error, self._clock.monotonic_ns())
            return
        self._point("after-commit")
        self._committed(transaction, now_ns)

    def _flush(self, producer: ProducerClient, transaction: Transaction) -> int:
        """Wait for the reports of all records; return how many are missing.

        While reports arrive, the broker is slow. The targets are silent if none arrives for a time that is long for the
        brokers at the moment (`core.send_pace`), and something else is stored: records of this transaction, or a probe.
        (The probe alone would not do: its own broker may be the silent one.) A deleted target ends the waiting
        earlier: librdkafka tries to add its partition to the transaction again and again.
        """
        end_ns = self._clock.monotonic_ns() + round(self._producer.timeout_s * 1e9)
        producers = [producer] if self._beside is None else [self._beside, producer]
        left, quiet_s, longest_s, asked_ns = sum(map(len, producers)), 0.0, 0.0, 0
        while True:
            self._producer.beat()
            step_s = _ANSWER_S if quiet_s else _LOOK_S
            still = sum(each.flush(step_s) for each in producers)
            now_ns = self._clock.monotonic_ns()
            is_answered = still < left or now_ns < self._pace.throttled_until_ns
            longest_s = max(longest_s, quiet_s + step_s)
            if 0 < still < left:  # patience grows with the first late answer, before it is asked for the others
                self._pace.answered(round(longest_s * 1e9), now_ns)
            quiet_s = 0.0 if is_answered else quiet_s + step_s
            if not still:
                self._pace.answered(round(longest_s * 1e9), now_ns)
                return 0
            # however often the target has failed: a silent one must not hold up the others for longer each time
            if quiet_s >= self._pace.patience_ns(now_ns) / 1e9:
                if not asked_ns:
                    asked_ns = now_ns
                    self._probe(transaction)
                is_proven = transaction.has_stored or self._is_probe_stored(asked_ns)
                transaction.is_silent = is_proven and quiet_s >= self._pace.patience_ns(now_ns) / 1e9
            if transaction.is_silent or now_ns >= end_ns:
                return still
            if quiet_s == _LOOK_S:
                self._look_again(transaction)
            self._targets.process_answers(now_ns)
            transaction.has_deleted = any(target.partitions == 0 for target in transaction.unstored_targets())
            if transaction.has_deleted:
                return still
            left = still

    def _probe(self, transaction: Transaction) -> None:
        """Write probes, to find out whether only the targets are silent."""
        for assigned in {flight.assigned for flight in transaction.flights}:
            self._prober.probe(assigned)

    def _is_probe_stored(self, asked_ns: int) -> bool:
        """Return whether a probe that was written since then is stored; note how long that took."""
        self._prober.poll()
        now_ns = self._clock.monotonic_ns()
        self._prober.process_reports(now_ns)
        if self._prober.stored_ns < asked_ns:
            return False
        self._pace.answered(_PROBES * (self._prober.confirmed_ns - asked_ns), now_ns)
        return True

    def _is_throttled_too_long(self, transaction: Transaction) -> bool:
        """Return whether a broker reads the next request too late; the transaction could be too old by then."""
        end_ns = transaction.begun_ns + round(self._producer.timeout_s * 1e9)
        return transaction.count > 1 and self._pace.throttled_until_ns > end_ns

    def _look_again(self, transaction: Transaction) -> None:
        for target in transaction.unstored_targets():
            self._targets.look_again(target.topic)

    def _committed(self, transaction: Transaction, began_ns: int) -> None:
        now_ns = self._clock.monotonic_ns()
        base_ns = _CALLS * min(self._call_ns, default=0)
        self._pace.stored(transaction.cost, transaction.begun_ns, now_ns, base_ns)
        self._end(transaction, now_ns)
        self._assignment.committed()
        self._unsaved.keep(transaction, transaction.states)
        self._save_ns = now_ns + _UNSAVED_NS
        for flight in transaction.flights:
            self._confirm(flight)
        for assigned, position in transaction.all_positions().items():
            assigned.confirm(position)
            assigned.sent_metadata = assigned.metadata
            assigned.backoffs = 0
        for batch in transaction.batches:
            self._writer.count_stored(batch, now_ns)
        if transaction.topics:
            self._records_a_topic = max(1, transaction.count // len(transaction.topics))
        self._producer.not_before_ns = now_ns + _GAP_NS
        if now_ns - began_ns - base_ns > self._producer.timeout_s * 1e9:
            self._discard_producer()  # it retried for long; no late request may hit the next transaction

    def _end(self, transaction: Transaction, now_ns: int) -> None:
        self._open = None
        self._pace.ended(transaction.cost, now_ns)

    def _slow(self, transaction: Transaction, now_ns: int) -> None:
        """Make the next transactions smaller, unless size cannot be why: it is small, and no broker throttled it."""
        if transaction.cost > _SMALL or self._pace.throttled_until_ns > transaction.begun_ns:
            self._pace.late(transaction.begun_ns, now_ns)

    def _confirm(self, flight: Flight) -> None:
        if not flight.assigned.gone:
            flight.assigned.queue.confirmed(flight.due.run)

    # --- failures ----------------------------------------------------------------------------------------------------

    def _abort(
        self, producer: ProducerClient, transaction: Transaction, cause: KafkaError | None, why: str = ""
    ) -> None:
        """Abort the transaction; if the outcome of the abort is uncertain, replace the producer."""
        self._counts.aborted += 1
        self._discard_beside()  # it may have failed for good, and what it has left would hold up the next transaction
        if cause is not None and cause.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._look_again(transaction)  # the error does not name the deleted target
        obstacle = self._purge(producer, transaction)
        if obstacle is not None:
            self._on_uncertain_outcome(obstacle, self._clock.monotonic_ns())
            return
        self._assignment.not_committed()
        try:
            producer.abort_transaction(self._producer.timeout_s)
        except KafkaException as problem:
            now_ns = self._clock.monotonic_ns()
            self._failures.learn(transaction, now_ns, cause)
            self._on_uncertain_outcome(problem.args[0], now_ns)
            return
        now_ns = self._clock.monotonic_ns()
        poll_callbacks(producer)
        if transaction.is_late and not transaction.is_silent:  # a silent target says nothing about the others
            self._slow(transaction, now_ns)
        self._end(transaction, now_ns)
        failed = sum(len(batch.errors) for batch in transaction.batches)
        reason = str(cause) if cause is not None else why or f"{failed} records were not stored"
        self._alarm("worker.transaction-aborted", error=reason, records=transaction.count)
        is_refused = self._failures.learn(transaction, now_ns, cause)
        for flight in reversed(transaction.flights):
            if not flight.assigned.gone:
                flight.assigned.queue.failed(flight.due)
        self._producer.not_before_ns = now_ns + _BACK_OFF_NS
        if is_refused:
            self._producer.begin_careful(now_ns)
        if transaction.is_silent:
            self._producer.change_id(now_ns, is_refused=False)
        is_stuck = transaction.is_late or transaction.has_deleted  # a request may be stored after the abort
        if cause is not None or is_stuck or (is_refused and not self._producer.is_careful):
            # a producer whose broker was unavailable may block forever in a later call (seen after a broker's restart)
            self._discard_producer()

    def _purge(self, producer: ProducerClient, transaction: Transaction) -> KafkaError | None:
        """Purge the records, since an abort waits for all reports; return why an abort would not return."""
        if transaction.is_silent and not transaction.has_stored:
            # perhaps the last transaction cannot end, so that this one does not begin
            return KafkaError(KafkaError._TIMED_OUT, "no record of the transaction is stored")  # noqa: SLF001
        self._producer.beat()
        purge_producer(producer, _LOOK_S if transaction.has_deleted else _PURGE_S)
        if transaction.has_deleted and len(producer):
            # librdkafka cannot purge a record whose partition it has just forgotten; its abort would wait 10 s for it
            return KafkaError(KafkaError._STATE, "the record of a deleted target cannot be purged")  # noqa: SLF001
        return None

    def _on_uncertain_outcome(self, error: KafkaError, now_ns: int) -> None:
        """Replace the producer after an uncertain outcome; the committed positions will show the outcome.

        Decides: What follows if the commit of a transaction is not answered, or is fenced? A new producer ends it, then
            `worker.exactly_once.ExactlyOnce._resolve` reads the positions. A worker that is fenced three times within a
            minute, because another has its name (--instance), ends with a WorkerError.
        """
        if error.code() in FENCED:
            self._producer.fenced(error, now_ns)
        self._counts.recycled += 1
        self._assignment.not_committed()
        self._producer.not_before_ns = now_ns + _BACK_OFF_NS
        self._alarm("worker.producer-recycled", error=str(error))
        transaction = self._open
        self._discard_producer()
        if transaction is not None:
            if error.code() == KafkaError._TIMED_OUT:  # noqa: SLF001
                self._slow(transaction, now_ns)
                transaction.is_silent = not transaction.has_deleted and self._pace.throttled_until_ns < now_ns
            self._end(transaction, now_ns)
            self._uncertain.append(transaction)

    def _discard_producer(self) -> None:
        """Close the producer; the next `resolve_outcomes` creates a new one."""
        self._discard_beside()
        self._targets.set_producers()
        self._producer.discard()

    def connection_lost(self) -> None:
        """Have the producer replaced before the next transaction."""
        self._producer.connection_lost()

    def resolve_outcomes(self, now_ns: int) -> None:
        """Create and initialise a producer if there is none, and find out the outcome of uncertain transactions.

        Raise WorkerError if the worker was fenced three times in a minute.
        """
        self._producer.check_fenced()
        self._prober.poll()
        if self._open is None and self._producer.is_outdated(now_ns):
            self._discard_producer()
        if self._producer.current is not None or now_ns < self._producer.not_before_ns or self._consumer is None:
            return
        producer = self._producer.make(now_ns)
        try:
            self._producer.initialise(producer, self._prober.topic)
            for transaction in self._uncertain:
                self._failures.learn(transaction, now_ns)
            self._resolve(self._consumer)
        except KafkaException as problem:
            self._assignment.not_committed()
            self._alarm("worker.producer-recycled", error=str(problem))
            self._producer.discard(producer)
            now_ns = self._clock.monotonic_ns()
            self._producer.not_before_ns = now_ns + _AGAIN_NS
            if problem.args[0].code() == KafkaError.CONCURRENT_TRANSACTIONS:
                self._producer.change_id(now_ns, is_refused=True)
                self._producer.not_before_ns = now_ns + _BACK_OFF_NS
                for transaction in self._uncertain:
                    transaction.is_silent = transaction.is_silent and transaction.is_first  # else it could not begin
            return
        self._producer.accept(producer, self._clock.monotonic_ns())
        self._show_producers()

    def _resolve(self, consumer: ConsumerClient) -> None:
        """Read the committed positions: they show which uncertain transactions were committed."""
        flights = [each for transaction in self._uncertain for each in transaction.flights if not each.assigned.gone]
        if flights:
            asked = [TopicPartition(*key) for key in {flight.assigned.key for flight in flights}]
            self._producer.beat()
            answers = check_answers(consumer.committed(asked, timeout=self._producer.timeout_s))
            found = {TopicPartitionKey.of(item): item.offset for item in answers}
            committed = {each for each in flights if found[each.assigned.key] >= each.due.run.next_offset}
            for flight in flights:
                assigned = flight.assigned
                assigned.confirm(found[assigned.key])
                if flight in committed:
                    self._confirm(flight)
                else:
                    assigned.queue.failed(flight.due)
            for transaction in self._uncertain:  # whatever they have saved is saved again
                transaction.saved.clear()
                self._unsaved.keep(transaction, {each.assigned for each in transaction.flights if each in committed})
            now_ns = self._clock.monotonic_ns()
            for batch in [batch for transaction in self._uncertain for batch in transaction.batches]:
                if batch.flight in committed:
                    self._writer.count_stored(batch, now_ns)
        self._uncertain = []

    # --- waiting, committing, closing --------------------------------------------------------------------------------

    def wait_ns(self, now_ns: int) -> int | None:
        """Return the time until the next transaction may begin; None: no limit."""
        if self._producer.current is not None and self._pace.throttled_until_ns > now_ns:
            return self._pace.throttled_until_ns - now_ns
        own_ns = self._producer.wait_ns(now_ns)
        if own_ns or self._producer.current is None:
            return own_ns
        if self._prober.outstanding > 0:
            return _BUSY_NS
        return max(_BUSY_NS, self._save_ns - now_ns) if self._unsaved.waiting(now_ns) else None

    def commit(self, assigned: list[AssignedPartition], *, asynchronous: bool) -> None:
        """Commit positions behind probes, and new metadata, in a separate transaction; other ones commit their own."""
        if not asynchronous:
            return  # the next owner reads the probes again
        positions = {each: position for each in assigned if (position := each.uncommitted) is not None}
        now_ns = self._clock.monotonic_ns()
        if positions and self._open is None and self.capacity(now_ns) > 0 and self._begin(now_ns, positions):
            self.end_turn(now_ns)

    def drain(self, assigned: list[AssignedPartition], longest_ns: int) -> None:
        """Abort the open transaction before a rebalance; the next owner resolves an uncertain one."""
        del assigned, longest_ns
        if self._open is not None and self._producer.current is not None:
            self._abort(self._producer.current, self._open, None, "the group rebalances")

    def close(self) -> None:
        """Abort the open transaction and close the producers."""
        producer = self._producer.current
        if self._open is not None and producer is not None:
            try:
                producer.abort_transaction(self._producer.timeout_s)
            except KafkaException as error:
                self._alarm("worker.transaction-aborted", error=str(error), records=self._open.count)
        self._discard_producer()
        self._prober.close()
        self._consumer = self._open = None
