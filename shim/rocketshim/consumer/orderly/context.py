"""The context that an orderly listener gets and may change, and its view of a retried message."""

from rocketshim_topics import MessageView
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.wire import Record

__all__ = ["ConsumeOrderlyContext", "TriedMessageView"]


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
