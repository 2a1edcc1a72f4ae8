"""The rules of leases: what one record of the group log does to one queue.

`group_log` describes the rules; its fold calls this module for each queue that a record names. A queue is in one of two
states:

* *known* (`unjudged` is None): owner, token and end of the lease are right, and `judge` applies the ordinary rules.
* *not known*: the fold began after the log did. `unjudged` keeps the records of the queue read since then. `anchor`
  makes the state known if a record confirms an earlier one of the same owner and token: it sets the state to that
  record and evaluates the later ones. `mark_expired` makes the state known when every lease that may have been granted
  has expired.

Times are log time in ms. Objects belong to the fold that made them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Literal

__all__ = ["LeaseEvent", "LeaseOutcome", "Owner", "QueueLease"]


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
    reconsume_counts: tuple[tuple[int, int], ...] = ()

    @property
    def may_hold_until_ms(self) -> int:
        """Log time until which this record may have given a lease, judged by this record alone."""
        return self.log_ms if self.kind == "release" else self.log_ms + self.lease_ms


class QueueLease:
    """The state of one queue. `unjudged` is None while the fold knows the state, else the records read so far."""

    __slots__ = ("lease_end_ms", "next_offset", "owner", "position_token", "reconsume_counts", "token", "unjudged")

    def __init__(self, *, known: bool) -> None:
        self.owner: Owner | None = None
        self.token: int | None = None
        self.lease_end_ms = 0
        self.next_offset: int | None = None
        self.position_token = -1  # of the owner that reported `next_offset`
        self.reconsume_counts: tuple[tuple[int, int], ...] = ()
        self.unjudged: list[LeaseEvent] | None = None if known else []

    def owner_at(self, log_ms: int) -> Owner | None:
        """Return the owner, or None if its lease has expired by then."""
        return self.owner if log_ms < self.lease_end_ms else None

    def judge(self, event: LeaseEvent) -> LeaseOutcome:
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
        unjudged = self.unjudged or []
        index = next((i for i, e in enumerate(unjudged) if e.offset == event.confirmed_offset), None)
        if index is None:
            return False
        confirmed = unjudged[index]
        if confirmed.kind == "release" or (confirmed.owner, confirmed.token) != (event.owner, event.token):
            return False
        self.guess_progress(unjudged[: index + 1])
        self.owner, self.token, self.lease_end_ms = confirmed.owner, confirmed.token, confirmed.may_hold_until_ms
        self.unjudged = None
        for later in unjudged[index + 1 :]:
            self.judge(later)
        return True

    def mark_expired(self) -> None:
        """Free the queue: every lease that may have been granted has expired."""
        unjudged = self.unjudged or []
        self.guess_progress(unjudged)
        self.token = max((e.token for e in unjudged), default=self.token)
        self.unjudged = None

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
