"""What the sampler and the doctor know of the cluster: overview, groups, workers, findings; and what waits.

A sparkline shows the last hour, as far as the sampler has seen it: a gap is where nobody watched.

The histogram of delayed and retried messages reads no record. A queue's records are appended in order, and each leaves
one fixed delay after it was appended. So "what leaves before 14:00" is "what was appended before 14:00 minus the
delay", and Kafka finds that offset by its time index: one request for each bar, for all queues together.
"""

import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rocketshim.admin.doctor import Finding, Severity, set_up
from rocketshim.admin.group_log_snapshot import GroupLogStanding, StoredCommand, group_log
from rocketshim.admin.member_view import member_views
from rocketshim.admin.queue_commands import command_owner, failing_message, failing_messages, outcome
from rocketshim.admin.record_filter import selecting
from rocketshim.admin.record_view import RecordView
from rocketshim.console.context import Console, signature
from rocketshim.console.forms import Form, Selection, whole
from rocketshim.console.reading import BoundedReading, read_newest
from rocketshim.errors import ConfigError, RocketshimError, TopicMissingError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.logs import safe_logger
from rocketshim.observe.delay_queues import DelayedReader
from rocketshim.observe.finding import Installation
from rocketshim.observe.groups import GroupReader
from rocketshim.observe.history import GAP_MS, HOUR_MS, History, Series
from rocketshim.observe.snapshot import DelayQueue, GroupStanding, Snapshot, WaitingRecord, conflicts, waiting_record
from rocketshim.observe.tables import levels_table
from rocketshim.observe.verdict import verdict
from rocketshim.settings import ConnectionSettings
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.group_log import QueueCommand
from rocketshim_topics.hops import is_probe
from rocketshim_topics.layout import Layout
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.wire import headers_shown

__all__ = [
    "EDGES",
    "DoctorVisits",
    "Sparkline",
    "command",
    "doctor",
    "group",
    "groups",
    "leaving",
    "listed",
    "overview",
    "retries",
    "sparkline",
    "tiles",
    "waiting",
    "workers",
]

