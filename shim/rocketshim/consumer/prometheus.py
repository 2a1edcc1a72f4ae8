"""A push consumer's metrics in your own Prometheus registry; needs the extra `rocketshim[metrics]`."""

from collections.abc import Iterable

from rocketshim.consumer.push_consumer import PushConsumer
from rocketshim.errors import ConfigError

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise ConfigError("prometheus-client is not installed: pip install 'rocketshim[metrics]'") from error

__all__ = ["ConsumerCollector"]


class ConsumerCollector(Collector):
    """Collects a consumer's metrics: `prometheus_client.REGISTRY.register(ConsumerCollector(consumer))`.

    The figures are the consumer's own, a second old at most; nothing is counted twice and no call is timed for it. With
    several consumers in one process, register one collector for each: the label `group` tells them apart.

    Args:
        consumer: started or not; before its first turn there is nothing to collect.

    Raises:
        ConfigError: at import, where prometheus-client is not installed.

    Thread-safety: collected from any thread.
    """

    def __init__(self, consumer: PushConsumer) -> None:
        self._consumer = consumer

    def describe(self) -> Iterable[Metric]:
        """Nothing: so that a consumer may be registered before it has started."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The metrics as they are now."""
        state = self._consumer.state
        if state is None:
            return
        for metric in state.metrics():
            labels = sorted({name for _, given, _ in metric.samples for name in given})
            make = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = make(metric.name, metric.about, labels=labels)
            for _, given, value in metric.samples:
                family.add_metric([given[name] for name in labels], value)
            yield family
