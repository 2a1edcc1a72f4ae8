"""`PullConsumer.pull(queue, expression, offset, max_count)`: read a queue from an offset, and keep no position for it.

As in RocketMQ's broker, one pull examines 800 messages, or `max_count` if that is more, for those that the expression
selects. `NO_MATCHED_MSG` contains the offset at which to continue.

RocketMQ's broker answers each pull separately. Kafka's client fetches ahead. So each queue that was pulled has a
*prefetch buffer*. Rules:

* A pull that continues where the last pull of its queue ended takes messages from the buffer. Every other offset is
  first compared with the queue's bounds (`OFFSET_ILLEGAL`); then the buffer is emptied and the queue is read from that
  offset.
* The queue of a full buffer is paused, so that a pull of one queue does not fill the memory with messages of others.
* An empty buffer proves nothing. `NO_NEW_MSG` is returned only if the end of the log is not above the position: a pull
  finds every message that was stored before the call. Transaction markers may follow the last message; the client's
  end-of-partition event tells how far they reach.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Self, Unpack

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.consumer.pull.session import PullSession
from rocketshim.consumer.reader.group_offsets import commit_now
from rocketshim.core.clock import Clock
from rocketshim.errors import BrokerUnavailableError, ConfigError
from rocketshim.filters import MessageSelector, TagFilter
from rocketshim.filters.selection import as_selector, unreadable_headers
from rocketshim.kafka.client_errors import ErrorLines
from rocketshim.kafka.clients import Clients, ConsumerClient, is_fatal
from rocketshim.kafka.lookups import Lookups
from rocketshim.kafka.queue_lookup import QueueLookup, cluster_errors
from rocketshim.logs import safe_logger
from rocketshim.metrics import Metric
from rocketshim.settings.consumer import PullConsumerOptions, PullConsumerSettings
from rocketshim_topics import MalformedRecordError, MessageView, TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.kafka_codes import DENIED, MISSING
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.wire import read_headers

__all__ = ["PullConsumer", "PullResult", "PullStatus"]

_EXAMINE_COUNT: Final = 800
_SLICE_S: Final = 0.1


class PullStatus(Enum):
    """The outcome of a pull. Source: `PullStatus` of RocketMQ."""

    FOUND = "found"
    """The pull found messages."""
    NO_NEW_MSG = "no new message"
    """The offset is the end of the queue."""
    NO_MATCHED_MSG = "no matched message"
    """There are messages, but the expression selects none of them: continue at `next_begin_offset`."""
    OFFSET_ILLEGAL = "offset illegal"
    """The offset is before the queue's first message or after its end; `next_begin_offset` is the nearest legal one."""


@dataclass(frozen=True, slots=True)
class PullResult:
    """The result of a pull.

    Attributes:
        status: the outcome, one of four.
        next_begin_offset: offset for the next pull.
        min_offset: offset of the queue's first message, as last seen.
        max_offset: end of the queue for a reader of committed messages, as last seen.
        messages: the messages found, in the queue's order; empty unless `FOUND`.

    Source: `PullResult` of RocketMQ.
    """

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: list[MessageView] = field(default_factory=list)


_LOG = safe_logger("rocketshim.consumer")
FETCH_COUNT: Final = 256
_PARTITION_EOF: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - no public spelling
_OFFSET_RESET: Final = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001
_BUFFER_COUNT: Final = 4_000  # large, since each pause drops what the client has fetched ahead
_BUFFER_BYTES: Final = 8 * 1_048_576


@dataclass(slots=True)
class PrefetchBuffer:
    """Messages of one queue that were fetched and that no pull has returned yet."""

    queue: MessageQueue
    key: TopicPartitionKey
    next_offset: int  # a pull from this offset takes from the buffer
    bounds: tuple[int, int]  # the queue's first offset and its end, as last seen
    messages: deque[Any] = field(default_factory=deque)
    size_bytes: int = 0
    end_at: int | None = None  # end of the log as the client last reported it; None: not since the last message
    is_paused: bool = False
    is_illegal: bool = False  # retention deleted the messages at this position

    @property
    def is_full(self) -> bool:
        """Whether the queue has to be paused."""
        return len(self.messages) >= _BUFFER_COUNT or self.size_bytes >= _BUFFER_BYTES

    def put(self, message: Any) -> None:
        """Add a fetched message."""
        self.messages.append(message)
        self.size_bytes += len(message)
        self.end_at = None

    def take(self) -> Any:
        """Return the first message, and remove it."""
        message = self.messages.popleft()
        self.size_bytes -= len(message)
        self.next_offset = message.offset() + 1
        return message


