"""What a listener may raise, set on its context, and answer, and what that means for each message. Pure.

Only the exceptions `RetryLater` and `DeadLetter` have a meaning of their own; every other exception is an ordinary
failure. What a listener sets on its context counts only for that call.

RocketMQ's rules for concurrent listeners (`ConsumeMessageConcurrentlyService#processConsumeResult`; `orderly_queue`
has those for orderly ones):

* `CONSUME_SUCCESS` with an `ack_index`: messages up to that index are done, the later ones failed. An index of -1 means
  that all failed; an index past the last message means that none failed.
* `RECONSUME_LATER`, an exception, and any value that is not a status: all failed. An `ack_index` that the listener set
  is ignored.
* The status of an orderly listener is understood, since other clients have one class for both: SUCCESS and COMMIT are
  success, the others failure. `orderly_status` does the same for the concurrent ones.
* None is success, because Python functions without a return statement return it (RocketMQ: failure; differs on
  purpose).

`FailureRules` are `dead_on` and `retry_on` of a listener: which of its exceptions are final. What the listener asks for
by itself (`RetryLater`, `DeadLetter`, its context) counts before these rules, `dead_on` before `retry_on`. As with
`except`, a class stands for its subclasses, too.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final

from rocketshim.errors import ConfigError, RocketshimError
from rocketshim_topics import Duration, parse_duration_ms
from rocketshim_topics.hops import DEFAULT_MAX_DELAY_MS
from rocketshim_topics.message_queue import MessageQueue

__all__ = [
    "ALL",
    "DEAD_LETTER_LEVEL",
    "NOT_ASKED",
    "ConsumeConcurrentlyContext",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "ConsumeReturnType",
    "ConsumeStatus",
    "DeadLetter",
    "ExceptionTypes",
    "FailureRules",
    "RetryLater",
    "Rules",
    "as_one",
    "failure_rules",
    "is_success",
    "item_answers",
    "orderly_status",
    "retry_delay_ms",
    "return_type",
    "return_type_of",
    "succeeded_count",
]

ALL: Final = 2**31 - 1
"""The `ack_index` of a new context: all messages. Source: `ConsumeConcurrentlyContext` (`Integer.MAX_VALUE`)."""

DEAD_LETTER_LEVEL: Final = -1
"""A requested level that stands for the dead-letter topic."""

NOT_ASKED: Final = 0
"""A requested level that stands for none: the retry policy decides."""


class ConsumeOrderlyStatus(IntEnum):
    """The answer of an orderly listener. Source: `ConsumeOrderlyStatus` of RocketMQ."""

    SUCCESS = 0
    ROLLBACK = 1
    COMMIT = 2
    SUSPEND_CURRENT_QUEUE_A_MOMENT = 3


class ConsumeStatus(IntEnum):
    """The answer of a concurrent listener. Source: `ConsumeConcurrentlyStatus` of RocketMQ."""

    CONSUME_SUCCESS = 0
    RECONSUME_LATER = 1


class ConsumeOrderlyContext:
    """The context of one call of an orderly listener.

    Attributes:
        group: the consumer group.
        message_queue: the queue of the messages.
        epoch: counts the runs of that queue in this consumer.
        fencing_token: the token of the queue's lock. It grows from owner to owner. Pass it to a sink that rejects
            writes with a lower token than it has seen. None: no lock (broadcasting).
        auto_commit: True (default): SUCCESS commits. False: only COMMIT commits, and ROLLBACK returns the uncommitted
            messages.
        suspend_current_queue_time_ms: wait before the next attempt in ms, if the call suspends; clamped to 10 … 30,000;
            -1 (default): the consumer's setting.

    Source: `ConsumeOrderlyContext` of RocketMQ.
    """

    __slots__ = (
        "auto_commit", "epoch", "fencing_token", "group", "message_queue", "suspend_current_queue_time_ms",
    )  # fmt: skip

    def __init__(self, group: str, message_queue: MessageQueue, epoch: int, fencing_token: int | None) -> None:
        self.group = group
        self.message_queue = message_queue
        self.epoch = epoch
        self.fencing_token = fencing_token
        self.auto_commit = True
        self.suspend_current_queue_time_ms = -1


def orderly_status(answer: object) -> ConsumeOrderlyStatus:
    """Convert a listener's return value: None is success, a value that is not a status is a failure.

    The status of a concurrent listener is understood, since other clients have one class for both.

    The caller converts an exception to SUSPEND_CURRENT_QUEUE_A_MOMENT. (RocketMQ treats null as a failure. This differs
    on purpose: Python functions without a return statement return None.)
    """
    if answer is None:
        return ConsumeOrderlyStatus.SUCCESS
    if type(answer) is ConsumeOrderlyStatus:  # `isinstance` would ask the answer for its `__class__`
        return answer
    if answer is ConsumeStatus.CONSUME_SUCCESS:
        return ConsumeOrderlyStatus.SUCCESS
    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


class ConsumeReturnType(Enum):
    """How a listener call ended, as a label for hooks and metrics. Source: `ConsumeReturnType` of RocketMQ."""

    SUCCESS = "SUCCESS"
    TIME_OUT = "TIME_OUT"
    EXCEPTION = "EXCEPTION"
    RETURNNULL = "RETURNNULL"
    FAILED = "FAILED"


class RetryLater(Exception):  # noqa: N818 - RocketMQ's word; it is a request, not an error
    """Raise this in a listener to retry the message (in a batch: all messages) later.

    Args:
        delay: how long to wait, as `"30s"`, `"5m"`, a number of seconds or a timedelta; 40 days at most. None: the
            retry policy decides, unless `level` is given.
        level: delay level, 1 or more; a level above the table's highest counts as the highest.

    Raises:
        ConfigError: both are given, or the delay or level is not valid. If a listener lets it pass, the message has
            failed like by any other exception.
    """

    def __init__(self, delay: Duration | None = None, *, level: int | None = None) -> None:
        if delay is not None and level is not None:
            raise ConfigError(f"RetryLater takes a delay ({delay!r}) or a level ({level!r}), not both")
        given: object = level
        if given is not None and (not isinstance(given, int) or given < 1):
            raise ConfigError(
                f"RetryLater(level={given!r:.80}): levels are whole numbers from 1 on; raise DeadLetter to end retries"
            )
        self.delay_ms = None if delay is None else retry_delay_ms(delay)
        self.level = level
        when = "later" if level is None else f"at level {level}"
        super().__init__(f"retry {when}" if delay is None else f"retry after {delay}")

    __reduce__ = RocketshimError.__reduce__  # a listener may raise it in a process pool


def retry_delay_ms(delay: Duration) -> int:
    """Return the delay of a retry in ms.

    Raises:
        ConfigError: it is not a duration, or longer than 40 days; a worker parks what waits longer.
    """
    delay_ms = parse_duration_ms(delay)
    if delay_ms > DEFAULT_MAX_DELAY_MS:
        raise ConfigError(f"a retry after {delay!r:.80} is not possible: the longest delay is 40 days")
    return delay_ms


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


def succeeded_count(status: object, ack_index: int, batch_count: int) -> int:
    """Return how many messages of a batch, from its beginning, are done; the others failed."""
    if is_success(status):
        return max(0, min(ack_index + 1, batch_count))
    return 0


def item_answers(answer: object, batch_count: int) -> list[object] | None:
    """Return the answers for the single messages of a batch, in its order; None: one answer for all of them.

    Our extension: a list with one answer per message (None, a status, or an exception object that is returned, not
    raised). RocketMQ has only `ack_index`.
    """
    return answer if type(answer) is list and len(answer) == batch_count else None


def is_success(answer: object) -> bool:
    """Return whether an answer means that its message is done."""
    return (
        answer is None
        or answer is ConsumeStatus.CONSUME_SUCCESS
        or answer is ConsumeOrderlyStatus.SUCCESS
        or answer is ConsumeOrderlyStatus.COMMIT
    )


def as_one(answer: object, batch_count: int) -> object:
    """Return an answer as one status, for labels: a list of answers is a success if all of them are."""
    items = item_answers(answer, batch_count)
    if items is None:
        return answer
    return ConsumeStatus.CONSUME_SUCCESS if all(map(is_success, items)) else ConsumeStatus.RECONSUME_LATER


def return_type(status: object, *, raised: bool, elapsed_ms: float, timeout_ms: float) -> ConsumeReturnType:
    """Classify how a call of a concurrent or orderly listener ended.

    One that took the consume timeout and returned a status is `TIME_OUT`. `RETURNNULL` is for a value that is not a
    status (RocketMQ: null; here None is success).

    Source: `ConsumeMessageConcurrentlyService.ConsumeRequest#run`.
    """
    if raised:
        return ConsumeReturnType.EXCEPTION
    if status is not None and not issubclass(type(status), ConsumeStatus | ConsumeOrderlyStatus):
        return ConsumeReturnType.RETURNNULL
    if elapsed_ms >= timeout_ms:
        return ConsumeReturnType.TIME_OUT
    return ConsumeReturnType.SUCCESS if is_success(status) else ConsumeReturnType.FAILED


def return_type_of(failure_class: str) -> ConsumeReturnType:
    """Return the result of a listener call from its message's failure class (`Failure.exception_class`)."""
    match failure_class:
        case "ReconsumeLater" | "AckIndexError":
            return ConsumeReturnType.FAILED
        case "ReturnedNoStatus":
            return ConsumeReturnType.RETURNNULL
        case "ConsumeTimeout":
            return ConsumeReturnType.TIME_OUT
        case _:
            return ConsumeReturnType.EXCEPTION


