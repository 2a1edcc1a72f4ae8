"""Assemble the console: routes, guard, error pages. Without `operate` no route exists that writes to the cluster.

Every request passes the guard first, and so does every answer's header. The order matters. A wrong host name ends the
request before anything else (DNS rebinding). A write must come from a page of our own (CSRF): the browser says so in
`Sec-Fetch-Site`; a browser without it sends `Origin`. A request with neither is refused. Then the login: without one,
only the login page and the static files are there. A path below the public URL's own path works with and without that
prefix, whether the proxy removes it or not.

Decides: Who may change something in the console? Operators (`console.people`), and nobody unless the console may
    operate; `Guard` decides who is let in: host, origin, size, login, in this order. A user in a proxy's header counts
    only from a trusted address: `console.people.ProxyUsers.person`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import ClassVar, Final

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from rocketshim.console import observed, plans, records, timers, topics
from rocketshim.console.context import Console, SendMessage
from rocketshim.console.forms import Form, read_form
from rocketshim.console.people import Person, ProxyUsers, Sessions, TooManyAttemptsError, Users, check_token, new_token
from rocketshim.console.settings import ConsoleSettings
from rocketshim.errors import (
    BrokerUnavailableError,
    ConfigError,
    FilterSyntaxError,
    NotAuthorizedError,
    RocketshimError,
    TopicMissingError,
)
from rocketshim.health import host_name
from rocketshim.kafka.clients import Clients
from rocketshim.logs import safe_logger

__all__ = ["CONTENT_SECURITY_POLICY", "Guard", "ImpatientProtocol", "make_app"]

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_HEADERS: Final = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
_MOST_BODY_BYTES: Final = 65_536


class Guard:
    """ASGI middleware around the whole application. It puts the `Person` into the request's state."""

    def __init__(self, app: ASGIApp, *, settings: ConsoleSettings, users: Sessions | ProxyUsers) -> None:
        self._app = app
        self._settings = settings
        self._hosts = settings.hosts  # looking up this machine's own name may take seconds
        self._users = users

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or answer it."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # we have no web sockets
            return
        scope = self._without_base_path(scope)
        answer = self._refusal(scope)
        if answer is not None:
            await answer(scope, receive, _with_headers(send, "no-store"))
        else:
            is_static = scope["path"].startswith("/static/")
            await self._app(scope, receive, _with_headers(send, "no-cache" if is_static else "no-store"))

    def _refusal(self, scope: Scope) -> Response | None:
        request = Request(scope)
        if not self._has_known_host(request):
            return _text(HTTPStatus.MISDIRECTED_REQUEST, "This console is not known under this name: use --public-url.")
        is_write = scope["method"] not in _SAFE_METHODS
        if is_write and not self._is_from_our_page(request.headers, request):
            return _text(HTTPStatus.FORBIDDEN, "Refused: the request does not come from a page of this console.")
        if is_write and "content-encoding" in request.headers:
            return _text(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Refused: a form must not be compressed.")
        if is_write and not _has_short_body(request.headers):
            return _text(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "Refused: the form is too large.")
        person = self._person(request)
        scope.setdefault("state", {})["person"] = person
        if person is None and not scope["path"].startswith(("/login", "/static/")):
            if isinstance(self._users, ProxyUsers):
                return _text(HTTPStatus.FORBIDDEN, "Refused: use the console through its proxy, and log in there.")
            if is_write or request.headers.get("hx-request"):
                return _text(HTTPStatus.UNAUTHORIZED, "Your session has ended: load the page again and log in.")
            return RedirectResponse(f"{self._settings.base_path}/login", HTTPStatus.SEE_OTHER)
        return None

    def _person(self, request: Request) -> Person | None:
        if isinstance(self._users, ProxyUsers):
            address = request.client.host if request.client else None
            return self._users.person(address, request.headers)
        return self._users.person(request.cookies.get(_cookie_name(self._settings), ""))

    def _has_known_host(self, request: Request) -> bool:
        hosts = request.headers.getlist("host")
        return len(hosts) == 1 and host_name(hosts[0]) in self._hosts

    def _is_from_our_page(self, headers: Headers, request: Request) -> bool:
        sites = set(headers.getlist("sec-fetch-site"))
        if sites:
            return sites == {"same-origin"}
        own = self._settings.origin or f"{request.url.scheme}://{headers.get('host', '')}".lower()
        return [each.lower() for each in headers.getlist("origin")] == [own]

    def _without_base_path(self, scope: Scope) -> Scope:
        base = self._settings.base_path
        if base and (scope["path"] == base or scope["path"].startswith(f"{base}/")):
            return {**scope, "path": scope["path"].removeprefix(base) or "/"}
        return dict(scope)


def _cookie_name(settings: ConsoleSettings) -> str:
    """Return the name of the session's cookie; with the port, because cookies do not tell ports apart."""
    return f"rocketshim_{settings.port}"


def _with_headers(send: Send, cache: str) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            headers["cache-control"] = cache
        await send(message)

    return sending


def _has_short_body(headers: Headers) -> bool:
    """Return whether a body is small enough; one in chunks, which no length counts for, is not."""
    length = headers.get("content-length", "0")
    is_short = length.isdecimal() and len(length) < 9 and int(length) <= _MOST_BODY_BYTES
    return is_short and "transfer-encoding" not in headers


def _text(status: HTTPStatus, text: str) -> Response:
    return PlainTextResponse(text + "\n", status)


def _login_routes(sessions: Sessions) -> list[Route]:
    """Return the routes of the login page. A login makes a new session; the token never stays in a URL."""
    checking = asyncio.Semaphore()  # one password at a time, and the others wait outside the threads

    def show(request: Request) -> Response:
        """Show the form; a token in the URL, as it is printed at start, logs in immediately."""
        token = request.query_params.get("token")
        is_token = token is not None and Console.of(request).settings.auth == "token"
        return _login(request, sessions, "", token or "") if is_token else _form(request)

    async def login(request: Request) -> Response:
        form = await read_form(request)
        name = "" if Console.of(request).settings.auth == "token" else form.get("name", "") or "-"
        async with checking:
            return await run_in_threadpool(_login, request, sessions, name, form.get("secret", ""))

    def logout(request: Request) -> Response:
        console = Console.of(request)
        name = _cookie_name(console.settings)
        sessions.logout(request.cookies.get(name, ""))
        answer = RedirectResponse(console.url("login"), HTTPStatus.SEE_OTHER)
        answer.delete_cookie(name, path=console.settings.base_path or "/")
        return answer

    return [
        Route("/login", show, methods=["GET"]),
        Route("/login", login, methods=["POST"]),
        Route("/logout", logout, methods=["POST"]),
    ]


def _form(request: Request, status: int = 200, error: str = "") -> Response:
    console = Console.of(request)
    with_name = console.settings.auth != "token"
    return console.page(request, "login.html", status=status, error=error, with_name=with_name)


def _login(request: Request, sessions: Sessions, name: str, secret: str) -> Response:
    console = Console.of(request)
    try:
        session = sessions.login(name, secret)
    except TooManyAttemptsError:
        return _form(request, HTTPStatus.TOO_MANY_REQUESTS, "Too many logins failed. Try again in a minute.")
    if session is None:
        return _form(request, HTTPStatus.UNAUTHORIZED, "That is not right.")
    answer = RedirectResponse(console.url(""), HTTPStatus.SEE_OTHER)
    answer.set_cookie(
        _cookie_name(console.settings),
        session,
        path=console.settings.base_path or "/",
        secure=console.settings.is_https,
        httponly=True,
        samesite="strict",
    )
    return answer


Page = Callable[[Request], Response]
Write = Callable[[Request, Form], Response]

_LOG = safe_logger("rocketshim.console")

_PAGES: Final[dict[str, Page]] = {
    "/": observed.overview,
    "/tiles": observed.tiles,
    "/topics": topics.listed,
    "/topics/{topic}": topics.show,
    "/waiting": observed.waiting,
    "/waiting/records": observed.listed,
    "/timers": timers.listed,
    "/timers/name": timers.show,
    "/retrying/{group}": observed.retries,
    "/groups": observed.groups,
    "/groups/{group}": observed.group,
    "/parked": records.parked,
    "/workers": observed.workers,
    "/doctor": observed.doctor,
    "/dead": records.topics,
    "/dead/{topic}": records.causes,
    "/dead/{topic}/letters": records.letters,
    "/plans": plans.listed,
    "/plans/{plan}": plans.show,
    "/plans/{plan}/progress": plans.progress,
    "/plans/{plan}/file": plans.file,
    "/message": records.by_id,
    "/message/{topic}/{partition}/{offset}": records.show,
    "/message/{topic}/{partition}/{offset}/body": records.body,
}
"""Path to the handler of a page. A handler only reads."""

_QUICK: Final = frozenset({"/", "/tiles", "/groups", "/workers", "/plans/{plan}/file"})
"""The pages that read no topic: they never wait for those that do."""

_AT_ONCE: Final = 2
"""Pages that read topics at a time: each needs memory, and they share one interpreter with the overview."""

_TURN_S: Final = 5.0

_WRITES: Final[dict[str, Write]] = {
    "/dead/{topic}/plans": plans.make,
    "/plans/{plan}/apply": plans.apply,
    "/plans/{plan}/stop": plans.stop,
    "/timers/command": timers.command,
    "/topics/{topic}/messages": topics.send,
    "/groups/{group}/command": observed.command,
}
"""Path to the handler of a form that changes something; operators only, and only with `operate`."""

_STATUS: Final = {
    ConfigError: HTTPStatus.BAD_REQUEST,
    FilterSyntaxError: HTTPStatus.BAD_REQUEST,
    TopicMissingError: HTTPStatus.NOT_FOUND,
    NotAuthorizedError: HTTPStatus.FORBIDDEN,
    BrokerUnavailableError: HTTPStatus.SERVICE_UNAVAILABLE,
}


def make_app(
    settings: ConsoleSettings,
    *,
    clients: Clients | None = None,
    token: str | None = None,
    send: SendMessage | None = None,
) -> Starlette:
    """Return the console as an ASGI application; with `auth=token`, `token` (or a new one) is the secret to log in."""
    console = Console(settings, clients, send)
    users = _users(settings, token or new_token(), console.now_ms)
    routes: list[BaseRoute] = [Mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))]
    turns, planning = asyncio.Semaphore(_AT_ONCE), asyncio.Semaphore()
    routes += [Route(path, page if path in _QUICK else _in_turn(page, turns)) for path, page in _PAGES.items()]
    if isinstance(users, Sessions):
        routes += _login_routes(users)
    if settings.operate:
        routes += [Route(path, _operators_only(write, planning), methods=["POST"]) for path, write in _WRITES.items()]
    app = Starlette(
        routes=routes,
        middleware=[Middleware(Guard, settings=settings, users=users)],
        exception_handlers={RocketshimError: _explain, HTTPException: _explain_status, Exception: _log_bug},
        lifespan=_lifespan,
    )
    app.state.console = console
    app.state.doctor = observed.DoctorVisits(console)
    return app


