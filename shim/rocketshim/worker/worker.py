"""The delay-redelivery worker: a loop in one thread, with one consumer of the schedule topic.

A step of the loop:

1. Wait until the next queue head is due: `poll` waits for the whole milliseconds, a sleep for the remainder.
2. Put fetched records into their queues (`fetcher`) and look up unknown targets. Pause and resume fetching by the
   number of buffered records (`assignment`).
3. Take every due record from all queues and relay it (`at_least_once`, `exactly_once`).
4. Process the results of relayed records and of probes (`prober`).
5. Commit the position after each longest confirmed prefix.

`core.level_queue` decides which records are due and up to which offset a partition is finished. `router` decides where
each due record goes, with `header_shapes`, `allow_list` and `targets` (what is known of each target, by `topic_lookup`
in its own thread). `hop_writer` produces the hops; `refusals` learns from those that were not stored.

Invariants:

* Only confirmed hops move a position. A hop that is not stored blocks its partition's commit and is made again.
* A target that does not accept a record does not block its queue. Queues take turns, so a queue with many or expensive
  records does not block another queue.
* The loop never waits for the metadata of a target. The worker's wall clock decides nothing: it is only compared with
  the brokers', and the difference is reported.
* Callbacks of the Kafka clients only note what they get. No rebalance callback raises. A rebalance callback may commit,
  wait for reports and end a transaction, each for a bounded time.
"""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from operator import attrgetter
from typing import Any, Final, Protocol

from rocketshim.at_exit import at_exit
from rocketshim.clock import SystemClock
from rocketshim.core.clock import Clock
from rocketshim.core.level_queue import Buffer, Due, LevelQueue
from rocketshim.errors import ConfigError, WorkerError
from rocketshim.kafka.client_errors import ErrorLines
from rocketshim.kafka.clients import Clients, ConsumerClient, Parting, close_consumer, confluent_clients, unsubscribes
from rocketshim.logs import safe_logger
from rocketshim.settings.worker import WorkerSettings
from rocketshim.worker.allow_list import AllowList
from rocketshim.worker.assignment import AssignedPartition, Assignment
from rocketshim.worker.at_least_once import AtLeastOnce
from rocketshim.worker.exactly_once import ExactlyOnce
from rocketshim.worker.fetcher import Fetcher
from rocketshim.worker.prober import Prober
from rocketshim.worker.refusals import Refusals
from rocketshim.worker.state import Alarms, WorkerCounts, WorkerState, queue_state
from rocketshim.worker.targets import TargetTable
from rocketshim.worker.timer_router import TimerRouter
from rocketshim.worker.timer_state import OwnedTimers, TimerLoader, TimerRules
from rocketshim.worker.topic_lookup import TopicLookup
from rocketshim.worker.watchdog import Heartbeat
from rocketshim.worker.worker_clients import MEMBER, WorkerClients
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.hops import timer_digest
from rocketshim_topics.layout import Layout
from rocketshim_topics.names import TopicNames
from rocketshim_topics.partitioner import timer_partition

__all__ = ["DelayWorker", "WorkerCounts"]

_LOG = safe_logger("rocketshim.worker")

_NS: Final = 1_000_000
_IDLE_MS: Final = 1_000
_AWAITED_NS: Final = 2_000_000  # while a queue waits for the lookup of a target
_PROBED_NS: Final = 1_000_000  # while a probe is in flight: its report decides which records are due
_TURN_NS: Final = 500 * _NS  # then the loop polls the consumer, even if more records are due
_STATE_NS: Final = 1_000_000_000
_SKIP_NS: Final = 5_000_000_000  # exactly once, a transaction of its own commits what it finds
_FETCHES: Final = 16  # the least number of fetched batches that fill the buffer
_LEAVE_S: Final = 2.0
_REVOKE_DRAIN_NS: Final = 3_000_000_000


def _no_point(name: str) -> None:
    """Do nothing: the default for `on_point`."""


