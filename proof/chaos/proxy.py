"""TCP proxies in front of the brokers, whose links can be cut, held, slowed down, or made long.

Each broker advertises the port of its proxy, so that clients and the other brokers connect through it. A connection
belongs to the process whose client id stands in the first request (Kafka's request header: length, API key, version,
correlation id, client id), so that a fault can hit the links of one process. Brokers' own fetchers differ by
their client ids, which begin with `broker-`.
"""

import asyncio
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

__all__ = ["Link", "Proxies", "is_of_brokers", "is_of_clients"]

How = Literal["cut", "requests-held", "replies-held", "held", "slow", "replies-late"]

_HEADER_BYTES: Final = 14
_SLOW_S: Final = 0.25
_LATE_S: Final = 3.0
_ORDER_S: Final = 0.000_1  # between two pieces, so that their order is kept
_HOST: Final = "127.0.0.1"


@dataclass(slots=True, eq=False)
class Link:
    """One connection through a proxy.

    Attributes:
        broker: node id of the broker behind it.
        client: client id of the other side; None: not known yet.
        streams: the writers of both sides.
    """

    broker: int
    client: str | None = None
    streams: list[asyncio.StreamWriter] = field(default_factory=list)


Hits = Callable[[Link], bool]


def is_of_clients(link: Link) -> bool:
    """Return whether a link is not one between brokers."""
    return not is_of_brokers(link)


def is_of_brokers(link: Link) -> bool:
    """Return whether a link is one between brokers."""
    return link.client is not None and link.client.startswith("broker-")


class Proxies:
    """A proxy for each broker, in a thread of its own.

    Args:
        brokers: how many.

    Attributes:
        ports: where each proxy listens, by node id.

    Thread-safety: `fault` and `aim` from any thread.
    """

    def __init__(self, brokers: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._targets: dict[int, int] = {}
        self._links: set[Link] = set()
        self._faults: list[tuple[How, Hits]] = []
        self._changed = asyncio.Event()
        self.ports: dict[int, int] = {}
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(brokers), self._loop).result()

    async def _listen(self, brokers: int) -> None:
        for broker in range(1, brokers + 1):
            server = await asyncio.start_server(self._accept_for(broker), _HOST, 0)
            self._servers.append(server)
            self.ports[broker] = server.sockets[0].getsockname()[1]

    def aim(self, ports: dict[int, int]) -> None:
        """Name the brokers' own ports, by node id."""
        self._targets = dict(ports)

    @contextmanager
    def fault(self, how: How, hits: Hits) -> Iterator[None]:
        """Disturb the links for which `hits` holds, for the time of the block."""
        fault = how, hits
        self._loop.call_soon_threadsafe(self._begin, fault)
        try:
            yield
        finally:
            self._loop.call_soon_threadsafe(self._end, fault)

    def close(self) -> None:
        """Close every link."""
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        for link in list(self._links):
            _abort(link)
        await asyncio.sleep(0.1)  # the tasks of the links end

    # --- in the thread of the proxies --------------------------------------------------------------------------------

    def _begin(self, fault: tuple[How, Hits]) -> None:
        self._faults.append(fault)
        if fault[0] == "cut":
            for link in list(self._links):
                if fault[1](link):
                    _abort(link)

    def _end(self, fault: tuple[How, Hits]) -> None:
        self._faults.remove(fault)
        self._changed.set()
        self._changed = asyncio.Event()

    def _is_hit(self, link: Link, *kinds: How) -> bool:
        return any(how in kinds and hits(link) for how, hits in self._faults)

    def _accept_for(self, broker: int) -> Any:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            link = Link(broker, streams=[writer])
            self._links.add(link)
            try:
                await self._serve(link, reader)
            except (OSError, KeyError, asyncio.IncompleteReadError):  # nothing is known to listen behind it yet
                pass
            finally:
                self._links.discard(link)
                _abort(link)

        return accept

    async def _serve(self, link: Link, reader: asyncio.StreamReader) -> None:
        first = await reader.readexactly(_HEADER_BYTES)
        (length,) = struct.unpack_from(">h", first, 12)
        first += await reader.readexactly(max(length, 0))
        link.client = first[_HEADER_BYTES:].decode("utf-8", "replace")
        if self._is_hit(link, "cut"):
            return
        to_client = link.streams[0]
        from_broker, to_broker = await asyncio.open_connection(_HOST, self._targets[link.broker])
        link.streams.append(to_broker)
        to_broker.write(first)
        requests = asyncio.ensure_future(self._pass_on(link, reader, to_broker, "requests-held"))
        replies = asyncio.ensure_future(self._pass_on(link, from_broker, to_client, "replies-held"))
        await asyncio.wait({requests, replies}, return_when=asyncio.FIRST_COMPLETED)
        requests.cancel()
        replies.cancel()

    async def _pass_on(
        self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, one_way: How
    ) -> None:
        due_s = 0.0  # when the last late piece is passed on; the next one must not overtake it
        while data := await reader.read(65_536):
            late_s = 0.0
            if self._faults:
                while self._is_hit(link, "held", one_way):
                    await self._changed.wait()
                if self._is_hit(link, "slow"):
                    await asyncio.sleep(_SLOW_S)
                if one_way == "replies-held" and self._is_hit(link, "replies-late"):
                    late_s = _LATE_S
            now_s = self._loop.time()
            if late_s or due_s > now_s:
                due_s = max(due_s + _ORDER_S, now_s + late_s)
                self._loop.call_at(due_s, writer.write, data)
                continue
            writer.write(data)
            await writer.drain()


def _abort(link: Link) -> None:
    for stream in link.streams:
        stream.transport.abort()