def _users(settings: ConsoleSettings, token: str, now_ms: Callable[[], int]) -> Sessions | ProxyUsers:
    if settings.auth == "proxy":
        return ProxyUsers(
            settings.proxy_header,
            groups_header=settings.proxy_groups_header,
            operators=settings.operators,
            trusted=settings.trusted_proxies,
        )
    if settings.auth == "token":
        return Sessions(partial(check_token, token), now_ms)
    users = Users.of(Path(settings.auth[1:]))
    return Sessions(users.check, now_ms, users.entry)


@asynccontextmanager
async def _lifespan(app: Starlette) -> AsyncIterator[None]:
    console: Console = app.state.console
    with console.sampler.watch():  # look at the cluster now, so that the first page need not wait for it
        pass
    yield
    await run_in_threadpool(console.close)


def _in_turn(page: Page, turns: asyncio.Semaphore) -> Callable[[Request], Awaitable[Response]]:
    """Let a page that reads topics wait for its turn outside the threads, which the other pages need."""

    async def handle(request: Request) -> Response:
        try:
            async with asyncio.timeout(_TURN_S):
                await turns.acquire()
        except TimeoutError:
            return _busy(request)
        try:
            return await run_in_threadpool(page, request)
        finally:
            turns.release()

    return handle


def _busy(request: Request) -> Response:
    status = HTTPStatus.SERVICE_UNAVAILABLE
    text = f"The console reads topics for {_AT_ONCE} pages at a time, and others wait. This page loads itself again."
    page = Console.of(request).page(request, "error.html", status=status, title="Waiting for other pages", text=text)
    page.headers.update({"retry-after": "3", "refresh": "3"})
    return page


