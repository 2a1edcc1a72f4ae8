"""`LitePullConsumer`: the caller polls for messages, instead of registering a listener.

One thread polls. The messages of a poll count as done when the next poll begins, and not before. `stop`, also at the
end of a `with` block, does not commit the messages of the last poll: the consumer cannot know whether they were
handled. `commit_sync` commits them. The consumer has no retries and no dead letters: the caller decides what happens to
a message. There are two ways to get queues, and they exclude each other:

* `subscribe`: the members of the group share the queues (Kafka's group protocol, cooperative).
* `assign`: the consumer reads exactly these queues, even if others read them, too. It is not a member of the group, and
  its commits are not fenced: two consumers that commit the same queue overwrite each other's offsets.

Rules of this file:

* `PartitionReader` assigns, starts and fetches, as for push consumers. A record is also not handed out if its queue was
  paused after the record was fetched: the queue is read again from its position.
* `poll` raises the errors of rebalance callbacks, when it has no message to return.
* A message with a header name that is not UTF-8 cannot be filtered. It is skipped, and reported like an error in a
  callback. Without an expression it is handed out, and reading its headers raises `MalformedRecordError`.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Final, Self, Unpack

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.clock import SystemClock
from rocketshim.consumer.pull.config import lite_pull_config
from rocketshim.consumer.pull.one_caller import OneCaller
from rocketshim.consumer.pull.partitions import PullPartitions
from rocketshim.consumer.pull.queue_watch import QueuesListener, QueueWatch
from rocketshim.consumer.pull.selection import as_selector, description, selected, unreadable_headers
from rocketshim.consumer.reader.pauses import PauseReason
from rocketshim.core.clock import Clock, now_ms_of
from rocketshim.core.start_position import DEFAULT_TIMESTAMP_AGE_MS, StartRules
from rocketshim.errors import BrokerUnavailableError, ConfigError, ConsumerError, RocketshimError
from rocketshim.filters import MessageSelector
from rocketshim.kafka.clients import (
    Clients,
    ConsumerClient,
    LastClientError,
    Parting,
    confluent_clients,
    explained,
    unsubscribes,
)
from rocketshim.kafka.queue_lookup import QueueLookup, cluster_errors
from rocketshim.logs import safe_logger
from rocketshim.settings import LitePullConsumerOptions, LitePullConsumerSettings
from rocketshim_topics import MessageView, TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.kafka_codes import DENIED
from rocketshim_topics.message import first_views
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.wire import coordinates

__all__ = ["LitePullConsumer"]

_LOG = safe_logger("rocketshim.consumer")
_SLICE_S: Final = 0.1  # so that a waiting poll notices `stop`
_LEAVE_S: Final = 10.0


class LitePullConsumer:
    """Polls messages of topics that it shares with its group (`subscribe`), or of certain queues (`assign`).

    ::

        with LitePullConsumer("localhost:9092", group="reports") as consumer:
            consumer.subscribe("orders", MessageSelector.by_tag("paid"))
            while running:
                for message in consumer.poll():
                    ...                         # counts as done when the next poll begins

    With `auto_commit`, the messages of a poll are committed after the next poll has begun, or by `commit_sync`; never
    by `stop`. So messages that were not handled are delivered again. Of the messages that were handled, at most those
    of one poll are delivered again.

    Args:
        bootstrap: `host:port` of at least one broker; None if `settings` contains it.
        group: the consumer group; None if `settings` contains it.
        settings: all settings in one object, instead of the other arguments.
        clients: the factory of Kafka clients; None: confluent_kafka.
        clock: the source of time; None: the clock of this machine.
        values: any other field of `LitePullConsumerSettings`, by name.

    Raises:
        ConfigError: a setting does not exist or is out of range; nothing was opened.

    Thread-safety: one thread at a time; this is checked (`ConsumerError`). `stop` may be called from any thread and
        from a signal handler.

    Source: `DefaultLitePullConsumer` of RocketMQ.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        group: str | None = None,
        settings: LitePullConsumerSettings | None = None,
        clients: Clients | None = None,
        clock: Clock | None = None,
        **values: Unpack[LitePullConsumerOptions],
    ) -> None:
        settings = LitePullConsumerSettings.of_consumer("LitePullConsumer", settings, bootstrap, group, values)
        self.settings = settings
        self.names = TopicNames(settings.namespace)
        self._clients = clients
        self._clock: Clock = clock or SystemClock()
        self._now_ms = now_ms_of(self._clock)
        self._own_topics = {self.names.retry(settings.group), self.names.dead_letter(settings.group)}
        self._last_error = LastClientError()
        self._partitions = PullPartitions(
            make_consumer=lambda on_commit: self._make_client({"on_commit": on_commit}),
            make_lookup_client=lambda: self._make_client({}),
            rules=StartRules(
                self.names.retry(settings.group),
                settings.consume_from_where,
                settings.consume_timestamp_ms or self._clock.wall_ms() - DEFAULT_TIMESTAMP_AGE_MS,
                young_max=settings.young_queue_max_messages,
            ),
            now_ms=self._now_ms,
            auto_commit=settings.auto_commit,
        )
        self._reader = self._partitions.reader
        self._positions = self._partitions.positions
        self._lookup = QueueLookup(self.names, lambda: self._reader.lookups)
        self._subscribed: dict[str, MessageSelector] = {}  # physical topic
        self._requested: dict[TopicPartitionKey, MessageQueue] | None = None  # the queues of assign(); None: not called
        self._assign_filters: dict[str, MessageSelector] = {}
        self._logical: dict[str, str] = {}
        self._watch = QueueWatch(self._lookup, settings.topic_metadata_check_interval_ms)
        self._failure: RocketshimError | None = None
        self._caller = OneCaller()
        self._started = self._stopped = False
        self._next_commit_ms = 0

    # --- what to read ------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: MessageSelector | str | None = None) -> None:
        """Share the queues of a topic with the group; if the topic is already subscribed, change its filter.

        Args:
            topic: logical name of the topic.
            expression: tags separated by `||`, a `MessageSelector`, or None for everything.

        Raises:
            ConfigError: `assign` was called before, or the name is not legal; nothing changed.
            FilterSyntaxError: the expression does not compile; nothing changed.
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: the consumer runs, and the topic cannot be
                read; nothing changed.
        """
        selector = as_selector(expression)
        with self._call():
            if self._requested is not None:
                raise ConfigError(
                    "Cannot subscribe: assign() was called on this consumer, and the two exclude each other"
                )
            physical = self.names.physical(topic)
            is_new = physical not in self._subscribed
            if is_new and self._started:
                self._lookup.queues(topic)
            self._subscribed[physical] = selector
            self._logical[physical] = topic
            self._reader.starts.subscribe(*description(self._subscribed))
            if is_new and self._started:
                self._join()

    def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic; messages handed out are committed if `auto_commit` is on. Safe to call twice.

        Raises:
            ConfigError: the name is not legal.
        """
        with self._call():
            if self._subscribed.pop(self.names.physical(topic), None) is None:
                return
            self._reader.starts.subscribe(*description(self._subscribed))
            if self._started:
                self._join()

    def assign(self, queues: Collection[MessageQueue]) -> None:
        """Read exactly these queues, each from the group's committed offset, or else as `consume_from_where` says.

        Queues that were assigned before keep their position. Queues that are no longer named are released.

        Raises:
            ConfigError: `subscribe` was called before, or a queue is not valid; nothing changed.
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: the consumer runs, and a queue cannot be
                read; nothing changed.
        """
        with self._call():
            if self._subscribed:
                raise ConfigError(
                    "Cannot assign: subscribe() was called on this consumer, and the two exclude each other"
                )
            before, self._requested = self._requested, {self._lookup.key_of(queue): queue for queue in queues}
            try:
                if self._started:
                    self._apply_assignment()
            except RocketshimError:
                self._requested = before
                raise

    def set_sub_expression_for_assign(self, topic: str, expression: MessageSelector | str | None) -> None:
        """Set the filter of a topic whose queues are assigned; it applies to all its queues.

        Raises:
            ConfigError: the name is not legal.
            FilterSyntaxError: the expression does not compile; nothing changed.
        """
        selector = as_selector(expression)
        with self._call():
            self._assign_filters[self.names.physical(topic)] = selector

    def register_topic_message_queue_change_listener(self, topic: str, listener: QueuesListener) -> None:
        """Call `listener(topic, queues)` when the queues of a topic have changed.

        `poll` calls it in its own thread, before it looks for messages. The listener may call this consumer, for
        example `assign`. `poll` raises what the listener raises; no message is lost by that. The queues are looked up
        every `topic_metadata_check_interval_ms`; the first lookup only records them.

        Raises:
            ConfigError: the name is not legal, or the listener cannot be called.
        """
        if not callable(listener):
            raise ConfigError(f"{listener!r:.80} is not a listener: pass a function of (topic, queues)")
        with self._call():
            self.names.physical(topic)
            self._watch.add(topic, listener)

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the client; join the group if topics are subscribed. Safe to call twice.

        Raises:
            ConfigError: Kafka's client rejects a client setting.
            ConsumerError: the consumer was stopped before.
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: a subscribed topic or an assigned queue
                cannot be read. After each of these nothing is open, and start() may be called again.
        """
        with self._call():
            if self._stopped:
                raise ConsumerError("this consumer was stopped, and a consumer runs only once: create a new one")
            if self._started:
                return
            try:
                self._reader.open(self._partitions)
            except (KafkaException, ValueError, TypeError) as error:
                raise ConfigError(f"Kafka's client rejects its settings: {error}") from error
            try:
                with explained(self._last_error, self._reader.client()):
                    for physical in self._subscribed:
                        self._lookup.queues(self._logical[physical])
                if self._subscribed:
                    self._join()
                if self._requested is not None:
                    self._apply_assignment()
            except BaseException:
                self._reader.abandon()
                raise
            self._started = True
            self._next_commit_ms = self._now_ms() + self.settings.auto_commit_interval_ms

    def stop(self) -> None:
        """Commit what is done (if `auto_commit` is on), leave the group, close; within 10 s. Safe to call twice.

        The messages of the last poll are not committed; call `commit_sync` before to commit them. If a poll waits in
        another thread, this ends it and waits for it. If a signal handler calls it in the thread that polls, it only
        requests the stop: that poll closes the consumer, or, if it has messages to return, the next call does.

        Raises:
            ConsumerError, BrokerUnavailableError: the last commit failed; the consumer is closed anyway.
        """
        with self._caller.stop() as may_close:
            if may_close:
                self._close()

    @property
    def is_running(self) -> bool:
        """Whether the consumer was started and not stopped."""
        return self._started and not self._caller.stopping

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- messages ----------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: int | None = None) -> list[MessageView]:
        """Return the next messages, `pull_batch_size` at most; the messages of the previous poll count as done.

        Args:
            timeout_ms: time to wait for a message, in ms; 0: do not wait; None: `poll_timeout_ms`.

        Returns:
            The messages of one or several queues, in order within each queue. Empty if none came in time, or if the
            consumer was stopped meanwhile.

        Raises:
            ConsumerError: the consumer is not running, or it cannot continue.
            NotAuthorizedError: the client may not read a topic or the group.
            TopicMissingError: a subscribed topic no longer exists.
            MalformedRecordError: a message with unreadable headers was skipped, since the expression could not be
                evaluated on it. The next poll continues after it.
        """
        wait_ms = self.settings.poll_timeout_ms if timeout_ms is None else timeout_ms
        if len(self._watch):
            with self._call():
                self._client()
                changed = self._watch.changed(self._now_ms())
            for listener, topic, queues in changed:  # after that call, since a listener may call this consumer
                listener(topic, queues)
        with self._call():
            self._client()
            deadline_ms = self._now_ms() + wait_ms
            self._positions.begin_poll()
            while True:
                self._maintain()
                left_ms = max(0, deadline_ms - self._now_ms())
                messages = self._fetch(min(left_ms / 1_000, _SLICE_S))
                if messages:
                    return messages
                self._raise_failure()
                if self._caller.stopping:
                    self._close()
                    return []
                if self._now_ms() >= deadline_ms:
                    return []

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Move the position of an assigned queue; the next commit has the new position, even if it is a lower one.

        Args:
            queue: one of `assignment()`.
            offset: from the queue's first message to its end.

        Raises:
            ConfigError: the offset is outside the queue's bounds; nothing changed.
            ConsumerError: the queue is not assigned to this consumer, or the consumer is not running.
            BrokerUnavailableError: the queue's bounds cannot be determined; nothing changed.
        """
        with self._call():
            low, high = self._lookup.bounds(queue)
            if not low <= offset <= high:
                raise ConfigError(f"Cannot seek to offset {offset} of {queue}: the queue has offsets {low} to {high}")
            self._move(queue, offset)

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Move the position to the queue's first message; works like `seek`."""
        with self._call():
            self._move(queue, self._lookup.bounds(queue)[0])

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Move the position to the queue's current end, after its last message; works like `seek`."""
        with self._call():
            self._move(queue, self._lookup.bounds(queue)[1])

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out no messages of these queues until `resume`; ignore queues that are not assigned.

        A queue that is revoked and assigned again is no longer paused.
        """
        with self._call():
            self._reader.pauses.hold(self._client(), self._assigned(queues), PauseReason.USER)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out messages of paused queues again; ignore queues that are not assigned."""
        with self._call():
            self._reader.pauses.release(self._client(), self._assigned(queues), PauseReason.USER)

    # --- positions ---------------------------------------------------------------------------------------------------

    def commit_sync(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit, and wait for Kafka's answer.

        Args:
            offsets: the offset of the next message of each queue; None: for every assigned queue, the offset after the
                last message handed out.

        Raises:
            ConsumerError: a queue is not assigned, or the consumer is no longer a member, or it is not running. Nothing
                was committed, or Kafka's answer names the queues.
            ConfigError: an offset is below 0.
            BrokerUnavailableError: no answer came; the offsets may or may not be committed.

        Source: `DefaultLitePullConsumer#commitSync`, `#commit(Map, boolean)` of RocketMQ.
        """
        with self._call():
            consumer = self._client()
            if offsets is None:
                wanted = self._positions.due(everything=True)
            else:
                wanted = {self._assigned_key(queue): offset for queue, offset in offsets.items()}
                if any(offset < 0 for offset in wanted.values()):
                    raise ConfigError(f"Cannot commit offset {min(wanted.values())}: offsets begin at 0")
            self._commit(consumer, wanted)

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue; None if there is none.

        Raises:
            BrokerUnavailableError: it cannot be determined.
        """
        with self._call(), cluster_errors(f"the committed offset of {queue} cannot be read"):
            (answer,) = self._client().committed([TopicPartition(*self._lookup.key_of(queue))], timeout=10.0)
            if answer.error is not None:
                raise KafkaException(answer.error)
        return answer.offset if answer.offset >= 0 else None

    def position(self, queue: MessageQueue) -> int:
        """Return the offset at which the next message of a queue is read.

        Raises:
            ConsumerError: the queue is not assigned, or its start offset is not known yet.
        """
        with self._call():
            return self._positions.position(self._assigned_key(queue))

    def assignment(self) -> set[MessageQueue]:
        """Return the queues that are assigned now."""
        with self._call():
            return {self._queue(key) for key in self._positions.assigned_keys()}

    @property
    def subscription_conflicts(self) -> dict[str, str]:
        """Topics that the group has consumed with another subscription; see `PushConsumer.subscription_conflicts`."""
        return dict(self._reader.starts.conflicts)

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic, sorted.

        Raises:
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: they cannot be determined.
        """
        with self._call():
            return self._lookup.queues(topic)

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of a queue's first message not older than `timestamp_ms` (epoch ms); else the queue's end.

        Raises:
            ConfigError: the time is negative.
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: it cannot be determined.
        """
        with self._call():
            return self._lookup.offset_for_timestamp(queue, timestamp_ms)

    # --- internal: calls ---------------------------------------------------------------------------------------------

    @contextmanager
    def _call(self) -> Iterator[None]:
        """Allow one thread at a time; every public call uses it, except `stop`."""
        with self._caller.call():
            if self._caller.stopping:
                self._close()
            yield

    def _client(self) -> ConsumerClient:
        if not self._reader.is_open:
            raise ConsumerError(f"the consumer is {'stopped' if self._stopped else 'not started'}")
        return self._reader.client()

    def _close(self) -> None:
        self._stopped = True
        if not self._reader.is_open:
            return
        consumer = self._reader.client()
        due = self._positions.due() if self.settings.auto_commit else {}
        parting = self._reader.leave(
            _LEAVE_S,
            unsubscribe=bool(self._subscribed) and unsubscribes(self.settings.client),
            before_close=lambda: self._commit(consumer, due),
        )
        if parting is Parting.SILENT:
            raise BrokerUnavailableError(
                f"the consumer of group {self.settings.group!r} has stopped, but its last commit was not answered in "
                "time (no broker can be reached, or the group waits for another member): messages that were handled "
                "since the previous commit may be delivered again"
            )
        if parting is Parting.STAYED:
            _LOG.warning("consumer.not-left", extra={"group": self.settings.group})

    def _make_client(self, callbacks: dict[str, Any]) -> ConsumerClient:
        make = (self._clients or confluent_clients()).consumer
        return make(lite_pull_config(self.settings, callbacks, self._last_error.settings))

    # --- internal: reading -------------------------------------------------------------------------------------------

    def _fetch(self, wait_s: float) -> list[MessageView]:
        messages: list[MessageView] = []
        for key, run in self._reader.fetch(self.settings.pull_batch_size, wait_s):
            if key not in self._positions:
                continue
            if self._reader.pauses.why(key):  # paused after these records were fetched
                self._client().seek(TopicPartition(*key, self._positions.position(key)))
                continue
            filters = self._subscribed if self._requested is None else self._assign_filters
            found = list(selected(filters.get(key.topic), run, self._unreadable))
            trusted = key.topic in self._own_topics
            messages += [MessageView(message, trusted) for message in found] if trusted else first_views(found)
            self._positions.hand_out(key, run[-1].offset() + 1)
        while self._partitions.client_errors:
            self._note(self._partitions.client_errors.pop(0))
        return messages

    def _unreadable(self, record: Any, error: Exception) -> None:
        _LOG.error("consumer.headers-unreadable", extra={"record": coordinates(record), "error": str(error)})
        self._failure = self._failure or unreadable_headers(record)

    def _note(self, message: Any) -> None:
        """Keep an error that `poll` has to raise; a transient error is only logged."""
        error: KafkaError = message.error()
        topic = message.topic()
        _LOG.warning("consumer.client-error", extra={"error": str(error), "topic": topic})
        try:
            if error.fatal() or error.code() in DENIED:
                with cluster_errors(f"{topic or 'this group'} cannot be read"):
                    raise KafkaException(error)
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART and topic:
                self._lookup.queues(self._logical.get(topic, topic))
        except BrokerUnavailableError:
            pass
        except RocketshimError as typed:
            self._failure = typed

    def _maintain(self) -> None:
        """Commit if it is time, and try again to start queues that could not be started yet."""
        now_ms = self._now_ms()
        if self.settings.auto_commit and now_ms >= self._next_commit_ms:
            self._next_commit_ms = now_ms + self.settings.auto_commit_interval_ms
            self._partitions.commit_done()
        self._reader.start_waiting()

    # --- internal: positions -----------------------------------------------------------------------------------------

    def _queue(self, key: TopicPartitionKey) -> MessageQueue:
        if self._requested is not None and key in self._requested:
            return self._requested[key]
        return MessageQueue(self._logical.get(key.topic, key.topic), queue_id=key.partition)

    def _assigned(self, queues: Iterable[MessageQueue]) -> list[TopicPartitionKey]:
        return [key for queue in queues if (key := self._lookup.key_of(queue)) in self._positions]

    def _assigned_key(self, queue: MessageQueue) -> TopicPartitionKey:
        key = self._lookup.key_of(queue)
        self._client()
        if key not in self._positions or self._reader.is_waiting(key):
            raise ConsumerError(f"{queue} is not assigned to this consumer, see assignment()")
        return key

    def _move(self, queue: MessageQueue, offset: int) -> None:
        key = self._assigned_key(queue)
        with cluster_errors(f"{queue} cannot be read from offset {offset}"):
            self._reader.seek(key, offset)
        self._positions.seek(key, offset)

    def _commit(self, consumer: ConsumerClient, positions: Mapping[TopicPartitionKey, int]) -> None:
        with cluster_errors(f"the positions of group {self.settings.group!r} were not committed"):
            self._partitions.commit(consumer, positions)

    def _raise_failure(self) -> None:
        """Raise what a callback could not raise."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        error, self._reader.error = self._reader.error, None
        if error is not None:
            raise ConsumerError(f"the queues could not be assigned or released: {error}") from error

    # --- internal: assignment ----------------------------------------------------------------------------------------

    def _join(self) -> None:
        with cluster_errors("the topics cannot be subscribed"):
            self._reader.subscribe(sorted(self._subscribed))

    def _apply_assignment(self) -> None:
        consumer, requested = self._client(), self._requested or {}
        new = [key for key in requested if key not in self._positions]
        for topic in sorted({key.topic for key in new}):
            known = {queue.queue_id for queue in self._lookup.queues(topic)}
            absent = [key for key in new if key.topic == topic and key.partition not in known]
            if absent:
                raise ConfigError(f"{topic!r} has {len(known)} queues, and no queue {absent[0][1]}")
        gone = [key for key in self._positions.assigned_keys() if key not in requested]
        with cluster_errors("the queues cannot be assigned"):
            starts = self._reader.starts.resolve(consumer, [TopicPartition(*key) for key in new]) if new else []
            if gone and self.settings.auto_commit:
                self._commit(consumer, self._positions.due(gone))
            if gone:
                self._reader.unassign(gone)
            self._reader.start_at({TopicPartitionKey.of(start): start.offset for start in starts})
