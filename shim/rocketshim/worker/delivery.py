"""What the worker's loop asks of a way to deliver; `at_least_once` and `exactly_once` are the two there are."""

from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from rocketshim.core.level_queue import Due
from rocketshim.kafka.clients import ConsumerClient
from rocketshim.worker.allow_list import NOT_ALLOWED
from rocketshim.worker.assignment import AssignedPartition

__all__ = ["LATENESS_BOUNDS_MS", "Delivery", "WorkerCounts", "re_append_event"]

LATENESS_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 60_000, 600_000)
"""Upper bounds of the buckets of lateness (due to delivered), in ms; one more bucket lies above the last."""


@dataclass(slots=True)
class WorkerCounts:
    """What the worker has done since it started; read from any thread, written by its own.

    Attributes:
        delivered: records stored at their targets.
        hopped: records written to another queue because they were not due.
        re_appended: records written to a queue again because their target did not take them.
        resent: hops made again.
        skipped: probes read.
        alarms: alarms by event.
        parked: by reason, up to its first colon.
        aborted: transactions aborted.
        recycled: producers thrown away.
        lateness: how many deliveries fell into each bucket of `LATENESS_BOUNDS_MS`.
        lateness_sum_ms: sum of all.
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

    def count_parked(self, reason: str) -> None:
        """Count a parked record."""
        kind = reason.split(":", 1)[0]
        self.parked[kind] = self.parked.get(kind, 0) + 1

    def observe_lateness(self, late_ms: list[int]) -> None:
        """Count deliveries by how late they were."""
        late_ms.sort()
        self.lateness_sum_ms += sum(late_ms)
        below = 0
        for bucket, bound in enumerate(LATENESS_BOUNDS_MS):
            if below == len(late_ms):
                return
            upto = _count_up_to(late_ms, bound, below)
            self.lateness[bucket] += upto - below
            below = upto
        self.lateness[-1] += len(late_ms) - below


def re_append_event(reason: str) -> str:
    """The event of a record that waits in a queue again for this reason."""
    return "worker.not-allowed" if reason == NOT_ALLOWED else "worker.re-appended"


def _count_up_to(ascending: list[int], bound: int, start: int) -> int:
    low, high = start, len(ascending)
    while low < high:
        middle = (low + high) // 2
        if ascending[middle] <= bound:
            low = middle + 1
        else:
            high = middle
    return low


class Delivery(Protocol):
    """One way to place records. One owner thread: the worker's."""

    def start(self, consumer: ConsumerClient) -> None:
        """Make the producer. Errors of the cluster are raised."""

    def capacity(self, now_ns: int) -> int:
        """How many records may be relayed now."""

    def relay(self, held: AssignedPartition, due: Due[Any], now_ns: int) -> None:
        """Place what left a queue."""

    def can_extend(self, now_ns: int) -> bool:
        """Whether what is placed together so far would be worth more with more."""

    def end_turn(self, now_ns: int) -> None:
        """Nothing more is due for now."""

    def settle(self, now_ns: int) -> None:
        """Take in what has become of what was placed; make again what failed."""

    def connection_lost(self) -> None:
        """A connection to some broker broke since the last turn."""

    def wait_ns(self, now_ns: int) -> int | None:
        """How long the loop may sleep at most; None: as long as it likes."""

    def commit(self, held: list[AssignedPartition], *, asynchronous: bool) -> None:
        """Make the positions known to the group."""

    def drain(self, held: list[AssignedPartition], longest_ns: int) -> None:
        """Wait until nothing of these is in flight, or the time is over."""

    def probe(self, held: AssignedPartition, now_ns: int) -> None:
        """Write a probe of the leader's clock into this partition."""

    def close(self) -> None:
        """End; what is in flight is abandoned. Complete when it returns."""
