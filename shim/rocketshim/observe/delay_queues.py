"""Read the waiting records of the delay queues, from the worker's committed positions to the end.

The reader uses the worker's group id to read its positions, but never joins the group, never commits, and does not
affect the worker. A record that is being delivered at this moment may still be shown. Probes are left out.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from rocketshim.errors import TopicMissingError
from rocketshim.kafka.acls import OR_HIDDEN
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim.observe.snapshot import DelayQueue, PartitionStanding, WaitingRecord, waiting_record
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.hops import is_probe
from rocketshim_topics.levels import DelayLevels, time_in_queue_ms
from rocketshim_topics.names import TopicNames, init_command

__all__ = ["DelayedReader"]


class DelayedReader:
    """Reads the delay queues and their waiting records.

    Thread-safety: none; one owner thread, that of the reader.
    """

    def __init__(self, reader: TopicReader, names: TopicNames, levels: DelayLevels) -> None:
        self._names = names
        self._topic = names.schedule
        self._levels = levels
        self._reader = reader

    def counted(self, watch: Callable[[Iterator[Any]], Iterator[Any]] = iter) -> dict[int, tuple[int, WaitingRecord]]:
        """Return the number of waiting records of each queue that has some, and the one that leaves next.

        This reads all waiting records, and passes them through `watch`; probes do not count.
        """
        counts: Counter[int] = Counter()
        heads: dict[int, WaitingRecord] = {}
        for message in watch(self.records()):
            number = message.partition()
            counts[number] += 1
            if number not in heads:
                heads[number] = waiting_record(message, self._levels)
        return {number: (count, heads[number]) for number, count in sorted(counts.items())}

    def timer_log(self) -> list[DelayQueue]:
        """Return the partitions of the timer log that have a command which no worker has read, with the first one."""
        log = self._names.timers
        keys = [TopicPartitionKey(log, number) for number in range(self._reader.topics().get(log, 0))]
        positions = self._reader.positions(self._names.worker_group, keys)
        unread = {
            key: PartitionStanding(*key, positions.get(key, bounds[0]), *bounds)
            for key, bounds in self._reader.bounds_of(keys).items()
        }
        found = self._reader.first_records({key: each.unread for key, each in unread.items()}, skip=is_probe)
        return [
            DelayQueue(key.partition, 0, unread[key], (waiting_record(record, self._levels),))
            for key, (record,) in sorted(found.items())
        ]

    def records(self, *, follow: bool = False) -> Iterator[Any]:
        """Return every waiting record as a Kafka message, in order within a queue."""
        for message in self._reader.read_spans(self.spans(everywhere=follow), follow=follow):
            if message is not None and not is_probe(message):
                yield message

    def first(self, most: int, is_wanted: Callable[[Any], bool]) -> list[Any]:
        """Return the wanted records that leave their queues first, as Kafka messages, the next one first."""

        def leaves_ms(record: Any) -> int:
            return int(record.timestamp()[1]) + time_in_queue_ms(self._levels, record.partition())

        found: defaultdict[int, list[Any]] = defaultdict(list)  # by partition
        rest, count = self.spans(), most
        while rest:
            window = {key: (start, min(end, start + count)) for key, (start, end) in rest.items()}
            for record in self._reader.read_spans(window):
                wanted = found[record.partition()]
                if len(wanted) < most and not is_probe(record) and is_wanted(record):
                    wanted.append(record)
            left = {key: (window[key][1], end) for key, (_, end) in rest.items() if len(found[key.partition]) < most}
            rest, count = {key: span for key, span in left.items() if span[0] < span[1]}, 4 * count
        return sorted((record for queue in found.values() for record in queue), key=leaves_ms)[:most]

    def spans(self, *, everywhere: bool = False) -> dict[TopicPartitionKey, tuple[int, int]]:
        """Return position and end of each partition with unread records; `everywhere`: of all partitions."""
        keys = [TopicPartitionKey(self._topic, number) for number in range(self._count())]
        positions = self._reader.positions(self._names.worker_group, keys)
        bounds = self._reader.bounds_of_all(keys)
        spans = {key: (max(low, positions.get(key, 0)), high) for key, (low, high) in bounds.items()}
        return {key: span for key, span in spans.items() if everywhere or span[0] < span[1]}

    def _count(self) -> int:
        """Return the number of partitions of the topic, which must exist."""
        count = self._reader.topics().get(self._topic)
        if not count:
            raise TopicMissingError(
                f"the topic {self._topic} does not exist; create it with: {init_command(self._topic)}. {OR_HIDDEN}"
            )
        return count
