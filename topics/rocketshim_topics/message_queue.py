"""A queue as RocketMQ names it: one partition of one topic.

RocketMQ identifies a queue by topic, broker and queue id. Here the broker's name is always `kafka`: the leader of a
partition changes, and a name that changed with it would move every consistent hash of the queue's text. The field
exists because the text is hashed, and because the machine-room strategies read a room from it.
"""

from dataclasses import dataclass

from rocketshim_topics.errors import ConfigError

__all__ = ["BROKER_NAME", "MessageQueue"]

BROKER_NAME = "kafka"
"""Broker name of every queue."""


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue:
    """One partition of one topic.

    Sorts by topic, then broker name, then queue id *as a number* (10 after 9), as RocketMQ sorts before it allocates.

    Attributes:
        topic: name of the topic; logical for retry topics (`%RETRY%g`).
        broker_name: always `kafka`, except in tests of RocketMQ's arithmetic.
        queue_id: number of the partition, 0 or more.

    Raises:
        ConfigError: a broker name that is not a text.

    Thread-safety: immutable.

    Source: `org.apache.rocketmq.common.message.MessageQueue`.
    """

    topic: str
    broker_name: str = BROKER_NAME
    queue_id: int = 0

    def __post_init__(self) -> None:
        """Refuse a queue id that is given as the broker's name: it would mean queue 0."""
        if not isinstance(self.broker_name, str):
            raise ConfigError(
                f"MessageQueue({self.topic!r}, {self.broker_name!r}): the second is the broker's name; write "
                f"MessageQueue({self.topic!r}, queue_id={self.broker_name!r})"
            )

    def __str__(self) -> str:
        """Return RocketMQ's text. The consistent-hash strategy hashes it, so no character of it may change."""
        return f"MessageQueue [topic={self.topic}, brokerName={self.broker_name}, queueId={self.queue_id}]"
