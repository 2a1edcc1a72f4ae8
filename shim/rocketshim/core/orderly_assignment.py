"""The life of a partition in an orderly consumer: who may start it, what ends it, and what follows its end.

A partition is consumed under the lock of its queue. Kafka's group and the group's log change independently of each
other, and listeners may be slow, so the state of a partition depends on all three. `TRANSITIONS` is the whole state
machine; `DESIGN.md` has a drawing that is made from it. Its rules:

* A partition that is assigned is *wanted*: it is paused until the log grants the lock of its queue. Then its start
  offset is looked up and committed (*starting*), and then it is read (*running*).
* A run ends when the partition is revoked, when the lock is lost, or when the log of the partition was cut. No further
  message of it starts, and the listeners finish (*ending*, *returning*, *restarting*). So a listener that takes longer
  than a rebalance keeps the lock, and no other member starts the queue before the listener has returned or the lease
  has expired.
* When the run is drained, its lock is released. A lock that was lost needs its release, too: the group-log thread
  claims no queue again that still has a listener.
* After a cut the run starts again at the first message that remains, under the same lock.
* A granted lock is always released again, exactly once.
* A stop that names a former lease is late, not wrong, and is ignored.

Not handled here: offsets, messages, and whether a lease has expired (`Lease.holds`).
"""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, Generic, TypeVar

from rocketshim.core.lease import Lease
from rocketshim.core.queue_lock_actions import QueueStarted

__all__ = [
    "TRANSITIONS",
    "AssignedPartition",
    "EndRun",
    "OrderlyAssignment",
    "PartitionAction",
    "PartitionEvent",
    "PartitionState",
    "PauseReading",
    "ReleaseLock",
]


class PartitionState(Enum):
    """The state of a partition in this consumer."""

    UNASSIGNED = auto()
    """It belongs to another member, or to nobody."""
    WANTED = auto()
    """It is assigned and paused: its lock is not granted yet."""
    STARTING = auto()
    """Its lock is granted; its start offset is not known or not committed yet."""
    RUNNING = auto()
    """It is consumed."""
    RESTARTING = auto()
    """Its log was cut. When the listeners have returned, it starts again at the first message that remains."""
    ENDING = auto()
    """It was revoked; a listener still has messages of it."""
    RETURNING = auto()
    """It is assigned, but its run has ended, and a listener still has messages of it."""


class PartitionEvent(Enum):
    """What happens to a partition."""

    ASSIGN = auto()
    """Kafka's group, or this member's allocation, gives it to this consumer."""
    REVOKE = auto()
    """It is taken away, or the consumer closes."""
    GRANT = auto()
    """The group's log grants the lock of its queue."""
    STOP = auto()
    """The lock is lost, or the log has seen that the queue was not wanted."""
    START = auto()
    """Its start offset is committed, and reading begins."""
    CUT = auto()
    """Messages were fetched that lie before those that were fetched already."""
    DRAIN = auto()
    """No listener has a message of its run, and no dead letter of it is in flight."""


class _Act(Enum):
    END = auto()
    PAUSE = auto()
    RELEASE = auto()


_S, _E, _A = PartitionState, PartitionEvent, _Act

TRANSITIONS: Final[dict[tuple[PartitionState, PartitionEvent], tuple[PartitionState, tuple[_Act, ...]]]] = {
    (_S.UNASSIGNED, _E.ASSIGN): (_S.WANTED, ()),
    (_S.UNASSIGNED, _E.REVOKE): (_S.UNASSIGNED, ()),
    (_S.UNASSIGNED, _E.GRANT): (_S.UNASSIGNED, (_A.RELEASE,)),
    (_S.WANTED, _E.GRANT): (_S.STARTING, ()),
    (_S.WANTED, _E.REVOKE): (_S.UNASSIGNED, ()),
    (_S.STARTING, _E.START): (_S.RUNNING, ()),
    (_S.STARTING, _E.STOP): (_S.WANTED, (_A.RELEASE,)),
    (_S.STARTING, _E.REVOKE): (_S.UNASSIGNED, (_A.RELEASE,)),
    (_S.RUNNING, _E.CUT): (_S.RESTARTING, (_A.END, _A.PAUSE)),
    (_S.RUNNING, _E.STOP): (_S.RETURNING, (_A.END, _A.PAUSE)),
    (_S.RUNNING, _E.REVOKE): (_S.ENDING, (_A.END,)),
    (_S.RESTARTING, _E.START): (_S.RUNNING, ()),
    (_S.RESTARTING, _E.STOP): (_S.RETURNING, ()),
    (_S.RESTARTING, _E.REVOKE): (_S.ENDING, ()),
    (_S.ENDING, _E.DRAIN): (_S.UNASSIGNED, (_A.RELEASE,)),
    (_S.ENDING, _E.ASSIGN): (_S.RETURNING, ()),
    (_S.ENDING, _E.STOP): (_S.ENDING, ()),
    (_S.ENDING, _E.REVOKE): (_S.ENDING, ()),
    (_S.RETURNING, _E.DRAIN): (_S.WANTED, (_A.RELEASE,)),
    (_S.RETURNING, _E.STOP): (_S.RETURNING, ()),
    (_S.RETURNING, _E.REVOKE): (_S.ENDING, ()),
}
"""The next state and the actions; a missing pair cannot happen or is an error of the caller."""

