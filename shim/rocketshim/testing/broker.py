"""The state behind the in-memory clients: topics, groups, transactions, and the one lock around all of it.

Rules of the file:

* Every method marked "locked" is called with `lock` held. No callback of a user or of a client ever runs under it.
* Time passes only in the clock. What the broker does by itself when time has passed (aborting a transaction that is too
  old, putting out a member that is gone) happens in `settle`, which every client calls first and which a virtual clock
  calls after each move. So nothing depends on a background thread.
* Each change wakes the threads that wait (`rocketshim.testing.waiting`).
* The leader's clock is the wall clock plus the skew ordered for the partition; it stamps LogAppendTime topics.

Not handled: several brokers with own state, replication, quotas, compression, auto-creation of topics.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, KafkaError
from confluent_kafka.admin import (  # type: ignore[attr-defined] # there at run time; the package does not say so
    BrokerMetadata,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)

from rocketshim.core.clock import Clock
from rocketshim.testing.assignors import Partition
from rocketshim.testing.clock import VirtualClock
from rocketshim.testing.faults import Faults, Scope
from rocketshim.testing.group_coordinator import CommittedOffset, GroupCoordinator, GroupMember
from rocketshim.testing.kafka_errors import Code, kafka_error
from rocketshim.testing.partition_log import Headers, PartitionLog, StoredRecord, Transaction
from rocketshim.testing.waiting import NS_PER_MS, Changes, Waiter, Waiting

__all__ = ["CommitRecord", "ConsumerSide", "InMemoryBroker", "ProducerSide", "Topic", "TransactionalId"]

DEFAULT_MAX_MESSAGE_BYTES = 1_048_588
DEFAULT_TIMESTAMP_AFTER_MAX_MS = 3_600_000


class ConsumerSide(Protocol):
    """What the broker knows of a consumer."""

    group_id: str
    member: GroupMember | None
    session_timeout_ms: int
    max_poll_interval_ms: int
    silent_since_ns: int | None
    last_poll_ns: int

    def poll_interval_exceeded(self) -> None:
        """The group has put it out because it did not poll (locked)."""

    def topics_changed(self) -> None:
        """A topic came or went (locked)."""


class ProducerSide(Protocol):
    """What the broker knows of a producer."""

    def transmit(self) -> None:
        """Send on what waits, as far as it goes (locked)."""


@dataclass(slots=True)
class Topic:
    """A topic: its partitions, its settings, and an id that tells it from another of the same name."""

    name: str
    topic_id: int
    partitions: list[PartitionLog]
    config: dict[str, str]

    @property
    def is_log_append_time(self) -> bool:
        """Whether the leader stamps its records."""
        return self.config.get("message.timestamp.type", "CreateTime") == "LogAppendTime"

    @property
    def max_message_bytes(self) -> int:
        """Largest record batch it takes."""
        return int(self.config.get("max.message.bytes", DEFAULT_MAX_MESSAGE_BYTES))

    @property
    def timestamp_after_max_ms(self) -> int:
        """How far a sender's timestamp may be ahead of the leader's clock."""
        return int(self.config.get("message.timestamp.after.max.ms", DEFAULT_TIMESTAMP_AFTER_MAX_MS))

    @property
    def is_compacted(self) -> bool:
        """Whether its cleaner compacts, so that records need keys."""
        return "compact" in self.config.get("cleanup.policy", "delete")


@dataclass(slots=True)
class TransactionalId:
    """A `transactional.id` as its coordinator keeps it."""

    name: str
    producer_id: int
    epoch: int  # raised by each `init_transactions` and each abort for age; who comes with a lower one is fenced
    timeout_ms: int
    running: Transaction | None = None
    started_ns: int = 0
    offsets: dict[str, dict[Partition, CommittedOffset]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommitRecord:
    """One accepted commit, for tests that ask what was committed when.

    Attributes:
        monotonic_ns: when, by the clock.
        member_id: by whom; `""` for an outsider of the group or a transaction.
        next_offset: the offset committed, that is, the next one to read.
    """

    monotonic_ns: int
    group_id: str
    member_id: str
    topic: str
    partition: int
    next_offset: int
    metadata: str | None


class InMemoryBroker:
    """Everything the in-memory clients share.

    Args:
        clock: time; a `VirtualClock` wakes waiters when it moves.
        enforce_poll_interval: whether `max.poll.interval.ms` puts members out.

    Thread-safety: `lock` guards all state.
    """

    def __init__(self, clock: Clock, *, enforce_poll_interval: bool) -> None:
        self.clock = clock
        self.changes = Changes()
        self.lock = self.changes.lock
        self.topics: dict[str, Topic] = {}
        self.groups: dict[str, GroupCoordinator] = {}
        self.transactional_ids: dict[str, TransactionalId] = {}
        self.consumers: list[ConsumerSide] = []
        self.producers: list[ProducerSide] = []
        self.commits: list[CommitRecord] = []
        self.faults = Faults()
        self.delayed_lookups: list[tuple[str, frozenset[str]]] = []
        self.skews_ms: list[tuple[Scope, int]] = []
        self._enforce_poll_interval = enforce_poll_interval
        self._ids = itertools.count(1)
        self._keyless_turn = itertools.count()
        if isinstance(clock, VirtualClock):
            clock.on_change(self.time_passed)

    # --- time and change -----------------------------------------------------------------------------------------

    def touch(self) -> None:
        """Something has changed: send on what waited and wake who waits (locked)."""
        for producer in self.producers:
            producer.transmit()
        self.changes.tell()

    def waiter(self, waiting: Waiting, timeout_s: float) -> Waiter:
        """How one call of a client with this policy waits."""
        return Waiter(self.changes, self.clock, waiting, timeout_s)

    def await_answer(self, waiting: Waiting, timeout_s: float) -> None:
        """Wait while the broker is down, at most `timeout_s` seconds (−1: forever). Called without the lock."""
        waiter = self.waiter(waiting, timeout_s)
        while True:
            with self.lock:
                version = self.changes.version
                if not self.faults.is_broker_down:
                    return
            if not waiter.wait(version):
                return

    def time_passed(self) -> None:
        """The clock has moved."""
        with self.lock:
            self.settle()
            self.touch()

    def settle(self) -> None:
        """Do what the broker does by itself as time passes (locked)."""
        if self.faults.is_broker_down:
            return
        now_ns = self.clock.monotonic_ns()
        for transactional in self.transactional_ids.values():
            if transactional.running and now_ns - transactional.started_ns >= transactional.timeout_ms * NS_PER_MS:
                transactional.epoch += 1
                self.end_transaction(transactional, is_commit=False)
        for consumer in list(self.consumers):
            self._settle_member(consumer, now_ns)

    def _settle_member(self, consumer: ConsumerSide, now_ns: int) -> None:
        member = consumer.member
        if member is None or member.member_id not in self.group(consumer.group_id).members:
            return
        if consumer.silent_since_ns is not None:
            if now_ns - consumer.silent_since_ns >= consumer.session_timeout_ms * NS_PER_MS:
                self.group(consumer.group_id).evict(member)
                self.touch()
        elif self._enforce_poll_interval and now_ns - consumer.last_poll_ns > consumer.max_poll_interval_ms * NS_PER_MS:
            self.group(consumer.group_id).evict(member)
            consumer.poll_interval_exceeded()
            self.touch()

    # --- topics --------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, partition_count: int, config: dict[str, str]) -> None:
        """Make a topic that is not there yet (locked)."""
        self.topics[name] = Topic(name, next(self._ids), [PartitionLog() for _ in range(partition_count)], config)
        self.topics_changed()

    def topics_changed(self) -> None:
        """Tell groups and consumers that a topic came, went or grew (locked)."""
        for group in self.groups.values():
            group.metadata_changed()
        for consumer in self.consumers:
            consumer.topics_changed()
        self.touch()

    def log(self, topic: str, partition: int) -> PartitionLog | None:
        """The log of a partition; None where there is none (locked)."""
        found = self.topics.get(topic)
        return found.partitions[partition] if found and 0 <= partition < len(found.partitions) else None

    def leader_wall_ms(self, topic: str, partition: int) -> int:
        """What the clock of a partition's leader shows (locked)."""
        skew = next((ms for scope, ms in reversed(self.skews_ms) if scope.covers(topic, partition)), 0)
        return self.clock.wall_ms() + skew

    def append(
        self,
        topic: Topic,
        partition: int,
        *,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        transaction: Transaction | None = None,
    ) -> StoredRecord:
        """Store a record, stamped as the topic says (locked). The caller calls `touch`."""
        is_append_time = topic.is_log_append_time
        return topic.partitions[partition].append(
            key=key,
            value=value,
            headers=headers,
            timestamp_type=TIMESTAMP_LOG_APPEND_TIME if is_append_time else TIMESTAMP_CREATE_TIME,
            timestamp_ms=self.leader_wall_ms(topic.name, partition) if is_append_time else timestamp_ms,
            transaction=transaction,
        )

    def next_keyless_turn(self) -> int:
        """A number for spreading records without a key, one after another instead of at random (locked)."""
        return next(self._keyless_turn)

    def match_topics(self, patterns: Sequence[str]) -> list[str]:
        """Existing topics that a subscription names: literal names, and regular expressions that begin with `^`."""
        found = {name for name in patterns if name in self.topics}
        for pattern in patterns:
            if pattern.startswith("^"):
                found.update(name for name in self.topics if re.match(pattern, name))
        return sorted(found)

    def cluster_metadata(self, topic: str | None) -> ClusterMetadata:
        """What `list_topics` answers (locked)."""
        cluster = ClusterMetadata()
        node = BrokerMetadata()
        node.id, node.port = 1, 9092
        node.host = "in-memory"  # type: ignore[assignment] # the stub infers None from the initial value
        cluster.controller_id, cluster.brokers = 1, {1: node}
        cluster.cluster_id = "in-memory"  # type: ignore[assignment] # likewise
        for name in sorted(self.topics) if topic is None else [topic]:
            cluster.topics[name] = self._topic_metadata(name)
        return cluster

    def _topic_metadata(self, name: str) -> TopicMetadata:
        metadata = TopicMetadata()
        metadata.topic = name
        topic = self.topics.get(name)
        if topic is None:
            metadata.error = kafka_error(Code.UNKNOWN_TOPIC_OR_PART)
            return metadata
        for number in range(len(topic.partitions)):
            partition = PartitionMetadata()
            partition.id, partition.leader, partition.replicas, partition.isrs = number, 1, [1], [1]
            metadata.partitions[number] = partition
        return metadata

    # --- groups --------------------------------------------------------------------------------------------------

    def group(self, group_id: str) -> GroupCoordinator:
        """The coordinator of a group, made on first use (locked)."""
        found = self.groups.get(group_id)
        if found is None:
            found = self.groups[group_id] = GroupCoordinator(
                group_id,
                match_topics=self.match_topics,
                partition_counts=lambda: {name: len(topic.partitions) for name, topic in self.topics.items()},
            )
        return found

    def commit(
        self, group_id: str, member_id: str, generation: int, positions: Mapping[Partition, CommittedOffset]
    ) -> KafkaError | None:
        """Commit as a group's coordinator; return the error of the call, None if everything is committed."""
        doing = "Commit failed"
        if not positions:
            return kafka_error(Code.NO_OFFSET, doing)
        if self.faults.is_broker_down:
            return kafka_error(Code.WAIT_COORD, doing)
        fault = self.faults.take_call(group_id, "commit")
        if fault is not None and not fault.is_applied:
            return fault.error
        code = self.group(group_id).check_commit(member_id, generation)
        if code is not None:
            return kafka_error(code, doing)
        known = [(partition, at) for partition, at in positions.items() if self.log(*partition) is not None]
        self.store_offsets(group_id, member_id, known)
        if fault is not None:
            return fault.error
        return None if len(known) == len(positions) else kafka_error(Code.UNKNOWN_TOPIC_OR_PART, doing)

    def store_offsets(
        self, group_id: str, member_id: str, offsets: Iterable[tuple[Partition, CommittedOffset]]
    ) -> None:
        """Keep committed offsets and remember that they were committed (locked)."""
        group = self.group(group_id)
        for partition, committed in offsets:
            group.offsets[partition] = committed
            self.commits.append(
                CommitRecord(
                    self.clock.monotonic_ns(), group_id, member_id, *partition, committed.offset, committed.metadata
                )
            )

    def has_unstable_offsets(self, group_id: str, partition: Partition) -> bool:
        """Whether an open transaction is about to move this committed offset (locked)."""
        return any(
            transactional.running is not None and partition in transactional.offsets.get(group_id, {})
            for transactional in self.transactional_ids.values()
        )

    # --- transactions --------------------------------------------------------------------------------------------

    def init_transactions(self, name: str, timeout_ms: int) -> tuple[TransactionalId, int]:
        """Take over a transactional id: fence the former owner, abort what it left (locked)."""
        transactional = self.transactional_ids.get(name)
        if transactional is None:
            transactional = self.transactional_ids[name] = TransactionalId(name, next(self._ids), -1, timeout_ms)
        transactional.epoch += 1
        transactional.timeout_ms = timeout_ms
        if transactional.running is not None:
            self.end_transaction(transactional, is_commit=False)
        return transactional, transactional.epoch

    def join_transaction(self, transactional: TransactionalId) -> Transaction:
        """The running transaction, begun if there is none (locked)."""
        if transactional.running is None:
            transactional.running = Transaction(transactional.producer_id, transactional.epoch)
            transactional.started_ns = self.clock.monotonic_ns()
        return transactional.running

    def end_transaction(self, transactional: TransactionalId, *, is_commit: bool) -> None:
        """Write the markers of the running transaction, and its offsets if it commits (locked)."""
        running = transactional.running
        if running is None:
            return
        running.state = "committed" if is_commit else "aborted"
        transactional.running = None
        for topic in self.topics.values():
            for log in topic.partitions:
                log.end_transaction(running)
        offsets, transactional.offsets = transactional.offsets, {}
        if is_commit:
            for group_id, positions in offsets.items():
                self.store_offsets(group_id, "", positions.items())
        self.touch()
