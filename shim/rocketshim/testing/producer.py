# ruff: noqa: ARG002, FBT002, PLR0917 - the signatures are confluent_kafka's
"""`confluent_kafka.Producer` on the in-memory Kafka.

Theory of operation
-------------------
`produce` puts a message into the producer's own queue and sends it immediately (linger is 0). It stays in the queue
while the broker is down or a test holds sends back, and everything behind it for the same partition stays too, so order
per partition is kept. Once it is in the log, or has failed for good, its delivery report waits until `poll`, `flush`,
`commit_transaction` or `abort_transaction` is called: callbacks run there and nowhere else.

Imitated because programs stumble over it (measured on librdkafka 2.16 and a real broker):

* The message of a delivery report carries key and value but *no headers*, and after a failure neither offset nor time.
* A batch that the broker calls a duplicate is reported as stored: its first message without an offset, those behind it
  with the offsets 0, 1, 2, whatever is in the log (`fail_produce(None)`).
* A message too large for this client is refused by `produce`, one too large for its topic by its report.
* A full queue is a `BufferError`; messages whose reports have not been served count.
* An unknown topic fails by report the first time and by `produce` from then on; an unknown partition is refused by
  `produce` where the topic is known already. What it knows of a topic stays as it is when partitions are added, until
  it asks (`list_topics`, or `topic.metadata.refresh.interval.ms` later).
* A fatal error comes out of `poll` or `flush` as an exception, once, whatever `error_cb` says; messages that were
  still waiting are reported with `_PURGE_QUEUE`.

Transactions are in `rocketshim.testing.transaction_session`. Their records are in the log, and seen by
`read_uncommitted`, before the commit.

Thread-safety: `produce` from any thread; the rest from the owner, as with the real one.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaException, TopicPartition, consistent, fnv1a, murmur2

from rocketshim.testing.broker import InMemoryBroker, Topic
from rocketshim.testing.client_settings import ProducerSettings
from rocketshim.testing.consumer import GroupMetadata
from rocketshim.testing.group_coordinator import CommittedOffset
from rocketshim.testing.kafka_errors import Code, failure, kafka_error
from rocketshim.testing.outgoing import (
    BATCH_OVERHEAD_BYTES,
    CLIENT_OVERHEAD_BYTES,
    DeliveryCallback,
    Outgoing,
    to_headers,
    to_payload,
)
from rocketshim.testing.partition_result import named
from rocketshim.testing.transaction_session import TransactionSession
from rocketshim.testing.waiting import NS_PER_MS, Waiting

__all__ = ["InMemoryProducer"]

PARTITION_UNKNOWN = -1


class InMemoryProducer:
    """A producer client. Make it with `InMemoryKafka.producer`.

    Methods, arguments, results and errors are those of `confluent_kafka.Producer`.
    """

    def __init__(self, broker: InMemoryBroker, settings: ProducerSettings, waiting: Waiting) -> None:
        self._broker = broker
        self._waiting = waiting
        self._settings = settings
        self._session = TransactionSession(broker, settings.transactional_id, settings.transaction_timeout_ms)
        self._queue: deque[Outgoing] = deque()
        self._done: deque[Outgoing] = deque()
        self._known = _KnownTopics(broker, settings.metadata_refresh_ms)
        self._fatal_is_told = False
        self._is_gone = False
        with broker.lock:
            broker.producers.append(self)

    # --- sending -------------------------------------------------------------------------------------------------

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = PARTITION_UNKNOWN,
        callback: DeliveryCallback | None = None,
        on_delivery: DeliveryCallback | None = None,
        timestamp: int = 0,
        headers: Mapping[str, str | bytes | None] | Sequence[tuple[str, str | bytes | None]] | None = None,
    ) -> None:
        """Queue one message; its outcome comes to `on_delivery` in `poll` or `flush`.

        Raises:
            BufferError: the queue is full.
            KafkaException: refused by the call (too large, unknown partition, no transaction, fatal); not queued.
            TypeError: an argument of a wrong type.
        """
        outgoing = Outgoing(
            topic,
            partition,
            to_payload(key),
            to_payload(value),
            to_headers(headers),
            timestamp if timestamp > 0 else self._broker.clock.wall_ms(),
            on_delivery or callback or self._settings.on_delivery,
            self._broker.clock.monotonic_ns(),
        )
        with self._broker.lock:
            self._broker.settle()
            self._refuse(outgoing)
            self._queue.append(outgoing)
            self._broker.touch()

    def _refuse(self, outgoing: Outgoing) -> None:
        """Raise what `produce` raises immediately (locked)."""
        doing = "Unable to produce message"
        self._session.check_produce()
        if len(self) >= self._settings.queue_max_count:
            raise BufferError("Local: Queue full")
        if outgoing.size_bytes() > self._settings.message_max_bytes:
            raise failure(Code.MSG_SIZE_TOO_LARGE, doing)
        topic = self._broker.topics.get(outgoing.topic)
        if topic is None and outgoing.topic in self._known.missing:
            raise failure(Code.UNKNOWN_TOPIC, doing)
        if topic is not None and outgoing.partition >= self._known.count(topic, outgoing.partition + 1):
            raise failure(Code.UNKNOWN_PARTITION, doing)
        fault = self._broker.faults.take_produce(outgoing.topic, outgoing.partition, is_synchronous=True)
        if fault is not None:
            raise KafkaException(fault.error)

    def transmit(self) -> None:
        """Send on what waits, as far as it goes (locked)."""
        if not self._queue:
            return
        stuck: set[tuple[str, int]] = set()
        waiting: deque[Outgoing] = deque()
        for outgoing in self._queue:
            self._send(outgoing, stuck)
            if outgoing.is_done:
                self._done.append(outgoing)
            else:
                stuck.add((outgoing.topic, outgoing.partition))
                waiting.append(outgoing)
        self._queue = waiting

    def _send(self, outgoing: Outgoing, stuck: set[tuple[str, int]]) -> None:
        """One message to the log, or to its failure, or nothing while it must wait."""
        age_ns = self._broker.clock.monotonic_ns() - outgoing.queued_ns
        if self._session.fatal is not None:
            self._fail(outgoing, Code.PURGE_QUEUE)
        elif age_ns >= self._settings.delivery_timeout_ms * NS_PER_MS:
            self._fail(outgoing, Code.MSG_TIMED_OUT)
        elif not self._broker.faults.is_broker_down and not self._is_held(outgoing):
            topic = self._route(outgoing)
            is_stuck = (outgoing.topic, outgoing.partition) in stuck
            if topic is not None and not is_stuck and not self._is_held(outgoing):  # its partition may be new
                self._deliver(outgoing, topic)

    def _is_held(self, outgoing: Outgoing) -> bool:
        return self._broker.faults.send_is_held(outgoing.topic, outgoing.partition)

    def _route(self, outgoing: Outgoing) -> Topic | None:
        """Find topic and partition; None, and the message has failed, where there is none."""
        topic = self._broker.topics.get(outgoing.topic)
        if topic is None:
            self._known.missing.add(outgoing.topic)
            self._fail(outgoing, Code.UNKNOWN_TOPIC_OR_PART)
            return None
        self._known.learn_first(topic)
        if outgoing.partition == PARTITION_UNKNOWN:
            count = min(self._known.count(topic, 0), len(topic.partitions))
            outgoing.partition = _choose_partition(
                self._settings.partitioner, outgoing.key, count, self._broker.next_keyless_turn
            )
        if outgoing.partition >= len(topic.partitions):
            self._fail(outgoing, Code.UNKNOWN_PARTITION)
            return None
        return topic

    def _deliver(self, outgoing: Outgoing, topic: Topic) -> None:
        """Hand a message to the leader: stored, refused, or as a test has ordered."""
        if outgoing.topic in self._broker.faults.denied_writes:
            self._fail(outgoing, Code.TOPIC_AUTHORIZATION_FAILED)
            return
        leader_ms = self._broker.leader_wall_ms(outgoing.topic, outgoing.partition)
        refusal = _leader_refusal(outgoing, topic, leader_ms)
        if refusal is not None:
            self._fail(outgoing, refusal, by_broker=True)
            return
        fault = self._broker.faults.take_produce(outgoing.topic, outgoing.partition, is_synchronous=False)
        if fault is None or fault.is_stored:
            self._store(outgoing, topic)
        if fault is not None and fault.error is None:
            outgoing.succeed_as_duplicate(fault.number(outgoing.topic, outgoing.partition))
        elif fault is not None and fault.error is not None:
            outgoing.fail(fault.error)
            self._session.message_failed(fault.error, by_broker=True)

    def _store(self, outgoing: Outgoing, topic: Topic) -> None:
        try:
            transaction = self._session.join()
        except KafkaException:
            self._fail(outgoing, Code.PURGE_QUEUE)
            return
        record = self._broker.append(
            topic,
            outgoing.partition,
            key=outgoing.key,
            value=outgoing.value,
            headers=outgoing.headers,
            timestamp_ms=outgoing.timestamp_ms,
            transaction=transaction,
        )
        outgoing.succeed(record)

    def _fail(self, outgoing: Outgoing, code: int, *, by_broker: bool = False) -> None:
        outgoing.fail(kafka_error(code))
        self._session.message_failed(kafka_error(code), by_broker=by_broker)

    # --- reports -------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = -1) -> int:
        """Serve delivery reports; how many. Waits for the first for at most `timeout` seconds.

        Raises:
            KafkaException: the producer's fatal error, once.
        """
        waiter = self._broker.waiter(self._waiting, timeout)
        while True:
            version = self._advance()
            served_count = self._serve_reports()
            if served_count or not waiter.wait(version):
                return served_count

    def flush(self, timeout: float = -1) -> int:
        """Serve reports until none is outstanding or `timeout` seconds are over; how many messages are left.

        Raises:
            KafkaException: the producer's fatal error, once.
        """
        waiter = self._broker.waiter(self._waiting, timeout)
        while True:
            version = self._advance()
            self._serve_reports()
            if not len(self) or not waiter.wait(version):
                return len(self)

    def _advance(self) -> int:
        """Do what the client's own thread would have done; the broker's version to wait on."""
        with self._broker.lock:
            version = self._broker.changes.version
            self._broker.settle()
            self.transmit()
            if self._session.fatal is not None and not self._fatal_is_told:
                self._fatal_is_told = True
                raise KafkaException(self._session.fatal)
            return version

    def _serve_reports(self) -> int:
        served_count = 0
        while (outgoing := self._next_report()) is not None:
            served_count += 1
            is_wanted = outgoing.error is not None or not self._settings.reports_only_errors
            if outgoing.callback is not None and is_wanted:
                outgoing.callback(outgoing.error, outgoing.report())
        return served_count

    def _next_report(self) -> Outgoing | None:
        with self._broker.lock:
            for index, outgoing in enumerate(self._done):
                if not self._broker.faults.report_is_held(outgoing.topic, outgoing.partition):
                    del self._done[index]
                    return outgoing
            return None

    def purge(self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True) -> None:
        """Give up what has not been sent (report `_PURGE_QUEUE`), but, as librdkafka 2.16, what deleted topics hold."""
        with self._broker.lock:
            if in_queue:
                self._purge()

    def _purge(self) -> None:
        waiting, self._queue = self._queue, deque()
        for outgoing in waiting:
            is_purged = outgoing.topic in self._broker.topics or not self._is_held(outgoing)
            (self._done if is_purged else self._queue).append(outgoing)
            if is_purged:
                outgoing.fail(kafka_error(Code.PURGE_QUEUE))

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Metadata of all topics or one; an unknown topic comes with its error."""
        self._broker.await_answer(self._waiting, timeout)
        with self._broker.lock:
            if self._broker.faults.is_broker_down:
                raise failure(Code.TRANSPORT, "Failed to get metadata")
            metadata = self._broker.cluster_metadata(topic)
            for name, found in metadata.topics.items():
                if found.error is None:
                    self._known.learn(name, len(found.partitions))
            return metadata

    def __len__(self) -> int:
        return len(self._queue) + len(self._done)

    def __bool__(self) -> bool:
        return True

    # --- transactions --------------------------------------------------------------------------------------------

    def init_transactions(self, timeout: float = -1) -> None:
        """Take over the transactional id: fences its former owner and aborts what that left open."""
        self._broker.await_answer(self._waiting, timeout)
        with self._broker.lock:
            self._broker.settle()
            self._session.require_broker("init_transactions")
            self._session.initialise()
            self._broker.touch()

    def begin_transaction(self) -> None:
        """Begin; local, the coordinator hears of it with the first record or offset."""
        with self._broker.lock:
            self._broker.settle()
            self._session.begin()

    def send_offsets_to_transaction(
        self, positions: list[TopicPartition], group_metadata: GroupMetadata, timeout: float = -1
    ) -> None:
        """Commit these offsets with the transaction, as the member that `group_metadata` names; none is fine.

        Raises:
            KafkaException: the group's refusal (to be aborted); `_FENCED` (fatal); `_TIMED_OUT` (retriable).
        """
        call = "send_offsets_to_transaction"
        self._broker.await_answer(self._waiting, timeout)
        with self._broker.lock:
            self._broker.settle()
            self._session.check_open(call)
            self._session.require_broker(call)
            self._session.raise_ordered(call)
            valid = [(named(p), CommittedOffset(p.offset, p.metadata)) for p in positions if p.offset >= 0]
            if valid:
                group = group_metadata
                self._session.add_offsets(group.group_id, group.member_id, group.generation, valid)

    def commit_transaction(self, timeout: float = -1) -> None:
        """Commit everything or nothing; serves the delivery reports.

        Raises:
            KafkaException: the error of a message or of the offsets (to be aborted); `_FENCED` (fatal); `_TIMED_OUT`
                (retriable), the broker does not answer or a report is outstanding: commit again, nothing else.
        """
        call = "commit_transaction"
        self._broker.await_answer(self._waiting, timeout)
        with self._broker.lock:
            self._broker.settle()
            self._session.check_open(call)
            self._session.is_committing = True
            self._session.require_broker(call)
            self.transmit()
        self._serve_reports()
        with self._broker.lock:
            self._session.check_open(call)
            if len(self):
                raise failure(Code.TIMED_OUT, call, retriable=True)
            self._session.is_committing = False
            self._session.end_as_ordered(call, is_commit=True)

    def abort_transaction(self, timeout: float = -1) -> None:
        """Abort: what waits is purged, what is in the log is never seen by `read_committed`; serves the reports.

        Raises:
            KafkaException: `_FENCED` (fatal); `_TIMED_OUT` (retriable), no answer, or a message that stays (`purge`).
        """
        call = "abort_transaction"
        self._broker.await_answer(self._waiting, timeout)
        with self._broker.lock:
            self._broker.settle()
            self._session.check_abort()
            self._session.require_broker(call)
            self._purge()
        self._serve_reports()
        with self._broker.lock:
            if self._queue:
                raise failure(Code.TIMED_OUT, call, retriable=True)
            self._session.end_as_ordered(call, is_commit=False)

    # --- end -----------------------------------------------------------------------------------------------------

    def close(self) -> bool:
        """Flush and end."""
        self.flush()
        self.abandon()
        return True

    def abandon(self) -> None:
        """The process of this producer has died: what is not in the log is lost, no callback comes any more."""
        with self._broker.lock:
            self._queue.clear()
            self._done.clear()
            if not self._is_gone:
                self._is_gone = True
                self._broker.producers.remove(self)


