"""Describe an exception of user code: its class, its text, where it was raised, and now and then its stack trace.

Formatting a stack trace costs as much as a millisecond, so it is taken for the first failure of a cause in a minute
only. A cause is the class of the exception and the line that raised it. The text is made here, in the listener's
thread: an exception that is kept would keep the frames that it passed, and with them everything that user code had in
hand.
"""

import threading
import traceback
from types import TracebackType
from typing import Final

from rocketshim.consumer.outcome import DeadLetter, RetryLater, class_name, safe_text
from rocketshim.core.clock import Clock
from rocketshim.core.failure_windows import FailureWindows
from rocketshim_topics import Failure

__all__ = ["FailureMaker", "stack_of"]

_FRAMES: Final = 30
_REQUESTS: Final = (RetryLater, DeadLetter)
_MAX_STACK_CHARS: Final = 16_384
_TRACEBACK: Final = BaseException.__dict__["__traceback__"]  # user code may have replaced it in its class


def place_of(error: BaseException) -> str:
    """Return the file and line that raised an exception; empty if it was never raised."""
    trace: TracebackType | None = _TRACEBACK.__get__(error)
    if trace is None:
        return ""
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"


def stack_of(error: BaseException) -> str:
    """Return the stack trace of an exception, at most its last 30 frames and 16 KiB; it calls user code."""
    trace: TracebackType | None = _TRACEBACK.__get__(error)
    while trace is not None and trace.tb_next is not None and _is_ours(trace):
        trace = trace.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, trace, limit=-_FRAMES))
    except BaseException as failed:  # noqa: BLE001 - `__str__`, `__cause__` and others are user code
        return f"(the stack trace cannot be formatted: {class_name(failed)})"
    return text[-_MAX_STACK_CHARS:]


def _is_ours(trace: TracebackType) -> bool:
    return str(trace.tb_frame.f_globals.get("__name__")).startswith("rocketshim.")


class FailureMaker:
    """Makes a `Failure` of an exception.

    Args:
        clock: tells when it failed, and how long a minute is.

    Thread-safety: any thread; no user code runs under its lock.
    """

    __slots__ = ("_clock", "_lock", "_windows")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._windows: FailureWindows[tuple[str, str]] = FailureWindows()

    def of(self, error: BaseException) -> Failure:
        """Return what is known about an exception; a request (`RetryLater`, `DeadLetter`) has no stack trace."""
        name, place = class_name(error), place_of(error)
        stack = ""
        if not issubclass(type(error), _REQUESTS):
            with self._lock:
                is_first = self._windows.note((name, place), self._clock.monotonic_ns() // 1_000_000) == 1
            if is_first:
                stack = stack_of(error)
        return Failure(name, safe_text(error), self._clock.wall_ms(), place, stack)
