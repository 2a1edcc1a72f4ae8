"""RocketMQ's own allocation: each member computes its share by itself, and consumes the queues that it has leases of.

`StrategyAssigner` computes the queues of this member. For each topic it applies a strategy to all queues and to the
members in the group log, at every change and every `rebalance_interval_ms`. Members that see different lists for a
moment compute shares that overlap, so a share is only a wish. `LeasedAssigner` claims leases for the share in the group
log, and lets the poll loop read the leased queues (in orderly mode `OrderlyMode` does that itself). Rules of leases in
concurrent consumption:

* Without the queue's lease nothing is read, passed to listeners or committed: Kafka does not fence the commits of a
  consumer that assigns itself.
* A queue that is given up is drained (`revoke_drain_ms`), committed, then released. A listener that takes longer
  continues, and the next owner delivers its messages again. Concurrent consumption promises only at-least-once.
* A lost lease ends the queue immediately: nothing more of it is handed out or committed. If the lease comes back, the
  queue starts again from the committed offset.
* A new owner starts at the committed offset. Commits carry no token, and releases carry no offset. A commit covers only
  a finished prefix. So nothing is lost between two commits, whichever comes last, and an operator's reset stays.

Owned by the poll thread.

Source: `RebalanceImpl#rebalanceByTopic`. The leases are an addition: RocketMQ's concurrent consumers have none, and two
of them may consume one queue for a while.
"""

from collections.abc import Callable, Collection
from typing import Any, Final, assert_never

from confluent_kafka import KafkaException

from rocketshim.consumer.reader.ownership import Ownership
from rocketshim.consumer.reader.partition_assigner import partitions_of
from rocketshim.core.allocate import AllocateMessageQueueStrategy, share_of
from rocketshim.core.lease import Lease
from rocketshim.core.queue_lock_actions import QueueStarted, QueueStopped, StopReason
from rocketshim.core.user_values import safe_text
from rocketshim.group.log_thread import GroupLogThread
from rocketshim.kafka.clients import LookupClient
from rocketshim.kafka.partitions import partition_names
from rocketshim.logs import safe_logger
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["LeasedAssigner", "StrategyAssigner"]

_LOG = safe_logger("rocketshim.consumer")
_AGAIN_MS: Final = 1_000
_STOP_S: Final = 2.0


class StrategyAssigner:
    """The queues that a strategy allocates to one member.

    Args:
        strategy: allocation strategy; the same in the whole group.
        group: logical name of the group.
        client_id: id of this member.
        topics: returns the physical topics to allocate.
        logical: physical to logical name of topics where they differ (the group's retry topic).
        members: returns the client ids of the live members.
        interval_ms: queues are looked up and allocated at least this often, in ms.

    Thread-safety: none; the poll thread's.
    """

    def __init__(
        self,
        *,
        strategy: AllocateMessageQueueStrategy,
        group: str,
        client_id: str,
        topics: Callable[[], Collection[str]],
        logical: dict[str, str],
        members: Callable[[], Collection[str]],
        interval_ms: int,
    ) -> None:
        self._strategy = strategy
        self._group = group
        self._client_id = client_id
        self._topics = topics
        self._logical = logical
        self._members = members
        self._interval_ms = interval_ms
        self._seen: tuple[frozenset[str], tuple[str, ...]] | None = None
        self._next_ms = 0

    def wanted(
        self, lookups: LookupClient, held: Collection[TopicPartitionKey], now_ms: int
    ) -> set[TopicPartitionKey] | None:
        """See `PartitionAssigner`: this member's share; None until its first heartbeat was read back."""
        seen = frozenset(self._topics()), tuple(self._members())
        if (seen == self._seen and now_ms < self._next_ms) or (self._seen is None and self._client_id not in seen[1]):
            return None
        self._next_ms = now_ms + self._interval_ms
        try:
            there = partitions_of(lookups, seen[0], held)
        except KafkaException as error:
            _LOG.warning("consumer.topics-unknown", extra={"error": str(error)})
            self._next_ms = now_ms + min(self._interval_ms, _AGAIN_MS)
            return None
        self._seen = seen
        share: set[TopicPartitionKey] = set()
        for topic in sorted(seen[0]):
            share |= self._of_topic(topic, there, seen[1], held)
        return share

    def gave_up(self, key: TopicPartitionKey) -> None:
        """See `PartitionAssigner`."""

    def close(self) -> None:
        """See `PartitionAssigner`."""

    def _of_topic(
        self,
        topic: str,
        there: Collection[TopicPartitionKey],
        members: Collection[str],
        held: Collection[TopicPartitionKey],
    ) -> set[TopicPartitionKey]:
        name = self._logical.get(topic, topic)
        keys = {MessageQueue(name, queue_id=key.partition): key for key in there if key.topic == topic}
        if not keys or self._client_id not in members:
            return set()
        try:
            share: list[Any] = share_of(self._strategy, self._group, self._client_id, keys, members)
            return {keys[queue] for queue in share if queue in keys}
        except BaseException:  # noqa: BLE001 - a strategy is user code; as in RocketMQ the assigned queues are kept
            _LOG.exception(
                "consumer.strategy-failed", extra={"topic": topic, "strategy": safe_text(self._strategy, repr)}
            )
            return {key for key in held if key.topic == topic}


