# ruff: noqa: ARG002, FBT002 - the signatures are confluent_kafka's; nothing here takes time, so timeouts do nothing
"""`confluent_kafka.Consumer` on the in-memory Kafka.

Theory of operation
-------------------
One call of `poll` or `consume` does, in this order: what time has brought about (`Broker.settle`); the steps its group
waits for, with the callbacks; commit callbacks; then records. There is no prefetch: a record is read from the log the
moment it is handed out, so `pause` and `seek` act at once (the real client may still hand out one more batch).

Imitated because programs stumble over it (all measured on librdkafka 2.16):

* `pause` sticks: it survives revocation and later assignment of the partition, and on a partition that this consumer
  has never been assigned it does nothing at all.
* An exception in a rebalance callback comes out of `poll` and costs the record that this `poll` would have returned.
* `seek` fails with `_STATE` on a partition not assigned, and with `_OUTDATED` after an `assign` without a start offset
  until the next `poll`; it forgets `position`, which is −1001 until the next record.
* Commits may go backwards and may name partitions of others; only member id and generation are checked.
* Errors of a partition (`_PARTITION_EOF`, `_AUTO_OFFSET_RESET`, an unknown or forbidden topic) come as messages.

Thread-safety: as with the real one, a consumer belongs to one thread; what it shares is behind the broker's lock.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from rocketshim.testing.assignors import Partition
from rocketshim.testing.broker import NS_PER_MS, Broker, Topic, Waiter
from rocketshim.testing.client_settings import ConsumerSettings
from rocketshim.testing.group_coordinator import CommittedOffset, Member, Step, StepKind
from rocketshim.testing.kafka_errors import Code, failure, kafka_error
from rocketshim.testing.partition_log import StoredRecord

__all__ = ["GroupMetadata", "InMemoryConsumer", "as_message"]

MAX_CONSUME_COUNT = 1_000_000
RebalanceCallback = Callable[[Any, list[TopicPartition]], Any]


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """What `consumer_group_metadata` gives and `send_offsets_to_transaction` takes (opaque to programs)."""

    group_id: str
    generation: int
    member_id: str


class PartitionResult(TopicPartition):
    """A `TopicPartition` that can carry an error (the real class lets only librdkafka set one)."""

    _error: KafkaError | None = None

    @property
    def error(self) -> KafkaError | None:  # type: ignore[override] # read-only in the C class too; its stub differs
        return self._error

    @classmethod
    def of(
        cls, partition: Partition, offset: int, *, metadata: str | None = None, error: KafkaError | None = None
    ) -> "PartitionResult":
        result = cls(*partition, offset) if metadata is None else cls(*partition, offset, metadata)
        result._error = error  # noqa: SLF001 - its own
        return result

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TopicPartition):
            return NotImplemented
        return (self.topic, self.partition) == (other.topic, other.partition)

    def __hash__(self) -> int:
        return super().__hash__()


@dataclass(slots=True)
class Fetcher:
    """Where the consumer stands in one assigned partition.

    Attributes:
        assigned_offset: as `assignment` shows it.
        next_offset: where to read on; None until the start is known.
        position: next offset of the program; −1001 before the first record and after a seek.
        stored_offset: what `commit` without arguments would commit; −1001: nothing.
        may_seek: False after an assignment without a start offset, until the next poll.
        eof_offset: end that was reported last.
        is_failed: it had no offset to start from and the policy is `error`.
    """

    assigned_offset: int
    next_offset: int | None = None
    position: int = OFFSET_INVALID
    stored_offset: int = OFFSET_INVALID
    may_seek: bool = False
    eof_offset: int | None = None
    is_failed: bool = False


class InMemoryConsumer:
    """A consumer client. Make it with `InMemoryKafka.consumer`.

    Methods, arguments, results and errors are those of `confluent_kafka.Consumer`.
    """

    def __init__(self, broker: Broker, settings: ConsumerSettings, *, run_count: int) -> None:
        self._broker = broker
        self._settings = settings
        self._run_count = run_count
        self._fetchers: dict[Partition, Fetcher] = {}
        self._turn: deque[Partition] = deque()
        self._run_left_count = run_count
        self._known: set[Partition] = set()
        self._paused: set[Partition] = set()
        self._events: deque[Message] = deque()
        self._callbacks: deque[Callable[[], object]] = deque()
        self._patterns: tuple[str, ...] = ()
        self._reported_topics: set[str] = set()
        self._on_assign: RebalanceCallback | None = None
        self._on_revoke: RebalanceCallback | None = None
        self._on_lost: RebalanceCallback | None = None
        self._callback_has_assigned = False
        self._is_closing = False
        self._is_closed = False
        self._last_auto_commit_ns = broker.clock.monotonic_ns()
        self._generation = -1
        self.group_id = settings.group_id
        self.member: Member | None = None
        self.session_timeout_ms = settings.session_timeout_ms
        self.max_poll_interval_ms = settings.max_poll_interval_ms
        self.silent_since_ns: int | None = None
        self.last_poll_ns = broker.clock.monotonic_ns()
        with broker.lock:
            broker.consumers.append(self)

    # --- subscription and assignment -----------------------------------------------------------------------------

    def subscribe(
        self,
        topics: list[str],
        on_assign: RebalanceCallback | None = None,
        on_revoke: RebalanceCallback | None = None,
        on_lost: RebalanceCallback | None = None,
    ) -> None:
        """Join the group for these topics (names, or regular expressions that begin with `^`)."""
        self._enter()
        if not isinstance(topics, list):
            raise TypeError("expected list of topic unicode strings")
        if not topics or not all(topics):
            raise failure(Code.INVALID_ARG, "Failed to set subscription")
        self._on_assign, self._on_revoke, self._on_lost = on_assign, on_revoke, on_lost
        with self._broker.lock:
            self._patterns = tuple(topics)
            self._reported_topics.clear()
            if self.member is None:
                self._join()
            else:
                self.member.patterns = self._patterns
                self._broker.group(self.group_id).rebalance()
            self.topics_changed()
            self._broker.touch()

    def unsubscribe(self) -> None:
        """Leave the group; the revocation is served by the next poll."""
        self._enter()
        with self._broker.lock:
            self._patterns = ()
            if self.member is None:
                return
            self.member.steps.clear()
            self.member.steps.append(Step(StepKind.LEAVE, tuple(sorted(self.member.owned))))

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Replace the assignment."""
        self._enter()
        if self._protocol() == "cooperative":
            raise failure(Code.STATE, "Failed to set assignment")
        named = [(partition.topic, partition.partition) for partition in partitions]
        if len(set(named)) != len(named):
            raise failure(Code.INVALID_ARG, "Failed to set assignment")
        with self._broker.lock:
            self._commit_automatically(always=True)
            self._fetchers.clear()
            self._turn.clear()
            for partition in partitions:
                self._start(partition)
        self._callback_has_assigned = True

    def unassign(self) -> None:
        """Drop the assignment."""
        self._enter()
        if self._protocol() == "cooperative":
            raise failure(Code.STATE, "Failed to remove assignment")
        with self._broker.lock:
            self._commit_automatically(always=True)
            self._stop(list(self._fetchers))
        self._callback_has_assigned = True

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Add to the assignment."""
        self._enter()
        if self._protocol() == "eager":
            raise KafkaException(
                KafkaError(
                    Code.STATE,
                    "Changes to the current assignment must be made using assign() when rebalance protocol type is "
                    "EAGER",
                )
            )
        for partition in partitions:
            if (partition.topic, partition.partition) in self._fetchers:
                raise KafkaException(
                    KafkaError(
                        Code.CONFLICT,
                        f"{partition.topic} [{partition.partition}] is already part of the current assignment",
                    )
                )
        with self._broker.lock:
            for partition in partitions:
                self._start(partition)
        self._callback_has_assigned = True

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Take away from the assignment."""
        self._enter()
        if self._protocol() == "eager":
            raise KafkaException(
                KafkaError(
                    Code.STATE,
                    "Changes to the current assignment must be made using assign() when rebalance protocol type is "
                    "EAGER",
                )
            )
        for partition in partitions:
            if (partition.topic, partition.partition) not in self._fetchers:
                raise KafkaException(
                    KafkaError(
                        Code.INVALID_ARG,
                        f"{partition.topic} [{partition.partition}] can't be unassigned since it is not in the "
                        "current assignment",
                    )
                )
        with self._broker.lock:
            self._commit_automatically(always=True)
            self._stop([(partition.topic, partition.partition) for partition in partitions])
        self._callback_has_assigned = True

    def assignment(self) -> list[TopicPartition]:
        """What is assigned, with the offsets it was assigned at."""
        self._enter()
        return [
            TopicPartition(topic, partition, fetcher.assigned_offset)
            for (topic, partition), fetcher in sorted(self._fetchers.items())
        ]

    def memberid(self) -> str | None:
        """Id in the group; None outside."""
        self._enter()
        return (self.member.member_id or None) if self.member else None

    def consumer_group_metadata(self) -> GroupMetadata:
        """What a transaction needs to commit offsets as this member; take it after the poll, for each transaction."""
        self._enter()
        with self._broker.lock:
            member = self.member
            if member is not None:
                self._generation = member.generation
            return GroupMetadata(self.group_id, self._generation, member.member_id if member else "")

    # --- reading -------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = -1) -> Message | None:
        """Serve callbacks and give the next record or event; None if there is none."""
        messages = self._take(1, timeout)
        return messages[0] if messages else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Up to `num_messages` records and events; waits for all of them or the whole timeout."""
        self._enter()
        if not 0 <= num_messages <= MAX_CONSUME_COUNT:
            raise ValueError("num_messages must be between 0 and 1000000 (1M)")
        return self._take(num_messages, timeout)

    def _take(self, count: int, timeout_s: float) -> list[Message]:
        self._enter()
        broker = self._broker
        waiter = Waiter(broker, timeout_s)
        messages: list[Message] = []
        while True:
            with broker.lock:
                version = broker.version
                broker.settle()
                self.last_poll_ns = broker.clock.monotonic_ns()
            self._serve()
            with broker.lock:
                self._commit_automatically()
                while len(messages) < count and (message := self._next_message()) is not None:
                    messages.append(message)
            if len(messages) >= count or not waiter.wait(version):
                return messages

    def _serve(self) -> None:
        """Call what has to be called; an exception of a callback costs a record, as in the real client."""
        while True:
            with self._broker.lock:
                step = self.member.steps.popleft() if self.member is not None and self.member.steps else None
                callback = self._callbacks.popleft() if step is None and self._callbacks else None
            if step is not None:
                try:
                    self._serve_step(step)
                except BaseException:
                    with self._broker.lock:
                        self._next_message()
                    raise
            elif callback is not None:
                callback()
            else:
                return

    def _serve_step(self, step: Step) -> None:
        partitions = [TopicPartition(*partition) for partition in step.partitions]
        callback = self._callback_for(step.kind)
        self._callback_has_assigned = False
        try:
            if callback is not None and (step.kind is not StepKind.LOST or partitions):
                callback(self, partitions)
        finally:
            with self._broker.lock:
                if not self._callback_has_assigned:
                    self._apply(step, partitions)
                self._finish_step(step)

    def _callback_for(self, kind: StepKind) -> RebalanceCallback | None:
        match kind:
            case StepKind.ASSIGN:
                return self._on_assign
            case StepKind.LOST:
                return self._on_lost or self._on_revoke
            case StepKind.REVOKE | StepKind.LEAVE:
                return self._on_revoke

    def _apply(self, step: Step, partitions: list[TopicPartition]) -> None:
        """What the binding does when the callback has not assigned or unassigned."""
        if step.kind is not StepKind.ASSIGN:
            self._commit_automatically(always=True)
            self._stop(list(step.partitions))
            return
        if self._protocol() == "eager":
            self._fetchers.clear()
            self._turn.clear()
        for partition in partitions:
            if (partition.topic, partition.partition) not in self._fetchers:
                self._start(partition)

    def _finish_step(self, step: Step) -> None:
        member = self.member
        if member is None:
            return
        group = self._broker.group(self.group_id)
        match step.kind:
            case StepKind.ASSIGN:
                group.step_done(member, step)
            case StepKind.REVOKE:
                self._stop(list(step.partitions))
                group.step_done(member, step)
            case StepKind.LOST:
                self._stop(list(step.partitions))
                self._join()
            case StepKind.LEAVE:
                self._stop(list(step.partitions))
                self._generation = member.generation
                group.leave(member)
                self.member = None
        self._broker.touch()

    def _next_message(self) -> Message | None:
        """The next event or record (locked)."""
        if self._events:
            return self._events.popleft()
        if self._broker.faults.is_broker_down:
            return None
        for fetcher in self._fetchers.values():
            fetcher.may_seek = True
        for _ in range(len(self._turn)):
            partition = self._turn[0]
            message = self._fetch(partition, self._fetchers[partition])
            if message is not None:
                self._run_left_count -= 1
                if self._run_left_count <= 0:
                    self._next_turn()
                return message
            self._next_turn()
        return None

    def _next_turn(self) -> None:
        self._turn.rotate(-1)
        self._run_left_count = self._run_count

    def _fetch(self, partition: Partition, fetcher: Fetcher) -> Message | None:
        if partition in self._paused or fetcher.is_failed:
            return None
        topic = self._readable(partition)
        if topic is None:
            return None
        log = topic.partitions[partition[1]]
        if fetcher.next_offset is None:
            event = self._find_start(partition, fetcher)
            if event is not None or fetcher.next_offset is None:
                return event
        if not log.log_start_offset <= fetcher.next_offset <= log.next_offset:
            event = self._reset(partition, fetcher, "fetch failed due to requested offset not available on the broker")
            if event is not None:
                return event
        record = log.read(fetcher.next_offset, read_committed=self._settings.read_committed)
        if record is None:
            return self._end_of_partition(partition, fetcher)
        fetcher.next_offset = fetcher.position = record.offset + 1
        fetcher.eof_offset = None
        if self._settings.auto_offset_store:
            fetcher.stored_offset = fetcher.position
        return as_message(*partition, record)

    def _readable(self, partition: Partition) -> Topic | None:
        """The topic, or None and an event where it may not or cannot be read."""
        name = partition[0]
        if name in self._broker.faults.denied_reads:
            self._report_topic(name, Code.TOPIC_AUTHORIZATION_FAILED)
            return None
        if self._broker.log(*partition) is None:
            self._report_topic(name, Code.UNKNOWN_TOPIC_OR_PART)
            return None
        return self._broker.topics[name]

    def _end_of_partition(self, partition: Partition, fetcher: Fetcher) -> Message | None:
        log = self._broker.topics[partition[0]].partitions[partition[1]]
        end = log.end_offset(read_committed=self._settings.read_committed)
        if not self._settings.partition_eof or fetcher.eof_offset == end:
            return None
        fetcher.eof_offset = end
        text = f"Fetch from broker 1 reached end of partition at offset {end} (HighwaterMark {log.next_offset})"
        return self._event(Code.PARTITION_EOF, text, partition, offset=end)

    def _find_start(self, partition: Partition, fetcher: Fetcher) -> Message | None:
        """Settle where to begin: as assigned, else as committed, else by policy (locked)."""
        offset = fetcher.assigned_offset
        if offset in {OFFSET_INVALID, OFFSET_STORED}:
            if self._settings.read_committed and self._broker.has_unstable_offsets(self.group_id, partition):
                return None
            committed = self._broker.group(self.group_id).offsets.get(partition)
            if committed is None:
                return self._reset(partition, fetcher, "no previously committed offset available")
            offset = committed.offset
        fetcher.next_offset = self._actual(partition, offset)
        return None

    def _reset(self, partition: Partition, fetcher: Fetcher, reason: str) -> Message | None:
        match self._settings.auto_offset_reset:
            case "earliest":
                fetcher.next_offset = self._actual(partition, OFFSET_BEGINNING)
            case "latest":
                fetcher.next_offset = self._actual(partition, OFFSET_END)
            case _:
                fetcher.is_failed = True
                text = f"{reason}: {kafka_error(Code.NO_OFFSET).str()}"
                return self._event(Code.AUTO_OFFSET_RESET, text, partition)
        return None

    def _actual(self, partition: Partition, offset: int) -> int:
        log = self._broker.topics[partition[0]].partitions[partition[1]]
        if offset == OFFSET_BEGINNING:
            return log.log_start_offset
        if offset == OFFSET_END:
            return log.end_offset(read_committed=self._settings.read_committed)
        return offset

    # --- offsets -------------------------------------------------------------------------------------------------

    def commit(
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,
    ) -> Any:
        """Commit a message's next offset, these offsets, or what is stored.

        Returns:
            None when asynchronous (the outcome comes to `on_commit` in a later poll), else the partitions, each with
            its own error.
        """
        self._enter()
        if message is not None and offsets is not None:
            raise ValueError("message and offsets are mutually exclusive")
        if message is not None:
            offsets = [TopicPartition(str(message.topic()), message.partition() or 0, (message.offset() or 0) + 1)]
        with self._broker.lock:
            self._broker.settle()
            wanted = self._stored_offsets() if offsets is None else offsets
            error, results = self._commit(wanted)
            self._broker.touch()
        if not asynchronous:
            if error is not None:
                raise KafkaException(error)
            return results
        if self._settings.on_commit is not None:
            on_commit = self._settings.on_commit
            self._callbacks.append(lambda: on_commit(error, results))
        return None

    def store_offsets(self, message: Message | None = None, offsets: list[TopicPartition] | None = None) -> None:
        """Keep offsets for the next `commit` without arguments."""
        self._enter()
        if message is not None:
            offsets = [TopicPartition(str(message.topic()), message.partition() or 0, (message.offset() or 0) + 1)]
        with self._broker.lock:
            for partition in offsets or []:
                fetcher = self._fetchers.get((partition.topic, partition.partition))
                if fetcher is None:
                    raise failure(Code.STATE, "StoreOffsets failed")
                fetcher.stored_offset = partition.offset

    def committed(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """What the group has committed; −1001 where nothing is."""
        self._enter()
        with self._broker.lock:
            self._broker.settle()
            self._need_broker("Failed to get committed offsets")
            named = [(partition.topic, partition.partition) for partition in partitions]
            if self._settings.read_committed and any(
                self._broker.has_unstable_offsets(self.group_id, partition) for partition in named
            ):
                raise failure(Code.TIMED_OUT, "Failed to get committed offsets")
            return [self._committed(partition) for partition in named]

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Next offset of the program; −1001 before the first record of an assignment and after a seek."""
        self._enter()
        found = ((tp.topic, tp.partition, self._fetchers.get((tp.topic, tp.partition))) for tp in partitions)
        return [
            TopicPartition(topic, partition, fetcher.position if fetcher else OFFSET_INVALID)
            for topic, partition, fetcher in found
        ]

    def seek(self, partition: TopicPartition) -> None:
        """Read on elsewhere."""
        self._enter()
        fetcher = self._fetchers.get((partition.topic, partition.partition))
        if fetcher is None:
            raise failure(Code.STATE, f"Failed to seek to offset {partition.offset}")
        if not fetcher.may_seek:
            raise failure(Code.OUTDATED, f"Failed to seek to offset {partition.offset}")
        with self._broker.lock:
            fetcher.assigned_offset = partition.offset
            fetcher.next_offset = None
            fetcher.position = OFFSET_INVALID
            fetcher.eof_offset = None
            fetcher.is_failed = False
            if self._broker.log(partition.topic, partition.partition) is not None:
                self._find_start((partition.topic, partition.partition), fetcher)

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Stop handing out; sticks until `resume`, also over rebalances; does nothing for partitions never assigned."""
        self._enter()
        self._paused.update(self._known & {(partition.topic, partition.partition) for partition in partitions})

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Hand out again."""
        self._enter()
        self._paused.difference_update((partition.topic, partition.partition) for partition in partitions)

    def get_watermark_offsets(
        self,
        partition: TopicPartition,
        timeout: float = -1,
        cached: bool = False,
    ) -> tuple[int, int]:
        """Low and high watermark; the high one is the last stable offset for a `read_committed` consumer.

        With `cached`, (−1001, −1001) for a partition that is not assigned.
        """
        self._enter()
        with self._broker.lock:
            if cached and (partition.topic, partition.partition) not in self._fetchers:
                return OFFSET_INVALID, OFFSET_INVALID
            if not cached:
                self._need_broker("Failed to get watermark offsets")
            log = self._broker.log(partition.topic, partition.partition)
            if log is None:
                raise failure(Code.UNKNOWN_PARTITION, "Failed to get watermark offsets")
            return log.log_start_offset, log.end_offset(read_committed=self._settings.read_committed)

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """For each partition, whose `offset` is a time in epoch ms: the first offset then or later; −1: none."""
        self._enter()
        with self._broker.lock:
            self._need_broker("Failed to get offsets")
            results: list[TopicPartition] = []
            for partition in partitions:
                named = (partition.topic, partition.partition)
                log = self._broker.log(*named)
                if log is None:
                    error = kafka_error(Code.UNKNOWN_PARTITION)
                    results.append(PartitionResult.of(named, partition.offset, error=error))
                    continue
                found = log.offset_for_time(partition.offset)
                results.append(TopicPartition(*named, OFFSET_END if found is None else found))
            return results

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Metadata of all topics or one; an unknown topic comes with its error."""
        if self._is_closed:
            raise RuntimeError("Handle has been closed")
        with self._broker.lock:
            self._need_broker("Failed to get metadata")
            return self._broker.cluster_metadata(topic)

    # --- end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Give up the assignment (with its callback) and leave the group; safe twice."""
        if self._is_closed:
            return
        self._enter()
        self._is_closing = True
        try:
            self._give_up()
        finally:
            with self._broker.lock:
                if self.member is not None:
                    self._broker.group(self.group_id).leave(self.member)
                    self.member = None
                self._fetchers.clear()
                self._is_closed = True
                self._broker.consumers.remove(self)
                self._broker.touch()

    def _give_up(self) -> None:
        owned = sorted(self.member.owned) if self.member is not None else []
        if owned and self._on_revoke is not None:
            self._on_revoke(self, [TopicPartition(*partition) for partition in owned])
        with self._broker.lock:
            self._commit_automatically(always=True)
        while self._callbacks:
            self._callbacks.popleft()()

    # --- the broker's side ---------------------------------------------------------------------------------------

    def abandon(self) -> None:
        """The process of this consumer has died: nothing is called, nothing leaves; its session runs out."""
        with self._broker.lock:
            self._is_closed = True
            self.silence()

    def silence(self) -> None:
        """The process of this consumer stands still until its next call."""
        with self._broker.lock:
            if self.silent_since_ns is None:
                self.silent_since_ns = self._broker.clock.monotonic_ns()
            if self.member is not None:
                self.member.is_alive = False

    def poll_interval_exceeded(self) -> None:
        """The group has put it out because it did not poll (locked)."""
        text = f"Application maximum poll interval ({self.max_poll_interval_ms}ms) exceeded"
        self._events.append(Message(error=KafkaError(Code.MAX_POLL_EXCEEDED, text), value=text.encode()))

    def topics_changed(self) -> None:
        """Report each named topic that is not there, once until it comes (locked)."""
        for name in self._patterns:
            if name in self._broker.topics:
                self._reported_topics.discard(name)
            elif not name.startswith("^"):
                self._report_topic(name, Code.UNKNOWN_TOPIC_OR_PART)

    def inject(self, error: KafkaError) -> None:
        """Let the next poll give this error as an event."""
        with self._broker.lock:
            self._events.append(Message(error=error, value=error.str().encode()))
            self._broker.touch()

    # --- inside --------------------------------------------------------------------------------------------------

    def _enter(self) -> None:
        """Every call begins here: refuse after close; a process that stood still runs again."""
        if self._is_closed:
            raise RuntimeError("Consumer closed")
        if self.silent_since_ns is not None:
            with self._broker.lock:
                self._broker.settle()
                self.silent_since_ns = None
                if self.member is not None:
                    self._broker.group(self.group_id).wake(self.member)

    def _protocol(self) -> str:
        if self.member is None or not self.member.member_id or self._is_closing:
            return "none"
        return "cooperative" if self.member.is_cooperative else "eager"

    def _join(self) -> None:
        self.member = Member(self._patterns, self._settings.strategy)
        code = self._broker.group(self.group_id).join(self.member, client_id=self._settings.client_id)
        if code is not None:
            self.member = None
            self._events.append(Message(error=kafka_error(code, "JoinGroup failed")))

    def _start(self, assigned: TopicPartition) -> None:
        partition = (assigned.topic, assigned.partition)
        offset = OFFSET_STORED if assigned.offset == OFFSET_INVALID else assigned.offset
        fetcher = Fetcher(offset, may_seek=offset != OFFSET_STORED)
        self._fetchers[partition] = fetcher
        self._turn.append(partition)
        self._known.add(partition)
        if self._broker.log(*partition) is not None and not self._broker.faults.is_broker_down:
            event = self._find_start(partition, fetcher)
            if event is not None:
                self._events.append(event)

    def _stop(self, partitions: Sequence[Partition]) -> None:
        for partition in partitions:
            if self._fetchers.pop(partition, None) is not None:
                self._turn.remove(partition)

    def _stored_offsets(self) -> list[TopicPartition]:
        return [
            TopicPartition(*partition, fetcher.stored_offset)
            for partition, fetcher in sorted(self._fetchers.items())
            if fetcher.stored_offset >= 0
        ]

    def _commit_automatically(self, *, always: bool = False) -> None:
        """Commit what is stored if automatic commits are on and due (locked)."""
        now_ns = self._broker.clock.monotonic_ns()
        is_due = now_ns - self._last_auto_commit_ns >= self._settings.auto_commit_interval_ms * NS_PER_MS
        if not self._settings.auto_commit or not (always or is_due):
            return
        self._last_auto_commit_ns = now_ns
        group = self._broker.group(self.group_id)
        changed = [
            stored
            for stored in self._stored_offsets()
            if group.offsets.get((stored.topic, stored.partition)) != CommittedOffset(stored.offset)
        ]
        if changed:
            self._commit(changed)

    def _commit(self, wanted: Sequence[TopicPartition]) -> tuple[KafkaError | None, list[TopicPartition]]:
        """Commit as the coordinator would; the error of the whole and the outcome for each partition (locked)."""
        doing = "Commit failed"
        valid = [partition for partition in wanted if partition.offset >= 0]
        if not valid:
            return kafka_error(Code.NO_OFFSET, doing), list(wanted)
        if self._broker.faults.is_broker_down:
            return kafka_error(Code.WAIT_COORD, doing), list(wanted)
        fault = self._broker.faults.take_commit(self.group_id)
        if fault is not None and not fault.is_stored:
            return fault.error, list(wanted)
        member_id = self.member.member_id if self.member is not None else ""
        generation = self.member.generation if self.member is not None else -1
        code = self._broker.group(self.group_id).check_commit(member_id, generation)
        if code is not None:
            return kafka_error(code, doing), list(wanted)
        positions = {(p.topic, p.partition): CommittedOffset(p.offset, p.metadata) for p in valid}
        known = {partition for partition in positions if self._broker.log(*partition) is not None}
        self._broker.store_offsets(self.group_id, member_id, [(p, positions[p]) for p in positions if p in known])
        if fault is not None:
            return fault.error, list(wanted)
        unknown = kafka_error(Code.UNKNOWN_TOPIC_OR_PART, doing)
        if not known:
            return unknown, list(wanted)
        return None, [
            PartitionResult.of(p, at.offset, metadata=at.metadata, error=None if p in known else unknown)
            for p, at in positions.items()
        ]

    def _committed(self, partition: Partition) -> TopicPartition:
        if self._broker.log(*partition) is None:
            return PartitionResult.of(partition, OFFSET_INVALID, error=kafka_error(Code.UNKNOWN_TOPIC_OR_PART))
        found = self._broker.group(self.group_id).offsets.get(partition)
        if found is None:
            return PartitionResult.of(partition, OFFSET_INVALID)
        return PartitionResult.of(partition, found.offset, metadata=found.metadata)

    def _need_broker(self, doing: str) -> None:
        if self._broker.faults.is_broker_down:
            raise failure(Code.TRANSPORT, doing)

    def _report_topic(self, name: str, code: int) -> None:
        if name in self._reported_topics:
            return
        self._reported_topics.add(name)
        text = f"Subscribed topic not available: {name}: {kafka_error(code).str()}"
        self._events.append(self._event(code, text, (name, 0)))

    @staticmethod
    def _event(code: int, text: str, partition: Partition, *, offset: int = OFFSET_INVALID) -> Message:
        topic, number = partition
        return Message(topic=topic, partition=number, offset=offset, value=text.encode(), error=KafkaError(code, text))


def as_message(topic: str, partition: int, record: StoredRecord) -> Message:
    """A stored record as a client hands it out."""
    return Message(
        topic=topic,
        partition=partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=list(record.headers) or None,
        timestamp=(record.timestamp_type, record.timestamp_ms),
        leader_epoch=0,
    )
