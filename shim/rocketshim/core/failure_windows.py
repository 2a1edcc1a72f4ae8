"""Which failures of a listener are logged, so that a listener that always fails cannot fill the log. Pure.

Failures are counted by cause in windows of one minute. The first failure of a cause opens its window and is logged in
full. The next ones are logged in short, up to a limit. All further failures of the window are only counted; when the
window ends, the count is returned once.

Memory is bounded: if there are too many causes, the oldest window ends early, with its count.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

__all__ = ["WINDOW_MS", "FailureWindows", "Unlogged"]

WINDOW_MS: Final = 60_000
_LINES: Final = 20
_CAUSES: Final = 256
_NEVER_MS: Final = 2**62

CauseT = TypeVar("CauseT", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Unlogged(Generic[CauseT]):
    """Failures of a window that has ended, which were counted but not logged."""

    cause: CauseT
    count: int


class FailureWindows(Generic[CauseT]):
    """Counts failures by cause.

    Args:
        window_ms: length of a window in ms, from the first failure of its cause.
        lines: maximum number of failures of a cause that are logged in a window, 1 or more.
        causes: maximum number of windows at a time, 1 or more.

    Thread-safety: none; the caller's thread or lock.
    """

    def __init__(self, *, window_ms: int = WINDOW_MS, lines: int = _LINES, causes: int = _CAUSES) -> None:
        self._window_ms = window_ms
        self._lines = lines
        self._causes = causes
        self._windows: dict[CauseT, list[int]] = {}  # [end in ms, count], by age
        self._ended: list[Unlogged[CauseT]] = []
        self._next_end_ms = _NEVER_MS

    def note(self, cause: CauseT, now_ms: int) -> int:
        """Count a failure; return the failures of its cause in its window, or 0 if it is not to be logged.

        The result 1 is the first of its cause, which is logged in full.

        Args:
            cause: what failures are counted together by.
            now_ms: monotonic time in ms.
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

    def ended(self, now_ms: int) -> list[Unlogged[CauseT]]:
        """Return, once, what was not logged in the windows that have ended."""
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
            self._ended.append(Unlogged(cause, unlogged))
