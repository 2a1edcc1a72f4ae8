"""An interval at which something is due. Pure: the time is an argument."""

from dataclasses import dataclass
from typing import Final

__all__ = ["RENEWAL_MS", "Timer"]

RENEWAL_MS: Final = 3_600_000
"""How often positions are committed again that have not moved. Kafka forgets a position of a group without members if
it was not committed for `offsets.retention.minutes` (7 days), even while a consumer reads the partition."""


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
