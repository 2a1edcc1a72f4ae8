"""The worker's targets: how many partitions each has, whether it accepts records now, and how it is written to.

How many partitions it has (`TargetTable`):

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

Whether it accepts records, and how it is written to (`TargetHealth`):

* A target that refused or did not answer is **avoided**: its records are re-appended without a try, so that it does not
  slow other targets. After a second the worker tries one batch. Each failure in a row doubles this time, up to 30 s.
* A target that refused a *batch* as too large, or because of an invalid record or timestamp, is **careful** for 30 s:
  each of its records is a separate batch. The reason: a broker refuses a whole batch because of one record (measured),
  and a topic's `max.message.bytes` limits the batch.
* A target that refused a **timestamp** that a sender gave gets no timestamp that is as far from the brokers' clock for
  an hour: these records have the time of their delivery.

Bounded: 10,000 targets, and those that records wait for. The target that was looked up first is removed first.
One owner thread: the worker's.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from rocketshim.core.clock import Backoff
from rocketshim.kafka.clients import ProducerClient, refresh_metadata
from rocketshim.worker.topic_lookup import Answer, TopicLookup

__all__ = ["NEVER_NS", "TargetHealth", "TargetTable"]

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
_AVOID_NS: Final = _NS_PER_S
_AVOID_MOST_NS: Final = 30 * _NS_PER_S
_BACKOFF_NS: Final = Backoff(_AVOID_NS, _AVOID_MOST_NS)
_CAREFUL_NS: Final = 30 * _NS_PER_S
_TIMESTAMP_LIMITS_NS: Final = 3_600 * _NS_PER_S
_TIMESTAMP_MARGIN_MS: Final = 60_000  # the brokers' clock has moved when the record is sent again
_NO_LIMITS_MS: Final = (-1 << 64, 1 << 64)
NEVER_NS: Final = 1 << 62
"""An instant that does not come."""


@dataclass(slots=True, eq=False)
class TargetHealth:
    """One physical topic to which the worker writes. All instants are monotonic, in ns.

    Decides: How long is a target avoided? A second, twice as long with each failure in a row, 30 s at most.
    """

    topic: str
    partitions: int | None = None  # 0: it does not exist; None: unknown at the moment, or not known yet
    ready_ns: int = NEVER_NS  # its records wait for the answer of a lookup or for a producer's refresh
    ask_ns: int = -1  # when to look it up again
    answered_ns: int = -NEVER_NS
    not_before_ns: int = 0  # its records wait until then even if an answer has arrived
    ticket: int = 0  # of the last lookup: answers to earlier ones are ignored
    lacking_ns: tuple[int, int] = (-NEVER_NS, -NEVER_NS)  # when a producer lacked a partition first and last
    avoid_until_ns: int = 0
    avoid_reason: str = ""
    careful_until_ns: int = 0  # until then each of its records is a separate batch
    failures: int = 0  # in a row
    last_failure_ns: int = -_AVOID_MOST_NS
    turn: int = 0  # the partition of the next keyless records
    timestamps_ms: tuple[int, int] = _NO_LIMITS_MS  # least and most that one is ahead of the brokers' clock, exclusive
    timestamps_until_ns: int = 0

    def is_open(self, now_ns: int) -> bool:
        """Return whether it takes records as they come: it is known, and nothing is wrong with it."""
        is_sound = not self.failures and now_ns >= self.careful_until_ns
        return is_sound and bool(self.partitions) and now_ns >= self.ready_ns

    def keep_missing(self, now_ns: int) -> None:
        """If it does not exist, have this be valid now, however long the answers for other targets have taken."""
        if self.partitions == 0:
            self.ask_ns = max(self.ask_ns, now_ns + 1)

    def may_try(self, now_ns: int) -> bool:
        """Return whether a record may be tried now; while it fails, one after each `avoid_until_ns`."""
        if not self.failures:
            return True
        if now_ns < self.avoid_until_ns:
            return False
        self.avoid_until_ns = now_ns + _AVOID_NS  # by then the result of that record is known
        return True

    def record_success(self) -> None:
        """Note that it has stored a record."""
        self.failures = 0

    def failed(self, now_ns: int, reason: str) -> bool:
        """Note that it refused a record because of its own state, or did not answer; return True if that is new."""
        if self.failures and now_ns < self.last_failure_ns + _AVOID_NS:
            return False
        self.last_failure_ns = now_ns
        self.avoid_until_ns = now_ns + _BACKOFF_NS.pause(self.failures)
        self.avoid_reason = reason
        self.failures += 1
        return True

    def begin_careful(self, now_ns: int) -> bool:
        """Switch to one record per batch after a refused batch; return False if the target is in that mode already."""
        was = now_ns < self.careful_until_ns
        self.careful_until_ns = now_ns + _CAREFUL_NS
        return not was

    def takes_timestamp(self, ahead_ms: int, now_ns: int) -> bool:
        """Return whether to give it a timestamp so far ahead of the brokers' clock (negative: behind)."""
        least_ms, most_ms = self.timestamps_ms
        return least_ms < ahead_ms < most_ms or now_ns >= self.timestamps_until_ns

    def timestamp_refused(self, ahead_ms: int, now_ns: int) -> bool:
        """Note that it refused a timestamp with this distance; return True if no limit was known."""
        is_first = now_ns >= self.timestamps_until_ns
        if is_first:
            self.timestamps_ms, self.timestamps_until_ns = _NO_LIMITS_MS, now_ns + _TIMESTAMP_LIMITS_NS
        least_ms, most_ms = self.timestamps_ms
        if ahead_ms > 0:
            self.timestamps_ms = least_ms, min(most_ms, max(1, ahead_ms - _TIMESTAMP_MARGIN_MS))
        else:
            self.timestamps_ms = max(least_ms, ahead_ms), most_ms
        return is_first


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
