"""Make the records that redrive parked records. Pure.

A parked record has the headers that it was parked with and three more: `PARK_REASON`, `PARK_FROM` (its coordinates in
the schedule topic) and `HOP_ID`. It need not be decodable, so each header is read separately.

A redriven record goes to the finest queue of the schedule topic and is due immediately, because it has waited already.
It keeps its identity. The worker's notes are removed (`PARK_…`, `TARGET_TRIES`), and `HOP_ID` names the parked record.
The worker then evaluates the record again and parks it again if it is still malformed or forbidden.
"""

from typing import Final

from rocketshim.errors import MessageError
from rocketshim_topics import wire
from rocketshim_topics.hops import OutgoingRecord
from rocketshim_topics.levels import DelayLevels
from rocketshim_topics.names import TopicNames
from rocketshim_topics.wire import Header, Record, coordinates, headers_shown

__all__ = ["redriven_parked"]

_DROPPED: Final = frozenset(
    {wire.PARK_REASON, wire.PARK_FROM, wire.TARGET_TRIES, wire.HOP_ID, wire.DELAY_MS, wire.DELIVER_AT_MS, wire.DELAY}
)


def redriven_parked(record: Record, names: TopicNames) -> OutgoingRecord:
    """Return the schedule record that redrives a parked record.

    Raises:
        MessageError: the record names no target, so the worker would only park it again.

    Decides: Where does a parked record go when it is sent again? To the finest delay queue, where the worker evaluates
        it again; nothing leaves that topic by itself.
    """
    if not dict(headers_shown(record)).get(wire.REAL_TOPIC):
        raise MessageError(f"{coordinates(record)} names no target topic; send its message again yourself instead")
    kept_headers: list[Header] = [header for header in headers_shown(record) if header[0] not in _DROPPED]
    headers = [(wire.DELIVER_AT_MS, b"0"), (wire.HOP_ID, coordinates(record).encode()), *kept_headers]
    finest = DelayLevels.MAX_LEVELS + len(DelayLevels.FINE_MS) - 1
    return OutgoingRecord(names.schedule, finest, record.key(), record.value(), headers)
