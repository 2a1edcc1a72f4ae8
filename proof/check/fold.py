"""A group's log says the same to everybody: folded twice, from a later beginning, or by a member of the run.

What members say is written down until the group's log is lost for the first time, so it is compared with the first one.
The reference is `rocketshim.locks.fold`. A fold that begins later may not know yet; what it knows must agree.
"""

import base64
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from proof.folds import queue_text
from proof.index import Index, Stored
from proof.violation import Violation
from rocketshim.locks.fold import Folded, GroupLog, LeaseOutcome, QueueLock
from rocketshim_topics.errors import MalformedRecordError, UnknownVersionError
from rocketshim_topics.group_log import CommandRecord, GroupRecord, decode_group_record
from rocketshim_topics.message_queue import MessageQueue

__all__ = ["Reference", "find", "reference_folds"]

_LATER_STARTS = 4
Folder = Callable[[int], GroupLog]


@dataclass(slots=True)
class Reference:
    """The reference fold of one group's log.

    Attributes:
        group: whose.
        records: of the log.
        locks: after each record, by the fold's next offset.
        grants: client id of the owner by token and queue; one claim may win several queues.
        base: the first one: no token of this log is lower.
        complete: whether it begins at offset 0 and none was unreadable or missing, so that it knows every grant.
    """

    group: str
    records: list[Stored]
    locks: dict[int, dict[MessageQueue, QueueLock]] = field(default_factory=dict)
    grants: dict[tuple[int, str], str] = field(default_factory=dict)
    base: int | None = None
    complete: bool = True


def find(index: Index, folder: Folder = GroupLog) -> Iterator[Violation]:
    """Find disagreements about who owns a queue."""
    references = reference_folds(index)
    for reference in references:
        records = reference.records
        starts = sorted({len(records) * part // _LATER_STARTS for part in range(_LATER_STARTS)})
        for start in starts:
            yield from _from(reference, start, folder)
    yield from _members(index, {reference.group: reference for reference in reversed(references)})


def reference_folds(index: Index) -> list[Reference]:
    """The reference fold of each group's log that the history holds, and of those that the group has lost."""
    found = []
    for topic, group in index.group_logs.items():
        for records in [*index.lost_logs[topic].values(), index.queues.get(f"{topic}/0")]:
            if records:
                reference = Reference(group, records)
                for at, folded, log in _folded(records, GroupLog):
                    _note(reference, at, folded, log)
                found.append(reference)
    return found


def _note(reference: Reference, at: int, folded: Folded, log: GroupLog) -> None:
    reference.locks[at] = {lock.queue: lock for lock in log.locks}
    reference.base = log.base if reference.base is None else reference.base
    if folded.has_restarted or reference.records[0].offset > 0:
        reference.complete = False
    for effect in folded.effects:
        if effect.outcome is LeaseOutcome.GRANTED and effect.token is not None and folded.owner is not None:
            reference.grants[effect.token, queue_text(effect.queue)] = folded.owner.client_id


def _folded(records: list[Stored], folder: Folder) -> Iterator[tuple[int, Folded, GroupLog]]:
    """Fold the records; after each one the position, what it did, and the fold."""
    log = folder(records[0].offset)
    for record in records:
        step = _step(log, record)
        yield record.offset + 1, step(record.offset, record.it.ms), log


def _step(log: GroupLog, record: Stored) -> Callable[[int, int], Folded]:
    value = None if record.it.value is None else base64.b64decode(record.it.value)
    try:
        decoded = decode_group_record(value)
    except UnknownVersionError:
        return log.unreadable
    except MalformedRecordError:
        return log.skip
    return log.skip if isinstance(decoded, CommandRecord) else partial(_fold, log, decoded)


def _fold(log: GroupLog, record: GroupRecord, offset: int, append_ms: int) -> Folded:
    return log.fold(offset, append_ms, record)


def _from(reference: Reference, start: int, folder: Folder) -> Iterator[Violation]:
    """A fold that begins at the record of this number; only its first disagreement is named."""
    records = reference.records
    for at, _, log in _folded(records[start:], folder):
        for lock in log.locks:
            known = reference.locks[at].get(lock.queue)
            if known is None or not lock.known or not known.known:
                continue
            if (lock.owner, lock.token) != (known.owner, known.token) and not _both_free(lock, known):
                what = (
                    f"folds of {reference.group}'s log from {records[start].offset} and {records[0].offset} disagree "
                    f"at {at} about {queue_text(lock.queue)}"
                )
                source = next(record.source for record in records if record.offset == at - 1)
                yield Violation.of("fold-differs", what, [source])
                return


def _both_free(one: QueueLock, other: QueueLock) -> bool:
    """Of a free queue a later fold may not know the last token."""
    return one.owner is None and other.owner is None


def _members(index: Index, references: dict[str, Reference]) -> Iterator[Violation]:
    for seen in index.history.folds:
        reference = references.get(seen.it.group)
        locks = None if reference is None else reference.locks.get(seen.it.next_offset)
        if locks is None:
            continue
        lock = next((lock for queue, lock in locks.items() if queue_text(queue) == seen.it.queue), None)
        owner = lock.owner.client_id if lock is not None and lock.owner is not None else None
        token = lock.token if lock is not None else None
        if lock is not None and not lock.known:
            continue
        if owner != seen.it.owner or (owner is not None and token != seen.it.token):
            what = (
                f"a member's fold of {seen.it.group}'s log at {seen.it.next_offset} gives {seen.it.queue} to "
                f"{seen.it.owner}, token {seen.it.token}; the log gives it to {owner}, token {token}"
            )
            yield Violation.of("fold-differs", what, [seen.source])
