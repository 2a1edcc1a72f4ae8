"""The metrics of the delay worker."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rocketshim.health import Metric
from rocketshim.worker.counts import LATENESS_BOUNDS_MS, PARK_REASONS, WorkerCounts
from rocketshim.worker.log_format import ALARM_EVENTS

if TYPE_CHECKING:
    from rocketshim.worker.state import WorkerState

__all__ = ["worker_metrics"]

_Family = tuple[str, str, str, list[tuple[str, dict[str, str], float]]]
"""Name without its prefix, kind, help text, and the samples."""


def worker_metrics(state: "WorkerState") -> Iterable[Metric]:
    """Yield a state of the worker as metrics; in a namespace, each sample has the label `namespace`."""
    mine = {"namespace": state.namespace} if state.namespace else {}
    for name, kind, about, samples in (*_counters(state.counts), *_gauges(state)):
        labelled = tuple((suffix, mine | labels, value) for suffix, labels, value in samples)
        yield Metric(f"rocketshim_worker_{name}", kind, about, labelled)


def _counters(counts: WorkerCounts) -> Iterable[_Family]:
    """Yield what the worker has done. A series exists before its first event, so that `increase` sees that event."""
    yield _one("delivered_total", "counter", "records stored at their targets", counts.delivered)
    yield _one("hopped_total", "counter", "records written to another queue", counts.hopped)
    yield _one("re_appended_total", "counter", "records whose target did not take them", counts.re_appended)
    yield _one("resent_total", "counter", "hops made again", counts.resent)
    alarms = dict.fromkeys(ALARM_EVENTS, 0) | counts.alarms
    yield "alarms_total", "counter", "alarms", [("", {"event": name}, alarms[name]) for name in sorted(alarms)]
    yield _one("transactions_aborted_total", "counter", "transactions aborted", counts.aborted)
    yield _one("producers_recycled_total", "counter", "producers thrown away", counts.recycled)
    parked = dict.fromkeys(PARK_REASONS, 0) | counts.parked
    most_first = sorted(parked.items(), key=lambda item: (-item[1], item[0]))
    yield "parked_total", "counter", "records parked", [("", {"reason": name}, count) for name, count in most_first]
    below, buckets = 0, []
    for bound, count in zip(LATENESS_BOUNDS_MS, counts.lateness, strict=False):
        below += count
        buckets.append(("_bucket", {"le": f"{bound / 1e3:g}"}, float(below)))
    total = float(below + counts.lateness[-1])
    whole = [("_bucket", {"le": "+Inf"}, total), ("_sum", {}, counts.lateness_sum_ms / 1e3), ("_count", {}, total)]
    yield "lateness_seconds", "histogram", "from due to stored at the target", [*buckets, *whole]


def _gauges(state: "WorkerState") -> Iterable[_Family]:
    yield _one("oldest_due_seconds", "gauge", "how long the record due longest has been so", state.oldest_due_ms / 1e3)
    yield _one("avoided_targets", "gauge", "targets that are not tried now", len(state.avoided))
    yield _one("ready", "gauge", "1: it is in its group and commits", int(state.is_ready(state.at_ns)))
    ahead_s = state.clock_ahead_ms / 1e3
    yield _one("clock_ahead_seconds", "gauge", "this machine's clock less the brokers'; 0: a minute or less", ahead_s)
    labelled = [({"partition": str(queue.partition)}, queue) for queue in state.queues]
    backlog = [("", labels, float(queue.backlog)) for labels, queue in labelled if queue.backlog is not None]
    yield "backlog_records", "gauge", "records that wait in a queue, with probes and markers of transactions", backlog
    due = [("", labels, each.next_due_in_ms / 1e3) for labels, each in labelled if each.next_due_in_ms is not None]
    yield "next_due_seconds", "gauge", "until the oldest unfinished record of a queue is due", due


def _one(name: str, kind: str, about: str, value: float) -> _Family:
    return name, kind, about, [("", {}, value)]
