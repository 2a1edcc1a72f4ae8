"""Notices that the queues of a topic have changed, for the listeners of a lite pull consumer."""

from collections.abc import Callable

from rocketshim.errors import RocketshimError
from rocketshim.kafka.queue_lookup import QueueLookup
from rocketshim.logs import safe_logger
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["QueueWatch", "QueuesListener"]

_LOG = safe_logger("rocketshim.consumer")

QueuesListener = Callable[[str, list[MessageQueue]], None]


class QueueWatch:
    """The topics whose queues are watched: looked up every `interval_ms`. One thread at a time."""

    def __init__(self, lookup: QueueLookup, interval_ms: int) -> None:
        self._lookup = lookup
        self._interval_ms = interval_ms
        self._watched: dict[str, tuple[QueuesListener, list[MessageQueue] | None]] = {}
        self._next_ms = 0

    def __len__(self) -> int:
        return len(self._watched)

    def add(self, topic: str, listener: QueuesListener) -> None:
        """Watch a topic; its first look-up only records its queues."""
        self._watched[topic] = (listener, None)

    def changed(self, now_ms: int) -> list[tuple[QueuesListener, str, list[MessageQueue]]]:
        """Look up the queues, if it is time; return each listener to call with its topic and the changed queues."""
        changed: list[tuple[QueuesListener, str, list[MessageQueue]]] = []
        if now_ms < self._next_ms:
            return changed
        self._next_ms = now_ms + self._interval_ms
        for topic, (listener, before) in list(self._watched.items()):
            try:
                now = self._lookup.queues(topic)
            except RocketshimError as error:
                _LOG.warning("consumer.queues-unknown", extra={"topic": topic, "error": str(error)})
                continue
            self._watched[topic] = (listener, now)
            if before is not None and now != before:
                changed.append((listener, topic, list(now)))
        return changed
