"""The lease of one queue, its times, and what this process may do under it. The threads of a consumer share it.

An owner renews before its belief ends, and its belief ends before the log lets another member own the queue: renew <
hold < lease. The time between hold and lease is the margin; it must cover all errors of clocks.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from rocketshim.errors import ConfigError
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.group_log import LEASE_MAX_MS
from rocketshim_topics.message_queue import MessageQueue

__all__ = [
    "LOG_TIME_STEP_MAX_MS",
    "Lease",
    "Ownership",
    "QueueLockSettings",
    "QueueStarted",
    "QueueStopped",
    "ReconsumeCounts",
    "StopReason",
]

LOG_TIME_STEP_MAX_MS: Final = 5_000
"""Maximum that one record adds to log time, in ms."""

ReconsumeCounts = tuple[tuple[int, int], ...]
"""(offset, failed attempts) of messages that are not finished, ascending."""


class Lease:
    """Lease of one queue under one token. Call `holds` before each listener call and before each commit.

    Attributes:
        queue: the queue.
        token: fencing token: higher than every earlier token of this queue.
        until_ms: until when this process relies on the lease, by the monotonic clock, in ms; 0: it has ended. A renewal
            extends it.

    Thread-safety: `QueueLockHolder` writes it on the group-log thread, any thread may read it; a read is one attribute.
    """

    __slots__ = ("queue", "token", "until_ms")

    def __init__(self, queue: MessageQueue, token: int, until_ms: int) -> None:
        self.queue = queue
        self.token = token
        self.until_ms = until_ms

    @property
    def key(self) -> TopicPartitionKey:
        """The partition of the queue."""
        return TopicPartitionKey(self.queue.topic, self.queue.queue_id)

    def holds(self, now_ms: int) -> bool:
        """Return whether this process may process and commit the queue at this monotonic instant in ms."""
        return now_ms < self.until_ms

    def __repr__(self) -> str:
        return f"Lease({self.queue}, token={self.token}, until_ms={self.until_ms})"


class StopReason(Enum):
    """Why a queue is stopped."""

    UNWANTED = auto()
    """It is to be released: drain, commit while the lease is valid, then call `release`."""
    UNCONFIRMED = auto()
    """No renewal was confirmed in time: the belief has ended. Drain, but commit nothing."""
    LOST = auto()
    """By the log it is no longer ours. Drain, but commit nothing."""
    LOG_LOST = auto()
    """The log itself cannot be followed. Drain, but commit nothing."""


@dataclass(frozen=True, slots=True)
class QueueStarted:
    """This process has the lease of the queue: consume it.

    Attributes:
        lease: the lease.
        next_offset: offset from the log; `start_after` says when it counts. None: the log has no offset.
        reconsume_counts: failed attempts so far of messages that the last owner did not finish.
        position_token: token of the owner that reported `next_offset`.
    """

    lease: Lease
    next_offset: int | None
    reconsume_counts: ReconsumeCounts
    position_token: int = -1

    def start_after(self, committed: int, token: int | None) -> tuple[int, ReconsumeCounts]:
        """Return where the queue starts, and the failed attempts that count there.

        The log's position is newer than the commit if the same owner has made both, or a later one has reported it. It
        counts for nothing if the positions begin again: an operator or another program has made the commit (it has no
        token), or there is none (the topic was created again), or an owner after the one that reported it has committed
        a lower start (it was created again before that owner)
        (test_a_position_of_the_log_counts_unless_a_later_owner_or_an_operator_has_begun_lower).

        Args:
            committed: the committed offset.
            token: the token in the commit's metadata; None: it has none, or there is no commit.
        """
        known = committed if self.next_offset is None else self.next_offset
        if token is None or (known > committed and self.position_token < token):
            return committed, ()
        return max(committed, known), self.reconsume_counts


@dataclass(frozen=True, slots=True)
class QueueStopped:
    """Pass no further message of the queue to a listener, then call `release`.

    Attributes:
        lease: the lease that ends. It is still valid only if the reason is UNWANTED; then commit before the release.
        reason: why the queue stops.
    """

    lease: Lease
    reason: StopReason


class Ownership:
    """Which partitions of one consumer may be handed out and committed.

    With `needs_lease` a partition is owned only under one of the `leases`; with `is_fenced` commits carry its token.

    Attributes:
        is_shared: whether Kafka refused a commit because it does not know the sender as a member of the group. For a
            consumer that assigns itself this means that the group protocol has given its partitions to others, too.

    Decides: May messages of a partition be handed out, and its offset be committed? It asks the lease of an orderly
        queue (`locks.lease.Lease.holds`), and before each call once more
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


@dataclass(frozen=True, slots=True)
class QueueLockSettings:
    """Times of queue locks, in ms.

    Args:
        lock_lease_ms: how long the log keeps a queue for its owner, from the append of its last claim or renewal; above
            `lock_hold_ms`, at most one day. Default 60 s (RocketMQ's broker).
        lock_hold_ms: how long the owner itself believes that it owns the queue, from before it sent that record; above
            `lock_renew_ms`. Default 30 s (RocketMQ's client).
        lock_renew_ms: interval between renewals; 1 or more. Default 20 s (RocketMQ's client).
        heartbeat_ms: interval between heartbeats; 1 to 5,000 and below the lease. None (default): 5 s, or a third of
            the lease if that is less.

    Raises:
        ConfigError: the times contradict each other; the message contains the margin.

    Source: `ProcessQueue.REBALANCE_LOCK_INTERVAL`, `REBALANCE_LOCK_MAX_LIVE_TIME`, `RebalanceLockManager`.
    """

    lock_lease_ms: int = 60_000
    lock_hold_ms: int = 30_000
    lock_renew_ms: int = 20_000
    heartbeat_ms: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.lock_renew_ms < self.lock_hold_ms < self.lock_lease_ms <= LEASE_MAX_MS:
            raise ConfigError(
                f"need 0 < lock_renew_ms={self.lock_renew_ms} < lock_hold_ms={self.lock_hold_ms} < "
                f"lock_lease_ms={self.lock_lease_ms} <= {LEASE_MAX_MS}: an owner renews before its hold time ends, and "
                f"stops {self.margin_ms} ms (lease - hold, the safety margin) before another member can own the queue"
            )
        if not 0 < self.heartbeat_every_ms < self.lock_lease_ms or self.heartbeat_every_ms > LOG_TIME_STEP_MAX_MS:
            raise ConfigError(
                f"heartbeat_ms={self.heartbeat_ms}: need 1 to {LOG_TIME_STEP_MAX_MS} (the most that one record moves "
                f"log time) and less than lock_lease_ms={self.lock_lease_ms}"
            )

    @property
    def margin_ms(self) -> int:
        """Time between the owner's stop and the first possible grant to another member: lease - hold.

        It must cover clock drift during one lease and 5 s for each forward step of the leader's clock in it.
        """
        return self.lock_lease_ms - self.lock_hold_ms

    @property
    def heartbeat_every_ms(self) -> int:
        """Interval between heartbeats."""
        if self.heartbeat_ms is not None:
            return self.heartbeat_ms
        return max(1, min(LOG_TIME_STEP_MAX_MS, self.lock_lease_ms // 3))

    @property
    def retry_ms(self) -> int:
        """Wait after an unconfirmed renewal: a quarter of the time between renewing and the end of the belief."""
        return max(1, (self.lock_hold_ms - self.lock_renew_ms) // 4)
