"""Which partitions a consumer reads, where it stands in each, and what comes next.

There is no prefetch: a record is read from the log when it is handed out, so `pause` and `seek` act immediately (the
real client may still hand out one more batch). Partitions take turns in runs, so that a full one does not starve the
rest.

Imitated (measured on librdkafka 2.16 and a real broker):

* A pause belongs to the *partition as the client knows it*, not to the assignment: it survives everything until
  `resume`. The client knows a partition once it was assigned, or was asked for by `position` or by `list_topics` of
  that topic; pausing one it does not know does nothing.
* `position` is that of the program: −1001 before the first record and after a seek. It moves over trailing control
  records (transaction markers) when the reader gets there.
* Where the start has to be looked up (no offset given), `seek` fails with `_OUTDATED` until the next poll.
* A topic that is not there is silence; one that may not be read is one event.

Pure but for the broker's state; every method is called with the broker's lock held.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, OFFSET_INVALID, OFFSET_STORED, KafkaError, Message

from rocketshim.testing.assignors import Partition
from rocketshim.testing.broker import InMemoryBroker
from rocketshim.testing.client_settings import ConsumerSettings
from rocketshim.testing.kafka_errors import Code, failure, kafka_error
from rocketshim.testing.partition_log import PartitionLog, StoredRecord

__all__ = ["Fetching", "as_message", "event"]


@dataclass(slots=True)
class Fetcher:
    """Where the consumer stands in one assigned partition."""

    assigned_offset: int  # as `assignment` shows it
    next_offset: int | None = None  # where to read on; None until the start is known
    position: int = OFFSET_INVALID  # next offset of the program; −1001 before the first record and after a seek
    stored_offset: int = OFFSET_INVALID  # what `commit` without arguments would commit; −1001: nothing
    may_seek: bool = False  # False after an assignment without a start offset, until the next poll
    eof_offset: int | None = None  # end that was reported last
    is_failed: bool = False  # it had no offset to start from and the policy is `error`


class Fetching:
    """The reading half of a consumer; `run_count` records of one partition are read before the next has its turn.

    Thread-safety: none; the broker's lock guards it.
    """

    def __init__(self, broker: InMemoryBroker, settings: ConsumerSettings, *, run_count: int) -> None:
        self._broker = broker
        self._settings = settings
        self._run_count = run_count
        self._run_left_count = run_count
        self._fetchers: dict[Partition, Fetcher] = {}
        self._turn: deque[Partition] = deque()
        self._known: set[Partition] = set()
        self._paused: set[Partition] = set()
        self._denied: set[str] = set()
        self._events: deque[Message] = deque()

    def __contains__(self, partition: Partition) -> bool:
        return partition in self._fetchers

    def assignment(self) -> list[tuple[Partition, int]]:
        """Each partition with the offset it was assigned at, sorted."""
        return [(partition, fetcher.assigned_offset) for partition, fetcher in sorted(self._fetchers.items())]

    @property
    def read_topics(self) -> frozenset[str]:
        """The topics of which something is read, so that a broker may be holding a fetch."""
        return frozenset(topic for topic, number in self._fetchers if (topic, number) not in self._paused)

    def start(self, partition: Partition, offset: int) -> None:
        """Start a partition at an offset, a logical one (−1, −2), or where it was committed (−1001, −1000)."""
        offset = OFFSET_STORED if offset == OFFSET_INVALID else offset
        fetcher = Fetcher(offset, may_seek=offset != OFFSET_STORED)
        self._fetchers[partition] = fetcher
        self._turn.append(partition)
        self._known.add(partition)
        self._find_start(partition, fetcher)

    def stop(self, partitions: Iterable[Partition]) -> None:
        """Give up partitions; ignore those that are not assigned."""
        for partition in partitions:
            if self._fetchers.pop(partition, None) is not None:
                self._turn.remove(partition)

    def clear(self) -> None:
        """Give everything up."""
        self._fetchers.clear()
        self._turn.clear()

    def learn(self, partitions: Iterable[Partition]) -> None:
        """The client has come to know these partitions."""
        self._known.update(partitions)

    def pause(self, partitions: Iterable[Partition]) -> None:
        """Stop handing out what the client knows."""
        self._paused.update(self._known.intersection(partitions))

    def resume(self, partitions: Iterable[Partition]) -> None:
        """Hand out again."""
        self._paused.difference_update(partitions)

    def position(self, partition: Partition) -> int:
        """Next offset of the program; −1001: none."""
        fetcher = self._fetchers.get(partition)
        return OFFSET_INVALID if fetcher is None else fetcher.position

    def seek(self, partition: Partition, offset: int) -> None:
        """Read on elsewhere.

        Raise `_UNKNOWN_PARTITION`, `_STATE` (not assigned) or `_OUTDATED` (start not looked up): nothing has changed.
        """
        doing = f"Failed to seek to offset {offset}"
        fetcher = self._fetchers.get(partition)
        if fetcher is None:
            raise failure(Code.STATE if partition in self._known else Code.UNKNOWN_PARTITION, doing)
        if not fetcher.may_seek:
            raise failure(Code.OUTDATED, doing)
        self._fetchers[partition] = moved = Fetcher(
            fetcher.assigned_offset, stored_offset=fetcher.stored_offset, may_seek=True
        )
        self._begin_at(partition, moved, offset)

    def store(self, partition: Partition, offset: int) -> None:
        """Keep an offset for a commit without arguments; raise `_STATE` if the partition is not assigned."""
        fetcher = self._fetchers.get(partition)
        if fetcher is None:
            raise failure(Code.STATE, "StoreOffsets failed")
        fetcher.stored_offset = offset

    def stored(self) -> list[tuple[Partition, int]]:
        """What a commit without arguments commits, sorted."""
        return [
            (partition, fetcher.stored_offset)
            for partition, fetcher in sorted(self._fetchers.items())
            if fetcher.stored_offset >= 0
        ]

    def next_message(self) -> Message | None:
        """The next record, or event of a partition; None: there is none."""
        if self._broker.faults.is_broker_down:
            return None
        for fetcher in self._fetchers.values():
            fetcher.may_seek = True
        for _ in range(len(self._turn)):
            partition = self._turn[0]
            message = self._fetch(partition, self._fetchers[partition])
            if self._events:
                return self._events.popleft()
            self._run_left_count -= 1
            if message is None or self._run_left_count <= 0:
                self._turn.rotate(-1)
                self._run_left_count = self._run_count
            if message is not None:
                return message
        return None

    def _fetch(self, partition: Partition, fetcher: Fetcher) -> Message | None:
        """The next record of a partition; None: none, or an event was noted."""
        log = self._broker.log(*partition)
        if log is None or partition in self._paused or fetcher.is_failed or not self._may_read(partition):
            return None
        if fetcher.next_offset is None:
            self._find_start(partition, fetcher)
        elif not log.log_start_offset <= fetcher.next_offset <= log.next_offset:
            self._reset(partition, fetcher, "fetch failed due to requested offset not available on the broker")
        if fetcher.next_offset is None or fetcher.is_failed:
            return None
        if fetcher.next_offset == log.next_offset and not self._settings.partition_eof:
            return None  # most polls find most partitions so
        record = log.read(fetcher.next_offset, read_committed=self._settings.read_committed)
        if record is None:
            self._reach_end(partition, fetcher, log)
            return None
        self._move(fetcher, record.offset + 1)
        fetcher.eof_offset = None
        return as_message(*partition, record)

    def _may_read(self, partition: Partition) -> bool:
        topic = partition[0]
        if topic not in self._broker.faults.denied_reads:
            self._denied.discard(topic)
            return True
        if topic not in self._denied:
            self._denied.add(topic)
            text = f"Fetch from broker 1 failed: {kafka_error(Code.TOPIC_AUTHORIZATION_FAILED).str()}"
            self._events.append(event(Code.TOPIC_AUTHORIZATION_FAILED, text, partition))
        return False

    def _reach_end(self, partition: Partition, fetcher: Fetcher, log: PartitionLog) -> None:
        end = log.end_offset(read_committed=self._settings.read_committed)
        if fetcher.next_offset is not None and fetcher.next_offset < end:
            self._move(fetcher, end)
        if self._settings.partition_eof and fetcher.eof_offset != end:
            fetcher.eof_offset = end
            text = f"Fetch from broker 1 reached end of partition at offset {end} (HighwaterMark {log.next_offset})"
            self._events.append(event(Code.PARTITION_EOF, text, partition, offset=end))

    def _move(self, fetcher: Fetcher, next_offset: int) -> None:
        fetcher.next_offset = fetcher.position = next_offset
        if self._settings.auto_offset_store:
            fetcher.stored_offset = next_offset

    def _find_start(self, partition: Partition, fetcher: Fetcher) -> None:
        """Determine where to begin, if that is known: as assigned, else as committed, else by policy."""
        if fetcher.assigned_offset != OFFSET_STORED:
            self._begin_at(partition, fetcher, fetcher.assigned_offset)
            return
        if self._broker.faults.is_broker_down or self._broker.log(*partition) is None:
            return
        if self._settings.read_committed and self._broker.has_unstable_offsets(self._settings.group_id, partition):
            return
        committed = self._broker.group(self._settings.group_id).offsets.get(partition)
        if committed is None:
            self._reset(partition, fetcher, "no previously committed offset available")
        else:
            self._begin_at(partition, fetcher, committed.offset)

    def _begin_at(self, partition: Partition, fetcher: Fetcher, offset: int) -> None:
        log = self._broker.log(*partition)
        if offset >= 0:
            fetcher.next_offset = offset
        elif log is not None and not self._broker.faults.is_broker_down:
            is_end = offset == OFFSET_END
            end = log.end_offset(read_committed=self._settings.read_committed)
            fetcher.next_offset = end if is_end else log.log_start_offset

    def _reset(self, partition: Partition, fetcher: Fetcher, reason: str) -> None:
        match self._settings.auto_offset_reset:
            case "earliest":
                self._begin_at(partition, fetcher, OFFSET_BEGINNING)
            case "latest":
                self._begin_at(partition, fetcher, OFFSET_END)
            case _:
                fetcher.is_failed = True
                text = f"{reason}: {kafka_error(Code.NO_OFFSET).str()}"
                self._events.append(event(Code.AUTO_OFFSET_RESET, text, partition))


def event(code: int, text: str, partition: Partition, *, offset: int = OFFSET_INVALID) -> Message:
    """An error of a partition, as `poll` gives it."""
    topic, number = partition
    return Message(topic=topic, partition=number, offset=offset, value=text.encode(), error=KafkaError(code, text))


def as_message(topic: str, partition: int, record: StoredRecord) -> Message:
    """A stored record as a client hands it out."""
    return Message(
        topic=topic,
        partition=partition,
        offset=record.offset,
        key=record.key,
        value=record.value,
        headers=list(record.headers) or None,
        timestamp=(record.timestamp_type, record.timestamp_ms),
        leader_epoch=0,
    )
