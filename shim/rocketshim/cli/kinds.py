"""The kinds of records that commands list, show and count: dead, retried, delayed, parked, and those of any topic.

Each `Kind` is a row: which topic it reads, which options select from it, and which columns it shows. `with_listing`
makes the commands `ls`, `show` and, where causes can be counted, `stats` of it. What only one kind has (`dlq export`,
`delayed stats`, `parked plan`) is in its own module.
"""

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from rocketshim.admin.cause_counts import by_cause
from rocketshim.admin.dead_letter_formats import Decoder
from rocketshim.admin.record_filter import RecordFilter
from rocketshim.admin.record_view import RecordView
from rocketshim.admin.redrive import read_log
from rocketshim.admin.times import past_ms
from rocketshim.cli.app import FINDING
from rocketshim.cli.completion import complete_group, complete_topic
from rocketshim.cli.options import Connected, ConnectedWithLevels, Json, output, selection
from rocketshim.cli.records import CELLS, counting, require_topic, show_causes, show_one, show_rows, split_partition
from rocketshim.errors import ConfigError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.observe.delay_queues import DelayedReader
from rocketshim_topics import TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey

OfGroup = Annotated[
    str | None,
    selection(
        "--group",
        "-g",
        help="The consumer group of the dead letters; with --topic, the group that gets them.",
        autocompletion=complete_group,
    ),
]
OfTopic = Annotated[
    str | None,
    selection(
        "--topic",
        "-t",
        help="Another dead-letter topic: Spring's, Connect's, Streams', … (see docs).",
        autocompletion=complete_topic,
    ),
]
Group = Annotated[
    str,
    selection("--group", "-g", help="The consumer group.", autocompletion=complete_group),
]
Target = Annotated[
    str | None,
    selection("--topic", "-t", help="Only records for this topic: %RETRY%g or rmq.retry.g."),
]
Reason = Annotated[
    str | None,
    selection("--reason", help="Only records whose reason begins with this text."),
]
Where = Annotated[
    str | None,
    selection(
        "--where",
        "-w",
        help="SQL92 condition on headers (cause: FAIL_CLASS, text: FAIL_TEXT): "
        "\"FAIL_CLASS = 'ConsumeTimeout' AND price > 10\".",
    ),
]
Tags = Annotated[
    str | None,
    selection("--tags", help="Only messages with one of these tags: 'created || paid'."),
]
Key = Annotated[
    str | None,
    selection("--key", "-k", help="Only messages with this record key or business key."),
]
Cause = Annotated[
    str | None,
    selection("--cause", metavar="ID", help="Only records of exactly this cause: its id, as `stats` shows it."),
]
Since = Annotated[
    str | None,
    selection(
        "--since",
        "-s",
        metavar="DURATION|TIME",
        help="Only records stored within this duration, or since this time: 30m, 2h, 2026-11-20T18:00:00Z.",
    ),
]
Until = Annotated[
    str | None,
    selection("--until", metavar="DURATION|TIME", help="Only records stored before this time, written as for --since."),
]
Newest = Annotated[
    int | None,
    selection("--newest", min=1, help="Select among the last records of each partition only."),
]
Everything = Annotated[
    bool,
    output("--all", "-a", help="Also show messages that were sent again or discarded."),
]
Limit = Annotated[
    int,
    output("--limit", "-l", min=1, help="Maximum number of messages to show."),
]
Follow = Annotated[bool, output("--follow", "-f", help="Continue with new records until Ctrl-C.")]
What = Annotated[
    str,
    typer.Argument(metavar="ID|PARTITION/OFFSET", help="The record to show, or the id of its message."),
]

Read = Callable[[RecordFilter, int, bool], Iterable[Any]]
"""Reads Kafka messages for a choice. A number: as many as are listed (0: all); True: continue with new ones."""

_COORDINATES: Final = re.compile("([0-9]{1,19})/([0-9]{1,19})")
_ADDRESS: Final = re.compile("(.+)/([0-9]{1,19}/[0-9]{1,19})")


def position_of(text: str, command: str) -> tuple[int, int]:
    """Return the numbers of `PARTITION/OFFSET`; the error names the command that lists such positions."""
    found = _COORDINATES.fullmatch(text)
    if found is None:
        raise ConfigError(f"{text!r:.80}: write PARTITION/OFFSET, as `rocketshim {command}` shows it")
    return int(found[1]), int(found[2])


