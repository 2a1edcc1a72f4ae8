"""`PullConsumer.pull(queue, expression, offset, max_count)`: read a queue from an offset, and keep no position for it.

As in RocketMQ's broker, one pull examines 800 messages, or `max_count` if that is more, for those that the expression
selects. `NO_MATCHED_MSG` contains the offset at which to continue. `prefetch` has the rules of reading ahead.

Lookups (bounds, queues, offsets) use a second Kafka client. On the reading client they would wait behind a fetch that
the broker delays until messages arrive, for up to `fetch.wait.max.ms` (100 ms here; the first pull of a queue waits for
it, too).
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, Self, Unpack

from confluent_kafka import KafkaException, TopicPartition

from rocketshim.client_metrics import PullCounts
from rocketshim.clock import SystemClock
from rocketshim.consumer.pull.one_caller import OneCaller
from rocketshim.consumer.pull.prefetch import Prefetch
from rocketshim.consumer.pull.selection import as_selector, is_selected, unreadable_headers
from rocketshim.consumer.reader.commits import commit_now
from rocketshim.core.clock import Clock, now_ms_of
from rocketshim.core.prefetch_buffer import PrefetchBuffer
from rocketshim.errors import BrokerUnavailableError, ConfigError, ConsumerError
from rocketshim.filters import MessageSelector
from rocketshim.health import Metric
from rocketshim.kafka.client_config import CONSUMER_DEFAULTS, PROTECTED_CONSUMER, merge
from rocketshim.kafka.clients import Clients, ConsumerClient, LastClientError, confluent_clients
from rocketshim.kafka.queue_lookup import QueueLookup, cluster_errors
from rocketshim.settings import PullConsumerOptions, PullConsumerSettings
from rocketshim_topics import MessageView, TopicNames
from rocketshim_topics.message_queue import MessageQueue

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
        bootstrap: `host:port` of at least one broker; None if `settings` contains it.
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
        settings = PullConsumerSettings.of_consumer("PullConsumer", settings, bootstrap, group, values)
        self.settings = settings
        self.names = TopicNames(settings.namespace)
        self._clients = clients
        self._now_ms = now_ms_of(clock or SystemClock())
        self._last_error = LastClientError()
        self._lookup = QueueLookup(
            self.names, lambda: self._both_clients()[1], lambda: self._last_error.text(self._both_clients()[1])
        )
        self._prefetch = Prefetch(lambda: self._both_clients()[0], self._lookup)
        self._own_topics = {self.names.retry(settings.group), self.names.dead_letter(settings.group)}
        self._clients_made: tuple[ConsumerClient, ConsumerClient] | None = None  # the reading client, the lookup client
        self._stopped = False
        self._counts = PullCounts()
        self._caller = OneCaller(self._close)

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the clients, without network access yet. Safe to call twice.

        Raises:
            ConfigError: Kafka's client rejects a client setting.
            ConsumerError: the consumer was stopped before.
        """
        with self._call():
            if self._stopped:
                raise ConsumerError("this consumer was stopped, and a consumer runs only once: create a new one")
            if self._clients_made is None:
                config = self._config()
                try:
                    make = (self._clients or confluent_clients()).consumer
                    self._clients_made = make(config), make(config)
                except (KafkaException, ValueError, TypeError) as error:
                    raise ConfigError(f"Kafka's client rejects its settings: {error}") from error

    def stop(self) -> None:
        """Close the consumer; wait for a pull in another thread. Safe to call twice.

        If a signal handler calls it in the thread that pulls, it only requests the stop: that pull closes the consumer
        when it ends.
        """
        self._caller.stop()

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
        with self._call():
            return self._lookup.queues(topic)

    def min_offset(self, queue: MessageQueue) -> int:
        """Return the offset of the queue's first message.

        Raises:
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: it cannot be determined.
        """
        with self._call():
            return self._lookup.bounds(queue)[0]

    def max_offset(self, queue: MessageQueue) -> int:
        """Return the queue's end for a reader of committed messages.

        Raises:
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: it cannot be determined.
        """
        with self._call():
            return self._lookup.bounds(queue)[1]

    def search_offset(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of the first message not older than `timestamp_ms` (epoch ms); the end if there is none.

        Raises:
            ConfigError: the time is negative.
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: it cannot be determined.
        """
        with self._call():
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
        with self._call():
            position = TopicPartition(*self._lookup.key_of(queue), offset)
            client = self._both_clients()[1]
            with cluster_errors(f"the offset of {queue} was not committed"), self._counts.counting_failed_commits():
                commit_now(client, [position])

    def fetch_consume_offset(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue; None if there is none (RocketMQ: -1).

        Raises:
            BrokerUnavailableError: it cannot be determined.
        """
        with self._call():
            return self._lookup.committed(queue, self._both_clients()[1])

    def metrics(self) -> Iterable[Metric]:
        """Return the current metrics, for `MetricsCollector`; any thread."""
        return self._counts.metrics(self.settings.group, self._now_ms())

    # --- internal ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _call(self) -> Iterator[None]:
        with self._caller.call():
            try:
                yield
            finally:
                if self._caller.stopping:
                    self._close()

    def _close(self) -> None:
        made, self._clients_made, self._stopped = self._clients_made, None, True
        self._prefetch.buffers.clear()
        for client in made or ():
            client.close()

    def _both_clients(self) -> tuple[ConsumerClient, ConsumerClient]:
        if self._clients_made is None:
            raise ConsumerError(f"the consumer is {'stopped' if self._stopped else 'not started'}")
        return self._clients_made

    def _config(self) -> dict[str, Any]:
        settings = self.settings
        return merge(
            settings.client,
            defaults={**CONSUMER_DEFAULTS, "fetch.wait.max.ms": 100, **self._last_error.settings},
            required={
                **PROTECTED_CONSUMER,
                "bootstrap.servers": settings.bootstrap,
                "group.id": settings.group,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",  # OFFSET_ILLEGAL is the caller's decision
            },
            allow_code_settings=settings.allow_code_settings,
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
            raise ConfigError(f"pull: max_count={max_count}, it must be 1 to 1024")
        selector = as_selector(expression)
        with self._call():
            self._counts.polled_at_ms = self._now_ms()
            key = self._lookup.key_of(queue)
            buffer = self._prefetch.buffers.get(key)
            if buffer is None or buffer.next_offset != offset or buffer.is_illegal:
                bounds = low, high = self._lookup.bounds(queue)
                if not low <= offset <= high:
                    return PullResult(PullStatus.OFFSET_ILLEGAL, max(low, min(offset, high)), low, high)
                buffer = self._prefetch.read_from(queue, key, offset, bounds)
            found, examined = self._search(buffer, selector, max_count, suspend_ms)
            if buffer.is_illegal and not examined:
                low, high = self._lookup.bounds(queue)
                return PullResult(PullStatus.OFFSET_ILLEGAL, max(low, min(offset, high)), low, high)
            self._counts.add_poll(len(found))
            status = PullStatus.NO_MATCHED_MSG if examined else PullStatus.NO_NEW_MSG
            low, high = buffer.bounds[0], max(buffer.bounds[1], buffer.next_offset)
            return PullResult(PullStatus.FOUND if found else status, buffer.next_offset, low, high, found)

    def _search(
        self, buffer: PrefetchBuffer, selector: MessageSelector, max_count: int, suspend_ms: int
    ) -> tuple[list[MessageView], int]:
        """Take the selected messages from the buffer; return them, and how many messages were examined."""
        began_ms = self._now_ms()
        found: list[MessageView] = []
        examined = 0
        while True:
            examined = self._take(buffer, selector, found, examined, max_count)
            if buffer.messages or buffer.is_illegal:
                return found, examined
            self._prefetch.fetch(buffer, 0)
            if buffer.messages:
                continue
            if examined or self._caller.stopping:  # the next pull finds out whether there is more
                return found, examined
            waited_ms = self._now_ms() - began_ms
            if waited_ms >= suspend_ms and self._prefetch.is_at_end(buffer):
                return found, examined
            if waited_ms >= suspend_ms + self.settings.consumer_pull_timeout_ms:
                raise BrokerUnavailableError(
                    f"{buffer.queue} was not read from offset {buffer.next_offset} within "
                    f"{self.settings.consumer_pull_timeout_ms} ms; pull again"
                )
            self._prefetch.fetch(buffer, _SLICE_S)

    def _take(
        self,
        buffer: PrefetchBuffer,
        selector: MessageSelector,
        found: list[MessageView],
        examined: int,
        max_count: int,
    ) -> int:
        """Take buffered messages into `found`; return how many messages were examined so far."""
        while buffer.messages and len(found) < max_count and examined < max(_EXAMINE_COUNT, max_count):
            selected = is_selected(selector, buffer.messages[0])
            if selected is None:
                if examined:
                    break  # the next pull begins with it
                self._counts.skipped += 1
                raise unreadable_headers(buffer.take())
            message = buffer.take()
            examined += 1
            if selected:
                found.append(MessageView(message, buffer.key.topic in self._own_topics))
        return examined
