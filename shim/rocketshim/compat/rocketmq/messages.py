"""Messages, results and statuses of `client`."""

from enum import Enum, IntEnum
from typing import NamedTuple

import rocketshim
from rocketshim_topics import wire
from rocketshim_topics.hops.record import text_bytes
from rocketshim_topics.message import MessageView
from rocketshim_topics.wire import read_headers

__all__ = [
    "ConsumeStatus",
    "Message",
    "MessageModel",
    "ReceivedMessage",
    "SendResult",
    "SendStatus",
    "TransactionStatus",
    "text_of",
]


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
    """The outcome of a local transaction. It only exists for programs that import it, see `TransactionMQProducer`."""

    COMMIT = 0
    ROLLBACK = 1
    UNKNOWN = 2


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
        """0, because Kafka has no half messages."""
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
        if name in wire.RESERVED:
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
