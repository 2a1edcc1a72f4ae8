"""The result of a send."""

from dataclasses import dataclass
from enum import Enum

from rocketshim_topics.message_queue import MessageQueue

__all__ = ["SendResult", "SendStatus"]


class SendStatus(Enum):
    """The outcome of a successful send. Kafka has only one; every other outcome is an exception."""

    SEND_OK = "SEND_OK"


@dataclass(frozen=True, slots=True)
class SendResult:
    """The result of sending a message that is now stored.

    Attributes:
        status: `SendStatus.SEND_OK`.
        msg_id: id of the message, the same on every hop (`UNIQ_KEY`).
        offset_msg_id: coordinates of the first record: `topic/partition/offset`. For a delayed message the topic is the
            schedule topic, and the log of timers if it has a name.
        message_queue: the queue to which the record was written.
        queue_offset: offset of the record in that queue.

    Source: `SendResult` of RocketMQ.
    """

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    message_queue: MessageQueue
    queue_offset: int
