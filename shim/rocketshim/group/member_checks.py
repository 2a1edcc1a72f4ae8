"""Check in the group-log thread that the members fit together (allocation of queues, length of leases, client ids).

Name those for whose locks this member waits.
"""

from typing import TYPE_CHECKING, Final

from rocketshim.core.group_log import GroupLog
from rocketshim.core.lease_rules import Owner
from rocketshim.core.queue_lock import QueueLockHolder
from rocketshim.core.timer import Timer
from rocketshim.errors import ConsumerError
from rocketshim.logs import safe_logger
from rocketshim_topics.group_log import GroupRecord, MemberRecord

if TYPE_CHECKING:
    from rocketshim_topics.message_queue import MessageQueue

__all__ = ["LockWatch", "MemberChecks"]

_LOG = safe_logger("rocketshim.group")
_CONSUMER_LOG = safe_logger("rocketshim.consumer")
_BY_KAFKA: Final = "the group protocol of Kafka"
_LOCK_PATIENCE_MS: Final = 5_000
_LOOK_MS: Final = 1_000
_MAX_LOGGED: Final = 100
_OWNED: Final = (
    "an owner that runs releases a queue when its listener call there returns. One that has ended without stop() keeps "
    "it until its lease ends (lock_lease_ms, 60 s by default), or until `rocketshim group release --owner-is-gone`"
)
_UNOWNED: Final = (
    "the group's log, as far as it was read, names no owner. This member claims the queues when it has read the log to "
    "its end, and, after the log was lost, one lease later"
)


class MemberChecks:
    """Compares the other members with this one; logs each difference once for each member.

    Args:
        owner: this member.
        strategy: name of its allocation strategy; None: Kafka's group protocol allocates the queues.
        lease_ms: the length of its leases.
    """

    def __init__(self, owner: Owner, strategy: str | None, lease_ms: int) -> None:
        self._owner = owner
        self._strategy = strategy
        self._lease_ms = lease_ms
        self._other_leases: set[Owner] = set()
        self._other_strategies: set[Owner] = set()
        self._namesakes: set[Owner] = set()
        self._has_joined = False

    def check_strategies(self, log: GroupLog) -> None:
        """Check how the live members allocate queues. Two strategies are unfair, but safe: they are logged.

        Raises:
            ConsumerError: the first member allocates by Kafka's protocol and this one does not, or the reverse.
        """
        conflict = log.conflicting_member(self._owner, self._strategy)
        if conflict is None:
            return
        if (conflict.strategy is None) != (self._strategy is None):
            raise ConsumerError(
                f"{conflict.owner.client_id} was first in this group and allocates its queues by "
                f"{conflict.strategy or _BY_KAFKA}, this member by {self._strategy or _BY_KAFKA}: configure the same "
                "in the whole group"
            )
        if conflict.owner not in self._other_strategies:
            self._other_strategies.add(conflict.owner)
            _LOG.error(
                "group.strategies-differ",
                extra={"client_id": conflict.owner.client_id, "theirs": conflict.strategy, "mine": self._strategy},
            )

    def check_lease(self, record: GroupRecord) -> None:
        """Log a lease of another length: such leases are safe, except for the wait after the log was lost."""
        if record.lease_ms == self._lease_ms:
            return
        owner = Owner(record.client_id, record.incarnation)
        if owner not in self._other_leases:
            self._other_leases.add(owner)
            _LOG.warning(
                "group.leases-differ",
                extra={"client_id": owner.client_id, "theirs_ms": record.lease_ms, "mine_ms": self._lease_ms},
            )

    def check_client_id(self, record: GroupRecord) -> None:
        """Log another member with this member's client id. Shares go by client id, so one of the two gets no queue.

        Only a heartbeat after our own first one counts: before, it may be from this member's killed predecessor.
        """
        if self._strategy is None or not isinstance(record, MemberRecord) or record.client_id != self._owner.client_id:
            return
        owner = Owner(record.client_id, record.incarnation)
        if owner == self._owner:
            self._has_joined = True
        elif self._has_joined and owner not in self._namesakes:
            self._namesakes.add(owner)
            _LOG.error("group.client-id-shared", extra={"client_id": owner.client_id})


class LockWatch:
    """Logs which queues wait for their locks, and for whom: after 5 s, and then every two leases.

    Args:
        group_log: physical name of the group's log.
        lease_ms: the length of this member's leases.
    """

    def __init__(self, group_log: str, lease_ms: int) -> None:
        self._group_log = group_log
        self._again_ms = 2 * lease_ms
        self._look = Timer(_LOOK_MS)
        self._waits: dict[MessageQueue, tuple[int, int]] = {}  # since when, and when it is to be logged

    def look(self, holder: QueueLockHolder, log: GroupLog, now_ms: int) -> None:
        """Log the queues that wait for too long, in one line.

        Args:
            holder: knows the queues whose locks this member wants and has not.
            log: names their owners.
            now_ms: monotonic time in ms.
        """
        if not self._look.is_due(now_ms):
            return
        self._waits = {queue: self._waits.get(queue, (now_ms, now_ms + _LOCK_PATIENCE_MS)) for queue in holder.awaited}
        late = sorted(queue for queue, (_, due_ms) in self._waits.items() if now_ms >= due_ms)
        if not late:
            return
        waited_ms = max(now_ms - self._waits[queue][0] for queue in late)
        self._waits.update({queue: (self._waits[queue][0], now_ms + self._again_ms) for queue in late})
        left_ms: dict[str, int] = {}
        for lock in map(log.lock, late):
            if lock.owner is not None:
                name = f"{lock.owner.client_id} ({lock.owner.incarnation})"
                left_ms[name] = max(left_ms.get(name, 0), lock.lease_left_ms)
        facts = {
            "group_log": self._group_log,
            "partitions": [f"{queue.topic}/{queue.queue_id}" for queue in late[:_MAX_LOGGED]],
            "count": len(late),
            "waited_s": waited_ms // 1_000,
            "owners": sorted(left_ms),
            "lease_left_s": max(left_ms.values(), default=0) // 1_000,
            "hint": _OWNED if left_ms else _UNOWNED,
        }
        _CONSUMER_LOG.warning("consumer.lock-awaited", extra=facts)
