"""What the worker knows of its targets: how many partitions they have, and whether they take records at the moment.

* Partitions come from the cluster's metadata by `TopicLookup`, which does not hold up the loop. Records whose target is
  not known yet wait for the answer; others go on. What is known is asked for again after 3 s, and counts meanwhile. It
  counts for 2 s more, so that a target that was idle is asked for before it is written to. Where there are more than
  1,000 targets they are asked for less often, 333 of them a second. "Not there" counts for 1 s.
* Producers have metadata of their own, five minutes old at most. Where a target has grown they are made to ask again,
  and its new partitions are used a moment later. A record that a producer refuses because it does not know the topic or
  the partition waits for both answers; that says nothing against the target unless it lasts for 2 s.
* A target that refused or did not answer is **avoided**: its records are re-appended without being tried, so that it
  costs the others nothing. After a second one batch is tried again; each failure in a row doubles that, up to 30 s.
* A target that refused a *batch* as too large, or as holding an invalid record, is **careful** for 30 s: each of its
  records goes as a batch of its own, because a broker refuses all records of a batch for one (measured), and a topic's
  `max.message.bytes` is a limit of the batch.

Bounded: 10,000 targets; the one that was looked up first goes first.
One owner thread: the worker's.
"""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import KafkaException

from rocketshim.kafka.clients import ProducerClient
from rocketshim.worker.topic_lookup import Answer, TopicLookup

__all__ = ["TargetHealth", "TargetTable"]

_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000
_KNOWN_NS: Final = 3 * _NS_PER_S
_KNOWN_NS_PER_TARGET: Final = 3 * _NS_PER_MS
_IDLE_NS: Final = 2 * _NS_PER_S
_MISSING_NS: Final = _NS_PER_S
_AVOID_NS: Final = _NS_PER_S
_AVOID_MOST_NS: Final = 30 * _NS_PER_S
_CAREFUL_NS: Final = 30 * _NS_PER_S
_GROWN_NS: Final = 20 * _NS_PER_MS  # a producer that was made to ask again knew after 1 to 2 ms (measured)
_PRODUCER_LACKS_NS: Final = 2 * _NS_PER_S
_NEVER_NS: Final = 1 << 62
_MOST_TARGETS: Final = 10_000
_MOST_BY_NAME: Final = 20


