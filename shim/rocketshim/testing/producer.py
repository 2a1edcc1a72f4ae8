# ruff: noqa: ARG002, FBT002, PLR0917 - the signatures are confluent_kafka's; nothing here takes time
"""`confluent_kafka.Producer` on the in-memory Kafka.

Theory of operation
-------------------
`produce` puts a message into the producer's own queue and sends it on at once (linger is 0). It stays in the queue
while the broker is down or a test holds sends back, and everything behind it for the same partition stays too, so order
per partition is kept. Once it is in the log, or has failed for good, its delivery report waits until `poll` or `flush`
is called: callbacks run there and nowhere else.

Imitated because programs stumble over it (all measured on librdkafka 2.16):

* the message of a delivery report carries key, value, offset and timestamp, but *no headers*;
* a message too large for this client is refused by `produce`, one too large for its topic by its report;
* a full queue is a `BufferError`; undelivered reports count as queued;
* an unknown partition is refused by `produce` only when the topic is known already, else by the report.

In transactions: records are in the log (and seen by `read_uncommitted`) before the commit; a message that failed makes
`commit_transaction` fail with `_INCONSISTENT`, to be aborted; who has been fenced or timed out gets `_FENCED`, fatal,
from every call, for ever.

Thread-safety: `produce` from any thread; the rest from the owner, as with the real one.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    OFFSET_INVALID,
    TIMESTAMP_CREATE_TIME,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
    consistent,
    fnv1a,
    murmur2,
)

from rocketshim.testing.broker import NS_PER_MS, Broker, Topic, TransactionalId, Waiter
from rocketshim.testing.client_settings import ProducerSettings
from rocketshim.testing.consumer import GroupMetadata
from rocketshim.testing.group_coordinator import CommittedOffset
from rocketshim.testing.kafka_errors import Code, failure, kafka_error
from rocketshim.testing.partition_log import Headers

__all__ = ["InMemoryProducer"]

DeliveryCallback = Callable[[KafkaError | None, Message], Any]
CLIENT_OVERHEAD_BYTES = 36
"""What librdkafka adds to key, value and headers before it compares with `message.max.bytes` (measured)."""
BATCH_OVERHEAD_BYTES = 61
"""Header of a record batch, format 2."""
PARTITION_UNKNOWN = -1


@dataclass(slots=True)
class Outgoing:
    """A message on its way: in the queue until `is_done`, then its report waits."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers
    timestamp_ms: int
    callback: DeliveryCallback | None
    queued_ns: int
    in_transaction: bool
    is_done: bool = False
    error: KafkaError | None = None
    offset: int | None = None
    timestamp: tuple[int, int] = (TIMESTAMP_CREATE_TIME, 0)

    def size_bytes(self) -> int:
        """Size of the record alone, as librdkafka counts it."""
        headers = sum(_text_bytes(name.encode()) + _text_bytes(value or b"") for name, value in self.headers)
        return CLIENT_OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"") + headers

    def report(self) -> Message:
        """The message that the delivery callback gets."""
        return Message(
            topic=self.topic,
            partition=self.partition,
            offset=OFFSET_INVALID if self.offset is None else self.offset,
            key=self.key,
            value=self.value,
            error=self.error,
            timestamp=self.timestamp,
            latency=0.0,
        )


