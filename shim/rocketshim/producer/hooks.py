"""Hooks around every send. A producer without hooks has no extra cost.

A send hook only observes, except that it may replace the message before it is sent, for example to add a property. An
exception that it raises is logged and changes nothing.

Source: `SendMessageHook`, `SendMessageContext` of RocketMQ.
"""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from rocketshim.core.user_values import safe_text
from rocketshim.logs import safe_logger
from rocketshim.producer.result import SendResult
from rocketshim_topics import Message

__all__ = ["SendHooks", "SendMessageContext", "SendMessageHook"]

_LOG = safe_logger("rocketshim.producer")


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


class SendHooks:
    """The hooks of one producer.

    Thread-safety: hooks are added before the first send; any thread may send.
    """

    def __init__(self) -> None:
        self._hooks: tuple[SendMessageHook, ...] = ()

    def __bool__(self) -> bool:
        return bool(self._hooks)

    def add(self, hook: SendMessageHook) -> None:
        """Add a hook; hooks nest in the order in which they were added."""
        self._hooks = (*self._hooks, hook)

    def around(self, message: Message, send: "Callable[[Message], Future[SendResult]]") -> "Future[SendResult]":
        """Send a message with the hooks around it; return a future that has its result after the hooks had it."""
        context = SendMessageContext(message)
        for hook in self._hooks:
            _quietly(hook.send_message_before, context)
        result: Future[SendResult] = Future()
        result.set_running_or_notify_cancel()
        try:
            sent = send(context.message)
        except BaseException as error:
            self._after(context, error)
            raise
        sent.add_done_callback(lambda done: self._resolve(context, done, result))
        return result

    def _resolve(self, context: SendMessageContext, done: "Future[SendResult]", result: "Future[SendResult]") -> None:
        error = done.exception()
        if error is None:
            context.result = done.result()
        self._after(context, error)
        if error is None:
            result.set_result(done.result())
        else:
            result.set_exception(error)

    def _after(self, context: SendMessageContext, error: BaseException | None) -> None:
        context.error = error
        for hook in reversed(self._hooks):
            _quietly(hook.send_message_after, context)


def _quietly(hook: Callable[[SendMessageContext], None], context: SendMessageContext) -> None:
    try:
        hook(context)
    except BaseException as error:  # noqa: BLE001 - user code that only observes; it must not fail sends
        _LOG.error("producer.hook-failed", extra={"hook": safe_text(hook, repr), "error": safe_text(error, repr)})
