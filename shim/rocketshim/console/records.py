"""Pages of records: dead letters by topic and cause, parked records by reason, and one record in full.

A record's page has the biography of its message, which is drawn as a picture: `biography` says where each circle and
label stands, the template draws it. The records stand in the order in which they were stored, one column each, whatever
time lies between: a wait of two hours takes as much space as one of a second, and is written into the gap. Each lane is
a kind of topic.
"""

import codecs
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, Literal

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rocketshim.admin.cause_counts import by_cause
from rocketshim.admin.dead_letter_formats import Decoder
from rocketshim.admin.record_view import RecordView
from rocketshim.admin.redrive import read_log
from rocketshim.admin.trace import Missing, history, missing_text, own_topics, step_text, topics_named
from rocketshim.console.context import Console
from rocketshim.console.forms import Selection, sql_text
from rocketshim.console.reading import BoundedReading, read_newest
from rocketshim.console.timers import find
from rocketshim.core.timer_history import TimerHistory
from rocketshim.errors import ConfigError, NotAuthorizedError, TopicMissingError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics import Origin, TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.durations import duration_text
from rocketshim_topics.names import check_topic

__all__ = [
    "Biography",
    "HopOutcome",
    "Step",
    "biography",
    "body",
    "by_id",
    "causes",
    "letters",
    "parked",
    "show",
    "topics",
]

_NEWEST: Final = 20_000
_MOST_CAUSES: Final = 200
_ON_A_PAGE: Final = 50
_PARKED_ON_A_PAGE: Final = 200
_SHOWN_BYTES = 65_536
_DEEPEST = 32
_BEGINNINGS, _ENDS = frozenset("{["), frozenset("}]")
_MOST_HOPS = 100
_MOST_RECORDS = 500
_DAY_MS = 86_400_000
HopOutcome = Literal["made", "waits", "failed", "dead", "missing"]
_MARKS: Final[dict[HopOutcome, str]] = {"made": "✓", "waits": "…", "failed": "✗", "dead": "✗", "missing": "?"}
_LANES: Final = ("source", "schedule", "retry", "dead", "parked")
_LEFT, _COLUMN, _TOP, _ROW = 90, 84, 34, 44


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
    counted = read.records[:_MOST_CAUSES]
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


def show(request: Request) -> Response:
    """Show a record and the biography of its message."""
    console = Console.of(request)
    entry = _entry(console, request)
    with console.reader() as reader:
        found = _backwards(reader, console, entry)
        since_ms = None if request.query_params.get("everything") else max(0, min(each.stored_ms for each in found))
        found, read = _search(console, reader, entry.id, found, since_ms=since_ms)
        steps = history(reader, console.names, console.settings.levels, found, partial(_look, console))
    value = entry.value or b""
    text = _text(value[:_SHOWN_BYTES])
    is_cut = len(value) > _SHOWN_BYTES
    indented = None if text is None or is_cut else _indented(text)
    return console.page(
        request,
        "message.html",
        entry=entry,
        body=value[:_SHOWN_BYTES].hex(" ") if text is None else indented or text,
        is_text=text is not None,
        is_indented=indented is not None,
        is_cut=is_cut,
        biography=biography(steps, console.names),
        read=read,
        timer=_timer_of([entry, *found]),
        everything=since_ms is None,
        command=console.command("trace", entry.at, delay_levels=console.delay_levels),
    )


def _look(console: Console, topic: str, name: str) -> TimerHistory | None:
    """Return what the timer log has about a name; None: that is hidden, or there is no log."""
    with suppress(TopicMissingError, NotAuthorizedError):
        return find(console, topic, name)[0].history
    return None


def _timer_of(found: Iterable[RecordView]) -> tuple[str, str] | None:
    """Return target and name, if the message was sent under one."""
    named = ((each.envelope.real_topic, each.envelope.timer) for each in found)
    return next(((topic, name) for topic, name in named if topic is not None and name is not None), None)


