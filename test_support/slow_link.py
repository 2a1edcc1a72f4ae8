"""A link to a broker on which everything takes a time: a TCP proxy that delays what it passes on, and drops nothing."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["SlowLink", "slow_link"]

_HOST = "127.0.0.1"
_ORDER_S = 0.000_1  # between two pieces, so that their order is kept


class SlowLink:
    """The proxy; its methods are for the thread of the test.

    Attributes:
        port: where it listens.
        broker_port: where it passes connections on to; set it before the first connection.
        delay_s: how much longer an answer of the broker takes; it may be changed.
    """

    def __init__(self, delay_s: float) -> None:
        self.delay_s = delay_s
        self.broker_port = 0
        self.port = 0

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        streams = [writer]
        with suppress(OSError, asyncio.CancelledError):
            from_broker, to_broker = await asyncio.open_connection(_HOST, self.broker_port)
            streams.append(to_broker)
            ways = [self._pass_on(reader, to_broker), self._delay(from_broker, writer)]
            tasks = [asyncio.ensure_future(way) for way in ways]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
        for stream in streams:
            stream.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()

    async def _delay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        due_s = 0.0
        while data := await reader.read(65_536):
            due_s = max(due_s + _ORDER_S, loop.time() + self.delay_s)
            loop.call_at(due_s, writer.write, data)


@contextmanager
def slow_link(delay_s: float) -> Iterator[SlowLink]:
    """Run a proxy for the time of the block."""
    link = SlowLink(delay_s)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="slow-link", daemon=True)
    thread.start()

    async def listen() -> asyncio.Server:
        server = await asyncio.start_server(link._accept, _HOST, 0)
        link.port = server.sockets[0].getsockname()[1]
        return server

    async def end(server: asyncio.Server) -> None:
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0.1)  # the tasks of the connections end

    server = asyncio.run_coroutine_threadsafe(listen(), loop).result()
    try:
        yield link
    finally:
        asyncio.run_coroutine_threadsafe(end(server), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
