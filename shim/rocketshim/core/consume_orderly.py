"""What an orderly listener's answer means: the vocabulary of `orderly_queue`.

Rules (`ConsumeMessageOrderlyService#processConsumeResult`, `#checkReconsumeTimes`). "Open" is what was answered with
success but not committed:

===========  ================================  ============================================  ==================
auto-commit  answer                            what happens                                  committed
===========  ================================  ============================================  ==================
yes          SUCCESS (COMMIT, ROLLBACK: said)  go on                                         batch and all open
yes          SUSPEND, a message goes again     batch back, stop, wait                        –
yes          SUSPEND, all dead-lettered        go on                                         batch and all open
no           SUCCESS                           batch is open, go on                          –
no           COMMIT                            go on                                         batch and all open
no           ROLLBACK                          batch and all open back, counts as they were,  –
                                               stop, wait
no           SUSPEND, a message goes again     batch back (what was open stays so), stop,    –
                                               wait
no           SUSPEND, all dead-lettered        batch is open, go on                          –
===========  ================================  ============================================  ==================

SUSPEND judges each message of the batch: at its limit, or when the listener asked for it, it is to be dead-lettered
and the queue waits until that is stored; otherwise its count rises by one and it goes again. A dead letter that could
not be stored counts as a failure too, and its message goes again.

*Differs on purpose*: a message of a mixed batch whose dead letter is stored is through. It is not handed out again and
not dead-lettered again, also after a ROLLBACK (RocketMQ does both at every round). Under auto-commit it is finished at
once, otherwise it is open, and the next commit takes it.

The wait after a stop is the listener's or the consumer's time, clamped to 10 … 30,000 ms. Deliveries of a message are
its limit + 1; a limit of -1 means for ever, and `Suspended` says which message stands and how often it failed, for an
alarm.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Generic, Protocol, TypeVar

__all__ = [
    "SUSPEND_MAX_MS",
    "SUSPEND_MIN_MS",
    "BatchAnswer",
    "ConsumeOrderlyStatus",
    "DeadLetterOrderly",
    "OrderlyAction",
    "OrderlyMessage",
    "OrderlyRun",
    "StatusMisplaced",
    "Suspended",
    "orderly_status",
]

SUSPEND_MIN_MS: Final = 10
"""Shortest wait after a stop, in ms. Source: `ConsumeMessageOrderlyService#submitConsumeRequestLater`."""

SUSPEND_MAX_MS: Final = 30_000
"""Longest wait after a stop, in ms. Source: likewise."""


class ConsumeOrderlyStatus(IntEnum):
    """Answer of an orderly listener. Source: `ConsumeOrderlyStatus` of RocketMQ."""

    SUCCESS = 0
    ROLLBACK = 1
    COMMIT = 2
    SUSPEND_CURRENT_QUEUE_A_MOMENT = 3


def orderly_status(answer: object) -> ConsumeOrderlyStatus:
    """What a listener's return value means: None is success, a value that is no status is a failure.

    An exception is SUSPEND_CURRENT_QUEUE_A_MOMENT, by the caller. (RocketMQ takes null for a failure: differs on
    purpose, Python functions return None when they say nothing.)
    """
    if answer is None:
        return ConsumeOrderlyStatus.SUCCESS
    return answer if isinstance(answer, ConsumeOrderlyStatus) else ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


class OrderlyMessage(Protocol):
    """What the queue asks of a message (`confluent_kafka.Message` has it)."""

    def offset(self) -> int | None:
        """Offset in the partition."""

    def __len__(self) -> int:
        """Size of the value in bytes."""


MessageT = TypeVar("MessageT", bound=OrderlyMessage)


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """Answer of one listener call, or of several in a row that are the same success.

    Attributes:
        msg_count: how many messages of the run, from where the last answer ended, 1 or more.
        status: the answer; `orderly_status` of what was returned, SUSPEND for an exception.
        auto_commit: `context.auto_commit` after the call.
        suspend_ms: `context.suspend_current_queue_time_ms` after the call; below 0: the consumer's setting.
        dead_letter: the listener asked for the dead-letter topic (`DeadLetter`); status is SUSPEND then.
        skipped: nobody was called, and what is open stays open: the filter matched none of them, and they are finished;
            or, with SUSPEND, they failed before they came to a listener.
    """

    msg_count: int
    status: ConsumeOrderlyStatus = ConsumeOrderlyStatus.SUCCESS
    auto_commit: bool = True
    suspend_ms: int = -1
    dead_letter: bool = False
    skipped: bool = False

    @property
    def stops(self) -> bool:
        """Whether the listener thread ends the run here (by key: for these keys). What follows was not called."""
        if self.status is ConsumeOrderlyStatus.ROLLBACK:
            return not self.auto_commit
        return self.status is ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


@dataclass(frozen=True, slots=True)
class OrderlyRun(Generic[MessageT]):
    """Messages for one listener thread, in order.

    Attributes:
        messages: at least one. The listener thread may bring those that its filter skips to the front, and answers them
            first. By key it may go on behind one that failed; then it puts what stands behind that one, of the same
            key, behind what it answers.
        reconsume_counts: failed attempts by offset; a message that is not in it has not failed here: its stored count.
    """

    messages: list[MessageT]
    reconsume_counts: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class DeadLetterOrderly(Generic[MessageT]):
    """Write a message to the dead-letter topic and say `dead_lettered`; the queue waits for it.

    Attributes:
        message: as fetched.
        reconsume_times: failed attempts before this one; the dead letter carries it + 1.
        asked: the listener asked for it; otherwise the limit was reached.
    """

    message: MessageT
    reconsume_times: int
    asked: bool


@dataclass(frozen=True, slots=True)
class Suspended(Generic[MessageT]):
    """The queue (or the keys of the failed batch) waits. For metrics, logs and alarms; nothing has to be done.

    Attributes:
        until_ms: monotonic time of the next attempt.
        message: first message that goes again.
        reconsume_times: its failed attempts so far.
        forever: it has no limit, so it can stand here for ever.
    """

    until_ms: int
    message: MessageT
    reconsume_times: int
    forever: bool


@dataclass(frozen=True, slots=True)
class StatusMisplaced:
    """COMMIT or ROLLBACK under auto-commit was taken for SUCCESS: say so."""

    status: ConsumeOrderlyStatus


OrderlyAction = DeadLetterOrderly[MessageT] | Suspended[MessageT] | StatusMisplaced
