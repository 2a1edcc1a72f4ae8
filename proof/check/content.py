"""Bytes are kept: key, value and user headers are those that were sent, on every hop and in every listener call."""

from collections.abc import Iterator
from typing import Literal

from proof.history import Delivery
from proof.index import Index, Stored, user_headers
from proof.lines import JsonHeaders
from proof.violation import Violation
from rocketshim_topics.hops import value_reference

__all__ = ["find"]


def find(index: Index) -> Iterator[Violation]:
    """Find records and deliveries whose content is not what they were made from."""
    for record in index.messages():
        send = index.sends_by_record.get(record.it.where)
        if send is not None:
            headers = user_headers(send.headers)
            for kind in _differences(record, send.key, send.digest, headers):
                yield Violation.of(kind, f"{record.it.where} is not as it was sent", [send.source, record.source])
        parent = index.records.get(record.envelope.hop_id or "")
        if parent is None or _is_kept_apart(record):
            continue
        for kind in _differences(record, parent.it.key, parent.it.digest, parent.user):
            what = f"{record.it.where} differs from {parent.it.where}, which it was made from"
            yield Violation.of(kind, what, [parent.source, record.source])
    for delivery in index.history.deliveries:
        stored = index.records.get(delivery.where)
        if stored is not None and (what := _seen_otherwise(delivery, stored)):
            what = f"{delivery.group} saw another {what} than {delivery.where} has"
            yield Violation.of("delivery-differs", what, [delivery.source, stored.source])


def _differences(
    record: Stored, key: str | None, digest: str | None, headers: JsonHeaders
) -> Iterator[Literal["key-changed", "value-changed", "header-changed"]]:
    if record.it.key != key:
        yield "key-changed"
    if record.it.digest != digest:
        yield "value-changed"
    if record.user != headers:
        yield "header-changed"


def _is_kept_apart(record: Stored) -> bool:
    """Dead letters by reference have no value, parked records may have neither value nor headers or malformed ones."""
    if record.envelope.park_reason is not None or record.malformed is not None:
        return True
    return record.it.digest is None and value_reference(record.envelope) is not None


def _seen_otherwise(delivery: Delivery, stored: Stored) -> str:
    if delivery.id != stored.id:
        return "id"
    if delivery.key != stored.it.key:
        return "key"
    if delivery.digest != stored.it.digest:
        return "value"
    return "" if user_headers(delivery.headers) == stored.user else "header"
