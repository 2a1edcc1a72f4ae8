"""`rocketshim dlq plan | apply | discard`: sending dead letters again, or not, as a plan that a person can read first.

`plan` and `discard` only read, and write a file. `apply` does what the file says and nothing else; what it has done it
knows from the cluster (`rocketshim.admin.redrive`), so it may be stopped and repeated at any time.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rocketshim.admin.decoder import Decoder
from rocketshim.admin.redrive import Redriver, read_log
from rocketshim.cli.app import FINDING
from rocketshim.cli.options import Bootstrap, Client, DryRun, Json, Namespace, client_settings
from rocketshim.cli.records import (
    Key,
    OfGroup,
    OfTopic,
    RecordFilter,
    Since,
    Tags,
    Where,
    classified_dead_letters,
    dead_letter_topic_of,
    echo_safe,
)
from rocketshim.core.redrive import DEFAULT_STOP_RATIO, RedriveProgress
from rocketshim.errors import ConfigError, MalformedRecordError, TopicMissingError
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics import DelayLevels, Layout, OutgoingRecord, TopicNames
from rocketshim_topics.redrive_plan import (
    DEFAULT_MAX_REPLAYS,
    PlannedLetter,
    Planner,
    RedrivePlan,
    RedriveRules,
    next_hop,
    replay_id,
)

PLAN_EXAMPLE = (
    "Example: rocketshim dlq plan --group payments --where \"FAIL_CLASS = 'Timeout'\" --out plan.json; "
    "then: rocketshim dlq apply plan.json"
)
DISCARD_EXAMPLE = (
    "Example: rocketshim dlq discard --group payments --tags test --out plan.json; then: rocketshim dlq apply plan.json"
)

Out = Annotated[
    Path | None,
    typer.Option("--out", dir_okay=False, help="Write the plan to this file; without it, only say what it would do."),
]
Again = Annotated[bool, typer.Option("--again", help="Also those that were sent again or discarded before.")]


def plan(
    *,
    bootstrap: Bootstrap,
    client: Client = None,
    group: OfGroup = None,
    topic: OfTopic = None,
    namespace: Namespace = "",
    where: Where = None,
    tags: Tags = None,
    key: Key = None,
    since: Since = None,
    to_source: Annotated[
        bool, typer.Option("--to-source", help="To the source topic, so that EVERY group gets them again.")
    ] = False,
    max_replays: Annotated[
        int, typer.Option("--max-replays", min=0, max=2**31 - 1, help="Hold back what was replayed so often already.")
    ] = DEFAULT_MAX_REPLAYS,
    again: Again = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Plan which dead letters would be sent again, to the group's retry topic. Sends nothing."""
    rules = RedriveRules(
        namespace=namespace,
        group=None if to_source else group,
        to_source=to_source,
        max_replays=max_replays,
        again=again,
    )
    choice = RecordFilter(where=where, tags=tags, key=key, since=since)
    reading = partial(TopicReader, bootstrap, client=client_settings(client))
    _plan(reading, (group, topic), rules, choice, out, as_json=as_json)


