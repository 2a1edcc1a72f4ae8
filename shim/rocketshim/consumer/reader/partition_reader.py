"""Reads the partitions of one Kafka consumer: it is assigned partitions, starts them, fetches, and gives them up.

Every consumer that reads partitions has one `PartitionReader`: the poll loop of push consumers (concurrent and orderly)
and `LitePullConsumer`. What the consumer does with a partition is behind the protocol `PartitionOwner`. Rules:

* The Kafka client is made in the thread that owns the reader, by `open`.
* A rebalance callback never raises, because an exception there would lose a fetched record. The first error is kept in
  `error`, and the owner raises it (test_an_error_in_a_rebalance_callback_is_kept_and_not_raised).
* A record that was fetched before its partition was assigned or sought is never passed on. The partition is sought to
  its position again, and the record comes again if it is still wanted.
* A partition whose start cannot be found now (the coordinator is unreachable) waits. It is assigned paused at offset 0,
  its records are dropped, and its start is looked up again (`core.start_position`). Never at "the beginning": that is
  a look-up in librdkafka, whose late answer moves a partition that was sought meanwhile. It is paused before it is
  assigned: a fetch at 0 of a log that begins later starts that look-up, too
  (test_a_late_answer_of_a_look_up_moves_nothing).
* Partitions are given by Kafka's group protocol, by a `TopicAssigner`, or by `start_at`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from operator import lt
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from rocketshim.consumer.reader.group_offsets import StartOffsets
from rocketshim.consumer.reader.joining import Joining
from rocketshim.consumer.reader.local_offsets import LocalOffsetStore
from rocketshim.consumer.reader.partition_assigner import TopicAssigner
from rocketshim.core.partition import Partition, PauseReason
from rocketshim.core.process_deaths import CarefulStart
from rocketshim.core.start_position import LookupRotation, StartRules
from rocketshim.errors import ConsumerError
from rocketshim.kafka.clients import ConsumerClient, Parting, close_consumer
from rocketshim.kafka.lookups import Lookups, partition_bounds
from rocketshim.locks.lease import Ownership
from rocketshim.logs import safe_logger
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["OnCommit", "PartitionOwner", "PartitionReader", "runs_of"]

_LOG = safe_logger("rocketshim.consumer")
_BOUNDS_S: Final = 2.0
_START_S: Final = 10.0
_UNKNOWN: Final = -1
_ERROR: Final = Message.error  # called in C, by `map`
_TOPIC: Final = Message.topic
_PARTITION: Final = Message.partition
_OFFSET: Final = Message.offset

OnCommit = Callable[[KafkaError | None, list[TopicPartition]], None]
"""Gets the answer to an asynchronous commit; never raises."""


class PartitionOwner(Protocol):
    """What a consumer does with the partitions that its reader is given; the reader's thread calls it."""

    def accept(self, partitions: list[TopicPartition]) -> None:
        """Accept assigned partitions by `start` or `assign_paused`; KafkaException and RuntimeError are kept."""

    def begin(self, key: TopicPartitionKey, offset: int) -> None:
        """Begin a partition at this offset; -1: it waits, and begins again when its start is known."""

    def position(self, key: TopicPartitionKey) -> int | None:
        """Return the offset to read again after stale records; None: nothing of the partition is wanted now."""

    def drain_and_commit(self, keys: Collection[TopicPartitionKey]) -> None:
        """Finish and commit what can be: the partitions are about to be revoked. Errors as in `accept`."""

    def forget(self, keys: Collection[TopicPartitionKey]) -> None:
        """Remove partitions that are no longer assigned. Never raises."""


