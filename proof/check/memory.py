"""Memory is bounded: after a warm-up resident memory grows no faster than allowed, and never above the limit.

A step, as a backlog after a fault makes it, is not growth: so the slope is the median of the slopes between all pairs
of samples (Theil and Sen), and memory grows if it also does so in the second half.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from statistics import median
from typing import TYPE_CHECKING

from proof.index import Index
from proof.violation import Violation

if TYPE_CHECKING:
    from proof.history import Seen
    from proof.lines import Sample

__all__ = ["find", "slope_mib_per_min"]

_MIB = 1_048_576
_NS_PER_MIN = 60_000_000_000
_PER_MIN = _NS_PER_MIN / _MIB
_MOST_SAMPLES = 300
WARM_UP_NS = 2 * _NS_PER_MIN
JUDGED_NS = 5 * _NS_PER_MIN
"""The shortest time, without the warm-up, over which a slope means something."""


def find(index: Index) -> Iterator[Violation]:
    """Find processes whose memory grows, or grew above the limit."""
    samples: dict[str, list[Seen[Sample]]] = defaultdict(list)
    for seen in index.history.samples:
        if seen.it.what == "rss_bytes":
            samples[seen.it.of].append(seen)
    limit_mib = index.setup.memory_limit_mib
    for process, found in samples.items():
        found.sort(key=lambda seen: seen.it.at_ns)
        most = max(found, key=lambda seen: seen.it.value)
        if limit_mib is not None and most.it.value > limit_mib * _MIB:
            what = f"{process} used {most.it.value / _MIB:.0f} MiB; the limit is {limit_mib:.0f}"
            yield Violation.of("memory-limit", what, [most.source])
            continue
        slope = slope_mib_per_min([(seen.it.at_ns, seen.it.value) for seen in found])
        if slope is not None and slope > index.setup.memory_slope_mib_per_min:
            what = f"the memory of {process} grew by {slope:.2f} MiB a minute"
            yield Violation.of("memory-grows", what, [found[0].source, found[-1].source])


def slope_mib_per_min(samples: list[tuple[int, int]]) -> float | None:
    """The growth of memory (time in ns, bytes) after the warm-up; None: too short to tell.

    It is the smaller of two slopes: of the whole time, and of its second half.
    """
    if not samples:
        return None
    judged = [(at_ns, value) for at_ns, value in samples if at_ns >= samples[0][0] + WARM_UP_NS]
    if len(judged) < 6 or judged[-1][0] - judged[0][0] < JUDGED_NS:
        return None
    return min(_slope(judged), _slope(judged[len(judged) // 2 :]))


def _slope(samples: list[tuple[int, int]]) -> float:
    thinned = samples[:: len(samples) // _MOST_SAMPLES + 1]
    pairs = combinations(thinned, 2)
    return median((later - value) / (later_ns - at_ns) for (at_ns, value), (later_ns, later) in pairs) * _PER_MIN
