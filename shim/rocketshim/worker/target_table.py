"""What the worker knows of its targets: how many partitions they have, and whether they take records at the moment.

* Partitions come from the cluster's metadata, asked for through the *consumer* (a producer's request may create the
  topic), and count for 30 s; "not there" counts for 1 s. When the cluster does not answer, nothing is asked for 1 s,
  so that a thousand targets do not wait 5 s each.
* A target that refused or did not answer is **avoided**: its records are re-appended without being tried, so that it
  costs the others nothing. After a second one batch is tried again; each failure in a row doubles that, up to 30 s.
* A target that refused a *batch* as too large, or as holding an invalid record, is **careful** for 30 s: each of its
  records goes as a batch of its own, because a broker refuses all records of a batch for one (measured), and a topic's
  `max.message.bytes` is a limit of the batch.

Bounded: 10,000 targets; the one that was looked up first goes first.
One owner thread: the worker's.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol

from confluent_kafka import KafkaError, KafkaException

from rocketshim_topics.kafka_codes import MISSING

__all__ = ["NO_TARGET", "Target", "TargetTable"]

_NS_PER_S: Final = 1_000_000_000
_KNOWN_NS: Final = 30 * _NS_PER_S
_MISSING_NS: Final = _NS_PER_S
_AVOID_NS: Final = _NS_PER_S
_AVOID_MOST_NS: Final = 30 * _NS_PER_S
_CAREFUL_NS: Final = 30 * _NS_PER_S
_TIMEOUT_S: Final = 5.0
_MOST_TARGETS: Final = 10_000

NO_TARGET: Final = MISSING | {KafkaError.TOPIC_EXCEPTION}
"""There is no such topic or partition, or there cannot be: a name that Kafka forbids comes out of a record."""


class _Metadata(Protocol):
    def list_topics(self, topic: Any = ..., timeout: float = ...) -> Any: ...


class Target:
    """One physical topic that is written to.

    Attributes:
        topic: physical name.
        partitions: how many it has; 0: it is not there; None: that cannot be found out now.
        known_until_ns: until when `partitions` counts.
        avoid_until_ns: until when it is not tried.
        careful_until_ns: until when its records go one a batch.
        turn: the partition that keyless records go to next.
        failures: in a row.
        last_failure_ns: when the last of them was.
        begun: for the router's own use: what it has begun for each partition.
    """

    __slots__ = (
        "avoid_reason", "avoid_until_ns", "begun", "careful_until_ns", "failures", "known_until_ns",
        "last_failure_ns", "partitions", "topic", "turn",
    )  # fmt: skip

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.partitions: int | None = None
        self.known_until_ns = -1
        self.avoid_until_ns = 0
        self.avoid_reason = ""
        self.careful_until_ns = 0
        self.failures = 0
        self.last_failure_ns = -_AVOID_MOST_NS
        self.turn = 0
        self.begun: dict[int, Any] = {}

    def is_avoided(self, now_ns: int) -> bool:
        """Whether records for it are to be re-appended untried; after the time is over one of them is let through."""
        if not self.failures:
            return False
        if now_ns < self.avoid_until_ns:
            return True
        self.avoid_until_ns = now_ns + _AVOID_NS  # by then it is known what has become of the one let through
        return False

    def took(self) -> None:
        """It has stored something."""
        self.failures = 0

    def failed(self, now_ns: int, reason: str) -> bool:
        """It has refused a record for a reason of its own, or has not answered; True if that is news."""
        if now_ns < self.last_failure_ns + _AVOID_NS:
            return False
        self.last_failure_ns = now_ns
        self.avoid_until_ns = now_ns + min(_AVOID_NS << min(self.failures, 8), _AVOID_MOST_NS)
        self.avoid_reason = reason
        self.failures += 1
        return True

    def be_careful(self, now_ns: int) -> bool:
        """A batch was refused because of one of its records; False if its records went one a batch already."""
        was = now_ns < self.careful_until_ns
        self.careful_until_ns = now_ns + _CAREFUL_NS
        return not was


class TargetTable:
    """Every target seen lately.

    Args:
        alarm: told an event and its facts when metadata cannot be read.
    """

    __slots__ = ("_alarm", "_ask_again_ns", "_metadata", "_targets")

    def __init__(self, alarm: Callable[..., None]) -> None:
        self._alarm = alarm
        self._ask_again_ns = 0
        self._metadata: _Metadata | None = None
        self._targets: dict[str, Target] = {}

    def ask(self, metadata: _Metadata) -> None:
        """Ask this client for metadata from now on."""
        self._metadata = metadata

    def avoided(self, now_ns: int) -> dict[str, str]:
        """Targets that are not tried now, and why."""
        return {
            target.topic: target.avoid_reason
            for target in self._targets.values()
            if target.failures and now_ns < target.avoid_until_ns
        }

    def forget(self, topic: str) -> None:
        """Ask the cluster about this topic again, at its next record."""
        target = self._targets.get(topic)
        if target is not None:
            target.known_until_ns = -1

    def target(self, topic: str, now_ns: int) -> Target:
        """A target, with partitions that still count. May wait for a broker, 5 s at most."""
        target = self._targets.get(topic)
        if target is None:
            if len(self._targets) >= _MOST_TARGETS:
                del self._targets[next(iter(self._targets))]
            target = self._targets[topic] = Target(topic)
        if now_ns >= target.known_until_ns:
            self._look_up(target, now_ns)
        return target

    def _look_up(self, target: Target, now_ns: int) -> None:
        if self._metadata is None or now_ns < self._ask_again_ns:
            return
        try:
            found = self._metadata.list_topics(target.topic, timeout=_TIMEOUT_S).topics.get(target.topic)
        except KafkaException as error:
            self._alarm("worker.metadata-failed", topic=target.topic, error=str(error))
            target.partitions = target.partitions or None
            target.known_until_ns = self._ask_again_ns = now_ns + _MISSING_NS
            return
        if found is None or (found.error is not None and found.error.code() in NO_TARGET):
            target.partitions, target.known_until_ns = 0, now_ns + _MISSING_NS
        elif not found.partitions:
            target.partitions, target.known_until_ns = None, now_ns + _MISSING_NS
        else:
            target.partitions, target.known_until_ns = len(found.partitions), now_ns + _KNOWN_NS
