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
from enum import Enum, IntEnum
from typing import Any, Final, NamedTuple, Self

import rocketshim
from rocketshim import transactions
from rocketshim.compat.rocketmq.exceptions import (
    ProducerSendOnewayFailed,
    ProducerSendOrderlyFailed,
    ProducerSendSyncFailed,
    ProducerStartFailed,
    PushConsumerStartFailed,
    RocketMQException,
    raised_as,
)
from rocketshim.core import listener_answers
from rocketshim.core.listener_answers import ConsumeOrderlyStatus
from rocketshim.core.message_model import MessageModel as ShimModel
from rocketshim.core.user_values import call_problem
from rocketshim.errors import ClosedError, ConfigError, MessageError, NotSupportedError
from rocketshim.filters.tag import check_tags
from rocketshim.kafka.clients import Clients
from rocketshim.settings import BOOTSTRAP_VARIABLE
from rocketshim.settings.consumer import PushConsumerSettings
from rocketshim.settings.producer import ProducerSettings
from rocketshim.transactions import LocalTransactionState
from rocketshim_topics.hops.record import text_bytes
from rocketshim_topics.message import MessageView
from rocketshim_topics.wire import RESERVED, read_headers

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


class SendStatus(IntEnum):
    """The outcome of a send. It is always `OK`; every other outcome is an exception."""

    OK = 0
    FLUSH_DISK_TIMEOUT = 1
    FLUSH_SLAVE_TIMEOUT = 2
    SLAVE_NOT_AVAILABLE = 3


class ConsumeStatus(IntEnum):
    """The result of a callback."""

    CONSUME_SUCCESS = 0
    RECONSUME_LATER = 1


class MessageModel(IntEnum):
    """Whether every consumer of a group gets a message, or only one."""

    BROADCASTING = 0
    CLUSTERING = 1


class TransactionStatus(IntEnum):
    """The outcome of a local transaction. `UNKNOWN`: the checker is asked for it later."""

    COMMIT = 0
    ROLLBACK = 1
    UNKNOWN = 2


_STATES: Final = {
    TransactionStatus.COMMIT: LocalTransactionState.COMMIT_MESSAGE,
    TransactionStatus.ROLLBACK: LocalTransactionState.ROLLBACK_MESSAGE,
    TransactionStatus.UNKNOWN: LocalTransactionState.UNKNOWN,
}


class SendResult(NamedTuple):
    """The result of sending a message that is now stored.

    Attributes:
        status: `SendStatus.OK`.
        msg_id: id of the message, the same on every hop.
        offset: offset of the record in its partition; for a delayed message in the schedule topic.
    """

    status: SendStatus
    msg_id: str
    offset: int


class Message:
    """A message to send.

    Args:
        topic: logical topic.
    """

    def __init__(self, topic: str | bytes) -> None:
        self._topic = text_of(topic)
        self._body: bytes = b""
        self._tags: str | None = None
        self._keys: str | None = None
        self._level: int | None = None
        self._properties: dict[str, bytes] = {}

    def set_keys(self, keys: str | bytes) -> None:
        """Set the business keys, separated by spaces."""
        self._keys = text_of(keys)

    def set_tags(self, tags: str | bytes) -> None:
        """Set the tag; a message has at most one."""
        self._tags = text_of(tags)

    def set_body(self, body: str | bytes) -> None:
        """Set the body; text is sent as UTF-8."""
        self._body = _bytes(body)

    def set_property(self, key: str | bytes, value: str | bytes) -> None:
        """Set a user property; an existing value is replaced."""
        self._properties[text_of(key)] = _bytes(value)

    def set_delay_time_level(self, delay_time_level: int) -> None:
        """Set the delay level; 0: no delay."""
        self._level = delay_time_level

    def to_shim(self) -> rocketshim.Message:
        """Return the message as a `rocketshim.Message`.

        Raises:
            MessageError: it breaks a rule of `rocketshim.Message`.
        """
        return rocketshim.Message(
            self._topic,
            self._body,
            tag=self._tags or None,
            keys=tuple((self._keys or "").split()),
            delay_level=self._level,
            properties=self._properties,
        )


