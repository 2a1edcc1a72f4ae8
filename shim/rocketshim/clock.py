"""The clock of this machine, as an implementation of the core's `Clock`."""

import time

__all__ = ["SystemClock"]


class SystemClock:
    """Implementation of `Clock` with `time.monotonic_ns` and `time.time_ns`.

    Thread-safety: no state; any thread may call it.
    """

    __slots__ = ()

    monotonic_ns = staticmethod(time.monotonic_ns)  # no wrapper: it is called before each call of an orderly listener
    """Nanoseconds of a clock that only goes forward. Only differences have a meaning."""

    def wall_ms(self) -> int:
        """Return this machine's epoch milliseconds; they may jump forward or back."""
        return time.time_ns() // 1_000_000
