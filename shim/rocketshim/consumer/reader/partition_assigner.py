"""Decide which partitions a consumer reads where Kafka's group protocol does not decide it.

Such a consumer is not a member of a Kafka group: it assigns itself the partitions that a `TopicAssigner` wants. The
poll loop asks the assigner in each iteration, and treats changes like assignments and revocations of a group.

`TopicAssigner` looks up the partitions of the topics, at every change and at an interval. In BROADCASTING the consumer
reads all of them. In RocketMQ's own allocation a strategy chooses the share of this member among the members in the
group log. Members that see different lists for a moment compute shares that overlap, so a share is only a wish.
`LeasedAssigner` claims leases for the share in the group log, and lets the poll loop read the leased queues (in orderly
mode `OrderlyMode` does that itself). Rules of leases in concurrent consumption:

* Without the queue's lease nothing is read, passed to listeners or committed: Kafka does not fence the commits of a
  consumer that assigns itself.
* A queue that is revoked is drained (`revoke_drain_ms`), committed, then released. A listener that takes longer
  continues, and the next owner delivers its messages again. Concurrent consumption promises only at-least-once.
* If Kafka refuses a commit because its group protocol has members, which read the same, all queues count as lost.
* A lost lease ends the queue immediately: nothing more of it is handed out or committed. If the lease comes back, the
  queue starts again from the committed offset.
* A new owner starts at the committed offset. A commit covers only a finished prefix. So nothing is lost between two
  commits, whichever comes last. Unlike orderly consumers, these commit without a token and release without a position:
  the commit alone decides, so a reset by an operator is kept (test_a_commit_under_a_lease_carries_no_token).

Owned by the poll thread.

Source: `RebalanceImpl#rebalanceByTopic`. The leases are an addition: RocketMQ's concurrent consumers have none, and two
of them may consume one queue for a while.
"""

from collections.abc import Callable, Collection
from typing import Final

from confluent_kafka import KafkaException

from rocketshim.core.allocate import Allocation
from rocketshim.core.log_limits import RepeatedErrors
from rocketshim.core.user_values import safe_text
from rocketshim.kafka.clients import LookupClient
from rocketshim.kafka.lookups import found_topics
from rocketshim.locks.lease import Lease, Ownership, StopReason
from rocketshim.locks.log_thread import GroupLogThread
from rocketshim.logs import safe_logger
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["LeasedAssigner", "TopicAssigner"]

_LOG = safe_logger("rocketshim.consumer")
_TIMEOUT_S: Final = 5.0
_AGAIN_MS: Final = 1_000
_STOP_S: Final = 2.0


class TopicAssigner:
    """Reads the partitions of topics: all of them (BROADCASTING), or the share that `allocation` chooses.

    `members` returns the client ids of the live members. Nothing is wanted until this member is one of them.

    Decides: Which partitions does a consumer read that allocates itself, or in BROADCASTING? The share that the
        allocation gives its client id among the live members; all of them.
    """

    def __init__(
        self,
        topics: Callable[[], Collection[str]],
        interval_ms: int,
        allocation: Allocation | None = None,
        members: Callable[[], Collection[str]] = tuple,
    ) -> None:
        self._topics = topics
        self._interval_ms = interval_ms
        self._allocation = allocation
        self._members = members
        self._seen: tuple[frozenset[str], tuple[str, ...]] | None = None
        self._next_ms = 0
        self._repeated = RepeatedErrors()

    def wanted(
        self, lookups: LookupClient, held: Collection[TopicPartitionKey], now_ms: int
    ) -> set[TopicPartitionKey] | None:
        """Return all partitions to read from now on; None: no change. `held` are assigned now."""
        topics, members = seen = frozenset(self._topics()), tuple(self._members())
        allocation = self._allocation
        if seen == self._seen and now_ms < self._next_ms:
            return None
        if self._seen is None and allocation is not None and allocation.client_id not in members:
            return None
        self._seen = seen
        self._next_ms = now_ms + self._interval_ms
        try:
            there = self._partitions_of(lookups, topics, held)
        except KafkaException as error:
            if count := self._repeated.note(error.args[0].code(), now_ms):
                _LOG.warning("consumer.topics-unknown", extra={"error": str(error), "count": count})
            self._next_ms = now_ms + min(self._interval_ms, _AGAIN_MS)
            return None
        if allocation is None:
            return set().union(*there.values())
        share: set[TopicPartitionKey] = set()
        for topic, partitions in there.items():
            try:
                share |= allocation.share(topic, partitions, members)
            except BaseException:  # noqa: BLE001 - a strategy is user code; as in RocketMQ the assigned queues are kept
                strategy = safe_text(allocation.strategy, repr)
                _LOG.exception("consumer.strategy-failed", extra={"topic": topic, "strategy": strategy})
                share |= {key for key in held if key.topic == topic}
        return share

    @staticmethod
    def _partitions_of(
        lookups: LookupClient, topics: Collection[str], held: Collection[TopicPartitionKey]
    ) -> dict[str, set[TopicPartitionKey]]:
        """Return the partitions of each topic; of a topic that cannot be looked up now, return those in `held`."""
        there: dict[str, set[TopicPartitionKey]] = {}
        for topic, listed in found_topics(lookups, topics, _TIMEOUT_S).items():
            if listed is None or listed.error is not None or not listed.partitions:
                _LOG.warning("consumer.topic-unknown", extra={"topic": topic})
                there[topic] = {key for key in held if key.topic == topic}
            else:
                there[topic] = {TopicPartitionKey(topic, number) for number in listed.partitions}
        return there

    @property
    def has_share(self) -> bool:
        """Return whether nothing more is wanted than what `wanted` has returned."""
        return self._seen is not None

    def open(self) -> None:
        """Start; the reader's thread calls this once."""

    def release(self, key: TopicPartitionKey) -> None:
        """Release a partition that the loop no longer reads; it was committed if it was still owned."""

    def close(self) -> None:
        """Clean up; the loop has ended and has released every partition."""


