"""Time as the shells see it; the core takes numbers. Two clocks, never mixed."""

from typing import Protocol

__all__ = ["Clock"]


class Clock(Protocol):
    """A monotonic clock for waiting and a wall clock for what people read."""

    def monotonic_ns(self) -> int:
        """Nanoseconds of a clock that only goes forward; differences alone have a meaning."""
        ...

    def wall_ms(self) -> int:
        """Epoch milliseconds of this machine; may step. Nothing is ever due by it."""
        ...
