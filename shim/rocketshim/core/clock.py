"""Time: the clocks that the shells use, an interval, and a back-off. Pure: the core takes times as numbers.

There are two clocks, and they are never mixed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

__all__ = ["RENEWAL_MS", "Backoff", "Clock", "Interval", "now_ms_of"]

RENEWAL_MS: Final = 3_600_000
"""How often positions are committed again that have not moved. Kafka forgets a position of a group without members if
it was not committed for `offsets.retention.minutes` (7 days), even while a consumer reads the partition."""


class Clock(Protocol):
    """A monotonic clock for waiting and a wall clock for times that people read."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds of a clock that never goes back; only differences have a meaning."""
        ...

    def wall_ms(self) -> int:
        """Return epoch milliseconds of this machine; they may jump. No deadline is measured with this clock."""
        ...


def now_ms_of(clock: Clock) -> Callable[[], int]:
    """Return a function that tells monotonic time in ms."""
    return lambda: clock.monotonic_ns() // 1_000_000


@dataclass(slots=True)
class Interval:
    """Something that is due at an interval, for the first time immediately."""

    interval_ms: int
    next_ms: int = 0

    def is_due(self, now_ms: int) -> bool:
        """Return whether it is due; if so, it is due again one interval later."""
        if now_ms < self.next_ms:
            return False
        self.next_ms = now_ms + self.interval_ms
        return True


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that grow by a factor up to a longest one, in any unit."""

    first: int
    longest: int
    factor: float = 2.0

    def pause(self, failures: int) -> int:
        """Return the next pause; `failures` in a row came before the one that just happened."""
        try:
            grown = self.first * float(self.factor) ** failures
        except OverflowError:  # more than a float can represent
            return self.longest
        return round(min(grown, self.longest))
