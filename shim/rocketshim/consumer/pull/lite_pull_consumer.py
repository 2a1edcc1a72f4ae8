"""`LitePullConsumer`: the caller polls for messages, instead of registering a listener."""

from collections.abc import Collection, Iterable, Mapping
from typing import Final, Self, Unpack

from rocketshim.consumer.pull.partitions import PullPartitions, QueuesListener
from rocketshim.core.clock import Clock
from rocketshim.core.partition import PauseReason
from rocketshim.core.user_values import call_problem
from rocketshim.errors import ConfigError
from rocketshim.filters import MessageSelector
from rocketshim.filters.selection import as_selector
from rocketshim.health import Metric
from rocketshim.kafka.clients import Clients
from rocketshim.settings.consumer import LitePullConsumerOptions, LitePullConsumerSettings
from rocketshim_topics import MessageView, TopicNames
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["LitePullConsumer"]

_SLICE_S: Final = 0.1  # so that a waiting poll notices `stop`


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
