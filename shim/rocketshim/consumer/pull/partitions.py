"""What a `LitePullConsumer` reads: its topics or its queues, and what was handed out and committed of them.

`core.pull_positions` has the rules: what a poll returned is done when the next poll begins. `PartitionReader` assigns,
starts and fetches, as for push consumers. A fetched record is also not handed out if its queue was paused meanwhile:
the queue is read again from its position. The thread that calls the consumer owns all of this.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.client_metrics import PullCounts
from rocketshim.consumer.pull.selection import selected, subscription_text, unreadable_headers
from rocketshim.consumer.reader.commits import commit_now
from rocketshim.consumer.reader.partition_reader import PartitionReader
from rocketshim.core.clock import Clock, now_ms_of
from rocketshim.core.ownership import Ownership
from rocketshim.core.pull_positions import PullPositions
from rocketshim.core.start_position import DEFAULT_TIMESTAMP_AGE_MS, StartRules
from rocketshim.errors import BrokerUnavailableError, ConfigError, ConsumerError, RocketshimError
from rocketshim.filters import MessageSelector
from rocketshim.kafka.client_config import CONSUMER_DEFAULTS, PROTECTED_CONSUMER, merge
from rocketshim.kafka.clients import ConsumerClient, LastClientError, Parting, explained, unsubscribes
from rocketshim.kafka.queue_lookup import QueueLookup, cluster_errors
from rocketshim.logs import safe_logger
from rocketshim.settings import LitePullConsumerSettings
from rocketshim_topics import MessageView, TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.kafka_codes import DENIED
from rocketshim_topics.message import first_views
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.wire import coordinates

__all__ = ["PullPartitions"]

_LOG = safe_logger("rocketshim.consumer")
_LEAVE_S: Final = 10.0


class PullPartitions:
    """The partitions of one lite pull consumer; the `PartitionOwner` of its reader.

    Args:
        settings: the settings of the consumer.
        names: maps logical topics to physical ones.
        make_consumer: makes a Kafka consumer with these settings.
        clock: the source of time.

    Attributes:
        reader: reads the partitions.
        positions: what was handed out and committed.
        lookup: looks up queues.
        is_started: whether `start` has succeeded.
    """

    def __init__(
        self,
        settings: LitePullConsumerSettings,
        names: TopicNames,
        make_consumer: Callable[[dict[str, Any]], ConsumerClient],
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._names = names
        self._last_error = LastClientError()
        self._now_ms = now_ms_of(clock)
        retry_topic = names.retry(settings.group)
        self.is_started = False
        self.counts = PullCounts()
        self.positions = PullPositions()
        self.reader = PartitionReader(
            make_consumer=lambda on_commit: make_consumer(self._config({"on_commit": on_commit})),
            make_lookup_client=lambda: make_consumer(self._config({})),
            rules=StartRules(
                retry_topic,
                settings.consume_from_where,
                settings.consume_timestamp_ms or clock.wall_ms() - DEFAULT_TIMESTAMP_AGE_MS,
                young_max=settings.young_queue_max_messages,
            ),
            ownership=Ownership(self._now_ms),
            now_ms=self._now_ms,
        )
        self.lookup = QueueLookup(names, lambda: self.reader.lookups)
        self._own_topics = {retry_topic, names.dead_letter(settings.group)}
        self._subscribed: dict[str, MessageSelector] = {}  # by physical topic
        self._requested: dict[TopicPartitionKey, MessageQueue] | None = None  # the queues of assign(); None: not called
        self._assign_filters: dict[str, MessageSelector] = {}
        self._logical: dict[str, str] = {}
        self._failure: RocketshimError | None = None  # what a callback could not raise
        self._stopped = False
        self._next_commit_ms = 0

    # --- the client --------------------------------------------------------------------------------------------------

    def client(self) -> ConsumerClient:
        """Return the Kafka consumer; raise ConsumerError if it is not running."""
        if not self.reader.is_open:
            raise ConsumerError(f"the consumer is {'stopped' if self._stopped else 'not started'}")
        return self.reader.client()

    def start(self) -> None:
        """Open the client and read what is subscribed or assigned; see `LitePullConsumer.start`."""
        if self._stopped:
            raise ConsumerError("this consumer was stopped, and a consumer runs only once: create a new one")
        if self.is_started:
            return
        try:
            self.reader.open(self)
        except (KafkaException, ValueError, TypeError) as error:
            raise ConfigError(f"Kafka's client rejects its settings: {error}") from error
        try:
            with explained(self._last_error, self.reader.client()):
                for physical in self._subscribed:
                    self.lookup.queues(self._logical[physical])
            if self._subscribed:
                self._join()
            if self._requested is not None:
                self._apply_assignment()
        except BaseException:
            self.reader.abandon()
            raise
        self.is_started = True
        self._next_commit_ms = self._now_ms() + self._settings.auto_commit_interval_ms

    def close(self) -> None:
        """Commit what is done, leave the group and close the clients; see `LitePullConsumer.stop`."""
        self._stopped = True
        if not self.reader.is_open:
            return
        due = self.positions.unconfirmed() if self._settings.auto_commit else {}
        consumer = self.reader.client()
        parting = self.reader.leave(
            _LEAVE_S,
            unsubscribe=bool(self._subscribed) and unsubscribes(self._settings.client),
            before_close=lambda: self._commit(consumer, due),
        )
        if parting is Parting.SILENT:
            raise BrokerUnavailableError(
                f"the consumer of group {self._settings.group!r} has stopped, but its last commit was not answered in "
                "time (no broker can be reached, or the group waits for another member): messages that were handled "
                "since the previous commit may be delivered again"
            )
        if parting is Parting.STAYED:
            _LOG.warning("consumer.not-left", extra={"group": self._settings.group})

    def _config(self, callbacks: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of a client that may join the group."""
        settings = self._settings
        required = {
            **PROTECTED_CONSUMER,
            "bootstrap.servers": settings.bootstrap,
            "group.id": settings.group,
            "auto.offset.reset": "earliest",  # if retention deleted the position: repeat, never lose
            **callbacks,
        }
        if settings.client.get("group.protocol", "classic") != "consumer":  # KIP-848 assigns on the broker
            required["partition.assignment.strategy"] = "cooperative-sticky"
        defaults = {**CONSUMER_DEFAULTS, **self._last_error.settings}
        return merge(
            settings.client, defaults=defaults, required=required, allow_code_settings=settings.allow_code_settings
        )

    # --- what to read ------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, selector: MessageSelector) -> None:
        """Share a topic with the group, or change its filter; see `LitePullConsumer.subscribe`."""
        if self._requested is not None:
            raise ConfigError("Cannot subscribe: assign() was called on this consumer, and the two exclude each other")
        physical = self._names.physical(topic)
        is_new = physical not in self._subscribed
        if is_new and self.is_started:
            self.lookup.queues(topic)
        self._subscribed[physical] = selector
        self._logical[physical] = topic
        self.reader.starts.subscribe(*subscription_text(self._subscribed))
        if is_new and self.is_started:
            self._join()

    def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic; do nothing if it is not subscribed."""
        if self._subscribed.pop(self._names.physical(topic), None) is None:
            return
        self.reader.starts.subscribe(*subscription_text(self._subscribed))
        if self.is_started:
            self._join()

    def assign(self, queues: Collection[MessageQueue]) -> None:
        """Read exactly these queues; see `LitePullConsumer.assign`."""
        if self._subscribed:
            raise ConfigError("Cannot assign: subscribe() was called on this consumer, and the two exclude each other")
        before, self._requested = self._requested, {self.lookup.key_of(queue): queue for queue in queues}
        try:
            if self.is_started:
                self._apply_assignment()
        except RocketshimError:
            self._requested = before
            raise

    def filter_assigned(self, topic: str, selector: MessageSelector) -> None:
        """Set the filter of a topic whose queues are assigned."""
        self._assign_filters[self._names.physical(topic)] = selector

    def _join(self) -> None:
        with cluster_errors("the topics cannot be subscribed"):
            self.reader.subscribe(sorted(self._subscribed))

    def _apply_assignment(self) -> None:
        consumer, requested = self.client(), self._requested or {}
        new = [key for key in requested if key not in self.positions]
        for topic in sorted({key.topic for key in new}):
            known = {queue.queue_id for queue in self.lookup.queues(topic)}
            absent = [key for key in new if key.topic == topic and key.partition not in known]
            if absent:
                raise ConfigError(f"{topic!r} has {len(known)} queues, and no queue {absent[0][1]}")
        gone = [key for key in self.positions.assigned_keys() if key not in requested]
        with cluster_errors("the queues cannot be assigned"):
            starts = self.reader.starts.resolve(consumer, [TopicPartition(*key) for key in new]) if new else []
            if gone and self._settings.auto_commit:
                self.commit(self.positions.unconfirmed(gone))
            if gone:
                self.reader.unassign(gone)
            self.reader.start_at({TopicPartitionKey.of(start): start.offset for start in starts})

    # --- queues ------------------------------------------------------------------------------------------------------

    def queue_of(self, key: TopicPartitionKey) -> MessageQueue:
        """Return the queue of a partition, by the name that the caller uses."""
        if self._requested is not None and key in self._requested:
            return self._requested[key]
        return MessageQueue(self._logical.get(key.topic, key.topic), queue_id=key.partition)

    def assigned(self, queues: Iterable[MessageQueue]) -> list[TopicPartitionKey]:
        """Return the partitions of those queues that are assigned."""
        return [key for queue in queues if (key := self.lookup.key_of(queue)) in self.positions]

    def assigned_key(self, queue: MessageQueue) -> TopicPartitionKey:
        """Return the partition of a queue; raise ConsumerError if it is not assigned or its start is not known."""
        key = self.lookup.key_of(queue)
        self.client()
        if key not in self.positions or self.reader.is_waiting(key):
            raise ConsumerError(f"{queue} is not assigned to this consumer, see assignment()")
        return key

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Move the position of an assigned queue."""
        key = self.assigned_key(queue)
        with cluster_errors(f"{queue} cannot be read from offset {offset}"):
            self.reader.seek(key, offset)
        self.positions.seek(key, offset)

    # --- reading -----------------------------------------------------------------------------------------------------

    def do_due(self) -> None:
        """Commit if it is time, and try again to start queues that could not be started yet."""
        now_ms = self._now_ms()
        if self._settings.auto_commit and now_ms >= self._next_commit_ms:
            self._next_commit_ms = now_ms + self._settings.auto_commit_interval_ms
            self._commit_done()
        self.reader.start_waiting()

    def fetch(self, wait_s: float) -> list[MessageView]:
        """Return the messages that arrive; wait for the first one for this time in seconds."""
        messages: list[MessageView] = []
        filters = self._subscribed if self._requested is None else self._assign_filters
        for key, run in self.reader.fetch(self._settings.pull_batch_size, wait_s):
            if key not in self.positions:
                continue
            if self.reader.pauses.why(key):  # paused after these records were fetched
                self.client().seek(TopicPartition(*key, self.positions.position(key)))
                continue
            wanted = self.reader.from_position(key, run, self.positions.position(key))
            if wanted == []:
                continue
            found = list(selected(filters.get(key.topic), wanted or run, self._unreadable))
            trusted = key.topic in self._own_topics
            messages += [MessageView(message, trusted) for message in found] if trusted else first_views(found)
            self.positions.hand_out(key, run[-1].offset() + 1)
        return messages

    def raise_failure(self) -> None:
        """Raise what a callback could not raise."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        error, self.reader.error = self.reader.error, None
        if error is not None:
            raise ConsumerError(f"the queues could not be assigned or released: {error}") from error

    def _unreadable(self, record: Any, error: Exception) -> None:
        self.counts.skipped += 1
        _LOG.error("consumer.headers-unreadable", extra={"record": coordinates(record), "error": str(error)})
        self._failure = self._failure or unreadable_headers(record)

    # --- commits -----------------------------------------------------------------------------------------------------

    def commit(self, positions: Mapping[TopicPartitionKey, int]) -> None:
        """Commit positions, and wait for the answer.

        Raises:
            RocketshimError: a position was refused, or no answer came.
        """
        self._commit(self.client(), positions)

    def _commit(self, consumer: ConsumerClient, positions: Mapping[TopicPartitionKey, int]) -> None:
        failed = f"the positions of group {self._settings.group!r} were not committed"
        with cluster_errors(failed), self.counts.counting_failed_commits():
            commit_now(consumer, self._as_offsets(positions))
            self.positions.stored(positions)

    def _commit_done(self) -> None:
        """Commit what is done, without waiting for the answer; an error is logged, and the next commit covers it."""
        due = self.positions.due()
        if not due:
            return
        try:
            self.reader.client().commit(offsets=self._as_offsets(due), asynchronous=True)
            self.positions.sent(due)
        except KafkaException as error:
            self._commit_failed(error)

    def _commit_failed(self, error: object) -> None:
        self.counts.commits_failed += 1
        _LOG.warning("consumer.commit-failed", extra={"error": str(error)})

    def _as_offsets(self, positions: Mapping[TopicPartitionKey, int]) -> list[TopicPartition]:
        metadata = self.reader.starts.metadata
        return [TopicPartition(*key, offset, metadata=metadata(key)) for key, offset in sorted(positions.items())]

    # --- what the reader asks (`PartitionOwner`) ---------------------------------------------------------------------

    def take_up(self, partitions: list[TopicPartition]) -> None:
        """Start assigned partitions."""
        self.reader.start(partitions)

    def begin(self, key: TopicPartitionKey, offset: int) -> None:
        """Begin a partition."""
        self.positions.adopt(key, offset)

    def position(self, key: TopicPartitionKey) -> int | None:
        """Return where to read a partition again."""
        return self.positions.position(key) if key in self.positions else None

    def release(self, keys: Collection[TopicPartitionKey]) -> None:
        """Commit what is done of partitions that are about to be revoked; an error is logged."""
        if not self._settings.auto_commit:
            return
        due = self.positions.unconfirmed(key for key in keys if not self.reader.is_waiting(key))
        try:
            if due:
                self.reader.client().commit(offsets=self._as_offsets(due), asynchronous=False)
        except (KafkaException, RuntimeError) as error:
            self._commit_failed(error)

    def forget(self, keys: Collection[TopicPartitionKey]) -> None:
        """Forget partitions."""
        self.positions.forget(keys)

    def committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Process the answer to a commit: a refused position is due again."""
        for item in partitions:
            if error is None and item.error is None:
                self.positions.confirmed(TopicPartitionKey.of(item), item.offset)
            else:
                self.positions.refused(TopicPartitionKey.of(item), item.offset)
                self._commit_failed(error or item.error)

    def client_error(self, message: Any) -> None:
        """Keep an error that `poll` has to raise; a transient error is only logged."""
        error: KafkaError = message.error()
        topic = message.topic()
        _LOG.warning("consumer.client-error", extra={"error": str(error), "topic": topic})
        try:
            if error.fatal() or error.code() in DENIED:
                with cluster_errors(f"{topic or 'this group'} cannot be read"):
                    raise KafkaException(error)
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART and topic:
                self.lookup.queues(self._logical.get(topic, topic))
        except BrokerUnavailableError:
            pass
        except RocketshimError as typed:
            self._failure = typed
