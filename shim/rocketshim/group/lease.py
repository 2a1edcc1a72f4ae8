"""Leases and events that the group-log thread publishes. That thread alone writes them."""

from dataclasses import dataclass

from rocketshim.core.queue_lock_actions import ReconsumeCounts, StopReason
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["GroupEvent", "Lease", "MembersChanged", "QueueStarted", "QueueStopped"]


class Lease:
    """Lease of one queue under one token. Call `holds` before each listener call and before each commit.

    Attributes:
        queue: the queue.
        token: fencing token: higher than every earlier token of this queue.
        until_ms: until when this process relies on the lease, by the monotonic clock, in ms; 0: it has ended. A renewal
            extends it.

    Thread-safety: the group-log thread writes it, any thread may read it; a read is one attribute.
    """

    __slots__ = ("queue", "token", "until_ms")

    def __init__(self, queue: MessageQueue, token: int, until_ms: int) -> None:
        self.queue = queue
        self.token = token
        self.until_ms = until_ms

    def holds(self, now_ms: int) -> bool:
        """Return whether this process may process and commit the queue at this monotonic instant in ms."""
        return now_ms < self.until_ms

    def __repr__(self) -> str:
        return f"Lease({self.queue}, token={self.token}, until_ms={self.until_ms})"


@dataclass(frozen=True, slots=True)
class QueueStarted:
    """This process has the lease of the queue: consume it.

    Attributes:
        lease: the lease.
        next_offset: offset from the log. Start at the larger of it and the committed offset if that commit carries a
            token, else at the committed offset (an operator has reset it). None: the log has no offset.
        reconsume_counts: failed attempts so far of messages that the last owner did not finish.
    """

    lease: Lease
    next_offset: int | None
    reconsume_counts: ReconsumeCounts


@dataclass(frozen=True, slots=True)
class QueueStopped:
    """Pass no further message of the queue to a listener, then call `drained`.

    Attributes:
        lease: the lease that ends. It is still valid only if the reason is UNWANTED; then commit and call `committed`.
        reason: why the queue stops.
    """

    lease: Lease
    reason: StopReason


@dataclass(frozen=True, slots=True)
class MembersChanged:
    """The set of live members has changed.

    Attributes:
        client_ids: client ids of all live members, sorted. This member's own id is included once its first heartbeat
            was read back.
    """

    client_ids: tuple[str, ...]


GroupEvent = QueueStarted | QueueStopped | MembersChanged
