"""Metrics of a push consumer for the user's Prometheus registry."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rocketshim.consumer.push.push_consumer import PushConsumer
from rocketshim.health import families

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

__all__ = ["ConsumerCollector"]


class ConsumerCollector:
    """Collects a consumer's metrics: `prometheus_client.REGISTRY.register(ConsumerCollector(consumer))`.

    The values come from the consumer's state and are at most one second old. The collector itself counts nothing and
    times no calls. With several consumers in one process, register one collector for each; the label `group`
    distinguishes them.

    Args:
        consumer: started or not; before the first turn of its loop there is nothing to collect.

    Thread-safety: any thread may collect.
    """

    def __init__(self, consumer: PushConsumer) -> None:
        self._consumer = consumer

    def describe(self) -> Iterable["Metric"]:
        """Return nothing, so that a consumer can be registered before it has started."""
        return ()

    def collect(self) -> Iterable["Metric"]:
        """Yield the current metrics."""
        state = self._consumer.state
        if state is None:
            return
        yield from families(state.metrics())
