"""Listeners: how a subscription is made of what a program gives, and what both kinds of runner share in calling one.

What a program gives is a function that takes messages, a filter, and a codec. A listener with a codec is wrapped. A
message whose body cannot be decoded fails with what `decode_body` raises, and becomes a dead letter if that is
`UndecodableBody`. In a batch it fails alone: the listener gets the other messages, and the answers are merged.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from types import CoroutineType
from typing import Any, Unpack

from rocketshim.codecs import Codec, UndecodableBody, codec_of, decode_body
from rocketshim.core.clock import Clock
from rocketshim.core.listener_answers import (
    ALL,
    NOT_ASKED,
    ConsumeStatus,
    DeadLetter,
    RetryLater,
    Rules,
    failure_rules,
    is_success,
    item_answers,
    succeeded_count,
)
from rocketshim.core.next_hop import NO_LISTENER
from rocketshim.core.subscriptions import Listener, Subscription, Subscriptions
from rocketshim.core.user_values import as_int, attribute, safe_text, signature_of
from rocketshim.errors import ConfigError
from rocketshim.failures import FailureMaker
from rocketshim.filters import CallableFilter, TagFilter, compile_filter
from rocketshim.logs import safe_logger
from rocketshim.settings.consumer import ListenerOptions, PushConsumerSettings, check_listener_options
from rocketshim_topics import Failure, MalformedRecordError, MessageView, TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.wire import read_headers

__all__ = ["Runner", "WithoutContext", "adapt", "asked_level", "is_async", "subscription_of", "wants"]

_LOG = safe_logger("rocketshim.consumer")


class WithoutContext:
    """A listener that takes the message alone; the hot path calls `function` itself."""

    __slots__ = ("function",)

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, message: Any, context: object) -> Any:
        """Call the function with the message."""
        del context
        return self.function(message)


def adapt(function: Callable[..., Any]) -> Listener:
    """Make a listener from a function of one argument (the message) or two (the message and the context).

    Raises ConfigError: it takes neither, or a call of it would handle no message: a class, or a generator function.
    """
    if not callable(function):
        raise ConfigError(f"{function!r} is not a listener: it must be callable with a message and a context")
    if isinstance(function, type):
        raise ConfigError(f"{function!r} is a class: a listener is a function, or an object that can be called")
    for each in (function, getattr(function, "__call__", None)):  # noqa: B004
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            raise ConfigError(
                f"{function!r} contains yield, so that a call of it does nothing: a listener returns, or raises"
            )
    try:
        signature = signature_of(function)
    except (TypeError, ValueError):
        return function
    with suppress(TypeError):
        second = signature.parameters[[*signature.bind(None, None).arguments][-1]]
        if second.default is second.empty or second.default is None:  # `dry_run=False` stays False
            return function
    try:
        signature.bind(None)
    except TypeError as error:
        raise ConfigError(f"{function!r} takes neither (message, context) nor (message): not a listener") from error
    return WithoutContext(function)


def subscription_of(
    topic: str,
    listener: Callable[..., Any] | None,
    among: Subscriptions,
    settings: PushConsumerSettings,
    default_codec: Codec[Any] | None = None,
    **options: Unpack[ListenerOptions],
) -> Subscription:
    """Make a subscription that is compatible with the existing ones; do not add it.

    Without a listener it gets the one that the topic has or had; without `orderly` it is like the existing ones.
    Without a codec a new listener has the default one.

    What is wrong with it is a ConfigError or a FilterSyntaxError.

    Decides: Is the filter asked again when a message comes back from the retry topic? Only an SQL condition, and only
        if the setting filter_support_retry is on; tags and selectors never.
    """
    check_listener_options(options)
    lists = settings.consume_message_batch_max_size > 1
    rules = failure_rules(options.get("dead_on"), options.get("retry_on"))
    codec = codec_of(options.get("body"), options.get("codec")) or default_codec
    physical = among.physical(topic)
    known = among.own(physical)
    if listener is not None:
        function, awaits = adapt(listener), is_async(listener)
        if codec is not None:
            function = _decoding(function, codec, awaits=awaits, lists=lists)
    elif known is not None:
        function, awaits, rules = known.listener, known.awaits, known.rules
    else:
        raise ConfigError(f"subscribe({topic!r}) needs a listener: the topic has no listener yet")
    orderly = bool(options.get("orderly", among.orderly))
    among.check(topic, orderly=orderly, awaits=awaits)
    if orderly and lists and codec is not None:
        raise ConfigError(
            f"{topic!r}: an orderly listener that gets lists cannot have a codec, since one body that cannot be "
            "decoded would fail the whole list: set consume_message_batch_max_size=1"
        )
    chosen = compile_filter(options.get("tags"), options.get("sql"), options.get("selector"))
    made = Subscription(
        physical,
        function,
        expression=str(chosen),
        digest=chosen.digest(),
        orderly=orderly,
        awaits=awaits,
        rules=rules,
    )
    match chosen:
        case CallableFilter():
            return replace(made, selects=chosen.matches)
        case TagFilter():
            return replace(made, matches=None if chosen.matches_all else chosen.matches_headers, sieve=chosen.sieve)
        case _:
            again = chosen.matches_headers if settings.filter_support_retry else None
            return replace(made, matches=chosen.matches_headers, matches_retry=again)


def is_async(function: Callable[..., Any]) -> bool:
    """Return whether a call of the function gives a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))  # noqa: B004


