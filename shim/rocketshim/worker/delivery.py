"""The interface between the worker's loop and its two deliveries, `at_least_once` and `exactly_once`."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from rocketshim.core.clock import Clock
from rocketshim.core.level_queue import Due
from rocketshim.core.send_pace import SendPace
from rocketshim.kafka.clients import ConsumerClient, ProducerFactory
from rocketshim.worker.assignment import AssignedPartition
from rocketshim.worker.commit_results import CommitResults
from rocketshim.worker.hop_writer import HopWriter
from rocketshim.worker.prober import Prober
from rocketshim.worker.refusals import Refusals
from rocketshim.worker.router import Router
from rocketshim.worker.state import WorkerCounts
from rocketshim.worker.target_table import TargetTable

__all__ = ["Delivery", "DeliveryParts", "paced"]


class DeliveryParts(NamedTuple):
    """What both deliveries are made of. The worker's thread owns all of it.

    Attributes:
        make_producer: the factory of `Clients`.
        router: decides where records go.
        refusals: learns from hops that were not stored.
        targets: state of the targets.
        writer: produces hops.
        prober: writes probes.
        pace: decides how much may be in flight, and how long a target may take.
        counts: the worker's counters.
        commits: learns whether commits succeed.
        clock: the clock for waits.
        alarm: called with an event and its facts.
        point: called with the name of a point of the protocol when it is passed; for fault tests.
    """

    make_producer: ProducerFactory
    router: Router
    refusals: Refusals
    targets: TargetTable
    writer: HopWriter
    prober: Prober
    pace: SendPace
    counts: WorkerCounts
    commits: CommitResults
    clock: Clock
    alarm: Callable[..., None]
    point: Callable[[str], None]


class Delivery(Protocol):
    """One way to write due records and to commit positions. One owner thread: the worker's."""

    def start(self, consumer: ConsumerClient) -> None:
        """Create the producer; raise errors of the cluster."""

    def capacity(self, now_ns: int) -> int:
        """Return the number of records that may be relayed now."""

    def capacity_bytes(self, now_ns: int) -> int:
        """Return how many bytes of records may be relayed now, 1 or more; has a meaning only if `capacity` is not 0."""

    def relay(self, assigned: AssignedPartition, due: Due[Any], now_ns: int) -> None:
        """Write the records that left a queue to their targets or to another queue."""

    def can_extend(self, now_ns: int) -> bool:
        """Return whether the open transaction can take more records in this turn."""

    def end_turn(self, now_ns: int) -> None:
        """Finish the turn: no more records are due for now."""

    def process_reports(self, now_ns: int) -> None:
        """Process the results of written records; write those that failed again."""

    def connection_lost(self) -> None:
        """React to a connection to a broker that broke since the last turn."""

    def wait_ns(self, now_ns: int) -> int | None:
        """Return how long the loop may sleep at most; None: no limit."""

    def commit(self, assigned: list[AssignedPartition], *, asynchronous: bool) -> None:
        """Commit the positions of these partitions."""

    def drain(self, assigned: list[AssignedPartition], longest_ns: int) -> None:
        """Wait until these partitions have no records in flight, or the time is over."""

    def close(self) -> None:
        """Close the producers and abandon records in flight. Complete when it returns."""


def paced(config: Mapping[str, Any], pace: SendPace, clock: Clock) -> dict[str, Any]:
    """Return the settings of a producer that passes throttle times to `pace` and to the user's callback, if any."""
    users = config.get("throttle_cb")

    def throttled(event: Any) -> None:
        pace.throttled(clock.monotonic_ns(), round(event.throttle_time * 1e9))
        if users is not None:
            users(event)

    return {**config, "throttle_cb": throttled}
