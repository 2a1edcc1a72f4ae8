"""Retries of a group: what came back, and what still waits for its next attempt."""

from starlette.requests import Request
from starlette.responses import Response

from rocketshim.admin.record_view import RecordView
from rocketshim.console.context import Console
from rocketshim.console.reading import read_newest
from rocketshim.console.waiting import waiting_for_group

__all__ = ["show"]

_ON_A_PAGE = 50


def show(request: Request) -> Response:
    """Show a group's retries."""
    console, group = Console.of(request), request.path_params["group"]
    cursor = request.query_params.get("from")
    with console.reader() as reader:
        topic = console.names.retry(group)
        read = read_newest(console, reader, [topic], lambda _: True, results=_ON_A_PAGE, cursor=cursor)
    waiting, waiting_read = waiting_for_group(console, group)
    return console.page(
        request,
        "retrying.html",
        group=group,
        waiting=waiting,
        waiting_read=waiting_read,
        entries=[RecordView.of(record) for record in read.records],
        read=read,
        command=console.command("retry ls", group=group),
    )
