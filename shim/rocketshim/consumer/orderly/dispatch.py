"""Makes the queues of an orderly consumer, hands out their runs, and performs what the core decides on the answers.

The core (`OrderlyQueue`) decides that a message becomes a dead letter, or that its queue waits. Both are counted here.

Owned by the poll thread.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, assert_never

from rocketshim.consumer.dispatch import Dispatch, LoopParts, Result
from rocketshim.core.consume_concurrently import DEAD_LETTER_LEVEL, ConsumeReturnType
from rocketshim.core.consume_orderly import (
    BatchAnswer,
    ConsumeOrderlyStatus,
    DeadLetterOrderly,
    OrderlyAction,
    Suspended,
)
from rocketshim.core.next_hop import FailedMessage
from rocketshim.core.orderly_queue import OrderlyQueue, OrderlyTask
from rocketshim.logs import safe_logger
from rocketshim_topics import Failure, MalformedRecordError, MessageView, TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.wire import coordinates

if TYPE_CHECKING:
    from rocketshim.locks.lease import ReconsumeCounts

__all__ = ["OrderlyDispatch"]

_LOG = safe_logger("rocketshim.consumer")
_STUCK_FROM: Final = 16
_NEEDS_NO_AUTO_COMMIT: Final = (ConsumeOrderlyStatus.COMMIT, ConsumeOrderlyStatus.ROLLBACK)


class OrderlyDispatch(Dispatch[OrderlyQueue]):
    """Makes orderly queues, hands out one run of each at a time, and performs the actions of the core.

    Attributes:
        reconsume_counts: failed attempts of a partition's messages that the group's log knows, until its queue is made.
    """

    def __init__(self, parts: LoopParts) -> None:
        super().__init__(parts)
        self.reconsume_counts: dict[TopicPartitionKey, ReconsumeCounts] = {}
        self._settings = parts.settings
        self._retry_topic = TopicNames(parts.settings.namespace).retry(parts.settings.group)
        self._leases = parts.reader.ownership.leases
        self._misplaced = False

    def make_queue(self, key: TopicPartitionKey, epoch: int) -> OrderlyQueue:
        """Make the queue of a partition in an epoch.

        Decides: What does the next owner of a queue know of failed attempts? What renewals and the release carried into
            the group's log; it comes with the grant.
        """
        is_retry = key.topic == self._retry_topic
        return OrderlyQueue(
            key,
            epoch,
            max_reconsume_times=self._settings.max_reconsume_times,
            suspend_ms=self._settings.suspend_current_queue_time_ms,
            reconsume_counts=self._counts_of(key),
            stored_count=_stored_count if is_retry else None,
            message_limit=lambda message: _message_limit(message, trusted=is_retry),
            key_of=_key_of if self._settings.order == "key" else None,
        )

    def _counts_of(self, key: TopicPartitionKey) -> Iterable[tuple[int, int]]:
        """Return the failed attempts of a partition's messages, including processes that died too often at one.

        Both may count the same deaths, because renewals carry the sum: so the larger one counts.
        """
        counts = dict(self.reconsume_counts.pop(key, ()))
        for offset, times in self.care.guilty(key).items():
            counts[offset] = max(counts.get(offset, 0), times - 1)
        return sorted(counts.items())

    def _take_few(self, queue: OrderlyQueue, limit: int) -> OrderlyTask | None:
        task = queue.take(limit, self._now_ms())
        if task is not None:
            task.lease = self._leases[queue.key]
        return task

    def _is_withheld(self, task: OrderlyTask) -> bool:
        if not task.withheld:
            return False
        self.in_flight -= len(task.messages)
        task.queue.report((), self._now_ms())
        return True

    def _fail(self, task: OrderlyTask, failure: Failure, times: int) -> None:
        del times  # the queue has counted them
        task.failure = failure
        self.in_flight -= len(task.messages)
        self.counts.add_failed(ConsumeReturnType.FAILED)
        answer = BatchAnswer(1, ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT, skipped=True)
        self._perform(task, task.queue.report([answer], self._now_ms()))

    def _hand_out(self, queues: Iterable[OrderlyQueue]) -> None:
        for queue in queues:
            task = self._take_few(queue, max(queue.run_limit, self._batch_count))
            if task is not None:
                self.in_flight += len(task.messages)
                self.pool.submit(task)

    def _take(self, result: Result) -> None:
        task, answers = result.chunk, result.outcomes or []
        self.in_flight -= len(task.messages)
        if result.died is not None:
            self.died = self.died or result.died
            return
        stopped = sum(answer.msg_count for answer in answers if answer.stops)
        self.counts.add_failed(ConsumeReturnType.FAILED, stopped)
        self.counts.succeeded += sum(answer.msg_count for answer in answers) - stopped
        self._add_call(result.elapsed_ns, task.messages)
        self._log_misplaced(answers)
        self._perform(task, task.queue.report(answers, self._now_ms()))

    def _stored(self, task: OrderlyTask, messages: Iterable[Any]) -> None:
        for message in messages:
            self._perform(task, task.queue.dead_lettered(message.offset(), self._now_ms()))

    def _perform(self, task: OrderlyTask, actions: Iterable[OrderlyAction]) -> None:
        for action in actions:
            match action:
                case DeadLetterOrderly(message, reconsume_times):
                    failure, malformed = task.why(message)
                    outcome = FailedMessage(
                        message,
                        failure or Failure("Suspended", "", self._wall_ms()),
                        asked_level=DEAD_LETTER_LEVEL,
                        malformed=malformed,
                        reconsume_times=reconsume_times,
                    )
                    self.send_back.send(task, outcome)
                case Suspended():
                    self._log_suspended(action, task)
                case _:
                    assert_never(action)

    def _log_misplaced(self, answers: Iterable[BatchAnswer]) -> None:
        """Log, once, that COMMIT or ROLLBACK under auto-commit was taken for SUCCESS."""
        if not self._misplaced:
            misplaced = (each.status for each in answers if each.auto_commit and each.status in _NEEDS_NO_AUTO_COMMIT)
            if (status := next(misplaced, None)) is not None:
                self._misplaced = True
                _LOG.warning("consumer.status-misplaced", extra={"status": status.name})

    def _log_suspended(self, action: Suspended, task: OrderlyTask) -> None:
        """Log a failed attempt, and that a message holds up its queue.

        Decides: How is a message noticed that holds up its orderly queue? An error in the log at 16, 32, 64 … attempts;
            metrics failing_reconsume_times and failing_seconds (`consumer_metrics.ConsumerState`).
        """
        self.orderly_counts.suspended += 1
        times = action.reconsume_times
        failure, _ = task.why(action.message)
        if failure is not None:
            self.send_back.suspended(action.message, failure, times, max(0, action.until_ms - self._now_ms()))
        stuck = action.forever and times >= _STUCK_FROM
        if stuck:
            self.orderly_counts.stuck += 1
        if stuck and times & (times - 1) == 0:  # 16, 32, 64 … times
            _LOG.error(
                "consumer.message-stuck",
                extra={
                    "record": coordinates(action.message),
                    "reconsume_times": times,
                    "failure": "" if failure is None else f"{failure.exception_class}: {failure.text}"[:300],
                },
            )


def _key_of(message: Any) -> Any:
    return message.key()


def _stored_count(message: Any) -> int:
    try:
        return MessageView(message, trusted=True).reconsume_times
    except MalformedRecordError:
        return 0


def _message_limit(message: Any, *, trusted: bool) -> int | None:
    try:
        return MessageView(message, trusted).max_reconsume_times
    except MalformedRecordError:
        return None
