"""Exponential back-off: how long to wait before the next try, by the number of failures in a row. Pure."""

from dataclasses import dataclass

__all__ = ["Backoff"]


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that grow by a factor up to a longest one, in any unit."""

    first: int
    longest: int
    factor: float = 2.0

    def pause(self, failures: int) -> int:
        """Return the next pause; `failures` in a row came before the one that just happened."""
        try:
            grown = self.first * float(self.factor) ** failures
        except OverflowError:  # more than a float can represent
            return self.longest
        return round(min(grown, self.longest))
