"""Which topics a consumer reads, and whether they are there.

Where patterns stand for topics, it is looked at an interval which there are. A topic that the cluster says it does not
know may be one that was made just now, or a broker's that is behind: it is doubted for half a minute, and then looked
for. Owned by the poll thread.
"""

from collections.abc import Callable, Iterable
from typing import Final

from confluent_kafka import KafkaException

from rocketshim.errors import TopicMissingError
from rocketshim.kafka.clients import LookupClient
from rocketshim.logs import safe_logger

__all__ = ["FindTopics", "TopicWatch"]

_LOG = safe_logger("rocketshim.consumer")
FindTopics = Callable[[Iterable[str]], list[str]]
"""Takes the names of all topics there are, gives those to read now."""

_TIMEOUT_S: Final = 5.0
_MISSING_GRACE_MS: Final = 30_000


class TopicWatch:
    """The topics of one consumer.

    Args:
        topics: physical names of those to read at first.
        find: says what to read, of what there is; None: `topics` stay as they are.
        interval_ms: between two looks, in ms.

    Attributes:
        topics: physical names of those to read now.

    Thread-safety: none; the poll thread's.
    """

    def __init__(self, topics: list[str], find: FindTopics | None, interval_ms: int) -> None:
        self.topics = topics
        self._find = find
        self._interval_ms = interval_ms
        self._next_look_ms = 0
        self._doubted: dict[str, int] = {}  # and until when

    def change(self, topics: list[str], find: FindTopics | None) -> bool:
        """Read these from now on; whether they are others than before."""
        self._find = find
        self._next_look_ms = 0
        changed, self.topics = topics != self.topics, topics
        return changed

    def look(self, lookups: LookupClient, now_ms: int) -> bool:
        """Look which topics there are, if it is time; whether that changes what is to be read."""
        if self._find is None or now_ms < self._next_look_ms:
            return False
        self._next_look_ms = now_ms + self._interval_ms
        try:
            existing = lookups.list_topics(timeout=_TIMEOUT_S).topics
        except KafkaException as error:
            _LOG.warning("consumer.topics-unknown", extra={"error": str(error)})
            return False
        topics = self._find(existing)
        changed, self.topics = topics != self.topics, topics
        return changed

    def doubt(self, topic: str, now_ms: int) -> None:
        """The cluster says that there is no such topic."""
        self._doubted.setdefault(topic, now_ms + _MISSING_GRACE_MS)

    def missing(self, lookups: LookupClient, now_ms: int) -> TopicMissingError | None:
        """Look for what was doubted half a minute ago; one that is still not there is a reason to end."""
        if not self._doubted:
            return None
        for topic in [topic for topic, until_ms in self._doubted.items() if now_ms >= until_ms]:
            del self._doubted[topic]
            try:
                found = lookups.list_topics(topic, timeout=_TIMEOUT_S).topics.get(topic)
            except KafkaException as error:
                _LOG.warning("consumer.client-error", extra={"error": str(error), "topic": topic})
                self.doubt(topic, now_ms)
                continue
            if found is None or not found.partitions:
                return TopicMissingError(f"{topic} is subscribed and has not been there for a while; create it")
        return None
