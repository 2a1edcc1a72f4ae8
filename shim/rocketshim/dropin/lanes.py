"""The number of lanes of a schedule topic, looked up once a minute, and the lane that a record goes to."""

import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaException

from rocketshim.core.lane_selector import LaneSelector
from rocketshim.errors import BrokerUnavailableError, TopicMissingError
from rocketshim_topics import DelayLevels

__all__ = ["Lanes"]

_METADATA_TIMEOUT_S: Final = 10.0
_METADATA_TTL_S: Final = 60.0


class Lanes:
    """The lanes of a schedule topic, cached for a minute.

    Args:
        topic: physical name of the schedule topic.
        timeout_s: maximum wait for an answer, in seconds; 10 at most.

    Thread-safety: any thread may call `choose`.
    """

    def __init__(self, topic: str, timeout_s: float = _METADATA_TIMEOUT_S) -> None:
        self._topic = topic
        self._timeout_s = min(timeout_s, _METADATA_TIMEOUT_S)
        self._known = (0, 0.0)  # lanes, and the monotonic time in seconds at which they are looked up again
        self._selector = LaneSelector()

    def choose(self, key: bytes | None, list_topics: Callable[..., Any]) -> int:
        """Return the lane of a record.

        Args:
            key: key of the record; None: no key.
            list_topics: the method of a Kafka client; called once a minute.

        Raises:
            TopicMissingError: the schedule topic does not exist.
            BrokerUnavailableError: no broker answered in time.
        """
        lanes, until = self._known
        if time.monotonic() >= until:
            lanes = self._count(list_topics)
            self._known = (lanes, time.monotonic() + _METADATA_TTL_S)
        return self._selector.choose(key, lanes)

    def _count(self, list_topics: Callable[..., Any]) -> int:
        try:
            # all topics: a request that names a missing topic may create it
            found = list_topics(timeout=self._timeout_s).topics.get(self._topic)
        except KafkaException as error:
            raise BrokerUnavailableError(
                f"no broker reported the partitions of {self._topic!r} within {self._timeout_s:g} s "
                f"({error.args[0].name()}); nothing was sent"
            ) from error
        if found is None or not found.partitions:
            raise TopicMissingError(
                f"the topic {self._topic!r} does not exist; nothing was sent. Create it: rocketshim init"
            )
        return max(1, len(found.partitions) // DelayLevels.STRIDE)