class Delivery(Protocol):
    """One way to write due records and to commit positions. One owner thread: the worker's."""

    def start(self, consumer: ConsumerClient) -> None:
        """Create the producer; raise errors of the cluster."""

    def capacity(self, now_ns: int) -> int:
        """Return the number of records that may be relayed now."""

    def capacity_bytes(self, now_ns: int) -> int:
        """Return how many bytes of records may be relayed now, 1 or more; has a meaning only if `capacity` is not 0."""

    def relay(self, assigned: AssignedPartition, due: Due[Any], now_ns: int) -> None:
        """Write the records that left a queue to their targets or to another queue."""

    def can_extend(self, now_ns: int) -> bool:
        """Return whether the open transaction can take more records in this turn."""

    def end_turn(self, now_ns: int) -> None:
        """Finish the turn: no more records are due for now."""

    def resolve_outcomes(self, now_ns: int) -> None:
        """Find out what became of written records; write those that failed again, with a new producer if need be."""

    def connection_lost(self) -> None:
        """React to a connection to a broker that broke since the last turn."""

    def wait_ns(self, now_ns: int) -> int | None:
        """Return how long the loop may sleep at most; None: no limit."""

    def commit(self, assigned: list[AssignedPartition], *, asynchronous: bool) -> None:
        """Commit the positions of these partitions."""

    def drain(self, assigned: list[AssignedPartition], longest_ns: int) -> None:
        """Wait until these partitions have no records in flight, or the time is over."""

    def close(self) -> None:
        """Close the producers and abandon records in flight. Complete when it returns."""


