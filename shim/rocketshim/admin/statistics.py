"""Count dead letters by cause: records, different messages, first and last time. Pure.

Two failures have the same *fingerprint* if their texts differ only in numbers and ids: each run of 8 or more hex
digits, and each run of decimal digits, is replaced by `#`.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from rocketshim.admin.record_view import RecordView
from rocketshim_topics.hops import MAX_FAIL_TEXT_BYTES

__all__ = ["FINGERPRINT_PATTERN", "MAX_FINGERPRINT_CHARS", "CauseCount", "by_cause", "fingerprint"]

FINGERPRINT_PATTERN: Final = r"\b(?=[0-9a-fA-F-]*\d)[0-9a-fA-F]{8,}(?:-[0-9a-fA-F]{4,})*\b|\d+"
"""The texts that a fingerprint replaces by `#`."""

MAX_FINGERPRINT_CHARS: Final = 120

_ID: Final = re.compile(FINGERPRINT_PATTERN)


def fingerprint(text: str | None) -> str:
    """Return a failure's text with numbers and ids replaced by `#`, cut to 120 characters.

    Only the first 1,024 characters, the longest text that rocketshim writes, are examined: a long foreign text could
    take hours.
    """
    return _ID.sub("#", (text or "")[:MAX_FAIL_TEXT_BYTES])[:MAX_FINGERPRINT_CHARS]


@dataclass(slots=True)
class CauseCount:
    """Dead letters of one cause."""

    cause: str  # exception class
    text: str  # fingerprint of the failure's text
    count: int = 0  # number of records
    ids: set[str] = field(default_factory=set)  # ids of the different messages
    first_ms: int = 0  # when the first and the last record were stored, epoch ms
    last_ms: int = 0
    sample: str = ""  # coordinates of the last record

    def add(self, entry: RecordView) -> None:
        """Count a record."""
        self.first_ms = entry.stored_ms if self.count == 0 else min(self.first_ms, entry.stored_ms)
        self.last_ms, self.sample = max((self.last_ms, self.sample), (entry.stored_ms, entry.at))
        self.count += 1
        self.ids.add(entry.id)


def by_cause(entries: Iterable[RecordView]) -> list[CauseCount]:
    """Count dead letters by cause and fingerprint, the most frequent first."""
    counts: dict[tuple[str, str], CauseCount] = {}
    for entry in entries:
        cause = entry.cause or (f"malformed ({entry.malformed})" if entry.malformed else "unknown")
        key = (cause, fingerprint(entry.envelope.fail_text))
        counts.setdefault(key, CauseCount(*key)).add(entry)
    return sorted(counts.values(), key=lambda each: (-each.count, each.cause, each.text))
