"""Metrics of a process, without a registry: families and histograms, and both in Prometheus' form."""

import importlib.metadata
import platform
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import accumulate
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import confluent_kafka

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric as PrometheusMetric

__all__ = ["Histogram", "Metric", "build_info", "families", "metrics_text"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric family.

    Attributes:
        name: the name with its prefix.
        kind: `counter`, `gauge` or `histogram`.
        about: one line of help text.
        samples: suffix of the name (of a histogram), labels, value.
    """

    name: str
    kind: str
    about: str
    samples: tuple[tuple[str, Mapping[str, str], float], ...]


@dataclass(slots=True)
class Histogram:
    """Counts of values by bucket, as Prometheus' histograms. The owner's thread writes, any thread may copy.

    `bounds` are upper bounds, ascending; one more bucket is above the last.
    """

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, value: float, times: int = 1) -> None:
        """Count a value, several times if that many things share it."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def add_all(self, values: list[float]) -> None:
        """Count values; they are sorted in place, so that many of them are counted by a few searches."""
        values.sort()
        self.total += sum(values)
        below = 0
        for bucket, bound in enumerate(self.bounds):
            if below == len(values):
                return
            upto = bisect_right(values, bound, below)
            self.counts[bucket] += upto - below
            below = upto
        self.counts[-1] += len(values) - below

    def copy(self) -> "Histogram":
        """Return a copy for another thread."""
        return replace(self, counts=list(self.counts))

    def samples(self) -> list[tuple[str, dict[str, str], float]]:
        """Return suffix, labels and value of each sample in Prometheus' form."""
        below = list(accumulate(self.counts))
        bounds = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        buckets = [("_bucket", {"le": bound}, float(count)) for bound, count in zip(bounds, below, strict=True)]
        return [*buckets, ("_sum", {}, self.total), ("_count", {}, float(below[-1]))]


def families(metrics: Iterable[Metric]) -> Iterable["PrometheusMetric"]:
    """Yield metrics as families of prometheus-client, for a registry."""
    from prometheus_client.metrics_core import Metric as PrometheusMetric  # noqa: PLC0415 - it is slow to import

    for metric in metrics:
        family = PrometheusMetric(metric.name.removesuffix("_total"), metric.about, metric.kind)
        for suffix, labels, value in metric.samples:
            family.add_sample(metric.name + suffix, dict(labels), value)
        yield family


def metrics_text(metrics: Iterable[Metric]) -> str:
    """Return metrics in Prometheus' text exposition format."""
    from prometheus_client import generate_latest  # noqa: PLC0415 - it is slow to import

    given: Any = SimpleNamespace(collect=lambda: families(metrics))  # a registry, as far as that function asks
    return generate_latest(given).decode()


def build_info() -> Metric:
    """Return the metric that names the versions of this program, always 1."""
    versions = {
        "version": importlib.metadata.version("rocketshim"),
        "python": platform.python_version(),
        "librdkafka": confluent_kafka.libversion()[0],
    }
    return Metric("rocketshim_build_info", "gauge", "1; the labels name the versions", (("", versions, 1),))
