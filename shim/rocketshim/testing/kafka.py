"""`InMemoryKafka`: one Kafka cluster in this process, for tests and simulations.

`consumer` and `producer` create its clients; every producer, consumer and worker accepts them as factories. The other
methods are for the test: they read and change the records, inject faults, and set the clocks of partition leaders.

A policy (`rocketshim.testing.waiting`) determines how clients wait if there is nothing to return. By default the thread
that created the cluster never waits, because it runs the test; every other thread waits. A simulation in one thread
passes `on_wait` and advances the clock to its next event there.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, Message

from rocketshim.core.clock import Clock
from rocketshim.errors import ConfigError
from rocketshim.kafka.clients import Clients
from rocketshim.testing.broker import CommitRecord, InMemoryBroker, Topic
from rocketshim.testing.client_settings import ConsumerSettings, ProducerSettings
from rocketshim.testing.clock import VirtualClock
from rocketshim.testing.consumer import InMemoryConsumer
from rocketshim.testing.faults import CallFault, ProduceFault, Scope
from rocketshim.testing.fetching import as_message
from rocketshim.testing.outgoing import to_headers, to_payload
from rocketshim.testing.partition_log import PartitionLog
from rocketshim.testing.producer import InMemoryProducer
from rocketshim.testing.waiting import Waiting
from rocketshim_topics.layout import TopicSpec

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

    from rocketshim.kafka.clients import ConsumerFactory, ProducerFactory

__all__ = ["InMemoryKafka"]

LOOK_INTERVAL_S = 0.01


class InMemoryKafka:
    """One Kafka cluster in memory.

    Args:
        clock: clock of the broker and its clients; default a new `VirtualClock`.
        on_wait: called when a client has to wait, with its timeout in seconds (−1: no timeout); None: no hook.
        blocking: whether clients block if there is no hook; None: yes on a real clock, and on a virtual clock in every
            thread except the one that creates this object.
        enforce_max_poll_interval: whether a member that has not polled for `max.poll.interval.ms` is removed from its
            group; default False, because a test that advances the clock by an hour rarely wants to remove all members.
        fetch_run_count: number of records that a consumer reads from one partition before it turns to the next.

    Thread-safety: every method and every client call may come from any thread; one lock guards the state. Calls from
    one thread are deterministic: the same calls give the same results.
    """

    def __init__(
        self,
        clock: Clock | None = None,
        *,
        on_wait: Callable[[float], None] | None = None,
        blocking: bool | None = None,
        enforce_max_poll_interval: bool = False,
        fetch_run_count: int = 16,
    ) -> None:
        self.clock = VirtualClock() if clock is None else clock
        self._waiting = Waiting(on_wait, blocking)
        self._broker = InMemoryBroker(self.clock, enforce_poll_interval=enforce_max_poll_interval)
        self._fetch_run_count = fetch_run_count

    # --- clients -------------------------------------------------------------------------------------------------

    def consumer(self, config: Mapping[str, Any]) -> InMemoryConsumer:
        """Create a consumer with librdkafka settings; `group.id` is required. Matches `ConsumerFactory`.

        Raises:
            ValueError: `group.id` is missing.
            KafkaException: `_INVALID_ARG`, a value that librdkafka rejects.
        """
        return self._consumer(config, self._waiting)

    def producer(self, config: Mapping[str, Any]) -> InMemoryProducer:
        """Create a producer with librdkafka settings. Matches `ProducerFactory`.

        Raises:
            KafkaException: `_INVALID_ARG`, a value that librdkafka rejects.
        """
        return self._producer(config, self._waiting)

    def clients(self, *, on_wait: Callable[[float], None] | None = None, blocking: bool | None = None) -> Clients:
        """Return both factories for the argument `clients=` of producers, consumers and workers.

        Args:
            on_wait: the hook of these clients. If it and `blocking` are None, the cluster's policy is used.
            blocking: whether these clients block.
        """
        waiting = self._waiting
        if on_wait is not None or blocking is not None:
            waiting = replace(waiting, on_wait=on_wait, blocking=blocking)
        return Clients(
            consumer=lambda config: self._consumer(config, waiting),
            producer=lambda config: self._producer(config, waiting),
        )

    def wait_until(
        self, condition: Callable[[], bool], *, driving: Callable[[], object] | None = None, guard_s: float = 30.0
    ) -> None:
        """Wait in real time until a condition holds, for tests of programs with their own threads.

        The condition is checked after each change in the cluster and also a hundred times a second, because it may not
        depend on the cluster.

        Args:
            condition: the condition; called in this thread without a lock.
            driving: called before each check, to run a part that has no thread (`lambda: worker.step(0)`); None:
                nothing.
            guard_s: timeout in real seconds.

        Raises:
            TimeoutError: the condition does not hold after `guard_s` real seconds.
        """
        deadline_s = time.monotonic() + guard_s
        while True:
            with self._broker.lock:
                version = self._broker.changes.version
            if driving is not None:
                driving()
            if condition():
                return
            if time.monotonic() >= deadline_s:
                raise TimeoutError(f"the condition does not hold after {guard_s} seconds")
            self._broker.changes.await_change(version, is_over=lambda: False, real_timeout_s=LOOK_INTERVAL_S)

    # --- topics --------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, partitions: int = 1, *, config: Mapping[str, str] | None = None) -> None:
        """Create a topic.

        Args:
            name: physical topic name.
            partitions: number of partitions, at least 1.
            config: Kafka topic settings; `message.timestamp.type` (default CreateTime), `max.message.bytes` (default
                1 048 588), `message.timestamp.after.max.ms` (default 1 h) and `cleanup.policy` (default delete) have an
                effect.

        Raises:
            ConfigError: the topic exists, or `partitions` is below 1; nothing has changed.
        """
        with self._broker.lock:
            if name in self._broker.topics:
                raise ConfigError(f"topic {name!r} exists already; delete_topic it first or choose another name")
            if partitions < 1:
                raise ConfigError(f"topic {name!r} with {partitions} partitions; a topic needs at least 1")
            self._broker.create_topic(name, partitions, dict(config or {}))

    def create_topics(self, specs: Iterable[TopicSpec]) -> None:
        """Create the missing topics of a layout, for example `Layout(...).for_group(group, with_log=False)`."""
        with self._broker.lock:
            for spec in specs:
                if spec.name not in self._broker.topics:
                    self.create_topic(spec.name, spec.partitions, config=spec.config)

    def add_partitions(self, name: str, partitions: int) -> None:
        """Increase the number of partitions of a topic to `partitions`; a smaller number changes nothing."""
        with self._broker.lock:
            topic = self._topic(name)
            topic.partitions.extend(PartitionLog() for _ in range(partitions - len(topic.partitions)))
            self._broker.topics_changed()

    def delete_topic(self, name: str) -> None:
        """Delete a topic, its records, and the committed offsets of all groups for it."""
        with self._broker.lock:
            self._topic(name)
            del self._broker.topics[name]
            for group in self._broker.groups.values():
                group.forget_topic(name)
            self._broker.topics_changed()

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        with self._broker.lock:
            return sorted(self._broker.topics)

    def append(
        self,
        topic: str,
        value: bytes | None = None,
        *,
        key: bytes | None = None,
        partition: int = 0,
        headers: Iterable[tuple[str, bytes | None]] = (),
        timestamp_ms: int | None = None,
    ) -> Message:
        """Append a record to the log directly, without any fault, and return it as a reader will see it.

        Args:
            topic: an existing topic.
            value: body; None is a tombstone.
            key: Kafka key.
            partition: partition number.
            headers: headers in order; names may repeat.
            timestamp_ms: epoch ms; None: now. A LogAppendTime topic always uses the clock of its leader.

        Raises:
            ConfigError: the topic or partition does not exist.
            TypeError: key, value or a header is neither bytes nor text, which is stored as UTF-8.
        """
        with self._broker.lock:
            self._log(topic, partition)
            record = self._broker.append(
                self._topic(topic),
                partition,
                key=to_payload(key),
                value=to_payload(value),
                headers=to_headers(list(headers)),
                timestamp_ms=self.clock.wall_ms() if timestamp_ms is None else timestamp_ms,
            )
            self._broker.touch()
            return as_message(topic, partition, record)

    def records(self, topic: str, partition: int | None = None, *, read_committed: bool = True) -> list[Message]:
        """Return the records of a topic, by partition and offset.

        Args:
            topic: an existing topic.
            partition: partition number; None: all partitions.
            read_committed: whether to leave out records of open and aborted transactions.
        """
        with self._broker.lock:
            logs = self._topic(topic).partitions
            numbers: Sequence[int] = range(len(logs)) if partition is None else [partition]
            return [
                as_message(topic, number, record)
                for number in numbers
                for record in logs[number].records(read_committed=read_committed)
            ]

    def end_offsets(self, topic: str) -> dict[int, int]:
        """Return the end offset of each partition for a reader with `read_committed`."""
        with self._broker.lock:
            logs = self._topic(topic).partitions
            return {number: log.end_offset(read_committed=True) for number, log in enumerate(logs)}

    def skip_offsets(self, topic: str, partition: int = 0, *, count: int = 1) -> None:
        """Leave a hole of `count` offsets, as transaction markers do."""
        with self._broker.lock:
            self._log(topic, partition).skip(count)
            self._broker.touch()

    def truncate(self, topic: str, partition: int = 0, *, before_offset: int) -> None:
        """Drop the records below an offset and raise the low watermark to it, as retention does."""
        with self._broker.lock:
            self._log(topic, partition).truncate(before_offset)
            self._broker.touch()

    def compact(self, topic: str) -> None:
        """Keep the last record of each key only, as a log cleaner does in the end."""
        with self._broker.lock:
            for log in self._topic(topic).partitions:
                log.compact()
            self._broker.touch()

    def set_leader_clock(self, skew_ms: int, *, topic: str | None = None, partition: int | None = None) -> None:
        """Set the clock of the leader of these partitions to the wall clock plus `skew_ms`.

        If several calls match a partition, the latest one counts; None matches any topic or partition.
        """
        with self._broker.lock:
            self._broker.skews_ms.append((Scope(topic, partition), skew_ms))

    # --- groups --------------------------------------------------------------------------------------------------

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Return (topic, partition) to the committed offset of a group."""
        with self._broker.lock:
            offsets = self._broker.group(group).offsets
            return {partition: committed.offset for partition, committed in sorted(offsets.items())}

    def commits(self, group: str) -> list[CommitRecord]:
        """Return every commit of a group that the broker accepted, in order."""
        with self._broker.lock:
            return [commit for commit in self._broker.commits if commit.group_id == group]

    def members(self, group: str) -> list[str]:
        """Return the member ids of a group, sorted."""
        with self._broker.lock:
            return sorted(self._broker.group(group).members)

    @property
    def delayed_lookups(self) -> list[tuple[str, frozenset[str]]]:
        """Each question that a real broker would have answered up to `fetch.wait.max.ms` late, in order.

        The method of a consumer, and the topics it was reading: a broker answers a consumer's `list_topics`,
        `get_watermark_offsets` and `offsets_for_times` after the fetch that it is holding. Here they are answered at
        once; a program that polls may still want to ask them of a client that reads nothing.
        """
        with self._broker.lock:
            return list(self._broker.delayed_lookups)

    # --- what goes wrong -----------------------------------------------------------------------------------------

    def fail_produce(
        self,
        error: KafkaError | None,
        *,
        topic: str | None = None,
        partition: int | None = None,
        count: int = 1,
        synchronous: bool = False,
        stored: bool = False,
    ) -> None:
        """Make the next `count` sends fail.

        Args:
            error: the error of the delivery report, or the error that `produce` raises. None: the broker calls these
                sends duplicates, which librdkafka reports as stored: the first of a partition without an offset, the
                next ones with 0, 1, 2.
            topic: topic name; None: any.
            partition: partition number; None: any.
            count: number of sends that fail.
            synchronous: whether `produce` raises; by default the delivery report has the error.
            stored: whether the record is stored although the send fails (a lost acknowledgement); not with
                `synchronous`.
        """
        with self._broker.lock:
            self._broker.faults.produce.append(
                ProduceFault(Scope(topic, partition), error, count, is_synchronous=synchronous, is_stored=stored)
            )

    def hold_sends(self, topic: str | None = None, partition: int | None = None) -> None:
        """Keep messages for these partitions in the queues of their producers until `release`."""
        with self._broker.lock:
            self._broker.faults.held_sends.append(Scope(topic, partition))

    def hold_reports(self, topic: str | None = None, partition: int | None = None) -> None:
        """Store messages for these partitions, but delay their delivery reports until `release`."""
        with self._broker.lock:
            self._broker.faults.held_reports.append(Scope(topic, partition))

    def release(self, topic: str | None = None) -> None:
        """End every `hold_sends` and `hold_reports`, or those of this topic."""
        with self._broker.lock:
            for held in (self._broker.faults.held_sends, self._broker.faults.held_reports):
                held[:] = [scope for scope in held if topic is not None and scope.topic != topic]
            self._broker.touch()

    def fail_commits(
        self, error: KafkaError, *, group: str | None = None, count: int = 1, stored: bool = False
    ) -> None:
        """Make the next `count` commits of a group (None: any) fail; with `stored` the offsets are stored anyway."""
        with self._broker.lock:
            self._broker.faults.calls.append(CallFault(group, "commit", error, count, is_applied=stored))

    def fail_transaction(
        self,
        error: KafkaError,
        *,
        call: str = "commit_transaction",
        transactional_id: str | None = None,
        count: int = 1,
        applied: bool = False,
    ) -> None:
        """Make the next `count` transaction calls fail.

        Args:
            error: the error that is raised; after a fatal one the producer cannot be used.
            call: `send_offsets_to_transaction`, `commit_transaction` or `abort_transaction`.
            transactional_id: transactional id; None: any.
            count: number of calls that fail.
            applied: whether the call takes effect although it fails (an uncertain outcome); for commit and abort only.
        """
        with self._broker.lock:
            self._broker.faults.calls.append(CallFault(transactional_id, call, error, count, is_applied=applied))

    def deny(self, topic: str, *, write: bool = True, read: bool = True) -> None:
        """Deny writes to a topic, reads of it, or both, until `allow`."""
        with self._broker.lock:
            if write:
                self._broker.faults.denied_writes.add(topic)
            if read:
                self._broker.faults.denied_reads.add(topic)
            self._broker.touch()

    def allow(self, topic: str) -> None:
        """Allow reads and writes of a topic again."""
        with self._broker.lock:
            self._broker.faults.denied_writes.discard(topic)
            self._broker.faults.denied_reads.discard(topic)
            self._broker.touch()

    def stop_broker(self) -> None:
        """Stop the broker: sends wait, reads return nothing, commits and look-ups fail."""
        with self._broker.lock:
            self._broker.faults.is_broker_down = True

    def start_broker(self) -> None:
        """Start the broker again; waiting messages are sent."""
        with self._broker.lock:
            self._broker.faults.is_broker_down = False
            self._broker.settle()
            self._broker.touch()

    def kill(self, client: InMemoryConsumer | InMemoryProducer) -> None:
        """Simulate that the process of this client dies: nothing is flushed or committed, and no callback runs.

        A consumer stays a member of its group until its session expires by the clock.
        """
        client.abandon()

    def freeze(self, consumer: InMemoryConsumer) -> None:
        """Simulate that the process of this consumer stops until its next call; its session may expire meanwhile."""
        consumer.silence()

    def evict(self, consumer: InMemoryConsumer) -> None:
        """Remove this consumer from its group; its next poll calls `on_lost`."""
        with self._broker.lock:
            if consumer.member is not None:
                self._broker.group(consumer.group_id).evict(consumer.member)
                self._broker.touch()

    def raise_in_poll(self, consumer: InMemoryConsumer, error: KafkaError) -> None:
        """Make the next poll of this consumer return an event with this error."""
        consumer.inject(error)

    # --- inside --------------------------------------------------------------------------------------------------

    def _consumer(self, config: Mapping[str, Any], waiting: Waiting) -> InMemoryConsumer:
        settings = ConsumerSettings.from_config(config)
        return InMemoryConsumer(self._broker, settings, waiting, run_count=self._fetch_run_count)

    def _producer(self, config: Mapping[str, Any], waiting: Waiting) -> InMemoryProducer:
        return InMemoryProducer(self._broker, ProducerSettings.from_config(config), waiting)

    def _topic(self, name: str) -> Topic:
        topic = self._broker.topics.get(name)
        if topic is None:
            raise ConfigError(f"topic {name!r} does not exist; create it with create_topic first")
        return topic

    def _log(self, topic: str, partition: int) -> PartitionLog:
        logs = self._topic(topic).partitions
        if not 0 <= partition < len(logs):
            raise ConfigError(f"topic {topic!r} has partitions 0 to {len(logs) - 1}, not {partition}")
        return logs[partition]


if TYPE_CHECKING:
    # Both back ends have the shape that the shells take; the type checker says so here.
    _CONSUMERS: tuple[ConsumerFactory, ...] = (Consumer, InMemoryKafka().consumer)
    _PRODUCERS: tuple[ProducerFactory, ...] = (Producer, InMemoryKafka().producer)
