"""The first page: how many messages wait, retry, are dead or parked, and which groups are behind; by offsets only."""

from starlette.requests import Request
from starlette.responses import Response

from rocketshim.console.context import Console

__all__ = ["show", "tiles"]


def show(request: Request) -> Response:
    """Show the tiles."""
    console = Console.of(request)
    return console.page(
        request,
        "overview.html",
        snapshot=console.snapshot(),
        command=console.command("doctor", delay_levels=console.delay_levels),
    )


def tiles(request: Request) -> Response:
    """Show only the tiles, for a page that is open already."""
    console = Console.of(request)
    return console.page(request, "tiles.html", snapshot=console.snapshot())
