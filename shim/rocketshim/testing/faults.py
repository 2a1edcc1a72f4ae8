"""What a test has ordered to go wrong. Pure: the broker asks before each act, and an order is used up by being asked.

Two kinds: *counted* orders (the next n sends or commits that match fail) and *standing* ones (the broker is down, a
topic is denied, sends or reports are held back) that last until they are lifted. In all of them None for a topic,
partition, group or id means any.
"""

from dataclasses import dataclass, field

from confluent_kafka import KafkaError

__all__ = ["CommitFault", "Faults", "ProduceFault", "Scope", "TransactionFault"]


@dataclass(frozen=True, slots=True)
class Scope:
    """Which partitions an order is about."""

    topic: str | None = None
    partition: int | None = None

    def covers(self, topic: str, partition: int) -> bool:
        """Whether a partition belongs to it."""
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
class CommitFault:
    """The next `remaining_count` offset commits of `group_id` fail."""

    group_id: str | None
    error: KafkaError
    remaining_count: int
    is_stored: bool


@dataclass(slots=True)
class TransactionFault:
    """The next `remaining_count` transaction calls named `call` of `transactional_id` fail."""

    transactional_id: str | None
    call: str
    error: KafkaError
    remaining_count: int
    is_applied: bool


@dataclass(slots=True)
class Faults:
    """All orders in force."""

    produce: list[ProduceFault] = field(default_factory=list)
    commits: list[CommitFault] = field(default_factory=list)
    transactions: list[TransactionFault] = field(default_factory=list)
    held_sends: list[Scope] = field(default_factory=list)
    held_reports: list[Scope] = field(default_factory=list)
    denied_writes: set[str] = field(default_factory=set)
    denied_reads: set[str] = field(default_factory=set)
    is_broker_down: bool = False

    def take_produce(self, topic: str, partition: int, *, is_synchronous: bool) -> ProduceFault | None:
        """The order that this send uses up, if there is one."""
        for fault in self.produce:
            if fault.is_synchronous == is_synchronous and fault.scope.covers(topic, partition):
                fault.remaining_count -= 1
                if not fault.remaining_count:
                    self.produce.remove(fault)
                return fault
        return None

    def take_commit(self, group_id: str) -> CommitFault | None:
        """The order that this commit uses up, if there is one."""
        for fault in self.commits:
            if fault.group_id in {None, group_id}:
                fault.remaining_count -= 1
                if not fault.remaining_count:
                    self.commits.remove(fault)
                return fault
        return None

    def take_transaction(self, transactional_id: str, call: str) -> TransactionFault | None:
        """The order that this transaction call uses up, if there is one."""
        for fault in self.transactions:
            if fault.call == call and fault.transactional_id in {None, transactional_id}:
                fault.remaining_count -= 1
                if not fault.remaining_count:
                    self.transactions.remove(fault)
                return fault
        return None

    def send_is_held(self, topic: str, partition: int) -> bool:
        """Whether sends to this partition wait before the log."""
        return any(scope.covers(topic, partition) for scope in self.held_sends)

    def report_is_held(self, topic: str, partition: int) -> bool:
        """Whether delivery reports of this partition wait after the log."""
        return any(scope.covers(topic, partition) for scope in self.held_reports)
