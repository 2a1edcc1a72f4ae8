"""The states of one queue lock for one member, and the transitions between them.

`queue_lock` explains the rules; `DESIGN.md` has a drawing that is made from `TRANSITIONS`.
"""

from enum import Enum, auto
from typing import Final

from rocketshim.core.lease import Lease, ReconsumeCounts
from rocketshim_topics.group_log import LeaseEntry
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["TRANSITIONS", "LockEvent", "LockState", "Slot"]

_COUNTS_PER_QUEUE: Final = 1_000
"""Maximum number of counts in one entry, lowest offsets first; later messages restart at their stored count."""


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


class Slot:
    """The state of one queue for this member, and what its next record will carry."""

    __slots__ = (
        "base", "claim_after_ms", "claim_seq", "confirmed_ms", "confirmed_offset", "lease", "next_offset",
        "reconsume_counts", "renews_now", "sent_ms", "state",
    )  # fmt: skip

    def __init__(self, queue: MessageQueue) -> None:
        self.state = LockState.IDLE
        self.lease = Lease(queue, -1, 0)
        self.base = 0
        self.claim_seq = 0
        self.claim_after_ms: int | None = None  # after a claim that could not be sent
        self.sent_ms = 0  # when the last claim or renewal was sent
        self.confirmed_ms = 0  # when the last confirmed one was sent
        self.confirmed_offset = 0
        self.next_offset: int | None = None
        self.reconsume_counts: ReconsumeCounts = ()
        self.renews_now = False

    def advance(self, event: LockEvent) -> None:
        """Enter the next state; a lease without belief ends.

        Raises:
            ValueError: the event cannot happen in this state; nothing changed.
        """
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise ValueError(f"a queue that is {self.state.name} cannot be {event.name}")
        self.state = following
        if not self.believing:
            self.lease.until_ms = 0

    @property
    def believing(self) -> bool:
        """Whether this member relies on its lease."""
        return self.state in _BELIEVING

    def confirm(self, sent_ms: int, hold_ms: int) -> None:
        """Extend the lease: a claim or renewal that was sent at this instant has been read back."""
        self.confirmed_ms = max(self.confirmed_ms, sent_ms)
        self.lease.until_ms = self.confirmed_ms + hold_ms

    def lease_entry(self) -> LeaseEntry:
        """Return the queue as a renewal or release names it."""
        queue = self.lease.queue
        return LeaseEntry(
            topic=queue.topic,
            queue_id=queue.queue_id,
            token=self.lease.token,
            confirmed_offset=self.confirmed_offset,
            next_offset=self.next_offset,
            reconsume_counts=self.reconsume_counts[:_COUNTS_PER_QUEUE],
        )
