"""rocketshim in an ASGI application: FastAPI, Starlette.

::

    app = FastAPI(lifespan=lifespan(producer=lambda: Producer("localhost:9092"), consumers=[make_consumer]))

    @app.post("/orders")
    async def place(order: Order, producer: Annotated[Producer, Depends(get_producer)]) -> str:
        sent = await send(producer, Message("orders", order.model_dump_json().encode()))
        return sent.msg_id

Start and stop of producers and consumers block for a while, so they run in a thread: the event loop is never blocked.
`async def` listeners run in the event loop of the application, and may use objects that belong to it.

A consumer in the web process shares its CPU and its restarts. Where it has much to do, run it as a process of its own
(`rocketshim run`), and use only the producer here.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final

from starlette.requests import HTTPConnection

from rocketshim import Message, Producer, PushConsumer, SendResult
from rocketshim.aio import send_message
from rocketshim.errors import ConfigError

__all__ = ["Lifespan", "get_producer", "lifespan", "send"]

Lifespan = Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any]]]
"""What `FastAPI(lifespan=…)` and `Starlette(lifespan=…)` take."""

_STATE: Final = "rocketshim_producer"


def lifespan(
    *,
    producer: Producer | Callable[[], Producer] | None = None,
    consumers: Sequence[PushConsumer | Callable[[], PushConsumer]] = (),
    stop_timeout_s: float = 30.0,
    wrapping: Callable[[Any], AbstractAsyncContextManager[Mapping[str, Any] | None]] | None = None,
) -> Lifespan:
    """Return a lifespan that runs a producer and consumers as long as the application.

    At the start it enters `wrapping`, then starts the consumers. At the end it stops the consumers, leaves `wrapping`,
    and closes the producer, which waits for its delivery reports.

    Args:
        producer: what `get_producer` returns; None: there is none.
        consumers: the consumers to run. A consumer runs only once and a producer is closed only once; pass functions
            that make them if the application starts more than once in a process, as in tests.
        stop_timeout_s: time in seconds for the messages in progress of each consumer, and for the delivery reports.
        wrapping: another lifespan, for example of a database pool that the listeners use.

    The application does not start if a consumer does not: the lifespan raises what `PushConsumer.start` raises, or
    ConfigError if `producer` is something else, such as an `AsyncProducer`; `send` awaits a `Producer`. A consumer that
    fails later logs it, and its error is raised when the application ends.
    """

    @asynccontextmanager
    async def run(app: Any) -> AsyncIterator[Mapping[str, Any]]:
        state: dict[str, Any] = {}
        async with AsyncExitStack() as running:
            if producer is not None:
                state[_STATE] = used = producer() if callable(producer) else producer
                if not isinstance(used, Producer):
                    raise ConfigError(f"producer={used!r:.80}: give a Producer, or a function that makes one")
                running.push_async_callback(asyncio.to_thread, used.close, stop_timeout_s)
            if wrapping is not None:
                yielded = await running.enter_async_context(wrapping(app))
                state.update({} if yielded is None else yielded)
            made = [each if isinstance(each, PushConsumer) else each() for each in consumers]
            for consumer in made:
                running.push_async_callback(asyncio.to_thread, consumer.stop, stop_timeout_s)
            await asyncio.gather(*(consumer.__aenter__() for consumer in made))  # each left by `stop`, with its time
            yield state

    return run


async def send(producer: Producer, message: Message, *, timeout_s: float = 3.0) -> SendResult:
    """Send a message without blocking the event loop, and wait until it is stored.

    A request that is cancelled meanwhile does not take the message back: it may or may not be stored.

    Args:
        producer: for example of `get_producer`.
        message: the message.
        timeout_s: how long to wait for the delivery report, in seconds.

    Raises:
        As `Producer.send`.
    """
    return await send_message(producer, message, timeout_s=timeout_s)


def get_producer(request: HTTPConnection) -> Producer:
    """Return the producer of the application, for `Depends(get_producer)`; a request or a WebSocket.

    Raises:
        ConfigError: the application has no lifespan with a producer.
    """
    producer = getattr(request.state, _STATE, None)
    if not isinstance(producer, Producer):
        raise ConfigError("the application has no producer: make it with lifespan=lifespan(producer=…)")
    return producer
