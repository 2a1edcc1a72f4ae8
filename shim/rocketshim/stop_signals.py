"""Treat SIGINT and SIGTERM as a request to stop, from before the work begins until its clean-up has ended.

* The first signal requests a stop. The handlers stay installed until the block ends, so a further signal does not
  interrupt the clean-up. Further signals are usual: a service manager signals the whole control group, a terminal
  signals its whole process group, and a supervisor passes signals on
  (test_signals_during_the_shutdown_do_not_interrupt_it, test_signals_to_the_process_group_let_all_that_began_end).
* Only a person can force the end: a second Ctrl-C (SIGINT), at least a second after the first, raises
  KeyboardInterrupt. SIGTERM never does. Some launchers send a copy of the first Ctrl-C; it comes sooner than a second.
* A block inside another one begins with what the outer block has received, and passes on what it has received itself,
  so that no signal is lost between them.
* Handlers only set plain attributes: the interrupted code itself may hold a lock or use an event.
* SIGTERM ends a forked child as if there were no block: `multiprocessing` ends its processes by it. SIGINT does not: a
  terminal sends it to the children, too, and the work that is to be finished may need them.
"""

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, Self

from rocketshim.at_exit import at_exit

__all__ = ["STOP_SIGNALS", "StopSignals"]

STOP_SIGNALS: Final = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGBREAK") if hasattr(signal, name)
)  # SIGBREAK: Ctrl-Break on Windows, where no other process can send SIGTERM

_FORCE_AFTER_S: Final = 1.0


class StopSignals:
    """A context manager in which SIGINT and SIGTERM request a stop. Outside of the main thread it does nothing.

    `asked`: whether a signal has arrived. `interrupted_s`: when the first SIGINT arrived, by the clock `now_s`.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.asked = False
        self._now_s = now_s
        self.interrupted_s: float | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._outer: StopSignals | None = None
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self.note) for number in STOP_SIGNALS}
            outer = getattr(self._before[signal.SIGINT], "__self__", None)
            if isinstance(outer, StopSignals):
                self._outer = outer
                self.asked = outer.asked
                self.interrupted_s = outer.interrupted_s
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
        if self._outer is not None and self.asked:
            self._outer.asked = True
            self._outer.interrupted_s = self.interrupted_s

    def note(self, number: int, frame: FrameType | None = None) -> None:
        """Record a signal; a second SIGINT, at least a second after the first, raises `KeyboardInterrupt`."""
        del frame
        if number == signal.SIGTERM and os.getpid() != self._pid:
            signal.signal(number, self._before.get(signal.SIGTERM, signal.SIG_DFL))
            signal.raise_signal(number)
            return
        self.asked = True
        if number != signal.SIGINT:
            return
        now_s = self._now_s()
        if self.interrupted_s is None:
            self.interrupted_s = now_s
        elif now_s - self.interrupted_s >= _FORCE_AFTER_S:
            at_exit.abandon()
            raise KeyboardInterrupt

    def ignore_from_now_on(self) -> None:
        """Ignore both signals until the process ends: its work is done, and its exit code must report that."""
        if self._before:
            self._before = {}
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
