"""The first page: where to go."""

from starlette.requests import Request
from starlette.responses import Response

from rocketshim.console.context import Console

__all__ = ["show"]


def show(request: Request) -> Response:
    """Show what there is."""
    console = Console.of(request)
    return console.page(request, "overview.html", command=console.command("doctor"))
