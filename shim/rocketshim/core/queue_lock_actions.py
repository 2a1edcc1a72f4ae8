"""The actions that `queue_lock` asks its shell to perform, and their reasons.

Append records immediately, in the order of the actions, with one idempotent producer: an older record of a member never
arrives after a newer one.
"""

from dataclasses import dataclass
from enum import Enum, auto

from rocketshim.core.lease import Lease, ReconsumeCounts
from rocketshim_topics.group_log import ClaimRecord, LeaveRecord, MemberRecord, ReleaseRecord, RenewRecord

__all__ = [
    "QueueLockAction",
    "QueueStarted",
    "QueueStopped",
    "SendClaim",
    "SendLeave",
    "SendMember",
    "SendRelease",
    "SendRenew",
    "StopReason",
]


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
class SendClaim:
    """Append a claim. Call `send_failed` if that certainly failed."""

    record: ClaimRecord


@dataclass(frozen=True, slots=True)
class SendRenew:
    """Append a renewal."""

    record: RenewRecord


@dataclass(frozen=True, slots=True)
class SendRelease:
    """Append a release."""

    record: ReleaseRecord


@dataclass(frozen=True, slots=True)
class SendMember:
    """Append a heartbeat."""

    record: MemberRecord


@dataclass(frozen=True, slots=True)
class SendLeave:
    """Append the `leave` record; nothing follows it."""

    record: LeaveRecord


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
        a lower start (it was created again before that owner).

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


QueueLockAction = SendClaim | SendRenew | SendRelease | SendMember | SendLeave | QueueStarted | QueueStopped
