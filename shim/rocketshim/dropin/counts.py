"""What the drop-in classes count: messages sent back, and delayed messages.

The counts are made where a message is sent back or a delivery report arrives, never where a message is polled: that
path belongs to the original client.
"""

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Final

from rocketshim.consumer_metrics import FailureCounts
from rocketshim.core.next_hop import Hop, HopKind
from rocketshim.health import Metric

__all__ = ["DelayedCounts", "SentBack"]

_FAILED: Final = "not_stored"


class SentBack:
    """Counts of the messages that a drop-in consumer sent back. Any thread may call every method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hops: Counter[str] = Counter()
        self._failures = FailureCounts()

    def stored(self, hop: Hop) -> None:
        """Count a hop that is stored."""
        with self._lock:
            self._hops[hop.kind.value] += 1
            self._failures.add(hop.kind, hop.reconsume_times, hop.failed.failure.exception_class)

    def failed(self) -> None:
        """Count a send-back that raised."""
        with self._lock:
            self._hops[_FAILED] += 1

    def metrics(self, group: str) -> Iterator[Metric]:
        """Yield the metrics of a consumer of this group."""
        with self._lock:
            hops, failures = dict(self._hops), self._failures.copy()
        mine = {"group": group}
        names = (*(kind.value for kind in HopKind), _FAILED)
        yield Metric(
            "rocketshim_dropin_sent_back_total", "counter", "messages sent back by where they went",
            tuple(("", mine | {"hop": name}, hops.get(name, 0)) for name in names),
        )  # fmt: skip
        yield Metric(
            "rocketshim_dropin_retries_total", "counter", "retries stored, by failed attempts of the message",
            tuple(("", mine | {"attempt": attempt}, count) for attempt, count in failures.retries.items()),
        )  # fmt: skip
        yield Metric(
            "rocketshim_dropin_dead_letters_total", "counter", "dead letters stored, by class of the failure",
            tuple(("", mine | {"cause": cause}, count) for cause, count in sorted(failures.dead.items())),
        )  # fmt: skip


class DelayedCounts:
    """Counts of delayed messages by delivery report, in the thread that polls the producer; any thread may read."""

    def __init__(self) -> None:
        self._stored = 0
        self._failed = 0

    def report(self, *, is_stored: bool) -> None:
        """Count a delivery report."""
        if is_stored:
            self._stored += 1
        else:
            self._failed += 1

    def metrics(self, namespace: str) -> Iterator[Metric]:
        """Yield the metrics of a producer."""
        mine = {"namespace": namespace} if namespace else {}
        yield Metric(
            "rocketshim_dropin_delayed_messages_total", "counter", "delayed messages by delivery report",
            (("", mine | {"result": "stored"}, self._stored), ("", mine | {"result": "failed"}, self._failed)),
        )  # fmt: skip
