"""One lock holder at a time: fencing tokens never go back at the sink, and calls are made under granted tokens only.

A listener that was frozen between the look at its lock and its call begins under an old token when it wakes. That is no
violation: the sink refuses what it writes.
"""

from collections import defaultdict
from collections.abc import Iterator

from proof.check.fold import Reference, reference_folds
from proof.history import Delivery, Source
from proof.index import Index, queue_of
from proof.violation import Violation

__all__ = ["find"]

_FREEZING = "freeze"
_WAKING_NS = 2_000_000_000


def find(index: Index) -> Iterator[Violation]:
    """Find old tokens that were accepted, tokens nobody granted, and two holders of one queue."""
    yield from _sink(index)
    references = reference_folds(index)
    by_queue: dict[tuple[str, str], list[Delivery]] = defaultdict(list)
    for delivery in index.history.deliveries:
        if delivery.token is not None:
            by_queue[delivery.group, queue_of(delivery.where)].append(delivery)
    for (group, _), deliveries in by_queue.items():
        deliveries.sort(key=lambda each: each.begin_ns)
        yield from _holders(index, deliveries)
        yield from _granted(index, [each for each in references if each.group == group], deliveries)


def _sink(index: Index) -> Iterator[Violation]:
    highest: dict[tuple[str, str], tuple[int, Source]] = {}
    for seen in index.history.sink:
        key = seen.it.group, queue_of(seen.it.where)
        token, source = highest.get(key, (-1, None))
        if not seen.it.accepted:
            continue
        if seen.it.token < token:
            what = f"the sink took {seen.it.where} under token {seen.it.token} after {token}"
            yield Violation.of("token-back", what, [source, seen.source])
        else:
            highest[key] = seen.it.token, seen.source


def _holders(index: Index, deliveries: list[Delivery]) -> Iterator[Violation]:
    newest: Delivery | None = None
    for delivery in deliveries:
        if newest is None or (delivery.token or 0) >= (newest.token or 0):
            newest = delivery
        elif not _was_frozen(index, delivery):
            what = (
                f"{delivery.process} was called for {delivery.where} under token {delivery.token} after "
                f"{newest.process} under {newest.token}"
            )
            yield Violation.of("two-holders", what, [newest.source, delivery.source])


def _was_frozen(index: Index, delivery: Delivery) -> bool:
    return any(
        fault.target == delivery.process
        and fault.kind.startswith(_FREEZING)
        and fault.begin_ns <= delivery.begin_ns <= fault.end_ns + _WAKING_NS
        for _, fault in index.faults
    )


def _granted(index: Index, references: list[Reference], deliveries: list[Delivery]) -> Iterator[Violation]:
    """Find calls under tokens that the group's logs have given to another client, or, if all is known, to nobody."""
    bases = [reference.base for reference in references if reference.base is not None]
    grants = {each: owner for reference in references for each, owner in reference.grants.items()}
    is_complete = all(reference.complete for reference in references)
    for delivery in deliveries:
        token, queue = delivery.token or 0, queue_of(delivery.where)
        owner = grants.get((token, queue))
        if owner is None and (not is_complete or token < min(bases, default=token + 1)):
            continue  # of a log that is not known
        client = index.client_of(delivery.process)
        if owner != client:
            what = f"{client} was called for {queue} under token {token}, which the log gave to {owner or 'nobody'}"
            yield Violation.of("token-not-granted", what, [delivery.source])
