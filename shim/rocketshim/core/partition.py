"""One partition that a consumer is assigned: why it is not read, when it is paused, what is committed, its queue. Pure.

`PartitionReader` makes it when the partition is assigned, and forgets it when it is not any more. Kafka accepts offsets
that go backwards without an error (our measurement). So the check is here: within an assignment an offset is sent only
if it is above every offset sent before. An offset that was refused counts as sent: perhaps only the answer came too
late. The committer sends it again.

Its epoch is that of its queue: each begin makes another queue, so that late results of an earlier one count no more.
Its lease is in `locks.lease.Ownership`: a lease may come before its partition is assigned, and outlive the assignment.

**Flow control.** RocketMQ checks before each pull whether a queue has too many messages, too many bytes or spans too
many offsets, and pulls again 50 ms later (`DefaultMQPushConsumerImpl#pullMessage`). A Kafka consumer prefetches by
itself, so it is paused instead, and a pause discards what was fetched. So there is hysteresis: a partition is paused
above a threshold and resumes only at half of it, and the shell first waits a little for the listeners before it pauses.
"""

from dataclasses import dataclass, replace
from enum import Flag, auto
from typing import Final, TypeVar

from rocketshim.core.orderly_queue import OrderlyQueue, OrderlyTask
from rocketshim.core.process_queue import Chunk, ProcessQueue
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = [
    "FlowLimits",
    "Partition",
    "PartitionQueue",
    "PauseReason",
    "QueueT",
    "Work",
    "must_pause",
    "per_queue_limits",
    "should_resume",
]

PartitionQueue = ProcessQueue | OrderlyQueue
Work = Chunk | OrderlyTask
QueueT = TypeVar("QueueT", bound=PartitionQueue)
_REFUSED: Final = -1  # in place of a sent position: no offset of Kafka's


class PauseReason(Flag):
    """Why a partition is not read."""

    FLOW = auto()
    """Too much of it is buffered (`must_pause`)."""
    SUSPENDED = auto()
    """The whole consumer is suspended."""
    UNRESOLVED = auto()
    """Its start offset is not known yet."""
    USER = auto()
    """The program has paused it."""
    LOCK = auto()
    """This process does not have its queue lock (orderly mode)."""


class Partition:
    """An assigned partition; the thread of its consumer owns it."""

    __slots__ = ("before", "is_waiting", "key", "pauses", "position", "queue", "sent", "stale_fetch", "stored")

    def __init__(self, key: TopicPartitionKey) -> None:
        self.key = key
        self.pauses = PauseReason(0)
        self.is_waiting = False  # until its start is known
        self.stale_fetch = -1  # number of the fetch whose records are from before the partition was assigned or sought
        self.sent = self.stored = -1  # offsets; -1: it has not begun
        self.queue: PartitionQueue | None = None  # what was read; None: it is not read by a push consumer
        self.position = -1  # of a pull consumer: behind the last message that was handed out, or that no reader sees
        self.before: int | None = None  # where the last poll began, if it has moved the position

    def begin(self, start: int) -> None:
        """Begin at an offset, which counts as committed; -1: it is not known yet."""
        self.sent = self.stored = self.position = start
        self.before = None

    def may_send(self, offset: int, *, again: bool = False) -> bool:
        """Return whether an offset may be sent: it is above every one that was sent in this assignment.

        With `again`, also the last one that was sent, if its answer is missing: it may still be refused.
        """
        return 0 <= self.sent < offset or (again and offset == self.sent > self.stored)

    def confirm(self, offset: int) -> None:
        """Note that an offset is stored; ignore one that is above what was sent in this assignment, or after a seek."""
        if offset <= self.sent:
            self.stored = max(self.stored, offset)

    def is_last_sent(self, offset: int) -> bool:
        """Return whether no later offset and no other assignment has replaced this one."""
        return 0 <= offset == self.sent

    # --- of a pull consumer: the position may go back, since its caller may seek --------------------------------------

    @property
    def done(self) -> int:
        """The position behind the messages that are done: those that the last poll has returned are not."""
        return self.position if self.before is None else self.before

    def hand_out(self, position: int) -> None:
        """Note that this poll hands out (or skips) everything before a position."""
        self.before = self.done
        self.position = position

    def seek(self, position: int) -> None:
        """Move the position; everything handed out before is done."""
        self.position, self.before = position, None

    @property
    def is_due(self) -> bool:
        """Return whether the done position is to be committed: it was not sent, and the one that was is answered.

        librdkafka may repeat an older commit after a newer one, and the stored position would go back.
        """
        return self.done != self.sent and self.sent in (self.stored, _REFUSED)

    def send(self, position: int) -> None:
        """Note that a position was sent; until the next poll begins, it is also what is done."""
        self.sent = position
        if self.before is not None:
            self.before = position

    def commit_answered(self, position: int, *, is_stored: bool) -> None:
        """Note the answer for a position: a refused one is due again; nothing, if another one was sent since."""
        if self.sent == position:
            if is_stored:
                self.stored = position
            else:
                self.sent = _REFUSED


_MIB = 1_048_576


@dataclass(frozen=True, slots=True)
class FlowLimits:
    """Thresholds of one queue, 1 or more; a queue *above* one of them is paused.

    The defaults are RocketMQ's (`pullThresholdForQueue`, `pullThresholdSizeForQueue`, `consumeConcurrentlyMaxSpan`).
    """

    count: int = 1_000
    size_bytes: int = 100 * _MIB
    span: int | None = 2_000
    """Offsets from the oldest message that is not done to the newest; None: no limit (orderly mode without keys)."""
    resume_span: int | None = None
    """The span at which a paused queue may resume; None: half of `span`. With `order="key"` it equals `span`: while one
    message keeps failing the span only grows, and that must not stop the other keys."""

    def __post_init__(self) -> None:
        if self.count < 1 or self.size_bytes < 1 or (self.span is not None and self.span < 1):
            raise ValueError(f"every threshold must be 1 or more: {self}")


def must_pause(queue: PartitionQueue, limits: FlowLimits) -> bool:
    """Return whether the queue is above a threshold.

    Decides: When is a consumer's queue paused, and when resumed? By the settings pull_threshold_…, here and in
        `should_resume`; the poll thread does it (`consumer.mode.Mode`), after the listeners had time to catch up.
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
