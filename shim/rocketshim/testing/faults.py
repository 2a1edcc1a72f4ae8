"""The faults that a test has injected. Pure.

There are two kinds. *Counted* faults make the next n matching sends, commits or transaction calls fail; each check of
the broker that matches uses one up. *Lasting* faults (the broker is down, a topic is denied, sends or reports are
delayed) remain until the test removes them. None for a topic, partition, group or id means any.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from confluent_kafka import KafkaError

__all__ = ["CallFault", "Faults", "ProduceFault", "Scope"]


@dataclass(frozen=True, slots=True)
class Scope:
    """The partitions that a fault applies to."""

    topic: str | None = None
    partition: int | None = None

    def covers(self, topic: str, partition: int) -> bool:
        """Return whether a partition is in the scope."""
        return self.topic in {None, topic} and self.partition in {None, partition}


@dataclass(slots=True)
class ProduceFault:
    """The next `remaining_count` sends in `scope` fail, or are reported as a duplicate batch if `error` is None."""

    scope: Scope
    error: KafkaError | None
    remaining_count: int
    is_synchronous: bool
    is_stored: bool
    batch: tuple[str, int] | None = None
    next_offset: int = -1

    def number(self, topic: str, partition: int) -> int:
        """The offset that librdkafka shows for the next record of a duplicate batch."""
        if self.batch != (topic, partition):
            self.batch, self.next_offset = (topic, partition), -1
        self.next_offset += 1
        return self.next_offset - 1


@dataclass(slots=True)
class CallFault:
    """The next `remaining_count` calls named `call` of a group or of a transactional id fail; `commit` of a group."""

    caller: str | None
    call: str
    error: KafkaError
    remaining_count: int
    is_applied: bool


_Fault = TypeVar("_Fault", ProduceFault, CallFault)


@dataclass(slots=True)
class Faults:
    """All active faults."""

    produce: list[ProduceFault] = field(default_factory=list)
    calls: list[CallFault] = field(default_factory=list)
    held_sends: list[Scope] = field(default_factory=list)
    held_reports: list[Scope] = field(default_factory=list)
    denied_writes: set[str] = field(default_factory=set)
    denied_reads: set[str] = field(default_factory=set)
    is_broker_down: bool = False

    def take_produce(self, topic: str, partition: int, *, is_synchronous: bool) -> ProduceFault | None:
        """Return the fault for this send and count it down; None if there is none."""
        return _taken(self.produce, lambda x: x.is_synchronous == is_synchronous and x.scope.covers(topic, partition))

    def take_call(self, caller: str, call: str) -> CallFault | None:
        """Return the fault for a call of a group or transactional id and count it down; None if there is none."""
        return _taken(self.calls, lambda fault: fault.call == call and fault.caller in {None, caller})

    def send_is_held(self, topic: str, partition: int) -> bool:
        """Return whether sends to this partition are delayed."""
        return any(scope.covers(topic, partition) for scope in self.held_sends)

    def report_is_held(self, topic: str, partition: int) -> bool:
        """Return whether delivery reports of this partition are delayed."""
        return any(scope.covers(topic, partition) for scope in self.held_reports)


def _taken(faults: list[_Fault], matches: Callable[[_Fault], bool]) -> _Fault | None:
    for fault in filter(matches, faults):
        fault.remaining_count -= 1
        if not fault.remaining_count:
            faults.remove(fault)
        return fault
    return None
