"""What one member may believe that it owns, and what it writes to the group's log. `rocketshim.locks` has the rules.

A lease is returned twice, when it is granted and when it is stopped, before the next lease of that queue. Calls about
a former lease (`release`, `progress`) are late, not wrong, and are ignored
(test_calls_about_a_former_lease_are_late_and_ignored).
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Final

from rocketshim.locks.fold import Folded, GroupLog, LeaseEffect, LeaseOutcome, Owner
from rocketshim.locks.lease import (
    LOG_TIME_STEP_MAX_MS,
    NO_TROUBLE,
    Lease,
    QueueLockSettings,
    ReconsumeCounts,
    StopReason,
    Trouble,
)
from rocketshim_topics.group_log import (
    ClaimedQueue,
    ClaimRecord,
    CommandRecord,
    GroupRecord,
    LeaseEntry,
    LeaveRecord,
    MemberRecord,
    QueueCommand,
    ReleaseRecord,
    RenewRecord,
)
from rocketshim_topics.limits import in_batches
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["TRANSITIONS", "Commanded", "LockEvent", "LockState", "QueueLockAction", "QueueLockHolder"]


@dataclass(frozen=True, slots=True)
class Commanded:
    """A person's command for the queue of a lease that this member relies on."""

    lease: Lease
    record: CommandRecord


QueueLockAction = GroupRecord | Lease | Commanded
"""What the shell does, in this order. It passes on a lease that was granted or stopped, or a command, and appends a
record immediately, with one idempotent producer: an older record of a member never arrives after a newer one. It calls
`send_failed` for one that certainly was not appended. Nothing follows a `LeaveRecord`."""

_NEVER_MS: Final = 2**62

_ENTRIES_PER_RECORD: Final = 2_000
"""Maximum number of queues and counts together in one record: below 1 MB of JSON, also with the longest topic names."""

_COUNTS_PER_QUEUE: Final = 1_000
"""Maximum number of counts in one entry, lowest offsets first; later messages restart at their stored count."""

_STUCK_AFTER: Final = 3
"""Failed attempts of a message after which the log names it immediately, and not with the next renewal."""

_CAUSE_ENTRIES: Final = 10
"""Entries without a cause that are as large as a cause."""

_TRACE_ENTRIES: Final = 12
"""Entries without a trace that are as large as a trace."""

_TRACES: Final = 16
"""Maximum number of traces in one renewal: queues that fail together mostly fail by the same path."""


class LockState(Enum):
    """The state of a queue for this member."""

    IDLE = auto()
    """No claim and no lease."""
    CLAIMING = auto()
    """A claim is on its way."""
    HOLDING = auto()
    """The queue has a lease and is consumed."""
    DRAINING = auto()
    """The queue was stopped because it is not wanted. The lease is still renewed."""
    LAPSED = auto()
    """The lease has ended; listeners may still have messages of the queue."""


class LockEvent(Enum):
    """What happens to a queue."""

    CLAIM = auto()
    GRANT = auto()
    REFUSE = auto()
    UNWANT = auto()
    LAPSE = auto()
    RELEASE = auto()


TRANSITIONS: Final = {
    (LockState.IDLE, LockEvent.CLAIM): LockState.CLAIMING,
    (LockState.CLAIMING, LockEvent.GRANT): LockState.HOLDING,
    (LockState.CLAIMING, LockEvent.REFUSE): LockState.IDLE,
    (LockState.HOLDING, LockEvent.UNWANT): LockState.DRAINING,
    (LockState.HOLDING, LockEvent.LAPSE): LockState.LAPSED,
    (LockState.DRAINING, LockEvent.RELEASE): LockState.IDLE,
    (LockState.DRAINING, LockEvent.LAPSE): LockState.LAPSED,
    (LockState.LAPSED, LockEvent.RELEASE): LockState.IDLE,
}
"""The next state; a missing pair cannot happen or is an error of the caller."""

_BELIEVING: Final = frozenset({LockState.HOLDING, LockState.DRAINING})

