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
    """One problem.

    Attributes:
        check: short, stable name of the check.
        severity: how severe it is.
        subject: the topic, group, setting … with the problem.
        what: what is wrong, with the values found and wanted.
        cost: its impact, now or later.
        fix: the command that fixes it, or what to do if no command can.
    """

    check: str
    severity: Severity
    subject: str
    what: str
    cost: str
    fix: str
