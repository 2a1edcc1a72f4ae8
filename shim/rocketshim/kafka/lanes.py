"""The number of partitions of topics, looked up once a minute, and the lane of the schedule topic for a record."""

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from confluent_kafka import KafkaException

from rocketshim.errors import BrokerUnavailableError, TopicMissingError
from rocketshim_topics import DelayLevels
from rocketshim_topics.names import init_command
from rocketshim_topics.partitioner import lane_for

__all__ = ["Lanes", "lane_of"]

_METADATA_TIMEOUT_S: Final = 10.0
_METADATA_TTL_S: Final = 60.0


def lane_of(key: bytes | None, lanes: int, turns: Iterator[int]) -> int:
    """Return the lane of a record in a topic with one or more; a record without a key has the next turn.

    Decides: Which lane has a record? That of its key, also for a retry; without a key the next one. How many there
        are: `Lanes.count`.
    """
    return next(turns) % lanes if key is None else lane_for(key, lanes)


class Lanes:
    """The lanes of a schedule topic, and the numbers of partitions of all topics, cached for a minute. Any thread.

    `complaint` returns what the client has complained about since a monotonic time in seconds, for the error's text.
    """

    def __init__(
        self,
        topic: str,
        timeout_s: float = _METADATA_TIMEOUT_S,
        complaint: Callable[[float], str] = lambda _since_s: "",
    ) -> None:
        self._topic = topic
        self._turns = itertools.count()
        self._timeout_s = min(timeout_s, _METADATA_TIMEOUT_S)
        self._complaint = complaint
        self._known: dict[str, int] = {}  # replaced as a whole: other threads read it
        self._known_until_s = 0.0  # monotonic

    def count(self, topic: str, list_topics: Callable[..., Any]) -> int:
        """Return the number of partitions of a topic.

        `list_topics` of a Kafka client is called once a minute, and for a topic that is not known.
        """
        asked_s = time.monotonic()
        if asked_s < self._known_until_s and (known := self._known.get(topic)):
            return known
        try:
            # all topics: a request that names a missing topic may create it
            found = list_topics(timeout=self._timeout_s).topics
        except KafkaException as error:
            raise BrokerUnavailableError(
                f"no broker reported the partitions of {topic!r} within {self._timeout_s:g} s "
                f"({error.args[0].name()}){self._complaint(asked_s)}; nothing was sent"
            ) from error
        self._known = {name: len(each.partitions) for name, each in found.items()}
        self._known_until_s = time.monotonic() + _METADATA_TTL_S
        count = len(found[topic].partitions) if topic in found else 0
        if not count:
            raise TopicMissingError(
                f"the topic {topic!r} does not exist; nothing was sent. Create it: {init_command(topic)}"
            )
        return count

    def choose(self, key: bytes | None, list_topics: Callable[..., Any]) -> int:
        """Return the lane of a record by its key; raise what `count` raises."""
        lanes = max(1, self.count(self._topic, list_topics) // DelayLevels.STRIDE)
        return lane_of(key, lanes, self._turns)
