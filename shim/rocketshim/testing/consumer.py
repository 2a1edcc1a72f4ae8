# ruff: noqa: ARG002, FBT002 - the signatures are confluent_kafka's; only a broker that is down takes time
"""`confluent_kafka.Consumer` on the in-memory Kafka.

Theory of operation
-------------------
One call of `poll` or `consume` does, in this order: what time has brought about (`InMemoryBroker.settle`); the steps
its group waits for, with the callbacks; commit callbacks; then events and records (`rocketshim.testing.fetching`).

Imitated because programs stumble over it (measured on librdkafka 2.16 and a real broker):

* An exception in a rebalance callback comes out of `poll` and costs the record that this `poll` would have returned
  (with the real client: sometimes).
* `assign` in a cooperative group and `incremental_assign` in an eager one fail with `_STATE`; where a callback has done
  neither, the binding does it afterwards. An `assign` that is refused for doubles has dropped the assignment.
* Commits may go backwards and may name partitions of others; only member id and generation are checked. A commit for
  some unknown partition raises, and yet has committed the others.
* With the broker away a synchronous commit waits for `session.timeout.ms` (45 s by default) and ends in `_WAIT_COORD`;
  `committed` ends in `_TIMED_OUT`, `list_topics` in `_TRANSPORT`, watermarks and times in `_UNKNOWN_PARTITION`,
  without waiting.
* `poll`, `consume` or `list_topics` inside a callback ends the process (`kafka.confluent`); here it is refused.
* An event is neither committed nor stored, and `store_offsets` is refused while the client stores by itself.
* A member that was put out learns of it by `on_lost` in the next poll (by `on_revoke` without an `on_lost`).

Thread-safety: as with the real one, a consumer belongs to one thread; what it shares is behind the broker's lock.
"""

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from rocketshim.testing.broker import InMemoryBroker
from rocketshim.testing.client_settings import ConsumerSettings
from rocketshim.testing.fetching import Fetching, event
from rocketshim.testing.group_coordinator import CommittedOffset, GroupMember, Step
from rocketshim.testing.kafka_errors import Code, failure, kafka_error
from rocketshim.testing.partition_result import PartitionResult, named, position_after, results_of
from rocketshim.testing.waiting import NS_PER_MS, Waiting

__all__ = ["GroupMetadata", "InMemoryConsumer"]

MAX_CONSUME_COUNT = 1_000_000
RebalanceCallback = Callable[[Any, list[TopicPartition]], Any]


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """What `consumer_group_metadata` gives and `send_offsets_to_transaction` takes (opaque to programs)."""

    group_id: str
    generation: int
    member_id: str


