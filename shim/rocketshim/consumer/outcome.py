"""The interface of a listener: exceptions that it may raise, its context, and the record of a failed message.

Only the exceptions `RetryLater` and `DeadLetter` have a meaning of their own; every other exception is an ordinary
failure. What a listener sets on its context counts only for that call.
"""

from collections.abc import Callable
from operator import index
from typing import Any, Final

from rocketshim.core.consume_concurrently import ALL
from rocketshim.core.next_hop import FailedMessage
from rocketshim.errors import ConfigError
from rocketshim_topics import Duration, parse_duration_ms
from rocketshim_topics.message_queue import MessageQueue

__all__ = [
    "ConsumeConcurrentlyContext",
    "DeadLetter",
    "FailedMessage",
    "RetryLater",
    "as_int",
    "attribute",
    "class_name",
    "safe_text",
]

DEAD_LETTER_LEVEL: Final = -1
NOT_ASKED: Final = 0
_MAX_SHOWN_CHARS: Final = 4_096  # a record stores 1 KiB, and a log line needs no more
_QUALNAME: Final = type.__dict__["__qualname__"]


def safe_text(value: object, how: Callable[[Any], str] = str) -> str:
    """Return an object of user code as text, whatever its `str` or `repr` does; at most 4,096 characters.

    Args:
        value: anything.
        how: `str` or `repr`.
    """
    try:
        return str.__str__(how(value))[:_MAX_SHOWN_CHARS]  # a plain text, also of a subclass
    except BaseException as error:  # noqa: BLE001 - user code; the text reports the error
        return f"({how.__name__}() of a {class_name(value)} raised {class_name(error)})"


def class_name(value: object) -> str:
    """Return the qualified name of an object's class, even if its class or metaclass lies about it."""
    return str.__str__(_QUALNAME.__get__(type(value)))


def attribute(value: object, name: str, default: object = None) -> object:
    """Return an attribute of an object of user code; return the default if it cannot be read."""
    try:
        return getattr(value, name, default)
    except BaseException:  # noqa: BLE001 - `__getattribute__` and properties are user code
        return default


def as_int(value: object) -> int | None:
    """Return a whole number that user code has set, including numpy's; None: it is not a whole number."""
    try:
        return index(value)  # type: ignore[arg-type]  # it raises for any other type
    except BaseException:  # noqa: BLE001 - `__index__` is user code
        return None


class RetryLater(Exception):  # noqa: N818 - RocketMQ's word; it is a request, not an error
    """Raise this in a listener to retry the message (in a batch: all messages) later.

    Args:
        delay: how long to wait, as `"30s"`, `"5m"`, a number of seconds or a timedelta; 40 days at most, longer delays
            are shortened. None: the retry policy decides, unless `level` is given.
        level: delay level, 1 or more; a level above the table's highest counts as the highest.

    Raises:
        ConfigError: both are given, or the delay or level is not valid.
    """

    def __init__(self, delay: Duration | None = None, *, level: int | None = None) -> None:
        if delay is not None and level is not None:
            raise ConfigError(f"RetryLater takes a delay ({delay!r}) or a level ({level!r}), not both")
        if level is not None and level < 1:
            raise ConfigError(f"RetryLater(level={level}): levels begin at 1; raise DeadLetter to stop retrying")
        self.delay_ms = None if delay is None else parse_duration_ms(delay)
        self.level = level
        when = "later" if level is None else f"at level {level}"
        super().__init__(f"retry {when}" if delay is None else f"retry after {delay}")


class DeadLetter(Exception):  # noqa: N818 - as above
    """Raise this in a listener to send the message (in a batch: all messages) to the dead-letter topic now.

    Args:
        reason: the reason, for operators who read dead letters; cut to 1 KiB.
    """

    def __init__(self, reason: object = "") -> None:
        super().__init__(str(reason))


class ConsumeConcurrentlyContext:
    """What a listener gets and may set, for one call.

    Attributes:
        group: the consumer group.
        message_queue: the queue of the messages.
        epoch: number of the assignment of that queue to this consumer.
        fencing_token: None, because concurrent mode has no lock.
        delay_level_when_next_consume: level of the next retry if the call fails. 0 (default): the retry policy decides;
            above 0: exactly this level; below 0: the dead-letter topic, immediately.
        ack_index: index of the last message of the batch that succeeded; the messages after it failed. It counts only
            if the call returns success.

    Source: `ConsumeConcurrentlyContext` of RocketMQ.
    """

    __slots__ = ("ack_index", "delay_level_when_next_consume", "epoch", "fencing_token", "group", "message_queue")

    def __init__(self, group: str, message_queue: MessageQueue, epoch: int) -> None:
        self.group = group
        self.message_queue = message_queue
        self.epoch = epoch
        self.fencing_token: int | None = None
        self.delay_level_when_next_consume = NOT_ASKED
        self.ack_index = ALL

    @property
    def untouched(self) -> bool:
        """Return whether the listener has set nothing. It compares by identity, so that no user code is called."""
        asked = getattr(self, "delay_level_when_next_consume", None)  # a deleted attribute counts as set
        return getattr(self, "ack_index", None) is ALL and asked is NOT_ASKED

    def fresh(self) -> "ConsumeConcurrentlyContext":
        """Return a context for the next call: this one if nothing was set, else a new one."""
        return self if self.untouched else self.copy()

    def copy(self) -> "ConsumeConcurrentlyContext":
        """Return a context for another call, with nothing set."""
        return ConsumeConcurrentlyContext(self.group, self.message_queue, self.epoch)
