"""The states of a partition in an orderly consumer: who may start it, what ends it, and what follows its end.

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

from rocketshim.locks.lease import Lease, QueueStarted

__all__ = [
    "TRANSITIONS",
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
_STABLE: Final = frozenset({_S.UNASSIGNED, _S.RUNNING})

KeyT = TypeVar("KeyT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class EndRun(Generic[KeyT]):
    """Start no further message of the partition's run, and keep the run until it is drained."""

    key: KeyT


@dataclass(frozen=True, slots=True)
class PauseReading(Generic[KeyT]):
    """Read nothing of the partition until its next start."""

    key: KeyT


@dataclass(frozen=True, slots=True)
class ReleaseLock(Generic[KeyT]):
    """Release the lock of the partition's queue.

    Attributes:
        key: the partition.
        started: the grant of the lock, with the position and the counts of the last owner. Those of the run that was
            ended replace them, if there was a run.
    """

    key: KeyT
    started: QueueStarted


PartitionAction = EndRun[KeyT] | PauseReading[KeyT] | ReleaseLock[KeyT]


@dataclass(slots=True, eq=False)
class _Partition(Generic[KeyT]):
    key: KeyT
    state: PartitionState = PartitionState.UNASSIGNED
    started: QueueStarted | None = None  # from the grant of the lock to its release


class OrderlyAssignment(Generic[KeyT]):
    """The partitions of one orderly consumer: events in, actions out.

    Every method that takes an event raises ValueError if it cannot happen in the state of the partition; then nothing
    has changed.

    Attributes:
        lost_count: how often a lock was lost while the consumer used it.

    Thread-safety: none; the poll thread's.
    """

    def __init__(self) -> None:
        self.lost_count = 0
        self._partitions: dict[KeyT, _Partition[KeyT]] = {}
        self._changing: dict[KeyT, _Partition[KeyT]] = {}  # those of them that do not run

    # --- state out --------------------------------------------------------------------------------------------------

    def state_of(self, key: KeyT) -> PartitionState:
        """Return the state of a partition; one that is not known is unassigned."""
        return self._find(key).state

    def lease_of(self, key: KeyT) -> Lease | None:
        """Return the lease under which a partition may be started, consumed and committed; None: it may not."""
        partition = self._find(key)
        started = partition.started if partition.state in _UNDER_LOCK else None
        return None if started is None else started.lease

    def started(self, key: KeyT) -> QueueStarted | None:
        """Return the grant of a partition's lock; None: it has no lock."""
        return self._find(key).started

    @property
    def wanted(self) -> list[KeyT]:
        """The partitions whose locks this consumer wants."""
        return [key for key, each in self._partitions.items() if each.state not in _UNWANTED]

    @property
    def waiting(self) -> list[KeyT]:
        """The partitions that wait for the locks of their queues."""
        return [key for key, each in self._changing.items() if each.state is _S.WANTED]

    @property
    def starting(self) -> list[KeyT]:
        """The partitions that wait for their start offset."""
        return [key for key, each in self._changing.items() if each.state is _S.STARTING]

    @property
    def draining(self) -> list[KeyT]:
        """The partitions whose run has ended and is not known to be drained."""
        return [key for key, each in self._changing.items() if each.state in _DRAINING]

    @property
    def is_changing(self) -> bool:
        """Whether a partition is assigned and does not run, or runs no more and is not drained."""
        return bool(self._changing)

    # --- events -----------------------------------------------------------------------------------------------------

    def assign(self, keys: Iterable[KeyT]) -> None:
        """Note that these partitions were assigned to this consumer."""
        for key in keys:
            self._happened(key, _E.ASSIGN)

    def revoke(self, keys: Iterable[KeyT]) -> list[PartitionAction[KeyT]]:
        """Note that these partitions are no longer ours."""
        return [action for key in keys for action in self._happened(key, _E.REVOKE)]

    def grant(self, key: KeyT, started: QueueStarted) -> list[PartitionAction[KeyT]]:
        """Note that the log has granted the lock of a partition's queue."""
        return self._happened(key, _E.GRANT, started)

    def stop(self, key: KeyT, lease: Lease) -> list[PartitionAction[KeyT]]:
        """Note that a lock was lost, or that the log has seen that the queue was not wanted."""
        partition = self._find(key)
        if partition.started is None or partition.started.lease is not lease:
            return []
        self.lost_count += partition.state in _UNDER_LOCK
        return self._happened(key, _E.STOP)

    def start(self, key: KeyT) -> None:
        """Note that a partition is read from its start offset on, or again after a cut."""
        self._happened(key, _E.START)

    def cut(self, key: KeyT) -> list[PartitionAction[KeyT]]:
        """Note that the log of a partition was cut."""
        return self._happened(key, _E.CUT)

    def drain(self, key: KeyT) -> list[PartitionAction[KeyT]]:
        """Note that a run that has ended is drained."""
        return self._happened(key, _E.DRAIN)

    def _find(self, key: KeyT) -> _Partition[KeyT]:
        return self._partitions.get(key) or _Partition(key)

    def _happened(
        self, key: KeyT, event: PartitionEvent, started: QueueStarted | None = None
    ) -> list[PartitionAction[KeyT]]:
        partition = self._find(key)
        step = TRANSITIONS.get((partition.state, event))
        if step is None:
            raise ValueError(f"{event.name} cannot happen to {key}, which is {partition.state.name}")
        partition.state, actions = step
        partition.started = started or partition.started
        performed = [self._action(partition, action) for action in actions]
        for partitions, is_in in (
            (self._partitions, partition.state is not _S.UNASSIGNED),
            (self._changing, partition.state not in _STABLE),
        ):
            if is_in:
                partitions[key] = partition
            else:
                partitions.pop(key, None)
        return performed

    @staticmethod
    def _action(partition: _Partition[KeyT], action: _Act) -> PartitionAction[KeyT]:
        match action:
            case _Act.END:
                return EndRun(partition.key)
            case _Act.PAUSE:
                return PauseReading(partition.key)
            case _Act.RELEASE:
                started, partition.started = partition.started, None
                if started is None:
                    raise ValueError(f"{partition.key} has no lock")
                return ReleaseLock(partition.key, started)
