"""Determine the outcome of every message, only from the records on the topics and the committed offsets. Pure.

The id of a message (`UNIQ_KEY`) identifies it on every topic. The `HOP_ID` of a record names the record from which it
was made.

* *delivered*: the source or the retry topic has a record that was made from a schedule record. The lateness is the
  append time of the delivered record minus the due time of the schedule record. Brokers set both timestamps.
* *early*: the lateness of a delivery is negative.
* *dead*: the dead-letter topic has a record of the message.
* *acknowledged*: the record of the last attempt lies below the committed offset of the group, and no later record was
  made from it.
* *lost*: the message was sent, and no record of it was found.
* *duplicate*: a second record of the same attempt: same id, same number of failures, same kind of topic.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from rocketshim_topics import Envelope
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["Account", "Audit", "Seen", "TopicKind"]


class TopicKind(Enum):
    """The kind of topic that has a record."""

    SCHEDULE = "schedule"
    SOURCE = "source"
    RETRY = "retry"
    DEAD = "dead letters"


@dataclass(frozen=True, slots=True)
class Seen:
    """One record as it was read.

    Attributes:
        kind: kind of topic.
        topic, partition, offset: coordinates of the record.
        stored_ms: append time, epoch ms.
        envelope: the decoded headers.
        queue_delay_ms: delay of the schedule queue that has the record, in ms; 0 on other topics.
    """

    kind: TopicKind
    topic: str
    partition: int
    offset: int
    stored_ms: int
    envelope: Envelope
    queue_delay_ms: int = 0

    @property
    def at(self) -> str:
        """The coordinates in the form that `HOP_ID` uses."""
        return f"{self.topic}/{self.partition}/{self.offset}"

    @property
    def due_ms(self) -> int:
        """The time when a schedule record is due, epoch ms."""
        if self.envelope.deliver_at_ms is not None:
            return self.envelope.deliver_at_ms
        delay_ms = self.envelope.delay_ms
        return self.stored_ms + (self.queue_delay_ms if delay_ms is None else delay_ms)


@dataclass(slots=True)
class Account:
    """The final figures.

    Attributes:
        sent: number of ids that were sent.
        delivered: number of ids that reached the source topic.
        retried: attempt number (1: the first retry) to the number of ids that had this attempt.
        dead: ids in the dead-letter topic.
        acknowledged: number of ids that were consumed successfully.
        under_way: ids that are not finished yet: a record of theirs still waits or was not consumed.
        lost: sent ids of which no record was found.
        early: number of deliveries before their due time.
        duplicates: number of records after the first one of an attempt.
        lateness_ms: lateness of every delivery in ms, sorted.
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
        """Return the lateness in ms that a share (0 to 1) of all deliveries does not exceed; 0 without deliveries."""
        if not self.lateness_ms:
            return 0
        return self.lateness_ms[min(len(self.lateness_ms) - 1, int(share * len(self.lateness_ms)))]


class Audit:
    """A collection of records that computes the figures. Thread-safety: one owner thread."""

    def __init__(self) -> None:
        self._by_id: dict[str, list[Seen]] = defaultdict(list)
        self._by_coordinates: dict[str, Seen] = {}
        self._made_from: dict[str, list[Seen]] = defaultdict(list)

    def add(self, seen: Seen) -> None:
        """Add a record; ignore one that was added before or has no id."""
        if seen.at in self._by_coordinates or seen.envelope.uniq_key is None:
            return
        self._by_coordinates[seen.at] = seen
        self._by_id[seen.envelope.uniq_key].append(seen)
        if seen.envelope.hop_id is not None:
            self._made_from[seen.envelope.hop_id].append(seen)

    def count(self, kind: TopicKind) -> int:
        """Return the number of distinct ids that were seen in this kind of topic."""
        return sum(any(each.kind is kind for each in records) for records in self._by_id.values())

    def biography(self, uniq_key: str) -> list[Seen]:
        """Return every record of a message in the order in which the brokers stored them."""
        return sorted(self._by_id.get(uniq_key, ()), key=lambda seen: (seen.stored_ms, len(seen.at), seen.at))

    def origin_of(self, seen: Seen) -> Seen | None:
        """Return the record from which `seen` was made; None if it was not read."""
        return self._by_coordinates.get(seen.envelope.hop_id or "")

    def account(self, sent: Iterable[str], committed: Mapping[TopicPartitionKey, int]) -> Account:
        """Compute the current figures.

        Args:
            sent: ids of messages whose sending Kafka acknowledged.
            committed: (topic, partition) to the committed offset of the group.
        """
        result = Account()
        attempts: Counter[int] = Counter()
        for uniq_key in sent:
            result.sent += 1
            records = self._by_id.get(uniq_key, [])
            self._judge(uniq_key, records, committed, result)
            for count in {each.envelope.reconsume_times or 0 for each in records if each.kind is TopicKind.RETRY}:
                attempts[count] += 1
        result.retried = dict(sorted(attempts.items()))
        result.lateness_ms.sort()
        return result

    def _judge(
        self, uniq_key: str, records: list[Seen], committed: Mapping[TopicPartitionKey, int], result: Account
    ) -> None:
        copies = Counter(
            (each.kind, each.envelope.reconsume_times or 0) for each in records if each.kind is not TopicKind.SCHEDULE
        )
        result.duplicates += sum(count - 1 for count in copies.values())
        result.delivered += any(each.kind is TopicKind.SOURCE for each in records)
        for each in records:
            if each.kind in {TopicKind.SOURCE, TopicKind.RETRY}:
                origin = self.origin_of(each)
                if origin is not None and origin.kind is TopicKind.SCHEDULE:
                    late_ms = each.stored_ms - origin.due_ms
                    result.early += late_ms < 0
                    result.lateness_ms.append(late_ms)
        if any(each.kind is TopicKind.DEAD for each in records):
            result.dead.add(uniq_key)
            return
        open_ends = [each for each in records if not self._made_from.get(each.at)]
        if not open_ends:
            result.lost.add(uniq_key)
        elif all(
            each.kind is not TopicKind.SCHEDULE and each.offset < committed.get(TopicPartitionKey.of(each), 0)
            for each in open_ends
        ):
            result.acknowledged += 1
        else:
            result.under_way.add(uniq_key)