class InMemoryProducer:
    """A producer client. Make it with `InMemoryKafka.producer`.

    Methods, arguments, results and errors are those of `confluent_kafka.Producer`.
    """

    def __init__(self, broker: Broker, settings: ProducerSettings) -> None:
        self._broker = broker
        self._settings = settings
        self._queue: deque[Outgoing] = deque()
        self._done: deque[Outgoing] = deque()
        self._known_topics: set[str] = set()
        self._transactional: TransactionalId | None = None
        self._epoch = -1
        self._in_transaction = False
        self._failed_count = 0
        self._fatal: KafkaError | None = None
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
            KafkaException: refused at once (too large, unknown partition, no transaction, fatal); nothing is queued.
            TypeError: an argument of a wrong type.
        """
        outgoing = Outgoing(
            topic,
            partition,
            _payload(key),
            _payload(value),
            _headers(headers),
            timestamp if timestamp > 0 else self._broker.clock.wall_ms(),
            on_delivery or callback or self._settings.on_delivery,
            self._broker.clock.monotonic_ns(),
            in_transaction=self._settings.transactional_id is not None,
        )
        with self._broker.lock:
            self._broker.settle()
            self._refuse(outgoing)
            self._queue.append(outgoing)
            self._broker.touch()

    def _refuse(self, outgoing: Outgoing) -> None:
        """Raise what `produce` raises at once (locked)."""
        doing = "Unable to produce message"
        if self._fatal is not None:
            raise failure(Code.FATAL, doing)
        if self._settings.transactional_id is not None and not self._in_transaction:
            raise failure(Code.STATE, doing)
        if len(self) >= self._settings.queue_max_count:
            raise BufferError("Local: Queue full")
        if outgoing.size_bytes() > self._settings.message_max_bytes:
            raise failure(Code.MSG_SIZE_TOO_LARGE, doing)
        known = self._broker.topics.get(outgoing.topic)
        if known is not None and outgoing.partition >= len(known.partitions) and known.name in self._known_topics:
            raise failure(Code.UNKNOWN_PARTITION, doing)
        fault = self._broker.faults.take_produce(outgoing.topic, outgoing.partition, is_synchronous=True)
        if fault is not None:
            raise KafkaException(fault.error)

    def transmit(self) -> None:
        """Send on what waits, as far as it goes (locked)."""
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
        broker = self._broker
        age_ns = broker.clock.monotonic_ns() - outgoing.queued_ns
        if age_ns >= self._settings.delivery_timeout_ms * NS_PER_MS:
            self._fail(outgoing, kafka_error(Code.MSG_TIMED_OUT))
            return
        if broker.faults.is_broker_down:
            return
        topic = broker.topics.get(outgoing.topic)
        code = Code.UNKNOWN_TOPIC if topic is None else self._route(outgoing, topic)
        if topic is None or code is not None:
            self._fail(outgoing, kafka_error(code or Code.UNKNOWN_TOPIC))
            return
        where = (outgoing.topic, outgoing.partition)
        if where not in stuck and not broker.faults.send_is_held(*where):
            self._deliver(outgoing, topic)

    def _route(self, outgoing: Outgoing, topic: Topic) -> int | None:
        """Choose the partition where the caller has not; the error code if there is no such partition."""
        self._known_topics.add(topic.name)
        if outgoing.partition == PARTITION_UNKNOWN:
            outgoing.partition = self._choose_partition(outgoing.key, len(topic.partitions))
        return None if outgoing.partition < len(topic.partitions) else Code.UNKNOWN_PARTITION

    def _deliver(self, outgoing: Outgoing, topic: Topic) -> None:
        """Hand a message to the leader: stored or refused."""
        error = self._broker_verdict(outgoing, topic)
        fault = None
        if error is None:
            fault = self._broker.faults.take_produce(outgoing.topic, outgoing.partition, is_synchronous=False)
        if fault is None or fault.is_stored:
            error = error or self._store(outgoing, topic)
        if fault is not None:
            error = error or fault.error
        if error is None:
            outgoing.is_done = True
        else:
            self._fail(outgoing, error)

    def _broker_verdict(self, outgoing: Outgoing, topic: Topic) -> KafkaError | None:
        if outgoing.topic in self._broker.faults.denied_writes:
            return kafka_error(Code.TOPIC_AUTHORIZATION_FAILED)
        if outgoing.size_bytes() + BATCH_OVERHEAD_BYTES - CLIENT_OVERHEAD_BYTES > topic.max_message_bytes:
            return kafka_error(Code.MSG_SIZE_TOO_LARGE)
        if topic.is_compacted and outgoing.key is None:
            return kafka_error(Code.INVALID_RECORD)
        return None

    def _store(self, outgoing: Outgoing, topic: Topic) -> KafkaError | None:
        transaction = None
        if outgoing.in_transaction:
            try:
                transaction = self._broker.join_transaction(self._owned_id(), self._epoch)
            except KafkaException as error:
                self._fatal = error.args[0]
                return self._fatal
        record = self._broker.append(
            topic,
            outgoing.partition,
            key=outgoing.key,
            value=outgoing.value,
            headers=outgoing.headers,
            timestamp_ms=outgoing.timestamp_ms,
            transaction=transaction,
        )
        outgoing.offset = record.offset
        outgoing.timestamp = (record.timestamp_type, record.timestamp_ms)
        return None

    def _fail(self, outgoing: Outgoing, error: KafkaError) -> None:
        outgoing.is_done = True
        outgoing.error = error
        outgoing.offset = None
        outgoing.timestamp = (TIMESTAMP_CREATE_TIME, outgoing.timestamp_ms)
        if outgoing.in_transaction:
            self._failed_count += 1

    def _choose_partition(self, key: bytes | None, partition_count: int) -> int:
        """By librdkafka's partitioners; where those take any at random, one after another."""
        name = self._settings.partitioner
        is_random = (
            name == "random" or (key is None and name.endswith("_random")) or (not key and name == "consistent_random")
        )
        if is_random:
            return self._broker.next_keyless_turn() % partition_count
        if name.startswith("murmur2"):
            return int(murmur2(key or b"", partition_count))
        if name.startswith("fnv1a"):
            return int(fnv1a(key or b"", partition_count))
        return int(consistent(key or b"", partition_count))

    # --- reports -------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = -1) -> int:
        """Serve delivery reports; how many. Waits for the first for at most `timeout` seconds."""
        waiter = Waiter(self._broker, timeout)
        while True:
            with self._broker.lock:
                version = self._broker.version
                self._broker.settle()
                self.transmit()
            served_count = self._serve_reports()
            if served_count or not waiter.wait(version):
                return served_count

    def flush(self, timeout: float = -1) -> int:
        """Serve reports until none is outstanding or `timeout` seconds are over; how many messages are left."""
        waiter = Waiter(self._broker, timeout)
        while True:
            with self._broker.lock:
                version = self._broker.version
                self._broker.settle()
                self.transmit()
            self._serve_reports()
            if not len(self) or not waiter.wait(version):
                return len(self)

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
            for outgoing in self._done:
                if not self._broker.faults.report_is_held(outgoing.topic, outgoing.partition):
                    self._done.remove(outgoing)
                    return outgoing
            return None

    def purge(
        self,
        in_queue: bool = True,
        in_flight: bool = True,
        blocking: bool = True,
    ) -> None:
        """Give up what has not been sent; each message gets a report with `_PURGE_QUEUE`."""
        with self._broker.lock:
            if in_queue:
                self._purge()

    def _purge(self) -> None:
        while self._queue:
            outgoing = self._queue.popleft()
            self._fail(outgoing, kafka_error(Code.PURGE_QUEUE))
            self._done.append(outgoing)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Metadata of all topics or one; an unknown topic comes with its error."""
        with self._broker.lock:
            if self._broker.faults.is_broker_down:
                raise failure(Code.TRANSPORT, "Failed to get metadata")
            metadata = self._broker.cluster_metadata(topic)
            self._known_topics.update(name for name, found in metadata.topics.items() if found.error is None)
            return metadata

    def __len__(self) -> int:
        return len(self._queue) + len(self._done)

    def __bool__(self) -> bool:
        return True

    # --- transactions --------------------------------------------------------------------------------------------

    def init_transactions(self, timeout: float = -1) -> None:
        """Take over the transactional id: fences its former owner and aborts what that left open."""
        if self._settings.transactional_id is None:
            raise failure(Code.NOT_CONFIGURED, "The Transactional API requires transactional.id to be configured")
        with self._broker.lock:
            self._broker.settle()
            self._need("init_transactions")
            if self._transactional is not None:
                raise failure(Code.STATE, "init_transactions")
            self._transactional, self._epoch = self._broker.init_transactions(
                self._settings.transactional_id, self._settings.transaction_timeout_ms
            )
            self._broker.touch()

    def begin_transaction(self) -> None:
        """Begin; local, the coordinator hears of it with the first record or offset."""
        with self._broker.lock:
            self._broker.settle()
            self._need("begin_transaction")
            if self._transactional is None or self._in_transaction:
                raise failure(Code.STATE, "begin_transaction")
            self._in_transaction = True
            self._failed_count = 0

    def send_offsets_to_transaction(
        self, positions: list[TopicPartition], group_metadata: GroupMetadata, timeout: float = -1
    ) -> None:
        """Commit these offsets with the transaction, as the member that `group_metadata` names."""
        with self._broker.lock:
            self._enter_transaction("send_offsets_to_transaction")
            valid = [position for position in positions if position.offset >= 0]
            if not valid:
                return
            group = self._broker.group(group_metadata.group_id)
            code = group.check_commit(group_metadata.member_id, group_metadata.generation, transactional=True)
            if code is not None:
                self._failed_count += 1
                raise failure(code, "send_offsets_to_transaction", txn_requires_abort=True)
            transactional = self._owned_id()
            self._broker.join_transaction(transactional, self._epoch)
            offsets = transactional.offsets.setdefault(group_metadata.group_id, {})
            for position in valid:
                offsets[position.topic, position.partition] = CommittedOffset(position.offset, position.metadata)

    def commit_transaction(self, timeout: float = -1) -> None:
        """Commit; everything or nothing.

        Raises:
            KafkaException: `_INCONSISTENT` (to be aborted), a message failed; `_FENCED` (fatal); `_TIMED_OUT`
                (retriable), the broker does not answer.
        """
        with self._broker.lock:
            fault = self._enter_transaction("commit_transaction")
            if fault is not None:
                raise KafkaException(fault)
            self.transmit()
            if self._queue:
                raise failure(Code.TIMED_OUT, "commit_transaction", retriable=True)
            if self._failed_count:
                text = f"{self._failed_count} message(s) failed delivery (see individual message delivery reports)"
                raise KafkaException(KafkaError(Code.INCONSISTENT, text, txn_requires_abort=True))
            self._end(is_commit=True)

    def abort_transaction(self, timeout: float = -1) -> None:
        """Abort: what waits is purged, what is in the log is never seen by `read_committed`."""
        with self._broker.lock:
            fault = self._enter_transaction("abort_transaction")
            if fault is not None:
                raise KafkaException(fault)
            self._purge()
            self._end(is_commit=False)

    def _enter_transaction(self, call: str) -> KafkaError | None:
        """What every call inside a transaction begins with: not fenced, in one, broker there (locked).

        Returns:
            The error of an ordered fault whose call has taken effect all the same; None: nothing ordered.
        """
        self._broker.settle()
        self._need(call)
        if not self._in_transaction:
            raise failure(Code.STATE, call)
        fault = self._broker.faults.take_transaction(self._owned_id().name, call)
        if fault is None:
            return None
        if fault.error.fatal():
            self._fatal = fault.error
        if not fault.is_applied:
            raise KafkaException(fault.error)
        self.transmit()
        self._end(is_commit=call == "commit_transaction")
        return fault.error

    def _end(self, *, is_commit: bool) -> None:
        self._broker.end_transaction(self._owned_id(), is_commit=is_commit)
        self._in_transaction = False
        self._failed_count = 0

    def _need(self, call: str) -> None:
        """Refuse a fenced producer and a broker that is down (locked)."""
        if self._transactional is not None and self._transactional.epoch != self._epoch:
            self._fatal = kafka_error(Code.FENCED, call, fatal=True)
        if self._fatal is not None:
            raise KafkaException(self._fatal)
        if self._broker.faults.is_broker_down:
            raise failure(Code.TIMED_OUT, call, retriable=True)

    def _owned_id(self) -> TransactionalId:
        if self._transactional is None:
            raise failure(Code.STATE, "init_transactions has not been called")
        return self._transactional

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


def _payload(value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise TypeError(f"a bytes-like object is required, not '{type(value).__name__}'")


def _headers(headers: object) -> Headers:
    """Headers as they arrive: keys end at NUL, texts become UTF-8."""
    if headers is None:
        return ()
    if isinstance(headers, dict):
        pairs: list[Any] = list(headers.items())
    elif isinstance(headers, list):
        pairs = headers
    else:
        raise TypeError(f"expected headers to be dict or list of (key, value) tuples, not {type(headers).__name__}")
    return tuple(_header(pair) for pair in pairs)


def _header(pair: Any) -> tuple[str, bytes | None]:
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise TypeError("Headers are expected to be a list of (key, value) tuples")
    name, value = pair
    if value is not None and not isinstance(value, bytes | str):
        raise TypeError(f"expected header value to be None, binary, or unicode string, not {type(value).__name__}")
    return str(name).split("\0", 1)[0], value.encode() if isinstance(value, str) else value


def _text_bytes(text: bytes) -> int:
    """Bytes of a text and its length as a zigzag varint."""
    length_bytes = 1
    rest = len(text) << 1
    while rest := rest >> 7:
        length_bytes += 1
    return len(text) + length_bytes
