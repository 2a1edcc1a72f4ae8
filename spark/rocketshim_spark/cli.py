"""`rocketshim spark …`: land topics into a lake folder, and analyse them there.

The exit codes are those of all rocketshim commands: 0 no finding, 2 a finding, 1 an error. Starting Spark and its Java
process takes seconds, so a command starts them only when it needs them, and imports Spark's modules in its function.
`--help` starts nothing.

With `spark-submit`, run the file `rocketshim_spark/submit.py` with the same arguments.
"""

import datetime as dt
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rocketshim.admin.times import past_ms
from rocketshim.cli.options import (
    SELECTION,
    ClientSettings,
    Connected,
    DelayLevelsText,
    DryRun,
    Json,
    client_settings,
    output,
    seconds,
)
from rocketshim.core.user_values import count_text
from rocketshim.errors import ConfigError
from rocketshim.extras import missing_extra
from rocketshim.stop_signals import StopSignals
from rocketshim_spark import cli_replay
from rocketshim_spark.cli_options import (
    AtLake,
    GroupOnly,
    JavaClient,
    Lake,
    NewestOfLake,
    WithSpark,
    brokers,
    exit_if_finding,
    print_note,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rocketshim_spark.lake import Gap
    from rocketshim_spark.land import Landing
    from rocketshim_topics import TopicNames

_MAX_GAPS = 50

app = typer.Typer(
    help="Spark jobs over the topics: find failures, lost messages and late deliveries, and replay dead letters.",
    epilog="Example: rocketshim spark land orders --lake ./lake --bootstrap localhost:9092",
    no_args_is_help=True,
)
app.add_typer(cli_replay.app, name="replay")


Brokers = Annotated[str | None, brokers("Read the retention of dead-letter topics from these brokers.")]
Orderly = Annotated[
    list[str] | None, typer.Option("--orderly", help="A group that relies on message order; repeatable.")
]


def _time_option(*names: str, about: str) -> Any:
    help_text = f"{about}; a duration before now or a time: 2d, 2026-11-20T18:00:00Z."
    return typer.Option(*names, metavar="DURATION|TIME", help=help_text, rich_help_panel=SELECTION)


@app.command(epilog="Example: rocketshim spark fetch")
def fetch(*, as_json: Json = False) -> None:
    """Download the jars that Spark needs to read Kafka and write Delta (100 MB) into rocketshim's cache."""
    try:
        from rocketshim_spark.session import fetch as fetch_all  # noqa: PLC0415 `--help` works without Spark
    except ModuleNotFoundError as error:
        raise missing_extra("rocketshim spark", error, "spark") from error
    jars = fetch_all(report=print_note)
    if as_json:
        typer.echo(json.dumps({"folder": str(jars[0].parent), "jars": [jar.name for jar in jars]}))
    else:
        print_note(f"ready: {len(jars)} jars in {jars[0].parent}")


@app.command(epilog="Example: rocketshim spark land orders --lake s3a://lake/shim --bootstrap localhost:9092")
def land(
    *,
    topics: Annotated[list[str], typer.Argument(help="Source topics; the shim's own topics are always landed too.")],
    lake: Lake,
    at: Connected,
    spark_options: WithSpark,
    group: Annotated[
        list[str] | None,
        typer.Option("--group", "-g", help="Record only the positions of this group and the worker; repeatable."),
    ] = None,
    java_client: JavaClient = None,
    follow: Annotated[bool, output("--follow", "-f", help="Land again and again until Ctrl-C or SIGTERM.")] = False,
    every: Annotated[
        float, typer.Option(parser=seconds(1), metavar="DURATION", help="From one landing of --follow to the next.")
    ] = 60.0,
    as_json: Json = False,
) -> None:
    """Land new records, each once. Exit code 2 if retention deleted records before they were landed.

    --follow prints the landings with new records or gaps. Ctrl-C and SIGTERM let the landing in progress end; a second
    Ctrl-C does not.
    """
    kafka = client_settings(java_client, "--java-client")
    with spark_options.session() as spark:
        noted: list[str] = []

        def land_once() -> "Landing":
            nonlocal noted
            notes: list[str] = []
            chosen, done = _land(spark, at.bootstrap, at.client, at.names, topics, lake, kafka, group, notes.append)
            if as_json:
                typer.echo(json.dumps({"lake": lake, "topics": sorted(chosen), **_facts(done)}))
            else:
                notes += _open_transactions(done)
                if done.rows or done.gaps or not follow:
                    _print_landing(done, lake, len(chosen))
            for line in notes:
                if line not in noted:  # most notes hold for all landings of --follow
                    print_note(line)
            noted = notes
            return done

        if follow:
            from rocketshim_spark.follow import follow as keep_landing  # noqa: PLC0415 Spark is installed

            with StopSignals() as signals:
                fine = keep_landing(land_once, every_s=every, note=print_note, is_asked_to_stop=lambda: signals.asked)
            print_note("stopped: run the same command again; it continues, and does nothing twice")
        else:
            fine = not land_once().gaps
    exit_if_finding(fine=fine)


@app.command(epilog="Example: rocketshim spark repair --lake ./lake --dry-run")
def repair(*, lake: Lake, spark_options: WithSpark, dry_run: DryRun = False, as_json: Json = False) -> None:
    """Remove records that a lake holds twice, and gaps of records that it holds. Exit code 2 if `--dry-run` finds any.

    No landing makes them. Earlier versions did, in a lake without its checkpoint or in a path with brackets.
    """
    with spark_options.session() as spark:
        from rocketshim_spark.repair import repair as repair_now  # noqa: PLC0415 Spark is installed

        done = repair_now(spark, lake, dry_run=dry_run)
    if as_json:
        typer.echo(json.dumps({"lake": lake, "dry_run": dry_run, **asdict(done)}))
    elif not done.doubled and not done.gaps:
        typer.echo(f"nothing to repair in {lake} (version {done.version})")
    else:
        verb = "would remove" if dry_run else "removed"
        typer.echo(
            f"{verb} {count_text(done.doubled, 'record')} too many, and "
            f"{count_text(len(done.gaps), 'gap')} of landed records from {lake} (version {done.version})"
        )
    exit_if_finding(fine=not dry_run or not (done.doubled or done.gaps))


def _land(  # noqa: PLR0917 the facts of one landing
    spark: "SparkSession",
    bootstrap: str,
    config: Mapping[str, Any],
    names: "TopicNames",
    topics: list[str],
    lake: str,
    kafka: Mapping[str, str],
    group: list[str] | None = None,
    note: Callable[[str], None] = print_note,
) -> "tuple[list[str], Landing]":
    """Land these topics and the shim's own; note what the user may have mistyped."""
    from rocketshim_spark.events import event_topics, kind_of  # noqa: PLC0415 Spark is installed
    from rocketshim_spark.land import land as land_now  # noqa: PLC0415
    from rocketshim_spark.sources import Cluster  # noqa: PLC0415

    cluster = Cluster(bootstrap, config)
    chosen = event_topics(cluster.topics(), topics, names.namespace)
    # The jobs find lost messages by what the worker has passed. A worker's group that may not be described is not
    # among the cluster's groups, so it is named here: then the landing is refused.
    known = cluster.groups()
    groups = list(dict.fromkeys([*(group or known), names.worker_group]))
    done = land_now(spark, bootstrap, chosen, lake, kafka=kafka, config=config, groups=groups)
    for unknown in sorted({*(group or ())} - {*known}):
        note(f"note: no group {unknown} has a position or a member at {bootstrap}: check --group")
    if all(kind_of(topic, names.namespace) == "source" for topic in chosen):
        note(f"note: found no shim topic in namespace {names.namespace!r}: check --namespace")
    return chosen, done


def _facts(done: "Landing") -> dict[str, Any]:
    """Return the result of a landing for programs."""
    held = [
        {"topic": topic, "partition": partition, "next_offset": offset}
        for (topic, partition), offset in sorted(done.held.items())
    ]
    gaps = [asdict(gap) for gap in done.gaps]
    return {"version": done.version, "rows": done.rows, "gaps": gaps, "open_transactions": held}


def _print_landing(done: "Landing", lake: str, topic_count: int) -> None:
    version = "no table yet" if done.version is None else f"version {done.version}"
    typer.echo(
        f"landed {count_text(done.rows, 'new record')} of {count_text(topic_count, 'topic')} into {lake} ({version})"
    )
    for gap in done.gaps[:_MAX_GAPS]:
        typer.echo(
            f"gap: retention deleted {gap.topic}/{gap.partition} offsets {gap.gap_from} to {gap.gap_to - 1} "
            f"before they were landed ({gap.reason})"
        )
    if len(done.gaps) > _MAX_GAPS:
        typer.echo(f"gap: {len(done.gaps) - _MAX_GAPS} more: use --json, or see the table {lake.rstrip('/')}/gaps")


def _open_transactions(done: "Landing") -> list[str]:
    return [
        f"note: {topic}/{partition} ends in an open transaction: a later landing reads from offset {offset}"
        for (topic, partition), offset in sorted(done.held.items())
    ]


@app.command(epilog="Example: rocketshim spark failures --lake ./lake --since 2026-11-20T00:00:00Z")
def failures(
    *,
    lake: AtLake,
    since: Annotated[str | None, _time_option("--since", "-s", about="Earliest time of a failure")] = None,
    until: Annotated[str | None, _time_option("--until", about="Only failures before this time")] = None,
    new_since: Annotated[
        str | None, _time_option("--new-since", about="A cause first seen since then is new. Default: --since")
    ] = None,
    group: GroupOnly = None,
    as_json: Json = False,
) -> None:
    """List failures, their causes, and which are new. Exit code 2 for a new cause or a message that became dead."""
    times = _parse_times(since=since, until=until, new_since=new_since)
    if times["since"] and times["until"] and times["since"] >= times["until"]:
        raise ConfigError(f"--until {until} is not later than --since {since}: no failure can match")
    with lake.open() as view:
        from rocketshim_spark import answers  # noqa: PLC0415 Spark is installed
        from rocketshim_spark.jobs.failures import FailureParams  # noqa: PLC0415
        from rocketshim_spark.running import write_report  # noqa: PLC0415

        view.check_groups([group] if group else [])
        report = answers.failures(view, FailureParams.model_validate({**times, "group": group}))
        write_report(view, report, as_json=as_json)
    exit_if_finding(fine=report.fine)


@app.command(epilog="Example: rocketshim spark lineage --lake ./lake --id AC1100012A9C18B4AAC2")
def lineage(
    *,
    lake: AtLake,
    message: Annotated[str | None, typer.Option("--id", help="Print the lifecycle of this message only.")] = None,
    as_json: Json = False,
) -> None:
    """Rebuild the lifecycle of every message. Exit code 2 for a lost, broken or revived one, or an unknown id.

    A broken lifecycle lacks the record of an attempt. A revived message was retried after it had become a dead letter.
    """
    with lake.open() as view:
        from rocketshim_spark.jobs import lineage as job  # noqa: PLC0415 Spark is installed
        from rocketshim_spark.running import publish_lifecycles, write_report  # noqa: PLC0415

        if message is None:
            report = job.report(publish_lifecycles(view))
            write_report(view, report, as_json=as_json)
            fine = report.fine
        else:
            lifecycles = job.find_lifecycles(view.lifecycles(), message)
            for lifecycle in lifecycles:
                typer.echo(job.lifecycle_json(lifecycle) if as_json else job.format_lifecycle(lifecycle))
            fine = bool(lifecycles) and all(map(job.is_fine, lifecycles))
            if not lifecycles:
                print_note(f"no record of a message {message} in {lake.folder}")
    exit_if_finding(fine=fine)


@app.command(epilog="Example: rocketshim spark delays --lake ./lake --grace 5m")
def delays(
    *,
    lake: AtLake,
    grace: Annotated[
        str, typer.Option("--grace", help="A message overdue for longer than this is stuck: 60s, 5m.")
    ] = "60s",
    skew: Annotated[
        str, typer.Option("--skew", help="Clock difference to allow before a delivery counts as early: 0, 50ms.")
    ] = "0ms",
    delay_levels: DelayLevelsText = None,
    as_json: Json = False,
) -> None:
    """Measure how late delayed messages came. Exit code 2 for an early, overtaken, parked, stuck or lost one.

    An overtaken message was delivered after one that entered its delay queue later. A stuck message is overdue, and the
    worker has not passed it; a lost one was passed but never delivered.
    """
    from rocketshim_topics import parse_duration_ms  # noqa: PLC0415 `--help` works without Spark

    grace_ms, skew_ms = parse_duration_ms(grace), parse_duration_ms(skew)
    with lake.open(delay_levels) as view:
        from rocketshim_spark import answers  # noqa: PLC0415 Spark is installed
        from rocketshim_spark.running import write_report  # noqa: PLC0415

        report = answers.delays(view, grace_ms=grace_ms, skew_ms=skew_ms)
        write_report(view, report, as_json=as_json)
    exit_if_finding(fine=report.fine)


@app.command(epilog="Example: rocketshim spark audit --lake ./lake")
def audit(
    *,
    lake: AtLake,
    as_json: Json = False,
) -> None:
    """Check that no message is lost. Exit code 2 for a missing, parked or malformed record, or a retention gap."""
    with lake.open() as view:
        from rocketshim_spark import answers  # noqa: PLC0415 Spark is installed
        from rocketshim_spark.running import publish_lifecycles, write_report  # noqa: PLC0415

        report = answers.audit(view, publish_lifecycles(view))
        write_report(view, report, as_json=as_json)
    exit_if_finding(fine=report.fine)


@app.command(epilog="Example: rocketshim spark keys --lake ./lake --orderly payments")
def keys(
    *,
    lake: AtLake,
    min_failures: Annotated[
        int, typer.Option("--min-failures", min=1, help="Minimum number of failed messages of a poison key.")
    ] = 3,
    orderly: Orderly = None,
    as_json: Json = False,
) -> None:
    """Find poison keys, and broken message order in `--orderly` groups. Exit code 2 if there is either.

    A key is poison if at least half of its messages failed, and at least `--min-failures` of them.
    """
    with lake.open() as view:
        from rocketshim_spark import answers  # noqa: PLC0415 Spark is installed
        from rocketshim_spark.jobs.keys import KeyParams  # noqa: PLC0415
        from rocketshim_spark.running import write_report  # noqa: PLC0415

        view.check_groups(orderly or ())
        params = KeyParams(min_failures=min_failures, orderly=tuple(orderly or ()))
        report = answers.keys(view, view.lifecycles(), params)
        write_report(view, report, as_json=as_json)
    exit_if_finding(fine=report.fine)


@app.command(epilog="Example: rocketshim spark dlq-trend --lake ./lake --bootstrap localhost:9092")
def dlq_trend(
    *,
    lake: AtLake,
    bootstrap: Brokers = None,
    retention: Annotated[
        str, typer.Option("--retention", help="Retention to assume where it is not read from the brokers: 7d, 30d.")
    ] = "30d",
    warn: Annotated[
        str, typer.Option("--warn", help="A dead letter that expires within this time is a finding.")
    ] = "24h",
    client: ClientSettings,
    as_json: Json = False,
) -> None:
    """Count open dead letters, and when retention deletes them. Exit code 2 if it does so within `--warn`."""
    from rocketshim_topics import parse_duration_ms  # noqa: PLC0415 `--help` works without Spark

    retention_ms, warn_ms = parse_duration_ms(retention), parse_duration_ms(warn)
    if retention_ms == 0:
        raise ConfigError(f"--retention {retention}: must be at least 1 ms")
    with lake.open() as view:
        from rocketshim_spark import answers  # noqa: PLC0415 Spark is installed
        from rocketshim_spark.jobs.dlq_trend import TrendParams  # noqa: PLC0415
        from rocketshim_spark.running import write_report  # noqa: PLC0415
        from rocketshim_spark.sources import Cluster  # noqa: PLC0415

        kept = {} if bootstrap is None else answers.retention_of(view, Cluster(bootstrap, client))
        params = TrendParams(now=view.now, retention_of=kept, retention_ms=retention_ms, warn_hours=warn_ms / 3_600_000)
        report = answers.dlq_trend(view, params)
        write_report(view, report, as_json=as_json)
    exit_if_finding(fine=report.fine)


@app.command(epilog="Example: rocketshim spark report --lake ./lake --land orders --bootstrap localhost:9092")
def report(
    *,
    lake: NewestOfLake,
    topics: Annotated[
        list[str] | None, typer.Option("--land", help="Land this source topic first, and the shim's own; repeatable.")
    ] = None,
    bootstrap: Brokers = None,
    client: ClientSettings,
    java_client: JavaClient = None,
    since: Annotated[str | None, _time_option("--since", "-s", about="Earliest time of a failure")] = None,
    new_since: Annotated[
        str | None, _time_option("--new-since", about="A cause first seen since then is new. Default: --since")
    ] = None,
    orderly: Orderly = None,
    console: Annotated[
        str | None, typer.Option("--console", help="Address of the console, to link groups and messages to it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Answer all questions in one index.html with a page for each. Exit code 2 if one of them has a finding.

    The questions are those of audit, failures, delays, dlq-trend, keys and lineage, and Spark starts once.
    """
    times = _parse_times(since=since, new_since=new_since)
    kafka = client_settings(java_client, "--java-client")
    if topics and bootstrap is None:
        raise ConfigError("--land needs --bootstrap: name the brokers to read from")
    if console is not None and not console.startswith(("http://", "https://")):
        raise ConfigError(f"--console {console}: write its whole address, as http://localhost:8080")
    with lake.spark.session() as spark:
        from rocketshim_spark import answers  # noqa: PLC0415 Spark is installed
        from rocketshim_spark.jobs.failures import FailureParams  # noqa: PLC0415
        from rocketshim_spark.jobs.keys import KeyParams  # noqa: PLC0415
        from rocketshim_spark.report import as_text, json_value, report_json  # noqa: PLC0415
        from rocketshim_spark.running import local_folder  # noqa: PLC0415
        from rocketshim_spark.sources import Cluster  # noqa: PLC0415
        from rocketshim_topics import TopicNames  # noqa: PLC0415

        gaps: Sequence[Gap] = ()
        if topics and bootstrap is not None:
            names = TopicNames(lake.namespace)
            chosen, done = _land(spark, bootstrap, client, names, topics, lake.folder, kafka)
            gaps = done.gaps
            if not as_json:
                _print_landing(done, lake.folder, len(chosen))
                for line in _open_transactions(done):
                    print_note(line)
        view = lake.view(spark)
        view.check_groups(orderly or ())
        questions = answers.Questions(
            failures=FailureParams.model_validate(times),
            keys=KeyParams(orderly=tuple(orderly or ())),
            retention_of={} if bootstrap is None else answers.retention_of(view, Cluster(bootstrap, client)),
            console=console,
        )
        index, reports = answers.everything(view, questions)
        if as_json:
            typer.echo(json.dumps({"fine": index.fine, "reports": [*map(report_json, reports)]}, default=json_value))
        else:
            typer.echo(as_text(index))
        print_note(f"page: {(local_folder(view.out) or Path()) / index.page}")
    exit_if_finding(fine=index.fine and not gaps)


def _parse_times(**given: str | None) -> dict[str, dt.datetime | None]:
    """Return the times that options name; None for one that was not given."""
    now_ms = time.time_ns() // 1_000_000
    return {
        name: None
        if text is None
        else dt.datetime.fromtimestamp(past_ms(text, now_ms, f"--{name.replace('_', '-')}") / 1_000, dt.UTC)
        for name, text in given.items()
    }


def main(arguments: list[str] | None = None) -> int:
    """Run one command of this module as `rocketshim spark` would, and return its exit code."""
    from rocketshim.cli.app import main as run  # noqa: PLC0415 it loads this module through its entry point

    return run(["spark", *(sys.argv[1:] if arguments is None else arguments)])
