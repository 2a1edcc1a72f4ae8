"""The page of metrics: the families that a consumer's and a worker's state export, from states with one of each."""

from collections.abc import Iterable

from rocketshim.admin.doctor import Finding, Severity
from rocketshim.client_metrics import ProducerCounts, PullCounts
from rocketshim.consumer_metrics import ConsumerQueueState, ConsumerState, SendBackCounts
from rocketshim.core.listener_answers import ConsumeReturnType
from rocketshim.dropin.producer import delayed_messages
from rocketshim.dropin.retry_side import DropinSendBack
from rocketshim.dropin.settings import ConsumerDropinSettings
from rocketshim.kafka.clients import ProducerClient
from rocketshim.metrics import Metric, build_info
from rocketshim.observe.exporter import ExporterState
from rocketshim.observe.snapshot import DelayQueue, GroupStanding, PartitionStanding, Snapshot, TopicSnapshot
from rocketshim.worker.state import QueueState, WorkerState
from tools.reference.tables import table

__all__ = ["page", "vocabulary"]

_INTRODUCTION = """\
# Metrics

`rocketshim run --health PORT`, `rocketshim worker --health PORT` and `rocketshim exporter` serve these metrics at
`/metrics` in Prometheus' text format. In a namespace, those of the worker and the exporter have the label `namespace`.
In your own program register `MetricsCollector(consumer, producer)` with your Prometheus registry.
[Consuming](../consumer.md#running-as-processes-health-and-metrics) and
[the worker](../worker.md#monitoring) name the metrics to alert on.
"""


def vocabulary() -> dict[str, list[Metric]]:
    """Return every metric by the process that exports it, each with one sample of each set of labels."""
    return {
        "Push consumer": list(_consumer().metrics()),
        "Producer": list(ProducerCounts().metrics(0, "")),
        "Pull consumers": list(PullCounts(polled_at_ms=0).metrics("reports", 0, 0)),
        "Drop-in": [*_sent_back().metrics(), delayed_messages({}, "")],
        "Worker": list(_worker().metrics()),
        "Exporter": list(_exporter().metrics()),
        "Every process": [build_info()],
    }


def page() -> str:
    """Return the page."""
    parts = [_INTRODUCTION]
    for heading, metrics in vocabulary().items():
        parts += [f"## {heading}", table(("metric", "type", "labels", "meaning"), _rows(metrics))]
    return "\n\n".join(parts) + "\n"


def _rows(metrics: Iterable[Metric]) -> Iterable[tuple[str, str, str, str]]:
    for metric in metrics:
        labels = sorted({label for _, labels, _ in metric.samples for label in labels} - {"le"})
        yield f"`{metric.name}`", metric.kind, ", ".join(f"`{label}`" for label in labels), metric.about


def _consumer() -> ConsumerState:
    queue = ConsumerQueueState(
        topic="orders", queue_id=0, epoch=1, position=0, committed=0, lag=0, msg_count=0, msg_bytes=0,
        oldest_in_work_ms=0, paused="", reconsume_times=0,
    )  # fmt: skip
    return ConsumerState(
        at_ns=0, group="payments", is_member=True, suspended=False, commits_fail_since_ns=None, commits_failed=0,
        workers=20, in_flight=0, messages={each.name: 0 for each in ConsumeReturnType}, listener_s=0.0,
        send_back=SendBackCounts(), subscription_conflicts={"orders": "*"}, queues=(queue,),
    )  # fmt: skip


def _sent_back() -> DropinSendBack:
    def make_producer() -> ProducerClient:
        raise NotImplementedError("nothing is sent back")

    return DropinSendBack(make_producer, ConsumerDropinSettings(), "payments")


def _worker() -> WorkerState:
    queue = QueueState(partition=0, delay_ms=1_000, position=0, committed=0, backlog=0, held=0, next_due_in_ms=0)
    return WorkerState(
        at_ns=0, mode="at-least-once", group="rmq.sched", topic="rmq.sched", is_member=True,
        commits_fail_since_ns=None, avoided={}, queues=(queue,),
    )  # fmt: skip


def _exporter() -> ExporterState:
    partition = PartitionStanding("orders", 0, position=0, low=0, end=0)
    snapshot = Snapshot(
        at_ms=0, queues=(DelayQueue(0, 1_000, partition),), timers=(DelayQueue(0, 0, partition),),
        groups=(GroupStanding("payments", partitions=(partition,)),),
        dead=(TopicSnapshot("rmq.dlq.payments", "payments", 0, 0),), parked=TopicSnapshot("rmq.parked", None, 0, 0),
    )  # fmt: skip
    return ExporterState(0, 0, snapshot, (Finding("worker", Severity.ERROR, "", "", "", ""),), is_examined=True)
