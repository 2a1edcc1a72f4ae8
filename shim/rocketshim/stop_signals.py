"""SIGINT and SIGTERM as a request to stop, from before the work begins until its clean-up has ended.

* The first signal asks. The handlers stay until the block ends, so no further one cuts the clean-up short: service
  managers signal the whole control group, a terminal its whole process group, and whoever supervises passes it on.
* Only a person forces: a second Ctrl-C (SIGINT), at least a second after the first, raises KeyboardInterrupt. SIGTERM
  never does; a copy of the first Ctrl-C, which some launchers send, comes sooner.
* A block inside another one takes over what the outer one has heard, so that nothing is lost between them.
* Handlers only set plain attributes: a lock or an event might be taken by the very code they interrupt.
"""

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Final, Self

__all__ = ["STOP_SIGNALS", "StopSignals"]

STOP_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)

_FORCE_AFTER_S: Final = 1.0


class StopSignals:
    """A context manager in which SIGINT and SIGTERM ask to stop; in other threads than the main one it does nothing.

    Args:
        now_s: the monotonic clock, in seconds.

    Attributes:
        asked: whether a signal has come.
        interrupted_s: when the first SIGINT came; None: none has.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.asked = False
        self._now_s = now_s
        self.interrupted_s: float | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self.hear) for number in STOP_SIGNALS}
            outer = getattr(self._before[signal.SIGINT], "__self__", None)
            if isinstance(outer, StopSignals):
                self.asked = outer.asked
                self.interrupted_s = outer.interrupted_s
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def hear(self, number: int, frame: FrameType | None = None) -> None:
        """Take a signal in; what the handlers do.

        Raises:
            KeyboardInterrupt: a person insists.
        """
        del frame
        self.asked = True
        if number != signal.SIGINT:
            return
        now_s = self._now_s()
        if self.interrupted_s is None:
            self.interrupted_s = now_s
        elif now_s - self.interrupted_s >= _FORCE_AFTER_S:
            raise KeyboardInterrupt

    def ignore_from_now_on(self) -> None:
        """Ignore both signals until the process ends: its work is done, and its exit code is to say so."""
        if self._before:
            self._before = {}
            for number in STOP_SIGNALS:
                signal.signal(number, signal.SIG_IGN)
