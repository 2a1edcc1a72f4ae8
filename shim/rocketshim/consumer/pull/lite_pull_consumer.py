"""`LitePullConsumer`: the caller polls for messages, instead of registering a listener.

The caller does not acknowledge single messages. What a poll returned is *done* when the next poll begins, not before,
or when the caller commits it (`core.partition` has the positions of a queue). A commit for which somebody waits
contains every position that is not confirmed: one that was sent without waiting may still be refused.

`PartitionReader` assigns, starts and fetches, as for push consumers. A fetched record is also not handed out if its
queue was paused meanwhile: the queue is read again from its position. The thread that calls the consumer owns all of
this.

Source: `AssignedMessageQueue` of RocketMQ (`pullOffset`, `consumeOffset`, `seekOffset`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, Self, Unpack

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from rocketshim.consumer.pull.session import PullSession
from rocketshim.consumer.reader.group_offsets import commit_now
from rocketshim.consumer.reader.joining import Joining
from rocketshim.consumer.reader.partition_reader import PartitionReader
from rocketshim.core.clock import Clock, Interval
from rocketshim.core.partition import PauseReason
from rocketshim.core.start_position import StartRules, timestamp_or_default
from rocketshim.core.subscriptions import digest_of, text_of
from rocketshim.core.user_values import call_problem
from rocketshim.errors import BrokerUnavailableError, ConfigError, ConsumerError, RocketshimError
from rocketshim.filters import MessageSelector, TagFilter
from rocketshim.filters.selection import as_selector, matching, unreadable_headers
from rocketshim.kafka.clients import Clients, ConsumerClient, Parting, brokers_assign, explained, is_fatal, unsubscribes
from rocketshim.kafka.lookups import stored_among
from rocketshim.kafka.queue_lookup import QueueLookup, cluster_errors
from rocketshim.locks.lease import Ownership
from rocketshim.logs import safe_logger
from rocketshim.metrics import Metric
from rocketshim.settings.consumer import LitePullConsumerOptions, LitePullConsumerSettings
from rocketshim_topics import MessageView, TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.kafka_codes import DENIED
from rocketshim_topics.message import first_views
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.wire import coordinates

__all__ = ["LitePullConsumer", "PullPartitions"]

_LOG = safe_logger("rocketshim.consumer")
_SLICE_S: Final = 0.1  # so that a waiting poll notices `stop`
_TIMEOUT_S: Final = 10.0
_FIRST_LOOKS: Final = 3

QueuesListener = Callable[[str, list[MessageQueue]], None]


class LitePullConsumer:
    """Polls messages of topics that it shares with its group (`subscribe`), or of certain queues (`assign`).

    ::

        with LitePullConsumer("localhost:9092", group="reports") as consumer:
            consumer.subscribe("orders", MessageSelector.by_tag("paid"))
            while running:
                for message in consumer.poll():
                    ...                         # counts as done when the next poll begins

    The messages of a poll count as done when the next poll begins, and not before. With `auto_commit` they are
    committed then, or by `commit_sync`; never by `stop`, also at the end of a `with` block: the consumer cannot know
    whether they were handled. So messages that were not handled are delivered again. Of the messages that were handled,
    at most those of one poll are delivered again. The consumer has no retries and no dead letters: the caller decides
    what happens to a message. There are two ways to get queues, and they exclude each other:

    * `subscribe`: the members of the group share the queues (Kafka's group protocol, cooperative).
    * `assign`: the consumer reads exactly these queues, even if others read them, too. It is not a member of the group,
      and its commits are not fenced: two consumers that commit the same queue overwrite each other's offsets.

    `poll` raises the errors of rebalance callbacks, when it has no message to return. A message with a header name that
    is not UTF-8 cannot be filtered. It is skipped, and reported like an error in a callback. Without an expression it
    is handed out, and reading its headers raises `MalformedRecordError`.

    Args:
        bootstrap: `host:port` of at least one broker; None: that of `settings`, or of `ROCKETSHIM_BOOTSTRAP`.
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
        settings = LitePullConsumerSettings.given(settings, values, bootstrap=bootstrap, group=group)
        self.settings = settings
        self.names = TopicNames(settings.namespace)
        self._partitions = PullPartitions(settings, self.names, clients, clock)
        self._session = self._partitions.session
        self._lookup = self._partitions.lookup

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
        with self._session.call():
            self._partitions.subscribe(topic, selector)

    def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic; messages handed out are committed if `auto_commit` is on. Safe to call twice.

        Raises:
            ConfigError: the name is not legal.
        """
        with self._session.call():
            self._partitions.unsubscribe(topic)

    def assign(self, queues: Collection[MessageQueue]) -> None:
        """Read exactly these queues, each from the group's committed offset, or else as `consume_from_where` says.

        Queues that were assigned before keep their position. Queues that are no longer named are released.

        Raises:
            ConfigError: `subscribe` was called before, or a queue is not valid; nothing changed.
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: the consumer runs, and a queue cannot be
                read; nothing changed.
        """
        with self._session.call():
            self._partitions.assign(queues)

    def set_sub_expression_for_assign(self, topic: str, expression: MessageSelector | str | None) -> None:
        """Set the filter of a topic whose queues are assigned; it applies to all its queues.

        Raises:
            ConfigError: the name is not legal.
            FilterSyntaxError: the expression does not compile; nothing changed.
        """
        selector = as_selector(expression)
        with self._session.call():
            self._partitions.assign_filters[self.names.physical(topic)] = selector

    def register_topic_message_queue_change_listener(self, topic: str, listener: QueuesListener) -> None:
        """Call `listener(topic, queues)` when the queues of a topic have changed.

        `poll` calls it in its own thread, before it looks for messages. The listener may call this consumer, for
        example `assign`. `poll` raises what the listener raises; no message is lost by that. The queues are looked up
        every `topic_metadata_check_interval_ms`; the first lookup only records them.

        Raises:
            ConfigError: the name is not legal, or the listener cannot be called.
        """
        problem = call_problem(listener, 2)
        if problem:
            raise ConfigError(f"{listener!r:.80} is not a listener: {problem}; pass a function of (topic, queues)")
        with self._session.call():
            self.names.physical(topic)
            self._partitions.watched[topic] = (listener, None)

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the client; join the group if topics are subscribed. Safe to call twice.

        Raises:
            ConfigError: Kafka's client rejects a client setting.
            ConsumerError: the consumer was stopped before.
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: a subscribed topic or an assigned queue
                cannot be read. After each of these nothing is open, and start() may be called again.
        """
        self._session.start(self._partitions.open)

    def stop(self) -> None:
        """Commit what is done (if `auto_commit` is on), leave the group, close; within 10 s. Safe to call twice.

        The messages of the last poll are not committed; call `commit_sync` before to commit them. If a poll waits in
        another thread, this ends it and waits for it. If a signal handler calls it in the thread that polls, it only
        requests the stop: that poll closes the consumer, or, if it has messages to return, the next call does.

        Raises:
            ConsumerError, BrokerUnavailableError: the last commit failed; the consumer is closed anyway.
        """
        self._session.stop()

    @property
    def is_running(self) -> bool:
        """Whether the consumer was started and not stopped."""
        return self._session.is_open and not self._session.stopping

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- messages ----------------------------------------------------------------------------------------------------

    def poll(self, timeout_ms: int | None = None) -> list[MessageView]:
        """Return the next messages, `pull_batch_size` at most; the messages of the previous poll count as done.

        Args:
            timeout_ms: time to wait for a message, in ms, 0 or more; 0: do not wait; None: `poll_timeout_ms`.

        Returns:
            The messages of one or several queues, in order within each queue. Empty if none came in time, or if the
            consumer was stopped meanwhile.

        Raises:
            ConfigError: the time is below 0, or not a number; nothing changed.
            ConsumerError: the consumer is not running, or cannot continue, or another thread is in a call.
            NotAuthorizedError: the client may not read a topic or the group.
            TopicMissingError: a subscribed topic no longer exists.
            MalformedRecordError: a message with unreadable headers was skipped, since the expression could not be
                evaluated on it. The next poll continues after it.

        Decides: Which thread calls the listener for changed queues? The one that polls, outside of the guarded call, so
            that it may call the consumer.
        """
        wait_ms = self.settings.poll_timeout_ms if timeout_ms is None else timeout_ms
        try:
            is_time = wait_ms >= 0  # NaN is not
        except TypeError:
            is_time = False
        if not is_time:
            raise ConfigError(f"poll({timeout_ms!r:.80}): give a time of 0 ms or more, or None for poll_timeout_ms")
        session, partitions = self._session, self._partitions
        if partitions.watched:
            with session.call():
                session.check_open()
                changed = list(partitions.changed_queues())
            for listener, topic, queues in changed:  # after that call, since a listener may call this consumer
                listener(topic, queues)
        messages: list[MessageView] = []
        with session.call(messages):
            session.check_open()
            session.counts.polled_at_ms = session.now_ms()
            deadline_ms = session.now_ms() + wait_ms
            partitions.begin_poll()
            while not messages:
                partitions.do_due()
                left_ms = max(0, deadline_ms - session.now_ms())
                messages += partitions.fetch(min(left_ms / 1_000, _SLICE_S))
                if not messages:
                    partitions.raise_failure()
                    if session.stopping or session.now_ms() >= deadline_ms:
                        break
            session.counts.add_poll(len(messages))
        return messages

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
        with self._session.call():
            low, high = self._lookup.bounds(queue)
            if not low <= offset <= high:
                raise ConfigError(f"Cannot seek to offset {offset} of {queue}: the queue has offsets {low} to {high}")
            self._partitions.seek(queue, offset)

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Move the position to the queue's first message; works like `seek`."""
        with self._session.call():
            self._partitions.seek(queue, self._lookup.bounds(queue)[0])

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Move the position to the queue's current end, after its last message; works like `seek`."""
        with self._session.call():
            self._partitions.seek(queue, self._lookup.bounds(queue)[1])

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out no messages of these queues until `resume`; ignore queues that are not assigned.

        A queue that is revoked and assigned again is no longer paused.
        """
        with self._session.call():
            self._session.check_open()
            self._partitions.reader.pause(self._partitions.assigned(queues), PauseReason.USER)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Hand out messages of paused queues again; ignore queues that are not assigned."""
        with self._session.call():
            self._session.check_open()
            self._partitions.reader.unpause(self._partitions.assigned(queues), PauseReason.USER)

    # --- positions ---------------------------------------------------------------------------------------------------

    def commit_sync(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit, and wait for Kafka's answer.

        Args:
            offsets: the offset of the next message of each queue; None: for every assigned queue, the offset after the
                last message handed out.

        Raises:
            ConsumerError: a queue is not assigned, or the consumer is no longer a member, or it is not running. Nothing
                was committed, or the error names the queues that were not.
            TopicMissingError, NotAuthorizedError: a topic is gone or denied; likewise.
            ConfigError: an offset is below 0.
            BrokerUnavailableError: no answer came; the offsets may or may not be committed.

        Source: `DefaultLitePullConsumer#commitSync`, `#commit(Map, boolean)` of RocketMQ.
        """
        with self._session.call():
            self._session.check_open()
            if offsets is None:
                self._partitions.skip_invisible()
                wanted = self._partitions.unconfirmed(everything=True)
            else:
                wanted = {self._partitions.assigned_key(queue): offset for queue, offset in offsets.items()}
                if any(offset < 0 for offset in wanted.values()):
                    raise ConfigError(f"Cannot commit offset {min(wanted.values())}: offsets begin at 0")
            self._partitions.commit(wanted)

    def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset of a queue; None if there is none.

        Raises:
            BrokerUnavailableError: it cannot be determined.
        """
        with self._session.call():
            self._session.check_open()
            return self._lookup.committed(queue, self._partitions.reader.client())

    def position(self, queue: MessageQueue) -> int:
        """Return the offset at which the next message of a queue is read.

        Raises:
            ConsumerError: the queue is not assigned, or its start offset is not known yet.
        """
        with self._session.call():
            return self._partitions.by_key[self._partitions.assigned_key(queue)].position

    def assignment(self) -> set[MessageQueue]:
        """Return the queues that are assigned now."""
        with self._session.call():
            return {self._partitions.queue_of(key) for key in self._partitions.by_key}

    @property
    def subscription_conflicts(self) -> dict[str, str]:
        """Topics that the group has consumed with another subscription; see `PushConsumer.subscription_conflicts`."""
        return dict(self._partitions.reader.starts.conflicts)

    def metrics(self) -> Iterable[Metric]:
        """Return the current metrics, for `MetricsCollector`; any thread."""
        session = self._session
        return session.counts.metrics(self.settings.group, session.now_ms(), len(self._partitions.by_key))

    def fetch_message_queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic, sorted.

        Raises:
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: they cannot be determined.
        """
        with self._session.call():
            return self._lookup.queues(topic)

    def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of a queue's first message not older than `timestamp_ms` (epoch ms); else the queue's end.

        Raises:
            ConfigError: the time is negative.
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError: it cannot be determined.
        """
        with self._session.call():
            return self._lookup.offset_for_timestamp(queue, timestamp_ms)


class PullPartitions:
    """The partitions of one lite pull consumer; the `PartitionOwner` of its reader."""

    def __init__(
        self, settings: LitePullConsumerSettings, names: TopicNames, clients: Clients | None, clock: Clock | None
    ) -> None:
        self.session = PullSession(settings, clients, clock, self._close)
        self._settings = settings
        self._names = names
        retry_topic, now_ms = names.retry(settings.group), self.session.now_ms
        self.reader = PartitionReader(
            make_consumer=lambda on_commit: self._make_client({"on_commit": on_commit}),
            make_lookup_client=lambda: self._make_client({}),
            rules=StartRules(
                retry_topic,
                settings.consume_from_where,
                timestamp_or_default(settings.consume_timestamp_ms, self.session.clock.wall_ms()),
                young_queue_max_messages=settings.young_queue_max_messages,
                compare_every_ms=settings.topic_metadata_check_interval_ms,
            ),
            ownership=Ownership(now_ms),
            now_ms=now_ms,
            joining=Joining(settings.group, settings.client, self.session.group_question()),
        )
        self.by_key = self.reader.partitions  # those that are assigned
        self.lookup = QueueLookup(names, lambda: self.reader.lookups)
        self._subscribed: dict[str, MessageSelector] = {}  # by physical topic
        self._requested: dict[TopicPartitionKey, MessageQueue] | None = None  # the queues of assign(); None: not called
        self.assign_filters: dict[str, MessageSelector] = {}  # of assigned queues, by physical topic
        # by topic the listener for changes of its queues, and the queues that it knows; None: not looked up yet
        self.watched: dict[str, tuple[QueuesListener, list[MessageQueue] | None]] = {}
        self._logical: dict[str, str] = {}
        self._commit_interval = Interval(settings.auto_commit_interval_ms)
        self._watch_interval = Interval(settings.topic_metadata_check_interval_ms)

    # --- the client --------------------------------------------------------------------------------------------------

    def _make_client(self, callbacks: dict[str, Any]) -> ConsumerClient:
        required = {**callbacks, "auto.offset.reset": "earliest"}  # repeat messages if retention deleted the position
        if not brokers_assign(self._settings.client):
            required["partition.assignment.strategy"] = "cooperative-sticky"
        return self.session.make_client(required, {})

    def open(self) -> None:
        """Open the client and read what is subscribed or assigned; see `LitePullConsumer.start`."""
        self.reader.open(self, self._committed, self._client_error)
        try:
            with explained(self.session.last_error, self.reader.client()):
                for physical in self._subscribed:
                    self._look_up_first(physical)
            if self._subscribed:
                self._join()
            if self._requested is not None:
                self._assign(self._requested)
        except BaseException:
            self.reader.leave(_TIMEOUT_S, unsubscribe=False)
            raise

    def _look_up_first(self, topic: str) -> None:
        """Look a topic up; ask again while no connection has failed: on a slow link the first answer takes long.

        A link on which a request takes 3 s needs four requests for it.
        """
        for left in reversed(range(_FIRST_LOOKS)):
            try:
                self.lookup.queues(topic)
            except BrokerUnavailableError:
                if not left or self.session.last_error.text(self.reader.client()):
                    raise
            else:
                return

    def _close(self) -> None:
        """Commit what is done, leave the group and close the clients; see `LitePullConsumer.stop`."""
        if self._settings.auto_commit:
            self.skip_invisible()
        due = self.unconfirmed() if self._settings.auto_commit else {}
        self.reader.is_closing = True
        parting = self.reader.leave(
            self.session.leave_s,
            unsubscribe=bool(self._subscribed) and unsubscribes(self._settings.client),
            before_close=lambda: self.commit(due),
        )
        if parting is Parting.SILENT:
            raise BrokerUnavailableError(
                f"the consumer of group {self._settings.group!r} has stopped, but its last commit was not answered in "
                "time (no broker can be reached, or the group waits for another member): messages that were handled "
                "since the previous commit may be delivered again"
            )
        if parting is Parting.STAYED:
            _LOG.warning("consumer.not-left", extra={"group": self._settings.group})

    # --- what to read ------------------------------------------------------------------------------------------------

    def subscribe(self, topic: str, selector: MessageSelector) -> None:
        """Share a topic with the group, or change its filter; see `LitePullConsumer.subscribe`."""
        if self._requested is not None:
            raise ConfigError("Cannot subscribe: assign() was called on this consumer, and the two exclude each other")
        physical = self._names.physical(topic)
        is_new = physical not in self._subscribed
        if is_new and self.session.is_open:
            self.lookup.queues(topic)
        self._logical[physical] = topic
        self._set_subscribed({**self._subscribed, physical: selector}, joins=is_new)

    def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic; do nothing if it is not subscribed."""
        physical = self._names.physical(topic)
        if physical in self._subscribed:
            others = {name: selector for name, selector in self._subscribed.items() if name != physical}
            self._set_subscribed(others, joins=True)

    def _set_subscribed(self, subscribed: dict[str, MessageSelector], *, joins: bool) -> None:
        """Set the filters of all subscribed topics; commits carry them in the same form as those of push consumers."""
        self._subscribed = subscribed
        digest = digest_of({name: selector.filter.digest() for name, selector in subscribed.items()})
        text = text_of({name: selector.expression for name, selector in subscribed.items()})
        self.reader.starts.subscribe(digest, text)
        if joins and self.session.is_open:
            self._join()

    def _join(self) -> None:
        with cluster_errors("the topics cannot be subscribed"):
            self.reader.subscribe(sorted(self._subscribed))

    def assign(self, queues: Collection[MessageQueue]) -> None:
        """Read exactly these queues; see `LitePullConsumer.assign`."""
        if self._subscribed:
            raise ConfigError("Cannot assign: subscribe() was called on this consumer, and the two exclude each other")
        requested = {self.lookup.key_of(queue): queue for queue in queues}
        if self.session.is_open:
            self._assign(requested)
        self._requested = requested

    def _assign(self, requested: Mapping[TopicPartitionKey, MessageQueue]) -> None:
        new = [key for key in requested if key not in self.by_key]
        for topic in sorted({key.topic for key in new}):
            known = {queue.queue_id for queue in self.lookup.queues(topic)}
            absent = [key for key in new if key.topic == topic and key.partition not in known]
            if absent:
                raise ConfigError(f"{topic!r} has {len(known)} queues, and no queue {absent[0][1]}")
        gone = [key for key in sorted(self.by_key) if key not in requested]
        with cluster_errors("the queues cannot be assigned"):
            starts = self.reader.starts.resolve(new, _TIMEOUT_S)
            if self._settings.auto_commit:
                self.commit(self.unconfirmed(gone))
            if gone:
                self.reader.unassign(gone)
            if starts:
                self.reader.start_at(starts)

    def changed_queues(self) -> Iterator[tuple[QueuesListener, str, list[MessageQueue]]]:
        """Look up the watched queues, if it is time; yield each listener to call with its topic and changed queues."""
        due = list(self.watched.items()) if self._watch_interval.is_due(self.reader.now_ms()) else []
        for topic, (listener, before) in due:
            try:
                now = self.lookup.queues(topic)
            except RocketshimError as error:
                _LOG.warning("consumer.queues-unknown", extra={"topic": topic, "error": str(error)})
                continue
            self.watched[topic] = (listener, now)
            if before is not None and now != before:
                yield listener, topic, list(now)

    # --- queues ------------------------------------------------------------------------------------------------------

    def queue_of(self, key: TopicPartitionKey) -> MessageQueue:
        """Return the queue of a partition, by the name that the caller uses."""
        named = (self._requested or {}).get(key)
        return named or MessageQueue(self._logical.get(key.topic, key.topic), queue_id=key.partition)

    def assigned(self, queues: Iterable[MessageQueue]) -> list[TopicPartitionKey]:
        """Return the partitions of those queues that are assigned."""
        return [key for queue in queues if (key := self.lookup.key_of(queue)) in self.by_key]

    def assigned_key(self, queue: MessageQueue) -> TopicPartitionKey:
        """Return the partition of a queue; raise ConsumerError if it is not assigned or its start is not known."""
        key = self.lookup.key_of(queue)
        self.session.check_open()
        if (partition := self.by_key.get(key)) is None or partition.is_waiting:
            raise ConsumerError(f"{queue} is not assigned to this consumer, or its start is unknown; see assignment()")
        return key

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Move the position of an assigned queue."""
        key = self.assigned_key(queue)
        with cluster_errors(f"{queue} cannot be read from offset {offset}"):
            self.reader.seek(key, offset)
        self.by_key[key].seek(offset)

    # --- reading -----------------------------------------------------------------------------------------------------

    def do_due(self) -> None:
        """Commit if it is time, and try again to start queues that could not be started yet."""
        if self._settings.auto_commit and self._commit_interval.is_due(self.reader.now_ms()):
            self.skip_invisible()
            self._commit_done()
        reader = self.reader
        reader.start_waiting()
        if self._subscribed:
            reader.look_at_group()
        if self._subscribed and reader.joining.is_member:
            reader.starts.compare(self._subscribed, reader.now_ms())

    def skip_invisible(self) -> None:
        """Have the next commits pass what no reader sees behind the last messages; see `PartitionReader.read_to`."""
        for item in self.reader.read_to():
            partition = self.by_key[TopicPartitionKey.of(item)]
            partition.position = max(partition.position, item.offset)  # done when the message before is

    def fetch(self, wait_s: float) -> list[MessageView]:
        """Return the messages that arrive; wait for the first one for this time in seconds."""
        messages: list[MessageView] = []
        try:
            for key, run in self.reader.fetch(self._settings.pull_batch_size, wait_s):
                partition = self.by_key.get(key)
                if partition is None:
                    continue
                if partition.pauses:  # paused after these records were fetched
                    self.reader.client().seek(TopicPartition(*key, partition.position))
                    continue
                wanted = self.reader.from_position(key, run, partition.position)
                if wanted == []:
                    continue
                found = list(self._selected(key.topic, wanted or run))
                trusted = self._names.has_failures(key.topic)
                messages += [MessageView(message, trusted) for message in found] if trusted else first_views(found)
                partition.hand_out(run[-1].offset() + 1)
        except BaseException:  # for example of a signal handler: this poll returns nothing, so all is read again
            for key, partition in self.by_key.items():
                partition.seek(partition.done)
                if partition.position >= 0:
                    self.reader.client().seek(TopicPartition(*key, partition.position))
            raise
        return messages

    def raise_failure(self) -> None:
        """Raise what a callback could not raise."""
        error, self.reader.error = self.reader.error, None
        if isinstance(error, RocketshimError):
            raise error
        if error is not None:
            raise ConsumerError(f"the queues could not be assigned or released: {error}") from error

    def _selected(self, topic: str, run: list[Any]) -> Iterable[Any]:
        filters = self._subscribed if self._requested is None else self.assign_filters
        selector = filters.get(topic)
        if selector is None:
            return run
        if isinstance(selector.filter, TagFilter):
            return selector.filter.sieve(run, self._unreadable)
        return matching(selector.filter.matches_headers, run, self._unreadable)

    def _unreadable(self, record: Any, error: Exception) -> None:
        self.session.counts.skipped += 1
        _LOG.error("consumer.headers-unreadable", extra={"record": coordinates(record), "error": str(error)})
        self.reader.fail(unreadable_headers(record))

    # --- commits -----------------------------------------------------------------------------------------------------

    def begin_poll(self) -> None:
        """Begin the next poll: everything that was handed out is done."""
        for partition in self.by_key.values():
            partition.before = None

    def unconfirmed(
        self, keys: Iterable[TopicPartitionKey] | None = None, *, everything: bool = False
    ) -> dict[TopicPartitionKey, int]:
        """Return the positions for a commit that somebody waits for: those not confirmed, or not sent last.

        None: of all partitions. With `everything` they include what the last poll has handed out.

        Decides: What does a pull consumer commit? What was returned before the last poll, and the markers and aborted
            records behind it (`skip_invisible`); the messages of the last one only by commit_sync. After a seek the
            position may be lower (`core.partition.Partition.is_due`).
        """
        chosen = self.by_key if keys is None else keys
        partitions = [each for key in chosen if (each := self.by_key.get(key)) is not None]
        positions = {each: each.position if everything else each.done for each in partitions}
        return {each.key: at for each, at in positions.items() if not at == each.sent == each.stored}

    def _stored(self, positions: Mapping[TopicPartitionKey, int]) -> None:
        for key, position in positions.items():
            if (partition := self.by_key.get(key)) is not None:
                partition.send(position)
                partition.commit_answered(position, is_stored=True)

    def commit(self, positions: Mapping[TopicPartitionKey, int]) -> None:
        """Commit positions, and wait for the answer. Raises RocketshimError: one was refused, or no answer came."""
        offsets = self.reader.starts.as_offsets(positions)
        try:
            with self.session.counts.counting_failed_commits():
                commit_now(self.reader.client(), offsets)
        except KafkaException as error:
            stored = stored_among(self.reader.client(), offsets, error.args[0])
            self._stored(stored)
            left = f" of {', '.join(map(str, sorted(positions.keys() - stored)))}" if stored else ""
            with cluster_errors(f"the positions of group {self._settings.group!r}{left} were not committed"):
                raise
        self._stored(positions)

    def _commit_done(self) -> None:
        """Commit what is done, without waiting for the answer; an error is logged, and the next commit covers it."""
        due = {key: each.done for key, each in self.by_key.items() if each.is_due}
        try:
            if due:
                self.reader.client().commit(offsets=self.reader.starts.as_offsets(due), asynchronous=True)
                for key, position in due.items():
                    self.by_key[key].send(position)
        except KafkaException as error:
            self._commit_failed(error)

    def _committed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Process the answer to an asynchronous commit: a refused position is due again."""
        stored = stored_among(self.reader.client(), partitions, error) if error is not None else {}
        for item in partitions:
            key = TopicPartitionKey.of(item)
            if (partition := self.by_key.get(key)) is not None:
                partition.commit_answered(item.offset, is_stored=key in stored or (error or item.error) is None)
        failure = error or next((item.error for item in partitions if item.error is not None), None)
        if failure is not None:
            self._commit_failed(failure)

    def _commit_failed(self, error: object) -> None:
        self.session.counts.commits_failed += 1
        _LOG.warning("consumer.commit-failed", extra={"error": str(error)})
        if is_fatal(error):
            self.reader.fail(ConsumerError(f"the consumer cannot go on: {error}"))

    # --- what the reader asks (`PartitionOwner`) ---------------------------------------------------------------------

    def accept(self, partitions: list[TopicPartition]) -> None:
        """Start assigned partitions."""
        self.reader.start(partitions)

    def begin(self, key: TopicPartitionKey, offset: int) -> None:
        """Begin a partition."""
        self.by_key[key].begin(offset)

    def position(self, key: TopicPartitionKey) -> int | None:
        """Return where to read a partition again."""
        partition = self.by_key.get(key)
        return None if partition is None else partition.position

    def drain_and_commit(self, keys: Collection[TopicPartitionKey]) -> None:
        """Commit what is done of partitions that are about to be revoked; an error is logged."""
        if self._settings.auto_commit and not self.reader.is_closing:  # `_close` has committed
            try:
                self.commit(self.unconfirmed(keys))
            except (RocketshimError, RuntimeError) as error:
                _LOG.warning("consumer.commit-failed", extra={"error": str(error)})

    def forget(self, keys: Collection[TopicPartitionKey]) -> None:
        """Do nothing: what is known of a partition stands in it."""

    def _client_error(self, message: Any) -> None:
        """Keep an error that `poll` has to raise; a transient error is only logged."""
        error: KafkaError = message.error()
        topic = message.topic()
        self.reader.log_error(error, topic)
        try:
            if is_fatal(error) or error.code() in DENIED:
                with cluster_errors(f"{topic or 'this group'} cannot be read{self.reader.joining.explained(error)}"):
                    raise KafkaException(error)
            if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART and topic:
                self.lookup.queues(topic)
        except BrokerUnavailableError:
            pass
        except RocketshimError as typed:
            self.reader.fail(typed)
