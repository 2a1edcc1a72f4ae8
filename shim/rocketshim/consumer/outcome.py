"""How a listener speaks: what it may raise, what it may set, and what became of each message.

`RetryLater` and `DeadLetter` are the only exceptions with a meaning of their own; every other one is a failure like
any other. What a listener sets on its context counts only for the call it was given to.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any, Final

from rocketshim.core.consume_concurrently import ALL
from rocketshim.errors import ConfigError
from rocketshim_topics import Duration, Failure, parse_duration_ms
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
_MAX_SHOWN_CHARS: Final = 4_096  # a record keeps 1 KiB, a log line needs no more
_QUALNAME: Final = type.__dict__["__qualname__"]


def safe_text(value: object, how: Callable[[Any], str] = str) -> str:
    """Return an object of user code as text, whatever its `str` or `repr` does; at most 4,096 characters.

    Args:
        value: anything.
        how: `str` or `repr`.
    """
    try:
        return str.__str__(how(value))[:_MAX_SHOWN_CHARS]  # a plain text, also of a subclass
    except BaseException as error:  # noqa: BLE001 - user code; nothing is lost, the text says it
        return f"({how.__name__}() of a {class_name(value)} raised {class_name(error)})"


def class_name(value: object) -> str:
    """Return the qualified name of an object's class, whatever its class or metaclass says."""
    return str.__str__(_QUALNAME.__get__(type(value)))


def attribute(value: object, name: str, default: object = None) -> object:
    """Return an attribute of an object of user code; the default where it cannot be read."""
    try:
        return getattr(value, name, default)
    except BaseException:  # noqa: BLE001 - `__getattribute__` and properties are user code
        return default


def as_int(value: object) -> int | None:
    """A whole number that user code set, also one of numpy's; None: it is none."""
    try:
        return index(value)  # type: ignore[arg-type]  # what it is not for raises
    except BaseException:  # noqa: BLE001 - `__index__` is user code
        return None


class RetryLater(Exception):  # noqa: N818 - RocketMQ's word; it asks for something, nothing is wrong
    """Raised by a listener: try this message (in a batch: all of it) again later.

    Args:
        delay: how long, as `"30s"`, `"5m"`, a number of seconds, a timedelta; more than 40 days are 40 days. None: the
            retry policy decides, unless `level` says.
        level: delay level, 1 or more; the highest of the table at most.

    Raises:
        ConfigError: both, or a delay or level that is none.
    """

    def __init__(self, delay: Duration | None = None, *, level: int | None = None) -> None:
        if delay is not None and level is not None:
            raise ConfigError(f"RetryLater takes a delay ({delay!r}) or a level ({level!r}), not both")
        if level is not None and level < 1:
            raise ConfigError(f"RetryLater(level={level}): levels begin at 1; raise DeadLetter to give a message up")
        self.delay_ms = None if delay is None else parse_duration_ms(delay)
        self.level = level
        when = "later" if level is None else f"at level {level}"
        super().__init__(f"retry {when}" if delay is None else f"retry after {delay}")


class DeadLetter(Exception):  # noqa: N818 - as above
    """Raised by a listener: this message (in a batch: all of it) goes to the dead-letter topic now.

    Args:
        reason: why, for whoever reads dead letters; cut to 1 KiB.
    """

    def __init__(self, reason: object = "") -> None:
        super().__init__(str(reason))


class ConsumeConcurrentlyContext:
    """What a listener is told and may set, for one call.

    Attributes:
        group: the consumer group.
        message_queue: where the messages come from.
        epoch: number of the assignment of that queue to this consumer.
        fencing_token: None: concurrent mode holds no lock.
        delay_level_when_next_consume: level of the next retry if the call fails: 0 (default) as the retry policy says,
            above 0 exactly this level, below 0 the dead-letter topic at once.
        ack_index: index of the last message of the batch that is done; the rest failed. Counts only with success.

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
        """Whether the listener has set nothing. By identity, so that nothing of the user's is called."""
        asked = getattr(self, "delay_level_when_next_consume", None)  # what it deleted was touched
        return getattr(self, "ack_index", None) is ALL and asked is NOT_ASKED

    def fresh(self) -> "ConsumeConcurrentlyContext":
        """A context for the next call: this one if nothing was set, else a new one."""
        return self if self.untouched else self.copy()

    def copy(self) -> "ConsumeConcurrentlyContext":
        """A context for another call, with nothing set."""
        return ConsumeConcurrentlyContext(self.group, self.message_queue, self.epoch)


@dataclass(slots=True)
class FailedMessage:
    """A message that did not succeed, as facts for the retry policy.

    Attributes:
        message: the Kafka record.
        failure: class, text and time of what happened.
        asked_level: 0 none, above 0 that level, below 0 the dead-letter topic.
        asked_delay_ms: delay asked for, in ms, or None.
        malformed: the record breaks the wire format, for this reason: it is parked and no listener sees it.
        reconsume_times: failed attempts before this one, where they were counted elsewhere (orderly mode); None: as the
            record says.
    """

    message: Any
    failure: Failure
    asked_level: int = 0
    asked_delay_ms: int | None = None
    malformed: str | None = None
    reconsume_times: int | None = None
