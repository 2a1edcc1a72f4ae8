"""Select records of a topic and print them: what the commands that look into topics share."""

import difflib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rocketshim.admin.decoder import Decoder
from rocketshim.admin.record_filter import RecordFilter
from rocketshim.admin.record_view import RecordView, time_text
from rocketshim.cli.completion import complete_group, complete_topic
from rocketshim.cli.options import OUTPUT, SELECTION
from rocketshim.core.user_values import one_line, printable_lines
from rocketshim.errors import ConfigError, TopicMissingError
from rocketshim.kafka.acls import OR_HIDDEN
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics import TopicNames
from rocketshim_topics.redrive_log import RedriveLog
from rocketshim_topics.wire import headers_shown

OfGroup = Annotated[
    str | None,
    typer.Option(
        "--group",
        "-g",
        help="The consumer group of the dead letters; with --topic, the group that gets them.",
        autocompletion=complete_group,
        rich_help_panel=SELECTION,
    ),
]
OfTopic = Annotated[
    str | None,
    typer.Option(
        "--topic",
        "-t",
        help="Another dead-letter topic: Spring's, Connect's, Streams', … (see docs).",
        autocompletion=complete_topic,
        rich_help_panel=SELECTION,
    ),
]
Group = Annotated[
    str,
    typer.Option("--group", "-g", help="The consumer group.", autocompletion=complete_group, rich_help_panel=SELECTION),
]
Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        "-w",
        help="SQL92 condition on headers (cause: FAIL_CLASS, text: FAIL_TEXT): "
        "\"FAIL_CLASS = 'Timeout' AND price > 10\".",
        rich_help_panel=SELECTION,
    ),
]
Tags = Annotated[
    str | None,
    typer.Option("--tags", help="Only messages with one of these tags: 'created || paid'.", rich_help_panel=SELECTION),
]
Key = Annotated[
    str | None,
    typer.Option("--key", "-k", help="Only messages with this record key or business key.", rich_help_panel=SELECTION),
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        "-s",
        metavar="DURATION|TIME",
        help="Only records stored within this duration, or since this time: 30m, 2h, 2026-11-20T18:00:00Z.",
        rich_help_panel=SELECTION,
    ),
]


def _choice(*, where: Where = None, tags: Tags = None, key: Key = None, since: Since = None) -> RecordFilter:
    return RecordFilter(where=where, tags=tags, key=key, since=since)


Choice = Annotated[RecordFilter, _choice]
"""Which records of a topic."""

Limit = Annotated[
    int,
    typer.Option("--limit", "-l", min=1, help="Maximum number of messages to show.", rich_help_panel=OUTPUT),
]
Everything = Annotated[
    bool,
    typer.Option("--all", "-a", help="Also show messages that were sent again or discarded.", rich_help_panel=OUTPUT),
]
Coordinates = Annotated[
    str, typer.Argument(metavar="PARTITION/OFFSET", help="Partition and offset, as `ls` shows them.")
]
Follow = Annotated[
    bool, typer.Option("--follow", "-f", help="Continue with new records until Ctrl-C.", rich_help_panel=OUTPUT)
]


_COORDINATES: Final = re.compile("([0-9]{1,19})/([0-9]{1,19})")
_PARTITION: Final = re.compile("(.+)/([0-9]{1,19})")
_PIPED_WIDTH = 200
_WHOLE: Final = frozenset({"partition/offset", "id"})
_COUNT_EVERY = 10_000
_T = TypeVar("_T")


def console(escape: Callable[[str], str] = one_line) -> Console:
    """Return the console for tables: as wide as the terminal, 200 columns in a pipe; it never interprets markup."""
    plain_console = _PlainConsole(escape)
    if plain_console.is_terminal or "COLUMNS" in os.environ:
        return plain_console
    return _PlainConsole(escape, width=_PIPED_WIDTH)


def echo_safe(line: str, *, err: bool = False) -> None:
    """Print one line that contains untrusted text."""
    typer.echo(one_line(line), err=err)