_LOG: Final = safe_logger("rocketshim.console")
_ON_A_PAGE: Final = 50
_MOST_CURVES: Final = 100
_LEAST_SPAN_MS: Final = 600_000
"""Of a curve: the first minutes are not spread over its whole width."""
_OF_A_GROUP: Final[dict[Series, str]] = {
    "read": "read a second",
    "behind": "offsets behind",
    "retries": "retries a minute",
    "dead": "new dead letters a minute",
}
_OF_ALL: Final[dict[Series, str]] = {**_OF_A_GROUP, "waiting": "waiting messages", "parked": "newly parked a minute"}
_REPORT_S: Final = 3.0
EDGES: Final = (
    *((0, "due now"), (10_000, "10 s"), (60_000, "1 min"), (300_000, "5 min"), (900_000, "15 min")),
    *((1_800_000, "30 min"), (3_600_000, "1 h"), (7_200_000, "2 h"), (21_600_000, "6 h"), (86_400_000, "1 d")),
)


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A curve of the last hour, or of what is known of it, to the scale of its largest value."""

    label: str  # what it shows, in words and numbers; `""`: there is nothing to show
    path: str  # of SVG, in a field of 120 by 24
    now: str  # the newest value; `–`: not known


def sparkline(what: str, points: Sequence[tuple[int, float]], now_ms: int) -> Sparkline:
    """Return the curve of these times and values; it is broken where values are missing."""
    if not points:
        return Sparkline("", "", "–")
    values = [value for _, value in points]
    most, path, before_ms = max(values) or 1.0, "", -GAP_MS
    span_ms = max(_LEAST_SPAN_MS, now_ms - points[0][0])
    for at_ms, value in points:
        x, y = round(120 - 120 * (now_ms - at_ms) / span_ms, 1), round(23 - 22 * value / most, 1)
        path += f"L{x} {y}" if at_ms - before_ms < GAP_MS else f"M{x} {y}h0"  # a dot, unless it goes on
        before_ms = at_ms
    now = _amount(values[-1]) if now_ms - before_ms < GAP_MS else "–"
    minutes = max(1, round((now_ms - points[0][0]) / 60_000))
    label = f"{what}, the last {minutes} min: now {now}, most {_amount(max(values))}, least {_amount(min(values))}"
    return Sparkline(label, path, now)


def _amount(value: float) -> str:
    return f"{value:,.1f}".removesuffix(".0") if value < 10 else f"{value:,.0f}"


def _curves(history: History, snapshot: Snapshot | None, what: dict[Series, str], group: str | None = None) -> Any:
    """Return a curve for each of these series, of all groups or of one."""
    now_ms = 0 if snapshot is None else snapshot.at_ms
    of = "" if group is None else f"{group}: "
    since_ms = now_ms - HOUR_MS
    return {
        name: sparkline(of + text, history.series(name, group, since_ms=since_ms), now_ms)
        for name, text in what.items()
    }


def waiting(request: Request) -> Response:
    """Show the queues, and when what waits leaves them."""
    console = Console.of(request)
    snapshot = console.snapshot()
    bars: dict[str, int] = {}
    if snapshot is not None and snapshot.waiting:
        with console.reader() as reader:
            bars = leaving(reader, snapshot.queues, snapshot.at_ms)
    return console.page(
        request,
        "waiting.html",
        snapshot=snapshot,
        bars=bars,
        most=max(bars.values(), default=1) or 1,
        command=console.command("delayed stats", delay_levels=console.delay_levels),
    )


def listed(request: Request) -> Response:
    """List the newest waiting records of a target, condition and tags, the first that is due first."""
    console = Console.of(request)
    selection, target = Selection.of(request.query_params, console.settings), request.query_params.get("target")
    selects = selecting(selection.where, selection.tags)
    found, read = _waiting(
        console, lambda record, entry: target in {None, "", entry.target} and selects(headers_shown(record))
    )
    return console.page(
        request,
        "waiting_list.html",
        selection=selection,
        target=target,
        found=found,
        read=read,
        command=console.command(
            "delayed ls",
            topic=target,
            where=selection.where,
            tags=selection.tags,
            delay_levels=console.delay_levels,
        ),
    )


def retries(request: Request) -> Response:
    """Show a group's retries."""
    console, group = Console.of(request), request.path_params["group"]
    cursor = request.query_params.get("from")
    with console.reader() as reader:
        topic = console.names.retry(group)
        read = read_newest(reader, [topic], lambda _: True, console.limits(_ON_A_PAGE), cursor=cursor)
    found, waiting_read = _waiting(console, lambda _, entry: entry.group == group)
    return console.page(
        request,
        "retrying.html",
        group=group,
        waiting=found,
        waiting_read=waiting_read,
        entries=[RecordView.of(record) for record in read.records],
        read=read,
        command=console.command("retry ls", group=group),
    )


def leaving(reader: TopicReader, queues: Iterable[DelayQueue], now_ms: int) -> dict[str, int]:
    """Return the histogram of when waiting records leave their queues, without reading one.

    Each count is of those that leave within a time from now that the bars before do not cover. Queues without a delay
    of the level table are left out.
    """
    spans = {}
    delays = {}
    for queue in queues:
        if queue.waiting and queue.delay_ms is not None:
            key = TopicPartitionKey(queue.standing.topic, queue.partition)
            spans[key] = queue.standing.unread
            delays[key] = queue.delay_ms
    bars: dict[str, int] = {}
    before = 0
    for edge_ms, text in EDGES:
        found = reader.offsets_at_times({key: max(0, now_ms + edge_ms - delay + 1) for key, delay in delays.items()})
        until = sum(min(max(found.get(key, end), start), end) - start for key, (start, end) in spans.items())
        bars[text] = until - before
        before = until
    later = sum(end - start for start, end in spans.values()) - before
    return bars | {"later": later} if later else bars


