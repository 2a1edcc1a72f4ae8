"""Queue selectors: which partition a message goes to when its sender wants to say so.

A selector is an object with a method `select(queues, message, arg)`, or a plain function with the same arguments.

`SelectMessageQueueByHash` is RocketMQ's: `hashCode` of the argument modulo the number of queues, made positive. Java's
`hashCode` of a string counts UTF-16 units; that of an integer is the integer itself (folded for a long).
"""

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from rocketshim.errors import MessageError
from rocketshim_topics import Message
from rocketshim_topics.message_queue import MessageQueue

__all__ = [
    "MessageQueueSelector",
    "SelectFunction",
    "SelectMessageQueueByHash",
    "SelectMessageQueueByRandom",
    "java_hash",
    "select_function",
]

_INT = 2**32


class MessageQueueSelector(Protocol):
    """Chooses the queue of a message; called in the sender's thread.

    Source: `MessageQueueSelector` of RocketMQ.
    """

    def select(self, queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
        """One of `queues`, which holds every partition of the topic in order."""
        ...


SelectFunction = Callable[[Sequence[MessageQueue], Message, Any], MessageQueue]
"""A selector as a plain function: it gets what `MessageQueueSelector.select` gets and returns one of the queues."""


def select_function(selector: MessageQueueSelector | SelectFunction) -> SelectFunction:
    """Return what to call with queues, message and argument.

    Raises:
        MessageError: neither an object with a method `select` nor a function.
    """
    if not isinstance(selector, type):  # of a class, `select` has no object to be called on
        select: Any = getattr(selector, "select", selector)
        if callable(select):
            return select  # type: ignore[no-any-return]  # it can be called, which is all that can be seen
    raise MessageError(
        f"selector={selector!r:.80}: give a function of (queues, message, arg), or an object with such a method select"
    )


def java_hash(value: str | int) -> int:
    """Java's `hashCode` of a string or an integer, as a signed 32-bit number.

    Raises:
        MessageError: neither a string nor an integer of 64 bits.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise MessageError(f"arg={value!r}: a queue is selected by a string or an integer")
    if isinstance(value, str):
        result = 0
        units = value.encode("utf-16-be", "surrogatepass")
        for high, low in zip(units[::2], units[1::2], strict=True):
            result = (31 * result + (high << 8 | low)) % _INT
    else:
        if not -(2**63) <= value < 2**63:
            raise MessageError(f"arg={value!r}: an integer of at most 64 bits is needed")
        result = value % _INT
        if not -(2**31) <= value < 2**31:
            result ^= (value >> 32) % _INT
    return result - _INT if result >= _INT // 2 else result


class SelectMessageQueueByHash:
    """By the hash of `arg`: equal arguments, equal queues, as long as their number does not change.

    Source: `SelectMessageQueueByHash` of RocketMQ.
    """

    def select(self, queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
        """The queue that `arg` belongs to."""
        del message
        value = java_hash(arg)
        return queues[abs(value) % len(queues)]


class SelectMessageQueueByRandom:
    """Any queue, all alike.

    Source: `SelectMessageQueueByRandom` of RocketMQ.
    """

    def select(self, queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
        """A queue chosen at random; `arg` is not looked at."""
        del message, arg
        return random.choice(queues)  # noqa: S311 - spreads load, guards nothing
