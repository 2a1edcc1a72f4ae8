"""Makes the state of a push consumer (`rocketshim.consumer_metrics`); the poll thread does it each second."""

from dataclasses import replace
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from rocketshim.consumer.mode import Mode
from rocketshim.consumer.reader.partition_reader import PartitionReader
from rocketshim.consumer_metrics import ConsumerQueueState, ConsumerState
from rocketshim.core.partition import PartitionQueue
from rocketshim.errors import ConsumerError

__all__ = ["state_of"]


def state_of(group: str, reader: PartitionReader, mode: Mode[Any], now_ms: int) -> ConsumerState:
    """Return the state of the consumer of a poll loop; its thread calls it."""
    dispatch, commits = mode.dispatch, mode.commits
    counts, since_ms = dispatch.counts, commits.failing_since_ms

    def of_queue(queue: PartitionQueue, unpaused: str = "") -> ConsumerQueueState:
        key = queue.key
        partition, position = reader.partitions.get(key), queue.next_offset
        committed = -1 if partition is None else partition.stored
        try:
            _, high = reader.client().get_watermark_offsets(TopicPartition(*key), cached=True)
        except (KafkaException, TypeError, ConsumerError):
            high = -1
        at = committed if position is None else position
        times, failing_ms = queue.failing(now_ms) or (None, 0)
        return ConsumerQueueState(
            topic=key.topic,
            queue_id=key.partition,
            epoch=queue.epoch,
            position=position,
            committed=committed,
            lag=max(0, high - at) if high >= 0 and at >= 0 else None,
            msg_count=queue.msg_count,
            msg_bytes=queue.msg_bytes,
            oldest_in_work_ms=queue.oldest_in_work_ms(now_ms),
            paused="|".join(reason.name or "" for reason in (partition.pauses if partition else ())) or unpaused,
            reconsume_times=times,
            failing_ms=failing_ms,
        )

    return ConsumerState(
        at_ns=now_ms * 1_000_000,
        group=group,
        is_member=reader.is_member,
        suspended=reader.is_suspended,
        commits_fail_since_ns=None if since_ms is None else since_ms * 1_000_000,
        commits_failed=commits.failed,
        workers=dispatch.pool.size,
        in_flight=dispatch.in_flight,
        messages={"SUCCESS": counts.succeeded, **counts.failed_by_type},
        listener_s=counts.listener_ns / 1e9,
        listener_times=counts.listener_times.copy(),
        latencies=counts.latencies.copy(),
        send_back=replace(dispatch.send_back.counts),
        failures=dispatch.send_back.failures.copy(),
        subscription_conflicts=dict(reader.starts.conflicts),
        clock_ahead_ms=dispatch.send_back.clock_ahead_ms,
        queues=(*map(of_queue, mode.queues), *(of_queue(queue, "REVOKED") for queue in mode.ended)),
    )
