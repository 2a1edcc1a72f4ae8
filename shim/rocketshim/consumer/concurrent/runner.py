"""Call user code: one chunk, its filter, its listener, its outcomes. Runs in listener threads.

Rules of this module:

* Concurrent listeners and filters are called only here, under no lock, and never get a Kafka object.
* Every exception of user code is an outcome, `SystemExit` included, as RocketMQ catches every Throwable. A message must
  not be able to end a thread, and with it the consumer, each time it is delivered.
* A message that the filter does not match has succeeded: no listener is called, and its offset moves on.
* A record of the group's own retry topic has the topic of its first delivery, and goes to that topic's listener. If
  there is no such listener, it is sent on, since another member may have one (`core.next_hop`); after a day it goes to
  the dead-letter topic (`NoListener`). If it breaks the wire format, it is parked.
* An exception, a context or a status from user code is user code, too: its `str()` may raise, its `ack_index` may be a
  text, its `__class__` may lie. It is read with care (`core.user_values`, `type(…)`). If it cannot be read, the message
  has failed, and `FAIL_TEXT` or the log has the reason.
* What can be looked up per chunk is not looked up per message: `_one_by_one` is the hot path.
"""

from asyncio import CancelledError
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, cast

from rocketshim.consumer.runner import Runner, WithoutContext, asked_level, wants
from rocketshim.core.failure_rules import Rules
from rocketshim.core.listener_answers import (
    ALL,
    DEAD_LETTER_LEVEL,
    NOT_ASKED,
    ConsumeConcurrentlyContext,
    ConsumeOrderlyStatus,
    ConsumeStatus,
    is_success,
    item_answers,
    succeeded_count,
)
from rocketshim.core.next_hop import FailedMessage
from rocketshim.core.process_queue import Chunk
from rocketshim.core.subscriptions import Subscription
from rocketshim.core.user_values import as_int, attribute, safe_text
from rocketshim.filters.selection import matching
from rocketshim_topics import Failure, MessageView
from rocketshim_topics.message import FirstView, first_views

__all__ = ["ConcurrentRunner"]


