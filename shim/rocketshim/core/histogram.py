"""Count values in buckets, as Prometheus' histograms do. Pure; the owner's thread writes, any thread may copy."""

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from itertools import accumulate

__all__ = ["Histogram"]


@dataclass(slots=True)
class Histogram:
    """Counts of values by bucket. `bounds` are upper bounds, ascending; one more bucket is above the last."""

    bounds: tuple[float, ...]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = self.counts or [0] * (len(self.bounds) + 1)

    def add(self, value: float, times: int = 1) -> None:
        """Count a value, several times if that many things share it."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def copy(self) -> "Histogram":
        """Return a copy for another thread."""
        return replace(self, counts=list(self.counts))

    def samples(self) -> list[tuple[str, dict[str, str], float]]:
        """Return suffix, labels and value of each sample in Prometheus' form."""
        below = list(accumulate(self.counts))
        bounds = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        buckets = [("_bucket", {"le": bound}, float(count)) for bound, count in zip(bounds, below, strict=True)]
        return [*buckets, ("_sum", {}, self.total), ("_count", {}, float(below[-1]))]
