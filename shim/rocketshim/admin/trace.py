"""The history of one message, assembled from records that were read. Pure.

Records of one message have the same id. Each hop names in `HOP_ID` the record that it was made from. From the first
failure on, `ORIGIN_MESSAGE_ID` names the record of the first delivery. A named record that was not read is reported as
*missing*: retention has deleted it, or it was not among the records read; the earliest remaining offset tells which.
No remaining record names the records in between, but the failure counts tell which attempts are missing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rocketshim.admin.record_view import RecordView
from rocketshim.errors import ConfigError
from rocketshim_topics import DelayLevels, Envelope, Origin, TopicNames
from rocketshim_topics.levels import time_in_queue_ms
from rocketshim_topics.wire import REPLAY_ID, USER_PREFIX

__all__ = ["Missing", "TraceStep", "life", "missing_text", "step_text"]


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One record in the history of a message."""

    entry: RecordView  # the record
    due_ms: int | None  # when it is due, for a record of the schedule topic; None elsewhere
    late_ms: int | None  # for a delivered record, how long after its due time it was stored; None if that is not known


@dataclass(frozen=True, slots=True)
class Missing:
    """A record that another record was made from, but that was not read.

    * `attempts`: the first and the last failed attempt without a remaining record, up to the attempt of this record;
      None: there are none.
    """

    at: str  # its coordinates
    expired: bool  # retention has deleted it; False: it exists, but was not among the records read
    attempts: tuple[int, int] | None = None


def life(
    entries: Iterable[RecordView],
    *,
    schedule: str,
    levels: DelayLevels,
    low_offset: Callable[[str, int], int],
) -> list[TraceStep | Missing]:
    """Return every record of one message in the order in which they were stored, each after its predecessors.

    A repeated record in `entries` counts once. Clocks that stamp records differ by some ms.
    """
    found = {entry.at: entry for entry in entries}

    def order(entry: RecordView) -> tuple[int, bool, int, str]:
        origin = found.get(entry.envelope.hop_id or "", entry)
        is_behind = origin is not entry and origin.stored_ms >= entry.stored_ms
        return max(entry.stored_ms, origin.stored_ms), is_behind, entry.offset, entry.at

    ordered = sorted(found.values(), key=order)
    reported: set[str] = set(found)
    result: list[TraceStep | Missing] = []
    failures = 0
    for entry in ordered:
        envelope = entry.envelope
        origin = found.get(envelope.hop_id or "")
        new_failures = envelope.reconsume_times or 0
        for source in (envelope.origin_message_id, envelope.hop_id):
            if source is not None and source not in reported:
                reported.add(source)
                has_gap = source == envelope.hop_id != envelope.origin_message_id and failures + 1 < new_failures
                attempts = (failures + 1, new_failures - 1) if has_gap else None
                result.append(Missing(source, _is_expired(source, low_offset), attempts))
        failures = new_failures
        due_ms = _due_ms(entry, levels) if entry.topic == schedule else None
        late_ms = None
        if due_ms is None and origin is not None and origin.topic == schedule:
            late_ms = entry.stored_ms - _due_ms(origin, levels)
        result.append(TraceStep(entry, due_ms, late_ms))
    return result


def _due_ms(entry: RecordView, levels: DelayLevels) -> int:
    envelope = entry.envelope
    if envelope.deliver_at_ms is not None:
        return envelope.deliver_at_ms
    delay_ms = envelope.delay_ms
    return entry.stored_ms + (time_in_queue_ms(levels, entry.partition) if delay_ms is None else delay_ms)


def _is_expired(at: str, low_offset: Callable[[str, int], int]) -> bool:
    try:
        origin = Origin.parse(at)
    except ValueError:
        return False
    return origin.offset < low_offset(origin.topic, origin.partition)


def step_text(hop: TraceStep, names: TopicNames) -> str:
    """Return what a record in the history of a message means, for a person."""
    envelope = hop.entry.envelope
    cause = f"{envelope.fail_class}: {envelope.fail_text}" if envelope.fail_class else ""
    name = hop.entry.topic
    if hop.entry.malformed is not None and name != names.parked:
        return f"malformed: {hop.entry.malformed}"
    if hop.due_ms is not None:
        wait_ms, target = hop.due_ms - hop.entry.stored_ms, _physical(envelope.real_topic, names)
        wait = f"waits {wait_ms} ms for {target}" if wait_ms > 0 else f"already due when it was stored, for {target}"
        if envelope.unhandled_since_ms is not None:
            return f"sent on by a member that could not handle it, {wait}"
        return f"failed ({cause}), {wait}" if cause else wait
    if name == names.parked:
        return f"parked: {envelope.park_reason}"
    if envelope.consumer_group is not None and name == names.dead_letter(envelope.consumer_group):
        return f"dead: {cause}"
    plan = _redriven_by(envelope)
    if plan is not None:
        return f"sent again by plan {plan}"
    return "delivered" if hop.late_ms is None else f"delivered, {hop.late_ms} ms after it was due"


def _physical(topic: str | None, names: TopicNames) -> str | None:
    """Return the name of a topic in Kafka; a name that no topic can have stays as it is."""
    try:
        return topic and names.physical(topic)
    except ConfigError:
        return topic


def _redriven_by(envelope: Envelope) -> str | None:
    """Return the id of the plan that redrove a record; None if it is not a redrive.

    On a source topic the header counts as a user header.
    """
    carried = dict(envelope.user).get(USER_PREFIX + REPLAY_ID) or b""
    replay_id = envelope.replay_id or carried.decode("utf-8", "replace")
    return replay_id.partition(".")[0] if replay_id and not envelope.reconsume_times else None


def missing_text(hop: Missing) -> str:
    """Return why a record is missing, for a person."""
    why = "retention has deleted it" if hop.expired else "it was not found"
    if hop.attempts is None:
        return why
    first, last = hop.attempts
    return f"{why}; no record is left of {f'attempt {first}' if first == last else f'attempts {first} to {last}'}"
