"""A connection that gets nowhere is ended; one whose page takes long is not."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import ClassVar, Self

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from rocketshim.console.server_app import ImpatientProtocol

DEADLINE_S = 60.0
HEAD = b" HTTP/1.1\r\nhost: x\r\n"
HANGING = [b"", b"GET /" + HEAD, b"POST /form" + HEAD + b"content-length: 9\r\n\r\nabc", b"GET /large" + HEAD + b"\r\n"]


class Hasty(ImpatientProtocol):
    CHECK_S = 0.05
    lost: ClassVar[threading.Semaphore]
    may_end: ClassVar[threading.Event]

    def _look(self, before: tuple[object, int] | None) -> None:
        super()._look(before if self.may_end.is_set() else None)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.lost.release()


class Server:
    """A server whose page `/` takes until `go_on` is set."""

    def __init__(self) -> None:
        self.go_on, self.is_asked = threading.Event(), threading.Event()
        Hasty.may_end = threading.Event()
        Hasty.lost = threading.Semaphore(0)
        routes = [Route("/", self.slow), Route("/form", self.form, methods=["POST"]), Route("/large", self.large)]
        self._listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(Starlette(routes=routes), http=Hasty, log_level="critical")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([self._listener],))

    def slow(self, _: Request) -> Response:
        self.is_asked.set()
        assert self.go_on.wait(DEADLINE_S)
        return PlainTextResponse("made")

    async def form(self, request: Request) -> Response:
        return Response(await request.body())

    def large(self, _: Request) -> Response:
        return Response(b"x" * 50_000_000)

    def connect(self, data: bytes) -> socket.socket:
        connection = socket.create_connection(self._listener.getsockname(), DEADLINE_S)
        with suppress(ConnectionError):  # it may be ended already
            connection.sendall(data)
        return connection

    def await_end_of_connection(self) -> None:
        assert Hasty.lost.acquire(timeout=DEADLINE_S)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self._server.should_exit = True
        self._thread.join(DEADLINE_S)
        self._listener.close()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as made:
        yield made


def test_connections_without_progress_are_ended_and_a_page_that_takes_long_is_made(server: Server) -> None:
    with server.connect(b"GET /" + HEAD + b"connection: close\r\n\r\n") as patient:
        assert server.is_asked.wait(DEADLINE_S)
        Hasty.may_end.set()
        for data in HANGING[:3]:
            with server.connect(data) as hanging:
                assert ended(hanging), data
        server.go_on.set()
        assert b"made" in b"".join(iter(lambda: patient.recv(65_536), b""))


def test_a_client_that_does_not_read_its_answer_is_ended(server: Server) -> None:
    Hasty.may_end.set()
    with server.connect(HANGING[3]) as hanging:
        server.await_end_of_connection()
        received = 0
        with suppress(ConnectionResetError):
            while part := hanging.recv(65_536):
                received += len(part)
        assert received < 50_000_000


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True
