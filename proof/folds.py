"""What a member's own fold of its group's log says, taken from a running `GroupLogThread`."""

from collections.abc import Callable
from typing import Any

from proof.lines import FoldSeen
from rocketshim.core.group_log_results import Folded

__all__ = ["observing"]


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
        log = thread._log  # noqa: SLF001
        for lock in (log.lock(judgement.queue) for judgement in folded.judgements):
            if lock.known:
                seen(
                    FoldSeen(
                        at_ns=now_ns(), group=group, next_offset=log.next_offset,
                        queue=f"{lock.queue.topic}/{lock.queue.queue_id}",
                        owner=None if lock.owner is None else lock.owner.client_id, token=lock.token,
                    )
                )  # fmt: skip

    return observe
