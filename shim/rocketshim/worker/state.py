"""The worker's state as `rocketshim.health` serves it; that module defines live and ready."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from rocketshim.health import LoopState, Metric
from rocketshim.kafka.clients import ConsumerClient
from rocketshim.worker.assignment import AssignedPartition
from rocketshim.worker.counts import WorkerCounts
from rocketshim.worker.metrics import worker_metrics

__all__ = ["QueueState", "WorkerState", "queue_state"]


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
        queues: its partitions.
        counts: what it has done.
        namespace: its namespace; `""`: none.
        clock_ahead_ms: how far this machine's clock is ahead of the brokers' (negative: behind), in ms; 0: at most a
            minute, or not known.
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

    @property
    def oldest_due_ms(self) -> int:
        """How long the oldest due record has been due, in ms; 0 if no record is due."""
        return max(0, *(-queue.next_due_in_ms for queue in self.queues if queue.next_due_in_ms is not None), 0)

    def shown(self, now_ns: int) -> dict[str, Any]:
        """Return the state as JSON values."""
        return self._shown(now_ns, oldest_due_ms=self.oldest_due_ms)

    def metrics(self) -> Iterable[Metric]:
        """Yield the state as metrics; in a namespace, each sample has the label `namespace`."""
        return worker_metrics(self)


def queue_state(consumer: ConsumerClient, topic: str, assigned: AssignedPartition, now_ns: int) -> QueueState:
    """Return the state of a partition, without a request to the cluster."""
    position, due_ns = assigned.position, assigned.queue.oldest_due_ns
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
        next_due_in_ms=None if due_ns is None else (due_ns - now_ns) // 1_000_000,
    )
