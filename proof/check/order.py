"""Orderly groups get the messages of a queue in order, one at a time (with `order="key"`: the messages of a key).

Judged by what the sink accepted, or, where the run had no sink for the group, by the calls that succeeded, in the
order of their ends. Dead letters hold up nobody. Under one token nothing is repeated. What never came at all is `lost`
(module `loss`) and no matter of order.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from proof.history import Source
from proof.index import Index, Stored, queue_of
from proof.lines import Group
from proof.violation import Violation

__all__ = ["find", "is_orderly"]

Unit = tuple[str, str | None]
"""What is in order: a queue and None, or a queue and a key."""


@dataclass(frozen=True, slots=True)
class _Effect:
    source: Source
    where: str
    token: int | None


def is_orderly(group: Group) -> bool:
    """Whether a group consumes in order."""
    return group.mode in {"orderly", "orderly-by-key"}


def find(index: Index) -> Iterator[Violation]:
    """Find messages that came in another order, again under one token, or while another call was going on."""
    for group in index.history.groups_where(is_orderly):
        expected: dict[Unit, list[Stored]] = defaultdict(list)
        for record in index.read_by(group):
            expected[_unit(group, record)].append(record)
        effects: dict[Unit, list[_Effect]] = defaultdict(list)
        for effect in _effects(index, group):
            stored = index.records.get(effect.where)
            if stored is not None:  # else it is a phantom
                effects[_unit(group, stored)].append(effect)
        for unit, records in expected.items():
            yield from _unit_in_order(index, group, records, effects.get(unit, []))
        yield from _calls_apart(index, group)


def _unit(group: Group, record: Stored) -> Unit:
    return queue_of(record.it.where), record.it.key if group.mode == "orderly-by-key" else None


def _effects(index: Index, group: Group) -> Iterable[_Effect]:
    written = [seen for seen in index.history.sink if seen.it.group == group.name and seen.it.accepted]
    if written:
        return [_Effect(seen.source, seen.it.where, seen.it.token) for seen in written]
    done = [each for each in index.history.deliveries if each.group == group.name and each.outcome == "ok"]
    done.sort(key=lambda each: each.end_ns or 0)
    return [_Effect(each.source, each.where, each.token) for each in done]


def _unit_in_order(index: Index, group: Group, records: list[Stored], effects: list[_Effect]) -> Iterator[Violation]:
    place = {record.it.where: number for number, record in enumerate(records)}
    came = {effect.where for effect in effects}
    # Those that never came, and dead letters, hold up nobody.
    counts = [record.it.where in came and not index.next_records(group.name, record) for record in records]
    done: set[str] = set()
    next_place = 0
    last: dict[int | None, tuple[int, _Effect]] = {}
    for effect in effects:
        number = place.get(effect.where)
        if number is None:
            continue
        while next_place < len(records) and (records[next_place].it.where in done or not counts[next_place]):
            next_place += 1
        before = last.get(effect.token)
        if number > next_place and effect.where not in done:
            what = f"{group.name} handled {effect.where} before {records[next_place].it.where}"
            yield Violation.of("order", what, [effect.source, records[next_place].source])
        elif before is not None and number <= before[0]:
            what = f"{group.name} handled {effect.where} after {before[1].where} under token {effect.token}"
            yield Violation.of("order", what, [before[1].source, effect.source])
        done.add(effect.where)
        last[effect.token] = number, effect


def _calls_apart(index: Index, group: Group) -> Iterator[Violation]:
    calls: dict[tuple[str, Unit], list[tuple[int, int, Source]]] = defaultdict(list)
    for delivery in index.history.deliveries:
        stored = index.records.get(delivery.where)
        if delivery.group == group.name and stored is not None and delivery.end_ns is not None:
            calls[delivery.process, _unit(group, stored)].append((delivery.begin_ns, delivery.end_ns, delivery.source))
    for (process, (queue, _)), spans in calls.items():
        spans.sort()
        for (_, end_ns, first), (begin_ns, _, second) in pairwise(spans):
            if begin_ns < end_ns:
                what = f"{process} had two calls for {queue} at the same time"
                yield Violation.of("concurrent-calls", what, [first, second])
