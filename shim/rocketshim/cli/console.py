"""`rocketshim console`: look at the cluster and send dead letters again, in a browser."""

import ctypes
import os
import socket
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketshim.cli.options import (
    Bootstrap,
    ClientSettings,
    DelayLevelsText,
    Namespace,
    ProfileName,
    WorkerUrls,
)
from rocketshim.console.people import new_token, user_line
from rocketshim.console.settings import ConsoleSettings
from rocketshim.errors import ConfigError
from rocketshim.extras import missing_extra
from rocketshim.health import address
from rocketshim_topics import DelayLevels

if TYPE_CHECKING:
    from rocketshim.kafka.clients import Clients
    from rocketshim_topics import Message

app = typer.Typer()

_SECURITY = "Security"
_M_ARENA_MAX = -8
_SEND_S = 10.0
_SWITCH_S = 0.001  # a page that decodes records lets the overview run after this time; by default after 5 ms


@app.command(epilog="Example: rocketshim console --bootstrap localhost:9092 --operate")
def console(
    *,
    profile: ProfileName = None,
    bootstrap: Bootstrap = "",
    client: ClientSettings,
    namespace: Namespace = "",
    delay_levels: DelayLevelsText = None,
    listen: Annotated[
        str, typer.Option(metavar="[HOST:]PORT", help="Address to listen on; without HOST, this machine only.")
    ] = "8085",
    operate: Annotated[
        bool,
        typer.Option(
            "--operate", help="Allow operators to send dead letters again, and messages. Without it, nothing writes."
        ),
    ] = False,
    auth: Annotated[
        str,
        typer.Option(
            metavar="token|@FILE|proxy",
            help="Who may log in: the token printed at start, the users of a file, or those that a proxy names.",
            rich_help_panel=_SECURITY,
        ),
    ] = "token",
    auth_proxy_header: Annotated[
        str, typer.Option(help="Header in which the proxy names the user.", rich_help_panel=_SECURITY)
    ] = "X-Forwarded-User",
    auth_proxy_groups_header: Annotated[
        str | None, typer.Option(help="Header in which the proxy names the user's groups.", rich_help_panel=_SECURITY)
    ] = None,
    trusted_proxy: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CIDR", help="Addresses that the proxy connects from; repeatable.", rich_help_panel=_SECURITY
        ),
    ] = None,
    operators: Annotated[
        str | None,
        typer.Option(metavar="GROUP", help="The proxy's group of those who may write.", rich_help_panel=_SECURITY),
    ] = None,
    public_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The console's URL in browsers, behind a proxy.", rich_help_panel=_SECURITY),
    ] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Certificate (PEM).", rich_help_panel=_SECURITY)
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="Its key (PEM).", rich_help_panel=_SECURITY)
    ] = None,
    hide: Annotated[
        str, typer.Option(metavar="bodies,headers", help="What no page shows.", rich_help_panel=_SECURITY)
    ] = "",
    no_export: Annotated[
        bool, typer.Option("--no-export", help="Do not allow downloading bodies.", rich_help_panel=_SECURITY)
    ] = False,
    worker_url: WorkerUrls = None,
    read_limit_mb: Annotated[int, typer.Option(min=1, help="How much one page may read, in MiB.")] = 32,
    state_dir: Annotated[
        Path | None, typer.Option(file_okay=False, help="Folder of the plans. Default: in the user's state folder.")
    ] = None,
    new_user: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:viewer|operator",
            help="Ask for a password, print this user's line for --auth @FILE, and end.",
            rich_help_panel=_SECURITY,
        ),
    ] = None,
) -> None:
    r"""Show what waits, retries, is dead or parked in a browser; read-only without --operate.

    Needs the extra `console`. Stop it with Ctrl-C; what it applies can be continued later.
    """
    del profile
    if new_user is not None:
        name, _, role = new_user.partition(":")
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        typer.echo(user_line(name, role, password))
        return
    if not bootstrap:
        raise typer.BadParameter("Missing option '--bootstrap' / '-b'.")
    host, port = address(listen, option="--listen")
    settings = ConsoleSettings.make(
        bootstrap=bootstrap,
        namespace=namespace,
        client=client,
        levels=DelayLevels.default() if delay_levels is None else DelayLevels.parse(delay_levels),
        host=host,
        port=port,
        operate=operate,
        auth=auth,
        proxy_header=auth_proxy_header,
        proxy_groups_header=auth_proxy_groups_header,
        trusted_proxies=tuple(trusted_proxy or ()),
        operators=operators,
        public_url=public_url,
        tls_cert=tls_cert,
        tls_key=tls_key,
        hide=frozenset(word.strip() for word in hide.split(",") if word.strip()),
        allow_export=not no_export,
        worker_urls=tuple(worker_url or ()),
        read_limit_bytes=read_limit_mb << 20,
        state_dir=state_dir or _state_dir(),
    )
    _serve(settings)