class _KnownTopics:
    """The metadata of one producer. They age: it learns of added partitions when it asks again.

    Attributes:
        missing: topics that did not exist when the producer last asked.

    Thread-safety: none; the broker's lock guards it.
    """

    def __init__(self, broker: InMemoryBroker, refresh_ms: int) -> None:
        self.missing: set[str] = set()
        self._broker = broker
        self._refresh_ms = refresh_ms
        self._counts: dict[str, tuple[int, int]] = {}  # partitions of a topic; until when that counts, ns

    def learn(self, name: str, count: int) -> None:
        """Store the number of partitions of a topic, as the brokers report it now."""
        self._counts[name] = count, self._broker.clock.monotonic_ns() + self._refresh_ms * NS_PER_MS
        self.missing.discard(name)

    def learn_first(self, topic: Topic) -> None:
        """Ask for a topic that this producer does not know yet."""
        if topic.name not in self._counts:
            self.learn(topic.name, len(topic.partitions))

    def count(self, topic: Topic, unknown: int) -> int:
        """Return how many partitions of a topic this producer knows; `unknown` if it does not know the topic."""
        count, until_ns = self._counts.get(topic.name, (unknown, -1))
        if 0 <= until_ns <= self._broker.clock.monotonic_ns():
            self.learn(topic.name, len(topic.partitions))
            return len(topic.partitions)
        return count


