"""Health and metrics of a running process over HTTP: `/live`, `/ready`, `/state` and `/metrics`.

The loop's thread makes a state once a second and publishes it by one assignment. The server's thread only reads it. So
a request never waits for the loop or delays it. The age of the state shows a loop that has stopped.

* `/live`: 200 while the loop runs, else 503. The state decides what that means.
* `/ready`: 200 while the process does its work, else 503; the exporter lists what is wrong behind it.
* `/state`: the state as JSON.
* `/metrics`: Prometheus' text format, with `rocketshim_build_info`.

The server listens on the configured address. The default is this machine only, because the state names topics. Then it
answers only requests under this machine's own names: a page in a browser here may have a name that leads to it (DNS
rebinding). Where it listens for other machines, its names are not known, and a firewall decides who may ask.

It is one thread with an event loop of its own, and keeps at most 256 connections: a further one ends the oldest when
what that one had sent before is answered, and each ends after 5 s. So clients that get nowhere take neither threads nor
many file handles from the process, and a check that sends its request immediately is answered beside any number of
them.
"""

import asyncio
import ipaddress
import json
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from http import HTTPStatus
from typing import Any, ClassVar, Final, Protocol, cast

from rocketshim.clock import SystemClock
from rocketshim.core.clock import Clock
from rocketshim.errors import ConfigError
from rocketshim.logs import safe_logger
from rocketshim.metrics import Metric, build_info, metrics_text

__all__ = ["HealthServer", "LoopState", "Shown", "address", "host_name", "is_loopback", "serving"]

_LOG = safe_logger("rocketshim.health")
_LIVE_NS: Final = 30_000_000_000
_STUCK_NS: Final = 60_000_000_000
_MOST_OPEN: Final = 256
_EXCHANGE_S: Final = 5.0
_MOST_HEAD_BYTES: Final = 16_384
_BACKLOG: Final = 128
_PASSES: Final = 4  # of the event loop, in which a request is read and answered that was sent before
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:@/\s]+)(:[0-9]{1,5})?")
_ENDED: Final = (  # by the deadline, the client, the length of the head, or `stop`
    TimeoutError, asyncio.IncompleteReadError, ConnectionError, asyncio.LimitOverrunError, asyncio.CancelledError,
)  # fmt: skip


class Shown(Protocol):
    """The state of a process at one instant. Immutable."""

    def is_live(self, now_ns: int) -> bool:
        """Return whether the loop runs."""

    def is_ready(self, now_ns: int) -> bool:
        """Return whether the process does its work."""

    @property
    def report(self) -> str:
        """Return what is wrong, a line each, to stand behind `/ready`'s answer."""

    def shown(self, now_ns: int) -> dict[str, Any]:
        """Return the state as JSON."""

    def metrics(self) -> Iterable[Metric]:
        """Return the state as metrics."""


class LoopState:
    """Base of the states of a loop that is a member of a group: it defines live and ready.

    The states are frozen dataclasses.

    * Live: the loop has made an iteration within the last 30 s. A call to an unreachable broker may take 15 s.
    * Ready: the loop is live and in the group, commits have not been failing for more than 60 s, and this machine's
      clock is not known to differ from the brokers' by more than a minute.

    Attributes:
        at_ns: monotonic instant of the state.
        is_member: whether the loop has its assignment from the group, which may be empty.
        commits_fail_since_ns: since when commits have failed; None: they succeed.
        clock_ahead_ms: how far this machine's clock is ahead of the brokers' (negative: behind), in ms; 0: at most a
            minute, or not known.
    """

    __slots__ = ()

    at_ns: int
    is_member: bool
    commits_fail_since_ns: int | None
    clock_ahead_ms: int
    report: ClassVar[str] = ""

    def is_live(self, now_ns: int) -> bool:
        """Return whether the loop runs.

        Decides: Is a consumer or a worker live and ready? By the age of the state that its loop makes each second, so
            hanging listeners change nothing; `health.LoopState.is_ready`: also a member, perhaps without partitions,
            and commits have not been failing for long.
        """
        return now_ns - self.at_ns <= _LIVE_NS

    def is_ready(self, now_ns: int) -> bool:
        """Return whether the loop does its work."""
        since_ns = self.commits_fail_since_ns
        commits = since_ns is None or now_ns - since_ns <= _STUCK_NS
        return self.is_live(now_ns) and self.is_member and commits and self.clock_ahead_ms == 0

    def _shown(self, now_ns: int, **derived: Any) -> dict[str, Any]:
        """Return the fields and the derived values as JSON, with instants as ages."""
        shown: dict[str, Any] = asdict(cast("Any", self)) | {
            "age_ms": (now_ns - self.at_ns) // 1_000_000, **derived,
            "live": self.is_live(now_ns), "ready": self.is_ready(now_ns),
        }  # fmt: skip
        del shown["at_ns"], shown["commits_fail_since_ns"]
        return shown


def address(text: str, option: str = "--health") -> tuple[str, int]:
    """Parse `[HOST:]PORT`, the value of an option, to host and port; the default host is 127.0.0.1."""
    host, _, port = text.rpartition(":")
    if re.fullmatch("[0-9]{1,5}", port) is None or int(port) > 65_535:
        raise ConfigError(f"{option} {text!r:.80}: write PORT or HOST:PORT, for example 127.0.0.1:8080")
    return host.strip("[]") or "127.0.0.1", int(port)