_WITHOUT: Final = frozenset({LockState.IDLE, LockState.CLAIMING})


@dataclass(slots=True, eq=False)
class Slot:
    """The state of one queue for this member, and what its next record will carry."""

    lease: Lease
    state: LockState = LockState.IDLE
    base: int = 0
    claim_seq: int = 0
    claim_after_ms: int | None = None  # after a claim that could not be sent
    sent_ms: int = 0  # when the last claim or renewal was sent
    confirmed_ms: int = 0  # when the last confirmed one was sent
    confirmed_offset: int = 0
    next_offset: int | None = None
    reconsume_counts: ReconsumeCounts = ()
    trouble: Trouble = NO_TROUBLE
    renews_now: bool = False
    watched: CommandRecord | None = None  # a person waits for what this command does

    def advance(self, event: LockEvent) -> None:
        """Enter the next state; a lease without belief ends. Raise ValueError if the event cannot happen here."""
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise ValueError(f"a queue that is {self.state.name} cannot be {event.name}")
        self.state = following
        if not self.is_believed:
            self.lease.until_ms = 0

    def stop(self, reason: StopReason) -> Lease:
        """Allow no further call under the lease."""
        self.lease.stopped = reason
        return self.lease

    @property
    def is_believed(self) -> bool:
        """Whether this member relies on its lease."""
        return self.state in _BELIEVING

    def confirm(self, sent_ms: int, hold_ms: int) -> None:
        """Extend the lease: a claim or renewal that was sent at this instant has been read back."""
        self.confirmed_ms = max(self.confirmed_ms, sent_ms)
        self.lease.until_ms = self.confirmed_ms + hold_ms

    def lease_entry(self, now_ms: int) -> LeaseEntry:
        """Return the queue as a renewal or release names it."""
        queue, (since_ms, cause, trace, call) = self.lease.queue, self.trouble
        return LeaseEntry(
            topic=queue.topic,
            queue_id=queue.queue_id,
            token=self.lease.token,
            confirmed_offset=self.confirmed_offset,
            next_offset=self.next_offset,
            reconsume_counts=self.reconsume_counts[:_COUNTS_PER_QUEUE],
            failing_ms=None if since_ms is None else max(0, now_ms - since_ms),
            cause=cause,
            trace=trace,
            call_offset=None if call is None else call[0],
            call_ms=None if call is None else max(0, now_ms - call[1]),
        )


def _is_stuck(reconsume_counts: ReconsumeCounts) -> bool:
    return any(count >= _STUCK_AFTER for _, count in reconsume_counts)


def _has_done(command: CommandRecord, before: ReconsumeCounts, now: ReconsumeCounts) -> bool:
    """Return whether the failed attempts of a message show that a command for it was obeyed, or is too late."""
    was, is_now = (dict(counts).get(command.offset, 0) for counts in (before, now))
    return was != is_now and (is_now == 0 or command.do is QueueCommand.TRY_NOW)


