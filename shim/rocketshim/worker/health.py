"""The worker's state as `rocketshim.health` serves it; that module defines live and ready."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from rocketshim.health import LoopState, Metric
from rocketshim.kafka.clients import ConsumerClient
from rocketshim.worker.assignment import AssignedPartition
from rocketshim.worker.counts import LATENESS_BOUNDS_MS, PARK_REASONS, WorkerCounts
from rocketshim.worker.log_format import ALARM_EVENTS

__all__ = ["QueueState", "WorkerState", "queue_state"]


@dataclass(frozen=True, slots=True)
class QueueState:
    """One partition of the schedule topic that is assigned to the worker.

    Attributes:
        partition: partition number.
        delay_ms: the queue's delay.
        position: next offset to deliver, by confirmed records; None: nothing is confirmed since the assignment.
        committed: committed position; -1: unknown.
        backlog: records in the log that are not finished (probes included); None: not known yet.
        held: records in memory.
        next_due_in_ms: time until the head leaves; 0 or less: it is due; None: no record is in memory.
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
        is_member: whether the group has assigned partitions to it, if only an empty set.
        commits_fail_since_ns: monotonic instant since which commits fail; None: they succeed.
        avoided: targets that the worker does not try now, with the reason.
        queues: its partitions.
        counts: what it has done.
        namespace: its namespace; `""`: none.
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

    @property
    def oldest_due_ms(self) -> int:
        """How long the oldest due record has been due, in ms; 0 if no record is due."""
        return max(0, *(-queue.next_due_in_ms for queue in self.queues if queue.next_due_in_ms is not None), 0)

    def shown(self, now_ns: int) -> dict[str, Any]:
        """Return the state as JSON values."""
        return self._shown(now_ns, oldest_due_ms=self.oldest_due_ms)

    def metrics(self) -> Iterable[Metric]:
        """Yield the state as metrics; in a namespace, each sample has the label `namespace`."""
        mine = {"namespace": self.namespace} if self.namespace else {}
        for name, kind, about, samples in (*_counters(self.counts), *_gauges(self)):
            labelled = tuple((suffix, mine | labels, value) for suffix, labels, value in samples)
            yield Metric(f"rocketshim_worker_{name}", kind, about, labelled)


_Family = tuple[str, str, str, list[tuple[str, dict[str, str], float]]]
"""Name without its prefix, kind, help text, and the samples."""


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
    below, buckets = 0, []
    for bound, count in zip(LATENESS_BOUNDS_MS, counts.lateness, strict=False):
        below += count
        buckets.append(("_bucket", {"le": f"{bound / 1e3:g}"}, float(below)))
    total = float(below + counts.lateness[-1])
    whole = [("_bucket", {"le": "+Inf"}, total), ("_sum", {}, counts.lateness_sum_ms / 1e3), ("_count", {}, total)]
    yield "lateness_seconds", "histogram", "from due to stored at the target", [*buckets, *whole]


def _gauges(state: WorkerState) -> Iterable[_Family]:
    yield _one("oldest_due_seconds", "gauge", "how long the record due longest has been so", state.oldest_due_ms / 1e3)
    yield _one("avoided_targets", "gauge", "targets that are not tried now", len(state.avoided))
    yield _one("ready", "gauge", "1: it is in its group and commits", int(state.is_ready(state.at_ns)))
    labelled = [({"partition": str(queue.partition)}, queue) for queue in state.queues]
    backlog = [("", labels, float(queue.backlog)) for labels, queue in labelled if queue.backlog is not None]
    yield "backlog_records", "gauge", "records that wait in a queue", backlog
    due = [("", labels, each.next_due_in_ms / 1e3) for labels, each in labelled if each.next_due_in_ms is not None]
    yield "next_due_seconds", "gauge", "until the head of a queue leaves", due


def _one(name: str, kind: str, about: str, value: float) -> _Family:
    return name, kind, about, [("", {}, value)]


def queue_state(consumer: ConsumerClient, topic: str, assigned: AssignedPartition, now_ns: int) -> QueueState:
    """Return the state of a partition, without a request to the cluster."""
    position, next_ns = assigned.position, assigned.queue.next_ns()
    try:
        _, high = consumer.get_watermark_offsets(TopicPartition(topic, assigned.number), cached=True)
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
        next_due_in_ms=None if next_ns is None else (next_ns - now_ns) // 1_000_000,
    )
