"""Send messages. `Producer` writes a `Message` to its topic, or to the schedule topic if the message has a delay.

Threads: the sender's thread gives the record to `kafka.record_sender`. The poll thread there resolves the future of the
message. The two threads share only that future.

Guarantees: a `SendResult` means that the record is stored with `acks=all`. A record that is reported as stored without
an offset may be lost: it is sent again with the same id, until a report has an offset or `delivery_timeout_ms` has
passed. `SendTimeoutError` means that the outcome is unknown. If you send the same
`Message` again, it is another message with another id.
"""

import itertools
import os
import time
import uuid
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from functools import lru_cache, partial
from typing import Any, Final, Self, Unpack, overload

from confluent_kafka import KafkaError, KafkaException

from rocketshim.client_metrics import ProducerCounts
from rocketshim.clock import SystemClock
from rocketshim.codecs import Codec, check_codec
from rocketshim.core.clock import Clock
from rocketshim.errors import ClosedError, SendTimeoutError, TopicMissingError
from rocketshim.health import Metric
from rocketshim.kafka.clients import Clients, LastClientError, ProducerClient, confluent_clients
from rocketshim.kafka.lanes import Lanes
from rocketshim.kafka.record_sender import RecordSender
from rocketshim.kafka.reports import BrokerTime
from rocketshim.kafka.send_errors import send_error
from rocketshim.logs import safe_logger
from rocketshim.producer.arguments import NO_BODY, MessageOptions, check_timeout, is_delayed, message_of, messages_of
from rocketshim.producer.config import producer_config
from rocketshim.producer.hooks import SendHooks, SendMessageHook
from rocketshim.producer.result import PendingSend, SendResult, SendStatus
from rocketshim.producer.selectors import SelectMessageQueueByHash, Selector, select_function
from rocketshim.settings import ProducerOptions, ProducerSettings
from rocketshim_topics import Message, MessageTooLargeError, TopicNames
from rocketshim_topics.hops import OutgoingRecord, delayed_record, record_size_bytes
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.wire import MAX_SHIM_HEADERS_BYTES, UNIQ_KEY

__all__ = ["Producer"]

