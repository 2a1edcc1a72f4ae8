"""`rocketshim spark …`: land topics into a lake folder, and ask it what happened.

The commands end as all of rocketshim's do: 0 fine, 2 a finding, 1 an error. Spark and its Java start only when a
command needs them, which takes seconds; `--help` does without.

Under `spark-submit` the file is `rocketshim_spark/submit.py` with the same words behind it.
"""

import datetime as dt
import sys
from typing import Annotated

import typer

from rocketshim.cli.app import FINDING
from rocketshim.cli.options import Bootstrap, DelayLevelsText, Namespace
from rocketshim.errors import ConfigError
from rocketshim_spark import cli_replay
from rocketshim_spark.cli_options import (
    Connector,
    DriverClient,
    DriverMemory,
    Lake,
    Master,
    Out,
    SparkClient,
    Version,
    exit_if_finding,
    open_view,
    parse_properties,
    print_note,
    session,
)

app = typer.Typer(
    help="Spark jobs over the topics: what failed, is anything lost, how late, what do we send again.",
    epilog="Example: rocketshim spark land orders --lake ./lake --bootstrap localhost:9092",
    no_args_is_help=True,
)
app.add_typer(cli_replay.app, name="replay")


@app.command(epilog="Example: rocketshim spark fetch")
def fetch() -> None:
    """Download the jars with which Spark reads Kafka and writes Delta (30 MB) into rocketshim's cache."""
    try:
        from rocketshim_spark.session import fetch as fetch_all  # noqa: PLC0415 `--help` does without
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error.name} is not installed: pip install 'rocketshim[spark]'") from error
    jars = fetch_all(report=print_note)
    print_note(f"ready: {len(jars)} jars in {jars[0].parent}")


@app.command(epilog="Example: rocketshim spark land orders --lake s3a://lake/shim --bootstrap localhost:9092")
def land(
    *,
    topics: Annotated[list[str], typer.Argument(help="Source topics; all topics of the shim's are landed with them.")],
    lake: Lake,
    bootstrap: Bootstrap,
    namespace: Namespace = "",
    group: Annotated[
        list[str] | None, typer.Option("--group", help="Note positions of this group and the worker only; repeatable.")
    ] = None,
    kafka_property: SparkClient = None,
    client_property: DriverClient = None,
    master: Master = None,
    connector: Connector = "auto",
    driver_memory: DriverMemory = None,
) -> None:
    """Land what is new, each record once. Exit code 2 if retention was faster and records are missing."""
    with session(master, connector, driver_memory) as spark:
        from rocketshim_spark.events import event_topics, kind_of  # noqa: PLC0415 Spark is there now
        from rocketshim_spark.land import land as land_now  # noqa: PLC0415
        from rocketshim_spark.sources import Cluster  # noqa: PLC0415
        from rocketshim_topics import TopicNames  # noqa: PLC0415

        kafka, config = parse_properties(kafka_property), parse_properties(client_property)
        chosen = event_topics(Cluster(bootstrap, config).topics(), topics, namespace)
        # Without the worker's positions nobody could tell what it has passed, and so nothing that is lost.
        groups = [*group, TopicNames(namespace).worker_group] if group else None
        done = land_now(spark, bootstrap, chosen, lake, kafka=kafka, config=config, groups=groups)
    if all(kind_of(topic, namespace) == "source" for topic in chosen):
        print_note(f"note: no topic of the shim's in namespace {namespace!r} is there: is --namespace right?")
    version = "no table yet" if done.version is None else f"version {done.version}"
    typer.echo(f"landed {done.rows} new records of {len(chosen)} topics into {lake} ({version})")
    for gap in done.gaps:
        typer.echo(
            f"gap: {gap.topic}/{gap.partition} offsets {gap.gap_from} to {gap.gap_to - 1} were deleted by retention "
            f"before they were landed ({gap.reason})"
        )
    for (topic, partition), offset in sorted(done.held.items()):
        print_note(
            f"note: {topic}/{partition} ends in an open transaction: from offset {offset} on is for a later landing"
        )
    if done.gaps:
        raise typer.Exit(FINDING)


