"""Nothing is made up: each record was sent or made from one that is there; each delivery is of a committed one."""

from collections.abc import Iterator

from proof.check.targets import may_be_written
from proof.index import Index, Stored
from proof.violation import Violation

__all__ = ["find"]


def find(index: Index) -> Iterator[Violation]:
    """Find records and deliveries without an origin.

    What an acknowledged send names and is not there is `lost`, and what was made from it is no phantom.
    """
    acknowledged = {send.where for send in index.history.sends if send.outcome == "ok"}
    for record in index.messages():
        if may_be_written(index, record.topic):  # else it is a record in a forbidden topic
            yield from _record(index, record, acknowledged)
    for delivery in index.calls:
        stored = index.records.get(delivery.where)
        if stored is None:
            if delivery.where not in acknowledged:
                what = f"{delivery.group} was given {delivery.where}, where nothing lies"
                yield Violation.of("phantom", what, [delivery.source])
        elif not stored.it.committed:
            what = f"{delivery.group} was given {delivery.where} of a transaction that was aborted"
            yield Violation.of("read-uncommitted", what, [delivery.source, stored.source])


def _record(index: Index, record: Stored, acknowledged: set[str | None]) -> Iterator[Violation]:
    where, parent_at = record.it.where, record.envelope.hop_id
    if parent_at is None:
        send = index.sends_by_record.get(where)
        if send is None:
            yield Violation.of("phantom", f"{where} was sent by nobody", [record.source])
        elif send.outcome == "fail":
            what = f"{where} is there, though its send failed for certain"
            yield Violation.of("phantom", what, [record.source, send.source])
        return
    parent = index.records.get(parent_at)
    if parent is None:
        if parent_at not in acknowledged and not index.is_fleeting(parent_at):
            yield Violation.of("phantom", f"{where} was made from {parent_at}, where nothing lies", [record.source])
    elif record.it.committed and not parent.it.committed:
        what = f"{where} was made from {parent_at} of a transaction that was aborted"
        yield Violation.of("read-uncommitted", what, [record.source, parent.source])
