"""`PullConsumer.pull(queue, expression, offset, max_count)`: read a queue from an offset, and keep no position for it.

RocketMQ's broker answers each pull by itself. Kafka's client fetches ahead, so behind one Kafka consumer each queue
that was pulled has a *shelf* with what has been fetched of it and not asked for yet. Rules of this file:

* A pull that goes on where the last one of its queue ended takes from the shelf. Every other offset is compared with
  the queue's bounds first (`OFFSET_ILLEGAL`), then the shelf is emptied and the queue read from there.
* A shelf that holds enough is paused, so that pulling one queue does not fill memory with the others.
* An empty shelf proves nothing. Only an end of the log that is not above the position is `NO_NEW_MSG`: a message that
  was stored before the call is found by it. Behind the last message there may lie transaction markers; the client's
  end-of-partition event tells how far they go.
* Questions (bounds, queues, offsets) have a Kafka client of their own: behind a fetch that the broker holds for want of
  messages they would wait for its whole time (`fetch.wait.max.ms`, 100 ms here: a queue that is pulled for the first
  time waits for it too).
* As RocketMQ's broker, one pull looks at 800 messages, or `max_count` if that is more, for those the expression
  selects; `NO_MATCHED_MSG` says where to go on.
"""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Any, Final, Self, Unpack

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.clock import SystemClock
from rocketshim.consumer.pull.lite_pull_consumer import as_selector, unreadable_headers
from rocketshim.core.clock import Clock
from rocketshim.errors import BrokerUnavailableError, ConfigError, ConsumerError
from rocketshim.filters import MessageSelector, TagFilter
from rocketshim.kafka.client_config import CONSUMER_DEFAULTS, PROTECTED_CONSUMER, merge
from rocketshim.kafka.clients import Clients, ConsumerClient, LastClientError, confluent_clients
from rocketshim.kafka.partitions import TopicPartitionKey
from rocketshim.kafka.queue_lookup import QueueLookup, cluster_errors
from rocketshim.logs import safe_logger
from rocketshim.settings import PullConsumerOptions, PullConsumerSettings
from rocketshim_topics import MalformedRecordError, MessageView, TopicNames
from rocketshim_topics.kafka_codes import DENIED, MISSING
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.wire import read_headers

__all__ = ["PullConsumer", "PullResult", "PullStatus"]

_LOG = safe_logger("rocketshim.consumer")
_LOOK_AT_COUNT: Final = 800
_SHELF_COUNT: Final = 4_000  # a queue is pulled in turn with others: each pause throws away what was fetched ahead
_SHELF_BYTES: Final = 8 * 1_048_576
_FETCH_COUNT: Final = 256
_SLICE_S: Final = 0.1
_PARTITION_EOF: Final = KafkaError._PARTITION_EOF  # noqa: SLF001 - no public spelling
_OFFSET_RESET: Final = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001


class PullStatus(Enum):
    """What a pull has found. Source: `PullStatus` of RocketMQ."""

    FOUND = "found"
    """Messages."""
    NO_NEW_MSG = "no new message"
    """The offset is the end of the queue."""
    NO_MATCHED_MSG = "no matched message"
    """Messages, but none that the expression selects: go on at `next_begin_offset`."""
    OFFSET_ILLEGAL = "offset illegal"
    """The offset lies before the queue's first message or behind its end; `next_begin_offset` is the nearest legal."""


@dataclass(frozen=True, slots=True)
class PullResult:
    """What a pull has found.

    Attributes:
        status: which of the four.
        next_begin_offset: where to pull next.
        min_offset: offset of the queue's first message, as last seen.
        max_offset: end of the queue for a reader of committed messages, as last seen.
        messages: what was found, in the queue's order; empty unless `FOUND`.

    Source: `PullResult` of RocketMQ.
    """

    status: PullStatus
    next_begin_offset: int
    min_offset: int
    max_offset: int
    messages: list[MessageView] = field(default_factory=list)


