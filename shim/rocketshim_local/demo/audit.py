"""What became of every message, computed from the records that lie on the topics and from nothing else. Pure.

A message is followed by its id (`UNIQ_KEY`) and its records by `HOP_ID`, which names the record each was made from.

* *delivered*: a record of the source or the retry topic that a schedule record was delivered to; its lateness is its
  append time minus the due time the schedule record had. Both are stamps of brokers.
* *early*: a delivery with a negative lateness.
* *dead*: a record in the dead-letter topic.
* *acknowledged*: the last attempt lies below the group's committed position and no later record was made from it.
* *lost*: sent, and neither dead, acknowledged nor still on its way.
* *duplicate*: a second record of the same attempt: same id, same count of failures, same kind of topic.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from rocketshim_topics import Envelope

__all__ = ["Account", "Audit", "Seen", "TopicKind"]


class TopicKind(Enum):
    """Which kind of topic a record lies in."""

    SCHEDULE = "schedule"
    SOURCE = "source"
    RETRY = "retry"
    DEAD = "dead letters"


@dataclass(frozen=True, slots=True)
class Seen:
    """One record as read.

    Attributes:
        place: kind of topic.
        topic, partition, offset: coordinates.
        stored_ms: append time, epoch ms.
        envelope: its headers, decoded.
        queue_delay_ms: of the schedule queue it lies in; 0 elsewhere.
    """

    place: TopicKind
    topic: str
    partition: int
    offset: int
    stored_ms: int
    envelope: Envelope
    queue_delay_ms: int = 0

    @property
    def at(self) -> str:
        """Coordinates as `HOP_ID` has them."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def due_ms(self) -> int:
        """When a schedule record is due, epoch ms."""
        if self.envelope.deliver_at_ms is not None:
            return self.envelope.deliver_at_ms
        delay_ms = self.envelope.delay_ms
        return self.stored_ms + (self.queue_delay_ms if delay_ms is None else delay_ms)


@dataclass(slots=True)
class Account:
    """The final figures.

    Attributes:
        sent: ids that were sent.
        delivered: ids that reached the source topic.
        retried: attempt number (1: the first retry) to how many ids made it.
        dead: ids in the dead-letter topic.
        acknowledged: ids that ended well.
        under_way: ids that are neither, yet: something of theirs is still waiting or unread.
        lost: ids of which nothing is left.
        early: deliveries before their due time.
        duplicates: records beyond the first of an attempt.
        lateness_ms: of every delivery, sorted.
    """

    sent: int = 0
    delivered: int = 0
    retried: dict[int, int] = field(default_factory=dict)
    dead: set[str] = field(default_factory=set)
    acknowledged: int = 0
    under_way: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    early: int = 0
    duplicates: int = 0
    lateness_ms: list[int] = field(default_factory=list)

    def percentile_ms(self, share: float) -> int:
        """Lateness that a share of all deliveries does not exceed, in ms; 0 without deliveries."""
        if not self.lateness_ms:
            return 0
        return self.lateness_ms[min(len(self.lateness_ms) - 1, int(share * len(self.lateness_ms)))]


class Audit:
    """Collects records and accounts for them. One owner thread."""

    def __init__(self) -> None:
        self._by_id: dict[str, list[Seen]] = defaultdict(list)
        self._by_place: dict[str, Seen] = {}
        self._made_from: dict[str, list[Seen]] = defaultdict(list)

    def add(self, seen: Seen) -> None:
        """Take note of a record; the same one twice counts once."""
        if seen.at in self._by_place or seen.envelope.uniq_key is None:
            return
        self._by_place[seen.at] = seen
        self._by_id[seen.envelope.uniq_key].append(seen)
        if seen.envelope.hop_id is not None:
            self._made_from[seen.envelope.hop_id].append(seen)

    def count(self, place: TopicKind) -> int:
        """Distinct ids that were seen in a kind of topic."""
        return sum(any(each.place is place for each in records) for records in self._by_id.values())

    def biography(self, uniq_key: str) -> list[Seen]:
        """Every record of a message in the order in which they were stored."""
        return sorted(self._by_id.get(uniq_key, ()), key=lambda seen: (seen.stored_ms, len(seen.at), seen.at))

    def origin_of(self, seen: Seen) -> Seen | None:
        """The record another was made from, if it was read."""
        return self._by_place.get(seen.envelope.hop_id or "")

    def account(self, sent: Iterable[str], committed: Mapping[tuple[str, int], int]) -> Account:
        """The figures now.

        Args:
            sent: ids that were acknowledged to the sender.
            committed: topic and partition to the group's committed position.
        """
        result = Account()
        attempts: Counter[int] = Counter()
        for uniq_key in sent:
            result.sent += 1
            records = self._by_id.get(uniq_key, [])
            self._judge(uniq_key, records, committed, result)
            for count in {each.envelope.reconsume_times or 0 for each in records if each.place is TopicKind.RETRY}:
                attempts[count] += 1
        result.retried = dict(sorted(attempts.items()))
        result.lateness_ms.sort()
        return result

    def _judge(
        self, uniq_key: str, records: list[Seen], committed: Mapping[tuple[str, int], int], result: Account
    ) -> None:
        copies = Counter(
            (each.place, each.envelope.reconsume_times or 0) for each in records if each.place is not TopicKind.SCHEDULE
        )
        result.duplicates += sum(count - 1 for count in copies.values())
        result.delivered += any(each.place is TopicKind.SOURCE for each in records)
        for each in records:
            if each.place in {TopicKind.SOURCE, TopicKind.RETRY}:
                origin = self.origin_of(each)
                if origin is not None and origin.place is TopicKind.SCHEDULE:
                    late_ms = each.stored_ms - origin.due_ms
                    result.early += late_ms < 0
                    result.lateness_ms.append(late_ms)
        if any(each.place is TopicKind.DEAD for each in records):
            result.dead.add(uniq_key)
            return
        open_ends = [each for each in records if not self._made_from.get(each.at)]
        if not open_ends:
            result.lost.add(uniq_key)
        elif all(
            each.place is not TopicKind.SCHEDULE and each.offset < committed.get((each.topic, each.partition), 0)
            for each in open_ends
        ):
            result.acknowledged += 1
        else:
            result.under_way.add(uniq_key)