def _decoding(listener: Listener, codec: Codec[Any], *, awaits: bool, lists: bool) -> Listener:
    """Return a listener that decodes the bodies before it calls another one."""
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


class Runner:
    """Runs what a listener thread gets through its listeners; the clock is the one of leases.

    Thread-safety: immutable, except for what user code does; every listener thread uses the same object.
    """

    __slots__ = (
        "_batch_count", "_clock", "_failures", "_group", "_levels", "_queues", "_retry_topic", "_subscription_of",
    )  # fmt: skip

    def __init__(
        self, settings: PushConsumerSettings, subscription_of: Callable[[str], Subscription | None], clock: Clock
    ) -> None:
        self._group = settings.group
        self._subscription_of = subscription_of
        self._retry_topic = TopicNames(settings.namespace).retry(settings.group)
        self._batch_count = settings.consume_message_batch_max_size
        self._levels = settings.delay_levels
        self._clock = clock
        self._failures = FailureMaker(clock, wants_stack=settings.fail_stack)
        self._queues: dict[TopicPartitionKey, MessageQueue] = {}  # made once; a few hundred bytes a partition

    def _message_queue(self, key: TopicPartitionKey) -> MessageQueue:
        known = self._queues.get(key)
        if known is None:
            known = self._queues[key] = MessageQueue(key.topic, queue_id=key.partition)
        return known

    def _no_status(self, returned: object, status: str) -> Failure:
        """Return the failure of a call that returned something other than a status: a mistake of the program."""
        text = f"the listener returned {safe_text(returned, repr):.200}"
        if type(returned) is CoroutineType:
            returned.close()  # it would warn that it was never awaited
            text += ": make the listener itself an `async def` function"
        else:
            text += f": it returns nothing or a {status}, and raises to fail"
        return Failure("ReturnedNoStatus", text, self._clock.wall_ms())

    def _no_listener(self, topic: str) -> Failure:
        """Return the failure of a message that this member has no listener for, and another one might have."""
        text, is_retry = f"no listener for {topic!r} in this consumer", topic != self._retry_topic
        return Failure(NO_LISTENER, text, self._clock.wall_ms(), unhandled=is_retry)

    def _route(self, view: MessageView) -> Subscription | tuple[Failure, str | None]:
        """Return the subscription whose listener gets the message; else the failure, and why the message is malformed.

        Decides: What becomes of a record in a retry topic that another program wrote there? Without
            `RETRY_TOPIC` no listener can have its topic, so it is a dead letter (NoListener); with malformed headers it
            is parked.
        """
        try:
            topic = view.topic
        except MalformedRecordError as error:
            return self._failures.of(error), error.reason
        return self._subscription_of(topic) or (self._no_listener(topic), None)

    def _meaning_of(self, error: BaseException, rules: Rules, *, has_asked: bool) -> tuple[bool, int, int | None]:
        """Return whether an exception ends its message, and otherwise the delay level and the delay in ms it asks for.

        `has_asked`: the listener has set a wait in its context. That counts before the rules of the subscription.

        Decides: What does an exception of a listener mean? `DeadLetter` is final (a body that cannot be decoded is
            one), `RetryLater` sets the wait, any other is final if the rules say so.
        """
        kind = type(error)  # `isinstance` would ask the error for its `__class__`
        if issubclass(kind, DeadLetter):
            return True, NOT_ASKED, None
        if issubclass(kind, RetryLater):
            return False, asked_level(attribute(error, "level")), as_int(attribute(error, "delay_ms"))
        return rules is not None and not has_asked and rules.is_final(kind), NOT_ASKED, None

    def _failure_of_call(self, error: BaseException, topic: str) -> Failure:
        """Return the failure of a call that raised, for a message of this physical topic."""
        failure = self._failures.of(error)
        if topic == self._retry_topic and issubclass(type(error), UndecodableBody):
            return replace(failure, unhandled=True)  # the member that sent it back may have decoded it
        return failure


def asked_level(asked: object) -> int:
    """Return the level that user code has requested; a value that is not a level is logged and ignored."""
    if asked is None:
        return NOT_ASKED
    level = as_int(asked)
    if level is None:
        _LOG.error("consumer.level-ignored", extra={"asked": safe_text(asked, repr)})
    return level or NOT_ASKED


def wants(subscription: Subscription, message: MessageView) -> bool:
    """Return whether a filter selects a message; one that comes back was selected before its first delivery.

    User code is called: it may raise anything, and so do headers that cannot be read. Then the message has failed.

    Decides: Which messages does a filter take out, and what becomes of them? They count as handled, so the commit
        passes them. On the hot path `consumer.concurrent.ConcurrentRunner._matching` does the same for many.
    """
    if message.trusted:
        return subscription.matches_retry is None or subscription.matches_retry(read_headers(message.record))
    if subscription.selects is not None:
        return bool(subscription.selects(message))  # its truth is user code, too
    return subscription.matches is None or subscription.matches(read_headers(message.record))
