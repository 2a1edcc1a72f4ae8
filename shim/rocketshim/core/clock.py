"""The clocks that the shells use; the core takes numbers. There are two clocks, and they are never mixed."""

from typing import Protocol

__all__ = ["Clock"]


class Clock(Protocol):
    """A monotonic clock for waiting and a wall clock for times that people read."""

    def monotonic_ns(self) -> int:
        """Return nanoseconds of a clock that never goes back; only differences have a meaning."""
        ...

    def wall_ms(self) -> int:
        """Return epoch milliseconds of this machine; they may jump. No deadline is measured with this clock."""
        ...
