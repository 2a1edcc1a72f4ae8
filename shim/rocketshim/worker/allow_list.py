"""Which topics the worker may write to: the guard against a forged `REAL_TOPIC`. Pure.

A principal that may write to the schedule topic can make the worker write for it, and the worker has more rights.
Kafka records carry no principal, so the worker decides by the target alone:

* It never writes to a topic of the shim, except to `%RETRY%g` for a record whose `CONSUMER_GROUP` is g.
* It never writes to a topic that begins with `__` (Kafka's internal topics).
* Otherwise it writes only to topics of the allow-list. An entry is a logical topic name, or a prefix with one trailing
  `*`; `*` alone allows every user topic.

Source: `kafka-facts` 4.1; RocketMQ's `NOT_ALLOWED_SEND_TOPIC_SET` keeps clients off its schedule topic instead.
"""

from collections.abc import Iterable

from rocketshim.core.worker_notes import NOT_ALLOWED
from rocketshim.errors import ConfigError
from rocketshim_topics.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, TopicNames, check_topic

__all__ = ["AllowList"]


class AllowList:
    """The allow-list of one worker. Raises ConfigError for an entry that is neither, or is a topic of the shim."""

    __slots__ = ("_exact", "_names", "_prefixes")

    def __init__(self, names: TopicNames, allow: Iterable[str]) -> None:
        self._names = names
        exact: set[str] = set()
        prefixes: list[str] = []
        for entry in allow:
            if entry.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)) or entry == SCHEDULE_TOPIC or names.is_ours(entry):
                raise ConfigError(
                    f"allow={entry!r}: the allow-list cannot contain a topic of the shim; retries need no entry"
                )
            if entry.endswith("*"):
                prefix = entry[:-1]
                if "*" in prefix:
                    raise ConfigError(f"allow={entry!r}: only one '*' is allowed, at the end")
                if prefix:
                    check_topic(prefix)
                prefixes.append(prefix)
            else:
                exact.add(check_topic(entry))
        self._exact = frozenset(exact)
        self._prefixes = tuple(prefixes)

    def refusal(self, real_topic: str, consumer_group: str | None) -> str | None:
        """Return why a record may not go to its target, as a short machine-readable reason; None if it may.

        None also guarantees that `TopicNames.physical` accepts the name.

        Decides: To which topics may no worker deliver? Dead-letter topics, rocketshim's and Kafka's own, retry topics
            of other groups; such a record is parked immediately.
        """
        if real_topic.startswith(RETRY_PREFIX):
            group = real_topic.removeprefix(RETRY_PREFIX)
            if not group or group != consumer_group:
                return "forbidden-target:retry-of-another-group"
            try:
                self._names.retry(group)
            except ConfigError:
                return "malformed:REAL_TOPIC"
            return None
        if real_topic.startswith(DEAD_LETTER_PREFIX):
            return "forbidden-target:dead-letter"
        if real_topic == SCHEDULE_TOPIC or self._names.is_ours(real_topic):
            return "forbidden-target:shim-topic"
        if real_topic.startswith("__"):
            return "forbidden-target:internal"
        try:
            check_topic(real_topic)
        except ConfigError:
            return "malformed:REAL_TOPIC"
        if real_topic in self._exact or any(map(real_topic.startswith, self._prefixes)):
            return None
        return NOT_ALLOWED
