"""The worker's targets, and how many partitions they have.

* `TopicLookup` reads the number of partitions from the cluster's metadata without blocking the loop. Records with an
  unknown target wait for the answer; other records continue. After 3 s a target is looked up again, and its old answer
  remains valid until the lookup ends. If nobody used the target for 2 s more, it is looked up before it is written to.
  More than 1,000 targets are looked up less often, 333 of them a second. The answer "does not exist" is valid for 1 s,
  and for records that waited for it until the other targets of their run are known.
  If the cluster does not answer, the last number of partitions remains valid. If there is none, records wait, and the
  target is looked up again a second later: a record for a topic that does not exist could create it.
* Producers have their own metadata, five minutes old at most. If a target has got more partitions, the producers are
  made to refresh, and the worker uses the new partitions a moment later. A producer may refuse a record because it does
  not know the topic or the partition. Then the record waits for both answers; the target has not failed unless this
  lasts for 2 s. The same holds for the schedule topic, which may get new lanes.

Bounded: 10,000 targets, and those that records wait for. The target that was looked up first is removed first.
One owner thread: the worker's.
"""

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from rocketshim.kafka.clients import ProducerClient, refresh_metadata
from rocketshim.worker.targets import NEVER_NS, TargetHealth
from rocketshim.worker.topic_lookup import Answer, TopicLookup

__all__ = ["TargetTable"]

_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000
_KNOWN_NS: Final = 3 * _NS_PER_S
_KNOWN_NS_PER_TARGET: Final = 3 * _NS_PER_MS
_IDLE_NS: Final = 2 * _NS_PER_S
_MISSING_NS: Final = _NS_PER_S
_GROWN_NS: Final = 20 * _NS_PER_MS  # a producer's refresh took 1 to 2 ms (measured)
_PRODUCER_LACKS_NS: Final = 2 * _NS_PER_S
_MOST_TARGETS: Final = 10_000
_MOST_BY_NAME: Final = 20


