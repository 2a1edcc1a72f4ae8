"""Logging in and out. A login makes a new session and sets its cookie; the token never stays in a URL."""

from http import HTTPStatus

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from rocketshim.console.context import Console
from rocketshim.console.forms import read_form
from rocketshim.console.guard import cookie_name
from rocketshim.console.people import Sessions, TooManyAttemptsError

__all__ = ["routes"]


def routes(sessions: Sessions) -> list[Route]:
    """Return the routes of the login page."""

    def show(request: Request) -> Response:
        """Show the form; a token in the URL, as it is printed at start, logs in immediately."""
        token = request.query_params.get("token")
        return _form(request) if token is None else _login(request, sessions, "", token)

    async def login(request: Request) -> Response:
        form = await read_form(request)
        return await run_in_threadpool(_login, request, sessions, form.get("name", ""), form.get("secret", ""))

    def logout(request: Request) -> Response:
        console = Console.of(request)
        name = cookie_name(console.settings)
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
        cookie_name(console.settings),
        session,
        path=console.settings.base_path or "/",
        secure=console.settings.is_https,
        httponly=True,
        samesite="strict",
    )
    return answer
