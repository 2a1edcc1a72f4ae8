"""Send messages. `Producer` writes a `Message` to its topic, or to the schedule topic if the message has a delay.

Threads: the sender's thread gives the record to `kafka.record_sender`. The report thread there resolves the future of
the message. The two threads share only that future.

Guarantees: a `SendResult` means that the record is stored with `acks=all`. A record that is reported as stored without
an offset may be lost: it is sent again with the same id, until a report has an offset or `delivery_timeout_ms` has
passed. `SendTimeoutError` means that the outcome is unknown. If you send the same
`Message` again, it is another message with another id.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, Self, Unpack, overload

from confluent_kafka import KafkaError, KafkaException

from rocketshim.client_metrics import ProducerCounts
from rocketshim.clock import SystemClock
from rocketshim.codecs import Codec, check_codec
from rocketshim.core.broker_clock import BrokerClock
from rocketshim.core.clock import Clock
from rocketshim.errors import ClosedError, SendTimeoutError, TopicMissingError
from rocketshim.kafka.client_config import PROTECTED_PRODUCER, client_settings
from rocketshim.kafka.clients import Clients, LastClientError, check_threads, confluent_clients
from rocketshim.kafka.lanes import Lanes
from rocketshim.kafka.membership import RUN_WORKER, worker_watch
from rocketshim.kafka.record_sender import RecordSender
from rocketshim.kafka.send_errors import send_error
from rocketshim.logs import safe_logger
from rocketshim.metrics import Metric
from rocketshim.producer.arguments import (
    NO_BODY,
    Half,
    MessageOptions,
    RecordMaker,
    check_timeout,
    is_delayed,
    message_of,
    messages_of,
)
from rocketshim.producer.hooks import SendMessageHook, around, check_send_hook, observed
from rocketshim.producer.result import SendResult, SendStatus, recall_handle, recalled_id
from rocketshim.producer.selectors import SelectMessageQueueByHash, Selector, select_function
from rocketshim.settings.producer import ProducerOptions, ProducerSettings
from rocketshim_topics import Message, MessageError, MessageTooLargeError, TopicNames
from rocketshim_topics.hops import OutgoingRecord, record_size_bytes
from rocketshim_topics.message import check_timer
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.partitioner import timer_partition
from rocketshim_topics.wire import MAX_SHIM_HEADERS_BYTES, UNIQ_KEY

if TYPE_CHECKING:
    from rocketshim.core.timer_history import TimerOutcome

__all__ = ["MessageSender", "Producer", "producer_config"]

_LOG = safe_logger("rocketshim.producer")
_UNKNOWN_TOPIC_MS: Final = 2_000  # librdkafka waits 30 s for a topic to appear; `send` waits 3 s by default
_CLOCK_DIFFERS_MS: Final = 1_000
_ROOM_S: Final = 3.0


class Producer:
    """A client that sends messages, immediately or with a delay.

    Args:
        bootstrap: `host:port` of at least one broker; None: that of `settings`, or of `ROCKETSHIM_BOOTSTRAP`.
        settings: all settings in one object, instead of `bootstrap` and `values`.
        clients: factory of the Kafka client; None: confluent_kafka.
        clock: clock for the time of sending; None: the clock of this machine.
        codec: encodes the bodies of `send(topic, body)`; None: they are bytes.
        values: any other field of `ProducerSettings`, by name; `ProducerOptions` lists them.

    Attributes:
        settings: the settings.
        names: the topic names of the namespace.
        sender: what sends, for other faces of the producer, such as `AsyncProducer`. Programs do not need it.

    Raises:
        ConfigError: a setting does not exist or is out of range. The constructor opens no connection; the first send
            does.

    Thread-safety: all methods, from any thread of the process that created the object. A forked child must create its
    own producer.

    Source: `DefaultMQProducer` of RocketMQ.
    """

    def __init__(
        self,
        bootstrap: str | None = None,
        *,
        settings: ProducerSettings | None = None,
        clients: Clients | None = None,
        clock: Clock | None = None,
        codec: Codec[Any] | None = None,
        **values: Unpack[ProducerOptions],
    ) -> None:
        self.settings = ProducerSettings.given(settings, values, bootstrap=bootstrap)
        self.names = TopicNames(self.settings.namespace)
        self.sender = MessageSender(self.settings, clients, clock, codec)
        self._clients = clients

    # --- sending -----------------------------------------------------------------------------------------------------

    @overload
    def send(
        self, message: Message, *, selector: Selector | None = None, arg: Any = None, timeout_s: float = 3.0
    ) -> SendResult: ...
    @overload
    def send(
        self,
        topic: str,
        /,
        body: object,
        *,
        codec: Codec[Any] | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        timeout_s: float = 3.0,
        **options: Unpack[MessageOptions],
    ) -> SendResult: ...
    def send(
        self,
        message: Message | str,
        body: Any = NO_BODY,
        *,
        codec: Codec[Any] | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        timeout_s: float = 3.0,
        **options: Unpack[MessageOptions],
    ) -> SendResult:
        """Send a message and wait until it is stored: `send(Message("orders", body))` or `send("orders", body)`.

        Args:
            message: the message, which is not changed; or its topic.
            body: if `message` is the topic: bytes, or what the codec encodes. A tombstone has to be a `Message`.
            codec: encodes the body; None: the codec of the producer, if it has one. A `Message` is sent as it is.
            options: with a topic: the other arguments of `Message`, such as `key`, `tag` and `delay`.
            selector: chooses the partition: a function of (queues, message, arg), or an object with such a method
                `select`. None: by key (murmur2), or any partition if there is no key.
            arg: passed to the selector.
            timeout_s: how long to wait for the delivery report, in seconds; `math.inf`: without a limit. A delay or a
                selector needs the topic's number of partitions, once a minute; an unreachable cluster may make that
                take 10 s more.

        Raises:
            MessageError: the message or `timeout_s` is invalid, the codec refuses the body, or `selector` cannot be
                called; nothing was sent.
            BufferError: the queue of unsent messages stayed full; nothing was sent.
            TopicMissingError, NotAuthorizedError: the topic cannot be written to; nothing is stored.
            BrokerUnavailableError: no broker reported the partitions that a delay or a selector needs; nothing was
                sent.
            SendTimeoutError: no delivery report arrived in time; the message may or may not be stored.
            SendError: the message is not stored.
            ClosedError: the producer is closed; nothing was sent.
        """
        deadline = time.monotonic() + check_timeout(timeout_s)
        made = self.sender.message(message, body, codec, options)
        return self._stored(self.sender.send(made, selector, arg, deadline), repr(made.topic), timeout_s, deadline)

    @overload
    def send_async(
        self, message: Message, *, selector: Selector | None = None, arg: Any = None
    ) -> Future[SendResult]: ...
    @overload
    def send_async(
        self,
        topic: str,
        /,
        body: object,
        *,
        codec: Codec[Any] | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        **options: Unpack[MessageOptions],
    ) -> Future[SendResult]: ...
    def send_async(
        self,
        message: Message | str,
        body: Any = NO_BODY,
        *,
        codec: Codec[Any] | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        **options: Unpack[MessageOptions],
    ) -> Future[SendResult]:
        """Send a message without waiting; return a future with the result or with the error that `send` would raise.

        The arguments are those of `send`. Callbacks of the future run in the producer's own thread (during `flush` and
        `close` perhaps in the thread that called these) and must not block. `flush` and `close` do not wait there.

        Raises:
            MessageError, TopicMissingError, BrokerUnavailableError, ClosedError: as `send`; nothing was sent.
            BufferError: the queue of unsent messages was full for 3 s; nothing was sent.
        """
        made = self.sender.message(message, body, codec, options)
        return self.sender.send(made, selector, arg, time.monotonic() + _ROOM_S)

    @overload
    def send_oneway(self, message: Message) -> None: ...
    @overload
    def send_oneway(
        self, topic: str, /, body: object, *, codec: Codec[Any] | None = None, **options: Unpack[MessageOptions]
    ) -> None: ...
    def send_oneway(
        self,
        message: Message | str,
        body: Any = NO_BODY,
        *,
        codec: Codec[Any] | None = None,
        **options: Unpack[MessageOptions],
    ) -> None:
        """Send a message without a result. Only errors that are known before the send are raised.

        The arguments are those of `send`.

        Raises:
            MessageError, TopicMissingError, BrokerUnavailableError, ClosedError, BufferError: as `send_async`.
        """
        made = self.sender.message(message, body, codec, options)
        self.sender.send(made, None, None, time.monotonic() + _ROOM_S)

    def send_orderly(self, message: Message, sharding_key: str | int, *, timeout_s: float = 3.0) -> SendResult:
        """Send to the queue that all messages with this sharding key share: `send` with `SelectMessageQueueByHash`."""
        return self.send(message, selector=SelectMessageQueueByHash(), arg=sharding_key, timeout_s=timeout_s)

    def send_batch(self, messages: Iterable[Message], *, timeout_s: float = 10.0) -> list[SendResult]:
        """Send several messages and wait until all are stored.

        Raises:
            As `send`, for the first message in order that failed or has no delivery report in time. The other messages
            may be stored.
        """
        deadline = time.monotonic() + check_timeout(timeout_s)
        futures = [self.sender.send(message, None, None, deadline) for message in messages_of(messages)]
        try:
            return [future.result(max(0.0, deadline - time.monotonic())) for future in futures]
        except TimeoutError as error:
            waiting = sum(not future.done() for future in futures)
            missing = self.sender.no_report(f"{waiting} of {len(futures)} messages", timeout_s, deadline)
            raise SendTimeoutError(f"{missing}; they may or may not be stored") from error

    def cancel(self, topic: str, *, timer: str, timeout_s: float = 3.0) -> SendResult:
        """Cancel the message that waits under a name, and wait until this command is stored.

        The command is stored at an offset, and the log of timers decides: a message is not delivered if its cancel is
        stored before the worker's FIRE for it. A cancel that is stored later changes nothing, and neither does one for
        a name under which nothing waits. `outcome` tells which it was. A message that is sent under the name after this
        call is not cancelled. The call may be repeated.

        Args:
            topic: the topic of the message.
            timer: the name of the message.
            timeout_s: as in `send`.

        Returns:
            Where the command is stored; `msg_id` is the id of the command.

        Raises:
            MessageError: no message can wait for this topic or under this name; nothing was sent.
            SendTimeoutError: no delivery report arrived in time; the command may or may not be stored.
            TopicMissingError, NotAuthorizedError, BrokerUnavailableError, BufferError, SendError, ClosedError: as
                `send`; the command is not stored.
        """
        return self._command("CANCEL", topic, timer, timeout_s)

    def send_now(self, topic: str, *, timer: str, timeout_s: float = 3.0) -> SendResult:
        """Have the message that waits under a name delivered now, and wait until this command is stored.

        The log of timers decides, as with `cancel`: the message is delivered once, by this command or when it is due,
        whichever is stored first. For a name under which nothing waits this changes nothing. If the message waits for
        longer than the log is kept, it is delivered at its time.

        The arguments, the result and the errors are those of `cancel`.
        """
        return self._command("NOW", topic, timer, timeout_s)

    def recall(self, topic: str, handle: str, *, timeout_s: float = 3.0) -> SendResult:
        """Recall a message that was sent with `recallable`: `cancel` by the `recall_handle` of its result.

        Raises:
            MessageError: the handle is none, or of another topic; nothing was sent.
            All others as `cancel`.

        Source: `DefaultMQProducer#recallMessage` of RocketMQ, which cannot tell whether it came in time.
        """
        return self._command("CANCEL", topic, recalled_id(topic, handle), timeout_s)

    def outcome(
        self, topic: str, *, timer: str, of: SendResult | None = None, timeout_s: float = 30.0
    ) -> "TimerOutcome":
        """Return what became of a name: pending with its due time, fired, cancelled (in time or too late), replaced.

        The log of timers decides. This call reads it, and changes nothing. A pending message may be cancelled right
        after it. To learn whether a cancel was in time, give its result as `of`: then the answer counts that cancel.

        What is known is bounded by the retention of the log (7 days by default): a name that ended before that is
        `UNKNOWN`. A name that is pending is known for as long as it waits.

        The call opens a consumer. It reads one partition of the worker's state, which has the pending names, and a part
        of one partition of the log, which has the messages. That part is short for a pending name, with `of`, and for
        what ended lately; for another name it may be the whole partition. Do not call it for each message.

        Args:
            topic: the topic of the message.
            timer: the name of the message; for one that was sent with `recallable`, the `msg_id` of its result.
            of: the result of a `send`, `cancel` or `send_now` for this name: return what became of the message that it
                sent, or for which it was. None: the last message.
            timeout_s: how long to read, in seconds; `math.inf`: without a limit. An unreachable cluster may make it
                take 10 s more.

        Raises:
            MessageError: no message can wait for this topic or under this name, `of` is not for this name, or
                `timeout_s` is invalid.
            BrokerUnavailableError: no broker answered, or the answer was not found in time.
            TopicMissingError: the topics of named timers do not exist.
            NotAuthorizedError: the principal may not read these topics (the role `producer` of `rocketshim acls` may
                only write).
        """
        from rocketshim.kafka.timer_log import read_outcome  # noqa: PLC0415 - a program that only sends does without
        from rocketshim.kafka.topic_reader import TopicReader  # noqa: PLC0415

        until_s, settings = time.monotonic() + check_timeout(timeout_s), self.settings
        queue = MessageQueue(self.names.timers, queue_id=timer_partition(Message(topic, b"").topic, check_timer(timer)))
        if of is not None and of.message_queue != queue:
            raise MessageError(f"of={of!r:.200} is not the result of a send or command for {timer!r:.80} of {topic!r}")
        client = client_settings((), allow_code_settings=settings.allow_code_settings) | settings.client
        with TopicReader(settings.bootstrap, client=client, clients=self._clients) as reader:
            command = None if of is None else of.queue_offset
            return read_outcome(reader, self.names, topic, timer, command=command, until_s=until_s)

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic.

        Raises:
            TopicMissingError: the topic does not exist.
            BrokerUnavailableError: no broker answered within 10 s.
        """
        return list(self.sender.queues(topic))

    def register_send_message_hook(self, hook: SendMessageHook) -> None:
        """Register a hook that is called before and after every send; before the first send.

        Raises:
            ConfigError: one of the two methods is missing.

        Source: `DefaultMQProducerImpl#registerSendMessageHook` of RocketMQ.
        """
        self.sender.hooks = (*self.sender.hooks, check_send_hook(hook))

    def metrics(self) -> Iterable[Metric]:
        """Return the current metrics, for `MetricsCollector`."""
        return self.sender.metrics()

    def flush(self, timeout_s: float = 30.0) -> int:
        """Wait up to `timeout_s` seconds for all delivery reports; return the number of messages without one.

        Raises:
            ClosedError: the producer belongs to another process.
        """
        return self.sender.await_results(time.monotonic() + timeout_s)

    def close(self, timeout_s: float = 30.0) -> None:
        """Wait up to `timeout_s` seconds for the delivery reports, then close the producer. It may be called twice.

        Messages without a report by then fail with `SendTimeoutError`: they may or may not be stored. So do they if
        Ctrl-C ends the wait. In a forked child it does nothing: the producer and its messages belong to the parent.
        """
        self.sender.close(time.monotonic() + timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _command(self, command: str, topic: str, timer: str, timeout_s: float) -> SendResult:
        deadline = time.monotonic() + check_timeout(timeout_s)
        future = self.sender.command(command, topic, timer, deadline)
        return self._stored(future, f"the {command} for {timer!r}", timeout_s, deadline)

    def _stored(self, future: Future[SendResult], what: str, timeout_s: float, until_s: float) -> SendResult:
        try:
            return future.result(max(0.0, until_s - time.monotonic()))
        except TimeoutError as error:
            missing = self.sender.no_report(what, timeout_s, until_s)
            raise SendTimeoutError(f"{missing}; it may or may not be stored") from error


@dataclass(eq=False, slots=True)
class PendingSend:
    """A send that has no result yet."""

    topic: str  # the logical one of the message
    kind: int  # of `ProducerCounts`
    out: OutgoingRecord
    msg_id: str
    sent_ns: int  # monotonic
    sent_ms: int  # epoch
    future: Future[SendResult]
    is_recallable: bool = False


class MessageSender:
    """Sends the messages of one producer; what `Producer` and `AsyncProducer` share.

    Any thread of the process that made it may call every method.

    Attributes:
        hooks: called around each send, in the order in which they were added; they nest.
        codec: encodes bodies; None: they are bytes.
    """

    def __init__(
        self, settings: ProducerSettings, clients: Clients | None, clock: Clock | None, codec: Codec[Any] | None
    ) -> None:
        check_threads()
        names = TopicNames(settings.namespace)
        self.hooks: tuple[SendMessageHook, ...] = ()
        self.codec = None if codec is None else check_codec(codec)
        self._settings = settings
        self._names = names
        self._delaying = {names.schedule, names.timers}
        self._clock: Clock = clock or SystemClock()
        self._pid = os.getpid()
        complaints = LastClientError()
        self._complaint: Callable[[float], str] = lambda since_s: (
            f" from {settings.bootstrap}{complaints.text(since_s=since_s)}"
        )
        self._lanes = Lanes(names.schedule, complaint=self._complaint)
        self._maker = RecordMaker(
            names,
            settings.delay_levels,
            settings.max_delay_ms,
            lanes=self._lanes,
            time=BrokerClock(self._clock, _log_wrong_clock, _CLOCK_DIFFERS_MS),
        )
        self._counts = ProducerCounts()
        self._make_admin = (clients or confluent_clients()).admin
        self._is_watching = False
        self._sender = RecordSender(
            lambda: (clients or confluent_clients()).producer(producer_config(settings, complaints)),
            thread_name="rocketshim-producer",
            closed_text="this producer is closed; create a new one",
            on_unconfirmed=partial(_count_unconfirmed, self._counts),
            on_error=_log_poll_error,
            exit_timeout_ms=settings.exit_timeout_ms,
        )

    def message(
        self, given: Message | str, body: object, codec: Codec[Any] | None, options: Mapping[str, Any]
    ) -> Message:
        """Return the message of a send; see `message_of`."""
        return message_of(given, body, options, self.codec if codec is None else check_codec(codec))

    def new_id(self) -> str:
        """Return an id for a half message."""
        return self._maker.new_id()

    def may_block(self, message: Message) -> bool:
        """Return whether the next send of a message may wait for an answer of the cluster, or for a Kafka client."""
        return not self._sender.is_open or is_delayed(message)

    def send(
        self, message: Message, selector: Selector | None, arg: Any, until_s: float, half: Half | None = None
    ) -> "Future[SendResult]":
        """Send a message, with the hooks around it; wait for room until a monotonic time."""
        if not self.hooks:
            return self.send_without_hooks(message, selector, arg, until_s, half)
        with around(self.hooks, message) as context:
            return observed(self.hooks, context, self.send_without_hooks(context.message, selector, arg, until_s, half))

    def send_without_hooks(
        self, message: Message, selector: Selector | None, arg: Any, until_s: float, half: Half | None = None
    ) -> "Future[SendResult]":
        """Send a message without the hooks."""
        return self.give(self.prepare(message, selector, arg, half), until_s)

    def prepare(
        self, message: Message, selector: Selector | None = None, arg: Any = None, half: Half | None = None
    ) -> PendingSend:
        """Make the record of a message."""
        self.check_process()
        sent_ns, sent_ms = self._clock.monotonic_ns(), self._clock.wall_ms()
        partition = None if selector is None else self._selected(message, selector, arg)
        out, uniq_key = self._maker.make(
            message, self._sender.list_topics, sent_ns, sent_ms, partition=partition, half=half
        )
        size, most = record_size_bytes(out), self._settings.max_message_bytes
        if size + MAX_SHIM_HEADERS_BYTES > most:
            raise MessageTooLargeError(
                f"the message for {message.topic!r} has {size} bytes; with {MAX_SHIM_HEADERS_BYTES} bytes reserved for "
                f"the headers of later hops it exceeds max_message_bytes={most}"
            )
        kind = ProducerCounts.DELAYED if out.topic in self._delaying else ProducerCounts.IMMEDIATE
        if kind == ProducerCounts.DELAYED and not self._is_watching:
            self._is_watching = True
            config = self._settings.client_config({}, LastClientError().settings)
            self._sender.watch_workers(worker_watch(self._make_admin, config, self._names, _log_no_worker))
        is_recallable = message.recallable and kind == ProducerCounts.DELAYED
        return PendingSend(message.topic, kind, out, uniq_key, sent_ns, sent_ms, _running(), is_recallable)

    def command(self, command: str, topic: str, timer: str, until_s: float) -> "Future[SendResult]":
        """Send a command for a named message; wait for room until a monotonic time. It is no message: no hook."""
        self.check_process()
        sent_ns, sent_ms = self._clock.monotonic_ns(), self._clock.wall_ms()
        out, uniq_key = self._maker.command(command, topic, timer, self._sender.list_topics, sent_ms)
        return self.give(
            PendingSend(topic, ProducerCounts.COMMAND, out, uniq_key, sent_ns, sent_ms, _running()), until_s
        )

    def give(self, send: PendingSend, until_s: float, *, is_last_try: bool = True) -> "Future[SendResult]":
        """Give a record to the Kafka client. Unless `is_last_try`, a full queue does not count as a refusal."""
        again_s = time.monotonic() + self._settings.delivery_timeout_ms / 1_000
        try:
            self._sender.send(send.out, partial(self._reported, send), room_until_s=until_s, again_until_s=again_s)
        except BufferError:
            if is_last_try:
                self._counts.refuse()
            raise
        except KafkaException as error:
            self._counts.refuse()
            raise send_error(error.args[0], send.out.topic) from error
        return send.future

    def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return all queues of a topic."""
        self.check_process()
        return _queues_of(topic, self._lanes.count(self._names.physical(topic), self._sender.list_topics))

    def no_report(self, what: str, timeout_s: float, until_s: float) -> str:
        """Return the beginning of the error about messages without a delivery report until a monotonic time."""
        return f"no delivery report for {what} within {timeout_s} s{self._complaint(until_s - timeout_s)}"

    def metrics(self) -> Iterable[Metric]:
        """Return the current metrics."""
        return self._counts.metrics(self._sender.outstanding, self._settings.namespace)

    def await_results(self, until_s: float) -> int:
        """Wait for the results of all messages until a monotonic time; return the number of those without one."""
        self.check_process()
        return self._sender.flush(until_s)

    def close(self, until_s: float) -> None:
        """Flush and close; in a forked child do nothing: the messages belong to the parent."""
        if os.getpid() == self._pid:
            self._sender.close(until_s)

    def check_process(self) -> None:
        """Raise ClosedError in a forked child."""
        if os.getpid() != self._pid:
            raise ClosedError("this producer belongs to another process; create one in each process, after the fork")

    def _selected(self, message: Message, selector: Selector, arg: Any) -> int:
        select = select_function(selector)
        queues = self.queues(message.topic)
        chosen: Any = select(list(queues), message, arg)
        if not isinstance(chosen, MessageQueue) or chosen not in queues[chosen.queue_id : chosen.queue_id + 1]:
            raise TopicMissingError(f"the selector chose {chosen}, which is not a queue of {message.topic!r}")
        return chosen.queue_id

    def _reported(self, send: PendingSend, error: KafkaError | None, record: Any) -> None:
        topic, counts = send.out.topic, self._counts
        if error is not None:
            counts.failed[send.kind] += 1
            send.future.set_exception(send_error(error, topic))
            return
        counts.stored[send.kind] += 1
        counts.durations.add((self._clock.monotonic_ns() - send.sent_ns) / 1e9)
        partition, offset = record.partition(), record.offset()
        if send.kind != ProducerCounts.IMMEDIATE:
            self._maker.time.learn(record.timestamp(), send.sent_ns, send.sent_ms)
        queue = MessageQueue(send.topic if send.kind == ProducerCounts.IMMEDIATE else topic, queue_id=partition)
        handle = recall_handle(send.topic, send.msg_id) if send.is_recallable else ""
        result = SendResult(SendStatus.SEND_OK, send.msg_id, f"{topic}/{partition}/{offset}", queue, offset, handle)
        send.future.set_result(result)


def producer_config(settings: ProducerSettings, complaints: LastClientError) -> dict[str, Any]:
    """Return the settings of the Kafka client, which reports its errors to `complaints`."""
    required = {
        **PROTECTED_PRODUCER,
        "delivery.timeout.ms": settings.delivery_timeout_ms,
        "message.max.bytes": settings.max_message_bytes + MAX_SHIM_HEADERS_BYTES,
    }
    defaults = {
        "client.id": "rocketshim",
        "linger.ms": settings.linger_ms,
        **complaints.settings,
        "topic.metadata.propagation.max.ms": _UNKNOWN_TOPIC_MS,
    }
    return settings.client_config(required, defaults)


def _running() -> "Future[SendResult]":
    future: Future[SendResult] = Future()
    future.set_running_or_notify_cancel()
    return future


@lru_cache(maxsize=100)
def _queues_of(topic: str, count: int) -> tuple[MessageQueue, ...]:
    """Return the queues of a topic; to make them for each send with a selector took most of its time."""
    return tuple(MessageQueue(topic, queue_id=number) for number in range(count))


def _count_unconfirmed(counts: ProducerCounts, out: OutgoingRecord) -> None:
    counts.unconfirmed += 1
    msg_id = next((value for name, value in out.headers if name == UNIQ_KEY), b"") or b""
    _LOG.warning("producer.send-unconfirmed", extra={"topic": out.topic, "msg_id": msg_id.decode()})


def _log_no_worker(workers: str) -> None:
    _LOG.warning("producer.no-worker", extra={"workers": workers, "fix": RUN_WORKER})


def _log_wrong_clock(ahead_ms: int) -> None:
    _LOG.warning("producer.clock-differs", extra={"ahead_ms": ahead_ms})


def _log_poll_error(error: BaseException) -> None:
    _LOG.error("producer.poll-failed", exc_info=error)
