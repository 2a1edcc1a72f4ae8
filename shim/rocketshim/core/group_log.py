"""Who is a member and who holds which queue: the fold over a group's log.

Every member reads the same log (one partition) and folds it record by record, so that all know the same members,
owners, leases and tokens at the same offset. Nothing else decides: no clock of a member, no acknowledgement.

**Log time** is a sum. Each record adds its append time minus the append time before it, clamped to 0 … 5 s, and is
judged after that. Only differences count, so folds that begin at different offsets agree; a leader's clock that steps
back adds nothing, one that steps forward at most 5 s per step.

**Locks.** An owner is a client id and an incarnation.

* A claim is granted if the queue is free, its lease has run out, or it is the owner's own. Each grant makes a new
  token, `base` + offset of the claim, and a lease of the length that the record says.
* A renewal or a release counts only with the current token and before the lease has run out. Both carry the next
  offset and the reconsume counts; these stay with the queue for its next owner.
* A lease that has run out has no owner, whoever asks.

**Base.** A log that begins at offset 0 has as its base the append time of that record, or what the record carries if
that is higher. Every later record repeats it. One that carries a lower base was written for a former log: what it
claims, renews or releases is void. One that carries a higher base says that tokens above ours have been given out: all
locks end, the base is raised, and nothing is granted until one lease has passed. So tokens of a queue only grow, also
when the topic is created again and a leader's clock has stepped back meanwhile.

**A fold that does not begin at offset 0** cannot know who held a queue before. It keeps what it reads of a queue
without judging it, until it *knows*, by one of two ways:

* a renewal or release names as `confirmed_offset` a record this fold has read. Its writer, who knew more, had seen that
  record granted or renewed; from there on the ordinary rules give the state exactly;
* every lease that may have been given, before the beginning or by a record read since, has run out: the queue is free.

An owner renews at least twice in a lease, so after one lease a fold knows the queues that are held, and later than
that only those for which a claim has not been confirmed yet. What a fold does not know it never grants, so folds
differ only in *not yet knowing*. (The simpler rule, to adopt any renewal with a higher token, lets a renewal that
arrives after its lease, read by a fold whose beginning lies behind that lease's end, hide the true owner.)

A gap in the offsets (retention was faster than the reader) and a record of an unknown version end what a fold knows;
it then begins anew, like one that starts there, and says so in `Folded.began_anew`: whoever holds a queue stops.

Members: alive from a `member` record to one lease after the last one, or until `leave`. Membership decides how queues
are shared out, never who may consume.

Not handled here: reading and writing the log, local clocks, and what an owner may believe (`queue_lock`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, assert_never

from rocketshim.core.lease_rules import LeaseEvent, LeaseOutcome, Owner, QueueLease
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

__all__ = [
    "LOG_TIME_STEP_MAX_MS",
    "Continuity",
    "Folded",
    "GroupLog",
    "Judgement",
    "LeaseOutcome",
    "Member",
    "Owner",
    "QueueLock",
]

LOG_TIME_STEP_MAX_MS: Final = 5_000
"""The most that one record adds to log time, in ms."""

_NEVER_MS: Final = 2**62


@dataclass(frozen=True, slots=True)
class Member:
    """A member that is alive in log time.

    Attributes:
        owner: who.
        strategy: name of its allocation strategy; None: Kafka's group protocol shares its queues out.
        since_offset: offset of the first heartbeat since it was last absent, as far as this fold goes back.
        lease_left_ms: log time until it counts as gone, above 0.
    """

    owner: Owner
    strategy: str | None
    since_offset: int
    lease_left_ms: int


@dataclass(frozen=True, slots=True)
class QueueLock:
    """State of one queue after the last record.

    Attributes:
        queue: which.
        known: whether the fold knows; if not, `owner` is the likely one and nothing is granted.
        owner: who holds it; None: free, or its lease has run out.
        token: token of the owner, or of the last one; None: none seen.
        lease_left_ms: log time until the lease runs out; 0 without an owner.
        next_offset: position from which a new owner goes on; None: nobody has said one.
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
    """What a record did to one queue.

    Attributes:
        queue: which.
        outcome: what.
        token: token that the claim made, or that the renewal or release names; None for a claim that made none.
        next_offset: as the queue has it now.
        reconsume_counts: likewise.
    """

    queue: MessageQueue
    outcome: LeaseOutcome
    token: int | None
    next_offset: int | None
    reconsume_counts: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Folded:
    """What a record did.

    Attributes:
        offset: its offset.
        owner: who wrote it; None: it was void or not readable.
        seq: the writer's number of it; None likewise.
        judgements: one per queue that it names, in its order.
        began_anew: the fold lost what it knew (gap, unknown version) or all locks ended (higher base): whoever holds a
            queue by this log stops.
        members_changed: somebody joined, left or ran out, or shares queues out another way than before.
    """

    offset: int
    owner: Owner | None
    seq: int | None
    judgements: tuple[Judgement, ...]
    began_anew: bool
    members_changed: bool = False


