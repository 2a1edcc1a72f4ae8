"""`rocketshim dlq plan | apply | discard`: send records again, or discard them, by a plan that you can read first.

`plan` and `discard` only read the cluster and write a file. `apply` does exactly what the file says. It reads from the
cluster what is already done (`rocketshim.admin.redrive`), so it may be stopped and repeated at any time.
"""

import json
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rocketshim.admin.plan_from_topic import make_plan, read_plan
from rocketshim.admin.record_filter import RecordFilter
from rocketshim.admin.redrive import planned_redriver
from rocketshim.cli.app import FINDING
from rocketshim.cli.kinds import Choice, OfGroup, OfTopic, dead_letter_topic_of
from rocketshim.cli.options import AtBrokers, Connected, Connection, DryRun, Json
from rocketshim.cli.records import counting, echo_safe
from rocketshim.cli.redrive_options import MaxLetters, MaxReplays, Rate, StopRatio, ToSource
from rocketshim.core.redrive_progress import DEFAULT_STOP_RATIO, RedriveProgress
from rocketshim.core.user_values import count_text
from rocketshim.errors import ConfigError
from rocketshim_topics import TopicNames
from rocketshim_topics.redrive_plan import (
    DEFAULT_MAX_REPLAYS,
    PlannedLetter,
    RedrivePlan,
    RedriveRules,
)

_MOST_NAMED = 20
_LAST_LOOK_MS = 1_000
PLAN_EXAMPLE = (
    "Example: rocketshim dlq plan --group payments --where \"FAIL_CLASS = 'ConsumeTimeout'\" --out plan.json; "
    "then: rocketshim dlq apply plan.json"
)
DISCARD_EXAMPLE = (
    "Example: rocketshim dlq discard --group payments --tags test --out plan.json; then: rocketshim dlq apply plan.json"
)

Out = Annotated[
    Path | None,
    typer.Option(
        "--out", "-o", dir_okay=False, help="Write the plan to this file. Without it, only show what the plan would do."
    ),
]
Again = Annotated[bool, typer.Option("--again", help="Also plan records that were sent again or discarded before.")]


