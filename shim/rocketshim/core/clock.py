"""The clocks that the shells use; the core takes numbers. There are two clocks, and they are never mixed."""

from collections.abc import Callable
from typing import Protocol

__all__ = ["Clock", "now_ms_of"]


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
