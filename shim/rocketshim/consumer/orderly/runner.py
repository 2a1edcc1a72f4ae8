"""Calls an orderly listener for one run of one queue, in order, up to the first answer that stops. In listener threads.

With order by key and one message per call, a failure does not end the run. The run continues with the messages of other
keys, and the messages of the failed key stay for a later run. Otherwise every failure would cost a hand-over between
two threads, which would take all the time of a queue with many failing keys.

* Before each call the runner checks the lease, whether the queue is withheld, and the run's time slice. If one of them
  does not allow the call, the run ends, and the messages not reached go back. The lock costs one read of the monotonic
  clock per call, and nothing else.
* A run ends after at most 100 ms plus the current call, so that commits, renewals and rebalances see progress.
* The filter is evaluated first, for the whole run: messages that it skips are finished in any case. A message that the
  filter cannot read fails when its turn comes.
* Every exception is SUSPEND (`RetryLater` sets the wait, `DeadLetter` requests the dead-letter topic), also
  `SystemExit` and similar ones, as RocketMQ catches every Throwable.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from rocketshim.consumer.runner import Runner, WithoutContext, wants
from rocketshim.core.failure_rules import Rules
from rocketshim.core.listener_answers import (
    NOT_ASKED,
    ConsumeOrderlyContext,
    ConsumeOrderlyStatus,
    ConsumeStatus,
    orderly_status,
)
from rocketshim.core.orderly_queue import BatchAnswer, OrderlyTask
from rocketshim.core.subscriptions import Subscription
from rocketshim.core.user_values import as_int, attribute, safe_text
from rocketshim.logs import safe_logger
from rocketshim_topics import Failure, MalformedRecordError, MessageView
from rocketshim_topics.message import FirstView
from rocketshim_topics.wire import Record, read_again, read_headers

__all__ = ["OrderlyRunner"]

_LOG = safe_logger("rocketshim.consumer")
_SLICE_NS: Final = 100_000_000
_NS: Final = 1_000_000
_SUSPEND: Final = ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


class TriedMessageView(MessageView):
    """A message that has failed before and stayed in its queue: the queue, not the record, has its failure count."""

    __slots__ = ("_times",)

    def __init__(self, record: Record, trusted: bool, times: int) -> None:
        super().__init__(record, trusted)
        self._times = times

    @property
    def reconsume_times(self) -> int:
        """The number of failed attempts so far."""
        return self._times

    def __reduce__(self) -> tuple[Any, ...]:
        return TriedMessageView, (self._record, self._trusted, self._times), super().__reduce__()[2]


class OrderlyRunner(Runner):
    """Runs tasks through their listeners."""

    __slots__ = ()

    def run(self, task: OrderlyTask) -> list[BatchAnswer]:
        """Call the listener for the messages of a run, in order; return the answers, which cover its beginning."""
        task.began_ms = self._clock.monotonic_ns() // _NS
        topic = task.queue.key.topic
        if topic == self._retry_topic:
            return self._in_batches(
                task, ([message] for message in task.messages), lambda one: self._retried(task, *one)
            )
        subscription = self._subscription_of(topic)
        if subscription is None:
            task.failure = self._no_listener(topic)
            return [_unheard(dead_letter=True)]
        skipped, end = self._ask_filter(task, subscription)
        answers = [BatchAnswer(skipped, skipped=True)] if skipped else []
        if skipped == end < len(task.messages):  # the filter cannot read the next one
            return [*answers, _unheard(dead_letter=task.malformed is not None)]
        task.failure = task.malformed = None
        if self._batch_count == 1:
            self._one_by_one(task, subscription, skipped, end, answers)
            return answers
        return answers + self._in_batches(
            task,
            task.batches(skipped, end, self._batch_count),
            lambda batch: self._call(task, subscription, [self._view(each, task) for each in batch], batch),
        )

    # --- calls -------------------------------------------------------------------------------------------------------

    def _one_by_one(
        self, task: OrderlyTask, subscription: Subscription, begin: int, end: int, answers: list[BatchAnswer]
    ) -> None:
        listener: Any = subscription.listener
        alone = listener.function if type(listener) is WithoutContext else None
        now_ns, counts, success = self._clock.monotonic_ns, task.counts, ConsumeOrderlyStatus.SUCCESS
        lease = task.lease
        until_ms = lease.until_ms  # renewals only increase it; otherwise the lease has ended
        stop_ns = min(now_ns() + _SLICE_NS, until_ms * _NS)
        context = self._context(task)
        done = 0
        stopped = task.stopped
        for message in islice(task.messages, begin, end):
            if now_ns() >= stop_ns or lease.until_ms < until_ms or task.withheld:  # `_may_begin`, written out
                break
            if stopped and task.skips(message):
                continue
            times = counts.get(message.offset()) if counts else None
            view: MessageView
            if times is None:
                view = FirstView()  # in C; the assignment below does the work of its constructor
                view._record = message  # noqa: SLF001
            else:
                view = TriedMessageView(message, False, times)  # noqa: FBT003
            try:
                status = listener(view, context) if alone is None else alone(view)
                if (status is None or status is success) and (
                    alone is not None or (context.auto_commit is True and context.suspend_current_queue_time_ms == -1)
                ):
                    done += 1  # the usual case
                    continue
                answer = self._answered(task, status, context, [message])
            except BaseException as error:  # noqa: BLE001 - user code: its message failed, whatever it raised
                answer = self._raised(task, error, context, [message], subscription.rules)
            if done:
                answers.append(BatchAnswer(done))
                done = 0
            answers.append(answer)
            if answer.stops and not task.continues_after(message, answer):
                break
            context = self._context(task)
        if done:
            answers.append(BatchAnswer(done))
        task.put_skipped_behind(answers)

    def _in_batches(
        self, task: OrderlyTask, batches: Iterable[list[Any]], answer_to: Callable[[list[Any]], BatchAnswer]
    ) -> list[BatchAnswer]:
        """Answer batch by batch, up to the first answer that stops, while calls may begin."""
        answers: list[BatchAnswer] = []
        slice_end_ns = self._clock.monotonic_ns() + _SLICE_NS
        for batch in batches:
            if not self._may_begin(task, slice_end_ns):
                break
            answers.append(answer_to(batch))
            if answers[-1].stops:
                break
        return answers

    def _retried(self, task: OrderlyTask, message: Any) -> BatchAnswer:
        """Handle a message of the retry topic; it goes to the listener of its original topic."""
        view = self._view(message, task, trusted=True)
        found = self._route(view)
        if not isinstance(found, Subscription):
            task.failure, task.malformed = found
            return _unheard(dead_letter=True)
        if not wants(found, view):
            return BatchAnswer(1, skipped=True)
        return self._call(task, found, view if self._batch_count == 1 else [view], [message])

    def _call(self, task: OrderlyTask, subscription: Subscription, views: Any, messages: list[Any]) -> BatchAnswer:
        context = self._context(task)
        try:
            return self._answered(task, subscription.listener(views, context), context, messages)
        except BaseException as error:  # noqa: BLE001 - user code: its messages failed, whatever it raised
            return self._raised(task, error, context, messages, subscription.rules)

    def _may_begin(self, task: OrderlyTask, slice_end_ns: int) -> bool:
        now_ns = self._clock.monotonic_ns()
        return task.lease.holds(now_ns // _NS) and now_ns < slice_end_ns and not task.withheld

    def _ask_filter(self, task: OrderlyTask, subscription: Subscription) -> tuple[int, int]:
        """Move messages that the filter skips to the front; return their number, and how many messages the run has."""
        messages = task.messages
        suspect_until = task.queue.suspect_until
        if subscription.matches is None and subscription.selects is None and suspect_until < 0:
            return 0, len(messages)
        skipped: list[Any] = []
        matched: list[Any] = []
        read = 0
        for message in messages:
            try:
                if message.offset() <= suspect_until:  # a batch ends before an unreadable message: it is parked alone
                    read_headers(message)
                wanted = wants(subscription, self._view(message, task))
            except BaseException as error:  # noqa: BLE001 - user code, or a record that the filter cannot read
                task.failure, task.malformed = self._failures.of(error), _malformed(message)
                break
            (matched if wanted else skipped).append(message)
            read += 1
        messages[:read] = skipped + matched
        return len(skipped), read

    # --- answers -----------------------------------------------------------------------------------------------------

    def _context(self, task: OrderlyTask) -> ConsumeOrderlyContext:
        queue, token = task.queue, task.lease.fencing_token
        return ConsumeOrderlyContext(self._group, self._message_queue(queue.key), queue.epoch, token)

    def _view(self, message: Any, task: OrderlyTask, *, trusted: bool = False) -> MessageView:
        times = task.counts.get(message.offset()) if task.counts else None
        return MessageView(message, trusted) if times is None else TriedMessageView(message, trusted, times)

    def _answered(
        self, task: OrderlyTask, returned: object, context: ConsumeOrderlyContext, messages: list[Any]
    ) -> BatchAnswer:
        status = orderly_status(returned)
        if status is _SUSPEND:
            if returned is _SUSPEND or returned is ConsumeStatus.RECONSUME_LATER:
                task.failure = Failure("Suspended", "the listener asked for it", self._clock.wall_ms())
            else:
                task.failure = self._no_status(returned, "ConsumeOrderlyStatus")
        answer = BatchAnswer(len(messages), status, context.auto_commit is not False, _suspend_ms(context))
        if answer.stops and self._is_unreadable(task, messages) and status is _SUSPEND:
            answer = replace(answer, dead_letter=True)
        return answer

    def _raised(
        self, task: OrderlyTask, error: BaseException, context: ConsumeOrderlyContext, messages: list[Any], rules: Rules
    ) -> BatchAnswer:
        task.failure = self._failure_of_call(error, task.queue.key.topic)
        suspend_ms = _suspend_ms(context)
        is_final, level, delay_ms = self._meaning_of(error, rules, has_asked=suspend_ms != -1)
        if delay_ms is not None:
            suspend_ms = delay_ms
        elif level != NOT_ASKED:
            suspend_ms = self._levels.delay_ms(self._levels.clamp(level))
        dead_letter = self._is_unreadable(task, messages) or is_final
        auto_commit = attribute(context, "auto_commit") is not False
        return BatchAnswer(len(messages), _SUSPEND, auto_commit, suspend_ms, dead_letter=dead_letter)

    def _is_unreadable(self, task: OrderlyTask, messages: list[Any]) -> bool:
        """Return whether this is a single message with unreadable headers, which has to be parked.

        A batch that contains such a message is split at its next attempt.
        """
        found = next(((message, reason) for message in reversed(messages) if (reason := _malformed(message))), None)
        if found is None:
            return False
        last, reason = found
        task.queue.suspect_until = max(task.queue.suspect_until, last.offset())
        if len(messages) > 1:
            return False
        task.malformed = reason
        return True


def _unheard(*, dead_letter: bool) -> BatchAnswer:
    """Return the answer for a message that fails before it reaches a listener."""
    return BatchAnswer(1, _SUSPEND, dead_letter=dead_letter, skipped=True)


def _malformed(message: Any) -> str | None:
    """Return why the headers of a message that user code has seen are unreadable; None: they are readable."""
    try:
        read_again(message)
    except MalformedRecordError as error:
        return error.reason
    return None


def _suspend_ms(context: ConsumeOrderlyContext) -> int:
    """Return the wait that the listener set; log and ignore a value that is not a whole number."""
    value: object = attribute(context, "suspend_current_queue_time_ms", -1)  # a deleted attribute counts as not set
    wait_ms = as_int(value)
    if wait_ms is None:
        _LOG.error("consumer.suspend-time-ignored", extra={"asked": safe_text(value, repr)})
        return -1
    return wait_ms
