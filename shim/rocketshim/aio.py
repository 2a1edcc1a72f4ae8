"""rocketshim for `asyncio`: `AsyncProducer`, whose sends are awaited.

::

    async with AsyncProducer("localhost:9092") as producer:
        result = await producer.send("orders", b"o-7", delay="30m")

Consumers need no other class: `PushConsumer` runs `async def` listeners, and `async with` starts and stops it.

How it works: the producer's own thread reports the result to the event loop. A send that may have to look something up
(the first one, a delayed one, one with a selector) runs in a thread, so that the event loop is never blocked. So does a
codec other than `JsonCodec` and `PydanticCodec`: it may ask a schema registry. If the queue of unsent messages is full,
`send` waits without blocking. Messages of one task that are awaited one after the other keep their order; the order of
sends in progress at the same time is not defined.
"""

import asyncio
import time
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, Final, Self, Unpack, overload

from rocketshim.codecs import Codec, JsonCodec, PydanticCodec
from rocketshim.core.clock import Clock
from rocketshim.errors import SendTimeoutError
from rocketshim.kafka.clients import Clients
from rocketshim.producer.arguments import NO_BODY, MessageOptions, check_timeout, messages_of
from rocketshim.producer.hooks import around, observed
from rocketshim.producer.producer import MessageSender, Producer
from rocketshim.producer.result import SendResult, recalled_id
from rocketshim.producer.selectors import Selector
from rocketshim.settings.producer import ProducerOptions, ProducerSettings
from rocketshim_topics.message import Message

if TYPE_CHECKING:
    from rocketshim.core.timer_history import TimerOutcome

__all__ = ["AsyncProducer"]

_FULL_S: Final = 0.005  # how long a send waits before it looks again whether the queue has room


