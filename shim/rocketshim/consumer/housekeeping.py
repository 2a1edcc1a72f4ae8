"""What the poll thread does from time to time: commit, look up topics and subscriptions, show the consumer's state."""

from dataclasses import replace
from typing import Any, Final, Generic

from confluent_kafka import KafkaException, TopicPartition

from rocketshim.consumer.dispatch import Dispatch
from rocketshim.consumer.loop_parts import LoopParts
from rocketshim.consumer.queues import AssignedQueues
from rocketshim.consumer.reader.partition_queue import PartitionQueue, QueueT
from rocketshim.consumer.reader.topic_watch import TopicWatch
from rocketshim.consumer.requests import Subscribe, Unsubscribe
from rocketshim.consumer.state import ConsumerQueueState, ConsumerState
from rocketshim.core.timer import Timer
from rocketshim.logs import safe_logger
from rocketshim_topics.coordinates import TopicPartitionKey

__all__ = ["Housekeeping"]

_LOG = safe_logger("rocketshim.consumer")
_SHOW_MS: Final = 1_000
_COMPARE_TIMEOUT_S: Final = 0.5


class Housekeeping(Generic[QueueT]):
    """The recurring work of one poll loop. `state` is replaced each second; any thread may read it."""

    def __init__(
        self,
        parts: LoopParts,
        queues: AssignedQueues[QueueT],
        dispatch: Dispatch[QueueT, Any, Any],
    ) -> None:
        settings = parts.settings
        self.state: ConsumerState | None = None
        self._reader = parts.reader
        self._queues = queues
        self._dispatch = dispatch
        self._source = parts.source
        self._watch = TopicWatch(parts.source, settings.rebalance_interval_ms)
        self._group = settings.group
        self._commit = Timer(settings.persist_consumer_offset_interval_ms)
        self._compare = Timer(settings.rebalance_interval_ms)
        self._show = Timer(_SHOW_MS)
        self._membership = parts.membership

    def open(self) -> None:
        """Subscribe, after a look-up of topics that match patterns."""
        self._watch.look(self._reader.lookups, self._reader.now_ms())
        self._reader.subscribe(self._watch.topics)

    def do_due(self, now_ms: int) -> None:
        """Do what is due now.

        Raises:
            RocketshimError: the consumer cannot continue.
        """
        reader = self._reader
        if self._watch.look(reader.lookups, now_ms):
            reader.subscribe(self._watch.topics)
        reader.follow_assigner()
        if self._commit.is_due(now_ms):
            self._queues.commit()
        reader.start_waiting()
        if self._membership is not None and not reader.has_assignment.is_set():
            member_id = reader.client().memberid()
            if self._membership.has_no_partitions(member_id, now_ms):
                reader.has_assignment.set()
        if reader.has_assignment.is_set() and self._compare.is_due(now_ms):
            self._compare_subscriptions()
        missing = self._watch.missing(reader.lookups, now_ms)
        if missing is not None:
            raise missing
        if self._show.is_due(now_ms):
            self.state = self._state(now_ms)

    def close(self) -> None:
        """Release the admin client; nothing is due any more."""
        if self._membership is not None:
            self._membership.close()

    def compare_soon(self) -> None:
        """Compare subscriptions in the next turn: partitions have arrived."""
        self._compare.next_ms = 0

    def change_topics(self, change: Subscribe | Unsubscribe) -> None:
        """Change the subscription; the next commits carry it.

        Raises:
            ConfigError: the pattern is not a regular expression; nothing changed.
        """
        source = self._source
        match change:
            case Subscribe(subscription):
                source.put(subscription)
            case Unsubscribe(topic):
                source.remove(topic)
        self._reader.starts.subscribe(source.digest(), source.text())
        self._queues.commit_again()
        if self._watch.refresh():
            self._reader.subscribe(self._watch.topics)

    def doubt(self, topic: str) -> None:
        """Note that the cluster reports a topic as unknown."""
        self._watch.doubt(topic, self._reader.now_ms())

    def _compare_subscriptions(self) -> None:
        """Check whether a member of the group subscribes differently: two subscriptions of one group lose messages."""
        try:
            self._reader.starts.look(self._reader.client(), self._watch.topics, _COMPARE_TIMEOUT_S)
        except KafkaException as error:
            _LOG.debug("consumer.subscriptions-unknown", extra={"error": str(error)})

    def _state(self, now_ms: int) -> ConsumerState:
        dispatch, commits = self._dispatch, self._queues.commits
        counts, since_ms = dispatch.counts, commits.failing_since_ms
        return ConsumerState(
            at_ns=now_ms * 1_000_000,
            group=self._group,
            is_member=self._reader.has_assignment.is_set(),
            suspended=self._reader.is_suspended,
            commits_fail_since_ns=None if since_ms is None else since_ms * 1_000_000,
            commits_failed=commits.failed,
            workers=dispatch.pool.size,
            in_flight=dispatch.in_flight,
            messages={"SUCCESS": counts.succeeded, **(counts.failed_by_type or {"FAILED": counts.failed})},
            listener_s=counts.listener_ns / 1e9,
            listener_times=counts.listener_times.copy(),
            latencies=counts.latencies.copy(),
            send_back=replace(dispatch.send_back.counts),
            failures=dispatch.send_back.failures.copy(),
            subscription_conflicts=dict(self._reader.starts.conflicts),
            queues=tuple(self._queue_state(queue, now_ms) for queue in self._queues),
        )

    def _queue_state(self, queue: PartitionQueue, now_ms: int) -> ConsumerQueueState:
        key = TopicPartitionKey.of(queue)
        position, committed = queue.next_offset, self._queues.commits.positions.stored(key)
        try:
            _, high = self._reader.client().get_watermark_offsets(TopicPartition(*key), cached=True)
        except (KafkaException, TypeError):
            high = -1
        at = committed if position is None else position
        times, failing_ms = queue.failing or (None, 0)
        return ConsumerQueueState(
            topic=queue.topic,
            queue_id=queue.partition,
            epoch=queue.epoch,
            position=position,
            committed=committed,
            lag=max(0, high - at) if high >= 0 and at >= 0 else None,
            msg_count=queue.msg_count,
            msg_bytes=queue.msg_bytes,
            oldest_in_work_ms=queue.oldest_in_work_ms(now_ms),
            paused="|".join(reason.name or "" for reason in self._reader.pauses.why(key)),
            reconsume_times=times,
            failing_ms=failing_ms,
        )
