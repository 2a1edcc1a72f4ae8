"""Metrics of the clients inside a program: producers, push consumers, pull consumers and the drop-in classes.

Each client counts with plain additions in the thread that does the work, and builds metrics only when a registry
collects. Every series exists before the first event, so that `increase()` sees the first event too.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, Protocol

from confluent_kafka import KafkaException

from rocketshim.metrics import Histogram, Metric, families

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as PrometheusMetric

__all__ = ["Measured", "MetricsCollector", "ProducerCounts", "PullCounts"]

_SEND_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Measured(Protocol):
    """A client that has metrics."""

    def metrics(self) -> Iterable[Metric]:
        """Return the current metrics; nothing if there are none yet."""


class MetricsCollector:
    """Collects the metrics of clients: `prometheus_client.REGISTRY.register(MetricsCollector(producer, consumer))`.

    The values are those of the clients; the collector counts nothing itself. Clients with the same labels, such as two
    producers, have common series: their values are added, and of ages (`…_seconds` gauges) the largest counts.

    Args:
        clients: producers, push and pull consumers, also of the drop-in; started or not.

    Thread-safety: any thread may collect.
    """

    def __init__(self, *clients: Measured) -> None:
        self._clients = clients

    def describe(self) -> Iterable["PrometheusMetric"]:
        """Return nothing, so that a client can be registered before it has started."""
        return ()

    def collect(self) -> Iterable["PrometheusMetric"]:
        """Yield the current metrics."""
        yield from families(_merged(metric for client in self._clients for metric in client.metrics()))


def _merged(metrics: Iterable[Metric]) -> Iterator[Metric]:
    """Yield one metric for each name."""
    by_name: dict[str, list[Metric]] = {}
    for metric in metrics:
        by_name.setdefault(metric.name, []).append(metric)
    for name, several in by_name.items():
        kind, about = several[0].kind, several[0].about
        is_age = kind == "gauge" and name.endswith("_seconds")
        values: dict[tuple[str, frozenset[tuple[str, str]]], tuple[str, Mapping[str, str], float]] = {}
        for suffix, labels, value in (sample for metric in several for sample in metric.samples):
            key = suffix, frozenset(labels.items())
            known = values[key][2] if key in values else 0.0
            values[key] = suffix, labels, max(known, value) if is_age else known + value
        yield Metric(name, kind, about, tuple(values.values()))


@dataclass(slots=True)
class ProducerCounts:
    """What a producer counts.

    Its report thread counts reports, without a lock. A refused call is counted in the caller's thread, under a lock.

    Attributes:
        stored: messages that are stored: immediate, delayed; and commands for named messages, such as a cancel.
        failed: messages whose delivery report is an error, likewise.
        unconfirmed: how often a record was sent again because its report had no offset.
        refused: calls that the client refused; nothing was sent.
        durations: seconds from the call to the delivery report of a stored message, by bucket.
    """

    KINDS: ClassVar = ("immediate", "delayed", "command")
    IMMEDIATE: ClassVar = 0
    DELAYED: ClassVar = 1
    COMMAND: ClassVar = 2

    stored: list[int] = field(default_factory=lambda: [0, 0, 0])
    failed: list[int] = field(default_factory=lambda: [0, 0, 0])
    unconfirmed: int = 0
    refused: int = 0
    durations: Histogram = field(default_factory=lambda: Histogram(_SEND_BOUNDS_S))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def refuse(self) -> None:
        """Count a call that the client refused; any thread."""
        with self._lock:
            self.refused += 1

    def metrics(self, waiting: int, namespace: str) -> Iterator[Metric]:
        """Yield the metrics of a producer in which `waiting` messages have no delivery report yet."""
        mine = {"namespace": namespace} if namespace else {}
        messages = tuple(
            ("", mine | {"kind": kind, "result": result}, float(count))
            for result, counts in (("stored", self.stored), ("failed", self.failed))
            for kind, count in zip(self.KINDS, counts, strict=True)
        )
        times = tuple((suffix, mine | labels, value) for suffix, labels, value in self.durations.copy().samples())
        yield Metric("rocketshim_producer_messages_total", "counter", "messages by delivery report", messages)
        yield Metric(
            "rocketshim_producer_send_duration_seconds", "histogram",
            "from the call to the delivery report of a stored message", times,
        )  # fmt: skip
        yield Metric(
            "rocketshim_producer_refused_total", "counter", "calls that Kafka's client refused; nothing was sent",
            (("", mine, self.refused),),
        )  # fmt: skip
        yield Metric(
            "rocketshim_producer_unconfirmed_total", "counter", "records sent again, as their report had no offset",
            (("", mine, self.unconfirmed),),
        )  # fmt: skip
        yield Metric(
            "rocketshim_producer_waiting_messages", "gauge", "messages without a delivery report yet",
            (("", mine, waiting),),
        )  # fmt: skip


@dataclass(slots=True)
class PullCounts:
    """What a pull consumer counts; the thread that polls writes, once for each poll.

    Attributes:
        messages: messages handed out.
        polls: calls that returned messages.
        empty_polls: calls that returned no message.
        skipped: messages that no expression could be evaluated on.
        commits_failed: commits that were refused or not answered.
        polled_at_ms: when the last poll began, on the consumer's clock; None: there was none.
    """

    messages: int = 0
    polls: int = 0
    empty_polls: int = 0
    skipped: int = 0
    commits_failed: int = 0
    polled_at_ms: int | None = None

    @contextmanager
    def counting_failed_commits(self) -> Iterator[None]:
        """Count a KafkaException of the block as a failed commit."""
        try:
            yield
        except KafkaException:
            self.commits_failed += 1
            raise

    def add_poll(self, handed_out: int) -> None:
        """Count a poll that ended."""
        if handed_out:
            self.messages += handed_out
            self.polls += 1
        else:
            self.empty_polls += 1

    def metrics(self, group: str, now_ms: int, assigned: int | None = None) -> Iterator[Metric]:
        """Yield the metrics of a pull consumer; `assigned` is its number of queues, None if it is not assigned any."""
        mine = {"group": group}

        def metric(name: str, kind: str, about: str, *samples: tuple[dict[str, str], float]) -> Metric:
            return Metric(f"rocketshim_pull_{name}", kind, about, tuple(("", mine | x, value) for x, value in samples))

        polls = ({"result": "messages"}, self.polls), ({"result": "empty"}, self.empty_polls)
        yield metric("messages_total", "counter", "messages handed out", ({}, self.messages))
        yield metric("polls_total", "counter", "polls by whether they returned messages", *polls)
        yield metric("skipped_total", "counter", "messages that no filter could be evaluated on", ({}, self.skipped))
        yield metric(
            "commits_failed_total", "counter", "commits refused or not answered in time", ({}, self.commits_failed)
        )
        if self.polled_at_ms is not None:
            age_s = max(0, now_ms - self.polled_at_ms) / 1e3
            yield metric("last_poll_seconds", "gauge", "time since the last poll began", ({}, age_s))
        if assigned is not None:
            yield metric("assigned_queues", "gauge", "queues that the consumer reads", ({}, assigned))