def discard(
    *,
    bootstrap: Bootstrap,
    client: Client = None,
    group: OfGroup = None,
    topic: OfTopic = None,
    namespace: Namespace = "",
    where: Where = None,
    tags: Tags = None,
    key: Key = None,
    since: Since = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Plan which dead letters would be marked as discarded: no longer listed, and not deleted. Changes nothing."""
    rules = RedriveRules(action="discard", namespace=namespace)
    choice = RecordFilter(where=where, tags=tags, key=key, since=since)
    reading = partial(TopicReader, bootstrap, client=client_settings(client))
    _plan(reading, (group, topic), rules, choice, out, as_json=as_json)


def _plan(
    reading: Callable[[], TopicReader],
    whose: tuple[str | None, str | None],
    rules: RedriveRules,
    choice: RecordFilter,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    names = TopicNames(rules.namespace)
    with reading() as reader, reading() as sources:
        source = dead_letter_topic_of(reader, names, *whose)
        log = read_log(reader, names.redrive_log)
        planner = Planner(source, rules, log, reader.topics())
        for letter, is_chosen in classified_dead_letters(
            reader, Decoder(names, source, fetch=sources.fetch), choice, log
        ):
            if not is_chosen:
                planner.pass_over(letter.message, letter.envelope)
                continue
            planner.add(
                letter.message,
                letter.envelope,
                malformed=letter.malformed,
                opened=None if letter.dialect is None else letter.record,
            )
        made = planner.plan(
            cluster_id=reader.cluster_id(), created_ms=time.time_ns() // 1_000_000, choice=choice.written
        )
    if out is not None:
        out.write_text(made.to_json(), encoding="utf-8")
    if as_json:
        typer.echo(json.dumps({"id": made.id, **made.summary()}, indent=1) if out is not None else made.to_json())
        return
    for line in _said(made):
        echo_safe(line)
    typer.echo(
        "no plan was written: --out FILE does"
        if out is None
        else f"written to {out}; nothing was changed. To do it: rocketshim dlq apply {out}"
    )


def _said(made: RedrivePlan) -> list[str]:
    """A plan in a few lines."""
    summary = made.summary()
    verb = "discard" if made.rules.action == "discard" else "send"
    lines = [f"plan {made.id}: {verb} {summary['letters']} of {summary['letters'] + len(made.held_back)} letters"]
    lines += [f"  {count:7} {cause}" for cause, count in summary["by_cause"].items()]
    lines += [f"  {count:7} to {topic}" for topic, count in summary["by_target"].items()]
    lines += [f"  {count:7} held back: {reason}" for reason, count in summary["held_back"].items()]
    if made.rules.to_source:
        lines.append("  every group that reads the source topic gets them again")
    if any(each.reason.startswith("no-topic:") for each in made.held_back):
        lines.append("  choose a target that is there: --group GROUP for its retry topic, or --to-source")
    return lines


def apply(
    *,
    file: Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A plan, of `dlq plan` or `dlq discard`.")],
    bootstrap: Bootstrap,
    client: Client = None,
    rate: Annotated[float | None, typer.Option("--rate", help="Letters a second at most. Default: no limit.")] = None,
    most: Annotated[int | None, typer.Option("--max", min=1, help="Letters at most in this run; then stop.")] = None,
    stop_ratio: Annotated[
        float,
        typer.Option("--stop-ratio", min=0, max=1, help="Stop if more than this share fails or dies again."),
    ] = DEFAULT_STOP_RATIO,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Do what a plan says: each letter exactly once, however often this is run, stopped or killed.

    Exit code 2 if letters could not be sent, or died again while this was running.
    """
    made = RedrivePlan.from_json(file.read_text(encoding="utf-8", errors="replace"))
    names = TopicNames(made.rules.namespace)
    settings = client_settings(client)
    _check_cluster(bootstrap, settings, made, names, dry_run=dry_run)
    progress = RedriveProgress(made.letters, rate_per_s=rate, most=most, stop_ratio=stop_ratio)
    with _bar(progress, hidden=as_json) as report, TopicReader(bootstrap, client=settings) as sources:
        redriver = Redriver(
            bootstrap,
            names.redrive_log,
            source=made.source,
            plan=made.id,
            state="discarded" if made.rules.action == "discard" else "redriven",
            make=_maker(made, Decoder(names, made.source, fetch=sources.fetch)),
            again=made.rules.again,
            progress=progress,
            report=report,
            client=settings,
        )
        try:
            if dry_run:
                redriver.dry_run()
            else:
                redriver.run()
        except KeyboardInterrupt:
            typer.echo(f"stopped after {progress.sent} letters; the same command goes on where it stopped", err=True)
            raise
        finally:
            redriver.close()
    _tell(made, progress, dry_run=dry_run, as_json=as_json)
    if progress.failed or progress.dead_again:
        raise typer.Exit(FINDING)


def _check_cluster(
    bootstrap: str, client: dict[str, str], made: RedrivePlan, names: TopicNames, *, dry_run: bool
) -> None:
    """Refuse a plan of another cluster or for topics that are not there; make the redrive log if it is missing."""
    with TopicReader(bootstrap, client=client) as reader:
        cluster_id, topics = reader.cluster_id(), reader.topics()
    if cluster_id != made.cluster_id:
        raise ConfigError(f"the plan is for the cluster {made.cluster_id!r}, and {bootstrap} is {cluster_id!r}")
    wanted = {made.source} | {letter.target for letter in made.letters if letter.target}
    missing = sorted(topic for topic in wanted if topic not in topics)
    if missing:
        raise TopicMissingError(f"not there any more: {', '.join(missing)}; create them or make another plan")
    if names.redrive_log not in topics and not dry_run:
        ensure_log(bootstrap, client, names)


def ensure_log(bootstrap: str, client: dict[str, str], names: TopicNames) -> None:
    """Make the redrive log if it is missing."""
    from rocketshim.kafka.client_config import merge  # noqa: PLC0415 - `--help` does without
    from rocketshim.kafka.clients import confluent_admin  # noqa: PLC0415
    from rocketshim_topics import provision  # noqa: PLC0415

    log = Layout(names, DelayLevels.default()).redrive_log()
    admin = confluent_admin(merge(client, defaults={}, required={"bootstrap.servers": bootstrap}))
    provision.ensure_topics(admin, [log])


def _maker(made: RedrivePlan, opener: Decoder) -> Any:
    plan_id = made.id

    def make(message: Any, letter: PlannedLetter) -> OutgoingRecord | None:
        if made.rules.action == "discard":
            return None
        opened = opener.open(message)
        if opened.malformed is not None:
            raise MalformedRecordError(opened.malformed, "the letter cannot be read")
        envelope = None if opened.dialect is None else opened.envelope
        place_id = replay_id(plan_id, letter.partition, letter.offset)
        out = next_hop(opened.record, envelope, made.rules, replay_id=place_id)
        if out.topic != letter.target:
            raise MalformedRecordError("other-target", f"{out.topic} is not the target that was planned")
        return out

    return make


@contextmanager
def _bar(progress: RedriveProgress, *, hidden: bool) -> Iterator[Callable[[], None]]:
    """A progress bar on a terminal, nothing elsewhere; gives what brings it up to date."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=hidden or not console.is_terminal) as bar:
        task = bar.add_task("sending", total=progress.planned)
        yield lambda: bar.update(task, completed=progress.sent + progress.settled + progress.failed)


def _tell(made: RedrivePlan, progress: RedriveProgress, *, dry_run: bool, as_json: bool) -> None:
    facts = {
        "plan": made.id,
        "planned": progress.planned,
        "sent": progress.sent,
        "settled_before": progress.settled,
        "failed": progress.failed,
        "failures": dict(progress.failures),
        "dead_again": progress.dead_again,
        "left": progress.waiting,
        "stopped_by": progress.stopped_by if progress.waiting else None,
        "dry_run": dry_run,
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    done = "discarded" if made.rules.action == "discard" else "sent"
    if dry_run:
        typer.echo(f"would be {done}: {progress.waiting}, {done} before: {progress.settled}, failed: {progress.failed}")
    else:
        typer.echo(
            f"{done}: {progress.sent}, before this run: {progress.settled}, failed: {progress.failed}, "
            f"left: {progress.waiting}"
        )
    for reason, count in progress.failures.most_common():
        echo_safe(f"  {count:7} failed: {reason}")
    if progress.dead_again:
        typer.echo(f"  {progress.dead_again:7} of those sent are dead again")
    if progress.stopped_by == "failures" and progress.waiting:
        typer.echo(
            "stopped: too many failed or died again. Mend the cause, make another plan, or give a higher --stop-ratio",
            err=True,
        )
