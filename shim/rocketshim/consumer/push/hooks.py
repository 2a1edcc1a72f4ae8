"""Hooks around every listener call: consume hooks before and after it, filter hooks before it.

A consumer without hooks has no extra cost: listeners are wrapped only if hooks are registered. Hooks run in the thread
of the listener. For `async def` listeners they run in the event loop, so a hook must not block there.

* A consume hook only observes: an exception that it raises is logged and changes nothing.
* A filter hook decides: an exception that it raises is a failure of the message, which is repeated rather than lost.

Source: `ConsumeMessageHook`, `FilterMessageHook` of RocketMQ.
"""

import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rocketshim.consumer.listeners import wants
from rocketshim.core.listener_answers import ConsumeReturnType, as_one, return_type
from rocketshim.core.subscriptions import Listener, Subscription
from rocketshim.core.user_values import class_name, safe_text
from rocketshim.errors import FilterEvaluationError
from rocketshim.logs import safe_logger
from rocketshim_topics import MessageView
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["ConsumeMessageContext", "ConsumeMessageHook", "FilterMessageHook", "Hooks"]

_LOG = safe_logger("rocketshim.consumer")


@dataclass(slots=True)
class ConsumeMessageContext:
    """One listener call, as hooks see it. Hooks get the same object before and after the call.

    Attributes:
        group: the consumer group.
        message_queue: the queue of the messages.
        messages: the messages of the call.
        kept: storage for the hooks, for example for a span or a start time; all hooks of the call share it.
        return_type: how the call ended; None before the call.
        error: the exception that the call raised, or None.
        elapsed_ms: duration of the call in ms; 0 before the call.

    Source: `ConsumeMessageContext` of RocketMQ.
    """

    group: str
    message_queue: MessageQueue
    messages: Sequence[MessageView]
    kept: dict[str, Any]
    return_type: ConsumeReturnType | None = None
    error: BaseException | None = None
    elapsed_ms: float = 0.0


class ConsumeMessageHook(Protocol):
    """Observes listener calls. Many threads call it at the same time."""

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        """Handle the event that a listener is about to be called."""

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        """Handle the event that a listener has returned or raised."""


class FilterMessageHook(Protocol):
    """Decides which messages reach a listener, after the subscription's own filter.

    Many threads call it at the same time. As with the subscription's filter, a message that it rejects is finished, and
    it is not called for retried messages.
    """

    def filter_message(self, message: MessageView) -> bool:
        """Return whether the listener gets this message: True or False. With any other answer the message fails."""
        ...


class Hooks:
    """The hooks of one consumer; calls that took longer than the consume timeout get the label of a timeout.

    Thread-safety: `consuming` and `filtering` are filled before the start and do not change afterwards.
    """

    def __init__(self, timeout_ms: int) -> None:
        self.consuming: list[ConsumeMessageHook] = []
        self.filtering: list[FilterMessageHook] = []
        self._timeout_ms = timeout_ms
        self._wrapped: dict[str, tuple[Subscription, Subscription]] = {}  # by topic: the last found, and wrapped

    def wrap(self, find: Callable[[str], Subscription | None], *, awaits: bool) -> Callable[[str], Subscription | None]:
        """Return `find`, wrapped so that the listeners of what it finds are called with the hooks around them."""
        if not self.consuming and not self.filtering:
            return find

        def find_wrapped(topic: str) -> Subscription | None:
            found = find(topic)
            if found is None:
                return None
            known = self._wrapped.get(topic)
            if known is None or known[0] is not found:
                known = self._wrapped[topic] = (found, self._with_hooks(found, awaits=awaits))
            return known[1]

        return find_wrapped

    def _with_hooks(self, subscription: Subscription, *, awaits: bool) -> Subscription:
        if self.filtering:
            subscription = replace(subscription, matches=None, selects=self._selecting(subscription))
        if self.consuming:
            listener = subscription.listener
            subscription = replace(subscription, listener=self._awaited(listener) if awaits else self._called(listener))
        return subscription

    def _selecting(self, subscription: Subscription) -> Callable[[MessageView], bool]:
        hooks = tuple(self.filtering)

        def all_want(message: MessageView) -> bool:
            return wants(subscription, message) and all(_is_wanted(hook, message) for hook in hooks)

        return all_want

    def _called(self, listener: Listener) -> Listener:
        def call(messages: Any, context: Any) -> Any:
            with self._around(messages, context) as answers:
                answers.append(listener(messages, context))
            return answers[0]

        return call

    def _awaited(self, listener: Listener) -> Callable[[Any, Any], Awaitable[Any]]:
        async def call(messages: Any, context: Any) -> Any:
            with self._around(messages, context) as answers:
                answers.append(await listener(messages, context))
            return answers[0]

        return call

    @contextmanager
    def _around(self, messages: Any, context: Any) -> Iterator[list[Any]]:
        """Call the consume hooks before and after a listener call, whose answer is put into the list."""
        given = messages if isinstance(messages, list) else [messages]
        seen = ConsumeMessageContext(context.group, context.message_queue, tuple(given), {})
        for hook in self.consuming:
            _quietly(hook.consume_message_before, seen)
        answers: list[Any] = []
        began_ns = time.perf_counter_ns()
        try:
            yield answers
        except BaseException as error:
            seen.error = error
            raise
        finally:
            seen.elapsed_ms = (time.perf_counter_ns() - began_ns) / 1e6
            status = answers[0] if answers else None
            if answers and isinstance(messages, list):
                status = as_one(status, len(messages))
            seen.return_type = return_type(
                status, raised=not answers, elapsed_ms=seen.elapsed_ms, timeout_ms=self._timeout_ms
            )
            for hook in reversed(self.consuming):
                _quietly(hook.consume_message_after, seen)


def _is_wanted(hook: FilterMessageHook, message: MessageView) -> bool:
    """Return the answer of a hook, or raise FilterEvaluationError if it is neither True nor False.

    A message that the hook forgot to answer for must not count as handled.
    """
    wanted: object = hook.filter_message(message)
    if wanted is True or wanted is False:
        return wanted
    raise FilterEvaluationError(
        f"filter hook {class_name(hook)} returned {safe_text(wanted, repr):.200}: it must return True or False"
    )


def _quietly(hook: Callable[[ConsumeMessageContext], None], seen: ConsumeMessageContext) -> None:
    try:
        hook(seen)
    except BaseException as error:  # noqa: BLE001 - user code that only observes; it must not fail messages
        _LOG.error("consumer.hook-failed", extra={"hook": safe_text(hook, repr), "error": safe_text(error, repr)})
