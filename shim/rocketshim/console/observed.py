"""What the sampler and the doctor know of the cluster: overview, groups, workers, findings."""

import threading
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from rocketshim.admin.doctor import Finding, examine
from rocketshim.admin.group_log_snapshot import GroupLogStanding, group_log
from rocketshim.console.context import Console
from rocketshim.errors import ConfigError, RocketshimError, TopicMissingError
from rocketshim.observe.groups import GroupReader
from rocketshim.observe.snapshot import GroupStanding, conflicts
from rocketshim.observe.tables import levels_table
from rocketshim.settings import ConnectionSettings

__all__ = ["DoctorVisits", "doctor", "group", "groups", "overview", "tiles", "workers"]

_EXAMINED_EVERY_MS: Final = 300_000


def overview(request: Request) -> Response:
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


def groups(request: Request) -> Response:
    """List the groups that use rocketshim."""
    console = Console.of(request)
    return console.page(request, "groups.html", snapshot=console.snapshot(), command=console.command("group ls"))


def group(request: Request) -> Response:
    """Show a group: its partitions, members, subscriptions and locks."""
    console, name = Console.of(request), request.path_params["group"]
    snapshot = console.snapshot()
    standing = None if snapshot is None else next((each for each in snapshot.groups if each.group == name), None)
    is_known = standing is not None and standing.members is not None
    members, problem = (standing, None) if is_known else _described(console, name)
    locks = _locks(console, name)
    if standing is None and locks is None and (members is None or not members.partitions):
        raise HTTPException(404, "This group has committed nothing, and has no topics of rocketshim here.")
    names = console.names
    return console.page(
        request,
        "group.html",
        group=name,
        snapshot=snapshot,
        partitions=(standing or members or GroupStanding(name)).partitions,
        described=members,
        problem=problem,
        conflicts=[] if members is None else conflicts(members, retry_topic=names.retry(name)),
        locks=locks,
        retry_topic=names.retry(name),
        dead_topic=names.dead_letter(name),
        command=console.command("group lag", name),
    )


def _described(console: Console, group: str) -> tuple[GroupStanding | None, str | None]:
    """Return members and subscriptions, or why they cannot be read. A Kafka in memory has no such requests."""
    if console.clients is not None and console.clients.admin is None:
        return None, None
    try:
        with console.reader() as reader:
            return GroupReader(reader).read(group), None
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


def workers(request: Request) -> Response:
    """Show the workers and the delay levels."""
    console = Console.of(request)
    snapshot, group = console.snapshot(), console.names.worker_group
    if snapshot is None or snapshot.worker is None:
        members, problem = _described(console, group)
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


@dataclass
class DoctorVisits:
    """Examines the cluster at most every five minutes, however many ask.

    Thread-safety: any thread; while one examines, the others wait for its result.
    """

    console: Console
    found: list[Finding] = field(default_factory=list)
    at_ms: int | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def findings(self) -> tuple[list[Finding], int]:
        """Return the findings, and when they were found, epoch ms."""
        from rocketshim.admin.doctor.gather import gather  # noqa: PLC0415 - it loads much

        with self.lock:
            now_ms, settings = self.console.now_ms(), self.console.settings
            if self.at_ms is None or now_ms - self.at_ms >= _EXAMINED_EVERY_MS:
                if self.console.clients is not None and self.console.clients.admin is None:
                    raise ConfigError("a Kafka in memory cannot be examined")
                facts = gather(settings.bootstrap, self.console.names, settings.levels, client=settings.client)
                self.found, self.at_ms = examine(facts), now_ms
            return self.found, self.at_ms


def doctor(request: Request) -> Response:
    """Show the findings."""
    console = Console.of(request)
    visits: DoctorVisits = request.app.state.doctor
    findings, at_ms = visits.findings()
    return console.page(
        request,
        "doctor.html",
        findings=findings,
        at_ms=at_ms,
        command=console.command("doctor", delay_levels=console.delay_levels),
    )