class HealthServer:
    """HTTP server for the state of a process. With port 0 it listens on any free one, which `port` has after `start`.

    Thread-safety: call `start` and `stop` from one thread. A thread of its own serves all connections.
    """

    def __init__(self, host: str, port: int, state: Callable[[], Shown | None], clock: Clock) -> None:
        self._address = (host, port)
        self._state = state
        self._clock = clock
        self._serving: tuple[asyncio.AbstractEventLoop, threading.Thread, asyncio.Event] | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}  # oldest first; the server's thread only

    @property
    def port(self) -> int:
        """Return the port that the server listens on."""
        return self._address[1]

    def start(self) -> None:
        """Start to listen; raise `OSError` if that is not possible."""
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        listening = socket.create_server(self._address, family=family, backlog=_BACKLOG)
        self._address = (self._address[0], listening.getsockname()[1])
        loop = asyncio.SelectorEventLoop()  # never the program's own kind, such as uvloop
        loop.set_exception_handler(lambda _, context: _log_failure("", context.get("exception")))
        ended = asyncio.Event()
        serve = (loop, listening, ended)
        thread = threading.Thread(target=self._serve, args=serve, name="rocketshim-health", daemon=True)
        self._serving = (loop, thread, ended)
        thread.start()

    def stop(self) -> None:
        """Stop listening, completely when this returns. A second call does nothing."""
        serving, self._serving = self._serving, None
        if serving is not None:
            loop, thread, ended = serving
            loop.call_soon_threadsafe(ended.set)
            thread.join()

    def _serve(self, loop: asyncio.AbstractEventLoop, listening: socket.socket, ended: asyncio.Event) -> None:
        async def listen() -> None:
            server = await asyncio.start_server(
                self._exchange, sock=listening, limit=_MOST_HEAD_BYTES, backlog=_BACKLOG
            )
            await ended.wait()
            server.close()

        loop.run_until_complete(listen())
        exchanges = asyncio.all_tasks(loop)
        for exchange in exchanges:
            exchange.cancel()
        if exchanges:
            loop.run_until_complete(asyncio.wait(exchanges))
        loop.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read the head of a request, answer it, and end the connection."""
        self._open[writer] = None
        try:
            if len(self._open) > _MOST_OPEN:
                for _ in range(_PASSES):
                    await asyncio.sleep(0)
            while len(self._open) > _MOST_OPEN:
                self._open.pop(oldest := next(iter(self._open)))
                oldest.transport.abort()
            async with asyncio.timeout(_EXCHANGE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_response(head, self._answer, local_only=is_loopback(self._address[0])))
                writer.close()
                await writer.wait_closed()
        except _ENDED:
            pass
        except Exception:  # noqa: BLE001 - whatever a state cannot tell must not end the server
            _log_failure(writer.get_extra_info("peername"), exc_info=True)
        finally:
            self._open.pop(writer, None)
            writer.transport.abort()

    def _answer(self, path: str) -> tuple[int, str, bytes]:
        state, now_ns = self._state(), self._clock.monotonic_ns()
        match path.split("?", 1)[0]:
            case "/live":
                return _verdict(state is not None and state.is_live(now_ns))
            case "/ready":
                return _verdict(state is not None and state.is_ready(now_ns), "" if state is None else state.report)
            case "/state" if state is not None:
                return 200, "application/json", json.dumps(state.shown(now_ns), indent=1).encode()
            case "/metrics" if state is not None:
                return 200, "text/plain; version=0.0.4", metrics_text([*state.metrics(), build_info()]).encode()
            case "/state" | "/metrics":
                return _verdict(good=False)
            case _:
                return 404, "text/plain", b"there are /live, /ready, /state and /metrics\n"


@contextmanager
def serving(
    listen: tuple[str, int] | None, state: Callable[[], Shown | None], *, option: str = "--health"
) -> Iterator[None]:
    """Serve the state of this process while the block runs; `listen=None`: serve nothing.

    Raises:
        ConfigError: the server cannot listen on the address; it names the option.
    """
    if listen is None:
        yield
        return
    server = HealthServer(*listen, state, SystemClock())
    try:
        server.start()
    except OSError as error:
        raise ConfigError(f"{option} {listen[0]}:{listen[1]}: cannot listen there ({error})") from error
    _LOG.info("health.listening", extra={"host": listen[0], "port": server.port})
    try:
        yield
    finally:
        server.stop()


def is_loopback(host: str) -> bool:
    """Return whether a name or address is one of this machine that no other can connect to."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(host: str) -> str:
    """Return the name or address of a `Host` header without its port, in lower case; `""`: it is not valid."""
    found = _HOST.fullmatch(host.lower())
    return "" if found is None else found[1].strip("[]")


def _response(head: bytes, answer: Callable[[str], tuple[int, str, bytes]], *, local_only: bool) -> bytes:
    first, *fields = head.decode("latin-1").split("\r\n")
    method, path, version = [*first.split(" "), "", ""][:3]
    hosts = [value.strip() for name, _, value in (each.partition(":") for each in fields) if name.lower() == "host"]
    if not version.startswith("HTTP/1."):
        code, kind, body = 400, "text/plain", b"this is not HTTP/1\n"
    elif local_only and not all(is_loopback(host_name(each)) for each in hosts):
        code, kind, body = 421, "text/plain", b"this server listens for this machine only: ask it as localhost\n"
    elif method != "GET":
        code, kind, body = 501, "text/plain", b"there is only GET\n"
    else:
        code, kind, body = answer(path)
    lines = (
        f"HTTP/1.1 {code} {HTTPStatus(code).phrase}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Connection: close\r\n\r\n",
    )
    return "\r\n".join(lines).encode() + body


def _log_failure(client: object, exc_info: Any) -> None:
    _LOG.debug("health.request-failed", exc_info=exc_info, extra={"client": str(client)})


def _verdict(good: bool, report: str = "") -> tuple[int, str, bytes]:
    return 200 if good else 503, "text/plain; charset=utf-8", f"{'yes' if good else 'no'}\n{report}".encode()
