"""Failed attempts are counted one by one, and a message is dead at its limit.

* A retry or dead letter that a consumer made counts one more than the attempt that failed; the worker changes no count;
  a redrive begins at 0 again.
* A message that a member cannot handle is sent on with the same count, and with the time of the first such record. It
  is dead (`NoListener`) only when it was sent on for long enough, whatever its count is.
* In a concurrent group a listener gets the record's own count. In an orderly group a message is repeated in place:
  each call counts one more than the failed call before it under the same token; a new owner may have forgotten some.
* What has killed its processes (`ProcessDied`) counts each of them, two at least, also one that died just before the
  call.
* No retry counts more than the limit. A dead letter counts limit + 1, unless the listener asked for it.
"""

from collections.abc import Iterator

from proof.check.loss import limit_of
from proof.check.order import is_orderly
from proof.history import Delivery
from proof.index import Index, Stored
from proof.lines import Group
from proof.violation import Violation
from rocketshim.core.next_hop import NO_LISTENER
from rocketshim.core.process_deaths import PROCESS_DIED

__all__ = ["find"]

_LEAST_DEATHS = 2


def find(index: Index) -> Iterator[Violation]:
    """Find counts that are wrong, and limits that were not kept."""
    for record in index.messages():
        parent = index.records.get(record.envelope.hop_id or "")
        if parent is not None and record.topic != index.names.parked:
            yield from _made(index, record, parent)
    for group in index.setup.groups:
        for reader in index.readers(group):
            for stored in index.read_by(group):
                deliveries = index.deliveries.get((reader, stored.it.where), [])
                yield from _called(group, stored, deliveries)


def _made(index: Index, record: Stored, parent: Stored) -> Iterator[Violation]:
    schedule = index.names.schedule
    if parent.topic == schedule:
        if record.envelope.consumer_group is not None and record.attempt != parent.attempt:
            yield _count(record, parent, parent.attempt)
    elif parent.topic in index.dead_letter_topics:
        if record.attempt != 0:
            yield _count(record, parent, 0)
    elif record.topic == schedule or record.topic in index.dead_letter_topics:
        yield from _failed(index, record, parent)


def _count(record: Stored, parent: Stored, expected: int) -> Violation:
    what = f"{record.it.where} counts {record.attempt} failed attempts; made from {parent.it.where} it is {expected}"
    return Violation.of("reconsume-count", what, [parent.source, record.source])


def _failed(index: Index, record: Stored, parent: Stored) -> Iterator[Violation]:
    group = index.history.group(record.envelope.consumer_group or "")
    if group is None:
        return
    calls = index.deliveries.get((group.name, parent.it.where), [])
    if record.envelope.unhandled_since_ms is not None or record.envelope.fail_class == NO_LISTENER:
        yield from _unhandled(group, record, parent)
        return
    counts = {call.attempt + 1 for call in calls if call.outcome != "ok"} or {parent.attempt + 1}
    if record.envelope.fail_class == PROCESS_DIED:
        if record.attempt < parent.attempt + _LEAST_DEATHS:
            yield _count(record, parent, parent.attempt + _LEAST_DEATHS)
            return
    elif record.attempt not in counts:
        yield _count(record, parent, max(counts))
        return
    limit = limit_of(group, parent)
    if limit is None:
        return
    evidence = [record.source, *(call.source for call in calls)]
    if record.topic == index.names.schedule:
        if record.attempt > limit:
            what = f"{record.it.where} is retry {record.attempt} of a message whose limit is {limit}"
            yield Violation.of("reconsume-limit", what, evidence)
    elif not _is_at_limit(record, limit) and not any(call.then == "dead" for call in calls):
        what = f"{record.it.where} is dead after {record.attempt} failed attempts; its limit is {limit}"
        yield Violation.of("reconsume-limit", what, evidence)


def _unhandled(group: Group, record: Stored, parent: Stored) -> Iterator[Violation]:
    """Judge what a member made of a retried message that it could not handle."""
    evidence, where = [parent.source, record.source], record.it.where
    given_ms, before_ms = record.envelope.unhandled_since_ms, parent.envelope.unhandled_since_ms
    since_ms = parent.it.ms if before_ms is None else before_ms
    if given_ms is None:
        waited_ms = parent.it.ms - since_ms
        if waited_ms < group.send_on_ms:
            what = f"{where} is dead without a listener after {waited_ms} of {group.send_on_ms} ms"
            yield Violation.of("reconsume-limit", what, evidence)
        return
    if record.attempt != parent.attempt:
        yield _count(record, parent, parent.attempt)
    if given_ms != since_ms:
        what = f"{where} was sent on since {given_ms}; made from {parent.it.where} it is since {since_ms}"
        yield Violation.of("reconsume-count", what, evidence)


def _is_at_limit(record: Stored, limit: int) -> bool:
    """Return whether a dead letter has as many attempts as it must have; processes that died are counted together."""
    if record.envelope.fail_class == PROCESS_DIED:
        return record.attempt > limit
    return record.attempt == limit + 1


def _called(group: Group, stored: Stored, deliveries: list[Delivery]) -> Iterator[Violation]:
    if not is_orderly(group):
        for delivery in deliveries:
            if delivery.attempt != stored.attempt:
                what = f"{group.name} was called with count {delivery.attempt} for {stored.it.where}, {stored.attempt}"
                yield Violation.of("reconsume-count", what, [stored.source, delivery.source])
        return
    before: Delivery | None = None
    highest, unfinished = stored.attempt - 1, 0
    for delivery in deliveries:
        in_place = before is not None and before.token == delivery.token and before.outcome == "fail"
        expected = before.attempt + 1 if before is not None and in_place else None
        unfinished += delivery.outcome == "info"
        if delivery.attempt > highest + 1 + unfinished or expected not in {None, delivery.attempt}:
            what = f"{group.name} was called with count {delivery.attempt} for {stored.it.where} after {highest}"
            yield Violation.of("reconsume-count", what, [None if before is None else before.source, delivery.source])
        before, highest = delivery, max(highest, delivery.attempt)
