"""Who is a member and who owns which queue: the fold over a group's log. `rocketshim.locks` has the rules.

A member is alive from a `member` record to one lease after the last one, or until `leave`. Membership decides how
queues are shared out, never who may consume.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Final, Literal, assert_never

from rocketshim.locks.lease import LOG_TIME_STEP_MAX_MS, ReconsumeCounts
from rocketshim_topics.group_log import (
    LEASE_MAX_MS,
    ClaimRecord,
    GroupRecord,
    LeaveRecord,
    MemberRecord,
    ReleaseRecord,
    RenewRecord,
)
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["Folded", "GroupLog", "LeaseEffect", "LeaseOutcome", "Member", "Owner", "QueueLock"]

_NEVER_MS: Final = 2**62


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """One run of one client."""

    client_id: str
    incarnation: str


class LeaseOutcome(Enum):
    """The effect of a record on one of its queues."""

    GRANTED = auto()
    """The claim made its writer the owner, with a new token."""
    RENEWED = auto()
    """The lease starts again at this record."""
    RELEASED = auto()
    """The queue is free."""
    REFUSED = auto()
    """The claim had no effect: another owner's lease is still valid, or nothing is granted yet."""
    VOID = auto()
    """No effect: not the current token, the lease had expired, or the record was written for another base."""
    UNKNOWN = auto()
    """This fold does not know yet. Its reader must treat this as a refusal."""


@dataclass(frozen=True, slots=True)
class QueueLock:
    """The state of one queue after the last record."""

    queue: MessageQueue
    known: bool  # whether the fold knows the state; if not, `owner` is the likely one and nothing is granted
    owner: Owner | None  # None: free, or its lease has expired
    token: int | None  # of the owner, or of the last one; None: none seen
    lease_left_ms: int  # in log time; 0 without an owner
    next_offset: int | None  # from which a new owner continues; None: no owner has reported one
    reconsume_counts: ReconsumeCounts


@dataclass(frozen=True, slots=True)
class LeaseEffect:
    """The effect of a record on one queue."""

    queue: MessageQueue
    outcome: LeaseOutcome
    token: int | None  # that the claim made, or that the renewal or release names; None for a claim that made none
    next_offset: int | None  # the queue's value now, as the next one
    reconsume_counts: ReconsumeCounts
    position_token: int  # of the owner that reported `next_offset`; -1: nobody has


@dataclass(frozen=True, slots=True)
class Folded:
    """The effect of a record.

    `has_restarted`: the fold lost what it knew (gap, unknown version) or all locks ended (higher base). Every owner of
    a queue by this log must stop.
    """

    offset: int
    owner: Owner | None  # its writer; None: the record was void or not readable
    seq: int | None  # the writer's number of the record; None in the same cases
    effects: tuple[LeaseEffect, ...]  # one per queue that it names, in its order
    has_restarted: bool
    members_changed: bool = False  # one joined, left or expired, or changed how it shares out queues


@dataclass(frozen=True, slots=True)
class Member:
    """A member that is alive in log time."""

    owner: Owner
    strategy: str | None  # name of its allocation strategy; None: Kafka's group protocol assigns its queues
    since_offset: int  # of its first heartbeat since it was last absent, as far back as this fold reaches
    end_ms: int  # log time at which it counts as gone


@dataclass(frozen=True, slots=True)
class LeaseEvent:
    """A record as it affects one queue. For a claim, `token` is the one it would make, `confirmed_offset` is None."""

    kind: Literal["claim", "renew", "release"]
    offset: int
    log_ms: int
    owner: Owner
    lease_ms: int
    token: int
    confirmed_offset: int | None = None
    next_offset: int | None = None
    reconsume_counts: ReconsumeCounts = ()

    @property
    def may_hold_until_ms(self) -> int:
        """Log time until which this record may have given a lease, by this record alone."""
        return self.log_ms if self.kind == "release" else self.log_ms + self.lease_ms


