"""What a push consumer counts, and its state at one instant: what `/state`, `/metrics` and `PushConsumer.state` show.

The poll thread counts, and publishes a `ConsumerState` each second; any thread may read both. A suspended consumer is
ready: it does what the program has requested.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from rocketshim.core.listener_answers import ConsumeReturnType
from rocketshim.core.next_hop import HopKind
from rocketshim.health import LoopState
from rocketshim.metrics import Histogram, Metric

__all__ = [
    "ConsumerQueueState", "ConsumerState", "DispatchCounts", "FailureCounts", "OrderlyCounts", "SendBackCounts",
]  # fmt: skip

_LISTENER_BOUNDS_S: Final = (1e-4, 1e-3, 5e-3, 1e-2, 5e-2, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 600.0)
_LATENCY_BOUNDS_S: Final = (0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 600.0, 3_600.0, 86_400.0)
_FAILED: Final = tuple(kind.value for kind in ConsumeReturnType if kind is not ConsumeReturnType.SUCCESS)
_ATTEMPTS: Final = (*map(str, range(1, 17)), "more")
_MOST_CAUSES: Final = 51  # any text may be a class name: a bound on the number of series


@dataclass(slots=True)
class DispatchCounts:
    """Counts of messages and listener results; any thread reads them, the poll thread writes them."""

    succeeded: int = 0
    listener_ns: int = 0
    failed_by_type: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_FAILED, 0))
    listener_times: Histogram = field(default_factory=lambda: Histogram(_LISTENER_BOUNDS_S))
    """Seconds per message. The messages of a chunk share its mean, as no clock is read between them; from 8 ms per
    message on a chunk is one call."""
    latencies: Histogram = field(default_factory=lambda: Histogram(_LATENCY_BOUNDS_S))
    """Seconds from the append of a message to the end of its call; the oldest message stands for its chunk."""

    @property
    def failed(self) -> int:
        """Return the number of failed messages."""
        return sum(self.failed_by_type.values())

    def add_call(self, elapsed_ns: int, count: int, age_ms: int) -> None:
        """Count the time of a chunk, the number of its messages, and how old the first of them is now."""
        self.listener_ns += elapsed_ns
        if count:
            self.listener_times.add(elapsed_ns / count / 1e9, count)
            self.latencies.add(max(0, age_ms) / 1e3, count)

    def add_failed(self, kind: ConsumeReturnType, count: int = 1) -> None:
        """Count failed messages of this type."""
        self.failed_by_type[kind.value] += count


@dataclass(slots=True)
class OrderlyCounts:
    """Counts of an orderly consumer; the poll thread writes them, any thread may read them.

    Attributes:
        suspended: failed attempts after which a queue (or its keys) waited.
        stuck: the part of `suspended` that belongs to messages without a limit that had failed 16 times or more. Such a
            message blocks its queue indefinitely.
        starts: how often a queue was started after its lock was acquired.
        lost: how often a lock was lost while the consumer had the queue.
    """

    suspended: int = 0
    stuck: int = 0
    starts: int = 0
    lost: int = 0


@dataclass(slots=True)
class SendBackCounts:
    """Counts of sent-back messages; any thread reads them, the poll thread writes them."""

    retried: int = 0
    sent_on: int = 0
    dead: int = 0
    dead_by_reference: int = 0
    parked: int = 0
    not_stored: int = 0
    dropped: int = 0

    def add(self, kind: HopKind) -> None:
        """Count a stored hop."""
        setattr(self, kind.value, getattr(self, kind.value) + 1)


@dataclass(slots=True)
class FailureCounts:
    """Counts of stored retries and dead letters; any thread reads them, the poll thread writes them."""

    retries: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_ATTEMPTS, 0))  # by failed attempts so far
    dead: dict[str, int] = field(default_factory=lambda: {"other": 0})  # by the class of the failure

    def add(self, kind: HopKind, reconsume_times: int, cause: str) -> None:
        """Count a stored hop: its number of failed attempts, or the class of the last failure."""
        if kind is HopKind.RETRY:
            self.retries[_ATTEMPTS[min(reconsume_times, len(_ATTEMPTS)) - 1]] += 1
        elif kind not in {HopKind.PARKED, HopKind.SENT_ON}:
            if cause not in self.dead and len(self.dead) < _MOST_CAUSES:
                self.dead = self.dead | {cause: 0}  # a new dictionary, as other threads may be reading it
            self.dead[cause if cause in self.dead else "other"] += 1

    def copy(self) -> "FailureCounts":
        """Return a copy for another thread."""
        return FailureCounts(dict(self.retries), dict(self.dead))

    def metrics(self, prefix: str, mine: dict[str, str]) -> Iterable[Metric]:
        """Return the counts as metrics whose names begin with `prefix`, with the labels `mine`."""
        retries = tuple(("", mine | {"attempt": attempt}, count) for attempt, count in self.retries.items())
        about = "retries stored, by failed attempts of the message"
        yield Metric(f"{prefix}_retries_total", "counter", about, retries)
        dead = tuple(("", mine | {"cause": cause}, count) for cause, count in sorted(self.dead.items()))
        yield Metric(f"{prefix}_dead_letters_total", "counter", "dead letters stored, by class of the failure", dead)


@dataclass(frozen=True, slots=True)
class ConsumerQueueState:
    """One queue that a consumer reads.

    Attributes:
        topic: physical name.
        queue_id: number of the partition.
        epoch: number of its assignment.
        position: the offset after the longest finished prefix; None: nothing has finished since the assignment.
        committed: the last committed offset, or the start offset; -1: it was taken away.
        lag: messages between `position` and the end of the log; None: not known yet.
        msg_count: buffered messages that are not finished.
        msg_bytes: bytes of their bodies.
        oldest_in_work_ms: age of the oldest listener call at the last sweep, in ms; of an orderly listener up to 100 ms
            more.
        reconsume_times: failed attempts of the oldest unfinished message that has failed here; 0: there is none; None:
            not in orderly mode, where failed messages are sent back.
        failing_ms: time since that message's first failure in this consumer, in ms.
        paused: why it is not read now: names of `PauseReason` (`FLOW`, `SUSPENDED`, `UNRESOLVED`, `USER`, `LOCK`), with
            `|` between several; `REVOKED`: it was taken away, and an orderly listener still has messages of it; empty:
            it is read.
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
        is_member: whether the group has assigned queues to the consumer, perhaps none, and has not put it out since.
        suspended: whether the consumer is suspended, and so reads nothing.
        commits_fail_since_ns: since when commits have failed; None: they succeed.
        commits_failed: number of refused commits.
        workers: listener threads, or maximum number of concurrent async calls.
        in_flight: messages handed out and not finished.
        messages: number of messages by result (`ConsumeReturnType`).
        listener_s: seconds that listeners have spent on messages.
        send_back: counts of sent-back messages.
        subscription_conflicts: topics on which another subscription of the group has committed, with its text.
        queues: the queues that the consumer reads, and those of which an orderly listener still has messages.
        listener_times: seconds per message, by bucket (`DispatchCounts.listener_times`).
        latencies: seconds from the append of a message to the end of its call, by bucket.
        failures: retries by attempt, and dead letters by cause.
        clock_ahead_ms: how far this machine's clock is ahead of the brokers' (negative: behind), in ms; 0: at most a
            minute, or not known.
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
    clock_ahead_ms: int = 0

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
        yield from self.failures.metrics("rocketshim_consumer", mine)
        hops = [({"hop": name}, float(count)) for name, count in asdict(self.send_back).items()]
        yield metric("sent_back_total", "counter", "failed messages by where they went", *hops)
        yield metric("commits_failed_total", "counter", "commits that were refused", ({}, self.commits_failed))
        yield metric("workers", "gauge", "listener threads, or concurrent async calls", ({}, self.workers))
        yield metric("in_flight_messages", "gauge", "messages handed out and not finished", ({}, self.in_flight))
        yield metric(
            "oldest_in_work_seconds", "gauge", "age of the oldest listener call", ({}, self.oldest_in_work_ms / 1e3)
        )
        about = "this machine's clock less the brokers'; 0: a minute or less"
        yield metric("clock_ahead_seconds", "gauge", about, ({}, self.clock_ahead_ms / 1e3))
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
