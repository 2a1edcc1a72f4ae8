"""The first record of a message: on its source topic, or on the schedule topic if the message has a delay."""

from rocketshim_topics.errors import MessageError
from rocketshim_topics.hops.record import DEFAULT_MAX_DELAY_MS, OutgoingRecord
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.message import Message
from rocketshim_topics.names import TopicNames, group_of
from rocketshim_topics.partitioner import timer_partition
from rocketshim_topics.wire import WIRE_VERSION, Envelope, encode

__all__ = ["delayed_record", "source_record"]


def source_record(
    message: Message, names: TopicNames, *, uniq_key: str, born_ms: int, partition: int | None = None
) -> OutgoingRecord:
    """Return the record of a message that is delivered without a delay.

    Args:
        message: its delay, if it has one, is ignored.
        names: of the sender's namespace.
        uniq_key: the message's id; it is the same on every hop.
        born_ms: epoch ms of this first send.
        partition: chosen by the caller; None: by key.
    """
    ours = group_of(message.topic) is not None
    envelope = Envelope(
        shim=WIRE_VERSION if ours else None,
        uniq_key=uniq_key,
        tags=message.tag,
        keys=" ".join(message.keys) or None,
        born_timestamp_ms=born_ms,
        max_reconsume_times=message.max_reconsume_times,
        user=message.headers,
    )
    return OutgoingRecord(names.physical(message.topic), partition, message.key_bytes, message.body, encode(envelope))


def delayed_record(
    message: Message,
    names: TopicNames,
    levels: DelayLevels,
    *,
    uniq_key: str,
    born_ms: int,
    now_ms: int | None,
    lane: int,
    real_qid: int | None = None,
    max_delay_ms: int = DEFAULT_MAX_DELAY_MS,
    sender_ms: int | None = None,
    timestamp_ms: int | None = None,
    asks: str | None = None,
) -> OutgoingRecord:
    """Return the first record of a message, on the schedule topic if the message has a delay.

    * No delay, a delay of 0, a level of 0 or less, or any level of an empty table: the same as `source_record`.
    * A level above the highest one counts as the highest.
    * A delivery time in the past goes to the queue with the shortest delay.
    * A message with a name goes to the timer log, as a SET.

    Args:
        message: it has at most one of its three delays.
        names: of the sender's namespace.
        levels: the sender's level table.
        uniq_key: the message's id; it is the same on every hop.
        born_ms: epoch ms of this first send.
        now_ms: the brokers' clock in epoch ms, as far as the sender knows it. It chooses the first queue of a
            `deliver_at`, never the due time. None: not known; the finest queue, from which the worker goes on.
        lane: lane of the schedule topic.
        real_qid: partition of the target, chosen by the caller. None: the worker chooses by key at delivery.
        max_delay_ms: longest allowed `delay`, and longest time until `deliver_at`, in ms. Default 40 days.
        sender_ms: the sender's own clock in epoch ms. A `deliver_at` is checked against `max_delay_ms` by it where
            `now_ms` is None. None: `born_ms`.
        timestamp_ms: timestamp of the record at its target, epoch ms, for a message with a delay. None: the time of its
            delivery.
        asks: of the half message of a transaction, the producer group that is asked. None: it is none.

    Raises:
        MessageError: the delay is longer than `max_delay_ms`, or the topic belongs to the shim: senders cannot
            schedule messages for it. Or the message has a name and no delay.

    Decides: Is a delay given as a level or in ms? As the sender gave it; a level is stored with its milliseconds.
    """
    counted_ms = now_ms if now_ms is not None else born_ms if sender_ms is None else sender_ms
    envelope = _scheduled(message, levels, max_delay_ms=max_delay_ms, now_ms=counted_ms)
    if envelope is None:
        if message.timer is not None:
            raise MessageError(f"timer is {message.timer!r:.80}, but the delay is 0: a named message has to wait")
        return source_record(message, names, uniq_key=uniq_key, born_ms=born_ms, partition=real_qid)
    if group_of(message.topic) is not None or names.is_ours(message.topic):
        raise MessageError(f"{message.topic} takes no delayed messages from senders: send them to an ordinary topic")
    names.physical(message.topic)
    if envelope.delay_level is not None:
        partition = levels.partition(envelope.delay_level, lane)
    elif envelope.delay_ms is not None:
        partition = levels.queue_for(envelope.delay_ms, lane)
    else:
        partition = levels.queue_for(0 if now_ms is None else (envelope.deliver_at_ms or 0) - now_ms, lane)
    envelope.real_topic = message.topic
    envelope.real_qid = real_qid
    envelope.uniq_key = uniq_key
    envelope.tags = message.tag
    envelope.keys = " ".join(message.keys) or None
    envelope.born_timestamp_ms = born_ms
    envelope.target_timestamp_ms = timestamp_ms
    envelope.max_reconsume_times = message.max_reconsume_times
    envelope.user = message.headers
    topic = names.schedule
    if message.timer is not None:
        topic, partition = names.timers, timer_partition(message.topic, message.timer)
        envelope.timer, envelope.timer_do = message.timer, "SET-IF-ABSENT" if message.if_absent else "SET"
        envelope.timer_at_most_ms, envelope.timer_asks = message.at_most_ms, asks
        if (recurrence := message.recurrence) is not None:
            envelope.timer_repeat, envelope.timer_late = recurrence.line, message.late
            envelope.timer_tz = message.tz
    return OutgoingRecord(topic, partition, message.key_bytes, message.body, encode(envelope))


def _scheduled(message: Message, levels: DelayLevels, *, max_delay_ms: int, now_ms: int) -> Envelope | None:
    """Return an envelope with the scheduling headers of a delayed message; None if it has no delay."""
    if message.delay_level is not None:
        level = levels.clamp(message.delay_level)
        if level <= 0:
            return None
        return Envelope(shim=WIRE_VERSION, delay_level=level, delay_ms=levels.delay_ms(level))
    if message.recurrence is not None:
        return Envelope(shim=WIRE_VERSION)
    if message.deliver_at_ms is not None:
        _check_delay(message.deliver_at_ms - now_ms, max_delay_ms, "deliver_at")
        return Envelope(shim=WIRE_VERSION, deliver_at_ms=message.deliver_at_ms)
    if not message.delay_ms:
        return None
    _check_delay(message.delay_ms, max_delay_ms, "delay")
    return Envelope(shim=WIRE_VERSION, delay_ms=message.delay_ms)


def _check_delay(delay_ms: int, max_delay_ms: int, name: str) -> None:
    if delay_ms > max_delay_ms:
        raise MessageError(
            f"{name} is {delay_ms} ms from now, longer than max_delay_ms={max_delay_ms}: raise max_delay_ms of the "
            "sender and of the worker (a DelayWorker in a program of your own), or keep the message elsewhere"
        )
