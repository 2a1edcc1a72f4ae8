"""The actions that `queue_lock` asks its shell to perform, and their reasons.

Append records immediately, in the order of the actions, with one idempotent producer: an older record of a member never
arrives after a newer one.
"""

from dataclasses import dataclass
from enum import Enum, auto

from rocketshim_topics.group_log import ClaimRecord, LeaveRecord, MemberRecord, ReleaseRecord, RenewRecord
from rocketshim_topics.message_queue import MessageQueue

__all__ = [
    "QueueLockAction",
    "ReconsumeCounts",
    "SendClaim",
    "SendLeave",
    "SendMember",
    "SendRelease",
    "SendRenew",
    "Start",
    "Stop",
    "StopReason",
]

ReconsumeCounts = tuple[tuple[int, int], ...]
"""(offset, failed attempts) of messages that are not finished, ascending."""


class StopReason(Enum):
    """Why a queue is stopped."""

    UNWANTED = auto()
    """It is released: drain, commit, then call `committed`. You may commit while `token_of` returns a token."""
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
class Start:
    """Consume a queue.

    Attributes:
        queue: the queue.
        token: fencing token, for the listener's context.
        next_offset: position from the log; begin at the larger of it and the committed one. None: the committed one.
        reconsume_counts: failed attempts so far of messages that the last owner did not finish.
    """

    queue: MessageQueue
    token: int
    next_offset: int | None
    reconsume_counts: ReconsumeCounts


@dataclass(frozen=True, slots=True)
class Stop:
    """Hand out no more messages of the queue, and call `drained` when no listener has one."""

    queue: MessageQueue
    token: int
    reason: StopReason


QueueLockAction = SendClaim | SendRenew | SendRelease | SendMember | SendLeave | Start | Stop
