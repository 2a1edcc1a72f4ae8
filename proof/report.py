"""What a person reads: the figures of a run, and what is wrong, by kind, with the shortest evidence of each."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from proof.check import duplicates, timing
from proof.history import History
from proof.index import Index
from proof.lines import ENDED_BY_ITSELF, OVERLOAD
from proof.violation import Violation

__all__ = ["figures", "report"]

_PERCENTILES = (50, 90, 99, 100)


def figures(history: History) -> dict[str, int | str]:
    """The figures of a run, by name."""
    index = Index(history)
    sends = Counter(send.outcome for send in history.sends)
    delayed = sum(
        send.outcome == "ok" and (send.delay_ms is not None or send.deliver_at_ms is not None) for send in history.sends
    )
    topics = Counter(record.topic for record in index.messages() if record.it.committed)
    explained = duplicates.causes(index)
    lateness = timing.lateness_ms(index)
    calls = Counter(delivery.outcome for delivery in history.deliveries)
    retries = sum(
        record.it.committed and record.topic == index.names.schedule and record.envelope.delay_ms is not None
        for record in index.messages()
        if record.attempt > 0
    )
    found: dict[str, int | str] = {
        "processes": len(history.processes),
        "sends acknowledged": sends["ok"],
        "of them delayed": delayed,
        "sends failed, unknown": f"{sends['fail']}, {sends['info']}",
        "listener calls": sum(calls.values()),
        "of them failed, unknown": f"{calls['fail']}, {calls['info']}",
        "retries stored": retries,
        "dead letters": sum(topics[topic] for topic in index.dead_letter_topics),
        "parked": topics[index.names.parked],
        "faults": _counted(
            Counter(fault.kind for _, fault in index.faults if fault.kind not in {OVERLOAD, ENDED_BY_ITSELF})
        ),
        "slow look-ups": sum(fault.kind == OVERLOAD for _, fault in index.faults),
        "duplicates by cause": _counted(explained),
    }
    if lateness:
        places = [(len(lateness) - 1) * percent // 100 for percent in _PERCENTILES]
        named = zip(_PERCENTILES, places, strict=True)
        found["lateness in ms"] = ", ".join(f"p{percent} {lateness[place]}" for percent, place in named)
    return found


def _counted(counts: Counter[str]) -> str:
    parts = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    return f"{counts.total()} ({parts})" if counts else "0"


def report(history: History, violations: Sequence[Violation]) -> Iterator[str]:
    """The report, line by line."""
    for name, value in figures(history).items():
        yield f"{name:>24}  {value}"
    yield ""
    if not violations:
        yield "no violations"
        return
    by_kind: dict[str, list[Violation]] = defaultdict(list)
    for violation in violations:
        by_kind[violation.kind].append(violation)
    yield f"{len(violations)} violations"
    for kind, found in sorted(by_kind.items()):
        shortest = min(found, key=lambda violation: len(violation.evidence))
        yield f"{len(found):>7} {kind}: {shortest.what}"
        yield f"{'':>7} see {', '.join(map(str, shortest.evidence)) or 'the whole history'}"