def show_raw(facts: Mapping[str, Any], message: Any) -> None:
    """Print a record as it is stored: facts decoded from it, then its key, headers and body.

    Facts that are None are left out; facts named `…_ms` are printed as times.
    """
    for name, value in facts.items():
        if value is not None:
            is_time = name.endswith("_ms")
            echo_safe(f"{name.removesuffix('_ms'):16} {time_text(value) if is_time else value}")
    if message.key() is not None:
        typer.echo(f"{'key':16} {message.key()!r}")
    for name, value in headers_shown(message):
        echo_safe(f"  {name:20} {'(no value)' if value is None else repr(value)}")
    typer.echo(f"{'body':16} {'(no value)' if message.value() is None else repr(message.value())[:2000]}")


def show_table(table: Table) -> None:
    """Print a table, or `none` if it has no row."""
    if table.row_count:
        console().print(table)
    else:
        typer.echo("none")


def counting(records: Iterable[_T], out: Console | None = None) -> Iterator[_T]:
    """Return the same records; on a terminal, show meanwhile on standard error how many have been read."""
    out = out or Console(stderr=True)
    if not out.is_terminal:
        yield from records
        return
    with out.status("reading") as status:
        for number, record in enumerate(records, start=1):
            if number % _COUNT_EVERY == 0:
                status.update(f"read {number:,} records")
            yield record


def say_limit(limit: int) -> None:
    """Print that there are more records than were listed."""
    typer.echo(f"the first {limit}; --limit shows more", err=True)


class _PlainConsole(Console):
    """A console that prints every text literally, without control characters."""

    def __init__(self, escape: Callable[[str], str], width: int | None = None) -> None:
        super().__init__(width=width, markup=False, emoji=False)
        self._escape = escape

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(self._escape(text), **options)


def dead_letter_topic_of(reader: TopicReader, names: TopicNames, group: str | None, topic: str | None) -> str:
    """Return the physical topic that `--group` or `--topic` names."""
    if topic is not None:
        return require_topic(reader, names.physical(topic), f"there is no topic {topic}")
    if group is None:
        raise ConfigError("give --group GROUP, or --topic TOPIC for another project's dead letters")
    return groups_topic(reader, names.dead_letter(group), group)


def groups_topic(reader: TopicReader, physical: str, group: str) -> str:
    """Return a topic that each group has; if it does not exist, the group is not known."""
    return require_topic(reader, physical, f"the group {group!r} is not known here: there is no topic {physical}")


def require_topic(reader: TopicReader, physical: str, otherwise: str) -> str:
    """Return the topic if it exists; the error is `otherwise` and the topics with similar names."""
    known = reader.topics()
    if not known.get(physical):
        like = difflib.get_close_matches(physical, known, n=5)
        raise TopicMissingError(
            f"{otherwise}; did you mean {' or '.join(like)}?" if like else f"{otherwise}. {OR_HIDDEN}"
        )
    return physical


def select(
    reader: TopicReader,
    decoder: Decoder,
    choice: RecordFilter,
    *,
    follow: bool = False,
    log: RedriveLog | None = None,
    everything: bool = True,
) -> Iterator[RecordView]:
    """Return the selected records of a topic; without `everything`, leave out those that were redriven or discarded.

    At the end, print how many were left out.
    """
    hidden = 0
    for message in reader.read([decoder.topic], since_ms=choice.since_ms, follow=follow):
        if message is None:
            continue
        entry = RecordView.opened(decoder.open(message), log=log)
        if not choice.wants(entry):
            continue
        if everything or entry.plan is None:
            yield entry
        else:
            hidden += 1
    if (hint := choice.misnamed()) is not None:
        typer.echo(hint, err=True)
    if hidden:
        typer.echo(f"{hidden} more were redriven or discarded; --all shows them", err=True)


def show_rows(
    columns: Sequence[str],
    rows: Iterable[tuple[dict[str, Any], Sequence[str]]],
    *,
    limit: int,
    as_json: bool,
    follow: bool = False,
) -> None:
    """Print rows as a table; with `as_json` one JSON object each, with `follow` one line each, and no limit.

    A row is its facts for programs, and its cells. Coordinates, times and ids are not broken into lines, to be copied.
    """
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in _WHOLE or column.endswith("(UTC)"))
    for number, (facts, cells) in enumerate(rows):
        if number == limit and not follow:
            say_limit(limit)
            break
        if as_json:  # JSON escapes control characters itself
            typer.echo(json.dumps(facts))
        elif follow:
            echo_safe("  ".join(filter(None, cells)))
        else:
            table.add_row(*cells)
    if not (as_json or follow):
        show_table(table)


