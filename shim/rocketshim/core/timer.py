"""An interval at which something is due. Pure: the time is an argument."""

from dataclasses import dataclass

__all__ = ["Timer"]


@dataclass(slots=True)
class Timer:
    """Something that is due at an interval, for the first time immediately."""

    interval_ms: int
    next_ms: int = 0

    def is_due(self, now_ms: int) -> bool:
        """Return whether it is due; if so, it is due again one interval later."""
        if now_ms < self.next_ms:
            return False
        self.next_ms = now_ms + self.interval_ms
        return True
