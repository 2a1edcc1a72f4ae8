"""Which partitions this process owns now: what may be handed out to listeners, and what may be committed.

Poll loop and commits ask here. (`OrderlyRunner` reads the same leases before each call, in its own thread.) Two rules
exist:

* Kafka's group protocol fences commits, and broadcasting shares nothing: an assigned partition is owned.
* A partition with a queue lock is owned while the lease of its lock is valid (`Lease.holds`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from rocketshim_topics.coordinates import TopicPartitionKey

if TYPE_CHECKING:
    from rocketshim.core.lease import Lease

__all__ = ["Ownership"]


class Ownership:
    """Which partitions of one consumer may be handed out and committed.

    With `needs_lease` a partition is owned only under one of the `leases`; with `is_fenced` commits carry its token.

    Attributes:
        is_shared: whether Kafka refused a commit because it does not know the sender as a member of the group. For a
            consumer that assigns itself this means that the group protocol has given its partitions to others, too.

    Decides: May messages of a partition be handed out, and its offset be committed? It asks the lease of an orderly
        queue (`core.lease.Lease.holds`), and before each call once more
        `consumer.orderly.runner.OrderlyRunner._may_begin`. Positions of push consumers never go back:
        `core.commit_positions.CommitPositions.may_send`; one asynchronous commit at a time:
        `consumer.reader.commits.Committer.commit`.
    """

    def __init__(self, now_ms: Callable[[], int], *, needs_lease: bool = False, is_fenced: bool = False) -> None:
        self.leases: dict[TopicPartitionKey, Lease] = {}
        self._now_ms = now_ms
        self.needs_lease = needs_lease
        self.is_shared = False
        self._is_fenced = is_fenced

    def owns(self, key: TopicPartitionKey) -> bool:
        """Return whether messages of an assigned partition may be handed out and committed at this instant."""
        if not self.needs_lease:
            return True
        lease = self.leases.get(key)
        return lease is not None and lease.holds(self._now_ms())

    def token(self, key: TopicPartitionKey) -> int | None:
        """Return the token that commits of a partition carry; None: they carry none."""
        lease = self.leases.get(key) if self._is_fenced else None
        return None if lease is None else lease.token
