"""`rocketmq.client` of `rocketmq-client-python` 2.0 on Kafka: a program for that client changes only its import.

`from rocketmq.client import …` becomes `from rocketshim.compat.rocketmq.client import …`, and the address of the name
server becomes Kafka's bootstrap servers. This is a thin layer: `Producer` uses a `rocketshim.Producer` and
`PushConsumer` a `rocketshim.PushConsumer`; their guarantees are documented there. A call that needs a feature which
Kafka cannot provide raises `NotSupportedError`, and the error says what to do instead.

The following is as in `rocketmq-client-python`:

* A callback gets one message at a time.
* A callback that raises, or returns anything but a `ConsumeStatus` (also None), causes a retry.
* A `ConsumeStatus` is a number, and equal values count as one: `return False` and `return 0` are `CONSUME_SUCCESS`,
  `return True` and `return 1` are `RECONSUME_LATER`.
* `tags`, `keys`, `body` and the properties of a received message are bytes.
* A failed start or send raises the class that `exceptions` has for it; its `__cause__` is the error of rocketshim.

Source: https://github.com/apache/rocketmq-client-python, `rocketmq/client.py` of 2.0.
"""

import os
import socket
from collections.abc import Callable
from typing import Any, Final, Self

import rocketshim
from rocketshim.compat.rocketmq.exceptions import (
    ProducerSendOnewayFailed,
    ProducerSendOrderlyFailed,
    ProducerSendSyncFailed,
    ProducerStartFailed,
    PushConsumerStartFailed,
    RocketMQException,
    raised_as,
)
from rocketshim.compat.rocketmq.messages import (
    ConsumeStatus,
    Message,
    MessageModel,
    ReceivedMessage,
    SendResult,
    SendStatus,
    TransactionStatus,
    text_of,
)
from rocketshim.core import consume_concurrently
from rocketshim.core.consume_orderly import ConsumeOrderlyStatus
from rocketshim.core.message_model import MessageModel as ShimModel
from rocketshim.core.user_values import call_problem
from rocketshim.errors import ClosedError, ConfigError, NotSupportedError
from rocketshim.filters.tag import check_tags
from rocketshim.kafka.clients import Clients
from rocketshim.settings import BOOTSTRAP_VARIABLE
from rocketshim.settings.consumer import PushConsumerSettings
from rocketshim.settings.producer import ProducerSettings
from rocketshim_topics.message import MessageView

__all__ = [
    "ConsumeStatus",
    "Message",
    "MessageModel",
    "Producer",
    "PushConsumer",
    "ReceivedMessage",
    "RocketMQException",
    "SendResult",
    "SendStatus",
    "TransactionMQProducer",
    "TransactionStatus",
]

_DEFAULT_TIMEOUT_MS: Final = 3_000


class _Settings:
    """The settings of a producer or consumer, changed before it starts.

    Args:
        group_id: group name.
        clients: factory of Kafka clients; None: confluent_kafka.
    """

    def __init__(self, group_id: str | bytes, clients: Clients | None) -> None:
        self._group = text_of(group_id)
        self._clients = clients
        self._values: dict[str, Any] = {"client": {}}

    def set_group(self, group_id: str | bytes) -> None:
        """Set the group; for a producer it has no meaning on Kafka."""
        self._group = text_of(group_id)

    def set_instance_name(self, name: str | bytes) -> None:
        """Set Kafka's `client.id`."""
        self._values["client"]["client.id"] = text_of(name)

    def set_name_server_address(self, addr: str | bytes) -> None:
        """Set Kafka's bootstrap servers: `host:port`, separated by commas (or semicolons, as in the other client)."""
        self._values["bootstrap"] = text_of(addr).replace(";", ",")

    def set_name_server_domain(self, domain: str | bytes) -> None:
        """Raise `NotSupportedError`: Kafka has no HTTP service that returns the addresses of brokers.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError(
            f"cannot find Kafka's brokers by the domain {text_of(domain)!r}: pass the bootstrap servers to "
            "set_name_server_address()"
        )

    def set_session_credentials(
        self, access_key: str | bytes, access_secret: str | bytes, channel: str | bytes = ""
    ) -> None:
        """Set user name and password, for SASL PLAIN over TLS unless `set_kafka_settings` sets something else.

        Args:
            access_key: user name.
            access_secret: password.
            channel: not used.
        """
        del channel
        self._values["client"] = {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "PLAIN",
            **self._values["client"],
            "sasl.username": text_of(access_key),
            "sasl.password": text_of(access_secret),
        }

    def set_message_trace(self, message_trace: bool) -> None:
        """Do nothing: `rocketshim trace ID` reads the history of a message from the topics."""

    def _checked(self) -> dict[str, Any]:
        if not self._values.get("bootstrap") and not os.environ.get(BOOTSTRAP_VARIABLE):
            raise ConfigError(
                "there is no address of a broker: call set_name_server_address('host:port'), or set "
                f"{BOOTSTRAP_VARIABLE}"
            )
        return {name: value for name, value in self._values.items() if name != "client" or value}

    # The next three methods exist only here.

    def set_kafka_settings(self, settings: dict[str, Any]) -> None:
        """Set further librdkafka settings."""
        self._values["client"].update(settings)

    def set_namespace(self, namespace: str) -> None:
        """Set the prefix of all topics of rocketshim; `""`: none."""
        self._values["namespace"] = namespace

    def set_delay_levels(self, levels: str) -> None:
        """Set the delay level table, in RocketMQ's notation: the same in all programs that use a namespace."""
        self._values["delay_levels"] = levels