class InMemoryConsumer:
    """A consumer client. Make it with `InMemoryKafka.consumer`.

    Methods, arguments, results and errors are those of `confluent_kafka.Consumer`.
    """

    def __init__(self, broker: InMemoryBroker, settings: ConsumerSettings, waiting: Waiting, *, run_count: int) -> None:
        self._broker = broker
        self._waiting = waiting
        self._settings = settings
        self._fetching = Fetching(broker, settings, run_count=run_count)
        self._events: deque[Message] = deque()
        self._callbacks: deque[Callable[[], object]] = deque()
        self._patterns: tuple[str, ...] = ()
        self._reported_topics: set[str] = set()
        self._on_assign: RebalanceCallback | None = None
        self._on_revoke: RebalanceCallback | None = None
        self._on_lost: RebalanceCallback | None = None
        self._callback_has_assigned = False
        self._is_in_callback = False
        self._is_closing = False
        self._is_closed = False
        self._last_auto_commit_ns = broker.clock.monotonic_ns()
        self._generation = -1
        self.group_id = settings.group_id
        self.member: GroupMember | None = None
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
        if not topics or not all(topics) or not all(map(_is_expression, topics)):
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
            self.member.steps.append(Step("leave", tuple(sorted(self.member.owned))))

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Replace the assignment."""
        self._enter()
        self._refuse_protocol("cooperative", "Failed to set assignment")
        with self._broker.lock:
            self._commit_automatically(always=True)
            self._fetching.clear()
            if len({named(partition) for partition in partitions}) != len(partitions):
                raise failure(Code.INVALID_ARG, "Failed to set assignment")
            for partition in partitions:
                self._fetching.start(named(partition), partition.offset)
        self._callback_has_assigned = True

    def unassign(self) -> None:
        """Drop the assignment."""
        self._enter()
        self._refuse_protocol("cooperative", "Failed to remove assignment")
        with self._broker.lock:
            self._commit_automatically(always=True)
            self._fetching.clear()
        self._callback_has_assigned = True

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Add to the assignment."""
        self._enter()
        self._refuse_protocol("eager", "Changes to the current assignment must be made using assign()")
        with self._broker.lock:
            for partition in partitions:
                if named(partition) in self._fetching:
                    raise failure(Code.CONFLICT, f"{partition.topic} [{partition.partition}] is already assigned")
            for partition in partitions:
                self._fetching.start(named(partition), partition.offset)
        self._callback_has_assigned = True

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Take away from the assignment."""
        self._enter()
        self._refuse_protocol("eager", "Changes to the current assignment must be made using assign()")
        with self._broker.lock:
            for partition in partitions:
                if named(partition) not in self._fetching:
                    raise failure(Code.INVALID_ARG, f"{partition.topic} [{partition.partition}] is not assigned")
            self._commit_automatically(always=True)
            self._fetching.stop(map(named, partitions))
        self._callback_has_assigned = True

    def assignment(self) -> list[TopicPartition]:
        """What is assigned, with the offsets it was assigned at."""
        self._enter()
        with self._broker.lock:
            return [TopicPartition(*partition, offset) for partition, offset in self._fetching.assignment()]

    def memberid(self) -> str | None:
        """Id in the group; None outside."""
        self._enter()
        return (self.member.member_id or None) if self.member else None

    def consumer_group_metadata(self) -> GroupMetadata:
        """What a transaction needs to commit offsets as this member; take it after the poll, for each transaction."""
        self._enter()
        with self._broker.lock:
            if self.member is not None:
                self._generation = self.member.generation
            return GroupMetadata(self.group_id, self._generation, self.member.member_id if self.member else "")

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
        self._refuse_in_callback("poll or consume")
        broker = self._broker
        waiter = broker.waiter(self._waiting, timeout_s)
        messages: list[Message] = []
        while True:
            with broker.lock:
                version = broker.changes.version
                broker.settle()
                self.last_poll_ns = broker.clock.monotonic_ns()
            self._is_in_callback = True
            try:
                self._serve()
            finally:
                self._is_in_callback = False
            with broker.lock:
                self._commit_automatically()
                while len(messages) < count and (message := self._next_message()) is not None:
                    messages.append(message)
            if len(messages) >= count or not waiter.wait(version):
                return messages

    def _next_message(self) -> Message | None:
        """The next event or record (locked)."""
        return self._events.popleft() if self._events else self._fetching.next_message()

    def _serve(self) -> None:
        """Call what has to be called; an exception of a callback costs a record, as in the real client."""
        while True:
            with self._broker.lock:
                step = self.member.take_step() if self.member is not None else None
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
            if callback is not None and (step.kind != "lost" or partitions):
                callback(self, partitions)
        finally:
            with self._broker.lock:
                if not self._callback_has_assigned:
                    self._apply(step)
                self._finish_step(step)

    def _callback_for(self, kind: str) -> RebalanceCallback | None:
        if kind == "assign":
            return self._on_assign
        return (self._on_lost if kind == "lost" else None) or self._on_revoke

    def _apply(self, step: Step) -> None:
        """What the binding does when the callback has not assigned or unassigned (locked)."""
        if step.kind != "assign":
            self._commit_automatically(always=True)
            self._fetching.stop(step.partitions)
            return
        if self._protocol() == "eager":
            self._fetching.clear()
        for partition in step.partitions:
            if partition not in self._fetching:
                self._fetching.start(partition, OFFSET_INVALID)

    def _finish_step(self, step: Step) -> None:
        """Tell the group that a step is done (locked)."""
        member = self.member
        if member is None:
            return
        group = self._broker.group(self.group_id)
        if step.kind != "assign":
            self._fetching.stop(step.partitions)
        match step.kind:
            case "assign" | "revoke":
                group.step_done(member, step)
            case "lost":
                self._join()
            case "leave":
                self._generation = member.generation
                group.leave(member)
                self.member = None
        self._broker.touch()

    # --- offsets -------------------------------------------------------------------------------------------------

    def commit(
        self,
        message: Message | None = None,
        offsets: list[TopicPartition] | None = None,
        asynchronous: bool = True,
    ) -> Any:
        """Commit a message's next offset, these offsets, or what is stored.

        Returns:
            None when asynchronous (the outcome comes to `on_commit` in a later poll), else the partitions.
        """
        self._enter()
        if message is not None and offsets is not None:
            raise ValueError("message and offsets are mutually exclusive")
        if message is not None:
            offsets = [position_after(message, "commit")]
        if not asynchronous:
            self._broker.await_answer(self._waiting, self.session_timeout_ms / 1_000)
        with self._broker.lock:
            self._broker.settle()
            wanted = self._stored() if offsets is None else offsets
            error = self._commit(wanted)
            self._broker.touch()
        if not asynchronous:
            if error is not None:
                raise KafkaException(error)
            return results_of(wanted)
        if (on_commit := self._settings.on_commit) is not None:
            self._callbacks.append(lambda: on_commit(error, results_of(wanted)))
        return None

    def store_offsets(self, message: Message | None = None, offsets: list[TopicPartition] | None = None) -> None:
        """Keep offsets for the next `commit` without arguments."""
        self._enter()
        if message is not None and offsets is not None:
            raise ValueError("message and offsets are mutually exclusive")
        wanted = [position_after(message, "store")] if message is not None else offsets
        if wanted is None:
            raise ValueError("expected either message or offsets")
        if self._settings.auto_offset_store:
            raise failure(Code.INVALID_ARG, "StoreOffsets failed")
        with self._broker.lock:
            for partition in wanted:
                self._fetching.store(named(partition), partition.offset)

    def committed(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """What the group has committed; −1001 where nothing is, unknown partitions included."""
        self._enter()
        self._broker.await_answer(self._waiting, timeout)
        with self._broker.lock:
            self._broker.settle()
            found = self._broker.group(self.group_id).offsets
            is_unstable = self._settings.read_committed and any(
                self._broker.has_unstable_offsets(self.group_id, named(partition)) for partition in partitions
            )
            if is_unstable or self._broker.faults.is_broker_down:
                raise failure(Code.TIMED_OUT, "Failed to get committed offsets")
            nothing = CommittedOffset(OFFSET_INVALID)
            offsets = {named(partition): found.get(named(partition), nothing) for partition in partitions}
            return [PartitionResult.of(part, at.offset, metadata=at.metadata) for part, at in offsets.items()]

    def position(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Next offset of the program; −1001 before the first record of an assignment and after a seek."""
        self._enter()
        with self._broker.lock:
            self._fetching.learn(map(named, partitions))
            return [TopicPartition(*named(part), self._fetching.position(named(part))) for part in partitions]

    def seek(self, partition: TopicPartition) -> None:
        """Read on elsewhere."""
        self._enter()
        with self._broker.lock:
            self._fetching.seek(named(partition), partition.offset)

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Stop handing out; sticks until `resume`, also over rebalances; does nothing for unknown partitions."""
        self._enter()
        with self._broker.lock:
            self._fetching.pause(map(named, partitions))

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Hand out again."""
        self._enter()
        with self._broker.lock:
            self._fetching.resume(map(named, partitions))

    def get_watermark_offsets(
        self, partition: TopicPartition, timeout: float = -1, cached: bool = False
    ) -> tuple[int, int]:
        """Low and high watermark; the high one is the last stable offset for a `read_committed` consumer.

        With `cached`, (−1001, −1001) for a partition that is not assigned.
        """
        self._enter()
        with self._broker.lock:
            if not cached:
                self._ask_a_broker("get_watermark_offsets")
            if cached and named(partition) not in self._fetching:
                return OFFSET_INVALID, OFFSET_INVALID
            log = self._broker.log(*named(partition))
            if log is None or (self._broker.faults.is_broker_down and not cached):
                raise failure(Code.UNKNOWN_PARTITION, "Failed to get watermark offsets")
            return log.log_start_offset, log.end_offset(read_committed=self._settings.read_committed)

    def offsets_for_times(self, partitions: list[TopicPartition], timeout: float = -1) -> list[TopicPartition]:
        """For each partition, whose `offset` is a time in epoch ms: the first offset then or later; −1: none.

        `OFFSET_BEGINNING` and `OFFSET_END` for a time mean where the log begins and ends.
        """
        self._enter()
        doing = "Failed to get offsets"
        with self._broker.lock:
            self._ask_a_broker("offsets_for_times")
            results = [self._offset_for_time(partition) for partition in partitions]
        if all(result.error is not None for result in results):
            raise failure(Code.UNKNOWN_PARTITION if results else Code.INVALID_ARG, doing)
        return results

    def _offset_for_time(self, wanted: TopicPartition) -> TopicPartition:
        log = self._broker.log(*named(wanted))
        if log is None or self._broker.faults.is_broker_down:
            return PartitionResult.of(named(wanted), wanted.offset, error=kafka_error(Code.UNKNOWN_PARTITION))
        if wanted.offset == OFFSET_BEGINNING:
            return PartitionResult.of(named(wanted), log.log_start_offset)
        if wanted.offset == OFFSET_END:
            return PartitionResult.of(named(wanted), log.end_offset(read_committed=self._settings.read_committed))
        found = log.offset_for_time(wanted.offset)
        return PartitionResult.of(named(wanted), OFFSET_END if found is None else found)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Metadata of all topics or one; an unknown topic comes with its error."""
        if self._is_closed:
            raise RuntimeError("Handle has been closed")
        self._refuse_in_callback("list_topics")
        self._broker.await_answer(self._waiting, timeout)
        with self._broker.lock:
            self._ask_a_broker("list_topics")
            if self._broker.faults.is_broker_down:
                raise failure(Code.TRANSPORT, "Failed to get metadata")
            metadata = self._broker.cluster_metadata(topic)
            if topic is not None:
                self._fetching.learn((topic, number) for number in metadata.topics[topic].partitions)
            return metadata

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
                self._fetching.clear()
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
        self._events.append(Message(error=KafkaError(Code.MAX_POLL_EXCEEDED, text), partition=0, value=text.encode()))

    def topics_changed(self) -> None:
        """Report each subscribed topic that is not there, once until it comes (locked)."""
        for name in self._patterns:
            if name in self._broker.topics:
                self._reported_topics.discard(name)
            elif not name.startswith("^") and name not in self._reported_topics:
                self._reported_topics.add(name)
                code = Code.UNKNOWN_TOPIC_OR_PART
                text = f"Subscribed topic not available: {name}: {kafka_error(code).str()}"
                self._events.append(event(code, text, (name, 0)))

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

    def _ask_a_broker(self, method: str) -> None:
        """Note a question that a real client asks on the connection of a fetch."""
        topics = self._fetching.read_topics
        if topics:
            self._broker.delayed_lookups.append((method, topics))

    def _protocol(self) -> str:
        if self.member is None or not self.member.member_id or self._is_closing:
            return "none"
        return "cooperative" if self.member.is_cooperative else "eager"

    def _refuse_in_callback(self, method: str) -> None:
        if self._is_in_callback:
            raise AssertionError(f"{method} inside a callback of the same client: a real one ends the process")

    def _refuse_protocol(self, protocol: str, doing: str) -> None:
        if self._protocol() == protocol:
            raise failure(Code.STATE, doing)

    def _join(self) -> None:
        """Become a member (again) for what is subscribed (locked)."""
        self.member = GroupMember(self._patterns, self._settings.strategy)
        code = self._broker.group(self.group_id).join(self.member, client_id=self._settings.client_id)
        if code is not None:
            self.member = None
            self._events.append(Message(error=kafka_error(code, "JoinGroup failed")))

    def _stored(self) -> list[TopicPartition]:
        return [TopicPartition(*partition, offset) for partition, offset in self._fetching.stored()]

    def _commit_automatically(self, *, always: bool = False) -> None:
        """Commit what is stored if automatic commits are on and due (locked)."""
        now_ns = self._broker.clock.monotonic_ns()
        is_due = now_ns - self._last_auto_commit_ns >= self._settings.auto_commit_interval_ms * NS_PER_MS
        if not self._settings.auto_commit or not (always or is_due):
            return
        self._last_auto_commit_ns = now_ns
        committed = self._broker.group(self.group_id).offsets
        changed = [part for part in self._stored() if committed.get(named(part)) != CommittedOffset(part.offset)]
        if changed:
            self._commit(changed)

    def _commit(self, wanted: Sequence[TopicPartition]) -> KafkaError | None:
        """Commit at the coordinator; what the call ends in (locked)."""
        positions = {named(p): CommittedOffset(p.offset, p.metadata) for p in wanted if p.offset >= 0}
        member_id = self.member.member_id if self.member is not None else ""
        generation = self.member.generation if self.member is not None else -1
        return self._broker.commit(self.group_id, member_id, generation, positions)


def _is_expression(topic: str) -> bool:
    """Whether a name that begins with `^` can be compiled; other names always pass."""
    try:
        re.compile(topic if topic.startswith("^") else "")
    except re.error:
        return False
    return True
