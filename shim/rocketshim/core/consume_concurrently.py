"""The meaning of a concurrent listener's answer, for each message. Pure functions.

RocketMQ's rules (`ConsumeMessageConcurrentlyService#processConsumeResult`):

* `CONSUME_SUCCESS` with an `ack_index`: messages up to that index are done, the later ones failed. An index of -1 means
  that all failed; an index past the last message means that none failed.
* `RECONSUME_LATER`, an exception, and any value that is not a status: all failed. An `ack_index` that the listener set
  is ignored.
* None is success, because Python functions without a return statement return it (RocketMQ: failure; differs on
  purpose).
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
"""The `ack_index` of a new context: all messages. Source: `ConsumeConcurrentlyContext` (`Integer.MAX_VALUE`)."""


class ConsumeStatus(IntEnum):
    """The answer of a concurrent listener. Source: `ConsumeConcurrentlyStatus` of RocketMQ."""

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
    """Return how many messages of a batch, from its beginning, are done; the others failed.

    Args:
        status: what the listener returned.
        ack_index: index of the last message that is done; `ALL` unless the listener set it.
        batch_count: messages in the batch, at least 1.
    """
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
    return answer is None or answer is ConsumeStatus.CONSUME_SUCCESS


def as_one(answer: object, batch_count: int) -> object:
    """Return an answer as one status, for labels: a list of answers is a success if all of them are."""
    items = item_answers(answer, batch_count)
    if items is None:
        return answer
    return ConsumeStatus.CONSUME_SUCCESS if all(map(is_success, items)) else ConsumeStatus.RECONSUME_LATER


def return_type(status: object, *, raised: bool, elapsed_ms: float, timeout_ms: float) -> ConsumeReturnType:
    """Classify how a listener call ended.

    Args:
        status: what the listener returned; also an orderly listener's `ConsumeOrderlyStatus`.
        raised: whether it raised an exception instead.
        elapsed_ms: how long the call took, in ms.
        timeout_ms: the consume timeout, in ms: a call that took at least this long and returned a status is `TIME_OUT`.

    Returns:
        `RETURNNULL` for a value that is not a status (RocketMQ: null; here None is success).

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
