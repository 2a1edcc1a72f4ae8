"""Each duplicate is explained by a fault.

What may be there once: one delivery of each record to each reader; one next record of each record (for each group that
failed to handle it); one record of each send. Where there are two, a fault must have hit somebody who can have caused
it, between the two:

* a record was *read* twice: a member of the group, or a broker;
* a schedule record or a command for a name was *relayed* twice: a worker or a broker;
* a failed message was *sent back* twice: a member of the group or a broker;
* a message was *sent* twice by one send: its sender or a broker.

A fault counts from its beginning until `recovery_ms` after its end. A client's wrong clock never costs a repeat.
A quota costs one in orderly groups alone, whose members write their leases. Where exactly-once mode or a redrive allows
one record, two are named by `exactly_once` and not here.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from proof.check.order import is_orderly
from proof.history import Delivery, Source
from proof.index import NS_PER_MS, Index, Stored
from proof.lines import Fault
from proof.violation import Violation

__all__ = ["Repeat", "causes", "find", "repeats"]

_CONSUMERS = frozenset({"consumer", "dropin"})
_WORKERS = frozenset({"worker"})
_SENDERS = frozenset({"sender"})
_EVER_NS = 2**63
_CLIENT_CLOCK = "client-clock"
_QUOTA = "quota"


@dataclass(frozen=True, slots=True)
class Repeat:
    """Something that was done twice.

    Attributes:
        why: `read`, `relayed`, `sent back`, `sent`.
        what: for a person.
        evidence: of both.
        fault: what explains it; None: nothing.
    """

    why: str
    what: str
    evidence: tuple[Source, Source]
    fault: Fault | None


def find(index: Index) -> Iterator[Violation]:
    """Find duplicates that no fault explains."""
    for repeat in repeats(index):
        if repeat.fault is None:
            yield Violation.of("duplicate", f"{repeat.what} twice, and no fault explains it", repeat.evidence)


def causes(index: Index) -> Counter[str]:
    """How many duplicates each kind of fault explains; `none` for those without explanation."""
    return Counter(repeat.fault.kind if repeat.fault else "none" for repeat in repeats(index))


def repeats(index: Index) -> Iterator[Repeat]:
    """Every duplicate, with its explanation."""
    yield from _read(index)
    yield from _made(index)
    yield from _sent(index)


def _read(index: Index) -> Iterator[Repeat]:
    for (reader, where), deliveries in index.deliveries.items():
        if len(deliveries) == 1:
            continue
        by_attempt: dict[int, list[Delivery]] = defaultdict(list)
        for delivery in deliveries:
            by_attempt[delivery.attempt].append(delivery)
        for same in by_attempt.values():
            for first, again in pairwise(same):
                fault = _explanation(index, first.begin_ns, again.begin_ns, _CONSUMERS, first.group)
                yield Repeat("read", f"{reader} was given {where}", (first.source, again.source), fault)


def _made(index: Index) -> Iterator[Repeat]:
    for record in index.messages():
        children = record.committed_children()
        if len(children) == 1 or record.topic in index.dead_letter_topics:
            continue
        if record.topic in index.waiting:
            if not index.setup.exactly_once:
                for one, other in (pair for same in index.relays(record) for pair in pairwise(same)):
                    fault = _between(index, one, other, _WORKERS, None)
                    yield Repeat("relayed", f"{record.it.where} was relayed", (one.source, other.source), fault)
            continue
        by_group: dict[str | None, list[Stored]] = defaultdict(list)
        for child in children:
            by_group[child.envelope.consumer_group].append(child)
        for group, same in by_group.items():
            for one, other in pairwise(same):
                fault = _between(index, one, other, _CONSUMERS, group)
                yield Repeat("sent back", f"{group} sent {record.it.where} back", (one.source, other.source), fault)


def _sent(index: Index) -> Iterator[Repeat]:
    by_send: dict[Source, list[Stored]] = defaultdict(list)
    for record in index.messages():
        send = index.sends_by_record.get(record.it.where)
        if send is not None and record.it.committed:
            by_send[send.source].append(record)
    for source, records in by_send.items():
        for one, other in pairwise(sorted(records, key=lambda record: record.it.ms)):
            fault = _between(index, one, other, _SENDERS, None)
            yield Repeat("sent", f"what {source} sent was stored", (one.source, other.source), fault)


def _between(index: Index, one: Stored, other: Stored, roles: frozenset[str], group: str | None) -> Fault | None:
    begin_ns, end_ns = index.host_ns(one.it.ms), index.host_ns(other.it.ms)
    if begin_ns is None or end_ns is None or not _compare(index, one, other):
        begin_ns, end_ns = 0, _EVER_NS  # when it happened is not known: any fault of theirs explains it
    return _explanation(index, begin_ns, end_ns + NS_PER_MS, roles, group)


def _compare(index: Index, one: Stored, other: Stored) -> bool:
    stamps = one.it.stamp, other.it.stamp
    return stamps == ("append", "append") and index.is_comparable(max(one.it.ms, other.it.ms))


def _explanation(index: Index, begin_ns: int, end_ns: int, roles: frozenset[str], group: str | None) -> Fault | None:
    """The last fault that can have caused what was done at both times."""
    recovery_ns = index.setup.recovery_ms * NS_PER_MS
    found = [
        fault
        for _, fault in index.faults
        if fault.begin_ns <= end_ns and fault.end_ns + recovery_ns >= begin_ns and _can_hit(index, fault, roles, group)
    ]
    return max(found, key=lambda fault: fault.begin_ns, default=None)


def _can_hit(index: Index, fault: Fault, roles: frozenset[str], group: str | None) -> bool:
    if not _may_repeat(index, fault.kind, group):
        return False
    if fault.target == "cluster" or fault.target.startswith("broker-"):
        return True
    if fault.target.startswith("group:"):
        return fault.target.removeprefix("group:") == (index.names.worker_group if roles == _WORKERS else group)
    process = index.history.processes.get(fault.target)
    return process is not None and process.role in roles and group in {None, process.group}


def _may_repeat(index: Index, kind: str, group: str | None) -> bool:
    """Whether a kind of fault may cost a repeat of what a group, or a process without one, does."""
    if kind == _QUOTA:
        known = index.history.group(group or "")
        return known is not None and is_orderly(known)
    return kind != _CLIENT_CLOCK
