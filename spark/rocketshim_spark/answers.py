"""Answer the questions of a lake: run a job, publish its tables, make its report.

`everything` answers all of them in one session, with the lifecycles computed once, and writes `index.html`: the
verdicts, findings first, the charts, and links to the pages of the jobs.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame

from rocketshim_spark.events import kind_of
from rocketshim_spark.jobs import audit as audit_job
from rocketshim_spark.jobs import delays as delays_job
from rocketshim_spark.jobs import dlq_trend as trend_job
from rocketshim_spark.jobs import failures as failures_job
from rocketshim_spark.jobs import keys as keys_job
from rocketshim_spark.jobs import lineage as lineage_job
from rocketshim_spark.report import EVERYTHING, Link, Report, Table
from rocketshim_spark.running import OpenLake, publish, publish_lifecycles, write_page
from rocketshim_spark.sources import Cluster

__all__ = ["Questions", "audit", "delays", "dlq_trend", "everything", "failures", "keys", "lineage", "retention_of"]


@dataclass(frozen=True, slots=True)
class Questions:
    """What a whole report is asked; the defaults are those of the jobs' commands.

    Attributes:
        failures: which failures to report.
        keys: the limits of a poison key, and the groups that need order.
        retention_of: dead-letter topic to its retention in ms, read from the brokers.
        console: address of a console to link to; None: no links.
    """

    failures: failures_job.FailureParams = field(default_factory=failures_job.FailureParams)
    keys: keys_job.KeyParams = field(default_factory=keys_job.KeyParams)
    retention_of: Mapping[str, int] = field(default_factory=dict)
    console: str | None = None


def failures(lake: OpenLake, params: failures_job.FailureParams) -> Report:
    """Answer what failed, and why."""
    return failures_job.report(publish(lake, "failures", failures_job.transform(lake.events, params)))


def lineage(lifecycles: DataFrame) -> Report:
    """Answer what became of each message, from the published lifecycles."""
    return lineage_job.report(lifecycles)


def delays(lake: OpenLake, *, grace_ms: int = 60_000, skew_ms: int = 0) -> Report:
    """Answer how late delayed messages were."""
    params = delays_job.DelayParams(
        namespace=lake.namespace,
        now=lake.now,
        worker=lake.worker,
        landed=lake.landed,
        grace_ms=grace_ms,
        skew_ms=skew_ms,
    )
    found = publish(lake, "delay_outcomes", delays_job.outcomes(lake.events, params))
    return delays_job.report(found, publish(lake, "delays", delays_job.transform(found)))


def audit(lake: OpenLake, lifecycles: DataFrame) -> Report:
    """Answer whether a message is lost, from the published lifecycles."""
    missing = publish(lake, "residuals", audit_job.residuals(lifecycles, lake.gaps))
    account = publish(lake, "audit", audit_job.transform(lifecycles, missing))
    return audit_job.report(account, missing, lake.gaps, audit_job.malformed(lake.events))


def keys(lake: OpenLake, lifecycles: DataFrame, params: keys_job.KeyParams) -> Report:
    """Answer which keys are poison, and whose order was broken."""
    return keys_job.report(publish(lake, "keys", keys_job.transform(lifecycles, params)))


def retention_of(lake: OpenLake, cluster: Cluster) -> dict[str, int]:
    """Return the retention of the landed dead-letter topics, as the brokers know it."""
    letters = [row.topic for row in lake.topics().collect() if kind_of(row.topic, lake.namespace) == "dlq"]
    return cluster.retention_ms(letters)


def dlq_trend(lake: OpenLake, params: trend_job.TrendParams) -> Report:
    """Answer how many dead letters are left, and when they are deleted."""
    found = trend_job.letters(lake.events, lake.settled).cache()
    days = publish(lake, "dlq_trend", trend_job.transform(found))
    report = trend_job.report(days, publish(lake, "dlq_open", trend_job.open_letters(found, params)), params)
    found.unpersist()
    return report


def everything(lake: OpenLake, questions: Questions) -> tuple[Report, Sequence[Report]]:
    """Answer all questions, write their pages and `index.html`, and return the report of that page and the others."""
    lifecycles = publish_lifecycles(lake)
    reports = [
        audit(lake, lifecycles),
        failures(lake, questions.failures),
        delays(lake),
        dlq_trend(lake, trend_job.TrendParams(now=lake.now, retention_of=questions.retention_of)),
        keys(lake, lifecycles, questions.keys),
        lineage(lifecycles),
    ]
    caveats = lake.caveats
    index = _index(reports, caveats)
    pages = [Link("overview", index.page), *(Link(each.job, each.page) for each in reports)]
    for each in reports:
        with_caveats = replace(each, notes=(*each.notes, *caveats))
        write_page(lake, with_caveats, pages=pages, console=questions.console)
    write_page(lake, index, pages=pages, console=questions.console)
    return index, reports


def _index(reports: Sequence[Report], caveats: Collection[str]) -> Report:
    found = [each.job for each in reports if not each.fine]
    verdict = f"findings in {', '.join(found)}" if found else "no finding"
    rows = [
        (Link(each.job, each.page), "ok" if each.fine else "finding", each.verdict)
        for each in sorted(reports, key=lambda each: each.fine)
    ]
    return Report(
        job=EVERYTHING,
        verdict=verdict,
        fine=not found,
        tables=(Table("answers", ("job", "result", "answer"), rows),),
        charts=[chart for each in reports for chart in each.charts],
        notes=tuple(caveats),
    )
