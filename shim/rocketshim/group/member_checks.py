"""Check in the group-log thread that the members fit together: allocation of queues, length of leases, client ids."""

from typing import Final

from rocketshim.core.group_log import GroupLog
from rocketshim.core.lease_rules import Owner
from rocketshim.errors import ConsumerError
from rocketshim.logs import safe_logger
from rocketshim_topics.group_log import GroupRecord, MemberRecord

__all__ = ["MemberChecks"]

_LOG = safe_logger("rocketshim.group")
_BY_KAFKA: Final = "the group protocol of Kafka"


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
