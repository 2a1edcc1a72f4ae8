"""`PushConsumer`: calls a function for every message, in parallel; failed messages are retried or become dead letters.

The class is a facade over `PollLoop` (one thread that owns the Kafka consumer), `ListenerPool` (the threads that run
user code) and `SendBack` (retries and dead letters). It checks the set-up, creates the group's topics, and starts and
stops the other parts.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future  # noqa: TC003 - tools that inspect annotations need it at run time
from types import TracebackType
from typing import Any, Final, Self, TypeVar, Unpack

from confluent_kafka import KafkaException, TopicPartition

from rocketshim.clock import SystemClock
from rocketshim.consumer.drop_failed import DropFailed
from rocketshim.consumer.listener import ChunkRunner
from rocketshim.consumer.orderly.loop import OrderlyCounts, OrderlyLoop, OrderlySettings
from rocketshim.consumer.orderly.runner import OrderlyRunner
from rocketshim.consumer.outcome import safe_text
from rocketshim.consumer.poll_loop import PollLoop
from rocketshim.consumer.pool import ListenerPool
from rocketshim.consumer.push.async_listener import AsyncPool, AsyncRunner
from rocketshim.consumer.push.client_ids import stable_client_id
from rocketshim.consumer.push.concurrent_loop import ConcurrentLoop
from rocketshim.consumer.push.config import connection, consumer_config, loop_settings, producer_config
from rocketshim.consumer.push.group_topics import GroupTopics
from rocketshim.consumer.push.hooks import ConsumeMessageHook, FilterMessageHook, Hooks
from rocketshim.consumer.push.subscriptions import Subscriptions, is_pattern
from rocketshim.consumer.reader.local_offsets import LocalOffsetStore, offset_folder
from rocketshim.consumer.reader.partition_assigner import BroadcastAssigner, PartitionAssigner
from rocketshim.consumer.reader.self_allocation import LeasedAssigner, StrategyAssigner
from rocketshim.consumer.reader.start_offsets import StartOffsets
from rocketshim.consumer.reader.topic_watch import FindTopics
from rocketshim.consumer.send_back import FailedSink, SendBack, SendBackCounts
from rocketshim.consumer.state import ConsumerState
from rocketshim.core.clock import Clock
from rocketshim.core.message_model import MessageModel
from rocketshim.core.start_position import DEFAULT_TIMESTAMP_AGE_MS
from rocketshim.errors import ConfigError, ConsumerError, RocketshimError
from rocketshim.group.connect import connect_group_log, new_client_id
from rocketshim.group.log_thread import GroupLogThread
from rocketshim.kafka.client_config import PROTECTED_CONSUMER
from rocketshim.kafka.clients import Clients, ConsumerClient, LastClientError, confluent_clients, explained
from rocketshim.kafka.queue_lookup import cluster_errors
from rocketshim.kafka.topic_id import TopicId
from rocketshim.settings import PushConsumerOptions, PushConsumerSettings
from rocketshim.stop_signals import StopSignals
from rocketshim_topics import TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.names import retry_topic

__all__ = ["PushConsumer"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_JOIN_GRACE_S: Final = 5.0
_REQUEST_TIMEOUT_S: Final = 30.0
_SIGNAL_CHECK_S: Final = 0.2


class PushConsumer:
    """Consumes topics in a group and calls a listener for every message, in `consume_thread_min` threads.

    ::

        consumer = PushConsumer("localhost:9092", group="payments")

        @consumer.listener("orders", tags="created || paid")
        def handle(message, context):
            charge(message.body)        # returning is success; raising sends the message back

        consumer.run()                  # until SIGTERM

    Args:
        bootstrap: `host:port` of at least one broker; None if `settings` contains it.
        group: the consumer group; None if `settings` contains it.
        settings: all settings in one object, instead of the other arguments.
        clients: the factory of Kafka clients; None: confluent_kafka.
        clock: the source of time; None: the clock of this machine.
        values: any other field of `PushConsumerSettings`, by name; `PushConsumerOptions` lists them.

    Raises:
        ConfigError: a setting does not exist or is out of range; nothing was opened.

    Thread-safety: call the set-up methods (`listener`, `start`) from one thread. `stop` may be called from any thread
    and from a signal handler. Methods that change a running consumer (`subscribe`, `seek`, `suspend` …) may be called
    from any thread.

    Source: `DefaultMQPushConsumer` of RocketMQ.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        group: str | None = None,
        settings: PushConsumerSettings | None = None,
        clients: Clients | None = None,
        clock: Clock | None = None,
        **values: Unpack[PushConsumerOptions],
    ) -> None:
        if settings is None:
            settings = PushConsumerSettings.make(bootstrap=bootstrap or "", group=group or "", **values)
        elif bootstrap is not None or group is not None or values:
            raise ConfigError("PushConsumer takes settings=, or its fields as arguments, not both")
        self.settings = settings
        self.names = TopicNames(settings.namespace)
        self._retry_topic = self.names.retry(settings.group)
        self._clients = clients
        self._clock: Clock = clock or SystemClock()
        self._timestamp_ms = settings.consume_timestamp_ms or self._clock.wall_ms() - DEFAULT_TIMESTAMP_AGE_MS
        self._subscriptions = Subscriptions(self.names, filter_retries=settings.filter_support_retry)
        self._hooks = Hooks(settings.consume_timeout_ms)
        self._event_loop: asyncio.AbstractEventLoop | None = None  # of run_async
        self._admin: Any = None
        self._lock = threading.RLock()  # a signal handler may call stop() in the thread that is in start()
        self._pool: ListenerPool[Any, Any] | AsyncPool | None = None
        self._stopped = False
        self._starting_thread: int | None = None
        self._stop_timeout_s: float | None = None  # of a stop() that interrupted start()
        self._loop: PollLoop[Any] | None = None
        self._starts: StartOffsets | None = None
        self._thread: threading.Thread | None = None
        self._lanes = 1
        self._ended = threading.Event()

    # --- set-up ------------------------------------------------------------------------------------------------------

    def listener(
        self,
        topic: str,
        *,
        tags: str | None = None,
        sql: str | None = None,
        selector: Any = None,
        orderly: bool = False,
    ) -> Callable[[FunctionT], FunctionT]:
        """Decorate a function as the listener of a topic.

        Args:
            topic: the logical name of the topic, or a pattern. A pattern is a regular expression that begins with `^`
                and that matches the beginning of a name. It stands for every matching topic, also for one that is
                created later. It does not match the topics of rocketshim and of Kafka (`__…`), nor topics that have a
                listener by name.
            tags: tag expression, `"A || B"`; `"*"` or None: all.
            sql: SQL92 condition on the properties, instead of `tags`.
            selector: a function of the message, or an object with `matches`, instead of `tags`.
            orderly: the messages of one queue are handled one after the other, in order, under the queue's lock; a
                message that fails blocks its queue. All listeners of a consumer must have the same value. The function
                gets a `ConsumeOrderlyContext` and may return a `ConsumeOrderlyStatus`.

        The function takes the message, or a list of messages if `consume_message_batch_max_size` is above 1. It may
        also take the context. It may return nothing (success) or a `ConsumeStatus`; any other value is a failure. A
        function that gets lists may also return a list with one result for each message; a result may be an exception.

        An `async def` function runs in an event loop, up to `async_concurrency` calls at the same time. The event loop
        has a thread of its own; with `run_async` it is the event loop of the caller. Either all listeners of a consumer
        are `async def` or none is.

        Raises:
            ConfigError: the topic already has a listener, the name is not legal, two filters are given, or the consumer
                has started.
            FilterSyntaxError: the expression does not compile.
        """
        if not isinstance(topic, str):  # `@consumer.listener` without a topic would register nothing, silently
            raise ConfigError(f"listener({topic!r:.80}): give the topic: @consumer.listener('orders')")

        def register(function: FunctionT) -> FunctionT:
            self.register_message_listener(topic, function, tags=tags, sql=sql, selector=selector, orderly=orderly)
            return function

        return register

    def register_message_listener(
        self,
        topic: str,
        listener: Callable[..., Any],
        *,
        tags: str | None = None,
        sql: str | None = None,
        selector: Any = None,
        orderly: bool = False,
    ) -> None:
        """Register a listener; the same as the decorator `listener`, as a call.

        Raises:
            ConfigError, FilterSyntaxError: see `listener`; nothing was registered.
        """
        if self._loop is not None:
            raise ConfigError(
                f"Cannot register a listener for {topic!r} after start(): register it before, or use subscribe()"
            )
        made = self._subscriptions.make(topic, listener, tags=tags, sql=sql, selector=selector, orderly=orderly)
        self._subscriptions.add(made)

    def subscribe(
        self,
        topic: str,
        listener: Callable[..., Any] | None = None,
        *,
        tags: str | None = None,
        sql: str | None = None,
        selector: Any = None,
    ) -> None:
        """Add a topic or pattern, or change the filter of one; possible before the start and while running.

        The change applies to what is read from now on. Messages that the former filter skipped stay skipped, and
        messages that it selected and that are already read may still reach the listener. A new topic starts where
        `consume_from_where` says, like any other. The other members of the group have to subscribe in the same way.
        Until they do, each member skips what the others want. `subscription_conflicts` reports this until the queues
        have been committed again.

        Args:
            topic: see `listener`.
            listener: plain or `async def`, concurrent or orderly, like the others of this consumer; None: the listener
                that the topic already has (`unsubscribe` keeps it).
            tags: see `listener`; without `tags`, `sql` and `selector`: everything.
            sql: see `listener`.
            selector: see `listener`.

        Raises:
            ConfigError: the topic has no listener, the name is not legal, or two filters are given; nothing changed.
            FilterSyntaxError: the expression does not compile; nothing changed.
            TopicMissingError: the consumer runs, and the topic does not exist; nothing changed.
            ConsumerError: the consumer is starting or closing, or the cluster did not answer; nothing changed.

        Source: `DefaultMQPushConsumer#subscribe` of RocketMQ, which has one listener for all topics.
        """
        made = self._subscriptions.make(topic, listener, tags=tags, sql=sql, selector=selector)
        if self._loop is None:
            self._subscriptions.put(made)
            return
        if not is_pattern(topic) and self._admin is not None:
            GroupTopics(self._admin, self.names, self.settings.group).look_up([made.topic])
        self._change(lambda: self._subscriptions.put(made))

    def unsubscribe(self, topic: str) -> None:
        """Stop reading a topic or a pattern; possible before the start and while running. Safe to call twice.

        Messages in progress are finished and committed. Retries of the topic's messages that are still scheduled reach
        the listener as before, as long as this consumer runs. The other members of the group have to unsubscribe, too.
        Until then they have a different subscription and take over the topic's queues.

        Args:
            topic: the name or pattern as it was registered.

        Raises:
            ConfigError: the name is not legal.
            ConsumerError: the consumer is starting or closing; nothing changed.

        Source: `DefaultMQPushConsumer#unsubscribe` of RocketMQ.
        """
        physical = self._subscriptions.physical(topic)
        if self._loop is None:
            self._subscriptions.remove(physical)
        else:
            self._change(lambda: self._subscriptions.remove(physical))

    def _change(self, change: Callable[[], object]) -> None:
        """Change the subscriptions of a running consumer, in its poll thread."""
        loop, starts = self._running(), self._starts

        def act(consumer: ConsumerClient) -> None:
            change()
            if starts is not None:
                starts.subscribe(self._subscriptions.digest(), self._subscriptions.text())
            loop.read_topics(consumer, self._topics(), self._topic_finder())

        self._wait_for(loop.ask(act))

    def register_consume_message_hook(self, hook: ConsumeMessageHook) -> None:
        """Register a hook that is called before and after every listener call; hooks nest in the order of registration.

        Raises:
            ConfigError: the consumer has started, or one of the two methods is missing.

        Source: `DefaultMQPushConsumerImpl#registerConsumeMessageHook` of RocketMQ.
        """
        self._add_hook(self._hooks.consuming, hook, ("consume_message_before", "consume_message_after"))

    def register_filter_message_hook(self, hook: FilterMessageHook) -> None:
        """Register a hook that also decides whether a listener gets a message; every filter hook has to accept it.

        Raises:
            ConfigError: the consumer has started, or the hook has no method `filter_message`.

        Source: `DefaultMQPushConsumerImpl#registerFilterMessageHook` of RocketMQ.
        """
        self._add_hook(self._hooks.filtering, hook, ("filter_message",))

    def _add_hook(self, hooks: list[Any], hook: Any, methods: Sequence[str]) -> None:
        missing = [name for name in methods if isinstance(hook, type) or not callable(getattr(hook, name, None))]
        if missing:
            raise ConfigError(f"{hook!r:.80} is not a hook: pass an object with the method {' and '.join(missing)}")
        if self._loop is not None:
            raise ConfigError("Cannot register a hook after start(): register it before")
        hooks.append(hook)

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Create missing topics of the group, join the group and consume. Safe to call twice.

        Raises:
            ConfigError: no listener is registered, or Kafka's client rejects a client setting.
            ConsumerError: the consumer was stopped before; a consumer runs only once.
            TopicMissingError, TopicMismatchError, NotAuthorizedError, BrokerUnavailableError: the cluster does not meet
                the requirements.
            After each of these nothing runs, and start() may be called again.
        """
        with self._lock:
            self._starting_thread = threading.get_ident()
            try:
                self._start()
            finally:
                self._starting_thread = None  # from now on stop() finds the started parts
        timeout_s, self._stop_timeout_s = self._stop_timeout_s, None
        if timeout_s is not None:
            self._stopped = True
            self.stop(timeout_s)

    def _start(self) -> None:
        if self._stopped:
            raise ConsumerError("this consumer was stopped, and a consumer runs only once: create a new one")
        if self._loop is not None:
            return
        if not self._subscriptions:
            raise ConfigError("nothing to consume: register a listener before start()")
        clients = self._clients or confluent_clients()
        store: LocalOffsetStore | None = None
        try:
            self._prepare(clients)
            store = self._open_store(clients) if self._broadcasts else None
            loop, pool = self._make_loop(clients, store)
        except BaseException:
            self._release(store)  # so that start() may be called again
            raise
        thread = threading.Thread(target=self._run_loop, args=(loop, store), name=self._name("poll"), daemon=True)
        self._loop, self._pool, self._thread = loop, pool, thread
        thread.start()
        loop.opened.wait()
        if not loop.is_open:
            thread.join()
            self._loop = self._pool = self._thread = None
            self._ended.clear()
            raise ConfigError(f"Kafka's client rejects its settings: {loop.error}") from loop.error

    def stop(self, timeout_s: float = 30.0) -> None:
        """Finish the messages in progress within the time, commit, and leave the group. Safe to call twice.

        When it returns, the consumer has stopped. Listener calls that last longer are abandoned: their messages are
        delivered again to the next consumer of their queue. Before `start` it does nothing. If a listener calls it, it
        requests the stop and returns immediately, since it would otherwise wait for its own call. In a signal handler
        that interrupts `start` it also returns immediately; `start` then stops what it has started and returns.

        Args:
            timeout_s: time in seconds for the messages in progress and for leaving the group. A member that is joining
                the group finishes joining first, since the other members would otherwise wait for it. The last commit
                may take one or two seconds more.

        Raises:
            ConsumerError: the consumer failed before (`__cause__` is the reason), or it did not stop in time.
        """
        if self._starting_thread == threading.get_ident():
            self._stop_timeout_s = timeout_s
            return
        with self._lock:
            loop, thread, pool = self._loop, self._thread, self._pool
        if loop is None or thread is None or pool is None:
            return
        self._stopped = True
        loop.stop(round(timeout_s * 1_000))
        if pool.is_own_thread() or threading.current_thread() is thread:
            return
        thread.join(timeout_s + _JOIN_GRACE_S)
        if thread.is_alive():
            raise ConsumerError(f"the consumer of group {self.settings.group!r} did not stop within {timeout_s} s")
        self._raise_if_failed(loop)

    def suspend(self) -> None:
        """Stop reading until `resume`; messages already read are handled, the membership is kept. Safe to call twice.

        Raises:
            ConsumerError: the consumer is not running.

        Source: `DefaultMQPushConsumer#suspend` of RocketMQ.
        """
        loop = self._running()
        self._wait_for(loop.ask(loop.suspend))

    def resume(self) -> None:
        """Continue to read after `suspend`. Safe to call twice.

        Raises:
            ConsumerError: the consumer is not running.
        """
        loop = self._running()
        self._wait_for(loop.ask(loop.resume_reading))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Move the position of a queue that this consumer reads, back or forth; it is committed when this returns.

        Messages that were read ahead are dropped. Listener calls in progress continue, but their results are ignored.

        Args:
            queue: topic (logical name) and queue id.
            offset: offset of the next message, 0 or more. Beyond the end of the log, reading continues at the earliest
                message.

        Raises:
            ConfigError: the offset is below 0, or the consumer is orderly: its positions belong to its locks; nothing
                changed.
            ConsumerError: the consumer is not running, another member reads the queue, or Kafka rejected the request.
        """
        if offset < 0:
            raise ConfigError(f"Cannot seek to offset {offset}: offsets begin at 0")
        key = TopicPartitionKey(self.names.physical(queue.topic), queue.queue_id)
        self._move(lambda consumer, loop: loop.seek(consumer, {key: offset}))

    def reset_offset_by_timestamp(self, topic: str, timestamp_ms: int) -> None:
        """Move this consumer's queues of a topic to the first message of a time or later; works like `seek`.

        Args:
            topic: logical name of the topic.
            timestamp_ms: epoch ms; if it is later than the last message, reading continues at the end.

        Raises:
            ConfigError: the consumer is orderly; nothing changed.
            ConsumerError: the consumer is not running or reads no queue of the topic, or Kafka rejected the request.

        Source: `DefaultMQPushConsumerImpl#resetOffsetByTimeStamp` of RocketMQ.
        """

        def act(consumer: ConsumerClient, loop: PollLoop[Any]) -> None:
            partitions = loop.held(self.names.physical(topic))
            if not partitions:
                raise ConsumerError(f"this consumer reads no queue of {topic!r} now")
            asked = [TopicPartition(*partition, timestamp_ms) for partition in partitions]
            targets: dict[TopicPartitionKey, int] = {}
            for item in loop.lookups.offsets_for_times(asked, timeout=10.0):
                if item.error is not None:
                    raise KafkaException(item.error)
                end = loop.lookups.get_watermark_offsets(TopicPartition(item.topic, item.partition), timeout=10.0)[1]
                targets[TopicPartitionKey.of(item)] = item.offset if item.offset >= 0 else end
            loop.seek(consumer, targets)

        self._move(act)

    def _move(self, act: Callable[[ConsumerClient, PollLoop[Any]], None]) -> None:
        if self._orderly:
            raise ConfigError(
                "Cannot move the position of an orderly consumer, since it belongs to its lock: stop the group, then "
                "reset its offsets"
            )
        loop = self._running()
        try:
            self._wait_for(loop.ask(lambda consumer: act(consumer, loop)))
        except KafkaException as error:
            raise ConsumerError(f"Kafka rejected the new position: {error}") from error

    def update_core_pool_size(self, size: int) -> None:
        """Set the number of listener threads (of concurrent calls for `async def` listeners).

        Calls in progress are not interrupted.

        Args:
            size: 1 to `consume_thread_max`.

        Raises:
            ConfigError: the size is out of range; nothing changed.
            ConsumerError: the consumer is not running.

        Source: `DefaultMQPushConsumer#updateCorePoolSize` of RocketMQ, which ignores a size that is out of range.
        """
        if not 1 <= size <= self.settings.consume_thread_max:
            raise ConfigError(
                f"update_core_pool_size({size}): the size must be 1 to {self.settings.consume_thread_max}"
            )
        loop, pool = self._running(), self._pool
        if pool is not None:
            self._wait_for(loop.ask(lambda _: pool.resize(size)))

    def run(self) -> None:
        """Start, consume until SIGTERM, SIGINT or `stop`, then stop. Signals are handled in the main thread only.

        Signals are handled until everything has stopped. Further signals do not interrupt the shutdown, except a second
        Ctrl-C one second or more after the first.

        Raises:
            ConsumerError: the consumer cannot continue.
            KeyboardInterrupt: Ctrl-C was pressed again during the shutdown: the consumer has not stopped, and messages
                in progress are delivered again.
            And what `start` raises.
        """
        with StopSignals() as signals:
            if not signals.asked:
                self._run(signals)

    def _run(self, signals: StopSignals) -> None:
        self.start()
        try:
            while not signals.asked and not self._ended.wait(_SIGNAL_CHECK_S):
                pass
        finally:
            self.stop()

    async def run_async(self) -> None:
        """Start, consume until `stop` or until the awaiting task is cancelled, then stop.

        `async def` listeners run in the event loop of the caller, so they may use objects that belong to it. Signals
        are not handled.

        Raises:
            ConsumerError: the consumer cannot continue.
            And what `start` raises.
        """
        self._event_loop = asyncio.get_running_loop()
        started = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(started)
            while not self._ended.is_set():  # noqa: ASYNC110 - another thread sets the event
                await asyncio.sleep(0.05)
        finally:
            await asyncio.wait([started])  # after a cancellation, too: stop() must find what was started
            await asyncio.shield(asyncio.to_thread(self.stop))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- inspection --------------------------------------------------------------------------------------------------

    def wait_assigned(self, timeout_s: float = 30.0) -> bool:
        """Wait for the first assignment by the group (it may be empty); return whether it came in time."""
        loop = self._loop
        return loop is not None and loop.assigned.wait(timeout_s)

    @property
    def state(self) -> ConsumerState | None:
        """The consumer's state, at most one second old; None before the first turn of its loop. Thread-safe."""
        loop = self._loop
        return None if loop is None else loop.state

    @property
    def send_back_counts(self) -> SendBackCounts:
        """Counts of the messages that were sent back so far."""
        send_back = None if self._loop is None else self._loop.send_back
        return SendBackCounts() if send_back is None else send_back.counts

    @property
    def orderly_counts(self) -> OrderlyCounts:
        """Counts of an orderly consumer so far: suspensions, stuck messages, locks acquired and lost."""
        return self._loop.orderly_counts if isinstance(self._loop, OrderlyLoop) else OrderlyCounts()

    @property
    def subscription_conflicts(self) -> dict[str, str]:
        """Topics that the group has consumed with a different subscription; topic to the text of that subscription.

        The check runs when queues are assigned, and it is also logged (`consumer.subscriptions-differ`). There are two
        causes. Another member subscribes differently: then messages are lost, as in RocketMQ, since each member skips
        what the others want. Or the subscription of the whole group was changed since its last commit: then the next
        commits remove the conflict.
        """
        return {} if self._starts is None else dict(self._starts.conflicts)

    @property
    def schedule(self) -> str:
        """The retry settings as text for a person: number of retries, `repr` of the policy, delay levels."""
        limit = 16 if self.settings.max_reconsume_times == -1 else max(0, self.settings.max_reconsume_times)
        return f"{limit} retries, {self.settings.retry_policy!r}, levels {self.settings.delay_levels}"

    # --- internal ----------------------------------------------------------------------------------------------------

    def _name(self, role: str) -> str:
        return f"rocketshim-{role}-{self.settings.group}"

    @property
    def _orderly(self) -> bool:
        return bool(self._subscriptions.orderly)

    @property
    def _broadcasts(self) -> bool:
        return self.settings.message_model is MessageModel.BROADCASTING

    def _open_store(self, clients: Clients) -> LocalOffsetStore:
        """Open the local offset file; first ask the cluster for its id."""
        settings = self.settings
        probe = self._make_lookup_client(clients)
        try:
            with cluster_errors(f"the topics of group {settings.group!r} could not be looked up"):
                cluster = probe.list_topics(timeout=10.0).cluster_id
        finally:
            probe.close()

        def topic_id(topic: str) -> str:
            admin = self._admin
            return "" if admin is None else TopicId(admin, topic).now() or ""

        client_id = settings.client_id or stable_client_id()
        folder = offset_folder(settings.offset_store_dir, client_id, self.names, settings.group)
        return LocalOffsetStore(folder, cluster or "", topic_id)

    def _make_lookup_client(self, clients: Clients) -> ConsumerClient:
        """Make a client that joins no group and fetches nothing."""
        return clients.consumer(connection(self.settings, {**PROTECTED_CONSUMER, "group.id": self.settings.group}))

    def _make_pool(self) -> "ListenerPool[Any, Any] | AsyncPool":
        settings, name = self.settings, self._name("listener")
        if not self._subscriptions.awaits:
            return ListenerPool(self._make_runner(), settings.consume_thread_min, name)
        batch_count = settings.consume_message_batch_max_size
        find = self._hooks.wrap(self._subscriptions.get, awaits=True)
        runner = AsyncRunner(settings.group, find, self._retry_topic, batch_count, self._clock)
        lists = batch_count > 1
        return AsyncPool(runner, settings.async_concurrency, name, lists=lists, loop=self._event_loop)

    def _make_loop(
        self, clients: Clients, store: LocalOffsetStore | None
    ) -> "tuple[PollLoop[Any], ListenerPool[Any, Any] | AsyncPool]":
        settings = self.settings
        starts = self._starts = StartOffsets(
            retry_topic=self._retry_topic,
            where=settings.consume_from_where,
            timestamp_ms=self._timestamp_ms,
            digest=self._subscriptions.digest(),
            subscription=self._subscriptions.text(),
            store=store,
        )
        log = self._connect_log(clients)
        pool = self._make_pool()
        arguments: dict[str, Any] = {
            "make_consumer": lambda: clients.consumer(
                consumer_config(settings, orderly=self._orderly, on_commit=loop.on_commit)
            ),
            "make_lookup_client": lambda: self._make_lookup_client(clients),
            "topics": self._topics(),
            "make_send_back": lambda: self._make_send_back(clients),
            "pool": pool,
            "starts": starts,
            "settings": loop_settings(settings, orderly=self._orderly),
            "clock": self._clock,
            "sharing": self._make_assigner(log),
            "store": store,
            "find": self._topic_finder(),
        }
        loop: PollLoop[Any] = self._make_orderly_loop(log, arguments) if self._orderly else ConcurrentLoop(**arguments)
        return loop, pool

    def _make_runner(self) -> Callable[[Any], Any]:
        settings, find = self.settings, self._hooks.wrap(self._subscriptions.get, awaits=False)
        batch_count = settings.consume_message_batch_max_size
        if not self._orderly:
            return ChunkRunner(settings.group, find, self._retry_topic, batch_count, self._clock).run
        return OrderlyRunner(
            settings.group,
            find,
            self._retry_topic,
            batch_count=batch_count,
            clock=self._clock,
            levels=settings.delay_levels,
        ).run

    @property
    def _needs_log(self) -> bool:
        """Whether the group needs locks. A broadcast consumer reads every queue, so it needs none."""
        strategy = self.settings.allocate_message_queue_strategy
        return not self._broadcasts and (self._orderly or strategy is not None)

    def _connect_log(self, clients: Clients) -> GroupLogThread | None:
        if not self._needs_log:
            return None
        settings = self.settings
        strategy = settings.allocate_message_queue_strategy
        return connect_group_log(
            settings,
            settings.group,
            client_id=settings.client_id or new_client_id(),
            lock_settings=settings.lock_settings,
            topics=self._topics,
            clients=clients,
            clock=self._clock,
            admin=self._admin,
            strategy=None if strategy is None else strategy.name,
        )

    def _make_orderly_loop(self, log: GroupLogThread | None, arguments: dict[str, Any]) -> PollLoop[Any]:
        settings = self.settings
        orderly = OrderlySettings(
            self._retry_topic,
            max_reconsume_times=settings.max_reconsume_times,
            suspend_ms=settings.suspend_current_queue_time_ms,
            by_key=settings.order == "key",
        )
        return OrderlyLoop(log=log, orderly=orderly, **arguments)

    def _run_loop(self, loop: PollLoop[Any], store: LocalOffsetStore | None) -> None:
        try:
            loop.run()
            self._release(store)
        finally:
            self._ended.set()

    def _release(self, store: LocalOffsetStore | None) -> None:
        """Release what the loop does not own: the local offset file, and the last reference to the admin client."""
        if store is not None:
            store.close()
        self._admin = None

    def _running(self) -> PollLoop[Any]:
        with self._lock:
            if self._loop is None or self._stopped:
                raise ConsumerError("the consumer is not running")
            return self._loop

    def _wait_for(self, request: "Future[None]") -> None:
        try:
            request.result(_REQUEST_TIMEOUT_S)
        except TimeoutError as error:
            raise ConsumerError(f"the poll thread did not answer within {_REQUEST_TIMEOUT_S:g} s") from error

    def _raise_if_failed(self, loop: PollLoop[Any]) -> None:
        error = loop.error
        if error is None:
            return
        if isinstance(error, RocketshimError):
            raise error
        raise ConsumerError(
            f"the consumer of group {self.settings.group!r} stopped after an error: {safe_text(error)}"
        ) from error

    def _prepare(self, clients: Clients) -> None:
        """Create and check the topics that the consumer needs; skip this without an admin client."""
        if clients.admin is None:
            return
        settings, named = self.settings, self._subscriptions.named()
        last_error = LastClientError()
        admin = self._admin = clients.admin(connection(settings, defaults=last_error.settings))
        topics = GroupTopics(admin, self.names, settings.group)
        with explained(last_error, admin):
            if self._broadcasts:
                topics.look_up(named)
                return
            topics.ensure(settings.delay_levels, with_log=self._needs_log, create=settings.create_topics)
            self._lanes = topics.look_up_with_lanes(named)

    def _topics(self) -> list[str]:
        """Topics to read now, including the group's retry topic."""
        return [*self._subscriptions.topics(), *([] if self._broadcasts else [self._retry_topic])]

    def _topic_finder(self) -> FindTopics | None:
        return self._find if self._subscriptions.has_patterns else None

    def _find(self, existing: Iterable[str]) -> list[str]:
        self._subscriptions.see(existing)
        return self._topics()

    def _make_assigner(self, log: GroupLogThread | None) -> PartitionAssigner | None:
        settings = self.settings
        if self._broadcasts:
            return BroadcastAssigner(self._subscriptions.topics, settings.rebalance_interval_ms)
        strategy = settings.allocate_message_queue_strategy
        if strategy is None or log is None:
            return None
        assigner = StrategyAssigner(
            strategy=strategy,
            group=settings.group,
            client_id=log.owner.client_id,
            topics=self._topics,
            logical={self._retry_topic: retry_topic(settings.group)},
            members=lambda: log.members,
            interval_ms=settings.rebalance_interval_ms,
        )
        if self._orderly:  # the orderly loop acquires the leases itself
            return assigner
        return LeasedAssigner(assigner, log)

    def _make_send_back(self, clients: Clients) -> FailedSink:
        settings = self.settings
        if self._broadcasts:
            return DropFailed()
        return SendBack(
            lambda: clients.producer(producer_config(settings)),
            names=self.names,
            levels=settings.delay_levels,
            group=settings.group,
            lanes=lambda: self._lanes,
            policy=settings.retry_policy,
            limit=settings.max_reconsume_times,
            back_off_ms=settings.hop_back_off_ms,
        )
