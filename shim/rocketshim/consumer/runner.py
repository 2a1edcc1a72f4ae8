"""What the runners of concurrent and of orderly listeners share."""

from collections.abc import Callable
from dataclasses import replace
from types import CoroutineType
from typing import Any

from rocketshim.codecs import UndecodableBody
from rocketshim.core.clock import Clock
from rocketshim.core.failure_rules import Rules
from rocketshim.core.listener_answers import NOT_ASKED, DeadLetter, RetryLater
from rocketshim.core.next_hop import NO_LISTENER
from rocketshim.core.subscriptions import Subscription
from rocketshim.core.user_values import as_int, attribute, safe_text
from rocketshim.failures import FailureMaker
from rocketshim.logs import safe_logger
from rocketshim.settings.consumer import PushConsumerSettings
from rocketshim_topics import Failure, MalformedRecordError, MessageView, TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.wire import read_headers

__all__ = ["Runner", "WithoutContext", "asked_level", "wants"]

_LOG = safe_logger("rocketshim.consumer")


class WithoutContext:
    """A listener that takes the message alone; the hot path calls `function` itself."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, message: Any, context: object) -> Any:
        """Call the function with the message."""
        del context
        return self.function(message)


class Runner:
    """Runs what a listener thread gets through its listeners; the clock is the one of leases.

    Thread-safety: immutable, except for what user code does; every listener thread uses the same object.
    """

    __slots__ = (
        "_batch_count", "_clock", "_failures", "_group", "_levels", "_queues", "_retry_topic", "_subscription_of",
    )  # fmt: skip

    def __init__(
        self, settings: PushConsumerSettings, subscription_of: Callable[[str], Subscription | None], clock: Clock
    ) -> None:
        self._group = settings.group
        self._subscription_of = subscription_of
        self._retry_topic = TopicNames(settings.namespace).retry(settings.group)
        self._batch_count = settings.consume_message_batch_max_size
        self._levels = settings.delay_levels
        self._clock = clock
        self._failures = FailureMaker(clock, wants_stack=settings.fail_stack)
        self._queues: dict[TopicPartitionKey, MessageQueue] = {}  # made once; a few hundred bytes a partition

    def _message_queue(self, key: TopicPartitionKey) -> MessageQueue:
        known = self._queues.get(key)
        if known is None:
            known = self._queues[key] = MessageQueue(key.topic, queue_id=key.partition)
        return known

    def _no_status(self, returned: object, status: str) -> Failure:
        """Return the failure of a call that returned something other than a status: a mistake of the program."""
        text = f"the listener returned {safe_text(returned, repr):.200}"
        if type(returned) is CoroutineType:
            returned.close()  # it would warn that it was never awaited
            text += ": make the listener itself an `async def` function"
        else:
            text += f": it returns nothing or a {status}, and raises to fail"
        return Failure("ReturnedNoStatus", text, self._clock.wall_ms())

    def _no_listener(self, topic: str) -> Failure:
        """Return the failure of a message that this member has no listener for, and another one might have."""
        text, is_retry = f"no listener for {topic!r} in this consumer", topic != self._retry_topic
        return Failure(NO_LISTENER, text, self._clock.wall_ms(), unhandled=is_retry)

    def _route(self, view: MessageView) -> Subscription | tuple[Failure, str | None]:
        """Return the subscription whose listener gets the message; else the failure, and why the message is malformed.

        Decides: What becomes of a record in a retry topic that another program wrote there? Without
            `RETRY_TOPIC` no listener can have its topic, so it is a dead letter (NoListener); with malformed headers it
            is parked.
        """
        try:
            topic = view.topic
        except MalformedRecordError as error:
            return self._failures.of(error), error.reason
        return self._subscription_of(topic) or (self._no_listener(topic), None)

    def _meaning_of(self, error: BaseException, rules: Rules, *, has_asked: bool) -> tuple[bool, int, int | None]:
        """Return whether an exception ends its message, and otherwise the delay level and the delay in ms it asks for.

        `has_asked`: the listener has set a wait in its context. That counts before the rules of the subscription.

        Decides: What does an exception of a listener mean? `DeadLetter` is final, `RetryLater` sets the wait, any other
            is final if the rules say so.
        """
        kind = type(error)  # `isinstance` would ask the error for its `__class__`
        if issubclass(kind, DeadLetter):
            return True, NOT_ASKED, None
        if issubclass(kind, RetryLater):
            return False, asked_level(attribute(error, "level")), as_int(attribute(error, "delay_ms"))
        return rules is not None and not has_asked and rules.is_final(kind), NOT_ASKED, None

    def _failure_of_call(self, error: BaseException, topic: str) -> Failure:
        """Return the failure of a call that raised, for a message of this physical topic."""
        failure = self._failures.of(error)
        if topic == self._retry_topic and issubclass(type(error), UndecodableBody):
            return replace(failure, unhandled=True)  # the member that sent it back may have decoded it
        return failure


def asked_level(asked: object) -> int:
    """Return the level that user code has requested; a value that is not a level is logged and ignored."""
    if asked is None:
        return NOT_ASKED
    level = as_int(asked)
    if level is None:
        _LOG.error("consumer.level-ignored", extra={"asked": safe_text(asked, repr)})
    return level or NOT_ASKED


def wants(subscription: Subscription, message: MessageView) -> bool:
    """Return whether a filter selects a message; one that comes back was selected before its first delivery.

    User code is called: it may raise anything, and so do headers that cannot be read. Then the message has failed.

    Decides: Which messages does a filter take out, and what becomes of them? They count as handled, so the commit
        passes them. On the hot path `consumer.concurrent.ConcurrentRunner._matching` does the same for many.
    """
    if message.trusted:
        return subscription.matches_retry is None or subscription.matches_retry(read_headers(message.record))
    if subscription.selects is not None:
        return bool(subscription.selects(message))  # its truth is user code, too
    return subscription.matches is None or subscription.matches(read_headers(message.record))
