"""The result of a send."""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final

from rocketshim_topics.errors import MessageError
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["SendResult", "SendStatus", "recall_handle", "recalled_id"]


_HANDLE: Final = re.compile("v1 (?P<topic>[^ ]+) (?P<id>[0-9a-fA-F]{32})")


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
        recall_handle: of a message that was sent with `recallable`: for `Producer.recall`. `""`: it cannot be recalled.

    Source: `SendResult` of RocketMQ.
    """

    status: SendStatus
    msg_id: str
    offset_msg_id: str
    message_queue: MessageQueue
    queue_offset: int
    recall_handle: str = ""


def recall_handle(topic: str, msg_id: str) -> str:
    """Return the handle of a message that waits under its id."""
    return urlsafe_b64encode(f"v1 {topic} {msg_id}".encode()).decode()


def recalled_id(topic: str, handle: object) -> str:
    """Return the id of the message with this handle; raise `MessageError` if it is none, or of another topic."""
    text = ""
    with suppress(ValueError):
        text = urlsafe_b64decode(str(handle)).decode()
    found = _HANDLE.fullmatch(text)
    if found is None:
        raise MessageError(f"{handle!r:.80} is no recall handle: give SendResult.recall_handle of a send")
    if found["topic"] != topic:
        raise MessageError(f"{handle!r:.80} is no recall handle for {topic!r:.80}: it is of {found['topic']!r}")
    return found["id"]
