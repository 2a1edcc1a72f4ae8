"""The life of one message, put together from records that were read. Pure.

Records belong together by their id; each hop names in `HOP_ID` the record it was made from, and from the first failure
on `ORIGIN_MESSAGE_ID` names that of the first delivery. A named record that was not read is *missing*, and that is
said: retention has taken it, or nobody may read it, which the caller can tell from the earliest offset that is left. Of
what lay between, and is named by nothing that is left, the counts of failures tell at least which attempts it were.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from rocketshim.admin.record_view import RecordView
from rocketshim_topics import Origin

__all__ = ["Missing", "TraceStep", "life"]


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One record of a message's life.

    Attributes:
        entry: the record.
        due_ms: when it is due, for a record of the schedule topic; None elsewhere.
        late_ms: for a delivered record, how long after it was due it was stored; None where that is not known.
    """

    entry: RecordView
    due_ms: int | None
    late_ms: int | None


@dataclass(frozen=True, slots=True)
class Missing:
    """A record that another was made from and that was not read.

    Attributes:
        at: its coordinates.
        expired: retention has taken it; False: it is there, but was not among what was read.
        attempts: the first and the last failed attempt of which nothing is left, up to the one this record was; None:
            there is none.
    """

    at: str
    expired: bool
    attempts: tuple[int, int] | None = None


def life(
    entries: Iterable[RecordView],
    *,
    is_schedule: Callable[[str], bool],
    queue_delay_ms: Callable[[int], int],
    low_offset: Callable[[str, int], int],
) -> list[TraceStep | Missing]:
    """Every record of one message in the order in which they were stored, with what is missing before each.

    Args:
        entries: records of one message; the same one twice counts once.
        is_schedule: whether a topic is the schedule topic.
        queue_delay_ms: the delay of a schedule partition's queue.
        low_offset: the earliest offset left in a partition.
    """
    found = {entry.at: entry for entry in entries}
    ordered = sorted(found.values(), key=lambda entry: (entry.stored_ms, entry.offset, entry.at))
    told: set[str] = set(found)
    result: list[TraceStep | Missing] = []
    failures = 0
    for entry in ordered:
        envelope = entry.envelope
        origin = found.get(envelope.hop_id or "")
        now = envelope.reconsume_times or 0
        for before in (envelope.origin_message_id, envelope.hop_id):
            if before is not None and before not in told:
                told.add(before)
                is_later = before == envelope.hop_id != envelope.origin_message_id and failures + 1 < now
                attempts = (failures + 1, now - 1) if is_later else None
                result.append(Missing(before, _expired(before, low_offset), attempts))
        failures = now
        due = _due_ms(entry, queue_delay_ms) if is_schedule(entry.topic) else None
        late = None
        if due is None and origin is not None and is_schedule(origin.topic):
            late = entry.stored_ms - _due_ms(origin, queue_delay_ms)
        result.append(TraceStep(entry, due, late))
    return result


def _due_ms(entry: RecordView, queue_delay_ms: Callable[[int], int]) -> int:
    envelope = entry.envelope
    if envelope.deliver_at_ms is not None:
        return envelope.deliver_at_ms
    delay_ms = envelope.delay_ms
    return entry.stored_ms + (queue_delay_ms(entry.partition) if delay_ms is None else delay_ms)


def _expired(at: str, low_offset: Callable[[str, int], int]) -> bool:
    try:
        origin = Origin.parse(at)
    except ValueError:
        return False
    return origin.offset < low_offset(origin.topic, origin.partition)
