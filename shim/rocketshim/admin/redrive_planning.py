"""Make a redrive plan from the dead letters of a topic, and what applying it needs: checks, log, records to send.

The plan itself, and why a dead letter is held back, is in `rocketshim_topics.redrive_plan`; `rocketshim.admin.redrive`
applies it.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

from rocketshim.admin.decoder import DeadLetterRecord, Decoder
from rocketshim.admin.record_filter import RecordFilter
from rocketshim.admin.record_view import RecordView
from rocketshim.admin.redrive import Journal, Make, Redriver, read_log
from rocketshim.core.redrive_progress import RedriveProgress
from rocketshim.errors import ConfigError, MalformedRecordError, MessageError, TopicMissingError
from rocketshim.kafka.client_config import merge
from rocketshim.kafka.clients import Clients, confluent_clients
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics import DelayLevels, Layout, OutgoingRecord, TopicNames, wire
from rocketshim_topics.names import init_command
from rocketshim_topics.redrive_log import RedriveLog
from rocketshim_topics.redrive_plan import (
    PlannedLetter,
    Planner,
    RedrivePlan,
    RedriveRules,
    redrive_id,
    redriven_record,
)
from rocketshim_topics.wire import Header, Record, coordinates, headers_shown

__all__ = ["ensure_log", "make_plan", "planned_redriver", "read_plan", "record_maker", "redriven_parked"]

Watch = Callable[[Iterator[Any]], Iterator[Any]]
"""A function that records pass through as they are read, for example to show progress."""

_DROPPED: Final = frozenset(
    {wire.PARK_REASON, wire.PARK_FROM, wire.TARGET_TRIES, wire.HOP_ID, wire.DELAY_MS, wire.DELIVER_AT_MS, wire.DELAY}
)


def make_plan(
    reader: TopicReader,
    sources: TopicReader,
    source: str,
    rules: RedriveRules,
    choice: RecordFilter,
    *,
    watch: Watch = iter,
) -> RedrivePlan:
    """Read the topic of dead letters, or that of parked records, and plan what to do with the selected ones.

    * `sources`: another reader, which completes dead letters that only name their record.
    """
    names = TopicNames(rules.namespace)
    log = read_log(reader, names.redrive_log, source)
    planner = Planner(source, rules, log, reader.topics())
    decoder = Decoder(names, source, fetch=sources.fetch)
    for dead_letter, entry, is_selected in _classified(reader, decoder, choice, log, watch):
        if not is_selected:
            planner.pass_over(dead_letter.message, entry.envelope)
            continue
        planner.add(
            dead_letter.message,
            entry.envelope,
            malformed=dead_letter.malformed,
            opened=None if dead_letter.dialect is None else dead_letter.record,
        )
    return planner.plan(cluster_id=reader.cluster_id(), created_ms=time.time_ns() // 1_000_000, choice=choice.written)


def _classified(
    reader: TopicReader, decoder: Decoder, choice: RecordFilter, log: RedriveLog, watch: Watch
) -> Iterator[tuple[DeadLetterRecord, RecordView, bool]]:
    """Yield the dead letters that are selected or have a mark in the redrive log, each with "is selected"."""
    since_ms = None if log.has_marks() else choice.since_ms
    for message in watch(reader.read([decoder.topic], since_ms=since_ms)):
        is_marked = log.is_marked(message.partition(), message.offset())
        if not is_marked and choice.since_ms is not None and message.timestamp()[1] < choice.since_ms:
            continue
        dead_letter = decoder.open(message)
        entry = RecordView.opened(dead_letter)
        is_wanted = choice.wants(entry)
        if is_wanted or is_marked:
            yield dead_letter, entry, is_wanted


def read_plan(path: Path) -> RedrivePlan:
    """Return the plan in a file; refuse one that is not as it was made."""
    try:
        return RedrivePlan.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot read the plan ({type(error).__name__})") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


@contextmanager
def planned_redriver(
    bootstrap: str,
    plan: RedrivePlan,
    progress: RedriveProgress,
    *,
    writes: bool = True,
    by: str | None = None,
    report: Callable[[], None] = lambda: None,
    client: Mapping[str, Any] | None = None,
    clients: Clients | None = None,
) -> Iterator[Redriver]:
    """Check that a plan fits the cluster, and yield what applies it.

    * `progress`: its letters; the caller may read it at any time between calls.
    * `writes`: whether to create the redrive log if it is missing; False for a dry run.
    * `by`: who applies the plan, for the log; None: the user of this process.
    """
    names = TopicNames(plan.rules.namespace)
    with TopicReader(bootstrap, client=client, clients=clients) as sources:
        _check_cluster(sources, plan)
        if writes:
            ensure_log(bootstrap, names, client=client, clients=clients)
        with closing(
            Redriver(
                bootstrap,
                Journal(
                    names.redrive_log,
                    source=plan.source,
                    plan=plan.id,
                    state="discarded" if plan.rules.action == "discard" else "redriven",
                    again=plan.rules.again,
                    log_end=plan.log_end,
                    by=by,
                ),
                progress,
                make=record_maker(plan.id, plan.rules, Decoder(names, plan.source, fetch=sources.fetch)),
                report=lambda _: report(),
                client=client,
                clients=clients,
            )
        ) as redriver:
            yield redriver


def _check_cluster(reader: TopicReader, plan: RedrivePlan) -> None:
    """Refuse a plan for another cluster, or one whose topics are missing."""
    cluster_id, topics = reader.cluster_id(), reader.topics()
    if cluster_id != plan.cluster_id:
        raise ConfigError(f"the plan is for the cluster {plan.cluster_id!r}, but this is the cluster {cluster_id!r}")
    wanted = {plan.source} | {letter.target for letter in plan.letters if letter.target}
    missing = sorted(topic for topic in wanted if topic not in topics)
    if missing:
        raise TopicMissingError(f"these topics no longer exist: {', '.join(missing)}; create them or make another plan")


def ensure_log(
    bootstrap: str, names: TopicNames, *, client: Mapping[str, Any] | None = None, clients: Clients | None = None
) -> None:
    """Create the redrive log if it is missing."""
    with TopicReader(bootstrap, client=client, clients=clients) as reader:
        if names.redrive_log in reader.topics():
            return
    make_admin = (clients or confluent_clients()).admin
    if make_admin is None:
        raise TopicMissingError(
            f"the topic {names.redrive_log} does not exist; create it with: {init_command(names.redrive_log)}"
        )
    from rocketshim_topics import provision  # noqa: PLC0415 - only needed once

    admin = make_admin(merge(client or {}, defaults={}, required={"bootstrap.servers": bootstrap}))
    provision.ensure_topics(admin, [Layout(names, DelayLevels.default()).redrive_log()])


def redriven_parked(record: Record, names: TopicNames) -> OutgoingRecord:
    """Return the schedule record that redrives a parked record; it is due immediately, because it has waited already.

    It keeps its identity, without the worker's notes, and `HOP_ID` names the parked record. A parked record need not be
    decodable, so each header is read separately. A record without a target is refused: the worker would only park it
    again.

    Decides: Where does a parked record go when it is sent again? To the finest delay queue, where the worker evaluates
        it again; nothing leaves that topic by itself.
    """
    if not any(name == wire.REAL_TOPIC and value for name, value in headers_shown(record)):
        raise MessageError(f"{coordinates(record)} names no target topic; send its message again yourself instead")
    kept_headers: list[Header] = [header for header in headers_shown(record) if header[0] not in _DROPPED]
    headers = [(wire.DELIVER_AT_MS, b"0"), (wire.HOP_ID, coordinates(record).encode()), *kept_headers]
    finest = DelayLevels.MAX_LEVELS + len(DelayLevels.FINE_MS) - 1
    return OutgoingRecord(names.schedule, finest, record.key(), record.value(), headers)


def record_maker(plan_id: str, rules: RedriveRules, decoder: Decoder) -> Make:
    """Return the function that makes the record which sends a planned dead letter; None: it is only marked."""
    names = TopicNames(rules.namespace)

    def make(message: Any, planned: PlannedLetter) -> OutgoingRecord | None:
        if rules.action == "discard":
            return None
        if decoder.topic == names.parked:
            return redriven_parked(message, names)
        opened = decoder.open(message)
        if opened.malformed is not None:
            raise MalformedRecordError(opened.malformed, "the dead letter cannot be read")
        envelope = None if opened.dialect is None else opened.envelope
        own_replay_id = redrive_id(plan_id, planned.partition, planned.offset)
        out = redriven_record(opened.record, envelope, rules, replay_id=own_replay_id)
        if out.topic != planned.target:
            raise MalformedRecordError("other-target", f"{out.topic} is not the planned target")
        return out

    return make