_UNWANTED: Final = frozenset({_S.UNASSIGNED, _S.ENDING})
_UNDER_LOCK: Final = frozenset({_S.STARTING, _S.RUNNING, _S.RESTARTING})
_DRAINING: Final = frozenset({_S.RESTARTING, _S.ENDING, _S.RETURNING})

KeyT = TypeVar("KeyT", bound=Hashable)
RunT = TypeVar("RunT")


@dataclass(frozen=True, slots=True)
class EndRun(Generic[RunT]):
    """Start no further message of this run."""

    run: RunT


@dataclass(frozen=True, slots=True)
class PauseReading(Generic[KeyT]):
    """Read nothing of this partition until its next start."""

    key: KeyT


@dataclass(frozen=True, slots=True)
class ReleaseLock(Generic[RunT]):
    """Release a lock.

    Attributes:
        started: the grant of the lock, with the position and the counts of the last owner.
        run: the drained run; its position and counts replace those. None: no run was started.
    """

    started: QueueStarted
    run: RunT | None


PartitionAction = EndRun[RunT] | PauseReading[KeyT] | ReleaseLock[RunT]


@dataclass(slots=True, eq=False)
class AssignedPartition(Generic[KeyT, RunT]):
    """A partition that is assigned, or that still has a lock.

    Attributes:
        key: the partition.
        state: its state.
        started: the grant of its lock, from the grant to the release; None: it has no lock.
        run: the run, from its start until it is drained; None: there is none.
    """

    key: KeyT
    state: PartitionState = PartitionState.UNASSIGNED
    started: QueueStarted | None = None
    run: RunT | None = None


class OrderlyAssignment(Generic[KeyT, RunT]):
    """The partitions of one orderly consumer: events in, actions out.

    Every method raises ValueError if the event cannot happen in the state of the partition; then nothing has changed.

    Attributes:
        lost_count: how often a lock was lost while the consumer used it.

    Thread-safety: none; the poll thread's.
    """

    def __init__(self) -> None:
        self.lost_count = 0
        self._partitions: dict[KeyT, AssignedPartition[KeyT, RunT]] = {}

    def find(self, key: KeyT) -> AssignedPartition[KeyT, RunT]:
        """Return a partition; one that is not known is unassigned."""
        return self._partitions.get(key) or AssignedPartition(key)

    @property
    def wanted(self) -> list[KeyT]:
        """The partitions whose locks this consumer wants."""
        return [key for key, each in self._partitions.items() if each.state not in _UNWANTED]

    @property
    def starting(self) -> list[AssignedPartition[KeyT, RunT]]:
        """The partitions that wait for their start offset."""
        return [each for each in self._partitions.values() if each.state is _S.STARTING]

    @property
    def draining(self) -> list[AssignedPartition[KeyT, RunT]]:
        """The partitions whose run has ended and is not known to be drained."""
        return [each for each in self._partitions.values() if each.state in _DRAINING]

    def assign(self, keys: Iterable[KeyT]) -> None:
        """Note that these partitions were assigned to this consumer."""
        for key in keys:
            self._happened(self.find(key), _E.ASSIGN)

    def revoke(self, keys: Iterable[KeyT]) -> list[PartitionAction[RunT, KeyT]]:
        """Note that these partitions are no longer ours."""
        return [action for key in keys for action in self._happened(self.find(key), _E.REVOKE)]

    def grant(self, key: KeyT, started: QueueStarted) -> list[PartitionAction[RunT, KeyT]]:
        """Note that the log has granted the lock of a partition's queue."""
        return self._happened(self.find(key), _E.GRANT, started)

    def stop(self, key: KeyT, lease: Lease) -> list[PartitionAction[RunT, KeyT]]:
        """Note that a lock was lost, or that the log has seen that the queue was not wanted."""
        partition = self.find(key)
        if partition.started is None or partition.started.lease is not lease:
            return []
        self.lost_count += partition.state in _UNDER_LOCK
        return self._happened(partition, _E.STOP)

    def start(self, key: KeyT, run: RunT) -> None:
        """Note that a partition is read from its start offset on, or again after a cut."""
        partition = self.find(key)
        self._happened(partition, _E.START)
        partition.run = run

    def cut(self, key: KeyT) -> list[PartitionAction[RunT, KeyT]]:
        """Note that the log of a partition was cut."""
        return self._happened(self.find(key), _E.CUT)

    def drain(self, key: KeyT) -> list[PartitionAction[RunT, KeyT]]:
        """Note that a run that has ended is drained."""
        return self._happened(self.find(key), _E.DRAIN)

    def _happened(
        self, partition: AssignedPartition[KeyT, RunT], event: PartitionEvent, started: QueueStarted | None = None
    ) -> list[PartitionAction[RunT, KeyT]]:
        step = TRANSITIONS.get((partition.state, event))
        if step is None:
            raise ValueError(f"{event.name} cannot happen to {partition.key}, which is {partition.state.name}")
        partition.state, actions = step
        partition.started = started or partition.started
        performed = [self._action(partition, action) for action in actions]
        if partition.state is _S.UNASSIGNED:
            self._partitions.pop(partition.key, None)
        else:
            self._partitions[partition.key] = partition
        return performed

    @staticmethod
    def _action(partition: AssignedPartition[KeyT, RunT], action: _Act) -> PartitionAction[RunT, KeyT]:
        run, started = partition.run, partition.started
        if action is _A.END and run is not None:
            return EndRun(run)
        if action is _A.RELEASE and started is not None:
            partition.run = partition.started = None
            return ReleaseLock(started, run)
        return PauseReading(partition.key)
