"""What a push consumer does with the partitions that it reads: concurrent and orderly consumption.

A `Mode` is the `PartitionOwner` of its reader. It has the queues of the partitions: epochs, pauses, seeks, and the
commits of them. Each partition has one queue from its begin until it is forgotten. A new begin of the same partition
(its start became known, a seek, a log that was cut) drops the old queue: results of its messages no longer count. The
two modes differ in the queue, and in what starts and ends it.

Owned by the poll thread.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, Generic, cast

from confluent_kafka import TopicPartition

from rocketshim.consumer.dispatch import Dispatch
from rocketshim.consumer.reader.group_offsets import Committer
from rocketshim.consumer.reader.partition_reader import PartitionReader
from rocketshim.core.clock import Interval
from rocketshim.core.partition import (
    FlowLimits,
    Partition,
    PauseReason,
    QueueT,
    must_pause,
    per_queue_limits,
    should_resume,
)
from rocketshim.errors import ConsumerError
from rocketshim.kafka.lookups import offsets_at
from rocketshim.logs import safe_logger
from rocketshim.settings.consumer import PushConsumerSettings
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["Mode"]

_LOG = safe_logger("rocketshim.consumer")
_TIMEOUT_S: Final = 10.0
_MAX_IN_FLIGHT: Final = 10_000


class Mode(ABC, Generic[QueueT]):
    """The queues that are read now, their listeners (`dispatch`) and their commits."""

    def __init__(
        self, reader: PartitionReader, dispatch: Dispatch[QueueT], settings: PushConsumerSettings, limits: FlowLimits
    ) -> None:
        self.commits = Committer(
            reader.client,
            reader.now_ms,
            reader.starts.as_offsets,
            reader.ownership,
            reader.partitions,
            store=reader.starts.store,
            care=reader.care,
        )
        self._commit_interval = Interval(settings.persist_consumer_offset_interval_ms)
        self.dispatch = dispatch
        self.reader = reader
        self.settings = settings
        self._limits = self._own_limits = limits
        self._epoch = 0

    # --- what the modes do differently -------------------------------------------------------------------------------

    @property
    def ended(self) -> Iterable[QueueT]:
        """Return the queues that are read no longer while a listener still has messages of them."""
        return ()

    @abstractmethod
    def accept(self, partitions: list[TopicPartition]) -> None:
        """Accept partitions that were assigned. Raises as `PartitionOwner.accept`."""

    @abstractmethod
    def _begin_again(self, key: TopicPartitionKey, run: list[Any]) -> None:
        """Read a partition from the first message of a run on, in a new epoch: its log was cut."""

    @abstractmethod
    def turn(self, now_ms: int) -> float:
        """Do what is due now, and return how long the loop may wait for messages, in seconds.

        Raises RocketshimError: the consumer cannot continue.
        """

    def open(self) -> None:
        """Start what the mode needs beside the client: the loop has subscribed."""

    def finish(self) -> bool:
        """While closing: finish what can be finished now; return whether nothing is left."""
        return True

    def close(self) -> None:
        """Clean up: the loop has left the group."""

    # --- queues ------------------------------------------------------------------------------------------------------

    @property
    def queues(self) -> list[QueueT]:
        """The queues that are read now."""
        return _queues(self.partitions)

    @property
    def is_drained(self) -> bool:
        """Return whether no listener has a message of a queue, and no failed message is on its way."""
        return all(queue.is_drained for queue in self.queues)

    @property
    def partitions(self) -> list[Partition]:
        """The partitions that have a queue."""
        return [each for each in list(self.reader.partitions.values()) if each.queue is not None]

    def get(self, key: TopicPartitionKey) -> QueueT | None:
        """Return the queue of a partition; None: it is not read now."""
        partition = self.reader.partitions.get(key)
        return None if partition is None else cast("QueueT | None", partition.queue)

    def owned(self) -> Iterable[QueueT]:
        """Return the queues whose messages may be handed out now."""
        ownership = self.reader.ownership
        if not ownership.needs_lease:
            return self.queues
        return _queues(each for each in self.partitions if ownership.owns(each.key))

    def begin(self, key: TopicPartitionKey, offset: int) -> None:
        """Begin a new epoch of a partition, from this offset on; what the former queue was too full of is gone."""
        self._drop(key)
        self._epoch += 1
        partition = self.reader.partitions[key]
        partition.queue = self.dispatch.make_queue(key, self._epoch)
        # else nobody resumes it (test_a_log_that_was_cut_while_its_queue_was_full_is_read): the new queue is not full
        self.reader.unpause([key], PauseReason.FLOW)
        partition.begin(offset)
        self._share_limits()

    def _detach(self, key: TopicPartitionKey) -> QueueT | None:
        """Remove a queue without dropping it: what it has in progress still counts. None: there is none."""
        queue = self.get(key)
        if queue is not None:
            self.reader.partitions[key].queue = None
        return queue

    def forget(self, keys: Collection[TopicPartitionKey]) -> None:
        """Drop the queues of partitions that are no longer assigned. Never raises."""
        for key in keys:
            self._drop(key)
            self.reader.care.forget(key)
        self._share_limits()

    def _drop(self, key: TopicPartitionKey) -> None:
        queue = self._detach(key)
        if queue is not None:
            self.dispatch.withhold([queue])
            queue.drop()

    def put(self, key: TopicPartitionKey, run: list[Any]) -> None:
        """Add a fetched run to its queue.

        Offsets that go backwards within an assignment mean that the log was cut or created again. The queue is dropped,
        and a new epoch starts where the log continues: messages may be repeated, but none is lost.
        """
        queue = self.get(key)
        if queue is None:
            return  # it was revoked meanwhile
        wanted = self.reader.from_position(key, run, max(queue.next_put, self.reader.partitions[key].sent))
        if wanted is None:
            _LOG.warning("consumer.log-cut", extra={"partition": str(key), "first_offset": run[0].offset()})
            self.reader.care.end_care(key)
            self._begin_again(key, run)
        elif wanted:
            queue.put(wanted)

    def is_too_full(self) -> bool:
        """Return whether more is buffered than may be, in a queue that is not paused or in all together."""
        return self._listeners_are_full or any(map(self._must_pause, self.partitions))

    def pause_full(self) -> None:
        """Pause the queues that have too much; pause all queues if listeners together have too many messages."""
        is_full = self._listeners_are_full
        full = [each.key for each in self.partitions if is_full or self._must_pause(each)]
        self.reader.pause(full, PauseReason.FLOW)

    def resume_with_room(self) -> None:
        """Resume the queues that were paused and have little again."""
        if self.dispatch.in_flight * 2 > _MAX_IN_FLIGHT:
            return
        ready = [
            each.key
            for each in self.reader.partitions.values()
            if each.pauses
            and (queue := each.queue) is not None
            and should_resume(queue, self._limits, self.reader.now_ms())
        ]
        self.reader.unpause(ready, PauseReason.FLOW)

    def is_full(self, queue: QueueT) -> bool:
        """Return whether a queue is above a threshold."""
        return must_pause(queue, self._limits)

    @property
    def _listeners_are_full(self) -> bool:
        return self.dispatch.in_flight >= _MAX_IN_FLIGHT

    def _must_pause(self, partition: Partition) -> bool:
        queue = partition.queue
        return queue is not None and must_pause(queue, self._limits) and PauseReason.FLOW not in partition.pauses

    def _share_limits(self) -> None:
        """Divide the thresholds of a topic among all assigned queues."""
        count, size_bytes = self.settings.pull_threshold_for_topic, self.settings.pull_threshold_size_for_topic_bytes
        self._limits = per_queue_limits(self._own_limits, count, size_bytes, len(self.partitions))

    def drain_and_commit(self, keys: Collection[TopicPartitionKey]) -> None:
        """Wait for the listeners of these partitions, then commit: they are about to be revoked.

        A call that has not returned by `revoke_drain_ms` goes on, and its result counts no more. A closing consumer
        only commits: it has waited.
        """
        leaving = [each for each in self.partitions if each.key in keys]
        drain_ms = 0 if self.reader.is_closing else self.settings.revoke_drain_ms
        self.dispatch.drain(_queues(leaving), self.owned, self.reader.now_ms() + drain_ms)
        self.reader.care.mark_released(each.key for each in leaving)
        self.commits.commit(leaving, asynchronous=False)

    def skip_invisible(self) -> None:
        """Have the next commits pass what no reader sees behind the last messages; see `PartitionReader.read_to`."""
        for item in self.reader.read_to():
            partition = self.reader.partitions[TopicPartitionKey.of(item)]
            if partition.queue is not None and item.offset > partition.sent:
                partition.queue.skip_to(item.offset)

    def mark_released(self) -> None:
        """Have the last commit of a closing consumer say that nothing of its partitions is in progress."""
        self.reader.care.mark_released(each.key for each in self.partitions)

    def commit_if_due(self, now_ms: int) -> None:
        """Commit at the interval, also what no reader sees."""
        if self._commit_interval.is_due(now_ms):
            self.skip_invisible()
            self.commit()

    def commit(self) -> None:
        """Commit what is finished, without waiting for the answer."""
        self.commits.commit(self.partitions, asynchronous=True)

    def position(self, key: TopicPartitionKey) -> int | None:
        """Return the offset that was last sent, or the start; None: the partition is not read now."""
        return None if self.get(key) is None else self.reader.partitions[key].sent

    def seek(self, targets: Mapping[TopicPartitionKey, int]) -> None:
        """Continue at other offsets, in a new epoch: buffered messages are discarded, running calls no longer count.

        Raises:
            ConsumerError: a queue is not assigned to this consumer; nothing was moved.
            KafkaException: Kafka refused; the queues before that one were moved, that one and the others were not.
        """
        owns = self.reader.ownership.owns
        absent = [str(key) for key in targets if self.get(key) is None or not owns(key)]
        if absent:
            raise ConsumerError(
                f"{', '.join(absent)}: not read by this consumer now; nothing was moved. Seek in the consumer that "
                "reads them"
            )
        for key, offset in targets.items():
            self.reader.care.end_care(key)
            self.reader.starts.commit({key: offset})
            self.reader.partitions[key].begin(offset)  # also a lower one
            self.reader.seek(key, offset)  # if it fails, the next commit restores the group's offset
            self.begin(key, offset)
            self.reader.unpause([key], PauseReason.UNRESOLVED)

    def seek_to_time(self, topic: str, timestamp_ms: int) -> None:
        """Continue the queues of a topic at the first message of a time or later, else at their end.

        Raises ConsumerError: no queue of the topic is read now; and what `seek` raises.
        """
        keys = [each.key for each in self.partitions if each.key.topic == topic]
        if not keys:
            raise ConsumerError(f"this consumer reads no queue of {topic!r} now")
        self.seek(offsets_at(self.reader.lookups, keys, timestamp_ms, _TIMEOUT_S))


def _queues(partitions: Iterable[Partition]) -> list[Any]:
    """Return the queues of partitions that have one, as those of the mode: which kind they are is not checked."""
    return [each.queue for each in partitions]
