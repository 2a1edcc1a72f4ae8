"""The second step of a replay: send the planned dead letters."""

from collections import Counter
from collections.abc import Callable, Container, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  # the name that every Spark program has for it

from rocketshim.admin.dead_letter_formats import Decoder
from rocketshim.admin.redrive import Journal, Make, Redriver, record_maker
from rocketshim.core.redrive_progress import DEFAULT_STOP_RATIO, RedriveProgress
from rocketshim_spark.jobs.replay import landed_record
from rocketshim_topics import TopicNames, hops
from rocketshim_topics.errors import MalformedRecordError
from rocketshim_topics.redrive_plan import PlannedLetter, RedriveRules

__all__ = ["RunResult", "send"]


@dataclass(frozen=True, slots=True)
class RunResult:
    """The result of a run, or of a `dry_run`.

    Attributes:
        sent: number of dead letters sent, each with its mark.
        settled: number of dead letters that this plan or another command had sent or discarded before.
        failed: reason to number of dead letters that could not be sent; those that the plan skips are not counted.
        dead_again: number of sent messages that became dead again during the run.
        left: number of dead letters that were not tried, because too many failed.
        is_stopped: whether too many failed, or became dead again, for at least one topic with further dead letters.
    """

    sent: int
    settled: int
    failed: Mapping[str, int]
    dead_again: int
    left: int
    is_stopped: bool


def send(
    bootstrap: str,
    planned: DataFrame,
    landed: DataFrame,
    *,
    namespace: str = "",
    targets: Container[str] | None = None,
    config: Mapping[str, Any] | None = None,
    max_per_second: float | None = None,
    stop_ratio: float = DEFAULT_STOP_RATIO,
    dry_run: bool = False,
    report: Callable[[str, RedriveProgress, str], None] = lambda _topic, _progress, _step: None,
) -> RunResult:
    """Send the planned dead letters that are not settled yet, topic by topic, in the order of their partitions.

    The driver's memory holds the plan's rows for one topic at a time, without the values of the dead letters. Spark
    reads the dead letters from the lake once for all topics, and keeps them in its cache until the end.

    Args:
        bootstrap: addresses of the brokers.
        planned: as `plan` returns it.
        landed: as `landed_letters` returns them.
        namespace: namespace of the shim's topics; its redrive log must exist.
        targets: the existing targets; a dead letter for another one fails as `no-topic:<topic>`. None: all exist.
        config: further librdkafka settings; None: none.
        max_per_second: maximum number of dead letters a second, above 0; None: no limit.
        stop_ratio: stop if more than this share of a topic's dead letters fails, or of the sent ones is dead again; 0
            to 1.
        dry_run: make every record, but send none.
        report: called with topic, progress and the name of each step, as for `Redriver`.

    Raises:
        TopicMissingError, RedriveError, RocketshimError: as `Redriver.run`. Sent dead letters are marked, so another
            run sends only the others.

    Thread-safety: any number of calls at a time, on any machine. The later one takes over and the earlier one stops.
    """
    names = TopicNames(namespace)
    columns = (*("topic", "partition", "offset", "digest", "target", "fail_class", "msg_id"), "redrive", "to_source")
    rows = planned.filter("action = 'send'").select(*columns, "log_end").orderBy(*columns[:3]).toLocalIterator()
    landed.cache()
    sums, failures, is_stopped = Counter[str](), Counter[str](), False
    try:
        for source, of_source in groupby(rows, key=lambda row: row.topic):
            letters = list(of_source)
            plan_id, to_source, log_end = letters[0].redrive, letters[0].to_source, letters[0].log_end
            progress = RedriveProgress(
                [_planned_letter(row) for row in letters],
                rate_per_s=max_per_second,
                stop_ratio=stop_ratio,
            )
            redriver = Redriver(
                bootstrap,
                Journal(names.redrive_log, source=source, plan=plan_id, state="redriven", log_end=log_end),
                progress,
                make=_record_maker(names, source, plan_id, targets, to_source=to_source),
                fetch=_fetcher(landed, source),
                report=partial(report, source, progress),
                client=config,
            )
            try:
                if dry_run:
                    redriver.dry_run()
                else:
                    redriver.run()
            finally:
                redriver.close()
            failures.update(progress.failures)
            is_stopped |= progress.stopped_by is not None and progress.waiting > 0
            sums.update(
                sent=progress.sent, settled=progress.settled, dead_again=progress.dead_again, waiting=progress.waiting
            )
    finally:
        landed.unpersist()
    return RunResult(
        sent=sums["waiting" if dry_run else "sent"],
        settled=sums["settled"],
        failed=dict(failures),
        dead_again=sums["dead_again"],
        left=0 if dry_run else sums["waiting"],
        is_stopped=is_stopped,
    )


def _planned_letter(row: Any) -> PlannedLetter:
    return PlannedLetter(row.partition, row.offset, row.digest, row.target, row.fail_class or "", row.msg_id)


def _record_maker(
    names: TopicNames, source: str, plan_id: str, targets: Container[str] | None, *, to_source: bool
) -> Make:
    rules = RedriveRules(namespace=names.namespace, to_source=to_source)
    make = record_maker(plan_id, rules, Decoder(names, source))

    def make_for_existing_target(record: Any, letter: PlannedLetter) -> hops.OutgoingRecord | None:
        if targets is not None and letter.target not in targets:
            raise MalformedRecordError(f"no-topic:{letter.target}", f"the topic {letter.target} does not exist")
        return make(record, letter)

    return make_for_existing_target


def _fetcher(landed: DataFrame, source: str) -> Callable[[Container[tuple[int, int]]], Generator[Any]]:
    def fetch(offsets: Container[tuple[int, int]]) -> Generator[Any]:
        for row in landed.filter(F.col("topic") == source).toLocalIterator():
            if (row.partition, row.offset) in offsets:
                yield landed_record(row)

    return fetch
