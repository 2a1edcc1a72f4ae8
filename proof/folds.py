"""What a member's own fold of its group's log says, taken from a running `GroupLogThread`."""

from collections.abc import Callable
from typing import Any

from proof.lines import FoldSeen
from rocketshim.locks.fold import Folded, GroupLog
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["observing", "queue_text", "said_of"]


def observing(original: Any, group: str, seen: Callable[[FoldSeen], None], now_ns: Callable[[], int]) -> Any:
    """Make `GroupLogThread._observe`, which is called after each record, so that it also says what the fold knows.

    Args:
        original: the method.
        group: whose log.
        seen: called for each queue that the record names and whose state the fold knows.
        now_ns: the time in the history.
    """

    def observe(thread: Any, folded: Folded) -> None:
        original(thread, folded)
        for line in said_of(thread._log, folded, group, now_ns()):  # noqa: SLF001
            seen(line)

    return observe


def said_of(log: GroupLog, folded: Folded, group: str, at_ns: int) -> list[FoldSeen]:
    """Return what the fold knows, right after a record, of the queues that the record names."""
    return [
        FoldSeen(
            at_ns=at_ns, group=group, next_offset=log.next_offset, queue=queue_text(lock.queue),
            owner=None if lock.owner is None else lock.owner.client_id, token=lock.token,
        )
        for lock in (log.lock(effect.queue) for effect in folded.effects) if lock.known
    ]  # fmt: skip


def queue_text(queue: MessageQueue) -> str:
    """Return the queue as the history names it: `topic/partition`, physical topic."""
    return f"{queue.topic}/{queue.queue_id}"
