"""Virtual time: it stands still until the test moves it.

`monotonic_ns` and `wall_ms` answer from one counter, so both move together; `step_wall` moves the wall alone, as an
administrator or NTP does. Two ways to wait in virtual time:

* by default `sleep` blocks the calling thread until *another* thread has advanced the clock far enough. The test knows
  when a thread sleeps (`wait_for_sleepers`) and for how long (`next_wake_ns`), so it never has to guess;
* with `auto_advance=True` `sleep` moves the clock itself and returns. That is for programs driven from one thread.

Not handled: fairness between sleepers that wake at the same instant (the operating system decides).
"""

import threading
from collections.abc import Callable

__all__ = ["VirtualClock"]

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


class VirtualClock:
    """A `Clock` that a test drives.

    Args:
        start_wall_ms: epoch milliseconds at the beginning; default 2023-11-14T22:13:20Z.
        auto_advance: whether `sleep` advances the clock itself instead of blocking; default no.

    Thread-safety: every method may be called from any thread; listeners run in the thread that advances, without a
    lock held.
    """

    def __init__(self, *, start_wall_ms: int = 1_700_000_000_000, auto_advance: bool = False) -> None:
        self._changed = threading.Condition()
        self._now_ns = 0
        self._wall_offset_ms = start_wall_ms
        self._auto_advance = auto_advance
        self._wake_ns: dict[int, int] = {}
        self._listeners: list[Callable[[], None]] = []

    def monotonic_ns(self) -> int:
        """Virtual nanoseconds since the clock was made."""
        with self._changed:
            return self._now_ns

    def wall_ms(self) -> int:
        """Virtual epoch milliseconds: start + elapsed + the steps of `step_wall`."""
        with self._changed:
            return self._wall_offset_ms + self._now_ns // NS_PER_MS

    def advance(self, ms: float) -> None:
        """Move both clocks forward by `ms` milliseconds (0 or more; fractions down to a nanosecond count).

        Raises:
            ValueError: `ms` is negative; time has not moved.
        """
        if ms < 0:
            raise ValueError(f"virtual time cannot go back: advance({ms!r}); step_wall moves the wall clock alone")
        self._move(round(ms * NS_PER_MS))

    def advance_to(self, monotonic_ns: int) -> None:
        """Move forward to an instant of `monotonic_ns`; an instant already passed changes nothing."""
        self._move(max(0, monotonic_ns - self.monotonic_ns()))

    def step_wall(self, ms: int) -> None:
        """Move the wall clock alone, forward or back (negative), as a clock correction does."""
        with self._changed:
            self._wall_offset_ms += ms
        self._tell()

    def sleep(self, seconds: float) -> None:
        """Wait `seconds` of virtual time: a stand-in for `time.sleep`.

        Blocks until another thread has advanced the clock, or advances it itself with `auto_advance`.
        """
        if seconds <= 0:
            return
        if self._auto_advance:
            self._move(round(seconds * NS_PER_S))
            return
        with self._changed:
            wake_ns = self._now_ns + round(seconds * NS_PER_S)
            sleeper = threading.get_ident()
            self._wake_ns[sleeper] = wake_ns
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._now_ns >= wake_ns)
            finally:
                del self._wake_ns[sleeper]

    def wait_for_sleepers(self, count: int = 1, *, guard_s: float = 30.0) -> None:
        """Return when `count` threads or more are in `sleep`.

        Args:
            count: how many sleepers to wait for.
            guard_s: real seconds after which the test is taken for broken.

        Raises:
            TimeoutError: `guard_s` real seconds have passed first.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self._wake_ns) >= count, timeout=guard_s):
                raise TimeoutError(f"{len(self._wake_ns)} of {count} threads sleep on the virtual clock")

    def next_wake_ns(self) -> int | None:
        """The earliest instant a sleeper waits for, in `monotonic_ns`; None when nobody sleeps."""
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
