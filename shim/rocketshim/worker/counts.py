"""What the worker counts: what it has done, and its alarms, which it also logs."""

from bisect import bisect_right
from dataclasses import dataclass, field, replace
from typing import Final

from confluent_kafka import KafkaError

from rocketshim.core.clock import Clock
from rocketshim.core.log_limits import RepeatedErrors
from rocketshim.core.worker_notes import NOT_ALLOWED
from rocketshim.kafka.client_errors import ErrorLines
from rocketshim.logs import safe_logger

__all__ = ["LATENESS_BOUNDS_MS", "PARK_REASONS", "Alarms", "WorkerCounts", "re_append_event"]

_LOG = safe_logger("rocketshim.worker")
_MOST_LINES: Final = 20  # of an event in a second
_NS_PER_MS: Final = 1_000_000
_REPEATED: Final = frozenset({"worker.commit-failed", "worker.metadata-failed", "worker.probe-failed"})

LATENESS_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000, 600_000)
"""Upper bounds of the buckets of lateness (from due to delivered), in ms; one more bucket is above the last."""

PARK_REASONS: Final = (
    "bad-header-key", "bad-number", "due-too-late", "duplicate-header", "forbidden-target", "hop-refused",
    "malformed", "missing-header", "no-append-time", "null-header", "target-refused", "two-due-times", "unknown-topic",
    "unknown-version",
)  # fmt: skip
"""Reasons for which records are parked, each up to its first colon."""


@dataclass(slots=True)
class WorkerCounts:
    """What the worker has done since it started. Its own thread writes this; any thread may read it.

    Attributes:
        delivered: records stored at their targets.
        hopped: records written to another queue because they were not due.
        re_appended: records written to a queue again because their target did not accept them.
        resent: hops made again.
        skipped: probes read.
        alarms: number of alarms by event.
        parked: number of parked records by reason, up to the reason's first colon.
        aborted: transactions aborted.
        recycled: producers replaced.
        lateness: number of deliveries in each bucket of `LATENESS_BOUNDS_MS`.
        lateness_sum_ms: sum of all latenesses.
    """

    delivered: int = 0
    hopped: int = 0
    re_appended: int = 0
    resent: int = 0
    skipped: int = 0
    alarms: dict[str, int] = field(default_factory=dict)
    parked: dict[str, int] = field(default_factory=dict)
    aborted: int = 0
    recycled: int = 0
    lateness: list[int] = field(default_factory=lambda: [0] * (len(LATENESS_BOUNDS_MS) + 1))
    lateness_sum_ms: int = 0

    def copy(self) -> "WorkerCounts":
        """Return a copy for another thread."""
        return replace(self, parked=dict(self.parked), alarms=dict(self.alarms), lateness=list(self.lateness))

    def count_parked(self, reason: str) -> None:
        """Count a parked record."""
        kind = reason.split(":", 1)[0]
        self.parked[kind] = self.parked.get(kind, 0) + 1

    def observe_lateness(self, late_ms: list[int]) -> None:
        """Count deliveries by their lateness in ms."""
        late_ms.sort()
        self.lateness_sum_ms += sum(late_ms)
        below = 0
        for bucket, bound in enumerate(LATENESS_BOUNDS_MS):
            if below == len(late_ms):
                return
            upto = bisect_right(late_ms, bound, below)
            self.lateness[bucket] += upto - below
            below = upto
        self.lateness[-1] += len(late_ms) - below


def re_append_event(reason: str) -> str:
    """Return the log event for a record that was re-appended for this reason."""
    return "worker.not-allowed" if reason == NOT_ALLOWED else "worker.re-appended"


class Alarms:
    """Counts alarms, and logs them: at most 20 times a second for each event, and the same error only now and then.

    Thread-safety: none; the worker's thread.
    """

    __slots__ = ("_clock", "_counts", "_errors", "_lines", "_repeated")

    def __init__(self, counts: WorkerCounts, clock: Clock, errors: ErrorLines) -> None:
        self._counts = counts
        self._clock = clock
        self._errors = errors
        self._repeated = RepeatedErrors()
        self._lines: dict[str, tuple[int, int, int]] = {}  # event -> (second, lines in it, lines left out)

    def __call__(self, event: str, **facts: object) -> None:
        """Count an alarm and log it."""
        self._count(event)
        now_ms = self._clock.monotonic_ns() // _NS_PER_MS
        if event in _REPEATED:
            count = self._repeated.note((event, facts.get("error")), now_ms)
            if not count:
                return
            facts |= {"count": count} if count > 1 else {}
        second = now_ms // 1_000
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

    def client_error(self, error: KafkaError, topic: str | None = None) -> None:
        """Count an error of a Kafka client that goes on; log it with the way out, and now and then if it repeats."""
        self._count("worker.client-error")
        facts = self._errors.facts(error, topic, self._clock.monotonic_ns() // _NS_PER_MS)
        if facts is not None:
            _LOG.warning("worker.client-error", extra=facts)

    def _count(self, event: str) -> None:
        self._counts.alarms[event] = self._counts.alarms.get(event, 0) + 1
