"""What a client call had in hand when a callback failed: its messages and the callback's error.

If an error escapes from a callback into the client, the client drops the message that it was about to return. So our
callbacks let no error escape. The call in which it happened raises it (one error a call), and the next calls return the
messages that came with it.
"""

from collections import deque

from confluent_kafka import Message

from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["Buffered"]


class Buffered:
    """Errors to be raised, and messages to be returned later.

    Attributes:
        messages: returned by the client, not yet by us; in order.
        errors: of callbacks; in order.

    Thread-safety: none; the poll thread's.
    """

    __slots__ = ("errors", "messages")

    def __init__(self) -> None:
        self.messages: deque[Message] = deque()
        self.errors: deque[BaseException] = deque()

    @property
    def is_empty(self) -> bool:
        """Whether there is neither an error nor a message."""
        return not self.messages and not self.errors

    def hand_out(self, messages: list[Message]) -> list[Message]:
        """Return the messages that the client has just returned, or buffer them and raise the first error.

        Raises:
            BaseException: the error that a callback raised.

        Decides: What if a callback of the program raises while a poll has a message? This poll raises, the next one
            returns the message.
        """
        if self.errors:
            self.messages.extend(messages)
            raise self.errors.popleft()
        return messages

    def take(self, count: int) -> list[Message]:
        """Return buffered messages, up to this number."""
        return [self.messages.popleft() for _ in range(min(count, len(self.messages)))]

    def first_offsets(self) -> dict[TopicPartitionKey, int]:
        """Return the offset of the first buffered message of each partition."""
        found: dict[TopicPartitionKey, int] = {}
        for message in self.messages:
            partition, offset = message.partition(), message.offset()
            if message.error() is None and partition is not None and offset is not None:
                found.setdefault(TopicPartitionKey(message.topic() or "", partition), offset)
        return found
