"""The clock of this machine, behind the Protocol that the core's shells take."""

import time

__all__ = ["SystemClock"]


class SystemClock:
    """`Clock` over `time.monotonic_ns` and `time.time_ns`.

    Thread-safety: stateless, any thread.
    """

    __slots__ = ()

    monotonic_ns = staticmethod(time.monotonic_ns)  # itself: asked before each call of an orderly listener
    """Nanoseconds of a clock that only goes forward; differences alone have a meaning."""

    def wall_ms(self) -> int:
        """Epoch milliseconds of this machine; may step."""
        return time.time_ns() // 1_000_000