def plan(
    *,
    at: Connected,
    group: OfGroup = None,
    topic: OfTopic = None,
    choice: Choice,
    to_source: ToSource = False,
    max_replays: MaxReplays = DEFAULT_MAX_REPLAYS,
    again: Again = False,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Plan which dead letters to send again to the group's retry topic. Sends nothing."""
    rules = RedriveRules(
        namespace=at.namespace,
        group=None if to_source else group,
        to_source=to_source,
        max_replays=max_replays,
        again=again,
    )
    _plan(at, (group, topic), rules, choice, out, as_json=as_json)


def discard(
    *,
    at: Connected,
    group: OfGroup = None,
    topic: OfTopic = None,
    choice: Choice,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Plan which dead letters to mark as discarded: no longer listed, but not deleted. Changes nothing."""
    rules = RedriveRules(action="discard", namespace=at.namespace)
    _plan(at, (group, topic), rules, choice, out, as_json=as_json)


def _plan(
    at: Connection,
    group_and_topic: tuple[str | None, str | None],
    rules: RedriveRules,
    choice: RecordFilter,
    out: Path | None,
    *,
    as_json: bool,
) -> None:
    check_out(out)
    with at.reader() as reader, at.reader() as sources:
        source = dead_letter_topic_of(reader, at.names, *group_and_topic)
        redrive_plan = make_plan(reader, sources, source, rules, choice, watch=counting)
    if (hint := choice.misnamed()) is not None:
        typer.echo(hint, err=True)
    write_plan(redrive_plan, out, as_json=as_json)


def check_out(out: Path | None) -> None:
    """Refuse a file that cannot be written, before a broker is asked."""
    if out is not None and not os.access(out if out.exists() else out.parent, os.W_OK):
        raise ConfigError(f"--out {out}: cannot write there; create the folder, or choose another file")


def write_plan(redrive_plan: RedrivePlan, out: Path | None, *, as_json: bool) -> None:
    """Write a plan to its file, and print a summary of it."""
    if out is not None:
        try:
            _write_private(out, redrive_plan.to_json())
        except OSError as error:  # for example: the disk is full
            raise ConfigError(
                f"--out {out}: the plan could not be written ({error.strerror}); the file is not complete"
            ) from error
    if as_json:
        typer.echo(
            json.dumps({"id": redrive_plan.id, **redrive_plan.summary()}, indent=1)
            if out is not None
            else redrive_plan.to_json()
        )
        return
    for line in _summary_lines(redrive_plan):
        echo_safe(line)
    typer.echo(
        "no plan was written: use --out FILE"
        if out is None
        else f"written to {out}; nothing was changed. To do it: rocketshim dlq apply {out}"
    )


def _write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, as a plan names messages and causes."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:  # noqa: PTH123
        if path.is_file():  # not a pipe or a terminal; it may have existed, with other rights
            path.chmod(0o600)
        file.write(text)


def _summary_lines(redrive_plan: RedrivePlan) -> list[str]:
    """Summarise a plan in a few lines."""
    summary = redrive_plan.summary()
    verb = "discard" if redrive_plan.rules.action == "discard" else "send"
    settled = sum(summary["held_back"].pop(reason, 0) for reason in ("redriven-by", "discarded-by"))
    total = summary["letters"] + len(redrive_plan.held_back) - settled  # as `stats` counts them
    is_parked = redrive_plan.source == TopicNames(redrive_plan.rules.namespace).parked
    noun = "parked record" if is_parked else "dead letter"
    lines = [f"plan {redrive_plan.id}: {verb} {summary['letters']} of {count_text(total, noun)}"]
    lines += ["  {count:7} {cause}: {text}".format(**each).rstrip(": ") for each in summary["causes"][:_MOST_NAMED]]
    if len(summary["causes"]) > _MOST_NAMED:
        lines.append(f"  the first {_MOST_NAMED} of {len(summary['causes'])} causes; --json has all")
    lines += [f"  {count:7} to {topic}" for topic, count in summary["by_target"].items()]
    lines += [f"  {count:7} held back: {reason}" for reason, count in summary["held_back"].items()]
    if settled:
        hint = "" if verb == "discard" else "; --again plans them, too"
        lines.append(f"  {settled:7} held back: sent again or discarded before{hint}")
    if redrive_plan.rules.to_source:
        lines.append("  every group that reads the source topic gets them again")
    if any(each.reason.startswith("no-topic:") for each in redrive_plan.held_back):
        lines.append("  choose an existing target: --group GROUP for its retry topic, or --to-source")
    if any(each.reason.startswith("no-key:") for each in redrive_plan.held_back):
        lines.append(
            "  no-key: their target is compacted, and brokers take only records with a key there; discard them"
        )
    if any(each.reason == "marks-lost" for each in redrive_plan.held_back):
        discard_them = "" if is_parked else "mark them as not to be sent (dlq discard), or "
        lines.append(
            "  marks-lost: the redrive log has lost its first records, so these may have been sent before; "
            f"{discard_them}plan them nevertheless (--again)"
        )
    return lines


def apply(
    *,
    file: Annotated[
        Path,
        typer.Argument(exists=True, dir_okay=False, help="A plan of `dlq plan`, `dlq discard` or `parked plan`."),
    ],
    at: AtBrokers,
    rate: Rate = None,
    most: MaxLetters = None,
    stop_ratio: StopRatio = DEFAULT_STOP_RATIO,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> None:
    """Apply a plan: process each of its records exactly once, even if you run, stop or kill this command often.

    Exit code 2 if dead letters could not be sent, or were dead-lettered again while the command was running.
    """
    redrive_plan = read_plan(file)
    progress = RedriveProgress(redrive_plan.letters, rate_per_s=rate, most=most, stop_ratio=stop_ratio)
    with (
        _bar(progress, hidden=as_json) as report,
        planned_redriver(
            at.bootstrap, redrive_plan, progress, writes=not dry_run, report=report, client=at.client
        ) as redriver,
    ):
        try:
            if dry_run:
                redriver.dry_run()
            else:
                redriver.run()
                if progress.sent and redrive_plan.rules.action == "redrive":
                    redriver.watch(_LAST_LOOK_MS)
        except KeyboardInterrupt:
            typer.echo(
                f"stopped after {count_text(progress.sent, 'dead letter')}; run the same command again to continue",
                err=True,
            )
            raise
    _report(redrive_plan, progress, dry_run=dry_run, as_json=as_json)
    if progress.failed or progress.dead_again:
        raise typer.Exit(FINDING)


@contextmanager
def _bar(progress: RedriveProgress, *, hidden: bool) -> Iterator[Callable[[], None]]:
    """Show a progress bar, on a terminal only; yield the function that updates it."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=hidden or not console.is_terminal) as bar:
        task = bar.add_task("sending", total=progress.planned)
        yield lambda: bar.update(task, completed=progress.sent + progress.settled + progress.failed)


def _report(redrive_plan: RedrivePlan, progress: RedriveProgress, *, dry_run: bool, as_json: bool) -> None:
    facts = {
        "plan": redrive_plan.id,
        "planned": progress.planned,
        "sent": progress.sent,
        "settled_before": progress.settled,
        "failed": progress.failed,
        "failures": dict(progress.failures),
        "failed_letters": [
            {"record": f"{redrive_plan.source}/{each.partition}/{each.offset}", "id": each.id, "reason": reason}
            for each, reason in progress.failed_letters
        ],
        "dead_again": progress.dead_again,
        "dead_again_letters": [
            {"record": f"{redrive_plan.source}/{each.partition}/{each.offset}", "id": each.id}
            for each in progress.dead_again_letters
        ],
        "left": progress.waiting,
        "stopped_by": progress.stopped_by if progress.waiting else None,
        "dry_run": dry_run,
    }
    if as_json:
        typer.echo(json.dumps(facts))
        return
    done = "discarded" if redrive_plan.rules.action == "discard" else "sent"
    if dry_run:
        count = progress.waiting if progress.most is None else min(progress.waiting, progress.most)
        typer.echo(f"would be {done}: {count}, {done} before: {progress.settled}, failed: {progress.failed}")
    else:
        typer.echo(
            f"{done}: {progress.sent}, before this run: {progress.settled}, failed: {progress.failed}, "
            f"left: {progress.waiting}"
        )
    for reason, count in progress.failures.most_common():
        echo_safe(f"  {count:7} failed: {reason}")
    _name(redrive_plan, progress.failed_letters)
    is_parked = redrive_plan.source == TopicNames(redrive_plan.rules.namespace).parked
    if progress.dead_again:
        verb = "is" if progress.dead_again == 1 else "are"
        typer.echo(f"  {progress.dead_again:7} of those sent {verb} {'parked' if is_parked else 'dead'} again")
        _name(redrive_plan, [(letter, letter.cause) for letter in progress.dead_again_letters])
    if progress.sent and is_parked:
        typer.echo("what is parked again later: rocketshim parked ls")
    elif progress.sent and redrive_plan.rules.action != "discard":
        source = shlex.quote(redrive_plan.source)
        typer.echo(f"what dies again later: rocketshim dlq stats --topic {source} --since 10m")
    if progress.stopped_by == "failures" and progress.waiting:
        typer.echo(
            "stopped: too many failed or are dead again. Fix the cause, make another plan, or raise --stop-ratio",
            err=True,
        )


def _name(redrive_plan: RedrivePlan, letters: list[tuple[PlannedLetter, str]]) -> None:
    """Print address, id and reason of the first letters of a list."""
    for letter, reason in letters[:_MOST_NAMED]:
        place = f"{redrive_plan.source}/{letter.partition}/{letter.offset}"
        echo_safe(f"          {place}  {letter.id or '(no id)'}  {reason}")
    if len(letters) > _MOST_NAMED:
        typer.echo(f"          the first {_MOST_NAMED}; --json has all")
