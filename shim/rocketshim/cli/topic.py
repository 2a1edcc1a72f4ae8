"""`rocketshim topic peek`: look into any topic, without consuming it."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Annotated

import typer

from rocketshim.admin.record_filter import RecordFilter
from rocketshim.admin.record_view import RecordView, time_text
from rocketshim.cli.completion import complete_topic
from rocketshim.cli.options import SELECTION, Connected, Json
from rocketshim.cli.records import (
    Choice,
    Follow,
    require_topic,
    show_rows,
    split_partition,
)
from rocketshim.errors import ConfigError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics.coordinates import TopicPartitionKey

app = typer.Typer(
    help="Look into a topic, without consuming it.",
    epilog="Example: rocketshim topic peek orders --bootstrap localhost:9092",
    no_args_is_help=True,
)


@app.callback()
def _group() -> None:
    """Look into a topic, without consuming it."""


@app.command(epilog="Example: rocketshim topic peek orders --newest --tags 'created || paid' --where 'price >= 10'")
def peek(
    *,
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC[/PARTITION]", help="Logical topic.", autocompletion=complete_topic)
    ],
    at: Connected,
    choice: Choice,
    newest: Annotated[
        bool,
        typer.Option(
            "--newest", help="Select among the last --limit records of each partition only.", rich_help_panel=SELECTION
        ),
    ] = False,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, help="Maximum number of messages to show.")] = 10,
    follow: Follow = False,
    as_json: Json = False,
) -> None:
    """Show messages with keys, headers and bodies, oldest first within a partition. No group's position changes."""
    if newest and choice.since_ms is not None:
        raise ConfigError("--newest and --since both say where to begin: use one of them")
    names = at.names
    name, number = split_partition(topic)
    physical = names.physical(name)
    with at.reader() as reader:
        require_topic(reader, physical, f"there is no topic {physical}")
        keys, last = _partitions(reader, physical, number), limit if newest else None
        entries = peeked(reader, keys, choice, last=last, follow=follow, trusted=names.is_ours(physical))
        columns = ("partition/offset", "stored (UTC)", "key", "tag", "id", "body")
        rows = ((entry.as_json() if as_json else {}, _cells(entry)) for entry in entries)
        show_rows(columns, rows, limit=limit, as_json=as_json, follow=follow)
    if (hint := choice.misnamed()) is not None:
        typer.echo(hint, err=True)


def peeked(
    reader: TopicReader,
    keys: list[TopicPartitionKey],
    choice: RecordFilter,
    *,
    last: int | None,
    follow: bool,
    trusted: bool,
) -> Iterator[RecordView]:
    """Return the selected records of these partitions, among the `last` of each if that is given.

    They are `trusted` if their topic is one of rocketshim's own.
    """
    bounds = {each: reader.bounds(*each) for each in keys}
    if last is not None:
        messages = reader.read_spans(_newest(reader, bounds, last), follow=follow)
    elif choice.since_ms is not None:
        messages = reader.read([keys[0].topic], since_ms=choice.since_ms, follow=follow)
    else:
        messages = reader.read_spans(bounds, follow=follow)
    for message in messages:
        if message is None or TopicPartitionKey(message.topic(), message.partition()) not in bounds:
            continue
        entry = RecordView.of(message, trusted=trusted)
        if choice.wants(entry):
            yield entry


def _newest(
    reader: TopicReader, bounds: Mapping[TopicPartitionKey, tuple[int, int]], last: int
) -> dict[TopicPartitionKey, tuple[int, int]]:
    """Return where the last records of each partition begin: further back where markers and aborted records are."""
    spans: dict[TopicPartitionKey, tuple[int, int]] = {}
    missing, width = dict(bounds), last
    while missing:
        looked = {key: (max(low, high - width), high) for key, (low, high) in missing.items()}
        offsets: defaultdict[TopicPartitionKey, list[int]] = defaultdict(list)
        for message in reader.read_spans(looked):
            offsets[TopicPartitionKey(message.topic(), message.partition())].append(message.offset())
        for key, (start, high) in looked.items():
            if len(offsets[key]) >= last:
                spans[key] = (offsets[key][-last], high)
            elif start == missing[key][0]:
                spans[key] = (start, high)
        missing = {key: span for key, span in missing.items() if key not in spans}
        width *= 4
    return spans


def _partitions(reader: TopicReader, physical: str, number: int | None) -> list[TopicPartitionKey]:
    count = reader.topics()[physical]
    if number is not None and number >= count:
        raise ConfigError(f"{physical}/{number}: the topic has the partitions 0 to {count - 1}")
    return [TopicPartitionKey(physical, each) for each in (range(count) if number is None else [number])]


def _cells(entry: RecordView) -> list[str]:
    return [
        f"{entry.partition}/{entry.offset}",
        time_text(entry.stored_ms)[:-4],
        "" if entry.key is None else entry.key.decode(errors="replace"),
        entry.envelope.tags or "",
        entry.envelope.uniq_key or "",
        entry.value_text(),
    ]