class _PrefetchBuffer:
    """What has been fetched of one queue and not been asked for."""

    __slots__ = (
        "bounds", "end_at", "illegal", "messages", "next_offset", "paused", "place", "queue", "size_bytes",
    )  # fmt: skip

    def __init__(self, queue: MessageQueue, place: TopicPartitionKey, offset: int, bounds: tuple[int, int]) -> None:
        self.queue = queue
        self.place = place
        self.next_offset = offset  # where a pull goes on that takes from here
        self.bounds = bounds
        self.messages: deque[Any] = deque()
        self.size_bytes = 0
        self.end_at: int | None = None  # the log ended here when the client last said so
        self.paused = False
        self.illegal = False  # retention has overtaken it

    @property
    def is_full(self) -> bool:
        return len(self.messages) >= _SHELF_COUNT or self.size_bytes >= _SHELF_BYTES

    def put(self, message: Any) -> None:
        self.messages.append(message)
        self.size_bytes += _size(message)
        self.end_at = None

    def take(self) -> Any:
        message = self.messages.popleft()
        self.size_bytes -= _size(message)
        self.next_offset = message.offset() + 1
        return message


class PullConsumer:
    """Reads queues from offsets that its caller keeps.

    ::

        with PullConsumer("localhost:9092", group="audit") as consumer:
            for queue in consumer.fetch_message_queues("orders"):
                offset = consumer.min_offset(queue)
                while (result := consumer.pull(queue, "paid", offset, 100)).status is not PullStatus.NO_NEW_MSG:
                    for message in result.messages:
                        ...
                    offset = result.next_begin_offset

    Args:
        bootstrap: `host:port` of at least one broker; None when `settings` says it.
        group: the consumer group; None when `settings` says it.
        settings: everything at once, in place of the other arguments.
        clients: where Kafka clients come from; None: confluent_kafka.
        clock: time; None: this machine's.
        values: any other field of `PullConsumerSettings`, by name.

    Raises:
        ConfigError: a setting that does not exist or is out of range; nothing was opened.

    Thread-safety: one thread at a time, checked (`ConsumerError`); `stop` from any, also from a signal handler.

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
        if settings is None:
            settings = PullConsumerSettings.make(bootstrap=bootstrap or "", group=group or "", **values)
        elif bootstrap is not None or group is not None or values:
            raise ConfigError("PullConsumer takes settings=, or its fields as arguments, not both")
        self.settings = settings
        self.names = TopicNames(settings.namespace)
        self._clients = clients
        self._clock: Clock = clock or SystemClock()
        self._complaints = LastClientError()
        self._lookup = QueueLookup(self.names, self._asker, lambda: self._complaints.text(self._asker()))
        self._own_topics = {self.names.retry(settings.group), self.names.dead_letter(settings.group)}
        self._shelves: dict[TopicPartitionKey, _PrefetchBuffer] = {}
        self._clients_made: tuple[ConsumerClient, ConsumerClient] | None = None  # one that reads, one that asks
        self._stopped = False
        self._stopping = False
        self._lock = threading.Lock()
        self._holder: int | None = None

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the client; no network yet. Safe twice.

        Raises:
            ConfigError: a client setting that Kafka's client refuses.
            ConsumerError: it was stopped before.
        """
        with self._call():
            if self._stopped:
                raise ConsumerError("this consumer was stopped, and a consumer runs once: make a new one")
            if self._clients_made is None:
                config = self._config()
                try:
                    make = (self._clients or confluent_clients()).consumer
                    self._clients_made = make(config), make(config)
                except (KafkaException, ValueError, TypeError) as error:
                    raise ConfigError(f"Kafka's client refuses its settings: {error}") from error

    def stop(self) -> None:
        """Close. Safe twice; a pull in another thread is waited for.

        Called by a signal handler while its own thread pulls, it only asks: that pull closes at its end.
        """
        self._stopping = True
        if self._holder == threading.get_ident():
            return
        with self._lock:
            self._close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- messages ----------------------------------------------------------------------------------------------------

    def pull(
        self, queue: MessageQueue, expression: MessageSelector | str | None, offset: int, max_count: int = 32
    ) -> PullResult:
        """Messages of a queue from an offset on.

        Args:
            queue: which.
            expression: tags separated by `||`, a `MessageSelector`, or None for everything.
            offset: of the first message that is wanted.
            max_count: most messages, 1 to 1,024.

        Returns:
            What there is now; `NO_NEW_MSG` does not wait for messages to come.

        Raises:
            ConfigError: `max_count` out of range, or a queue that cannot be one.
            FilterSyntaxError: the expression does not compile.
            ConsumerError: not running.
            TopicMissingError, NotAuthorizedError: it cannot be read.
            BrokerUnavailableError: no answer within `consumer_pull_timeout_ms`. After each of these pulling again from
                the same offset misses nothing.
            MalformedRecordError: no expression can judge the message at `offset` (or the first one behind it), since a
                header's name is no UTF-8; its text says where it lies. Pull from behind it, or without an expression.

        Source: `DefaultMQPullConsumer#pull`.
        """
        return self._pull(queue, expression, offset, max_count, 0)

    def pull_block_if_not_found(
        self, queue: MessageQueue, expression: MessageSelector | str | None, offset: int, max_count: int = 32
    ) -> PullResult:
        """As `pull`, but at the queue's end wait up to `broker_suspend_max_time_ms` for a message."""
        return self._pull(queue, expression, offset, max_count, self.settings.broker_suspend_max_time_ms)

    # --- queues and offsets ------------------------------------------------------------------------------------------

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic, sorted.

        Raises:
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: they cannot be told.
        """
        with self._call():
            return self._lookup.queues(topic)

    def min_offset(self, queue: MessageQueue) -> int:
        """Offset of the queue's first message.

        Raises:
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: it cannot be told.
        """
        with self._call():
            return self._lookup.bounds(queue)[0]

    def max_offset(self, queue: MessageQueue) -> int:
        """The queue's end for a reader of committed messages.

        Raises:
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: it cannot be told.
        """
        with self._call():
            return self._lookup.bounds(queue)[1]

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Offset of the first message not older than `timestamp_ms` (epoch ms); the end if there is none.

        Raises:
            ConfigError: a negative time.
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: it cannot be told.
        """
        with self._call():
            return self._lookup.offset_for_timestamp(queue, timestamp_ms)

    def update_consume_offset(self, queue: MessageQueue, offset: int) -> None:
        """Commit an offset for the group, and wait for the answer; it may be lower than the one before.

        Nobody fences it: of two programs that keep the same queue's offset, the last one counts. While members of the
        group consume (push, or lite pull with `subscribe`), Kafka refuses it.

        Raises:
            ConfigError: an offset below 0.
            ConsumerError: Kafka refuses it; nothing was committed.
            BrokerUnavailableError: no answer; it may have been committed or not.
        """
        if offset < 0:
            raise ConfigError(f"update_consume_offset: {offset} is no offset, they begin at 0")
        with self._call():
            asked = TopicPartition(*self._lookup.place(queue), offset)
            with cluster_errors(f"the offset of {queue} was not committed"):
                for answer in self._asker().commit(offsets=[asked], asynchronous=False):
                    if answer.error is not None:
                        raise KafkaException(answer.error)

    def fetch_consume_offset(self, queue: MessageQueue) -> int | None:
        """What the group has committed of a queue; None for nothing (RocketMQ: -1).

        Raises:
            BrokerUnavailableError: it cannot be told.
        """
        with self._call(), cluster_errors(f"what is committed of {queue} cannot be told"):
            (answer,) = self._asker().committed([TopicPartition(*self._lookup.place(queue))], timeout=10.0)
            if answer.error is not None:
                raise KafkaException(answer.error)
        return answer.offset if answer.offset >= 0 else None

    # --- inside ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _call(self) -> Iterator[None]:
        if not self._lock.acquire(blocking=False):
            raise ConsumerError("this consumer is being used by another thread; it belongs to one at a time")
        self._holder = threading.get_ident()
        try:
            yield
        finally:
            self._holder = None
            if self._stopping:
                self._close()
            self._lock.release()

    def _close(self) -> None:
        made, self._clients_made, self._stopped = self._clients_made, None, True
        self._shelves.clear()
        for client in made or ():
            client.close()

    def _made(self) -> tuple[ConsumerClient, ConsumerClient]:
        if self._clients_made is None:
            raise ConsumerError(f"the consumer is {'stopped' if self._stopped else 'not started'}")
        return self._clients_made

    def _reader(self) -> ConsumerClient:
        return self._made()[0]

    def _asker(self) -> ConsumerClient:
        return self._made()[1]

    def _config(self) -> dict[str, Any]:
        required = {
            **PROTECTED_CONSUMER,
            "bootstrap.servers": self.settings.bootstrap,
            "group.id": self.settings.group,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",  # OFFSET_ILLEGAL is for the caller to decide
        }
        return merge(
            self.settings.client,
            defaults={**CONSUMER_DEFAULTS, "fetch.wait.max.ms": 100, **self._complaints.settings},
            required=required,
            allow_code_settings=self.settings.allow_code_settings,
        )

    def _pull(
        self,
        queue: MessageQueue,
        expression: MessageSelector | str | None,
        offset: int,
        max_count: int,
        suspend_ms: int,
    ) -> PullResult:
        if not 1 <= max_count <= 1_024:
            raise ConfigError(f"pull: max_count={max_count}, 1 to 1024 are allowed")
        selector = as_selector(expression)
        with self._call():
            place = self._lookup.place(queue)
            shelf = self._shelves.get(place)
            if shelf is None or shelf.next_offset != offset or shelf.illegal:
                bounds = low, high = self._lookup.bounds(queue)
                if not low <= offset <= high:
                    return PullResult(PullStatus.OFFSET_ILLEGAL, max(low, min(offset, high)), low, high)
                shelf = self._read_from(queue, place, offset, bounds)
            found, looked_at = self._search(shelf, selector, max_count, suspend_ms)
            if shelf.illegal and not looked_at:
                low, high = self._lookup.bounds(queue)
                return PullResult(PullStatus.OFFSET_ILLEGAL, max(low, min(offset, high)), low, high)
            status = PullStatus.NO_MATCHED_MSG if looked_at else PullStatus.NO_NEW_MSG
            low, high = shelf.bounds[0], max(shelf.bounds[1], shelf.next_offset)
            return PullResult(PullStatus.FOUND if found else status, shelf.next_offset, low, high, found)

    def _search(
        self, shelf: _PrefetchBuffer, selector: MessageSelector, max_count: int, suspend_ms: int
    ) -> tuple[list[MessageView], int]:
        """Take from the shelf what is selected; returns it, and how many messages were looked at."""
        began_ms = self._clock.monotonic_ns() // 1_000_000
        found: list[MessageView] = []
        looked_at = 0
        while True:
            looked_at = self._take(shelf, selector, found, looked_at, max_count)
            if shelf.messages or shelf.illegal:
                return found, looked_at
            self._fetch(shelf, 0)
            if shelf.messages:
                continue
            if looked_at:  # the next pull says whether there is more
                return found, looked_at
            if self._stopping:
                return found, looked_at
            waited_ms = self._clock.monotonic_ns() // 1_000_000 - began_ms
            if waited_ms >= suspend_ms and self._is_at_end(shelf):
                return found, looked_at
            if waited_ms >= suspend_ms + self.settings.consumer_pull_timeout_ms:
                raise BrokerUnavailableError(
                    f"{shelf.queue} was not read from offset {shelf.next_offset} within "
                    f"{self.settings.consumer_pull_timeout_ms} ms; pull again"
                )
            self._fetch(shelf, _SLICE_S)

    def _take(
        self,
        shelf: _PrefetchBuffer,
        selector: MessageSelector,
        found: list[MessageView],
        looked_at: int,
        max_count: int,
    ) -> int:
        """Take messages that lie there; how many were looked at by now."""
        while shelf.messages and len(found) < max_count and looked_at < max(_LOOK_AT_COUNT, max_count):
            selected = self._is_selected(shelf, selector)
            if selected is None:
                if looked_at:
                    break  # the next pull begins with it
                raise unreadable_headers(shelf.take())
            message = shelf.take()
            looked_at += 1
            if selected:
                found.append(MessageView(message, shelf.place[0] in self._own_topics))
        return looked_at

    @staticmethod
    def _is_selected(shelf: _PrefetchBuffer, selector: MessageSelector) -> bool | None:
        """Whether the first message that lies there is selected; None: nobody can read its headers."""
        message, chosen = shelf.messages[0], selector.filter
        if isinstance(chosen, TagFilter) and chosen.matches_all:
            return True
        try:
            return chosen.matches_headers(read_headers(message))
        except MalformedRecordError:
            return None

    def _is_at_end(self, shelf: _PrefetchBuffer) -> bool:
        if shelf.messages or shelf.illegal:
            return False
        shelf.bounds = self._lookup.bounds(shelf.queue)
        if shelf.end_at is not None and shelf.end_at >= shelf.bounds[1]:
            shelf.next_offset = shelf.end_at  # over what no reader sees: transaction markers, aborted messages
        return shelf.next_offset >= shelf.bounds[1]

    def _read_from(
        self, queue: MessageQueue, place: TopicPartitionKey, offset: int, bounds: tuple[int, int]
    ) -> _PrefetchBuffer:
        consumer = self._reader()
        at = TopicPartition(*place, offset)
        with cluster_errors(f"{place[0]}/{place[1]} cannot be read from offset {offset}"):
            if self._shelves.pop(place, None) is not None:
                consumer.incremental_unassign([TopicPartition(*place)])
            consumer.incremental_assign([at])
            consumer.resume([at])  # pauses stick
        shelf = self._shelves[place] = _PrefetchBuffer(queue, place, offset, bounds)
        return shelf

    def _fetch(self, wanted: _PrefetchBuffer, wait_s: float) -> None:
        """Put what the client has on the shelves; pause those that are full, let the wanted one go on."""
        consumer = self._reader()
        if wanted.paused and not wanted.is_full:
            wanted.paused = False
            consumer.resume([TopicPartition(*wanted.place)])
        first = consumer.poll(wait_s)
        if first is None:
            return
        failures = [self._put(message, wanted) for message in (first, *consumer.consume(_FETCH_COUNT - 1, 0))]
        for place, each in self._shelves.items():
            if each.is_full and not each.paused:
                each.paused = True
                consumer.pause([TopicPartition(*place)])
        for failure in failures:
            if failure is not None:
                with cluster_errors(f"reading {wanted.queue}"):
                    raise KafkaException(failure)

    def _put(self, message: Any, wanted: _PrefetchBuffer) -> KafkaError | None:
        """Put a message where it belongs; an event that ends the pull is returned."""
        shelf = self._shelves.get((message.topic(), message.partition()))
        error: KafkaError | None = message.error()
        if error is None:
            if shelf is not None:
                shelf.put(message)
        elif shelf is not None and error.code() == _PARTITION_EOF:
            shelf.end_at = message.offset()
        elif shelf is not None and error.code() == _OFFSET_RESET:
            shelf.illegal = True
        else:
            _LOG.warning("consumer.client-error", extra={"error": str(error), "topic": message.topic()})
            concerns = message.topic() in {wanted.place[0], None}
            if error.fatal() or (concerns and error.code() in DENIED | MISSING):
                return error
        return None


def _size(message: Any) -> int:
    value = message.value()
    return 0 if value is None else len(value)