@dataclass(frozen=True, slots=True)
class Records:
    """The records of one topic."""

    reader: TopicReader
    topic: str
    view: Callable[[Any], RecordView]
    read: Read | None = None  # None: from the choice's time to the end, in the order of offsets
    one: str = ""  # PARTITION/OFFSET, if the topic was written with them

    def select(self, choice: RecordFilter, *, limit: int = 0, follow: bool = False) -> Iterator[RecordView]:
        """Yield the selected records; print at the end how many were left out since they were sent again."""
        hidden = 0
        messages = (
            self.reader.read([self.topic], since_ms=choice.since_ms, follow=follow)
            if self.read is None
            else self.read(choice, limit, follow)
        )
        for message in messages:
            if message is None or not choice.wants(entry := self.view(message)):
                continue
            if choice.everything or entry.plan is None:
                yield entry
            else:
                hidden += 1
        if (hint := choice.misnamed()) is not None:
            typer.echo(hint, err=True)
        if hidden:
            was = "was" if hidden == 1 else "were"
            typer.echo(f"{hidden} more {was} sent again or discarded; --all includes them", err=True)

    def find(self, what: str) -> RecordView | None:
        """Find a record by `partition/offset`, `topic/partition/offset` or message id; None if there is none."""
        at = _COORDINATES.fullmatch(what.removeprefix(f"{self.topic}/"))
        if at is not None:
            message = self.reader.fetch(self.topic, int(at[1]), int(at[2]))
            return None if message is None else self.view(message)
        return next((entry for entry in self.select(RecordFilter()) if entry.id == what), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of records.

    * `opened`, `choice`: groups of options, see `rocketshim.cli.options`.
    """

    command: str  # name of its commands
    noun: str  # what `show` shows one of
    opened: Callable[..., AbstractContextManager[Records]]
    choice: Callable[..., RecordFilter]
    columns: tuple[str, ...]  # of `CELLS`
    ls: str  # help of `ls`
    where: str = ""  # example of the options that name the topic
    example: str = ""  # example of the options that select
    has_causes: bool = True  # whether `stats` counts causes


def with_listing(app: typer.Typer, kind: Kind) -> typer.Typer:
    """Add the commands that each kind has."""
    rocketshim = f"Example: rocketshim {kind.command}"
    required: Any = ...

    @app.command(help=kind.ls, epilog=f"{rocketshim} ls {kind.where} {kind.example}")
    def ls(
        *,
        opened: Annotated[AbstractContextManager[Records], kind.opened],
        choice: Annotated[RecordFilter, kind.choice],
        limit: Limit = 50,
        follow: Follow = False,
        as_json: Json = False,
    ) -> None:
        with opened as records:
            if records.one:
                raise ConfigError(
                    f"ls lists a topic or a partition: rocketshim topic show {records.topic}/{records.one}"
                )
            entries = records.select(choice, limit=limit, follow=follow)
            show_rows(kind.columns, map(row, entries), limit=limit, as_json=as_json, follow=follow)

    def row(entry: RecordView) -> tuple[dict[str, Any], list[str]]:
        return entry.as_json(body="body" in kind.columns), [CELLS[name](entry) for name in kind.columns]

    @app.command(
        help=f"Show one {kind.noun} in full. Exit code 2 if it does not exist (any more).",
        epilog=f"{rocketshim} show {'orders/0/17' if kind is TOPIC else f'0/17 {kind.where}'}",
    )
    def show(
        *,
        opened: Annotated[AbstractContextManager[Records], kind.opened],
        what: What = "" if kind is TOPIC else required,
        as_json: Json = False,
    ) -> None:
        with opened as records:
            if not (what := what or records.one):
                raise ConfigError(f"{records.topic}: write TOPIC/PARTITION/OFFSET, or TOPIC and the id of a message")
            entry = records.find(what)
        if entry is None:
            typer.echo(f"no {kind.noun} {what} in {records.topic} (any more)", err=True)
            raise typer.Exit(FINDING)
        show_one(entry, as_json=as_json)

    def stats(
        *,
        opened: Annotated[AbstractContextManager[Records], kind.opened],
        choice: Annotated[RecordFilter, kind.choice],
        as_json: Json = False,
    ) -> None:
        with opened as records:
            counts = by_cause(counting(records.select(choice)))
        show_causes(counts, records.topic, kind.noun, as_json=as_json)

    if kind.has_causes:
        app.command(
            help=f"Count {kind.noun}s by cause. The command reads and counts records; it does not subtract offsets.",
            epilog=f"{rocketshim} stats {kind.where} --since 1d",
        )(stats)
    return app


# --- the rows ---------------------------------------------------------------------------------------------------------


def _choice(
    *, where: Where = None, tags: Tags = None, key: Key = None, since: Since = None, cause: Cause = None
) -> RecordFilter:
    return RecordFilter(where=where, tags=tags, key=key, since=since, cause=cause)


Choice = Annotated[RecordFilter, _choice]


def _unless_settled(*, choice: Choice, everything: Everything = False) -> RecordFilter:
    choice.everything = everything
    return choice


def _delayed_choice(*, at: Connected, choice: Choice, topic: Target = None) -> RecordFilter:
    return choice.going_to(topic, at.names)


def parked_selection(*, at: Connected, choice: Choice, reason: Reason = None, topic: Target = None) -> RecordFilter:
    """Return which parked records were selected."""
    return choice.going_to(topic, at.names).also("reason", reason, lambda entry, text: entry.cause.startswith(text))


def _parked_choice(
    *, choice: Annotated[RecordFilter, parked_selection], everything: Everything = False
) -> RecordFilter:
    choice.everything = everything
    return choice


def _topic_choice(*, choice: Choice, newest: Newest = None, until: Until = None) -> RecordFilter:
    choice.until_ms = None if until is None else past_ms(until, time.time_ns() // 1_000_000, "--until")
    if newest is not None and (choice.since_ms is not None or choice.until_ms is not None):
        raise ConfigError("--newest names the same records as --since and --until in another way: use one of them")
    choice.newest = newest
    return choice


def dead_letter_topic_of(reader: TopicReader, names: TopicNames, group: str | None, topic: str | None) -> str:
    """Return the physical topic that `--group` or `--topic` names."""
    if topic is not None:
        return require_topic(reader, names.physical(topic), f"there is no topic {topic}")
    if group is None:
        raise ConfigError("give --group GROUP, or --topic TOPIC for another project's dead letters")
    return _groups_topic(reader, names.dead_letter(group), group)


def _groups_topic(reader: TopicReader, physical: str, group: str) -> str:
    otherwise = f"the group {group!r} is not known here: there is no topic {physical}"
    return require_topic(reader, physical, otherwise, physical.removesuffix(group))


@contextmanager
def _dead_letters(*, at: Connected, group: OfGroup = None, topic: OfTopic = None) -> Iterator[Records]:
    with at.reader() as reader, at.reader() as sources:
        source = dead_letter_topic_of(reader, at.names, group, topic)
        yield _marked(reader, Decoder(at.names, source, fetch=sources.fetch), at.names)


@contextmanager
def _parked(*, at: Connected) -> Iterator[Records]:
    with at.reader() as reader:
        yield _marked(reader, Decoder(at.names, reader.require(at.names.parked)), at.names)


def _marked(reader: TopicReader, decoder: Decoder, names: TopicNames) -> Records:
    """Return records with what the redrive log knows of them."""
    log = read_log(reader, names.redrive_log, decoder.topic)
    if log.lost_until_ms:
        typer.echo(
            f"the redrive log {names.redrive_log} has lost its first records: what was sent again before may be shown "
            "as not sent",
            err=True,
        )
    return Records(reader, decoder.topic, lambda message: RecordView.opened(decoder.open(message), log=log))


@contextmanager
def _retries(*, at: Connected, group: Group) -> Iterator[Records]:
    with at.reader() as reader:
        yield Records(reader, _groups_topic(reader, at.names.retry(group), group), RecordView.of)


@contextmanager
def _delayed(*, at: ConnectedWithLevels) -> Iterator[Records]:
    with at.reader() as reader:
        queues = DelayedReader(reader, at.names, at.levels)

        def view(message: Any) -> RecordView:
            return RecordView.of(message, levels=at.levels)

        def read(choice: RecordFilter, limit: int, follow: bool) -> Iterable[Any]:
            if follow or not limit:
                return queues.records(follow=follow)
            return queues.first(limit + 1, lambda message: choice.wants(view(message)))

        yield Records(reader, reader.require(at.names.schedule), view, read)


@contextmanager
def _any_topic(
    *,
    at: Connected,
    topic: Annotated[
        str,
        typer.Argument(
            metavar="TOPIC[/PARTITION[/OFFSET]]",
            help="Logical topic; `show` also takes an address.",
            autocompletion=complete_topic,
        ),
    ],
) -> Iterator[Records]:
    address = _ADDRESS.fullmatch(topic)
    name, number = split_partition(topic) if address is None else (address[1], None)
    physical = at.names.physical(name)
    is_ours = at.names.is_ours(physical)
    with at.reader() as reader:
        keys = partitions(reader, require_topic(reader, physical, f"there is no topic {physical}"), number)
        yield Records(
            reader,
            physical,
            lambda message: RecordView.of(message, trusted=is_ours),
            lambda choice, _, follow: read_partitions(reader, keys, choice, follow=follow),
            one="" if address is None else address[2],
        )


def partitions(reader: TopicReader, physical: str, number: int | None) -> list[TopicPartitionKey]:
    """Return one partition of a topic, or all."""
    count = reader.topics()[physical]
    if number is not None and number >= count:
        raise ConfigError(f"{physical}/{number}: the topic has the partitions 0 to {count - 1}")
    return [TopicPartitionKey(physical, each) for each in (range(count) if number is None else [number])]


def read_partitions(
    reader: TopicReader, keys: list[TopicPartitionKey], choice: RecordFilter, *, follow: bool
) -> Iterator[Any]:
    """Yield the messages of these partitions: between the choice's times, or the newest ones, or all."""
    if choice.until_ms is not None:
        if follow:
            raise ConfigError("--follow continues with new records, and --until leaves them out: use one of them")
        messages = reader.read_spans(reader.spans([keys[0].topic], since_ms=choice.since_ms, until_ms=choice.until_ms))
    elif choice.since_ms is not None:
        messages = reader.read([keys[0].topic], since_ms=choice.since_ms, follow=follow)
    else:
        bounds = reader.bounds_of_all(keys)
        spans = bounds if choice.newest is None else _newest(reader, bounds, choice.newest)
        messages = reader.read_spans(spans, follow=follow)
    wanted = {key.partition for key in keys}
    return (message for message in messages if message is not None and message.partition() in wanted)


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


DEAD: Final = Kind(
    command="dlq",
    noun="dead letter",
    opened=_dead_letters,
    choice=_unless_settled,
    columns=("partition/offset", "stored (UTC)", "id", "state", "failures", "origin topic", "cause", "text"),
    ls="List the dead letters of a group, oldest first within a partition.",
    where="--group payments",
    example="--where \"FAIL_CLASS = 'ConsumeTimeout'\" --since 2d",
)
RETRY: Final = Kind(
    command="retry",
    noun="retried message",
    opened=_retries,
    choice=_choice,
    columns=("partition/offset", "stored (UTC)", "id", "failures", "origin topic", "cause", "text"),
    ls="List the records of a group's retry topic: attempts that were due. `delayed ls` shows those that still wait.",
    where="--group payments",
    example="--since 1h",
)
DELAYED: Final = Kind(
    command="delayed",
    noun="delayed message",
    opened=_delayed,
    choice=_delayed_choice,
    columns=("partition/offset", "due (UTC)", "id", "target", "group", "failures", "trouble"),
    ls="List the waiting messages that leave their queues first; with --follow all, in the order of reading.",
    example="--topic orders --tags 'created || paid' --limit 20",
    has_causes=False,  # `stats` counts queues
)
PARKED: Final = Kind(
    command="parked",
    noun="parked record",
    opened=_parked,
    choice=_parked_choice,
    columns=("partition/offset", "stored (UTC)", "id", "bytes", "park from", "target", "park reason"),
    ls="List parked records that were not sent again since, oldest first within a partition.",
    example="--reason forbidden-target",
)
TOPIC: Final = Kind(
    command="topic",
    noun="record",
    opened=_any_topic,
    choice=_topic_choice,
    columns=("partition/offset", "stored (UTC)", "id", "key", "tag", "body"),
    ls="List messages of any topic with keys, headers and bodies. No group's position changes.",
    where="orders",
    example="--newest 10 --tags 'created || paid' --where 'price >= 10'",
    has_causes=False,
)

retry: Final = with_listing(
    typer.Typer(
        help="Show the messages that a group receives as retries.",
        epilog="Example: rocketshim retry ls --bootstrap localhost:9092 --group payments --since 1h",
        no_args_is_help=True,
    ),
    RETRY,
)
topic: Final = with_listing(
    typer.Typer(
        help="Look into a topic, without consuming it.",
        epilog="Example: rocketshim topic ls orders --bootstrap localhost:9092",
        no_args_is_help=True,
    ),
    TOPIC,
)
