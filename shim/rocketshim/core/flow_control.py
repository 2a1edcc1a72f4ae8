"""When to pause and resume a partition. Pure functions of what a process queue counts.

RocketMQ checks before each pull whether a queue has too many messages, too many bytes or spans too many offsets, and
pulls again 50 ms later (`DefaultMQPushConsumerImpl#pullMessage`). A Kafka consumer prefetches by itself, so it is
paused instead, and a pause discards what was fetched. So there is hysteresis: a partition is paused above a threshold
and resumes only at half of it, and the shell first waits a little for the listeners before it pauses.
"""

from dataclasses import dataclass, replace

from rocketshim.core.partition import PartitionQueue

__all__ = ["FlowLimits", "must_pause", "per_queue_limits", "should_resume"]

_MIB = 1_048_576


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Thresholds of one queue, 1 or more; a queue *above* one of them is paused.

    The defaults are RocketMQ's (`pullThresholdForQueue`, `pullThresholdSizeForQueue`, `consumeConcurrentlyMaxSpan`).
    """

    count: int = 1_000
    size_bytes: int = 100 * _MIB
    span: int | None = 2_000
    """Offsets from the oldest message that is not done to the newest; None: no limit (orderly mode)."""
    resume_span: int | None = None
    """The span at which a paused queue may resume; None: half of `span`. With `order="key"` it equals `span`: while one
    message keeps failing the span only grows, and that must not stop the other keys."""

    def __post_init__(self) -> None:
        if self.count < 1 or self.size_bytes < 1 or (self.span is not None and self.span < 1):
            raise ValueError(f"every threshold must be 1 or more: {self}")


def must_pause(queue: PartitionQueue, limits: FlowLimits) -> bool:
    """Return whether the queue is above a threshold.

    Decides: When is a consumer's queue paused, and when resumed? By the settings pull_threshold_…, here and in
        `core.flow_control.should_resume`; the poll thread does it (`consumer.mode.Mode`), after the
        listeners had time to catch up.
    """
    return (
        queue.msg_count > limits.count
        or queue.msg_bytes > limits.size_bytes
        or (limits.span is not None and queue.span > limits.span)
    )


def should_resume(queue: PartitionQueue, limits: FlowLimits, now_ms: int = 0) -> bool:
    """Return whether a paused queue is down to half of every threshold, or to `resume_span`.

    A queue that `is_waiting` may never get that far: what it buffers waits for another attempt or for a commit, which
    may need further messages. It resumes when it is above no threshold.
    """
    if queue.is_waiting(now_ms):
        return not must_pause(queue, limits)
    if queue.msg_count * 2 > limits.count or queue.msg_bytes * 2 > limits.size_bytes:
        return False
    if limits.span is None:
        return True
    return queue.span <= (limits.span // 2 if limits.resume_span is None else limits.resume_span)


def per_queue_limits(limits: FlowLimits, topic_count: int, topic_size_bytes: int, queues_held: int) -> FlowLimits:
    """Return the limits of one queue when the topic has limits too; -1: it has none.

    Source: `RebalancePushImpl#messageQueueChanged`: max(1, topic value / queues), instead of the per-queue value.
    """
    if queues_held < 1:
        return limits
    count = limits.count if topic_count < 0 else max(1, topic_count // queues_held)
    size_bytes = limits.size_bytes if topic_size_bytes < 0 else max(1, topic_size_bytes // queues_held)
    return replace(limits, count=count, size_bytes=size_bytes)
