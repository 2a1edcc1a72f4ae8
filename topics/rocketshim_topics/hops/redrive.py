"""Redrive: the record that sends a dead letter again, to its group's retry topic or to its source topic."""

from typing import Final

from rocketshim_topics import wire
from rocketshim_topics.errors import MalformedRecordError
from rocketshim_topics.hops.fail import value_reference
from rocketshim_topics.hops.record import (
    OutgoingRecord,
    cut,
    drop_scheduling,
    identity_only,
    next_envelope,
    outgoing_record,
    physical_name,
)
from rocketshim_topics.limits import INT_MAX
from rocketshim_topics.names import RETRY_PREFIX, TopicNames
from rocketshim_topics.wire import WIRE_VERSION, Envelope, Record, coordinates, decode, own_name, read_headers

__all__ = ["redrive_count", "redriven"]

_LONGEST_COUNT: Final = 10


def redriven(
    record: Record,
    names: TopicNames,
    *,
    replay_id: str,
    group: str | None = None,
    to_source: bool = False,
    envelope: Envelope | None = None,
) -> OutgoingRecord:
    """Return the record that sends a dead letter again, with its identity and with 0 failed attempts.

    To the group's retry topic: only that group receives it, and it keeps where and why it first failed. To the source
    topic: every group receives it, with its identity, `REPLAY_ID`, `REPLAY_COUNT` and the user's headers under their
    own names.

    Args:
        record: the dead letter as fetched.
        names: of the namespace.
        replay_id: id of this redrive, at most 64 bytes. It tells the new deliveries from duplicates.
        group: group to send it to. None: the group in `CONSUMER_GROUP`.
        to_source: send it to the topic of its first delivery instead.
        envelope: its headers, if they follow other rules than the wire format, as another project's dead letter does.
            None: decode them here.

    Raises:
        MalformedRecordError: the dead letter breaks the wire format, is by reference (`by-reference`: there is no
            value to send), or names no target (`missing-header:<name>`, `bad-name:<name>`).
        ConfigError: `group` is not a legal name.
    """
    if envelope is None:
        envelope = decode(read_headers(record), trusted=True)
    if record.value() is None and value_reference(envelope) is not None:
        raise MalformedRecordError(
            "by-reference",
            f"{coordinates(record)} has no value, only a reference to {envelope.origin_message_id}",
        )
    following = next_envelope(record, envelope)
    drop_scheduling(following)
    following.unhandled_since_ms = None
    following.replay_id = cut(replay_id, 64)
    following.replay_count = min(redrive_count(envelope) + 1, INT_MAX)
    if to_source:
        return _to_source(record, names, following)
    if group is None:
        if envelope.consumer_group is None:
            raise MalformedRecordError(f"missing-header:{wire.CONSUMER_GROUP}", "the dead letter names no group")
        target = physical_name(names, RETRY_PREFIX + envelope.consumer_group, wire.CONSUMER_GROUP)
    else:
        target = names.retry(group)
        following.consumer_group = group
    following.shim = WIRE_VERSION
    following.reconsume_times = 0
    return outgoing_record(record, target, None, following)


def redrive_count(envelope: Envelope) -> int:
    """Return how often a dead letter was redriven.

    A message that was redriven to its source topic has `REPLAY_COUNT` among the user's headers, since readers of a
    source topic believe only the identity headers. Here a forged count can only prevent a redrive.
    """
    carried = dict(envelope.user).get(wire.USER_PREFIX + wire.REPLAY_COUNT) or b"0"
    count = int(carried) if carried.isdigit() and len(carried) <= _LONGEST_COUNT else 0
    return min(max(envelope.replay_count or 0, count), INT_MAX)


def _to_source(record: Record, names: TopicNames, following: Envelope) -> OutgoingRecord:
    if following.retry_topic is None:
        raise MalformedRecordError(
            f"missing-header:{wire.RETRY_TOPIC}", "the dead letter does not name its source topic"
        )
    replaced = {wire.HOP_ID, wire.REPLAY_ID, wire.REPLAY_COUNT}
    own = ((own_name(name), value) for name, value in following.user)
    source = identity_only(following)
    source.replay_id = following.replay_id
    source.replay_count = following.replay_count
    source.user = tuple(header for header in own if header[0] not in replaced)
    return outgoing_record(record, physical_name(names, following.retry_topic, wire.RETRY_TOPIC), None, source)