@app.command(epilog="Example: rocketshim spark failures --lake ./lake --since 2026-11-20T00:00:00Z")
def failures(
    *,
    lake: Lake,
    since: Annotated[str | None, typer.Option("--since", help="From this time on, ISO 8601.")] = None,
    until: Annotated[str | None, typer.Option("--until", help="Before this time, ISO 8601.")] = None,
    new_since: Annotated[
        str | None, typer.Option("--new-since", help="A cause never seen before it is new; without it, --since.")
    ] = None,
    group: Annotated[str | None, typer.Option("--group", help="Of this consumer group only.")] = None,
    namespace: Namespace = "",
    version: Version = None,
    out: Out = None,
    master: Master = None,
    connector: Connector = "auto",
    driver_memory: DriverMemory = None,
) -> None:
    """What failed and why, since when, what is new. Exit code 2 if something died or failed in a new way."""
    times = {"since": _parse_time(since), "until": _parse_time(until), "new_since": _parse_time(new_since)}
    if times["since"] and times["until"] and times["since"] >= times["until"]:
        raise ConfigError(f"--until {until} is not later than --since {since}: nothing lies between")
    with open_view(
        lake, out, namespace, version, master=master, connector=connector, driver_memory=driver_memory
    ) as view:
        from rocketshim_spark.jobs import failures as job  # noqa: PLC0415 Spark is there now
        from rocketshim_spark.running import publish, write_report  # noqa: PLC0415

        view.check_groups([group] if group else [])
        found = job.transform(view.events, job.FailureParams.model_validate({**times, "group": group}))
        report = job.report(publish(view, "failures", found))
        write_report(view, report)
    exit_if_finding(fine=report.fine)


@app.command(epilog="Example: rocketshim spark lineage --lake ./lake --id AC1100012A9C18B4AAC2")
def lineage(
    *,
    lake: Lake,
    message: Annotated[str | None, typer.Option("--id", help="Print this one message's life and nothing else.")] = None,
    namespace: Namespace = "",
    version: Version = None,
    out: Out = None,
    master: Master = None,
    connector: Connector = "auto",
    driver_memory: DriverMemory = None,
) -> None:
    """The life of every message. Exit code 2 if one was lost or its trail is broken, or there is none with that id."""
    with open_view(
        lake, out, namespace, version, master=master, connector=connector, driver_memory=driver_memory
    ) as view:
        from rocketshim_spark.jobs import lineage as job  # noqa: PLC0415 Spark is there now
        from rocketshim_spark.running import publish_lifecycles, write_report  # noqa: PLC0415

        if message is None:
            report = job.report(publish_lifecycles(view))
            write_report(view, report)
            fine = report.fine
        else:
            lifecycles = job.find_lifecycles(view.lifecycles(), message)
            for lifecycle in lifecycles:
                typer.echo(job.format_lifecycle(lifecycle))
            fine = bool(lifecycles)
            if not fine:
                print_note(f"nothing is known of a message {message} in {lake}")
    exit_if_finding(fine=fine)


@app.command(epilog="Example: rocketshim spark delays --lake ./lake --grace 5m")
def delays(
    *,
    lake: Lake,
    grace: Annotated[str, typer.Option("--grace", help="How long overdue before it is called stuck: 60s, 5m.")] = "60s",
    skew: Annotated[str, typer.Option("--skew", help="How early may seem early by two clocks only: 0, 50ms.")] = "0ms",
    namespace: Namespace = "",
    delay_levels: DelayLevelsText = None,
    version: Version = None,
    out: Out = None,
    master: Master = None,
    connector: Connector = "auto",
    driver_memory: DriverMemory = None,
) -> None:
    """How late delayed messages came. Exit code 2 if one was early, overtaken, forgotten, parked, or is stuck."""
    from rocketshim_topics import parse_duration_ms  # noqa: PLC0415 `--help` does without

    grace_ms, skew_ms = parse_duration_ms(grace), parse_duration_ms(skew)
    with open_view(
        lake, out, namespace, version,
        delay_levels=delay_levels, master=master, connector=connector, driver_memory=driver_memory,
    ) as view:  # fmt: skip
        from rocketshim_spark.jobs import delays as job  # noqa: PLC0415 Spark is there now
        from rocketshim_spark.running import publish, write_report  # noqa: PLC0415

        params = job.DelayParams(now=view.now, worker=view.worker, grace_ms=grace_ms, skew_ms=skew_ms)
        found = publish(view, "delay_outcomes", job.outcomes(view.events, params))
        report = job.report(found, publish(view, "delays", job.transform(found)))
        write_report(view, report)
    exit_if_finding(fine=report.fine)


@app.command(epilog="Example: rocketshim spark audit --lake ./lake")
def audit(
    *,
    lake: Lake,
    namespace: Namespace = "",
    version: Version = None,
    out: Out = None,
    master: Master = None,
    connector: Connector = "auto",
    driver_memory: DriverMemory = None,
) -> None:
    """Is anything lost. Exit code 2: something is unaccounted for, parked or malformed, or retention was faster."""
    with open_view(
        lake, out, namespace, version, master=master, connector=connector, driver_memory=driver_memory
    ) as view:
        from rocketshim_spark.jobs import audit as job  # noqa: PLC0415 Spark is there now
        from rocketshim_spark.running import publish, publish_lifecycles, write_report  # noqa: PLC0415

        lifecycles = publish_lifecycles(view)
        missing = publish(view, "residuals", job.residuals(lifecycles, view.gaps))
        account = publish(view, "audit", job.transform(lifecycles, missing))
        report = job.report(account, missing, view.gaps, job.malformed(view.events))
        write_report(view, report)
    exit_if_finding(fine=report.fine)


