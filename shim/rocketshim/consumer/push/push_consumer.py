"""`PushConsumer`: calls a function for every message, in parallel; failed messages are retried or become dead letters.

The class is a facade over `PollLoop` (one thread that owns the Kafka consumer), `ListenerPool` (the threads that run
user code) and `SendBack` (retries and dead letters). It checks the set-up, creates the group's topics, and starts and
stops the other parts.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Self, TypeVar, Unpack

from confluent_kafka import KafkaException

from rocketshim.clock import SystemClock
from rocketshim.codecs import Codec, decoding_codec
from rocketshim.consumer.listeners import subscription_of
from rocketshim.consumer.poll_loop import PollLoop
from rocketshim.consumer.push.assembly import GroupTopics, PushAssembly
from rocketshim.consumer.push.hooks import ConsumeMessageHook, FilterMessageHook, Hooks
from rocketshim.consumer_metrics import ConsumerState, OrderlyCounts, SendBackCounts
from rocketshim.core.clock import Clock
from rocketshim.core.message_model import MessageModel
from rocketshim.core.start_position import timestamp_or_default
from rocketshim.core.subscriptions import Subscription, Subscriptions, is_pattern
from rocketshim.core.user_values import check_hook, safe_text
from rocketshim.errors import ConfigError, ConsumerError, RocketshimError
from rocketshim.kafka.clients import Clients, check_threads, confluent_clients
from rocketshim.metrics import Metric
from rocketshim.settings.consumer import (
    ListenerOptions,
    PushConsumerOptions,
    PushConsumerSettings,
    check_listener_options,
)
from rocketshim.stop_signals import StopSignals
from rocketshim_topics import TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["PushConsumer"]

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_JOIN_GRACE_S: Final = 5.0
_LONGEST_STOP_S: Final = 1e8  # three years, in place of `math.inf`, which locks and threads do not take
_REQUEST_TIMEOUT_S: Final = 30.0
_SIGNAL_CHECK_S: Final = 0.2
_ENDED_CHECK_S: Final = 0.05
_WAIT_S: Final = 10.0


class PushConsumer:
    """Consumes topics in a group and calls a listener for every message, in `consume_thread_min` threads.

    ::

        consumer = PushConsumer("localhost:9092", group="payments")

        @consumer.listener("orders", tags="created || paid")
        def handle(message, context):
            charge(message.body)        # returning is success; raising sends the message back

        consumer.run()                  # until SIGTERM

    Args:
        bootstrap: `host:port` of at least one broker; None: that of `settings`, or of `ROCKETSHIM_BOOTSTRAP`.
        group: the consumer group; None if `settings` contains it.
        settings: all settings in one object, instead of the other arguments.
        clients: the factory of Kafka clients; None: confluent_kafka.
        clock: the source of time; None: the clock of this machine.
        codec: decodes the bodies for listeners that have no codec of their own; None: they get bytes only.
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
        codec: Codec[Any] | None = None,
        **values: Unpack[PushConsumerOptions],
    ) -> None:
        settings = PushConsumerSettings.given(settings, values, bootstrap=bootstrap, group=group)
        check_threads()
        self.settings = settings
        self.names = TopicNames(settings.namespace)
        self._clients = clients
        self._codec = None if codec is None else decoding_codec(codec)
        self._clock: Clock = clock or SystemClock()
        is_broadcast = settings.message_model is MessageModel.BROADCASTING
        self._timestamp_ms = timestamp_or_default(settings.consume_timestamp_ms, self._clock.wall_ms())
        self._subscriptions = Subscriptions(self.names, None if is_broadcast else self.names.retry(settings.group))
        self._hooks = Hooks(settings.consume_timeout_ms)
        self._event_loop: asyncio.AbstractEventLoop | None = None  # of run_async
        self._lock = threading.RLock()  # a signal handler may call stop() in the thread that is in start()
        self._stopped = False
        self._starts_suspended = False
        self._starting_thread: int | None = None
        self._stop_timeout_s: float | None = None  # of a stop() during start()
        self._loop: PollLoop | None = None
        self._topics: GroupTopics | None = None
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()

    # --- set-up ------------------------------------------------------------------------------------------------------

    def listener(self, topic: str, **options: Unpack[ListenerOptions]) -> Callable[[FunctionT], FunctionT]:
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
            dead_on: exceptions that are final: a dead letter, no retry. A class or a tuple of classes. What the
                listener asks for itself (`RetryLater`, `DeadLetter`, its context) counts before, `retry_on` after it.
            retry_on: the only exceptions after which the message is retried; any other is final.
                None: all that are not in `dead_on`.
            body: the type of the bodies, JSON that pydantic validates: short for `codec=PydanticCodec(body)`.
            codec: decodes the bodies; `message.value` is the result. A body that it cannot decode is a dead letter.
                None: the codec of the consumer.

        The function takes the message (a list if `consume_message_batch_max_size` is above 1). It may take the context,
        too; a parameter whose default is not None keeps that default. It may return nothing (success) or a
        `ConsumeStatus`; another value is a failure. For a list it may return a list of one result or exception each.

        An `async def` function runs in an event loop, up to `async_concurrency` calls at the same time. The event loop
        has a thread of its own; with `run_async` and `async with` it is the event loop of the caller. Either all
        listeners of a consumer are `async def` or none is.

        Raises:
            ConfigError: the topic already has a listener, the name is not legal, an option does not exist, two filters
                are given, `dead_on`, `retry_on`, `body` or `codec` is not legal, the function could handle no message,
                or the consumer has started.
            FilterSyntaxError: the expression does not compile.
        """
        if not isinstance(topic, str):  # `@consumer.listener` without a topic would register nothing, silently
            raise ConfigError(f"listener({topic!r:.80}): give the topic: @consumer.listener('orders')")
        check_listener_options(options)  # also if nothing is decorated

        def register(function: FunctionT) -> FunctionT:
            self.register_message_listener(topic, function, **options)
            return function

        return register

    def register_message_listener(
        self, topic: str, listener: Callable[..., Any], **options: Unpack[ListenerOptions]
    ) -> None:
        """Register a listener; the same as the decorator `listener`, as a call.

        Raises:
            ConfigError, FilterSyntaxError: see `listener`; nothing was registered.
        """
        if self._loop is not None:
            raise ConfigError(
                f"Cannot register a listener for {topic!r} after start(): register it before, or use subscribe()"
            )
        self._subscriptions.add(self._made(topic, listener, {"orderly": False, **options}))

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
        made = self._made(topic, listener, {"tags": tags, "sql": sql, "selector": selector})
        if self._loop is None:
            self._subscriptions.put(made)
            return
        if (topics := self._topics) is not None and not is_pattern(topic):
            topics.look_up([made.topic])
        self._ask(lambda loop: loop.subscribe(made))

    def _made(self, topic: str, listener: Callable[..., Any] | None, options: ListenerOptions) -> Subscription:
        return subscription_of(topic, listener, self._subscriptions, self.settings, self._codec, **options)

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
            self._ask(lambda loop: loop.unsubscribe(physical))

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
        check_hook(hook, methods)
        if self._loop is not None:
            raise ConfigError("Cannot register a hook after start(): register it before")
        hooks.append(hook)

    # --- lifecycle ---------------------------------------------------------------------------------------------------

    def start(self, *, wait_s: float = _WAIT_S) -> None:
        """Create missing topics of the group, join the group and consume. Safe to call twice.

        When it returns, the start of each queue that this consumer was given first is chosen and committed, if that
        took at most `wait_s`: it gets what is sent from now on, also as a new group that begins at the end. Joining a
        group without members takes 3 s by Kafka's default, and longer while a member does not answer; then the start is
        chosen later. Ask `wait_assigned` whether it is chosen.

        Args:
            wait_s: longest wait for that, in seconds; 0: return without it, for example to start several consumers at
                the same time and then wait for each by `wait_assigned`. If the consumer stops meanwhile, the wait ends;
                also if the group refuses it (its members have another assignment strategy …): that is logged, and the
                consumer joins when the cause is gone.

        Raises:
            ConfigError: no listener is registered, the time is not a number, or Kafka's client rejects a client
                setting.
            ConsumerError: the consumer was stopped before; a consumer runs only once. If it failed, before or while
                this waited (its `group.instance.id` is taken …): what `stop` raises.
            TopicMissingError, TopicMismatchError, NotAuthorizedError, BrokerUnavailableError: the cluster does not meet
                the requirements.
            RuntimeError: the system has no thread left.
            After each of these nothing runs, and start() may be called again.
        """
        wait_s = _seconds(wait_s, "start(wait_s={!r})", "0 means no wait")
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
        self._wait_started(wait_s)

    def _wait_started(self, wait_s: float) -> None:
        """Wait until the starts are chosen, the consumer is refused, or it has ended; raise what has ended it."""
        self._wait_begun(wait_s, although_refused=False)
        if self._ended.is_set() and (loop := self._loop) is not None:
            self._raise_failure(loop)

    def _start(self) -> None:
        if self._stopped:
            raise ConsumerError("this consumer was stopped, and a consumer runs only once: create a new one")
        if self._loop is not None:
            self._raise_failure(self._loop)
            return
        if not self._subscriptions:
            raise ConfigError("nothing to consume: register a listener before start()")
        loop, topics = PushAssembly(
            self.settings, self.names, self._subscriptions, self._hooks, self._clients or confluent_clients(),
            self._clock, self._timestamp_ms, self._event_loop,
        ).build()  # fmt: skip
        loop.reader.is_suspended = self._starts_suspended
        name = f"rocketshim-poll-{self.settings.group}"
        thread = threading.Thread(target=self._run_loop, args=(loop,), name=name, daemon=True)
        self._loop, self._topics, self._thread = loop, topics, thread
        try:
            thread.start()
        except RuntimeError:  # the system has no thread left
            self._loop = self._thread = None
            loop.end()
            raise
        loop.opened.wait()
        if not loop.is_open:
            thread.join()
            self._loop = self._thread = None
            self._ended.clear()
            if isinstance(loop.error, RuntimeError):  # likewise
                raise loop.error
            raise ConfigError(f"Kafka's client rejects its settings: {loop.error}") from loop.error

    def stop(self, timeout_s: float = 30.0) -> None:
        """Finish the messages in progress within the time, commit, and leave the group. Safe to call twice.

        When it returns, the consumer has stopped. Listener calls that last longer are abandoned: their messages are
        delivered again to the next consumer of their queue. Before `start` it does nothing. If a listener calls it, it
        requests the stop and returns immediately, since it would otherwise wait for its own call. During `start` it
        requests that `start` stops what it has started; only a call in another thread waits for that, for the time.

        Args:
            timeout_s: time in seconds for the messages in progress and for leaving the group; `math.inf`: no limit. A
                member that is joining the group finishes joining first, since the other members would otherwise wait
                for it. The last commit may take one or two seconds more.

        Raises:
            ConfigError: the time is not a number; nothing changed.
            ConsumerError, or another RocketshimError: it failed before (see `__cause__`), or did not stop in time.
        """
        limit_s = _seconds(timeout_s, "stop({!r})", "math.inf means no limit")
        until_s = time.monotonic() + limit_s
        starting = self._starting_thread
        if starting is not None:
            self._stop_timeout_s = limit_s
        if starting == threading.get_ident():
            return
        too_late = f"the consumer of group {self.settings.group!r} did not stop within {timeout_s} s"
        if not self._lock.acquire(timeout=limit_s):
            raise ConsumerError(f"{too_late}: it is still starting, and stops after that")
        loop, thread = self._loop, self._thread
        self._lock.release()
        if loop is None or thread is None:
            return
        self._stopped = True
        left_s = max(0.0, until_s - time.monotonic())
        loop.stop(round(left_s * 1_000))
        if loop.dispatch.pool.is_own_thread() or threading.current_thread() is thread:
            return
        thread.join(left_s + _JOIN_GRACE_S)
        if thread.is_alive():
            raise ConsumerError(too_late)
        self._raise_failure(loop)

    def _raise_failure(self, loop: PollLoop) -> None:
        """Raise what has ended a loop, if anything has."""
        reason = loop.error
        if isinstance(reason, RocketshimError):
            raise reason
        if reason is not None:
            what = f"the consumer of group {self.settings.group!r} stopped after an error"
            raise ConsumerError(f"{what}: {safe_text(reason)}") from reason

    def suspend(self) -> None:
        """Stop reading until `resume`; messages already read are handled, the membership is kept. Safe to call twice.

        Before `start`: the consumer starts suspended. It joins the group, and its starts are chosen.

        Raises:
            ConsumerError: the consumer has stopped.

        Source: `DefaultMQPushConsumer#suspend` of RocketMQ.
        """
        if not self._set_before_start(suspended=True):
            self._ask(PollLoop.suspend)

    def resume(self) -> None:
        """Continue to read after `suspend`. Safe to call twice.

        Raises:
            ConsumerError: the consumer has stopped.
        """
        if not self._set_before_start(suspended=False):
            self._ask(lambda loop: loop.reader.resume())

    def _set_before_start(self, *, suspended: bool) -> bool:
        """Note for `start` whether to begin suspended; return whether that is possible: it was not called yet."""
        with self._lock:
            is_early = self._loop is None and not self._stopped
            if is_early:
                self._starts_suspended = suspended
            return is_early

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
        self._move(lambda loop: loop.mode.seek({key: offset}))

    def reset_offset_by_timestamp(self, topic: str, timestamp_ms: int) -> None:
        """Move this consumer's queues of a topic to the first message of a time or later; works like `seek`.

        Args:
            topic: logical name of the topic.
            timestamp_ms: epoch ms; if it is later than the last message, reading continues at the end.

        Raises:
            ConfigError: the time is below 0, or the consumer is orderly; nothing changed.
            ConsumerError: the consumer is not running or reads no queue of the topic, or Kafka rejected the request.

        Source: `DefaultMQPushConsumerImpl#resetOffsetByTimeStamp` of RocketMQ.
        """
        if timestamp_ms < 0:
            raise ConfigError(f"timestamp_ms={timestamp_ms}: give epoch milliseconds, 0 or more")
        physical = self.names.physical(topic)
        self._move(lambda loop: loop.mode.seek_to_time(physical, timestamp_ms))

    def _move(self, act: Callable[[PollLoop], None]) -> None:
        if self._subscriptions.orderly:
            raise ConfigError(
                "Cannot move the position of an orderly consumer, since it belongs to its lock: stop the group, then "
                "reset its offsets"
            )
        try:
            self._ask(act)
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
        most = self.settings.consume_thread_max
        if not 1 <= size <= most:
            raise ConfigError(f"update_core_pool_size({size}): the size must be 1 to {most}")
        self._ask(lambda loop: loop.dispatch.pool.resize(size))

    def run(self) -> None:
        """Start, consume until SIGTERM, SIGINT or `stop`, then stop. Signals are handled in the main thread only.

        Signals are handled until everything has stopped. Further signals do not interrupt the shutdown, except a second
        Ctrl-C one second or more after the first.

        Raises:
            RocketshimError: the consumer cannot continue; mostly a ConsumerError with the reason as `__cause__`.
            KeyboardInterrupt: Ctrl-C was pressed again during the shutdown: the consumer has not stopped, and messages
                in progress are delivered again.
            And what `start` raises, unless a signal has arrived meanwhile: then this returns.
        """
        with StopSignals() as signals:
            try:
                if not signals.asked:
                    self.start(wait_s=0)
                    try:
                        while not self._ended.wait(_SIGNAL_CHECK_S) and not signals.asked:
                            pass
                    finally:
                        self.stop()
            except RocketshimError:
                if self._loop is not None or not signals.asked:  # else a caller that tries again would miss the signal
                    raise

    async def run_async(self) -> None:
        """Start, consume until `stop` or until the awaiting task is cancelled, then stop.

        `async def` listeners run in the event loop of the caller, so they may use objects that belong to it. Signals
        are not handled.

        Raises:
            ConsumerError: the consumer cannot continue.
            And what `start` raises.
        """
        async with self:
            while not self._ended.is_set():  # noqa: ASYNC110 - another thread sets the event
                await asyncio.sleep(0.05)

    async def __aenter__(self) -> Self:
        self._event_loop = asyncio.get_running_loop()
        started = asyncio.ensure_future(asyncio.to_thread(self.start, wait_s=0))
        try:
            await asyncio.shield(started)
            await asyncio.to_thread(self._wait_started, _WAIT_S)
        except BaseException:
            await asyncio.wait([started])  # after a cancellation, too: stop() must find what was started
            await asyncio.shield(asyncio.to_thread(self.stop))
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.shield(asyncio.to_thread(self.stop))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- inspection --------------------------------------------------------------------------------------------------

    def wait_assigned(self, timeout_s: float = 30.0) -> bool:
        """Wait for the first queues from the group (there may be none) and until their starts are chosen and committed.

        Args:
            timeout_s: longest wait, in seconds; 0: only ask.

        Returns:
            Whether that is so. False also if the consumer was not started, or stops before.
        """
        return self._wait_begun(timeout_s, although_refused=True)

    def _wait_begun(self, timeout_s: float, *, although_refused: bool) -> bool:
        loop = self._loop
        if loop is None:
            return False
        until_s = time.monotonic() + timeout_s
        while not loop.has_begun.wait(max(0.0, min(_ENDED_CHECK_S, until_s - time.monotonic()))):
            is_over = self._ended.is_set() or (loop.reader.joining.is_refused and not although_refused)
            if is_over or time.monotonic() >= until_s:
                return loop.has_begun.is_set()
        return True

    @property
    def state(self) -> ConsumerState | None:
        """The consumer's state, at most one second old; None before the first turn of its loop. Thread-safe."""
        return None if (loop := self._loop) is None else loop.state

    def metrics(self) -> Iterable[Metric]:
        """Return the metrics of `state`, for `MetricsCollector`; nothing before the first turn. Thread-safe."""
        return () if (state := self.state) is None else state.metrics()

    @property
    def send_back_counts(self) -> SendBackCounts:
        """Counts of the messages that were sent back so far."""
        return SendBackCounts() if self._loop is None else self._loop.dispatch.send_back.counts

    @property
    def orderly_counts(self) -> OrderlyCounts:
        """Counts of an orderly consumer so far: suspensions, stuck messages, locks acquired and lost."""
        return OrderlyCounts() if self._loop is None else self._loop.dispatch.orderly_counts

    @property
    def subscription_conflicts(self) -> dict[str, str]:
        """Topics that the group has consumed with a different filter; topic to the text of that subscription.

        The check runs when queues are assigned and every `rebalance_interval_ms`, and it is also logged
        (`consumer.subscriptions-differ`). There are two causes. Another member filters differently: then messages are
        lost, as in RocketMQ, since each member skips what the others want. A member that only subscribes to other
        topics is logged (`consumer.topics-differ`), and is not in this table; with an allocation strategy it is, since
        nobody reads its queues of a topic that it lacks. Or the subscription of the whole group was changed since its
        last commit: then the next commits remove the conflict.
        """
        return {} if self._loop is None else dict(self._loop.reader.starts.conflicts)

    @property
    def schedule(self) -> str:
        """The retry settings as text for a person: number of retries, `repr` of the policy, delay levels."""
        limit = 16 if self.settings.max_reconsume_times == -1 else max(0, self.settings.max_reconsume_times)
        return f"{limit} retries, {self.settings.retry_policy!r}, levels {self.settings.delay_levels}"

    # --- internal ----------------------------------------------------------------------------------------------------

    def _run_loop(self, loop: PollLoop) -> None:
        try:
            loop.run()
            self._topics = None
        finally:
            self._ended.set()

    def _ask(self, act: Callable[[PollLoop], None]) -> None:
        """Let the poll thread call a function with its loop, and wait for it; raise what it raises.

        A consumer that is not running, or a poll thread that does not answer, is a ConsumerError.
        """
        with self._lock:
            loop = self._loop
            if loop is None or self._stopped:
                raise ConsumerError("the consumer is not running")
            answer = loop.ask(act)
        try:
            answer.result(_REQUEST_TIMEOUT_S)
        except TimeoutError as error:
            raise ConsumerError(f"the poll thread did not answer within {_REQUEST_TIMEOUT_S:g} s") from error


def _seconds(value: float, call: str, hint: str) -> float:
    """Return a time that a caller gave, in seconds, within what locks and threads take. Raises ConfigError."""
    try:
        return round(min(max(value, 0.0), _LONGEST_STOP_S) * 1e3) / 1e3
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{call.format(value)}: pass a number of seconds; {hint}") from error