_LOG = safe_logger("rocketshim.producer")
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
        settings = self.settings = ProducerSettings.given(settings, values, bootstrap=bootstrap)
        self.names = TopicNames(settings.namespace)
        self._clients = clients
        self._codec = None if codec is None else check_codec(codec)
        self._clock: Clock = clock or SystemClock()
        self._pid = os.getpid()
        self._ids = (uuid.uuid4().hex[:20], itertools.count())
        self._complaints = LastClientError()
        self._lanes = Lanes(self.names.schedule, complaint=self._complaint)
        self._sends = ProducerCounts()
        self._hooks = SendHooks()
        self._sender = RecordSender(
            self._make_client,
            thread_name="rocketshim-producer",
            closed_text="this producer is closed; create a new one",
            on_unconfirmed=partial(_count_unconfirmed, self._sends),
            on_error=_log_poll_error,
            exit_timeout_ms=settings.exit_timeout_ms,
        )
        self._time = BrokerTime(self._clock, _log_wrong_clock, beyond_ms=1_000)

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
        made = self._message(message, body, codec, options)
        future = self._send(made, selector, arg, deadline)
        try:
            return future.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError as error:
            raise SendTimeoutError(self._no_report(made.topic, deadline - timeout_s, timeout_s)) from error

    @overload
    def send_async(
        self, message: Message, *, selector: Selector | None = None, arg: Any = None
    ) -> "Future[SendResult]": ...
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
    ) -> "Future[SendResult]": ...
    def send_async(
        self,
        message: Message | str,
        body: Any = NO_BODY,
        *,
        codec: Codec[Any] | None = None,
        selector: Selector | None = None,
        arg: Any = None,
        **options: Unpack[MessageOptions],
    ) -> "Future[SendResult]":
        """Send a message without waiting; return a future with the result or with the error that `send` would raise.

        The arguments are those of `send`. Callbacks of the future run in the producer's own thread (during `flush` and
        `close` perhaps in the thread that called these) and must not block. `flush` and `close` do not wait there.

        Raises:
            MessageError, TopicMissingError, BrokerUnavailableError, ClosedError: as `send`; nothing was sent.
            BufferError: the queue of unsent messages was full for 3 s; nothing was sent.
        """
        return self._send(self._message(message, body, codec, options), selector, arg, time.monotonic() + _ROOM_S)

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
        self._send(self._message(message, body, codec, options), None, None, time.monotonic() + _ROOM_S)

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
        futures = [self._send(message, None, None, deadline) for message in messages_of(messages)]
        try:
            return [future.result(max(0.0, deadline - time.monotonic())) for future in futures]
        except TimeoutError as error:
            waiting = sum(not future.done() for future in futures)
            raise SendTimeoutError(
                f"no delivery report for {waiting} of {len(futures)} messages within {timeout_s} s"
                f"{self._complaints.text(since_s=deadline - timeout_s)}; they may or may not be stored"
            ) from error

    def queues(self, topic: str) -> list[MessageQueue]:
        """Return all queues of a topic.

        Raises:
            TopicMissingError: the topic does not exist.
            BrokerUnavailableError: no broker answered within 10 s.
        """
        self._check_process()
        return list(self._queues(topic))

    def register_send_message_hook(self, hook: SendMessageHook) -> None:
        """Register a hook that is called before and after every send; before the first send.

        Raises:
            ConfigError: one of the two methods is missing.

        Source: `DefaultMQProducerImpl#registerSendMessageHook` of RocketMQ.
        """
        self._hooks.add(hook)

    def metrics(self) -> Iterable[Metric]:
        """Return the current metrics, for `MetricsCollector`."""
        return self._sends.metrics(self._sender.outstanding, self.settings.namespace)

    def flush(self, timeout_s: float = 30.0) -> int:
        """Wait up to `timeout_s` seconds for all delivery reports; return the number of messages without one.

        Raises:
            ClosedError: the producer belongs to another process.
        """
        self._check_process()
        return self._sender.flush(time.monotonic() + timeout_s)

    def close(self, timeout_s: float = 30.0) -> None:
        """Wait up to `timeout_s` seconds for the delivery reports, then close the producer. It may be called twice.

        Messages without a report by then fail with `SendTimeoutError`: they may or may not be stored. So do they if
        Ctrl-C ends the wait. In a forked child it does nothing: the producer and its messages belong to the parent.
        """
        if os.getpid() == self._pid:
            self._sender.close(time.monotonic() + timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- internal ----------------------------------------------------------------------------------------------------

    def _message(
        self, given: Message | str, body: object, codec: Codec[Any] | None, options: Mapping[str, Any]
    ) -> Message:
        return message_of(given, body, options, self._codec if codec is None else check_codec(codec))

    def _may_block(self, message: Message) -> bool:
        """Return whether the next send of a message may wait for an answer of the cluster, or for a Kafka client."""
        return not self._sender.is_open or is_delayed(message)

    def _no_report(self, topic: str, since_s: float, timeout_s: float) -> str:
        return (
            f"no delivery report for {topic!r} within {timeout_s} s from {self.settings.bootstrap}"
            f"{self._complaints.text(since_s=since_s)}; the message may or may not be stored"
        )

    def _send(self, message: Message, selector: Selector | None, arg: Any, deadline: float) -> "Future[SendResult]":
        if not self._hooks:
            return self._send_now(message, selector, arg, deadline)
        with self._hooks.around(message) as context:
            return self._hooks.observed(context, self._send_now(context.message, selector, arg, deadline))

    def _send_now(self, message: Message, selector: Selector | None, arg: Any, deadline: float) -> "Future[SendResult]":
        return self._give(*self._prepared(message, selector, arg), deadline)

    def _prepared(
        self, message: Message, selector: Selector | None = None, arg: Any = None
    ) -> tuple[OutgoingRecord, PendingSend]:
        self._check_process()
        sent_ns, sent_ms = self._clock.monotonic_ns(), self._clock.wall_ms()
        out, uniq_key = self._record(message, selector, arg, sent_ns, sent_ms)
        future: Future[SendResult] = Future()
        future.set_running_or_notify_cancel()
        return out, PendingSend(message.topic, out.topic, uniq_key, sent_ns, sent_ms, future)

    def _give(
        self, out: OutgoingRecord, send: PendingSend, room_until_s: float, *, is_last_try: bool = True
    ) -> "Future[SendResult]":
        """Give a record to the Kafka client. Unless `is_last_try`, a full queue does not count as a refusal."""
        again_until_s = time.monotonic() + self.settings.delivery_timeout_ms / 1_000
        try:
            self._sender.send(
                out, partial(self._reported, send), room_until_s=room_until_s, again_until_s=again_until_s
            )
        except BufferError:
            if is_last_try:
                self._sends.refuse()
            raise
        except KafkaException as error:
            self._sends.refuse()
            raise send_error(error.args[0], out.topic) from error
        return send.future

    def _reported(self, send: PendingSend, error: KafkaError | None, record: Any) -> None:
        topic, counts = send.physical, self._sends
        is_delayed = topic == self.names.schedule
        if error is not None:
            counts.failed[is_delayed] += 1
            send.future.set_exception(send_error(error, topic))
            return
        counts.stored[is_delayed] += 1
        heard_ns = self._clock.monotonic_ns()
        counts.durations.add((heard_ns - send.sent_ns) / 1e9)
        partition, offset = record.partition(), record.offset()
        if is_delayed:
            self._time.reported(record, send.sent_ns, send.sent_ms)
        queue = MessageQueue(topic if is_delayed else send.topic, queue_id=partition)
        result = SendResult(SendStatus.SEND_OK, send.msg_id, f"{topic}/{partition}/{offset}", queue, offset)
        send.future.set_result(result)

    def _record(
        self,
        message: Message,
        selector: Selector | None,
        arg: Any,
        sent_ns: int,
        sent_ms: int,
    ) -> tuple[OutgoingRecord, str]:
        prefix, counter = self._ids
        uniq_key = f"{prefix}{next(counter):012X}"
        partition: int | None = None
        if selector is not None:
            select = select_function(selector)
            queues = self._queues(message.topic)
            chosen: Any = select(list(queues), message, arg)
            if not isinstance(chosen, MessageQueue) or chosen not in queues[chosen.queue_id : chosen.queue_id + 1]:
                raise TopicMissingError(f"the selector chose {chosen}, which is not a queue of {message.topic!r}")
            partition = chosen.queue_id
        lane = 0
        if is_delayed(message):
            lane = self._lanes.choose(message.key_bytes, self._sender.list_topics)
        out = delayed_record(
            message,
            self.names,
            self.settings.delay_levels,
            uniq_key=uniq_key,
            born_ms=sent_ms,
            now_ms=self._time.now_ms(sent_ns, sent_ms),
            lane=lane,
            real_qid=partition,
            max_delay_ms=self.settings.max_delay_ms,
        )
        size = record_size_bytes(out)
        if size + MAX_SHIM_HEADERS_BYTES > self.settings.max_message_bytes:
            raise MessageTooLargeError(
                f"the message for {message.topic!r} has {size} bytes; with {MAX_SHIM_HEADERS_BYTES} bytes reserved for "
                f"the headers of later hops it exceeds max_message_bytes={self.settings.max_message_bytes}"
            )
        return out, uniq_key

    def _queues(self, topic: str) -> tuple[MessageQueue, ...]:
        return _queues_of(topic, self._lanes.count(self.names.physical(topic), self._sender.list_topics))

    def _complaint(self, since_s: float) -> str:
        return f" from {self.settings.bootstrap}{self._complaints.text(since_s=since_s)}"

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ClosedError("this producer belongs to another process; create one in each process, after the fork")

    def _make_client(self) -> ProducerClient:
        return (self._clients or confluent_clients()).producer(producer_config(self.settings, self._complaints))


@lru_cache(maxsize=100)
def _queues_of(topic: str, count: int) -> tuple[MessageQueue, ...]:
    """Return the queues of a topic; to make them for each send with a selector took most of its time."""
    return tuple(MessageQueue(topic, queue_id=number) for number in range(count))


def _count_unconfirmed(counts: ProducerCounts, out: OutgoingRecord) -> None:
    counts.unconfirmed += 1
    msg_id = next((value for name, value in out.headers if name == UNIQ_KEY), b"") or b""
    _LOG.warning("producer.send-unconfirmed", extra={"topic": out.topic, "msg_id": msg_id.decode()})


def _log_wrong_clock(ahead_ms: int) -> None:
    _LOG.warning("producer.clock-differs", extra={"ahead_ms": ahead_ms})


def _log_poll_error(error: BaseException) -> None:
    _LOG.error("producer.poll-failed", exc_info=error)
