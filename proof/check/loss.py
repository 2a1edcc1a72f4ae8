"""Nothing is lost: each acknowledged message is stored, relayed, and finished by each reader.

Finished means: a listener succeeded, or the next record is stored (a retry, a dead letter, a parked record). What is
not finished may wait, as long as no committed position has passed it and the run was not drained.
"""

from collections.abc import Iterator

from proof.history import Delivery, Source
from proof.index import Index, Stored, queue_of
from proof.lines import Group
from proof.violation import Violation

__all__ = ["find", "limit_of"]


def find(index: Index) -> Iterator[Violation]:
    """Find what was lost, and what waits at the end of a drained run."""
    yield from _sends(index)
    yield from _relayed(index)
    for group in index.setup.groups:
        records = list(index.read_by(group))
        for reader in index.readers(group):
            for record in records:
                yield from _reader(index, group, reader, record)


def limit_of(group: Group, record: Stored) -> int | None:
    """Most failed attempts of a message in a group before it is dead; None: no limit."""
    own = record.envelope.max_reconsume_times
    if group.limit is None or own is None:
        return group.limit if own is None else own
    return min(group.limit, own)


def _sends(index: Index) -> Iterator[Violation]:
    stored = {send.source for where, send in index.sends_by_record.items() if _is_committed(index, where)}
    for send in index.history.sends:
        if send.outcome != "ok" or _is_committed(index, send.where) or index.is_fleeting(send.where):
            continue
        if send.where is None:  # acknowledged without an offset, as a repeat of what the broker knows already
            if send.source not in stored:
                what = f"{send.id} was acknowledged to {send.process}, without coordinates, and is not there"
                yield Violation.of("lost", what, [send.source])
        else:
            record = index.records.get(send.where)
            what = f"{send.where} was acknowledged to {send.process} and is not there"
            yield Violation.of("lost", what, [send.source, None if record is None else record.source])


def _is_committed(index: Index, where: str | None) -> bool:
    record = None if where is None else index.records.get(where)
    return record is not None and record.it.committed


def _relayed(index: Index) -> Iterator[Violation]:
    worker = index.names.worker_group
    for record in index.messages():
        if record.topic != index.names.schedule or not record.it.committed or record.committed_children():
            continue
        if index.has_fleeting_target(record):
            continue  # it may have been there
        position, source = index.positions.get((worker, queue_of(record.it.where)), (0, None))
        if position > record.offset:
            what = f"the worker's position {position} is past {record.it.where}, which was not delivered"
            yield Violation.of("lost", what, [record.source, source])
        elif index.setup.drained:
            yield Violation.of("stuck", f"{record.it.where} still waits in its delay queue", [record.source, source])


def _reader(index: Index, group: Group, reader: str, record: Stored) -> Iterator[Violation]:
    deliveries = index.deliveries.get((reader, record.it.where), [])
    if _is_finished(index, group, deliveries, record):
        return
    position, source = _position(index, group, reader, queue_of(record.it.where))
    evidence = [record.source, source, *(delivery.source for delivery in deliveries)]
    if position <= record.offset:
        if index.setup.drained:
            yield Violation.of("stuck", f"{reader} has not finished {record.it.where}", evidence)
    elif _was_last(group, deliveries, record):
        what = f"{record.it.where} failed for the last time in {reader} and has no dead letter"
        yield Violation.of("dead-letter-missing", what, evidence)
    else:
        what = f"{reader} is at {position}, past {record.it.where}, which it has not finished"
        yield Violation.of("lost", what, evidence)


def _position(index: Index, group: Group, reader: str, queue: str) -> tuple[int, Source | None]:
    """Where a reader stands: its committed position; in a broadcasting group, behind the last message it was given."""
    if group.mode != "broadcasting":
        return index.positions.get((group.name, queue), (0, None))
    for record in reversed(index.queues.get(queue, [])):
        if deliveries := index.deliveries.get((reader, record.it.where)):
            return record.offset + 1, deliveries[0].source
    return 0, None


def _is_finished(index: Index, group: Group, deliveries: list[Delivery], record: Stored) -> bool:
    if group.mode == "broadcasting":
        return any(delivery.outcome != "info" for delivery in deliveries)
    return any(d.outcome == "ok" for d in deliveries) or bool(index.next_records(group.name, record))


def _was_last(group: Group, deliveries: list[Delivery], record: Stored) -> bool:
    limit = limit_of(group, record)
    failed = [delivery for delivery in deliveries if delivery.outcome == "fail"]
    return any(d.then == "dead" or (limit is not None and d.attempt >= limit) for d in failed)
