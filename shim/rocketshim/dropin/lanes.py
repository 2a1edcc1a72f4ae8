"""How many lanes a schedule topic has, asked of the cluster now and then; and which a record goes to."""

import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaException

from rocketshim.core.failed_hop import LaneSelector
from rocketshim.errors import BrokerUnavailableError, TopicMissingError
from rocketshim_topics import DelayLevels

__all__ = ["Lanes"]

_METADATA_TIMEOUT_S: Final = 10.0
_METADATA_TTL_S: Final = 60.0


class Lanes:
    """The lanes of a schedule topic, known for a minute.

    Args:
        topic: physical name of the schedule topic.
        timeout_s: longest wait for an answer, in seconds; 10 at most.

    Thread-safety: `choose`, from any thread.
    """

    def __init__(self, topic: str, timeout_s: float = _METADATA_TIMEOUT_S) -> None:
        self._topic = topic
        self._timeout_s = min(timeout_s, _METADATA_TIMEOUT_S)
        self._known = (0, 0.0)  # lanes, monotonic time until which that is believed, in seconds
        self._turns = LaneSelector()

    def choose(self, key: bytes | None, list_topics: Callable[..., Any]) -> int:
        """The lane of a record.

        Args:
            key: of the record; None: no key.
            list_topics: of a Kafka client; called once a minute.

        Raises:
            TopicMissingError: the schedule topic is not there.
            BrokerUnavailableError: no broker answered in time.
        """
        lanes, until = self._known
        if time.monotonic() >= until:
            lanes = self._count(list_topics)
            self._known = (lanes, time.monotonic() + _METADATA_TTL_S)
        return self._turns.choose(key, lanes)

    def _count(self, list_topics: Callable[..., Any]) -> int:
        try:
            # all topics: a request that names a missing topic may create it
            found = list_topics(timeout=self._timeout_s).topics.get(self._topic)
        except KafkaException as error:
            raise BrokerUnavailableError(
                f"no broker said within {self._timeout_s:g} s which partitions {self._topic!r} has "
                f"({error.args[0].name()}); nothing was sent"
            ) from error
        if found is None or not found.partitions:
            raise TopicMissingError(
                f"the topic {self._topic!r} is not there; nothing was sent. Create it: rocketshim init"
            )
        return max(1, len(found.partitions) // DelayLevels.STRIDE)
