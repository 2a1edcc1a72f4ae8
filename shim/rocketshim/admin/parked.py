"""Parked records: what a person sees of one, and the record that sends it on its way again. Pure.

A parked record has the headers it was parked with and three more: `PARK_REASON`, `PARK_FROM` (where it lay in the
schedule topic) and `HOP_ID`. It need not be decodable, so headers are looked at one by one.

Redriven, a record goes to the finest queue of the schedule topic as due: it has waited already. It keeps its identity;
what the worker had noted about it goes (`PARK_…`, `TARGET_TRIES`), `HOP_ID` names the parked record. The worker then
judges it anew: one that is still malformed or forbidden is parked again.
"""

from dataclasses import dataclass
from typing import Any, Final

from rocketshim.errors import MessageError
from rocketshim_topics import wire
from rocketshim_topics.hops import OutgoingRecord
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames
from rocketshim_topics.wire import Header, Record, coordinates, headers_shown

__all__ = ["ParkedRecord", "parked_record", "redriven_parked"]

_DROPPED: Final = frozenset(
    {wire.PARK_REASON, wire.PARK_FROM, wire.TARGET_TRIES, wire.HOP_ID, wire.DELAY_MS, wire.DELIVER_AT_MS, wire.DELAY}
)


@dataclass(frozen=True, slots=True)
class ParkedRecord:
    """What is shown of a parked record.

    Attributes:
        place: `partition/offset` in the parking topic.
        at_ms: when it was parked, epoch ms.
        reason: why.
        origin: `topic/partition/offset` it was parked from.
        target: where it was to go, as far as it says; None: it does not.
        uniq_key: its id.
        size_bytes: of its value; None: it has none (a tombstone, or it was too large to be parked whole).
    """

    place: str
    at_ms: int
    reason: str
    origin: str
    target: str | None
    uniq_key: str | None
    size_bytes: int | None


def parked_record(record: Record) -> ParkedRecord:
    """What is shown of a record of the parking topic."""
    value = record.value()
    return ParkedRecord(
        place=f"{record.partition()}/{record.offset()}",
        at_ms=record.timestamp()[1],
        reason=_text(record, wire.PARK_REASON) or "",
        origin=_text(record, wire.PARK_FROM) or "",
        target=_text(record, wire.REAL_TOPIC),
        uniq_key=_text(record, wire.UNIQ_KEY),
        size_bytes=None if value is None else len(value),
    )


def redriven_parked(record: Record, names: TopicNames) -> OutgoingRecord:
    """The schedule record that sends a parked one on its way again.

    Raises:
        MessageError: it does not say where to, so that it could only be parked again.
    """
    if not _text(record, wire.REAL_TOPIC):
        raise MessageError(f"{coordinates(record)} does not say where it was to go; send its message anew instead")
    kept: list[Header] = [header for header in headers_shown(record) if header[0] not in _DROPPED]
    headers = [(wire.DELIVER_AT_MS, b"0"), (wire.HOP_ID, coordinates(record).encode()), *kept]
    finest = DelayLevels.MAX_LEVELS + len(DelayLevels.FINE_MS) - 1
    return OutgoingRecord(names.schedule, finest, record.key(), record.value(), headers)


def _text(record: Any, name: str) -> str | None:
    for header, value in headers_shown(record):
        if header == name and value is not None:
            return str(value.decode("utf-8", "replace"))
    return None
