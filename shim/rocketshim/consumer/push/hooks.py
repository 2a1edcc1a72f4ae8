"""What may be hung on every listener call: consume hooks before and after it, filter hooks before it.

A consumer without hooks pays nothing: listeners are wrapped only where there are some. Hooks run in the thread of the
listener (`async def` listeners: in the event loop, so a hook must not block there).

* What a consume hook raises is logged and changes nothing: it watches.
* What a filter hook raises is a failure of the message: it decides, and a message is repeated rather than lost.

Source: `ConsumeMessageHook`, `FilterMessageHook` of RocketMQ.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rocketshim.consumer.listener import Listener, Subscription
from rocketshim.consumer.outcome import safe_text
from rocketshim.core.consume_concurrently import ConsumeReturnType, as_one, return_type
from rocketshim.logs import safe_logger
from rocketshim_topics import MessageView
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.wire import read_headers

__all__ = ["ConsumeMessageContext", "ConsumeMessageHook", "FilterMessageHook", "Hooks"]

_LOG = safe_logger("rocketshim.consumer")


@dataclass(slots=True)
class ConsumeMessageContext:
    """One listener call, as hooks see it. The same object before and after, so that a hook may keep what it needs.

    Attributes:
        group: the consumer group.
        message_queue: where the messages come from.
        messages: what the call gets.
        kept: for the hooks: a span, a start time. One object for all hooks of the call.
        return_type: how the call ended; None before it.
        error: what it raised, or None.
        elapsed_ms: how long it took; 0 before it.

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
    """Watches listener calls. Called from many threads at once."""

    def consume_message_before(self, context: ConsumeMessageContext) -> None:
        """Before a listener is called."""

    def consume_message_after(self, context: ConsumeMessageContext) -> None:
        """After it has returned or raised."""


class FilterMessageHook(Protocol):
    """Decides which messages reach a listener, after the subscription's own filter. Called from many threads at once.

    As with that filter, what it does not want is finished, and retried messages are not asked about again.
    """

    def filter_message(self, message: MessageView) -> bool:
        """Whether the listener is to get this message."""
        ...


class Hooks:
    """The hooks of one consumer.

    Args:
        timeout_ms: consume timeout, for the label of calls that took longer.

    Thread-safety: `consuming` and `filtering` are filled before the start and not changed afterwards.
    """

    def __init__(self, timeout_ms: int) -> None:
        self.consuming: list[ConsumeMessageHook] = []
        self.filtering: list[FilterMessageHook] = []
        self._timeout_ms = timeout_ms
        self._hung: dict[int, tuple[Subscription, Subscription]] = {}

    def hang(self, find: Callable[[str], Subscription | None], *, awaits: bool) -> Callable[[str], Subscription | None]:
        """Find subscriptions with the hooks hung on them.

        Args:
            find: finds the subscription of a logical topic.
            awaits: listeners are `async def`.
        """
        if not self.consuming and not self.filtering:
            return find

        def hung(topic: str) -> Subscription | None:
            found = find(topic)
            if found is None:
                return None
            known = self._hung.get(id(found))
            if known is None or known[0] is not found:
                known = self._hung[id(found)] = (found, self._on(found, awaits=awaits))
            return known[1]

        return hung

    def _on(self, subscription: Subscription, *, awaits: bool) -> Subscription:
        if self.filtering:
            subscription = replace(subscription, matches=None, selects=self._selecting(subscription))
        if self.consuming:
            listener = subscription.listener
            subscription = replace(subscription, listener=self._awaited(listener) if awaits else self._called(listener))
        return subscription

    def _selecting(self, subscription: Subscription) -> Callable[[MessageView], bool]:
        matches, selects, hooks = subscription.matches, subscription.selects, tuple(self.filtering)

        def all_want(message: MessageView) -> bool:
            if matches is not None and not matches(read_headers(message.record)):
                return False
            if selects is not None and not selects(message):
                return False
            return all(hook.filter_message(message) for hook in hooks)

        return all_want

    def _called(self, listener: Listener) -> Listener:
        def call(messages: Any, context: Any) -> Any:
            seen = self._before(messages, context)
            began_ns = time.perf_counter_ns()
            try:
                status = listener(messages, context)
            except BaseException as error:
                self._after(seen, None, error, began_ns)
                raise
            self._after(seen, _of_all(status, messages), None, began_ns)
            return status

        return call

    def _awaited(self, listener: Listener) -> Callable[[Any, Any], Awaitable[Any]]:
        async def call(messages: Any, context: Any) -> Any:
            seen = self._before(messages, context)
            began_ns = time.perf_counter_ns()
            try:
                status = await listener(messages, context)
            except BaseException as error:
                self._after(seen, None, error, began_ns)
                raise
            self._after(seen, _of_all(status, messages), None, began_ns)
            return status

        return call

    def _before(self, messages: Any, context: Any) -> ConsumeMessageContext:
        given = messages if isinstance(messages, list) else (messages,)
        seen = ConsumeMessageContext(context.group, context.message_queue, tuple(given), {})
        for hook in self.consuming:
            _quietly(hook.consume_message_before, seen)
        return seen

    def _after(self, seen: ConsumeMessageContext, status: object, error: BaseException | None, began_ns: int) -> None:
        seen.elapsed_ms = (time.perf_counter_ns() - began_ns) / 1e6
        seen.error = error
        seen.return_type = return_type(
            status, raised=error is not None, elapsed_ms=seen.elapsed_ms, timeout_ms=self._timeout_ms
        )
        for hook in reversed(self.consuming):
            _quietly(hook.consume_message_after, seen)


def _of_all(status: object, messages: Any) -> object:
    """What a call said of all its messages."""
    return as_one(status, len(messages)) if isinstance(messages, list) else status


def _quietly(hook: Callable[[ConsumeMessageContext], None], seen: ConsumeMessageContext) -> None:
    try:
        hook(seen)
    except BaseException as error:  # noqa: BLE001 - user code that watches; it must not fail messages
        _LOG.error("consumer.hook-failed", extra={"hook": safe_text(hook, repr), "error": safe_text(error, repr)})