class AsyncProducer:
    """A `Producer` for `asyncio`: the same arguments, settings and errors; what waits is awaited.

    Args:
        bootstrap, settings, clients, clock, codec, values: see `Producer`.

    Attributes:
        producer: the producer that sends, for what has no method here.

    Thread-safety: any event loop of the process; each call belongs to the loop that awaits it.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        settings: ProducerSettings | None = None,
        clients: Clients | None = None,
        clock: Clock | None = None,
        codec: Codec[Any] | None = None,
        **values: Unpack[ProducerOptions],
    ) -> None:
        self.producer = Producer(bootstrap, settings=settings, clients=clients, clock=clock, codec=codec, **values)

    @overload
    async def send(
        self, message: Message, *, selector: Selector | None = None, arg: Any = None, timeout_s: float = 3.0
    ) -> SendResult: ...
    @overload
    async def send(
        self,
        topic: str,
        /,
        body: object,
        *,
        codec: Codec[Any] | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        timeout_s: float = 3.0,
        **options: Unpack[MessageOptions],
    ) -> SendResult: ...
    async def send(
        self,
        message: Message | str,
        body: Any = NO_BODY,
        *,
        codec: Codec[Any] | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        timeout_s: float = 3.0,
        **options: Unpack[MessageOptions],
    ) -> SendResult:
        """Send a message and wait until it is stored; the arguments are those of `Producer.send`.

        If the waiting task is cancelled, the message may or may not be stored.

        Raises:
            As `Producer.send`.
        """
        deadline = time.monotonic() + check_timeout(timeout_s)
        sender = self.producer.sender
        make = partial(sender.message, message, body, codec, options)
        encodes = sender.codec if codec is None else codec
        waits = body is not NO_BODY and type(encodes) not in {NoneType, JsonCodec, PydanticCodec}
        made = await asyncio.to_thread(make) if waits else make()
        return await _send(sender, made, selector, arg, deadline, timeout_s=timeout_s)

    async def send_batch(self, messages: Iterable[Message], *, timeout_s: float = 10.0) -> list[SendResult]:
        """Send several messages and wait until all are stored.

        Raises:
            As `send`, for the first message in order that failed. The other messages may be stored.
        """
        deadline = time.monotonic() + check_timeout(timeout_s)
        sender = self.producer.sender
        begun = [
            (await _begin(sender, message, None, None, deadline), repr(message.topic))
            for message in messages_of(messages)
        ]
        return [await _result(sender, future, what, deadline, timeout_s) for future, what in begun]

    async def cancel(self, topic: str, *, timer: str, timeout_s: float = 3.0) -> SendResult:
        """Cancel the message that waits under a name, as `Producer.cancel`, and wait until this command is stored.

        Raises:
            As `Producer.cancel`.
        """
        return await self._command("CANCEL", topic, timer, timeout_s)

    async def send_now(self, topic: str, *, timer: str, timeout_s: float = 3.0) -> SendResult:
        """Have the message that waits under a name delivered now, as `Producer.send_now`; wait for this command.

        Raises:
            As `Producer.cancel`.
        """
        return await self._command("NOW", topic, timer, timeout_s)

    async def recall(self, topic: str, handle: str, *, timeout_s: float = 3.0) -> SendResult:
        """Recall a message that was sent with `recallable`, as `Producer.recall`.

        Raises:
            As `Producer.recall`.
        """
        return await self._command("CANCEL", topic, recalled_id(topic, handle), timeout_s)

    async def outcome(
        self, topic: str, *, timer: str, of: SendResult | None = None, timeout_s: float = 30.0
    ) -> "TimerOutcome":
        """Return what became of a name, as `Producer.outcome`; it reads in a thread.

        Raises:
            As `Producer.outcome`.
        """
        return await asyncio.to_thread(self.producer.outcome, topic, timer=timer, of=of, timeout_s=timeout_s)

    async def flush(self, timeout_s: float = 30.0) -> int:
        """Wait up to `timeout_s` seconds for all delivery reports; return the number of messages without one."""
        return await asyncio.to_thread(self.producer.flush, timeout_s)

    async def close(self, timeout_s: float = 30.0) -> None:
        """Wait up to `timeout_s` seconds for the delivery reports, then close the producer. It may be called twice."""
        await asyncio.to_thread(self.producer.close, timeout_s)

    async def _command(self, command: str, topic: str, timer: str, timeout_s: float) -> SendResult:
        deadline = time.monotonic() + check_timeout(timeout_s)
        sender = self.producer.sender
        future = await asyncio.to_thread(sender.command, command, topic, timer, deadline)
        return await _result(sender, future, f"the {command} for {timer!r}", deadline, timeout_s)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(asyncio.ensure_future(self.close()))  # also if the task is cancelled


async def send_message(producer: Producer, message: Message, *, timeout_s: float) -> SendResult:
    """Send a message with a `Producer` and wait until it is stored, without blocking the event loop.

    Raises:
        As `Producer.send`.
    """
    deadline, sender = time.monotonic() + check_timeout(timeout_s), producer.sender
    return await _send(sender, sender.message(message, NO_BODY, None, {}), None, None, deadline, timeout_s=timeout_s)


async def _send(
    sender: MessageSender, message: Message, selector: Selector | None, arg: Any, deadline: float, *, timeout_s: float
) -> SendResult:
    future = await _begin(sender, message, selector, arg, deadline)
    return await _result(sender, future, repr(message.topic), deadline, timeout_s)


async def _begin(
    sender: MessageSender, message: Message, selector: Selector | None, arg: Any, deadline: float
) -> Future[SendResult]:
    """Give a message to the Kafka client, with the hooks around it."""
    if not sender.hooks:
        return await _given(sender, message, selector, arg, deadline)
    with around(sender.hooks, message) as context:
        return observed(sender.hooks, context, await _given(sender, context.message, selector, arg, deadline))


async def _given(
    sender: MessageSender, message: Message, selector: Selector | None, arg: Any, deadline: float
) -> Future[SendResult]:
    """Give a message to the Kafka client, in a thread if that may block."""
    if selector is not None or sender.may_block(message):
        return await asyncio.to_thread(sender.send_without_hooks, message, selector, arg, deadline)
    send = sender.prepare(message)
    while True:
        is_late = time.monotonic() >= deadline
        try:
            return sender.give(send, 0.0, is_last_try=is_late)
        except BufferError:
            if is_late:
                raise
            await asyncio.sleep(_FULL_S)


async def _result(
    sender: MessageSender, future: Future[SendResult], what: str, deadline: float, timeout_s: float
) -> SendResult:
    waiting = asyncio.wrap_future(future)
    try:
        done, _ = await asyncio.wait([waiting], timeout=max(0.0, deadline - time.monotonic()))
    finally:
        waiting.cancel()  # also if the task is cancelled: asyncio would log a later error as never retrieved
    if not done:
        missing = sender.no_report(what, timeout_s, deadline)
        raise SendTimeoutError(f"{missing}; it may or may not be stored")
    return waiting.result()
