"""Determine the outcome of every message, only from the records on the topics and the committed offsets. Pure.

The id of a message identifies its records on every topic. `HOP_ID` of a record names the record from which it was made.

* *delivered*: the source topic has a record of the message.
* *dead*: the dead-letter topic has one.
* *acknowledged*: the record of the last attempt lies below the committed offset of the group, and no later record was
  made from it.
* *lost*: the message was sent, and no record of it was found.
* *duplicate*: a second record of the same attempt: same id, same number of failures, same topic.
* *lateness* of a delivery: the append time of the delivered record minus the due time of the schedule record that it
  was made from. Brokers set both timestamps.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from rocketshim.admin.record_view import RecordView
from rocketshim.admin.trace import life
from rocketshim_topics import DelayLevels, TopicNames
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["Account", "Audit"]


@dataclass(slots=True)
class Account:
    """The figures of the messages that were sent.

    Attributes:
        delivered: number of ids that reached the source topic.
        retried: attempt number (1: the first retry) to the number of ids that had this attempt.
        dead: ids in the dead-letter topic.
        acknowledged: number of ids that were consumed successfully.
        under_way: ids that are not finished yet: a record of theirs still waits or was not consumed.
        lost: sent ids of which no record was found.
        duplicates: number of records after the first one of an attempt.
    """

    delivered: int = 0
    retried: Counter[int] = field(default_factory=Counter)
    dead: set[str] = field(default_factory=set)
    acknowledged: int = 0
    under_way: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    duplicates: int = 0


class Audit:
    """The records of the demo's topics, by message.

    Args:
        names: names of the demo's namespace.
        levels: the delay levels.
        topic: the source topic.
        group: the consumer group.
    """

    def __init__(self, names: TopicNames, levels: DelayLevels, topic: str, group: str) -> None:
        self.schedule, self.source = names.schedule, topic
        self.retry, self.dead_letter = names.retry(group), names.dead_letter(group)
        self._levels = levels
        self._records: dict[str, dict[str, RecordView]] = defaultdict(dict)

    def add(self, record: RecordView) -> None:
        """Add a record; one that was added before counts once."""
        self._records[record.id][record.at] = record

    def history(self, uniq_key: str) -> list[RecordView]:
        """Return the records of a message in the order in which the brokers stored them."""
        steps = life(
            self._records[uniq_key].values(),
            schedule=self.schedule,
            levels=self._levels,
            low_offset=lambda *_: 0,
        )
        return [step for step in steps if isinstance(step, RecordView)]

    def lateness_ms(self, sent: Iterable[str]) -> list[int]:
        """Return the lateness of every delivery of these messages in ms, sorted."""
        steps = (step for uniq_key in sent for step in self.history(uniq_key))
        return sorted(step.late_ms for step in steps if step.late_ms is not None)

    def account(self, sent: Iterable[str], committed: Mapping[TopicPartitionKey, int]) -> Account:
        """Compute the current figures.

        Args:
            sent: ids of messages whose sending Kafka acknowledged.
            committed: (topic, partition) to the committed offset of the group.
        """
        result = Account()
        for uniq_key in sent:
            records = self._records[uniq_key].values()
            attempts = Counter(
                (each.topic, each.envelope.reconsume_times or 0) for each in records if each.topic != self.schedule
            )
            result.duplicates += attempts.total() - len(attempts)
            result.retried.update(failures for topic, failures in attempts if topic == self.retry)
            topics = {each.topic for each in records}
            result.delivered += self.source in topics
            continued = {each.envelope.hop_id for each in records}
            if self.dead_letter in topics:
                result.dead.add(uniq_key)
            elif not records:
                result.lost.add(uniq_key)
            elif all(
                each.topic != self.schedule and each.offset < committed.get(TopicPartitionKey.of(each), 0)
                for each in records
                if each.at not in continued
            ):
                result.acknowledged += 1
            else:
                result.under_way.add(uniq_key)
        return result
