"""The messages of one queue that `PullConsumer` has fetched ahead. Pure."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["PrefetchBuffer"]

_BUFFER_COUNT: Final = 4_000  # large, since each pause drops what the client has fetched ahead
_BUFFER_BYTES: Final = 8 * 1_048_576


@dataclass(slots=True)
class PrefetchBuffer:
    """Messages of one queue that were fetched and that no pull has returned yet.

    Attributes:
        queue, key: the queue.
        next_offset: a pull from this offset takes from the buffer.
        bounds: the queue's first offset and its end, as last seen.
        messages, size_bytes: what is buffered.
        end_at: end of the log as the client last reported it; None: not since the last message.
        is_paused: the client does not fetch the queue.
        is_illegal: retention deleted the messages at this position.
    """

    queue: MessageQueue
    key: TopicPartitionKey
    next_offset: int
    bounds: tuple[int, int]
    messages: deque[Any] = field(default_factory=deque)
    size_bytes: int = 0
    end_at: int | None = None
    is_paused: bool = False
    is_illegal: bool = False

    @property
    def is_full(self) -> bool:
        """Whether the queue has to be paused."""
        return len(self.messages) >= _BUFFER_COUNT or self.size_bytes >= _BUFFER_BYTES

    def put(self, message: Any) -> None:
        """Add a fetched message."""
        self.messages.append(message)
        self.size_bytes += len(message)
        self.end_at = None

    def take(self) -> Any:
        """Return the first message, and remove it."""
        message = self.messages.popleft()
        self.size_bytes -= len(message)
        self.next_offset = message.offset() + 1
        return message
