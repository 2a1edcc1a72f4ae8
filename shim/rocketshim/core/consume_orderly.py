"""The context of an orderly listener, and what its answer means: the types that `orderly_queue` uses.

Rules (`ConsumeMessageOrderlyService#processConsumeResult`, `#checkReconsumeTimes`). A message is "open" when the
listener answered it with success and it is not committed:

===========  ================================  ============================================  ==================
auto-commit  answer                            what happens                                  committed
===========  ================================  ============================================  ==================
yes          SUCCESS (or COMMIT, ROLLBACK:     continue                                      batch and all open
             taken for SUCCESS and logged)
yes          SUSPEND, a message is retried     batch back, stop, wait                        –
yes          SUSPEND, all dead-lettered        continue                                      batch and all open
no           SUCCESS                           batch is open, continue                       –
no           COMMIT                            continue                                      batch and all open
no           ROLLBACK                          batch and all open back, counts unchanged,    –
                                               stop, wait
no           SUSPEND, a message is retried     batch back (open messages stay open), stop,   –
                                               wait
no           SUSPEND, all dead-lettered        batch is open, continue                       –
===========  ================================  ============================================  ==================

SUSPEND evaluates each message of the batch. A message at its limit, or one for which the listener asked for it, becomes
a dead letter, and the queue waits until that is stored. Otherwise its count rises by one and it is retried.

*Differs on purpose*: when the dead letter of a message in a mixed batch is stored, that message is never handed out or
dead-lettered again, even after a ROLLBACK (RocketMQ does both in every round). With auto-commit it is finished
immediately. Otherwise it is open, and the next commit includes it.

The wait after a stop is the listener's or the consumer's time, clamped to 10 … 30,000 ms. A message is delivered at
most its limit + 1 times. A limit of -1 means indefinitely; `Suspended` then names the blocked message and its failed
attempts, so that one can alert on it.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from rocketshim_topics.message_queue import MessageQueue

__all__ = [
    "SUSPEND_MAX_MS",
    "SUSPEND_MIN_MS",
    "BatchAnswer",
    "ConsumeOrderlyContext",
    "ConsumeOrderlyStatus",
    "ConsumeStatus",
    "DeadLetterOrderly",
    "OrderlyAction",
    "Suspended",
    "orderly_status",
]

SUSPEND_MIN_MS: Final = 10
"""Shortest wait after a stop, in ms. Source: `ConsumeMessageOrderlyService#submitConsumeRequestLater`."""

SUSPEND_MAX_MS: Final = 30_000
"""Longest wait after a stop, in ms. Source: the same."""


class ConsumeOrderlyStatus(IntEnum):
    """The answer of an orderly listener. Source: `ConsumeOrderlyStatus` of RocketMQ."""

    SUCCESS = 0
    ROLLBACK = 1
    COMMIT = 2
    SUSPEND_CURRENT_QUEUE_A_MOMENT = 3


class ConsumeStatus(IntEnum):
    """The answer of a concurrent listener. Source: `ConsumeConcurrentlyStatus` of RocketMQ."""

    CONSUME_SUCCESS = 0
    RECONSUME_LATER = 1


class ConsumeOrderlyContext:
    """The context of one call of an orderly listener.

    Attributes:
        group: the consumer group.
        message_queue: the queue of the messages.
        epoch: counts the runs of that queue in this consumer.
        fencing_token: the token of the queue's lock. It grows from owner to owner. Pass it to a sink that rejects
            writes with a lower token than it has seen. None: no lock (broadcasting).
        auto_commit: True (default): SUCCESS commits. False: only COMMIT commits, and ROLLBACK returns the uncommitted
            messages.
        suspend_current_queue_time_ms: wait before the next attempt in ms, if the call suspends; clamped to 10 … 30,000;
            -1 (default): the consumer's setting.

    Source: `ConsumeOrderlyContext` of RocketMQ.
    """

    __slots__ = (
        "auto_commit", "epoch", "fencing_token", "group", "message_queue", "suspend_current_queue_time_ms",
    )  # fmt: skip

    def __init__(self, group: str, message_queue: MessageQueue, epoch: int, fencing_token: int | None) -> None:
        self.group = group
        self.message_queue = message_queue
        self.epoch = epoch
        self.fencing_token = fencing_token
        self.auto_commit = True
        self.suspend_current_queue_time_ms = -1


def orderly_status(answer: object) -> ConsumeOrderlyStatus:
    """Convert a listener's return value: None is success, a value that is not a status is a failure.

    The status of a concurrent listener is understood, since other clients have one class for both.

    The caller converts an exception to SUSPEND_CURRENT_QUEUE_A_MOMENT. (RocketMQ treats null as a failure. This differs
    on purpose: Python functions without a return statement return None.)
    """
    if answer is None:
        return ConsumeOrderlyStatus.SUCCESS
    if type(answer) is ConsumeOrderlyStatus:  # `isinstance` would ask the answer for its `__class__`
        return answer
    if answer is ConsumeStatus.CONSUME_SUCCESS:
        return ConsumeOrderlyStatus.SUCCESS
    return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The answer of one listener call, or of several consecutive calls with the same successful answer.

    Attributes:
        msg_count: number of messages of the run, starting where the previous answer ended, 1 or more.
        status: the answer; `orderly_status` of the return value, SUSPEND for an exception.
        auto_commit: `context.auto_commit` after the call.
        suspend_ms: `context.suspend_current_queue_time_ms` after the call; below 0: the consumer's setting.
        dead_letter: the listener asked for the dead-letter topic (`DeadLetter`); status is SUSPEND then.
        skipped: no listener was called, and open messages stay open. The filter matched none of these messages, and
            they are finished; or, with SUSPEND, they failed before they reached a listener.
    """

    msg_count: int
    status: ConsumeOrderlyStatus = ConsumeOrderlyStatus.SUCCESS
    auto_commit: bool = True
    suspend_ms: int = -1
    dead_letter: bool = False
    skipped: bool = False

    @property
    def stops(self) -> bool:
        """Whether the listener thread ends the run here (by key: for these keys). Later messages were not called."""
        if self.status is ConsumeOrderlyStatus.ROLLBACK:
            return not self.auto_commit
        return self.status is ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT


@dataclass(frozen=True, slots=True)
class DeadLetterOrderly:
    """Write a message to the dead-letter topic and then call `dead_lettered`; the queue waits for it."""

    message: Any
    reconsume_times: int
    """Failed attempts before this one; the dead letter carries it + 1."""


@dataclass(frozen=True, slots=True)
class Suspended:
    """The queue (or the keys of the failed batch) waits. For metrics, logs and alerts; no action is needed."""

    until_ms: int
    """Monotonic time of the next attempt."""
    message: Any
    """The first message that is retried."""
    reconsume_times: int
    """Its failed attempts so far."""
    forever: bool
    """It has no limit, so it can block the queue forever."""


OrderlyAction = DeadLetterOrderly | Suspended
