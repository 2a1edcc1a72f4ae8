"""What the worker reports of itself: its counters, its alarms, which it also logs, its state, and its metrics.

`rocketshim.health` serves the state and the metrics, and defines live and ready.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.core.clock import Clock
from rocketshim.core.log_limits import RepeatedErrors
from rocketshim.core.named_timers import Change, Command, Effect
from rocketshim.core.worker_notes import NOT_ALLOWED
from rocketshim.health import LoopState
from rocketshim.kafka.client_errors import ErrorLines
from rocketshim.kafka.clients import ConsumerClient
from rocketshim.logs import safe_logger
from rocketshim.metrics import Histogram, Metric
from rocketshim.worker.assignment import AssignedPartition
from rocketshim.worker.log_format import ALARM_EVENTS

__all__ = [
    "PARK_REASONS",
    "Alarms",
    "QueueState",
    "WorkerCounts",
    "WorkerState",
    "queue_state",
    "re_append_event",
]

_LOG = safe_logger("rocketshim.worker")
_MOST_LINES: Final = 20  # of an event in a second
_NS_PER_MS: Final = 1_000_000
_REPEATED: Final = frozenset({"worker.commit-failed", "worker.metadata-failed", "worker.probe-failed"})

_LATENESS_BOUNDS_S: Final = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0, 600.0,
)  # fmt: skip

PARK_REASONS: Final = (
    "bad-header-key", "bad-number", "due-too-late", "duplicate-header", "forbidden-target", "hop-refused",
    "malformed", "missing-header", "no-append-time", "null-header", "target-refused", "two-due-times", "unknown-topic",
    "unknown-version",
)  # fmt: skip
"""Reasons for which records are parked, each up to its first colon."""


@dataclass(slots=True)
class WorkerCounts:
    """What the worker has done since it started. Its own thread writes this; any thread may read it.

    Attributes:
        delivered: records stored at their targets.
        hopped: records written to another queue because they were not due.
        re_appended: records written to a queue again because their target did not accept them.
        resent: hops made again.
        skipped: probes read, and commands for named timers that deliver nothing.
        timers: number of commands for named timers, by what they are and whether they changed anything.
        timers_replaced: messages with a name that another one has replaced.
        checks: questions to the producers of half messages.
        alarms: number of alarms by event.
        parked: number of parked records by reason, up to the reason's first colon.
        aborted: transactions aborted.
        recycled: producers replaced.
        lateness: seconds from due to stored at the target, of each delivery.
    """

    delivered: int = 0
    hopped: int = 0
    re_appended: int = 0
    resent: int = 0
    skipped: int = 0
    alarms: dict[str, int] = field(default_factory=dict)
    parked: dict[str, int] = field(default_factory=dict)
    timers: dict[tuple[str, bool], int] = field(default_factory=dict)
    timers_replaced: int = 0
    checks: int = 0
    aborted: int = 0
    recycled: int = 0
    lateness: Histogram = field(default_factory=lambda: Histogram(_LATENESS_BOUNDS_S))

    def copy(self) -> "WorkerCounts":
        """Return a copy for another thread."""
        return replace(
            self,
            parked=dict(self.parked),
            alarms=dict(self.alarms),
            timers=dict(self.timers),
            lateness=self.lateness.copy(),
        )

    def count_parked(self, reason: str) -> None:
        """Count a parked record."""
        kind = reason.split(":", 1)[0]
        self.parked[kind] = self.parked.get(kind, 0) + 1

    def count_timer(self, command: str, change: Change) -> None:
        """Count a command for a named timer."""
        is_effective = change.effect is not Effect.NOTHING
        self.timers[command, is_effective] = self.timers.get((command, is_effective), 0) + 1
        self.timers_replaced += command == Command.SET.value and change.before is not None
        self.checks += change.effect is Effect.ASK


def re_append_event(reason: str) -> str:
    """Return the log event for a record that was re-appended for this reason."""
    return "worker.not-allowed" if reason == NOT_ALLOWED else "worker.re-appended"


class Alarms:
    """Counts alarms, and logs them: at most 20 times a second for each event, and the same error only now and then.

    Thread-safety: none; the worker's thread.
    """

    __slots__ = ("_clock", "_errors", "_lines", "_repeated", "counts")

    def __init__(self, counts: WorkerCounts, clock: Clock, errors: ErrorLines) -> None:
        self.counts = counts
        self._clock = clock
        self._errors = errors
        self._repeated = RepeatedErrors()
        self._lines: dict[str, tuple[int, int, int]] = {}  # event -> (second, lines in it, lines left out)

    def __call__(self, event: str, **facts: object) -> None:
        """Count an alarm and log it."""
        self._count(event)
        now_ms = self._clock.monotonic_ns() // _NS_PER_MS
        if event in _REPEATED:
            count = self._repeated.note((event, facts.get("error")), now_ms)
            if not count:
                return
            facts |= {"count": count} if count > 1 else {}
        second = now_ms // 1_000
        since, lines, left_out = self._lines.get(event, (second, 0, 0))
        if since != second:
            if left_out:
                facts["left_out_before"] = left_out
            since, lines, left_out = second, 0, 0
        if lines < _MOST_LINES:
            _LOG.warning(event, extra=facts)
            lines += 1
        else:
            left_out += 1
        self._lines[event] = since, lines, left_out

    def client_error(self, error: KafkaError, topic: str | None = None) -> None:
        """Count an error of a Kafka client that goes on; log it with the way out, and now and then if it repeats."""
        self._count("worker.client-error")
        facts = self._errors.facts(error, topic, self._clock.monotonic_ns() // _NS_PER_MS)
        if facts is not None:
            _LOG.warning("worker.client-error", extra=facts)

    def _count(self, event: str) -> None:
        self.counts.alarms[event] = self.counts.alarms.get(event, 0) + 1


@dataclass(frozen=True, slots=True)
class QueueState:
    """One partition of the schedule topic that is assigned to the worker.

    Attributes:
        partition: partition number.
        delay_ms: the queue's delay.
        position: next offset to deliver, by confirmed records; None: nothing is confirmed since the assignment.
        committed: committed position; -1: unknown.
        backlog: offsets from the position to the end of the log (including probes and markers of transactions), as last
            seen while fetching; None: not known yet.
        held: records in memory.
        next_due_in_ms: time until the oldest record that is not finished is due; 0 or less: it is due, perhaps in
            flight; None: no record is in memory.
    """

    partition: int
    delay_ms: int
    position: int | None
    committed: int
    backlog: int | None
    held: int
    next_due_in_ms: int | None


@dataclass(frozen=True, slots=True)
class WorkerState(LoopState):
    """The worker's state at one instant.

    Attributes:
        at_ns: monotonic instant.
        mode: `at-least-once` or `exactly-once`.
        group: consumer group.
        topic: schedule topic.
        is_member: whether the group has assigned partitions to it, perhaps none, and has not put it out since.
        commits_fail_since_ns: monotonic instant since which commits fail; None: they succeed.
        avoided: targets that the worker does not try now, with the reason.
        queues: its partitions of the schedule topic.
        counts: what it has done.
        namespace: its namespace; `""`: none.
        clock_ahead_ms: how far this machine's clock is ahead of the brokers' (negative: behind), in ms; 0: at most a
            minute, or not known.
        pending_timers: names that are pending in its partitions of the timer log.
        timer_queues: its partitions of the timer log, without a delay; commands that wait there are due.
    """

    at_ns: int
    mode: str
    group: str
    topic: str
    is_member: bool
    commits_fail_since_ns: int | None
    avoided: dict[str, str]
    queues: tuple[QueueState, ...]
    counts: WorkerCounts = field(default_factory=WorkerCounts)
    namespace: str = ""
    clock_ahead_ms: int = 0
    pending_timers: int = 0
    timer_queues: tuple[QueueState, ...] = ()

    @property
    def oldest_due_ms(self) -> int:
        """How long the oldest due record has been due, in ms; 0 if no record is due."""
        queues = (*self.queues, *self.timer_queues)
        return max(0, *(-queue.next_due_in_ms for queue in queues if queue.next_due_in_ms is not None), 0)

    def shown(self, now_ns: int) -> dict[str, Any]:
        """Return the state as JSON values."""
        return self._shown(now_ns, oldest_due_ms=self.oldest_due_ms)

    def metrics(self) -> Iterable[Metric]:
        """Yield the state as metrics; in a namespace, each sample has the label `namespace`."""
        return worker_metrics(self)


def queue_state(consumer: ConsumerClient, assigned: AssignedPartition, now_ns: int) -> QueueState:
    """Return the state of a partition, without a request to the cluster."""
    position, due_ns = assigned.position, assigned.queue.oldest_due_ns
    try:
        _, high = consumer.get_watermark_offsets(TopicPartition(*assigned.key), cached=True)
    except (KafkaException, TypeError):
        high = -1
    done = assigned.stored if position is None else position
    return QueueState(
        partition=assigned.number,
        delay_ms=assigned.queue.delay_ms,
        position=position,
        committed=assigned.stored,
        backlog=max(0, high - done) if high >= 0 and done >= 0 else None,
        held=assigned.queue.waiting_count,
        next_due_in_ms=None if due_ns is None else (due_ns - now_ns) // 1_000_000,
    )


_Family = tuple[str, str, str, list[tuple[str, dict[str, str], float]]]
"""Name without its prefix, kind, help text, and the samples."""


def worker_metrics(state: WorkerState) -> Iterable[Metric]:
    """Yield a state of the worker as metrics; in a namespace, each sample has the label `namespace`."""
    mine = {"namespace": state.namespace} if state.namespace else {}
    for name, kind, about, samples in (*_counters(state.counts), *_gauges(state)):
        labelled = tuple((suffix, mine | labels, value) for suffix, labels, value in samples)
        yield Metric(f"rocketshim_worker_{name}", kind, about, labelled)


def _counters(counts: WorkerCounts) -> Iterable[_Family]:
    """Yield what the worker has done. A series exists before its first event, so that `increase` sees that event."""
    yield _one("delivered_total", "counter", "records stored at their targets", counts.delivered)
    yield _one("hopped_total", "counter", "records written to another queue", counts.hopped)
    yield _one("re_appended_total", "counter", "records whose target did not take them", counts.re_appended)
    yield _one("resent_total", "counter", "hops made again", counts.resent)
    alarms = dict.fromkeys(ALARM_EVENTS, 0) | counts.alarms
    yield "alarms_total", "counter", "alarms", [("", {"event": name}, alarms[name]) for name in sorted(alarms)]
    yield _one("transactions_aborted_total", "counter", "transactions aborted", counts.aborted)
    yield _one("producers_recycled_total", "counter", "producers thrown away", counts.recycled)
    parked = dict.fromkeys(PARK_REASONS, 0) | counts.parked
    most_first = sorted(parked.items(), key=lambda item: (-item[1], item[0]))
    yield "parked_total", "counter", "records parked", [("", {"reason": name}, count) for name, count in most_first]
    every = {(each.value, is_effective): 0 for each in Command for is_effective in (False, True)} | counts.timers
    commands = [
        ("", {"command": name, "effective": str(is_effective).lower()}, float(count))
        for (name, is_effective), count in sorted(every.items())
    ]
    yield "timer_commands_total", "counter", "commands for named timers", commands
    yield _one("timers_replaced_total", "counter", "messages with a name that were replaced", counts.timers_replaced)
    yield _one("transaction_checks_total", "counter", "questions to producers of half messages", counts.checks)
    yield "lateness_seconds", "histogram", "from due to stored at the target", counts.lateness.samples()


def _gauges(state: WorkerState) -> Iterable[_Family]:
    yield _one("oldest_due_seconds", "gauge", "how long the record due longest has been so", state.oldest_due_ms / 1e3)
    yield _one("pending_timers", "gauge", "names of timers that are pending", state.pending_timers)
    yield _one("avoided_targets", "gauge", "targets that are not tried now", len(state.avoided))
    yield _one("ready", "gauge", "1: it is in its group and commits", int(state.is_ready(state.at_ns)))
    ahead_s = state.clock_ahead_ms / 1e3
    yield _one("clock_ahead_seconds", "gauge", "this machine's clock less the brokers'; 0: a minute or less", ahead_s)
    labelled = [({"partition": str(queue.partition)}, queue) for queue in state.queues]
    backlog = [("", labels, float(queue.backlog)) for labels, queue in labelled if queue.backlog is not None]
    yield "backlog_records", "gauge", "records that wait in a queue, with probes and markers of transactions", backlog
    behind = [("", {"partition": str(each.partition)}, float(each.backlog or 0)) for each in state.timer_queues]
    yield "timer_log_backlog_records", "gauge", "records of the timer log that wait for the worker", behind
    due = [("", labels, each.next_due_in_ms / 1e3) for labels, each in labelled if each.next_due_in_ms is not None]
    yield "next_due_seconds", "gauge", "until the oldest unfinished record of a queue is due", due


def _one(name: str, kind: str, about: str, value: float) -> _Family:
    return name, kind, about, [("", {}, value)]
