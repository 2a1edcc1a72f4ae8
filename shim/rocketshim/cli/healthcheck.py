"""`rocketshim healthcheck URL`: ask a process for its health, for containers without curl."""

import urllib.error
import urllib.request
from http import HTTPStatus
from http.client import HTTPException
from typing import Annotated

import typer

from rocketshim.cli.app import FINDING
from rocketshim.cli.options import seconds
from rocketshim.core.user_values import one_line
from rocketshim.errors import ConfigError

app = typer.Typer()


@app.command(epilog="Example: rocketshim healthcheck http://127.0.0.1:8080/live")
def healthcheck(
    *,
    url: Annotated[str, typer.Argument(metavar="URL", help="What to ask, for example http://127.0.0.1:8080/ready.")],
    timeout: Annotated[
        float, typer.Option(parser=seconds(0.1), metavar="DURATION", help="How long to wait for the answer.")
    ] = 3.0,
) -> None:
    """Ask a process for its health: exit code 0 if it answers 200, else 2."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{url!r}: write a URL that begins with http:// or https://")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # the process itself, never a proxy
    try:
        with opener.open(url, timeout=timeout) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        with error:
            status = error.code
    except (OSError, ValueError, HTTPException) as error:
        typer.echo(one_line(f"{url}: no answer ({error})"), err=True)
        raise typer.Exit(FINDING) from error
    if status != HTTPStatus.OK:
        typer.echo(one_line(f"{url}: {status}"), err=True)
        raise typer.Exit(FINDING)