def _operators_only(write: Write, planning: asyncio.Semaphore) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        if request.state.person.role != "operator":
            raise HTTPException(HTTPStatus.FORBIDDEN, "Only operators may do this.")
        form = await read_form(request)
        if write is not plans.make:
            return await run_in_threadpool(write, request, form)
        async with planning:  # it reads a whole topic and keeps a plan of it: one at a time
            return await run_in_threadpool(write, request, form)

    return handle


def _explain(request: Request, error: Exception) -> Response:
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), HTTPStatus.BAD_GATEWAY)
    return Console.of(request).page(request, "error.html", status=status, title=status.phrase, text=str(error))


def _explain_status(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise TypeError("not an HTTP error")
    phrase = HTTPStatus(error.status_code).phrase
    if "person" not in request.scope.get("state", {}):
        return PlainTextResponse(phrase, error.status_code)
    text = "" if error.detail == phrase else error.detail
    page = Console.of(request).page(request, "error.html", status=error.status_code, title=phrase, text=text)
    page.headers.update(error.headers or {})
    return page


def _log_bug(request: Request, error: Exception) -> Response:
    _LOG.error("console.page-failed", exc_info=error, extra={"path": request.url.path})
    return PlainTextResponse("This is a bug in rocketshim; the console's log has the details.\n", 500)


class ImpatientProtocol(H11Protocol):
    """The HTTP protocol of uvicorn, which ends a connection after 10 to 20 s without progress.

    The server accepts a limited number of connections, and uvicorn ends only those that wait for another request.
    Looking twice at each finds the others that get nowhere: the same request is not complete, or the same bytes are not
    sent. A page that takes long is not among them.
    """

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
