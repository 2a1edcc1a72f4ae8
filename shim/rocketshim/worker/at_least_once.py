"""At-least-once delivery: a record is finished when the delivery report of its hop has arrived.

* All of it happens in the worker's loop (`worker.worker`), which calls `commit` each `commit_interval_ms`.
* Records that left a queue together form a `Flight`. It is confirmed when each of its records is finished.
* The `Router` routes a record again if its hop was refused. It parks or re-appends the record, or tries again a second
  later.
* If a target has not answered for the patience (`core.send_pace`: `target_patience_ms`, and longer while the brokers
  are slow), its records are re-appended as soon as a record that was produced later by the patience is stored. Without
  such a record the broker may be slow for all targets. If no report arrives in that time, a probe of the clock shows
  whether the schedule topic still accepts records, as re-appending requires. The first copy may still be stored: a
  duplicate with the same identity. While a broker throttles this client, nothing is sent and no target is silent.
* A record whose target is unknown is buffered until the target is known. It is produced before records that left their
  queue later.
* Records for at most 200 topics are in the producer at a time; the others wait for a topic to be finished. librdkafka
  sends one partition per request and five requests at a time, and not in order of age. So with many targets a slow
  broker would otherwise seem to be a silent target. For the same reason only five topics are added to those that have
  not answered for a quarter of the patience, until these have answered.
* Two limits, number and bytes, bound the records in flight: those without a report, and those that wait to be produced
  again. A third one follows what was stored in good time (`core.send_pace`), so that requests stay short. It also holds
  for what is sent again, and for what has waited for its target. Copies for a silent target that were replaced since
  stay in the producer until their time-out. They have their own limit, so that such a target does not block the others.
* Of named timers, the next occurrences are written when all other records of a run are stored, and then the state of
  the names; the next run of the partition waits for it (`worker.timer_router`).
* After a fatal error of the producer (a broken sequence) the worker creates a new producer and produces all records in
  flight again.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.core.clock import Clock, Interval
from rocketshim.core.level_queue import Due
from rocketshim.core.send_pace import SendPace, cost
from rocketshim.kafka.clients import ConsumerClient, ProducerClient, close_producer, is_fatal, poll_callbacks
from rocketshim.kafka.lookups import check_answers
from rocketshim.settings.worker import WorkerSettings
from rocketshim.worker.assignment import AssignedPartition, Assignment
from rocketshim.worker.hop_writer import Action, Flight, HopBatch, HopGroup, HopWriter
from rocketshim.worker.prober import Prober
from rocketshim.worker.router import Router
from rocketshim.worker.state import Alarms
from rocketshim.worker.targets import TargetHealth, TargetTable
from rocketshim.worker.worker_clients import WorkerClients
from rocketshim_topics.wire import coordinates

__all__ = ["AtLeastOnce"]

_UNREADY_MS: Final = 2  # while records wait for a lookup or for other topics, or the producer has refused them
_MOST_TOPICS: Final = 200
_TOPICS_BESIDE_LATE: Final = 5
_BUSY_MS: Final = 20  # while hops are in flight: how long their reports may stay unread
_RESEND_NS: Final = 1_000_000_000
_FLIGHTS: Final = 3  # share of the buffer in flight: the producer has a copy, and one for a target that was silent
_PROOF_NS: Final = 1_000_000_000
_RENEWAL_MS: Final = 1_000  # a broken producer is replaced no sooner: a new one may be refused, too
_LAST_REPORTS_S: Final = 1.0
_COMMIT_TRIES: Final = 40
_COMMIT_AGAIN_S: Final = 0.05
_REBALANCING: Final = frozenset({KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS})


class InFlight:
    """The records without a report and those that wait: how many more there may be, and whose target is silent."""

    def __init__(self, pace: SendPace, prober: Prober, *, most: int, most_bytes: int) -> None:
        self.batches: set[HopBatch] = set()
        self.topics: dict[str, int] = {}  # number of batches in flight
        self.most_topics = _MOST_TOPICS
        self.count = 0
        self.size_bytes = 0.0
        self.reported_ns = 0  # when the last report was processed
        self.confirmed_ns = 0  # when the newest stored record was produced
        self._deliveries: deque[HopBatch] = deque()  # in the order in which they were produced
        self._asked_ns = -_PROOF_NS
        self._pace = pace
        self._prober = prober
        self._most = most
        self._most_bytes = most_bytes  # the last run may exceed it

    def room(self, now_ns: int, outstanding: int) -> int:
        """Return the number of records that may be produced now, given how many a producer has."""
        if self.size_bytes >= self._most_bytes or len(self.topics) >= self.most_topics:
            return 0
        room = min(self._most - self.count, 2 * self._most - outstanding)
        return max(0, min(room, self._pace.room_count(now_ns)))

    def is_one_too_many(self, topic: str) -> bool:
        """Return whether no record for this topic may be produced now."""
        return topic not in self.topics and len(self.topics) >= self.most_topics

    def has_room(self, now_ns: int) -> bool:
        """Return whether records that have left their queue may be produced now."""
        return self._pace.room(now_ns) > 0

    def add(self, flight: Flight, count: int) -> None:
        """Add a number of records of a flight; a negative number removes them."""
        self.count += count
        self.size_bytes += count * flight.mean_bytes

    def opened(self, batch: HopBatch) -> None:
        """Add a batch that was produced."""
        topic = batch.group.topic
        self.batches.add(batch)
        self._pace.sent(_cost(batch), batch.sent_ns)
        self.topics[topic] = self.topics.get(topic, 0) + 1
        self.add(batch.flight, len(batch.indexes))
        if batch.group.action is Action.DELIVER and not batch.is_refused:
            self._deliveries.append(batch)

    def take_all(self) -> list[HopBatch]:
        """Return all batches, the oldest records first; their producer is closed, and none will be reported."""
        self._deliveries.clear()
        return sorted(self.batches, key=_began)

    def done(self, batch: HopBatch, now_ns: int) -> None:
        """Remove a batch of which no report counts any more."""
        batch.is_done = True
        if batch in self.batches:
            self.batches.remove(batch)
            self._pace.ended(_cost(batch), now_ns)
            self.topics[batch.group.topic] -= 1
            if not self.topics[batch.group.topic]:
                del self.topics[batch.group.topic]
            self.add(batch.flight, -len(batch.indexes))

    def overdue(self, now_ns: int) -> Iterator[HopBatch]:
        """Yield the deliveries whose target is silent: what was produced later by the patience is stored.

        Decides: Does a target not answer? At least once, only if something that was produced later by the patience is
            stored, a batch or a probe (`worker.at_least_once.InFlight._is_overtaken`); otherwise the brokers are
            slow. Exactly once, only if a probe is stored, `worker.exactly_once.ExactlyOnce._flush` aborts the whole
            transaction, all its records are due again, and the silent target is avoided.
        """
        while self._deliveries:
            batch = self._deliveries[0]
            if batch.is_done or batch.flight.assigned.gone:
                self.done(batch, now_ns)
                self._deliveries.popleft()
                continue
            if batch.reports != batch.seen_reports:  # records of it are stored: its target is not silent
                batch.seen_reports, batch.quiet_since_ns = batch.reports, now_ns
            patience_ns = self._pace.patience_ns(now_ns, batch.group.target.failures if batch.group.target else 0)
            if self._pace.quiet_ns(batch.quiet_since_ns, now_ns) < patience_ns:
                return
            if not self._is_overtaken(batch, patience_ns):
                self._probe_for_proof(batch.flight.assigned, now_ns)
                return
            self._deliveries.popleft()
            if batch.reports < len(batch.indexes):  # otherwise all have arrived and are in the inbox
                yield batch

    def limit_topics(self, now_ns: int) -> None:
        """Hold most other topics back while some are late, so that the producer sends the records of these first."""
        late_ns = now_ns - self._pace.patience_ns(now_ns) // 4
        late: set[str] = set()
        if self._deliveries and self._deliveries[0].sent_ns <= late_ns:  # the oldest one without a report
            late = {
                each.group.topic
                for each in self.batches
                if each.group.action is Action.DELIVER and each.sent_ns <= late_ns
            }
        self.most_topics = min(_MOST_TOPICS, len(late) + _TOPICS_BESIDE_LATE) if late else _MOST_TOPICS

    def _is_overtaken(self, batch: HopBatch, patience_ns: int) -> bool:
        """Return whether a record or probe that was produced `patience_ns` after this batch is stored."""
        by_ns = max(batch.quiet_since_ns, self._pace.throttled_until_ns) + patience_ns
        if self.confirmed_ns >= by_ns:
            return True
        return self._prober.confirmed_ns >= self._asked_ns >= max(by_ns, self.reported_ns + patience_ns)

    def _probe_for_proof(self, assigned: AssignedPartition, now_ns: int) -> None:
        """Write a probe to find out whether only the target is silent."""
        is_quiet = now_ns - self.reported_ns >= self._pace.patience_ns(now_ns)
        if is_quiet and self._prober.outstanding == 0 and now_ns - self._asked_ns >= _PROOF_NS:
            self._asked_ns = now_ns
            self._prober.probe(assigned)


class Producers:
    """The producer of hops, and one that sends each record in a batch of its own; made when they are needed."""

    def __init__(self, clients: WorkerClients, config: dict[str, Any], prober: Prober, writer: HopWriter) -> None:
        self._clients = clients
        self._config = config
        self._prober = prober
        self._writer = writer
        self._plain: ProducerClient | None = None
        self._one_by_one: ProducerClient | None = None

    def of(self, *, one_per_batch: bool, targets: TargetTable) -> ProducerClient:
        """Return one of the two; make it if there is none. Targets are looked up for it from now on."""
        if self._plain is None:
            self._plain = self._clients.make_producer(self._config)
            self._prober.use(self._plain, self._writer.reports)
            targets.set_producers(self._plain)
        if one_per_batch and self._one_by_one is None:
            self._one_by_one = self._clients.make_producer({**self._config, "batch.num.messages": 1})
            targets.set_producers(self._plain, self._one_by_one)
        return self._one_by_one if one_per_batch and self._one_by_one is not None else self._plain

    def poll(self, timeout_s: float) -> None:
        """Serve the reports; the writer keeps a fatal error."""
        for producer, wait_s in ((self._plain, timeout_s), (self._one_by_one, 0.0)):
            if producer is not None:
                self._writer.failure = poll_callbacks(producer, wait_s) or self._writer.failure

    def close(self) -> None:
        """Close both, and abandon what they have."""
        for producer in (self._plain, self._one_by_one):
            if producer is not None:
                close_producer(producer, _LAST_REPORTS_S)
        self._plain = self._one_by_one = None

    def __len__(self) -> int:
        return sum(len(each) for each in (self._plain, self._one_by_one) if each is not None)


class AtLeastOnce:
    """Delivery that may repeat a record but never loses one."""

    def __init__(
        self,
        settings: WorkerSettings,
        clients: WorkerClients,
        *,
        router: Router,
        prober: Prober,
        assignment: Assignment,
        alarm: Alarms,
        clock: Clock,
        point: Callable[[str], None],
    ) -> None:
        self._pace = clients.pace()
        self._router = router
        self._targets = router.targets
        self._refusals = router.refusals
        self._writer = HopWriter(alarm.counts, router.refusals.forget_stored, alarm)
        self._producers = Producers(clients, clients.producer_config(self._pace), prober, self._writer)
        self._in_flight = InFlight(
            self._pace,
            prober,
            most=settings.max_in_flight_count,
            most_bytes=min(settings.max_in_flight_bytes, settings.buffer_bytes // _FLIGHTS),
        )
        self._assignment = assignment
        self._alarm = alarm
        self._counts = alarm.counts
        self._clock = clock
        self._point = point
        self._consumer: ConsumerClient | None = None
        self._waiting: deque[tuple[int, Flight, int]] = deque()  # (when, ns; flight; index of the record)
        self._unready: dict[TargetHealth, list[tuple[Flight, list[int]]]] = {}  # (flight; indexes), by unknown target
        self._backlog: deque[tuple[Flight, HopGroup, int]] = deque()  # waits for room or topics; when routed
        self._renewal = Interval(_RENEWAL_MS)

    # --- sending -----------------------------------------------------------------------------------------------------

    def start(self, consumer: ConsumerClient) -> None:
        """Create the producer."""
        self._consumer = consumer
        self._producers.of(one_per_batch=False, targets=self._targets)

    def capacity(self, now_ns: int) -> int:
        """Return the number of records that may be produced now."""
        if self._writer.failure is not None or self._backlog:
            return 0
        return self._in_flight.room(now_ns, len(self._producers))

    def capacity_bytes(self, now_ns: int) -> int:
        """Return how many bytes of records may be produced now."""
        return max(1, self._pace.room(now_ns))

    def relay(self, assigned: AssignedPartition, due: Due[Any], now_ns: int) -> None:
        """Produce the records that left a queue."""
        self._point("before-produce")
        self._send_ready(now_ns)
        flight = Flight(assigned, due)
        if assigned.timers is not None and assigned.timers.unsaved:
            flight.add_states(assigned.timers.unsaved)
            assigned.timers.unsaved = []
        self._send(flight, None, now_ns)
        self._point("after-produce")

    def _send(
        self,
        flight: Flight,
        indexes: list[int] | None,
        now_ns: int,
        re_append_reason: str = "",
        *,
        is_paced: bool = False,
    ) -> None:
        """Route records of a flight, and produce them; None: all. With `is_paced`, they wait if there is no room now.

        Decides: What do due records do while their target is looked up? At least once, they alone wait. Exactly once,
            their run goes back, and its queue waits (`worker.exactly_once.ExactlyOnce.relay`).
        """
        if flight.is_later:
            for group in flight.later(indexes or []):
                self._produce(flight, group, now_ns)
            return
        groups = self._router.route(flight.due, flight.assigned, now_ns, indexes, re_append_reason=re_append_reason)
        # kept first: with its last effect a run begins the next phase
        for group in [group for group in groups if not flight.keeps(group)]:
            if group.action is Action.SKIP:
                self._counts.skipped += len(group.records)
                self._finished(flight, len(group.records))
            elif group.action is Action.NOT_YET and group.target is not None:
                self._unready.setdefault(group.target, []).append((flight, [hop[0] for hop in group.records]))
                self._in_flight.add(flight, len(group.records))
            elif (
                self._backlog
                or self._in_flight.is_one_too_many(group.topic)
                or (is_paced and not self._in_flight.has_room(now_ns))
            ):
                self._backlog.append((flight, group, now_ns))
                self._in_flight.add(flight, len(group.records))
            else:
                self._produce(flight, group, now_ns)

    def _produce_backlog(self, now_ns: int) -> None:
        """Produce records that have waited for room, or for other topics to be finished."""
        while self._backlog and self._in_flight.has_room(now_ns):
            if self._in_flight.is_one_too_many(self._backlog[0][1].topic):
                return
            flight, group, routed_ns = self._backlog.popleft()
            self._in_flight.add(flight, -len(group.records))
            if flight.assigned.gone:
                continue
            if group.target is None or group.target.last_failure_ns <= routed_ns:
                self._produce(flight, group, now_ns)
            else:
                self._send(flight, [hop[0] for hop in group.records], now_ns)

    def _produce(self, flight: Flight, group: HopGroup, now_ns: int) -> None:
        producer = self._producers.of(one_per_batch=group.one_per_batch, targets=self._targets)
        for batch in self._writer.write(producer, flight, group, now_ns):
            self._register(batch)

    def _register(self, batch: HopBatch) -> None:
        self._in_flight.opened(batch)
        if batch.is_refused:
            self._writer.inbox.append(batch)

    def _send_again(self, flight: Flight, indexes: list[int], now_ns: int, re_append_reason: str = "") -> None:
        """Send records again that are in flight no longer."""
        if indexes and not flight.assigned.gone:
            self._counts.resent += len(indexes)
            self._send(flight, indexes, now_ns, re_append_reason, is_paced=True)

    def can_extend(self, now_ns: int) -> bool:
        """Return False: there is no transaction to extend."""
        del now_ns
        return False

    def end_turn(self, now_ns: int) -> None:
        """Do nothing: the records are produced already."""

    # --- results -----------------------------------------------------------------------------------------------------

    def resolve_outcomes(self, now_ns: int) -> None:
        """Process reports, produce failed records again, and handle targets that do not answer."""
        self._producers.poll(0)
        for _ in range(len(self._writer.inbox)):  # not those that are refused meanwhile: this could go on forever
            self._process_batch(self._writer.inbox.popleft(), now_ns)
        if self._writer.failure is not None and self._renewal.is_due(now_ns // 1_000_000):
            self._replace_producer(now_ns)
        self._send_ready(now_ns)
        while self._waiting and self._waiting[0][0] <= now_ns:
            _, flight, index = self._waiting.popleft()
            self._in_flight.add(flight, -1)
            self._send_again(flight, [index], now_ns)
        for batch in self._in_flight.overdue(now_ns):
            self._replace(batch, now_ns)
        self._in_flight.limit_topics(now_ns)
        self._produce_backlog(now_ns)

    def _send_ready(self, now_ns: int) -> None:
        """Send records whose targets have become known."""
        if not self._unready:
            return
        self._targets.process_answers(now_ns)
        for target in [target for target in self._unready if now_ns >= target.ready_ns]:
            for flight, indexes in self._unready.pop(target):
                self._in_flight.add(flight, -len(indexes))
                if not flight.assigned.gone:
                    self._send(flight, indexes, now_ns, is_paced=True)

    def _process_batch(self, batch: HopBatch, now_ns: int) -> None:
        # other batches have its records now (test_records_in_flight_to_a_silent_target_do_not_block_other_targets),
        # and only the failure of the last attempt has consequences
        if batch.is_done:
            if not batch.errors:  # it was replaced too early: the target is slow and not silent
                self._pace.answered(now_ns - batch.sent_ns, now_ns)
            return
        if any(is_fatal(error) for _, error in batch.errors):
            self._writer.failure = batch.errors[0][1]
            return
        if not batch.errors:
            self._pace.stored(_cost(batch), batch.sent_ns, now_ns)
            if self._pace.throttled_until_ns <= batch.sent_ns:
                self._pace.answered(now_ns - batch.sent_ns, now_ns)
        elif batch.is_late:
            self._pace.late(batch.sent_ns, now_ns)
        self._in_flight.done(batch, now_ns)
        self._in_flight.reported_ns = now_ns
        if batch.flight.assigned.gone:
            return
        unstored = batch.unstored()
        if not unstored:
            self._in_flight.confirmed_ns = max(self._in_flight.confirmed_ns, batch.sent_ns)
        self._stored(batch, unstored, now_ns)
        self._failed(batch, unstored, now_ns)

    def _stored(self, batch: HopBatch, unstored: Mapping[int, object], now_ns: int) -> None:
        """Finish the records of a batch that are stored."""
        if len(unstored) < len(batch.indexes):
            self._writer.count_stored(batch, now_ns, unstored)
            self._finished(batch.flight, len(batch.indexes) - len(unstored))

    def _finished(self, flight: Flight, count: int) -> None:
        flight.pending -= count
        if flight.pending or flight.assigned.gone:
            return
        if indexes := flight.begin_phase():
            self._send(flight, indexes, self._clock.monotonic_ns())
        else:
            flight.assigned.queue.confirmed(flight.due.run)

    def _failed(self, batch: HopBatch, unstored: Mapping[int, KafkaError | None], now_ns: int) -> None:
        """Handle the records of a batch that were not stored: send them again, or wait."""
        flight = batch.flight
        again: list[int] = []
        for at, error in unstored.items():
            if error is None:
                continue
            if self._refusals.must_wait(batch, at, error, now_ns):
                record = coordinates(batch.record(at))
                self._alarm("worker.hop-not-stored", hop=batch.group.action.value, error=error.name(), record=record)
                self._waiting.append((now_ns + _RESEND_NS, flight, batch.indexes[at]))
                self._in_flight.add(flight, 1)
            else:
                again.append(batch.indexes[at])
        self._send_again(flight, again, now_ns)

    def _replace(self, batch: HopBatch, now_ns: int) -> None:
        """Re-append the records of a batch that have no report: their target has not answered."""
        if batch.group.target is not None:
            self._refusals.target_failed(batch.group.target, now_ns, "no-answer")
        unstored = self._abandon(batch, now_ns)
        if unstored:
            self._send(batch.flight, unstored, now_ns, "no-answer")

    def _abandon(self, batch: HopBatch, now_ns: int) -> list[int]:
        """Finish a batch early: finish its stored records, and return the indexes of the others."""
        self._in_flight.done(batch, now_ns)
        unstored = batch.unstored()
        if not batch.flight.assigned.gone:
            self._stored(batch, unstored, now_ns)
        return [batch.indexes[at] for at in sorted(unstored)]

    # --- waiting, committing, closing --------------------------------------------------------------------------------

    def connection_lost(self) -> None:
        """Do nothing: librdkafka sends again by itself."""

    def wait_ns(self, now_ns: int) -> int | None:
        """Return a short wait while reports are outstanding, else None."""
        outstanding = len(self._producers)
        if self._pace.throttled_until_ns > now_ns and not outstanding:
            return self._pace.throttled_until_ns - now_ns
        may_go_on = self._backlog and self._in_flight.has_room(now_ns)
        if self._writer.inbox or self._unready or may_go_on or self._in_flight.is_one_too_many(""):
            return _UNREADY_MS * 1_000_000
        return _BUSY_MS * 1_000_000 if self._waiting or self._backlog or outstanding else None

    def commit(self, assigned: list[AssignedPartition], *, asynchronous: bool) -> None:
        """Commit the confirmed positions of these partitions.

        An asynchronous commit leaves out partitions whose last commit has no answer: librdkafka may repeat that one
        after this one, and the position would go back. A commit that is waited for includes them, because the last one
        may still be refused. A position that has not moved is committed again if its metadata has changed.
        """
        consumer = self._consumer
        if consumer is None:
            return
        moved = [
            (each, position)
            for each in assigned
            if not (each.awaits_commit and asynchronous)
            and (position := each.position if each.awaits_commit else each.uncommitted) is not None
        ]
        if not moved:
            return
        offsets = [each.at(position) for each, position in moved]
        self._point("before-commit")
        try:
            if asynchronous:
                consumer.commit(offsets=offsets, asynchronous=True)
            else:
                self._commit_at_last(consumer, offsets)
                self._assignment.committed()
        except KafkaException as error:
            self._assignment.not_committed()
            self._alarm("worker.commit-failed", error=str(error))
            return
        self._point("after-commit")
        for each, position in moved:
            each.sent, each.sent_metadata = position, each.metadata
            each.awaits_commit = asynchronous
            if not asynchronous:
                each.confirm(position)

    def _commit_at_last(self, consumer: ConsumerClient, offsets: list[TopicPartition]) -> None:
        """Commit before the partitions are revoked; nothing repeats this commit, so it does that itself.

        While a JoinGroup is open (up to the session time-out of a member that was killed), the broker reads nothing
        else on the connection to the coordinator. A commit that waits behind it carries the old generation.
        """
        for left in reversed(range(_COMMIT_TRIES)):
            try:
                check_answers(consumer.commit(offsets=offsets, asynchronous=False))
            except KafkaException as error:
                if not left or error.args[0].code() not in _REBALANCING:
                    raise
                self._producers.poll(_COMMIT_AGAIN_S)
            else:
                return

    def drain(self, assigned: list[AssignedPartition], longest_ns: int) -> None:
        """Wait until these partitions have no records in flight, or the time is over."""
        end_ns = self._clock.monotonic_ns() + longest_ns
        while any(not each.queue.idle for each in assigned):
            now_ns = self._clock.monotonic_ns()
            if now_ns >= end_ns:
                return
            self._producers.poll(_BUSY_MS / 1_000)
            self.resolve_outcomes(now_ns)

    def close(self) -> None:
        """Abandon records in flight and close the producers."""
        self._producers.close()
        self._consumer = None
        self._targets.set_producers()

    def _replace_producer(self, now_ns: int) -> None:
        """Replace a producer after a fatal error, and produce all records in flight again."""
        error, self._writer.failure = self._writer.failure, None
        self._counts.recycled += 1
        self._alarm("worker.producer-recycled", error=str(error))
        self._producers.close()
        self._producers.of(one_per_batch=False, targets=self._targets)
        lost = self._in_flight.take_all()
        self._writer.inbox.clear()
        for batch in lost:
            self._send_again(batch.flight, self._abandon(batch, now_ns), now_ns)


def _began(batch: HopBatch) -> tuple[int, int]:
    return batch.flight.due.run.first_offset, batch.indexes[0]


def _cost(batch: HopBatch) -> int:
    return cost(len(batch.indexes), len(batch.indexes) * batch.flight.mean_bytes)
