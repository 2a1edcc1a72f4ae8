"""Every request passes here first: the host's name, a write's origin and size, the login; and every answer's headers.

The order matters. A wrong host name ends the request before anything else (DNS rebinding). A write must come from a
page of our own (CSRF): the browser says so in `Sec-Fetch-Site`; a browser without it sends `Origin`. A request with
neither is refused. Then the login: without one, only the login page and the static files are there.

A path below the public URL's own path works with and without that prefix, whether the proxy removes it or not.
"""

import re
from http import HTTPStatus
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rocketshim.console.people import Person, ProxyUsers, Sessions
from rocketshim.console.settings import ConsoleSettings

__all__ = ["CONTENT_SECURITY_POLICY", "Guard", "cookie_name"]

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
_HOST: Final = re.compile(r"(\[[0-9a-f:.]+\]|[^\[\]:@/\s]+)(:[0-9]{1,5})?")
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
        return self._users.person(request.cookies.get(cookie_name(self._settings), ""))

    def _has_known_host(self, request: Request) -> bool:
        hosts = request.headers.getlist("host")
        return len(hosts) == 1 and _host_name(hosts[0]) in self._hosts

    def _is_from_our_page(self, headers: Headers, request: Request) -> bool:
        sites = set(headers.getlist("sec-fetch-site"))
        if sites:
            return sites == {"same-origin"}
        own = self._settings.origin or f"{request.url.scheme}://{headers.get('host', '')}".lower()
        return headers.get("origin", "").lower() == own

    def _without_base_path(self, scope: Scope) -> Scope:
        base = self._settings.base_path
        if base and (scope["path"] == base or scope["path"].startswith(f"{base}/")):
            return {**scope, "path": scope["path"].removeprefix(base) or "/"}
        return dict(scope)


def cookie_name(settings: ConsoleSettings) -> str:
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


def _host_name(host: str) -> str:
    """Return the name or address of a `Host` header without its port, in lower case; `""`: it is not valid."""
    found = _HOST.fullmatch(host.lower())
    return "" if found is None else found[1].strip("[]")


def _text(status: HTTPStatus, text: str) -> Response:
    return PlainTextResponse(text + "\n", status)