def by_id(request: Request) -> Response:
    """Find a message by its id, in the records of the last day; with `everything`, in all."""
    console = Console.of(request)
    wanted = request.query_params.get("id", "").strip()
    if "/" in wanted:
        with console.reader() as reader:
            if _fetch(reader, wanted) is not None:
                return RedirectResponse(console.url("message", *wanted.split("/")), 303)
    everything = bool(request.query_params.get("everything"))
    found: list[RecordView] = []
    read, steps = None, []
    if wanted:
        with console.reader() as reader:
            since_ms = None if everything else console.now_ms() - _DAY_MS
            found, read = _search(console, reader, wanted, found, since_ms=since_ms)
            steps = history(reader, console.names, console.settings.levels, found, partial(_look, console))
    return console.page(
        request,
        "message_by_id.html",
        wanted=wanted,
        biography=biography(steps, console.names) if steps else None,
        timer=_timer_of(found),
        read=read,
        everything=everything,
        command=console.command("trace", wanted or "ID", delay_levels=console.delay_levels),
    )


def body(request: Request) -> Response:
    """Return a record's body as a file, never as a page."""
    console = Console.of(request)
    if "bodies" in console.settings.hide or not console.settings.allow_export:
        raise HTTPException(403, "This console shows no bodies.")
    entry = _entry(console, request)
    name = f"{entry.partition}-{entry.offset}.bin"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return Response(entry.value or b"", media_type="application/octet-stream", headers=headers)


def _text(value: bytes) -> str | None:
    """Return bytes as text, without a character that is cut off at their end; None: they are not text."""
    try:
        return codecs.getincrementaldecoder("utf-8")().decode(value)
    except UnicodeDecodeError:
        return None


_JSON: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"{}\[\],:]+|[{}\[\],:]')


def _indented(text: str) -> str | None:
    """Return a JSON object or array with a line for each value; None: it is none, or nested too deeply.

    Its numbers, strings and repeated names stay as they are written: only the blanks between them are others.
    """
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    lines, depth, before = [""], 0, ""
    for part in _JSON.findall(text):
        is_end = part in _ENDS
        depth -= is_end
        if (is_end and before not in _BEGINNINGS) or (not is_end and before in {*_BEGINNINGS, ","}):
            lines.append("  " * depth)
        lines[-1] += f"{part} " if part == ":" else part
        depth += part in _BEGINNINGS
        if depth > _DEEPEST:
            return None
        before = part
    return "\n".join(lines) if len(lines) > 1 else None


def _entry(console: Console, request: Request) -> RecordView:
    topic = request.path_params["topic"]
    with console.reader() as reader, console.reader() as sources:
        message = _fetch(reader, "{topic}/{partition}/{offset}".format(**request.path_params))
        if message is None:
            raise HTTPException(404, "There is no such record (any more).")
        log = read_log(reader, console.names.redrive_log, topic)
        letter = Decoder(console.names, topic, fetch=sources.fetch).open(message)
        entry = RecordView.opened(letter, log=log)
        is_dead = topic.startswith(console.names.dead_letter_prefix) or letter.dialect not in {None, "unknown"}
        return entry if is_dead or entry.plan is not None else replace(entry, state="")


def _fetch(reader: TopicReader, coordinates: str) -> Any | None:
    """Return the record at `topic/partition/offset`; None: there is none, or these are no coordinates."""
    try:
        at = Origin.parse(coordinates)
        return reader.fetch(check_topic(at.topic), at.partition, at.offset)
    except (ValueError, ConfigError):
        return None


def _backwards(reader: TopicReader, console: Console, entry: RecordView) -> list[RecordView]:
    """Return a record and those that it was made from, as far as they exist: each names the one before it."""
    found = [entry]
    seen = {entry.at}
    for _ in range(_MOST_HOPS):
        envelope = found[-1].envelope
        before = envelope.hop_id or envelope.origin_message_id
        if before is None or before in seen:
            break
        seen.add(before)
        try:
            message = _fetch(reader, before)
        except NotAuthorizedError:  # that topic is hidden, but this record is not
            message = None
        if message is None:
            break
        found.append(RecordView.of(message, trusted=console.names.is_ours(message.topic())))
    return [each for each in found if each.id == entry.id]


