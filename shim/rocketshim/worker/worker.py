"""The delay-redelivery worker: a loop in one thread, with one consumer of the schedule topic.

A step of the loop:

1. Wait for records until the next queue head is due. There is no tick: `poll` waits for the whole milliseconds, a
   sleep for the remainder.
2. Put fetched records into their queues and look up unknown targets. Pause and resume fetching by the number of
   buffered records (`assignment`).
3. Take every due record from all queues and relay it (`at_least_once`, `exactly_once`).
4. Process the results of relayed records and of probes (`prober`).
5. Commit the position after each longest confirmed prefix.

Responsibilities: `planner` decides what to do with a record, `allow_list` where records may go, and `target_health`
which targets accept records at the moment. `router` combines the three. `core.level_queue` decides which records are
due and up to which offset a partition is finished. `topic_lookup` asks the cluster about targets in its own thread.

Invariants:

* Only confirmed hops move a position. A hop that is not stored blocks its partition's commit and is made again.
* A target that does not accept a record does not block its queue.
* The loop never waits for the metadata of a target.
* Callbacks of the Kafka clients only hand over. No rebalance callback raises. A rebalance callback may commit, wait for
  reports and end a transaction, each for a bounded time.
* Queues take turns, so a queue with many or expensive records does not block another queue.
* The worker's wall clock decides nothing.
"""

import socket
import threading
import time
import uuid
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import groupby
from operator import attrgetter, methodcaller
from typing import Any, Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, TopicPartition

from rocketshim.clock import SystemClock
from rocketshim.core.clock import Clock
from rocketshim.core.level_queue import QueueLimits
from rocketshim.errors import TopicMissingError, WorkerError
from rocketshim.kafka.acls import denied_topics
from rocketshim.kafka.client_config import PROTECTED_CONSUMER, PROTECTED_PRODUCER, merge
from rocketshim.kafka.clients import (
    Clients,
    ConsumerClient,
    LastClientError,
    Parting,
    close_consumer,
    confluent_clients,
    explained,
    unsubscribes,
)
from rocketshim.logs import safe_logger
from rocketshim.settings import WorkerSettings
from rocketshim.worker.allow_list import AllowList
from rocketshim.worker.assignment import AssignedPartition, Assignment
from rocketshim.worker.at_least_once import AtLeastOnce
from rocketshim.worker.delivery import Delivery, WorkerCounts
from rocketshim.worker.exactly_once import ExactlyOnce
from rocketshim.worker.health import QueueState, WorkerState
from rocketshim.worker.planner import is_probe
from rocketshim.worker.prober import Prober
from rocketshim.worker.router import Router
from rocketshim.worker.target_health import TargetTable
from rocketshim.worker.topic_lookup import TopicLookup
from rocketshim.worker.watchdog import Heartbeat
from rocketshim_topics.layout import Layout
from rocketshim_topics.names import TopicNames
from rocketshim_topics.wire import headers_shown

__all__ = ["DelayWorker", "WorkerCounts"]

_LOG = safe_logger("rocketshim.worker")

_NS: Final = 1_000_000
_IDLE_MS: Final = 1_000
_AWAITED_NS: Final = 2_000_000  # while a queue waits for the lookup of a target
_PROBED_NS: Final = 1_000_000  # while a probe is in flight: its report decides which records are due
_FETCH_COUNT: Final = 1_000
_TURN_NS: Final = 500 * _NS  # then the loop polls the consumer, even if more records are due
_HEADER_BYTES: Final = 40  # memory of a header in addition to its name and value
_STATE_NS: Final = 1_000_000_000
_MOST_LINES: Final = 20
_LEAVE_S: Final = 1.0
_REVOKE_DRAIN_NS: Final = 3_000_000_000
_SESSION_MS: Final = 10_000
_MOST_UNPOLLED_MS: Final = 5_000  # added to the session time-out; a blocked loop then loses its partitions


def _no_point(name: str) -> None:
    """Do nothing: the default for `on_point`."""


