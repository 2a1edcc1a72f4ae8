"""Pages of named timers: what waits under a name, what became of one name, and two commands for operators.

A list reads the names that the worker has stored, and a history the log of commands, both newest first and within the
limits of a page. The newest record of a name has its state, so a list that was cut lacks names, and those that it has
are right. A history that was cut begins later, and says which effects are therefore unknown.

A button acts on the message that its page shows: a command is refused if another one waits under the name by now. The
record of the command names the person, for this page and `rocketshim timers show`.
"""

import uuid
from collections.abc import Iterable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from rocketshim.admin.timer_view import FoundTimer, is_named, moment_ms
from rocketshim.console.context import Console, signature
from rocketshim.console.forms import Form, given, whole
from rocketshim.console.observed import EDGES
from rocketshim.console.reading import BoundedReading, Ending, read_newest
from rocketshim.core.timer_history import PendingTimer, TimerFate, timer_histories
from rocketshim.errors import ConfigError
from rocketshim.kafka.reports import store_command
from rocketshim.kafka.timer_log import pending_timers, unread_since_ms
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.logs import safe_logger
from rocketshim_topics import Message
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.errors import MessageError
from rocketshim_topics.hops import timer_command, timer_digest
from rocketshim_topics.partitioner import timer_partition
from rocketshim_topics.wire import REAL_TOPIC, TIMER, headers_shown

__all__ = ["command", "find", "listed", "show"]

_LOG: Final = safe_logger("rocketshim.console")
_ON_A_PAGE: Final = 100
_MOST_STATES: Final = 100_000
_MOST_COMMANDS: Final = 500
_COMMANDS: Final = {"cancel": "CANCEL", "now": "NOW"}


def listed(request: Request) -> Response:
    """List the pending names of a target, name and time, the first that is due first, and when they are due."""
    console, query = Console.of(request), request.query_params
    topic, name, due_before = given(query, "topic"), given(query, "name"), given(query, "due_before")
    now_ms = console.now_ms()
    until_ms = None if due_before is None else moment_ms(due_before, "due_before", now_ms)

    def is_wanted(each: PendingTimer) -> bool:
        is_one = not each.asks and (until_ms is None or each.due_ms < until_ms)
        return is_one and topic in {None, each.topic} and is_named(each.name, name)

    def pending(records: Iterable[Any]) -> list[PendingTimer]:
        oldest_first = reversed(list(records))  # within a partition
        return sorted(pending_timers(oldest_first, is_wanted))

    with console.reader() as reader:
        stored, limits = reader.require(console.names.timer_state), console.limits(_MOST_STATES)
        read = read_newest(reader, [stored], lambda _: True, limits, collect=pending)
        unread_ms = unread_since_ms(reader, console.names, now_ms)
    bars = _bars([each.due_ms for each in read.records], now_ms)
    return console.page(
        request,
        "timers.html",
        topic=topic,
        name=name,
        due_before=due_before,
        pending=read.records[:_ON_A_PAGE],
        count=len(read.records),
        unread_ms=unread_ms,
        bars=bars,
        most=max(bars.values(), default=1) or 1,
        read=read,
        command=console.command("timers ls", topic=topic, name=name, due_before=due_before),
    )


def _bars(due_ms: list[int], now_ms: int) -> dict[str, int]:
    """Return how many are due within each time from now that the bars before do not cover."""
    bars, before = {}, 0
    for edge_ms, text in EDGES:
        until = sum(each <= now_ms + edge_ms for each in due_ms)
        bars[text], before = until - before, until
    return bars | ({"later": len(due_ms) - before} if len(due_ms) > before else {})


def show(request: Request) -> Response:
    """Show what became of a name, command by command."""
    console = Console.of(request)
    if not {"topic", "name"} <= request.query_params.keys():
        return RedirectResponse(console.url("timers"), 303)
    topic, name = _named(request.query_params)
    view, read = find(console, topic, name)
    return console.page(
        request,
        "timer.html",
        view=view,
        read=read,
        log=console.names.timers,
        is_half=view.is_half,
        is_pending=_is_pending(view),
        stored=whole(request.query_params, "stored"),
        command=console.command("timers show", topic, name),
    )


def command(request: Request, form: Form) -> Response:
    """Cancel the message that a page has shown, or have it delivered now."""
    console, do = Console.of(request), _COMMANDS.get(form.get("do", ""))
    topic, name = _named(form)
    if do is None:
        raise ConfigError("do must be cancel or now")
    view, _ = find(console, topic, name)
    if not _is_pending(view) or view.history.last != whole(form, "generation"):
        raise ConfigError(f"the message that this page has shown does not wait under {name!r} any more: look again")
    by = signature(request)
    uniq_key, born_ms = uuid.uuid4().hex.upper(), console.now_ms()
    out = timer_command(console.names, topic, name, do, uniq_key=uniq_key, born_ms=born_ms, by=by)
    record = out.topic, out.value, out.key, out.partition or 0
    at = console.settings
    offset = store_command(at.client, at.bootstrap, console.clients, *record, headers=out.headers)
    facts = {"topic": topic, "timer": name, "command": do, "by": by, "partition": view.partition, "offset": offset}
    _LOG.info("console.timer-commanded", extra=facts)
    return RedirectResponse(console.url("timers", "name", topic=topic, name=name, stored=str(offset)), 303)


def _named(fields: Form) -> tuple[str, str]:
    topic, name = fields.get("topic", ""), fields.get("name", "")
    try:
        return Message(topic, b"", timer=name, delay=1).topic, name
    except MessageError as error:
        raise ConfigError(str(error)) from error


def _is_pending(view: FoundTimer) -> bool:
    return view.history.fate()[0] is TimerFate.PENDING and not view.is_half


def find(console: Console, topic: str, name: str) -> tuple[FoundTimer, BoundedReading]:
    """Return what the log has about a name, and how its reading ended; the state is read before the log."""
    number, digest = timer_partition(topic, name), timer_digest(topic, name)
    wanted = {REAL_TOPIC: topic.encode(), TIMER: name.encode()}

    def is_about_it(record: Any) -> bool:
        return wanted.items() <= dict(headers_shown(record)).items()

    with console.reader() as reader:
        stored = TopicPartitionKey(reader.require(console.names.timer_state), number)
        state = _newest(reader, console, stored, lambda each: each.key() == digest, 1)
        known = {each.name: each for each in pending_timers(state.records, lambda each: each.name == name)}
        key = TopicPartitionKey(reader.require(console.names.timers), number)
        low, high = reader.bounds(*key)
        read = _newest(reader, console, key, is_about_it, _MOST_COMMANDS)
        if read.ending is Ending.ERROR and read.error is not None:
            raise read.error
        first = read.rest[key][1] if key in read.rest else low
        begins = reader.first_records({key: (first, high)}).get(key) if first else None
        begins_ms = int(begins[0].timestamp()[1]) if begins else None
    history = timer_histories(
        reversed(read.records), topic, [name], first_offset=first, stored=known, begins_ms=begins_ms
    )[name]
    return FoundTimer(topic, name, history), read


def _newest(reader: TopicReader, console: Console, key: TopicPartitionKey, wanted: Any, most: int) -> BoundedReading:
    """Return the newest wanted records of a partition."""
    return read_newest(reader, [key.topic], wanted, console.limits(most), spans={key: reader.bounds(*key)})
