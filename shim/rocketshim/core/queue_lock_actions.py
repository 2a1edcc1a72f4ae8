"""What `queue_lock` asks its shell to do, and why.

Records are to be appended in the order in which the actions come, at once, by one idempotent producer: an older record
of a member never arrives after a newer one.
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
    """It is given back: drain, commit, then say `committed`. Commits are still allowed while `token_of` gives one."""
    UNCONFIRMED = auto()
    """No renewal was confirmed in time: the belief has ended. Drain; nothing may be committed."""
    LOST = auto()
    """The log says that it is not ours any more. Drain; nothing may be committed."""
    LOG_LOST = auto()
    """The log itself cannot be followed. Drain; nothing may be committed."""


@dataclass(frozen=True, slots=True)
class SendClaim:
    """Append a claim. Tell `send_failed` if that fails for certain."""

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
    """Append the goodbye; nothing follows it."""

    record: LeaveRecord


@dataclass(frozen=True, slots=True)
class Start:
    """Consume a queue.

    Attributes:
        queue: which.
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
    """Hand no message of the queue to a listener any more, and say `drained` when none holds one."""

    queue: MessageQueue
    token: int
    reason: StopReason


QueueLockAction = SendClaim | SendRenew | SendRelease | SendMember | SendLeave | Start | Stop
