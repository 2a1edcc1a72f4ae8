"""Judge a soak by its samples and closings. Pure.

Memory, by least squares after a warm-up, may grow by less than 1 MiB a minute. The numbers of threads, file handles and
sockets depend on what happens at a moment of the cycle, and a lost connection changes them for a while. So each minute
of the first cycle after the warm-up is compared with the same minute of the last cycle, by the median of its samples.
What leaks stays, so it is more in most of these minutes. Each process that is asked to end does so within 10 s, with
exit code 0. The broker is measured, but not judged.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import linear_regression, median
from typing import Final

__all__ = ["BROKER", "CYCLE_S", "Closing", "Sample", "describe", "find", "growth", "slope_mib_per_min"]

BROKER: Final = "broker"
CYCLE_S: Final = 600.0
WARM_UP_S: Final = CYCLE_S
_MOST_MIB_PER_MIN: Final = 1.0
_CLOSE_S: Final = 10.0
_COUNTS: Final = ("threads", "handles", "sockets")
_MINUTE_S: Final = 60.0
_MIB: Final = 1_048_576


@dataclass(frozen=True, slots=True)
class Sample:
    """What one process used at one moment.

    Attributes:
        at_s: seconds since the begin of the soak.
        handles: number of file handles, sockets included.
    """

    process: str
    at_s: float
    rss_bytes: int
    threads: int
    handles: int
    sockets: int


@dataclass(frozen=True, slots=True)
class Closing:
    """How a process ended.

    Attributes:
        seconds: from SIGTERM to its end.
        code: its exit code; below 0: the signal that ended it.
        by_itself: it ended without being asked to.
    """

    process: str
    seconds: float
    code: int
    by_itself: bool = False


def find(samples: Iterable[Sample], closings: Iterable[Closing]) -> Iterator[str]:
    """Find what grows, and what did not end as it should."""
    for process, found in _by_process(samples).items():
        slope = slope_mib_per_min(found)
        if process == BROKER or slope is None:
            continue
        if slope >= _MOST_MIB_PER_MIN:
            yield f"the memory of {process} grew by {slope:.2f} MiB a minute"
        for what in _COUNTS:
            more = growth(found, what)
            if more > 0:
                yield f"{process} had {more:g} more {what} in the last cycle than in the first one"
    for closing in closings:
        if closing.by_itself:
            yield f"{closing.process} ended by itself with exit code {closing.code}"
        elif closing.code != 0 or closing.seconds > _CLOSE_S:
            yield f"{closing.process} ended after {closing.seconds:.1f} s with exit code {closing.code}"


def describe(samples: Iterable[Sample], closings: Sequence[Closing]) -> Iterator[str]:
    """Yield the figures of each process that ran long enough to be judged, and the longest closing."""
    for process, found in _by_process(samples).items():
        slope = slope_mib_per_min(found)
        if slope is not None:
            most = max(sample.rss_bytes for sample in found) / _MIB
            counts = ", ".join(f"{median(getattr(each, what) for each in found):g} {what}" for what in _COUNTS)
            yield f"{process}: {slope:+.3f} MiB a minute, {most:.0f} MiB at most, {counts}"
    if closings:
        slowest = max(closings, key=lambda closing: closing.seconds)
        yield f"{len(closings)} closings, the longest {slowest.seconds:.1f} s ({slowest.process})"


def slope_mib_per_min(samples: Sequence[Sample]) -> float | None:
    """The growth of a process's memory after the warm-up; None: less than two cycles are left, too short to tell."""
    judged = _after_warm_up(samples)
    if len(judged) < 3 or judged[-1].at_s - judged[0].at_s < 2 * CYCLE_S - _MINUTE_S:
        return None
    minutes = [sample.at_s / _MINUTE_S for sample in judged]
    return linear_regression(minutes, [sample.rss_bytes / _MIB for sample in judged]).slope


def growth(samples: Sequence[Sample], what: str) -> float:
    """How many more of something a process has in most minutes of its last cycle than in the same ones of the first."""
    by_minute: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for sample in _after_warm_up(samples):
        cycle, in_cycle_s = divmod(sample.at_s, CYCLE_S)
        by_minute[int(in_cycle_s // _MINUTE_S)][int(cycle)].append(getattr(sample, what))
    return median(median(cycles[max(cycles)]) - median(cycles[min(cycles)]) for cycles in by_minute.values())


def _by_process(samples: Iterable[Sample]) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        found[sample.process].append(sample)
    return found


def _after_warm_up(samples: Sequence[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.at_s >= samples[0].at_s + WARM_UP_S]
