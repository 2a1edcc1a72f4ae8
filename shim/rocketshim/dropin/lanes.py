"""Which lane of the schedule topic a delayed or retried record goes to: by key, keyless ones in turn."""

import itertools
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaException

from rocketshim.errors import BrokerUnavailableError, TopicMissingError
from rocketshim_topics import DelayLevels, lane_for

__all__ = ["Lanes"]

_METADATA_TIMEOUT_S: Final = 10.0
_METADATA_TTL_S: Final = 60.0


class Lanes:
    """The lanes of a schedule topic, known for a minute.

    Args:
        topic: physical name of the schedule topic.

    Thread-safety: `choose`, from any thread.
    """

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._known = (0, 0.0)  # lanes, monotonic time until which that is believed, in seconds
        self._turn = itertools.count()

    def choose(self, key: bytes | None, list_topics: Callable[..., Any]) -> int:
        """The lane of a record.

        Args:
            key: of the record; None: no key.
            list_topics: of a Kafka client; called once a minute.

        Raises:
            TopicMissingError: the schedule topic is not there.
            BrokerUnavailableError: no broker answered within 10 s.
        """
        lanes, until = self._known
        if time.monotonic() >= until:
            lanes = self._count(list_topics)
            self._known = (lanes, time.monotonic() + _METADATA_TTL_S)
        return next(self._turn) % lanes if key is None else lane_for(key, lanes)

    def _count(self, list_topics: Callable[..., Any]) -> int:
        try:
            # all topics: a request that names a missing topic may create it
            found = list_topics(timeout=_METADATA_TIMEOUT_S).topics.get(self._topic)
        except KafkaException as error:
            raise BrokerUnavailableError(
                f"no broker said within {_METADATA_TIMEOUT_S} s which partitions {self._topic!r} has "
                f"({error.args[0].name()}); nothing was sent"
            ) from error
        if found is None or not found.partitions:
            raise TopicMissingError(
                f"the topic {self._topic!r} is not there; nothing was sent. Create it: rocketshim init"
            )
        return max(1, len(found.partitions) // DelayLevels.STRIDE)