class FoldedQueue:
    """The state of one queue. `unevaluated` is None while the fold knows the state, else the records read so far.

    `anchor` and `mark_expired` make it known: a record confirms an earlier one, or all possible leases have expired.
    """

    __slots__ = ("lease_end_ms", "next_offset", "owner", "position_token", "reconsume_counts", "token", "unevaluated")

    def __init__(self, *, known: bool) -> None:
        self.owner: Owner | None = None
        self.token: int | None = None
        self.lease_end_ms = 0
        self.next_offset: int | None = None
        self.position_token = -1  # of the owner that reported `next_offset`
        self.reconsume_counts: ReconsumeCounts = ()
        self.unevaluated: list[LeaseEvent] | None = None if known else []

    def owner_at(self, log_ms: int) -> Owner | None:
        """Return the owner, or None if its lease has expired by then."""
        return self.owner if log_ms < self.lease_end_ms else None

    def apply(self, event: LeaseEvent) -> LeaseOutcome:
        """Apply the ordinary rules to a queue whose state is known."""
        owner = self.owner_at(event.log_ms)
        if event.kind == "claim":
            if owner is not None and owner != event.owner:
                return LeaseOutcome.REFUSED
            self.owner, self.token = event.owner, event.token
            self.lease_end_ms = event.log_ms + event.lease_ms
            return LeaseOutcome.GRANTED
        if owner != event.owner or self.token != event.token:
            return LeaseOutcome.VOID
        self.note_progress(event)
        if event.kind == "renew":
            self.lease_end_ms = event.log_ms + event.lease_ms
            return LeaseOutcome.RENEWED
        self.owner, self.lease_end_ms = None, event.log_ms
        return LeaseOutcome.RELEASED

    def note_progress(self, event: LeaseEvent) -> None:
        """Keep what a renewal or release reports for the next owner; a position of None reports nothing new."""
        if event.next_offset is not None:
            self.next_offset, self.position_token = event.next_offset, event.token
        self.reconsume_counts = event.reconsume_counts

    def anchor(self, event: LeaseEvent) -> bool:
        """Return whether `event` confirms a record read before; if so, the state is known from that record on."""
        unevaluated = self.unevaluated or []
        index = next((i for i, e in enumerate(unevaluated) if e.offset == event.confirmed_offset), None)
        if index is None:
            return False
        confirmed = unevaluated[index]
        if confirmed.kind == "release" or (confirmed.owner, confirmed.token) != (event.owner, event.token):
            return False
        self.guess_progress(unevaluated[: index + 1])
        self.owner, self.token, self.lease_end_ms = confirmed.owner, confirmed.token, confirmed.may_hold_until_ms
        self.unevaluated = None
        for later in unevaluated[index + 1 :]:
            self.apply(later)
        return True

    def mark_expired(self) -> None:
        """Free the queue: every lease that may have been granted has expired."""
        unevaluated = self.unevaluated or []
        self.guess_progress(unevaluated)
        self.token = max((e.token for e in unevaluated), default=self.token)
        self.unevaluated = None

    def guess_progress(self, events: Iterable[LeaseEvent]) -> None:
        """Take position and counts from the renewal or release with the highest token.

        That record may not have taken effect, but its writer had certainly finished everything before that position.
        """
        best: LeaseEvent | None = None
        for event in events:
            if event.kind != "claim" and (best is None or event.token >= best.token):
                best = event
        if best is not None:
            self.note_progress(best)


