"""Planted defects of the drop-in consumer (`bugs`): each function makes a defective attribute from the original."""

from typing import Any

from rocketshim.dropin import retrying_consumer

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

    def store(self: Any, out: Any) -> None:
        self._sender.send(out, lambda error, record: None, room_until_s=0, again_until_s=0)  # noqa: ARG005

    return store


def failed_is_forgotten(original: Any) -> Any:
    """Let offsets pass a message that could not be sent back."""

    def end(self: Any, key: Any, offset: int, future: Any, error: Any) -> None:
        held = self._assigned.get(key)
        if held is not None:
            held.failing.discard(offset)
        original(self, key, offset, future, error)

    return end


def stored_when_returned(original: Any) -> Any:
    """Store the offset of a message when it is returned, and not when the program comes back."""

    def call(self: Any, *values: Any) -> Any:
        found = original(self, *values)
        self._rocketshim.offsets.dirty = True
        self._shim_settle()
        return found

    return call


def nothing_is_buffered(_: Any) -> Any:
    """Count messages as handled that are only buffered."""
    return lambda self: {}  # noqa: ARG005


def reads_ahead(_: Any) -> Any:
    """Read ahead, and hand out after a revocation what was read before it."""

    def poll(self: Any, timeout: float = -1) -> Any:
        buffered = self._rocketshim.buffered
        if buffered.messages:
            self._shim_wait(retrying_consumer._consume, 0, 0)  # noqa: SLF001 - the callbacks of the group
        else:
            buffered.messages.extend(self.consume(8, timeout))
        self._rocketshim.offsets.dirty = True
        return next(iter(buffered.take(1)), None)

    return poll


def from_the_beginning(_: Any) -> Any:
    """Begin each partition of the retry topic at its beginning."""
    return lambda self, retry_partitions, committed, timeout_s: set(retry_partitions)  # noqa: ARG005
