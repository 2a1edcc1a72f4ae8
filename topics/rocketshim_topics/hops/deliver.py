"""What the worker does with a schedule record: deliver it, move it to another queue, or try its target again later."""

from rocketshim_topics import wire
from rocketshim_topics.errors import MalformedRecordError
from rocketshim_topics.hops.record import (
    OutgoingRecord,
    drop_scheduling,
    drop_timer,
    identity_only,
    next_envelope,
    outgoing_record,
    physical_name,
)
from rocketshim_topics.limits import INT_MAX, LONG_MAX
from rocketshim_topics.names import TopicNames, group_of
from rocketshim_topics.wire import WIRE_VERSION, Envelope, Record, encode

__all__ = ["clock_probe", "delivered", "due_at_ms", "due_ms", "hopped", "is_probe", "retried_target"]


def due_ms(envelope: Envelope, append_ms: int, queue_delay_ms: int) -> int:
    """Return when a schedule record is due, in epoch ms on the broker's clock.

    Args:
        envelope: of the schedule record.
        append_ms: its append time.
        queue_delay_ms: delay of its queue. It counts where the record gives no time, as from a plain Kafka producer.

    Returns:
        The due time; at most 2^63 - 1, which a forged delay could exceed.
    """
    return due_at_ms(envelope.deliver_at_ms, envelope.delay_ms, append_ms, queue_delay_ms)


def due_at_ms(deliver_at_ms: int | None, delay_ms: int | None, append_ms: int, queue_delay_ms: int) -> int:
    """Return `due_ms` of a record with these values of `DELIVER_AT_MS` and `DELAY_MS`; None: no such header."""
    if deliver_at_ms is not None:
        return deliver_at_ms
    return min(append_ms + (queue_delay_ms if delay_ms is None else delay_ms), LONG_MAX)


def delivered(record: Record, envelope: Envelope, names: TopicNames) -> OutgoingRecord:
    """Return the record for the target: without scheduling headers, with its identity, to `REAL_QID` or by key.

    The caller checks that the target is allowed, exists, and has that partition.

    Raises:
        MalformedRecordError: `REAL_TOPIC` is missing (`missing-header:REAL_TOPIC`) or is not a legal name
            (`bad-name:REAL_TOPIC`).
    """
    target = envelope.real_topic
    if target is None:
        raise MalformedRecordError(f"missing-header:{wire.REAL_TOPIC}", "the schedule record names no target topic")
    physical = physical_name(names, target, wire.REAL_TOPIC)
    following = next_envelope(record, envelope)
    partition = following.real_qid
    if group_of(target) is None:
        return outgoing_record(record, physical, partition, identity_only(following))
    drop_scheduling(following)
    following.shim = WIRE_VERSION
    return outgoing_record(record, physical, partition, following)


def hopped(
    record: Record, envelope: Envelope, names: TopicNames, *, deliver_at_ms: int, partition: int
) -> OutgoingRecord:
    """Return the record that continues to wait in another queue.

    Args:
        record: the schedule record as fetched.
        envelope: its headers.
        names: of the worker's namespace.
        deliver_at_ms: its due time (`due_ms`); it replaces `DELAY_MS`.
        partition: the next queue, from `DelayLevels.queue_for`, in the same lane.
    """
    following = next_envelope(record, envelope)
    following.shim = WIRE_VERSION
    following.delay_ms = None
    following.deliver_at_ms = deliver_at_ms
    return outgoing_record(record, names.schedule, partition, following)


def retried_target(
    record: Record, envelope: Envelope, names: TopicNames, *, due_ms: int, partition: int
) -> OutgoingRecord:
    """Return the record that waits because its target did not accept it; `TARGET_TRIES` is one higher.

    Args:
        record: the schedule record as fetched.
        envelope: its headers.
        names: of the worker's namespace.
        due_ms: the due time to keep as `DELIVER_AT_MS`.
        partition: the queue to wait in.
    """
    outgoing = envelope.copy()
    if outgoing.timer_do is not None:
        drop_timer(outgoing)  # it has fired; it would not fire a second time
    outgoing.target_tries = min((envelope.target_tries or 0) + 1, INT_MAX)
    return hopped(record, outgoing, names, deliver_at_ms=due_ms, partition=partition)


def clock_probe(names: TopicNames, *, partition: int) -> OutgoingRecord:
    """Return the worker's probe of a leader's clock. Its only header is `CLOCK`; readers of the schedule topic skip it.

    Args:
        names: of the worker's namespace.
        partition: a partition that the leader in question leads.
    """
    return OutgoingRecord(names.schedule, partition, None, None, encode(Envelope(clock="1")))


def is_probe(record: Record) -> bool:
    """Return whether a record of the schedule topic is a probe: its only header is `CLOCK`, without key and value."""
    if record.value() is not None or record.key() is not None:
        return False
    headers = wire.headers_shown(record)
    return len(headers) == 1 and headers[0][0] == wire.CLOCK