class DelayWorker:
    """Moves delayed and retried messages to their targets when they are due.

    Args:
        settings: the allowed targets and all limits; see `WorkerSettings`.
        clients: factories of Kafka clients; None: confluent_kafka.
        clock: the monotonic clock for all waits; None: this machine's.
        sleep: waits a number of seconds, 0.1 at most; for simulations.
        on_point: called with `before-produce`, `after-produce`, `before-commit` or `after-commit` when the worker
            passes this point of the protocol; for fault tests.

    Attributes:
        heart: sign of life of the loop, by which a process can end that hangs.

    Thread-safety: one thread calls `start`, `step` and `close`. `run` calls them in the caller's thread. Any thread and
    any signal handler may use `stop`, `counts` and `heart`.

    Source: `ScheduleMessageService` of RocketMQ.
    """

    def __init__(
        self,
        settings: WorkerSettings,
        *,
        clients: Clients | None = None,
        clock: Clock | None = None,
        sleep: Callable[[float], None] = time.sleep,
        on_point: Callable[[str], None] = _no_point,
    ) -> None:
        given: object = settings
        if not isinstance(given, WorkerSettings):
            raise ConfigError(f"a worker takes WorkerSettings(bootstrap=…, allow=…), not {given!r:.80}")
        self.settings = settings
        self.heart = Heartbeat()
        names = TopicNames(settings.namespace)
        self.group = settings.group or names.worker_group
        self._clock: Clock = clock or SystemClock()
        self._is_stopping = False  # an event has a lock, which the code that a signal interrupts may hold
        errors = ErrorLines(self.group, MEMBER | settings.client)
        self._alarm = Alarms(WorkerCounts(), self._clock, errors)
        self._targets = TargetTable(self._alarm)
        refusals = Refusals(self._targets, self._alarm)
        policy = AllowList(names, settings.allow)
        self._rules = rules = TimerRules(names, policy)
        self._router = router = TimerRouter(
            names,
            settings.delay_levels,
            policy,
            refusals,
            target_tries=settings.target_tries,
            max_delay_ms=settings.max_delay_ms,
            rules=rules,
            alarm=self._alarm,
        )
        limits = {"full_count": settings.prefetch_count, "full_bytes": settings.prefetch_bytes}
        buffer = Buffer(settings.buffer_bytes)
        self._assignment = Assignment(
            names.schedule,
            settings.delay_levels,
            lambda delay_ms: LevelQueue(delay_ms, buffer, **limits),
            leave=self._leave,
            gone=refusals.forget,
            own_timers=self._own_timers,
            alarm=self._alarm,
            clock=self._clock,
            sleep=sleep,
        )
        self._clients = WorkerClients(
            clients or confluent_clients(),
            settings,
            self.group,
            on_commit=self._assignment.on_commit,
            alarm=self._alarm,
            clock=self._clock,
        )
        self._prober = Prober(names, self._clients, self._clock, self._alarm)
        self._fetcher = Fetcher(
            self._assignment,
            router,
            clock=self._clock,
            sleep=sleep,
            prefetch_bytes=min(settings.prefetch_bytes, settings.buffer_bytes // _FETCHES),
            alarm=self._alarm,
        )
        self._delivery: Delivery
        if settings.exactly_once:
            self._delivery = ExactlyOnce(
                self._clients, router=router, prober=self._prober, assignment=self._assignment, alarm=self._alarm,
                clock=self._clock, point=on_point, heart=self.heart,
            )  # fmt: skip
        else:
            self._delivery = AtLeastOnce(
                settings, self._clients, router=router, prober=self._prober, assignment=self._assignment,
                alarm=self._alarm, clock=self._clock, point=on_point,
            )  # fmt: skip
        self._loader: TimerLoader | None = None
        self._state: WorkerState | None = None
        self._commit_ns = self._skip_ns = 0
        self._served = TopicPartitionKey("", -1)  # the partition from which the loop took records last
        self._consumer: ConsumerClient | None = None

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until `stop` is called; then finish records in flight, commit and leave the group.

        Raises:
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: the worker cannot use the schedule topic.
            WorkerError: the worker cannot continue. Positions committed so far remain committed.
        """
        self.start()
        running = _Running(self)  # the registry's reference is weak
        at_exit.add_consumer(running)
        try:
            while not self._is_stopping:
                self.step()
        finally:
            try:
                self.close()
            finally:
                running.ended.set()

    def start(self) -> None:
        """Create the Kafka clients and join the group; deliver nothing yet. After an error it may be called again.

        Raises:
            TopicMissingError, TopicMismatchError, NotAuthorizedError, BrokerUnavailableError: see `run`.
            WorkerError: the worker was closed before; a worker runs only once.
        """
        if self._consumer is not None:
            return
        clients, levels, assignment = self._clients, self.settings.delay_levels, self._assignment
        if assignment.is_closing:
            raise WorkerError("this worker was closed, and a worker runs only once: create a new one")
        clients.ensure_topics(Layout(self.names, levels))
        with ExitStack() as opened:
            delivery = opened.enter_context(closing(self._delivery))
            consumer = opened.enter_context(closing(clients.consumer()))
            lookup = TopicLookup(clients.lookup_consumer, in_background=not clients.is_in_memory)
            opened.callback(lookup.close)
            self._targets.set_lookup(lookup)
            timers = TimerLoader(self._rules, clients.timer_reader, self._alarm, in_background=not clients.is_in_memory)
            opened.callback(timers.close)
            self._loader = self._router.loader = timers
            delivery.start(consumer)
            consumer.subscribe(
                [assignment.topic, self.names.timers],
                on_assign=assignment.on_assign,
                on_revoke=assignment.on_revoke,
                on_lost=assignment.on_lost,
            )
            opened.pop_all()
        self._consumer = consumer
        _LOG.info("worker.started", extra={"topic": assignment.topic, "group": self.group, "levels": str(levels)})

    def stop(self) -> None:
        """Ask the worker to stop; `run` returns when it has stopped.

        Idempotent. Any thread and any signal handler may call it.
        """
        self._is_stopping = True

    def close(self) -> None:
        """Wait for hops in flight, commit, and leave the group.

        This takes `stop_timeout_ms` at most, and one or two seconds to leave the group. If no broker answers, positions
        may be uncommitted; the worker then logs an alarm.
        """
        consumer, delivery = self._consumer, self._delivery
        if consumer is None:
            return
        self.heart.rest()
        assigned = list(self._assignment.held.values())
        by_ns = self._clock.monotonic_ns() + self.settings.stop_timeout_ms * _NS
        try:
            delivery.drain(assigned, self.settings.stop_timeout_ms * _NS)
        finally:
            self._assignment.closing()
            self._consumer = None
            left_s = _LEAVE_S + max(0.0, (by_ns - self._clock.monotonic_ns()) / 1e9)
            try:
                parting = close_consumer(
                    consumer,
                    left_s,
                    partial(delivery.commit, assigned, asynchronous=False),
                    unsubscribe=unsubscribes(self.settings.client),
                    has_joined=lambda: self._assignment.has_joined,
                )
                if parting is Parting.SILENT:
                    self._alarm(
                        "worker.commit-failed",
                        error="no answer in time: no broker can be reached, or the group waits for another member",
                    )
                elif parting is Parting.STAYED:
                    _LOG.warning("worker.not-left", extra={"group": self.group})
            finally:
                self._assignment.held.clear()
                delivery.close()
                self._targets.close()
                self._timers().close()
        _LOG.info("worker.stopped", extra={"delivered": self.counts.delivered})

    def step(self, max_wait_ms: int = _IDLE_MS) -> None:
        """Run one turn of the loop; wait at most `max_wait_ms`.

        Raises:
            WorkerError: the worker cannot continue; call `close`.
        """
        self.heart.beat()
        consumer, delivery = self._started(), self._delivery
        timers = self._timers()
        timers.process_answers()
        failure = self._fetcher.failure or self._assignment.failure or self._targets.failure or timers.failure
        if failure is not None:
            raise WorkerError(f"the worker cannot continue: {failure}") from failure
        if errors := self._clients.errors:
            while errors:
                self._alarm.client_error(errors.popleft())
            delivery.connection_lost()
        is_more = self._fetcher.fetch(consumer, self._wait_ns(delivery, max_wait_ms * _NS))
        self._relay_due(delivery)
        while is_more and delivery.can_extend(self._clock.monotonic_ns()):
            is_more = self._fetcher.fetch(consumer, 0)
            self._relay_due(delivery)
        delivery.end_turn(self._clock.monotonic_ns())
        now_ns = self._clock.monotonic_ns()
        self._assignment.throttle(consumer, now_ns)
        delivery.resolve_outcomes(now_ns)
        self._prober.process_reports(self._clock.monotonic_ns())  # `now_ns` is older than the reports just polled
        for assigned in self._assignment.held.values():
            if assigned.queue.asks_for_probe(now_ns):
                self._prober.probe(assigned)
        if now_ns >= self._commit_ns:
            self._commit_ns = now_ns + self.settings.commit_interval_ms * _NS
            if now_ns >= self._skip_ns:
                self._skip_ns = now_ns + _SKIP_NS
                self._assignment.skip_invisible(consumer)
            delivery.commit(list(self._assignment.held.values()), asynchronous=True)
        if self._state is None or now_ns >= self._state.at_ns + _STATE_NS:
            self._publish_state(consumer, now_ns)

    # --- waiting ----------------------------------------------------------------------------------------------------

    def _wait_ns(self, delivery: Delivery, longest_ns: int) -> int:
        now_ns, held = self._clock.monotonic_ns(), self._assignment.held.values()
        until_ns = now_ns + (min(longest_ns, _PROBED_NS) if self._prober.outstanding > 0 else longest_ns)
        own_ns = delivery.wait_ns(now_ns)
        if own_ns is not None:
            until_ns = min(until_ns, now_ns + own_ns)
        if delivery.capacity(now_ns):
            for assigned in held:
                next_ns = assigned.queue.next_ns()
                if assigned.is_waiting(now_ns):
                    until_ns = min(until_ns, now_ns + _AWAITED_NS)
                elif next_ns is not None and next_ns < until_ns:
                    until_ns = min(until_ns, max(next_ns, assigned.backoff_until_ns))
        if until_ns > self._commit_ns and any(each.uncommitted is not None for each in held):
            until_ns = self._commit_ns
        return max(0, until_ns - now_ns)

    # --- relaying ----------------------------------------------------------------------------------------------------

    def _relay_due(self, delivery: Delivery) -> None:
        """Relay due records while capacity and time permit; the next turn begins after the queue served last.

        Decides: Which delay queue is served next, and how much at a time? In turn by number, after the one served last
            (`worker.assignment.Assignment.in_turn`); of each up to the setting drain_count, for 500 ms or until the
            delivery takes no more.
        """
        until_ns = self._clock.monotonic_ns() + _TURN_NS
        self._targets.process_answers(self._clock.monotonic_ns())
        progress = True
        while progress:
            progress = False
            for assigned in self._assignment.in_turn(self._served):
                now_ns = self._clock.monotonic_ns()
                room = delivery.capacity(now_ns)
                if room <= 0 or now_ns >= until_ns:
                    progress = False
                    break
                if now_ns < assigned.backoff_until_ns or assigned.is_waiting(now_ns):
                    continue
                room_bytes = min(self.settings.prefetch_bytes, delivery.capacity_bytes(now_ns))
                due = assigned.queue.take(now_ns, min(room, self.settings.drain_count), room_bytes)
                if due is not None:
                    progress = True
                    self._served = assigned.key
                    delivery.relay(assigned, due, now_ns)
            if progress:
                delivery.resolve_outcomes(self._clock.monotonic_ns())

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def names(self) -> TopicNames:
        """The names of the topics of its namespace."""
        return TopicNames(self.settings.namespace)

    @property
    def transactional_id(self) -> str:
        """Its `transactional.id` with `exactly_once`; after a transaction that cannot end, a suffix follows."""
        return self._clients.transactional_id

    @property
    def counts(self) -> WorkerCounts:
        """The counters of what the worker has done. Any thread may read them."""
        return self._alarm.counts

    @property
    def state(self) -> WorkerState | None:
        """The worker's state, at most a second old; None before the first step. Any thread may read it."""
        return self._state

    def _publish_state(self, consumer: ConsumerClient, now_ns: int) -> None:
        assigned = sorted(self._assignment.held.values(), key=attrgetter("key"))
        if self._prober.compare_clocks(assigned, now_ns):
            self._assignment.publish_clock(self._prober.clock_ahead_ms)
        self._state = WorkerState(
            at_ns=now_ns,
            mode="exactly-once" if self.settings.exactly_once else "at-least-once",
            group=self.group,
            topic=self._assignment.topic,
            is_member=self._assignment.is_member,
            commits_fail_since_ns=self._assignment.commits_fail_since_ns(),
            avoided=self._targets.avoided(now_ns),
            queues=tuple(queue_state(consumer, each, now_ns) for each in assigned if each.timers is None),
            counts=self.counts.copy(),
            namespace=self.settings.namespace,
            clock_ahead_ms=self._prober.clock_ahead_ms,
            pending_timers=sum(0 if each.timers is None else each.timers.pending_count for each in assigned),
            timer_queues=tuple(queue_state(consumer, each, now_ns) for each in assigned if each.timers is not None),
        )

    def _has_applied(self, ends: Mapping[int, int]) -> bool:
        """Return whether every command for named timers before these offsets is applied; for the harness."""
        held = self._assignment.held
        found = {number: held.get(TopicPartitionKey(self.names.timers, number)) for number, end in ends.items() if end}
        return all(each is not None and (each.position or 0) >= ends[number] for number, each in found.items())

    def _pending_timer(self, topic: str, timer: str) -> int | None:
        """Return the generation of a name that is pending in a partition of this worker; for the harness."""
        key = TopicPartitionKey(self.names.timers, timer_partition(topic, timer))
        owned = self._assignment.held[key].timers if key in self._assignment.held else None
        return None if owned is None or owned.table is None else owned.table.pending(timer_digest(topic, timer))

    def _own_timers(self, partition: int, position: int) -> OwnedTimers:
        owned = OwnedTimers(self.names.timers, one_run=not self.settings.exactly_once)
        self._timers().load(owned, partition, position)
        return owned

    def _timers(self) -> TimerLoader:
        if self._loader is None:
            raise WorkerError("the worker is not started: call start() first, or use run()")
        return self._loader

    def _leave(self, leaving: list[AssignedPartition]) -> None:
        self._delivery.drain(leaving, min(_REVOKE_DRAIN_NS, self.settings.stop_timeout_ms * _NS))
        self._delivery.commit(leaving, asynchronous=False)

    def _started(self) -> ConsumerClient:
        if self._consumer is None:
            raise WorkerError("the worker is not started: call start() first, or use run()")
        return self._consumer


class _Running:
    """A worker that runs in a thread of a program, which may end without `stop`; see `at_exit`."""

    def __init__(self, worker: DelayWorker) -> None:
        self.exit_timeout_ms = worker.settings.stop_timeout_ms + round(_LEAVE_S * 1_000)
        self.ended = threading.Event()
        self._worker = worker

    def begin_exit(self) -> None:
        """Stop the worker."""
        self._worker.stop()

    def finish_exit(self, until_s: float) -> int:
        """Wait until it has left its group; return 0: what it has not delivered is in Kafka."""
        if not self.ended.wait(max(0.0, until_s - time.monotonic())):
            _LOG.warning("worker.not-left", extra={"group": self._worker.group})
        return 0