class PartitionReader:
    """The partitions of one Kafka consumer.

    Without a `store` offsets are stored in Kafka; without an `assigner` Kafka's group protocol, or `start_at`, decides
    what to read; without `care` commits do not mention it; without `joining` nothing of that is explained.

    Thread-safety: one thread owns it.
    """

    def __init__(
        self,
        *,
        make_consumer: Callable[[OnCommit], ConsumerClient],
        make_lookup_client: Callable[[], ConsumerClient],
        rules: StartRules,
        ownership: Ownership,
        now_ms: Callable[[], int],
        store: LocalOffsetStore | None = None,
        assigner: TopicAssigner | None = None,
        care: CarefulStart | None = None,
        joining: Joining | None = None,
    ) -> None:
        self.error: BaseException | None = None  # the first one, of a rebalance callback or of the owner
        self.is_closing = False  # partitions that are still assigned are not read any more
        self.is_suspended = False
        self.ownership = ownership
        self.assigner = assigner
        self.lookups = Lookups(self.client, make_lookup_client)
        self.care = care or CarefulStart()
        self.joining = joining or Joining()
        self.starts = StartOffsets(
            rules, client=self.client, lookups=self.lookups, ownership=ownership, care=self.care, store=store
        )
        self._make_consumer = make_consumer
        self.now_ms = now_ms
        self.partitions: dict[TopicPartitionKey, Partition] = {}  # those that are assigned
        self._rotation: LookupRotation[TopicPartitionKey] = LookupRotation()
        self._fetches = 0
        self._consumer: ConsumerClient | None = None
        self._owner: PartitionOwner  # this and the next are set by `open`
        self._on_error: Callable[[Message], None]

    # --- the client --------------------------------------------------------------------------------------------------

    def open(self, owner: PartitionOwner, on_commit: OnCommit, on_error: Callable[[Message], None]) -> None:
        """Make the Kafka consumer, without network calls; `on_error` gets errors that come in place of messages."""
        self._owner, self._on_error = owner, on_error
        self._consumer = self._make_consumer(on_commit)
        if self.assigner is not None:
            self.assigner.open()

    def client(self) -> ConsumerClient:
        """Return the Kafka consumer. Raises ConsumerError if the reader is not open."""
        if self._consumer is None:
            raise ConsumerError("the consumer is not open")
        return self._consumer

    @property
    def is_open(self) -> bool:
        """Return whether there is a Kafka consumer."""
        return self._consumer is not None

    @property
    def is_joining(self) -> bool:
        """Return whether the group has not yet assigned anything to this consumer, and may wait for it."""
        return self.assigner is None and not self.joining.has_joined and not self.joining.is_refused

    @property
    def assigned(self) -> frozenset[TopicPartitionKey] | None:
        """Return the partitions of the newest assignment; None: there was none yet, or more of it is to come."""
        is_whole = self.joining.has_joined and (self.assigner is None or self.assigner.has_share)
        return frozenset(self.partitions) if is_whole else None

    def look_at_group(self) -> None:
        """Find out whether the group has no partitions for this consumer, or which members it waits for."""
        if self.joining.look(self.client().memberid(), self.now_ms(), is_joining=self.is_joining):
            self.joining.joined()

    def log_error(self, error: KafkaError, topic: str | None) -> None:
        """Log an error of the client, after which it goes on."""
        self.joining.log_error(error, topic, self.now_ms())

    def subscribe(self, topics: list[str]) -> None:
        """Read these topics as a member of the group; do nothing if an assigner decides what to read."""
        if self.assigner is not None:
            return
        if topics:
            self.lookups.open()
            self.client().subscribe(topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost)
        else:
            self.client().unsubscribe()

    def leave(
        self, timeout_s: float, *, unsubscribe: bool, before_close: Callable[[], object] = lambda: None
    ) -> Parting:
        """Leave the group and close the clients within a time; see `close_consumer`. Safe to call twice."""
        self.lookups.close()
        self.joining.close()
        if self._consumer is None:
            return Parting.LEFT
        leaves = unsubscribe and self.assigner is None
        try:
            return close_consumer(
                self._consumer, timeout_s, before_close, unsubscribe=leaves, has_joined=lambda: not self.is_joining
            )
        finally:
            self._consumer = None

    # --- reading -----------------------------------------------------------------------------------------------------

    def fetch(self, count: int, wait_s: float) -> Iterator[tuple[TopicPartitionKey, list[Any]]]:
        """Fetch up to `count` messages, wait up to `wait_s` for the first; yield them in runs of one partition."""
        consumer = self.client()
        first = consumer.poll(wait_s)
        if first is None:
            return
        self._fetches += 1
        batch = consumer.consume(count - 1, 0) if count > 1 else []
        batch.insert(0, first)  # a new list would count every reference again
        if any(map(_ERROR, batch)):  # an error is true, None is not
            for message in batch:
                if message.error() is not None:
                    self._on_error(message)
            batch = [message for message in batch if message.error() is None]
        yield from self.current_runs(batch)

    def current_runs(self, batch: list[Any]) -> Iterator[tuple[TopicPartitionKey, list[Any]]]:
        """Yield the runs of a fetched batch, without stale ones; what is done with one run may make the next stale."""
        for key, run in runs_of(batch):
            partition = self.partitions.get(key)
            if partition is None or (partition.stale_fetch != self._fetches and not partition.is_waiting):
                yield key, run
            elif partition.is_waiting:
                continue
            elif (position := self._owner.position(key)) is not None:
                self.client().seek(TopicPartition(*key, position))

    def from_position(self, key: TopicPartitionKey, run: list[Any], position: int) -> list[Any] | None:
        """Return the records of a run from a position on; None: the log was cut, so the position is no longer valid.

        A late answer to a look-up by librdkafka moves a partition that was sought meanwhile
        (test_a_late_start_look_up_of_the_client_brings_back_no_old_message).
        If the whole run lies before the position, the partition is sought there again. A log that begins at 0 counts as
        cut: a topic that was created again looks the same, and its records must not be left out.
        """
        if run[0].offset() >= position:
            return run
        wanted = [message for message in run if message.offset() >= position]
        try:
            low, end = partition_bounds(self.lookups, TopicPartition(*key), _BOUNDS_S)
            if low == 0 or end < position:
                return None
            if not wanted:
                self.client().seek(TopicPartition(*key, position))
        except KafkaException:
            return None
        _LOG.warning("consumer.fetched-before-its-position", extra={"partition": str(key)})
        return wanted

    def seek(self, key: TopicPartitionKey, offset: int) -> None:
        """Read a partition from this offset on; records of it that were fetched before are not passed on.

        Raises KafkaException: Kafka refused; nothing changed.
        """
        self.client().seek(TopicPartition(*key, offset))
        partition = self.partitions[key]
        partition.is_waiting, partition.stale_fetch = False, self._fetches

    def suspend(self) -> None:
        """Read nothing until `resume`, also of partitions that are assigned later."""
        self.is_suspended = True
        self.pause(self.partitions, PauseReason.SUSPENDED)

    def resume(self) -> None:
        """Read again after `suspend`."""
        self.is_suspended = False
        self.unpause(self.partitions, PauseReason.SUSPENDED)

    # A partition is read again only when its last reason for a pause is gone. librdkafka keeps pauses: they survive a
    # revocation, and a partition that is assigned again then delivers nothing, forever (our measurement; the Java
    # client forgets them). So only the reader pauses and resumes, and it resumes newly assigned partitions
    # (test_an_assigned_partition_is_resumed_from_any_earlier_pause).

    def pause(self, keys: Iterable[TopicPartitionKey], reason: PauseReason) -> None:
        """Pause partitions for a reason; those that are not assigned are ignored."""
        new: list[TopicPartition] = []
        for partition in self._known(keys):
            if not partition.pauses:
                new.append(TopicPartition(*partition.key))
            partition.pauses |= reason
        if new:
            self.client().pause(new)

    def unpause(self, keys: Iterable[TopicPartitionKey], reason: PauseReason) -> None:
        """Remove a reason; resume the partitions that have no reason left."""
        free: list[TopicPartition] = []
        for partition in self._known(keys):
            if reason in partition.pauses:
                partition.pauses &= ~reason
                if not partition.pauses:
                    free.append(TopicPartition(*partition.key))
        if free:
            self.client().resume(free)

    def _known(self, keys: Iterable[TopicPartitionKey]) -> list[Partition]:
        return [self.partitions[key] for key in keys if key in self.partitions]

    def read_to(self) -> list[TopicPartition]:
        """Return how far the client has read the partitions that have begun; an offset below 0: nothing was read yet.

        Behind the last messages are records that no reader sees: transaction markers, aborted records. Call it only
        between two fetches: in a callback, or after a message was dropped, the client's position may be behind messages
        that are in no queue, and a commit of it would lose them
        (test_closing_passes_what_was_read_and_no_message_that_it_drops,
        test_a_message_in_hand_is_not_passed_when_its_partition_is_revoked_within_the_same_fetch). It asks no broker
        (0.3 to 0.7 ms for a thousand partitions).
        """
        asked = [TopicPartition(*key) for key, each in self.partitions.items() if not each.is_waiting]
        return self.client().position(asked) if asked else []

    # --- assignment --------------------------------------------------------------------------------------------------

    def start(self, partitions: list[TopicPartition]) -> None:
        """Assign partitions at their starts; those whose start is not known now begin later (`start_waiting`).

        Raises KafkaException or RuntimeError: the partitions could not be assigned.
        """
        keys = _keys(partitions)
        known = {} if self.is_closing else self._resolve(keys, _START_S)
        self.start_at({key: known.get(key, _UNKNOWN) for key in keys})

    def start_at(self, starts: Mapping[TopicPartitionKey, int]) -> None:
        """Assign partitions at these offsets; those with -1 begin later. Raises as `start`."""
        self._assign(starts, PauseReason.UNRESOLVED)
        for key, offset in starts.items():
            self.partitions[key].is_waiting = offset < 0
            self._begin(key, offset)

    def start_waiting(self) -> None:
        """Look up the starts of waiting partitions again, and begin those that are known now; none delays another."""
        began_ms = self.now_ms()
        waiting = sorted(key for key, each in self.partitions.items() if each.is_waiting)
        keys, timeout_s = self._rotation.pick(waiting, began_ms)
        if not keys:
            return
        known = self._resolve(keys, timeout_s)
        self._rotation.tried(keys, failed=not known, began_ms=began_ms, now_ms=self.now_ms())
        for key, offset in known.items():
            self.partitions[key].is_waiting = False
            self._begin(key, offset)
        self.unpause(known, PauseReason.UNRESOLVED)

    def _resolve(self, keys: Collection[TopicPartitionKey], timeout_s: float) -> dict[TopicPartitionKey, int]:
        """Return the starts of partitions, and seek those of them that wait; return none if that is impossible now."""
        try:
            known = self.starts.resolve(keys, timeout_s)
            for partition in self._known(known):
                if partition.is_waiting:
                    self.client().seek(TopicPartition(*partition.key, known[partition.key]))
        except KafkaException as error:
            _LOG.warning("consumer.start-unknown", extra={"error": str(error), "partitions": list(map(str, keys))})
            return {}
        return known

    def assign_paused(self, partitions: list[TopicPartition], reason: PauseReason) -> None:
        """Assign partitions that begin later, by `seek` and a release of this pause. Raises as `start`."""
        self._assign(dict.fromkeys(_keys(partitions), _UNKNOWN), reason)

    def _assign(self, starts: Mapping[TopicPartitionKey, int], reason: PauseReason) -> None:
        """Assign partitions; pause those without a start before, so that nothing of them is fetched.

        A pause after the assignment comes too late for the first fetch in most cases (24 of 25, with 2 ms between). The
        client pauses only partitions that it knows, and a question for their positions makes them known
        (test_a_partition_is_known_to_the_client_before_it_is_paused_for_its_assignment).
        """
        consumer = self.client()
        partitions = {key: Partition(key) for key in starts}
        paused = [TopicPartition(*key) for key, offset in starts.items() if offset < 0]
        if paused:
            consumer.position(paused)
            consumer.pause(paused)
        consumer.incremental_assign([TopicPartition(*key, max(offset, 0)) for key, offset in starts.items()])
        read = [TopicPartition(*key) for key, offset in starts.items() if offset >= 0]
        if read:
            consumer.resume(read)
        for item in paused:
            partitions[TopicPartitionKey.of(item)].pauses = reason
        self.partitions.update(partitions)
        self.starts.compare_soon()

    def _begin(self, key: TopicPartitionKey, offset: int) -> None:
        if offset >= 0:  # else it waits, and is sought once its start is known
            self.partitions[key].stale_fetch = self._fetches
        self._owner.begin(key, offset)

    def follow_assigner(self) -> None:
        """Assign and revoke partitions until exactly those are read that the assigner wants; raise what it raises."""
        if self.assigner is None:
            return
        is_shared, self.ownership.is_shared = self.ownership.is_shared, False  # then all is lost, and begins again
        wanted = set() if is_shared else self.assigner.wanted(self.lookups, self.partitions, self.now_ms())
        if wanted is None:
            return
        gone, new = sorted(self.partitions.keys() - wanted), sorted(wanted - self.partitions.keys())
        lost = [key for key in gone if is_shared or not (self._owner.position(key) is None or self.ownership.owns(key))]
        released = [key for key in gone if key not in lost]
        consumer = self.client()
        for callback, keys in ((self._on_lost, lost), (self._on_revoke, released), (self._on_assign, new)):
            if keys:
                callback(consumer, [TopicPartition(*key) for key in keys])
        self.joining.joined()

    def unassign(self, keys: Collection[TopicPartitionKey]) -> None:
        """Give up partitions; the owner forgets them. An error is kept."""
        self.forget(keys)
        try:
            self.client().incremental_unassign([TopicPartition(*key) for key in keys])
        except (KafkaException, RuntimeError) as error:
            self.fail(error)

    def forget(self, keys: Collection[TopicPartitionKey]) -> None:
        """Forget partitions, and let the owner forget them; Kafka's client is not asked."""
        self._owner.forget(keys)
        for key in keys:
            self.partitions.pop(key, None)
            if self.assigner is not None:
                self.assigner.release(key)

    def forget_all(self) -> None:
        """Forget every partition, and end the assigner: the consumer is closing."""
        self.joining.is_member = False
        if self.partitions:
            self.forget(sorted(self.partitions))
        if self.assigner is not None:
            self.assigner.close()

    def fail(self, error: BaseException) -> None:
        """Keep the first error."""
        self.error = error if self.error is None else self.error

    # --- callbacks of the Kafka client: none of these may raise ------------------------------------------------------

    def _on_assign(self, _: ConsumerClient, partitions: list[TopicPartition]) -> None:
        keys = _keys(partitions)
        try:
            self._owner.accept(partitions)
            if self.is_suspended or self.is_closing:
                self.pause(keys, PauseReason.SUSPENDED)
        except (KafkaException, RuntimeError) as error:
            self.fail(error)
            return
        self.joining.joined()
        _LOG.info("consumer.assigned", extra={"partitions": list(map(str, keys))})

    def _on_revoke(self, _: ConsumerClient, partitions: list[TopicPartition]) -> None:
        keys = _keys(partitions)
        try:
            self._owner.drain_and_commit(keys)
        except (KafkaException, RuntimeError) as error:
            self.fail(error)
        finally:
            self.unassign(keys)

    def _on_lost(self, _: ConsumerClient, partitions: list[TopicPartition]) -> None:
        keys = _keys(partitions)
        self.joining.is_member = False
        _LOG.warning("consumer.lost", extra={"partitions": list(map(str, keys))})
        self.unassign(keys)


