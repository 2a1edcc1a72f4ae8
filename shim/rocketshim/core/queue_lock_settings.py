"""The times of queue locks, checked against each other.

An owner renews before its belief ends, and its belief ends before the log lets another member own the queue: renew <
hold < lease. The time between hold and lease is the margin; it must cover all errors of clocks.
"""

from dataclasses import dataclass

from rocketshim.core.group_log import LOG_TIME_STEP_MAX_MS
from rocketshim.errors import ConfigError
from rocketshim_topics.group_log import LEASE_MAX_MS

__all__ = ["QueueLockSettings"]


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