class PullConsumer:
    """Reads queues from offsets that the caller keeps.

    ::

        with PullConsumer("localhost:9092", group="audit") as consumer:
            for queue in consumer.fetch_message_queues("orders"):
                offset = consumer.min_offset(queue)
                while (result := consumer.pull(queue, "paid", offset, 100)).status is not PullStatus.NO_NEW_MSG:
                    for message in result.messages:
                        ...
                    offset = result.next_begin_offset

    Args:
        bootstrap: `host:port` of at least one broker; None: that of `settings`, or of `ROCKETSHIM_BOOTSTRAP`.
        group: the consumer group; None if `settings` contains it.
        settings: all settings in one object, instead of the other arguments.
        clients: the factory of Kafka clients; None: confluent_kafka.
        clock: the source of time; None: the clock of this machine.
        values: any other field of `PullConsumerSettings`, by name.

    Raises:
        ConfigError: a setting does not exist or is out of range; nothing was opened.

    Thread-safety: one thread at a time; this is checked (`ConsumerError`). `stop` may be called from any thread and
        from a signal handler.

    Source: `DefaultMQPullConsumer` of RocketMQ.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        group: str | None = None,
        settings: PullConsumerSettings | None = None,
        clients: Clients | None = None,
        clock: Clock | None = None,
        **values: Unpack[PullConsumerOptions],
    ) -> None:
        settings = PullConsumerSettings.given(settings, values, bootstrap=bootstrap, group=group)
        self.settings = settings
        self.names = TopicNames(settings.namespace)
        self._session = PullSession(settings, clients, clock, self._close)
        self._reading: ConsumerClient  # set by `start`
        self._lookups = Lookups(self._session.check_open, self._make_client)
        self._lookup = QueueLookup(
            self.names, lambda: self._lookups, lambda: self._session.last_error.text(self._lookups.open())
        )
        self._errors = ErrorLines(settings.group, settings.client)
        self._buffers: dict[tuple[str, int], PrefetchBuffer] = {}  # found per message by a plain tuple

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the consumer, without network access yet. Safe to call twice.

        Raises:
            ConfigError: Kafka's client rejects a client setting.
            ConsumerError: the consumer was stopped before.
        """
        self._session.start(self._open)

    def stop(self) -> None:
        """Close the consumer; wait for a pull in another thread. Safe to call twice.

        If a signal handler calls it in the thread that pulls, it only requests the stop: that pull closes the consumer
        when it ends.
        """
        self._session.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- messages ----------------------------------------------------------------------------------------------------

    def pull(
        self, queue: MessageQueue, expression: MessageSelector | str | None, offset: int, max_count: int = 32
    ) -> PullResult:
        """Return messages of a queue, beginning at an offset.

        Args:
            queue: the queue to read.
            expression: tags separated by `||`, a `MessageSelector`, or None for everything.
            offset: offset of the first message to return.
            max_count: maximum number of messages, 1 to 1,024.

        Returns:
            The messages that exist now. At the end of the queue it does not wait for new messages (`NO_NEW_MSG`).

        Raises:
            ConfigError: `max_count` is out of range, or the queue is not valid.
            FilterSyntaxError: the expression does not compile.
            ConsumerError: the consumer is not running.
            TopicMissingError, NotAuthorizedError: the queue cannot be read.
            BrokerUnavailableError: no answer came within `consumer_pull_timeout_ms`. After each of these errors a pull
                from the same offset misses nothing.
            MalformedRecordError: no expression can be evaluated on the message at `offset` (or on the first message
                after it), since a header name is not UTF-8. The error's text contains its coordinates. Pull from the
                next offset, or without an expression.

        Source: `DefaultMQPullConsumer#pull`.
        """
        return self._pull(queue, expression, offset, max_count, 0)

    def pull_block_if_not_found(
        self, queue: MessageQueue, expression: MessageSelector | str | None, offset: int, max_count: int = 32
    ) -> PullResult:
        """Pull like `pull`, but wait at the queue's end for a message, up to `broker_suspend_max_time_ms`."""
        return self._pull(queue, expression, offset, max_count, self.settings.broker_suspend_max_time_ms)

    # --- queues and offsets ------------------------------------------------------------------------------------------

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic, sorted.

        Raises:
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: they cannot be determined.
        """
        with self._session.call():
            return self._lookup.queues(topic)

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the queue's first message.

        Raises:
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: it cannot be determined.
        """
        with self._session.call():
            return self._lookup.bounds(queue)[0]

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the queue's end for a reader of committed messages.

        Raises:
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: it cannot be determined.
        """
        with self._session.call():
            return self._lookup.bounds(queue)[1]

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message not older than `timestamp_ms` (epoch ms); the end if there is none.

        Raises:
            ConfigError: the time is negative.
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: it cannot be determined.
        """
        with self._session.call():
            return self._lookup.offset_for_timestamp(queue, timestamp_ms)

    def update_consume_offset(self, queue: MessageQueue, offset: int) -> None:
        """Commit an offset for the group, and wait for the answer; it may be lower than the previous one.

        The commit is not fenced: if two programs commit the same queue, the last commit counts. While members of the
        group consume (push, or lite pull with `subscribe`), Kafka rejects it.

        Raises:
            ConfigError: the offset is below 0.
            ConsumerError: Kafka rejected the commit; nothing was committed.
            BrokerUnavailableError: no answer came; the offset may or may not be committed.
        """
        if offset < 0:
            raise ConfigError(f"update_consume_offset: {offset} is not an offset; offsets begin at 0")
        with self._session.call():
            position = TopicPartition(*self._lookup.key_of(queue), offset)
            client, failed = self._client(), f"the offset of {queue} was not committed"
            with cluster_errors(failed), self._session.counts.counting_failed_commits():
                commit_now(client, [position])

    def fetch_consume_offset(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue; None if there is none (RocketMQ: -1).

        Raises:
            BrokerUnavailableError: it cannot be determined.
        """
        with self._session.call():
            return self._lookup.committed(queue, self._client())

    def metrics(self) -> Iterable[Metric]:
        """Return the current metrics, for `MetricsCollector`; any thread."""
        return self._session.counts.metrics(self.settings.group, self._session.now_ms())

    # --- internal ----------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._reading = self._make_client()

    def _make_client(self) -> ConsumerClient:
        required = {"enable.partition.eof": True, "auto.offset.reset": "error"}  # OFFSET_ILLEGAL: the caller decides
        return self._session.make_client(required, {"fetch.wait.max.ms": 100})

    def _client(self) -> ConsumerClient:
        self._session.check_open()
        return self._reading

    def _close(self) -> None:
        self._buffers.clear()
        self._lookups.close()
        self._reading.close()

    def _pull(
        self, queue: MessageQueue, expression: MessageSelector | str | None, offset: int, max_count: int, wait_ms: int
    ) -> PullResult:
        if not 1 <= max_count <= 1_024:
            raise ConfigError(f"pull: max_count={max_count}, it must be 1 to 1024")
        selector = as_selector(expression)
        with self._session.call():
            self._session.counts.polled_at_ms = self._session.now_ms()
            key = self._lookup.key_of(queue)
            buffer = self._buffers.get(key)
            if buffer is None or buffer.next_offset != offset or buffer.is_illegal:
                bounds = self._lookup.bounds(queue)
                if not bounds[0] <= offset <= bounds[1]:
                    return _illegal(offset, bounds)
                buffer = self._read_from(queue, key, offset, bounds)
            found, examined = self._search(buffer, selector, max_count, wait_ms)
            if buffer.is_illegal and not examined:
                return _illegal(offset, self._lookup.bounds(queue))
            self._session.counts.add_poll(len(found))
            status = PullStatus.NO_MATCHED_MSG if examined else PullStatus.NO_NEW_MSG
            low, high = buffer.bounds[0], max(buffer.bounds[1], buffer.next_offset)
            return PullResult(PullStatus.FOUND if found else status, buffer.next_offset, low, high, found)

    def _search(
        self, buffer: PrefetchBuffer, selector: MessageSelector, max_count: int, wait_ms: int
    ) -> tuple[list[MessageView], int]:
        """Take the selected messages from the buffer; return them, and how many messages were examined."""
        began_ms = self._session.now_ms()
        found: list[MessageView] = []
        trusted = self.names.has_failures(buffer.key.topic)
        examined, most = 0, max(_EXAMINE_COUNT, max_count)
        while True:
            while buffer.messages and len(found) < max_count and examined < most:
                selected = _is_selected(selector, buffer.messages[0])
                if selected is None:
                    if examined:
                        return found, examined  # the next pull begins with it
                    self._session.counts.skipped += 1
                    raise unreadable_headers(buffer.take())
                message = buffer.take()
                examined += 1
                if selected:
                    found.append(MessageView(message, trusted))
            if buffer.messages or buffer.is_illegal:
                return found, examined
            self._fetch(buffer, 0)
            if buffer.messages:
                continue
            waited_ms = self._session.now_ms() - began_ms
            if examined or self._session.stopping or (waited_ms >= wait_ms and self._is_at_end(buffer)):
                return found, examined  # the next pull finds out whether there is more
            if waited_ms >= wait_ms + self.settings.consumer_pull_timeout_ms:
                raise BrokerUnavailableError(
                    f"{buffer.queue} was not read from offset {buffer.next_offset} within "
                    f"{self.settings.consumer_pull_timeout_ms} ms; pull again"
                )
            self._fetch(buffer, _SLICE_S)

    # --- reading ahead -----------------------------------------------------------------------------------------------

    def _read_from(
        self, queue: MessageQueue, key: TopicPartitionKey, offset: int, bounds: tuple[int, int]
    ) -> PrefetchBuffer:
        """Read a queue from this offset; return its new, empty buffer."""
        consumer = self._client()
        at = TopicPartition(*key, offset)
        with cluster_errors(f"{key} cannot be read from offset {offset}"):
            if self._buffers.pop(key, None) is not None:
                consumer.incremental_unassign([TopicPartition(*key)])
            consumer.incremental_assign([at])
            consumer.resume([at])  # the client keeps a pause across assignments
        buffer = self._buffers[key] = PrefetchBuffer(queue, key, offset, bounds)
        return buffer

    def _fetch(self, wanted: PrefetchBuffer, wait_s: float) -> None:
        """Put what the client has fetched into the buffers; pause the full ones, resume the wanted one."""
        consumer = self._client()
        if wanted.is_paused and not wanted.is_full:
            wanted.is_paused = False
            consumer.resume([TopicPartition(*wanted.key)])
        try:
            first = consumer.poll(wait_s)
            fetched = () if first is None else (first, *consumer.consume(FETCH_COUNT - 1, 0))
            failures = [self._put(message, wanted) for message in fetched]
        except BaseException:  # for example of a signal handler: what was fetched is lost, so all is read again
            consumer.unassign()
            self._buffers.clear()
            raise
        for key, each in self._buffers.items():
            if each.is_full and not each.is_paused:
                each.is_paused = True
                consumer.pause([TopicPartition(*key)])
        for failure in failures:
            if failure is not None:
                with cluster_errors(f"{wanted.queue} cannot be read"):
                    raise KafkaException(failure)

    def _is_at_end(self, buffer: PrefetchBuffer) -> bool:
        """Return whether the queue has no message that a pull has not returned; look up its bounds for that.

        Decides: May a pull answer "no new message"? Only if a look-up says that the position is the queue's end.
        """
        if buffer.messages or buffer.is_illegal:
            return False
        buffer.bounds = self._lookup.bounds(buffer.queue)
        if buffer.end_at is not None and buffer.end_at >= buffer.bounds[1]:
            buffer.next_offset = buffer.end_at  # skip what no reader sees: transaction markers, aborted messages
        return buffer.next_offset >= buffer.bounds[1]

    def _put(self, message: Any, wanted: PrefetchBuffer) -> KafkaError | None:
        """Put a message into its buffer; return an error event that ends the pull."""
        buffer = self._buffers.get((message.topic(), message.partition()))
        error: KafkaError | None = message.error()
        if error is None:
            if buffer is not None:
                buffer.put(message)
        elif buffer is not None and error.code() == _PARTITION_EOF:
            buffer.end_at = message.offset()
        elif buffer is not None and error.code() == _OFFSET_RESET:
            buffer.is_illegal = True
        else:
            if (facts := self._errors.facts(error, message.topic(), self._session.now_ms())) is not None:
                _LOG.warning("consumer.client-error", extra=facts)
            concerns_pull = message.topic() in {wanted.key.topic, None}
            if is_fatal(error) or (concerns_pull and error.code() in DENIED | MISSING):
                return error
        return None


def _illegal(offset: int, bounds: tuple[int, int]) -> PullResult:
    low, high = bounds
    return PullResult(PullStatus.OFFSET_ILLEGAL, max(low, min(offset, high)), low, high)


def _is_selected(selector: MessageSelector, message: object) -> bool | None:
    """Return whether a selector selects a message; None if its headers are unreadable."""
    compiled = selector.filter
    if isinstance(compiled, TagFilter) and compiled.matches_all:
        return True
    try:
        return compiled.matches_headers(read_headers(message))
    except MalformedRecordError:
        return None
