"""The result of a check."""

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Finding", "Severity"]


class Severity(StrEnum):
    """The severity of a finding. Errors and warnings give exit code 2; a note does not."""

    ERROR = "error"
    """Messages are lost, delayed or wrong now, or will be in normal operation."""
    WARNING = "warning"
    """Messages are lost, delayed or wrong after one more failure."""
    NOTE = "note"
    """Nothing is lost, or the doctor could not examine something."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem."""

    check: str  # short, stable name of the check
    severity: Severity  # how severe it is
    subject: str  # the topic, group, setting … with the problem
    what: str  # what is wrong, with the values found and wanted
    cost: str  # its impact, now or later
    fix: str  # the command that fixes it, or what to do if no command can
