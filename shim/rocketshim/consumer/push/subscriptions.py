"""What a consumer listens to: topics by name, and patterns that stand for every topic that fits.

* A pattern begins with `^` and is a regular expression that a topic's name has to begin with (end it with `$` for the
  whole name). Kafka's client could match patterns itself, but it would take the shim's own topics too: `^.*` would read
  every group's retries and dead letters. So patterns are resolved here, against the topics there are, and only users'
  topics are ever found: none of the shim's own, of any namespace, and none of Kafka's (`__…`).
* A listener by name goes before patterns; of several patterns the one registered first counts.
* The listeners of one consumer are all orderly or all concurrent, and all plain functions or all `async def`.
* What is unsubscribed is read no longer, but keeps its listener: messages in work, and retries that are still on their
  way, would otherwise become dead letters for want of one.

Thread-safety: `get` from any thread; everything else from one, before the start the caller's, then the poll thread.
"""

import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from rocketshim.consumer.listener import Subscription, adapt
from rocketshim.consumer.push.async_listener import is_async
from rocketshim.errors import ConfigError
from rocketshim.filters import CallableFilter, TagFilter, compile_filter
from rocketshim_topics import TopicNames

__all__ = ["Subscriptions", "is_pattern"]


def is_pattern(topic: str) -> bool:
    """Whether a subscription's topic is a pattern."""
    return topic.startswith("^")


