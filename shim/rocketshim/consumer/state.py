"""A push consumer's state, which `rocketshim.health` serves and Prometheus collects. The poll thread makes it.

A suspended consumer is ready: it does what the program has requested.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from rocketshim.consumer.mode import Mode
from rocketshim.consumer.reader.partition_queue import PartitionQueue
from rocketshim.consumer.reader.partition_reader import PartitionReader
from rocketshim.consumer.send_back import FailureCounts, SendBackCounts
from rocketshim.core.histogram import Histogram
from rocketshim.health import LoopState, Metric
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["ConsumerQueueState", "ConsumerState", "state_of"]


@dataclass(frozen=True, slots=True)
class ConsumerQueueState:
    """One queue that a consumer reads.

    Attributes:
        topic: physical name.
        queue_id: number of the partition.
        epoch: number of its assignment.
        position: the offset after the longest finished prefix; None: nothing has finished since the assignment.
        committed: the last committed offset, or the start offset.
        lag: messages between `position` and the end of the log; None: not known yet.
        msg_count: buffered messages that are not finished.
        msg_bytes: bytes of their bodies.
        oldest_in_work_ms: age of the oldest listener call at the last sweep, in ms.
        reconsume_times: failed attempts of the oldest unfinished message that has failed here; 0: there is none; None:
            not in orderly mode, where failed messages are sent back.
        failing_ms: time since that message's first failure in this consumer, in ms.
        paused: why it is not read now: names of `PauseReason` (`FLOW`, `SUSPENDED`, `UNRESOLVED`, `USER`, `LOCK`), with
            `|` between several; empty: it is read.
    """

    topic: str
    queue_id: int
    epoch: int
    position: int | None
    committed: int
    lag: int | None
    msg_count: int
    msg_bytes: int
    oldest_in_work_ms: int
    paused: str
    reconsume_times: int | None = None
    failing_ms: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerState(LoopState):
    """The state of a push consumer at one instant.

    Attributes:
        at_ns: monotonic instant.
        group: consumer group.
        is_member: whether the consumer has its assignment from the group, which may be empty.
        suspended: whether the consumer is suspended, and so reads nothing.
        commits_fail_since_ns: since when commits have failed; None: they succeed.
        commits_failed: number of refused commits.
        workers: listener threads, or maximum number of concurrent async calls.
        in_flight: messages handed out and not finished.
        messages: number of messages by result (`ConsumeReturnType`).
        listener_s: seconds that listeners have spent on messages.
        send_back: counts of sent-back messages.
        subscription_conflicts: topics on which another subscription of the group has committed, with its text.
        queues: the queues that the consumer reads.
        listener_times: seconds per message, by bucket (`DispatchCounts.listener_times`).
        latencies: seconds from the append of a message to the end of its call, by bucket.
        failures: retries by attempt, and dead letters by cause.
    """

    at_ns: int
    group: str
    is_member: bool
    suspended: bool
    commits_fail_since_ns: int | None
    commits_failed: int
    workers: int
    in_flight: int
    messages: dict[str, int]
    listener_s: float
    send_back: SendBackCounts
    subscription_conflicts: dict[str, str]
    queues: tuple[ConsumerQueueState, ...]
    listener_times: Histogram = field(default_factory=lambda: Histogram(()))
    latencies: Histogram = field(default_factory=lambda: Histogram(()))
    failures: FailureCounts = field(default_factory=FailureCounts)

    @property
    def oldest_in_work_ms(self) -> int:
        """Return the age of the oldest listener call, in ms; 0: none is known."""
        return max((queue.oldest_in_work_ms for queue in self.queues), default=0)

    def shown(self, now_ns: int) -> dict[str, Any]:
        """Return the state as JSON."""
        return self._shown(now_ns, oldest_in_work_ms=self.oldest_in_work_ms)

    def metrics(self) -> Iterable[Metric]:
        """Return the state as metrics, each labelled with the group."""
        mine = {"group": self.group}

        def metric(name: str, kind: str, about: str, *samples: tuple[dict[str, str], float]) -> Metric:
            named = tuple(("", mine | labels, value) for labels, value in samples)
            return Metric(f"rocketshim_consumer_{name}", kind, about, named)

        def histogram(name: str, about: str, values: Histogram) -> Metric:
            samples = tuple((suffix, mine | labels, value) for suffix, labels, value in values.samples())
            return Metric(f"rocketshim_consumer_{name}", "histogram", about, samples)

        ended = [({"result": name}, count) for name, count in sorted(self.messages.items())]
        yield metric("messages_total", "counter", "messages by how their listener call ended", *ended)
        yield metric("listener_seconds_total", "counter", "time listeners had messages in hand", ({}, self.listener_s))
        times = "time a listener takes for a message; the messages of a chunk share its mean"
        yield histogram("listener_duration_seconds", times, self.listener_times)
        yield histogram("latency_seconds", "from the append of a message to the end of its call", self.latencies)
        retries = [({"attempt": attempt}, count) for attempt, count in self.failures.retries.items()]
        yield metric("retries_total", "counter", "retries stored, by failed attempts of the message", *retries)
        dead = [({"cause": cause}, count) for cause, count in sorted(self.failures.dead.items())]
        yield metric("dead_letters_total", "counter", "dead letters stored, by class of the failure", *dead)
        hops = [({"hop": name}, float(count)) for name, count in asdict(self.send_back).items()]
        yield metric("sent_back_total", "counter", "failed messages by where they went", *hops)
        yield metric("commits_failed_total", "counter", "commits that were refused", ({}, self.commits_failed))
        yield metric("workers", "gauge", "listener threads, or concurrent async calls", ({}, self.workers))
        yield metric("in_flight_messages", "gauge", "messages handed out and not finished", ({}, self.in_flight))
        yield metric(
            "oldest_in_work_seconds", "gauge", "age of the oldest listener call", ({}, self.oldest_in_work_ms / 1e3)
        )
        yield metric("suspended", "gauge", "1: it reads nothing on purpose", ({}, int(self.suspended)))
        differ = [({"topic": topic}, 1.0) for topic in sorted(self.subscription_conflicts)]
        yield metric("subscription_conflicts", "gauge", "1: members of the group subscribe differently", *differ)
        keys = [({"topic": queue.topic, "queue_id": str(queue.queue_id)}, queue) for queue in self.queues]
        lags = [(labels, queue.lag) for labels, queue in keys if queue.lag is not None]
        yield metric("lag_messages", "gauge", "messages to the end of a queue", *lags)
        yield metric("held_messages", "gauge", "messages of a queue held here", *((x, q.msg_count) for x, q in keys))
        yield metric("held_bytes", "gauge", "bytes of their bodies", *((x, q.msg_bytes) for x, q in keys))
        ordered = [(labels, queue) for labels, queue in keys if queue.reconsume_times is not None]
        tries = [(labels, queue.reconsume_times or 0) for labels, queue in ordered]
        ages = [(labels, queue.failing_ms / 1e3) for labels, queue in ordered]
        yield metric("failing_reconsume_times", "gauge", "failed attempts of what holds up a queue in order", *tries)
        yield metric("failing_seconds", "gauge", "for how long that fails", *ages)
        yield metric("paused", "gauge", "1: a queue is not read now", *((x, int(bool(q.paused))) for x, q in keys))


def state_of(group: str, reader: PartitionReader, mode: Mode[Any], now_ms: int) -> ConsumerState:
    """Return the state of the consumer of a poll loop; its thread calls it."""
    dispatch, commits = mode.dispatch, mode.queues.commits
    counts, since_ms = dispatch.counts, commits.failing_since_ms

    def of_queue(queue: PartitionQueue) -> ConsumerQueueState:
        key = TopicPartitionKey.of(queue)
        position, committed = queue.next_offset, commits.positions.stored(key)
        try:
            _, high = reader.client().get_watermark_offsets(TopicPartition(*key), cached=True)
        except (KafkaException, TypeError):
            high = -1
        at = committed if position is None else position
        times, failing_ms = queue.failing or (None, 0)
        return ConsumerQueueState(
            topic=queue.topic,
            queue_id=queue.partition,
            epoch=queue.epoch,
            position=position,
            committed=committed,
            lag=max(0, high - at) if high >= 0 and at >= 0 else None,
            msg_count=queue.msg_count,
            msg_bytes=queue.msg_bytes,
            oldest_in_work_ms=queue.oldest_in_work_ms(now_ms),
            paused="|".join(reason.name or "" for reason in reader.pauses.why(key)),
            reconsume_times=times,
            failing_ms=failing_ms,
        )

    return ConsumerState(
        at_ns=now_ms * 1_000_000,
        group=group,
        is_member=reader.has_joined.is_set(),
        suspended=reader.is_suspended,
        commits_fail_since_ns=None if since_ms is None else since_ms * 1_000_000,
        commits_failed=commits.failed,
        workers=dispatch.pool.size,
        in_flight=dispatch.in_flight,
        messages={"SUCCESS": counts.succeeded, **(counts.failed_by_type or {"FAILED": counts.failed})},
        listener_s=counts.listener_ns / 1e9,
        listener_times=counts.listener_times.copy(),
        latencies=counts.latencies.copy(),
        send_back=replace(dispatch.send_back.counts),
        failures=dispatch.send_back.failures.copy(),
        subscription_conflicts=dict(reader.starts.conflicts),
        queues=tuple(map(of_queue, mode.queues)),
    )