class QueueLockHolder:
    """One member's locks: facts in, actions out. Owned by the group-log thread.

    The shell folds each record it reads (`GroupLog`) and passes the result to `observe`. It calls `tick` after each
    such batch and at `next_wakeup_ms`. All instants are of one monotonic clock, in ms, and never go back: else a call
    raises ValueError and changes nothing. The incarnation of the owner is new for every run.

    Source: `RebalanceImpl#lock`, `#lockAll`, `RebalancePushImpl#removeUnnecessaryMessageQueue` of RocketMQ; the order
    of releasing and the rules of belief are ours.
    """

    __slots__ = (
        "_began_ms",
        "_claims_from_ms",
        "_ends_from_ms",
        "_floor",
        "_folded_ms",
        "_heartbeat_ms",
        "_in_flight",
        "_is_closing",
        "_now_ms",
        "_read_to",
        "_seq",
        "_settings",
        "_slots",
        "_strategy",
        "_version",
        "_wanted",
        "has_left",
        "owner",
    )  # fmt: skip

    def __init__(
        self, owner: Owner, settings: QueueLockSettings, strategy: str | None = None, version: str | None = None
    ) -> None:
        self.owner = owner
        self._settings = settings
        self._strategy = strategy
        self._version = version
        self._seq = 0
        self._now_ms = -(2**63)
        self._read_to: int | None = None
        self._began_ms = 0
        self._folded_ms: int | None = None
        self._heartbeat_ms: int | None = None
        self._claims_from_ms: int | None = None
        self._floor: int | None = None
        self._is_closing = False
        self.has_left = False  # everything was released and the `leave` record was returned
        self._wanted: frozenset[MessageQueue] = frozenset()
        self._slots: dict[MessageQueue, Slot] = {}
        self._in_flight: dict[int, int] = {}  # by number of a claim or renewal: when it was sent
        self._ends_from_ms = _NEVER_MS  # before this no belief ends and no claim or renewal is too old

    # --- facts --------------------------------------------------------------------------------------------------

    def begin(self, read_to: int, now_ms: int, token_floor: int | None = None) -> list[QueueLockAction]:
        """Begin a fold; nothing is claimed before the fold has reached the log's present end, `read_to`.

        `token_floor` is a number above every token of this group that is known from outside the log (each commit can
        carry its token), looked up *before* `read_to`. If the log proves to be newer than that token's log, the holder
        waits for one lease. If its tokens would be lower, its base is raised.
        """
        actions = self._pass_time(now_ms)
        self._read_to = read_to
        self._began_ms = now_ms
        if token_floor is not None:
            self._floor = max(token_floor, self._floor or 0)
        return actions

    def want(self, queues: Collection[MessageQueue], now_ms: int) -> list[QueueLockAction]:
        """Set which queues this member should own from now on. Owned queues that are not in the set are stopped.

        Raise ValueError if the holder is closed and queues are wanted.
        """
        if queues and self._is_closing:
            raise ValueError("a closed holder cannot want a queue")
        actions = self._pass_time(now_ms)
        self._wanted = frozenset(queues)
        for queue, slot in self._slots.items():
            if slot.state is LockState.HOLDING and queue not in self._wanted:
                slot.advance(LockEvent.UNWANT)
                actions.append(slot.stop(StopReason.UNWANTED))
        self._forget_idle()
        return actions

    def close(self, now_ms: int) -> list[QueueLockAction]:
        """Release everything; then `tick` sends the `leave` record. Safe to call twice."""
        actions = self.want((), now_ms)
        self._is_closing = True
        return actions

    def observe(self, folded: Folded, now_ms: int) -> list[QueueLockAction]:
        """Process a record that was read and folded.

        Decides: What ends a lock that an operator releases? Its owner reads a release of its own token.
        """
        actions = self._pass_time(now_ms)
        self._folded_ms = now_ms
        if folded.has_restarted:
            actions += self._lapse_all(StopReason.LOG_LOST)
        if folded.owner == self.owner and folded.seq is not None:
            sent_ms = self._in_flight.pop(folded.seq, None)
            for effect in folded.effects:
                actions += self._own(effect, folded.offset, folded.seq, sent_ms)
        else:
            for effect in folded.effects:
                slot = self._slots.get(effect.queue)
                if effect.outcome is LeaseOutcome.GRANTED and slot is not None and slot.is_believed:
                    actions += self._lapse(slot, StopReason.LOST)
        self._forget_idle(None if folded.has_restarted else [effect.queue for effect in folded.effects])
        return actions

    def command(self, record: CommandRecord, now_ms: int) -> list[QueueLockAction]:
        """Pass a person's command on if it is for a lease of this member that may be used; ignore every other.

        Decides: Who obeys a command for a message of an orderly queue? The member with the token that it names, while
            it relies on that lease. A token is never given out twice, so a late command finds nobody.
        """
        actions = self._pass_time(now_ms)
        slot = self._slots.get(record.queue)
        if slot is not None and slot.state is LockState.HOLDING and slot.lease.token == record.token:
            slot.watched = record
            actions.append(Commanded(slot.lease, record))
        return actions

    def log_lost(self, token_floor: int | None, now_ms: int) -> list[QueueLockAction]:
        """End all beliefs: the log was created again, or truncated before it was read. A new fold and `begin` follow.

        `token_floor` is that of the former fold.
        """
        actions = self._pass_time(now_ms)
        actions += self._lapse_all(StopReason.LOG_LOST)
        self._read_to = self._folded_ms = self._heartbeat_ms = None
        self._claims_from_ms = now_ms + self._settings.lock_lease_ms
        if token_floor is not None:
            self._floor = max(token_floor, self._floor or 0)
        self._forget_idle()
        return actions

    def progress(
        self,
        lease: Lease,
        next_offset: int | None,
        reconsume_counts: ReconsumeCounts,
        trouble: Trouble = NO_TROUBLE,
    ) -> None:
        """Record the progress of a queue; the next renewal carries it. Ignored for a former lease.

        `next_offset` is the position after the longest finished prefix; None: nothing is finished yet. A position that
        goes back (the topic was created again) is renewed by the next `tick`; so is the first message that keeps
        failing, for the person who looks why the queue does not go on, that none does any more, and what a command did.
        """
        slot = self._slots.get(lease.queue)
        if slot is not None and slot.lease is lease:
            if next_offset is not None:
                if slot.next_offset is not None and next_offset < slot.next_offset:
                    slot.renews_now = True  # before a commit of this owner is taken for one of the former positions
                slot.next_offset = next_offset
            if slot.watched is not None and _has_done(slot.watched, slot.reconsume_counts, reconsume_counts):
                slot.renews_now, slot.watched = True, None
            if _is_stuck(reconsume_counts) != _is_stuck(slot.reconsume_counts):
                slot.renews_now = True
            slot.reconsume_counts, slot.trouble = reconsume_counts, trouble

    def release(
        self,
        lease: Lease,
        next_offset: int | None,
        reconsume_counts: ReconsumeCounts,
        now_ms: int,
        trouble: Trouble = NO_TROUBLE,
    ) -> list[QueueLockAction]:
        """Report that a stopped queue is drained and committed. If its lease has not ended, the release record follows.

        Drained: no listener has a message of the queue. Committed: its position is committed if the lease allowed it.
        Ignored for a former lease. Raise ValueError, and change nothing, if the queue was not stopped.
        """
        slot = self._slots.get(lease.queue)
        if slot is None or slot.lease is not lease:
            return self._pass_time(now_ms)
        if slot.state is LockState.HOLDING:
            raise ValueError(f"{lease.queue} was not stopped: stop, drain, commit, release")
        actions = self._pass_time(now_ms)
        if slot.state in (LockState.DRAINING, LockState.LAPSED):
            if slot.is_believed:
                self.progress(lease, next_offset, reconsume_counts, trouble)
                actions.append(self._release(slot.lease_entry(now_ms), slot.base))
            slot.advance(LockEvent.RELEASE)
        self._forget_idle([lease.queue])
        return actions

    def end_all(self) -> list[QueueLockAction]:
        """End all beliefs immediately, because the log can no longer be followed; return the stops."""
        return self._lapse_all(StopReason.LOG_LOST)

    def send_failed(self, seq: int, now_ms: int) -> list[QueueLockAction]:
        """Report that a record was not appended and never will be. A claim is made again after `retry_ms`.

        Not needed for renewals: a renewal that is not read back in time is repeated anyway.
        """
        actions = self._pass_time(now_ms)
        self._in_flight.pop(seq, None)
        for slot in self._slots.values():
            if slot.state is LockState.CLAIMING and slot.claim_seq == seq:
                slot.advance(LockEvent.REFUSE)
                slot.claim_after_ms = now_ms + self._settings.retry_ms
        self._forget_idle()
        return actions

    # --- time ---------------------------------------------------------------------------------------------------

    def tick(self, log: GroupLog, now_ms: int) -> list[QueueLockAction]:
        """End expired beliefs, then send whatever is due: heartbeat, renewals, claims, `leave`.

        Returned records count as sent at this time: send them immediately.
        """
        actions = self._pass_time(now_ms)
        if self.has_left:
            return actions
        if self._heartbeat_ms is None or now_ms >= self._heartbeat_ms:
            self._heartbeat_ms = now_ms + self._settings.heartbeat_every_ms
            actions.append(self._member(log))
        actions += self._renewals(now_ms)
        claimable = [queue for queue, at_ms in self._claimable(log) if at_ms <= now_ms]
        for batch in in_batches(((queue, 1) for queue in claimable), _ENTRIES_PER_RECORD):
            actions.append(self._claim(batch, log, now_ms))
        if self._is_closing and all(slot.state is LockState.IDLE for slot in self._slots.values()):
            self.has_left = True
            actions.append(LeaveRecord(**self._stamp(), base=log.base))
        return actions

    def next_wakeup_ms(self, log: GroupLog) -> int | None:
        """Return when `tick` has something to do next, if no record comes before; None: never (the member has left)."""
        if self.has_left:
            return None
        instants = [self._now_ms if self._heartbeat_ms is None else self._heartbeat_ms]
        for slot in self._slots.values():
            if slot.is_believed:
                instants += [slot.lease.until_ms, self._renewal_due_ms(slot)]
            elif slot.state is LockState.CLAIMING:
                instants.append(slot.sent_ms + self._settings.lock_hold_ms)
        instants += [at_ms for _, at_ms in self._claimable(log)]
        return min(instants)

    # --- state out ----------------------------------------------------------------------------------------------

    @property
    def has_leases(self) -> bool:
        """Whether this member relies on a lease."""
        return any(slot.is_believed for slot in self._slots.values())

    @property
    def is_waiting(self) -> bool:
        """Whether a wanted queue has no lease: another member's record may free it."""
        return any(queue not in self._slots or not self._slots[queue].is_believed for queue in self._wanted)

    @property
    def awaited(self) -> list[MessageQueue]:
        """The wanted queues whose locks another member may have; not those that this one has not released yet."""
        return [queue for queue in self._wanted if queue not in self._slots or self._slots[queue].state in _WITHOUT]

    # --- inside: time and claims --------------------------------------------------------------------------------

    def _pass_time(self, now_ms: int) -> list[QueueLockAction]:
        """Let time pass.

        Decides: When does a member stop relying on its lease? If it was not confirmed for `lock_hold_ms` (here), if the
            log shows another owner (`_own`), or if the log is lost (`_lapse_all`).
        """
        if now_ms < self._now_ms:
            raise ValueError(f"the monotonic clock went back from {self._now_ms} to {now_ms}")
        self._now_ms = now_ms
        actions: list[QueueLockAction] = []
        if now_ms < self._ends_from_ms:
            return actions
        hold_ms = self._settings.lock_hold_ms
        for slot in self._slots.values():
            if slot.is_believed and now_ms >= slot.lease.until_ms:
                actions += self._lapse(slot, StopReason.UNCONFIRMED)
            elif slot.state is LockState.CLAIMING and now_ms >= slot.sent_ms + hold_ms:
                slot.advance(LockEvent.REFUSE)  # if it is read back now, it is too late to be trusted
        self._in_flight = {seq: sent_ms for seq, sent_ms in self._in_flight.items() if now_ms < sent_ms + hold_ms}
        since_ms = [slot.confirmed_ms for slot in self._slots.values() if slot.is_believed]
        since_ms += [slot.sent_ms for slot in self._slots.values() if slot.state is LockState.CLAIMING]
        self._ends_from_ms = min([*since_ms, *self._in_flight.values()], default=_NEVER_MS) + hold_ms
        self._forget_idle()
        return actions

    def _sent(self, seq: int, now_ms: int) -> None:
        """Record that a claim or renewal is sent."""
        self._in_flight[seq] = now_ms
        self._ends_from_ms = min(self._ends_from_ms, now_ms + self._settings.lock_hold_ms)

    def _claimable(self, log: GroupLog) -> Iterator[tuple[MessageQueue, int]]:
        """Yield wanted queues that may be claimed before another record is read, and when."""
        if self._read_to is None or self._folded_ms is None:
            return
        if not log.may_claim(self._read_to, self._settings.lock_lease_ms) or self._tokens_would_fall(log):
            return
        former_log = self._floor is not None and log.base is not None and self._floor <= log.base
        earliest_ms = self._began_ms + self._settings.lock_lease_ms if former_log else self._began_ms
        active = {queue for queue, slot in self._slots.items() if slot.state is not LockState.IDLE}
        for queue in sorted(self._wanted - active):
            slot = self._slots.get(queue)
            wait_ms = log.claimable_in_ms(queue, self.owner)
            if wait_ms > LOG_TIME_STEP_MAX_MS:
                continue
            instants = [self._folded_ms + wait_ms, earliest_ms]
            if self._claims_from_ms is not None:
                instants.append(self._claims_from_ms)
            if slot is not None and slot.claim_after_ms is not None:
                instants.append(slot.claim_after_ms)
            yield queue, max(instants)

    def _renewal_due_ms(self, slot: Slot) -> int:
        if slot.renews_now:
            return self._now_ms
        unconfirmed = slot.sent_ms != slot.confirmed_ms
        return slot.sent_ms + (self._settings.retry_ms if unconfirmed else self._settings.lock_renew_ms)

    def _renewals(self, now_ms: int) -> Iterator[RenewRecord]:
        """Renew all owned queues as soon as one of them needs it."""
        owned = {queue: slot for queue, slot in self._slots.items() if slot.is_believed}
        if all(now_ms < self._renewal_due_ms(slot) for slot in owned.values()):
            return
        entries: list[tuple[LeaseEntry, int]] = []
        traces = 0
        for _, slot in sorted(owned.items()):
            slot.sent_ms, slot.renews_now = now_ms, False
            entry = slot.lease_entry(now_ms)
            size = 1 + len(entry.reconsume_counts) + (_CAUSE_ENTRIES if entry.cause else 0)
            if entry.trace is not None and traces == _TRACES:
                entry = entry.model_copy(update={"trace": None})
            elif entry.trace is not None:
                size, traces = size + _TRACE_ENTRIES, traces + 1
            entries.append((entry, size))
        base = max(slot.base for slot in owned.values())  # the same for all, because a new base ends every belief
        for batch in in_batches(entries, _ENTRIES_PER_RECORD):
            record = RenewRecord(**self._stamp(), base=base, queues=tuple(batch))
            self._sent(record.seq, now_ms)
            yield record

    def _claim(self, queues: Iterable[MessageQueue], log: GroupLog, now_ms: int) -> ClaimRecord:
        named = tuple(ClaimedQueue(topic=queue.topic, queue_id=queue.queue_id) for queue in queues)
        record = ClaimRecord(**self._stamp(), base=log.base or 0, queues=named)
        self._sent(record.seq, now_ms)
        for claimed in named:
            slot = self._slots.setdefault(claimed.queue, Slot(Lease(claimed.queue, -1, 0)))
            slot.advance(LockEvent.CLAIM)
            slot.claim_seq, slot.sent_ms = record.seq, now_ms
        return record

    # --- inside: own records read back --------------------------------------------------------------------------

    def _own(self, effect: LeaseEffect, offset: int, seq: int, sent_ms: int | None) -> list[QueueLockAction]:
        slot = self._slots.get(effect.queue)
        match effect.outcome:
            case LeaseOutcome.GRANTED:
                return self._granted(effect, offset, seq, sent_ms)
            case LeaseOutcome.RENEWED:
                if slot is not None and slot.is_believed and slot.lease.token == effect.token:
                    slot.confirmed_offset = offset
                    if sent_ms is not None:
                        slot.confirm(sent_ms, self._settings.lock_hold_ms)
                return []
            case LeaseOutcome.REFUSED | LeaseOutcome.VOID | LeaseOutcome.UNKNOWN | LeaseOutcome.RELEASED:
                if slot is None:
                    return []
                if slot.state is LockState.CLAIMING and slot.claim_seq == seq:
                    slot.advance(LockEvent.REFUSE)
                elif slot.is_believed and slot.lease.token == effect.token:
                    return self._lapse(slot, StopReason.LOST)
                return []

    def _granted(self, effect: LeaseEffect, offset: int, seq: int, sent_ms: int | None) -> list[QueueLockAction]:
        queue, token = effect.queue, effect.token
        if token is None:
            raise ValueError(f"a granted claim of {queue} made no token")
        slot = self._slots.get(queue)
        wanted = queue in self._wanted
        if slot is not None and slot.is_believed:  # an older claim, which counted as refused, has replaced our token
            return self._lapse(slot, StopReason.LOST)
        if slot is not None and slot.state is LockState.CLAIMING and slot.claim_seq == seq and sent_ms is not None:
            if wanted:
                slot.advance(LockEvent.GRANT)
                slot.lease = Lease(
                    queue,
                    token,
                    0,
                    next_offset=effect.next_offset,
                    reconsume_counts=effect.reconsume_counts,
                    position_token=effect.position_token,
                )
                slot.base, slot.confirmed_offset = token - offset, offset
                slot.sent_ms = sent_ms
                slot.confirm(sent_ms, self._settings.lock_hold_ms)
                slot.next_offset, slot.reconsume_counts = None, effect.reconsume_counts
                slot.trouble = NO_TROUBLE
                slot.claim_after_ms, slot.renews_now, slot.watched = None, False, None
                return [slot.lease]
            slot.advance(LockEvent.REFUSE)
        if wanted or (slot is not None and slot.state is not LockState.IDLE):
            return []  # it will be claimed again
        unused = LeaseEntry(
            topic=queue.topic,
            queue_id=queue.queue_id,
            token=token,
            confirmed_offset=offset,
            reconsume_counts=effect.reconsume_counts,
        )
        return [self._release(unused, token - offset)]

    def _lapse(self, slot: Slot, reason: StopReason) -> list[QueueLockAction]:
        running = slot.state is LockState.HOLDING
        slot.advance(LockEvent.LAPSE)
        return [slot.stop(reason)] if running else []

    def _lapse_all(self, reason: StopReason) -> list[QueueLockAction]:
        actions: list[QueueLockAction] = []
        for slot in self._slots.values():
            if slot.is_believed:
                actions += self._lapse(slot, reason)
            elif slot.state is LockState.CLAIMING:
                slot.advance(LockEvent.REFUSE)
        return actions

    def _forget_idle(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Forget queues that are IDLE and not wanted, among these; None: among all."""
        for queue in list(self._slots) if queues is None else queues:
            slot = self._slots.get(queue)
            if slot is not None and slot.state is LockState.IDLE and queue not in self._wanted:
                del self._slots[queue]

    # --- inside: records ----------------------------------------------------------------------------------------

    def _stamp(self) -> dict[str, Any]:
        """Return the fields that every record has; use the next sequence number."""
        self._seq += 1
        return {
            "client_id": self.owner.client_id,
            "incarnation": self.owner.incarnation,
            "seq": self._seq,
            "lease_ms": self._settings.lock_lease_ms,
        }

    def _member(self, log: GroupLog) -> MemberRecord:
        read_all = self._read_to is not None and log.next_offset >= self._read_to
        base = self._floor if read_all and self._tokens_would_fall(log) else log.base
        return MemberRecord(**self._stamp(), base=base, strategy=self._strategy, version=self._version)

    def _tokens_would_fall(self, log: GroupLog) -> bool:
        """Return whether a claim made now could get a token below a known one. True only for a log read to its end."""
        return self._floor is not None and (log.token_floor is None or log.token_floor < self._floor)

    def _release(self, entry: LeaseEntry, base: int) -> ReleaseRecord:
        return ReleaseRecord(**self._stamp(), base=base, queues=(entry,))