class ReceivedMessage:
    """A received message, read-only.

    Args:
        view: the message as rocketshim has it.
    """

    def __init__(self, view: MessageView) -> None:
        self._view = view

    @property
    def topic(self) -> str:
        """Logical topic of the first delivery."""
        return self._view.topic

    @property
    def tags(self) -> bytes:
        """The tag; `b""` if there is none."""
        return text_bytes(self._view.tag)

    @property
    def keys(self) -> bytes:
        """Business keys, separated by spaces; `b""` if there are none."""
        return text_bytes(" ".join(self._view.keys))

    @property
    def body(self) -> bytes:
        """The body; `b""` for a tombstone, which RocketMQ does not know."""
        return self._view.body or b""

    @property
    def id(self) -> str:
        """The id that is the same on every hop."""
        return self._view.msg_id

    @property
    def delay_time_level(self) -> int:
        """0, because a delivered message is no longer scheduled (RocketMQ keeps the level of the send)."""
        return self._view.delay_level

    @property
    def queue_id(self) -> int:
        """Partition of this record."""
        return self._view.queue_id

    @property
    def reconsume_times(self) -> int:
        """Failed attempts so far."""
        return self._view.reconsume_times

    @property
    def store_size(self) -> int:
        """Size of key, value and headers in bytes."""
        record = self._view.record
        headers = sum(len(_bytes(name)) + len(value or b"") for name, value in read_headers(record) or ())
        return len(record.key() or b"") + len(record.value() or b"") + headers

    @property
    def born_timestamp(self) -> int:
        """Time of the first send, epoch ms."""
        return self._view.born_timestamp_ms

    @property
    def store_timestamp(self) -> int:
        """Timestamp of this record, epoch ms."""
        return self._view.store_timestamp_ms

    @property
    def queue_offset(self) -> int:
        """Offset of this record."""
        return self._view.queue_offset

    @property
    def commit_log_offset(self) -> int:
        """The same as `queue_offset`, because Kafka has no log other than its partitions."""
        return self._view.queue_offset

    @property
    def prepared_transaction_offset(self) -> int:
        """0: a half message is found by its id."""
        return 0

    def get_property(self, prop: str | bytes | Enum) -> bytes:
        """Return a user property, or a RocketMQ property that the record has; `b""` if it does not exist."""
        name = text_of(prop.value if isinstance(prop, Enum) else prop)
        of_ours = {
            "TAGS": lambda: self.tags,
            "KEYS": lambda: self.keys,
            "UNIQ_KEY": lambda: text_bytes(self.id),
            "RECONSUME_TIME": lambda: _bytes(str(self.reconsume_times)),
        }.get(name)
        if of_ours is not None:
            return of_ours()
        for key, value in self._view.headers:
            if key == name:
                return value or b""
        if name in RESERVED:
            return next((value or b"" for key, value in read_headers(self._view.record) or () if key == name), b"")
        return b""

    def __getitem__(self, key: str | bytes | Enum) -> bytes:
        return self.get_property(key)

    def __str__(self) -> str:
        return self.body.decode()

    def __bytes__(self) -> bytes:
        return self.body

    def __repr__(self) -> str:
        return f"<ReceivedMessage topic={self.topic!r} id={self.id!r} body={self.body!r}>"


def text_of(value: str | bytes) -> str:
    """Return a text that a caller may also pass as UTF-8."""
    return value.decode() if isinstance(value, bytes) else value


