"""`PushConsumer`: write a function, get messages in it, in parallel; failures come back or die into a topic.

The facade over `PollLoop` (one thread that owns the Kafka consumer), `ListenerPool` (the threads user code runs in)
and `SendBack` (retries and dead letters). It checks the set-up, creates the group's topics, starts and stops.
"""

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future  # noqa: TC003 - read as an annotation by those who look
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
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.names import retry_topic

__all__ = ["PushConsumer"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_HALF_HOUR_MS: Final = 1_800_000
_JOIN_GRACE_S: Final = 5.0
_ASK_TIMEOUT_S: Final = 30.0
_LOOK_S: Final = 0.2


class PushConsumer:
    """Consumes topics in a group and calls a listener for every message, in `consume_thread_min` threads.

    ::

        consumer = PushConsumer("localhost:9092", group="payments")

        @consumer.listener("orders", tags="created || paid")
        def handle(message, context):
            charge(message.body)        # returning is success; raising sends the message back

        consumer.run()                  # until SIGTERM

    Args:
        bootstrap: `host:port` of at least one broker; None when `settings` says it.
        group: the consumer group; None when `settings` says it.
        settings: everything at once, in place of the other arguments.
        clients: where Kafka clients come from; None: confluent_kafka.
        clock: time; None: this machine's.
        values: any other field of `PushConsumerSettings`, by name; `PushConsumerOptions` lists them.

    Raises:
        ConfigError: a setting that does not exist or is out of range; nothing was opened.

    Thread-safety: set-up (`listener`, `start`) belongs to one thread; `stop` may be called from any, also from a
    signal handler; what moves or changes a running consumer (`subscribe`, `seek`, `suspend` …) from any too.

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
        self._timestamp_ms = settings.consume_timestamp_ms or self._clock.wall_ms() - _HALF_HOUR_MS
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
        """Decorator: this function listens to a topic.

        Args:
            topic: logical name of the topic; or a pattern: a regular expression that begins with `^` and that names
                have to begin with. It stands for every such topic there is and comes to be, but for the shim's own
                and Kafka's (`__…`), and for those with a listener by name.
            tags: tag expression, `"A || B"`; `"*"` or None: all.
            sql: SQL92 condition on the properties, in place of `tags`.
            selector: a function of the message, or an object with `matches`, in place of `tags`.
            orderly: messages of one queue come one after the other, in order, under the queue's lock; a failing one
                holds up its queue. All listeners of a consumer alike. The function gets a `ConsumeOrderlyContext` and
                may return a `ConsumeOrderlyStatus`.

        The function takes the message, or a list of them when `consume_message_batch_max_size` is above 1, and the
        context, if it wants it. It may return nothing (success) or a `ConsumeStatus`; any other value is a failure. One
        that gets lists may return a list, too: an answer for each message, which may be an exception.

        An `async def` function runs in an event loop in a thread of its own (with `run_async` in the caller's), up to
        `async_concurrency` calls at once. All listeners of a consumer alike.

        Raises:
            ConfigError: a topic that has a listener, a name that is none, two filters, or a consumer that has started.
            FilterSyntaxError: the expression does not compile.
        """
        if not isinstance(topic, str):  # `@consumer.listener` without a topic would listen to nothing, silently
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
        """Like `listener`, as a call.

        Raises:
            ConfigError, FilterSyntaxError: as `listener`; nothing was registered.
        """
        if self._loop is not None:
            raise ConfigError(
                f"listeners are registered before start(); the one for {topic!r} comes too late: subscribe() takes it"
            )
        made = self._subscriptions.made(topic, listener, tags=tags, sql=sql, selector=selector, orderly=orderly)
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
        """Listen to a further topic or pattern, or filter one otherwise; before the start and while running.

        From then on. What the former filter has passed over stays passed over, and what listeners are about to be given
        may still be what it let through. A further topic begins as `consume_from_where` says, like any other. The
        other members of the group are to subscribe alike: until they do, each skips what the others want, and that is
        said (`subscription_conflicts`) until the queues have been committed again.

        Args:
            topic: as for `listener`.
            listener: plain or `async def`, concurrent or orderly like the others of this consumer; None: the one that
                the topic has (it is kept by `unsubscribe`).
            tags: as for `listener`; with none of the three: everything.
            sql: as for `listener`.
            selector: as for `listener`.

        Raises:
            ConfigError: a topic without a listener, a name that is none, or two filters; nothing changed.
            FilterSyntaxError: the expression does not compile; nothing changed.
            TopicMissingError: of a consumer that runs: there is no such topic; nothing changed.
            ConsumerError: it is starting up or closing, or the cluster did not answer; nothing changed.

        Source: `DefaultMQPushConsumer#subscribe` of RocketMQ, whose one listener hears every topic.
        """
        made = self._subscriptions.made(topic, listener, tags=tags, sql=sql, selector=selector)
        if self._loop is None:
            self._subscriptions.put(made)
            return
        if not is_pattern(topic) and self._admin is not None:
            GroupTopics(self._admin, self.names, self.settings.group).look_up([made.topic])
        self._change(lambda: self._subscriptions.put(made))

    def unsubscribe(self, topic: str) -> None:
        """Listen to a topic, or a pattern, no longer; also while running. Safe twice.

        What is in work is finished and committed. Retries of its messages that are still on their way reach the
        listener as before, as long as this consumer runs. The other members of the group are to unsubscribe too: until
        then they have another subscription, and take the topic's queues over.

        Args:
            topic: as it was registered.

        Raises:
            ConfigError: a name that is none.
            ConsumerError: it is starting up or closing; nothing changed.

        Source: `DefaultMQPushConsumer#unsubscribe` of RocketMQ.
        """
        physical = self._subscriptions.physical(topic)
        if self._loop is None:
            self._subscriptions.remove(physical)
        else:
            self._change(lambda: self._subscriptions.remove(physical))

    def _change(self, change: Callable[[], object]) -> None:
        """Change the subscriptions of a consumer that runs."""
        loop, starts = self._running(), self._starts

        def act(consumer: ConsumerClient) -> None:
            change()
            if starts is not None:
                starts.subscribe(self._subscriptions.digest(), self._subscriptions.text())
            loop.read_topics(consumer, self._topics(), self._finding())

        self._do(loop.ask(act))

    def register_consume_message_hook(self, hook: ConsumeMessageHook) -> None:
        """Have a hook called before and after every listener call; several are nested as they were registered.

        Raises:
            ConfigError: the consumer has started, or the hook lacks one of the two methods.

        Source: `DefaultMQPushConsumerImpl#registerConsumeMessageHook` of RocketMQ.
        """
        self._hang(self._hooks.consuming, hook, ("consume_message_before", "consume_message_after"))

    def register_filter_message_hook(self, hook: FilterMessageHook) -> None:
        """Ask a hook, too, whether a listener is to get a message; all that are asked have to want it.

        Raises:
            ConfigError: the consumer has started, or the hook has no method `filter_message`.

        Source: `DefaultMQPushConsumerImpl#registerFilterMessageHook` of RocketMQ.
        """
        self._hang(self._hooks.filtering, hook, ("filter_message",))

    def _hang(self, hooks: list[Any], hook: Any, methods: Sequence[str]) -> None:
        missing = [name for name in methods if isinstance(hook, type) or not callable(getattr(hook, name, None))]
        if missing:
            raise ConfigError(f"{hook!r:.80} is no hook: give an object with the method {' and '.join(missing)}")
        if self._loop is not None:
            raise ConfigError("hooks are registered before start()")
        hooks.append(hook)

    # --- life --------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Create the group's topics where they are missing, join the group, consume. Safe twice.

        Raises:
            ConfigError: no listener, or a client setting that Kafka's client refuses.
            ConsumerError: it was stopped before: a consumer runs once.
            TopicMissingError, TopicMismatchError, NotAuthorizedError, BrokerUnavailableError: the cluster is not as it
                has to be.
            After each of these nothing runs, and start() may be called again.
        """
        with self._lock:
            self._starting_thread = threading.get_ident()
            try:
                self._start()
            finally:
                self._starting_thread = None  # a stop() from here on finds what was started
        timeout_s, self._stop_timeout_s = self._stop_timeout_s, None
        if timeout_s is not None:
            self._stopped = True
            self.stop(timeout_s)

    def _start(self) -> None:
        if self._stopped:
            raise ConsumerError("this consumer was stopped, and a consumer runs once: make a new one")
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
            self._let_go(store)  # so that start() may be called again
            raise
        thread = threading.Thread(target=self._run_loop, args=(loop, store), name=self._name("poll"), daemon=True)
        self._loop, self._pool, self._thread = loop, pool, thread
        thread.start()
        loop.opened.wait()
        if not loop.is_open:
            thread.join()
            self._loop = self._pool = self._thread = None
            self._ended.clear()
            raise ConfigError(f"Kafka's client refuses its settings: {loop.error}") from loop.error

    def stop(self, timeout_s: float = 30.0) -> None:
        """Finish what is in work within the time, commit, leave the group. Complete when it returns; safe twice.

        Listener calls that last longer are abandoned: their messages are delivered again to whoever comes next.
        Before `start` it does nothing. Called by a listener it only asks and returns immediately: what it would wait
        for is that very call. So it does in a signal handler that interrupts `start`, which then stops what it has
        started and returns.

        Args:
            timeout_s: seconds for what is in work, and for leaving the group: a member that is joining finishes that
                first, else the others would wait for it. The last commit may take a second or two more.

        Raises:
            ConsumerError: the consumer had failed before (`__cause__` says why), or has not ended in time.
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
            raise ConsumerError(f"the consumer of group {self.settings.group!r} has not ended within {timeout_s} s")
        self._raise_if_failed(loop)

    def suspend(self) -> None:
        """Read nothing more until `resume`; what was read is still handled, the membership is kept. Safe twice.

        Raises:
            ConsumerError: not running.

        Source: `DefaultMQPushConsumer#suspend` of RocketMQ.
        """
        loop = self._running()
        self._do(loop.ask(loop.suspend))

    def resume(self) -> None:
        """Read again after `suspend`. Safe twice.

        Raises:
            ConsumerError: not running.
        """
        loop = self._running()
        self._do(loop.ask(loop.resume_reading))

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Read a queue that this consumer reads from another offset on, back or forth; committed when it returns.

        What was read ahead is forgotten. Calls in work go on; what they say no longer counts.

        Args:
            queue: topic (logical name) and queue id.
            offset: of the next message, 0 or more; beyond the end of the log: at its earliest message.

        Raises:
            ConfigError: an offset below 0, or an orderly consumer, whose positions belong to its locks; nothing moved.
            ConsumerError: not running, the queue is read by another member, or Kafka refused.
        """
        if offset < 0:
            raise ConfigError(f"seek to offset {offset}: offsets begin at 0")
        self._move(
            lambda consumer, loop: loop.seek(consumer, {(self.names.physical(queue.topic), queue.queue_id): offset})
        )

    def reset_offset_by_timestamp(self, topic: str, timestamp_ms: int) -> None:
        """Read the queues of a topic that this consumer reads from a time on; as `seek`.

        Args:
            topic: logical name.
            timestamp_ms: epoch ms; later than the last message: at the end.

        Raises:
            ConfigError: an orderly consumer; nothing moved.
            ConsumerError: not running, no queue of the topic is read here, or Kafka refused.

        Source: `DefaultMQPushConsumerImpl#resetOffsetByTimeStamp` of RocketMQ.
        """

        def act(consumer: ConsumerClient, loop: PollLoop[Any]) -> None:
            places = loop.held(self.names.physical(topic))
            if not places:
                raise ConsumerError(f"no queue of {topic!r} is read by this consumer now")
            asked = [TopicPartition(*place, timestamp_ms) for place in places]
            targets = {}
            for item in loop.lookups.offsets_for_times(asked, timeout=10.0):
                if item.error is not None:
                    raise KafkaException(item.error)
                end = loop.lookups.get_watermark_offsets(TopicPartition(item.topic, item.partition), timeout=10.0)[1]
                targets[item.topic, item.partition] = item.offset if item.offset >= 0 else end
            loop.seek(consumer, targets)

        self._move(act)

    def _move(self, act: Callable[[ConsumerClient, PollLoop[Any]], None]) -> None:
        if self._orderly:
            raise ConfigError("the positions of an orderly consumer belong to its locks: stop the group, then reset it")
        loop = self._running()
        try:
            self._do(loop.ask(lambda consumer: act(consumer, loop)))
        except KafkaException as error:
            raise ConsumerError(f"the position could not be moved: {error}") from error

    def update_core_pool_size(self, size: int) -> None:
        """Have this many listener threads (calls at once of `async def` listeners) from now on.

        Calls in work are not interrupted.

        Args:
            size: 1 to `consume_thread_max`.

        Raises:
            ConfigError: out of range; nothing changed.
            ConsumerError: not running.

        Source: `DefaultMQPushConsumer#updateCorePoolSize` of RocketMQ, which ignores a size that is out of range.
        """
        if not 1 <= size <= self.settings.consume_thread_max:
            raise ConfigError(f"update_core_pool_size({size}): 1 to {self.settings.consume_thread_max} are allowed")
        loop, pool = self._running(), self._pool
        if pool is not None:
            self._do(loop.ask(lambda _: pool.resize(size)))

    def run(self) -> None:
        """Start, consume until SIGTERM, SIGINT or `stop`, then stop. Signals are handled in the main thread only.

        They are handled until everything has stopped: further signals do not cut that short, but a second Ctrl-C a
        second or more after the first does.

        Raises:
            ConsumerError: the consumer cannot go on.
            KeyboardInterrupt: Ctrl-C was pressed again while it stopped: it has not stopped, and messages in progress
                are delivered again.
            And what `start` raises.
        """
        with StopSignals() as signals:
            if not signals.asked:
                self._run(signals)

    def _run(self, signals: StopSignals) -> None:
        self.start()
        try:
            while not signals.asked and not self._ended.wait(_LOOK_S):
                pass
        finally:
            self.stop()

    async def run_async(self) -> None:
        """Start, consume until `stop` or until the awaiting task is cancelled, then stop.

        `async def` listeners run in the event loop that awaits this, so they may use what belongs to it. Signals are
        not handled.

        Raises:
            ConsumerError: the consumer cannot go on.
            And what `start` raises.
        """
        self._event_loop = asyncio.get_running_loop()
        started = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(started)
            while not self._ended.is_set():  # noqa: ASYNC110 - the event is a thread's
                await asyncio.sleep(0.05)
        finally:
            await asyncio.wait([started])  # cancelled meanwhile: what has started is stopped
            await asyncio.shield(asyncio.to_thread(self.stop))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- to look at --------------------------------------------------------------------------------------------------

    def wait_assigned(self, timeout_s: float = 30.0) -> bool:
        """Wait until the group has given this consumer its first assignment (it may be empty); whether it has."""
        loop = self._loop
        return loop is not None and loop.assigned.wait(timeout_s)

    @property
    def state(self) -> ConsumerState | None:
        """What it was doing a second ago at most; None before its first turn. From any thread."""
        loop = self._loop
        return None if loop is None else loop.state

    @property
    def send_back_counts(self) -> SendBackCounts:
        """What was sent back so far."""
        send_back = None if self._loop is None else self._loop.send_back
        return SendBackCounts() if send_back is None else send_back.counts

    @property
    def orderly_counts(self) -> OrderlyCounts:
        """What an orderly consumer did so far: waits, messages that stand for ever, locks won and lost."""
        return self._loop.orderly_counts if isinstance(self._loop, OrderlyLoop) else OrderlyCounts()

    @property
    def subscription_conflicts(self) -> dict[str, str]:
        """Topics of this consumer that the group has consumed under another subscription, with that one as text.

        Looked for when queues are assigned, and also said in the log (`consumer.subscriptions-differ`). Either another
        member subscribes differently, and then messages are lost, as in RocketMQ: each skips what the others want. Or
        the whole group's subscription was changed since its last commit: then it passes with the next ones.
        """
        return {} if self._starts is None else dict(self._starts.conflicts)

    @property
    def schedule(self) -> str:
        """The retries of a message that always fails, for a person: `"16 retries: 10s 30s 1m …"`.

        For the default policy only; another policy says it by its `repr`.
        """
        limit = 16 if self.settings.max_reconsume_times == -1 else max(0, self.settings.max_reconsume_times)
        return f"{limit} retries, {self.settings.retry_policy!r}, levels {self.settings.delay_levels}"

    # --- inside ------------------------------------------------------------------------------------------------------

    def _name(self, role: str) -> str:
        return f"rocketshim-{role}-{self.settings.group}"

    @property
    def _orderly(self) -> bool:
        return bool(self._subscriptions.orderly)

    @property
    def _broadcasts(self) -> bool:
        return self.settings.message_model is MessageModel.BROADCASTING

    def _open_store(self, clients: Clients) -> LocalOffsetStore:
        """The local file of positions; asks the cluster for its id first."""
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
        """A client that joins no group and fetches nothing."""
        return clients.consumer(connection(self.settings, {**PROTECTED_CONSUMER, "group.id": self.settings.group}))

    def _make_pool(self) -> "ListenerPool[Any, Any] | AsyncPool":
        settings, name = self.settings, self._name("listener")
        if not self._subscriptions.awaits:
            return ListenerPool(self._make_runner(), settings.consume_thread_min, name)
        batch_count = settings.consume_message_batch_max_size
        find = self._hooks.hang(self._subscriptions.get, awaits=True)
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
            "sharing": self._sharing(log),
            "store": store,
            "find": self._finding(),
        }
        loop: PollLoop[Any] = self._make_orderly_loop(log, arguments) if self._orderly else ConcurrentLoop(**arguments)
        return loop, pool

    def _make_runner(self) -> Callable[[Any], Any]:
        settings, find = self.settings, self._hooks.hang(self._subscriptions.get, awaits=False)
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
        """Whether the group has locks: where every member reads every queue there is nothing to lock."""
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
            self._let_go(store)
        finally:
            self._ended.set()

    def _let_go(self, store: LocalOffsetStore | None) -> None:
        """What the loop does not own: the file of positions, and the admin client, whose last reference this is."""
        if store is not None:
            store.close()
        self._admin = None

    def _running(self) -> PollLoop[Any]:
        with self._lock:
            if self._loop is None or self._stopped:
                raise ConsumerError("the consumer is not running")
            return self._loop

    def _do(self, asked: "Future[None]") -> None:
        try:
            asked.result(_ASK_TIMEOUT_S)
        except TimeoutError as error:
            raise ConsumerError("the poll thread did not answer in time") from error

    def _raise_if_failed(self, loop: PollLoop[Any]) -> None:
        error = loop.error
        if error is None:
            return
        if isinstance(error, RocketshimError):
            raise error
        raise ConsumerError(
            f"the consumer of group {self.settings.group!r} could not go on: {safe_text(error)}"
        ) from error

    def _prepare(self, clients: Clients) -> None:
        """Have the topics that the consumer needs; without an admin client they are taken for granted."""
        if clients.admin is None:
            return
        settings, named = self.settings, self._subscriptions.named()
        complaints = LastClientError()
        admin = self._admin = clients.admin(connection(settings, defaults=complaints.settings))
        topics = GroupTopics(admin, self.names, settings.group)
        with explained(complaints, admin):
            if self._broadcasts:
                topics.look_up(named)
                return
            topics.ensure(settings.delay_levels, with_log=self._needs_log, create=settings.create_topics)
            self._lanes = topics.look_up_with_lanes(named)

    def _topics(self) -> list[str]:
        """What to read now, the group's retries included."""
        return [*self._subscriptions.topics(), *([] if self._broadcasts else [self._retry_topic])]

    def _finding(self) -> FindTopics | None:
        return self._find if self._subscriptions.has_patterns else None

    def _find(self, existing: Iterable[str]) -> list[str]:
        self._subscriptions.see(existing)
        return self._topics()

    def _sharing(self, log: GroupLogThread | None) -> PartitionAssigner | None:
        settings = self.settings
        if self._broadcasts:
            return BroadcastAssigner(self._subscriptions.topics, settings.rebalance_interval_ms)
        strategy = settings.allocate_message_queue_strategy
        if strategy is None or log is None:
            return None
        share = StrategyAssigner(
            strategy=strategy,
            group=settings.group,
            client_id=log.owner.client_id,
            topics=self._topics,
            logical={self._retry_topic: retry_topic(settings.group)},
            members=lambda: log.members,
            interval_ms=settings.rebalance_interval_ms,
        )
        if self._orderly:  # its loop takes the leases itself
            return share
        return LeasedAssigner(share, log)

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
