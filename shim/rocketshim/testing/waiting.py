"""How the in-memory clients wait.

======================  ==============================================================================================
policy                  a call that has nothing to return
======================  ==============================================================================================
hook                    calls the hook once, without a lock, with its timeout in seconds (−1: none); then checks again
blocking                blocks its thread until something changes, the clock reaches the timeout, or the timeout has
                        passed in real time (so a virtual clock that is never moved does not block a client forever)
not blocking            returns immediately; time does not move
by thread (default)     on a real clock: blocking. On a virtual one: not blocking in the thread that made the cluster,
                        which drives the test, and blocking in every other, which belongs to a program under test
======================  ==============================================================================================
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rocketshim.core.clock import Clock
from rocketshim.testing.clock import VirtualClock

__all__ = ["NS_PER_MS", "NS_PER_S", "Changes", "Waiter", "Waiting"]

NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Waiting:
    """A waiting policy; `blocking=None`: by thread. It has no effect if there is a hook."""

    on_wait: Callable[[float], None] | None = None
    blocking: bool | None = None
    driver: int = field(default_factory=threading.get_ident)

    def blocks(self, clock: Clock) -> bool:
        """Return whether this thread blocks on this clock."""
        if self.blocking is not None:
            return self.blocking
        return not isinstance(clock, VirtualClock) or threading.get_ident() != self.driver


class Changes:
    """A counter of changes, guarded by the cluster's lock; threads can wait for the next change.

    Thread-safety: `lock` guards it; `version` and `tell` are used with it held, `await_change` without.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.version = 0
        self._condition = threading.Condition(self.lock)

    def tell(self) -> None:
        """Count a change and wake waiting threads (locked)."""
        self.version += 1
        self._condition.notify_all()

    def await_change(self, version: int, *, is_over: Callable[[], bool], real_timeout_s: float | None) -> bool:
        """Block until a change after `version`; return False if `is_over` or the real timeout came first."""
        deadline_s = None if real_timeout_s is None else time.monotonic() + real_timeout_s
        with self.lock:
            while self.version == version:
                left_s = None if deadline_s is None else deadline_s - time.monotonic()
                if is_over() or (left_s is not None and left_s <= 0):
                    return False
                self._condition.wait(left_s)
        return True


class Waiter:
    """The waiting of one call of a client: made when the call begins, and used whenever nothing was found.

    A negative time-out is none.
    """

    def __init__(self, changes: Changes, clock: Clock, waiting: Waiting, timeout_s: float) -> None:
        self._changes = changes
        self._clock = clock
        self._waiting = waiting
        self._timeout_s = timeout_s
        self._hook_is_due = timeout_s != 0
        self._deadline_ns = None if timeout_s < 0 else clock.monotonic_ns() + round(timeout_s * NS_PER_S)

    def wait(self, version: int) -> bool:
        """Wait for a change after `version`; return False if the call must end. Called without the lock."""
        if self._waiting.on_wait is not None:
            is_due, self._hook_is_due = self._hook_is_due, False
            if is_due:
                self._waiting.on_wait(self._timeout_s)
            return is_due
        if self._timeout_s == 0 or not self._waiting.blocks(self._clock):
            return False
        real_timeout_s = None if self._timeout_s < 0 else self._timeout_s
        return self._changes.await_change(version, is_over=self._is_over, real_timeout_s=real_timeout_s)

    def _is_over(self) -> bool:
        return self._deadline_ns is not None and self._clock.monotonic_ns() >= self._deadline_ns
