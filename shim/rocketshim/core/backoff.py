"""Exponential back-off: how long to wait before the next try, by the number of failures in a row. Pure."""

from dataclasses import dataclass

__all__ = ["Backoff"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that grow by a factor up to a longest one.

    Args:
        first: the first pause, in any unit, 1 or more.
        longest: the longest pause, in the same unit, at least `first`.
        factor: growth from one pause to the next, finite, at least 1. Default 2.
    """

    first: int
    longest: int
    factor: float = 2.0

    def pause(self, failures: int) -> int:
        """Return the next pause.

        Args:
            failures: failures in a row before the one that just happened, 0 or more.
        """
        try:
            grown = self.first * float(self.factor) ** failures
        except OverflowError:  # more than a float can represent
            return self.longest
        return round(min(grown, self.longest))
