"""What one record of the group log does to one queue: the rules of leases.

The rules themselves stand in `group_log`, whose fold calls this file for each queue that a record names. A queue is in
one of two states:

* *known* (`unjudged` is None): owner, token and end of the lease are right, `judge` applies the ordinary rules;
* *not known*: the fold began after the log did. `unjudged` keeps what was read of the queue since. `anchor` makes it
  known if a record confirms an earlier one of the same owner and token, by putting the state there and judging what
  followed; `settle` makes it known when every lease that may have been given has run out.

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
    """What a record did to one of its queues."""

    GRANTED = auto()
    """The claim made its writer the owner, with a new token."""
    RENEWED = auto()
    """The lease begins anew at this record."""
    RELEASED = auto()
    """The queue is free."""
    REFUSED = auto()
    """The claim did nothing: another owner's lease runs, or nothing is granted yet."""
    VOID = auto()
    """Nothing: not the current token, the lease had run out, or the record was written for another base."""
    UNKNOWN = auto()
    """This fold cannot tell yet. For its reader that is a refusal."""


@dataclass(frozen=True, slots=True)
class LeaseEvent:
    """A record as one queue sees it. For a claim `token` is the one it would make and `confirmed_offset` is None."""

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
        """Log time until which this record may have given a lease, as far as it alone tells."""
        return self.log_ms if self.kind == "release" else self.log_ms + self.lease_ms


class QueueLease:
    """One queue. `unjudged` is None while the fold knows its state, else what was read of it since the beginning."""

    __slots__ = ("lease_end_ms", "next_offset", "owner", "reconsume_counts", "token", "unjudged")

    def __init__(self, *, known: bool) -> None:
        self.owner: Owner | None = None
        self.token: int | None = None
        self.lease_end_ms = 0
        self.next_offset: int | None = None
        self.reconsume_counts: tuple[tuple[int, int], ...] = ()
        self.unjudged: list[LeaseEvent] | None = None if known else []

    def owner_at(self, log_ms: int) -> Owner | None:
        """The owner, unless its lease has run out by then."""
        return self.owner if log_ms < self.lease_end_ms else None

    def judge(self, event: LeaseEvent) -> LeaseOutcome:
        """The ordinary rules, for a queue whose state is known."""
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
        """Keep what a renewal or release says for the next owner; a position of None says nothing new."""
        if event.next_offset is not None:
            self.next_offset = event.next_offset
        self.reconsume_counts = event.reconsume_counts

    def anchor(self, event: LeaseEvent) -> bool:
        """Whether `event` confirms a record read since the beginning; if so the state is known from there on."""
        unjudged = self.unjudged or []
        place = next((i for i, e in enumerate(unjudged) if e.offset == event.confirmed_offset), None)
        if place is None:
            return False
        confirmed = unjudged[place]
        if confirmed.kind == "release" or (confirmed.owner, confirmed.token) != (event.owner, event.token):
            return False
        self.guess_progress(unjudged[: place + 1])
        self.owner, self.token, self.lease_end_ms = confirmed.owner, confirmed.token, confirmed.may_hold_until_ms
        self.unjudged = None
        for later in unjudged[place + 1 :]:
            self.judge(later)
        return True

    def settle(self) -> None:
        """Every lease that may have been given has run out: the queue is free."""
        unjudged = self.unjudged or []
        self.guess_progress(unjudged)
        self.token = max((e.token for e in unjudged), default=self.token)
        self.unjudged = None

    def guess_progress(self, events: Iterable[LeaseEvent]) -> None:
        """Take position and counts from the renewal or release with the highest token.

        Whether it counted is not known; that its writer had finished what lies before its position is.
        """
        best: LeaseEvent | None = None
        for event in events:
            if event.kind != "claim" and (best is None or event.token >= best.token):
                best = event
        if best is not None:
            self.note_progress(best)