class ConcurrentRunner(Runner):
    """Runs chunks."""

    __slots__ = ()

    def run(self, chunk: Chunk) -> list[FailedMessage] | None:
        """Call the listener for all that is still in `todo`; return the messages that failed, None: none has."""
        topic, context = chunk.queue.key.topic, self.context_of(chunk)
        subscription = self._subscription_of(topic)
        if topic == self._retry_topic or subscription is None or subscription.selects is not None:
            return self._routed(chunk, context)
        if self._batch_count == 1:
            return self._one_by_one(chunk, subscription, context)
        return self._in_batches(chunk, subscription, context)

    def context_of(self, chunk: Chunk) -> ConsumeConcurrentlyContext:
        """Return a new context for calls with messages of a chunk."""
        return ConsumeConcurrentlyContext(self._group, self._message_queue(chunk.queue.key), chunk.queue.epoch)

    def _one_by_one(
        self, chunk: Chunk, subscription: Subscription, context: ConsumeConcurrentlyContext
    ) -> list[FailedMessage] | None:
        outcomes: list[FailedMessage] = chunk.outcomes
        listener, success = subscription.listener, ConsumeStatus.CONSUME_SUCCESS
        alone = listener.function if type(listener) is WithoutContext else None
        for message in self._matching(chunk, subscription, outcomes):
            chunk.in_work = message
            view = FirstView()  # in C; the assignment is what its constructor would do
            view._record = message  # noqa: SLF001
            try:
                status = listener(view, context) if alone is None else alone(view)
                succeeded = status is None or status is success
                if succeeded and context.ack_index is ALL and context.delay_level_when_next_consume is NOT_ASKED:
                    continue  # nearly always: the context is untouched
                outcomes += self._answered((message,), status, context, subscription.rules)
            except BaseException as error:  # noqa: BLE001 - user code: its message failed, whatever it has raised
                outcomes.append(self._raised(message, error, context, subscription.rules))
            context = context.fresh()
        return outcomes or None

    def _in_batches(
        self, chunk: Chunk, subscription: Subscription, context: ConsumeConcurrentlyContext
    ) -> list[FailedMessage] | None:
        outcomes: list[FailedMessage] = chunk.outcomes
        source, wanted = self._matching(chunk, subscription, outcomes), self._batch_count
        while batch := list(islice(source, wanted)):
            chunk.in_work = batch
            outcomes += self._call(subscription, first_views(batch), batch, context)
            context = context.fresh()
        return outcomes or None

    def _matching(self, chunk: Chunk, subscription: Subscription, outcomes: list[FailedMessage]) -> Iterator[Any]:
        """Yield the messages for the listener; a record that the filter cannot read has failed, but no other."""
        matches = subscription.matches
        if matches is None:
            return chunk.todo

        def unreadable(message: Any, error: Exception) -> None:
            outcomes.append(self._raised(message, error, self.context_of(chunk)))  # no listener has set anything

        if subscription.sieve is not None:
            return subscription.sieve(chunk.todo, unreadable)
        return matching(matches, chunk.todo, unreadable)

    def _routed(self, chunk: Chunk, context: ConsumeConcurrentlyContext) -> list[FailedMessage] | None:
        """Process messages that may differ in their listener, or that a selector of the user looks at."""
        outcomes: list[FailedMessage] = chunk.outcomes
        while True:
            chunk.in_work = None  # a finished message must not time out while the selector runs
            taken = self.next_batch(chunk, context, outcomes)
            if taken is None:
                return outcomes or None
            subscription, batch, given = taken
            chunk.in_work = batch
            outcomes += self._call(subscription, given, batch, context)
            context = context.fresh()

    def next_batch(
        self, chunk: Chunk, context: ConsumeConcurrentlyContext, outcomes: list[FailedMessage]
    ) -> tuple[Subscription, list[Any], Any] | None:
        """Take the next messages of a chunk for one call, and what the listener gets; None: no message is left.

        Messages that never reach a listener (filtered, malformed, without a listener) are completed here.
        """
        trusted = chunk.queue.key.topic == self._retry_topic
        wanted = 1 if trusted else self._batch_count
        found: Subscription | None = None
        batch: list[Any] = []
        views: list[MessageView] = []
        for message in chunk.todo:
            view = MessageView(message, trusted)
            subscription = self._wanted(view, message, context, outcomes)
            if subscription is not None:
                found = subscription
                batch.append(message)
                views.append(view)
                if len(batch) == wanted:
                    break
        return None if found is None else (found, batch, views if self._batch_count > 1 else views[0])

    def _wanted(
        self, view: MessageView, message: Any, context: ConsumeConcurrentlyContext, outcomes: list[FailedMessage]
    ) -> Subscription | None:
        """Return the subscription whose listener gets the message; None if it is finished or has failed already."""
        found = self._route(view)
        if not isinstance(found, Subscription):
            failure, malformed = found
            # a malformed message is parked; without a listener it is dead only when it can no longer be sent on
            level = NOT_ASKED if malformed else DEAD_LETTER_LEVEL
            outcomes.append(FailedMessage(message, failure, asked_level=level, malformed=malformed))
            return None
        try:
            return found if wants(found, view) else None
        except BaseException as error:  # noqa: BLE001 - user code, or a record that the filter cannot read
            outcomes.append(self._raised(message, error, context))
            return None

    def _call(
        self, subscription: Subscription, given: Any, batch: Sequence[Any], context: ConsumeConcurrentlyContext
    ) -> Iterable[FailedMessage]:
        """Call a listener; return the messages that did not succeed."""
        try:
            status = subscription.listener(given, context)
            return self._answered(batch, status, context, subscription.rules)
        except BaseException as error:  # noqa: BLE001 - user code: its messages failed, whatever it raised
            return self.raised(batch, error, context, subscription.rules)

    async def await_call(
        self, subscription: Subscription, given: Any, batch: Sequence[Any], context: ConsumeConcurrentlyContext
    ) -> Iterable[FailedMessage]:
        """Call an `async def` listener; return the messages that did not succeed.

        Raises CancelledError: the call was cancelled, or the listener raised it.
        """
        try:
            status = await subscription.listener(given, context)
            return self._answered(batch, status, context, subscription.rules)
        except CancelledError:
            raise
        except BaseException as error:  # noqa: BLE001 - user code: its messages failed, whatever it raised
            return self.raised(batch, error, context, subscription.rules)

    def raised(
        self, batch: Sequence[Any], error: BaseException, context: ConsumeConcurrentlyContext, rules: Rules = None
    ) -> list[FailedMessage]:
        """Return the messages of a call that raised."""
        return [self._raised(message, error, context, rules) for message in batch]

    def _raised(
        self, message: Any, error: BaseException, context: ConsumeConcurrentlyContext, rules: Rules = None
    ) -> FailedMessage:
        set_level = asked_level(attribute(context, "delay_level_when_next_consume", NOT_ASKED))
        is_final, level, delay_ms = self._meaning_of(error, rules, has_asked=set_level != NOT_ASKED)
        level = DEAD_LETTER_LEVEL if is_final else level or set_level
        failure = self._failure_of_call(error, message.topic())
        return FailedMessage(message, failure, asked_level=level, asked_delay_ms=delay_ms)

    def _answered(
        self, batch: Sequence[Any], status: object, context: ConsumeConcurrentlyContext, rules: Rules
    ) -> Iterable[FailedMessage]:
        """Return the messages that did not succeed in a call that returned.

        Decides: What does a listener's return value mean? In order, `consumer.orderly.runner.OrderlyRunner._answered`.
        """
        if context.untouched and (status is None or status is ConsumeStatus.CONSUME_SUCCESS):
            return ()  # nearly always
        items = item_answers(status, len(batch)) if self._batch_count > 1 else None
        if items is not None:
            pairs = zip(batch, items, strict=True)
            return [self._item(message, item, context, rules) for message, item in pairs if not is_success(item)]
        done, failure = 0, self._failure_of(status)
        if is_success(status):
            ack_index = as_int(context.ack_index)
            if ack_index is None:
                text = f"the listener set ack_index={safe_text(context.ack_index, repr):.200}: it is a whole number"
                failure = Failure("AckIndexError", text, failure.at_ms)
            else:
                done = succeeded_count(status, ack_index, len(batch))
        if done == len(batch):
            return ()
        level = asked_level(context.delay_level_when_next_consume)
        return [FailedMessage(message, failure, asked_level=level) for message in batch[done:]]

    def _item(self, message: Any, answer: object, context: ConsumeConcurrentlyContext, rules: Rules) -> FailedMessage:
        """Make the outcome of one message of a batch that the listener has reported as failed."""
        if issubclass(type(answer), BaseException):
            return self._raised(message, cast("BaseException", answer), context, rules)
        level = asked_level(context.delay_level_when_next_consume)
        return FailedMessage(message, self._failure_of(answer), asked_level=level)

    def _failure_of(self, answer: object) -> Failure:
        """Return the failure that a listener's answer means; a success means that it asked for a retry of others."""
        if not is_success(answer) and type(answer) not in {ConsumeStatus, ConsumeOrderlyStatus}:
            return self._no_status(answer, "ConsumeStatus")
        return Failure("ReconsumeLater", "the listener asked for it", self._clock.wall_ms())