def _keys(partitions: Iterable[TopicPartition]) -> list[TopicPartitionKey]:
    return [TopicPartitionKey.of(item) for item in partitions]


def runs_of(batch: list[Any]) -> Iterator[tuple[TopicPartitionKey, list[Any]]]:
    """Yield the runs of messages of one partition in a fetched batch, in order; a partition may have several runs.

    The offsets of a run rise: where a log was cut, another run begins. Only runs with gaps or cuts are looked through.
    Runs are long, or of one or two messages where many partitions are read. So the messages are compared in C, one at
    first, then twice as many each time.
    """
    topics: list[Any] = list(map(_TOPIC, batch))
    numbers: list[Any] = list(map(_PARTITION, batch))
    at, count = 0, len(batch)
    while at < count:
        topic, number = topics[at], numbers[at]
        end, stride = at + 1, 1
        while end < count:
            step = min(stride, count - end)
            if numbers[end : end + step].count(number) != step or topics[end : end + step].count(topic) != step:
                break
            end += step
            stride *= 2
        while end < count and numbers[end] == number and topics[end] == topic:
            end += 1
        run = batch[at:end] if end - at < count else batch
        if run[-1].offset() - run[0].offset() != end - at - 1:
            offsets: list[Any] = list(map(_OFFSET, run))
            rises = [*map(lt, offsets, offsets[1:]), False]  # False before its end: the log was cut within the fetch
            end = at + rises.index(False) + 1
            run = run[: end - at]
        yield TopicPartitionKey(topic, number), run
        at = end