class TargetTable:
    """The targets looked up last.

    Decides: How many partitions has a target? 0: it does not exist; None: not known yet. The answers come from the
        thread of `worker.topic_lookup.TopicLookup`.
    """

    __slots__ = ("_alarm", "_grown", "_lookup", "_producers", "_targets", "_tickets")

    def __init__(self, alarm: Callable[..., None]) -> None:
        self._alarm = alarm
        self._lookup: TopicLookup | None = None
        self._producers: tuple[ProducerClient, ...] = ()
        self._targets: dict[str, TargetHealth] = {}
        self._tickets = 0
        self._grown: deque[tuple[int, Answer]] = deque()  # (when it becomes valid, ns; the answer)

    def set_lookup(self, lookup: TopicLookup) -> None:
        """Ask this lookup from now on."""
        self._lookup = lookup

    def close(self) -> None:
        """End the lookups."""
        if self._lookup is not None:
            self._lookup.close()

    @property
    def failure(self) -> Exception | None:
        """Why targets cannot be looked up."""
        return None if self._lookup is None else self._lookup.failure

    def set_producers(self, *producers: ProducerClient) -> None:
        """Set the producers that write to the targets from now on. The worker's thread owns them."""
        self._producers = producers

    def avoided(self, now_ns: int) -> dict[str, str]:
        """Return the targets that are not tried now, and why."""
        return {
            target.topic: target.avoid_reason
            for target in self._targets.values()
            if target.failures and now_ns < target.avoid_until_ns
        }

    def look_again(self, topic: str) -> None:
        """Look this topic up again; its records wait for the answer."""
        target = self._targets.get(topic)
        if target is not None:
            self._ask(target, is_urgent=True)

    def target(self, topic: str, now_ns: int) -> TargetHealth:
        """Return the state of a topic; look it up if that is missing or old. Its records wait until `ready_ns`."""
        target = self._targets.get(topic)
        if target is None:
            if len(self._targets) >= _MOST_TARGETS:
                self._make_room()
            target = self._targets[topic] = TargetHealth(topic)
        if now_ns >= target.ask_ns:
            is_idle = now_ns >= target.answered_ns + self._known_ns() + _IDLE_NS
            self._ask(target, is_urgent=not target.partitions or is_idle)
        return target

    def _make_room(self) -> None:
        """Remove the two oldest targets. A target that records wait for stays, and becomes the newest."""
        for topic in list(islice(self._targets, 2)):
            target = self._targets.pop(topic)
            if target.ready_ns == NEVER_NS:
                self._targets[topic] = target
            else:
                target.ask_ns = 0  # the router may remember this object; it asks the table now

    def _known_ns(self) -> int:
        return max(_KNOWN_NS, _KNOWN_NS_PER_TARGET * len(self._targets))

    def _ask(self, target: TargetHealth, *, is_urgent: bool) -> None:
        """Look a topic up; if the lookup is urgent, its records wait. A lookup that they wait for goes on."""
        if target.ready_ns == target.ask_ns == NEVER_NS:
            return
        self._tickets += 1
        target.ticket = self._tickets
        target.ask_ns = NEVER_NS  # until there is an answer
        if is_urgent:
            target.ready_ns = NEVER_NS
        if self._lookup is not None:
            self._lookup.ask(target.topic, target.ticket, is_urgent=is_urgent)

    def process_answers(self, now_ns: int) -> None:
        """Process the answers of lookups."""
        if self._lookup is None:
            return
        fresh: list[str] = []
        last_error = ""
        for answer in self._lookup.answers():
            if answer.error and answer.error != last_error:  # one request asks for many topics
                self._alarm("worker.metadata-failed", topic=answer.topic, error=answer.error)
            last_error = answer.error
            target = self._targets.get(answer.topic)
            if target is None or target.ticket != answer.ticket:
                continue
            known, found = target.partitions or 0, answer.partitions or 0
            if found > known:
                fresh.append(target.topic)
            if found > known > 0:
                self._grown.append((now_ns + _GROWN_NS, answer))
            else:
                self._know(target, answer, now_ns)
        self._refresh_producers(fresh)
        while self._grown and self._grown[0][0] <= now_ns:
            _, answer = self._grown.popleft()
            target = self._targets.get(answer.topic)
            if target is not None and target.ticket == answer.ticket:
                self._know(target, answer, now_ns)

    def _know(self, target: TargetHealth, answer: Answer, now_ns: int) -> None:
        target.partitions = (target.partitions or None) if answer.partitions is None else answer.partitions
        target.answered_ns = now_ns
        target.ask_ns = now_ns + (self._known_ns() if answer.partitions else _MISSING_NS)
        is_unknown = bool(answer.error) and not target.partitions
        target.ready_ns = target.ask_ns if is_unknown else target.not_before_ns

    def _refresh_producers(self, topics: Iterable[str]) -> None:
        """Make the producers refresh their metadata of these topics, which exist. Do not wait for the answers."""
        names = [*topics]
        for producer in self._producers if names else ():
            for name in names if len(names) <= _MOST_BY_NAME else [None]:
                refresh_metadata(producer, name)

    def producer_lacks(self, target: TargetHealth, now_ns: int) -> bool:
        """Note that a producer does not know the topic or the partition; return False if this lasts too long.

        After 2 s the cause is not the producer's old metadata alone.
        """
        since_ns, last_ns = target.lacking_ns
        if now_ns >= last_ns + _PRODUCER_LACKS_NS:
            since_ns = now_ns
        target.lacking_ns = since_ns, now_ns
        if target.not_before_ns <= now_ns:
            target.not_before_ns = now_ns + _GROWN_NS
            if target.partitions:
                self._refresh_producers([target.topic])
        if now_ns >= since_ns + _PRODUCER_LACKS_NS:
            return False
        self._ask(target, is_urgent=True)
        return True