class LeasedAssigner(TopicAssigner):
    """Reads only those queues of this member's share whose lease it has. Arguments as in `TopicAssigner`."""

    def __init__(
        self,
        topics: Callable[[], Collection[str]],
        interval_ms: int,
        allocation: Allocation,
        log: GroupLogThread,
        ownership: Ownership,
    ) -> None:
        super().__init__(topics, interval_ms, allocation, lambda: log.members)
        self._log = log
        self._wanted: set[TopicPartitionKey] | None = None
        self._leases = ownership.leases
        self._lost: dict[TopicPartitionKey, Lease] = {}

    def wanted(
        self, lookups: LookupClient, held: Collection[TopicPartitionKey], now_ms: int
    ) -> set[TopicPartitionKey] | None:
        """Return the partitions of the share whose leases this process has; see `TopicAssigner`.

        A log that can no longer be read, or another way to allocate in the group, is a RocketshimError.
        """
        if self._log.error is not None:
            raise self._log.error
        self._take_leases(held)
        share = super().wanted(lookups, self._wanted or (), now_ms)
        if share is not None and share != self._wanted:
            self._want(share)
            _LOG.info("consumer.share", extra={"queues": list(map(str, sorted(share)))})
        return None if self._wanted is None else self._leases.keys() & self._wanted

    @property
    def has_share(self) -> bool:
        """Return whether this process has the lease of each queue of its share."""
        return self._wanted is not None and self._wanted <= self._leases.keys()

    def open(self) -> None:
        """Start the group-log thread."""
        self._log.start()

    def release(self, key: TopicPartitionKey) -> None:
        """Release the lease of a queue."""
        lost, lease = self._lost.pop(key, None), self._leases.pop(key, None)
        if lease is not None and self._wanted and key in self._wanted:  # the log releases only what is not wanted
            self._want(self._wanted - {key})
        for each in filter(None, (lost, lease)):
            self._log.release(each)

    def close(self) -> None:
        """Release everything and leave the group; this takes a few seconds at most."""
        self._want(set())
        for key in [*self._lost, *self._leases]:
            self.release(key)
        self._log.stop(_STOP_S, self._release_late)

    def _release_late(self) -> None:
        """Release the leases that arrive while the log stops."""
        # a claim may be in flight (test_a_lease_that_is_won_while_its_member_closes_is_released)
        while self._log.leases.qsize():
            self._log.release(self._log.leases.get())

    def _want(self, share: set[TopicPartitionKey]) -> None:
        self._wanted = share
        self._log.want([MessageQueue(topic, queue_id=number) for topic, number in share])

    def _take_leases(self, held: Collection[TopicPartitionKey]) -> None:
        """Process leases, up to the loss of an assigned queue: the loop must end that queue before anything else."""
        while self._log.leases.qsize():
            lease = self._log.leases.get()
            key = lease.key
            is_in_use = self._leases.get(key) is lease
            if lease.stopped is None:
                self._leases[key] = lease  # if it is no longer wanted, it comes again, stopped
            elif is_in_use and key in held and lease.stopped is StopReason.UNWANTED:
                pass  # the loop gives it up, and then calls `release`
            elif is_in_use and key in held:
                self._lost[key] = self._leases.pop(key)
                return
            elif not lease.is_released:
                if is_in_use:
                    del self._leases[key]
                self._log.release(lease)
