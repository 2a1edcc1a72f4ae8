"""Measure how far the clocks of the leaders are ahead of this machine's, by writing probes to the schedule topic."""

from collections.abc import Callable, Mapping
from typing import Any

from rocketshim.kafka.clients import ProducerFactory, close_producer
from rocketshim.kafka.reports import DeliveryReports, store
from rocketshim_topics.hops import clock_probe
from rocketshim_topics.names import TopicNames

__all__ = ["clocks_ahead_ms"]


def clocks_ahead_ms(
    make: ProducerFactory,
    config: dict[str, Any],
    names: TopicNames,
    leaders: Mapping[int, int],
    *,
    now_ms: Callable[[], int],
    timeout_s: float,
) -> dict[int, int]:
    """Write probes to one partition of each leader; return how far each leader's clock is surely ahead, in ms.

    A clock that shows a time between the sending of the probe and its answer may be right: 0.
    """
    producer = make(config)
    checked = DeliveryReports()
    ahead: dict[int, int] = {}
    try:
        for node, number in leaders.items():
            out = clock_probe(names, partition=number)
            for _ in range(2):  # the first opens the connection; only the second is measured
                sent_ms = now_ms()
                report = store(producer, checked, timeout_s, out.topic, out.value, out.key, number, headers=out.headers)
                if report is None:
                    raise TimeoutError(f"broker {node} did not confirm a probe")
                appended_ms, answered_ms = report.timestamp()[1], now_ms()
                ahead[node] = max(0, appended_ms - answered_ms) + min(0, appended_ms - sent_ms)
    finally:
        close_producer(producer, timeout_s)
    return ahead
