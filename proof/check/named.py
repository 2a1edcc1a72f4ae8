"""Named timers: what the log says is done, and nothing else.

A generation that was voided before its FIRE, or was never set, is never delivered. Each other one waits under its name
until it fires, and is delivered then, or earlier by a NOW. That it is delivered once is judged by `duplicates` and
`exactly_once`, and that it is not early by `timing`.
"""

from collections import defaultdict
from collections.abc import Iterator

from proof.index import Index, queue_of
from proof.named import Effect, Told
from proof.violation import Violation

__all__ = ["find"]


def find(index: Index) -> Iterator[Violation]:
    """Find messages that were delivered though they were voided, and those that were not and should have been."""
    allowed: dict[str, set[Effect]] = defaultdict(set)
    for told in index.named:
        allowed[told.message.it.where] |= _counts_as(told.effect)
        yield from _done(index, told)
    for told in index.named:
        record = told.command
        for child in record.committed_children():
            if index.effect_of(child) not in allowed[record.it.where]:
                what = f"{child.it.where} was made from {record.it.where}, which the log of timers has voided"
                yield Violation.of("voided", what, [record.source, child.source])


def _done(index: Index, told: Told) -> Iterator[Violation]:
    """Judge whether what a command asks for was done."""
    record, children = told.command, told.message.committed_children()
    if told.is_pending and index.setup.drained:
        what = f"{record.it.where} is still pending under its name"
        yield Violation.of("stuck", what, [record.source])
    if told.effect == "nothing" or any(index.effect_of(child) in _has_to_be(told.effect) for child in children):
        return
    if index.has_fleeting_target(told.message):
        return  # it may have been there
    position, source = index.positions.get((index.names.worker_group, queue_of(record.it.where)), (0, None))
    evidence = [record.source, told.message.source, source]
    if position > record.offset:
        what = f"the worker's position {position} is past {record.it.where}: missing is `{told.effect}`"
        yield Violation.of("lost", what, evidence)
    elif index.setup.drained:
        yield Violation.of("stuck", f"{record.it.where} still waits in the log of timers", evidence)


def _counts_as(effect: Effect) -> set[Effect]:
    """Return what may be done for an effect: a message that its target refuses is parked."""
    return {effect, "parked"} if effect == "delivered" else {effect, "waits"} if effect == "asks" else {effect}


def _has_to_be(effect: Effect) -> set[Effect]:
    """Return of what one has to be done: a question may be left out, since the next one follows."""
    return {"waits"} if effect == "asks" else _counts_as(effect)
