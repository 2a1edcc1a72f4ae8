"""One record in full, and the biography of its message."""

import codecs
from dataclasses import replace
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rocketshim.admin.decoder import Decoder
from rocketshim.admin.record_view import RecordView
from rocketshim.admin.redrive import read_log
from rocketshim.admin.trace import history, own_topics, topics_named
from rocketshim.console.biography import biography
from rocketshim.console.context import Console
from rocketshim.console.reading import BoundedReading, read_newest
from rocketshim.errors import ConfigError, NotAuthorizedError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics import Origin
from rocketshim_topics.names import check_topic

__all__ = ["body", "by_id", "show"]

_SHOWN_BYTES = 65_536
_MOST_HOPS = 100
_MOST_RECORDS = 500
_DAY_MS = 86_400_000


def show(request: Request) -> Response:
    """Show a record and the biography of its message."""
    console = Console.of(request)
    entry = _entry(console, request)
    with console.reader() as reader:
        found = _backwards(reader, console, entry)
        since_ms = None if request.query_params.get("everything") else max(0, min(each.stored_ms for each in found))
        found, read = _search(console, reader, entry.id, found, since_ms=since_ms)
        steps = history(reader, console.names, console.settings.levels, found)
    value = entry.value or b""
    text = _text(value[:_SHOWN_BYTES])
    return console.page(
        request,
        "message.html",
        entry=entry,
        body=value[:_SHOWN_BYTES].hex(" ") if text is None else text,
        is_text=text is not None,
        is_cut=len(value) > _SHOWN_BYTES,
        biography=biography(steps, console.names),
        read=read,
        everything=since_ms is None,
        command=console.command("trace", entry.at, delay_levels=console.delay_levels),
    )


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
            steps = history(reader, console.names, console.settings.levels, found)
    return console.page(
        request,
        "message_by_id.html",
        wanted=wanted,
        biography=biography(steps, console.names) if steps else None,
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
    topics = sorted({*ours, *named})
    read = read_newest(
        reader,
        topics,
        lambda record: RecordView.of(record, trusted=console.names.is_ours(record.topic())).id == wanted,
        console.limits(_MOST_RECORDS),
        since_ms=since_ms,
    )
    more = [RecordView.of(record, trusted=console.names.is_ours(record.topic())) for record in read.records]
    return [*found, *more], read
