"""The lease of one queue, its times, and who asks whether it holds. `rocketshim.locks` has the rules."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from rocketshim.errors import ConfigError
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.group_log import LEASE_MAX_MS
from rocketshim_topics.message_queue import MessageQueue

__all__ = [
    "LOG_TIME_STEP_MAX_MS",
    "NO_LOCK",
    "NO_TROUBLE",
    "Lease",
    "Ownership",
    "QueueLockSettings",
    "ReconsumeCounts",
    "StopReason",
    "Trouble",
]

LOG_TIME_STEP_MAX_MS: Final = 5_000
"""Maximum that one record adds to log time, in ms."""

ReconsumeCounts = tuple[tuple[int, int], ...]
"""(offset, failed attempts) of messages that are not finished, ascending."""


class Trouble(NamedTuple):
    """What a person wants to know about a queue; times are monotonic ms, and None means that there is none."""

    since_ms: int | None = None  # since when its first failing message fails
    cause: str | None = None  # class and text of the last failure of that message
    trace: str | None = None  # the stack trace of that failure
    call: tuple[int, int] | None = None  # offset of a message that a listener has had for long, and since when


NO_TROUBLE: Final = Trouble()
"""The queue goes on, as far as is known."""


class StopReason(Enum):
    """Why a lease may no longer be used."""

    UNWANTED = auto()
    """The queue is to be released: drain, commit while the lease is valid, then release."""
    UNCONFIRMED = auto()
    """No renewal was confirmed in time: the belief has ended. Drain, but commit nothing."""
    LOST = auto()
    """By the log the queue is no longer ours. Drain, but commit nothing."""
    LOG_LOST = auto()
    """The log itself cannot be followed. Drain, but commit nothing."""


class Lease:
    """One lease of one queue, from its grant to its release. Ask `holds` before each listener call and each commit.

    Its `token` is higher than every earlier one of the queue. `next_offset`, `reconsume_counts` and `position_token`
    are what the owner before it has reported, in time for `start_after`.

    Thread-safety: only the group-log thread writes `until_ms` and `stopped`, only the lease's user `is_released`, and
    any thread may read.
    """

    __slots__ = (
        "is_released", "next_offset", "position_token", "queue", "reconsume_counts", "stopped", "token", "until_ms",
    )  # fmt: skip

    def __init__(
        self,
        queue: MessageQueue,
        token: int,
        until_ms: int,
        *,
        next_offset: int | None = None,
        reconsume_counts: ReconsumeCounts = (),
        position_token: int = -1,
    ) -> None:
        self.queue = queue
        self.token = token
        self.until_ms = until_ms  # monotonic; a renewal extends it; 0: the lease has ended
        self.stopped: StopReason | None = None  # why no further call may begin; None: it may
        self.is_released = False  # its user has drained the queue, and has asked for the release
        self.next_offset = next_offset
        self.reconsume_counts = reconsume_counts
        self.position_token = position_token  # of the owner that reported `next_offset`

    @property
    def key(self) -> TopicPartitionKey:
        """The partition of the queue."""
        return TopicPartitionKey(self.queue.topic, self.queue.queue_id)

    @property
    def fencing_token(self) -> int | None:
        """The token for sinks and commits; None: the queue needs no lock."""
        return None if self is NO_LOCK else self.token

    def holds(self, now_ms: int) -> bool:
        """Return whether this process may process and commit the queue at this monotonic instant in ms.

        Decides: May messages of a partition be handed out, and its offset be committed? Everyone asks here: the poll
            loop and commits by `Ownership.owns`, the listener thread before each call (written out, for speed, in
            `consumer.orderly.OrderlyRunner._one_by_one`). Positions of push consumers never go back:
            `core.partition.Partition.may_send`; one asynchronous commit at a time:
            `consumer.reader.group_offsets.Committer.commit`.
        """
        return now_ms < self.until_ms

    def start_after(self, committed: int, token: int | None) -> tuple[int, ReconsumeCounts]:
        """Return where the queue starts, and the failed attempts that count there.

        The log's position is newer than the commit if the same owner has made both, or a later one has reported it. It
        counts for nothing if the positions begin again: an operator or another program has made the commit (it has no
        token), or there is none (the topic was created again), or an owner after the one that reported it has committed
        a lower start (it was created again before that owner)
        (test_a_position_of_the_log_counts_unless_a_later_owner_or_an_operator_has_begun_lower).
        """
        known = committed if self.next_offset is None else self.next_offset
        if token is None or (known > committed and self.position_token < token):
            return committed, ()
        return max(committed, known), self.reconsume_counts

    def __repr__(self) -> str:
        return f"Lease({self.queue}, token={self.token}, until_ms={self.until_ms})"


NO_LOCK: Final = Lease(MessageQueue("", queue_id=0), -1, 2**62)
"""The lease of a queue that needs no lock (BROADCASTING): it always holds."""


class Ownership:
    """Which partitions of one consumer this process owns now: what may be handed out to listeners, and committed.

    With `needs_lease` a partition is owned only while one of the `leases` holds. Otherwise an assigned partition is
    owned: Kafka's group protocol fences commits, and broadcasting shares nothing. With `is_fenced` commits carry the
    token of the lease.

    `is_shared`: Kafka refused a commit because it does not know the sender as a member of the group. For a consumer
    that assigns itself this means that the group protocol has given its partitions to others, too.
    """

    def __init__(self, now_ms: Callable[[], int], *, needs_lease: bool = False, is_fenced: bool = False) -> None:
        self.leases: dict[TopicPartitionKey, Lease] = {}  # those that may be used
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
        return None if lease is None else lease.fencing_token


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
