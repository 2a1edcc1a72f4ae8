"""Read the waiting records of the delay queues, from the worker's committed positions to the end.

The reader uses the worker's group id to read its positions, but never joins the group, never commits, and does not
affect the worker. A record that is being delivered at this moment may still be shown. Probes are left out.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

from confluent_kafka import KafkaException

from rocketshim.errors import MalformedRecordError, TopicMissingError
from rocketshim.kafka.acls import OR_HIDDEN
from rocketshim.kafka.clients import Clients, confluent_clients
from rocketshim.kafka.positions import positions_from_outside
from rocketshim.kafka.topic_reader import TopicReader
from rocketshim_topics.coordinates import TopicPartitionKey
from rocketshim_topics.hops import due_ms, is_probe
from rocketshim_topics.levels import DelayLevels, time_in_queue_ms
from rocketshim_topics.names import TopicNames, init_command
from rocketshim_topics.wire import decode, read_headers

__all__ = ["DelayedReader", "QueueSummary", "WaitingRecord", "waiting_record"]


@dataclass(frozen=True, slots=True)
class WaitingRecord:
    """A waiting record, as it is displayed.

    Attributes:
        place: `partition/offset` in the schedule topic.
        appended_ms: when it was appended, epoch ms on the broker's clock.
        due_ms: when it is due, epoch ms on the broker's clock; None: it is malformed and will be parked.
        target: its target topic; None: it names none.
        uniq_key: its id, if it has one yet.
        group: the group that gets it as a retry; None: it is not a retry.
        reconsume_times: failed attempts so far; None: it is not a retry.
        trouble: why it will be parked; None: it has no problem.
    """

    place: str
    appended_ms: int
    due_ms: int | None
    target: str | None
    uniq_key: str | None
    group: str | None
    reconsume_times: int | None
    trouble: str | None


@dataclass(frozen=True, slots=True)
class QueueSummary:
    """The waiting records of one queue.

    Attributes:
        partition: number of its partition.
        delay_ms: the queue's delay; None: the table has no such level.
        waiting: number of waiting records, counted by reading them; probes do not count.
        head: the record that leaves next.
    """

    partition: int
    delay_ms: int | None
    waiting: int
    head: WaitingRecord


def waiting_record(record: Any, levels: DelayLevels) -> WaitingRecord:
    """Describe a record of the schedule topic."""
    appended_ms = record.timestamp()[1]
    coordinates = f"{record.partition()}/{record.offset()}"
    try:
        envelope = decode(read_headers(record), trusted=True)
    except MalformedRecordError as error:
        return WaitingRecord(coordinates, appended_ms, None, None, None, None, None, error.reason)
    at_ms = due_ms(envelope, appended_ms, time_in_queue_ms(levels, record.partition()))
    return WaitingRecord(
        coordinates,
        appended_ms,
        at_ms,
        envelope.real_topic,
        envelope.uniq_key,
        envelope.consumer_group,
        envelope.reconsume_times,
        None if envelope.real_topic else "missing-header:REAL_TOPIC",
    )


class DelayedReader:
    """Reads waiting records.

    Args:
        bootstrap: addresses of the brokers.
        names: topic and group names of the namespace.
        levels: the worker's level table.
        client: further librdkafka settings.
        clients: creates the consumer; None: confluent_kafka.

    Raises:
        BrokerUnavailableError: from the methods; no broker answered, or a partition did not answer.
        NotAuthorizedError: from the methods; the principal may not read the topic or describe the worker's group.
        TopicMissingError: from the methods; the schedule topic does not exist.

    Thread-safety: none; one owner thread. A context manager.
    """

    def __init__(
        self,
        bootstrap: str,
        names: TopicNames,
        levels: DelayLevels,
        *,
        client: Mapping[str, Any] | None = None,
        clients: Clients | None = None,
    ) -> None:
        self._topic = names.schedule
        self._levels = levels
        self._positions = partial(
            positions_from_outside, clients or confluent_clients(), client or {}, bootstrap, names.worker_group
        )
        self._reader = TopicReader(bootstrap, client=client, clients=clients)

    def summaries(self, watch: Callable[[Iterator[Any]], Iterator[Any]] = iter) -> list[QueueSummary]:
        """Return each queue with waiting records, by partition. This reads all waiting records.

        Args:
            watch: a function that the records pass through as they are read, for example to show progress.
        """
        counts: Counter[int] = Counter()
        heads: dict[int, WaitingRecord] = {}
        for message in watch(self.records()):
            number = message.partition()
            counts[number] += 1
            if number not in heads:
                heads[number] = waiting_record(message, self._levels)
        return [
            QueueSummary(number, self._levels.queue_delay_ms(number), count, heads[number])
            for number, count in sorted(counts.items())
        ]

    def records(self, *, follow: bool = False) -> Iterator[Any]:
        """Return every waiting record as a Kafka message, in order within a queue.

        Args:
            follow: continue with new records, indefinitely.
        """
        for message in self._reader.read_spans(self.spans(everywhere=follow), follow=follow):
            if message is not None and not is_probe(message):
                yield message

    def first(self, most: int, is_wanted: Callable[[Any], bool]) -> list[Any]:
        """Return the wanted records that leave their queues first, as Kafka messages, in the order in which they leave.

        Args:
            most: maximum number.
            is_wanted: returns whether a Kafka message is wanted.
        """

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

    def fetch(self, partition: int, offset: int) -> Any | None:
        """Return the record at a partition and offset, waiting or not; None if it does not exist (any more)."""
        self._count()
        message = self._reader.fetch(self._topic, partition, offset)
        return None if message is None or is_probe(message) else message

    def spans(self, *, everywhere: bool = False) -> dict[TopicPartitionKey, tuple[int, int]]:
        """Return position and end of each partition with unread records; `everywhere`: of all partitions."""
        queues = [TopicPartitionKey(self._topic, number) for number in range(self._count())]
        try:
            positions = self._positions(queues)
        except KafkaException as error:
            raise self._reader.typed(error) from error
        spans = {}
        for key, (low, high) in self._reader.bounds_of_all(queues).items():
            start = max(low, positions.get(key, 0))
            if everywhere or start < high:
                spans[key] = (start, high)
        return spans

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _count(self) -> int:
        """Return the number of partitions of the topic, which must exist."""
        count = self._reader.topics().get(self._topic)
        if not count:
            raise TopicMissingError(
                f"the topic {self._topic} does not exist; create it with: {init_command(self._topic)}. {OR_HIDDEN}"
            )
        return count
