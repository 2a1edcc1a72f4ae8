"""Count dead letters by cause: records, different messages, first and last time. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from rocketshim.admin.record_view import RecordView
from rocketshim_topics.causes import cause_id, fingerprint

__all__ = ["CauseCount", "by_cause", "cause_of"]


def cause_of(entry: RecordView) -> tuple[str, str]:
    """Return the cause of a record as `stats` names it: its class, and the fingerprint of its text."""
    cause = entry.cause or (f"malformed ({entry.malformed})" if entry.malformed else "unknown")
    return cause, fingerprint(entry.envelope.fail_text)


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

    @property
    def id(self) -> str:
        """Return what `RecordFilter` selects exactly these records by."""
        return cause_id(self.cause, self.text)

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
        key = cause_of(entry)
        counts.setdefault(key, CauseCount(*key)).add(entry)
    return sorted(counts.values(), key=lambda each: (-each.count, each.cause, each.text))