class Subscriptions:
    """The subscriptions of one consumer.

    Args:
        names: tells the shim's own topics from users'.
        filter_retries: an SQL condition is asked again when a message is delivered again.
    """

    def __init__(self, names: TopicNames, *, filter_retries: bool = False) -> None:
        self._names = names
        self._filter_retries = filter_retries
        # by physical name or pattern, in order of registration; replaced as a whole, since `get` may be looking
        self._active: dict[str, Subscription] = {}
        self._retired: dict[str, Subscription] = {}
        self._patterns: dict[str, re.Pattern[str]] = {}
        self._matched: frozenset[str] = frozenset()
        self._found: dict[str, Subscription | None] = {}

    def __len__(self) -> int:
        return len(self._active)

    def __contains__(self, topic: object) -> bool:
        return topic in self._active

    @property
    def has_patterns(self) -> bool:
        """Whether topics have to be looked for."""
        return any(map(is_pattern, self._active))

    @property
    def orderly(self) -> bool | None:
        """Whether the listeners are orderly; None: there is none yet."""
        return next((each.orderly for each in (*self._active.values(), *self._retired.values())), None)

    @property
    def awaits(self) -> bool | None:
        """Whether the listeners are `async def` functions; None: there is none yet."""
        return next((each.awaits for each in (*self._active.values(), *self._retired.values())), None)

    def physical(self, topic: str) -> str:
        """The physical name of a topic; a pattern as it is."""
        return topic if is_pattern(topic) else self._names.physical(topic)

    def made(
        self,
        topic: str,
        listener: Callable[..., Any] | None,
        *,
        tags: str | None = None,
        sql: str | None = None,
        selector: Any = None,
        orderly: bool | None = None,
    ) -> Subscription:
        """A subscription that fits to those there are.

        Args:
            topic: as `PushConsumer.listener` takes it, and likewise the other arguments.
            listener: None: the one that the topic has, or had.
            tags: a tag expression; None: none.
            sql: an SQL92 condition; None: none.
            selector: code of the user's; None: none.
            orderly: None: as the others are.

        Raises:
            ConfigError: there is no listener, it does not fit, the name is none or the shim's own, or two filters.
            FilterSyntaxError: the expression does not compile.
        """
        physical = self.physical(topic)
        known = self.own(physical)
        if listener is not None:
            function, awaits = adapt(listener), is_async(listener)
        elif known is not None:
            function, awaits = known.listener, known.awaits
        else:
            raise ConfigError(f"subscribe({topic!r}) needs a listener: that topic has none yet")
        orderly = bool(self.orderly) if orderly is None else orderly
        self._check(topic, physical, orderly=orderly, awaits=awaits)
        chosen = compile_filter(tags, sql, selector)
        made = Subscription(
            physical, function, expression=str(chosen), digest=chosen.digest(), orderly=orderly, awaits=awaits
        )
        match chosen:
            case CallableFilter():
                return replace(made, selects=chosen.matches)
            case TagFilter():
                return replace(made, matches=None if chosen.matches_all else chosen.matches_headers, sieve=chosen.sieve)
            case _:
                again = chosen.matches_headers if self._filter_retries else None
                return replace(made, matches=chosen.matches_headers, matches_retry=again)

    def _check(self, topic: str, physical: str, *, orderly: bool, awaits: bool) -> None:
        if self._names.is_ours(physical):
            raise ConfigError(f"{topic!r} is a topic of the shim's own: retries need no listener of their own")
        if self.orderly not in {None, orderly}:
            raise ConfigError(
                f"{topic!r}: the listeners of one consumer are all orderly or all concurrent; make a second consumer, "
                "in a group of its own"
            )
        if awaits and orderly:
            raise ConfigError(f"{topic!r}: an orderly listener is a plain function, since its calls never overlap")
        if self.awaits not in {None, awaits}:
            raise ConfigError(f"{topic!r}: the listeners of one consumer are all `async def` or all plain functions")

    def named(self) -> list[str]:
        """Physical names of the topics that are subscribed by name."""
        return [topic for topic in self._active if not is_pattern(topic)]

    def add(self, subscription: Subscription) -> None:
        """Listen to one more topic or pattern.

        Raises:
            ConfigError: it has a listener, or the pattern is no regular expression; nothing changed.
        """
        if subscription.topic in self._active:
            raise ConfigError(f"{subscription.topic!r} has a listener; one listener per topic")
        self.put(subscription)

    def put(self, subscription: Subscription) -> None:
        """Listen to one more topic or pattern, or to one that is listened to in another way; its place is kept.

        Raises:
            ConfigError: the pattern is no regular expression; nothing changed.
        """
        topic = subscription.topic
        if is_pattern(topic):
            try:
                self._patterns[topic] = re.compile(topic)
            except re.error as error:
                raise ConfigError(f"{topic!r} is no regular expression: {error}") from error
        self._active = {**self._active, topic: subscription}
        self._retired = {name: each for name, each in self._retired.items() if name != topic}
        self._matched = self._matched - {topic}
        self._found = {}

    def own(self, topic: str) -> Subscription | None:
        """What was subscribed under exactly this name or pattern, also if it was unsubscribed since; None: nothing."""
        return self._active.get(topic) or self._retired.get(topic)

    def remove(self, topic: str) -> bool:
        """Listen to a topic or pattern no longer; whether it was listened to."""
        subscription = self._active.get(topic)
        if subscription is None:
            return False
        self._retired = {**self._retired, topic: subscription}
        self._active = {name: each for name, each in self._active.items() if name != topic}
        self._matched = frozenset(name for name in self._matched if self._pattern_of(name, self._active) is not None)
        self._found = {}
        return True

    def see(self, existing: Iterable[str]) -> None:
        """Take note of the topics there are: patterns stand for those from now on."""
        self._matched = frozenset(
            name
            for name in existing
            if not name.startswith("__")
            and not self._names.is_ours(name)
            and name not in self._active
            and self._pattern_of(name, self._active) is not None
        )

    def topics(self) -> list[str]:
        """Physical names of what is to be read now, sorted."""
        return sorted({*self.named(), *self._matched})

    def get(self, topic: str) -> Subscription | None:
        """Who listens to a physical topic; None: nobody, and nobody ever did."""
        found = self._found
        try:
            return found[topic]
        except KeyError:
            subscription = found[topic] = self._lookup(topic)
            return subscription

    def digest(self) -> str:
        """By which members that subscribe differently find each other."""
        parts = sorted(f"{name}={each.digest}" for name, each in self._active.items())
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def text(self) -> str:
        """The same for a person."""
        return ", ".join(sorted(f"{name}={each.expression}" for name, each in self._active.items()))

    def _lookup(self, topic: str) -> Subscription | None:
        for subscriptions in (self._active, self._retired):
            name = topic if topic in subscriptions else self._pattern_of(topic, subscriptions)
            if name is not None:
                return subscriptions[name]
        return None

    def _pattern_of(self, topic: str, subscriptions: Iterable[str]) -> str | None:
        return next((each for each in subscriptions if is_pattern(each) and self._patterns[each].match(topic)), None)