def _is_stamped(message: Any) -> bool:
    """Return whether the record's timestamp is its append time, not its sender's clock."""
    kind, _ = message.timestamp()
    return bool(kind == TIMESTAMP_LOG_APPEND_TIME)


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
        counts: counters of what the worker has done.
        heart: heartbeat for a `Watchdog`, which ends a process whose loop is blocked.

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
        self.settings = settings
        self.names = TopicNames(settings.namespace)
        self.counts = WorkerCounts()
        self.heart = Heartbeat()
        self.group = settings.group or self.names.worker_group
        instance = settings.instance or f"{socket.gethostname()}-{uuid.uuid4().hex[:12]}"
        self.transactional_id = f"{self.group}.{instance}"
        self._levels = settings.delay_levels
        self._clients = clients
        self._clock: Clock = clock or SystemClock()
        self._sleep = sleep
        self._on_point = on_point
        self._stopping = threading.Event()
        self._targets = TargetTable(self._alarm)
        self._router = Router(
            self.names,
            self._levels,
            AllowList(self.names, settings.allow),
            self._targets,
            target_tries=settings.target_tries,
            max_delay_ms=settings.max_delay_ms,
            alarm=self._alarm,
        )
        self._assignment = Assignment(
            self.names.schedule,
            self._levels,
            QueueLimits(settings.prefetch_count, settings.prefetch_bytes),
            leave=self._leave,
            gone=self._router.forget,
            alarm=self._alarm,
            sleep=sleep,
        )
        self._prober = Prober(self.names, self._alarm)
        self._alarmed: dict[str, tuple[int, int, int]] = {}  # event -> (second, lines in it, lines left out)
        self._client_errors: deque[KafkaError] = deque(maxlen=100)
        self._state: WorkerState | None = None
        self._state_ns = 0
        self._commits_fail_since_ns: int | None = None
        self._commit_ns = 0
        self._fatal: Exception | None = None
        self._mean_bytes = 0  # mean size of a record of the last fetch
        self._served = -1  # the partition from which the loop took records last
        self._consumer: ConsumerClient | None = None
        self._delivery: Delivery | None = None
        self._lookup: TopicLookup | None = None

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until `stop` is called; then finish records in flight, commit and leave the group.

        Raises:
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: the worker cannot use the schedule topic.
            WorkerError: the worker cannot continue. Positions committed so far remain committed.
        """
        self.start()
        try:
            while not self._stopping.is_set():
                self.step()
        finally:
            self.close()

    def start(self) -> None:
        """Create the Kafka clients and join the group; deliver nothing yet.

        Raises:
            TopicMissingError, TopicMismatchError, NotAuthorizedError, BrokerUnavailableError: see `run`.
        """
        if self._consumer is not None:
            return
        clients = self._clients or confluent_clients()
        self._ensure_topics(clients)
        consumer = clients.consumer(self._consumer_config())
        self._consumer = consumer
        # the in-memory Kafka has no admin client and answers immediately
        self._lookup = TopicLookup(lambda: clients.consumer(self._lookup_config()), in_background=bool(clients.admin))
        self._targets.ask(self._lookup)
        self._delivery = self._make_delivery(clients)
        self._delivery.start(consumer)
        assignment = self._assignment
        consumer.subscribe(
            [self.names.schedule],
            on_assign=assignment.on_assign,
            on_revoke=assignment.on_revoke,
            on_lost=assignment.on_lost,
        )
        _LOG.info(
            "worker.started",
            extra={"topic": self.names.schedule, "group": self.group, "levels": str(self._levels)},
        )

    def stop(self) -> None:
        """Ask the worker to stop; `run` returns when it has stopped.

        Idempotent. Any thread and any signal handler may call it.
        """
        self._stopping.set()

    def close(self) -> None:
        """Wait for hops in flight, commit, and leave the group.

        This takes `stop_timeout_ms` at most, and one or two seconds to leave the group. The worker is closed when the
        call returns. If no broker answers, positions may be uncommitted; the worker then logs an alarm.
        """
        consumer, delivery = self._consumer, self._delivery
        if consumer is None or delivery is None:
            return
        self.heart.rest()
        assigned = list(self._assignment.held.values())
        by_ns = self._clock.monotonic_ns() + self.settings.stop_timeout_ms * _NS
        try:
            delivery.drain(assigned, self.settings.stop_timeout_ms * _NS)
        finally:
            self._assignment.closing()
            self._consumer = None
            left_s = max(_LEAVE_S, (by_ns - self._clock.monotonic_ns()) / 1e9)
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
                self._delivery = None
                if self._lookup is not None:
                    self._lookup.close()
        _LOG.info("worker.stopped", extra={"delivered": self.counts.delivered})

    def step(self, max_wait_ms: int = _IDLE_MS) -> None:
        """Run one turn of the loop; wait at most `max_wait_ms`.

        Raises:
            WorkerError: the worker cannot continue; call `close`.
        """
        self.heart.beat()
        consumer, delivery = self._started()
        failure = self._fatal or self._assignment.failure
        if failure is not None:
            raise WorkerError(f"the worker cannot continue: {failure}") from failure
        if self._client_errors:
            count, last = len(self._client_errors), self._client_errors[-1]
            self._client_errors.clear()
            self._alarm("worker.client-error", error=str(last), count=count)
            delivery.connection_lost()
        is_more = self._fetch(consumer, self._wait_ns(delivery, max_wait_ms * _NS))
        self._relay_due(delivery)
        while is_more and delivery.can_extend(self._clock.monotonic_ns()):
            is_more = self._fetch(consumer, 0)
            self._relay_due(delivery)
        delivery.end_turn(self._clock.monotonic_ns())
        now_ns = self._clock.monotonic_ns()
        self._assignment.throttle(consumer, now_ns)
        delivery.settle(now_ns)
        self._prober.settle(now_ns)
        for assigned in self._assignment.held.values():
            if assigned.queue.asks_for_probe(now_ns):
                delivery.probe(assigned, now_ns)
        if now_ns >= self._commit_ns:
            self._commit_ns = now_ns + self.settings.commit_interval_ms * _NS
            delivery.commit(list(self._assignment.held.values()), asynchronous=True)
        if now_ns >= self._state_ns:
            self._publish_state(consumer, now_ns)

    # --- fetching ----------------------------------------------------------------------------------------------------

    def _wait_ns(self, delivery: Delivery, longest_ns: int) -> int:
        now_ns = self._clock.monotonic_ns()
        until_ns = now_ns + (min(longest_ns, _PROBED_NS) if self._prober.outstanding > 0 else longest_ns)
        own_ns = delivery.wait_ns(now_ns)
        if own_ns is not None:
            until_ns = min(until_ns, now_ns + own_ns)
        if delivery.capacity(now_ns):
            for assigned in self._assignment.held.values():
                next_ns = assigned.queue.next_ns()
                if assigned.is_waiting(now_ns):
                    until_ns = min(until_ns, now_ns + _AWAITED_NS)
                elif next_ns is not None and next_ns < until_ns:
                    until_ns = min(until_ns, max(next_ns, assigned.backoff_until_ns))
        if until_ns > self._commit_ns and any(assigned.has_uncommitted for assigned in self._assignment.held.values()):
            until_ns = self._commit_ns
        return max(0, until_ns - now_ns)

    def _fetch(self, consumer: ConsumerClient, wait_ns: int) -> bool:
        """Fetch records into their queues; return whether the batch was full, so that more may be ready."""
        whole_ms = wait_ns // _NS
        if whole_ms == 0 and wait_ns > 0:
            self._sleep(wait_ns / 1e9)
        try:
            first = consumer.poll(whole_ms / 1_000)
            if first is None:
                return False
            count = self._fetch_count(first)
            batch = [first, *consumer.consume(count - 1, 0)] if count > 1 else [first]
        except KafkaException as error:  # a failure of the consumer itself, which cannot continue
            self._fatal = error
            return False
        is_more = len(batch) == count
        seen_ns = self._clock.monotonic_ns()
        errors = [message for message in batch if message.error() is not None]
        if errors:
            batch = [message for message in batch if message.error() is None]
        for number, messages in groupby(batch, methodcaller("partition")):
            assigned = self._assignment.held.get(number)
            if assigned is not None:
                self._offer(assigned, list(messages), seen_ns)
        for each in errors:
            self._client_error(each)
        return is_more

    def _fetch_count(self, first: Any) -> int:
        """Return the maximum size of one fetched batch; the headers of each message become Python objects."""
        mean_bytes = self._mean_bytes
        if first.error() is None:
            mean_bytes = max(mean_bytes, len(first) + self._beyond_value(first))
        return min(_FETCH_COUNT, 1 + self.settings.prefetch_bytes // (mean_bytes + 1))

    def _offer(self, assigned: AssignedPartition, run: list[Any], seen_ns: int) -> None:
        if not (_is_stamped(run[0]) and _is_stamped(run[-1])):
            self._without_append_time(assigned, run)
        # a probe has no value, and a message without a value is falsy, so the length is tested
        if 0 in map(len, run):
            probes = {message.offset() for message in run if len(message) == 0 and is_probe(message)}
            if probes:
                run = [message for message in run if message.offset() not in probes]
                assigned.skipped_to = max(probes) + 1
                self.counts.skipped += len(probes)
        extra_bytes = self._beyond_values(run)
        self._mean_bytes = extra_bytes + len(run[-1]) if run else 0
        try:
            assigned.queue.offer(run, seen_ns, extra_bytes)
        except ValueError:
            assigned = self._assignment.restarted(assigned.number)
            assigned.queue.offer(run, seen_ns, extra_bytes)
        if not assigned.queue.has_due(
            seen_ns
        ):  # for a due record, the router looks the target up when the record leaves
            self._router.expect(run, seen_ns)

    def _without_append_time(self, assigned: AssignedPartition, run: list[Any]) -> None:
        """Mark records without append time for parking: their senders' timestamps cannot be trusted.

        Such records were written before the topic stamped append times. A probe finds out whether the topic stamps
        them now; if it does not, the worker ends with an error.
        """
        for message in run:
            if not _is_stamped(message):
                self._router.mark_for_parking(message, "no-append-time")
        if self._prober.confirmed_ns == 0 and self._prober.outstanding == 0:
            self._prober.probe(assigned, self._clock.monotonic_ns())

    def _beyond_values(self, run: list[Any]) -> int:
        """Return the mean bytes of key and headers of a record, from three samples: reading each record costs time."""
        return sum(map(self._beyond_value, (run[0], run[len(run) // 2], run[-1]))) // 3 if run else 0

    def _beyond_value(self, message: Any) -> int:
        """Return the bytes of key and headers of a record."""
        headers = sum(_HEADER_BYTES + len(name) + len(value or b"") for name, value in headers_shown(message))
        return len(message.key() or b"") + headers

    def _client_error(self, message: Any) -> None:
        error: KafkaError = message.error()
        if error.fatal():
            self._fatal = KafkaException(error)
        elif error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._fatal = TopicMissingError(
                f"the topic {self.names.schedule} does not exist; create it with: rocketshim init"
            )
        elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - no public spelling
            self._assignment.overtaken(message.partition())
        else:
            self._alarm("worker.client-error", error=str(error))

    # --- relaying ----------------------------------------------------------------------------------------------------

    def _relay_due(self, delivery: Delivery) -> None:
        """Relay due records while capacity and time permit; the next turn begins after the queue served last."""
        until_ns = self._clock.monotonic_ns() + _TURN_NS
        self._targets.hear(self._clock.monotonic_ns())
        progress = True
        while progress:
            progress = False
            for assigned in self._in_turn():
                now_ns = self._clock.monotonic_ns()
                room = delivery.capacity(now_ns)
                if room <= 0 or now_ns >= until_ns:
                    progress = False
                    break
                if now_ns < assigned.backoff_until_ns or assigned.is_waiting(now_ns):
                    continue
                due = assigned.queue.take(now_ns, min(room, self.settings.drain_count), self.settings.prefetch_bytes)
                if due is not None:
                    progress = True
                    self._served = assigned.number
                    delivery.relay(assigned, due, now_ns)
            if progress:
                delivery.settle(self._clock.monotonic_ns())

    def _in_turn(self) -> list[AssignedPartition]:
        """Return the assigned partitions in turn, beginning after the one served last."""
        queues = sorted(self._assignment.held.values(), key=attrgetter("number"))
        first = bisect_right(queues, self._served, key=attrgetter("number"))
        return queues[first:] + queues[:first]

    # --- state -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> WorkerState | None:
        """The worker's state, at most a second old; None before the first step. Any thread may read it."""
        return self._state

    def _publish_state(self, consumer: ConsumerClient, now_ns: int) -> None:
        self._state_ns = now_ns + _STATE_NS
        assigned = sorted(self._assignment.held.values(), key=lambda each: each.number)
        counts = self.counts
        self._state = WorkerState(
            at_ns=now_ns,
            mode="exactly-once" if self.settings.exactly_once else "at-least-once",
            group=self.group,
            topic=self.names.schedule,
            is_member=self._assignment.assignments > 0,
            commits_fail_since_ns=self._commits_fail_since_ns,
            avoided=self._targets.avoided(now_ns),
            queues=tuple(self._queue_state(consumer, each, now_ns) for each in assigned),
            counts=replace(
                counts, parked=dict(counts.parked), alarms=dict(counts.alarms), lateness=list(counts.lateness)
            ),
        )

    def _queue_state(self, consumer: ConsumerClient, assigned: AssignedPartition, now_ns: int) -> QueueState:
        key = TopicPartition(self.names.schedule, assigned.number)
        position, next_ns = assigned.position, assigned.queue.next_ns()
        try:
            _, high = consumer.get_watermark_offsets(key, cached=True)
        except (KafkaException, TypeError):
            high = -1
        done = assigned.committed if position is None else position
        return QueueState(
            partition=assigned.number,
            delay_ms=assigned.queue.delay_ms,
            position=position,
            committed=assigned.committed,
            backlog=max(0, high - done) if high >= 0 and done >= 0 else None,
            held=assigned.queue.waiting_count,
            next_due_in_ms=None if next_ns is None else (next_ns - now_ns) // _NS,
        )

    def _leave(self, leaving: list[AssignedPartition]) -> None:
        delivery = self._delivery
        if delivery is not None:
            delivery.drain(leaving, min(_REVOKE_DRAIN_NS, self.settings.stop_timeout_ms * _NS))
            delivery.commit(leaving, asynchronous=False)

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Take the result of an asynchronous commit; the next commit repeats positions that were not committed."""
        if error is None and all(item.error is None for item in partitions):
            self._commits_fail_since_ns = None
            return
        if self._commits_fail_since_ns is None:
            self._commits_fail_since_ns = self._clock.monotonic_ns()
        for item in partitions:
            if error is not None or item.error is not None:
                assigned = self._assignment.held.get(item.partition)
                if assigned is not None:
                    assigned.committed = min(assigned.committed, item.offset - 1)
                self._alarm("worker.commit-failed", partition=item.partition, error=str(error or item.error))

    # --- set-up ------------------------------------------------------------------------------------------------------

    def _make_delivery(self, clients: Clients) -> Delivery:
        settings = self.settings
        if settings.exactly_once:
            return ExactlyOnce(
                clients.producer,
                {
                    **self._producer_config(),
                    "transactional.id": self.transactional_id,
                    "transaction.timeout.ms": settings.transaction_timeout_ms,
                    "delivery.timeout.ms": settings.transaction_timeout_ms,
                    # The coordinator refuses librdkafka's first request of a transaction while it finishes the last
                    # one. librdkafka then waits for its back-off. With the default of 100 ms a transaction takes
                    # 104 ms, with 1 ms it takes 6 ms (measured).
                    "retry.backoff.ms": 1,
                    "retry.backoff.max.ms": 100,
                },
                self._producer_config(),
                self._router,
                self.counts,
                clock=self._clock,
                prober=self._prober,
                alarm=self._alarm,
                api_timeout_ms=settings.transaction_timeout_ms * 2 // 3,
                patience_ms=settings.target_patience_ms,
                denied=partial(self._denied, clients),
                point=self._on_point,
                heart=self.heart,
            )
        return AtLeastOnce(
            clients.producer,
            self._producer_config(),
            self._router,
            self.counts,
            clock=self._clock,
            prober=self._prober,
            alarm=self._alarm,
            max_in_flight=settings.max_in_flight_count,
            max_in_flight_bytes=settings.max_in_flight_bytes,
            patience_ns=settings.target_patience_ms * _NS,
            point=self._on_point,
        )

    def _denied(self, clients: Clients, topics: set[str]) -> set[str]:
        if clients.admin is None:
            return set()
        return denied_topics(clients.admin(self._connection({})), topics, self._alarm)

    def _ensure_topics(self, clients: Clients) -> None:
        if clients.admin is None:
            return
        from rocketshim_topics import provision  # noqa: PLC0415 - the one module of that package that loads Kafka

        layout = Layout(self.names, self._levels)
        complaints = LastClientError()
        admin = clients.admin(self._connection({}, complaints.settings))
        with explained(complaints, admin):
            planned = provision.ensure_topics(admin, layout.shared(), create=self.settings.create_topics)
        for difference in planned.differences:
            _LOG.warning("worker.settings-differ", extra={"difference": str(difference)})

    def _connection(self, required: dict[str, Any], defaults: dict[str, Any] | None = None) -> dict[str, Any]:
        return merge(
            self.settings.client,
            defaults=defaults or {},
            required={"bootstrap.servers": self.settings.bootstrap, "error_cb": self._client_errors.append, **required},
            allow_code_settings=self.settings.allow_code_settings,
        )

    def _consumer_config(self) -> dict[str, Any]:
        required = {
            **PROTECTED_CONSUMER,
            "group.id": self.group,
            "auto.offset.reset": "error",  # the worker seeks to the earliest record itself, and logs an alarm
            "partition.assignment.strategy": "cooperative-sticky",
            "on_commit": self._on_commit,
        }
        session_ms = int(self.settings.client.get("session.timeout.ms", _SESSION_MS))
        defaults = {
            "client.id": "rocketshim-worker",
            "queued.min.messages": 5_000,
            "queued.max.messages.kbytes": 16_384,
            "fetch.message.max.bytes": 1_048_576,
            "fetch.queue.backoff.ms": 10,
            "session.timeout.ms": session_ms,
            "max.poll.interval.ms": session_ms + _MOST_UNPOLLED_MS,
            "heartbeat.interval.ms": 2_000,
            "topic.metadata.refresh.interval.ms": 5_000,  # bounds the time to notice new lanes and re-created topics
        }
        return self._connection(required, defaults)

    def _lookup_config(self) -> dict[str, Any]:
        return merge(
            self.settings.client,
            defaults={"client.id": "rocketshim-worker", **LastClientError().settings},
            required={
                **PROTECTED_CONSUMER,
                "bootstrap.servers": self.settings.bootstrap,
                "group.id": self.group,  # this consumer never joins it
            },
            allow_code_settings=self.settings.allow_code_settings,
        )

    def _producer_config(self) -> dict[str, Any]:
        defaults = {
            "client.id": "rocketshim-worker",
            "linger.ms": 1,
            "message.max.bytes": 100_000_000,
            "topic.metadata.propagation.max.ms": self.settings.target_patience_ms,
        }
        required = {**PROTECTED_PRODUCER, "delivery.timeout.ms": self.settings.hop_timeout_ms}
        return self._connection(required, defaults)

    def _started(self) -> tuple[ConsumerClient, Delivery]:
        if self._consumer is None or self._delivery is None:
            raise WorkerError("the worker is not started: call start() first, or use run()")
        return self._consumer, self._delivery

    def _alarm(self, event: str, **facts: object) -> None:
        """Count an alarm and log it: at most 20 lines a second for one event."""
        self.counts.alarms[event] = self.counts.alarms.get(event, 0) + 1
        second = self._clock.monotonic_ns() // 1_000_000_000
        since, lines, left_out = self._alarmed.get(event, (second, 0, 0))
        if since != second:
            if left_out:
                facts["left_out_before"] = left_out
            since, lines, left_out = second, 0, 0
        if lines < _MOST_LINES:
            _LOG.warning(event, extra=facts)
            lines += 1
        else:
            left_out += 1
        self._alarmed[event] = since, lines, left_out