def _bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


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
        """Set the group; for a producer it has a meaning only for transactions."""
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
        group_id: has no meaning on Kafka, except for a `TransactionMQProducer`.
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
                self._producer = self._started(ProducerSettings.make(**self._checked()))

    def _started(self, settings: ProducerSettings) -> rocketshim.Producer:
        return rocketshim.Producer(settings=settings, clients=self._clients)

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
    """A client whose messages are delivered if and only if a local transaction commits.

    It uses a `rocketshim.transactions.TransactionMQProducer`. A producer that runs is asked for the transactions of all
    producers of its group, also of those that have died.

    Args:
        group_id: the producers of a group answer for each other; their callbacks look into the same database.
        checker_callback: is called with a `ReceivedMessage` and returns a `TransactionStatus`. If it raises, or returns
            anything else, the status is unknown, and it is asked again after 30 s. It is called in a thread of its own.
        user_args: has no effect, as in the other client.
        timeout, compress_level, max_message_size, clients: as of `Producer`.

    Raises:
        ConfigError: the callback cannot be called with one message.
    """

    def __init__(  # noqa: PLR0917 - signature of the other client
        self,
        group_id: str | bytes,
        checker_callback: "Callback",
        user_args: Any = None,
        timeout: int | None = None,
        compress_level: int | None = None,
        max_message_size: int | None = None,
        *,
        clients: Clients | None = None,
    ) -> None:
        del user_args
        if problem := call_problem(checker_callback, 1):
            raise ConfigError(f"checker_callback={checker_callback!r:.80}: {problem}; it gets one ReceivedMessage")
        super().__init__(group_id, False, timeout, compress_level, max_message_size, clients=clients)  # noqa: FBT003
        self._checker = checker_callback

    def _started(self, settings: ProducerSettings) -> rocketshim.Producer:
        made = transactions.TransactionMQProducer(
            group=self._group, listener=_TransactionListener(self._checker), settings=settings, clients=self._clients
        )
        try:
            made.start()
        except BaseException:
            made.close(0)
            raise
        return made

    def send_message_in_transaction(
        self, message: Message, local_execute: Callable[[ReceivedMessage, Any], Any], user_args: Any = None
    ) -> SendResult:
        """Store a message that nobody receives yet, call `local_execute`, and deliver or drop the message.

        Args:
            message: it has no delay.
            local_execute: is called with a `ReceivedMessage`, whose `id` is that of the check, and `user_args`; returns
                a `TransactionStatus`. If it raises, or returns anything else, the status is unknown: the checker
                decides.
            user_args: for `local_execute`.

        Returns:
            where the half message is stored, whatever the status.

        Raises:
            ProducerSendSyncFailed: `local_execute` cannot be called so, or the message is not stored; not called.
        """
        with raised_as(ProducerSendSyncFailed):
            producer: Any = self._running()
            if problem := call_problem(local_execute, 2):
                raise MessageError(f"local_execute: {problem}; it gets a ReceivedMessage and user_args")
            arg = (local_execute, user_args)
            sent = producer.send_message_in_transaction(message.to_shim(), arg, timeout_s=self._timeout_s)
            return _result(sent.send_result)


class _TransactionListener:
    def __init__(self, checker: "Callback") -> None:
        self._checker = checker

    def execute_local_transaction(self, message: MessageView, arg: Any) -> LocalTransactionState:
        local_execute, user_args = arg
        return _transaction_state(local_execute(ReceivedMessage(message), user_args))

    def check_local_transaction(self, message: MessageView) -> LocalTransactionState:
        return _transaction_state(self._checker(ReceivedMessage(message)))


def _transaction_state(status: Any) -> LocalTransactionState:
    """Return what a callback has answered. A boolean is none: True would be ROLLBACK."""
    if isinstance(status, bool) or status not in _STATES:
        raise ValueError(f"the callback returned {status!r:.80}: return a TransactionStatus")
    return _STATES[status]


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


def _listener(callback: Callback) -> Callable[[MessageView], listener_answers.ConsumeStatus]:
    def listen(view: MessageView) -> listener_answers.ConsumeStatus:
        status = callback(ReceivedMessage(view))
        if status == ConsumeStatus.CONSUME_SUCCESS:
            return listener_answers.ConsumeStatus.CONSUME_SUCCESS
        if status == ConsumeStatus.RECONSUME_LATER:
            return listener_answers.ConsumeStatus.RECONSUME_LATER
        raise ValueError(f"the callback returned {status!r:.80}: return a ConsumeStatus")

    return listen


def _orderly_listener(callback: Callback) -> Callable[[MessageView], ConsumeOrderlyStatus]:
    listen = _listener(callback)

    def listen_orderly(view: MessageView) -> ConsumeOrderlyStatus:
        if listen(view) is listener_answers.ConsumeStatus.CONSUME_SUCCESS:
            return ConsumeOrderlyStatus.SUCCESS
        return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT

    return listen_orderly


def _result(sent: rocketshim.SendResult) -> SendResult:
    return SendResult(SendStatus.OK, sent.msg_id, sent.queue_offset)
