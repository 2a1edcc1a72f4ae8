"""Delayed and retried messages that wait: per queue, when they leave, and lists of them.

The histogram reads no record. A queue's records are appended in order, and each leaves one fixed delay after it was
appended. So "what leaves before 14:00" is "what was appended before 14:00 minus the delay", and Kafka finds that offset
by its time index: one request for each bar, for all queues together. Counts are of offsets, and so upper bounds.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from rocketshim.admin.record_filter import selecting
from rocketshim.admin.record_view import RecordView
from rocketshim.console.context import Console
from rocketshim.console.forms import Selection
from rocketshim.console.reading import BoundedReading, read_newest
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.observe.delay_queues import DelayedReader
from rocketshim.observe.snapshot import DelayQueue, WaitingRecord, waiting_record
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.hops import is_probe
from rocketshim_topics.wire import headers_shown

__all__ = ["Bar", "leaving", "listed", "retries", "show"]

_ON_A_PAGE: Final = 50
_EDGES: Final = (
    *((0, "due now"), (10_000, "10 s"), (60_000, "1 min"), (300_000, "5 min"), (900_000, "15 min")),
    *((1_800_000, "30 min"), (3_600_000, "1 h"), (7_200_000, "2 h"), (21_600_000, "6 h"), (86_400_000, "1 d")),
)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of the histogram: how many leave their queue within a time from now that the bars before do not cover."""

    within: str
    count: int


def show(request: Request) -> Response:
    """Show the queues, and when what waits leaves them."""
    console = Console.of(request)
    snapshot = console.snapshot()
    bars: list[Bar] = []
    if snapshot is not None and snapshot.waiting:
        with console.reader() as reader:
            bars = leaving(reader, snapshot.queues, snapshot.at_ms)
    return console.page(
        request,
        "waiting.html",
        snapshot=snapshot,
        bars=bars,
        most=max((bar.count for bar in bars), default=1) or 1,
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
    waiting, waiting_read = _waiting_for_group(console, group)
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


def leaving(reader: TopicReader, queues: Iterable[DelayQueue], now_ms: int) -> list[Bar]:
    """Return the histogram of when waiting records leave their queues, without reading one.

    * `queues`: the queues; those without a delay of the level table are left out.
    """
    spans = {}
    delays = {}
    for queue in queues:
        if queue.waiting and queue.delay_ms is not None:
            key = TopicPartitionKey(queue.standing.topic, queue.partition)
            spans[key] = queue.standing.unread
            delays[key] = queue.delay_ms
    bars: list[Bar] = []
    before = 0
    for edge_ms, text in _EDGES:
        found = reader.offsets_at_times({key: max(0, now_ms + edge_ms - delay + 1) for key, delay in delays.items()})
        until = sum(min(max(found.get(key, end), start), end) - start for key, (start, end) in spans.items())
        bars.append(Bar(text, until - before))
        before = until
    later = sum(end - start for start, end in spans.values()) - before
    return [*bars, Bar("later", later)] if later else bars


def _waiting_for_group(console: Console, group: str) -> tuple[list[WaitingRecord], BoundedReading]:
    """Return the newest waiting retries of a group."""
    return _waiting(console, lambda _, entry: entry.group == group)


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
