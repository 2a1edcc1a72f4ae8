"""Divide a fetched batch by partition."""

from collections.abc import Iterator
from typing import Any, Final

from confluent_kafka import Message

from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["runs_of"]

_TOPIC: Final = Message.topic  # called in C, by `map`
_PARTITION: Final = Message.partition
_STRIDE: Final = 64


def runs_of(batch: list[Any]) -> Iterator[tuple[TopicPartitionKey, list[Any]]]:
    """Yield the runs of messages of one partition in a fetched batch, in order; a partition may have several runs.

    Fetched messages come in long runs. So 64 messages are compared at a time, in C, at half the cost of comparing each.
    """
    topics: list[Any] = list(map(_TOPIC, batch))
    numbers: list[Any] = list(map(_PARTITION, batch))
    at, count = 0, len(batch)
    while at < count:
        topic, number = topics[at], numbers[at]
        end = at
        while end < count:
            step = min(_STRIDE, count - end)
            if numbers[end : end + step].count(number) != step or topics[end : end + step].count(topic) != step:
                break
            end += step
        while end < count and numbers[end] == number and topics[end] == topic:
            end += 1
        yield TopicPartitionKey(topic, number), batch[at:end] if end - at < count else batch
        at = end
