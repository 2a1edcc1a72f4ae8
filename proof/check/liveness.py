"""After a fault the system recovers by itself: lag falls within 15 s of its end, and is gone within 60 s.

Judged where no other fault begins for that long, by the lag of each group as the harness measured it. Slow answers to
the harness (`OVERLOAD`) excuse a lag only where they fill more than half of that time: then the cluster does not work.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from proof.history import Source
from proof.index import NS_PER_MS, Index
from proof.lines import OVERLOAD
from proof.violation import Violation

__all__ = ["find"]

_NS_PER_S = 1_000 * NS_PER_MS
FALLS_WITHIN_NS = 15 * _NS_PER_S
GONE_WITHIN_NS = 60 * _NS_PER_S


def find(index: Index) -> Iterator[Violation]:
    """Find faults after which a group's lag did not fall in time, or did not go."""
    lags: dict[str, list[tuple[int, int, Source]]] = defaultdict(list)
    for seen in index.history.samples:
        if seen.it.what == "lag":
            lags[seen.it.of].append((seen.it.at_ns, seen.it.value, seen.source))
    for samples in lags.values():
        samples.sort(key=lambda sample: sample[0])
    overloads = [(fault.begin_ns, fault.end_ns) for _, fault in index.faults if fault.kind == OVERLOAD]
    for quiet in _quiet_times(index):
        for group, samples in lags.items():
            yield from _judge(index.setup.lag_gone, group, samples, quiet, overloads)


@dataclass(frozen=True, slots=True)
class _Quiet:
    """The time after a fault in which nothing else happened."""

    fault: Source
    kind: str
    begin_ns: int
    length_ns: float


def _quiet_times(index: Index) -> Iterator[_Quiet]:
    faults = [(source, fault) for source, fault in index.faults if fault.kind != OVERLOAD]
    for source, fault in faults:
        others = [other for _, other in faults if other is not fault]
        if any(other.begin_ns <= fault.end_ns < other.end_ns for other in others):
            continue  # another one was still going on
        following = [other.begin_ns for other in others if other.begin_ns > fault.end_ns]
        yield _Quiet(source, fault.kind, fault.end_ns, min(following, default=math.inf) - fault.end_ns)


def _judge(
    gone: int, group: str, samples: list[tuple[int, int, Source]], quiet: _Quiet, overloads: list[tuple[int, int]]
) -> Iterator[Violation]:
    end_ns = quiet.begin_ns
    before = next((sample for sample in reversed(samples) if sample[0] <= end_ns), None)
    after = [sample for sample in samples if end_ns < sample[0] <= end_ns + quiet.length_ns]
    if before is None or before[1] <= gone or not after:
        return
    was = f"the lag of {group} was {before[1]} when {quiet.kind} ended, and"

    def values(within_ns: int) -> list[int]:
        """Return the lags up to the first sample after this time: the lag may have fallen just before it."""
        later = [value for at_ns, value, _ in after if at_ns > end_ns + within_ns]
        return [value for at_ns, value, _ in after if at_ns <= end_ns + within_ns] + later[:1]

    falls = any(value < before[1] or value <= gone for value in values(FALLS_WITHIN_NS))
    goes = any(value <= gone for value in values(GONE_WITHIN_NS))

    def is_judged(length_ns: int) -> bool:
        return after[-1][0] - end_ns >= length_ns and not _is_filled(end_ns, length_ns, overloads)

    if not falls and is_judged(FALLS_WITHIN_NS):
        evidence = [quiet.fault, before[2], after[0][2]]
        yield Violation.of("lag-does-not-fall", f"{was} did not fall within 15 s", evidence)
    elif not goes and is_judged(GONE_WITHIN_NS):
        evidence = [quiet.fault, before[2], after[-1][2]]
        yield Violation.of("lag-stays", f"{was} was not gone within 60 s", evidence)


def _is_filled(begin_ns: int, length_ns: int, spans: list[tuple[int, int]]) -> bool:
    """Return whether spans, which do not overlap, fill more than half of a time."""
    end_ns = begin_ns + length_ns
    return 2 * sum(max(0, min(last, end_ns) - max(first, begin_ns)) for first, last in spans) > length_ns