def _choose_partition(partitioner: str, key: bytes | None, count: int, next_turn: Callable[[], int]) -> int:
    """Choose a partition by librdkafka's partitioners; where those choose at random, take them in turn."""
    is_keyless = not key if partitioner == "consistent_random" else key is None and partitioner.endswith("_random")
    if is_keyless or partitioner == "random":
        return next_turn() % count
    if partitioner.startswith("murmur2"):
        return int(murmur2(key or b"", count))
    if partitioner.startswith("fnv1a"):
        return int(fnv1a(key or b"", count))
    return int(consistent(key or b"", count))


def _leader_refusal(outgoing: Outgoing, topic: Topic, leader_ms: int) -> int | None:
    """Return the code with which a leader, whose clock shows `leader_ms`, refuses this record; None: it takes it."""
    if outgoing.size_bytes() - CLIENT_OVERHEAD_BYTES + BATCH_OVERHEAD_BYTES > topic.max_message_bytes:
        return Code.MSG_SIZE_TOO_LARGE
    if topic.is_compacted and outgoing.key is None:
        return Code.INVALID_RECORD
    if not topic.is_log_append_time and outgoing.timestamp_ms - leader_ms > topic.timestamp_after_max_ms:
        return Code.INVALID_TIMESTAMP
    return None
