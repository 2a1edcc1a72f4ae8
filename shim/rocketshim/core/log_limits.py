"""Which failures of a listener and which errors of a Kafka client are logged, so that they cannot fill the log. Pure.

`FailureWindows`: failures are counted by cause in windows of one minute. The first failure of a cause opens its window
and is logged in full. The next ones are logged in short, up to a limit. All further failures of the window are only
counted; when the window ends, the count is returned once.

`RepeatedErrors`: a client that cannot join its group reports the same error each second. The first occurrence of a
cause is logged. After that its count is logged when a minute has passed, then ten, then once an hour. A cause that was
silent for ten minutes begins again.

Memory is bounded: if there are too many causes, the oldest window ends early, with its count, and the oldest error is
forgotten.
"""

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

__all__ = ["WINDOW_MS", "FailureWindows", "RepeatedErrors"]

WINDOW_MS: Final = 60_000
_LINES: Final = 20
_CAUSES: Final = 256
_PAUSES_MS: Final = (60_000, 600_000, 3_600_000)
_SILENCE_MS: Final = 600_000
_NEVER_MS: Final = 2**62

CauseT = TypeVar("CauseT", bound=Hashable)


class FailureWindows(Generic[CauseT]):
    """Counts failures by cause; a window begins with the first failure of its cause, and logs `lines` of them.

    Thread-safety: none; the caller's thread or lock.
    """

    def __init__(self, *, window_ms: int = WINDOW_MS, lines: int = _LINES, causes: int = _CAUSES) -> None:
        self._window_ms = window_ms
        self._lines = lines
        self._causes = causes
        self._windows: dict[CauseT, list[int]] = {}  # [end in ms, count], by age
        self._ended: list[tuple[CauseT, int]] = []
        self._next_end_ms = _NEVER_MS

    def note(self, cause: CauseT, now_ms: int) -> int:
        """Count a failure; return the failures of its cause in its window, or 0 if it is not to be logged.

        The result 1 is the first of its cause, which is logged in full. `now_ms` is monotonic.
        """
        if now_ms >= self._next_end_ms:
            self._end_windows(now_ms)
        window = self._windows.get(cause)
        if window is None:
            if len(self._windows) >= self._causes:
                self._end(next(iter(self._windows)))
            window = self._windows[cause] = [now_ms + self._window_ms, 0]
            self._next_end_ms = min(self._next_end_ms, window[0])
        window[1] = count = window[1] + 1
        return count if count <= self._lines else 0

    def ended(self, now_ms: int) -> list[tuple[CauseT, int]]:
        """Return, once, how many failures of a cause were not logged in a window that has ended."""
        if now_ms >= self._next_end_ms:
            self._end_windows(now_ms)
        if not self._ended:
            return []
        ended, self._ended = self._ended, []
        return ended

    def _end_windows(self, now_ms: int) -> None:
        for cause in [cause for cause, window in self._windows.items() if window[0] <= now_ms]:
            self._end(cause)
        self._next_end_ms = min((window[0] for window in self._windows.values()), default=_NEVER_MS)

    def _end(self, cause: CauseT) -> None:
        unlogged = self._windows.pop(cause)[1] - self._lines
        if unlogged > 0 and len(self._ended) < self._causes:
            self._ended.append((cause, unlogged))


class RepeatedErrors:
    """Counts occurrences by cause. Thread-safety: none."""

    def __init__(self) -> None:
        self._causes: dict[Hashable, list[int]] = {}  # [index of the pause, when it is over, count, last seen], by age

    def note(self, cause: Hashable, now_ms: int) -> int:
        """Count an occurrence; return how many are to be logged now: 1 for the first, 0 for none. Monotonic time."""
        known = self._causes.get(cause)
        if known is None or now_ms - known[3] >= _SILENCE_MS:
            self._causes.pop(cause, None)
            if len(self._causes) >= _CAUSES:
                del self._causes[next(iter(self._causes))]
            self._causes[cause] = [0, now_ms + _PAUSES_MS[0], 0, now_ms]
            return 1
        known[2] += 1
        known[3] = now_ms
        if now_ms < known[1]:
            return 0
        count, known[2] = known[2], 0
        known[0] = min(known[0] + 1, len(_PAUSES_MS) - 1)
        known[1] = now_ms + _PAUSES_MS[known[0]]
        return count