class Continuity(Enum):
    """How the log that lies there fits to what was folded."""

    CONTINUES = auto()
    """The next record to fold is still there, or still to come."""
    TRUNCATED = auto()
    """Records that were not folded are gone: stop holding, fold anew from the log's beginning."""
    RECREATED = auto()
    """It is shorter than what was folded: another log. Stop holding, fold anew, carry `token_floor` over."""


@dataclass(frozen=True, slots=True)
class _Membership:
    strategy: str | None
    since_offset: int
    end_ms: int


class GroupLog:
    """State of a group's log up to an offset; a pure fold.

    Args:
        start_offset: the log's first offset when reading began (its low watermark). 0: the fold knows everything.

    Thread-safety: none; one owner thread.

    Source: `RebalanceLockManager` of RocketMQ (a map in the broker's memory), turned into a fold; log time, tokens and
    the rules for truncated logs are ours.
    """

    __slots__ = (
        "_base", "_complete", "_first_append_ms", "_granting_from_ms", "_last_append_ms", "_log_ms",
        "_longest_lease_ms", "_members", "_members_until_ms", "_next_offset", "_queues", "_start_log_ms",
    )  # fmt: skip

    def __init__(self, start_offset: int) -> None:
        if start_offset < 0:
            raise ValueError(f"start_offset={start_offset}: a log begins at 0 or later")
        self._next_offset = start_offset
        self._complete = start_offset == 0
        self._base: int | None = None
        self._first_append_ms: int | None = None
        self._last_append_ms: int | None = None
        self._log_ms = 0
        self._start_log_ms = 0
        self._longest_lease_ms = 0
        self._granting_from_ms = 0
        self._queues: dict[MessageQueue, QueueLease] = {}
        self._members: dict[Owner, _Membership] = {}
        self._members_until_ms = _NEVER_MS  # log time before which none of them runs out

    # --- records in ---------------------------------------------------------------------------------------------

    def fold(self, offset: int, append_ms: int, record: GroupRecord) -> Folded:
        """Fold the next record.

        Args:
            offset: its offset; one above `next_offset` means that records are missing.
            append_ms: its append time (LogAppendTime), epoch ms of the leader's clock.
            record: as decoded.

        Raises:
            ValueError: the offset was folded before, or the append time is negative; nothing changed.
        """
        anew = self._advance(offset, append_ms, record.base)
        if record.base is not None and self._base is not None and record.base > self._base:
            self._raise_base(record.base, record.lease_ms)
            anew = True
        self._longest_lease_ms = max(self._longest_lease_ms, record.lease_ms)
        self._settle_base()
        owner = Owner(record.client_id, record.incarnation)
        members_changed = self._forget_members()
        judgements: tuple[Judgement, ...] = ()
        match record:
            case ClaimRecord() | RenewRecord() | ReleaseRecord():
                void = record.base != self._base
                judgements = tuple(self._judge(event, queue, void) for queue, event in self._events(record, owner))
            case MemberRecord():
                known = self._members.get(owner)
                members_changed |= known is None or known.strategy != record.strategy
                end_ms = self._log_ms + record.lease_ms
                self._members[owner] = _Membership(record.strategy, known.since_offset if known else offset, end_ms)
                self._members_until_ms = min(self._members_until_ms, end_ms)
            case LeaveRecord():
                members_changed |= self._members.pop(owner, None) is not None
            case _:
                assert_never(record)
        return Folded(offset, owner, record.seq, judgements, anew, members_changed)

    def skip(self, offset: int, append_ms: int) -> Folded:
        """Pass over a malformed record: it is void, but it moves log time. Arguments and errors as in `fold`."""
        anew = self._advance(offset, append_ms, None)
        self._settle_base()
        return Folded(offset, None, None, (), anew, self._forget_members())

    def unreadable(self, offset: int, append_ms: int) -> Folded:
        """Pass a record of an unknown version: who holds what is not known any more.

        The fold begins anew behind it and grants nothing before one lease has passed. Arguments and errors as in
        `fold`.
        """
        self._advance(offset, append_ms, None)
        self._settle_base()
        self._begin()
        return Folded(offset, None, None, (), began_anew=True, members_changed=self._forget_members())

    def continuity(self, low_offset: int, high_offset: int) -> Continuity:
        """How the log's bounds fit to what was folded. A log re-created *and* grown past us shows in its base instead.

        Args:
            low_offset: first offset of the log now.
            high_offset: offset after its last record now.
        """
        if high_offset < self._next_offset:
            return Continuity.RECREATED
        return Continuity.TRUNCATED if low_offset > self._next_offset else Continuity.CONTINUES

    # --- state out ----------------------------------------------------------------------------------------------

    @property
    def next_offset(self) -> int:
        """Position of the next record to fold."""
        return self._next_offset

    @property
    def log_ms(self) -> int:
        """Log time in ms since this fold began; only differences mean something."""
        return self._log_ms

    @property
    def base(self) -> int | None:
        """What claims are to carry; None while it is not known. A member may write without it, nobody else."""
        return self._base

    @property
    def token_floor(self) -> int | None:
        """A number above every token given out so far; None while the base is not known.

        The first record of a member that has seen the log disappear carries it as its base.
        """
        return None if self._base is None else self._base + self._next_offset

    @property
    def members(self) -> tuple[Member, ...]:
        """Members alive after the last record, sorted by client id and incarnation."""
        return tuple(
            Member(owner, m.strategy, m.since_offset, m.end_ms - self._log_ms)
            for owner, m in sorted(self._members.items())
        )

    @property
    def client_ids(self) -> tuple[str, ...]:
        """Distinct ids of the members alive, sorted."""
        return tuple(sorted({member.owner.client_id for member in self.members}))

    def conflicting_member(self, owner: Owner, strategy: str | None) -> Member | None:
        """A member alive that shares queues out another way and was there first.

        One group uses one way; the one that comes later gives way.

        Args:
            owner: who asks.
            strategy: its own way; None: Kafka's group protocol.

        Returns:
            The one that has been there longest; None: nobody. If one of the two ways is None they cannot work
            together at all; two strategies that differ only share out unfairly.
        """
        own = self._members.get(owner)
        before = own.since_offset if own else self._next_offset
        others = [m for m in self.members if m.strategy != strategy and m.since_offset < before]
        return min(others, key=lambda m: m.since_offset, default=None)

    @property
    def locks(self) -> tuple[QueueLock, ...]:
        """State of every queue the log has named since the fold began, sorted by queue."""
        return tuple(self.lock(queue) for queue in sorted(self._queues))

    def lock(self, queue: MessageQueue) -> QueueLock:
        """State of one queue after the last record, also of one that was never named."""
        state = self._queues.get(queue) or QueueLease(known=self._complete)
        if state.unjudged is None:
            owner = state.owner_at(self._log_ms)
            return QueueLock(
                queue=queue,
                known=True,
                owner=owner,
                token=state.token,
                lease_left_ms=state.lease_end_ms - self._log_ms if owner else 0,
                next_offset=state.next_offset,
                reconsume_counts=state.reconsume_counts,
            )
        known = self._free_from_ms(state) <= self._log_ms
        running = [e for e in state.unjudged if e.kind == "renew" and e.may_hold_until_ms > self._log_ms]
        likely = max(running, key=lambda e: (e.token, e.offset), default=None)
        seen = QueueLease(known=False)
        seen.guess_progress(state.unjudged)
        return QueueLock(
            queue=queue,
            known=known,
            owner=likely.owner if likely else None,
            token=max((e.token for e in state.unjudged), default=None),
            lease_left_ms=likely.may_hold_until_ms - self._log_ms if likely else 0,
            next_offset=seen.next_offset,
            reconsume_counts=seen.reconsume_counts,
        )

    def claimable_in_ms(self, queue: MessageQueue, owner: Owner) -> int:
        """Log time that has to pass before a claim of `owner` is granted, as far as is known now; 0: now."""
        state = self._queues.get(queue) or QueueLease(known=self._complete)
        free_from_ms = self._granting_from_ms
        if state.unjudged is not None:
            free_from_ms = max(free_from_ms, self._free_from_ms(state))
        elif state.owner != owner:
            free_from_ms = max(free_from_ms, state.lease_end_ms)
        return max(0, free_from_ms - self._log_ms)

    def may_claim(self, read_to: int, lease_ms: int) -> bool:
        """Whether a member that began with this fold may claim at all.

        Args:
            read_to: the log's end when the member began to read.
            lease_ms: the member's own lease.

        Returns:
            True once the fold has read that far, knows the base, and the log either begins at offset 0 or spans one
            lease (the longest seen) of log time since its first record.
        """
        if self._next_offset < read_to or self._base is None:
            return False
        return self._complete or self._log_ms - self._start_log_ms >= max(lease_ms, self._longest_lease_ms)

    # --- inside -------------------------------------------------------------------------------------------------

    def _advance(self, offset: int, append_ms: int, carried_base: int | None) -> bool:
        """Move position, log time and a base that was not known. Returns whether records were missing."""
        if offset < self._next_offset:
            raise ValueError(f"offset {offset} was folded before; the next one is {self._next_offset}")
        if append_ms < 0:
            raise ValueError(f"append_ms={append_ms}: the group log needs LogAppendTime")
        gap = offset > self._next_offset
        if self._last_append_ms is not None:
            self._log_ms += min(max(append_ms - self._last_append_ms, 0), LOG_TIME_STEP_MAX_MS)
        self._last_append_ms = append_ms
        if gap:
            self._begin()
        self._next_offset = offset + 1
        if self._first_append_ms is None:
            self._first_append_ms = append_ms
        if self._base is None:
            self._base = max(append_ms, carried_base or 0) if offset == 0 else carried_base
        return gap

    def _settle_base(self) -> None:
        """A log without its beginning in which nobody names a base for a lease: its first append time is the base."""
        if self._base is None and 0 < self._longest_lease_ms <= self._log_ms - self._start_log_ms:
            self._base = self._first_append_ms

    def _raise_base(self, base: int, lease_ms: int) -> None:
        """A higher base: no token given out so far counts any more."""
        if self._complete:
            self._queues.clear()
            self._granting_from_ms = self._log_ms + lease_ms
        else:
            self._begin()
        self._base = base

    def _begin(self) -> None:
        """From here on the fold knows what a fold that starts here would know."""
        self._complete = False
        self._start_log_ms = self._log_ms
        self._granting_from_ms = 0
        self._queues.clear()

    def _forget_members(self) -> bool:
        """Forget who has run out; whether somebody has. A look at all only when the first of them may have."""
        if self._log_ms < self._members_until_ms:
            return False
        before = len(self._members)
        self._members = {owner: each for owner, each in self._members.items() if each.end_ms > self._log_ms}
        self._members_until_ms = min((each.end_ms for each in self._members.values()), default=_NEVER_MS)
        return len(self._members) < before

    def _free_from_ms(self, state: QueueLease) -> int:
        """Log time from which a queue whose state is not known is free for certain."""
        before_ms = self._start_log_ms + (self._longest_lease_ms or LEASE_MAX_MS)
        return max([before_ms, *(event.may_hold_until_ms for event in state.unjudged or ())])

    def _judge(self, event: LeaseEvent, queue: MessageQueue, void: bool) -> Judgement:
        state = self._queues.get(queue)
        if void:
            seen = state or QueueLease(known=True)
            token = None if event.kind == "claim" else event.token
            return Judgement(queue, LeaseOutcome.VOID, token, seen.next_offset, seen.reconsume_counts)
        if state is None:
            state = self._queues[queue] = QueueLease(known=self._complete)
        if state.unjudged is not None and self._free_from_ms(state) <= event.log_ms:
            state.settle()
        if state.unjudged is not None and not state.anchor(event):
            state.unjudged.append(event)
            outcome = LeaseOutcome.UNKNOWN
        elif event.kind == "claim" and event.log_ms < self._granting_from_ms:
            outcome = LeaseOutcome.REFUSED
        else:
            outcome = state.judge(event)
        token = event.token if event.kind != "claim" or outcome is LeaseOutcome.GRANTED else None
        return Judgement(queue, outcome, token, state.next_offset, state.reconsume_counts)

    def _events(
        self, record: ClaimRecord | RenewRecord | ReleaseRecord, owner: Owner
    ) -> Iterable[tuple[MessageQueue, LeaseEvent]]:
        offset = self._next_offset - 1
        if isinstance(record, ClaimRecord):
            token = record.base + offset
            claim = LeaseEvent("claim", offset, self._log_ms, owner, record.lease_ms, token)
            for claimed in record.queues:
                yield claimed.queue, claim
            return
        for held in record.queues:
            yield (
                held.queue,
                LeaseEvent(
                    kind=record.kind,
                    offset=offset,
                    log_ms=self._log_ms,
                    owner=owner,
                    lease_ms=record.lease_ms,
                    token=held.token,
                    confirmed_offset=held.confirmed_offset,
                    next_offset=held.next_offset,
                    reconsume_counts=held.reconsume_counts,
                ),
            )