def show_list(
    entries: Iterator[RecordView], *, limit: int, as_json: bool, follow: bool, with_state: bool = False
) -> None:
    """Print records and why they failed (`show_rows`)."""
    columns = ["partition/offset", "stored (UTC)", "failures", "cause", "text", "topic", "id"]

    def row(entry: RecordView) -> tuple[dict[str, Any], list[str]]:
        cells = [
            f"{entry.partition}/{entry.offset}",
            time_text(entry.stored_ms)[:-4],
            str(entry.envelope.reconsume_times or 0),
            entry.cause or (f"malformed: {entry.malformed}" if entry.malformed else ""),
            entry.envelope.fail_text or "",
            entry.envelope.retry_topic or "",
            entry.id,
        ]
        return (entry.as_json(body=False) if as_json else {}), [*cells[:2], *[entry.state] * with_state, *cells[2:]]

    columns[2:2] = ["state"] * with_state
    show_rows(columns, map(row, entries), limit=limit, as_json=as_json, follow=follow)


def show_one(entry: RecordView, *, as_json: bool) -> None:
    """Print one record in full."""
    if as_json:
        typer.echo(json.dumps(entry.as_json(), indent=1))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    envelope = entry.envelope
    for label, value in (
        ("id", entry.id),
        ("lies at", entry.at),
        ("written by", entry.dialect or ""),
        ("state", entry.state if entry.plan is None else f"{entry.state} by plan {entry.plan}"),
        ("stored", time_text(entry.stored_ms)),
        ("first sent", time_text(envelope.born_timestamp_ms)),
        ("first delivery", envelope.origin_message_id or ""),
        ("made from", envelope.hop_id or ""),
        ("failures", str(envelope.reconsume_times or 0)),
        ("cause", entry.cause),
        ("text", envelope.fail_text or ""),
        ("failed", time_text(envelope.fail_at_ms)),
        ("stack trace", (envelope.fail_stack or "").rstrip("\n")),
        ("malformed", entry.malformed or ""),
        ("key", "" if entry.key is None else entry.key.decode(errors="replace")),
        ("tag", envelope.tags or ""),
        ("business keys", envelope.keys or ""),
        *(
            (f"header {name}", "(none)" if value is None else value.decode(errors="replace"))
            for name, value in entry.user_headers
        ),
        ("body", entry.value_text()),
    ):
        if value:
            table.add_row(one_line(label), value)
    console(printable_lines).print(table)  # aligns the further lines of a value with its first one


def parse_coordinates(text: str, command: str) -> tuple[int, int]:
    """Return the numbers of `PARTITION/OFFSET`; the error names the command that lists such coordinates."""
    found = _COORDINATES.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text!r:.80}: write PARTITION/OFFSET, as `rocketshim {command}` shows it")
    return int(found[1]), int(found[2])


def split_partition(text: str) -> tuple[str, int | None]:
    """Split `TOPIC/PARTITION` at its last slash, because a retry topic is named after any group; None: no partition."""
    found = _PARTITION.fullmatch(text)
    return (text, None) if found is None else (found[1], int(found[2]))


def find(reader: TopicReader, decoder: Decoder, what: str, *, log: RedriveLog | None = None) -> RecordView | None:
    """Find a record of a topic by `partition/offset`, `topic/partition/offset` or message id; None if there is none."""
    at = _COORDINATES.fullmatch(what.removeprefix(f"{decoder.topic}/"))
    if at is not None:
        message = reader.fetch(decoder.topic, int(at[1]), int(at[2]))
        return None if message is None else RecordView.opened(decoder.open(message), log=log)
    for message in reader.read([decoder.topic]):
        entry = RecordView.opened(decoder.open(message), log=log)
        if entry.id == what:
            return entry
    return None
