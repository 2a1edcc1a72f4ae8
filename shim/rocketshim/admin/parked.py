"""Describe parked records, and make the records that redrive them. Pure.

A parked record has the headers that it was parked with and three more: `PARK_REASON`, `PARK_FROM` (its coordinates in
the schedule topic) and `HOP_ID`. It need not be decodable, so each header is read separately.

A redriven record goes to the finest queue of the schedule topic and is due immediately, because it has waited already.
It keeps its identity. The worker's notes are removed (`PARK_…`, `TARGET_TRIES`), and `HOP_ID` names the parked record.
The worker then evaluates the record again and parks it again if it is still malformed or forbidden.
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
    """A parked record, as it is displayed.

    * `size_bytes`: size of its value; None: it has no value (a tombstone, or it was too large to park with its body).
    """

    place: str  # `partition/offset` in the parking topic
    at_ms: int  # when it was parked, epoch ms
    reason: str  # why it was parked
    origin: str  # `topic/partition/offset` that it was parked from
    target: str | None  # its target topic; None: it names none
    uniq_key: str | None  # its id
    size_bytes: int | None


def parked_record(record: Record) -> ParkedRecord:
    """Describe a record of the parking topic."""
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
    """Return the schedule record that redrives a parked record.

    Raises:
        MessageError: the record names no target, so the worker would only park it again.

    Decides: Where does a parked record go when it is sent again? To the finest delay queue, where the worker evaluates
        it again; nothing leaves that topic by itself.
    """
    if not _text(record, wire.REAL_TOPIC):
        raise MessageError(f"{coordinates(record)} names no target topic; send its message again yourself instead")
    kept_headers: list[Header] = [header for header in headers_shown(record) if header[0] not in _DROPPED]
    headers = [(wire.DELIVER_AT_MS, b"0"), (wire.HOP_ID, coordinates(record).encode()), *kept_headers]
    finest = DelayLevels.MAX_LEVELS + len(DelayLevels.FINE_MS) - 1
    return OutgoingRecord(names.schedule, finest, record.key(), record.value(), headers)


def _text(record: Any, name: str) -> str | None:
    for header, value in headers_shown(record):
        if header == name and value is not None:
            return str(value.decode("utf-8", "replace"))
    return None
