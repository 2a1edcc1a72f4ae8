"""Never early: by the brokers' stamps and by the host's clock; and how late.

* Stamps: a record leaves its delay queue when at least the queue's delay has passed since its append, and reaches its
  target when it is due. Both are append times, so the targets whose stamps are the sender's are not judged here.
* Host: a listener is called at least the delay after the send, or after the failed call, *began*. An append time is cut
  to a millisecond, so a message may seem to leave up to one millisecond before.

From the moment on when a fault has set a broker's clock, stamps do not compare. Then only messages whose first queue
has their whole delay are judged, by the host's clock: the others wait for a time on the clock that was set. A step
forward ends the waiting of every message, since its delay has then passed on the broker's clock: messages that wait
during a step are judged only if it is known to go back (`clock-back`).
"""

from collections.abc import Iterator
from typing import Final

from proof.history import Delivery
from proof.index import NS_PER_MS, Index, Stored
from proof.violation import Violation

__all__ = ["find", "lateness_ms"]

_LONG_AGO_MS: Final = 3_600_000

_CUT_NS = NS_PER_MS


def find(index: Index) -> Iterator[Violation]:
    """Find messages that left a queue, or were delivered, before their time."""
    yield from _named(index)
    yield from _by_stamps(index)
    yield from _by_host_clock(index)


def lateness_ms(index: Index) -> list[int]:
    """How long after its due time each delayed message was stored at its target, sorted; by append times.

    A time of delivery that was long ago comes from a sender whose clock a fault has set: it counts from the append.
    """
    return sorted(
        child.it.ms - (parent.it.ms if parent.it.ms - due_ms > _LONG_AGO_MS else due_ms)
        for parent, child in _relays(index)
        if _is_final(index, child)
        for due_ms in (index.due_ms(parent),)
    )


def _relays(index: Index) -> Iterator[tuple[Stored, Stored]]:
    """Schedule records and what the worker made of them, both with append times; parked records apart."""
    for record in index.messages():
        if record.topic != index.names.schedule or record.it.stamp != "append":
            continue
        for child in record.committed_children():
            if child.topic != index.names.parked and child.it.stamp == "append" and index.is_comparable(child.it.ms):
                yield record, child


def _is_final(index: Index, child: Stored) -> bool:
    return child.topic != index.names.schedule


def _by_stamps(index: Index) -> Iterator[Violation]:
    for record, child in _relays(index):
        earliest_ms = record.it.ms + (index.levels.queue_delay_ms(record.partition) or 0)
        if _is_final(index, child):
            earliest_ms = max(earliest_ms, index.due_ms(record))
        if child.it.ms < earliest_ms:
            what = f"{child.it.where} left {record.it.where} {earliest_ms - child.it.ms} ms early"
            yield Violation.of("early", what, [record.source, child.source])


def _named(index: Index) -> Iterator[Violation]:
    """Named messages that wait for less than they have to."""
    for told in index.named:
        for child in told.command.committed_children() if told.effect == "waits" else ():
            if index.effect_of(child) == "waits" and (early_ms := told.due_ms - index.due_ms(child)) > 0:
                what = f"{child.it.where} waits {early_ms} ms less than {told.command.it.where} asks for"
                yield Violation.of("early", what, [told.command.source, child.source])


def _by_host_clock(index: Index) -> Iterator[Violation]:
    for record in index.messages():
        delay_ms = record.envelope.delay_ms
        if record.topic not in index.waiting or delay_ms is None or record.envelope.timer_at_most_ms is not None:
            continue
        begun = _begun_ns(index, record)
        if begun is None:
            continue
        for reader, final, delivery in _arrivals(index, record):
            early_ns = begun + delay_ms * NS_PER_MS - _CUT_NS - delivery.begin_ns
            if early_ns > 0 and not _was_set_forward(index, begun, delivery.begin_ns):
                what = f"{reader} was given {final.it.where} {early_ns / NS_PER_MS:.3f} ms early"
                yield Violation.of("early", what, [record.source, delivery.source])


def _arrivals(index: Index, record: Stored) -> Iterator[tuple[str, Stored, Delivery]]:
    """Each delivery of what became of a schedule record, if the host's clock can judge it."""
    for final, hops in _finals(index, record):
        if not index.is_comparable(final.it.ms) and (hops > 1 or _needs_more_queues(index, record)):
            continue
        for group in index.setup.groups:
            for reader in index.readers(group):
                for delivery in index.deliveries.get((reader, final.it.where), []):
                    yield reader, final, delivery


def _needs_more_queues(index: Index, record: Stored) -> bool:
    """Whether the queue of a schedule record is shorter than the delay of its message."""
    return (index.levels.queue_delay_ms(record.partition) or 0) < (record.envelope.delay_ms or 0)


def _was_set_forward(index: Index, begin_ns: int, end_ns: int) -> bool:
    """Whether a broker's clock may have been set forward between two times."""
    return any(
        fault.kind.startswith("clock-") and fault.kind != "clock-back"
        and fault.begin_ns <= end_ns and fault.end_ns >= begin_ns
        for _, fault in index.faults
    )  # fmt: skip


def _begun_ns(index: Index, record: Stored) -> int | None:
    """When that began which led to a schedule record: the send, or the call that failed; None: not known."""
    send = index.sends_by_record.get(record.it.where)
    if send is not None:
        return send.begin_ns
    group = record.envelope.consumer_group or ""
    calls = index.deliveries.get((group, record.envelope.hop_id or ""), [])
    return min((call.begin_ns for call in calls), default=None)


def _finals(index: Index, record: Stored, hops: int = 1) -> Iterator[tuple[Stored, int]]:
    """Where a schedule record or a command arrived, and by how many hops; not what a NOW delivered."""
    for child in record.committed_children():
        if record.envelope.timer_do not in {None, "FIRE"} and index.effect_of(child) != "waits":
            continue
        if child.topic in index.waiting:
            yield from _finals(index, child, hops + 1)
        elif child.topic != index.names.parked:
            yield child, hops