def _waiting(console: Console, wanted: Any) -> tuple[list[WaitingRecord], BoundedReading]:
    """Return the newest waiting records, the first that is due first, and how the reading ended."""
    settings, names = console.settings, console.names
    levels = settings.levels

    def is_wanted(record: Any) -> bool:
        return not is_probe(record) and bool(wanted(record, waiting_record(record, levels)))

    with console.reader() as reader:
        spans = DelayedReader(reader, names, levels).spans()
        read = read_newest(reader, [names.schedule], is_wanted, console.limits(_ON_A_PAGE), spans=spans)
    found = [waiting_record(record, levels) for record in read.records]
    return sorted(found, key=lambda entry: entry.due_ms or 0), read


_EXAMINED_EVERY_MS: Final = 300_000


def overview(request: Request) -> Response:
    """Show the tiles."""
    console = Console.of(request)
    return console.page(
        request,
        "overview.html",
        **_now(request),
        command=console.command("status", delay_levels=console.delay_levels),
    )


def tiles(request: Request) -> Response:
    """Show only the tiles, for a page that is open already."""
    return Console.of(request).page(request, "tiles.html", **_now(request))


def _now(request: Request) -> dict[str, Any]:
    """Return the newest snapshot, and what is wrong by it and by the doctor's last visit, if somebody asked for one."""
    visits: DoctorVisits = request.app.state.doctor
    snapshot = visits.console.snapshot(soon=True)
    is_known = snapshot is not None and snapshot.error is None
    findings = visits.on_overview(snapshot) if snapshot and is_known else None
    curves = _curves(visits.console.sampler.history, snapshot, _OF_ALL)
    page_of = partial(_page_of, visits.console)
    return {"snapshot": snapshot, "findings": findings, "curves": curves, "page_of": page_of}


def _page_of(console: Console, finding: Finding) -> str | None:
    """Return the page that shows what a finding is about; None: there is none beside the doctor's."""
    match finding.check:
        case "queue-blocked" | "group-behind":
            return console.url("groups", finding.subject.partition(" on ")[0])
        case "dead-letters-rising":
            return console.url("dead", console.names.dead_letter(finding.subject))
        case "worker-missing" | "worker-late" | "worker-not-ready" | "target-avoided":
            return console.url("workers")
        case "target-missing":
            return console.url("waiting", "records")
        case "timers-late":
            return console.url("timers")
        case "parked":
            return console.url("parked")
        case _:
            return None


def groups(request: Request) -> Response:
    """List the groups that use rocketshim."""
    console = Console.of(request)
    snapshot = console.snapshot()
    shown = () if snapshot is None else snapshot.groups[:_MOST_CURVES]
    row: dict[Series, str] = {"read": _OF_A_GROUP["read"], "behind": _OF_A_GROUP["behind"]}
    curves = {each.group: _curves(console.sampler.history, snapshot, row, each.group) for each in shown}
    return console.page(
        request, "groups.html", snapshot=snapshot, curves=curves, most=_MOST_CURVES, command=console.command("group ls")
    )


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
        curves=_curves(console.sampler.history, snapshot, _OF_A_GROUP, name),
        partitions=(standing or members or GroupStanding(name)).partitions,
        described=members,
        problem=problem,
        conflicts=[] if members is None else conflicts(members, retry_topic=names.retry(name)),
        locks=locks,
        members=[] if locks is None else member_views(locks),
        failing=list(islice(failing_messages(name, locks), _ON_A_PAGE)) if locks else [],
        commands=[] if locks is None else [(each, _became(name, locks, each)) for each in reversed(locks.commands)],
        stored=whole(request.query_params, "stored"),
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
    with suppress(TopicMissingError, ConfigError):
        return group_log(_connection(console), group, console.clients)
    return None


def _connection(console: Console) -> ConnectionSettings:
    settings = console.settings
    return ConnectionSettings.make(bootstrap=settings.bootstrap, namespace=settings.namespace, client=settings.client)


def _became(group: str, standing: GroupLogStanding, command: StoredCommand) -> str:
    record = command.record
    return outcome(failing_message(group, standing, record.queue, record.offset), record.token)


