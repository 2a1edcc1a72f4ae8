"""The actions that `queue_lock` asks its shell to perform, and their reasons.

Append records immediately, in the order of the actions, with one idempotent producer: an older record of a member never
arrives after a newer one. Call `send_failed` for one that certainly was not appended. Nothing follows a `LeaveRecord`.
"""

from dataclasses import dataclass
from enum import Enum, auto

from rocketshim.core.lease import Lease, ReconsumeCounts
from rocketshim_topics.group_log import GroupRecord

__all__ = ["QueueLockAction", "QueueStarted", "QueueStopped", "StopReason"]


class StopReason(Enum):
    """Why a queue is stopped."""

    UNWANTED = auto()
    """It is to be released: drain, commit while the lease is valid, then call `release`."""
    UNCONFIRMED = auto()
    """No renewal was confirmed in time: the belief has ended. Drain, but commit nothing."""
    LOST = auto()
    """By the log it is no longer ours. Drain, but commit nothing."""
    LOG_LOST = auto()
    """The log itself cannot be followed. Drain, but commit nothing."""


@dataclass(frozen=True, slots=True)
class QueueStarted:
    """This process has the lease of the queue: consume it.

    Attributes:
        lease: the lease.
        next_offset: offset from the log; `start_after` says when it counts. None: the log has no offset.
        reconsume_counts: failed attempts so far of messages that the last owner did not finish.
        position_token: token of the owner that reported `next_offset`.
    """

    lease: Lease
    next_offset: int | None
    reconsume_counts: ReconsumeCounts
    position_token: int = -1

    def start_after(self, committed: int, token: int | None) -> tuple[int, ReconsumeCounts]:
        """Return where the queue starts, and the failed attempts that count there.

        The log's position is newer than the commit if the same owner has made both, or a later one has reported it. It
        counts for nothing if the positions begin again: an operator or another program has made the commit (it has no
        token), or there is none (the topic was created again), or an owner after the one that reported it has committed
        a lower start (it was created again before that owner)
        (test_a_position_of_the_log_counts_unless_a_later_owner_or_an_operator_has_begun_lower).

        Args:
            committed: the committed offset.
            token: the token in the commit's metadata; None: it has none, or there is no commit.
        """
        known = committed if self.next_offset is None else self.next_offset
        if token is None or (known > committed and self.position_token < token):
            return committed, ()
        return max(committed, known), self.reconsume_counts


@dataclass(frozen=True, slots=True)
class QueueStopped:
    """Pass no further message of the queue to a listener, then call `release`.

    Attributes:
        lease: the lease that ends. It is still valid only if the reason is UNWANTED; then commit before the release.
        reason: why the queue stops.
    """

    lease: Lease
    reason: StopReason


QueueLockAction = GroupRecord | QueueStarted | QueueStopped
