"""What a concurrent listener's answer means, message by message. Pure functions.

RocketMQ's rules (`ConsumeMessageConcurrentlyService#processConsumeResult`):

* `CONSUME_SUCCESS` with an `ack_index`: messages up to that index are done, the ones behind it failed; an index of -1
  means that all failed, one past the end that none did.
* `RECONSUME_LATER`, an exception, and any value that is no status: all failed; an `ack_index` that the listener set
  is ignored.
* None is success: Python functions return it when they say nothing (RocketMQ: failure; differs on purpose).
"""

from enum import Enum, IntEnum
from typing import Final

from rocketshim.core.consume_orderly import ConsumeOrderlyStatus

__all__ = [
    "ALL",
    "ConsumeReturnType",
    "ConsumeStatus",
    "as_one",
    "is_success",
    "item_answers",
    "return_type",
    "succeeded_count",
]

ALL: Final = 2**31 - 1
"""The `ack_index` of a fresh context: everything. Source: `ConsumeConcurrentlyContext` (`Integer.MAX_VALUE`)."""


class ConsumeStatus(IntEnum):
    """Answer of a concurrent listener. Source: `ConsumeConcurrentlyStatus` of RocketMQ."""

    CONSUME_SUCCESS = 0
    RECONSUME_LATER = 1


class ConsumeReturnType(Enum):
    """How a listener call ended, as a label for hooks and metrics. Source: `ConsumeReturnType` of RocketMQ."""

    SUCCESS = "SUCCESS"
    TIME_OUT = "TIME_OUT"
    EXCEPTION = "EXCEPTION"
    RETURNNULL = "RETURNNULL"
    FAILED = "FAILED"


def succeeded_count(status: object, ack_index: int, batch_count: int) -> int:
    """How many messages of a batch, from its beginning, are done; the rest failed.

    Args:
        status: what the listener returned.
        ack_index: index of the last message that is done; `ALL` unless the listener set it.
        batch_count: messages in the batch, at least 1.
    """
    if is_success(status):
        return max(0, min(ack_index + 1, batch_count))
    return 0


def item_answers(answer: object, batch_count: int) -> list[object] | None:
    """The answers to the single messages of a batch, in its order; None: one answer to all of them.

    Ours: a list with an answer for each message (None, a status, or an exception that is not raised). RocketMQ knows
    `ack_index` only.
    """
    return answer if type(answer) is list and len(answer) == batch_count else None


def is_success(answer: object) -> bool:
    """Whether an answer to a message says that it is done."""
    return answer is None or answer is ConsumeStatus.CONSUME_SUCCESS


def as_one(answer: object, batch_count: int) -> object:
    """An answer as one status, for labels: a list of answers is a success if all of them are."""
    items = item_answers(answer, batch_count)
    if items is None:
        return answer
    return ConsumeStatus.CONSUME_SUCCESS if all(map(is_success, items)) else ConsumeStatus.RECONSUME_LATER


def return_type(status: object, *, raised: bool, elapsed_ms: float, timeout_ms: float) -> ConsumeReturnType:
    """How a listener call ended, in one word.

    Args:
        status: what the listener returned; an orderly listener's `ConsumeOrderlyStatus` too.
        raised: it raised instead.
        elapsed_ms: how long it took, in ms.
        timeout_ms: the consume timeout, in ms: a call that took as long and returned a status is `TIME_OUT`.

    Returns:
        `RETURNNULL` for a value that is no status (RocketMQ: null; None is success here).

    Source: `ConsumeMessageConcurrentlyService.ConsumeRequest#run`.
    """
    if raised:
        return ConsumeReturnType.EXCEPTION
    if status is not None and not issubclass(type(status), ConsumeStatus | ConsumeOrderlyStatus):
        return ConsumeReturnType.RETURNNULL
    if elapsed_ms >= timeout_ms:
        return ConsumeReturnType.TIME_OUT
    done = (None, ConsumeStatus.CONSUME_SUCCESS, ConsumeOrderlyStatus.SUCCESS, ConsumeOrderlyStatus.COMMIT)
    return ConsumeReturnType.SUCCESS if any(status is each for each in done) else ConsumeReturnType.FAILED
