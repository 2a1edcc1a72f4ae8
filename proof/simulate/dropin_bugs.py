"""Planted defects of the drop-in consumer (`bugs`): each function makes a defective attribute from the original."""

from typing import Any

from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from rocketshim.dropin import retry_side

__all__ = [
    "failed_is_forgotten",
    "from_the_beginning",
    "nothing_is_buffered",
    "reads_ahead",
    "sent_back_without_report",
    "stored_when_returned",
]


def sent_back_without_report(_: Any) -> Any:
    """Produce, and do not wait for the report."""

    def store(self: Any, hop: Any) -> None:
        self._sender.send(hop.out, lambda error, record: None, room_until_s=0, again_until_s=0)  # noqa: ARG005

    return store


def failed_is_forgotten(original: Any) -> Any:
    """Let offsets pass a message that could not be sent back."""

    def end(self: Any, key: Any, offset: int, future: Any, error: Any) -> None:
        partition = self.by_key.get(key)
        if partition is not None:
            partition.failing.discard(offset)
        original(self, key, offset, future, error)

    return end


def stored_when_returned(original: Any) -> Any:
    """Store the offset of a message when it is returned, and not when the program comes back."""

    def call(self: Any, *values: Any) -> Any:
        found = original(self, *values)
        self._rocketshim.is_dirty = True
        self._rocketshim.store_handled(self)
        return found

    return call


def nothing_is_buffered(original: Any) -> Any:
    """Count messages as handed out that are only buffered."""

    def hand_out(self: Any, consumer: Any, messages: list[Any]) -> Any:
        for message in messages if self.errors else ():
            self.partitions.handed_out(message)
        return original(self, consumer, messages)

    return hand_out


def reads_ahead(_: Any) -> Any:
    """Read ahead, and hand out after a revocation what was read before it."""

    def poll(self: Any, timeout: float = -1) -> Any:
        retries = self._rocketshim
        if retries.messages:
            original: Any = retry_side._Original  # type: ignore[attr-defined]  # noqa: SLF001
            retries.wait(self, original.consume, 0, 0)  # the callbacks of the group
        else:
            retries.messages.extend(self.consume(8, timeout))
        retries.is_dirty = True
        return retries.messages.popleft() if retries.messages else None

    return poll


def from_the_beginning(_: Any) -> Any:
    """Begin each partition of the retry topic at its beginning."""
    return lambda self, consumer, retries, timeout_s: [  # noqa: ARG005
        TopicPartition(each.topic, each.partition, OFFSET_BEGINNING) for each in retries
    ]
