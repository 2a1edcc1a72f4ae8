"""Parking: the record for `rmq.parked`, for what can never be delivered."""

from typing import Final

from rocketshim_topics import wire
from rocketshim_topics.hops.record import OutgoingRecord, cut
from rocketshim_topics.names import TopicNames
from rocketshim_topics.wire import Envelope, Record, coordinates, encode, headers_shown

__all__ = ["MAX_PARK_REASON_BYTES", "bare_parked", "parked"]

MAX_PARK_REASON_BYTES: Final = 200
_REPLACED_BY_PARKING: Final = frozenset({wire.HOP_ID, wire.PARK_REASON, wire.PARK_FROM})


def parked(record: Record, names: TopicNames, reason: str) -> OutgoingRecord:
    """Return the record for `rmq.parked`. The fetched record need not be decodable.

    All readable headers are kept as they are, also malformed and repeated ones, except those that this hop replaces
    (`HOP_ID`, `PARK_REASON`, `PARK_FROM`). A header name that cannot be sent as it is (control characters, lone
    surrogates) is escaped as by `wire.travel_name`. Readers of parked records look at the headers one by one and do
    not `decode` them.

    Args:
        record: the record as fetched, of any topic.
        names: of the worker's namespace.
        reason: short, stable and machine-readable: `MalformedRecordError.reason`, or one of the worker's.
    """
    where = coordinates(record)
    raw = [
        (_sendable(name), value if value is None or isinstance(value, bytes) else str(value).encode())
        for name, value in headers_shown(record)
        if name not in _REPLACED_BY_PARKING
    ]
    first = Envelope(
        uniq_key=None if any(name == wire.UNIQ_KEY for name, _ in raw) else where,
        hop_id=where,
        park_reason=cut(reason, MAX_PARK_REASON_BYTES),
        park_from=where,
    )
    return OutgoingRecord(names.parked, None, record.key(), record.value(), encode(first) + raw)


def _sendable(name: str) -> str:
    return wire.travel_name(name.encode("utf-8", "backslashreplace").decode()) if not name.isprintable() else name


def bare_parked(outgoing: OutgoingRecord) -> OutgoingRecord:
    """Return a parked record that was too large for `rmq.parked`, reduced to the reason and the coordinates.

    The original stays where it is until retention deletes it.
    """
    headers = [header for header in outgoing.headers if header[0] in _REPLACED_BY_PARKING]
    return OutgoingRecord(outgoing.topic, outgoing.partition, None, None, headers)