@app.command(epilog="Example: rocketshim spark keys --lake ./lake --orderly payments")
def keys(
    *,
    lake: Lake,
    min_failures: Annotated[int, typer.Option("--min-failures", min=1, help="From so many on a key is poison.")] = 3,
    orderly: Annotated[
        list[str] | None, typer.Option("--orderly", help="A group that relies on order; repeatable.")
    ] = None,
    namespace: Namespace = "",
    version: Version = None,
    out: Out = None,
    master: Master = None,
    connector: Connector = "auto",
    driver_memory: DriverMemory = None,
) -> None:
    """Which keys are poison, and where order was broken. Exit code 2 if there are such."""
    with open_view(
        lake, out, namespace, version, master=master, connector=connector, driver_memory=driver_memory
    ) as view:
        from rocketshim_spark.jobs import keys as job  # noqa: PLC0415 Spark is there now
        from rocketshim_spark.running import publish, write_report  # noqa: PLC0415

        view.check_groups(orderly or ())
        params = job.KeyParams(min_failures=min_failures, orderly=tuple(orderly or ()))
        report = job.report(publish(view, "keys", job.transform(view.lifecycles(), params)))
        write_report(view, report)
    exit_if_finding(fine=report.fine)


@app.command(epilog="Example: rocketshim spark dlq-trend --lake ./lake --bootstrap localhost:9092")
def dlq_trend(
    *,
    lake: Lake,
    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap", envvar="ROCKETSHIM_BOOTSTRAP", help="Ask the brokers how long they keep letters."),
    ] = None,
    retention: Annotated[
        str, typer.Option("--retention", help="Of topics of which the brokers do not tell, or are not asked: 7d, 30d.")
    ] = "30d",
    warn: Annotated[str, typer.Option("--warn", help="A letter that is deleted this soon is a finding.")] = "24h",
    namespace: Namespace = "",
    client_property: DriverClient = None,
    version: Version = None,
    out: Out = None,
    master: Master = None,
    connector: Connector = "auto",
    driver_memory: DriverMemory = None,
) -> None:
    """Do dead letters pile up, and when does retention delete them. Exit code 2 if it does so soon."""
    from rocketshim_topics import parse_duration_ms  # noqa: PLC0415 `--help` does without

    retention_ms, warn_ms = parse_duration_ms(retention), parse_duration_ms(warn)
    if retention_ms == 0:
        raise ConfigError(f"--retention {retention}: a topic keeps records for 1 ms at least")
    with open_view(
        lake, out, namespace, version, master=master, connector=connector, driver_memory=driver_memory
    ) as view:
        from rocketshim_spark.jobs import dlq_trend as job  # noqa: PLC0415 Spark is there now
        from rocketshim_spark.running import publish, write_report  # noqa: PLC0415

        kept: dict[str, int] = {}
        if bootstrap is not None:
            from rocketshim_spark.events import kind_of  # noqa: PLC0415
            from rocketshim_spark.sources import Cluster  # noqa: PLC0415

            letters = [row.topic for row in view.topics().collect() if kind_of(row.topic, namespace) == "dlq"]
            kept = Cluster(bootstrap, parse_properties(client_property)).retention_ms(letters)
        params = job.TrendParams(
            now=view.now, retention_of=kept, retention_ms=retention_ms, warn_hours=warn_ms / 3_600_000
        )
        found = job.letters(view.events, view.settled).cache()
        days = publish(view, "dlq_trend", job.transform(found))
        report = job.report(days, publish(view, "dlq_open", job.open_letters(found, params)), params)
        found.unpersist()
        write_report(view, report)
    exit_if_finding(fine=report.fine)


def _parse_time(text: str | None) -> dt.datetime | None:
    if text is None:
        return None
    try:
        found = dt.datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{text!r} is no time: write it as 2026-11-20T18:00:00Z") from error
    return found.replace(tzinfo=dt.UTC) if found.tzinfo is None else found


def main(arguments: list[str] | None = None) -> int:
    """Run one command of this module as `rocketshim spark` would; returns its exit code."""
    from rocketshim.cli.app import main as run  # noqa: PLC0415 it finds this module by its entry point

    return run(["spark", *(sys.argv[1:] if arguments is None else arguments)])