class GroupLog:
    """State of a group's log up to an offset.

    `start_offset` is the log's first offset when reading began (its low watermark). 0: the fold knows everything.

    Source: `RebalanceLockManager` of RocketMQ (a map in the broker's memory), turned into a fold; log time, tokens and
    the rules for truncated logs are ours.
    """

    __slots__ = (
        "_complete", "_first_append_ms", "_granting_from_ms", "_last_append_ms", "_longest_lease_ms", "_members",
        "_members_until_ms", "_queues", "_start_log_ms", "base", "log_ms", "next_offset",
    )  # fmt: skip

    def __init__(self, start_offset: int) -> None:
        if start_offset < 0:
            raise ValueError(f"start_offset={start_offset}: a log begins at 0 or later")
        self.next_offset = start_offset  # of the next record to fold
        self._complete = start_offset == 0
        self.base: int | None = None  # that claims must carry; while it is not known, none may be written
        self._first_append_ms: int | None = None
        self._last_append_ms: int | None = None
        self.log_ms = 0  # log time since this fold began; only differences have a meaning
        self._start_log_ms = 0
        self._longest_lease_ms = 0
        self._granting_from_ms = 0
        self._queues: dict[MessageQueue, FoldedQueue] = {}
        self._members: dict[Owner, Member] = {}
        self._members_until_ms = _NEVER_MS  # log time before which no member expires

    # --- records in ---------------------------------------------------------------------------------------------

    def fold(self, offset: int, append_ms: int, record: GroupRecord) -> Folded:
        """Fold the next record. An offset above `next_offset` means that records are missing.

        `append_ms` is the record's LogAppendTime. Raise ValueError, and change nothing, if the offset was folded before
        or the append time is negative.

        Decides: Who owns a queue's lock? What a member may rely on decides `locks.holder.QueueLockHolder`.
        """
        restarted = self._advance(offset, append_ms, record.base)
        if record.base is not None and self.base is not None and record.base > self.base:
            self._raise_base(record.base, record.lease_ms)
            restarted = True
        self._longest_lease_ms = max(self._longest_lease_ms, record.lease_ms)
        self._infer_base()
        owner = Owner(record.client_id, record.incarnation)
        members_changed = self._forget_members()
        effects: tuple[LeaseEffect, ...] = ()
        match record:
            case ClaimRecord() | RenewRecord() | ReleaseRecord():
                void = record.base != self.base
                effects = tuple(self._evaluate(event, queue, void) for queue, event in self._events(record, owner))
            case MemberRecord():
                members_changed |= self._keep_alive(
                    Member(owner, record.strategy, offset, self.log_ms + record.lease_ms)
                )
            case LeaveRecord():
                members_changed |= self._members.pop(owner, None) is not None
            case _:
                assert_never(record)
        return Folded(offset, owner, record.seq, effects, restarted, members_changed)

    def skip(self, offset: int, append_ms: int) -> Folded:
        """Skip a malformed record, or a person's command: it is void, but it moves log time."""
        restarted = self._advance(offset, append_ms, None)
        self._infer_base()
        return Folded(offset, None, None, (), restarted, self._forget_members())

    def unreadable(self, offset: int, append_ms: int) -> Folded:
        """Skip a record of an unknown version: the owners are no longer known.

        The fold starts again after it and grants nothing before one lease has passed.
        """
        self._advance(offset, append_ms, None)
        self._infer_base()
        self._begin()
        return Folded(offset, None, None, (), has_restarted=True, members_changed=self._forget_members())

    def why_lost(self, low_offset: int, high_offset: int) -> str | None:
        """Return why a log with these bounds does not continue what was folded; None: it does.

        It is shorter than that, so it was created again; or records that were not folded are gone. A log that was
        created again *and* has grown past our position is detected by its base instead.
        """
        if low_offset <= self.next_offset <= high_offset:
            return None
        why = "recreated" if high_offset < self.next_offset else "truncated"
        return f"{why}: it has {low_offset} to {high_offset}, the next to read is {self.next_offset}"

    # --- state out ----------------------------------------------------------------------------------------------

    @property
    def token_floor(self) -> int | None:
        """A number above every token given out so far; None while the base is not known.

        When a member has seen the log disappear, its first record carries this number as its base.
        """
        return None if self.base is None else self.base + self.next_offset

    @property
    def members(self) -> tuple[Member, ...]:
        """Members alive after the last record, sorted by client id and incarnation."""
        return tuple(each for _, each in sorted(self._members.items()))

    @property
    def client_ids(self) -> tuple[str, ...]:
        """Distinct ids of the members alive, sorted."""
        return tuple(sorted({member.owner.client_id for member in self.members}))

    def conflicting_member(self, owner: Owner, strategy: str | None) -> Member | None:
        """Return a live member that shares out queues another way and joined earlier.

        All members of a group must share out queues the same way; the later member must yield. If one of the two
        strategies is None (Kafka's group protocol), the members cannot work together at all. Two different strategies
        only give an unfair distribution.
        """
        mine = self._members.get(owner)
        before = self.next_offset if mine is None else mine.since_offset
        others = [m for m in self.members if m.strategy != strategy and m.since_offset < before]
        return min(others, key=lambda m: m.since_offset, default=None)

    @property
    def locks(self) -> tuple[QueueLock, ...]:
        """State of every queue that the log has named since the fold began, sorted by queue."""
        return tuple(self.lock(queue) for queue in sorted(self._queues))

    def lock(self, queue: MessageQueue) -> QueueLock:
        """Return the state of one queue after the last record, also of a queue that was never named."""
        state = self._queues.get(queue) or FoldedQueue(known=self._complete)
        if state.unevaluated is None:
            owner = state.owner_at(self.log_ms)
            return QueueLock(
                queue=queue,
                known=True,
                owner=owner,
                token=state.token,
                lease_left_ms=state.lease_end_ms - self.log_ms if owner else 0,
                next_offset=state.next_offset,
                reconsume_counts=state.reconsume_counts,
            )
        known = self._free_from_ms(state) <= self.log_ms
        running = [e for e in state.unevaluated if e.kind == "renew" and e.may_hold_until_ms > self.log_ms]
        likely = max(running, key=lambda e: (e.token, e.offset), default=None)
        seen = FoldedQueue(known=False)
        seen.guess_progress(state.unevaluated)
        return QueueLock(
            queue=queue,
            known=known,
            owner=likely.owner if likely else None,
            token=max((e.token for e in state.unevaluated), default=None),
            lease_left_ms=likely.may_hold_until_ms - self.log_ms if likely else 0,
            next_offset=seen.next_offset,
            reconsume_counts=seen.reconsume_counts,
        )

    def claimable_in_ms(self, queue: MessageQueue, owner: Owner) -> int:
        """Return the log time that must pass before a claim of `owner` is granted, as far as is known now; 0: now."""
        state = self._queues.get(queue) or FoldedQueue(known=self._complete)
        free_from_ms = self._granting_from_ms
        if state.unevaluated is not None:
            free_from_ms = max(free_from_ms, self._free_from_ms(state))
        elif state.owner != owner:
            free_from_ms = max(free_from_ms, state.lease_end_ms)
        return max(0, free_from_ms - self.log_ms)

    def may_claim(self, read_to: int, lease_ms: int) -> bool:
        """Return whether a member that started with this fold, and whose log ended at `read_to` then, may claim at all.

        It may when the fold has read that far and knows the base, and the log either begins at offset 0 or spans one
        lease (the longest seen) of log time since its first record.
        """
        if self.next_offset < read_to or self.base is None:
            return False
        return self._complete or self.log_ms - self._start_log_ms >= max(lease_ms, self._longest_lease_ms)

    # --- inside -------------------------------------------------------------------------------------------------

    def _advance(self, offset: int, append_ms: int, carried_base: int | None) -> bool:
        """Move the position, log time and an unknown base. Return whether records were missing."""
        if offset < self.next_offset:
            raise ValueError(f"offset {offset} was folded before; the next one is {self.next_offset}")
        if append_ms < 0:
            raise ValueError(f"append_ms={append_ms}: the group log needs LogAppendTime")
        gap = offset > self.next_offset
        if self._last_append_ms is not None:
            self.log_ms += min(max(append_ms - self._last_append_ms, 0), LOG_TIME_STEP_MAX_MS)
        self._last_append_ms = append_ms
        if gap:
            self._begin()
        self.next_offset = offset + 1
        if self._first_append_ms is None:
            self._first_append_ms = append_ms
        if self.base is None:
            self.base = max(append_ms, carried_base or 0) if offset == 0 else carried_base
        return gap

    def _keep_alive(self, member: Member) -> bool:
        """Add a member, or keep it alive; return whether it is new or has changed its strategy."""
        known = self._members.get(member.owner)
        since_offset = known.since_offset if known else member.since_offset
        self._members[member.owner] = replace(member, since_offset=since_offset)
        self._members_until_ms = min(self._members_until_ms, member.end_ms)
        return known is None or known.strategy != member.strategy

    def _forget_members(self) -> bool:
        """Remove expired members; return whether any were removed. Scan only when one of them may have expired."""
        if self.log_ms < self._members_until_ms:
            return False
        before = len(self._members)
        self._members = {owner: each for owner, each in self._members.items() if each.end_ms > self.log_ms}
        self._members_until_ms = min((each.end_ms for each in self._members.values()), default=_NEVER_MS)
        return len(self._members) < before

    def _infer_base(self) -> None:
        """Use the first append time as the base if the fold has seen a lease's length of log time without one.

        This happens in a log whose beginning is missing and in which no record names a base.
        """
        if self.base is None and 0 < self._longest_lease_ms <= self.log_ms - self._start_log_ms:
            self.base = self._first_append_ms

    def _raise_base(self, base: int, lease_ms: int) -> None:
        """Adopt a higher base: all tokens given out so far become invalid."""
        if self._complete:
            self._queues.clear()
            self._granting_from_ms = self.log_ms + lease_ms
        else:
            self._begin()
        self.base = base

    def _begin(self) -> None:
        """Forget everything that a fold starting here would not know."""
        self._complete = False
        self._start_log_ms = self.log_ms
        self._granting_from_ms = 0
        self._queues.clear()

    def _free_from_ms(self, state: FoldedQueue) -> int:
        """Return the log time from which a queue whose state is not known is certainly free."""
        before_ms = self._start_log_ms + (self._longest_lease_ms or LEASE_MAX_MS)
        return max([before_ms, *(event.may_hold_until_ms for event in state.unevaluated or ())])

    def _evaluate(self, event: LeaseEvent, queue: MessageQueue, void: bool) -> LeaseEffect:
        state = self._queues.get(queue)
        if void:
            seen = state or FoldedQueue(known=True)
            token = None if event.kind == "claim" else event.token
            return _effect(queue, LeaseOutcome.VOID, token, seen)
        if state is None:
            state = self._queues[queue] = FoldedQueue(known=self._complete)
        if state.unevaluated is not None and self._free_from_ms(state) <= event.log_ms:
            state.mark_expired()
        if state.unevaluated is not None and not state.anchor(event):
            state.unevaluated.append(event)
            outcome = LeaseOutcome.UNKNOWN
        elif event.kind == "claim" and event.log_ms < self._granting_from_ms:
            outcome = LeaseOutcome.REFUSED
        else:
            outcome = state.apply(event)
        token = event.token if event.kind != "claim" or outcome is LeaseOutcome.GRANTED else None
        return _effect(queue, outcome, token, state)

    def _events(
        self, record: ClaimRecord | RenewRecord | ReleaseRecord, owner: Owner
    ) -> Iterable[tuple[MessageQueue, LeaseEvent]]:
        offset = self.next_offset - 1
        if isinstance(record, ClaimRecord):
            token = record.base + offset
            claim = LeaseEvent("claim", offset, self.log_ms, owner, record.lease_ms, token)
            for claimed in record.queues:
                yield claimed.queue, claim
            return
        for entry in record.queues:
            yield (
                entry.queue,
                LeaseEvent(
                    kind=record.kind,
                    offset=offset,
                    log_ms=self.log_ms,
                    owner=owner,
                    lease_ms=record.lease_ms,
                    token=entry.token,
                    confirmed_offset=entry.confirmed_offset,
                    next_offset=entry.next_offset,
                    reconsume_counts=entry.reconsume_counts,
                ),
            )


def _effect(queue: MessageQueue, outcome: LeaseOutcome, token: int | None, state: FoldedQueue) -> LeaseEffect:
    return LeaseEffect(queue, outcome, token, state.next_offset, state.reconsume_counts, state.position_token)
