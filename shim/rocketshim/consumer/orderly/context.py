"""What an orderly listener is told and may set, and the message as it sees it."""

from rocketshim_topics import MessageView
from rocketshim_topics.message_queue import MessageQueue
from rocketshim_topics.wire import Record

__all__ = ["ConsumeOrderlyContext", "TriedMessageView"]


class ConsumeOrderlyContext:
    """What an orderly listener is told and may set, for one call.

    Attributes:
        group: the consumer group.
        message_queue: where the messages come from.
        epoch: number of the run of that queue in this consumer.
        fencing_token: the token of the queue's lock. It only grows from owner to owner: hand it to a sink that refuses
            writes with a lower one than it has seen. None: no lock (broadcasting).
        auto_commit: True (default): SUCCESS commits. False: only COMMIT does, ROLLBACK takes back what is open.
        suspend_current_queue_time_ms: wait before the next attempt if the call suspends, in ms, clamped to 10 … 30,000;
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
    """A message that has failed in place: its count is kept by the queue, not by the record."""

    __slots__ = ("_times",)

    def __init__(self, record: Record, trusted: bool, times: int) -> None:
        super().__init__(record, trusted)
        self._times = times

    @property
    def reconsume_times(self) -> int:
        """Failed attempts so far."""
        return self._times
