"""Dead letters: the topics that have them, their causes, and lists of them. And parked records, by reason."""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import takewhile
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rocketshim.admin.decoder import Decoder
from rocketshim.admin.record_view import RecordView
from rocketshim.admin.redrive import read_log
from rocketshim.admin.statistics import CauseCount, by_cause
from rocketshim.console.context import Console
from rocketshim.console.forms import Selection, sql_text
from rocketshim.console.reading import BoundedReading, read_newest
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["causes", "letters", "parked", "topics"]

_NEWEST: Final = 20_000
_MOST_CAUSES: Final = 200
_ON_A_PAGE: Final = 50
_PARKED_ON_A_PAGE: Final = 200


def topics(request: Request) -> Response:
    """List the topics of dead letters; with `?topic=` go to that topic, for example another project's."""
    console = Console.of(request)
    wanted = request.query_params.get("topic")
    if wanted:
        return RedirectResponse(console.url("dead", wanted), 303)
    with console.reader() as reader:
        known = reader.topics()
        groups = {name: group for name in sorted(known) if (group := _group(console, name)) is not None}
        bounds = reader.bounds_of(TopicPartitionKey(name, number) for name in groups for number in range(known[name]))
    found: dict[str, list[int]] = {name: [] for name in groups}
    for key, (low, high) in bounds.items():
        found[key.topic].append(high - low)
    kept = {name: sum(each) if len(each) == known[name] else None for name, each in found.items()}
    return console.page(request, "dead_topics.html", topics=[(name, groups[name], kept[name]) for name in groups])


def causes(request: Request) -> Response:
    """Count the newest dead letters of a topic by cause."""
    console, topic = Console.of(request), request.path_params["topic"]
    selection, everything = _selection(request, console)
    read = _read(console, topic, selection, by_cause, everything=everything, results=_NEWEST)
    counted = [(each, _where(each, selection.where)) for each in read.records[:_MOST_CAUSES]]
    return console.page(
        request,
        "causes.html",
        topic=topic,
        group=_group(console, topic),
        selection=selection,
        everything=everything,
        causes=counted,
        rest=len(read.records) - len(counted),
        total=sum(each.count for each in read.records),
        read=read,
        newest=_NEWEST,
        command=console.command("dlq stats", topic=topic, all=everything, **selection.query),
    )


def letters(request: Request) -> Response:
    """List dead letters, newest first."""
    console, topic = Console.of(request), request.path_params["topic"]
    selection, everything = _selection(request, console)
    cursor = request.query_params.get("from")
    read = _read(console, topic, selection, list, everything=everything, results=_ON_A_PAGE, cursor=cursor)
    return console.page(
        request,
        "letters.html",
        topic=topic,
        group=_group(console, topic),
        selection=selection,
        everything=everything,
        letters=read.records,
        read=read,
        command=console.command("dlq ls", topic=topic, all=everything, **selection.query),
    )


def parked(request: Request) -> Response:
    """List parked records, newest first, and count them by reason; those that were sent again are left out."""
    console = Console.of(request)
    topic, everything = console.names.parked, bool(request.query_params.get("all"))
    cursor = request.query_params.get("from")
    read = _read(console, topic, Selection(), list, everything=everything, results=_PARKED_ON_A_PAGE, cursor=cursor)
    reasons = Counter(entry.envelope.park_reason or "" for entry in read.records)
    return console.page(
        request,
        "parked.html",
        topic=topic,
        everything=everything,
        found=read.records,
        reasons=[(reason, count, f"PARK_REASON = {sql_text(reason)}") for reason, count in reasons.most_common()],
        read=read,
        command=console.command("parked ls", all=everything),
    )


def _group(console: Console, topic: str) -> str | None:
    """Return the group whose dead letters a topic has; None: it is another project's topic."""
    prefix = console.names.dead_letter_prefix
    return topic.removeprefix(prefix) if topic.startswith(prefix) else None


def _selection(request: Request, console: Console) -> tuple[Selection, bool]:
    return Selection.of(request.query_params, console.settings), bool(request.query_params.get("all"))


def _read(
    console: Console,
    topic: str,
    selection: Selection,
    collect: Callable[[Iterable[RecordView]], Any],
    *,
    everything: bool,
    results: int,
    cursor: str | None = None,
) -> BoundedReading:
    """Read the newest selected dead letters of a topic."""
    choice = selection.record_filter()
    with console.reader() as reader, console.reader() as sources:
        log = read_log(reader, console.names.redrive_log, topic)
        decoder = Decoder(console.names, topic, fetch=sources.fetch)

        def view(message: Any) -> RecordView:
            return RecordView.opened(decoder.open(message), log=log)

        def is_wanted(message: Any) -> bool:
            entry = view(message)
            return choice.wants(entry) and (everything or entry.plan is None)

        return read_newest(
            reader,
            [topic],
            is_wanted,
            console.limits(results),
            since_ms=choice.since_ms,
            cursor=cursor,
            collect=lambda messages: collect(map(view, messages)),
        )


def _where(cause: CauseCount, selected: str | None) -> str | None:
    """Return the condition that selects a cause: its class, and the beginning of its text.

    It is printable, because a page escapes what is not, also in the fields of its forms.
    """
    if cause.cause == "unknown" or cause.cause.startswith("malformed (") or not cause.cause.isprintable():
        return None
    parts = [f"FAIL_CLASS = {sql_text(cause.cause)}"]
    beginning = "".join(takewhile(str.isprintable, cause.text.partition("#")[0]))
    if len(beginning) >= 3:
        parts.append(f"FAIL_TEXT STARTSWITH {sql_text(beginning)}")
    return " AND ".join([*([f"({selected})"] if selected else []), *parts])
