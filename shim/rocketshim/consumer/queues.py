"""The queues of the partitions that a push consumer reads: their epochs, pauses and seeks, and the commits of them.

Each assigned partition has one queue from its begin until it is forgotten. A new begin of the same partition (its
start became known, a seek, a log that was cut) drops the old queue: results of its messages no longer count.

Owned by the poll thread.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Generic

from confluent_kafka import TopicPartition

from rocketshim.consumer.dispatch import Dispatch, LoopParts
from rocketshim.consumer.reader.commits import Committer
from rocketshim.consumer.reader.partition_queue import QueueT
from rocketshim.consumer.reader.pauses import PauseReason
from rocketshim.core.flow_control import must_pause, per_queue_limits, should_resume
from rocketshim.errors import ConsumerError
from rocketshim.kafka.lookups import offsets_at
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["AssignedQueues"]

_TIMEOUT_S: Final = 10.0
_MAX_IN_FLIGHT: Final = 10_000


class AssignedQueues(Generic[QueueT]):
    """The queues that are read now, by partition (`by_key`), and their commits. Any thread may iterate."""

    def __init__(self, parts: LoopParts, dispatch: Dispatch[QueueT, Any, Any]) -> None:
        reader = parts.reader
        self.by_key: dict[TopicPartitionKey, QueueT] = {}
        self.commits = Committer(
            reader.client,
            reader.now_ms,
            reader.starts.as_offsets,
            reader.ownership,
            store=reader.store,
            care=reader.care,
        )
        self._reader = reader
        self._dispatch = dispatch
        self._parts = parts
        self._limits = parts.limits
        self._epoch = 0

    def __iter__(self) -> Iterator[QueueT]:
        return iter(list(self.by_key.values()))

    def __len__(self) -> int:
        return len(self.by_key)

    def owned(self) -> Iterable[QueueT]:
        """Return the queues whose messages may be handed out now."""
        ownership = self._reader.ownership
        if not ownership.needs_lease:
            return self.by_key.values()
        return [queue for key, queue in self.by_key.items() if ownership.owns(key)]

    def begin(self, key: TopicPartitionKey, offset: int) -> None:
        """Begin a new epoch of a partition, from this offset on; what the former queue was too full of is gone."""
        self._drop(key)
        self._epoch += 1
        self.by_key[key] = self._dispatch.make_queue(key, self._epoch)
        # else nobody resumes it (test_a_log_that_was_cut_while_its_queue_was_full_is_read): the new queue is not full
        self._reader.pauses.release([key], PauseReason.FLOW)
        self.commits.positions.adopt(key, offset)
        self._share_limits()

    def take_out(self, key: TopicPartitionKey) -> QueueT | None:
        """Remove a queue without dropping it: what it has in progress still counts. None: there is none."""
        queue = self.by_key.pop(key, None)
        self._share_limits()
        return queue

    def forget(self, keys: Iterable[TopicPartitionKey]) -> None:
        """Drop the queues of partitions that are no longer assigned."""
        for key in keys:
            self._drop(key)
            self.commits.positions.forget(key)
            self._reader.care.forget(key)
        self._share_limits()

    def _drop(self, key: TopicPartitionKey) -> None:
        queue = self.by_key.pop(key, None)
        if queue is not None:
            self._dispatch.withhold([queue])
            queue.drop()

    def is_too_full(self) -> bool:
        """Return whether more is buffered than may be, in a queue that is not paused or in all together."""
        return self._listeners_are_full or any(self._must_pause(queue) for queue in self.by_key.values())

    def pause_full(self) -> None:
        """Pause the queues that have too much; pause all queues if listeners together have too many messages."""
        is_full = self._listeners_are_full
        full = [queue for queue in self if not queue.paused and (is_full or self._must_pause(queue))]
        for queue in full:
            queue.paused = True
        self._reader.pauses.hold(map(TopicPartitionKey.of, full), PauseReason.FLOW)

    def resume_drained(self) -> None:
        """Resume the queues that were paused and have little again."""
        if self._dispatch.in_flight * 2 > _MAX_IN_FLIGHT:
            return
        ready = [
            queue
            for queue in self.by_key.values()
            if queue.paused and should_resume(queue, self._limits, is_waiting=queue.is_waiting)
        ]
        for queue in ready:
            queue.paused = False
        self._reader.pauses.release(map(TopicPartitionKey.of, ready), PauseReason.FLOW)

    def is_full(self, queue: QueueT) -> bool:
        """Return whether a queue is above a threshold."""
        return must_pause(queue, self._limits)

    @property
    def _listeners_are_full(self) -> bool:
        return self._dispatch.in_flight >= _MAX_IN_FLIGHT

    def _must_pause(self, queue: QueueT) -> bool:
        return not queue.paused and self.is_full(queue)

    def _share_limits(self) -> None:
        """Divide the thresholds of a topic among all assigned queues."""
        settings = self._parts.settings
        count, size_bytes = settings.pull_threshold_for_topic, settings.pull_threshold_size_for_topic_bytes
        self._limits = per_queue_limits(self._parts.limits, count, size_bytes, len(self.by_key))

    def finish(self, keys: Iterable[TopicPartitionKey], deadline_ms: int) -> None:
        """Wait for the listeners of these partitions, then commit: they are about to be revoked."""
        queues = [self.by_key[key] for key in keys if key in self.by_key]
        self._dispatch.drain(queues, self.owned, deadline_ms)
        self._reader.care.give_back(map(TopicPartitionKey.of, queues))
        self.commits.commit(queues, asynchronous=False)

    def skip_invisible(self) -> None:
        """Have the next commits pass what no reader sees behind the last messages: markers, aborted records.

        Call it only between two turns: in a callback, or after a message was dropped, the client's position may be
        behind messages that are in no queue. It asks no broker (0.3 to 0.7 ms for a thousand partitions).
        """
        # a commit would lose them (test_closing_passes_what_was_read_and_no_message_that_it_drops,
        # test_a_message_in_hand_is_not_passed_when_its_partition_is_revoked_within_the_same_fetch)
        asked = [TopicPartition(*key) for key in self.by_key if not self._reader.is_waiting(key)]
        for item in self._reader.client().position(asked) if asked else ():
            key = TopicPartitionKey.of(item)
            if item.offset > self.commits.positions.sent(key):  # negative: nothing was read yet
                self.by_key[key].skip_to(item.offset)

    def give_back(self) -> None:
        """Have the last commit of a closing consumer say that nothing of its partitions is in progress."""
        self._reader.care.give_back(self.by_key)

    def commit(self) -> None:
        """Commit what is finished, without waiting for the answer."""
        self.commits.commit(self.by_key.values(), asynchronous=True)

    def position(self, key: TopicPartitionKey) -> int | None:
        """Return the offset that was last sent, or the start; None: the partition is not read now."""
        return self.commits.positions.sent(key) if key in self.by_key else None

    def seek(self, targets: Mapping[TopicPartitionKey, int]) -> None:
        """Continue at other offsets, in a new epoch: buffered messages are discarded, running calls no longer count.

        Raises:
            ConsumerError: a queue is not assigned to this consumer; nothing was moved.
            KafkaException: Kafka refused; the queues before that one were moved, that one and the others were not.
        """
        owns = self._reader.ownership.owns
        absent = [str(key) for key in targets if key not in self.by_key or not owns(key)]
        if absent:
            raise ConsumerError(
                f"{', '.join(absent)}: not read by this consumer now; nothing was moved. Seek in the consumer that "
                "reads them"
            )
        for key, offset in targets.items():
            self._reader.care.end_care(key)
            self._reader.starts.commit({key: offset})
            self.commits.positions.adopt(key, offset)  # also a lower one
            self._reader.seek(key, offset)  # if it fails, the next commit restores the group's offset
            self.begin(key, offset)
            self._reader.pauses.release([key], PauseReason.UNRESOLVED)

    def seek_to_time(self, topic: str, timestamp_ms: int) -> None:
        """Continue the queues of a topic at the first message of a time or later, else at their end.

        Raises:
            ConsumerError, KafkaException: no queue of the topic is read now, or see `seek`.
        """
        keys = [key for key in self.by_key if key.topic == topic]
        if not keys:
            raise ConsumerError(f"this consumer reads no queue of {topic!r} now")
        self.seek(offsets_at(self._reader.lookups, keys, timestamp_ms, _TIMEOUT_S))
