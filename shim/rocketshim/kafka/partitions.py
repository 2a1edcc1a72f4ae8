"""Messages by partition, and partitions in logs."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from confluent_kafka import Message

from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["partition_names", "runs_of"]

_TOPIC: Final = Message.topic  # called in C, by `map`
_PARTITION: Final = Message.partition


def partition_names(partitions: Iterable[TopicPartitionKey]) -> list[str]:
    """Format partitions for logs, as `topic/number`."""
    return [str(key) for key in partitions]


def runs_of(batch: list[Any]) -> Iterator[tuple[TopicPartitionKey, list[Any]]]:
    """Yield the runs of messages of one partition in a fetched batch, in order; a partition may have several runs.

    Runs are long, or of one or two messages where many partitions are read. So the messages are compared in C, one at
    first, then twice as many each time.
    """
    topics: list[Any] = list(map(_TOPIC, batch))
    numbers: list[Any] = list(map(_PARTITION, batch))
    at, count = 0, len(batch)
    while at < count:
        topic, number = topics[at], numbers[at]
        end, stride = at + 1, 1
        while end < count:
            step = min(stride, count - end)
            if numbers[end : end + step].count(number) != step or topics[end : end + step].count(topic) != step:
                break
            end += step
            stride *= 2
        while end < count and numbers[end] == number and topics[end] == topic:
            end += 1
        yield TopicPartitionKey(topic, number), batch[at:end] if end - at < count else batch
        at = end
