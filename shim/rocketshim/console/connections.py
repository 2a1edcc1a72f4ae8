"""End connections that get nowhere, so that they cannot keep others out.

The server accepts a limited number of connections. uvicorn ends those that wait for another request, but not one that
sends no request, only a part of one, or does not read its answer. Looking twice at each connection finds these: the
same request is not complete, or the same bytes are not sent. A page that takes long is not among them.
"""

import asyncio
from typing import ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

__all__ = ["ImpatientProtocol"]


class ImpatientProtocol(H11Protocol):
    """The HTTP protocol of uvicorn, which ends a connection after 10 to 20 s without progress."""

    CHECK_S: ClassVar[float] = 10.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Begin to look at the connection."""
        super().connection_made(transport)
        self._look(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Look at it no longer."""
        self._next_look.cancel()
        super().connection_lost(exc)

    def _look(self, before: tuple[object, int] | None) -> None:
        unsent = self.transport.get_write_buffer_size()
        request: RequestResponseCycle | None = self.cycle
        is_awaited = request is None or request.response_complete or request.more_body
        now = (request, unsent)
        if now == before and (is_awaited or unsent):
            self.transport.abort()
        self._next_look = self.loop.call_later(self.CHECK_S, self._look, now)