class LeasedAssigner:
    """An assigner that reads only those queues of a share whose lease this process has.

    Args:
        share: computes the wanted queues.
        log: the group-log thread.
        ownership: has the leases.

    Thread-safety: none; the poll thread's.
    """

    def __init__(self, share: StrategyAssigner, log: GroupLogThread, ownership: Ownership) -> None:
        self._share = share
        self._log = log
        self._wanted: set[TopicPartitionKey] | None = None
        self._leases = ownership.leases
        self._lost: dict[TopicPartitionKey, Lease] = {}
        self._given: set[TopicPartitionKey] | None = None

    def wanted(
        self, lookups: LookupClient, held: Collection[TopicPartitionKey], now_ms: int
    ) -> set[TopicPartitionKey] | None:
        """See `PartitionAssigner`.

        Raises:
            RocketshimError: the group log can no longer be read, or the group allocates its queues in another way.
        """
        if self._log.error is not None:
            raise self._log.error
        self._take_events(held)
        share = self._share.wanted(lookups, self._wanted or (), now_ms)
        if share is not None and share != self._wanted:
            self._want(share)
            _LOG.info("consumer.share", extra={"queues": partition_names(sorted(share))})
        if self._wanted is None:
            return None
        given = {key for key in self._leases if key in self._wanted}
        if given == self._given:
            return None
        self._given = given
        return given

    def gave_up(self, key: TopicPartitionKey) -> None:
        """Release the lease: nothing more of the queue is handed out, and what could be committed is committed."""
        lost = self._lost.pop(key, None)
        if lost is not None:
            self._release(lost)
        lease = self._leases.pop(key, None)
        if lease is not None:
            if self._wanted and key in self._wanted:  # the log releases only queues that are not wanted
                self._want(self._wanted - {key})
            self._release(lease)

    def close(self) -> None:
        """Release everything and leave the group; this takes a few seconds at most."""
        self._want(set())
        for key in [*self._lost, *self._leases]:
            self.gave_up(key)
        self._log.stop(_STOP_S, self._release_new_leases)

    def _release_new_leases(self) -> None:
        """Release the leases that arrive while the log stops."""
        while self._log.events.qsize():
            self._release(self._log.events.get().lease)

    def _want(self, share: set[TopicPartitionKey]) -> None:
        self._wanted = share
        self._log.want([MessageQueue(topic, queue_id=number) for topic, number in share])

    def _take_events(self, held: Collection[TopicPartitionKey]) -> None:
        """Process events, up to the loss of an assigned queue: the loop must end that queue before anything else."""
        while self._log.events.qsize():
            event = self._log.events.get()
            match event:
                case QueueStarted(lease):
                    self._leases[_key_of(lease)] = lease  # if it is no longer wanted, its QueueStopped follows
                case QueueStopped(lease, reason):
                    if self._stopped(lease, reason, held):
                        return
                case _:
                    assert_never(event)

    def _stopped(self, lease: Lease, reason: StopReason, held: Collection[TopicPartitionKey]) -> bool:
        key = _key_of(lease)
        if self._leases.get(key) is not lease:
            self._release(lease)  # it was given up before
            return False
        if key not in held:
            del self._leases[key]
            self._release(lease)
            return False
        if reason is StopReason.UNWANTED:
            return False  # the loop gives it up, and then calls `gave_up`
        del self._leases[key]
        self._lost[key] = lease
        return True

    def _release(self, lease: Lease) -> None:
        self._log.release(lease, None, ())


def _key_of(lease: Lease) -> TopicPartitionKey:
    return TopicPartitionKey(lease.queue.topic, lease.queue.queue_id)
