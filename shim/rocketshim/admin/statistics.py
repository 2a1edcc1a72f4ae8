"""Dead letters by cause: how many, how many different messages, since when, until when. Pure.

Two failures have the same *fingerprint* when their texts differ in numbers and ids only: runs of hex digits of 8 and
more, and runs of decimal digits, are each written `#`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from rocketshim.admin.record_view import RecordView
from rocketshim_topics.hops import MAX_FAIL_TEXT_BYTES

__all__ = ["CauseCount", "by_cause", "fingerprint"]

_ID: Final = re.compile(r"\b(?=[0-9a-fA-F-]*\d)[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*\b|\d+")
_SHOWN: Final = 120


def fingerprint(text: str | None) -> str:
    """A failure's text with numbers and ids written as `#`, cut to 120 characters.

    Of a text that is longer than the shim writes any (1,024) the rest is not looked at: a strange one could take hours.
    """
    return _ID.sub("#", (text or "")[:MAX_FAIL_TEXT_BYTES])[:_SHOWN]


@dataclass(slots=True)
class CauseCount:
    """Dead letters of one cause.

    Attributes:
        cause: exception class.
        text: fingerprint of the failure's text.
        count: records.
        ids: different messages.
        first_ms, last_ms: when the first and the last of them were stored, epoch ms.
        sample: coordinates of the last one.
    """

    cause: str
    text: str
    count: int = 0
    ids: set[str] = field(default_factory=set)
    first_ms: int = 0
    last_ms: int = 0
    sample: str = ""

    def add(self, entry: RecordView) -> None:
        """Count one."""
        self.first_ms = entry.stored_ms if self.count == 0 else min(self.first_ms, entry.stored_ms)
        if entry.stored_ms >= self.last_ms:
            self.last_ms, self.sample = entry.stored_ms, entry.at
        self.count += 1
        self.ids.add(entry.id)


def by_cause(entries: Iterable[RecordView]) -> list[CauseCount]:
    """Counts by cause and fingerprint, the most frequent first."""
    counts: dict[tuple[str, str], CauseCount] = {}
    for entry in entries:
        cause = entry.cause or (f"malformed ({entry.malformed})" if entry.malformed else "unknown")
        place = (cause, fingerprint(entry.envelope.fail_text))
        counts.setdefault(place, CauseCount(*place)).add(entry)
    return sorted(counts.values(), key=lambda each: (-each.count, each.cause, each.text))
