"""One partition that a consumer is assigned: why it is not read, what is committed, and its queue. Pure.

`PartitionReader` makes it when the partition is assigned, and forgets it when it is not any more. Kafka accepts offsets
that go backwards without an error (our measurement). So the check is here: within an assignment an offset is sent only
if it is above every offset sent before. An offset that was refused counts as sent: perhaps only the answer came too
late. The committer sends it again.

Its epoch is that of its queue: each begin makes another queue, so that late results of an earlier one count no more.
Its lease is in `locks.lease.Ownership`: a lease may come before its partition is assigned, and outlive the assignment.
"""

from enum import Flag, auto
from typing import Final, TypeVar

from rocketshim.core.orderly_queue import OrderlyQueue, OrderlyTask
from rocketshim.core.process_queue import Chunk, ProcessQueue
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["Partition", "PartitionQueue", "PauseReason", "QueueT", "Work"]

PartitionQueue = ProcessQueue | OrderlyQueue
Work = Chunk | OrderlyTask
QueueT = TypeVar("QueueT", bound=PartitionQueue)
_REFUSED: Final = -1  # in place of a sent position: no offset of Kafka's


class PauseReason(Flag):
    """Why a partition is not read."""

    FLOW = auto()
    """Too much of it is buffered (`core.flow_control`)."""
    SUSPENDED = auto()
    """The whole consumer is suspended."""
    UNRESOLVED = auto()
    """Its start offset is not known yet."""
    USER = auto()
    """The program has paused it."""
    LOCK = auto()
    """This process does not have its queue lock (orderly mode)."""


class Partition:
    """An assigned partition; the thread of its consumer owns it."""

    __slots__ = ("before", "is_waiting", "key", "pauses", "position", "queue", "sent", "stale_fetch", "stored")

    def __init__(self, key: TopicPartitionKey) -> None:
        self.key = key
        self.pauses = PauseReason(0)
        self.is_waiting = False  # until its start is known
        self.stale_fetch = -1  # number of the fetch whose records are from before the partition was assigned or sought
        self.sent = self.stored = -1  # offsets; -1: it has not begun
        self.queue: PartitionQueue | None = None  # what was read; None: it is not read by a push consumer
        self.position = -1  # of a pull consumer: behind the last message that was handed out, or that no reader sees
        self.before: int | None = None  # where the last poll began, if it has moved the position

    def begin(self, start: int) -> None:
        """Begin at an offset, which counts as committed; -1: it is not known yet."""
        self.sent = self.stored = self.position = start
        self.before = None

    def may_send(self, offset: int, *, again: bool = False) -> bool:
        """Return whether an offset may be sent: it is above every one that was sent in this assignment.

        With `again`, also the last one that was sent, if its answer is missing: it may still be refused.
        """
        return 0 <= self.sent < offset or (again and offset == self.sent > self.stored)

    def confirm(self, offset: int) -> None:
        """Note that an offset is stored; ignore one that is above what was sent in this assignment, or after a seek."""
        if offset <= self.sent:
            self.stored = max(self.stored, offset)

    def is_last_sent(self, offset: int) -> bool:
        """Return whether no later offset and no other assignment has replaced this one."""
        return 0 <= offset == self.sent

    # --- of a pull consumer: the position may go back, since its caller may seek --------------------------------------

    @property
    def done(self) -> int:
        """The position behind the messages that are done: those that the last poll has returned are not."""
        return self.position if self.before is None else self.before

    def hand_out(self, position: int) -> None:
        """Note that this poll hands out (or skips) everything before a position."""
        self.before = self.done
        self.position = position

    def seek(self, position: int) -> None:
        """Move the position; everything handed out before is done."""
        self.position, self.before = position, None

    @property
    def is_due(self) -> bool:
        """Return whether the done position is to be committed: it was not sent, and the one that was is answered.

        librdkafka may repeat an older commit after a newer one, and the stored position would go back.
        """
        return self.done != self.sent and self.sent in (self.stored, _REFUSED)

    def send(self, position: int) -> None:
        """Note that a position was sent; until the next poll begins, it is also what is done."""
        self.sent = position
        if self.before is not None:
            self.before = position

    def commit_answered(self, position: int, *, is_stored: bool) -> None:
        """Note the answer for a position: a refused one is due again; nothing, if another one was sent since."""
        if self.sent == position:
            if is_stored:
                self.stored = position
            else:
                self.sent = _REFUSED