class Producer(_Settings):
    """A client that sends messages.

    Args:
        group_id: has no meaning on Kafka.
        orderly: has no effect: `send_orderly_with_sharding_key` does not need it.
        timeout: how long a send waits for its delivery report, in ms. Default 3 s.
        compress_level: level of gzip; None: no compression.
        max_message_size: size of the largest message, in bytes. Default 4 MiB.
        clients: factory of Kafka clients; None: confluent_kafka.

    Thread-safety: any thread may send; settings, `start` and `shutdown` belong to one thread.
    """

    def __init__(
        self,
        group_id: str | bytes,
        orderly: bool = False,  # noqa: FBT002 - signature of the other client
        timeout: int | None = None,
        compress_level: int | None = None,
        max_message_size: int | None = None,
        *,
        clients: Clients | None = None,
    ) -> None:
        del orderly
        super().__init__(group_id, clients)
        self._timeout_s = _DEFAULT_TIMEOUT_MS / 1_000
        self._producer: rocketshim.Producer | None = None
        if timeout is not None:
            self.set_timeout(timeout)
        if compress_level is not None:
            self.set_compress_level(compress_level)
        if max_message_size is not None:
            self.set_max_message_size(max_message_size)

    def set_timeout(self, timeout: int) -> None:
        """Set how long a send waits for its delivery report, in ms."""
        self._timeout_s = timeout / 1_000

    def set_compress_level(self, level: int) -> None:
        """Compress with gzip at this level, 0 to 9; 0: no compression."""
        self._values["client"] |= {"compression.type": "gzip", "compression.level": level} if level else {}

    def set_max_message_size(self, max_size: int) -> None:
        """Set the size of the largest message in bytes, including the room for the headers of later hops."""
        self._values["max_message_bytes"] = max_size

    def start(self) -> None:
        """Start the producer. It may be called twice.

        Raises:
            ProducerStartFailed: a setting is invalid, or no address was set.
        """
        if self._producer is None:
            with raised_as(ProducerStartFailed):
                settings = ProducerSettings.make(**self._checked())
                self._producer = rocketshim.Producer(settings=settings, clients=self._clients)

    def shutdown(self) -> None:
        """Wait for the delivery reports of sent messages, then close the producer. It may be called twice."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close()

    def send_sync(self, msg: Message) -> SendResult:
        """Send a message and wait until it is stored.

        Raises:
            ProducerSendSyncFailed: `rocketshim.Producer.send` raised; see its errors for whether the message is stored.
        """
        with raised_as(ProducerSendSyncFailed):
            return _result(self._running().send(msg.to_shim(), timeout_s=self._timeout_s))

    def send_oneway(self, msg: Message) -> None:
        """Send a message without waiting for its result.

        Raises:
            ProducerSendOnewayFailed: `rocketshim.Producer.send_oneway` raised; nothing was sent.
        """
        with raised_as(ProducerSendOnewayFailed):
            self._running().send_oneway(msg.to_shim())

    def send_orderly_with_sharding_key(self, msg: Message, sharding_key: str | bytes) -> SendResult:
        """Send to the queue that all messages with this sharding key share.

        Raises:
            ProducerSendOrderlyFailed: as `ProducerSendSyncFailed` of `send_sync`.
        """
        with raised_as(ProducerSendOrderlyFailed):
            sent = self._running().send_orderly(msg.to_shim(), text_of(sharding_key), timeout_s=self._timeout_s)
            return _result(sent)

    def _running(self) -> rocketshim.Producer:
        if self._producer is None:
            raise ClosedError("the producer is not running: call start() first; nothing was sent")
        return self._producer

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


class TransactionMQProducer(Producer):
    """A class that always raises `NotSupportedError`: half messages need support by the broker."""

    def __init__(self, group_id: str | bytes, *args: Any, **kwargs: Any) -> None:
        del args, kwargs
        raise NotSupportedError(
            f"TransactionMQProducer({text_of(group_id)!r}): Kafka has no half messages with check-back. To store a "
            "message if and only if a database transaction commits, write it to an outbox table in that transaction "
            "and send from there. To send either all or none of several messages, use the transactions of "
            "rocketshim.dropin.Producer"
        )


Callback = Callable[[ReceivedMessage], Any]


class PushConsumer(_Settings):
    """A consumer that calls a function for each message.

    Args:
        group_id: the consumer group.
        orderly: whether the messages of one queue are processed one after the other, under the lock of the queue.
            RECONSUME_LATER then suspends the queue for a moment and delivers the message again.
        message_model: `MessageModel.CLUSTERING` or `BROADCASTING`.
        clients: factory of Kafka clients; None: confluent_kafka.

    Thread-safety: settings, `start` and `shutdown` belong to one thread; callbacks run in several threads.
    """

    def __init__(
        self,
        group_id: str | bytes,
        orderly: bool = False,  # noqa: FBT002 - signature of the other client
        message_model: MessageModel = MessageModel.CLUSTERING,
        *,
        clients: Clients | None = None,
    ) -> None:
        super().__init__(group_id, clients)
        self._callbacks: dict[str, tuple[Callback, str]] = {}
        self._instance: str | None = None
        self._orderly = orderly
        self._consumer: rocketshim.PushConsumer | None = None
        self.set_message_model(message_model)

    def set_message_model(self, model: MessageModel) -> None:
        """Set who gets a message; with `BROADCASTING` every consumer gets it, and failed messages are dropped."""
        self._values["message_model"] = ShimModel[MessageModel(model).name]

    def set_instance_name(self, name: str | bytes) -> None:
        """Set Kafka's `client.id`; with `BROADCASTING` also the name `host@name` in `~/.rocketshim_offsets`.

        That file stores the offsets of broadcasting consumers. Two of them in one group on one machine need different
        names.
        """
        super().set_instance_name(name)
        self._instance = text_of(name)

    def set_thread_count(self, thread_count: int) -> None:
        """Set the number of threads that run callbacks, 1 to 1,000. Default 20."""
        self._values["consume_thread_min"] = thread_count

    def set_message_batch_max_size(self, max_size: int) -> None:
        """Do nothing: a callback gets one message at a time, so a failure concerns only one message."""

    def set_consume_from_where(self, where: rocketshim.ConsumeFromWhere) -> None:
        """Set where a group starts on a topic that it has never consumed; only here. Default: `LAST_OFFSET`."""
        self._values["consume_from_where"] = where

    def subscribe(self, topic: str | bytes, callback: Callback, expression: str | bytes = "*") -> None:
        """Register the function that is called for each message of a topic; an earlier one is replaced.

        Args:
            topic: logical topic.
            callback: is called with a `ReceivedMessage` and returns a `ConsumeStatus`.
            expression: tags, `"A || B"`; `"*"`: all messages.

        Raises:
            ConfigError: the consumer has started, or the callback cannot be called with one message.
            FilterSyntaxError: the expression is not one of tags. Conditions in SQL need a `rocketshim.PushConsumer`.
        """
        if self._consumer is not None:
            raise ConfigError(f"cannot subscribe to {text_of(topic)!r} after start(): subscribe before")
        problem = call_problem(callback, 1)
        if problem:
            raise ConfigError(f"the callback of {text_of(topic)!r}: {problem}; it gets one ReceivedMessage")
        check_tags(text_of(expression))
        self._callbacks[text_of(topic)] = (callback, text_of(expression))

    def start(self) -> None:
        """Join the group and start to consume. It may be called twice.

        Raises:
            PushConsumerStartFailed: there is no subscription or no address, or the cluster does not meet the
                requirements of `rocketshim.PushConsumer.start`.
        """
        if self._consumer is not None:
            return
        with raised_as(PushConsumerStartFailed):
            self._consumer = self._start()

    def _start(self) -> rocketshim.PushConsumer:
        values = dict(self._checked())
        if self._instance is not None and values["message_model"] is ShimModel.BROADCASTING:
            values["client_id"] = f"{socket.gethostname()}@{self._instance}"
        settings = PushConsumerSettings.make(group=self._group, **values)
        consumer = rocketshim.PushConsumer(settings=settings, clients=self._clients)
        for topic, (callback, expression) in self._callbacks.items():
            listener = _orderly_listener(callback) if self._orderly else _listener(callback)
            consumer.register_message_listener(topic, listener, tags=expression, orderly=self._orderly)
        consumer.start()
        return consumer

    def shutdown(self) -> None:
        """Finish the running callbacks, commit and leave the group. It may be called twice, and followed by `start`."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def _listener(callback: Callback) -> Callable[[MessageView], consume_concurrently.ConsumeStatus]:
    def listen(view: MessageView) -> consume_concurrently.ConsumeStatus:
        status = callback(ReceivedMessage(view))
        if status == ConsumeStatus.CONSUME_SUCCESS:
            return consume_concurrently.ConsumeStatus.CONSUME_SUCCESS
        if status == ConsumeStatus.RECONSUME_LATER:
            return consume_concurrently.ConsumeStatus.RECONSUME_LATER
        raise ValueError(f"the callback returned {status!r:.80}: return a ConsumeStatus")

    return listen


def _orderly_listener(callback: Callback) -> Callable[[MessageView], ConsumeOrderlyStatus]:
    listen = _listener(callback)

    def listen_orderly(view: MessageView) -> ConsumeOrderlyStatus:
        if listen(view) is consume_concurrently.ConsumeStatus.CONSUME_SUCCESS:
            return ConsumeOrderlyStatus.SUCCESS
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

    return listen_orderly


def _result(sent: rocketshim.SendResult) -> SendResult:
    return SendResult(SendStatus.OK, sent.msg_id, sent.queue_offset)