def _search(
    console: Console, reader: TopicReader, wanted: str, found: list[RecordView], *, since_ms: int | None
) -> tuple[list[RecordView], BoundedReading]:
    """Search rocketshim's own topics, and those that the records found name, for records with an id."""
    known = reader.topics()
    ours = own_topics(reader, console.names)
    named = {each for each in topics_named(found, wanted) if known.get(each)}
    read = read_newest(
        reader,
        sorted({*ours, *named}),
        lambda record: RecordView.of(record, trusted=console.names.is_ours(record.topic())).id == wanted,
        console.limits(_MOST_RECORDS),
        since_ms=since_ms,
    )
    more = [RecordView.of(record, trusted=console.names.is_ours(record.topic())) for record in read.records]
    return [*found, *more], read


@dataclass(frozen=True, slots=True)
class Step:
    """A record of the message, or one that is missing."""

    number: int  # from 1, as in the list below the picture
    x: int  # the centre of its circle
    y: int
    lane: str  # the kind of its topic
    kind: HopOutcome  # what happened
    mark: str  # a sign for it, so that the colour alone need not tell
    at: str  # its coordinates
    link: tuple[str, int, int] | None  # topic, partition and offset; None: the record is missing
    stored_ms: int | None  # when it was stored; None: missing
    failures: int | None  # failed attempts before it; None: missing
    text: str
    wait: str  # the time between the previous record and this one; `""`: not known, or less than a second


@dataclass(frozen=True, slots=True)
class Biography:
    """The picture."""

    lanes: dict[str, int]  # the kinds of topics that are used, from the top, and their heights in the picture
    steps: list[Step]  # the records, in order
    width: int
    height: int


def biography(hops: Sequence[RecordView | Missing], names: TopicNames) -> Biography:
    """Lay out the history of a message, as `rocketshim.admin.trace.history` returns it."""
    used = [_lane(_topic(hop), names) for hop in hops]
    lanes: dict[str, int] = {
        name: _TOP + _ROW * row for row, name in enumerate(name for name in _LANES if name in used)
    }
    steps: list[Step] = []
    last_ms: int | None = None
    for number, (hop, lane) in enumerate(zip(hops, used, strict=True), start=1):
        x, y = _LEFT + _COLUMN * (number - 1), lanes[lane]
        if isinstance(hop, Missing):
            text = f"missing: {missing_text(hop)}"
            steps.append(Step(number, x, y, lane, "missing", "?", hop.at, None, None, None, text, ""))
            continue
        entry, kind = hop, _kind(hop, lane)
        wait_ms = 0 if last_ms is None else (entry.stored_ms - last_ms) // 1_000 * 1_000
        wait = duration_text(wait_ms) if wait_ms > 0 else ""
        last_ms = entry.stored_ms
        at = (entry.topic, entry.partition, entry.offset)
        text, failures = step_text(hop, names), entry.envelope.reconsume_times or 0
        steps.append(Step(number, x, y, lane, kind, _MARKS[kind], entry.at, at, entry.stored_ms, failures, text, wait))
    return Biography(lanes, steps, _LEFT + _COLUMN * len(steps), _TOP + _ROW * len(lanes))


def _topic(hop: RecordView | Missing) -> str:
    if isinstance(hop, RecordView):
        return hop.topic
    try:
        return Origin.parse(hop.at).topic
    except ValueError:
        return ""


def _lane(topic: str, names: TopicNames) -> str:
    if topic in {names.schedule, names.timers, names.parked}:
        return "parked" if topic == names.parked else "schedule"
    for lane, prefix in (("retry", names.retry_prefix), ("dead", names.dead_letter_prefix)):
        if topic.startswith(prefix):
            return lane
    return "source"


def _kind(hop: RecordView, lane: str) -> HopOutcome:
    if lane in {"dead", "parked"}:
        return "dead"
    if hop.due_ms is not None:
        return "failed" if hop.envelope.fail_class else "waits"
    return "made"
