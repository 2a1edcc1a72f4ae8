"""The workers: what they say of themselves, the members of their group, and how late the delay levels are."""

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from rocketshim.console.context import Console
from rocketshim.console.groups import described
from rocketshim.observe.tables import levels_table

__all__ = ["show"]


def show(request: Request) -> Response:
    """Show the workers and the delay levels."""
    console = Console.of(request)
    snapshot, group = console.snapshot(), console.names.worker_group
    if snapshot is None or snapshot.worker is None:
        members, problem = described(console, group)
    else:
        partitions = tuple(queue.standing for queue in snapshot.queues)
        members, problem = replace(snapshot.worker, partitions=partitions), None
    return console.page(
        request,
        "workers.html",
        snapshot=snapshot,
        group=group,
        described=members,
        problem=problem,
        levels=None if snapshot is None else levels_table(snapshot),
        command=console.command("group lag", group),
    )
