"""A push consumer's metrics in your own Prometheus registry; needs the extra `rocketshim[metrics]`."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rocketshim.consumer.push.push_consumer import PushConsumer
from rocketshim.errors import ConfigError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

__all__ = ["ConsumerCollector"]


class ConsumerCollector:
    """Collects a consumer's metrics: `prometheus_client.REGISTRY.register(ConsumerCollector(consumer))`.

    The figures are the consumer's own, a second old at most; nothing is counted twice and no call is timed for it. With
    several consumers in one process, register one collector for each: the label `group` tells them apart.

    Args:
        consumer: started or not; before its first turn there is nothing to collect.

    Raises:
        ConfigError: prometheus-client is not installed.

    Thread-safety: collected from any thread.
    """

    def __init__(self, consumer: PushConsumer) -> None:
        try:
            from prometheus_client import core  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise ConfigError("prometheus-client is not installed: pip install 'rocketshim[metrics]'") from error
        self._families = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
        self._consumer = consumer

    def describe(self) -> Iterable["Metric"]:
        """Nothing: so that a consumer may be registered before it has started."""
        return ()

    def collect(self) -> Iterable["Metric"]:
        """The metrics as they are now."""
        state = self._consumer.state
        if state is None:
            return
        for metric in state.metrics():
            labels = sorted({name for _, given, _ in metric.samples for name in given})
            family = self._families[metric.kind](metric.name, metric.about, labels=labels)
            for _, given, value in metric.samples:
                family.add_metric([given[name] for name in labels], value)
            yield family
