"""Names of partitions and records: `TopicPartitionKey` and `RecordCoordinates`.

Both are tuples with named fields: they equal, hash and sort like plain tuples. Creating one takes
0.25 µs, eight times as long as a plain tuple, so loops that run once per message create none.
"""

import re
from typing import Final, NamedTuple, Protocol, Self

from rocketshim_topics.errors import MalformedRecordError

__all__ = ["RecordCoordinates", "TopicPartitionKey"]

_COORDINATES: Final = re.compile(r"([a-zA-Z0-9._-]{1,249})/([0-9]{1,10})/([0-9]{1,19})")


class _HasPartition(Protocol):
    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...


class TopicPartitionKey(NamedTuple):
    """The name of a partition.

    Attributes:
        topic: physical topic.
        partition: from 0.
    """

    topic: str
    partition: int

    def __str__(self) -> str:
        """Return the form for logs, `topic/partition`."""
        return f"{self.topic}/{self.partition}"

    @classmethod
    def of(cls, item: _HasPartition) -> Self:
        """Return the key of an object that has a topic and a partition, such as Kafka's `TopicPartition`."""
        return cls(item.topic, item.partition)


class RecordCoordinates(NamedTuple):
    """The coordinates of a record, which may no longer exist.

    Attributes:
        topic: physical topic.
        partition: from 0.
        offset: from 0.
    """

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        """Return the text form, `topic/partition/offset`."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text form.

        Raises:
            MalformedRecordError: not `topic/partition/offset`; reason `bad-origin`.
        """
        match = _COORDINATES.fullmatch(text)
        if match is None:
            raise MalformedRecordError("bad-origin", f"{text!r:.80} is not topic/partition/offset")
        return cls(match[1], int(match[2]), int(match[3]))