def command(request: Request, form: Form) -> Response:
    """Have the owner of an orderly queue try a failing message now, or make it a dead letter."""
    console, name = Console.of(request), request.path_params["group"]
    number, offset, do = whole(form, "partition"), whole(form, "offset"), form.get("do", "")
    if number is None or offset is None or do not in set(QueueCommand):
        raise ConfigError("give the partition and offset of a message, and do: try-now or dead-letter")
    result = command_owner(
        _connection(console),
        name,
        MessageQueue(console.names.physical(form.get("topic", "")), queue_id=number),
        offset,
        QueueCommand(do),
        by=signature(request),
        token=whole(form, "token"),
        wait_s=_REPORT_S,
        clients=console.clients,
    )
    if result.stored_at is None:
        why = result.why_not or "the queue has changed hands since the page was loaded"
        raise ConfigError(f"{why}: nothing was done; look again")
    facts = {"group": name, "record": result.before.record, "do": do, "by": request.state.person.name}
    _LOG.info("console.queue-commanded", extra=facts | {"offset": result.stored_at})
    return RedirectResponse(console.url("groups", name, stored=str(result.stored_at)), 303)


def workers(request: Request) -> Response:
    """Show the workers and the delay levels."""
    console = Console.of(request)
    snapshot, group = console.snapshot(), console.names.worker_group
    if snapshot is None or snapshot.worker is None:
        members, problem = _described(console, group)
    else:
        partitions = tuple(queue.standing for queue in (*snapshot.queues, *snapshot.timers))
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
    found: list[Finding] = field(default_factory=list)  # what is wrong in the set-up
    at_ms: int | None = None
    begun_ms: int = 0  # when the overview last began a visit
    lock: threading.Lock = field(default_factory=threading.Lock)

    def findings(self) -> tuple[list[Finding], int]:
        """Return the findings, and when they were found, epoch ms."""
        from rocketshim.admin.doctor.gather import gather  # noqa: PLC0415 - it loads much

        with self.lock:
            now_ms, settings = self.console.now_ms(), self.console.settings
            if self.at_ms is None or now_ms - self.at_ms >= _EXAMINED_EVERY_MS:
                if self.console.clients is not None and self.console.clients.admin is None:
                    raise ConfigError("a Kafka in memory cannot be examined")
                where, look = (settings.bootstrap, self.console.names, settings.levels), self.console.snapshot()
                facts = gather(*where, client=settings.client, look=look)
                self.found, self.at_ms = set_up(facts), now_ms
            return self.found, self.at_ms

    def with_now(self, snapshot: Snapshot) -> list[Finding]:
        """Return what is wrong now, with what the last visit has found."""
        return verdict(self.here, snapshot, self.found)

    def on_overview(self, snapshot: Snapshot) -> list[Finding]:
        """Return the same without notes on the set-up; never wait for a visit, but begin one if the last is old."""
        clients, now_ms = self.console.clients, self.console.now_ms()
        if now_ms - self.begun_ms >= _EXAMINED_EVERY_MS and (clients is None or clients.admin is not None):
            self.begun_ms = now_ms
            threading.Thread(target=self._visit, name="rocketshim-doctor", daemon=True).start()
        return verdict(self.here, snapshot, (each for each in self.found if each.severity is not Severity.NOTE))

    def _visit(self) -> None:
        with suppress(RocketshimError):  # the next visit, or the doctor's page, reports it
            self.findings()

    @cached_property
    def here(self) -> Installation:
        """The installation, as commands name it."""
        settings = self.console.settings
        return Installation(settings.bootstrap, Layout(self.console.names, settings.levels))


def doctor(request: Request) -> Response:
    """Show the findings."""
    console = Console.of(request)
    visits: DoctorVisits = request.app.state.doctor
    findings, at_ms = visits.findings()
    snapshot = console.snapshot()
    if snapshot is not None and snapshot.error is None:
        findings = visits.with_now(snapshot)
    return console.page(
        request,
        "doctor.html",
        findings=findings,
        at_ms=at_ms,
        command=console.command("doctor", delay_levels=console.delay_levels),
    )
