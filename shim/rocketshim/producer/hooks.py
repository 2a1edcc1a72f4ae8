"""Hooks around every send. A producer without hooks has no extra cost.

A send hook only observes, except that it may replace the message before it is sent, for example to add a property. If
it raises, or replaces the message by something else, that is logged and changes nothing.

Source: `SendMessageHook`, `SendMessageContext` of RocketMQ.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from rocketshim.core.user_values import check_hook, safe_text
from rocketshim.logs import safe_logger
from rocketshim.producer.arguments import NO_BODY, message_of
from rocketshim.producer.result import SendResult
from rocketshim_topics import Message

__all__ = ["SendMessageContext", "SendMessageHook", "around", "check_send_hook", "observed"]

_LOG = safe_logger("rocketshim.producer")
_BEFORE: Final = "send_message_before"
_AFTER: Final = "send_message_after"


@dataclass(slots=True)
class SendMessageContext:
    """One send, as hooks see it. Hooks get the same object before and after it.

    Attributes:
        message: the message; before the send a hook may put another one here.
        kept: storage for the hooks, for example for a span; all hooks of the send share it.
        result: the result, if the message is stored; None before the send.
        error: the exception that the send raises, or None.
    """

    message: Message
    kept: dict[str, Any] = field(default_factory=dict)
    result: SendResult | None = None
    error: BaseException | None = None


class SendMessageHook(Protocol):
    """Observes sends. Many threads call it at the same time."""

    def send_message_before(self, context: SendMessageContext) -> None:
        """Handle the event that a message is about to be sent; called in the thread of the sender."""

    def send_message_after(self, context: SendMessageContext) -> None:
        """Handle the result, before the sender gets it; mostly called in the producer's own thread. Must not block."""


def check_send_hook(hook: SendMessageHook) -> SendMessageHook:
    """Return a hook; raise ConfigError if one of its two methods is missing."""
    check_hook(hook, (_BEFORE, _AFTER))
    return hook


@contextmanager
def around(hooks: Sequence[SendMessageHook], message: Message) -> Iterator[SendMessageContext]:
    """Call the hooks before a send, and after it if the block, which sends `context.message`, raises."""
    context = SendMessageContext(message)
    for hook in hooks:
        _quietly(hook, _BEFORE, context)
    try:
        yield context
    except BaseException as error:
        _call_after(hooks, context, error)
        raise


def observed(
    hooks: Sequence[SendMessageHook], context: SendMessageContext, sent: Future[SendResult]
) -> Future[SendResult]:
    """Return a future that has the result of a send after the hooks had it."""
    result: Future[SendResult] = Future()
    result.set_running_or_notify_cancel()

    def resolve(done: Future[SendResult]) -> None:
        error = done.exception()
        if error is None:
            context.result = done.result()
        _call_after(hooks, context, error)
        if error is None:
            result.set_result(done.result())
        else:
            result.set_exception(error)

    sent.add_done_callback(resolve)
    return result


def _call_after(hooks: Sequence[SendMessageHook], context: SendMessageContext, error: BaseException | None) -> None:
    context.error = error
    for hook in reversed(hooks):
        _quietly(hook, _AFTER, context)


def _quietly(hook: SendMessageHook, method: str, context: SendMessageContext) -> None:
    message = context.message
    try:
        getattr(hook, method)(context)
        context.message = message_of(context.message, NO_BODY, {})
    except BaseException as error:  # noqa: BLE001 - user code that only observes; it must not fail sends
        context.message = message
        _LOG.error("producer.hook-failed", extra={"hook": safe_text(hook, repr), "error": safe_text(error, repr)})
