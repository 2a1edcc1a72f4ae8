"""Which occurrences of an error that repeats are logged: the first, and then how many there were. Pure.

A Kafka client that cannot join its group reports the same error each second. The first occurrence of a cause is logged.
After that its count is logged when a minute has passed, then ten, then once an hour. A cause that was silent for ten
minutes begins again. Memory is bounded: with too many causes the oldest is forgotten.
"""

from collections.abc import Hashable
from typing import Final

__all__ = ["RepeatedErrors"]

_PAUSES_MS: Final = (60_000, 600_000, 3_600_000)
_SILENCE_MS: Final = 600_000
_CAUSES: Final = 256


class RepeatedErrors:
    """Counts occurrences by cause. Thread-safety: none."""

    def __init__(self) -> None:
        self._causes: dict[Hashable, list[int]] = {}  # [index of the pause, when it is over, count, last seen], by age

    def note(self, cause: Hashable, now_ms: int) -> int:
        """Count an occurrence; return how many are to be logged now: 1 for the first, 0 for none.

        Args:
            cause: what occurrences are counted together by.
            now_ms: monotonic time in ms.
        """
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