ExceptionTypes = type[BaseException] | tuple[type[BaseException], ...]
"""A class of exceptions or several, as in an `except` clause."""

_MRO: Final = type.__dict__["__mro__"]  # a metaclass of user code may have replaced it


@dataclass(frozen=True, slots=True)
class FailureRules:
    """The rules of one listener."""

    dead_on: tuple[type[BaseException], ...] = ()
    retry_on: tuple[type[BaseException], ...] | None = None  # None: all that are not in `dead_on`

    def is_final(self, kind: type[BaseException]) -> bool:
        """Return whether a message for which the listener raised this class is not tried again; calls no user code."""
        bases = {id(base) for base in _MRO.__get__(kind)}
        if _contain(bases, self.dead_on):
            return True
        return self.retry_on is not None and not _contain(bases, self.retry_on)


Rules = FailureRules | None


def _contain(bases: set[int], kinds: Iterable[type]) -> bool:
    return any(id(kind) in bases for kind in kinds)


def failure_rules(dead_on: ExceptionTypes | None, retry_on: ExceptionTypes | None) -> FailureRules | None:
    """Return the rules of a listener; None: it has none.

    An argument that is not an exception class or a tuple of them is a `ConfigError`, and so is a class in both.
    """
    if dead_on is None and retry_on is None:
        return None
    rules = FailureRules(
        () if dead_on is None else _checked("dead_on", dead_on),
        None if retry_on is None else _checked("retry_on", retry_on),
    )
    both = [kind.__name__ for kind in rules.dead_on if kind in (rules.retry_on or ())]
    if both:
        raise ConfigError(f"{both[0]} is in dead_on and in retry_on: leave it in one of them")
    return rules


def _checked(name: str, given: object) -> tuple[type[BaseException], ...]:
    kinds = given if isinstance(given, tuple) else (given,)
    for kind in kinds:
        if not isinstance(kind, type) or not issubclass(kind, BaseException):
            raise ConfigError(f"{name} has {kind!r:.80}: give classes of exceptions, as in {name}=(ValueError,)")
    return kinds
