"""Give a listener the values of its messages: `listener(topic, codec=…)` wraps the listener with these functions.

A message whose body cannot be decoded fails with what `decode_body` raises, and becomes a dead letter if that is
`UndecodableBody`. In a batch it fails alone: the listener gets the other messages, and the answers are merged.
"""

from collections.abc import Callable, Sequence
from typing import Any

from rocketshim.codecs import Codec, decode_body
from rocketshim.core.consume_concurrently import ALL, ConsumeStatus, is_success, item_answers, succeeded_count
from rocketshim.core.subscriptions import Listener
from rocketshim.core.user_values import as_int

__all__ = ["decoding"]


def decoding(listener: Listener, codec: Codec[Any], *, awaits: bool, lists: bool) -> Listener:
    """Return a listener that decodes the bodies before it calls another one.

    Args:
        listener: what is called with the decoded messages.
        codec: decodes the bodies.
        awaits: whether the listener is `async def`.
        lists: whether the listener gets lists of messages.
    """
    if lists:
        return _awaited_lists(listener, codec) if awaits else _called_lists(listener, codec)
    return _awaited(listener, codec) if awaits else _called(listener, codec)


def _called(listener: Listener, codec: Codec[Any]) -> Listener:
    def call(message: Any, context: Any) -> Any:
        message._value = decode_body(codec, message)  # noqa: SLF001 - of our view
        return listener(message, context)

    return call


def _awaited(listener: Listener, codec: Codec[Any]) -> Callable[[Any, Any], Any]:
    async def call(message: Any, context: Any) -> Any:
        message._value = decode_body(codec, message)  # noqa: SLF001
        return await listener(message, context)

    return call


def _called_lists(listener: Listener, codec: Codec[Any]) -> Listener:
    def call(messages: list[Any], context: Any) -> Any:
        readable, answers = _decoded(messages, codec)
        if not readable:
            return answers
        if len(readable) == len(messages):
            return listener(messages, context)
        try:
            status = listener(readable, context)
        except BaseException as error:  # noqa: BLE001 - user code: its messages failed, beside those that it did not get
            status = [error] * len(readable)
        return _merged(answers, _for_each(status, context, len(readable)))

    return call


def _awaited_lists(listener: Listener, codec: Codec[Any]) -> Callable[[Any, Any], Any]:
    async def call(messages: list[Any], context: Any) -> Any:
        readable, answers = _decoded(messages, codec)
        if not readable:
            return answers
        if len(readable) == len(messages):
            return await listener(messages, context)
        try:
            status = await listener(readable, context)
        except Exception as error:  # noqa: BLE001 - as above; a cancellation is of the whole call
            status = [error] * len(readable)
        return _merged(answers, _for_each(status, context, len(readable)))

    return call


def _decoded(messages: Sequence[Any], codec: Codec[Any]) -> tuple[list[Any], list[object]]:
    """Decode each message; return those that have a value now, and for each message None or its error."""
    readable: list[Any] = []
    answers: list[object] = []
    for message in messages:
        try:
            message._value = decode_body(codec, message)  # noqa: SLF001
        except Exception as error:  # noqa: BLE001 - of the codec, which is user code
            answers.append(error)
        else:
            readable.append(message)
            answers.append(None)
    return readable, answers


def _for_each(status: object, context: Any, count: int) -> list[object]:
    """Return one answer for each message of a call, and take back what its context said for all of them."""
    items = item_answers(status, count)
    if items is not None:
        return items
    ack_index = as_int(context.ack_index)
    context.ack_index = ALL
    done = 0 if ack_index is None else succeeded_count(status, ack_index, count)
    failed: object = ConsumeStatus.RECONSUME_LATER if is_success(status) else status
    return [*([None] * done), *([failed] * (count - done))]


def _merged(answers: Sequence[object], of_readable: list[object]) -> list[object]:
    """Put the answers for the readable messages where the list of all messages has None."""
    following = iter(of_readable)
    return [next(following) if answer is None else answer for answer in answers]
