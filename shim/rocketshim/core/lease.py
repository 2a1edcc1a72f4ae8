"""The lease of one queue, as the threads of a consumer share it, and what its next owner continues with."""

from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["Lease", "ReconsumeCounts"]

ReconsumeCounts = tuple[tuple[int, int], ...]
"""(offset, failed attempts) of messages that are not finished, ascending."""


class Lease:
    """Lease of one queue under one token. Call `holds` before each listener call and before each commit.

    Attributes:
        queue: the queue.
        token: fencing token: higher than every earlier token of this queue.
        until_ms: until when this process relies on the lease, by the monotonic clock, in ms; 0: it has ended. A renewal
            extends it.

    Thread-safety: `QueueLockHolder` writes it on the group-log thread, any thread may read it; a read is one attribute.
    """

    __slots__ = ("queue", "token", "until_ms")

    def __init__(self, queue: MessageQueue, token: int, until_ms: int) -> None:
        self.queue = queue
        self.token = token
        self.until_ms = until_ms

    @property
    def key(self) -> TopicPartitionKey:
        """The partition of the queue."""
        return TopicPartitionKey(self.queue.topic, self.queue.queue_id)

    def holds(self, now_ms: int) -> bool:
        """Return whether this process may process and commit the queue at this monotonic instant in ms."""
        return now_ms < self.until_ms

    def __repr__(self) -> str:
        return f"Lease({self.queue}, token={self.token}, until_ms={self.until_ms})"
