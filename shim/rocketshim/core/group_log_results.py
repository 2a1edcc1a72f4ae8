"""What a fold of a group's log returns: the effect of a record, and the state of a queue."""

from dataclasses import dataclass

from rocketshim.core.lease_rules import LeaseOutcome, Owner
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["Folded", "Judgement", "QueueLock"]


@dataclass(frozen=True, slots=True)
class QueueLock:
    """The state of one queue after the last record.

    Attributes:
        queue: the queue.
        known: whether the fold knows the state; if not, `owner` is the likely one and nothing is granted.
        owner: current owner; None: free, or its lease has expired.
        token: token of the owner, or of the last one; None: none seen.
        lease_left_ms: log time until the lease expires; 0 without an owner.
        next_offset: position from which a new owner continues; None: no owner has reported one.
        reconsume_counts: (offset, failed attempts) of messages that are not finished, ascending.
    """

    queue: MessageQueue
    known: bool
    owner: Owner | None
    token: int | None
    lease_left_ms: int
    next_offset: int | None
    reconsume_counts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Judgement:
    """The effect of a record on one queue.

    Attributes:
        queue: the queue.
        outcome: the effect.
        token: token that the claim made, or that the renewal or release names; None for a claim that made none.
        next_offset: the queue's value now.
        reconsume_counts: the queue's value now.
        position_token: token of the owner that reported `next_offset`; -1: nobody has.
    """

    queue: MessageQueue
    outcome: LeaseOutcome
    token: int | None
    next_offset: int | None
    reconsume_counts: tuple[tuple[int, int], ...]
    position_token: int


@dataclass(frozen=True, slots=True)
class Folded:
    """The effect of a record.

    Attributes:
        offset: its offset.
        owner: its writer; None: the record was void or not readable.
        seq: the writer's number of the record; None in the same cases.
        judgements: one per queue that it names, in its order.
        began_anew: the fold lost what it knew (gap, unknown version) or all locks ended (higher base). Every owner of a
            queue by this log must stop.
        members_changed: a member joined, left or expired, or changed how it shares out queues.
    """

    offset: int
    owner: Owner | None
    seq: int | None
    judgements: tuple[Judgement, ...]
    began_anew: bool
    members_changed: bool = False
