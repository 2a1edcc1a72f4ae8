"""The subscriptions of a consumer: topics by name, and patterns that stand for every matching topic.

* A pattern begins with `^`. It is a regular expression that matches the beginning of a topic's name (end it with `$` to
  match the whole name). Kafka's client could match patterns itself, but would also match the topics of rocketshim:
  `^.*` would read the retries and dead letters of every group. So patterns are resolved here, against the existing
  topics. They match only users' topics: no topic of rocketshim, of any namespace, and no topic of Kafka (`__…`).
* A listener by name takes precedence over patterns. Of several matching patterns the one registered first counts.
* The listeners of one consumer are all orderly or all concurrent, and all plain functions or all `async def`.
* An unsubscribed topic is no longer read, but keeps its listener. Without one, messages in progress and scheduled
  retries would become dead letters.

Thread-safety: `get` may be called from any thread; everything else from one thread: before the start the caller's,
afterwards the poll thread.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rocketshim.core.listener_answers import FailureRules
from rocketshim.errors import ConfigError
from rocketshim_topics import MessageView, TopicNames
from rocketshim_topics.names import is_dead_letter_topic

__all__ = ["Listener", "Subscription", "Subscriptions", "digest_of", "filter_digest", "is_pattern", "text_of"]

Listener = Callable[[Any, Any], Any]
HeaderFilter = Callable[[Any], bool]
Sieve = Callable[[Iterable[Any], Callable[[Any, Exception], None]], Iterator[Any]]


@dataclass(frozen=True, slots=True)
class Subscription:
    """One topic, or a pattern that begins with `^`, and its listener."""

    topic: str
    listener: Listener
    matches: HeaderFilter | None = None  # called with a record's headers; None: everything matches
    selects: Callable[[MessageView], bool] | None = None  # called with the message itself instead of `matches`
    expression: str = "*"  # the filter as text, for listings
    digest: str = ""  # of the filter; it detects members that subscribe differently
    matches_retry: HeaderFilter | None = None  # of retried messages; None: they are not filtered
    sieve: Sieve | None = None  # a faster form of `matches` for many records (`TagFilter.sieve`)
    orderly: bool = False
    awaits: bool = False  # the listener is an `async def` function
    rules: FailureRules | None = None  # which of its exceptions are final; None: none is


def is_pattern(topic: str) -> bool:
    """Return whether a subscription's topic is a pattern."""
    return topic.startswith("^")


def digest_of(digests: Mapping[str, str]) -> str:
    """Return the digest of a consumer's subscriptions from those of its filters, by topic."""
    parts = sorted(f"{topic}={digest}" for topic, digest in digests.items())
    return _hex16("\n".join(parts))


def filter_digest(expression_type: str, expression: str | None) -> str:
    """Return the digest of a filter; it is the same in all processes, on all machines and in all versions.

    The expression is a canonical text; None (unlike `""` or `"*"`) means that everything is selected.
    """
    return _hex16(expression_type if expression is None else f"{expression_type}\n{expression}")


