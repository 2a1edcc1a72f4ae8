"""What the group-log thread hands to others: leases and events. Each is written by that thread alone."""

from dataclasses import dataclass

from rocketshim.core.queue_lock_actions import ReconsumeCounts, StopReason
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["GroupEvent", "Lease", "MembersChanged", "QueueStarted", "QueueStopped"]


class Lease:
    """One run of one queue under one token; ask `holds` before each listener call and before each commit.

    Attributes:
        queue: which.
        token: fencing token: higher than every token this queue had before.
        until_ms: end of the belief by the monotonic clock, in ms; 0: it has ended. Renewals move it on.

    Thread-safety: written by the group-log thread, read by any; a read is one attribute.
    """

    __slots__ = ("queue", "token", "until_ms")

    def __init__(self, queue: MessageQueue, token: int, until_ms: int) -> None:
        self.queue = queue
        self.token = token
        self.until_ms = until_ms

    def holds(self, now_ms: int) -> bool:
        """Whether this process may work on the queue, and commit it, at this monotonic instant in ms."""
        return now_ms < self.until_ms

    def __repr__(self) -> str:
        return f"Lease({self.queue}, token={self.token}, until_ms={self.until_ms})"


@dataclass(frozen=True, slots=True)
class QueueStarted:
    """The queue is ours: consume it.

    Attributes:
        lease: by which.
        next_offset: position from the log; begin at the larger of it and the committed one if that commit carries a
            token, else at the committed one (somebody has reset it). None: the log knows none.
        reconsume_counts: failed attempts so far of messages the last owner did not finish.
    """

    lease: Lease
    next_offset: int | None
    reconsume_counts: ReconsumeCounts


@dataclass(frozen=True, slots=True)
class QueueStopped:
    """Hand no message of the queue to a listener any more, then say `drained`.

    Attributes:
        lease: of the run that ends. It still holds only if the reason is UNWANTED; then commit and say `committed`.
        reason: why.
    """

    lease: Lease
    reason: StopReason


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """Other members are alive than before.

    Attributes:
        client_ids: of all of them, sorted, the own one among them once its first heartbeat was read back.
    """

    client_ids: tuple[str, ...]


GroupEvent = QueueStarted | QueueStopped | MembersChanged