class TargetHealth:
    """One physical topic that is written to.

    Attributes:
        topic: physical name.
        partitions: how many it has; 0: it is not there; None: that cannot be found out now, or was not yet.
        ready_ns: before that instant its records wait: for the answer of a look-up, or for a producer's.
        ask_ns: from when on it is to be asked for again.
        answered_ns: when `partitions` was found out.
        ticket: of the last question; answers to former ones do not count.
        not_before_ns: also with an answer its records wait until then.
        lacking_ns: since when, and until when, producers did not know what the cluster has.
        avoid_until_ns: until when it is not tried.
        careful_until_ns: until when its records go one a batch.
        turn: the partition that keyless records go to next.
        failures: in a row.
        last_failure_ns: when the last of them was.
        begun: for the router's own use: what it has begun for each partition.
    """

    __slots__ = (
        "answered_ns", "ask_ns", "avoid_reason", "avoid_until_ns", "begun", "careful_until_ns", "failures",
        "lacking_ns", "last_failure_ns", "not_before_ns", "partitions", "ready_ns", "ticket", "topic", "turn",
    )  # fmt: skip

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.partitions: int | None = None
        self.ready_ns = _NEVER_NS
        self.ask_ns = -1
        self.answered_ns = -_NEVER_NS
        self.not_before_ns = 0
        self.ticket = 0
        self.lacking_ns = (-_NEVER_NS, -_NEVER_NS)
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

    def record_success(self) -> None:
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

    __slots__ = ("_alarm", "_grown", "_lookup", "_producers", "_targets", "_tickets")

    def __init__(self, alarm: Callable[..., None]) -> None:
        self._alarm = alarm
        self._lookup: TopicLookup | None = None
        self._producers: tuple[ProducerClient, ...] = ()
        self._targets: dict[str, TargetHealth] = {}
        self._tickets = 0
        self._grown: deque[tuple[int, Answer]] = deque()  # (when it counts, ns; what was found out)

    def ask(self, lookup: TopicLookup) -> None:
        """Ask here from now on."""
        self._lookup = lookup

    def use(self, *producers: ProducerClient) -> None:
        """These write to the targets from now on. The worker's thread owns them."""
        self._producers = producers

    def avoided(self, now_ns: int) -> dict[str, str]:
        """Targets that are not tried now, and why."""
        return {
            target.topic: target.avoid_reason
            for target in self._targets.values()
            if target.failures and now_ns < target.avoid_until_ns
        }

    def look_again(self, topic: str) -> None:
        """Ask the cluster about this topic again; its records wait for the answer."""
        target = self._targets.get(topic)
        if target is not None:
            self._ask(target, is_urgent=True)

    def target(self, topic: str, now_ns: int) -> TargetHealth:
        """Give what is known of a topic; asks for it if that is nothing or old. Records wait until `ready_ns`."""
        target = self._targets.get(topic)
        if target is None:
            if len(self._targets) >= _MOST_TARGETS:
                del self._targets[next(iter(self._targets))]
            target = self._targets[topic] = TargetHealth(topic)
        if now_ns >= target.ask_ns:
            idle_ns = target.answered_ns + self._known_ns() + _IDLE_NS
            target.ask_ns = idle_ns
            self._ask(target, is_urgent=not target.partitions or now_ns >= idle_ns)
        return target

    def _known_ns(self) -> int:
        return max(_KNOWN_NS, _KNOWN_NS_PER_TARGET * len(self._targets))

    def _ask(self, target: TargetHealth, *, is_urgent: bool) -> None:
        """Ask for a topic; if it is urgent its records wait."""
        self._tickets += 1
        target.ticket = self._tickets
        if is_urgent:
            target.ready_ns = target.ask_ns = _NEVER_NS
        if self._lookup is not None:
            self._lookup.ask(target.topic, target.ticket, is_urgent=is_urgent)

    def hear(self, now_ns: int) -> None:
        """Take in what was found out."""
        if self._lookup is None:
            return
        fresh: list[str] = []
        for answer in self._lookup.answers():
            if answer.error:
                self._alarm("worker.metadata-failed", topic=answer.topic, error=answer.error)
            target = self._targets.get(answer.topic)
            if target is None or target.ticket != answer.ticket:
                continue
            known, found = target.partitions or 0, answer.partitions or 0
            if found > known:
                fresh.append(target.topic)
            if found > known > 0:
                self._grown.append((now_ns + _GROWN_NS, answer))
            else:
                self._know(target, answer.partitions, now_ns)
        self._refresh_producers(fresh)
        while self._grown and self._grown[0][0] <= now_ns:
            _, answer = self._grown.popleft()
            target = self._targets.get(answer.topic)
            if target is not None and target.ticket == answer.ticket:
                self._know(target, answer.partitions, now_ns)

    def _know(self, target: TargetHealth, partitions: int | None, now_ns: int) -> None:
        target.partitions = (target.partitions or None) if partitions is None else partitions
        target.answered_ns = now_ns
        target.ready_ns = target.not_before_ns
        target.ask_ns = now_ns + (self._known_ns() if partitions else _MISSING_NS)

    def _refresh_producers(self, topics: Iterable[str]) -> None:
        """Make the producers ask for these topics, which exist. Does not wait: their answers come to them alone."""
        names: list[dict[str, Any]] = [{"topic": topic} for topic in topics]
        for producer in self._producers if names else ():
            for name in names if len(names) <= _MOST_BY_NAME else [{}]:
                with suppress(KafkaException):  # a time-out, always
                    producer.list_topics(**name, timeout=0)

    def producer_lacks(self, target: TargetHealth, now_ns: int) -> bool:
        """A producer does not know the topic, or its partition; False if that has lasted too long to be its alone."""
        since_ns, last_ns = target.lacking_ns
        if now_ns >= last_ns + _PRODUCER_LACKS_NS:
            since_ns = now_ns
        target.lacking_ns = since_ns, now_ns
        if now_ns >= since_ns + _PRODUCER_LACKS_NS:
            return False
        if target.not_before_ns <= now_ns:
            target.not_before_ns = now_ns + _GROWN_NS
            if target.partitions:
                self._refresh_producers([target.topic])
        self._ask(target, is_urgent=True)
        return True
