"""Pages of any topic: the list, the records of one, newest first, and a message that an operator sends as a test.

The reading is that of the other lists: within the limits of a page, and in its turn. The topics of the list are those
that the console's Kafka user may see; the groups that read one are the sampler's, so they are named without a request.

A message is sent by `Console.send`, which the command line gives: it is that of a program's `Producer`, so that the
message gets its id, its delay and its partition as any other. It names who sent it in the header `SENT_BY`, for
a reader who finds it later, and so does a line of the log.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rocketshim.admin.record_view import RecordView
from rocketshim.admin.times import past_ms
from rocketshim.console.context import Console, signature
from rocketshim.console.forms import Form, Selection, given
from rocketshim.console.reading import read_newest
from rocketshim.errors import ConfigError, RocketshimError, TopicMissingError
from rocketshim.kafka.acls import OR_HIDDEN
from rocketshim.kafka.clients import LastClientError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.logs import safe_logger
from rocketshim.observe.snapshot import Snapshot
from rocketshim_topics import Message
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.durations import duration_text
from rocketshim_topics.errors import MessageError
from rocketshim_topics.layout import is_compacted
from rocketshim_topics.provision import read_topics

__all__ = ["SENT_BY", "listed", "send", "show"]

SENT_BY: Final = "SENT_BY"
"""Header of a message that was sent as a test: who sent it."""

_LOG: Final = safe_logger("rocketshim.console")
_ON_A_PAGE: Final = 50
_MOST_TOPICS: Final = 500
_RATE_MS: Final = 60_000
_SETTINGS_S: Final = 5.0


class Row(NamedTuple):
    """A topic in the list. None: a leader does not answer."""

    topic: str
    is_ours: bool
    partitions: int
    kept: int | None  # offsets
    rate: float | None  # offsets a second, in the last minute
    keeps: str  # how long; `–`: not known
    readers: list[tuple[str, int]]


def listed(request: Request) -> Response:
    """List the topics, those of programs first, with the groups that read them."""
    console, part = Console.of(request), given(request.query_params, "name") or ""
    snapshot = console.snapshot()
    readers = _readers(snapshot)
    with console.reader() as reader:
        known = reader.topics()
        found = sorted(
            (name for name in known if not name.startswith("__") and part in name),
            key=lambda name: (console.names.is_ours(name), name),
        )
        shown = found[:_MOST_TOPICS]
        keys = [TopicPartitionKey(name, number) for name in shown for number in range(known[name])]
        bounds = reader.bounds_of(keys)
        since = reader.offsets_at_times(dict.fromkeys(bounds, console.now_ms() - _RATE_MS))
        keeps = _retentions(reader, shown)
    kept: dict[str, int | None] = dict.fromkeys(shown, 0)
    new = dict.fromkeys(shown, 0)
    for key in keys:  # unknown, if a leader does not answer
        before, found_here = kept[key.topic], bounds.get(key)
        kept[key.topic] = None if before is None or found_here is None else before + found_here[1] - found_here[0]
        if found_here is not None:
            new[key.topic] += max(0, found_here[1] - since.get(key, found_here[1]))
    return console.page(
        request,
        "topics.html",
        name=part,
        topics=[
            Row(
                name,
                console.names.is_ours(name),
                known[name],
                kept[name],
                None if kept[name] is None else new[name] * 1_000 / _RATE_MS,
                keeps.get(name, "–"),
                readers.get(name, []),
            )
            for name in shown
        ],
        rest=len(found) - len(shown),
        snapshot=snapshot,
    )


def _retentions(reader: TopicReader, topics: list[str]) -> dict[str, str]:
    """Return how long topics keep their records; absent: it may not be read, or a Kafka in memory has no settings."""
    admin = reader.admin(LastClientError())
    if admin is None:
        return {}
    try:
        states = read_topics(admin, topics, timeout_s=_SETTINGS_S)
    except RocketshimError:
        return {}
    return {name: _retention(each.config) for name, each in states.items() if each.config is not None}


def _retention(config: Mapping[str, str]) -> str:
    policy, keep_ms = config.get("cleanup.policy", ""), int(config.get("retention.ms", -1))
    by_time = ["forever" if keep_ms < 0 else duration_text(keep_ms)] if "delete" in policy else []
    return ", ".join([*by_time, *(["the newest of each key"] if is_compacted(config) else [])])


def _readers(snapshot: Snapshot | None) -> dict[str, list[tuple[str, int]]]:
    """Return by topic the groups that have read in it, and how far each is behind."""
    found: dict[str, list[tuple[str, int]]] = {}
    for group, standing in sorted({} if snapshot is None else snapshot.standings.items()):
        for topic, there in standing.topics().items():
            found.setdefault(topic, []).append((group, there.behind))
    return found


def show(request: Request) -> Response:
    """List the selected records of a topic, newest first."""
    console, topic = Console.of(request), request.path_params["topic"]
    query, selection = request.query_params, Selection.of(request.query_params, console.settings)
    choice, until, is_ours = selection.record_filter(), given(query, "until"), console.names.is_ours(topic)
    choice.until_ms = None if until is None else past_ms(until, console.now_ms(), "until")

    def view(message: Any) -> RecordView:
        return RecordView.of(message, trusted=is_ours)

    def views(messages: Iterable[Any]) -> list[RecordView]:
        return list(map(view, messages))

    with console.reader() as reader:
        count, cursor = _partitions(reader, topic), query.get("from")
        spans = None if cursor else reader.spans([topic], since_ms=choice.since_ms, until_ms=choice.until_ms)
        read = read_newest(
            reader,
            [topic],
            lambda message: choice.wants(view(message)),
            console.limits(_ON_A_PAGE),
            spans=spans,
            cursor=cursor,
            collect=views,
        )
    options = {name: text for name, text in selection.query.items() if name != "cause"}
    newest = None if selection.since or until else str(_ON_A_PAGE)
    return console.page(
        request,
        "topic.html",
        topic=topic,
        is_ours=is_ours,
        partitions=count,
        selection=selection,
        until=until,
        entries=read.records,
        read=read,
        hint=choice.misnamed(),
        may_send=console.send is not None and not is_ours,
        command=console.command("topic ls", topic, newest=newest, until=until, **options),
    )


def send(request: Request, form: Form) -> Response:
    """Send a message to a topic of a program, and show its first record."""
    console, topic = Console.of(request), request.path_params["topic"]
    if console.send is None or console.names.is_ours(topic):
        raise ConfigError(f"no message is sent to {topic} here: its records are written by rocketshim only")
    with console.reader() as reader:
        _partitions(reader, topic)  # a broker might create it
    by = signature(request)
    lines = form.get("properties", "").split("\n")
    properties = [_pair(line.strip()) for line in lines if line.strip()]
    try:
        message = Message(
            topic,
            form.get("body", "").replace("\r\n", "\n").encode(),
            key=given(form, "key"),
            tag=given(form, "tag"),
            delay=given(form, "delay"),
            properties=[*properties, (SENT_BY, by.encode())],
        )
    except MessageError as error:
        raise ConfigError(str(error)) from error
    msg_id, at = console.send(message)
    _LOG.info("console.message-sent", extra={"topic": topic, "msg_id": msg_id, "stored_at": at, "by": by})
    return RedirectResponse(console.url("message", *at.rsplit("/", 2)), 303)


def _partitions(reader: TopicReader, topic: str) -> int:
    """Return the number of partitions of a topic, which must exist."""
    count = reader.topics().get(topic)
    if not count:
        raise TopicMissingError(f"there is no topic {topic}. {OR_HIDDEN}")
    return count


def _pair(line: str) -> tuple[str, bytes]:
    name, equals, value = line.partition("=")
    if not equals:
        raise ConfigError(f"the property {line!r:.80} has no =: write one NAME=VALUE a line")
    if name.strip() == SENT_BY:
        raise ConfigError(f"{SENT_BY} names the operator who sends a message: choose another name")
    return name.strip(), value.strip().encode()
