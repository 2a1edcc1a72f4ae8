"""Which topics a consumer reads, and whether they exist.

Topics that match patterns are looked up at an interval. A topic that the cluster reports as unknown may be new, or the
broker's metadata may be outdated. So the consumer waits for half a minute, and then looks the topic up. A missing topic
is an error only if it is subscribed by name. Owned by the poll thread.
"""

from collections.abc import Callable
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from rocketshim.core.subscriptions import Subscriptions
from rocketshim.core.timer import Timer
from rocketshim.errors import TopicMissingError
from rocketshim.kafka.clients import LookupClient
from rocketshim.kafka.queue_lookup import no_such_topics
from rocketshim.logs import safe_logger

__all__ = ["TopicWatch"]

_LOG = safe_logger("rocketshim.consumer")
_TIMEOUT_S: Final = 5.0
_MISSING_GRACE_MS: Final = 30_000


class TopicWatch:
    """The topics of one consumer; `topics` has the physical names of those to read now."""

    def __init__(self, source: Subscriptions, interval_ms: int) -> None:
        self.topics = source.topics()
        self._source = source
        self._look = Timer(interval_ms)
        self._unknown: dict[str, int] = {}  # topic to the time of its look-up, monotonic ms

    def refresh(self) -> bool:
        """Read the topics from a changed source; return whether they have changed. Patterns are looked up soon."""
        self._look.next_ms = 0
        return self._have_changed()

    def look(self, lookups: LookupClient, now_ms: int) -> bool:
        """Look up the existing topics, if it is time; return whether the topics to read have changed."""
        if not self._source.has_patterns or not self._look.is_due(now_ms):
            return False
        try:
            existing = lookups.list_topics(timeout=_TIMEOUT_S).topics
        except KafkaException as error:
            _LOG.warning("consumer.topics-unknown", extra={"error": str(error)})
            return False
        self._source.see(existing)
        return self._have_changed()

    def _have_changed(self) -> bool:
        before, self.topics = self.topics, self._source.topics()
        return before != self.topics

    def doubt(self, topic: str, now_ms: int) -> None:
        """Note that the cluster reports a topic as unknown."""
        self._unknown.setdefault(topic, now_ms + _MISSING_GRACE_MS)

    def missing(
        self, lookups: LookupClient, now_ms: int, log_error: Callable[[KafkaError, str], None]
    ) -> TopicMissingError | None:
        """Look up topics that were reported as unknown half a minute ago; return an error for a missing one.

        Topics that are no longer read are not looked up. For a topic that a pattern matched, the patterns are.
        """
        self._unknown = {topic: until_ms for topic, until_ms in self._unknown.items() if topic in self.topics}
        for topic in [topic for topic, until_ms in self._unknown.items() if now_ms >= until_ms]:
            del self._unknown[topic]
            try:
                found = lookups.list_topics(topic, timeout=_TIMEOUT_S).topics.get(topic)
            except KafkaException as error:
                log_error(error.args[0], topic)
                self.doubt(topic, now_ms)
                continue
            if found is not None and found.partitions:
                continue
            if not self._source.is_matched(topic):
                return no_such_topics([topic])
            self._look.next_ms = 0
        return None
