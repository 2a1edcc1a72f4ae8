"""A virtual clock that only moves when the test moves it.

`monotonic_ns` and `wall_ms` use one counter, so both move together. `step_wall` moves only the wall clock, as an
administrator or NTP does. There are two ways to wait in virtual time:

* By default `sleep` blocks the calling thread until *another* thread has advanced the clock far enough. The test can
  ask whether a thread sleeps (`wait_for_sleepers`) and until when (`next_wake_ns`).
* With `auto_advance=True`, `sleep` advances the clock itself and returns. Use this for programs that run in one thread.

Not handled: the order of sleepers that wake at the same instant (the operating system decides).
"""

import threading
from collections.abc import Callable

__all__ = ["VirtualClock"]

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


class VirtualClock:
    """A `Clock` that a test moves.

    Args:
        start_wall_ms: initial wall time in epoch milliseconds; default 2023-11-14T22:13:20Z.
        auto_advance: whether `sleep` advances the clock itself instead of blocking; default False.

    Thread-safety: every method may be called from any thread. Listeners run in the thread that moves the clock, without
    a lock held.
    """

    def __init__(self, *, start_wall_ms: int = 1_700_000_000_000, auto_advance: bool = False) -> None:
        self._changed = threading.Condition()
        self._now_ns = 0
        self._wall_offset_ms = start_wall_ms
        self._auto_advance = auto_advance
        self._wake_ns: dict[int, int] = {}
        self._listeners: list[Callable[[], None]] = []

    def monotonic_ns(self) -> int:
        """Return the virtual nanoseconds since the clock was created."""
        return self._now_ns  # one attribute: no lock is needed to read it

    def wall_ms(self) -> int:
        """Return the virtual epoch milliseconds: start + elapsed time + all steps of `step_wall`."""
        with self._changed:
            return self._wall_offset_ms + self._now_ns // NS_PER_MS

    def advance(self, ms: float) -> None:
        """Move both clocks forward by `ms` milliseconds (0 or more, rounded to nanoseconds; above 0 one at least).

        Raises:
            ValueError: `ms` is negative; the clocks have not moved.
        """
        if ms < 0:
            raise ValueError(f"virtual time cannot go back: advance({ms!r}); use step_wall to move only the wall clock")
        self._move(_rounded_ns(ms * NS_PER_MS))

    def advance_to(self, monotonic_ns: int) -> None:
        """Move both clocks forward to a value of `monotonic_ns`; do nothing if it has passed."""
        self._move(max(0, monotonic_ns - self.monotonic_ns()))

    def step_wall(self, ms: int) -> None:
        """Move only the wall clock, forward or back (negative), as a clock correction does."""
        with self._changed:
            self._wall_offset_ms += ms
        self._tell()

    def sleep(self, seconds: float) -> None:
        """Wait `seconds` of virtual time, in place of `time.sleep`.

        It blocks until another thread has advanced the clock; with `auto_advance` it advances the clock itself.
        """
        if seconds <= 0:
            return
        if self._auto_advance:
            self._move(_rounded_ns(seconds * NS_PER_S))
            return
        with self._changed:
            wake_ns = self._now_ns + _rounded_ns(seconds * NS_PER_S)
            sleeper = threading.get_ident()
            self._wake_ns[sleeper] = wake_ns
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._now_ns >= wake_ns)
            finally:
                del self._wake_ns[sleeper]

    def wait_for_sleepers(self, count: int = 1, *, guard_s: float = 30.0) -> None:
        """Wait until at least `count` threads are in `sleep`.

        Args:
            count: number of sleeping threads to wait for.
            guard_s: timeout in real seconds.

        Raises:
            TimeoutError: fewer threads sleep after `guard_s` real seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._wake_ns) >= count, timeout=guard_s):
                raise TimeoutError(f"{len(self._wake_ns)} of {count} threads sleep on the virtual clock")

    def next_wake_ns(self) -> int | None:
        """Return the earliest wake-up time of a sleeper, in `monotonic_ns`; None if no thread sleeps."""
        with self._changed:
            return min(self._wake_ns.values(), default=None)

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each move of either clock, in the thread that moved it."""
        with self._changed:
            self._listeners.append(listener)

    def _move(self, ns: int) -> None:
        with self._changed:
            self._now_ns += ns
            self._changed.notify_all()
        self._tell()

    def _tell(self) -> None:
        with self._changed:
            listeners = tuple(self._listeners)
        for listener in listeners:
            listener()


def _rounded_ns(duration_ns: float) -> int:
    """Return whole nanoseconds; the shortest wait takes one, so that a loop until a time always ends."""
    return max(1, round(duration_ns)) if duration_ns > 0 else 0
