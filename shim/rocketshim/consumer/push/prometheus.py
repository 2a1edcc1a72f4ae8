"""Metrics of a push consumer for the user's Prometheus registry; needs the extra `rocketshim[metrics]`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rocketshim.consumer.push.push_consumer import PushConsumer
from rocketshim.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["ConsumerCollector"]


class ConsumerCollector:
    """Collects a consumer's metrics: `prometheus_client.REGISTRY.register(ConsumerCollector(consumer))`.

    The values come from the consumer's state and are at most one second old. The collector itself counts nothing and
    times no calls. With several consumers in one process, register one collector for each; the label `group`
    distinguishes them.

    Args:
        consumer: started or not; before the first turn of its loop there is nothing to collect.

    Raises:
        ConfigError: prometheus-client is not installed.

    Thread-safety: any thread may collect.
    """

    def __init__(self, consumer: PushConsumer) -> None:
        try:
            from prometheus_client import core  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ConfigError("prometheus-client is not installed: pip install 'rocketshim[metrics]'") from error
        self._families = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
        self._consumer = consumer

    def describe(self) -> Iterable["Metric"]:
        """Return nothing, so that a consumer can be registered before it has started."""
        return ()

    def collect(self) -> Iterable["Metric"]:
        """Yield the current metrics."""
        state = self._consumer.state
        if state is None:
            return
        for metric in state.metrics():
            labels = sorted({name for _, given, _ in metric.samples for name in given})
            family = self._families[metric.kind](metric.name, metric.about, labels=labels)
            for _, given, value in metric.samples:
                family.add_metric([given[name] for name in labels], value)
            yield family
