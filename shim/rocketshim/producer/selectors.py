"""Queue selectors, with which a sender chooses the partition of a message.

A selector is an object with a method `select(queues, message, arg)`, or a plain function with the same arguments.

`SelectMessageQueueByHash` works like RocketMQ's: the absolute value of `hashCode` of the argument, modulo the number of
queues. Java's `hashCode` of a string is computed from its UTF-16 code units. The `hashCode` of an integer is the
integer itself; for a `long` it is the exclusive or of its two halves.
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
    "Selector",
    "java_hash",
    "select_function",
]

_INT = 2**32


class MessageQueueSelector(Protocol):
    """An object that chooses the queue of a message. It is called in the sender's thread.

    Source: `MessageQueueSelector` of RocketMQ.
    """

    def select(self, queues: list[MessageQueue], message: Message, arg: Any) -> MessageQueue:
        """Return one of `queues`, which contains every partition of the topic in order."""
        ...


SelectFunction = Callable[[list[MessageQueue], Message, Any], MessageQueue]
"""A selector as a plain function, with the arguments and the result of `MessageQueueSelector.select`."""

Selector = MessageQueueSelector | SelectFunction


def select_function(selector: Selector) -> SelectFunction:
    """Return the selector as a function of queues, message and argument.

    Raises:
        MessageError: `selector` is neither an object with a method `select` nor a function.
    """
    if not isinstance(selector, type):  # `select` of a class would lack its object
        select: Any = getattr(selector, "select", selector)
        if callable(select):
            return select  # type: ignore[no-any-return]  # that it is callable is all that can be checked
    raise MessageError(
        f"selector={selector!r:.80}: give a function of (queues, message, arg), or an object with such a method select"
    )


def java_hash(value: str | int) -> int:
    """Return Java's `hashCode` of a string or an integer, as a signed 32-bit number.

    Raises:
        MessageError: `value` is neither a string nor an integer of at most 64 bits.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise MessageError(f"arg={value!r}: give a string or an integer to select a queue")
    if isinstance(value, str):
        result = 0
        units = value.encode("utf-16-be", "surrogatepass")
        for high, low in zip(units[::2], units[1::2], strict=True):
            result = (31 * result + (high << 8 | low)) % _INT
    else:
        if not -(2**63) <= value < 2**63:
            raise MessageError(f"arg={value!r}: give an integer of at most 64 bits")
        result = value % _INT
        if not -(2**31) <= value < 2**31:
            result ^= (value >> 32) % _INT
    return result - _INT if result >= _INT // 2 else result


class SelectMessageQueueByHash:
    """A selector by the hash of `arg`: equal arguments give the same queue while the number of queues does not change.

    Source: `SelectMessageQueueByHash` of RocketMQ.
    """

    def select(self, queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
        """Return the queue for the hash of `arg`."""
        del message
        value = java_hash(arg)
        return queues[abs(value) % len(queues)]


class SelectMessageQueueByRandom:
    """A selector that chooses a random queue; all queues are equally likely.

    Source: `SelectMessageQueueByRandom` of RocketMQ.
    """

    def select(self, queues: Sequence[MessageQueue], message: Message, arg: Any) -> MessageQueue:
        """Return a random queue; `arg` is ignored."""
        del message, arg
        return random.choice(queues)  # noqa: S311 - for load balancing, not for security