def _state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "rocketshim" / "plans"


def require_console() -> None:
    """Raise a `ConfigError` if a package of the console is not installed."""
    try:
        import uvicorn  # noqa: F401, PLC0415

        from rocketshim.console import server_app  # noqa: F401, PLC0415
    except ModuleNotFoundError as error:
        raise missing_extra("the console", error, "console") from error


def _serve(settings: ConsoleSettings) -> None:
    require_console()
    import uvicorn  # noqa: PLC0415 - an extra, and not needed for --new-user

    from rocketshim.console.server_app import ImpatientProtocol, make_app  # noqa: PLC0415

    token = new_token()
    try:
        family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
        listening = socket.create_server((settings.host, settings.port), family=family, backlog=2_048)
    except OSError as error:
        raise ConfigError(f"--listen {settings.host}:{settings.port}: cannot listen there ({error})") from error
    with listening:
        settings = settings.model_copy(update={"port": listening.getsockname()[1]})
        app = make_app(settings, token=token, send=partial(send, settings))
        tls: dict[str, Any] = {}
        if settings.tls_cert is not None:
            tls = {"ssl_certfile": settings.tls_cert, "ssl_keyfile": settings.tls_key}
        config = uvicorn.Config(
            app,
            http=ImpatientProtocol,
            log_level="warning",
            access_log=False,  # it would write the token of the first request
            proxy_headers=False,  # the guard must see the real address of a proxy
            server_header=False,
            timeout_graceful_shutdown=5,
            limit_concurrency=200,
            h11_max_incomplete_event_size=32_768,
            **tls,
        )
        try:
            config.load()
        except OSError as error:  # of the certificate: ssl.SSLError is one, too
            raise ConfigError(f"--tls-cert {settings.tls_cert}, --tls-key {settings.tls_key}: {error}") from error
        _share_heaps()
        sys.setswitchinterval(_SWITCH_S)
        _allow_many_files()
        for line in _welcome(settings, token):
            typer.echo(line, err=True)
        uvicorn.Server(config).run([listening])


def send(settings: ConsoleSettings, message: "Message", *, clients: "Clients | None" = None) -> tuple[str, str]:
    """Send a message as a program does; return its id and the coordinates of its first record."""
    from rocketshim.producer.producer import Producer  # noqa: PLC0415 - only an operator's message needs it

    producer = Producer(
        settings.bootstrap,
        namespace=settings.namespace,
        delay_levels=settings.levels,
        client=settings.client,
        clients=clients,
    )
    try:
        result = producer.send(message, timeout_s=_SEND_S)
    finally:
        producer.close(timeout_s=1.0)  # what has no report by now was reported as such
    return result.msg_id, result.offset_msg_id


def _share_heaps() -> None:
    """Let all threads share two heaps of glibc.

    Each page makes Kafka clients, and each of their threads may get a heap, which keeps what a large read has needed:
    up to eight heaps for each core.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def _allow_many_files() -> None:
    """Let this process open as many files as its user may, which is often far more than the usual 1,024.

    A page makes one or two Kafka clients, and each has two or three file handles for each broker.
    """
    with suppress(ImportError, OSError, ValueError):  # another system, or one that grants less than it says
        import resource  # noqa: PLC0415 - not on every system

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _welcome(settings: ConsoleSettings, token: str) -> list[str]:
    scheme = "https" if settings.tls_cert is not None else "http"
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    url = (settings.public_url or f"{scheme}://{host}:{settings.port}").rstrip("/")
    mode = "operators may change things" if settings.operate else "read-only"
    if settings.auth == "token":
        return [f"console ({mode}): {url}/login?token={token}", "Open this address once; then the cookie counts."]
    return [f"console ({mode}): {url}/"]
