"""Consumer groups: what they have not read, what retention took from them, and the locks of orderly queues."""

from contextlib import suppress

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from rocketshim.admin.group_log_snapshot import GroupLogStanding, group_log
from rocketshim.console.context import Console
from rocketshim.errors import ConfigError, RocketshimError, TopicMissingError
from rocketshim.observe.groups import GroupReader
from rocketshim.observe.snapshot import GroupStanding, conflicts
from rocketshim.settings import ConnectionSettings

__all__ = ["described", "listed", "show"]


def listed(request: Request) -> Response:
    """List the groups that use rocketshim."""
    console = Console.of(request)
    return console.page(request, "groups.html", snapshot=console.snapshot(), command=console.command("group ls"))


def show(request: Request) -> Response:
    """Show a group: its partitions, members, subscriptions and locks."""
    console, group = Console.of(request), request.path_params["group"]
    snapshot = console.snapshot()
    standing = None if snapshot is None else next((each for each in snapshot.groups if each.group == group), None)
    is_known = standing is not None and standing.members is not None
    members, problem = (standing, None) if is_known else described(console, group)
    locks = _locks(console, group)
    if standing is None and locks is None and (members is None or not members.partitions):
        raise HTTPException(404, "This group has committed nothing, and has no topics of rocketshim here.")
    names = console.names
    return console.page(
        request,
        "group.html",
        group=group,
        snapshot=snapshot,
        partitions=(standing or members or GroupStanding(group)).partitions,
        described=members,
        problem=problem,
        conflicts=[] if members is None else conflicts(members, retry_topic=names.retry(group)),
        locks=locks,
        retry_topic=names.retry(group),
        dead_topic=names.dead_letter(group),
        command=console.command("group lag", group),
    )


def described(console: Console, group: str) -> tuple[GroupStanding | None, str | None]:
    """Return members and subscriptions, or why they cannot be read. A Kafka in memory has no such requests."""
    if console.clients is not None and console.clients.admin is None:
        return None, None
    try:
        return GroupReader(console.settings.bootstrap, console.settings.client).read(group), None
    except RocketshimError as error:
        return None, str(error)


def _locks(console: Console, group: str) -> GroupLogStanding | None:
    """Return the group's log; None: the group has none, because it never consumed in order."""
    connection = ConnectionSettings.make(
        bootstrap=console.settings.bootstrap, namespace=console.settings.namespace, client=console.settings.client
    )
    with suppress(TopicMissingError, ConfigError):
        return group_log(connection, group, console.clients)
    return None
