"""What a check says."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Severity"]


class Severity(StrEnum):
    """How bad it is. The first two are findings (exit code 2), a note is worth knowing."""

    ERROR = "error"
    """Messages are lost, held up or wrong now, or will be in normal operation."""
    WARNING = "warning"
    """Messages are lost, held up or wrong after one more failure."""
    NOTE = "note"
    """Nothing is lost; or something could not be looked at."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        check: its short, stable name.
        severity: how bad it is.
        subject: topic, group, setting … that it is about.
        what: what is wrong, with the values found and wanted.
        cost: what it costs, or will cost.
        mend: the command that mends it, or what to do where no command can.
    """

    check: str
    severity: Severity
    subject: str
    what: str
    cost: str
    mend: str