def _hex16(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def text_of(expressions: Mapping[str, str]) -> str:
    """Return a consumer's subscriptions as text from the expressions of its filters, by topic."""
    return ", ".join(sorted(f"{topic}={expression}" for topic, expression in expressions.items()))


class Subscriptions:
    """The subscriptions of one consumer. It always reads the group's retry topic, if there is one."""

    def __init__(self, names: TopicNames, retry_topic: str | None = None) -> None:
        self._names = names
        self._retry_topic = retry_topic
        # by physical name or pattern, in order of registration; replaced as a whole, since `get` may be reading it
        self._active: dict[str, Subscription] = {}
        self._retired: dict[str, Subscription] = {}
        self._patterns: dict[str, re.Pattern[str]] = {}
        self._matched: frozenset[str] = frozenset()
        self._found: dict[str, Subscription | None] = {}

    def __len__(self) -> int:
        return len(self._active)

    @property
    def has_patterns(self) -> bool:
        """Whether a pattern is subscribed, so that topics have to be looked up."""
        return any(map(is_pattern, self._active))

    @property
    def orderly(self) -> bool | None:
        """Whether the listeners are orderly; None: there are no listeners yet."""
        return next((each.orderly for each in (*self._active.values(), *self._retired.values())), None)

    @property
    def awaits(self) -> bool | None:
        """Whether the listeners are `async def` functions; None: there are no listeners yet."""
        return next((each.awaits for each in (*self._active.values(), *self._retired.values())), None)

    def physical(self, topic: str) -> str:
        """Return the physical name of a topic; return a pattern unchanged."""
        given: object = topic
        return topic if isinstance(given, str) and is_pattern(topic) else self._names.physical(topic)

    def check(self, topic: str, *, orderly: bool, awaits: bool) -> None:
        """Raise a `ConfigError` unless a listener of this kind may subscribe to this topic, beside the others."""
        physical = self.physical(topic)
        if self._names.is_ours(physical):
            why = "it is an internal topic of rocketshim. Retried messages reach the listener of their original topic"
            if is_dead_letter_topic(physical):
                why = (
                    "a dead letter that fails again would be a retry and a dead letter of this group, too. Read dead "
                    "letters with a LitePullConsumer, or send them to their group again: rocketshim dlq plan, dlq apply"
                )
            raise ConfigError(f"Cannot subscribe to {topic!r}: {why}")
        if self.orderly not in {None, orderly}:
            raise ConfigError(
                f"{topic!r}: the listeners of one consumer are all orderly or all concurrent; create a second consumer "
                "in another group"
            )
        if awaits and orderly:
            raise ConfigError(
                f"{topic!r}: an orderly listener cannot be `async def`, since its calls never overlap; use a plain "
                "function"
            )
        if self.awaits not in {None, awaits}:
            raise ConfigError(f"{topic!r}: the listeners of one consumer are all `async def` or all plain functions")

    def named(self) -> list[str]:
        """Return the physical names of the topics that are subscribed by name."""
        return [topic for topic in self._active if not is_pattern(topic)]

    def is_matched(self, topic: str) -> bool:
        """Return whether a topic is read because a pattern matches it."""
        return topic in self._matched

    def add(self, subscription: Subscription) -> None:
        """Add a topic or pattern that has no listener yet; a `ConfigError` changes nothing."""
        if subscription.topic in self._active:
            raise ConfigError(f"{subscription.topic!r} already has a listener; a topic has only one listener")
        self.put(subscription)

    def put(self, subscription: Subscription) -> None:
        """Add a topic or pattern, or replace its subscription; a replaced one keeps its rank in the order.

        A pattern that is not a regular expression is a `ConfigError`, and nothing changed.
        """
        topic = subscription.topic
        if is_pattern(topic):
            try:
                self._patterns[topic] = re.compile(topic)
            except re.error as error:
                raise ConfigError(f"{topic!r} is not a regular expression: {error}") from error
        self._active = {**self._active, topic: subscription}
        self._retired = {name: each for name, each in self._retired.items() if name != topic}
        self._matched = self._matched - {topic}
        self._found = {}

    def own(self, topic: str) -> Subscription | None:
        """Return the subscription of exactly this name or pattern, even if it was removed; None: there is none."""
        return self._active.get(topic) or self._retired.get(topic)

    def remove(self, topic: str) -> bool:
        """Remove a topic or pattern; return whether it was subscribed."""
        subscription = self._active.get(topic)
        if subscription is None:
            return False
        self._retired = {**self._retired, topic: subscription}
        self._active = {name: each for name, each in self._active.items() if name != topic}
        self._matched = frozenset(name for name in self._matched if self._pattern_of(name, self._active) is not None)
        self._found = {}
        return True

    def match_patterns(self, existing: Iterable[str]) -> None:
        """Resolve the patterns against the existing topics."""
        self._matched = frozenset(
            name
            for name in existing
            if not name.startswith("__")
            and not self._names.is_ours(name)
            and name not in self._active
            and self._pattern_of(name, self._active) is not None
        )

    def topics(self) -> list[str]:
        """Return the physical names of the topics to read now: sorted, and then the group's retry topic."""
        own = [] if self._retry_topic is None else [self._retry_topic]
        return [*sorted({*self.named(), *self._matched}), *own]

    def get(self, topic: str) -> Subscription | None:
        """Return the subscription of a physical topic, active or removed; None: there never was one."""
        found = self._found
        try:
            return found[topic]
        except KeyError:
            subscription = found[topic] = self._lookup(topic)
            return subscription

    def digest(self) -> str:
        """Return the digest by which members detect that they subscribe differently."""
        return digest_of({name: each.digest for name, each in self._active.items()})

    def text(self) -> str:
        """Return the subscriptions as text for a person."""
        return text_of({name: each.expression for name, each in self._active.items()})

    def _lookup(self, topic: str) -> Subscription | None:
        for subscriptions in (self._active, self._retired):
            name = topic if topic in subscriptions else self._pattern_of(topic, subscriptions)
            if name is not None:
                return subscriptions[name]
        return None

    def _pattern_of(self, topic: str, subscriptions: Iterable[str]) -> str | None:
        return next((each for each in subscriptions if is_pattern(each) and self._patterns[each].match(topic)), None)
