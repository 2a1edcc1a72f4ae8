"""Alarms of the worker: counted always, logged at most 20 times a second for each event."""

from typing import Final

from rocketshim.core.clock import Clock
from rocketshim.logs import safe_logger
from rocketshim.worker.counts import WorkerCounts

__all__ = ["Alarms"]

_LOG = safe_logger("rocketshim.worker")
_MOST_LINES: Final = 20


class Alarms:
    """Counts and logs alarms.

    Thread-safety: none; the worker's thread.
    """

    __slots__ = ("_clock", "_counts", "_lines")

    def __init__(self, counts: WorkerCounts, clock: Clock) -> None:
        self._counts = counts
        self._clock = clock
        self._lines: dict[str, tuple[int, int, int]] = {}  # event -> (second, lines in it, lines left out)

    def __call__(self, event: str, **facts: object) -> None:
        """Count an alarm and log it."""
        self._counts.alarms[event] = self._counts.alarms.get(event, 0) + 1
        second = self._clock.monotonic_ns() // 1_000_000_000
        since, lines, left_out = self._lines.get(event, (second, 0, 0))
        if since != second:
            if left_out:
                facts["left_out_before"] = left_out
            since, lines, left_out = second, 0, 0
        if lines < _MOST_LINES:
            _LOG.warning(event, extra=facts)
            lines += 1
        else:
            left_out += 1
        self._lines[event] = since, lines, left_out
