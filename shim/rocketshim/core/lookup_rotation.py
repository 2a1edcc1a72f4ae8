"""Which of several look-ups to try next, so that one that fails does not delay the others.

New things are tried together, which is the usual and cheapest case. If that fails, each of them is tried alone,
immediately. A thing that fails alone is tried again after 0.1 s, 0.2 s … 1 s, or after ten times the duration of the
try, whichever is longer. A try blocks its thread, so tries take no more than a tenth of the thread's time. Each try
alone waits longer for an answer than the one before, because a slow cluster still answers.
"""

from collections.abc import Collection, Iterable
from typing import Final, Generic, TypeVar

from rocketshim.core.clock import Backoff

__all__ = ["LookupRotation"]

T = TypeVar("T")

_TOGETHER_S: Final = 10.0
_ALONE_MS: Final = Backoff(1_000, 10_000)
_AGAIN_MS: Final = Backoff(100, 1_000)
_AGAIN_TIMES: Final = 10


class LookupRotation(Generic[T]):
    """The order of tries among waiting things.

    Thread-safety: none; one owner thread.
    """

    def __init__(self) -> None:
        self._failures: dict[T, int] = {}
        self._again_ms = 0

    def pick(self, waiting: Iterable[T], now_ms: int) -> tuple[list[T], float]:
        """Return what to try now: all new things, one, or nothing; and how many seconds to wait for an answer.

        What is missing in `waiting` is forgotten. Call `tried` afterwards.
        """
        self._failures = {each: self._failures.get(each, 0) for each in waiting}
        new = [each for each, count in self._failures.items() if not count]
        if new:
            return new, _TOGETHER_S
        due = {each: count for each, count in self._failures.items() if count == 1 or now_ms >= self._again_ms}
        if not due:
            return [], 0.0
        first = min(due, key=due.__getitem__)
        return [first], _ALONE_MS.pause(due[first] - 1) / 1_000

    def tried(self, picked: Collection[T], *, failed: bool, began_ms: int, now_ms: int) -> None:
        """Record whether some or all of what `pick` returned failed."""
        counts = [self._failures.get(each, 0) for each in picked]
        if any(counts):  # this was a single thing, because new things are picked together
            wait_ms = max(_AGAIN_MS.pause(counts[0] - 1), _AGAIN_TIMES * (now_ms - began_ms))
            self._again_ms = now_ms + (wait_ms if failed else 0)
        if failed:
            self._failures |= {each: count + 1 for each, count in zip(picked, counts, strict=True)}
